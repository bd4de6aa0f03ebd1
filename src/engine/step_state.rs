//! [`StepState`] and [`StepProgress`]: the state of one step of a round. A [`Prepared`] schedule
//! says how they begin, and `progress.rs` how they go on.
//!
//! [`Prepared`]: super::Prepared

use crate::limits::CHUNKS_IN_FLIGHT;
use crate::schedule::StepId;

/// No step, no span. No number of any is as high as this or [`MORE`].
pub const NONE: u32 = u32::MAX;

/// How far a step has come.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum Stage {
    /// It has elements left, or has not begun.
    #[default]
    Pending,
    /// All elements are processed, but something that it depends on has not completed (piecewise
    /// only).
    Processed,
    Complete,
}

/// Whether a step may run. The end of a whole step touches its own state and those of the steps
/// that follow it, and all states of a round are copied when it begins, so only what changes is
/// here and eight states share a cache line. With the same in three arrays a step of a ring of 8
/// ranks took 41 ns instead of 34.
#[derive(Clone, Copy, Debug, Default)]
pub struct StepState {
    /// What keeps it from starting: earlier steps, and the caller's arrival.
    pub holds: u32,
    pub stage: Stage,
    pub is_queued: bool,
}

/// The first two steps that the end of a step releases: [`NONE`] where there are fewer, and
/// [`MORE`] where the [`Prepared`](super::Prepared) schedule lists the others.
pub type Followers = [StepId; 2];

/// In the place of the second follower, where there are more than two.
pub const MORE: StepId = NONE - 1;

/// How far one step has come. Elements are counted from the start of the step's ranges.
#[derive(Clone, Copy, Debug)]
pub struct StepProgress {
    /// Elements that it processes; once it has started, that stays.
    pub len: u64,
    /// Elements processed, without gaps.
    pub done: u64,
    /// Piecewise: steps that it depends on and that have not completed.
    pub unsettled: u32,
    /// Chunks handed to the transport, and of those completed without gaps.
    pub chunks_posted: u32,
    /// Completed chunks without gaps.
    pub chunks_done: u32,
    /// Piecewise: the earlier step for which it waits, and how many elements that must have
    /// processed.
    pub waits_for: StepId,
    /// Piecewise: how many of its overlap edges, from the first on, are met.
    pub met: u32,
    pub need: u64,
    /// Bit i: chunk `chunks_done + i` has completed.
    pub out_of_order: u8,
}

impl Default for StepProgress {
    fn default() -> StepProgress {
        StepProgress {
            len: 0,
            done: 0,
            unsettled: 0,
            chunks_posted: 0,
            chunks_done: 0,
            waits_for: NONE,
            met: 0,
            need: 0,
            out_of_order: 0,
        }
    }
}

impl StepProgress {
    /// Whether another chunk may be posted.
    #[inline]
    pub fn has_chunk_credit(&self) -> bool {
        self.chunks_posted - self.chunks_done < CHUNKS_IN_FLIGHT
    }

    /// Chunk `chunk` has completed; returns how many have without gaps.
    #[inline]
    pub fn complete_chunk(&mut self, chunk: u32) -> u32 {
        self.out_of_order |= 1 << (chunk - self.chunks_done);
        while self.out_of_order & 1 == 1 {
            self.out_of_order >>= 1;
            self.chunks_done += 1;
        }
        self.chunks_done
    }
}
