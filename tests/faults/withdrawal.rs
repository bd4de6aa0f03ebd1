//! A rank gives up while another one is stopped, and its caller uses the memory again: what the
//! stopped rank reads there when it goes on is no result.

use super::job::{Job, Place, Start, join};
use linerate::{Buffer, Collective, Communicator, DataType};
use linerate_children::{HANG, result, text};
use rustix::process::Signal;
use std::os::unix::fs::FileExt;
use std::time::{Duration, Instant};

/// The block of each rank takes several pieces and some milliseconds.
const COUNT: usize = 8 << 20;
/// What the caller of the rank that has given up stores: no sum and no input.
const LATER: f32 = 1e9;

/// Ranks sum their memory in place by `direct`. Rank 1 stops itself as soon as the first element of
/// its block has changed, in the middle of reading the others.
pub fn reducing() {
    let place = Place::open();
    let comm = join().unwrap();
    let buffer = comm.alloc::<f32>(COUNT).unwrap();
    buffer.as_mut_slice().unwrap().fill(1.0);
    comm.barrier().unwrap();
    let sum = comm.collective(Collective::AllReduce, DataType::F32, COUNT as u64);
    let sum = sum.input(&buffer).output(&buffer).algorithm("direct");
    let block = COUNT.div_ceil(comm.ranks() as usize);
    let element = buffer.as_slice().unwrap()[block..].as_ptr().addr() as u64;
    match comm.rank() {
        1 => std::thread::scope(|scope| {
            scope.spawn(|| stop_when_changed(element));
            report(&sum.run(), &buffer, comm.ranks() as f32);
        }),
        _ => reuse(&place, &sum.run(), &buffer),
    }
    // Nobody looks like the cause because it has ended.
    place.wait_for(b'e');
}

/// `address` is that of an element. An operation has it, so that no slice is to be had: the kernel
/// reads it.
fn stop_when_changed(address: u64) {
    let memory = std::fs::File::open("/proc/self/mem").unwrap();
    let deadline = Instant::now() + HANG;
    let mut bytes = 1.0f32.to_ne_bytes();
    while f32::from_ne_bytes(bytes) == 1.0 {
        memory.read_exact_at(&mut bytes, address).unwrap();
        assert!(Instant::now() < deadline, "rank 1 has not begun to reduce");
    }
    stop();
}

fn stop() {
    let own = rustix::process::getpid();
    rustix::process::kill_process(own, rustix::process::Signal::STOP).unwrap();
}

/// What the caller of a rank that has given up does, before anything else.
fn reuse(place: &Place, ended: &linerate::Result<()>, buffer: &Buffer<f32>) {
    buffer.write(0, &vec![LATER; buffer.len()]).unwrap();
    say(ended);
    place.set(b'r');
}

/// How it ended, and what a result consists of that is none.
fn report(ended: &linerate::Result<()>, buffer: &Buffer<f32>, wanted: f32) {
    let all = buffer.to_vec().unwrap();
    let wrong = all.iter().filter(|&&v| v != wanted).count();
    match ended {
        Ok(()) => println!("OK with {wrong} wrong elements"),
        Err(_) => say(ended),
    }
}

fn say(ended: &linerate::Result<()>) {
    let error = ended
        .as_ref()
        .map_or_else(ToString::to_string, |()| "none".into());
    println!("ERROR {}", error.replace('\n', " "));
}

fn environment() -> Vec<(&'static str, String)> {
    vec![("LINERATE_TIMEOUT", "1".to_string())]
}

/// Lets rank 1 go on when the callers of all others have used their memory again; what every rank
/// says then.
fn go_on(job: Job, ranks: u32) -> Vec<String> {
    let others = (0..ranks).filter(|&rank| rank != 1);
    job.wait_for("the errors of the others", |places| {
        others.clone().all(|rank| places[rank as usize] == b'r')
    });
    job.signal(1, Signal::CONT);
    (0..ranks).for_each(|rank| job.set_place(rank, b'e'));
    let outputs = job.end();
    let said = outputs.iter().map(|output| {
        let error = result(output, "ERROR").map(|error| format!("ERROR {error}"));
        error
            .or(result(output, "OK").map(|ok| format!("OK {ok}")))
            .unwrap_or_else(|| text(output))
    });
    said.collect()
}

fn check_all_name_rank_1(said: &[String]) {
    for (rank, text) in said.iter().enumerate() {
        let is_named = text.starts_with("ERROR rank") && text.contains("rank 1 is missing");
        assert!(is_named, "rank {rank}: {text}");
    }
}

#[test]
fn what_a_stopped_rank_reads_of_memory_that_was_given_back_is_no_result() {
    let environment = environment();
    for ranks in [2, 3] {
        let start = Start {
            environment: &environment,
            ..Start::new("reducing", ranks)
        };
        // Rank 1 may have done its part before the thread that stops it has had a core.
        let mut tries = (0..20).map(|_| go_on(start.spawn(), ranks));
        let said = tries.find(|said| said[0] != "ERROR none");
        check_all_name_rank_1(&said.expect("rank 1 was never stopped in the middle"));
    }
}

/// Rank 0 sends memory of a region that rank 1 receives only after rank 0 has given up.
pub fn receiving() {
    let place = Place::open();
    let comm = join().unwrap();
    let buffer = comm.alloc::<f32>(PIECE_BYTES / 4).unwrap();
    let value = 1.0 + comm.rank() as f32;
    buffer.as_mut_slice().unwrap().fill(value);
    comm.barrier().unwrap();
    match comm.rank() {
        1 => {
            place.wait_for(b'e');
            report(&receive(&comm, &buffer), &buffer, 1.0);
        }
        _ => {
            reuse(&place, &comm.group().send(&buffer, 1).run(), &buffer);
            place.wait_for(b'e');
        }
    }
}

/// One message.
const PIECE_BYTES: usize = 200_000;

fn receive(comm: &Communicator, buffer: &Buffer<f32>) -> linerate::Result<()> {
    comm.group().recv(buffer, 0).run()
}

#[test]
fn a_message_in_a_region_that_was_given_back_is_never_received() {
    let environment = environment();
    let start = Start {
        environment: &environment,
        ..Start::new("receiving", 2)
    };
    check_all_name_rank_1(&go_on(start.spawn(), 2));
}

/// Rank 1 stops itself before it receives what rank 0 sends it over a connection, so that the
/// kernels' buffers fill and the rest waits at rank 0.
pub fn thawing() {
    let place = Place::open();
    let comm = join().unwrap();
    let bytes: usize = std::env::var(BYTES_VARIABLE).unwrap().parse().unwrap();
    let buffer = comm.alloc::<f32>(bytes / 4).unwrap();
    let value = 1.0 + comm.rank() as f32;
    buffer.as_mut_slice().unwrap().fill(value);
    comm.barrier().unwrap();
    match comm.rank() {
        1 => {
            stop();
            // A signal of a process may find another thread of it first.
            std::thread::sleep(Duration::from_millis(50));
            report(&receive(&comm, &buffer), &buffer, 1.0);
        }
        _ => {
            reuse(&place, &comm.group().send(&buffer, 1).run(), &buffer);
            place.wait_for(b'e');
        }
    }
}

const BYTES_VARIABLE: &str = "LINERATE_TEST_BYTES";

/// A message in one piece and in several, of which the last is with the kernel, waits in the middle
/// of a connection, or waits to be asked for.
const SENT_BYTES: [usize; 4] = [100_000, 500_000, 2 << 20, 16 << 20];

#[test]
fn what_waits_for_a_connection_is_received_as_it_was_or_never() {
    for secret in [None, Some("a secret for messages")] {
        for bytes in SENT_BYTES {
            // Ranks meet within that time, too, which takes longer where there are connections.
            let mut environment = vec![("LINERATE_TIMEOUT", "2".to_string())];
            environment.push(("LINERATE_TRANSPORT", "tcp".to_string()));
            environment.push((BYTES_VARIABLE, bytes.to_string()));
            if let Some(secret) = secret {
                environment.push(("LINERATE_SECRET", secret.to_string()));
                environment.push(("LINERATE_TLS", "on".to_string()));
            }
            let start = Start {
                environment: &environment,
                ..Start::new("thawing", 2)
            };
            let said = go_on(start.spawn(), 2);
            let context = format!("{bytes} bytes, TLS: {}: {said:?}", secret.is_some());
            assert!(said[0].contains("rank 1 is missing"), "{context}");
            let is_right =
                said[1].starts_with("ERROR rank") || said[1] == "OK with 0 wrong elements";
            assert!(is_right, "{context}");
        }
    }
}
