//! `linerate explain --calibrate`: prices from times of this host.
//!
//! The command starts ranks as often as there are numbers of ranks to measure. Each of these jobs runs every algorithm of
//! some collectives at some sizes, and its rank 0 adds the work and the time of each to a file that the command has made. At
//! the end the command fits the prices ([`cost::fit`]), for ranks with a core each and for ranks that share cores, and
//! stores them.

use super::{ExplainArgs, as_bench, rank, timing};
use crate::bench::args::Memory;
use crate::bench::gather_facts;
use crate::bench::plan::build_plan;
use crate::bench::slots::Arenas;
use crate::settings::{self, FAILED};
use crate::{launch, output, system};
use linerate::config::PriceList;
use linerate::cost::{self, Caches, Model, Models, Sample, TERMS, Work};
use linerate::{Collective, Communicator, Config, Result};
use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};
use std::ffi::OsStr;
use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

/// Tells rank 0 of a job where to put its samples.
const SAMPLES: &str = "LINERATE_SAMPLES";

/// What is measured: together they do work of every kind, in different proportions.
const COLLECTIVES: [Collective; 6] = [
    Collective::AllReduce,
    Collective::ReduceScatter,
    Collective::AllGather,
    Collective::Broadcast,
    Collective::Reduce,
    Collective::AllToAll,
];
const SIZES: [u64; 7] = [8, 64, 4 << 10, 32 << 10, 256 << 10, 2 << 20, 16 << 20];
/// Numbers of ranks with a core each, as far as there are cores.
const RANKS_APART: [u32; 3] = [2, 4, 8];
/// Numbers of ranks on [`CROWDED_CORES`].
const RANKS_CROWDED: [u32; 3] = [3, 4, 8];
/// More would need more ranks to be crowded, and times of many processes that take turns.
const CROWDED_CORES: usize = 2;
/// Time of one algorithm at one size, us, and its iterations.
const BUDGET_US: f64 = 15_000.0;
const ITERATIONS: u32 = 24;
/// Everything is measured so often, and the best median counts: whoever else used the machine for a moment is gone.
const PASSES: usize = 2;

/// Whether there is a place for the prices, before a minute is spent on them.
pub fn check(args: &ExplainArgs, config: &Config) -> std::result::Result<(), String> {
    settings::check_ranks(args.sweep.ranks, settings::launched_ranks()?)?;
    if settings::launched().is_none() {
        place(config)?;
    }
    Ok(())
}

/// Is a rank of one of the jobs, or starts them all and stores what they give.
pub fn run(args: &ExplainArgs, is_rank: bool) -> ExitCode {
    if is_rank {
        return super::conclude(measure(args).map(Ok));
    }
    let samples = std::env::temp_dir().join(format!("linerate-samples-{}", std::process::id()));
    let outcome = calibrate(args, &samples);
    // It may never have been made.
    let _ = std::fs::remove_file(&samples);
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(text) => {
            eprintln!("error: {text}");
            ExitCode::from(FAILED)
        }
    }
}

fn place(config: &Config) -> std::result::Result<&PathBuf, String> {
    match &config.prices {
        PriceList::Cached(path) | PriceList::Named(path) => Ok(path),
        PriceList::BuiltIn => Err(
            "--calibrate has no place for the prices: LINERATE_MODEL=FILE, or HOME or XDG_CACHE_HOME".into(),
        ),
    }
}

fn calibrate(args: &ExplainArgs, samples: &Path) -> std::result::Result<(), String> {
    let facts = gather_facts()?;
    let place = place(&facts.config)?;
    let host = linerate::comm::price_host();
    let stored = std::fs::read_to_string(place).unwrap_or_default();
    // Damaged prices are replaced; those of other hosts in the same file stay.
    let before = cost::parse(&stored, &host).ok().flatten();
    let mut models = Models {
        caches: caches(),
        ..before.unwrap_or(Models::BUILT_IN)
    };
    let own = sched_getaffinity(None).map_err(|e| format!("reading the cores to use: {e}"))?;
    let cores: Vec<usize> = (0..CpuSet::MAX_CPU).filter(|&c| own.is_set(c)).collect();
    let wanted = |ranks: &u32| args.sweep.ranks.is_none_or(|only| only == *ranks);
    let all = args.sweep.ranks.into_iter().chain(RANKS_APART);
    let apart: Vec<u32> = all
        .filter(|&r| r as usize <= cores.len() && r > 1 && wanted(&r))
        .collect();
    let text = job_times(args, &apart, samples)?;
    models.apart = fitted("each rank has a core", &text, &models.apart)?;

    let few = &cores[..cores.len().min(CROWDED_CORES)];
    let all = args.sweep.ranks.into_iter().chain(RANKS_CROWDED);
    let crowded: Vec<u32> = all
        .filter(|&r| r as usize > few.len() && wanted(&r))
        .collect();
    let mut set = CpuSet::new();
    few.iter().for_each(|&core| set.set(core));
    sched_setaffinity(None, &set).map_err(|e| format!("keeping to the cores {few:?}: {e}"))?;
    let text = job_times(args, &crowded, samples)?;
    models.crowded = fitted("ranks share cores", &text, &models.crowded)?;

    store(place, &cost::emit(&stored, &host, &models))?;
    output::print_text(&format!("stored in {} for {host}\n", place.display()))
}

/// As the kernel describes those of the first core; the built-in sizes where it does not.
fn caches() -> Caches {
    let known = system::caches();
    let of = |level: u32| {
        known
            .iter()
            .rfind(|c| c.level == level && c.kind != "Instruction")
    };
    let bytes = |level, other| of(level).map_or(other, |cache| cache.bytes as f64);
    let Caches {
        core_bytes,
        host_bytes,
    } = Models::BUILT_IN.caches;
    Caches {
        core_bytes: bytes(2, core_bytes),
        host_bytes: bytes(3, host_bytes),
    }
}

/// The samples of a job for each of the numbers of ranks.
fn job_times(
    args: &ExplainArgs,
    all: &[u32],
    samples: &Path,
) -> std::result::Result<String, String> {
    let mut text = String::new();
    let mut last = None;
    for &ranks in all {
        if last.replace(ranks) == Some(ranks) {
            continue; // Asked for, and one of ours.
        }
        let code = launch::spawn_self_with(
            ranks,
            args.sweep.bind,
            &[
                (SAMPLES, samples.as_os_str()),
                ("LINERATE_MODEL", OsStr::new("off")),
            ],
        );
        if code != 0 {
            return Err(format!(
                "the job of {ranks} ranks failed with code {code}; nothing is stored"
            ));
        }
        text += &std::fs::read_to_string(samples)
            .map_err(|e| format!("reading the times of {ranks} ranks: {e}"))?;
    }
    Ok(text)
}

fn fitted(class: &str, text: &str, before: &Model) -> std::result::Result<Model, String> {
    let samples: Vec<Sample> = text
        .lines()
        .map(parse_sample)
        .collect::<std::result::Result<_, _>>()?;
    if samples.is_empty() {
        return Ok(*before);
    }
    let model = cost::fit(&samples, before);
    let mut report = format!("{class}: {} times\n", samples.len());
    for (index, name) in Model::NAMES.iter().enumerate() {
        let (old, new) = (before.0[index], model.0[index]);
        let _ = writeln!(report, "  {name:<8} {old:>10.4} -> {new:>10.4} ns");
    }
    let mut errors: Vec<f64> = samples
        .iter()
        .map(|s| (model.predict(&s.work) / s.time_ns).ln().abs().exp() - 1.0)
        .collect();
    errors.sort_by(f64::total_cmp);
    let of = |percent: usize| 100.0 * errors[(errors.len() - 1) * percent / 100];
    let _ = writeln!(
        report,
        "  half of the predictions are within {:.0} % of the times, nine of ten within {:.0} %",
        of(50),
        of(90)
    );
    output::print_text(&report)?;
    Ok(model)
}

fn store(place: &Path, text: &str) -> std::result::Result<(), String> {
    let complain = |e: std::io::Error| format!("storing prices in {}: {e}", place.display());
    if let Some(folder) = place.parent() {
        std::fs::create_dir_all(folder).map_err(complain)?;
    }
    output::write_document("LINERATE_MODEL", place, text.trim_end())
}

/// One rank: joins, measures, and writes the samples down if it is rank 0.
fn measure(args: &ExplainArgs) -> Result<()> {
    let invalid = linerate::Error::InvalidArgument;
    let config = gather_facts().map_err(invalid)?.config;
    let communicator = Communicator::from_env(config)?;
    let mut best = measure_all(args, &communicator)?;
    for _ in 1..PASSES {
        for (best, again) in best.iter_mut().zip(measure_all(args, &communicator)?) {
            best.1.time_ns = best.1.time_ns.min(again.1.time_ns);
        }
    }
    communicator.barrier()?;
    if let (0, Some(path)) = (communicator.rank(), std::env::var_os(SAMPLES)) {
        let lines = best.iter().map(|(what, sample)| emit_sample(what, sample));
        let text: String = lines.collect();
        std::fs::write(&path, text)
            .map_err(|e| invalid(format!("writing times to {}: {e}", path.display())))?;
    }
    Ok(())
}

/// Every algorithm of every collective at every size, on both kinds of memory, and what it was.
fn measure_all(args: &ExplainArgs, communicator: &Communicator) -> Result<Vec<(String, Sample)>> {
    let invalid = linerate::Error::InvalidArgument;
    let mut samples = Vec::new();
    for collective in COLLECTIVES {
        for memory in [Memory::Registered, Memory::Caller] {
            let mut bench = as_bench(args, collective, memory);
            (bench.sweep.max_bytes, bench.sweep.ranks) = (SIZES[SIZES.len() - 1], None);
            let plan = build_plan(&bench, gather_facts().map_err(invalid)?).map_err(invalid)?;
            let arenas = Arenas::new(communicator, &plan)?;
            for size in SIZES {
                let row = rank::row(
                    &plan,
                    communicator.rank(),
                    (size, plan.variants[0].0, plan.variants[0].1),
                );
                let call = arenas.call(&row, 0);
                let explanation = communicator.explain(&call)?;
                let calls = rank::rivals(&call, &explanation);
                let times = timing::medians(communicator, &calls, ITERATIONS, BUDGET_US)?;
                for (candidate, time_us) in explanation.candidates.iter().zip(times) {
                    let name = candidate.algorithm.name;
                    let what = format!(
                        "{} {collective} {name} {} {size}",
                        plan.ranks,
                        memory.name()
                    );
                    let (work, time_ns) = (candidate.work, 1e3 * time_us);
                    samples.push((what, Sample { work, time_ns }));
                }
            }
        }
    }
    Ok(samples)
}

/// A line: the time, the work, and what it was.
fn emit_sample(what: &str, sample: &Sample) -> String {
    let time_ns = sample.time_ns;
    let amounts: Vec<String> = sample.work.to_array().iter().map(f64::to_string).collect();
    format!("{time_ns} {} {what}\n", amounts.join(" "))
}

fn parse_sample(line: &str) -> std::result::Result<Sample, String> {
    let numbers: Vec<f64> = line
        .split(' ')
        .map_while(|word| word.parse().ok())
        .collect();
    let amounts: Option<[f64; TERMS]> = numbers.get(1..=TERMS).and_then(|a| a.try_into().ok());
    match (numbers.first(), amounts) {
        (Some(&time_ns), Some(amounts)) if time_ns > 0.0 => Ok(Sample {
            work: Work::from_array(amounts),
            time_ns,
        }),
        _ => Err(format!("a time that rank 0 wrote is damaged: '{line}'")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_sample_survives_and_a_stump_is_refused() {
        let work = Work::from_array(std::array::from_fn(|i| i as f64 + 0.25));
        let time_ns = 1234.5;
        let sample = Sample { work, time_ns };
        let line = emit_sample("2 allreduce ring registered 8", &sample);
        assert_eq!(parse_sample(line.trim()).unwrap(), sample);
        assert!(parse_sample("5 1 2 3").unwrap_err().contains("damaged"));
        assert!(parse_sample("").is_err());
    }
}
