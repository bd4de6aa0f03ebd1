//! Every scheme at the size of BERT on the paper's fabric: how long its communication takes.

use super::shape::{BERT, Scheme, Shape, run_sized};
use super::{OkTopkArgs, extremes};
use crate::section::Section;
use linerate::options::Algorithm;
use linerate::unstable::sparse::{OkTopkState, Support, choose};
use linerate_job::fabric::{Fabric, Network};
use serde_json::{Value, json};

/// Each other scheme must take at least this many times as long as Ok-Topk to communicate: the
/// paper's least ratio of total times.
const LEAST_RATIO: f64 = 3.29;

/// Communication of one scheme.
#[derive(Clone, Debug)]
pub struct Timing {
    pub scheme: Scheme,
    /// Time of the first step, in which Ok-Topk also cuts its regions.
    pub seconds: f64,
    /// Time of a later step, which uses the regions again.
    pub later: f64,
    /// The most words of all kinds that a rank sent.
    pub wire_words: f64,
    /// Non-zeros of the sum of all picks.
    pub reduced: Option<u64>,
}

/// Times every scheme.
pub fn time_all(
    shape: Shape,
    network: &mut Network,
    support: Support,
) -> Result<Vec<Timing>, String> {
    Scheme::ALL
        .into_iter()
        .map(|scheme| time((scheme, shape), network, support))
        .collect()
}

/// Times one scheme.
pub fn time(
    (scheme, shape): (Scheme, Shape),
    network: &mut Network,
    support: Support,
) -> Result<Timing, String> {
    let ranks = network.ranks();
    if scheme == Scheme::Dense {
        let (seconds, wire_words) = network.dense(shape.count)?;
        return Ok(Timing {
            scheme,
            seconds,
            later: seconds,
            wire_words,
            reduced: None,
        });
    }
    let mut step = |state: &OkTopkState| {
        run_sized(scheme, (shape, ranks), support, state, Some(&mut *network))
    };
    let first = step(&OkTopkState::default())?;
    let later = match &first.finished[0].state {
        Some(state) => step(state)?.seconds,
        None => first.seconds,
    };
    Ok(Timing {
        scheme,
        seconds: first.seconds,
        later,
        wire_words: first.wire_words,
        reduced: first.finished[0].reduced,
    })
}

pub fn run(args: &OkTopkArgs) -> Result<Section, String> {
    let ranks = if args.quick { 32 } else { 256 };
    let mut section = Section::new("timed");
    let mut network = Network::new(Fabric::PAPER, ranks)?;
    section.line(format!(
        "{ranks} ranks, n = {}, k = {}, {} us and {} GB/s: communication of a step",
        BERT.count,
        BERT.k,
        Fabric::PAPER.alpha_ns as f64 / 1e3,
        Fabric::PAPER.bytes_per_second as f64 / 1e9
    ));
    let mut documents = Vec::new();
    for support in [Support::Independent, Support::Identical] {
        let timings = time_all(BERT, &mut network, support)?;
        documents.push(append(&mut section, (ranks, support), &timings));
    }
    let makespans = without_latency(&mut section, ranks)?;
    let extremes = extremes::append(&mut section, args.quick, args.seed)?;
    section.document = json!({
        "ranks": ranks, "independent": documents[0], "identical": documents[1],
        "without_latency": makespans, "extremes": extremes,
    });
    Ok(section)
}

fn append(section: &mut Section, (ranks, support): (u32, Support), timings: &[Timing]) -> Value {
    let is_independent = support == Support::Independent;
    section.line(match is_independent {
        true => format!("picks independent and uniform; each must take at least {LEAST_RATIO} times as long as Ok-Topk"),
        false => "picks the same on all ranks".into(),
    });
    section.line(format!(
        "{:>10} {:>9} {:>9} {:>9} {:>11} {:>11}",
        "scheme", "ms", "later ms", "Ok-Topk x", "sent words", "non-zeros"
    ));
    let own = timings.iter().find(|t| t.scheme == Scheme::OkTopk);
    let own = own.map_or(f64::NAN, |t| t.seconds);
    let mut rows = Vec::new();
    for timing in timings {
        let ratio = timing.seconds / own;
        section.line(format!(
            "{:>10} {:>9.3} {:>9.3} {:>9.2} {:>11.4e} {:>11}",
            timing.scheme.name(),
            1e3 * timing.seconds,
            1e3 * timing.later,
            ratio,
            timing.wire_words,
            timing.reduced.map_or("-".into(), |count| count.to_string()),
        ));
        rows.push(json!({
            "scheme": timing.scheme.name(), "seconds": timing.seconds, "seconds_later": timing.later,
            "ratio": ratio, "words_sent_max": timing.wire_words, "reduced": timing.reduced,
        }));
        let is_compared = is_independent && ranks >= 256 && timing.scheme != Scheme::OkTopk;
        if is_compared && ratio < LEAST_RATIO {
            section.violation(format!(
                "{} takes {ratio:.2} times as long as Ok-Topk on {ranks} ranks, at least {LEAST_RATIO} is wanted",
                timing.scheme.name()
            ));
        }
    }
    check_choice(section, ranks, timings);
    Value::Array(rows)
}

/// Checks that the automatic choice, which is told the fill-in, names the fastest.
fn check_choice(section: &mut Section, ranks: u32, timings: &[Timing]) {
    let reduced = timings.iter().find(|t| t.scheme == Scheme::TopkDsa);
    let reduced = reduced.and_then(|t| t.reduced);
    let chosen = choose((BERT.count, BERT.k, ranks), reduced, Fabric::PAPER.prices());
    let candidates = [Scheme::Dense, Scheme::TopkDsa, Scheme::OkTopk];
    let fastest = (timings.iter().filter(|t| candidates.contains(&t.scheme)))
        .min_by(|a, b| a.seconds.total_cmp(&b.seconds));
    let fastest = fastest.map_or(Algorithm::Auto, |t| t.scheme.algorithm());
    section.line(format!(
        "fastest of dense, TopkDSA and Ok-Topk: {fastest}; auto chooses {chosen}"
    ));
    if chosen != fastest {
        section.violation(format!("auto chooses {chosen}, {fastest} is the fastest"));
    }
}

/// Steps of many ranks where only words take time.
fn without_latency(section: &mut Section, ranks: u32) -> Result<Value, String> {
    let fabric = Fabric {
        alpha_ns: 0,
        chunk_bytes: 64 << 10,
        ..Fabric::PAPER
    };
    let limit = 6.0 * BERT.k as f64 * fabric.beta();
    let mut network = Network::new(fabric, ranks)?;
    let mut rows = Vec::new();
    for (name, support) in [
        ("independent", Support::Independent),
        ("identical", Support::Identical),
    ] {
        let timing = time((Scheme::OkTopk, BERT), &mut network, support)?;
        let share = timing.seconds.max(timing.later) / limit;
        section.line(format!(
            "alpha = 0, {ranks} ranks, picks {name}: Ok-Topk takes {share:.3} of 6k beta = {:.3} ms",
            1e3 * limit
        ));
        rows.push(json!({ "picks": name, "time_in_6k_beta": share }));
        if share > 1.05 {
            section.violation(format!(
                "{share:.3} of 6k beta without latency, picks {name}"
            ));
        }
    }
    Ok(Value::Array(rows))
}
