//! Steps follow each other, complete and start as the order rules say: each test is for one rule.

use super::*;
use crate::limits::CHUNKS_IN_FLIGHT;
use crate::schedule::{BufferId, Builder, Extent, Range};

const COUNT: Count<'static> = Count {
    count: 100,
    slots: &[],
};

/// Elements of a chunk with which steps are not whole.
const PIECEWISE: u64 = 10;
/// Elements of a chunk with which steps are whole.
const WHOLE: u64 = 100;

/// A step has processed everything; all steps that may start now are queued.
pub(super) fn process(progress: &mut Progress, prepared: &Prepared, step: StepId) {
    let next = progress.process(prepared, step);
    if next != NONE {
        progress.enqueue(next);
    }
}

fn drain(progress: &mut Progress) -> Vec<StepId> {
    let mut steps = Vec::new();
    while progress.has_ready() {
        steps.push(progress.pop_ready());
    }
    steps
}

fn block(index: u32, of: u32) -> Range {
    Range::new(BufferId::OUTPUT, Extent::block(index, of))
}

#[test]
fn an_overlapping_step_follows_element_by_element() {
    let mut b = Builder::new("test", 0, 2, true);
    let recv = b.recv(1, block(0, 1));
    let send = b.send(1, block(1, 2));
    let prepared = Prepared::new(b.build(), 0, false);
    let mut progress = Progress::default();
    progress.take_up(&prepared, &COUNT, PIECEWISE);
    progress.arm(&prepared, true);
    assert_eq!(drain(&mut progress), [recv, send]);
    assert_eq!(progress.limit(&prepared, send, 20), 0);
    progress.advance(&prepared, recv, 60);
    assert_eq!(drain(&mut progress), [0; 0], "too few for it");
    progress.advance(&prepared, recv, 70);
    assert_eq!(drain(&mut progress), [send]);
    assert_eq!(progress.limit(&prepared, send, 20), 20);
    progress.advance(&prepared, send, 20);
    process(&mut progress, &prepared, recv);
    assert_eq!(progress.limit(&prepared, send, 50), 50);
    process(&mut progress, &prepared, send);
    assert!(progress.is_finished());
}

#[test]
fn an_overlapping_step_that_is_whole_starts_once_when_all_before_it_is_processed() {
    let mut b = Builder::new("test", 0, 2, true);
    let first = b.recv(1, block(0, 2));
    let second = b.recv(1, block(1, 2));
    let send = b.send(1, block(0, 1));
    let prepared = Prepared::new(b.build(), 0, false);
    let mut progress = Progress::default();
    progress.take_up(&prepared, &COUNT, WHOLE);
    progress.arm(&prepared, true);
    assert_eq!(drain(&mut progress), [first, second]);
    process(&mut progress, &prepared, second);
    assert_eq!(drain(&mut progress), [0; 0]);
    process(&mut progress, &prepared, first);
    assert_eq!(drain(&mut progress), [send]);
    assert_eq!(progress.limit(&prepared, send, 100), 100);
    process(&mut progress, &prepared, send);
    assert!(progress.is_finished());
}

#[test]
fn a_step_completes_only_after_everything_it_depends_on() {
    let mut b = Builder::new("test", 0, 2, true);
    let recv = b.recv(1, block(0, 1));
    let send = b.send(1, block(0, 2));
    b.signal(vec![1], 0);
    let prepared = Prepared::new(b.build(), 0, false);
    for per_chunk in [PIECEWISE, WHOLE] {
        let mut progress = Progress::default();
        progress.take_up(&prepared, &COUNT, per_chunk);
        progress.arm(&prepared, true);
        drain(&mut progress);
        if per_chunk == PIECEWISE {
            progress.advance(&prepared, recv, 60);
            process(&mut progress, &prepared, send);
            assert!(!progress.is_complete(send));
        }
        drain(&mut progress);
        process(&mut progress, &prepared, recv);
        assert_eq!(progress.is_complete(send), per_chunk == PIECEWISE);
        process(&mut progress, &prepared, send);
        assert_eq!(
            drain(&mut progress).last(),
            Some(&2),
            "the signal follows both"
        );
    }
}

#[test]
fn chunks_complete_in_any_order_and_count_without_gaps() {
    let mut run = StepProgress {
        chunks_posted: CHUNKS_IN_FLIGHT,
        ..StepProgress::default()
    };
    assert!(!run.has_chunk_credit(CHUNKS_IN_FLIGHT));
    assert_eq!(run.complete_chunk(2), 0);
    assert_eq!(run.complete_chunk(0), 1);
    assert_eq!(run.complete_chunk(1), 3);
    assert!(run.has_chunk_credit(CHUNKS_IN_FLIGHT));
    assert_eq!(run.complete_chunk(3), 4);
}
