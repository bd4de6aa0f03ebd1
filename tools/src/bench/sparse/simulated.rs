//! `bench sparse-allreduce --transport sim`: all ranks in this process, in virtual time, on a
//! modelled network.
//!
//! The machines, schedules and chunks are the library's; nothing has values, so that 256 ranks at
//! the size of BERT fit. Picks lie independently on every rank. Selection, sums and changes of
//! residuals take no time here: times are those of the communication.

use super::Plan;
use super::document::{Document, Entry};
use super::rank::{self, Reported, Times};
use linerate::options::Algorithm;
use linerate::reports::Counters;
use linerate::unstable::sparse::{Machine, OkTopkState, Sized, Step, Support, choose};
use linerate_job::fabric::{Fabric, Network, run as run_machines};

/// The network where the arguments say nothing: that of `bench`.
const LINK_GBIT_DEFAULT: f64 = 100.0;
const LINK_US_DEFAULT: f64 = 2.0;

/// Ranks at most, as in `bench`.
const RANKS_MAX: u32 = 1024;

/// What the arguments say of the network, if there is one to say something of.
pub fn fabric(args: &super::SparseArgs, transport: &str) -> Result<Option<Fabric>, String> {
    let asked = (args.link_gbit, args.link_us);
    if transport != "sim" {
        return match asked {
            (None, None) => Ok(None),
            _ => Err("--link-gbit and --link-us describe the network of --transport sim".into()),
        };
    }
    let gbit = asked.0.unwrap_or(LINK_GBIT_DEFAULT);
    let us = asked.1.unwrap_or(LINK_US_DEFAULT);
    Ok(Some(Fabric {
        alpha_ns: (us * 1e3) as u64,
        bytes_per_second: (gbit * 1e9 / 8.0) as u64,
        ..Fabric::PAPER
    }))
}

/// Whether this many ranks are simulated.
pub fn check_ranks(ranks: u32) -> Result<(), String> {
    match ranks <= RANKS_MAX {
        true => Ok(()),
        false => Err(format!(
            "--ranks is {ranks}: --transport sim takes 1 to {RANKS_MAX}"
        )),
    }
}

/// Runs every algorithm.
pub fn run(plan: &Plan, fabric: Fabric) -> Result<(), String> {
    let mut document = Document::new(plan, "sim");
    rank::print(plan, &rank::header(plan, (plan.ranks, "sim")));
    for algorithm in &plan.args.algo.0 {
        // Each on a network of its own: the first step exchanges keys of memory.
        let mut network = Network::new(fabric, plan.ranks)?;
        let entry = measure(plan, (*algorithm, fabric), &mut network)?;
        rank::print(plan, &rank::row(&entry));
        document.results.push(entry);
    }
    plan.args.job.write_json(&document)
}

fn measure(
    plan: &Plan,
    (asked, fabric): (Algorithm, Fabric),
    network: &mut Network,
) -> Result<Entry, String> {
    let count = plan.count();
    let options = plan.options(asked);
    let k = options.amount.of(count);
    let mut times = Times::default();
    let (mut state, mut reduced) = (OkTopkState::default(), None);
    let mut reported = Reported::new(asked, plan.ranks);
    for step in 0..plan.args.warmup + plan.args.iterations {
        let algorithm = match asked {
            Algorithm::Auto => choose((count, k, plan.ranks), reduced, fabric.prices()),
            other => other,
        };
        let is_timed = step >= plan.args.warmup;
        reported.ran = algorithm;
        if algorithm == Algorithm::Dense {
            let (seconds, _) = network.dense(count)?;
            let mut counters = Counters::default();
            counters.add_dense(4 * count, plan.ranks.into());
            reported.all(is_timed, |_| counters);
            (reported.selected_local, reported.selected_global) = (count, count);
            times.push_communication(is_timed, seconds);
            continue;
        }
        let machine = |rank| {
            let step = Step {
                picks: Sized::new(0, count, k, Support::Independent),
                not_finite: 0,
                count,
                k,
            };
            Machine::new(algorithm, &options, (rank, plan.ranks), step, state.clone())
        };
        let outcome = run_machines((0..plan.ranks).map(machine).collect(), Some(network))?;
        let finished = &outcome.finished;
        state = finished[0].state.clone().unwrap_or_default();
        reduced = finished[0].reduced.or(reduced);
        reported.all(is_timed, |rank| finished[rank].counters);
        reported.selected_local = k;
        reported.selected_global = linerate::unstable::sparse::Entries::len(&finished[0].result);
        reported.reduced = finished[0].reduced;
        times.push_communication(is_timed, outcome.seconds);
    }
    Ok(rank::build_entry(plan, &reported, &times, None))
}
