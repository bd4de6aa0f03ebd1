//! [`Finding`]: a call for which a measurement found another algorithm to be faster than the one
//! that is cheapest by the prices.

use crate::types::Collective;
use std::borrow::Cow;
use std::fmt;
use std::str::FromStr;

/// Most findings of one host. A host that needs more needs other prices instead.
pub const FINDINGS_MAX: usize = 128;

/// A finding holds for sizes that differ from its own by at most this factor. Measured sizes are 8
/// times apart, and the square root of 8 is half way between two of them.
const REACH: f64 = 2.83;

/// Longest name of an algorithm that is accepted.
const NAME_MAX: usize = 32;

/// See the module. It holds for this number of ranks on one host, which either have a core each or
/// share cores.
///
/// Its text ([`fmt::Display`], [`FromStr`]) is `apart|crowded COLLECTIVE RANKS registered|caller
/// BYTES ALGORITHM`, such as `crowded reduce 8 caller 32768 tree`.
#[derive(Clone, Debug, PartialEq)]
pub struct Finding {
    /// The collective.
    pub collective: Collective,
    /// Number of ranks.
    pub ranks: u32,
    /// Whether ranks share cores.
    pub crowded: bool,
    /// Whether the callers' buffers are registered.
    pub registered: bool,
    /// Bytes of the `count` elements of the call.
    pub bytes: u64,
    /// The name of the fastest algorithm.
    pub algorithm: Cow<'static, str>,
}

impl Finding {
    /// The factor between this size and the measured one, 1 or more. `None`: the sizes are too far
    /// apart, so the finding does not hold.
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
/// Cores of the machine of the built-in prices.
const CORES: u32 = 2;

/// The findings of the machine of the built-in prices: the calls for which the choice by prices
/// took more than an eighth longer than the best algorithm. The times are medians of ten sweeps of
/// `linerate explain --all`, or of a sweep of `tools/speed --choice`, in which no rank writes the
/// inputs of an all-to-all between two calls.
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
