//! How far predictions were off on this host: what `--validate` has found and stored, and the
//! intervals of predictions follow from.

use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

/// Up to this bandwidth errors are those of slow links.
pub const SLOW_GBIT_MAX: f64 = 2.5;
/// What measured steps took, divided by what was predicted, where no point of this host is stored.
const ASSUMED: (f64, f64) = (0.9, 1.2);
/// By how much an interval is wider than the errors that were found.
const MARGIN: f64 = 0.05;
/// Fewer points than this are joined by what is assumed.
const POINTS_MIN: usize = 3;

/// A measured step divided by the predicted one, and at which bandwidth.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub struct Found {
    /// `null`: no limit.
    pub bandwidth_gbps: Option<f64>,
    pub measured_to_predicted: f64,
}

/// By host and trace.
type Stored = BTreeMap<String, BTreeMap<String, Vec<Found>>>;

/// The errors of slow links, and of others.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Known {
    pub slow: Between,
    pub fast: Between,
}

/// Between which numbers a measured step divided by a predicted one is.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Between {
    pub least: f64,
    pub most: f64,
    /// Points of this host from which that is known.
    pub points: usize,
}

impl Known {
    /// What other traces than this one have shown on this host.
    pub fn load(trace: &str) -> Result<Known, String> {
        let found = match place() {
            Some(place) => read(&place)?.remove(&host()).unwrap_or_default(),
            None => BTreeMap::new(),
        };
        let others = found.into_iter().filter(|(name, _)| name != trace);
        let found: Vec<Found> = others.flat_map(|(_, found)| found).collect();
        let of = |is_slow: bool| {
            let of_kind = found
                .iter()
                .filter(|one| is_slow_link(one.bandwidth_gbps) == is_slow);
            Between::new(of_kind.map(|one| one.measured_to_predicted))
        };
        Ok(Known {
            slow: of(true),
            fast: of(false),
        })
    }

    /// No errors.
    #[cfg(test)]
    pub fn exact() -> Known {
        let none = Between {
            least: 1.0,
            most: 1.0,
            points: 0,
        };
        Known {
            slow: none,
            fast: none,
        }
    }

    /// Those at this bandwidth.
    pub fn at(&self, gbit: f64) -> (f64, f64) {
        let between = match gbit <= SLOW_GBIT_MAX {
            true => self.slow,
            false => self.fast,
        };
        (between.least, between.most)
    }
}

impl Between {
    fn new(ratios: impl Iterator<Item = f64>) -> Between {
        let ratios: Vec<f64> = ratios.collect();
        let from = match ratios.len() < POINTS_MIN {
            true => ASSUMED,
            false => (f64::INFINITY, 0.0),
        };
        let all = ratios.iter();
        let (least, most) = all.fold(from, |(least, most), ratio| {
            (
                least.min(ratio * (1.0 - MARGIN)),
                most.max(ratio * (1.0 + MARGIN)),
            )
        });
        Between {
            least,
            most,
            points: ratios.len(),
        }
    }
}

fn is_slow_link(gbit: Option<f64>) -> bool {
    gbit.is_some_and(|gbit| gbit <= SLOW_GBIT_MAX)
}

/// The file of all hosts that share this home; none without a home.
fn place() -> Option<PathBuf> {
    let named = |name: &str| std::env::var_os(name).filter(|value| !value.is_empty());
    let cache = named("XDG_CACHE_HOME").map(PathBuf::from);
    let cache = cache.or_else(|| Some(PathBuf::from(named("HOME")?).join(".cache")))?;
    Some(cache.join("linerate").join("validation.json"))
}

fn host() -> String {
    linerate::unstable::comm::findings_host()
}

fn read(place: &Path) -> Result<Stored, String> {
    let text = match std::fs::read_to_string(place) {
        Ok(text) => text,
        Err(_) if !place.exists() => return Ok(Stored::new()),
        Err(cause) => return Err(wrong(place, &cause)),
    };
    let stored: Stored = serde_json::from_str(&text).map_err(|cause| wrong(place, &cause))?;
    let mut all = stored.values().flat_map(|host| host.values().flatten());
    let is_bad = |one: &Found| {
        let ratio = one.measured_to_predicted;
        !(ratio.is_finite() && ratio > 0.0)
    };
    match all.find(|one| is_bad(one)) {
        Some(one) => Err(wrong(
            place,
            &format!("measured_to_predicted is {}", one.measured_to_predicted),
        )),
        None => Ok(stored),
    }
}

fn wrong(place: &Path, cause: &dyn std::fmt::Display) -> String {
    format!(
        "{}: {cause}; `linerate whatif --validate` has written it, remove it to do without",
        place.display()
    )
}

/// Stores what a validation with this trace has found, in place of what one found before. Gives the
/// file.
pub fn store(trace: &str, found: Vec<Found>) -> Result<Option<PathBuf>, String> {
    let Some(place) = place() else {
        return Ok(None);
    };
    let mut stored = read(&place)?;
    stored
        .entry(host())
        .or_default()
        .insert(trace.into(), found);
    let shown = |cause: std::io::Error| format!("{}: {cause}", place.display());
    let folder = place.parent().expect("a file in a folder");
    std::fs::create_dir_all(folder).map_err(shown)?;
    let text = serde_json::to_string_pretty(&stored).map_err(|cause| cause.to_string())?;
    // A reader sees the old file or the new one.
    let new = place.with_extension(format!("{}.new", std::process::id()));
    std::fs::write(&new, text + "\n").map_err(shown)?;
    std::fs::rename(&new, &place).map_err(shown)?;
    Ok(Some(place))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn errors_are_assumed_until_enough_points_are_known() {
        let none = Between::new([].into_iter());
        assert_eq!((none.least, none.most, none.points), (0.9, 1.2, 0));
        let wide = Between::new([2.0, 0.5].into_iter());
        assert_eq!((wide.least, wide.most, wide.points), (0.475, 2.1, 2));
        let known = Between::new([1.0, 1.1, 1.05].into_iter());
        assert!((known.least - 0.95).abs() < 1e-9 && (known.most - 1.155).abs() < 1e-9);
    }
}
