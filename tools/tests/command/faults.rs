//! Ranks of a running bench are killed, and the bench is interrupted: exit codes, texts, and what
//! is left behind.

use super::start::{linerate, parts};
use linerate::unstable::prng::Prng;
use linerate_children::{Child, is_running};
use rustix::process::{Pid, Signal, kill_process};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

/// Ranks killed, at least half of them inside an operation.
const KILLS: u32 = 100;

/// A bench that would run for minutes, and the processes of its ranks, by rank.
struct Running {
    child: Child,
    ranks: Vec<Pid>,
}

/// Starts it and waits until its ranks have found each other.
fn start_bench(ranks: u32) -> Running {
    let mut command = linerate(&format!(
        "bench allreduce -b 8 -e 16M -f 64 -n 1000000 -w 1 -c 0 --no-rotate --ranks {ranks} \
         --timeout 60"
    ));
    let mut child = Child::start(&mut command);
    // The header is printed by rank 0 once all have joined.
    child.wait_line("#");
    let pid = child.id();
    let children = std::fs::read_to_string(format!("/proc/{pid}/task/{pid}/children")).unwrap();
    let mut found: Vec<(u32, i32)> = children
        .split_whitespace()
        .map(|pid| (rank_of(pid), pid.parse().unwrap()))
        .collect();
    found.sort_unstable();
    assert_eq!(found.len(), ranks as usize, "{found:?}");
    let ranks = found
        .into_iter()
        .map(|(_, pid)| Pid::from_raw(pid).unwrap())
        .collect();
    Running { child, ranks }
}

fn rank_of(pid: &str) -> u32 {
    let environment = std::fs::read_to_string(format!("/proc/{pid}/environ")).unwrap();
    let rank = environment
        .split('\0')
        .find_map(|variable| variable.strip_prefix("RANK="));
    rank.unwrap().parse().unwrap()
}

impl Running {
    /// Waits for its end; what it printed, and that nothing of it is left.
    fn end(self) -> (Option<i32>, String) {
        let (code, _, stderr) = parts(self.child.end());
        let is_gone = |pid: &Pid| !is_running(pid.as_raw_nonzero().get() as u32);
        assert!(self.ranks.iter().all(is_gone), "ranks outlive the bench");
        for file in std::fs::read_dir("/dev/shm")
            .into_iter()
            .flatten()
            .flatten()
        {
            let name = file.file_name().to_string_lossy().into_owned();
            assert!(!name.contains("linerate"), "{name} is left in /dev/shm");
        }
        (code, stderr)
    }
}

#[test]
fn whoever_survives_the_death_of_a_rank_of_a_bench_names_it_and_the_bench_fails() {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap();
    let seed = std::env::var("LINERATE_TEST_SEED")
        .map_or(since.as_micros() as u64, |s| s.parse().unwrap());
    println!("LINERATE_TEST_SEED={seed}");
    let mut prng = Prng::new(seed);
    let (mut inside, mut late) = (0, Duration::ZERO);
    for number in 0..KILLS {
        let ranks = if number % 2 == 0 { 2 } else { 4 };
        let bench = start_bench(ranks);
        std::thread::sleep(Duration::from_micros(prng.below(100_000)));
        let victim = prng.below(u64::from(ranks)) as usize;
        kill_process(bench.ranks[victim], Signal::KILL).unwrap();
        let at = Instant::now();
        let (code, stderr) = bench.end();
        late = late.max(at.elapsed());
        inside += u32::from(stderr.contains(", during operation "));
        assert_eq!(code, Some(1), "{stderr}");
        let told = stderr
            .matches(&format!("rank {victim} failed: its process ended"))
            .count();
        assert_eq!(
            told,
            ranks as usize - 1,
            "victim {victim} of {ranks}: {stderr}"
        );
    }
    println!("{KILLS} kills, {inside} inside an operation; the last bench ended after {late:?}");
    assert!(2 * inside >= KILLS, "{inside} inside an operation");
}

#[test]
fn an_interrupted_bench_ends_as_shells_expect() {
    let bench = start_bench(2);
    bench.child.signal(Signal::INT);
    let (code, stderr) = bench.end();
    assert_eq!(code, Some(130), "{stderr}");
    let bench = start_bench(2);
    kill_process(bench.ranks[1], Signal::INT).unwrap();
    let (code, stderr) = bench.end();
    assert_eq!(code, Some(130), "{stderr}");
    assert!(
        stderr.contains("rank 1 failed: its process ended"),
        "{stderr}"
    );
}
