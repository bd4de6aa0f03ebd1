//! Messages that are read out of the sender's process (`LINERATE_CMA=on`), and a sender that dies,
//! stops, gives up, or takes its memory away before they are.
#![allow(unsafe_code)]

use super::job::{Job, Place, Start, join, seed};
use crate::prng::Prng;
use linerate::transport::Region;
use linerate::{Buffer, Communicator};
use linerate_children::{is_running, result, text};
use rustix::process::Signal;
use std::time::Duration;

const BYTES: usize = 4 << 20;
/// One message.
const PIECE_BYTES: usize = 200_000;

fn start<'a>(role: &'a str, environment: &'a [(&'a str, String)]) -> Start<'a> {
    Start {
        environment,
        ..Start::new(role, 2)
    }
}

fn fetching(timeout_s: &str) -> Vec<(&'static str, String)> {
    vec![
        ("LINERATE_CMA", "on".into()),
        ("LINERATE_DEBUG", "info".into()),
        ("LINERATE_TIMEOUT", timeout_s.into()),
    ]
}

/// Whether the host lets processes of one user read each other. It is the kernel that decides, not
/// the library: where ranks were refused there is nothing to test.
fn is_allowed(outputs: &[std::process::Output]) -> bool {
    let all = outputs.iter().map(text).collect::<String>();
    let is_allowed = all.contains("are fetched by all others");
    if !is_allowed {
        println!("skipped: this host lets no process read another one:\n{all}");
    }
    is_allowed
}

fn bytes_of(rank: u32) -> Vec<u8> {
    vec![7 + rank as u8; BYTES]
}

/// Both ranks send each other memory that is not registered, until that fails; what has come is
/// always whole.
pub fn exchange() {
    let place = Place::open();
    let comm = join().unwrap();
    let peer = 1 - comm.rank();
    let mine = Buffer::from_vec(bytes_of(comm.rank()));
    let theirs = Buffer::from_vec(vec![0; BYTES]);
    place.set(b'i');
    let error = loop {
        theirs.as_mut_slice().unwrap().fill(0);
        match comm.group().send(&mine, peer).recv(&theirs, peer).run() {
            Ok(()) => assert!(theirs.to_vec().unwrap() == bytes_of(peer)),
            Err(error) => break error,
        }
    };
    println!("ERROR {}", error.to_string().replace('\n', " "));
}

/// Starts them, and does this to rank 0 after a moment; what rank 1 says of it.
fn disturb(timeout_s: &str, delay: Duration, act: impl FnOnce(&Job)) -> Option<String> {
    let environment = fetching(timeout_s);
    let job = start("fetching", &environment).spawn();
    job.wait_for("the start", |places| places == b"ii");
    std::thread::sleep(delay);
    act(&job);
    let outputs = job.end();
    let error = result(&outputs[1], "ERROR");
    assert!(error.is_some(), "{}", text(&outputs[1]));
    is_allowed(&outputs[1..]).then_some(error).flatten()
}

#[test]
fn a_sender_that_is_killed_while_it_is_read_is_named() {
    let mut prng = Prng::new(seed());
    for _ in 0..10 {
        let delay = Duration::from_micros(prng.below(20_000));
        let error = disturb("20", delay, |job| job.signal(0, Signal::KILL));
        let Some(error) = error else { return };
        assert!(
            error.contains("rank 0") && error.contains("its process ended"),
            "{error}"
        );
    }
}

#[test]
fn a_rank_that_is_stopped_while_it_is_read_is_missed_and_ends_when_it_goes_on() {
    let mut prng = Prng::new(seed());
    for _ in 0..3 {
        let delay = Duration::from_micros(prng.below(20_000));
        let error = disturb("1.5", delay, |job| {
            job.signal(0, Signal::STOP);
            // Longer than the survivor waits, and it has ended when this one goes on.
            let pid = job.pid(1);
            job.wait_for("the end of the other rank", |_| !is_running(pid));
            job.signal(0, Signal::CONT);
        });
        let Some(error) = error else { return };
        assert!(error.contains("rank 0 is missing"), "{error}");
    }
}

fn receive(comm: &Communicator, bytes: usize) {
    let theirs = Buffer::from_vec(vec![0; bytes]);
    match comm.recv(&theirs, 0) {
        Ok(()) => {
            let is_whole = bytes_of(0).starts_with(&theirs.as_slice().unwrap());
            println!("CAME {is_whole}");
        }
        Err(error) => println!("ERROR {}", error.to_string().replace('\n', " ")),
    }
}

/// Rank 0 sends memory and unmaps it before rank 1 has read it, which it had promised not to.
pub fn unmapped() {
    let place = Place::open();
    let comm = join().unwrap();
    if comm.rank() == 0 {
        let region = Region::private(BYTES).unwrap();
        let address = region.view().as_ptr();
        // SAFETY: this breaks the promise to keep the memory mapped; nothing but the system reads
        // it, which notices.
        let buffer = unsafe { comm.adopt(address, BYTES) }.unwrap();
        let operation = comm.group().send(&buffer, 1).start().unwrap();
        drop(region);
        place.set(b'u');
        let error = operation.wait().unwrap_err();
        println!("ERROR {}", error.to_string().replace('\n', " "));
    } else {
        place.wait_for(b'u');
        receive(&comm, BYTES);
    }
}

#[test]
fn memory_that_is_gone_before_it_was_read_fails_on_both_ranks_and_kills_nobody() {
    let environment = fetching("20");
    let job = start("unmapped", &environment).spawn();
    job.wait_for("the sender", |places| places[0] == b'u');
    job.set_place(1, b'u');
    let outputs = job.end();
    if !is_allowed(&outputs[..1]) {
        return;
    }
    let causes = [
        "rank 1 failed: it could not read what rank 0 had sent",
        "rank 0 failed: 262144 bytes at 0x",
    ];
    for (output, cause) in outputs.iter().zip(causes) {
        let error = result(output, "ERROR").unwrap_or_else(|| panic!("{}", text(output)));
        assert!(
            error.contains(cause) && error.contains("LINERATE_CMA=off"),
            "{error}"
        );
    }
}

/// Rank 0 sends memory, gives up, and uses the memory for something else; rank 1 receives only
/// then.
pub fn withdrawn() {
    let place = Place::open();
    let comm = join().unwrap();
    if comm.rank() == 0 {
        let mine = Buffer::from_vec(bytes_of(0)[..PIECE_BYTES].to_vec());
        let operation = comm.group().send(&mine, 1).start().unwrap();
        operation.cancel().unwrap();
        mine.as_mut_slice().unwrap().fill(0xee);
        place.set(b'c');
        place.wait_for(b'e');
    } else {
        place.wait_for(b'c');
        receive(&comm, PIECE_BYTES);
        place.set(b'e');
    }
}

#[test]
fn what_a_rank_took_back_is_never_received_with_what_it_wrote_there_later() {
    let environment = fetching("20");
    let job = start("withdrawn", &environment).spawn();
    job.wait_for("the sender", |places| places[0] == b'c');
    job.set_place(1, b'c');
    job.wait_for("the receiver", |places| places[1] == b'e');
    job.set_place(0, b'e');
    let outputs = job.end();
    if !is_allowed(&outputs[..1]) {
        return;
    }
    let error = result(&outputs[1], "ERROR").unwrap_or_else(|| panic!("{}", text(&outputs[1])));
    assert!(
        error.contains("rank 0") && error.contains("cancel"),
        "{error}"
    );
}
