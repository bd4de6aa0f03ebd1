//! Ranks that leave in good order: they have dropped their communicator, nothing had failed, and
//! what they have sent counts.
//!
//! A rank that leaves says how many collectives it has done. Those run on without it: whatever they
//! need of it is here. No later one can end, and each fails on every rank that starts it, with an
//! error that names the rank. Sends and receives fail where the rank that has left is the other
//! side; others of their group go on. The communicator itself has not failed.
//!
//! Over connections that are made at their first use a rank may not hear of a leave. A rank that
//! fails an operation because of one tells all others, so that none waits for those who cannot go
//! on.

use super::core::Engine;
use super::round::Round;
use super::state::Left;
use crate::error::{Error, Result};
use crate::time::Time;
use crate::types::Rank;
use crate::wire::{ControlKind, ControlMessage};

impl Engine {
    /// Goes on with leaving in good order; true when nothing that this rank has sent needs it any
    /// more, or it has failed and says so when it is dropped. Operations that have not ended are
    /// given up. Nothing else is done with it afterwards.
    pub fn leave(&mut self, now: Time) -> bool {
        if self.failing.cause.is_some() {
            return true;
        }
        if self.leaving.is_leaving {
            let transport = self.driver.links.transport.as_mut();
            transport.poll_slow(now, &mut self.events);
            transport.poll(now, &mut self.events);
            self.events.clear();
        } else {
            self.drive(now);
            self.drive_slow_if_due(now);
            if self.failing.cause.is_some()
                || self.notices.has_unsent
                || !self.leaving.untold.is_empty()
            {
                return self.failing.cause.is_some();
            }
            self.leaving.is_leaving = true;
        }
        self.driver.links.transport.leave(self.driver.retired)
    }

    /// A peer has left in good order. It has completed `done` collectives.
    pub(super) fn handle_peer_left(&mut self, peer: Rank, done: u64) {
        self.driver.links.mark_left(peer, done);
        self.driver.moved = true;
        self.note_left(Left {
            rank: peer,
            sequence: done,
        });
    }

    /// A peer says that somebody has left.
    pub(super) fn handle_left_message(&mut self, message: &ControlMessage) {
        if message.rank >= self.ranks() || message.rank == self.rank() {
            let text = format!("a message says that rank {} has left", message.rank);
            return self.fail(Error::Malformed(text), true);
        }
        let left = Left {
            rank: message.rank,
            sequence: message.sequence,
        };
        self.driver.links.note_hearsay(left.rank, left.sequence);
        self.note_left(left);
    }

    /// Collectives from this one on cannot end.
    pub(super) fn note_left(&mut self, left: Left) {
        if (self.leaving.first).is_none_or(|known| left.sequence < known.sequence) {
            self.leaving.first = Some(left);
        }
        self.fail_unreachable();
    }

    /// The error of an operation that needs a rank that has left, if the collective of this number
    /// does.
    pub(super) fn check_left(&self, sequence: u64, what: &str) -> Result<()> {
        match self.leaving.first {
            Some(left) if sequence >= left.sequence => Err(Error::Left {
                rank: left.rank,
                operation: format!("operation {sequence}, {what}"),
            }),
            _ => Ok(()),
        }
    }

    /// An operation fails because of a rank that has left: the others are told, once.
    pub(super) fn tell_left(&mut self) {
        if self.leaving.told != self.leaving.first {
            self.leaving.told = self.leaving.first;
            self.leaving.untold = self.driver.links.others().collect();
        }
        let Some(left) = self
            .leaving
            .told
            .filter(|_| !self.leaving.untold.is_empty())
        else {
            return;
        };
        let message = ControlMessage {
            kind: ControlKind::Left,
            rank: left.rank,
            sequence: left.sequence,
            signature: 0,
            text: String::new(),
        };
        let links = &mut self.driver.links;
        (self.leaving.untold)
            .retain(|&peer| links.gone(peer).is_none() && !links.send_control(peer, &message));
        self.has_chores |= !self.leaving.untold.is_empty();
    }

    /// Fails every collective that cannot end.
    pub(super) fn fail_unreachable(&mut self) {
        let Some(left) = self.leaving.first.filter(|_| self.failing.cause.is_none()) else {
            return;
        };
        let rounds = self.rounds.all();
        let is_over = |round: &&Round| round.sequence().is_some_and(|s| s >= left.sequence);
        let mut tasks: Vec<(usize, u64)> = rounds
            .filter(is_over)
            .map(|round| (round.task, round.sequence().unwrap_or(left.sequence)))
            .collect();
        if self.numbers.next >= left.sequence {
            tasks.extend(
                self.tasks
                    .queue
                    .iter()
                    .map(|&task| (task, self.numbers.next)),
            );
        }
        let is_needed = !tasks.is_empty();
        for (task, sequence) in tasks {
            if self.tasks[task].is_running() {
                self.give_up_task(task, sequence);
            }
        }
        if is_needed {
            self.driver.has_work = true;
            self.tell_left();
        }
    }

    /// Ends a collective task that cannot end well. What its caller gets back is touched no more.
    fn give_up_task(&mut self, index: usize, sequence: u64) {
        let what = self.tasks[index].describe();
        let Err(error) = self.check_left(sequence, &what) else {
            return;
        };
        let mut given_up = self.rounds.remove_task(index);
        self.tasks.queue.retain(|&queued| queued != index);
        self.suspect = None;
        for round in &mut given_up {
            self.driver.cancel_receives(round);
            if self.undecided == round.sequence() {
                self.undecided = None;
            }
        }
        let transport = self.driver.links.transport.as_ref();
        let is_fetched = (0..self.driver.links.ranks).any(|p| transport.fetches(p, usize::MAX));
        if is_fetched && given_up.iter().any(|round| round.memory.is_unregistered()) {
            if !self.rounds.is_empty() {
                // Memory is taken back for all operations together, registered or not.
                return self.fail(error, true);
            }
            self.driver.links.transport.withdraw();
        }
        self.leaving.given_up.rounds.append(&mut given_up);
        if let Some(mut call) = self.tasks[index].call.take() {
            call.fail(&error);
            self.leaving.given_up.calls.push(call);
        }
        self.end_task(index, Err(error));
    }

    /// A step has failed, or could not be posted, because of a rank that has left.
    pub(super) fn fail_round(&mut self, place: u32, error: Error) {
        let round = self.rounds.at_mut(place);
        match (&error, round.and_then(|round| round.sequence())) {
            (&Error::Left { rank, .. }, Some(sequence)) => {
                // It may have said before that the communicator has failed.
                self.poll_events();
                self.note_left(Left { rank, sequence });
            }
            _ => self.fail(error, true),
        }
    }
}
