//! What the ranks of the tests of partial allreduce do.

#[path = "fate.rs"]
mod fate;

use crate::prng::{Prng, mix};
use fate::Fate;
use linerate::options::{Delivery, Divisor};
use linerate::reports::RoundReport;
use linerate::{Buffer, Communicator, DataType, PartialAllreduce, PartialOptions, Policy};
use rustix::process::{Pid, Signal, getpid, kill_process};
use std::time::{Duration, Instant};

/// Own steps of a rank in `exact`.
const STEPS: usize = 30;

pub fn run(role: &str, comm: &Communicator) {
    match role {
        "exact" => exact(comm),
        "torn" => torn(comm),
        "slow" => slow(comm),
        "absent" => absent(comm),
        "quorum" => quorum(comm),
        "sparse" => sparse(comm),
        "dies" => dies(comm),
        "survives" => survives(comm),
        "unaware" => unaware(comm),
        other => panic!("no role {other}"),
    }
}

fn variable(name: &str) -> String {
    std::env::var(name).unwrap_or_default()
}

fn options() -> PartialOptions {
    let policy = match variable("LINERATE_TEST_POLICY").as_str() {
        "solo" | "limiter" => Policy::Solo,
        "quorum3" => Policy::Quorum(3),
        "random" => Policy::RandomInitiator { seed: 5 },
        "deadline" => Policy::Deadline {
            quorum: 2,
            time: Duration::from_millis(2),
        },
        "full" => Policy::Full,
        _ => Policy::Majority,
    };
    PartialOptions {
        policy,
        limiter: (variable("LINERATE_TEST_POLICY") == "limiter").then_some(3),
        divisor: Divisor::One,
        survive: !variable("LINERATE_TEST_SURVIVE").is_empty(),
        delivery: match variable("LINERATE_TEST_DELIVERY").as_str() {
            "merged" => Delivery::Merged,
            "latest" => Delivery::Latest,
            _ => Delivery::Ordered,
        },
        ..PartialOptions::default()
    }
}

/// Sums of one-hot integers: element `rank * STEPS + generation` belongs to one generation of one
/// rank.
struct Ledger {
    ranks: usize,
    sums: Vec<i32>,
    hash: u64,
    next_round: u64,
}

impl Ledger {
    fn new(comm: &Communicator, count: usize) -> Ledger {
        Ledger {
            ranks: comm.ranks() as usize,
            sums: vec![0; count],
            hash: 0,
            next_round: 0,
        }
    }

    /// A result: exactly what its bits say, and the next one.
    fn apply(&mut self, report: &RoundReport, update: &Buffer<i32>) {
        assert_eq!(report.round, self.next_round);
        self.next_round += 1;
        let update = update.to_vec().unwrap();
        let mut generations = 0;
        for rank in 0..self.ranks {
            let own = &update[rank * STEPS..(rank + 1) * STEPS];
            assert!(own.iter().all(|&x| x == 0 || x == 1), "{report:?}: {own:?}");
            let count: i32 = own.iter().sum();
            generations += count as u64;
            assert_eq!(
                count > 0,
                report.included.contains(rank as u32),
                "{report:?}: {own:?}"
            );
            let is_active = own.get(report.round as usize) == Some(&1);
            assert_eq!(
                is_active,
                report.active.contains(rank as u32),
                "{report:?}: {own:?}"
            );
        }
        assert_eq!(generations, report.generations(), "{report:?}");
        for (sum, x) in self.sums.iter_mut().zip(&update) {
            *sum += x;
            self.hash = mix(self.hash ^ *x as u64);
        }
        self.hash = mix(self.hash ^ report.active.words()[0] ^ report.included.words()[0] << 32);
    }

    /// A result that may stand for several rounds: their sum, or the newest of them.
    fn apply_several(&mut self, report: &RoundReport, update: &Buffer<i32>, delivery: Delivery) {
        self.next_round += report.rounds;
        assert_eq!(report.round + 1, self.next_round);
        let update = update.to_vec().unwrap();
        assert!(update.iter().all(|&x| x == 0 || x == 1), "{report:?}");
        let generations = update.iter().sum::<i32>() as u64;
        assert!(delivery == Delivery::Merged || generations == report.generations());
        if delivery == Delivery::Merged {
            (self.sums.iter_mut().zip(&update)).for_each(|(sum, x)| *sum += x);
        }
    }

    fn hash_of_sums(&self) -> u64 {
        self.sums.iter().fold(0, |hash, &x| mix(hash ^ x as u64))
    }

    /// Every gradient of a rank that lives once, of a rank that has died at most once.
    fn check_survivors(&self, live: impl Fn(usize) -> bool) {
        for rank in 0..self.ranks {
            let own = &self.sums[rank * STEPS..(rank + 1) * STEPS];
            let is_right = |&sum: &i32| sum == 1 || (sum == 0 && !live(rank));
            assert!(own.iter().all(is_right), "rank {rank}: {own:?}");
        }
        assert!(self.sums[self.ranks * STEPS..].iter().all(|&sum| sum == 0));
    }

    fn check(&self) {
        let (ones, rest) = self.sums.split_at(self.ranks * STEPS);
        assert!(ones.iter().all(|&sum| sum == 1), "each once: {ones:?}");
        assert!(rest.iter().all(|&sum| sum == 0));
    }
}

fn count(comm: &Communicator) -> usize {
    let pad: usize = variable("LINERATE_TEST_PAD").parse().unwrap_or(0);
    comm.ranks() as usize * STEPS + pad
}

/// Zeros but for a one.
fn one_hot(gradient: &Buffer<i32>, index: usize) {
    let mut elements = gradient.as_mut_slice().unwrap();
    elements.fill(0);
    elements[index] = 1;
}

/// This rank stops until it is this many rounds behind; its process goes on.
fn wait_until_behind(partial: &PartialAllreduce, rounds: u64) {
    let deadline = Instant::now() + Duration::from_secs(60);
    while partial.lag() < rounds {
        assert!(Instant::now() < deadline, "the others do not go on");
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// Random delays; every result is checked against its bits, and in the end every generation has
/// been applied once.
fn exact(comm: &Communicator) {
    let count = count(comm);
    let partial = PartialAllreduce::new(comm, DataType::I32, count as u64, options()).unwrap();
    let (gradient, update) = (comm.alloc(count).unwrap(), comm.alloc(count).unwrap());
    let mut prng = Prng::new(u64::from(comm.rank()) + 7);
    let mut ledger = Ledger::new(comm, count);
    for step in 0..STEPS {
        if prng.chance(0.5) {
            std::thread::sleep(Duration::from_micros(prng.below(3000)));
        }
        one_hot(&gradient, comm.rank() as usize * STEPS + step);
        if prng.chance(0.5) {
            let report = partial.exchange(&gradient, &update).unwrap().unwrap();
            ledger.apply(&report, &update);
        } else {
            assert_eq!(partial.submit(&gradient).unwrap(), step as u64);
            gradient.as_mut_slice().unwrap().fill(7);
            let report = partial.next(&update).unwrap().unwrap();
            ledger.apply(&report, &update);
        }
        println!("AT {step}");
        if variable("LINERATE_TEST_STOP") == step.to_string() {
            kill_process(getpid(), Signal::STOP).unwrap();
            // Another thread may take the signal, and this one must not go on meanwhile.
            std::thread::sleep(Duration::from_secs(60));
        }
    }
    partial
        .finish(&update, |report| ledger.apply(&report, &update))
        .unwrap();
    ledger.check();
    println!("RESULT {:016x} {}", ledger.hash, ledger.next_round);
}

/// Vectors of one repeated integer that their writer overwrites as soon as it may.
fn torn(comm: &Communicator) {
    const COUNT: usize = 16 << 20;
    let options = PartialOptions {
        policy: Policy::Solo,
        staleness_max: Some(1),
        rounds_in_flight: 3,
        divisor: Divisor::One,
        ..PartialOptions::default()
    };
    let partial = PartialAllreduce::new(comm, DataType::I32, COUNT as u64, options).unwrap();
    let (gradient, update) = (comm.alloc(COUNT).unwrap(), comm.alloc(COUNT).unwrap());
    let mut total = 0i64;
    let mut apply = |update: &Buffer<i32>| {
        let all = update.to_vec().unwrap();
        assert!(all.iter().all(|&x| x == all[0]), "a torn sum");
        total += i64::from(all[0]);
    };
    for step in 0..8 {
        gradient.as_mut_slice().unwrap().fill(1 + step);
        partial.submit(&gradient).unwrap();
        gradient.as_mut_slice().unwrap().fill(0x5555_5555);
        if step >= 2 {
            partial.next(&update).unwrap().unwrap();
            apply(&update);
        }
    }
    partial.finish(&update, |_| apply(&update)).unwrap();
    assert_eq!(total, i64::from(comm.ranks()) * 36);
    println!("RESULT whole");
}

/// Rank 1 is always slow.
fn slow(comm: &Communicator) {
    let options = PartialOptions {
        policy: Policy::Solo,
        staleness_max: Some(3),
        divisor: Divisor::One,
        ..PartialOptions::default()
    };
    let partial = PartialAllreduce::new(comm, DataType::I32, 4, options).unwrap();
    let buffer = comm.alloc::<i32>(4).unwrap();
    let (mut stalest, mut held) = (0, [0u32; 3]);
    let mut see = |report: RoundReport| {
        stalest = stalest.max(report.staleness.len().saturating_sub(1));
        report.held.iter().for_each(|rank| held[rank as usize] += 1);
    };
    for step in 0..30 {
        if comm.rank() == 1 {
            if step < 20 {
                // The others may be slow, too, where the machine is busy.
                wait_until_behind(&partial, 3);
            }
            std::thread::sleep(Duration::from_millis(5));
        }
        see(partial.exchange(&buffer, &buffer).unwrap().unwrap());
    }
    partial.finish(&buffer, see).unwrap();
    assert!(held[1] > 0, "{held:?}");
    let slowest = 1 + u32::from(held[1] > held[0] && held[1] > held[2]);
    println!("RESULT staleness {stalest} held {slowest}");
}

/// Rank 1's application stops until it is ten rounds behind; its process goes on.
fn absent(comm: &Communicator) {
    let count = count(comm);
    let options = PartialOptions {
        policy: Policy::Solo,
        staleness_max: Some(32),
        divisor: Divisor::One,
        ..PartialOptions::default()
    };
    let partial = PartialAllreduce::new(comm, DataType::I32, count as u64, options).unwrap();
    let (gradient, update) = (comm.alloc(count).unwrap(), comm.alloc(count).unwrap());
    let mut ledger = Ledger::new(comm, count);
    for step in 0..STEPS {
        if comm.rank() == 1 && step == 5 {
            wait_until_behind(&partial, 10);
            let caught_up = partial
                .catch_up(&update, |report| ledger.apply(&report, &update))
                .unwrap();
            assert!(caught_up >= 10, "{caught_up}");
        }
        one_hot(&gradient, comm.rank() as usize * STEPS + step);
        partial.submit(&gradient).unwrap();
        if let Some(report) = partial.next(&update).unwrap() {
            ledger.apply(&report, &update);
        }
    }
    partial
        .finish(&update, |report| ledger.apply(&report, &update))
        .unwrap();
    ledger.check();
    println!("RESULT {:016x} {}", ledger.hash, ledger.next_round);
}

/// Two of four ranks submit, three are needed.
fn quorum(comm: &Communicator) {
    let options = PartialOptions {
        policy: Policy::Quorum(3),
        ..PartialOptions::default()
    };
    let partial = PartialAllreduce::new(comm, DataType::F32, 4, options).unwrap();
    let buffer = comm.alloc::<f32>(4).unwrap();
    for round in 0..8 {
        let is_early = (comm.rank() + round) % 4 < 2;
        if is_early {
            partial.submit(&buffer).unwrap();
            std::thread::sleep(Duration::from_millis(5));
            assert_eq!(partial.try_next(&buffer).unwrap(), None, "round {round}");
        }
        // The others submit once these have looked.
        comm.barrier().unwrap();
        if !is_early {
            partial.submit(&buffer).unwrap();
        }
        let report = partial.next(&buffer).unwrap().unwrap();
        assert!(report.active_count() >= 3, "{report:?}");
    }
    partial.finish(&buffer, |_| ()).unwrap();
    println!("RESULT fine");
}

/// Rank 2 takes few results, each of which stands for several rounds.
fn sparse(comm: &Communicator) {
    let options = PartialOptions {
        staleness_max: None,
        ..options()
    };
    let is_merged = options.delivery == Delivery::Merged;
    let partial = PartialAllreduce::new(comm, DataType::I64, 200, options).unwrap();
    let (gradient, update) = (comm.alloc(200).unwrap(), comm.alloc(200).unwrap());
    gradient.write(0, &[1i64; 200]).unwrap();
    let (mut total, mut rounds, mut most) = (0, 0, 0);
    let mut apply = |report: RoundReport| {
        let all: Vec<i64> = update.to_vec().unwrap();
        assert!(all.iter().all(|&x| x == all[0]), "{all:?}");
        total += all[0];
        rounds += report.rounds;
        most = most.max(report.rounds);
    };
    for step in 0..20 {
        if step == 3 {
            // However late rank 2 has come here, nobody is ahead of it: what it falls behind now,
            // it has not taken.
            comm.barrier().unwrap();
            if comm.rank() == 2 {
                wait_until_behind(&partial, 10);
            }
        }
        partial.submit(&gradient).unwrap();
        if let Some(report) = partial.next(&update).unwrap() {
            apply(report);
        }
    }
    partial.finish(&update, apply).unwrap();
    assert_eq!(rounds, 21);
    assert!(comm.rank() != 2 || most >= 10, "{most}");
    assert!(!is_merged || total == 60, "{total}");
    println!("RESULT fine");
}

/// Rank 1 ends without a word after some rounds.
fn dies(comm: &Communicator) {
    let partial = PartialAllreduce::new(comm, DataType::I32, 8, options()).unwrap();
    let buffer = comm.alloc::<i32>(8).unwrap();
    for step in 0.. {
        if comm.rank() == 1 && step == 10 {
            std::process::exit(3);
        }
        if let Err(error) = partial.exchange(&buffer, &buffer) {
            println!("ERROR {}", error.first_cause());
            return;
        }
    }
}

/// Ranks die, by their own hand at a step or by the test's at any moment; the others go on to the
/// end.
fn survives(comm: &Communicator) {
    let count = count(comm);
    let options = PartialOptions {
        rounds_in_flight: 2,
        ..options()
    };
    let delivery = options.delivery;
    let partial = PartialAllreduce::new(comm, DataType::I32, count as u64, options).unwrap();
    let (gradient, update) = (comm.alloc(count).unwrap(), comm.alloc(count).unwrap());
    let last = fate::from_text(&variable("LINERATE_TEST_LAST"));
    let delay: u64 = variable("LINERATE_TEST_DELAY_US").parse().unwrap_or(0);
    let mut prng = Prng::new(u64::from(comm.rank()) + 7);
    let mut ledger = Ledger::new(comm, count);
    let mut dead = Vec::new();
    let mut apply = |report: RoundReport| {
        match delivery {
            Delivery::Ordered => ledger.apply(&report, &update),
            _ => ledger.apply_several(&report, &update, delivery),
        }
        dead = report.dead.iter().collect();
    };
    for step in 0..STEPS {
        std::thread::sleep(Duration::from_micros(prng.below(3000)));
        one_hot(&gradient, comm.rank() as usize * STEPS + step);
        let fate = last.and_then(|(last, fate)| (last == step).then_some(fate));
        fate.into_iter().for_each(fate::meet);
        partial.submit(&gradient).unwrap();
        if fate == Some(Fate::AtOnce) {
            // Its gradient is on its way, or has come, or nobody knows of it.
            std::thread::sleep(Duration::from_micros(delay));
            fate::die();
        }
        // Whose results are several rounds at once falls behind.
        if delivery != Delivery::Ordered && comm.rank() == 0 && [3, 11, 19].contains(&step) {
            wait_until_behind(&partial, 3);
        }
        if step > 0
            && let Some(report) = partial.next(&update).unwrap()
        {
            apply(report);
        }
        println!("AT {step}");
    }
    partial.finish(&update, &mut apply).unwrap();
    let hash = match delivery {
        Delivery::Ordered => ledger.hash,
        _ => ledger.hash_of_sums(),
    };
    if delivery != Delivery::Latest {
        ledger.check_survivors(|rank| !dead.contains(&(rank as u32)));
    }
    println!("RESULT {hash:016x} {} dead {dead:?}", ledger.next_round);
}

/// Rank 1 begins a round of which rank 0 hears through rank 2 only, which is stopped and then dies.
/// Ranks 1 and 3 wait for rank 0 in that round, and rank 0 waits for nothing.
fn unaware(comm: &Communicator) {
    let partial = PartialAllreduce::new(comm, DataType::I32, 4, options()).unwrap();
    let gradient = comm.alloc::<i32>(4).unwrap();
    let update = comm.alloc::<i32>(4).unwrap();
    gradient.write(0, &[1; 4]).unwrap();
    let pid = comm.alloc::<i32>(1).unwrap();
    pid.write(0, &[getpid().as_raw_pid()]).unwrap();
    comm.broadcast(&pid, 2).unwrap();
    let pid = Pid::from_raw(pid.to_vec().unwrap()[0]).unwrap();
    match comm.rank() {
        1 => {
            let stat = format!("/proc/{}/stat", pid.as_raw_pid());
            while !std::fs::read_to_string(&stat).unwrap().contains(") T ") {
                std::thread::sleep(Duration::from_millis(1));
            }
            partial.submit(&gradient).unwrap();
            // Time for the threads of ranks 1 and 3 to enter the round.
            std::thread::sleep(Duration::from_millis(100));
            kill_process(pid, Signal::KILL).unwrap();
        }
        2 => {
            kill_process(getpid(), Signal::STOP).unwrap();
            std::thread::sleep(Duration::from_secs(60));
        }
        _ => {
            wait_until_behind(&partial, 1);
            partial.submit(&gradient).unwrap();
        }
    }
    let mut total = 0;
    let mut apply = |_| total += update.to_vec().unwrap()[0];
    apply(partial.next(&update).unwrap().unwrap());
    partial.finish(&update, apply).unwrap();
    println!("RESULT {total}");
}
