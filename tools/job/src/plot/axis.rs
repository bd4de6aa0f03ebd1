//! [`Axis`] and [`Span`]: what an axis says, which values it covers, and where its ticks are. Pure.

/// Ticks of a linear axis, about.
const STEPS: f64 = 5.0;
/// Ticks of a logarithmic axis, at most.
const TICKS_MAX: usize = 9;
/// Decades up to which a logarithmic axis has ticks at 1, 2 and 5 of each.
const FINE_DECADES_MAX: i32 = 3;
/// Greater values are not drawn: sums and differences of those that are stay finite.
const VALUE_MAX: f64 = 1e100;
/// Values whose difference is a smaller share of the greatest count as equal.
const SPREAD_MIN: f64 = 1e-9;
/// From here on a linear axis writes powers of ten.
const PLAIN_MAX: f64 = 1e6;
const PLAIN_STEP_MIN: f64 = 1e-4;

/// How values become places.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scale {
    /// Evenly, over the values that there are.
    Linear,
    /// Evenly, from zero on.
    FromZero,
    /// By the logarithm, with ticks at powers of ten and at 2 and 5 times those. Values above 0.
    Log,
    /// By the logarithm, with ticks at powers of two. Numbers of bytes from 1 to 2^64.
    Bytes,
}

/// What an axis says, and how values become places on it.
#[derive(Clone, Debug)]
pub struct Axis {
    /// What the values are, with their unit.
    pub label: String,
    /// How values become places.
    pub scale: Scale,
}

impl Axis {
    /// An axis with this label.
    pub fn new(scale: Scale, label: impl Into<String>) -> Axis {
        let label = label.into();
        Axis { label, scale }
    }
}

/// The values that an axis covers.
#[derive(Clone, Debug)]
pub(super) struct Span {
    scale: Scale,
    low: f64,
    high: f64,
    /// Values, and how they are written.
    pub ticks: Vec<(f64, String)>,
}

impl Scale {
    /// Whether the axis has a place for it.
    pub(super) fn has(self, value: f64) -> bool {
        match self {
            Scale::Linear => value.abs() <= VALUE_MAX,
            Scale::FromZero => (0.0..=VALUE_MAX).contains(&value),
            Scale::Log => (1.0 / VALUE_MAX..=VALUE_MAX).contains(&value),
            Scale::Bytes => (1.0..=2f64.powi(64)).contains(&value),
        }
    }
}

impl Span {
    /// Covers all values, which the scale has; without any, some part of the axis.
    pub fn of(scale: Scale, values: impl Iterator<Item = f64>) -> Span {
        let (low, high) = values.fold((f64::INFINITY, f64::NEG_INFINITY), |(low, high), value| {
            (low.min(value), high.max(value))
        });
        let (low, high) = match low <= high {
            true => (low, high),
            false => (1.0, 1.0),
        };
        match scale {
            Scale::Linear => Span::linear(scale, low, high),
            Scale::FromZero => Span::linear(scale, 0.0, high),
            Scale::Log => Span::log(low, high),
            Scale::Bytes => Span::bytes(low, high),
        }
    }

    /// From 0 at the low end to 1 at the high end.
    pub fn place(&self, value: f64) -> f64 {
        match self.scale {
            Scale::Linear | Scale::FromZero => (value - self.low) / (self.high - self.low),
            Scale::Log | Scale::Bytes => (value / self.low).ln() / (self.high / self.low).ln(),
        }
    }

    fn linear(scale: Scale, low: f64, high: f64) -> Span {
        let greatest = low.abs().max(high.abs());
        let (low, high) = match high - low > SPREAD_MIN * greatest {
            true => (low, high),
            false if greatest == 0.0 => (0.0, 1.0),
            false => (low - greatest / 2.0, high + greatest / 2.0),
        };
        let step = nice((high - low) / STEPS);
        let first = (low / step + SPREAD_MIN).floor();
        let last = (high / step - SPREAD_MIN).ceil();
        let count = (last - first).round() as usize;
        let values = (0..=count).map(|index| (first + index as f64) * step);
        let is_plain = greatest < PLAIN_MAX && step >= PLAIN_STEP_MIN;
        let decimals = (-step.log10().floor()).clamp(0.0, 9.0) as usize;
        let text = |value: f64| match is_plain {
            true => format!("{value:.decimals$}"),
            false if value.abs() < step / 2.0 => "0".into(),
            false => scientific(value),
        };
        Span {
            scale,
            low: first * step,
            high: last * step,
            ticks: values.map(|value| (value, text(value))).collect(),
        }
    }

    fn log(low: f64, high: f64) -> Span {
        let decade = |value: f64| (value.log10() + SPREAD_MIN).floor() as i32;
        let (first, last) = (decade(low), decade(high) + 1);
        // One decade more, for the room below the least value.
        let all = (first - 1..=last).flat_map(|power| {
            let fine = [1.0, 2.0, 5.0];
            fine.map(move |mantissa| mantissa * 10f64.powi(power))
        });
        let all: Vec<f64> = all.collect();
        let mut from = all.iter().rposition(|tick| *tick <= low * 1.000_001);
        let mut to = all.iter().position(|tick| *tick >= high * 0.999_999);
        if from == to {
            // One value has room on both sides.
            from = from.map(|at| at.saturating_sub(1));
            to = to.map(|at| (at + 1).min(all.len() - 1));
        }
        let (from, to) = (from.unwrap_or(0), to.unwrap_or(all.len() - 1));
        let stride = match last - first <= FINE_DECADES_MAX + 1 {
            true => 0,
            false => ((last - first) as usize).div_ceil(TICKS_MAX),
        };
        let is_tick = |at: &usize| match stride {
            0 => true,
            stride => at.is_multiple_of(3 * stride),
        };
        let ticks = (from..=to).filter(is_tick);
        Span {
            scale: Scale::Log,
            low: all[from],
            high: all[to],
            ticks: ticks.map(|at| (all[at], number(all[at]))).collect(),
        }
    }

    fn bytes(low: f64, high: f64) -> Span {
        let first = (low.log2() + SPREAD_MIN).floor() as i32;
        let last = (high.log2() - SPREAD_MIN).ceil() as i32;
        let last = last.max(first + 1);
        let stride = ((last - first) as usize).div_ceil(TICKS_MAX);
        let powers = (first..=last).step_by(stride);
        Span {
            scale: Scale::Bytes,
            low: 2f64.powi(first),
            high: 2f64.powi(last),
            ticks: powers.map(|p| (2f64.powi(p), bytes(p))).collect(),
        }
    }
}

/// The least of 1, 2 and 5 times a power of ten that is not below.
fn nice(step: f64) -> f64 {
    let power = 10f64.powf(step.log10().floor());
    let share = step / power;
    let nice = [1.0, 2.0, 5.0]
        .into_iter()
        .find(|nice| share <= nice * 1.000_001);
    nice.unwrap_or(10.0) * power
}

/// A number above 0, as short as it can be.
fn number(value: f64) -> String {
    match value {
        v if (1e-3..PLAIN_MAX).contains(&v) => format!("{}", (v * 1e6).round() / 1e6),
        v => scientific(v),
    }
}

/// Two digits after the point, but for zeros at the end.
fn scientific(value: f64) -> String {
    let text = format!("{value:.2e}");
    let (digits, power) = text.split_once('e').unwrap_or((&text, "0"));
    let digits = digits.trim_end_matches('0').trim_end_matches('.');
    format!("{digits}e{power}")
}

/// A power of two.
fn bytes(power: i32) -> String {
    const UNITS: [&str; 7] = ["B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB"];
    let unit = (power / 10).clamp(0, 6);
    format!("{} {}", 2f64.powi(power - 10 * unit), UNITS[unit as usize])
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ticks(scale: Scale, values: &[f64]) -> Vec<String> {
        let span = Span::of(scale, values.iter().copied());
        for value in values {
            let place = span.place(*value);
            assert!((-1e-9..=1.0 + 1e-9).contains(&place), "{value}: {place}");
        }
        let places: Vec<f64> = span.ticks.iter().map(|(v, _)| span.place(*v)).collect();
        assert!(places.is_sorted() && places.len() >= 2, "{span:?}");
        assert!(places.len() <= 12, "{span:?}");
        span.ticks.into_iter().map(|(_, text)| text).collect()
    }

    #[test]
    fn linear_ticks_are_round_and_cover_all_values() {
        let zero_to_one = ["0.0", "0.2", "0.4", "0.6", "0.8", "1.0"];
        assert_eq!(ticks(Scale::FromZero, &[0.31, 0.99]), zero_to_one);
        assert_eq!(
            ticks(Scale::Linear, &[12.0, 27.0]),
            ["10", "15", "20", "25", "30"]
        );
        assert_eq!(
            ticks(Scale::Linear, &[-1.0, 1.0]),
            ["-1.0", "-0.5", "0.0", "0.5", "1.0"]
        );
        assert_eq!(ticks(Scale::FromZero, &[3e9])[1], "1e9");
    }

    #[test]
    fn logarithmic_ticks_are_powers_and_their_simple_multiples() {
        assert_eq!(
            ticks(Scale::Log, &[1.0, 10.0, 25.0, 400.0]),
            ["1", "2", "5", "10", "20", "50", "100", "200", "500"]
        );
        assert_eq!(
            ticks(Scale::Log, &[0.1, 1e5]),
            ["0.1", "1", "10", "100", "1000", "10000", "100000"]
        );
        assert_eq!(ticks(Scale::Log, &[10.0]), ["5", "10", "20"]);
        assert_eq!(
            ticks(Scale::Bytes, &[8.0, 1048576.0]),
            [
                "8 B", "32 B", "128 B", "512 B", "2 KiB", "8 KiB", "32 KiB", "128 KiB", "512 KiB"
            ]
        );
        let span = Span::of(Scale::Log, [1.0, 100.0].into_iter());
        assert!((span.place(10.0) - 0.5).abs() < 1e-12);
    }

    #[test]
    fn equal_extreme_and_missing_values_have_an_axis() {
        for values in [
            &[][..],
            &[0.0],
            &[5.0],
            &[1e100, -1e100],
            &[1e-100],
            &[1e9, 1e9 + 1e-6],
        ] {
            ticks(Scale::Linear, values);
        }
        for values in [&[][..], &[0.0], &[1e100], &[1e-90]] {
            ticks(Scale::FromZero, values);
        }
        for values in [&[][..], &[1e-100, 1e100], &[1e-100], &[1e100]] {
            ticks(Scale::Log, values);
        }
        for values in [&[][..], &[1.0], &[2f64.powi(64)], &[1.0, 2f64.powi(64)]] {
            ticks(Scale::Bytes, values);
        }
        for (scale, value) in [
            (Scale::Log, 0.0),
            (Scale::Bytes, 0.5),
            (Scale::FromZero, -1.0),
            (Scale::Linear, f64::NAN),
            (Scale::Linear, f64::INFINITY),
        ] {
            assert!(!scale.has(value), "{scale:?} {value}");
        }
    }
}
