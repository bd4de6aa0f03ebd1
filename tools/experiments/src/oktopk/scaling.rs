//! Figures 8, 10 and 12: time of a step by phase and weak scaling. Selection is measured here,
//! communication is that of the modelled fabric, computation is given.

use super::OkTopkArgs;
use super::shape::{BERT, Scheme, Shape};
use super::timed::time_all;
use crate::plot::{Chart, Line};
use crate::section::Section;
use linerate::SparseOptions;
use linerate::options::{Algorithm, Mode};
use linerate::transport::{Region, View};
use linerate::unstable::kernel::select::Source;
use linerate::unstable::memory::available_memory_bytes;
use linerate::unstable::prng::Prng;
use linerate::unstable::sparse::{LocalSelection, Support};
use linerate_job::access;
use linerate_job::fabric::{Fabric, Network};
use linerate_job::settings::check_memory;
use serde_json::{Value, json};
use std::time::Instant;

/// A figure of the paper.
struct Figure {
    name: &'static str,
    shape: Shape,
    ranks: &'static [u32],
    /// Ok-Topk's least and greatest speed-up over the others, on the most ranks.
    paper: (f64, f64),
}

const FIGURES: [Figure; 3] = [
    Figure {
        name: "8, VGG-16, 2 %",
        shape: Shape {
            count: 14_728_266,
            k: 294_565,
        },
        ranks: &[16, 32],
        paper: (1.51, 8.83),
    },
    Figure {
        name: "10, LSTM, 2 %",
        shape: Shape {
            count: 27_569_568,
            k: 551_391,
        },
        ranks: &[32, 64],
        paper: (1.34, 7.71),
    },
    Figure {
        name: "12, BERT, 1 %",
        shape: BERT,
        ranks: &[32, 64, 128, 256],
        paper: (3.29, 12.95),
    },
];

/// The paper's efficiency of BERT from 32 to 256 ranks.
const EFFICIENCY: f64 = 0.763;
/// Bytes per second of dense that follow from the paper's figures: 150 instead of 47 hours for
/// 400,000 steps on 32 ranks are 0.93 s more for a step, in which it moves 1.03 GB.
const EFFECTIVE: u64 = 1_100_000_000;
/// With --quick, vectors are this many times shorter, and ranks this many times fewer.
const PART_QUICK: u64 = 16;
const FEWER_QUICK: u32 = 8;

/// Seconds of one selection of each kind.
#[derive(Clone, Copy, Debug)]
struct Selection {
    exact: f64,
    reused: f64,
    gaussian: f64,
}

impl Selection {
    fn of(&self, scheme: Scheme) -> f64 {
        match scheme {
            Scheme::Dense => 0.0,
            Scheme::TopkA | Scheme::TopkDsa | Scheme::GTopk => self.exact,
            Scheme::Gaussiank => self.gaussian,
            Scheme::OkTopk => self.reused,
        }
    }
}

pub fn run(args: &OkTopkArgs) -> Result<Section, String> {
    let mut section = Section::new("scaling");
    section.line(format!(
        "selection measured on this machine (one core; exact k for TopkA, TopkDSA and gTopk, a followed threshold for Ok-Topk{}), \
         communication modelled, computation given: {} ms",
        if args.quick { "; on a 16th, times 16" } else { "" },
        args.compute_ms
    ));
    let mut documents = Vec::new();
    for figure in &FIGURES {
        let selection = select(figure.shape, args.quick)?;
        for bytes_per_second in [Fabric::PAPER.bytes_per_second, EFFECTIVE] {
            let fabric = Fabric {
                bytes_per_second,
                ..Fabric::PAPER
            };
            documents.push(append(&mut section, args, (figure, fabric), selection)?);
        }
    }
    section.document = Value::Array(documents);
    Ok(section)
}

fn append(
    section: &mut Section,
    args: &OkTopkArgs,
    (figure, fabric): (&Figure, Fabric),
    selection: Selection,
) -> Result<Value, String> {
    let gigabytes = fabric.bytes_per_second as f64 / 1e9;
    section.line(format!("Figure {}, {gigabytes} GB/s", figure.name));
    section.line(format!(
        "{:>6} {:>10} {:>10} {:>10} {:>10} {:>10} {:>10}",
        "ranks", "scheme", "select ms", "comm. ms", "comp. ms", "total ms", "Ok-Topk x"
    ));
    let fewer = if args.quick { FEWER_QUICK } else { 1 };
    let mut rows = Vec::new();
    let mut lines: Vec<Line> = Scheme::ALL
        .map(|s| Line {
            name: s.name().into(),
            points: Vec::new(),
        })
        .into();
    let (mut totals, mut range) = (Vec::new(), (f64::MAX, 0f64));
    for ranks in figure.ranks.iter().map(|ranks| (ranks / fewer).max(2)) {
        let mut network = Network::new(fabric, ranks)?;
        let timings = time_all(figure.shape, &mut network, Support::Independent)?;
        let total =
            |scheme: Scheme, seconds: f64| 1e3 * (seconds + selection.of(scheme)) + args.compute_ms;
        let own = timings.iter().find(|t| t.scheme == Scheme::OkTopk);
        let own = own.map_or(f64::NAN, |t| total(t.scheme, t.later));
        totals.push(own);
        range = (f64::MAX, 0.0);
        for (timing, line) in timings.iter().zip(&mut lines) {
            let all = total(timing.scheme, timing.later);
            let ratio = all / own;
            if timing.scheme != Scheme::OkTopk {
                range = (range.0.min(ratio), range.1.max(ratio));
            }
            section.line(format!(
                "{ranks:>6} {:>10} {:>10.1} {:>10.2} {:>10.0} {all:>10.1} {ratio:>10.2}",
                timing.scheme.name(),
                1e3 * selection.of(timing.scheme),
                1e3 * timing.later,
                args.compute_ms
            ));
            line.points.push((f64::from(ranks), all));
            rows.push(json!({
                "ranks": ranks, "scheme": timing.scheme.name(), "seconds_selection": selection.of(timing.scheme),
                "seconds_communication": timing.later, "seconds_computation": args.compute_ms / 1e3,
                "seconds": all / 1e3, "ratio": ratio,
            }));
        }
    }
    let efficiency = totals[0] / totals[totals.len() - 1];
    let beside = if figure.shape == BERT {
        format!(" (paper: {:.1} %)", 1e2 * EFFICIENCY)
    } else {
        String::new()
    };
    section.line(format!(
        "total on the most ranks: the others take {:.2} to {:.2} times as long (paper: {:.2} to {:.2}); Ok-Topk's efficiency in weak scaling {:.1} %{beside}",
        range.0,
        range.1,
        figure.paper.0,
        figure.paper.1,
        1e2 * efficiency
    ));
    let word = figure.name.split(',').next().unwrap_or_default();
    let chart = Chart {
        title: format!("Figure {}, {gigabytes} GB/s", figure.name),
        x: "ranks".into(),
        y: "milliseconds of a step".into(),
        lines,
    };
    section
        .charts
        .push((format!("figure-{word}-{gigabytes}"), chart));
    Ok(json!({
        "figure": figure.name, "bytes_per_second": fabric.bytes_per_second, "rows": rows, "efficiency": efficiency,
        "ratio_least": range.0, "ratio_most": range.1,
    }))
}

/// Times one selection of each kind over residual and gradient.
fn select(shape: Shape, is_quick: bool) -> Result<Selection, String> {
    let part = if is_quick { PART_QUICK } else { 1 };
    let (count, k) = (shape.count / part, shape.k / part);
    check_memory(
        &format!("a residual and a gradient of {count} f32"),
        8 * count,
        available_memory_bytes(),
        "take --quick",
    )?;
    let say = |error: linerate::Error| error.to_string();
    let residual = Region::private(4 * count as usize).map_err(say)?;
    let gradient = Region::private(4 * count as usize).map_err(say)?;
    let mut prng = Prng::new(shape.count);
    fill(residual.view(), &mut prng);
    fill(gradient.view(), &mut prng);
    let sum = Source::sum(residual.view(), gradient.view());
    let sources = [(sum, Source::of(residual.view()))];
    let time = |algorithm, mode| {
        let options = SparseOptions {
            mode,
            ..SparseOptions::default()
        };
        let mut selection = LocalSelection::default();
        selection.select(&sources, k, algorithm, &options);
        let began = Instant::now();
        selection.select(&sources, k, algorithm, &options);
        began.elapsed().as_secs_f64() * part as f64
    };
    Ok(Selection {
        exact: time(Algorithm::TopkA, Mode::Exact),
        reused: time(Algorithm::OkTopk, Mode::Threshold),
        gaussian: time(Algorithm::Gaussiank, Mode::Exact),
    })
}

/// Sums of four uniform numbers, so that a few are large.
fn fill(view: View, prng: &mut Prng) {
    for at in 0..view.len_bytes() / 4 {
        let bits = prng.next_u64();
        let sum: u64 = (0..4).map(|i| (bits >> (16 * i)) & 0xffff).sum();
        access::store(view, at, sum as f32 / 65536.0 - 2.0);
    }
}
