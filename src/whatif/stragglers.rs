//! How long GPUs wait for slower ones, if their times vary from step to step.

/// By how many standard deviations a step is longer than the computation of its GPU, on average
/// over all GPUs. The times of `gpus` GPUs are normal and independent, also from step to step. A
/// GPU that comes before the one in place `quorum` waits for that one; a later one does not wait.
/// With a quorum of all GPUs each waits for the slowest.
pub fn waiting(gpus: u32, quorum: u32) -> f64 {
    if gpus <= 1 {
        return 0.0;
    }
    let waited_for = expected_place(quorum, gpus);
    let later = (quorum + 1..=gpus).map(|place| expected_place(place, gpus));
    (f64::from(quorum) * waited_for + later.sum::<f64>()) / f64::from(gpus)
}

/// The expected value of the one in this place, from 1, of normal numbers by their size. Source:
/// Blom (1958), whose error is below 1 % of a standard deviation.
fn expected_place(place: u32, of: u32) -> f64 {
    quantile((f64::from(place) - 0.375) / (f64::from(of) + 0.25))
}

/// Below which value a normal number is with this probability, by bisection of the distribution.
fn quantile(probability: f64) -> f64 {
    let (mut low, mut high) = (-9.0, 9.0);
    for _ in 0..50 {
        let middle = f64::midpoint(low, high);
        match distribution(middle) < probability {
            true => low = middle,
            false => high = middle,
        }
    }
    f64::midpoint(low, high)
}

/// The probability that a normal number is below `x`. Source: Abramowitz and Stegun (1964),
/// 26.2.17, whose error is below 1e-7.
fn distribution(x: f64) -> f64 {
    let t = 1.0 / (1.0 + 0.2316419 * x.abs());
    let density = (-0.5 * x * x).exp() / (2.0 * std::f64::consts::PI).sqrt();
    let sum = 0.319_381_530
        + t * (-0.356_563_782 + t * (1.781_477_937 + t * (-1.821_255_978 + t * 1.330_274_429)));
    let above = density * t * sum;
    match x >= 0.0 {
        true => 1.0 - above,
        false => above,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::prng::Prng;

    /// The expected maxima of normal numbers are in tables (Harter 1961).
    #[test]
    fn all_wait_for_the_slowest_as_tables_say() {
        for (gpus, expected) in [(2, 0.5642), (4, 1.0294), (10, 1.5388), (100, 2.5076)] {
            let got = waiting(gpus, gpus);
            assert!((got - expected).abs() < 0.03, "{gpus}: {got}");
        }
        assert_eq!(waiting(1, 1), 0.0);
        assert!(waiting(64, 1).abs() < 0.01);
    }

    #[test]
    fn a_quorum_waits_as_drawn_numbers_do() {
        let mut prng = Prng::new(7);
        // A sum of twelve is near enough to a normal number.
        let mut draw = || (0..12).map(|_| prng.below(1 << 20) as f64).sum::<f64>();
        let (gpus, rounds) = (16, 4000);
        for quorum in [1, 4, 8, 12, 16] {
            let mut sum = 0.0;
            for _ in 0..rounds {
                let mut times: Vec<f64> = (0..gpus)
                    .map(|_| draw() / f64::from(1 << 20) - 6.0)
                    .collect();
                times.sort_by(f64::total_cmp);
                let waited_for = times[quorum - 1];
                sum += times.iter().map(|time| time.max(waited_for)).sum::<f64>();
            }
            let drawn = sum / f64::from(gpus * rounds);
            let got = waiting(gpus as u32, quorum as u32);
            assert!((got - drawn).abs() < 0.03, "{quorum}: {got}, {drawn}");
        }
    }
}
