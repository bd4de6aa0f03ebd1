//! Lent parts: what a rank would give to the next collective lies with the root of that beforehand,
//! until the rank takes it back or the root accepts it. So a root that begins a collective has the
//! parts of ranks that sleep, and wakes none of them.
//!
//! Only for schedules in which a rank stores its part in the root's window and signals once
//! (`star`), and only where signals are stores: the loan is that signal with a mark ([`Line`]), and
//! anyone who swaps the mark away first has the part. A rank whose part was accepted has entered
//! the collective; it starts it whenever it runs again, and repeats the same stores.

use super::arguments::signature_of;
use super::control::{Line, PAYLOAD_WORDS};
use super::core::Engine;
use super::state::Lent;
use super::task::TaskCall;
use crate::kernel;
use crate::limits::OPERATION_SLOTS;
use crate::schedule::{Action, Count, Lane, Operand, Range, Schedule};
use crate::types::Rank;

impl Engine {
    /// Lends this rank's part of a call, which will be its next collective; false: not now, or
    /// never. Until the loan has ended nothing else is started.
    pub fn lend(&mut self, call: &TaskCall) -> bool {
        let Some((root, source, target, lane)) = part_of(&call.prepared.schedule) else {
            return false;
        };
        let (sequence, arguments) = (self.numbers.next, &call.arguments);
        let element = arguments.dtype.size_bytes();
        let count = Count {
            count: arguments.count,
            slots: &call.slots,
        };
        let can_start = self.failing.cause.is_none()
            && self.lent.is_none()
            && self.tasks.queue.is_empty()
            && self.undecided.is_none()
            && sequence < self.driver.retired + OPERATION_SLOTS
            && call.prepared.window_bytes(&count, element) <= self.config.window_bytes as u64;
        if !can_start || !self.is_retired_by_all(sequence) {
            return false;
        }
        let links = &mut self.driver.links;
        let in_bytes = |range: &Range| {
            let (start, len) = range.resolve(&count);
            (start as usize * element, len as usize * element)
        };
        let ((from, bytes), (to, _)) = (in_bytes(source), in_bytes(target));
        let window = links.window_slot(root, sequence);
        if window.len_bytes() < to + bytes {
            return false; // Windows are not mapped.
        }
        let part = arguments.input.part(from, bytes);
        kernel::copy(part, window.part(to, bytes));
        let line = Line {
            stamp: Line::lent_stamp_of(sequence, links.core),
            signature: signature_of(arguments, &call.prepared, &call.slots),
            payload: [0; PAYLOAD_WORDS],
        };
        if !links.lend(root, sequence, lane, &line) {
            return false;
        }
        self.lent = Some(Lent {
            root,
            sequence,
            lane,
        });
        if self.wants_signals {
            // A sleeping thread is to be woken by the signal that follows.
            self.want_anything();
        }
        true
    }

    /// Ends the loan: true if the part is this rank's again, false if it was accepted.
    pub fn take_back(&mut self) -> bool {
        let lent = self.lent.take();
        lent.is_none_or(|lent| {
            let links = &self.driver.links;
            links.take_back(lent.root, lent.sequence, lent.lane)
        })
    }

    /// Whether what was lent has been accepted.
    pub fn is_accepted(&self) -> bool {
        let links = &self.driver.links;
        self.lent
            .is_some_and(|lent| !links.is_lent(lent.root, lent.sequence, lent.lane))
    }

    /// For the root, right before it starts this call: accepts every part that is lent for it.
    /// `has_come` is called with each peer whose part is there.
    pub fn accept(&mut self, call: &TaskCall, mut has_come: impl FnMut(Rank)) {
        let sequence = self.numbers.next;
        let steps = &call.prepared.schedule.steps;
        let wait = steps.iter().find_map(|step| match &step.action {
            Action::WaitCount { peers, lane, .. } => Some((peers, *lane)),
            _ => None,
        });
        let Some((peers, lane)) = wait.filter(|_| self.tasks.queue.is_empty()) else {
            return;
        };
        for &peer in peers {
            if self.driver.links.accept(peer, sequence, lane) {
                has_come(peer);
            }
        }
    }
}

/// Where a schedule that can be lent takes this rank's part from and puts it, with whom, and the
/// lane of the signal.
fn part_of(schedule: &Schedule) -> Option<(Rank, &Range, &Range, Lane)> {
    let (store, signal) = match &schedule.steps[..] {
        [store, signal, ..] => (&store.action, &signal.action),
        _ => return None,
    };
    let (
        Action::ReduceFrom {
            sources,
            destinations,
            ..
        },
        Action::Signal {
            peers,
            lane,
            payload: None,
        },
    ) = (store, signal)
    else {
        return None;
    };
    match (&sources[..], &destinations[..], &peers[..]) {
        ([Operand::Local(source)], [Operand::Peer(root, target)], [peer]) if root == peer => {
            Some((*root, source, target, *lane))
        }
        _ => None,
    }
}
