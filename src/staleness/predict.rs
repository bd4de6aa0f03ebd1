//! [`best_extra`]: after how many further pushes the fast worker waits least for the slow one
//! (Algorithm 2 of the paper).
//!
//! Both are expected to keep the interval of their last two pushes. Push r of the fast worker from
//! now on, r = 0 being the one that is there, comes at `last + r * interval`; push k of the slow
//! worker at `last + (k + 1) * interval`; both count up to r_max. Times are whole nanoseconds, so
//! that equal waits are equal: of those the least r counts, then the least k.

use super::options::Reading;

/// When a worker has pushed last, and how long after the push before that, in nanoseconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pace {
    pub last_ns: u64,
    /// 1 and more.
    pub interval_ns: u64,
}

impl Pace {
    /// When it is expected to have pushed this many times more.
    pub fn after(self, pushes: u32) -> u128 {
        u128::from(self.last_ns) + u128::from(pushes) * u128::from(self.interval_ns)
    }
}

/// A pair of pushes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Extra {
    /// The push of the fast worker: how many it makes until then.
    pub r: u32,
    /// The push of the slow one.
    pub k: u32,
    /// Nanoseconds between them.
    pub apart_ns: u128,
}

/// The pair that is the best by this reading. `None`: the slow worker is so late that no push of it
/// is expected after one of the fast worker.
pub fn best_extra(fast: Pace, slow: Pace, r_max: u32, reading: Reading) -> Option<Extra> {
    let mut best: Option<Extra> = None;
    let mut take = |r, k: u32| {
        let apart_ns = fast.after(r).abs_diff(slow.after(k + 1));
        if best.is_none_or(|known| apart_ns < known.apart_ns) {
            best = Some(Extra { r, k, apart_ns });
        }
    };
    // The first push of the slow worker that is not before push r of the fast one: it moves in one
    // direction only.
    let mut k = 0;
    for r in 0..=r_max {
        while k <= r_max && slow.after(k + 1) < fast.after(r) {
            k += 1;
        }
        if reading == Reading::Nearest && k > 0 {
            take(r, k - 1);
        }
        if k <= r_max {
            take(r, k);
        }
    }
    best
}
