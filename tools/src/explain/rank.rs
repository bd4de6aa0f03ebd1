//! What one rank of `explain` does: asks the library what each size would run, measures it, and
//! prints if it is rank 0.

use super::print::{Document, Entry, Rival};
use super::{ExplainArgs, describe_prices, print, timing};
use crate::bench::layout::Layout;
use crate::bench::plan::Plan;
use crate::bench::slots::{Arenas, Row};
use crate::bench::sweep;
use linerate::reports::Explanation;
use linerate::{CollectiveBuilder, Communicator, DataType, ReduceOp, Result};
use linerate_job::ending::Outcome;
use linerate_job::progress::Progress;
use linerate_job::settings;

/// Time for the iterations of one algorithm at one size, us: the default sweep of the chosen ones
/// then takes a few seconds.
const BUDGET_US: f64 = 200_000.0;

/// Joins the other ranks and explains everything.
pub fn run(args: &ExplainArgs, plan: &Plan) -> Outcome {
    let communicator = settings::join(plan.config.clone())?;
    let arenas = Arenas::new(&communicator, plan)?;
    let rows: Vec<_> = (plan.variants.iter())
        .flat_map(|&(dtype, op)| plan.sizes.iter().map(move |&size| (size, dtype, op)))
        .collect();
    let is_first = communicator.rank() == 0;
    let mut progress = Progress::new("sizes", rows.len(), is_first);
    let mut document = Document::new(
        plan,
        communicator.transport(),
        describe_prices(&plan.config),
    );
    let mut texts = vec![print::header(&document)];
    for row in rows {
        let entry = explain(args, plan, (&communicator, &arenas), row)?;
        progress.advance(format!("after {} B", entry.bytes));
        texts.push(print::lines(&entry));
        document.results.push(entry);
    }
    communicator.barrier()?;
    progress.finish();
    if !is_first {
        return Ok(Ok(()));
    }
    let printed = plan.job.print(&texts.concat());
    let written = printed.and_then(|()| plan.job.write_json(&document));
    Ok(written.map_err(|text| vec![text]))
}

/// The row of one size, which is explained and measured.
pub fn row<'a>(plan: &'a Plan, rank: u32, (size, dtype, op): (u64, DataType, ReduceOp)) -> Row<'a> {
    let width = dtype.size_bytes() as u64;
    Row {
        layout: Layout {
            collective: plan.collective,
            rank,
            ranks: plan.ranks,
            root: plan.root,
            count: sweep::count_of(plan.collective, size, width, plan.ranks),
        },
        placement: plan.placements[0],
        dtype,
        op,
        algorithm: plan.algorithm.as_deref(),
    }
}

/// The call by each algorithm that can run, in the order of the explanation.
pub fn rivals<'a>(
    call: &CollectiveBuilder<'a>,
    explanation: &Explanation,
) -> Vec<CollectiveBuilder<'a>> {
    let candidates = explanation.candidates.iter();
    let by_name = candidates.map(|c| call.clone().algorithm(c.algorithm.name));
    by_name.collect()
}

fn explain(
    args: &ExplainArgs,
    plan: &Plan,
    (communicator, arenas): (&Communicator, &Arenas),
    (size, dtype, op): (u64, DataType, ReduceOp),
) -> Result<Entry> {
    let row = row(plan, communicator.rank(), (size, dtype, op));
    let call = arenas.collective(&row, 0);
    let explanation = call.explain()?;
    // First as the library runs it, then by each name.
    let mut calls = vec![call.clone()];
    if args.all {
        calls.extend(rivals(&call, &explanation));
    }
    let times = match args.no_measure {
        true => Vec::new(),
        false => timing::medians(communicator, &calls, args.iterations, BUDGET_US)?,
    };
    let rivals = explanation.candidates.iter().enumerate();
    let rivals = rivals.map(|(index, candidate)| Rival {
        algorithm: candidate.algorithm.name,
        predicted_us: candidate.predicted_ns / 1e3,
        measured_us: times.get(index + 1).copied(),
    });
    let (count, width) = (row.layout.count, dtype.size_bytes() as u64);
    let bytes = sweep::bytes_of(plan.collective, count, width, plan.ranks);
    Ok(Entry::new(
        (plan, bytes, count, dtype, op),
        &explanation,
        times.first().copied(),
        rivals.collect(),
    ))
}
