//! A thousand allreduces while connections die, and what they have counted when they are over.

use crate::connections::{self, Connection};
use crate::prng::Prng;
use linerate::{Buffer, Communicator, ReduceOp};
use linerate_children::{Child, HANG, text};
use std::collections::BTreeMap;
use std::process::Output;
use std::time::{Duration, Instant};

/// Between two kills.
const EVERY: Duration = Duration::from_millis(100);
/// A sum of `count` numbers; panics if one is wrong.
pub fn sum(
    comm: &Communicator,
    buffer: &Buffer<u64>,
    count: usize,
    round: u64,
) -> linerate::Result<()> {
    let part = buffer.range(..count);
    let own = |i: usize| round * 1_000_003 + i as u64 * (1 + u64::from(comm.rank()));
    part.write(0, &(0..count).map(own).collect::<Vec<u64>>())?;
    comm.all_reduce(&part, ReduceOp::Sum)?;
    let ranks = u64::from(comm.ranks());
    let of_ranks = ranks * (ranks + 1) / 2;
    let right = |i: usize| ranks * round * 1_000_003 + i as u64 * of_ranks;
    let wrong = part
        .to_vec()?
        .iter()
        .enumerate()
        .filter(|&(i, &v)| v != right(i))
        .count();
    assert_eq!(wrong, 0, "round {round}, {count} numbers");
    Ok(())
}

/// A thousand allreduces of all sizes, in which a rank that is behind waits for nobody.
pub fn thousand(comm: &Communicator) {
    let counts = [1, 100, 40_000, 200_000, 600_000];
    let buffer = comm.alloc(counts[4]).unwrap();
    for round in 0..1000 {
        sum(comm, &buffer, counts[round as usize % 5], round).unwrap();
    }
    // Nobody leaves while others still need an answer about a lost connection.
    comm.barrier().unwrap();
    for (name, count) in comm.transport_counts() {
        println!("COUNT {count} {name}");
    }
}

/// Breaks a connection of a random rank every [`EVERY`] until all ranks have ended, of those that
/// are meant; how many it broke.
pub fn break_until_end(
    children: &mut [Child],
    prng: &mut Prng,
    is_meant: impl Fn(&Connection) -> bool,
) -> u32 {
    let (start, mut broken) = (Instant::now(), 0);
    while !children.iter_mut().all(Child::is_over) && start.elapsed() < HANG {
        std::thread::sleep(EVERY);
        let child = &children[prng.below(children.len() as u64) as usize];
        let mut found = connections::of_process(child.id());
        found.retain(&is_meant);
        if !found.is_empty() {
            let victim = &found[prng.below(found.len() as u64) as usize];
            connections::cut(&victim.socket, prng.below(2) == 0);
            broken += 1;
        }
    }
    broken
}

/// The sums over ranks of what they counted.
pub fn counts(outputs: &[Output]) -> BTreeMap<String, u64> {
    let mut sums = BTreeMap::new();
    for output in outputs {
        assert!(output.status.success(), "{}", text(output));
        for line in String::from_utf8_lossy(&output.stdout).lines() {
            if let Some((count, name)) = line.strip_prefix("COUNT ").and_then(|l| l.split_once(' '))
            {
                *sums.entry(name.to_string()).or_insert(0) += count.parse::<u64>().unwrap();
            }
        }
    }
    sums
}
