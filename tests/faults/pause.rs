//! A rank is stopped in the middle of a store, given up, and goes on later: nothing of the others
//! may change.

use super::job::{Place, Start, join, seed};
use crate::prng::Prng;
use linerate::{Buffer, Communicator, Config, ReduceOp};
use linerate_children::{is_running, result, text};
use rustix::process::Signal;
use std::time::Duration;

const COUNT: usize = 16 << 20;
/// Unlike any sum of the ranks' values.
const MARK: f32 = -7.5;

/// Reduces much memory again and again. A survivor gives it up, takes new memory, and
/// looks whether that stays what it is while the stopped rank goes on.
pub fn paused() {
    let place = Place::open();
    let comm = join().unwrap();
    let is_registered = std::env::var("LINERATE_TEST_MEMORY").unwrap() == "registered";
    let make = |comm: &Communicator| match is_registered {
        true => comm.alloc::<f32>(COUNT).unwrap(),
        false => Buffer::from_vec(vec![0f32; COUNT]),
    };
    let buffer = make(&comm);
    // Every store of a sum changes it.
    buffer.as_mut_slice().unwrap().fill(1.0);
    place.set(b'i');
    let error = loop {
        if let Err(error) = comm.all_reduce(&buffer, ReduceOp::Sum) {
            break error;
        }
    };
    println!("ERROR {}", error.to_string().replace('\n', " "));
    if comm.rank() == 1 {
        return;
    }
    // What the stopped rank still stores where it was allowed to shows that it was in the middle of
    // it.
    let keep = std::env::var("LINERATE_TEST_KEEP").is_ok();
    let kept = keep.then(|| (comm.clone(), buffer.clone(), buffer.to_vec().unwrap()));
    drop((comm, buffer));
    // The survivors are ranks 0 and 2.
    let rank = std::env::var("RANK").unwrap().parse::<u32>().unwrap() / 2;
    let job = format!("{}-b", std::env::var("LINERATE_JOB").unwrap());
    let comm = Communicator::join(rank, 2, &job, Config::default()).unwrap();
    let marks = vec![MARK; COUNT];
    let (old, new) = (make(&comm), make(&comm));
    old.write(0, &marks).unwrap();
    new.write(0, &marks).unwrap();
    comm.all_reduce(&new, ReduceOp::Sum).unwrap();
    place.set(b'w');
    place.wait_for(b'g');
    let is = |buffer: &Buffer<f32>, wanted| {
        let values = buffer.as_slice().unwrap();
        values.iter().all(|&value| value == wanted)
    };
    let untouched =
        marks.iter().all(|&value| value == MARK) && is(&old, MARK) && is(&new, 2.0 * MARK);
    comm.barrier().unwrap();
    println!("BYTES {}", if untouched { "untouched" } else { "changed" });
    if let Some((_, buffer, before)) = kept {
        println!("STORED {}", i32::from(buffer.to_vec().unwrap() != before));
    }
}

/// Whether the stopped rank has gone on storing into memory that had been given to it.
fn pause(memory: &str, keep: bool, delay: Duration) -> bool {
    let mut environment = vec![
        ("LINERATE_TEST_MEMORY", memory.to_string()),
        // On a busy machine the first sum of so much memory stands still for a second.
        ("LINERATE_TIMEOUT", "4".to_string()),
    ];
    if keep {
        environment.push(("LINERATE_TEST_KEEP", "1".into()));
    }
    let job = Start {
        environment: &environment,
        ..Start::new("paused", 3)
    }
    .spawn();
    job.wait_for("the start", |places| places == b"iii");
    std::thread::sleep(delay);
    job.signal(1, Signal::STOP);
    job.wait_for("new work of the survivors", |places| {
        places[0] == b'w' && places[2] == b'w'
    });
    job.signal(1, Signal::CONT);
    // It has gone on when it has found out that nobody wants it any more.
    let pid = job.pid(1);
    job.wait_for("the end of the stopped rank", |_| !is_running(pid));
    job.set_place(0, b'g');
    job.set_place(2, b'g');
    let outputs = job.end();
    let mut has_stored = false;
    for rank in [0, 2] {
        has_stored |= result(&outputs[rank], "STORED").as_deref() == Some("1");
        let error = result(&outputs[rank], "ERROR").unwrap_or_else(|| text(&outputs[rank]));
        // A survivor that has no processor for half a second does not answer either.
        let named = [
            "rank 1 is missing: no answer",
            "rank 1: no answer",
            "ranks 0 and 1 are missing: no answer",
            "ranks 1 and 2 are missing: no answer",
        ];
        let is_named = named.iter().any(|text| error.contains(text));
        assert!(is_named, "rank {rank}: {error}");
        let bytes = result(&outputs[rank], "BYTES");
        assert_eq!(
            bytes.as_deref(),
            Some("untouched"),
            "{}",
            text(&outputs[rank])
        );
    }
    has_stored
}

#[test]
fn a_rank_that_was_stopped_in_a_store_changes_nothing_when_it_goes_on() {
    let mut prng = Prng::new(seed());
    for (memory, keep) in [("registered", false), ("caller", false), ("caller", true)] {
        pause(memory, keep, Duration::from_micros(prng.below(30_000)));
    }
    // Until it was in the middle of a store to the others: about every second time.
    let tries = (1..=20).find(|_| {
        pause(
            "registered",
            true,
            Duration::from_micros(prng.below(30_000)),
        )
    });
    println!("stopped in the middle of a store at try {tries:?}");
    assert!(tries.is_some(), "never in the middle of a store");
}
