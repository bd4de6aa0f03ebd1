//! The text of `whatif`: a table, and the paragraphs under it.

use super::document::{Document, Entry};
use super::errors::{Between, Known};
use super::fit::Report;
use super::validate::Validation;

/// Everything.
pub fn text(document: &Document) -> String {
    if let Some(validation) = &document.validation {
        return validated(document, validation);
    }
    let guessed = match document.is_batch_guessed {
        true => "guessed: 1.5 times the backward pass",
        false => "as measured",
    };
    let mut lines = vec![
        format!(
            "# linerate whatif: {}, {} gradients, {} bytes; backward pass {:.3} ms of a step of {:.3} ms ({guessed})",
            document.model,
            document.gradients,
            document.bytes,
            document.backward_ms,
            document.batch_ms
        ),
        format!(
            "# predicted, nothing is measured: fusion as {}, {} bytes, {} ms; {:.0} % of each link is reached",
            document.common.mode,
            document.common.fusion_bytes,
            document.common.fusion_age_ms,
            100.0 * document.common.link_share
        ),
        format!(
            "{:>6} {:>7} {:>10} {:>11} {:<14} {:>7} {:>10} {:>11} {:>7} {:>7} {:>7} {:>6}  limited by",
            "GPUs",
            "servers",
            "Gbit/s",
            "compression",
            "algorithm",
            "flushes",
            "sync_ms",
            "overhead_ms",
            "scaling",
            "low",
            "high",
            "link"
        ),
    ];
    lines.insert(2, intervals(&document.errors));
    if document.common.operation_us + document.common.cycle_us + document.common.slowing > 0.0 {
        let line = format!(
            "# overheads: {:.1} us of each operation, cycles of {} us; communication slows computation by {:.3} while both run",
            document.common.operation_us, document.common.cycle_us, document.common.slowing
        );
        lines.insert(2, line);
    }
    let notes = document.notes.iter().map(|note| format!("# note: {note}"));
    lines.splice(1..1, notes);
    lines.extend(document.results.iter().map(row));
    let reached: Vec<String> = document.results.iter().filter_map(reached_row).collect();
    if !reached.is_empty() {
        lines.push(String::new());
        lines.push("# what reaches the factor that was asked for, each by itself".into());
        lines.push(format!(
            "{:>6} {:>10} {:>11} {:>7}  {:>12} {:>14} {:>14}",
            "GPUs",
            "Gbit/s",
            "compression",
            "factor",
            "at Gbit/s",
            "at compression",
            "at latency us"
        ));
        lines.extend(reached);
    }
    if let Some(fit) = &document.fit {
        lines.extend(fitted(fit));
    }
    for advice in &document.advice {
        lines.push(String::new());
        lines.push(advice.clone());
    }
    lines.join("\n") + "\n"
}

/// Where the intervals come from.
fn intervals(known: &Known) -> String {
    let times = |between: &Between| format!("{:.2} to {:.2}", between.least, between.most);
    let Known { slow, fast } = known;
    if slow.points + fast.points == 0 {
        return format!(
            "# low and high: measured steps are assumed to take {} times the predicted time; --validate finds out on this host",
            times(fast)
        );
    }
    format!(
        "# low and high: measured steps take {} times the predicted time up to 2.5 Gbit/s ({} points of this host), {} times above ({} points)",
        times(slow),
        slow.points,
        times(fast),
        fast.points
    )
}

/// What `--measured` found.
fn fitted(fit: &Report) -> Vec<String> {
    let mut lines = vec![
        String::new(),
        "# overheads that explain the measured scaling factors".into(),
        format!(
            "{:<34} {:>12} {:>12} {:>12} {:>9}",
            "overhead", "fitted", "uncertainty", "alone", "explains"
        ),
    ];
    lines.extend(fit.overheads.iter().map(|one| {
        format!(
            "{:<34} {:>12.4} {:>12.4} {:>12.4} {:>8.0}%",
            one.name,
            one.value,
            one.uncertainty,
            one.alone,
            100.0 * one.explains
        )
    }));
    lines.push(format!(
        "{:>10} {:>6} {:>9} {:>9} {:>13} {:>9}",
        "Gbit/s", "GPUs", "measured", "ideal", "when left out", "error"
    ));
    lines.extend(fit.points.iter().map(|point| {
        format!(
            "{:>10} {:>6} {:>9.4} {:>9.4} {:>13.4} {:>+9.4}",
            point.bandwidth_gbps,
            point.n,
            point.measured,
            point.ideal,
            point.left_out,
            point.left_out - point.measured
        )
    }));
    lines.push(fit.verdict.clone());
    lines
}

/// The table of errors.
fn validated(document: &Document, validation: &Validation) -> String {
    let mut lines = vec![
        format!(
            "# linerate whatif --validate: {}, {} gradients, {} bytes, a step of {:.3} ms",
            document.model, document.gradients, document.bytes, document.batch_ms
        ),
        "# predicted from an allreduce that bench measured; measured by a replay that sleeps while a GPU would compute".into(),
        format!(
            "{:>9} {:>5} {:>8} {:>11} {:>12} {:>12} {:>11} {:>11} {:>11} {:>11} {:>11} {:>8}  limited by",
            "transport",
            "ranks",
            "Gbit/s",
            "link Gbit/s",
            "operation us",
            "predicted_ms",
            "low_ms",
            "high_ms",
            "median_ms",
            "p10_ms",
            "p90_ms",
            "error"
        ),
    ];
    for point in &validation.points {
        let gbit = point.bandwidth_gbps.map_or("inf".into(), |g| g.to_string());
        lines.push(format!(
            "{:>9} {:>5} {gbit:>8} {:>11.3} {:>12.1} {:>12.3} {:>11.3} {:>11.3} {:>11.3} {:>11.3} {:>11.3} {:>+7.1}%  {}",
            point.transport,
            point.ranks,
            point.link_gbps,
            point.operation_us,
            point.predicted_ms,
            point.low_ms,
            point.high_ms,
            point.measured_ms,
            point.measured_p10_ms,
            point.measured_p90_ms,
            point.error_percent,
            if point.is_limited_by_link { "link" } else { "other" }
        ));
    }
    let shown = |error: Option<f64>| error.map_or("none".into(), |e| format!("{e:.1} %"));
    lines.push(format!(
        "# median error: {} where the link is the limit, {} elsewhere",
        shown(validation.median_error_link_percent),
        shown(validation.median_error_other_percent)
    ));
    lines.push(format!(
        "# inside of their intervals: {} of {}; an interval's end is {:.2} times its start (median)",
        validation.inside,
        validation.points.len(),
        validation.median_width
    ));
    lines.push(match &validation.stored {
        Some(place) => format!("# stored in {place} for predictions on this host"),
        None => "# not stored, for there is neither XDG_CACHE_HOME nor HOME".into(),
    });
    lines.join("\n") + "\n"
}

fn row(entry: &Entry) -> String {
    let servers = entry.servers.map_or("-".into(), |count| count.to_string());
    format!(
        "{:>6} {servers:>7} {:>10} {:>11} {:<14} {:>7} {:>10.3} {:>11.3} {:>7.4} {:>7.4} {:>7.4} {:>5.0}%  {}",
        entry.n,
        entry.bandwidth_gbps,
        entry.compression,
        entry.algorithm,
        entry.flushes,
        entry.t_sync_ms,
        entry.overhead_ms,
        entry.scaling_factor,
        entry.low,
        entry.high,
        100.0 * entry.link_utilisation,
        entry.limited_by
    )
}

fn reached_row(entry: &Entry) -> Option<String> {
    let reached = entry.reached.as_ref()?;
    let shown = |number: Option<f64>| number.map_or("none".into(), |n| format!("{n:.3}"));
    Some(format!(
        "{:>6} {:>10} {:>11} {:>7}  {:>12} {:>14} {:>14}",
        entry.n,
        entry.bandwidth_gbps,
        entry.compression,
        reached.scaling_factor,
        shown(reached.bandwidth_gbps),
        shown(reached.compression),
        shown(reached.latency_us)
    ))
}
