//! [`Additions`]: how long a GPU takes to add two vectors.

use crate::error::{Error, Result};

/// Bytes of a vector and seconds of an addition, on one V100: `cuda_vec_add.log` of the published
/// measurements (Zhang et al., NetAI 2020).
const V100: &str = include_str!("../../tests/data/training_bottleneck/cuda_vec_add.log");

/// How long an addition of two vectors takes, by their length: straight lines between measured
/// points. A shorter vector than the shortest one takes as long as that; beyond the longest one the
/// last line goes on.
#[derive(Clone, Debug, PartialEq)]
pub struct Additions {
    /// Bytes of one vector and seconds, by rising bytes. Without points additions take no time.
    points: Vec<(f64, f64)>,
}

impl Additions {
    /// Additions that take no time.
    pub fn free() -> Additions {
        Additions { points: Vec::new() }
    }

    /// Those of one V100 (25 points from 40 bytes to 640 MiB).
    pub fn v100() -> Additions {
        Additions::parse(V100).expect("a file that is built in")
    }

    /// Those of a text with a line `bytes,seconds` for each point.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`]: there is no line, or one that is none of these; or as
    /// [`Additions::measured`].
    pub fn parse(text: &str) -> Result<Additions> {
        let mut points = Vec::new();
        for (number, line) in (1..).zip(text.lines()) {
            let point = line.split_once(',').and_then(|(bytes, seconds)| {
                let number = |text: &str| text.trim().parse::<f64>().ok();
                Some((number(bytes)?, number(seconds)?))
            });
            let wrong = || Error::invalid(format!("line {number}: expected bytes,seconds"));
            points.push(point.ok_or_else(wrong)?);
        }
        if points.is_empty() {
            return Err(Error::invalid("line 1: expected bytes,seconds"));
        }
        Additions::measured(points)
    }

    /// Those of a GPU of the caller: bytes of one vector, and the seconds of adding another one to
    /// it.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`]: bytes that do not rise from point to point, or a number that is
    /// negative or not finite.
    pub fn measured(points: Vec<(f64, f64)>) -> Result<Additions> {
        let mut before = -1.0;
        for (at, &(bytes, seconds)) in points.iter().enumerate() {
            let is_good = bytes.is_finite() && seconds.is_finite() && seconds >= 0.0;
            if !is_good || bytes <= before || bytes < 0.0 {
                return Err(Error::invalid(format!(
                    "point {at} of the additions is {bytes} bytes in {seconds} s: bytes rise from point to point, and both are finite and not negative"
                )));
            }
            before = bytes;
        }
        Ok(Additions { points })
    }

    /// Seconds of adding two vectors of this many bytes each.
    pub fn seconds(&self, bytes: f64) -> f64 {
        let (Some(&first), Some(&last)) = (self.points.first(), self.points.last()) else {
            return 0.0;
        };
        if bytes <= first.0 || self.points.len() == 1 {
            return first.1;
        }
        let after = self.points.partition_point(|point| point.0 < bytes);
        let after = after.min(self.points.len() - 1);
        let (from, to) = (self.points[after - 1], self.points[after]);
        let slope = (to.1 - from.1) / (to.0 - from.0);
        // A line that falls must not make long vectors faster than the longest measured one.
        let seconds = from.1 + slope * (bytes - from.0);
        if bytes > last.0 {
            seconds.max(last.1)
        } else {
            seconds
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn published_points_and_the_lines_between_them() {
        let v100 = Additions::v100();
        assert_eq!(v100.points.len(), 25);
        let near = |bytes: f64, seconds: f64| {
            let got = v100.seconds(bytes);
            assert!((got - seconds).abs() < 1e-12, "{bytes}: {got}");
        };
        near(0.0, 1.04448e-5);
        near(40.0, 1.04448e-5);
        near(60.0, 1.01120e-5);
        near(671_088_640.0, 2.43368e-3);
        assert!(v100.seconds(2.0 * 671_088_640.0) > 2.0 * 2.3e-3);
    }

    #[test]
    fn no_points_take_no_time_and_bad_points_are_named() {
        assert_eq!(Additions::free().seconds(1e9), 0.0);
        assert_eq!(
            Additions::measured(vec![(8.0, 1.0)]).unwrap().seconds(99.0),
            1.0
        );
        for (points, named) in [
            (vec![(8.0, 1.0), (8.0, 2.0)], "point 1"),
            (vec![(-8.0, 1.0)], "point 0"),
            (vec![(8.0, f64::NAN)], "point 0"),
            (vec![(f64::INFINITY, 1.0)], "point 0"),
        ] {
            let error = Additions::measured(points).unwrap_err().to_string();
            assert!(error.contains(named), "{error}");
        }
    }

    #[test]
    fn beyond_the_longest_vector_no_addition_is_faster_than_that_of_it() {
        let falling = Additions::measured(vec![(8.0, 2.0), (16.0, 1.0)]).unwrap();
        assert_eq!(
            [8.0, 12.0, 16.0, 99.0].map(|b| falling.seconds(b)),
            [2.0, 1.5, 1.0, 1.0]
        );
    }
}
