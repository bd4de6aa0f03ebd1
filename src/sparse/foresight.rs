//! [`Foresight`]: where the k-th largest magnitude of the next step should lie, judged by where it
//! has lain.
//!
//! An exact selection looks at the entries from a magnitude on, and looks again if these are fewer
//! than k. Residuals grow by about the same amount from step to step, most in the first steps, so
//! the k-th largest follows a line. How far it has strayed from that line says how far below it to
//! begin.

/// The line, and how well it held.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Foresight {
    /// The k-th largest of the last step, a magnitude.
    last: u32,
    /// By how much it grows in a step, averaged over about two steps, as bits of an f64; none after
    /// a single step.
    growth: Option<u64>,
    /// The mean distance from the line, as a share of it, bits of an f64.
    stray: u64,
}

/// The distance that is assumed at the beginning.
const STRAY: f64 = 0.02;

/// How many mean distances the floor lies below the line. With three, one step in a hundred misses,
/// if distances are normal.
const DISTANCES: f64 = 3.0;

/// The least distance that is assumed: a floor 1.5 % below the line fetches a few per cent more
/// than k.
const STRAY_MIN: f64 = 0.005;

/// The greatest distance: a floor a third below the line fetches many times k.
const STRAY_MAX: f64 = 0.1;

/// From this distance on there is no line.
const STRAY_JUMP: f64 = 0.5;

impl Foresight {
    /// The foresight after a step that found the k-th largest. `before` is the one of that step, if
    /// there was one.
    pub(super) fn found(before: Option<Foresight>, exact: u32) -> Foresight {
        let value = f64::from(f32::from_bits(exact));
        let (growth, stray) = match before {
            None => (None, STRAY),
            Some(before) => {
                let foreseen = before.next();
                let strayed = (value - foreseen).abs() / foreseen;
                let now = value - f64::from(f32::from_bits(before.last));
                match before.growth.map(f64::from_bits) {
                    None => (Some(now), STRAY),
                    // The scale has changed, and the line begins anew.
                    Some(_) if strayed >= STRAY_JUMP => (None, STRAY),
                    Some(growth) => {
                        let stray = 0.75 * f64::from_bits(before.stray) + 0.25 * strayed;
                        (Some(0.5 * (growth + now)), stray)
                    }
                }
            }
        };
        let stray = stray.clamp(STRAY_MIN, STRAY_MAX).to_bits();
        let growth = growth.map(f64::to_bits);
        Foresight {
            last: exact,
            growth,
            stray,
        }
    }

    /// The next magnitude by the line.
    fn next(self) -> f64 {
        let last = f64::from(f32::from_bits(self.last));
        let growth = self.growth.map_or(0.0, f64::from_bits);
        (last + growth).clamp(0.5 * last, 2.0 * last)
    }

    /// A magnitude that at least k should reach, and not many more.
    pub(super) fn floor(self) -> u32 {
        let floor = self.next() * (1.0 - DISTANCES * f64::from_bits(self.stray));
        (floor as f32).to_bits().clamp(1, f32::MAX.to_bits())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn floors(values: impl Iterator<Item = f32>) -> Vec<(f32, f32)> {
        let mut foresight = None;
        let step = |value: f32| {
            let floor = foresight.map_or(0.0, |f: Foresight| f32::from_bits(f.floor()));
            foresight = Some(Foresight::found(foresight, value.to_bits()));
            (floor, value)
        };
        values.map(step).collect()
    }

    #[test]
    fn a_line_is_followed_closely_from_the_third_step_on() {
        for (floor, value) in floors((1..40).map(|t| 1.3 * t as f32)).into_iter().skip(2) {
            assert!(floor <= value && floor >= 0.9 * value, "{floor} {value}");
        }
    }

    #[test]
    fn what_strays_is_given_room() {
        // Up and down by up to 6 %: what went before says little of what comes.
        let values = (0..60).map(|t| [1.0, 1.04, 0.98, 1.02][t % 4]);
        let all = floors(values);
        let missed = all.iter().skip(10).filter(|(floor, value)| floor > value);
        assert_eq!(missed.count(), 0);
        assert!(
            all.iter()
                .skip(10)
                .all(|(floor, value)| *floor > 0.7 * value)
        );
    }

    #[test]
    fn jumps_of_the_scale_and_the_ends_of_the_type_give_floors_that_can_be_used() {
        let values = [
            1e-45,
            1.0,
            f32::MAX,
            f32::MAX,
            1e-45,
            1e-45,
            1.0,
            1.0,
            1.0,
            1.0,
        ];
        let all = floors(values.into_iter());
        assert!(
            all[1..]
                .iter()
                .all(|(floor, _)| *floor > 0.0 && floor.is_finite())
        );
        assert!(all[9].0 <= 1.0);
    }
}
