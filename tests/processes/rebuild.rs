//! Rebuilding a communicator with real processes: after timeouts, aborts and kills, and kills in
//! the middle of a rebuild.

use crate::prng::Prng;
use linerate::{Communicator, Error, ReduceOp, Result};
use linerate_children::{marked, spawn, spawn_late, text, wait_for_word};
use rustix::process::{Signal, getpid, kill_process};
use std::process::Output;
use std::time::Duration;

/// What each rank marked as its result; those of `victims` must have died, the others must have
/// ended well.
fn results(outputs: &[Output], victims: &[u32]) -> Vec<String> {
    let is_wrong = |(rank, output): (usize, &Output)| {
        let is_victim = victims.contains(&(rank as u32));
        (output.status.success() == is_victim).then(|| format!("rank {rank}: {}", text(output)))
    };
    // What one rank says may be the consequence of what another does.
    let wrong: Vec<String> = outputs.iter().enumerate().filter_map(is_wrong).collect();
    assert!(wrong.is_empty(), "{victims:?} die\n{}", wrong.join("\n"));
    let result = |output: &Output| marked(output, "RESULT").join("\n");
    outputs.iter().map(result).collect()
}

/// What a rank does in a role.
pub fn run_as_child(role: &str) {
    let comm = Communicator::from_env().unwrap();
    match role {
        "silent" => silent(comm),
        "killed" => killed(comm),
        "killed-in-rebuild" => killed_in_rebuild(comm),
        "absent" => absent(comm),
        "many" => many(comm),
        other => panic!("no role {other}"),
    }
}

fn die() -> ! {
    kill_process(getpid(), Signal::KILL).unwrap();
    unreachable!("a killed process")
}

/// The ranks that the parent has chosen to die.
fn victims() -> Vec<u32> {
    let text = std::env::var("LINERATE_TEST_VICTIMS").unwrap();
    text.split(',').map(|rank| rank.parse().unwrap()).collect()
}

/// The sum of one per rank, over so much memory that it takes a while.
fn count_ranks(comm: &Communicator, elements: usize) -> Result<u64> {
    let buffer = comm.alloc::<u64>(elements)?;
    buffer.as_mut_slice()?.fill(1);
    comm.all_reduce(&buffer, ReduceOp::Sum)?;
    let all = buffer.as_slice()?;
    assert!(all.iter().all(|&v| v == all[0]));
    Ok(all[0])
}

/// A barrier after which some rank aborts: the news of those who are further on may be faster than
/// what ends it here.
fn barrier_before_an_abort(comm: &Communicator) {
    if let Err(error) = comm.barrier() {
        let is_news = matches!(error.first_cause(), Error::Aborted { .. });
        assert!(is_news, "{error}");
    }
}

/// Uses a communicator in every way that a fresh one has: sums, splits, fails again and is rebuilt
/// again.
fn exercise(comm: Communicator, ranks: u32) {
    assert_eq!(comm.ranks(), ranks);
    for elements in [1, 100_000] {
        assert_eq!(count_ranks(&comm, elements).unwrap(), u64::from(ranks));
    }
    let own = comm.rank();
    let pair = comm.split(Some(own / 2), 0).unwrap().unwrap();
    assert_eq!(count_ranks(&pair, 10).unwrap(), u64::from(pair.ranks()));
    barrier_before_an_abort(&comm);
    if own == ranks - 1 {
        comm.abort("to rebuild it once more");
    }
    let again = comm.rebuild().unwrap();
    assert_eq!((again.rank(), again.ranks()), (own, ranks));
    assert!(comm.barrier().is_err());
    drop(comm);
    assert_eq!(count_ranks(&again, 5000).unwrap(), u64::from(ranks));
    assert_eq!(count_ranks(&pair, 10).unwrap(), u64::from(pair.ranks()));
    // The rebuilt one is split, and the part rebuilt.
    let part = again.split(Some(0), -(own as i32)).unwrap().unwrap();
    part.abort("a part fails by itself");
    let part = part.rebuild().unwrap();
    assert_eq!((part.rank(), part.ranks()), (ranks - 1 - own, ranks));
    assert_eq!(count_ranks(&part, 3).unwrap(), u64::from(ranks));
    again.barrier().unwrap();
}

/// Rank 2 comes too late: the others time out, and all go on.
fn silent(comm: Communicator) {
    comm.barrier().unwrap();
    if comm.rank() == 2 {
        wait_for_word();
    }
    // What the others had done before they gave up is there: rank 2 may end its first call well,
    // and not the next.
    let mut calls = (0..2).map(|_| count_ranks(&comm, 1000));
    let error = calls.find_map(Result::err).expect("the others gave up");
    let is_timeout = matches!(error.first_cause(), Error::Timeout { .. });
    assert!(is_timeout, "{error}");
    println!("GAVE UP");
    exercise(comm.rebuild().unwrap(), 3);
    println!("RESULT good");
}

#[test]
fn after_a_timeout_all_ranks_rebuild_and_go_on() {
    let outputs = spawn_late(
        ("rebuild-silent", 3),
        (2, &[0, 1], "GAVE UP"),
        &[("LINERATE_TIMEOUT", "5")],
    );
    assert_eq!(results(&outputs, &[]), ["good"; 3]);
}

/// The victims die inside an operation; the others rebuild and go on.
fn killed(comm: Communicator) {
    let (rank, ranks, victims) = (comm.rank(), comm.ranks(), victims());
    let first = count_ranks(&comm, 50_000);
    assert!(first.clone().is_ok_and(|sum| sum == u64::from(ranks)) || first.is_err());
    if victims.contains(&rank) {
        // Refused where another victim died before.
        let buffer = comm.alloc::<u64>(100_000).unwrap();
        let _under_way = comm.start_all_reduce(&buffer, ReduceOp::Sum);
        die();
    }
    // What a victim has done before it died may still be enough for the next one; and of what it
    // had to send over connections some may have died with it.
    let error = first.err();
    let error = error.or_else(|| (0..3).find_map(|_| count_ranks(&comm, 100_000).err()));
    let error = error.unwrap();
    assert!(
        matches!(error.first_cause(), Error::PeerFailed { rank, .. } if victims.contains(rank)),
        "{error}"
    );
    let living: Vec<u32> = (0..ranks).filter(|r| !victims.contains(r)).collect();
    let rebuilt = comm.rebuild().unwrap();
    drop(comm);
    assert_eq!(living[rebuilt.rank() as usize], rank);
    exercise(rebuilt, living.len() as u32);
    println!("RESULT good");
}

/// Jobs of this many ranks, of which these die.
fn kill(jobs: &[(u32, &str)], transport: &str) {
    for &(ranks, victims) in jobs {
        let extra = [
            ("LINERATE_TEST_VICTIMS", victims),
            ("LINERATE_TRANSPORT", transport),
        ];
        let outputs = spawn("rebuild-killed", ranks, &extra);
        let dead: Vec<u32> = victims.split(',').map(|v| v.parse().unwrap()).collect();
        let results = results(&outputs, &dead);
        let good = results.iter().filter(|r| *r == "good").count();
        assert_eq!(good, ranks as usize - dead.len(), "{victims}: {results:?}");
    }
}

#[test]
fn the_survivors_of_kills_go_on() {
    let jobs = [
        (3, "0"),
        (4, "1"),
        (4, "0,1"),
        (5, "0,2,4"),
        (2, "0"),
        (2, "1"),
    ];
    kill(&jobs, "shm");
}

#[test]
fn the_survivors_of_kills_meet_over_connections_where_memory_is_not_shared() {
    kill(
        &[(3, "0"), (4, "3"), (4, "0,1"), (5, "0,2,4"), (2, "1")],
        "tcp",
    );
    kill(&[(4, "0,3")], "router");
}

/// All rebuild, and the victims die at a random moment of that; the others rebuild until they have
/// one that works.
fn killed_in_rebuild(mut comm: Communicator) {
    let (rank, ranks, victims) = (comm.rank(), comm.ranks(), victims());
    let seed: u64 = std::env::var("LINERATE_TEST_SEED")
        .unwrap()
        .parse()
        .unwrap();
    barrier_before_an_abort(&comm);
    comm.abort("to rebuild it");
    if victims.contains(&rank) {
        let most = std::env::var("LINERATE_TEST_MOST_US").unwrap();
        let delay = Prng::new(seed ^ u64::from(rank)).below(most.parse().unwrap());
        std::thread::spawn(move || {
            std::thread::sleep(Duration::from_micros(delay));
            die();
        });
    }
    let alive = u64::from(ranks) - victims.len() as u64;
    for turn in 0.. {
        assert!(turn < 10, "rank {rank}: no rebuild holds");
        comm = comm.rebuild().unwrap();
        assert!(u64::from(comm.ranks()) >= alive, "a living rank was lost");
        while let Ok(sum) = count_ranks(&comm, 1000) {
            // With a victim that has not died yet: until it has.
            assert_eq!(sum, u64::from(comm.ranks()));
            if sum == alive {
                comm.barrier().unwrap();
                println!("RESULT good after {turn}");
                return;
            }
            std::thread::sleep(Duration::from_millis(1));
        }
    }
}

fn kill_in_the_middle(seeds: std::ops::Range<u64>, transport: &str) {
    let mut turns = Vec::new();
    for seed in seeds {
        let (ranks, victims, dead): (u32, &str, &[u32]) = match seed % 4 {
            0 => (3, "0", &[0]),
            1 => (4, "0,1", &[0, 1]),
            2 => (4, "2", &[2]),
            _ => (4, "0,3", &[0, 3]),
        };
        let most_us = if seed < 12 { "6000" } else { "25000" };
        let seed = seed.to_string();
        let extra = [
            ("LINERATE_TEST_VICTIMS", victims),
            ("LINERATE_TEST_SEED", seed.as_str()),
            ("LINERATE_TEST_MOST_US", most_us),
            ("LINERATE_TIMEOUT", "20"),
            ("LINERATE_TRANSPORT", transport),
        ];
        let results = results(&spawn("rebuild-killed-in-rebuild", ranks, &extra), dead);
        for (rank, result) in results.into_iter().enumerate() {
            if !dead.contains(&(rank as u32)) {
                assert!(result.starts_with("good"), "seed {seed}: {result}");
                turns.push(result);
            }
        }
    }
    println!("{turns:?}");
}

#[test]
fn kills_in_the_middle_of_a_rebuild_begin_it_again() {
    kill_in_the_middle(0..24, "shm");
    // Over connections, early and late.
    kill_in_the_middle(8..16, "tcp");
}

/// Rank 1 lives and does not rebuild.
fn absent(comm: Communicator) {
    barrier_before_an_abort(&comm);
    comm.abort("to rebuild it");
    if comm.rank() == 1 {
        wait_for_word();
        println!("RESULT absent");
        return;
    }
    let error = comm.rebuild().unwrap_err();
    let Error::Timeout { missing, .. } = &error else {
        panic!("{error}")
    };
    assert_eq!(missing, &[1]);
    assert!(error.to_string().contains("rank 1 lives"), "{error}");
    println!("RESULT named");
}

#[test]
fn a_rank_that_lives_and_does_not_rebuild_is_named() {
    let outputs = spawn_late(
        ("rebuild-absent", 4),
        (1, &[0, 2, 3], "RESULT"),
        &[("LINERATE_TIMEOUT", "2")],
    );
    assert_eq!(
        results(&outputs, &[]),
        ["named", "absent", "named", "named"]
    );
}

fn descriptors() -> usize {
    std::fs::read_dir("/proc/self/fd").unwrap().count()
}

/// Rebuilds, splits and duplicates many times, with the old ones dropped in different orders; no
/// descriptor stays.
fn many(mut comm: Communicator) {
    let ranks = u64::from(comm.ranks());
    let mut before = 0;
    let kept = comm.alloc::<u64>(1 << 13).unwrap();
    for turn in 0..12 {
        if turn == 2 {
            before = descriptors();
        }
        let child = comm.duplicate().unwrap();
        let part = child.split(Some(comm.rank() % 2), 0).unwrap().unwrap();
        assert_eq!(count_ranks(&child, 700).unwrap(), ranks);
        assert_eq!(count_ranks(&part, 700).unwrap(), u64::from(part.ranks()));
        // Memory of the first communicator, on one that was rebuilt many times.
        kept.as_mut_slice().unwrap().fill(2);
        comm.all_reduce(&kept, ReduceOp::Sum).unwrap();
        assert_eq!(kept.to_vec().unwrap(), vec![2 * ranks; 1 << 13]);
        barrier_before_an_abort(&comm);
        comm.abort("again");
        let rebuilt = comm.rebuild().unwrap();
        match turn % 3 {
            0 => drop((comm, child, part)),
            1 => drop((part, comm, child)),
            _ => drop((child, part, comm)),
        }
        comm = rebuilt;
        comm.barrier().unwrap();
    }
    let after = descriptors();
    assert!(after <= before, "{before} descriptors, then {after}");
    println!("RESULT good");
}

#[test]
fn rebuilding_many_times_leaves_no_descriptor() {
    let outputs = spawn("rebuild-many", 3, &[]);
    assert_eq!(results(&outputs, &[]), ["good"; 3]);
    let outputs = spawn("rebuild-many", 2, &[("LINERATE_PROGRESS", "thread")]);
    assert_eq!(results(&outputs, &[]), ["good"; 2]);
}
