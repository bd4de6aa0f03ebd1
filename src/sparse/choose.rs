//! The choice of a sparse allreduce's algorithm: what a step costs with each by Table 1 of the
//! paper and the measured fill-in, and which is cheapest.
//!
//! Only multiplications and additions of what all ranks have, so that all choose alike.

use super::options::{Algorithm, DsaVariant};

/// What a link costs.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Prices {
    /// Seconds of a message.
    pub message: f64,
    /// Seconds of a word of 4 bytes.
    pub word: f64,
}

impl Default for Prices {
    /// The fabric of the paper: 1.5 us, 10 GB/s.
    fn default() -> Prices {
        Prices {
            message: 1.5e-6,
            word: 4e-10,
        }
    }
}

/// What a rank's own work costs; nothing by default.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct LocalPrices {
    /// Seconds of a byte that a pass over a vector reads or writes.
    pub byte: f64,
    /// Seconds of an entry that is picked, sent, summed and applied.
    pub entry: f64,
}

/// How long steps took, compared with what the model says of them. Links between processes that
/// share cores are slower than the model's, and its entries and passes are another machine's. All
/// ranks have equal values, as they have of everything that decides.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Experience(Vec<Tried>);

#[derive(Clone, Debug, PartialEq)]
struct Tried {
    algorithm: Algorithm,
    /// Steps so far.
    steps: u64,
    /// Measured time over the model's; none before there was a time.
    ratio: Option<f64>,
}

/// Ranks tell each other the time of one step of an algorithm in this many.
const TOLD_STEPS: u64 = 16;

/// The weight of the last time in the running mean.
const NEWS: f64 = 0.5;

impl Experience {
    /// Counts a step. Returns whether ranks tell each other its time: that of the second step,
    /// because the first touches memory for the first time, and then those of few.
    pub fn count(&mut self, algorithm: Algorithm) -> bool {
        let tried = self.tried(algorithm);
        tried.steps += 1;
        tried.steps % TOLD_STEPS == 2
    }

    /// Takes in a time of all ranks.
    pub fn learn(&mut self, algorithm: Algorithm, seconds: f64, modelled: f64) {
        let now = seconds / modelled;
        let tried = self.tried(algorithm);
        let ratio = tried
            .ratio
            .map_or(now, |ratio| ratio + NEWS * (now - ratio));
        tried.ratio = Some(ratio).filter(|ratio| ratio.is_finite() && *ratio > 0.0);
    }

    /// The factor of the model's time; 1 for an algorithm that has not been tried.
    pub fn ratio(&self, algorithm: Algorithm) -> f64 {
        let tried = self.0.iter().find(|tried| tried.algorithm == algorithm);
        tried.and_then(|tried| tried.ratio).unwrap_or(1.0)
    }

    fn tried(&mut self, algorithm: Algorithm) -> &mut Tried {
        let found = self.0.iter().position(|tried| tried.algorithm == algorithm);
        let at = found.unwrap_or_else(|| {
            self.0.push(Tried {
                algorithm,
                steps: 0,
                ratio: None,
            });
            self.0.len() - 1
        });
        &mut self.0[at]
    }
}

/// What a step takes by the prices, and what earlier steps took.
#[derive(Clone, Copy, Debug)]
pub struct StepModel<'a> {
    /// Messages.
    pub links: Prices,
    /// Passes and entries.
    pub local: LocalPrices,
    /// What steps took before.
    pub experience: &'a Experience,
}

impl StepModel<'_> {
    /// Seconds without experience.
    pub fn plain_seconds(
        &self,
        algorithm: Algorithm,
        shape: (u64, u64, u32),
        reduced: Option<u64>,
    ) -> f64 {
        seconds_of(algorithm, shape, reduced, self.links)
            + local_seconds_of(algorithm, shape, reduced, self.local)
    }

    /// Seconds with experience.
    pub fn seconds(
        &self,
        algorithm: Algorithm,
        shape: (u64, u64, u32),
        reduced: Option<u64>,
    ) -> f64 {
        self.experience.ratio(algorithm) * self.plain_seconds(algorithm, shape, reduced)
    }
}

/// Words of the histograms of exact global selection.
const HISTOGRAMS: f64 = 2.0 * (2048.0 + 2048.0 + 512.0);

/// Seconds that the communication of a step takes: `k` of `count` coordinates on `ranks` ranks,
/// with `reduced` non-zeros in the sum of all picks (unknown: what independent picks would give).
pub fn seconds_of(
    algorithm: Algorithm,
    (count, k, ranks): (u64, u64, u32),
    reduced: Option<u64>,
    prices: Prices,
) -> f64 {
    let (n, k, p) = (count as f64, k as f64, f64::from(ranks));
    let others = (p - 1.0) / p;
    let log = f64::from(ranks.next_power_of_two().trailing_zeros());
    let reduced = reduced.map_or_else(|| n * (1.0 - power(1.0 - k / n, ranks)), |r| r as f64);
    let dense = 2.0 * n * others;
    let (words, messages) = match algorithm {
        Algorithm::OkTopk => {
            let selected = k.min(reduced);
            let histograms = if reduced > k { HISTOGRAMS } else { 0.0 };
            (
                (2.0 * k + 2.0 * selected) * others + histograms,
                2.0 * p + 2.0 * log,
            )
        }
        Algorithm::TopkA | Algorithm::TopkA2 | Algorithm::Gaussiank => {
            (2.0 * k * (p - 1.0), 2.0 * log)
        }
        Algorithm::TopkDsa(DsaVariant::RecursiveDoubling) => {
            let doubled = (0..log as u32).map(|round| {
                let merged = n * (1.0 - power(1.0 - k / n, 1 << round));
                (2.0 * merged.min(reduced)).min(n)
            });
            (doubled.sum(), 2.0 * log)
        }
        Algorithm::TopkDsa(variant) => {
            let gathered = match variant {
                DsaVariant::Small => 2.0 * reduced,
                DsaVariant::Big => n,
                _ => (2.0 * reduced).min(n),
            };
            ((2.0 * k + gathered) * others, p + 2.0 * log)
        }
        Algorithm::GTopk => (4.0 * k * log, 2.0 * log),
        Algorithm::Dense | Algorithm::Auto => (dense, 2.0 * log),
    };
    words * prices.word + messages * prices.message
}

/// The cheapest of Ok-Topk, TopkDSA and dense, by their communication.
pub fn choose(shape: (u64, u64, u32), reduced: Option<u64>, prices: Prices) -> Algorithm {
    let model = StepModel {
        links: prices,
        local: LocalPrices::default(),
        experience: &Experience::default(),
    };
    choose_with(shape, reduced, model)
}

/// The cheapest of Ok-Topk, TopkDSA and dense, by their communication, the ranks' own work, and
/// what steps took.
pub fn choose_with(shape: (u64, u64, u32), reduced: Option<u64>, model: StepModel) -> Algorithm {
    let candidates = [
        Algorithm::OkTopk,
        Algorithm::TopkDsa(DsaVariant::Split),
        Algorithm::Dense,
    ];
    let seconds = |a: &Algorithm| model.seconds(*a, shape, reduced);
    let cheapest = candidates
        .into_iter()
        .min_by(|a, b| seconds(a).total_cmp(&seconds(b)));
    cheapest.unwrap_or(Algorithm::Dense)
}

/// The share of the time of dense steps that a look at the fill-in may take.
const PROBE_SHARE: f64 = 1.0 / 64.0;

/// The algorithm of a step that finds out, after `dense_steps` dense ones, how many non-zeros the
/// sum of all picks has. `None` until that costs little beside them. Dense steps do not see the
/// fill-in, and as it changes during a training, another algorithm may become the cheapest.
pub fn probe_after(
    dense_steps: u64,
    shape: (u64, u64, u32),
    reduced: Option<u64>,
    model: StepModel,
) -> Option<Algorithm> {
    let seconds = |a: Algorithm| model.seconds(a, shape, reduced);
    let (topk, dsa) = (Algorithm::OkTopk, Algorithm::TopkDsa(DsaVariant::Split));
    let probe = if seconds(dsa) < seconds(topk) {
        dsa
    } else {
        topk
    };
    let spent = dense_steps as f64 * seconds(Algorithm::Dense);
    (seconds(probe) <= PROBE_SHARE * spent).then_some(probe)
}

/// Seconds that a rank passes over its vectors and handles its picks.
pub fn local_seconds_of(
    algorithm: Algorithm,
    (count, k, ranks): (u64, u64, u32),
    reduced: Option<u64>,
    local: LocalPrices,
) -> f64 {
    let independent = || count as f64 * (1.0 - power(1.0 - k as f64 / count as f64, ranks));
    let summed = reduced.map_or_else(independent, |r| r as f64);
    let (passes, entries) = match algorithm {
        // The sum of residual and gradient, two looks for what is not finite, and zeros.
        Algorithm::Dense | Algorithm::Auto => (6.0, 0.0),
        // The selection reads both, and the end of the step adds one to the other.
        Algorithm::TopkDsa(_) | Algorithm::TopkA => (5.0, k as f64 + summed),
        _ => (5.0, 2.0 * k as f64),
    };
    4.0 * count as f64 * passes * local.byte + entries * local.entry
}

/// Whether to spread entries of these sizes before they are gathered: in a gather each rank's
/// entries pass every rank, so that the largest size decides.
pub fn is_spreading_cheaper(sizes: &[u64], prices: Prices) -> bool {
    let ranks = sizes.len() as f64;
    let most = sizes.iter().copied().max().unwrap_or(0) as f64;
    let mean = sizes.iter().sum::<u64>() as f64 / ranks.max(1.0);
    let gather = |size: f64| (ranks - 1.0) * (prices.message + 2.0 * size * prices.word);
    let moves = (most / mean.max(1.0)).ceil() + 1.0;
    let spread = moves * prices.message + 2.0 * (most - mean) * prices.word;
    spread + gather(mean) < gather(most)
}

fn power(base: f64, exponent: u32) -> f64 {
    let (mut result, mut square, mut left) = (1.0, base, exponent);
    while left > 0 {
        if left & 1 == 1 {
            result *= square;
        }
        square *= square;
        left >>= 1;
    }
    result
}

#[cfg(test)]
mod tests {
    use super::*;

    /// 10 GB/s, 1.5 us.
    const FABRIC: Prices = Prices {
        message: 1.5e-6,
        word: 4e-10,
    };

    #[test]
    fn the_choice_follows_the_fill_in() {
        let bert = (133_547_324, 1_335_473, 256);
        assert_eq!(choose(bert, None, FABRIC), Algorithm::OkTopk);
        // All ranks pick the same coordinates: the sum is as short as one rank's picks.
        let identical = choose(bert, Some(1_335_473), FABRIC);
        assert_eq!(identical, Algorithm::TopkDsa(DsaVariant::Split));
        assert_eq!(choose((1000, 900, 8), None, FABRIC), Algorithm::Dense);
    }

    #[test]
    fn a_fast_link_is_for_dense_and_a_slow_one_for_sparse() {
        // A core that reads 10 GB/s, and an entry that takes as long as 60 ns.
        let local = LocalPrices {
            byte: 1e-10,
            entry: 6e-8,
        };
        let at = |bytes_per_second: f64| {
            let links = Prices {
                message: 1.5e-6,
                word: 4.0 / bytes_per_second,
            };
            let experience = &Experience::default();
            let model = StepModel {
                links,
                local,
                experience,
            };
            choose_with((1 << 24, 1 << 19, 4), None, model)
        };
        assert_eq!(at(1e8), Algorithm::OkTopk);
        assert_eq!(at(1e11), Algorithm::Dense);
    }

    #[test]
    fn a_probe_takes_its_share_and_no_more() {
        let local = LocalPrices {
            byte: 1e-10,
            entry: 6e-8,
        };
        let links = Prices {
            message: 1e-6,
            word: 1.5e-8,
        };
        let shape = (4000, 200, 8);
        let cost = |a| seconds_of(a, shape, None, links) + local_seconds_of(a, shape, None, local);
        let model = StepModel {
            links,
            local,
            experience: &Experience::default(),
        };
        assert_eq!(choose_with(shape, None, model), Algorithm::Dense);
        let after = |steps| probe_after(steps, shape, None, model);
        let first = (0..10_000).find(|steps| after(*steps).is_some()).unwrap();
        let probe = after(first).unwrap();
        let dense = cost(Algorithm::Dense);
        assert!(64.0 * cost(probe) <= first as f64 * dense);
        assert!(64.0 * cost(probe) > (first - 1) as f64 * dense);
        // What it may find: all ranks pick the same, and sparse is cheaper.
        let found = choose_with(shape, Some(200), model);
        assert_eq!(found, Algorithm::TopkDsa(DsaVariant::Split));
    }

    #[test]
    fn what_was_measured_wins_over_the_model() {
        fn model(experience: &Experience) -> StepModel<'_> {
            StepModel {
                links: FABRIC,
                local: LocalPrices::default(),
                experience,
            }
        }
        let bert = (133_547_324, 1_335_473, 4);
        let dsa = Algorithm::TopkDsa(DsaVariant::Split);
        let (mut experience, none) = (Experience::default(), Experience::default());
        let choice = |experience: &Experience| choose_with(bert, None, model(experience));
        assert_eq!(choice(&experience), Algorithm::OkTopk);
        let modelled = |a| model(&none).plain_seconds(a, bert, None);
        // A hundred times as slow as it should be: the next best is tried, and is no better.
        experience.learn(
            Algorithm::OkTopk,
            100.0 * modelled(Algorithm::OkTopk),
            modelled(Algorithm::OkTopk),
        );
        assert_eq!(choice(&experience), dsa);
        experience.learn(dsa, 200.0 * modelled(dsa), modelled(dsa));
        assert_eq!(choice(&experience), Algorithm::Dense);
        let dense = modelled(Algorithm::Dense);
        experience.learn(Algorithm::Dense, 100.0 * dense, dense);
        assert_eq!(choice(&experience), Algorithm::OkTopk);
        // A time that no clock can give is not kept.
        experience.learn(Algorithm::OkTopk, 0.0, 0.0);
        assert_eq!(experience.ratio(Algorithm::OkTopk), 1.0);
    }

    #[test]
    fn times_are_told_of_the_second_step_and_then_of_few() {
        let mut experience = Experience::default();
        let told: Vec<u64> = (1..=40)
            .filter(|_| experience.count(Algorithm::Dense))
            .collect();
        assert_eq!(told, [2, 18, 34]);
    }

    #[test]
    fn spreading_pays_where_one_rank_has_nearly_all() {
        let sizes = |most: u64| {
            let mut sizes = vec![1000; 16];
            sizes[3] = most;
            sizes
        };
        assert!(!is_spreading_cheaper(&sizes(1000), FABRIC));
        assert!(is_spreading_cheaper(&sizes(100_000), FABRIC));
        // Entries so few that messages are all that counts.
        assert!(!is_spreading_cheaper(&[3, 0, 0, 0], FABRIC));
        assert!(!is_spreading_cheaper(&[0, 0], FABRIC));
    }

    #[test]
    fn volumes_are_those_of_table_1() {
        let beta = Prices {
            message: 0.0,
            word: 1.0,
        };
        let shape = (133_547_324, 1_335_473, 32);
        let close = |algorithm, words: f64| {
            let got = seconds_of(algorithm, shape, None, beta);
            assert!((got / words - 1.0).abs() < 0.01, "{algorithm}: {got}");
        };
        close(Algorithm::Dense, 2.587e8);
        close(Algorithm::TopkA, 8.280e7);
        close(Algorithm::GTopk, 2.671e7);
        close(Algorithm::OkTopk, 5.175e6);
    }
}
