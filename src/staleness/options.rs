//! [`Staleness`]: how far workers may run ahead of the slowest one.

use crate::error::{Error, Result};

/// The greatest range of a DSSP: the time of a decision grows with it.
pub const R_MAX_MAX: u32 = 4096;

/// How far a worker may run ahead of the slowest one before it waits for it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Staleness {
    /// Bulk synchronous: after each push a worker waits for all others.
    #[default]
    Bsp,
    /// Stale synchronous: a worker waits while it is more than this many pushes ahead of the
    /// slowest.
    Ssp(u32),
    /// Dynamic stale synchronous: beyond the lower bound the fastest worker goes on for as many
    /// pushes, `r_max` at most, as make it wait least.
    Dssp {
        /// The lower bound, s_L: up to this drift no worker waits.
        s_lower: u32,
        /// How many more pushes a grant has at most, up to 4096; s_L and this are the
        /// upper bound, s_U. 0: as [`Staleness::Ssp`].
        r_max: u32,
        /// Until when a worker waits, and whether s_U bounds the drift.
        release: Release,
        /// Which waiting is the least.
        reading: Reading,
    },
    /// Asynchronous: no worker ever waits.
    Asp,
}

/// Until when a worker waits, and what bounds its grants.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Release {
    /// The drift is never above s_U (with an r_max of 0, never above s_L + 1): a grant is at most
    /// s_U less the drift. A worker waits until its drift is at most s_L, or for the next push of
    /// the slowest while its drift is below s_U.
    #[default]
    Strict,
    /// The paper's text: a worker waits until its drift is at most s_L, and gets another grant
    /// whenever one is used up. Its drift has no bound.
    Literal,
    /// The rule that explains the paper's figures: a worker waits for the next push of the slowest
    /// and no longer. Its drift has no bound.
    Paper,
}

/// Which of the pairs of a push of the fast worker and one of the slow worker is the best.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Reading {
    /// The fast worker comes first, and waits least.
    #[default]
    Wait,
    /// The times are nearest to each other, and either worker may come first.
    Nearest,
}

impl Staleness {
    /// DSSP with these bounds on the drift, the published ones being 3 and 15, and otherwise the
    /// defaults.
    ///
    /// # Errors
    /// The lower bound is above the upper one, or more than 4096 below it.
    pub fn dssp(s_lower: u32, s_upper: u32) -> Result<Staleness> {
        let r_max = s_upper.checked_sub(s_lower).ok_or_else(|| {
            Error::invalid(format!(
                "DSSP: the lower bound of the drift is {s_lower} and the upper one {s_upper}: it must not be below the lower one"
            ))
        })?;
        let staleness = Staleness::Dssp {
            s_lower,
            r_max,
            release: Release::default(),
            reading: Reading::default(),
        };
        staleness.check().map(|()| staleness)
    }

    /// Looks whether the numbers are in their ranges.
    pub fn check(&self) -> Result<()> {
        match *self {
            Staleness::Dssp { r_max, .. } if r_max > R_MAX_MAX => Err(Error::invalid(format!(
                "DSSP: a grant has up to {r_max} pushes: {R_MAX_MAX} at most"
            ))),
            _ => Ok(()),
        }
    }

    /// The greatest drift that a worker can have after a push; `None`: there is no bound.
    pub fn drift_max(&self) -> Option<u64> {
        match *self {
            Staleness::Bsp => Some(1),
            Staleness::Ssp(s_lower) => Some(u64::from(s_lower) + 1),
            Staleness::Dssp {
                s_lower,
                r_max,
                release: Release::Strict,
                ..
            } => Some(u64::from(s_lower) + u64::from(r_max.max(1))),
            Staleness::Dssp { .. } | Staleness::Asp => None,
        }
    }
}
