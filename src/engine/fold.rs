//! [`Fold`]: scratch memory that a long message goes through a few chunks at a time.
//!
//! What is received only to be reduced once needs no place of its own beyond the chunks that are
//! under way: a chunk goes where one lay that has been reduced. So received bytes are still in the
//! second-level cache when they are reduced, and a few chunks of scratch memory are enough for any
//! length. Over `tcp`, 2 ranks, an allreduce of 16 MiB takes 4.1 ms so, 4.9 with four chunks, and
//! 5.3 with all of it.
//!
//! Only for a reduction that waits for nothing but that message: then a chunk waits for the
//! reduction of an earlier one, and that for nobody, so that no rank can be held up that was not
//! before.

use crate::schedule::{Action, Buffer, BufferId, Extent, Schedule, StepId};

/// Chunks in a folded buffer: one that comes while another is reduced.
pub const FOLD_CHUNKS: u64 = 2;

/// A scratch buffer with two uses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Fold {
    pub buffer: BufferId,
    /// Fills it, from its first element on.
    pub receive: StepId,
    /// Reads the same range, once that has come.
    pub reduce: StepId,
}

/// The buffers of a schedule that may be folded.
pub fn folds_of(schedule: &Schedule) -> Vec<Fold> {
    let is_scratch = |buffer: &Buffer| matches!(buffer, Buffer::Scratch(_));
    let buffers = (0..).zip(&schedule.buffers);
    let scratch = buffers.filter(|(_, buffer)| is_scratch(buffer));
    scratch
        .filter_map(|(number, _)| fold_of(schedule, BufferId(number)))
        .collect()
}

fn fold_of(schedule: &Schedule, buffer: BufferId) -> Option<Fold> {
    let mut uses = Vec::new();
    for (id, step) in (0..).zip(&schedule.steps) {
        step.action.for_each_local_range(|range, is_write| {
            if range.buffer == buffer {
                uses.push((id, *range, is_write));
            }
        });
    }
    let [(receive, written, true), (reduce, read, false)] = uses[..] else {
        return None;
    };
    let [first, second] = [receive, reduce].map(|id: StepId| &schedule.steps[id as usize]);
    let is_receive = matches!(first.action, Action::Recv { .. })
        && !matches!(written.extent, Extent::Slots { .. });
    let is_reduce = matches!(second.action, Action::Reduce { .. })
        && (second.dependencies.iter()).all(|d| d.step == receive && d.overlap.is_some());
    (is_receive && is_reduce && written == read).then_some(Fold {
        buffer,
        receive,
        reduce,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::schedule::{Builder, Range};

    const INPUT: Range = Range::new(BufferId::INPUT, Extent::all(1));
    const OUTPUT: Range = Range::new(BufferId::OUTPUT, Extent::all(1));

    /// Folds of: receive into scratch memory, something else, and a reduction of that.
    fn folds(more: impl Fn(&mut Builder, Range)) -> Vec<Fold> {
        let mut b = Builder::new("test", 0, 2, false);
        let scratch = Range::new(b.scratch(Extent::all(1)), Extent::all(1));
        b.recv(1, scratch);
        more(&mut b, scratch);
        b.reduce(vec![INPUT, scratch], OUTPUT, true);
        folds_of(&b.build())
    }

    #[test]
    fn a_message_that_is_reduced_once_is_folded() {
        let fold = Fold {
            buffer: BufferId(2),
            receive: 0,
            reduce: 1,
        };
        assert_eq!(folds(|_, _| {}), [fold]);
    }

    #[test]
    fn what_is_used_again_or_waits_for_something_else_is_not_folded() {
        assert_eq!(folds(|b, scratch| _ = b.send(1, scratch)), []);
        assert_eq!(folds(|b, scratch| b.copy(INPUT, scratch)), []);
        assert_eq!(folds(|b, _| _ = b.recv(1, OUTPUT)), []);
        assert_eq!(folds(|b, _| _ = b.send(1, OUTPUT)), []);
    }
}
