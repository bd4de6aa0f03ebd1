//! The table. Pure: every function gives text.

use super::Plan;
use super::document::Entry;
use crate::bench::table::time;

/// Comment lines and column titles.
pub fn header(plan: &Plan, transport: &str) -> String {
    let bytes =
        |count: Option<&u64>| count.map_or(0, |count| count * plan.args.dtype.size_bytes() as u64);
    let modelled = plan.link.map_or(String::new(), |link| {
        format!(
            "# virtual time: a modelled network of {} Gbit/s and {} us, no local work; says nothing about this machine\n",
            link.gbit, link.latency_us
        )
    });
    let about = format!(
        "# linerate {} bench push-pull ranks: {} servers: {} replicas: {} workers: {} transport: {transport} mode: {} optimizer: {}\n\
         # minBytes {} maxBytes {} warmup iters: {} iters: {} gradients: {}\n\
         # time: of a step, from when all workers have done the one before; no barrier lies between; all are medians (p50)\n\
         # push: until its OK, of the slowest worker\n\
         # pull: from that OK on, with the update; alone: a pull of all workers together after the steps, with no update\n{modelled}#\n",
        env!("CARGO_PKG_VERSION"),
        plan.ranks,
        plan.servers(),
        plan.args.replicas,
        plan.workers(),
        plan.args.mode.name,
        plan.args.optimizer.name(),
        bytes(plan.counts.first()),
        bytes(plan.counts.last()),
        plan.args.warmup,
        plan.args.iterations,
        plan.args.gradients.name(),
    );
    let titles = [
        "size", "count", "type", "pull", "mode", "time", "push", "pull", "alone", "algbw", "#wrong",
    ];
    let units = [
        "(B)",
        "(elements)",
        "",
        "",
        "",
        "(us)",
        "(us)",
        "(us)",
        "(us)",
        "(GB/s)",
        "",
    ];
    about + &columns("# ", titles) + &columns("# ", units)
}

/// One row.
pub fn row(plan: &Plan, entry: &Entry) -> String {
    columns(
        "  ",
        [
            &entry.bytes.to_string(),
            &entry.count.to_string(),
            entry.dtype,
            entry.pull,
            &plan.args.mode.name,
            &time(entry.time_us.p50),
            &time(entry.push_us.p50),
            &time(entry.pull_us.p50),
            &time(entry.pull_alone_us.p50),
            &format!("{:.2}", entry.algbw),
            &entry.wrong.to_string(),
        ],
    )
}

/// The line after the last row.
pub fn footer(rows: usize, wrong: u64) -> String {
    format!("# rows: {rows}, wrong {wrong}\n")
}

fn columns(begin: &str, columns: [&str; 11]) -> String {
    let [
        size,
        count,
        dtype,
        weights,
        mode,
        time,
        push,
        pull,
        alone,
        algbw,
        wrong,
    ] = columns;
    format!(
        "{begin}{size:>10}  {count:>12}  {dtype:>4}  {weights:>4}  {mode:>10}  {time:>8}  {push:>8}  {pull:>8}  {alone:>8}  {algbw:>6}  {wrong:>6}\n"
    )
}
