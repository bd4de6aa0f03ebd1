//! Which bandwidth, latency or compression reaches a scaling factor.

use super::model::WhatIf;
use super::trace::Trace;
use crate::error::{Error, Result};

/// Bits per second between which the least bandwidth is sought.
const BITS_PER_SECOND: (f64, f64) = (1e3, 1e15);
/// Compressions between which the least one is sought.
const COMPRESSIONS: (f64, f64) = (1.0, 1e6);
/// The longest latency that is sought: one second. The shortest is 0.
const LATENCY_US_MAX: f64 = 1e6;
/// Halvings of what is sought: the result is as exact as a float.
const HALVINGS: u32 = 100;

impl WhatIf {
    /// The least bandwidth, in bits per second, whose scaling factor is `target` or more, while all
    /// else is as it is; `None`: none up to 1e15 is.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`]: as [`WhatIf::predict`], or `target` is not from 0 to 1.
    pub fn least_bits_per_second(&self, trace: &Trace, target: f64) -> Result<Option<f64>> {
        let (least, most) = BITS_PER_SECOND;
        seek(trace, target, (most, least), geometric, |bits_per_second| {
            WhatIf {
                bits_per_second,
                ..self.clone()
            }
        })
    }

    /// The least compression whose scaling factor is `target` or more, while all else is as it is;
    /// `None`: none up to 1e6 is.
    ///
    /// # Errors
    /// As [`WhatIf::least_bits_per_second`].
    pub fn least_compression(&self, trace: &Trace, target: f64) -> Result<Option<f64>> {
        let (least, most) = COMPRESSIONS;
        seek(trace, target, (most, least), geometric, |compression| {
            WhatIf {
                compression,
                ..self.clone()
            }
        })
    }

    /// The longest latency, in microseconds and at most 1e6, whose scaling factor is `target` or
    /// more, while all else is as it is; `None`: not even 0 is.
    ///
    /// # Errors
    /// As [`WhatIf::least_bits_per_second`].
    pub fn longest_latency_us(&self, trace: &Trace, target: f64) -> Result<Option<f64>> {
        seek(
            trace,
            target,
            (0.0, LATENCY_US_MAX),
            f64::midpoint,
            |latency_us| WhatIf {
                latency_us,
                ..self.clone()
            },
        )
    }
}

/// The middle of two values that differ by orders of magnitude.
fn geometric(a: f64, b: f64) -> f64 {
    (a * b).sqrt()
}

/// The value nearest to the second end of a range that still reaches the target; the nearer to the
/// first end, the higher is the scaling factor.
fn seek(
    trace: &Trace,
    target: f64,
    (mut good, mut bad): (f64, f64),
    middle_of: impl Fn(f64, f64) -> f64,
    of: impl Fn(f64) -> WhatIf,
) -> Result<Option<f64>> {
    if !reaches(&of(good), trace, target)? {
        return Ok(None);
    }
    if reaches(&of(bad), trace, target)? {
        return Ok(Some(bad));
    }
    for _ in 0..HALVINGS {
        let middle = middle_of(good, bad);
        match reaches(&of(middle), trace, target)? {
            true => good = middle,
            false => bad = middle,
        }
    }
    Ok(Some(good))
}

fn reaches(whatif: &WhatIf, trace: &Trace, target: f64) -> Result<bool> {
    if !(0.0..=1.0).contains(&target) {
        return Err(Error::invalid(format!(
            "the scaling factor to reach is {target}; allowed: 0 to 1"
        )));
    }
    Ok(whatif.predict(trace)?.scaling_factor >= target)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_least_bandwidth_and_compression_reach_the_target_and_a_little_less_does_not() {
        let trace = Trace::load("resnet50").unwrap();
        let base = WhatIf {
            bits_per_second: 10e9,
            ..WhatIf::default()
        };
        let factor = |whatif: WhatIf| whatif.predict(&trace).unwrap().scaling_factor;
        let bits = base.least_bits_per_second(&trace, 0.95).unwrap().unwrap();
        let at = |bits_per_second| {
            factor(WhatIf {
                bits_per_second,
                ..base.clone()
            })
        };
        assert!(at(bits) >= 0.95 && at(bits * 0.999_999) < 0.95, "{bits}");
        let ratio = base.least_compression(&trace, 0.95).unwrap().unwrap();
        let at = |compression| {
            factor(WhatIf {
                compression,
                ..base.clone()
            })
        };
        assert!(at(ratio) >= 0.95 && at(ratio * 0.999_999) < 0.95, "{ratio}");
        let fast = WhatIf::default();
        let latency = fast.longest_latency_us(&trace, 0.95).unwrap().unwrap();
        let at = |latency_us| {
            factor(WhatIf {
                latency_us,
                ..fast.clone()
            })
        };
        assert!(
            at(latency) >= 0.95 && at(latency * 1.000_001) < 0.95,
            "{latency}"
        );
    }

    #[test]
    fn what_cannot_be_reached_is_none_and_what_is_reached_anyway_is_the_end_of_the_range() {
        let trace = Trace::load("resnet50").unwrap();
        let whatif = WhatIf::default();
        // Additions alone keep it below 1.
        assert_eq!(whatif.least_bits_per_second(&trace, 1.0).unwrap(), None);
        assert_eq!(whatif.least_compression(&trace, 0.9).unwrap(), Some(1.0));
        let slow = WhatIf {
            bits_per_second: 1e9,
            ..whatif.clone()
        };
        assert_eq!(slow.longest_latency_us(&trace, 0.9).unwrap(), None);
        let error = whatif.least_bits_per_second(&trace, 1.5).unwrap_err();
        assert!(error.to_string().contains("allowed: 0 to 1"), "{error}");
    }
}
