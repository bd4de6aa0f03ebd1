//! [`WhatIf::fit`]: which overheads explain measured scaling factors.

use super::model::WhatIf;
use super::plan::PlannedFlush;
use super::trace::Trace;
use crate::error::{Error, Result};

/// Values of each overhead that are tried first.
const GRID: usize = 9;
/// Rounds in which the neighbours of the best values are tried, ever nearer to them.
const ROUNDS: usize = 30;
/// By how much nearer, from round to round.
const NEARER: f64 = 0.75;
/// Measured factors, at most.
const POINTS_MAX: usize = 64;
/// The least share of a link that is tried, the longest time of an operation, and the most slowing.
const SHARE_MIN: f64 = 0.005;
const OPERATION_US_MAX: f64 = 1e5;
const SLOWING_MAX: f64 = 4.0;

/// A measured scaling factor.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Measured {
    /// GPUs that trained together.
    pub gpus: u32,
    /// Bits per second of a member's link.
    pub bits_per_second: f64,
    /// The time of a step on one GPU, divided by that on all: above 0, at most 1.
    pub scaling_factor: f64,
}

/// What the published model leaves out, and a fit finds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Overhead {
    /// [`WhatIf::link_share`].
    LinkShare,
    /// [`WhatIf::operation_us`].
    Operation,
    /// [`WhatIf::slowing`].
    Slowing,
}

impl Overhead {
    /// All.
    pub const ALL: [Overhead; 3] = [Overhead::LinkShare, Overhead::Operation, Overhead::Slowing];

    /// Its name, for people and documents.
    pub fn name(self) -> &'static str {
        match self {
            Overhead::LinkShare => "share of the link that is reached",
            Overhead::Operation => "us of each operation",
            Overhead::Slowing => "slowing of computation",
        }
    }

    /// The value at a place between 0, which is no overhead, and 1, which is the largest.
    fn at(self, place: f64) -> f64 {
        match self {
            Overhead::LinkShare => SHARE_MIN.powf(place),
            Overhead::Operation => OPERATION_US_MAX * place.powi(3),
            Overhead::Slowing => SLOWING_MAX * place * place,
        }
    }

    fn set(self, whatif: &mut WhatIf, place: f64) {
        let value = self.at(place);
        match self {
            Overhead::LinkShare => whatif.link_share = value,
            Overhead::Operation => whatif.operation_us = value,
            Overhead::Slowing => whatif.slowing = value,
        }
    }
}

/// An overhead that was fitted.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Fitted {
    /// Which.
    pub overhead: Overhead,
    /// Its value if all three are fitted together.
    pub value: f64,
    /// Its standard error, by leaving out one point at a time.
    pub uncertainty: f64,
    /// Its value if it is the only overhead.
    pub alone: f64,
    /// How far predicted factors then are from measured ones: the root of the mean square.
    pub rms_alone: f64,
}

/// What explains measured scaling factors.
#[derive(Clone, Debug, PartialEq)]
pub struct Fit {
    /// The overheads, in the order of [`Overhead::ALL`].
    pub overheads: [Fitted; 3],
    /// For each point the factor that is predicted by a fit to all others.
    pub left_out: Vec<f64>,
    /// For each point the factor that is predicted without overheads.
    pub ideal: Vec<f64>,
    /// How far predicted factors are from measured ones without overheads: the root of the mean
    /// square.
    pub rms_ideal: f64,
    /// With all three overheads.
    pub rms: f64,
}

impl Fit {
    /// The overhead that alone explains the most; the first of equal ones.
    pub fn explains(&self) -> Fitted {
        let all = self.overheads.into_iter();
        let best = all.reduce(|best, one| match one.rms_alone < best.rms_alone {
            true => one,
            false => best,
        });
        best.expect("three overheads")
    }

    /// The values put into a [`WhatIf`].
    pub fn apply(&self, whatif: &WhatIf) -> WhatIf {
        let [share, operation, slowing] = self.overheads.map(|one| one.value);
        WhatIf {
            link_share: share,
            operation_us: operation,
            slowing,
            ..whatif.clone()
        }
    }
}

/// What a fit needs again and again.
struct Problem<'a> {
    trace: &'a Trace,
    plan: Vec<PlannedFlush>,
    whatif: &'a WhatIf,
    points: &'a [Measured],
}

/// Where the three overheads are, each between 0 and 1.
type Places = [f64; 3];

impl Problem<'_> {
    fn factor(&self, point: &Measured, places: Places) -> Result<f64> {
        let mut whatif = WhatIf {
            gpus: point.gpus,
            bits_per_second: point.bits_per_second,
            ..self.whatif.clone()
        };
        for (overhead, place) in Overhead::ALL.into_iter().zip(places) {
            overhead.set(&mut whatif, place);
        }
        let predicted = whatif.predict_planned(self.trace, &self.plan)?;
        Ok(predicted.scaling_factor)
    }

    /// The root of the mean square of errors of all points but one.
    fn rms(&self, places: Places, but: Option<usize>) -> Result<f64> {
        let (mut sum, mut count) = (0.0, 0.0f64);
        for (at, point) in self.points.iter().enumerate() {
            if Some(at) != but {
                sum += (self.factor(point, places)? - point.scaling_factor).powi(2);
                count += 1.0;
            }
        }
        Ok((sum / count.max(1.0)).sqrt())
    }

    /// The best of a grid, of the overheads that may be moved. Of equally good ones the least
    /// overheads are taken.
    fn of_grid(&self, moved: [bool; 3]) -> Result<(Places, f64)> {
        let places = |may_move: bool| match may_move {
            true => (0..GRID)
                .map(|step| step as f64 / (GRID - 1) as f64)
                .collect(),
            false => vec![0.0],
        };
        self.best_of(moved.map(places), ([0.0; 3], f64::INFINITY), None)
    }

    /// The best near to this one, sought nearer and nearer.
    fn near(&self, from: Places, moved: [bool; 3], but: Option<usize>) -> Result<(Places, f64)> {
        let mut best = (from, self.rms(from, but)?);
        let mut around = 1.0 / (GRID - 1) as f64;
        for _ in 0..ROUNDS {
            let places = [0, 1, 2].map(|at| {
                let place = best.0[at];
                match moved[at] {
                    true => [place, place - around, place + around]
                        .map(|place| place.clamp(0.0, 1.0))
                        .to_vec(),
                    false => vec![place],
                }
            });
            best = self.best_of(places, best, but)?;
            around *= NEARER;
        }
        Ok(best)
    }

    /// The best of all combinations, or this one if none is better.
    fn best_of(
        &self,
        places: [Vec<f64>; 3],
        mut best: (Places, f64),
        but: Option<usize>,
    ) -> Result<(Places, f64)> {
        for &share in &places[0] {
            for &operation in &places[1] {
                for &slowing in &places[2] {
                    let places = [share, operation, slowing];
                    let rms = self.rms(places, but)?;
                    if rms < best.1 {
                        best = (places, rms);
                    }
                }
            }
        }
        Ok(best)
    }
}

impl WhatIf {
    /// Fits [`WhatIf::link_share`], [`WhatIf::operation_us`] and [`WhatIf::slowing`] to measured
    /// scaling factors by least squares; all else is as it is. Few points, or points of one
    /// bandwidth, leave several answers open: the uncertainties say so.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`]: fewer than two points or more than 64, a factor that is not
    /// above 0 and at most 1, or as [`WhatIf::predict`]; the text names the point.
    pub fn fit(&self, trace: &Trace, points: &[Measured]) -> Result<Fit> {
        if !(2..=POINTS_MAX).contains(&points.len()) {
            return Err(Error::invalid(format!(
                "{} measured scaling factors; allowed: 2 to {POINTS_MAX}",
                points.len()
            )));
        }
        let problem = Problem {
            trace,
            plan: trace.plan(self.rule, &self.fusion)?,
            whatif: self,
            points,
        };
        let mut ideal = Vec::with_capacity(points.len());
        for (at, point) in points.iter().enumerate() {
            let factor = point.scaling_factor;
            if !(factor > 0.0 && factor <= 1.0) {
                return Err(Error::invalid(format!(
                    "the scaling factor of point {at} is {factor}; allowed: more than 0, at most 1"
                )));
            }
            let predicted = problem.factor(point, [0.0; 3]);
            ideal.push(predicted.map_err(|error| Error::invalid(format!("point {at}: {error}")))?);
        }
        let alone = [0, 1, 2].map(|at| {
            let moved = [0, 1, 2].map(|one| one == at);
            let (places, _) = problem.of_grid(moved)?;
            problem.near(places, moved, None)
        });
        let mut best = problem.of_grid([true; 3])?;
        // The grid may miss the valley in which one overhead explains everything.
        let mut starts = vec![best.0];
        for found in &alone {
            starts.push(found.as_ref().map_err(Clone::clone)?.0);
        }
        for start in starts {
            let found = problem.near(start, [true; 3], None)?;
            if found.1 < best.1 {
                best = found;
            }
        }
        let (places, rms) = best;
        let mut left_out = Vec::with_capacity(points.len());
        let mut without: [Vec<f64>; 3] = Default::default();
        for (at, point) in points.iter().enumerate() {
            let (places, _) = problem.near(places, [true; 3], Some(at))?;
            left_out.push(problem.factor(point, places)?);
            for (of, place) in without.iter_mut().zip(places) {
                of.push(place);
            }
        }
        let mut overheads = Vec::with_capacity(3);
        for ((at, overhead), found) in Overhead::ALL.into_iter().enumerate().zip(alone) {
            let (alone, rms_alone) = found?;
            let values: Vec<f64> = without[at]
                .iter()
                .map(|place| overhead.at(*place))
                .collect();
            overheads.push(Fitted {
                overhead,
                value: overhead.at(places[at]),
                uncertainty: jackknife(&values),
                alone: overhead.at(alone[at]),
                rms_alone,
            });
        }
        Ok(Fit {
            overheads: [overheads[0], overheads[1], overheads[2]],
            left_out,
            ideal,
            rms_ideal: problem.rms([0.0; 3], None)?,
            rms,
        })
    }
}

/// The standard error of a value, of which these are those without one point each.
fn jackknife(values: &[f64]) -> f64 {
    let count = values.len() as f64;
    let mean = values.iter().sum::<f64>() / count;
    let squares: f64 = values.iter().map(|value| (value - mean).powi(2)).sum();
    (squares * (count - 1.0) / count).sqrt()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::whatif::model::Members;

    fn measured(whatif: &WhatIf, trace: &Trace) -> Vec<Measured> {
        let points = [(8, 1e9), (8, 10e9), (16, 25e9), (64, 10e9), (64, 100e9)];
        let of = |(gpus, bits_per_second)| {
            let at = WhatIf {
                gpus,
                bits_per_second,
                ..whatif.clone()
            };
            Measured {
                gpus,
                bits_per_second,
                scaling_factor: at.predict(trace).unwrap().scaling_factor,
            }
        };
        points.map(of).into()
    }

    #[test]
    fn overheads_with_which_factors_were_made_are_found_again() {
        let trace = Trace::load("resnet50").unwrap();
        for (link_share, operation_us, slowing, which) in [
            (0.3, 0.0, 0.0, Overhead::LinkShare),
            (1.0, 8000.0, 0.0, Overhead::Operation),
            (1.0, 0.0, 0.7, Overhead::Slowing),
        ] {
            let made = WhatIf {
                link_share,
                operation_us,
                slowing,
                ..WhatIf::default()
            };
            let fit = WhatIf::default()
                .fit(&trace, &measured(&made, &trace))
                .unwrap();
            assert!(fit.rms < 0.002 && fit.rms < 0.1 * fit.rms_ideal, "{fit:?}");
            let explains = fit.explains();
            assert_eq!(explains.overhead, which, "{fit:?}");
            let expected = [link_share, operation_us, slowing][which as usize];
            let error = (explains.alone / expected - 1.0).abs();
            assert!(error < 0.02, "{expected}: {fit:?}");
            let applied = fit.apply(&WhatIf::default());
            for point in measured(&made, &trace) {
                let at = WhatIf {
                    gpus: point.gpus,
                    bits_per_second: point.bits_per_second,
                    ..applied.clone()
                };
                let got = at.predict(&trace).unwrap().scaling_factor;
                assert!(
                    (got - point.scaling_factor).abs() < 0.006,
                    "{point:?}: {got}"
                );
            }
        }
    }

    /// The published factors of 2, 4 and 8 servers of 8 GPUs at 100 Gbit/s.
    #[test]
    fn the_gap_of_the_published_cluster_is_mostly_explained() {
        let trace = Trace::load("vgg16").unwrap();
        let whatif = WhatIf {
            members: Members::Servers {
                gpus_per_server: 8,
                inside_bits_per_second: 1.2e12,
            },
            ..WhatIf::default()
        };
        let point = |(gpus, scaling_factor)| Measured {
            gpus,
            bits_per_second: 100e9,
            scaling_factor,
        };
        let points = [(16, 0.5599), (32, 0.6301), (64, 0.598)].map(point);
        let fit = whatif.fit(&trace, &points).unwrap();
        assert!(fit.rms_ideal > 0.3 && fit.rms < 0.06, "{fit:?}");
        assert_eq!((fit.left_out.len(), fit.ideal.len()), (3, 3));
        assert!(fit.explains().rms_alone >= fit.rms, "{fit:?}");
    }

    #[test]
    fn bad_points_are_named() {
        let trace = Trace::load("resnet50").unwrap();
        let good = Measured {
            gpus: 8,
            bits_per_second: 1e9,
            scaling_factor: 0.5,
        };
        let zero = Measured {
            scaling_factor: 0.0,
            ..good
        };
        let slow = Measured {
            bits_per_second: -1.0,
            ..good
        };
        for (points, named) in [
            (vec![good], "1 measured scaling factors"),
            (vec![good, zero], "factor of point 1 is 0"),
            (vec![slow, good], "point 0: "),
        ] {
            let error = WhatIf::default().fit(&trace, &points).unwrap_err();
            assert!(error.to_string().contains(named), "{error}");
        }
    }
}
