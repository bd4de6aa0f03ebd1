//! In the steady state an operation makes no allocation, and no system call but those of a wait
//! that yields or sleeps.
//!
//! Ranks are processes: a test starts this very program again, once per rank, with
//! `LINERATE_TEST_ROLE` set. System calls are counted by strace; that test is ignored unless asked
//! for, and `tools/test` asks where strace works.
#![allow(unsafe_code)]

#[path = "steady/allocator.rs"]
mod allocator;

use linerate::{Buffer, Collective, Communicator, Config, DataType, ReduceOp};
use linerate_children::{Child, end, fresh_job, rank, results, within};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// An operation that takes as long has been held up by the machine. After 100 ms a rank asks the
/// others what they do.
const STALL: Duration = Duration::from_millis(80);
/// Operations of each kind.
const OPERATIONS: u64 = 10_000;
/// Operations before: schedules are built, memory is mapped, queues have their sizes.
const WARM_UP: u64 = 200;
/// Calls of a wait that yields or sleeps; their number depends on who else wants the cores.
const WAITING: [&str; 2] = ["sched_yield", "futex"];

/// Starts every rank in a role and gives what it printed after `RESULT `; with `strace`, under it,
/// the counts going to that folder. How operations make progress does not depend on the cores of
/// the host.
fn run_ranks(
    role: &str,
    (ranks, progress): (u32, &str),
    operations: u64,
    strace: Option<&Path>,
) -> Vec<String> {
    let job = fresh_job();
    let start = |index: u32| {
        let mut command = rank(role, index, ranks);
        if let Some(folder) = strace {
            let file = folder.join(format!("{operations}-{index}"));
            let counting = ["strace", "-f", "-c", "-o", file.to_str().unwrap()];
            command = within(&counting, &command);
        }
        command
            .env("LINERATE_TEST_OPERATIONS", operations.to_string())
            .env("LINERATE_JOB", &job)
            .env("LINERATE_PROGRESS", progress);
        Child::start(&mut command)
    };
    results(&end((0..ranks).map(start).collect()))
}

#[test]
fn child_entry() {
    let Ok(role) = std::env::var("LINERATE_TEST_ROLE") else {
        return;
    };
    let mut config = Config::from_lookup(|name| std::env::var(name).ok()).unwrap();
    if role == "slices" {
        // Works on registered memory, and says so where it finds other.
        config.algorithm = Some("direct".into());
    }
    let comm = Communicator::from_env_with(config).unwrap();
    if role == "slices" {
        return sum_slices(&comm);
    }
    let operations = std::env::var("LINERATE_TEST_OPERATIONS").unwrap();
    let operations = operations.parse().unwrap();
    let kinds = kinds(&comm);
    // All buffers live to the end: freeing one is no part of an operation.
    for (name, run) in &kinds {
        (0..WARM_UP).for_each(|_| run());
        match role.as_str() {
            "allocations" => {
                let mut found = allocator::Allocated::default();
                let mut ended = Instant::now();
                let mut skipped_until = ended;
                for _ in 0..operations {
                    let one = allocator::count(run);
                    let begun = std::mem::replace(&mut ended, Instant::now());
                    // Where ranks stand still they ask each other why, and that may allocate. The
                    // answers come a little later.
                    if ended - begun >= STALL {
                        skipped_until = ended + STALL;
                    }
                    if ended >= skipped_until {
                        found.add(one);
                    }
                }
                println!(
                    "RESULT {name}: {} {} {:?}",
                    found.count, found.bytes, found.traces
                );
            }
            "calls" => {
                let start = Instant::now();
                (0..operations).for_each(|_| run());
                println!("RESULT {}", start.elapsed().as_millis());
            }
            other => panic!("no role {other}"),
        }
    }
    comm.barrier().unwrap();
}

/// A range of a registered buffer, and slices of it and of other memory, by an algorithm that does
/// not stage.
fn sum_slices(comm: &Communicator) {
    let buffer = comm.alloc::<f32>(5000).unwrap();
    buffer.write(0, &[1.5; 5000]).unwrap();
    let part = buffer.range(3..4999);
    comm.all_reduce(&part, ReduceOp::Sum).unwrap();
    let sums = buffer.to_vec().unwrap();
    assert!(
        sums[3..4999]
            .iter()
            .all(|&sum| sum == 1.5 * comm.ranks() as f32)
    );
    assert!(
        sums[..3]
            .iter()
            .chain(&sums[4999..])
            .all(|&value| value == 1.5)
    );
    let mut slice = part.as_mut_slice().unwrap();
    for error in [
        comm.all_reduce(&mut slice, ReduceOp::Sum),
        comm.all_reduce(&mut vec![1f32; 5000], ReduceOp::Sum),
    ] {
        println!("RESULT {}", error.unwrap_err());
    }
}

#[test]
fn a_range_of_a_registered_buffer_is_reduced_where_it_lies_and_a_slice_is_not() {
    for result in run_ranks("slices", (2, "inline"), 0, None) {
        let refused = result.matches("direct needs registered memory").count();
        assert_eq!(refused, 2, "{result}");
    }
}

type Run<'a> = Box<dyn Fn() + 'a>;

/// Kinds of operations that [`kinds`] makes.
const KINDS: usize = 9;

/// What is run over and over.
fn kinds(comm: &Communicator) -> Vec<(&'static str, Run<'_>)> {
    const LARGE: usize = (64 << 10) / 4;
    let large = || comm.alloc::<f32>(LARGE).unwrap();
    let in_place = |buffer: Buffer<f32>| -> Run<'_> {
        Box::new(move || comm.all_reduce(&buffer, ReduceOp::Sum).unwrap())
    };
    let started = |buffer: Buffer<f32>| -> Run<'_> {
        let start = move || comm.start_all_reduce(&buffer, ReduceOp::Sum);
        Box::new(move || start().unwrap().wait().unwrap())
    };
    let built = || {
        let sum = comm.collective(Collective::AllReduce, DataType::F32, LARGE as u64);
        sum.input(&large()).output(&large())
    };
    let (run, start) = (built(), built());
    let slice = std::cell::RefCell::new(vec![0f32; 16]);
    let registered = comm.alloc::<f32>(16).unwrap();
    vec![
        ("8 B registered", in_place(comm.alloc(2).unwrap())),
        ("64 KiB registered", in_place(large())),
        ("64 KiB registered, started", started(large())),
        ("64 KiB, built once", Box::new(move || run.run().unwrap())),
        (
            "64 KiB, built once, started",
            Box::new(move || start.start().unwrap().wait().unwrap()),
        ),
        ("64 B of the caller's", {
            let sum = move || comm.all_reduce(&mut **slice.borrow_mut(), ReduceOp::Sum);
            Box::new(move || sum().unwrap())
        }),
        ("64 B of a registered buffer, as a slice", {
            let sum = move || comm.all_reduce(&mut registered.as_mut_slice()?, ReduceOp::Sum);
            Box::new(move || sum().unwrap())
        }),
        (
            "64 KiB of the caller's",
            in_place(Buffer::from_vec(vec![0f32; LARGE])),
        ),
        ("barrier", Box::new(|| comm.barrier().unwrap())),
    ]
}

#[test]
fn operations_in_the_steady_state_allocate_nothing() {
    let mut bad = String::new();
    for (ranks, progress) in [(1, "inline"), (2, "inline"), (3, "inline"), (2, "thread")] {
        let results = run_ranks("allocations", (ranks, progress), OPERATIONS, None).join("\n");
        assert_eq!(results.lines().count(), KINDS * ranks as usize, "{results}");
        for line in results.lines().filter(|line| !line.ends_with(": 0 0 []")) {
            bad += &format!("{ranks} ranks, {progress}: {line}\n");
        }
    }
    assert!(
        bad.is_empty(),
        "allocations and bytes of {OPERATIONS} operations, and where they came from:\n{bad}"
    );
}

/// Calls by name, from `strace -c`: the share of time, seconds, us per call, calls, errors if any,
/// name.
fn parse_counts(text: &str) -> BTreeMap<String, u64> {
    let count = |line: &str| {
        let words: Vec<&str> = line.split_whitespace().collect();
        let calls = words.get(3)?.parse().ok()?;
        Some((words.last()?.to_string(), calls))
    };
    let mut counts: BTreeMap<_, _> = text.lines().filter_map(count).collect();
    counts.remove("total");
    counts
}

#[test]
#[ignore = "needs strace; tools/test runs it where that works"]
fn operations_in_the_steady_state_make_no_system_call_but_to_wait() {
    let folder = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join("steady-strace");
    std::fs::create_dir_all(&folder).unwrap();
    let (few, many) = (OPERATIONS / 10, OPERATIONS + OPERATIONS / 10);
    run_ranks("calls", (2, "inline"), few, Some(&folder));
    let elapsed_ms = run_ranks("calls", (2, "inline"), many, Some(&folder));
    for (rank, elapsed_ms) in elapsed_ms.iter().enumerate() {
        let counts = |operations: u64| {
            let text = std::fs::read_to_string(folder.join(format!("{operations}-{rank}")));
            parse_counts(&text.unwrap())
        };
        let (before, after) = (counts(few), counts(many));
        assert!(after.contains_key("mmap"), "{after:?}");
        let elapsed_ms: u64 = elapsed_ms.lines().map(|l| l.parse::<u64>().unwrap()).sum();
        // Every two milliseconds, and before it sleeps, a wait looks whether peers are still there.
        let looks = elapsed_ms + after.get("futex").copied().unwrap_or(0) + 100;
        let grown = after.iter().map(|(name, &calls)| {
            let base = before.get(name).copied().unwrap_or(0);
            (name.as_str(), calls.saturating_sub(base))
        });
        let bad: Vec<_> = grown
            .filter(|(name, more)| !WAITING.contains(name) && *more > looks)
            .collect();
        assert!(
            bad.is_empty(),
            "rank {rank}: calls that {OPERATIONS} more operations of each kind have made in {elapsed_ms} ms: {bad:?}"
        );
    }
}

#[test]
fn counts_are_read_as_strace_prints_them() {
    let text = "% time     seconds  usecs/call     calls    errors syscall\n\
                ------ ----------- ----------- --------- --------- ----------------\n\
                 61.05    0.001226           1      1000           sched_yield\n\
                 20.00    0.000400          40        10         3 futex\n\
                ------ ----------- ----------- --------- --------- ----------------\n\
                100.00    0.002008           1      1010         3 total\n";
    let counts = parse_counts(text);
    assert_eq!(counts.len(), 2, "{counts:?}");
    assert_eq!((counts["sched_yield"], counts["futex"]), (1000, 10));
}
