//! Ranks that leave in good order: they have dropped their communicator, nothing has failed, and
//! all that they have sent counts.
//!
//! A rank that leaves says how many collectives it has done. Its peers go on with these without it,
//! because all that they need of it has arrived. No later collective can end: each fails on every
//! rank that starts it, with an error that names the rank that has left. A send or receive fails if
//! its other side has left; others of its group go on. The communicator itself has not failed.
//!
//! Where connections are made at their first use, a rank may not hear of a leave. So a rank that
//! fails an operation because of a leave tells all others, and no rank waits for one that cannot go
//! on.

use super::core::Engine;
use super::round::Round;
use super::state::Left;
use crate::error::{Error, Result};
use crate::memory::View;
use crate::time::Time;
use crate::types::Rank;
use crate::wire::{ControlKind, ControlMessage};

impl Engine {
    /// Goes on with leaving in good order. Returns true when nothing that this rank has sent needs
    /// it any more, or when the communicator has failed. Operations that have not ended are given
    /// up. The caller does nothing else with the engine afterwards.
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
        self.take_all_events();
        self.driver.links.end_connecting(peer);
        self.driver.links.mark_left(peer, done);
        self.driver.moved = true;
        self.fail_receives_of_ended();
        self.fail_remotes_of_ended();
        self.note_left(Left {
            rank: peer,
            sequence: done,
        });
    }

    /// A peer says that a rank has left.
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

    /// Notes that collectives from `left.sequence` on cannot end, and fails those that are under
    /// way.
    pub(super) fn note_left(&mut self, left: Left) {
        if (self.leaving.first).is_none_or(|known| left.sequence < known.sequence) {
            self.leaving.first = Some(left);
        }
        self.fail_unreachable();
    }

    /// Fails if the collective of this number needs a rank that has left.
    pub(super) fn check_left(&self, sequence: u64, what: &str) -> Result<()> {
        match self.leaving.first {
            Some(left) if sequence >= left.sequence => Err(Error::Left {
                rank: left.rank,
                operation: format!("operation {sequence}, {what}"),
            }),
            _ => Ok(()),
        }
    }

    /// Tells the others, once, of the leave because of which an operation fails here.
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

    /// Ends a collective task that cannot end well. Nothing touches the memory that its caller gets
    /// back; the rest is kept (`GivenUp`).
    fn give_up_task(&mut self, index: usize, sequence: u64) {
        let what = self.tasks[index].describe();
        let Err(error) = self.check_left(sequence, &what) else {
            return;
        };
        let mut given_up = self.rounds.remove_task(index);
        self.tasks.queue.retain(|&queued| queued != index);
        self.failing.suspect = None;
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
                // The transport takes memory back for all operations together, registered or not.
                return self.fail(error, true);
            }
            self.driver.links.transport.withdraw();
        }
        let is_cached = |view: &View| self.failing.cached.contains(&view.key());
        let mut buffers = given_up.iter().flat_map(|round| &round.memory.buffers);
        if buffers.any(is_cached) {
            if !self.rounds.is_empty() {
                // Others that run may use the same registration.
                return self.fail(error, true);
            }
            self.end_cached();
        }
        self.leaving.given_up.rounds.append(&mut given_up);
        if let Some(mut call) = self.tasks[index].call.take() {
            call.fail(&error);
            self.leaving.given_up.calls.push(call);
        }
        self.end_task(index, Err(error));
    }

    /// A step of a round has failed. If the cause is a rank that has left, only collectives that
    /// need that rank fail; otherwise the communicator does.
    pub(super) fn fail_round(&mut self, place: u32, error: Error) {
        let round = self.rounds.at_mut(place);
        match (&error, round.and_then(|round| round.sequence())) {
            (&Error::Left { rank, .. }, Some(sequence)) => {
                // The rank may have told of a failure before it left: that cause comes first.
                self.take_all_events();
                self.note_left(Left { rank, sequence });
            }
            _ => self.fail(error, true),
        }
    }
}
