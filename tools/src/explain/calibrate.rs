//! `linerate explain --calibrate`: what is faster on this host than the cheapest by the prices.
//!
//! The command starts ranks for each number of ranks to measure, some times over. Each of these
//! jobs runs every algorithm of some collectives at some sizes, and its rank 0 adds the predicted
//! and the measured time of each to a file that the command has made. At the end the command stores
//! the cases in which something was faster than the cheapest by the prices ([`Finding`]).

use super::{ExplainArgs, as_bench, rank, timing};
use crate::bench::args::Memory;
use crate::bench::gather_facts;
use crate::bench::plan::build_plan;
use crate::bench::slots::Arenas;
use linerate::options::FindingsFrom;
use linerate::unstable::cost::{self, FINDINGS_MAX, Finding, Models};
use linerate::{Collective, Communicator, Config, Result};
use linerate_job::ending::{self, FAILED};
use linerate_job::{output, settings, spawn};
use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};
use std::borrow::Cow;
use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

/// Tells rank 0 of a job where to put its samples.
const SAMPLES: &str = "LINERATE_SAMPLES";

/// What is measured.
const COLLECTIVES: [Collective; 6] = [
    Collective::AllReduce,
    Collective::ReduceScatter,
    Collective::AllGather,
    Collective::Broadcast,
    Collective::Reduce,
    Collective::AllToAll,
];
const SIZES: [u64; 8] = [8, 64, 512, 4 << 10, 32 << 10, 256 << 10, 2 << 20, 16 << 20];
/// Numbers of ranks with a core each, as far as there are cores.
const RANKS_APART: [u32; 3] = [2, 4, 8];
/// Numbers of ranks on [`CROWDED_CORES`].
const RANKS_CROWDED: [u32; 3] = [3, 4, 8];
/// More cores would need more ranks to crowd them, and the times of many processes that take turns
/// vary.
const CROWDED_CORES: usize = 2;
/// Time of one algorithm at one size, us, and the most iterations.
const BUDGET_US: f64 = 15_000.0;
const ITERATIONS: u32 = 200;
/// Jobs that measure everything, up to a minute apart. The least median counts, so that neither
/// another program nor the place of one job's memory decides.
const JOBS: usize = 6;
/// A case is stored if the cheapest takes more than this many times as long as the fastest.
const LOSS_MAX: f64 = 1.04;

/// An algorithm that was measured.
#[derive(Clone, Debug, PartialEq)]
struct Timed {
    time_ns: f64,
    /// By the prices.
    predicted_ns: f64,
    /// The call, with the algorithm.
    what: Finding,
}

impl Timed {
    /// Whether both were measured with the same call.
    fn is_rival(&self, other: &Timed) -> bool {
        let call = |timed: &Timed| Finding {
            algorithm: "".into(),
            ..timed.what.clone()
        };
        call(self) == call(other)
    }
}

/// Checks that there is a place for the findings, before minutes are spent on them.
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
        return ending::conclude(measure(args).map(Ok));
    }
    let samples = std::env::temp_dir().join(format!("linerate-samples-{}", std::process::id()));
    let outcome = calibrate(args, &samples);
    // The file may not exist.
    let _ = std::fs::remove_file(&samples);
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(text) => ending::fail(FAILED, &text),
    }
}

fn place(config: &Config) -> std::result::Result<&PathBuf, String> {
    match &config.findings {
        FindingsFrom::Cached(path) | FindingsFrom::Named(path) => Ok(path),
        FindingsFrom::BuiltIn => Err(
            "--calibrate has no place for the findings: LINERATE_MODEL=FILE, or HOME or XDG_CACHE_HOME".into(),
        ),
    }
}

fn calibrate(args: &ExplainArgs, samples: &Path) -> std::result::Result<(), String> {
    let facts = gather_facts()?;
    let place = place(&facts.config)?;
    let host = linerate::unstable::comm::findings_host();
    let stored = std::fs::read_to_string(place).unwrap_or_default();
    let jobs = measure_host(args, samples)?;
    let (crowded, apart): (Vec<Timed>, Vec<Timed>) = least(&jobs)?
        .into_iter()
        .partition(|timed| timed.what.crowded);
    let mut losses = losses(&apart);
    losses.extend(self::losses(&crowded));
    losses.retain(|loss| loss.is_confirmed(&jobs));
    let models = Models {
        findings: findings(losses)?,
        ..Models::BUILT_IN
    };

    // The sections of other hosts stay.
    store(place, &cost::emit(&stored, &host, &models))?;
    output::print_text(&format!("stored in {} for {host}\n", place.display()))
}

/// The times of every call by each job: of ranks with a core each, and of those that share cores.
fn measure_host(
    args: &ExplainArgs,
    samples: &Path,
) -> std::result::Result<Vec<Vec<Timed>>, String> {
    let own = sched_getaffinity(None).map_err(|e| format!("reading the cores to use: {e}"))?;
    let cores: Vec<usize> = (0..CpuSet::MAX_CPU).filter(|&c| own.is_set(c)).collect();
    let few = &cores[..cores.len().min(CROWDED_CORES)];
    let mut set = CpuSet::new();
    few.iter().for_each(|&core| set.set(core));
    let asked = args.sweep.ranks;
    let apart = |ranks: u32| ranks > 1 && ranks as usize <= cores.len();
    let crowded = |ranks: u32| ranks as usize > few.len();
    let classes = [
        (own, false, numbers(asked, &RANKS_APART, apart)),
        (set, true, numbers(asked, &RANKS_CROWDED, crowded)),
    ];
    let mut jobs = Vec::new();
    for _ in 0..JOBS {
        let mut times = Vec::new();
        for (cores, is_crowded, numbers) in &classes {
            sched_setaffinity(None, cores).map_err(|e| format!("keeping to some cores: {e}"))?;
            for &ranks in numbers {
                times.extend(one_job(args, ranks, samples)?.into_iter().map(|mut timed| {
                    timed.what.crowded = *is_crowded;
                    timed
                }));
            }
        }
        jobs.push(times);
    }
    Ok(jobs)
}

/// The numbers of ranks to measure: the one that was asked for, or ours where they fit.
fn numbers(asked: Option<u32>, ours: &[u32], has_room: impl Fn(u32) -> bool) -> Vec<u32> {
    let all = asked.map_or_else(|| ours.to_vec(), |ranks| vec![ranks]);
    all.into_iter().filter(|&ranks| has_room(ranks)).collect()
}

fn one_job(
    args: &ExplainArgs,
    ranks: u32,
    samples: &Path,
) -> std::result::Result<Vec<Timed>, String> {
    let settings = [
        (SAMPLES, samples.as_os_str()),
        ("LINERATE_MODEL", OsStr::new("off")),
    ];
    let code = spawn::spawn_self_with(ranks, args.sweep.bind, &settings);
    if code != 0 {
        return Err(format!(
            "the job of {ranks} ranks failed with code {code}; nothing is stored"
        ));
    }
    let text = std::fs::read_to_string(samples)
        .map_err(|e| format!("reading the times of {ranks} ranks: {e}"))?;
    text.lines().map(parse_timed).collect()
}

/// The least time of each call over several jobs.
fn least(jobs: &[Vec<Timed>]) -> std::result::Result<Vec<Timed>, String> {
    let Some((first, others)) = jobs.split_first() else {
        return Ok(Vec::new());
    };
    let mut least = first.clone();
    for other in others {
        if !least
            .iter()
            .map(|t| &t.what)
            .eq(other.iter().map(|t| &t.what))
        {
            return Err("two jobs alike have measured different calls".to_owned());
        }
        for (least, other) in least.iter_mut().zip(other) {
            if other.time_ns < least.time_ns {
                least.clone_from(other);
            }
        }
    }
    Ok(least)
}

/// A case in which what the prices choose is not the fastest.
struct Loss {
    /// How many times as fast something else was.
    factor: f64,
    chosen: Finding,
    faster: Finding,
}

impl Loss {
    /// Whether at least half of the jobs that timed both saw it.
    fn is_confirmed(&self, jobs: &[Vec<Timed>]) -> bool {
        let time = |job: &[Timed], what: &Finding| {
            let timed = job.iter().find(|timed| timed.what == *what);
            timed.map(|timed| timed.time_ns)
        };
        let faster = Finding {
            registered: self.chosen.registered,
            ..self.faster.clone()
        };
        let seen: Vec<bool> = jobs
            .iter()
            .filter_map(|job| Some(time(job, &faster)? < time(job, &self.chosen)?))
            .collect();
        2 * seen.iter().filter(|&&is_seen| is_seen).count() >= seen.len()
    }
}

/// The cases in which what the prices choose is not the fastest. What is chosen for registered
/// memory also runs on other memory, unless it needs registered memory, so the choice must be good
/// for both.
fn losses(times: &[Timed]) -> Vec<Loss> {
    let mut losses = Vec::new();
    let mut cases: Vec<&[Timed]> = times.chunk_by(Timed::is_rival).collect();
    // Both memories of a call beside each other, the registered one first.
    cases.sort_by_key(|case| {
        let what = &case[0].what;
        (
            what.collective as u8,
            what.ranks,
            what.bytes,
            !what.registered,
        )
    });
    for pair in cases.chunks(2) {
        let [registered, caller] = pair else { continue };
        let loss_of = |case: &[Timed], name: &str| {
            let own = case.iter().find(|timed| timed.what.algorithm == name)?;
            Some(own.time_ns / fastest(case).time_ns)
        };
        let both = |name: &str| {
            let of_caller = loss_of(caller, name).unwrap_or(1.0);
            loss_of(registered, name)
                .unwrap_or(f64::INFINITY)
                .max(of_caller)
        };
        let predicted = &cheapest(registered).what;
        let chosen = &predicted.algorithm;
        let best = registered
            .iter()
            .map(|timed| &timed.what)
            .min_by(|a, b| both(&a.algorithm).total_cmp(&both(&b.algorithm)))
            .expect("a case has times");
        let is_better = both(chosen) / both(&best.algorithm) > LOSS_MAX;
        if is_better {
            losses.push(Loss {
                factor: both(chosen),
                chosen: Finding {
                    // The memory on which it loses more.
                    registered: loss_of(registered, chosen) >= loss_of(caller, chosen),
                    ..predicted.clone()
                },
                faster: best.clone(),
            });
        }
        let planned = if is_better { &best.algorithm } else { chosen };
        let alone = cheapest(caller);
        let loss = alone.time_ns / fastest(caller).time_ns;
        if loss_of(caller, planned).is_none() && loss > LOSS_MAX {
            losses.push(Loss {
                factor: loss,
                chosen: alone.what.clone(),
                faster: fastest(caller).what.clone(),
            });
        }
    }
    losses
}

fn cheapest(case: &[Timed]) -> &Timed {
    let price = |timed: &Timed| timed.predicted_ns;
    let cheapest = case.iter().min_by(|a, b| price(a).total_cmp(&price(b)));
    cheapest.expect("a case has times")
}

fn fastest(case: &[Timed]) -> &Timed {
    let time = |timed: &Timed| timed.time_ns;
    let fastest = case.iter().min_by(|a, b| time(a).total_cmp(&time(b)));
    fastest.expect("a case has times")
}

/// The findings of the greatest losses; prints a line for each.
fn findings(mut losses: Vec<Loss>) -> std::result::Result<Cow<'static, [Finding]>, String> {
    losses.sort_by(|a, b| b.factor.total_cmp(&a.factor));
    losses.truncate(FINDINGS_MAX);
    let lines: Vec<String> = losses
        .iter()
        .map(|loss| format!("  {}: {:.2} times as fast\n", loss.faster, loss.factor))
        .collect();
    output::print_text(&format!(
        "faster than the cheapest by the prices, {} cases:\n{}",
        lines.len(),
        lines.concat()
    ))?;
    Ok(losses.into_iter().map(|loss| loss.faster).collect())
}

fn store(place: &Path, text: &str) -> std::result::Result<(), String> {
    let complain = |e: std::io::Error| format!("storing findings in {}: {e}", place.display());
    if let Some(folder) = place.parent() {
        std::fs::create_dir_all(folder).map_err(complain)?;
    }
    output::write_document("LINERATE_MODEL", place, text.trim_end())
}

/// One rank: joins, measures, and writes the samples down if it is rank 0.
fn measure(args: &ExplainArgs) -> Result<()> {
    let invalid = linerate::Error::InvalidArgument;
    let config = gather_facts().map_err(invalid)?.config;
    let communicator = settings::join(config)?;
    let times = measure_all(args, &communicator)?;
    communicator.barrier()?;
    if let (0, Some(path)) = (communicator.rank(), std::env::var_os(SAMPLES)) {
        let text: String = times.iter().map(emit_timed).collect();
        std::fs::write(&path, text)
            .map_err(|e| invalid(format!("writing times to {}: {e}", path.display())))?;
    }
    Ok(())
}

/// Every algorithm of every collective at every size, on both kinds of memory. The algorithms of
/// one call stand together.
fn measure_all(args: &ExplainArgs, communicator: &Communicator) -> Result<Vec<Timed>> {
    let invalid = linerate::Error::InvalidArgument;
    let mut all = Vec::new();
    for collective in COLLECTIVES {
        for memory in [Memory::Registered, Memory::Caller] {
            for size in SIZES {
                // Each size has memory of its own: the beginning of a longer buffer would lie in
                // larger pages.
                let mut bench = as_bench(args, collective, memory);
                (bench.sweep.min_bytes, bench.sweep.max_bytes) = (size, size);
                bench.sweep.ranks = None;
                let plan = build_plan(&bench, gather_facts().map_err(invalid)?).map_err(invalid)?;
                let arenas = Arenas::new(communicator, &plan)?;
                let row = rank::row(
                    &plan,
                    communicator.rank(),
                    (size, plan.variants[0].0, plan.variants[0].1),
                );
                let call = arenas.collective(&row, 0);
                let explanation = call.explain()?;
                let calls = rank::rivals(&call, &explanation);
                let times = timing::medians(communicator, &calls, ITERATIONS, BUDGET_US)?;
                for (candidate, time_us) in explanation.candidates.iter().zip(times) {
                    all.push(Timed {
                        time_ns: 1e3 * time_us,
                        predicted_ns: candidate.predicted_ns,
                        what: Finding {
                            collective,
                            ranks: plan.ranks,
                            crowded: false,
                            registered: memory == Memory::Registered,
                            bytes: row.layout.count * row.dtype.size_bytes() as u64,
                            algorithm: candidate.algorithm.name.into(),
                        },
                    });
                }
            }
        }
    }
    Ok(all)
}

/// A line: the measured time, the predicted time, and the call with its algorithm.
fn emit_timed(timed: &Timed) -> String {
    let Timed {
        time_ns,
        predicted_ns,
        what,
    } = timed;
    format!("{time_ns} {predicted_ns} {what}\n")
}

fn parse_timed(line: &str) -> std::result::Result<Timed, String> {
    let damaged = || format!("a time that rank 0 wrote is damaged: '{line}'");
    let mut words = line.splitn(3, ' ');
    let mut number = || words.next()?.parse::<f64>().ok();
    let time_ns = number().filter(|&ns| ns > 0.0).ok_or_else(damaged)?;
    let predicted_ns = number().ok_or_else(damaged)?;
    let what = words.next().unwrap_or_default();
    Ok(Timed {
        time_ns,
        predicted_ns,
        what: what.parse().map_err(|_| damaged())?,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn timed(what: &str, predicted_ns: f64, time_ns: f64) -> Timed {
        Timed {
            time_ns,
            predicted_ns,
            what: what.parse().unwrap(),
        }
    }

    #[test]
    fn a_time_survives_and_a_stump_is_refused() {
        let own = timed("apart allreduce 2 registered 8 ring", 1.5, 1234.5);
        let line = emit_timed(&own);
        assert_eq!(parse_timed(line.trim()).unwrap(), own);
        for stump in ["5 1", "5 x", "", line.trim().trim_end_matches(" ring")] {
            assert!(
                parse_timed(stump).unwrap_err().contains("damaged"),
                "{stump}"
            );
        }
    }

    #[test]
    fn of_several_jobs_the_least_time_of_each_call_counts() {
        let job = |ring: f64, tree: f64| {
            [("ring", ring), ("tree", tree)]
                .map(|(name, ns)| timed(&format!("apart allreduce 2 caller 8 {name}"), 1.0, ns))
                .to_vec()
        };
        let times = least(&[job(9.0, 5.0), job(7.0, 6.0), job(8.0, 8.0)]).unwrap();
        assert_eq!(times, job(7.0, 5.0));
        let mut shorter = job(1.0, 1.0);
        shorter.pop();
        assert!(least(&[job(1.0, 1.0), shorter]).is_err());
        assert_eq!(least(&[]), Ok(Vec::new()));
    }

    #[test]
    fn what_few_jobs_have_seen_is_not_believed() {
        let job = |ring: f64, tree: f64| {
            let both = |memory: &str| {
                let of = |name, ns| timed(&format!("apart allreduce 2 {memory} 8 {name}"), 1.0, ns);
                [of("ring", ring), of("tree", tree)]
            };
            [both("registered"), both("caller")].concat()
        };
        // By the prices a ring, which comes first, is as cheap as a tree.
        let believed = |jobs: &[Vec<Timed>]| {
            let mut losses = losses(&least(jobs).unwrap());
            assert_eq!(losses.len(), 1, "by the least times the tree is faster");
            losses.retain(|loss| loss.is_confirmed(jobs));
            !losses.is_empty()
        };
        let (slow, fast) = (job(90.0, 100.0), job(110.0, 60.0));
        assert!(!believed(&[slow.clone(), slow.clone(), fast.clone()]));
        assert!(believed(&[slow, fast.clone(), fast]));
    }

    #[test]
    fn what_is_faster_than_the_cheapest_is_found() {
        let case = |bytes: u64, times: [(&str, &str, f64); 4]| {
            times.map(|(memory, algorithm, ns)| {
                let call = ["ring", "tree", "direct"]
                    .iter()
                    .position(|a| *a == algorithm);
                let what = format!("apart allreduce 2 {memory} {bytes} {algorithm}");
                timed(&what, 10.0 * call.unwrap() as f64, ns)
            })
        };
        let on = |times: &[Timed]| -> Vec<String> {
            let losses = losses(times);
            losses.iter().map(|loss| loss.faster.to_string()).collect()
        };
        let [r, c] = ["registered", "caller"];
        let good = case(
            8,
            [
                (r, "ring", 100.0),
                (r, "direct", 99.0),
                (c, "ring", 100.0),
                (c, "tree", 104.0),
            ],
        );
        assert_eq!(on(&good), [""; 0]);
        let direct = case(
            8,
            [
                (r, "ring", 150.0),
                (r, "direct", 100.0),
                (c, "ring", 90.0),
                (c, "tree", 104.0),
            ],
        );
        // `direct` needs registered memory. Other memory goes on with the ring.
        assert_eq!(on(&direct), ["apart allreduce 2 registered 8 direct"]);
        // Twice as fast on one memory and half as fast on the other is no gain.
        let torn = case(
            8,
            [
                (r, "ring", 200.0),
                (r, "tree", 100.0),
                (c, "ring", 100.0),
                (c, "tree", 200.0),
            ],
        );
        assert_eq!(on(&torn), [""; 0]);
        let tree = case(
            8,
            [
                (r, "ring", 200.0),
                (r, "tree", 100.0),
                (c, "ring", 110.0),
                (c, "tree", 100.0),
            ],
        );
        assert_eq!(on(&tree), ["apart allreduce 2 registered 8 tree"]);
    }
}
