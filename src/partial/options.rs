//! [`PartialOptions`]: how long a round waits, for whom, and what a slow rank gets.

use crate::error::{Error, Result};
use crate::types::DataType;
use std::time::Duration;

/// Rounds in flight at most: a quarter of the operations that a communicator has under way at once,
/// since a round is up to two of them, and half are left for the next rounds.
pub const ROUNDS_MAX: u32 = 4;
const _: () = assert!(ROUNDS_MAX as u64 * 4 <= crate::limits::OPERATION_SLOTS);

/// Longest bound of staleness with [`Delivery::Ordered`], which keeps this many results.
pub const STALENESS_MAX: u32 = 1024;

/// When a round begins. All ranks give the same.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Policy {
    /// With the first rank that arrives.
    Solo,
    /// When half of the ranks (rounded up) have arrived.
    Majority,
    /// When this many distinct ranks have arrived: 1 is solo, all is full.
    Quorum(u32),
    /// Every rank begins it when it arrives itself: an ordinary allreduce.
    Full,
    /// When one rank has arrived that is drawn anew for each round. This is the published majority,
    /// which is a majority in expectation only.
    RandomInitiator {
        /// The seed of the draws; equal on all ranks.
        seed: u64,
    },
    /// At `time` after the first arrival, or when all have arrived; later if by then fewer than
    /// `quorum` have.
    Deadline {
        /// Fewer never begin a round.
        quorum: u32,
        /// By the clock of the rank that counts arrivals; no clocks are compared.
        time: Duration,
    },
}

/// What a rank gets that was not there when rounds ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Delivery {
    /// Every round's result, in order: the weights after step i are the same bits on all ranks,
    /// with any optimiser. Needs a bound of staleness, because it keeps the results.
    Ordered,
    /// The sum of all rounds since its last result: for plain SGD, equal up to rounding.
    Merged,
    /// The newest result only, as published. Replicas drift apart and have to be synchronised.
    Latest,
}

/// What a sum is divided by, once, at the end. Integers toward zero.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Divisor {
    /// The ranks of creation: a gradient weighs the same whenever it is included.
    Creation,
    /// The ranks that live.
    Live,
    /// The gradients in the sum. Does not conserve mass: one that is included with few others
    /// weighs more.
    Generations,
    /// Nothing: the sum.
    One,
}

/// How a partial allreduce works. All ranks give equal options.
#[derive(Clone, Debug, PartialEq)]
pub struct PartialOptions {
    /// When rounds begin. Default: majority.
    pub policy: Policy,
    /// `Some(N)`: every (N+1)-th round waits for all, whatever the policy. 1 and more; default:
    /// none.
    pub limiter: Option<u32>,
    /// No gradient is included later than this many rounds after its own; rounds wait for a rank
    /// that would fall further behind. 0 makes every round full. Default: 8. `None`: never wait; a
    /// slow rank falls behind without limit.
    pub staleness_max: Option<u32>,
    /// Rounds that a rank may be ahead of its last result, 1 to 4. Default: 1. More hide
    /// communication, and cost a buffer each.
    pub rounds_in_flight: u32,
    /// What a slow rank gets. Default: ordered.
    pub delivery: Delivery,
    /// Default: the ranks of creation.
    pub divisor: Divisor,
    /// Whether the ranks that live go on after a death, instead of having its error. Default:
    /// false. It costs one more result for each round in flight (and another one unless they are
    /// ordered, and a copy of each sum where they are merged), a word to every rank in each finish,
    /// and a rebuild after a death. The sum then lacks the dead rank's share of the data: take
    /// [`Divisor::Live`] to keep the size of steps, or stop and restore a checkpoint where every
    /// share counts.
    pub survive: bool,
}

impl Default for PartialOptions {
    fn default() -> PartialOptions {
        PartialOptions {
            policy: Policy::Majority,
            limiter: None,
            staleness_max: Some(8),
            rounds_in_flight: 1,
            delivery: Delivery::Ordered,
            divisor: Divisor::Creation,
            survive: false,
        }
    }
}

impl PartialOptions {
    /// Looks whether they make sense for this many ranks.
    pub fn check(&self, ranks: u32) -> Result<()> {
        let quorum = match self.policy {
            Policy::Quorum(quorum) | Policy::Deadline { quorum, .. } => quorum,
            _ => 1,
        };
        if quorum == 0 || quorum > ranks {
            return Err(Error::invalid(format!(
                "PartialOptions: policy has a quorum of {quorum} of {ranks} ranks: from 1 to {ranks}"
            )));
        }
        if self.limiter == Some(0) {
            return Err(Error::invalid(
                "PartialOptions: limiter Some(0) makes every round full: use Policy::Full, or 1 and more",
            ));
        }
        if !(1..=ROUNDS_MAX).contains(&self.rounds_in_flight) {
            return Err(Error::invalid(format!(
                "PartialOptions: rounds_in_flight is {}: from 1 to {ROUNDS_MAX}",
                self.rounds_in_flight
            )));
        }
        match (self.staleness_max, self.delivery) {
            (None, Delivery::Ordered) => Err(Error::invalid(
                "PartialOptions: ordered delivery keeps every result until the slowest rank takes it, so it needs staleness_max: \
                 give one, or use Delivery::Merged or Delivery::Latest",
            )),
            (Some(bound), _) if bound > STALENESS_MAX => Err(Error::invalid(format!(
                "PartialOptions: staleness_max is {bound}: at most {STALENESS_MAX}, or None"
            ))),
            _ => Ok(()),
        }
    }

    /// Distinct ranks that have to arrive before a round may begin, where they are counted.
    pub fn quorum(&self, ranks: u32) -> u32 {
        match self.policy {
            Policy::Solo | Policy::RandomInitiator { .. } => 1,
            Policy::Majority => ranks.div_ceil(2),
            Policy::Quorum(quorum) | Policy::Deadline { quorum, .. } => quorum.min(ranks),
            Policy::Full => ranks,
        }
    }

    /// Results that a rank may not have taken yet, those of rounds under way included.
    pub fn results_max(&self) -> usize {
        let in_flight = self.rounds_in_flight as usize;
        let needed = match (self.delivery, self.staleness_max) {
            (Delivery::Ordered, Some(bound)) => bound as usize + in_flight,
            // One that is taken, and one that collects later rounds.
            _ => in_flight + 2,
        };
        match (self.survive, self.delivery) {
            (false, _) => needed,
            (true, Delivery::Ordered) => needed + self.results_kept(),
            // A second one may be taken: see `Results::take`.
            (true, _) => needed + self.results_kept() + 1,
        }
    }

    /// Results that are kept for ranks that may not have them, whether this rank has taken them or
    /// not.
    pub fn results_kept(&self) -> usize {
        if self.survive {
            self.rounds_in_flight as usize
        } else {
            0
        }
    }

    /// Everything in one word, with the type and the number of elements, to compare between ranks.
    pub fn fingerprint(&self, dtype: DataType, count: u64) -> u64 {
        let (kind, a, b) = match self.policy {
            Policy::Solo => (0, 0, 0),
            Policy::Majority => (1, 0, 0),
            Policy::Quorum(quorum) => (2, u64::from(quorum), 0),
            Policy::Full => (3, 0, 0),
            Policy::RandomInitiator { seed } => (4, seed, 0),
            Policy::Deadline { quorum, time } => (5, u64::from(quorum), time.as_nanos() as u64),
        };
        let words = [
            kind,
            a,
            b,
            self.limiter.map_or(0, u64::from),
            self.staleness_max.map_or(u64::MAX, u64::from),
            u64::from(self.rounds_in_flight),
            self.delivery as u64,
            self.divisor as u64,
            u64::from(self.survive),
            dtype as u64,
            count,
        ];
        (words.iter()).fold(1, |hash, &word| crate::prng::mix(hash ^ word))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_are_taken_up_to_their_bounds_and_refused_beyond_by_name() {
        type Set = fn(&mut PartialOptions, u32);
        let quorum: Set = |o, n| o.policy = Policy::Quorum(n);
        let deadline: Set = |o, quorum| {
            let time = Duration::ZERO;
            o.policy = Policy::Deadline { quorum, time };
        };
        let limiter: Set = |o, n| o.limiter = Some(n);
        let staleness: Set = |o, n| o.staleness_max = Some(n);
        let fields: [(&str, Set, [u32; 2], &[u32]); 5] = [
            ("policy", quorum, [1, 4], &[0, 5]),
            ("policy", deadline, [1, 4], &[0, 5]),
            ("limiter", limiter, [1, u32::MAX], &[0]),
            (
                "staleness_max",
                staleness,
                [0, STALENESS_MAX],
                &[STALENESS_MAX + 1],
            ),
            (
                "rounds_in_flight",
                |o, n| o.rounds_in_flight = n,
                [1, ROUNDS_MAX],
                &[0, 5],
            ),
        ];
        for (name, set, bounds, beyond) in fields {
            let check = |value| {
                let mut options = PartialOptions::default();
                set(&mut options, value);
                options.check(4)
            };
            for bound in bounds {
                assert_eq!(check(bound), Ok(()), "{name} = {bound}");
            }
            for &value in beyond {
                let text = check(value).unwrap_err().to_string();
                assert!(
                    text.contains(name) && text.contains(&value.to_string()),
                    "{text}"
                );
            }
        }
    }

    #[test]
    fn options_that_make_no_sense_are_refused_with_what_is_allowed() {
        let text = |change: fn(&mut PartialOptions)| {
            let mut options = PartialOptions::default();
            change(&mut options);
            options.check(4).unwrap_err().to_string()
        };
        assert!(text(|o| o.policy = Policy::Quorum(5)).contains("from 1 to 4"));
        assert!(text(|o| o.policy = Policy::Quorum(0)).contains("from 1 to 4"));
        assert!(text(|o| o.limiter = Some(0)).contains("Policy::Full"));
        assert!(text(|o| o.rounds_in_flight = 0).contains("from 1 to 4"));
        assert!(text(|o| o.staleness_max = None).contains("Delivery::Merged"));
        assert!(text(|o| o.staleness_max = Some(1025)).contains("at most 1024"));
        assert!(PartialOptions::default().check(1).is_ok());
    }

    #[test]
    fn every_option_is_part_of_the_fingerprint() {
        let changes: [fn(&mut PartialOptions); 9] = [
            |_| {},
            |o| o.policy = Policy::Quorum(1),
            |o| o.policy = Policy::RandomInitiator { seed: 1 },
            |o| o.limiter = Some(3),
            |o| o.staleness_max = Some(0),
            |o| o.rounds_in_flight = 2,
            |o| o.delivery = Delivery::Latest,
            |o| o.divisor = Divisor::One,
            |o| o.survive = true,
        ];
        let hashes = changes.map(|change| {
            let mut options = PartialOptions::default();
            change(&mut options);
            options.fingerprint(DataType::F32, 8)
        });
        for (i, hash) in hashes.iter().enumerate() {
            assert!(!hashes[..i].contains(hash), "change {i}");
        }
    }
}
