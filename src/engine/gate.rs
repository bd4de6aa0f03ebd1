//! [`Gate`] and [`StepRun`]: the state of one step of a round. A plan says how they begin, progress
//! how they go on.

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

/// What may happen to one step, apart from how far it has come. The end of a whole step touches its
/// own gate and those of the steps that follow it. Only what changes is here, so that eight gates
/// share a cache line: they are copied whenever a round begins. Where that touched three arrays, a
/// step of a ring of 8 ranks took 41 ns instead of 34.
#[derive(Clone, Copy, Debug, Default)]
pub struct Gate {
    /// What keeps it from starting: earlier steps, and the caller's arrival.
    pub holds: u32,
    pub stage: Stage,
    pub is_queued: bool,
}

/// The first two steps that the end of a step releases, [`NONE`] where there are fewer; [`MORE`]:
/// the plan says which others.
pub type Followers = [StepId; 2];

/// In the place of the second follower, where there are more than two, or some that any of several
/// starts.
pub const MORE: StepId = NONE - 1;

/// How far one step has come. Elements are counted from the start of the step's ranges.
#[derive(Clone, Copy, Debug)]
pub struct StepRun {
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

impl Default for StepRun {
    fn default() -> StepRun {
        StepRun {
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

impl StepRun {
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
