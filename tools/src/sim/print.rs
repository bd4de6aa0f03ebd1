//! The text of `sim`: a table, how much of the fabric is used, and what the time goes to.

use super::document::{Document, Row};
use super::step::Step;

/// Everything.
pub fn text(document: &Document) -> String {
    let fabric = &document.fabric;
    let mut lines = vec![
        format!(
            "# linerate sim: {} ranks on fabric {}, {} hosts of {} GPUs and {} NICs of {} Gbit/s",
            document.ranks,
            fabric.name,
            document.hosts,
            fabric.gpus_per_host,
            fabric.nics_per_host,
            fabric.nic_gbit
        ),
        format!(
            "# virtual time of {}s, nothing is measured; chunks of {} bytes",
            document.level, document.chunk_bytes
        ),
    ];
    match &document.step {
        Some(step) => lines.extend(step_lines(step)),
        None => lines.extend(table(&document.results)),
    }
    if let Some(total_us) = document.total_us {
        let rows = document.results.iter();
        let names: Vec<&str> = rows.map(|row| &*row.collective).collect();
        lines.push(format!(
            "# together {total_us:.3} us: {} of entries, {} of their numbers, {} of the largest",
            names[0], names[1], names[2]
        ));
    }
    // What the last row's time goes to: it is the longest one.
    let flushes = document.step.iter().flat_map(|step| &step.flushes);
    let last = (flushes.map(|flush| &flush.call).next_back()).or(document.results.last());
    if let Some(row) = last {
        lines.extend(why(row));
    }
    lines.join("\n") + "\n"
}

fn table(rows: &[Row]) -> Vec<String> {
    let mut lines = vec![format!(
        "{:>13} {:<18} {:>14} {:>10} {:>10} {:>12}",
        "bytes", "algorithm", "time_us", "algbw", "busbw", "messages"
    )];
    lines.push(format!(
        "{:>13} {:<18} {:>14} {:>10} {:>10} {:>12}",
        "(B)", "", "(us)", "(GB/s)", "(GB/s)", ""
    ));
    lines.extend(rows.iter().map(|row| {
        format!(
            "{:>13} {:<18} {:>14.3} {:>10.3} {:>10.3} {:>12}",
            row.bytes, row.algorithm, row.time_us, row.algbw, row.busbw, row.messages
        )
    }));
    lines
}

fn step_lines(step: &Step) -> Vec<String> {
    let guessed = match step.is_batch_guessed {
        true => "guessed: 1.5 times the backward pass",
        false => "as measured",
    };
    let mut lines = vec![
        format!(
            "# {}: backward pass {:.3} ms of a step of {:.3} ms ({guessed}); gradients are fused by linerate's rule",
            step.model, step.backward_ms, step.batch_ms
        ),
        format!(
            "{:>5} {:>13} {:<18} {:>11} {:>11} {:>11} {:>10}",
            "flush", "bytes", "algorithm", "ready_ms", "begin_ms", "end_ms", "busbw"
        ),
    ];
    lines.extend(step.flushes.iter().enumerate().map(|(at, flush)| {
        format!(
            "{at:>5} {:>13} {:<18} {:>11.3} {:>11.3} {:>11.3} {:>10.3}",
            flush.call.bytes,
            flush.call.algorithm,
            flush.ready_ms,
            flush.begin_ms,
            flush.end_ms,
            flush.call.busbw
        )
    }));
    lines.push(format!(
        "# communication adds {:.3} ms to the step: a scaling factor of {:.4}",
        step.overhead_ms, step.scaling_factor
    ));
    lines
}

/// How much of the fabric a call uses, and what its time goes to.
fn why(row: &Row) -> Vec<String> {
    let mut lines = vec![
        String::new(),
        format!(
            "# {} of {} bytes by {}: what is busy, as shares of its {:.3} us",
            row.collective, row.bytes, row.algorithm, row.time_us
        ),
    ];
    lines.extend(row.uses.iter().map(|of| {
        format!(
            "# {:<24} mean {:>6.1} %, most {:>6.1} % ({})",
            of.what,
            100.0 * of.mean,
            100.0 * of.most,
            of.busiest
        )
    }));
    lines.push("# the longest chain of events:".into());
    lines.extend(row.path.iter().map(|part| {
        let us = |ns: u64| ns as f64 / 1e3;
        let most = match &part.most {
            Some((at, ns)) if *ns < part.ns => format!("; most at {at}, {:.3} us", us(*ns)),
            Some((at, _)) => format!("; at {at}"),
            None => String::new(),
        };
        format!(
            "# {:>5.1} %  {} ({:.3} us{most})",
            100.0 * part.share,
            part.what,
            us(part.ns)
        )
    }));
    lines
}
