//! Jobs over soft-verbs whose devices fail, a job per seed: queue pairs that fail at any work
//! request, acknowledgements that are lost, completions that come late or after their queue pair,
//! ports that go down and up, addresses that move, devices that vanish.
//!
//! Every sum that ends well is right and stays so. If a rank fails, all do, with an error that
//! names a cause. Only the loss of a rank's last device is more than a job can bear.
//!
//! `LINERATE_TEST_SEEDS` sets how many are tried, one in twenty of that; `LINERATE_TEST_SEED=17`
//! runs one.

use crate::prng::{Prng, mix};
use linerate::{Buffer, Communicator, Error, ReduceOp, Result};
use linerate_children::{Child, HANG, end, rank, result, text, wait_for_word};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

/// Lengths of the sums, around the limits of what is sent how.
const COUNTS: [usize; 8] = [1, 8, 100, 512, 513, 4_000, 20_000, 70_000];
/// Buffers that take turns: what is in those before is looked at once more.
const BUFFERS: usize = 3;
const SEEDS_DEFAULT: u64 = 125;
const SEEDS_SHARE: u64 = 20;

/// A job and what happens to it.
struct Job {
    seed: u64,
    ranks: u32,
    devices: u32,
    /// The words of `SOFT_VERBS`, by rank.
    words: Vec<String>,
    settings: Vec<(&'static str, String)>,
    must_succeed: bool,
}

impl Job {
    fn new(seed: u64) -> Job {
        let mut prng = Prng::new(seed);
        let ranks = 2 + prng.below(2) as u32;
        let devices = 1 + u32::from(prng.below(4) == 0);
        let vanishing = (prng.below(10) == 0).then(|| prng.below(u64::from(ranks)) as u32);
        let words = (0..ranks).map(|rank| {
            let own = match (vanishing, prng.below(5)) {
                // No completions that are late, of which some would never come.
                (Some(place), _) if place == rank => format!("vanish={}", 1 + prng.below(150)),
                (_, 0) => String::new(),
                _ => format!("faults={}", 4 * seed + u64::from(rank)),
            };
            format!("host=each,devices={devices},{own}")
        });
        let words = words.collect();
        let must_succeed = vanishing.is_none() || devices > 1;
        let mut settings = vec![
            ("LINERATE_TRANSPORT", transport(devices).into()),
            // 7 ms until a queue pair has failed.
            ("LINERATE_VERBS_ACK_TIMEOUT", "8".into()),
            (
                "LINERATE_VERBS_CHUNK_BYTES",
                ["4K", "64K", "1M"][prng.below(3) as usize].into(),
            ),
        ];
        if !must_succeed {
            settings.push(("LINERATE_VERBS_TIMEOUT", "1".into()));
        }
        if prng.below(4) == 0 {
            settings.push(("LINERATE_VERBS_SLOTS", "8".into()));
        }
        Job {
            seed,
            ranks,
            devices,
            words,
            settings,
            must_succeed,
        }
    }

    /// Runs it; what is wrong.
    fn run(&self) -> std::result::Result<bool, String> {
        let job = linerate_children::fresh_job();
        let start = |index: u32| {
            let mut command = rank("seeded", index, self.ranks);
            command
                .env("LINERATE_JOB", &job)
                .env("RUST_BACKTRACE", "0")
                .env("LINERATE_TEST_SEED", self.seed.to_string())
                .env("SOFT_VERBS", &self.words[index as usize])
                .envs(self.settings.iter().map(|(name, value)| (name, value)));
            Child::start(&mut command)
        };
        let mut children: Vec<Child> = (0..self.ranks).map(start).collect();
        let until = Instant::now() + HANG;
        for child in &mut children {
            while child
                .next_line(until)
                .is_some_and(|line| !line.contains("ENDED"))
            {}
        }
        for child in &mut children {
            // It may have failed, which its output shows.
            let _ = child.write_line("go on");
        }
        let outputs = end(children);
        let told = || outputs.iter().map(text).collect::<Vec<_>>().join("\n");
        let mut ended = Vec::new();
        for output in &outputs {
            let good = result(output, "RESULT").and_then(|text| text.parse::<usize>().ok());
            match good.filter(|_| output.status.success()) {
                Some(good) => ended.push(good),
                None => return Err(told()),
            }
        }
        let all = sums_count(self.seed);
        let (least, most) = (ended.iter().min().unwrap(), ended.iter().max().unwrap());
        // Nobody ends a sum well that another rank has not come to.
        let is_wrong = most - least > 1 || (self.must_succeed && *least < all);
        if is_wrong {
            Err(told())
        } else {
            Ok(*least < all)
        }
    }
}

fn transport(devices: u32) -> &'static str {
    match devices {
        1 => "verbs",
        _ => "verbs:soft0,soft1",
    }
}

fn sums_count(seed: u64) -> usize {
    4 + (mix(seed) % 20) as usize
}

/// What a rank adds to a sum, at this place.
fn own(seed: u64, round: usize, index: usize, rank: u32) -> u64 {
    let base = mix(seed ^ mix(round as u64 ^ mix(index as u64))) >> 16;
    base * (u64::from(rank) + 1)
}

/// What a rank writes over a sum that has failed: nothing comes there any more.
const LEFT: u64 = 0xeeee_eeee_eeee_eeee;

/// The sums of a rank, and their memory.
struct Sums {
    seed: u64,
    rank: u32,
    ranks: u32,
    counts: Vec<usize>,
    buffers: Vec<Buffer<u64>>,
    /// How many have ended well.
    good: usize,
}

impl Sums {
    fn new(seed: u64, comm: &Communicator) -> Result<Sums> {
        let mut prng = Prng::new(seed);
        let counts =
            (0..sums_count(seed)).map(|_| COUNTS[prng.below(COUNTS.len() as u64) as usize]);
        let buffers = (0..BUFFERS).map(|_| comm.alloc(COUNTS[COUNTS.len() - 1]));
        Ok(Sums {
            seed,
            rank: comm.rank(),
            ranks: comm.ranks(),
            counts: counts.collect(),
            buffers: buffers.collect::<Result<_>>()?,
            good: 0,
        })
    }

    fn buffer(&self, round: usize) -> &Buffer<u64> {
        &self.buffers[round % BUFFERS]
    }

    /// All of them, as long as they end well; each is looked at as long as its memory is its own.
    fn run(&mut self, comm: &Communicator) -> Result<()> {
        for round in 0..self.counts.len() {
            let count = self.counts[round];
            let own = |i| own(self.seed, round, i, self.rank);
            let mut numbers: Vec<u64> = (0..count).map(own).collect();
            let buffer = self.buffer(round);
            // Every fourth in memory that is not registered.
            match mix(self.seed ^ round as u64) % 4 {
                0 => {
                    comm.all_reduce(&mut numbers, ReduceOp::Sum)?;
                    buffer.write(0, &numbers)?;
                }
                _ => {
                    buffer.write(0, &numbers)?;
                    comm.all_reduce(&buffer.range(..count), ReduceOp::Sum)?;
                }
            }
            self.good += 1;
            self.check_good();
        }
        Ok(())
    }

    /// Those that have ended well last are right.
    fn check_good(&self) {
        let all_of_memory = BUFFERS - usize::from(self.good < self.counts.len());
        for round in self.good.saturating_sub(all_of_memory)..self.good {
            let sums = &self.buffer(round).to_vec().unwrap()[..self.counts[round]];
            let right = |index| -> u64 {
                let of = |rank| own(self.seed, round, index, rank);
                (0..self.ranks).map(of).sum()
            };
            let wrong: Vec<usize> = (0..sums.len()).filter(|&i| sums[i] != right(i)).collect();
            let (count, all, first) = (wrong.len(), sums.len(), wrong.first());
            assert!(
                first.is_none(),
                "sum {round}: {count} of {all} wrong, from {first:?}"
            );
        }
    }

    /// The memory of the sum that has failed is this rank's again.
    fn leave(&self) {
        let buffer = self.buffer(self.good);
        buffer.write(0, &vec![LEFT; buffer.len()]).unwrap();
    }

    fn check_left(&self) {
        let left = self.buffer(self.good).to_vec().unwrap();
        assert!(
            left.iter().all(|&word| word == LEFT),
            "written after the end"
        );
    }
}

/// A rank: says how many sums have ended well, and how it failed if it did.
pub fn sum_under_faults() {
    let seed = std::env::var("LINERATE_TEST_SEED").unwrap();
    let (seed, mut sums) = (seed.parse().unwrap(), None);
    let ended = Communicator::from_env().and_then(|comm| {
        let sums = sums.insert(Sums::new(seed, &comm)?);
        sums.run(&comm)
    });
    if let Err(error) = &ended {
        let is_known = matches!(
            error.first_cause(),
            Error::PeerFailed { .. }
                | Error::Timeout { .. }
                | Error::Left { .. }
                | Error::Unavailable { .. }
        );
        assert!(is_known, "{error}");
        println!("FAILED {error}");
        sums.iter().for_each(Sums::leave);
    }
    println!("ENDED");
    wait_for_word();
    sums.iter().for_each(Sums::check_good);
    if ended.is_err() {
        sums.iter().for_each(Sums::check_left);
    }
    println!("RESULT {}", sums.map_or(0, |sums| sums.good));
}

#[test]
fn sums_are_right_or_all_ranks_fail_whatever_the_devices_do() {
    let library = std::env::var("LINERATE_IBVERBS_LIB").unwrap_or_default();
    if !library.ends_with("libsoft_verbs.so") {
        println!("skipped: jobs whose devices fail: LINERATE_IBVERBS_LIB is not soft-verbs");
        return;
    }
    let number = |name| {
        std::env::var(name)
            .ok()
            .map(|text| text.parse::<u64>().unwrap())
    };
    if let Some(seed) = number("LINERATE_TEST_SEED") {
        let job = Job::new(seed);
        println!(
            "{} ranks, {} devices: {:?} {:?}",
            job.ranks, job.devices, job.words, job.settings
        );
        println!(
            "failed: {}",
            job.run().unwrap_or_else(|text| panic!("{text}"))
        );
        return;
    }
    let seeds = number("LINERATE_TEST_SEEDS").map_or(SEEDS_DEFAULT, |n| n / SEEDS_SHARE);
    let (next, failed) = (AtomicU64::new(0), AtomicU64::new(0));
    let run = || {
        let mut complaints = Vec::new();
        loop {
            let seed = next.fetch_add(1, Ordering::Relaxed);
            if seed >= seeds {
                return complaints;
            }
            match Job::new(seed).run() {
                Ok(has_failed) => drop(failed.fetch_add(has_failed.into(), Ordering::Relaxed)),
                Err(text) => complaints.push(format!("LINERATE_TEST_SEED={seed}: {text}")),
            }
        }
    };
    let threads = std::thread::available_parallelism().map_or(1, usize::from) + 1;
    let complaints: Vec<String> = std::thread::scope(|scope| {
        let threads: Vec<_> = (0..threads).map(|_| scope.spawn(run)).collect();
        threads
            .into_iter()
            .flat_map(|thread| thread.join().unwrap())
            .collect()
    });
    println!("{seeds} seeds; {failed:?} jobs lost a device that they need");
    let shown = complaints
        .iter()
        .take(3)
        .cloned()
        .collect::<Vec<_>>()
        .join("\n");
    assert!(
        complaints.is_empty(),
        "{} of {seeds} seeds fail:\n{shown}",
        complaints.len()
    );
}
