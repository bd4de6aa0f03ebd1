//! `linerate whatif --measured FILE`: which overheads explain measured scaling factors.

use super::{CountBy, WhatIfArgs};
use linerate::whatif::{Fit, Fitted, Measured, Overhead as Kind, Trace, WhatIf};
use serde::{Deserialize, Serialize};
use std::path::Path;

/// What was fitted.
#[derive(Debug, Serialize)]
pub struct Report {
    pub overheads: Vec<Overhead>,
    pub points: Vec<Point>,
    /// How far predicted factors are from measured ones: the root of the mean square, without
    /// overheads and with all of them.
    pub rms_ideal: f64,
    pub rms: f64,
    /// Which overhead explains the gap.
    pub verdict: String,
}

/// One overhead.
#[derive(Debug, Serialize)]
pub struct Overhead {
    pub name: &'static str,
    /// Fitted with the others, and the standard error of that.
    pub value: f64,
    pub uncertainty: f64,
    /// Fitted alone, and how much of the gap that explains, from 0 to 1.
    pub alone: f64,
    pub explains: f64,
}

/// One measured factor.
#[derive(Debug, Serialize, Deserialize)]
pub struct Point {
    pub bandwidth_gbps: f64,
    pub n: u32,
    pub measured: f64,
    /// Predicted without overheads.
    pub ideal: f64,
    /// Predicted by a fit to all other points.
    pub left_out: f64,
}

/// Fits, and puts the overheads into what all rows have.
pub fn run(
    args: &WhatIfArgs,
    file: &Path,
    trace: &Trace,
    base: &mut WhatIf,
) -> Result<Report, String> {
    let name = |cause: &dyn std::fmt::Display| format!("--measured {}: {cause}", file.display());
    let text = std::fs::read_to_string(file).map_err(|cause| name(&cause))?;
    let each = match args.count {
        CountBy::Gpus => 1,
        CountBy::Servers => args.gpus_per_server,
    };
    let points = parse(&text, each).map_err(|cause| name(&cause))?;
    let [algorithm] = &args.algo[..] else {
        return Err("--measured takes one algorithm in --algo: the one with which the factors were measured".into());
    };
    base.algorithm = algorithm.clone();
    let fit = base.fit(trace, &points).map_err(|cause| name(&cause))?;
    *base = fit.apply(base);
    Ok(Report::new(&fit, &points))
}

/// Lines "Gbit/s,servers,factor"; empty ones and those that begin with # are left out.
fn parse(text: &str, gpus_each: u32) -> Result<Vec<Measured>, String> {
    let mut points = Vec::new();
    for (number, line) in (1..).zip(text.lines()) {
        let line = line.trim();
        if line.is_empty() || line.starts_with('#') {
            continue;
        }
        let fields: Vec<&str> = line.split(',').map(str::trim).collect();
        let wrong = || {
            let line: String = line.chars().take(40).collect();
            format!(
                "line {number}: '{line}': expected Gbit/s,servers,scaling factor, such as 100,8,0.716"
            )
        };
        let [gbit, members, factor] = fields[..] else {
            return Err(wrong());
        };
        let real = |text: &str| text.parse::<f64>().map_err(|_| wrong());
        let members: u32 = members.parse().map_err(|_| wrong())?;
        points.push(Measured {
            gpus: members.checked_mul(gpus_each).ok_or_else(wrong)?,
            bits_per_second: real(gbit)? * 1e9,
            scaling_factor: real(factor)?,
        });
    }
    Ok(points)
}

fn in_words(one: &Fitted) -> String {
    match one.overhead {
        Kind::LinkShare => format!(
            "a transport that reaches {:.0} % of the link",
            100.0 * one.alone
        ),
        Kind::Operation => format!("{:.0} us of each operation besides its bytes", one.alone),
        Kind::Slowing => format!(
            "a computation that takes {:.2} times as long while communication runs",
            1.0 + one.alone
        ),
    }
}

impl Report {
    fn new(fit: &Fit, points: &[Measured]) -> Report {
        let gap = fit.rms_ideal;
        let explains = |rms: f64| match gap > 0.0 {
            true => 1.0 - (rms / gap).powi(2),
            false => 0.0,
        };
        let overheads = fit.overheads.iter().map(|one| Overhead {
            name: one.overhead.name(),
            value: one.value,
            uncertainty: one.uncertainty,
            alone: one.alone,
            explains: explains(one.rms_alone),
        });
        let rows = points.iter().enumerate().map(|(at, point)| Point {
            bandwidth_gbps: point.bits_per_second / 1e9,
            n: point.gpus,
            measured: point.scaling_factor,
            ideal: fit.ideal[at],
            left_out: fit.left_out[at],
        });
        let best = fit.explains();
        Report {
            overheads: overheads.collect(),
            points: rows.collect(),
            rms_ideal: gap,
            rms: fit.rms,
            verdict: match explains(best.rms_alone) > 0.5 {
                true => format!(
                    "Of the gap between the model and what was measured (in the mean {gap:.3}), one overhead alone explains {:.0} %: {}.",
                    100.0 * explains(best.rms_alone),
                    in_words(&best)
                ),
                false => format!(
                    "No single overhead explains the gap between the model and what was measured (in the mean {gap:.3}); all three leave {:.3}.",
                    fit.rms
                ),
            },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_read_and_bad_ones_are_named() {
        let points = parse("# Gbit/s,servers,factor\n\n 100, 8 ,0.716\n1,2,0.13\n", 8).unwrap();
        assert_eq!((points[0].gpus, points[1].gpus), (64, 16));
        assert_eq!(points[0].bits_per_second, 100e9);
        for (text, named) in [
            ("100,8", "line 1: '100,8'"),
            ("1,2,0.5\n1,x,0.5", "line 2: '1,x,0.5'"),
            ("1,4000000000,0.5", "line 1"),
        ] {
            let error = parse(text, 8).unwrap_err();
            assert!(error.contains(named), "{error}");
        }
    }
}
