//! [`Rounds`]: carries the notices of a [`PartialAllreduce`](super::PartialAllreduce), and starts
//! and ends the operations of its rounds, no matter which thread drives. It blocks only after a
//! death.
//!
//! A round is one or two ordinary collectives on a communicator that nothing else uses. Every rank
//! starts them in the order of the rounds, so their sequence numbers match. A failure is one of the
//! communicator; after a death `recovery.rs` may make a new communicator.

use super::memory::Memory;
use super::names::with_names;
use crate::comm::driving::{Driving, Manner};
use crate::comm::{Communicator, Operation};
use crate::error::{Error, Result};
use crate::kernel;
use crate::partial::{Action, Header, Machine, Notice, Settled};
use crate::time::Time;
use crate::types::Rank;
use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

/// The time between two looks of turns at control sockets. A sleep in which nothing comes looks at
/// them too, but a rank that always has something to do never sleeps. The looks are rare, because
/// peers wait meanwhile for this rank, which has been woken for a round.
const LOOK_EVERY: Duration = Duration::from_millis(500);

/// A round under way.
pub(super) struct Flight {
    header: Header,
    place: usize,
    gathering: Operation,
    summing: Option<Operation>,
}

/// See the module.
pub struct Rounds {
    pub(super) comm: Communicator,
    /// Drives `comm`.
    pub(super) driving: Arc<Driving>,
    /// The living ranks, by their numbers at the creation of the partial allreduce; the index is
    /// the rank in `comm`.
    pub(super) members: Vec<Rank>,
    pub machine: Machine,
    pub memory: Memory,
    pub(super) flights: VecDeque<Flight>,
    /// Notices that were taken from the engine and that the machine has not been told yet, each
    /// with its sender's rank of creation.
    pub(super) words: Vec<(Rank, u64)>,
    /// Number of operations of the communicator that had ended at the last look.
    ended_count: u64,
    /// When something last moved.
    pub(super) moved_at: Time,
    /// When a turn last looked at the control sockets.
    looked_at: Time,
}

impl Rounds {
    pub fn new(comm: Communicator, machine: Machine, memory: Memory, now: Time) -> Result<Rounds> {
        let driving = comm.driving()?.clone();
        driving.engine().open_notices()?;
        Ok(Rounds {
            members: (0..comm.ranks()).collect(),
            driving,
            comm,
            machine,
            memory,
            flights: VecDeque::new(),
            words: Vec::new(),
            ended_count: 0,
            moved_at: now,
            looked_at: now,
        })
    }

    /// Whether operations are under way.
    pub fn is_busy(&self) -> bool {
        !self.flights.is_empty()
    }

    /// How the thread waits after a turn, while no caller waits for a result.
    pub fn manner(&self) -> Manner {
        let is_done = self.memory.is_done_by_beginning(self.comm.rank());
        match self.is_busy() {
            // A round that has been activated cannot begin before one under way has ended.
            _ if self.machine.is_activated() || self.machine.is_waiting() => {
                self.manner_waited_for()
            }
            true if !is_done => self.manner_waited_for(),
            _ => Manner::Idle,
        }
    }

    /// How a caller that waits for a result waits after a turn.
    pub fn manner_waited_for(&self) -> Manner {
        match self.is_busy() && !self.memory.is_small() {
            true => Manner::Brief,
            false => Manner::Asleep,
        }
    }

    /// Number of operations of the communicator that had ended at the last turn.
    pub fn ended_count(&self) -> u64 {
        self.ended_count
    }

    /// When something last moved.
    pub fn moved_at(&self) -> Time {
        self.moved_at
    }

    /// Does everything that can be done now. An error ends the partial allreduce on all ranks. A
    /// death is no error here if the partial allreduce survives it: the turn then recovers.
    pub fn turn(&mut self, now: Time) -> Result<()> {
        let mut turned = self.try_turn(now);
        while let Err(error) = &turned
            && self.machine.options().survive
            && is_death(error)
        {
            // Tells the others of the death, so that they recover too.
            self.fail(error);
            turned = self.recover().and_then(|now| self.try_turn(now));
        }
        if let Err(error) = &turned {
            self.fail(error);
        }
        turned.map_err(|error| with_names(error, &self.members))
    }

    /// Ends the partial allreduce on all ranks with this error.
    pub fn fail(&self, error: &Error) {
        let first = match error.first_cause() {
            // To the others such an error would look like the death of this rank.
            other @ (Error::Malformed(_) | Error::Internal(_))
                if self.machine.options().survive =>
            {
                Error::Aborted {
                    by: self.comm.rank(),
                    reason: other.to_string(),
                }
            }
            first => first.clone(),
        };
        self.driving.engine().fail_with(first);
        // Threads of this rank may sleep, and nothing else would wake them.
        self.driving.ring();
    }

    fn try_turn(&mut self, now: Time) -> Result<()> {
        self.machine.handle_time(now);
        loop {
            self.look(now)?;
            let mut has_moved = self.act()?;
            for (from, word) in std::mem::take(&mut self.words) {
                let notice = Notice::parse(word)?;
                self.machine.handle_notice(from, notice, now)?;
                has_moved = true;
            }
            while self.flights.front().is_some_and(Flight::has_ended) {
                self.end_front()?;
                has_moved = true;
            }
            has_moved |= self.act()?;
            if !has_moved {
                return Ok(());
            }
            self.moved_at = now;
        }
    }

    /// Drives the engine once, and takes the notices that have come.
    fn look(&mut self, now: Time) -> Result<()> {
        let is_due = now.since(self.looked_at) >= LOOK_EVERY;
        if is_due {
            self.looked_at = now;
        }
        let Rounds {
            words,
            flights,
            machine,
            members,
            ..
        } = self;
        self.ended_count = self.driving.drive_then(|engine| {
            if is_due {
                engine.drive_slow_if_due(now);
            }
            while let Some((from, word)) = engine.take_notice() {
                words.push((members[from as usize], word));
            }
            for flight in flights.iter_mut() {
                flight.look(engine);
            }
            if let Some(failure) = engine.failure() {
                return Err(failure.clone());
            }
            // Operations under way that need the dead rank end with an error, but a rank that only
            // waits for notices may never get the ones that it needs. Nor may a rank that waits for
            // nothing: where deaths are survived, those that wait for it in a round do not wait for
            // its next submit.
            let may_wait_for_ever = match flights.is_empty() {
                true => machine.is_waiting(),
                false => machine.options().survive,
            };
            match engine.first_gone() {
                Some(gone) if may_wait_for_ever && words.is_empty() => Err(gone),
                _ => Ok(engine.ended_count()),
            }
        })?;
        Ok(())
    }

    /// Performs the machine's actions. Returns whether there was any.
    fn act(&mut self) -> Result<bool> {
        let mut has_moved = false;
        while let Some(action) = self.machine.poll_action() {
            has_moved = true;
            match action {
                Action::Tell { to, notice } => self.tell(to, notice),
                Action::Begin { header, place } => self.begin(header, place)?,
            }
        }
        Ok(has_moved)
    }

    fn tell(&self, to: Rank, notice: Notice) {
        let to = self.members.binary_search(&to);
        let to = to.expect("only those that live are told") as Rank;
        let mut engine = self.driving.engine();
        engine.notice(to, notice.emit());
    }

    fn begin(&mut self, header: Header, place: usize) -> Result<()> {
        let ranks = self.members.len();
        let gather = self.memory.gather_call(&header, ranks);
        let gathering = self.comm.start(&gather.get())?;
        let sum = self.memory.sum_call(&header, place);
        let summing = sum.map(|call| self.comm.start(&call.get())).transpose()?;
        self.flights.push_back(Flight {
            header,
            place,
            gathering,
            summing,
        });
        Ok(())
    }

    pub(super) fn end_front(&mut self) -> Result<()> {
        let front = self.flights.front().expect("a round has ended");
        front.gathering.result()?;
        if let Some(summing) = &front.summing {
            summing.result()?;
        }
        let flight = self.flights.pop_front().expect("it is there");
        let headers = (self.memory).headers(flight.header.round, self.members.len());
        let (settled, report) = self.machine.handle_completed(&headers)?;
        (self.memory).conclude(&report, &self.members, flight.place);
        self.settle(settled, flight.place);
        Ok(())
    }

    /// Copies or adds a result to another place, if the machine says so.
    pub(super) fn settle(&self, settled: Settled, place: usize) {
        let result = |place| self.memory.result(place).view();
        match settled {
            Settled::Kept => {}
            Settled::Copy { to } => kernel::copy(result(place), result(to)),
            Settled::Add { to } => self.memory.add(result(place), result(to)),
        }
    }

    /// Called when nothing has moved for the timeout. Asks the other ranks what they do, and then
    /// returns the error that names the missing ranks: those that do not answer because they are
    /// stopped, or else those whose submits this rank waits for. `None`: go on waiting.
    pub fn give_up(&mut self, now: Time) -> Option<Error> {
        let machine = &self.machine;
        let awaited = machine.awaited().into_iter();
        let places = awaited.filter_map(|rank| self.members.binary_search(&rank).ok());
        let awaited: Vec<Rank> = places.map(|place| place as Rank).collect();
        let mut engine = self.driving.engine();
        let (missing, said) = engine.inquire(self.moved_at, &awaited, now)?;
        let error = Error::Timeout {
            rank: self.comm.rank(),
            operation: format!("round {} of a partial allreduce", machine.completed()),
            waited: now.since(self.moved_at),
            missing,
            detail: format!(
                "{said}; too few ranks submit for {:?} to begin it, {} steps are submitted here",
                machine.options().policy,
                machine.submitted()
            ),
        };
        engine.fail_with(error);
        // A peer may have told its error earlier. The first error is the one to report.
        let first = engine.failure().cloned();
        drop(engine);
        first.map(|error| with_names(error, &self.members))
    }
}

/// Whether the error is a death or a leave, which the others can survive.
pub(super) fn is_death(error: &Error) -> bool {
    matches!(
        error.first_cause(),
        Error::PeerFailed { .. } | Error::Left { .. }
    )
}

impl Flight {
    pub(super) fn look(&mut self, engine: &mut crate::engine::Engine) {
        self.gathering.look(engine);
        if let Some(summing) = &mut self.summing {
            summing.look(engine);
        }
    }

    fn has_ended(&self) -> bool {
        self.gathering.is_over() && self.summing.as_ref().is_none_or(Operation::is_over)
    }

    /// Whether all operations of the round have ended without an error.
    pub(super) fn has_ended_well(&self) -> bool {
        let operations = std::iter::once(&self.gathering).chain(&self.summing);
        self.has_ended()
            && operations
                .map(Operation::result)
                .all(|result| result.is_ok())
    }
}
