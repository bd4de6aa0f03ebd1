//! [`ServerReport`]: what a shard has counted.

use crate::staleness::{Decision, Reason, Staleness};
use crate::types::Rank;

/// Versions of a staleness that is counted by itself; greater ones are counted together.
const STALENESS_MAX: usize = 64;

/// What a shard of a [`ParameterServer`](super::ParameterServer) has done.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ServerReport {
    /// The number of the shard.
    pub shard: usize,
    /// Updates of its weights.
    pub version: u64,
    /// Pushes by their staleness: the versions between that from which the gradient was computed
    /// and the update with it. The last entry counts all greater ones.
    pub staleness: Vec<u64>,
    /// Pushes that were left out ([`NonFinitePush::Skip`](super::NonFinitePush::Skip)).
    pub skipped: u64,
    /// By worker: pushes that were taken or left out, those of the checkpoint to begin with
    /// included.
    pub pushes: Vec<u64>,
    /// Ranks of workers that ended before they finished, or were evicted, and of servers that
    /// failed.
    pub lost: Vec<Rank>,
    /// How far workers may run ahead. [`Staleness::drift_max`] says whether anything bounds that.
    pub staleness_mode: Staleness,
    /// Of the server that makes the order, the first one: the greatest drift after a push.
    pub drift_max: u64,
    /// Of the same server: decisions by reason.
    pub decisions: Decisions,
}

/// Decisions of the controller by their reason.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Decisions {
    /// The drift was within the lower bound, or nothing bounds it.
    pub within: u64,
    /// Some of a grant was left, or a grant was given.
    pub granted: u64,
    /// The slowest worker had pushed.
    pub slowest_pushed: u64,
    /// The worker began to wait.
    pub waits: u64,
}

/// Counts for a report.
#[derive(Debug)]
pub struct Counts {
    mode: Staleness,
    staleness: Vec<u64>,
    /// Pushes that were left out.
    pub skipped: u64,
    /// Workers that ended before they finished, or were evicted, and servers that failed.
    pub lost: Vec<Rank>,
    drift_max: u64,
    decisions: Decisions,
}

impl Counts {
    pub fn new(mode: Staleness) -> Counts {
        Counts {
            mode,
            staleness: Vec::new(),
            skipped: 0,
            lost: Vec::new(),
            drift_max: 0,
            decisions: Decisions::default(),
        }
    }

    pub fn note_decision(&mut self, decision: &Decision) {
        self.drift_max = self.drift_max.max(decision.drift);
        let count = match decision.reason {
            Reason::NoBound | Reason::Within(_) => &mut self.decisions.within,
            Reason::GrantLeft(_) | Reason::Granted { .. } => &mut self.decisions.granted,
            Reason::SlowestPushed(_) => &mut self.decisions.slowest_pushed,
            Reason::NotFastest
            | Reason::NoPace { .. }
            | Reason::BestNow { .. }
            | Reason::AtUpper(_) => &mut self.decisions.waits,
        };
        *count += 1;
    }

    /// A push that was computed from `pulled` is applied to `version`. Both count modulo 2^31.
    pub fn note_staleness(&mut self, version: u64, pulled: u32) {
        let staleness = ((version as u32).wrapping_sub(pulled) & (u32::MAX >> 1)) as usize;
        let staleness = staleness.min(STALENESS_MAX);
        if self.staleness.len() <= staleness {
            self.staleness.resize(staleness + 1, 0);
        }
        self.staleness[staleness] += 1;
    }

    pub fn report(&self, shard: usize, version: u64) -> ServerReport {
        ServerReport {
            shard,
            version,
            staleness: self.staleness.clone(),
            skipped: self.skipped,
            pushes: Vec::new(),
            lost: self.lost.clone(),
            staleness_mode: self.mode,
            drift_max: self.drift_max,
            decisions: self.decisions,
        }
    }
}
