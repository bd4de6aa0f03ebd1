//! Figures 4, 5 and 6, and the fill-in of TopkDSA, over a training of real digits with all ranks in
//! this process.

use super::OkTopkArgs;
use super::observe::{Job, Seen, Thresholds};
use crate::plot::{Chart, Line};
use crate::section::Section;
use linerate::SparseOptions;
use linerate::options::{Algorithm, DsaVariant, Mode};
use serde_json::{Value, json};

/// Ranks of the trainings for thresholds and Assumption 1.
const RANKS: u32 = 8;
/// The published fill-in: ranks, density, density of the sum.
const FILL: [(u32, f64, f64, &str); 2] = [(16, 0.01, 0.132, "VGG-16"), (32, 0.02, 0.345, "LSTM")];
/// Lines of a table.
const LINES: usize = 8;

/// Steps of a training that is watched.
fn steps(args: &OkTopkArgs) -> u32 {
    args.steps.unwrap_or(if args.quick { 48 } else { 400 })
}

/// Figures 4 and 6.
pub fn run(args: &OkTopkArgs) -> Result<Section, String> {
    let mut section = Section::new("thresholds");
    let options = SparseOptions {
        mode: Mode::Threshold,
        ..SparseOptions::default()
    };
    let (density, reuse, steps) = (0.02, options.reuse_steps, steps(args));
    let mut job = Job::new(RANKS, density, options, args.seed)?;
    let k = job.k;
    section.line(format!(
        "digits, {RANKS} ranks, n = {}, k = {k}, tau' = {reuse}, {steps} steps: thresholds of rank 0's accumulator and what they select",
        job.count()
    ));
    section.line(format!(
        "{:>5} {:>10} {:>10} {:>10} {:>10} {:>8} {:>8} {:>8} {:>8} {:>8}",
        "step",
        "exact",
        "followed",
        "held",
        "gaussian",
        "followed",
        "held",
        "gaussian",
        "global",
        "non-zero"
    ));
    let mut all = Vec::new();
    for step in 0..steps {
        let seen = job.step()?;
        if step as usize % (steps as usize).div_ceil(LINES) == LINES / 2 {
            section.line(line(step, &seen));
        }
        all.push(seen);
    }
    let reused = |seen: &Seen| seen.thresholds.iter().any(|t| !t.is_evaluated);
    let deviation = |of: fn(&Thresholds) -> u64| {
        let values = all.iter().filter(|s| reused(s)).flat_map(|s| &s.thresholds);
        mean(values.map(|t| off(of(t), k)))
    };
    let followed = deviation(|t| t.followed_count);
    let held = deviation(|t| t.held_count);
    let gaussian = deviation(|t| t.gaussian_count);
    let global = mean(all.iter().map(|s| off(s.selected, k)));
    let share = mean(
        all.iter()
            .map(|s| s.thresholds[0].gaussian_count as f64 / k as f64),
    );
    let evaluated = all
        .iter()
        .flat_map(|s| &s.thresholds)
        .filter(|t| t.is_evaluated)
        .count();
    section.line(format!(
        "mean |count - k| / k: local {:.1} %, global {:.1} % (paper: below 11 %, BERT's local 1.4 %); held unchanged {:.1} %, \
         Gaussian {:.1} % (mean count {share:.2} k; paper: an order of magnitude below k later on)",
        1e2 * followed,
        1e2 * global,
        1e2 * held,
        1e2 * gaussian
    ));
    section.line(format!(
        "evaluated anew: {:.1} % of selections, 1 in {reuse} is due",
        1e2 * evaluated as f64 / (all.len() * RANKS as usize) as f64
    ));
    let counts = all
        .iter()
        .flat_map(|s| &s.thresholds)
        .map(|t| t.followed_count);
    if let Some(count) = counts
        .into_iter()
        .find(|count| *count < k / 2 || *count > 2 * k)
    {
        section.violation(format!(
            "a rank selected {count}, between k/2 and 2k are allowed"
        ));
    }
    if let Some(seen) =
        (all.iter()).find(|s| s.selected < s.reduced.min(k / 2) || s.selected > 2 * k)
    {
        section.violation(format!(
            "{} entries of {} in the sum, k is {k}",
            seen.selected, seen.reduced
        ));
    }
    section.document = json!({
        "ranks": RANKS, "count": job.count(), "k": k, "reuse_steps": reuse,
        "deviation_local": followed, "deviation_global": global, "deviation_held": held,
        "deviation_gaussian": gaussian, "gaussian_share": share,
        "steps": all.iter().map(document).collect::<Vec<_>>(),
    });
    section.charts = charts(&all, k);
    Ok(section)
}

fn line(step: u32, seen: &Seen) -> String {
    let t = &seen.thresholds[0];
    format!(
        "{step:>5} {:>10.3e} {:>10.3e} {:>10.3e} {:>10.3e} {:>8} {:>8} {:>8} {:>8} {:>8}",
        t.exact,
        t.followed,
        t.held,
        t.gaussian,
        t.followed_count,
        t.held_count,
        t.gaussian_count,
        seen.selected,
        seen.reduced
    )
}

fn document(seen: &Seen) -> Value {
    let t = &seen.thresholds[0];
    json!({
        "exact": t.exact, "followed": t.followed, "held": t.held, "gaussian": t.gaussian,
        "followed_count": t.followed_count, "held_count": t.held_count, "gaussian_count": t.gaussian_count,
        "selected_global": seen.selected, "reduced": seen.reduced, "is_evaluated": t.is_evaluated,
    })
}

fn charts(all: &[Seen], k: u64) -> Vec<(String, Chart)> {
    type Curve<'a> = (&'a str, &'a dyn Fn(&Seen) -> f64);
    let plot = |y: &str, lines: &[Curve<'_>]| Chart {
        title: format!("digits, k = {k}"),
        x: "step".into(),
        y: y.into(),
        lines: (lines.iter().map(|(name, of)| Line {
            name: (*name).into(),
            points: (0..).map(f64::from).zip(all.iter().map(of)).collect(),
        }))
        .collect(),
    };
    let of = |read: fn(&Thresholds) -> f64| move |seen: &Seen| read(&seen.thresholds[0]);
    let thresholds = plot(
        "threshold",
        &[
            ("exact", &of(|t| f64::from(t.exact))),
            ("followed", &of(|t| f64::from(t.followed))),
            ("held", &of(|t| f64::from(t.held))),
            ("Gaussian", &of(|t| f64::from(t.gaussian))),
        ],
    );
    let counts = plot(
        "selected",
        &[
            ("local, followed", &of(|t| t.followed_count as f64)),
            ("local, held", &of(|t| t.held_count as f64)),
            ("local, Gaussian", &of(|t| t.gaussian_count as f64)),
            ("global", &|seen| seen.selected as f64),
        ],
    );
    vec![("thresholds".into(), thresholds), ("counts".into(), counts)]
}

/// Figure 5.
pub fn run_xi(args: &OkTopkArgs) -> Result<Section, String> {
    let mut section = Section::new("xi");
    let steps = steps(args);
    section.line(format!(
        "Assumption 1, digits, {RANKS} ranks, {steps} steps: xi = |Topk(mean acc) - Topk(mean Topk(acc))| / |mean gradient|"
    ));
    section.line("paper: rises, then stable; smaller with higher density; harmless below P or not far above it".into());
    let mut documents = Vec::new();
    let mut lines = Vec::new();
    for density in [0.01, 0.02, 0.1] {
        let mut job = Job::new(RANKS, density, SparseOptions::default(), args.seed)?;
        let all: Result<Vec<f64>, String> = (0..steps).map(|_| Ok(job.step()?.xi)).collect();
        let all = all?;
        let quarter = |q: usize| {
            mean(
                all[q * all.len() / 4..(q + 1) * all.len() / 4]
                    .iter()
                    .copied(),
            )
        };
        let most = all.iter().copied().fold(0.0, f64::max);
        section.line(format!(
            "density {:>4.0} %, k = {:>5}: mean by quarter {:>6.3} {:>6.3} {:>6.3} {:>6.3}, most {most:.3} (P = {RANKS})",
            1e2 * density,
            job.k,
            quarter(0),
            quarter(1),
            quarter(2),
            quarter(3)
        ));
        documents.push(json!({
            "density": density, "k": job.k, "ranks": RANKS, "most": most,
            "quarters": [quarter(0), quarter(1), quarter(2), quarter(3)], "xi": all,
        }));
        lines.push(Line {
            name: format!("density {} %", 1e2 * density),
            points: (0..).map(f64::from).zip(all).collect(),
        });
    }
    section.document = Value::Array(documents);
    let chart = Chart {
        title: format!("Assumption 1, digits, {RANKS} ranks"),
        x: "step".into(),
        y: "xi".into(),
        lines,
    };
    section.charts = vec![("xi".into(), chart)];
    Ok(section)
}

/// The density of TopkDSA's output.
pub fn run_fill(args: &OkTopkArgs) -> Result<Section, String> {
    let mut section = Section::new("fill");
    let steps = args.steps.unwrap_or(if args.quick { 16 } else { 200 });
    section.line(format!(
        "density of TopkDSA's output, digits, {steps} steps"
    ));
    section.line(format!(
        "{:>5} {:>8} {:>8} {:>8} {:>8} {:>12} {:>14}",
        "ranks", "density", "mean", "first", "last", "1-(1-d)^P", "paper"
    ));
    let mut documents = Vec::new();
    for (ranks, density, paper, model) in FILL {
        let options = SparseOptions {
            algorithm: Algorithm::TopkDsa(DsaVariant::Split),
            ..SparseOptions::default()
        };
        let mut job = Job::new(ranks, density, options, args.seed)?;
        let count = job.count() as f64;
        let all: Result<Vec<f64>, String> = (0..steps)
            .map(|_| Ok(job.step()?.reduced as f64 / count))
            .collect();
        let all = all?;
        let (own, independent) = (
            job.k as f64 / count,
            1.0 - (1.0 - density).powi(ranks as i32),
        );
        let average = mean(all.iter().copied());
        let (first, last) = (all[0], all[all.len() - 1]);
        section.line(format!(
            "{ranks:>5} {:>6.2} % {:>6.1} % {:>6.1} % {:>6.1} % {:>10.1} % {:>7} {:.1} %",
            1e2 * own,
            1e2 * average,
            1e2 * first,
            1e2 * last,
            1e2 * independent,
            model,
            1e2 * paper
        ));
        // Ranks that agree fill less, but never less than one rank picks.
        if average < own * 0.999 || average > f64::from(ranks) * own * 1.001 {
            section.violation(format!("{ranks} ranks with density {own} fill {average}"));
        }
        documents.push(json!({
            "ranks": ranks, "density": own, "fill_mean": average, "fill_first": first, "fill_last": last,
            "fill_independent": independent, "fill_paper": paper, "paper_model": model,
        }));
    }
    section.document = Value::Array(documents);
    Ok(section)
}

/// How far a count is off k, as a share of k.
fn off(count: u64, k: u64) -> f64 {
    (count as f64 - k as f64).abs() / k as f64
}

fn mean(values: impl Iterator<Item = f64>) -> f64 {
    let (sum, count) = values.fold((0.0, 0usize), |(sum, count), value| {
        (sum + value, count + 1)
    });
    sum / count.max(1) as f64
}
