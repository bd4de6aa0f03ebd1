//! `bench sparse-allreduce --transport sim`: all ranks in this process, in virtual time, on a
//! modelled network.
//!
//! The machines, schedules and chunks are the library's; nothing has values, so that 256 ranks at
//! the size of BERT fit. Picks lie independently on every rank. Selection, sums and changes of
//! residuals take no time here: times are those of the communication.

use super::Plan;
use super::document::{Document, Entry};
use super::rank::{self, Reported, Times};
use crate::bench::link::Link;
use linerate::options::Algorithm;
use linerate::reports::Counters;
use linerate::unstable::sparse::{Machine, OkTopkState, Sized, Step, Support, choose};
use linerate_job::fabric::{Fabric, Network, run as run_machines};

/// Runs every algorithm.
pub fn run(plan: &Plan, link: Link) -> Result<(), String> {
    let fabric = Fabric {
        alpha_ns: link.latency_ns(),
        bytes_per_second: link.bytes_per_second(),
        ..Fabric::PAPER
    };
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
