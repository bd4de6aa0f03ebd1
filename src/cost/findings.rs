//! [`Finding`]: a call for which an algorithm was measured to be faster than the cheapest by the
//! prices.

use crate::types::Collective;
use std::borrow::Cow;
use std::fmt;
use std::str::FromStr;

/// More of them would mean that the prices are worth nothing.
pub const FINDINGS_MAX: usize = 128;

/// A finding holds for sizes up to this many times less or more: half way, in powers, between sizes
/// that are measured.
const REACH: f64 = 2.83;

/// Longest name of an algorithm that is believed.
const NAME_MAX: usize = 32;

/// See the module. Holds for this number of ranks of one host, all of which have a core each or
/// share cores.
#[derive(Clone, Debug, PartialEq)]
pub struct Finding {
    /// The collective.
    pub collective: Collective,
    /// Number of ranks.
    pub ranks: u32,
    /// Ranks share cores.
    pub crowded: bool,
    /// The callers' buffers are registered.
    pub registered: bool,
    /// Bytes of `count` elements.
    pub bytes: u64,
    /// What was the fastest, by name.
    pub algorithm: Cow<'static, str>,
}

impl Finding {
    /// How far this size is from the one that was measured, as a factor; `None`: too far.
    pub fn distance(&self, bytes: u64) -> Option<f64> {
        let (own, other) = (self.bytes.max(1) as f64, bytes.max(1) as f64);
        let factor = (own / other).max(other / own);
        (factor <= REACH).then_some(factor)
    }
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Finding {
            collective,
            ranks,
            bytes,
            algorithm,
            ..
        } = self;
        let class = if self.crowded { "crowded" } else { "apart" };
        let memory = if self.registered {
            "registered"
        } else {
            "caller"
        };
        write!(
            f,
            "{class} {collective} {ranks} {memory} {bytes} {algorithm}"
        )
    }
}

impl FromStr for Finding {
    type Err = String;

    fn from_str(text: &str) -> Result<Finding, String> {
        let wrong = || {
            format!("'{text}': apart|crowded COLLECTIVE RANKS registered|caller BYTES ALGORITHM")
        };
        let words: Vec<&str> = text.split(' ').collect();
        let [class, collective, ranks, memory, bytes, algorithm] = words[..] else {
            return Err(wrong());
        };
        let one_of = |word: &str, yes: &str, no: &str| match word {
            _ if word == yes => Ok(true),
            _ if word == no => Ok(false),
            _ => Err(wrong()),
        };
        let is_name = |c: char| c.is_ascii_lowercase() || c == '-';
        if algorithm.is_empty() || algorithm.len() > NAME_MAX || !algorithm.chars().all(is_name) {
            return Err(wrong());
        }
        Ok(Finding {
            collective: collective.parse().map_err(|_| wrong())?,
            ranks: ranks.parse().map_err(|_| wrong())?,
            crowded: one_of(class, "crowded", "apart")?,
            registered: one_of(memory, "registered", "caller")?,
            bytes: bytes.parse().map_err(|_| wrong())?,
            algorithm: Cow::Owned(algorithm.into()),
        })
    }
}

const REGISTERED: bool = true;
const CALLER: bool = false;
/// Of the machine of the built-in prices.
const CORES: u32 = 2;

/// Of the machine of the built-in prices: where the choice lost more than an eighth in the medians
/// of ten sweeps of `linerate explain --all`, or in a sweep of `tools/speed --choice`, whose
/// all-to-all leaves its inputs as they are.
pub(super) const BUILT_IN: [Finding; 24] = [
    found(Collective::AllReduce, 3, CALLER, 32 << 10, "window-split"),
    found(Collective::AllGather, 4, REGISTERED, 128, "direct"),
    found(Collective::AllGather, 4, REGISTERED, 1 << 10, "direct"),
    found(Collective::AllToAll, 2, REGISTERED, 16 << 10, "direct"),
    found(Collective::AllToAll, 2, REGISTERED, 128 << 10, "window"),
    found(Collective::AllToAll, 2, CALLER, 8 << 20, "window"),
    found(Collective::AllToAll, 2, CALLER, 32 << 20, "window"),
    found(Collective::AllToAll, 3, CALLER, 683 << 10, "pairwise"),
    found(Collective::AllToAll, 8, REGISTERED, 256 << 10, "direct"),
    found(Collective::AllToAll, 8, CALLER, 128 << 10, "window"),
    found(Collective::AllToAll, 8, CALLER, 1 << 20, "window"),
    found(Collective::Reduce, 4, CALLER, 2 << 20, "tree"),
    found(Collective::Reduce, 8, CALLER, 32 << 10, "tree"),
    found(Collective::Reduce, 8, CALLER, 256 << 10, "tree"),
    found(Collective::Reduce, 8, CALLER, 2 << 20, "tree"),
    found(Collective::ReduceScatter, 2, CALLER, 512 << 10, "ring"),
    found(Collective::ReduceScatter, 2, CALLER, 4 << 20, "ring"),
    found(Collective::ReduceScatter, 3, CALLER, 683 << 10, "pairwise"),
    found(Collective::ReduceScatter, 4, REGISTERED, 128, "direct"),
    found(Collective::ReduceScatter, 4, REGISTERED, 1 << 10, "direct"),
    found(Collective::ReduceScatter, 4, CALLER, 256 << 10, "ring"),
    found(Collective::ReduceScatter, 8, REGISTERED, 4 << 10, "window"),
    found(Collective::ReduceScatter, 8, CALLER, 128 << 10, "ring"),
    found(Collective::ReduceScatter, 8, CALLER, 1 << 20, "ring"),
];

const fn found(
    collective: Collective,
    ranks: u32,
    registered: bool,
    bytes: u64,
    algorithm: &'static str,
) -> Finding {
    Finding {
        collective,
        ranks,
        crowded: ranks > CORES,
        registered,
        bytes,
        algorithm: Cow::Borrowed(algorithm),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_finding_survives_and_what_is_damaged_is_refused() {
        let text = "crowded reduce 8 caller 32768 tree";
        let finding: Finding = text.parse().unwrap();
        assert_eq!(finding.to_string(), text);
        assert!(finding.crowded && !finding.registered);
        for word in text.split(' ') {
            for other in ["", "x1"] {
                let damaged = text.replacen(word, other, 1);
                assert!(damaged.parse::<Finding>().is_err(), "{damaged}");
            }
        }
    }

    #[test]
    fn a_finding_reaches_half_way_to_the_next_size() {
        let finding: Finding = "apart reduce 2 caller 4096 tree".parse().unwrap();
        assert_eq!(finding.distance(4096), Some(1.0));
        assert!(finding.distance(11 << 10).is_some() && finding.distance(1500).is_some());
        assert!(finding.distance(12 << 10).is_none() && finding.distance(1 << 10).is_none());
    }
}
