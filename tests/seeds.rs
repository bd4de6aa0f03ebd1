//! Real communicators on a simulated fabric, a job per seed: mixed collectives, several under way,
//! under delay, reordering, loss, duplicates, partitions, death, cancel, disagreement and absence.
//!
//! Safety: no wrong byte in any result of any rank, and every error names a cause that there was.
//! Liveness: when the faults have stopped, everything ends in bounded virtual time: well, if no
//! rank died or gave up, else with an error.
//!
//! `LINERATE_SEEDS=10000` runs more seeds than the default; `LINERATE_SEED=17` runs one and says
//! what it is.

#[path = "seeds/job.rs"]
mod job;
#[path = "../src/prng.rs"]
#[allow(dead_code)]
mod prng;
#[path = "seeds/run.rs"]
mod run;
#[path = "seeds/values.rs"]
mod values;

use job::{Fault, Job};
use linerate::sim::Flaw;
use linerate::{Error, Rank};
use run::Outcome;
use std::collections::BTreeMap;
use std::panic::{AssertUnwindSafe, catch_unwind};

/// Seeds of a run without `LINERATE_SEEDS`.
const SEEDS_DEFAULT: u64 = 3_000;

/// Seeds within which each flaw of the fabric must be found.
const SEEDS_OF_CANARY: u64 = 400;

/// Everything that one rank may be told of this fault.
fn is_cause(job: &Job, error: &Error) -> bool {
    match (job.fault, error) {
        (Fault::LastingPartition { .. }, Error::PeerFailed { rank, .. }) => {
            *rank < job.options.ranks
        }
        (Fault::Death { rank: dead, .. }, Error::PeerFailed { rank, .. }) => *rank == dead,
        (Fault::Cancel { rank, .. }, Error::Cancelled { by, .. }) => *by == rank,
        (Fault::Mismatch { .. }, Error::Mismatch { .. }) => true,
        (Fault::Absent { .. }, Error::Timeout { .. }) => true,
        _ => false,
    }
}

/// Whether this rank's part of this operation must be right where it ended well.
fn is_defined(job: &Job, index: usize) -> bool {
    !matches!(job.fault, Fault::Mismatch { operation, .. } if operation == index)
}

/// Operations that cannot have ended well anywhere: a rank that all need never called them.
fn first_impossible(job: &Job, outcome: &Outcome) -> usize {
    match job.fault {
        Fault::Death { .. } if outcome.has_struck => outcome.called_by_dead,
        Fault::Absent { operation, .. } => operation,
        _ => job.operations.len(),
    }
}

/// What is wrong with an outcome.
fn complaint(job: &Job, outcome: &Outcome) -> Option<String> {
    let must_succeed = matches!(job.fault, Fault::None | Fault::Partition { .. });
    for (rank, ends) in outcome.ends.iter().enumerate() {
        let is_dead = matches!(job.fault, Fault::Death { rank: dead, .. } if dead as usize == rank);
        for (index, end) in ends.iter().enumerate() {
            let operation = &job.operations[index];
            let place = format!("rank {rank}, operation {index} ({operation:?})");
            match end {
                Some(Ok(output)) => {
                    if is_defined(job, index) && *output != operation.expected(rank as Rank) {
                        return Some(format!("{place}: a wrong result"));
                    }
                    if index >= first_impossible(job, outcome)
                        && operation.needs_everyone()
                        && !is_dead
                    {
                        return Some(format!("{place}: ended well without everyone"));
                    }
                }
                Some(Err(error)) if must_succeed || !is_cause(job, error.first_cause()) => {
                    return Some(format!("{place}: {error}"));
                }
                Some(Err(_)) => {}
                None if is_dead || job.operation_of(rank as Rank, index).is_none() => {}
                None => return Some(format!("{place}: never called")),
            }
        }
    }
    let failed =
        |ends: &Vec<Option<Result<Vec<u8>, Error>>>| ends.iter().flatten().any(Result::is_err);
    let is_disagreement = matches!(job.fault, Fault::Mismatch { .. });
    if is_disagreement && !outcome.ends.iter().any(failed) {
        return Some("nobody noticed that counts differ".into());
    }
    None
}

/// Runs the job of a seed; what is wrong, or whether its fault struck in time.
fn try_seed(seed: u64, flaw: Option<Flaw>) -> Result<(Job, bool), String> {
    let job = Job::new(seed, flaw);
    let told = |text: String| {
        format!(
            "seed {seed}: {text}\nfault {:?}; replay with LINERATE_SEED={seed}",
            job.fault
        )
    };
    let outcome = catch_unwind(AssertUnwindSafe(|| run::run(&job)));
    let outcome = outcome
        .unwrap_or_else(|_| Err("a panic".into()))
        .map_err(told)?;
    if number_from_env("LINERATE_SEED").is_some() {
        print_ends(&outcome);
    }
    match complaint(&job, &outcome) {
        Some(text) => Err(told(text)),
        None => Ok((job, outcome.has_struck)),
    }
}

fn print_ends(outcome: &Outcome) {
    for (rank, ends) in outcome.ends.iter().enumerate() {
        for (index, end) in ends.iter().enumerate() {
            let text = match end {
                Some(Ok(output)) => format!("{} bytes", output.len()),
                Some(Err(error)) => error.to_string(),
                None => "none".into(),
            };
            println!("rank {rank}, operation {index}: {text}");
        }
    }
}

fn number_from_env(name: &str) -> Option<u64> {
    let text = std::env::var(name).ok()?;
    Some(
        text.parse()
            .unwrap_or_else(|_| panic!("{name} is '{text}': a whole number")),
    )
}

/// Runs seeds on all cores; complaints, and how often each fault struck in time.
fn try_seeds(seeds: std::ops::Range<u64>) -> (Vec<String>, BTreeMap<&'static str, u64>) {
    let threads = std::thread::available_parallelism().map_or(1, |n| n.get() as u64);
    let mut all = (Vec::new(), BTreeMap::new());
    std::thread::scope(|scope| {
        let run_share = |first: u64| {
            let (mut complaints, mut struck) = (Vec::new(), BTreeMap::new());
            for seed in (seeds.start + first..seeds.end).step_by(threads as usize) {
                match try_seed(seed, None) {
                    Ok((job, has_struck)) => {
                        *struck.entry(name_of(job.fault)).or_insert(0) += u64::from(has_struck);
                    }
                    Err(text) => complaints.push(text),
                }
            }
            (complaints, struck)
        };
        let shares: Vec<_> = (0..threads)
            .map(|first| scope.spawn(move || run_share(first)))
            .collect();
        for share in shares {
            let (complaints, struck) = share.join().expect("panics are caught");
            all.0.extend(complaints);
            struck
                .into_iter()
                .for_each(|(name, n)| *all.1.entry(name).or_insert(0) += n);
        }
    });
    all
}

fn name_of(fault: Fault) -> &'static str {
    match fault {
        Fault::None => "none",
        Fault::Partition { .. } => "partition",
        Fault::LastingPartition { .. } => "lasting partition",
        Fault::Death { .. } => "death",
        Fault::Cancel { .. } => "cancel",
        Fault::Mismatch { .. } => "mismatch",
        Fault::Absent { .. } => "absence",
    }
}

#[test]
fn every_seed_is_safe_and_ends() {
    if let Some(seed) = number_from_env("LINERATE_SEED") {
        println!("{:#?}", Job::new(seed, None));
        if let Err(text) = try_seed(seed, None) {
            panic!("{text}");
        }
        return;
    }
    let count = number_from_env("LINERATE_SEEDS").unwrap_or(SEEDS_DEFAULT);
    let (complaints, struck) = try_seeds(0..count);
    println!("{count} seeds; faults that struck in time: {struck:?}");
    let shown = complaints.iter().take(5).cloned().collect::<Vec<_>>();
    assert!(
        complaints.is_empty(),
        "{} of {count} seeds fail; the first:\n{}",
        complaints.len(),
        shown.join("\n")
    );
    for fault in ["partition", "lasting partition", "death", "cancel"] {
        let times = struck.get(fault).copied().unwrap_or(0);
        assert!(
            times >= count / 100,
            "{fault} struck in time with {times} of {count} seeds"
        );
    }
}

#[test]
fn flaws_of_the_fabric_are_found() {
    for flaw in [Flaw::LosesOnHeal, Flaw::CutsMessages] {
        let found =
            (0..SEEDS_OF_CANARY).find_map(|seed| Some((seed, try_seed(seed, Some(flaw)).err()?)));
        let (seed, text) =
            found.unwrap_or_else(|| panic!("{flaw:?}: not found in {SEEDS_OF_CANARY} seeds"));
        println!("{flaw:?}: found with seed {seed}: {text}");
    }
}

/// A job on a quiet fabric in which each rank calls one operation, at its own time.
fn job_of_one(operation: values::Planned, starts_ns: &[u64], fault: Fault) -> Job {
    Job {
        options: linerate::sim::SimOptions::new(operation.ranks, 1),
        config: linerate::Config::default(),
        operations: vec![operation],
        at_once: 1,
        starts_ns: starts_ns.iter().map(|&at_ns| vec![at_ns]).collect(),
        fault,
    }
}

fn planned(
    collective: linerate::Collective,
    ranks: u32,
    algorithm: &'static str,
) -> values::Planned {
    values::Planned {
        salt: 7,
        collective,
        dtype: linerate::DataType::F16,
        op: linerate::ReduceOp::Sum,
        count: 302,
        root: ranks - 1,
        ranks,
        algorithm: Some(algorithm),
        in_place: true,
        registered: true,
    }
}

/// Found with seeds 291, 1033 and 1098: the late rank's call was refused, and nobody else heard
/// why.
#[test]
fn a_call_that_comes_after_a_death_tells_the_ranks_that_wait_for_it() {
    let scatter = planned(linerate::Collective::Scatter, 3, "linear");
    let detected_ns = 5_000_000;
    let fault = Fault::Death { rank: 0, at_ns: 0 };
    let job = job_of_one(scatter, &[0, 0, detected_ns], fault);
    let outcome = run::run(&job).unwrap();
    assert_eq!(complaint(&job, &outcome), None);
    let error = outcome.ends[1][0].clone().unwrap().unwrap_err();
    assert!(
        matches!(error, Error::PeerFailed { rank: 0, .. }),
        "{error}"
    );
}

/// Found with seeds 4447 and 5545: the rank had said where its buffer is and died before it could
/// be mapped; the others waited for the timeout, and for nobody in particular.
#[test]
fn a_death_at_any_moment_of_an_operation_on_mapped_buffers_is_named() {
    let mut failures = 0;
    for at_ns in (0..100_000).step_by(1_000) {
        let all_to_all = planned(linerate::Collective::AllToAll, 3, "direct");
        let fault = Fault::Death { rank: 1, at_ns };
        // Rank 2 comes when rank 1 has said where its buffer is, and nobody has looked there.
        let mut job = job_of_one(all_to_all, &[0, 0, 50_000], fault);
        job.options.mapped = true;
        let outcome = run::run(&job).unwrap();
        assert_eq!(complaint(&job, &outcome), None, "death after {at_ns} ns");
        failures += u32::from(matches!(outcome.ends[0][0], Some(Err(_))));
    }
    assert!(
        (1..100).contains(&failures),
        "before and after the end: {failures}"
    );
}

/// Found with seed 9123: nobody was driven while the answers to a question were under way.
#[test]
fn a_disagreement_whose_algorithms_never_meet_is_found_by_asking() {
    let gather = values::Planned {
        count: 0,
        root: 5,
        algorithm: None,
        ..planned(linerate::Collective::Gather, 8, "")
    };
    let fault = Fault::Mismatch {
        rank: 2,
        operation: 0,
    };
    let job = job_of_one(gather, &[0; 8], fault);
    let outcome = run::run(&job).unwrap();
    assert_eq!(complaint(&job, &outcome), None);
}
