//! The text of `whatif`: a table, and the paragraphs under it.

use super::document::{Document, Entry};

/// Everything.
pub fn text(document: &Document) -> String {
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
            "# predicted, nothing is measured: ring allreduce; fusion as {}, {} bytes, {} ms; {:.0} % of each link is reached",
            document.mode,
            document.fusion_bytes,
            document.fusion_age_ms,
            100.0 * document.link_share
        ),
        format!(
            "{:>6} {:>7} {:>10} {:>11} {:>7} {:>10} {:>11} {:>7} {:>6}  limited by",
            "GPUs",
            "servers",
            "Gbit/s",
            "compression",
            "flushes",
            "sync_ms",
            "overhead_ms",
            "scaling",
            "link"
        ),
    ];
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
    for advice in &document.advice {
        lines.push(String::new());
        lines.push(advice.clone());
    }
    lines.join("\n") + "\n"
}

fn row(entry: &Entry) -> String {
    let servers = entry.servers.map_or("-".into(), |count| count.to_string());
    format!(
        "{:>6} {servers:>7} {:>10} {:>11} {:>7} {:>10.3} {:>11.3} {:>7.4} {:>5.0}%  {}",
        entry.n,
        entry.bandwidth_gbps,
        entry.compression,
        entry.flushes,
        entry.t_sync_ms,
        entry.overhead_ms,
        entry.scaling_factor,
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
