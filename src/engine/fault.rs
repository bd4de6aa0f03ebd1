//! Failures: silence, disagreement and death become one error on every rank.
//!
//! A rank whose operation stands still for the whole timeout asks everyone ([`ControlKind::Query`]) and
//! waits a moment for the answers. A peer that took part in another operation under the same number finds
//! the disagreement and says so; otherwise the rank gives up, naming who it waited for and what each of them
//! said. Whoever fails tells all the others, so that they return the same first cause.

use super::Engine;
use super::signature::Signature;
use crate::error::Error;
use crate::time::Time;
use crate::transport::{Completion, Outcome};
use crate::types::Rank;
use crate::wire::{ControlKind, ControlMessage};
use std::time::Duration;

/// How long answers to a query are waited for; a rank inside a call answers in far less.
const ANSWER_TIME_MAX: Duration = Duration::from_millis(500);

/// An operation that stands still, while its rank asks the others.
#[derive(Debug)]
pub struct Suspect {
    task: usize,
    sequence: u64,
    waited: Duration,
    deadline: Time,
    answers: Vec<Option<String>>,
}

impl Engine {
    /// The communicator has failed; the first cause.
    pub fn failure(&self) -> Option<&Error> {
        self.failure.as_ref()
    }

    /// Fails every task, and tells the peers if they do not know.
    pub(super) fn fail(&mut self, error: Error, is_news: bool) {
        if is_news {
            // Somebody may have failed before, and said so: the first cause is the one to report.
            self.poll_events();
        }
        if self.failure.is_some() {
            return;
        }
        self.failure = Some(error.clone());
        self.driver.moved = true;
        if is_news {
            self.untold = self.driver.links.others().collect();
            self.tell_failure();
        }
        // A call on borrowed memory returns now: nothing may arrive there any more.
        for &place in &self.active {
            if let Some(round) = self.rounds[place as usize].as_deref_mut() {
                self.driver.cancel_receives(place, round);
            }
        }
        self.fail_tasks(&error);
    }

    /// Tells the peers of the failure. A peer outside of any call may have no room for it: it is told later, for as long as
    /// this rank makes calls.
    pub(super) fn tell_failure(&mut self) {
        let Some(error) = &self.failure else {
            return;
        };
        let message = message_of(error, self.rank());
        let links = &mut self.driver.links;
        self.untold
            .retain(|&peer| links.gone(peer).is_none() && !links.send_control(peer, &message));
    }

    pub(super) fn handle_peer_failed(&mut self, peer: Rank, cause: String) {
        self.driver.links.mark_gone(peer, cause);
        self.driver.moved = true;
    }

    pub(super) fn handle_control(&mut self, peer: Rank, completion: &Completion, now: Time) {
        if completion.outcome != Outcome::Done {
            return; // The peer is gone or the communicator ends; an event says which.
        }
        let message = self.driver.links.control_message(peer);
        // A peer whose receive cannot be posted again is gone, which an event reports.
        let _ = self.driver.links.post_control_receive(peer);
        match message {
            Ok(message) => self.handle_message(peer, message, now),
            Err(error) => self.fail(error, true),
        }
    }

    fn handle_message(&mut self, peer: Rank, message: ControlMessage, now: Time) {
        match message.kind {
            ControlKind::Query => self.answer(peer, &message),
            ControlKind::Status => {
                if let Some(suspect) = &mut self.suspect {
                    suspect.answers[peer as usize] = Some(message.text);
                }
            }
            ControlKind::Confirmed => self.is_confirmed = true,
            _ => {
                // What the others had done before they failed is here: operations that can end, end well.
                self.run_rounds(now);
                self.fail(error_of(&message, peer), false);
            }
        }
    }

    /// A peer stands still and asks what this rank knows of the operation.
    fn answer(&mut self, peer: Rank, query: &ControlMessage) {
        let (sequence, ours) = self.history[(query.sequence % self.history.len() as u64) as usize];
        let theirs = Signature(query.signature);
        if sequence == query.sequence && theirs.0 != 0 && ours != theirs {
            let detail = ours.describe_difference(self.rank(), theirs, peer);
            return self.fail(Error::Mismatch { sequence, detail }, true);
        }
        let text = match self.next_sequence {
            0 => "has started no operation".to_string(),
            n => {
                let last = self.history[((n - 1) % self.history.len() as u64) as usize].1;
                format!(
                    "has started {n} operations, the last was {}",
                    last.describe()
                )
            }
        };
        let status = ControlMessage {
            kind: ControlKind::Status,
            rank: self.rank(),
            sequence: self.next_sequence,
            signature: 0,
            text,
        };
        self.driver.links.send_control(peer, &status);
    }

    /// Looks for operations that need a peer that is gone, and for those that stand still.
    pub(super) fn check_silence(&mut self, now: Time) {
        if let Some(gone) = self.driver.links.first_gone() {
            // What the peer did before it went is in memory already: whatever still waits for it waits forever.
            // A receive that is posted now may end at once, and let the next one be posted.
            while self.failure.is_none() && self.drive(now) {}
            let error = self.needs_gone_peer().then_some(gone);
            if let (Some(error), None) = (error, &self.failure) {
                return self.fail(error, true);
            }
        }
        if let Some(suspect) = &self.suspect {
            let is_moving = !self.tasks[suspect.task].is_running()
                || now.since(self.tasks[suspect.task].last_moved) < suspect.waited;
            let is_answered = (0..self.ranks())
                .all(|p| p == self.rank() || suspect.answers[p as usize].is_some());
            if is_moving {
                self.suspect = None;
            } else if now >= suspect.deadline || is_answered {
                let error = self.give_up();
                self.fail(error, true);
            }
            return;
        }
        if let Some(task) = self.find_silent(now) {
            self.ask(task, now);
        }
    }

    /// The first operation that has stood still for the whole timeout. Later ones may have to wait for earlier ones, so
    /// they are not silent while one of those moves.
    fn find_silent(&self, now: Time) -> Option<usize> {
        let rounds = self
            .active
            .iter()
            .filter_map(|&place| self.rounds[place as usize].as_deref());
        let mut last_moved = Time::default();
        let mut tasks = rounds.map(|r| r.task).chain(self.queue.front().copied());
        tasks.find(|&index| {
            let task = &self.tasks[index];
            last_moved = last_moved.max(task.last_moved);
            task.is_running() && now.since(last_moved) > self.config.timeout
        })
    }

    /// An operation has ended that was the `at`-th under way: those behind it have all their time before them.
    pub(super) fn refresh_later(&mut self, at: usize, now: Time) {
        let rounds = self.active[at..]
            .iter()
            .filter_map(|&place| self.rounds[place as usize].as_deref());
        for index in rounds.map(|r| r.task).chain(self.queue.front().copied()) {
            let task = &mut self.tasks[index];
            task.last_moved = task.last_moved.max(now);
        }
    }

    fn needs_gone_peer(&self) -> bool {
        let rounds = self
            .active
            .iter()
            .filter_map(|&place| self.rounds[place as usize].as_ref());
        let mut needed = rounds.flat_map(|round| self.driver.awaited(round));
        let is_queued = self.active.is_empty() && !self.queue.is_empty();
        is_queued || needed.any(|peer| self.driver.links.gone(peer).is_some())
    }

    fn ask(&mut self, task: usize, now: Time) {
        // Only collectives have a number that all ranks share, and that a peer can compare.
        let numbered = self
            .round_of(task)
            .and_then(|r| Some((r.sequence()?, r.signature.0)));
        let (sequence, signature) = numbered.unwrap_or((self.next_sequence, 0));
        let query = ControlMessage {
            kind: ControlKind::Query,
            rank: self.rank(),
            sequence,
            signature,
            text: String::new(),
        };
        for peer in self.driver.links.others() {
            self.driver.links.send_control(peer, &query);
        }
        self.suspect = Some(Suspect {
            task,
            sequence,
            waited: self.config.timeout,
            deadline: now.after(ANSWER_TIME_MAX.min(self.config.timeout)),
            answers: vec![None; self.ranks() as usize],
        });
    }

    fn round_of(&self, task: usize) -> Option<&super::Round> {
        let rounds = self
            .active
            .iter()
            .filter_map(|&place| self.rounds[place as usize].as_deref());
        rounds.into_iter().find(|round| round.task == task)
    }

    /// The error of an operation that stood still.
    fn give_up(&mut self) -> Error {
        let suspect = self.suspect.take().expect("somebody stood still");
        let mut missing = self
            .round_of(suspect.task)
            .map_or(Vec::new(), |round| self.driver.awaited(round));
        if missing.is_empty() {
            let links = &self.driver.links;
            let is_behind =
                |&p: &Rank| p != links.rank && links.retired_by(p) == self.retired_by_all;
            missing = (0..links.ranks).filter(is_behind).collect();
        }
        let texts: Vec<String> = missing
            .iter()
            .map(|&peer| {
                let answer = suspect.answers[peer as usize].as_deref();
                let silent = "gives no answer: it is stopped, outside of any call, or has not called this operation";
                format!("rank {peer} is missing and {}", answer.unwrap_or(silent))
            })
            .collect();
        Error::Timeout {
            rank: self.rank(),
            operation: format!(
                "operation {}, {}",
                suspect.sequence,
                self.tasks[suspect.task].describe()
            ),
            waited: suspect.waited,
            missing,
            detail: texts.join("; "),
        }
    }
}

/// What the peers are told of a failure.
fn message_of(error: &Error, rank: Rank) -> ControlMessage {
    let (kind, rank, sequence, text) = match error {
        Error::Timeout {
            rank,
            operation,
            detail,
            waited,
            ..
        } => (
            ControlKind::Timeout,
            *rank,
            waited.as_millis() as u64,
            format!("{operation}\n{detail}"),
        ),
        Error::Mismatch { sequence, detail } => {
            (ControlKind::Mismatch, rank, *sequence, detail.clone())
        }
        Error::PeerFailed { rank, cause } => (ControlKind::PeerFailed, *rank, 0, cause.clone()),
        Error::Cancelled { by, operation } => (ControlKind::Cancelled, *by, 0, operation.clone()),
        Error::Aborted { by, reason } => (ControlKind::Aborted, *by, 0, reason.clone()),
        other => (ControlKind::Failed, rank, 0, other.to_string()),
    };
    ControlMessage {
        kind,
        rank,
        sequence,
        signature: 0,
        text,
    }
}

/// The same failure, on a peer that was told of it.
fn error_of(message: &ControlMessage, from: Rank) -> Error {
    let text = message.text.clone();
    match message.kind {
        ControlKind::Timeout => {
            let (operation, detail) = text.split_once('\n').unwrap_or((&text, ""));
            Error::Timeout {
                rank: message.rank,
                operation: operation.into(),
                waited: Duration::from_millis(message.sequence),
                missing: Vec::new(),
                detail: detail.into(),
            }
        }
        ControlKind::Mismatch => Error::Mismatch {
            sequence: message.sequence,
            detail: text,
        },
        ControlKind::PeerFailed => Error::PeerFailed {
            rank: message.rank,
            cause: text,
        },
        ControlKind::Cancelled => Error::Cancelled {
            by: message.rank,
            operation: text,
        },
        ControlKind::Aborted => Error::Aborted {
            by: message.rank,
            reason: text,
        },
        _ => Error::PeerFailed {
            rank: from,
            cause: text,
        },
    }
}
