//! [`Service`]: what a [`Fusion`](super::Fusion) does, no matter who drives it (`driving.rs`).
//!
//! It starts operations in exactly the order in which the machine hands out actions, since they are
//! operations of one communicator. A flush that finds no free buffer therefore also holds back the
//! rounds behind it: that is the back-pressure. While anything is under way a turn waits inside the
//! communicator, in short slices, so that operations progress without a progress thread.

use super::inbox::{Announced, Inbox};
use super::packing::Packing;
use super::{FlushReport, StepReport};
use crate::comm::call::Call;
use crate::comm::raw::RawBuffer;
use crate::comm::{Communicator, Operation};
use crate::error::{Error, Result};
use crate::fusion::{Action, Flush, Machine};
use crate::time::Time;
use crate::types::{Collective, DataType, ReduceOp};
use crate::wait::Clock;
use std::time::Duration;

/// How long a turn waits for one operation before it looks at the others: the latency of starting a
/// round or unpacking, and far above the cost of a look.
const SLICE: Duration = Duration::from_micros(100);

/// How long a turn waits while only a round is under way: only a stop could matter meanwhile.
const SLICE_ROUND: Duration = Duration::from_millis(1);

/// What a turn leaves to do.
#[derive(Debug)]
pub enum Turn {
    /// Another turn.
    Again,
    /// Nothing until something is announced, or until this time.
    Idle(Option<Time>),
    /// Nothing until the next step: the report of this one.
    Published(StepReport),
}

/// A flush whose allreduce is under way.
struct Flight {
    flush: Flush,
    /// The fusion buffer that it was packed into; `None`: reduced where it lies.
    packed: Option<RawBuffer>,
    operation: Operation,
}

/// An operation of the agreement that is under way.
enum Talk {
    Round(Operation),
    Order(Operation),
}

/// Runs the machine's actions on a communicator of its own.
pub struct Service {
    comm: Communicator,
    machine: Machine,
    clock: Clock,
    /// Swapped with the inbox.
    taken: Inbox,
    /// Per tensor, what was announced in this step.
    tensors: Vec<Option<Announced>>,
    is_end_told: bool,
    packing: Packing,
    flights: Vec<Flight>,
    talk: Option<Talk>,
    round: RawBuffer,
    order: RawBuffer,
    report: StepReport,
    is_step_over: bool,
}

impl Service {
    pub fn new(comm: Communicator, machine: Machine, clock: Clock) -> Result<Service> {
        let tensors_count = machine.set().len();
        let packed_bytes = usize::try_from(machine.packed_bytes_max())
            .map_err(|_| Error::invalid("FusionOptions: bytes_max is above the address space"))?;
        let buffers_count = machine.options().buffers_count;
        Ok(Service {
            packing: Packing::new(&comm, buffers_count, packed_bytes.max(1), tensors_count)?,
            round: comm.alloc_raw(machine.round_words().len() * 8)?,
            order: comm
                .alloc_raw(tensors_count.max(1) * 4)?
                .part(0, tensors_count * 4),
            taken: Inbox::with_capacity(tensors_count),
            tensors: (0..tensors_count).map(|_| None).collect(),
            is_end_told: false,
            flights: Vec::with_capacity(buffers_count),
            talk: None,
            report: StepReport::default(),
            is_step_over: false,
            comm,
            machine,
            clock,
        })
    }

    /// Where the next turn finds what came.
    pub fn inbox(&mut self) -> &mut Inbox {
        &mut self.taken
    }

    /// Takes what came, ends what is finished, starts what can be started, packs ahead, then waits
    /// for an operation under way, a slice at most and no longer than until `is_given_up`.
    pub fn turn(&mut self, is_given_up: impl Fn() -> bool) -> Result<Turn> {
        let mut taken = std::mem::take(&mut self.taken);
        self.take(&mut taken);
        self.end_step(&taken)?;
        self.taken = taken;
        self.end_flights()?;
        self.end_talk()?;
        self.start_actions()?;
        if self.is_step_over && self.flights.is_empty() {
            return Ok(Turn::Published(self.finish_step()));
        }
        if self.packing.pack_ahead(&self.machine, &self.tensors) {
            return Ok(Turn::Again);
        }
        self.wait_for_something(is_given_up)
    }

    /// Takes the tensors that were announced.
    pub fn take(&mut self, inbox: &mut Inbox) {
        for (tensor, buffer, at) in inbox.tensors.drain(..) {
            if self.machine.arrivals().is_empty() {
                self.report.begin = at;
            }
            let taken = self.machine.handle_ready(tensor, at);
            taken.expect("who announced it was told if it may not");
            self.tensors[tensor] = Some(buffer);
        }
    }

    /// Whether there is something to start now.
    pub fn is_due(&self, now: Time) -> bool {
        self.machine.has_action(now)
    }

    /// When there will be, if nothing more is announced.
    pub fn next_deadline(&self) -> Option<Time> {
        self.machine.next_deadline()
    }

    /// The clock of the reports.
    pub fn clock(&self) -> &Clock {
        &self.clock
    }

    fn end_step(&mut self, taken: &Inbox) -> Result<()> {
        if let Some(at) = taken.ended_at
            && !self.is_end_told
        {
            self.is_end_told = true;
            self.report.backward_end = at;
            self.machine.handle_end()?;
        }
        Ok(())
    }

    /// Unpacks the flushes that have ended.
    fn end_flights(&mut self) -> Result<()> {
        let mut index = 0;
        while index < self.flights.len() {
            if !self.flights[index].operation.test()? {
                index += 1;
                continue;
            }
            let Flight { flush, packed, .. } = self.flights.remove(index);
            self.report.flushes[flush.index as usize].end = self.clock.now();
            if let Some(packed) = packed {
                let (machine, tensors) = (&self.machine, &self.tensors);
                self.packing.unpack(machine, flush, tensors, packed);
            }
        }
        Ok(())
    }

    fn end_talk(&mut self) -> Result<()> {
        let is_ended = match &mut self.talk {
            Some(Talk::Round(operation) | Talk::Order(operation)) => operation.test()?,
            None => false,
        };
        if !is_ended {
            return Ok(());
        }
        match self.talk.take() {
            Some(Talk::Round(_)) => {
                let reduced = self.round.to_vec::<u64>();
                self.machine.handle_round(&reduced, self.clock.now())
            }
            _ => self.machine.handle_order(&self.order.to_vec::<u32>()),
        }
    }

    /// Performs actions in order, as long as a flush could be started.
    fn start_actions(&mut self) -> Result<()> {
        while self.flights.len() < self.machine.options().buffers_count {
            let Some(action) = self.machine.poll_action(self.clock.now()) else {
                return Ok(());
            };
            match action {
                Action::StartFlush(flush) => self.start_flush(flush)?,
                Action::StartRound => {
                    self.round.write(0, self.machine.round_words());
                    let count = self.machine.round_words().len() as u64;
                    let (dtype, op) = (DataType::U64, ReduceOp::BitAnd);
                    let call = Call::all_reduce(dtype, op, count, &self.round, &self.round);
                    self.talk = Some(Talk::Round(self.comm.start(&call)?));
                }
                Action::ShareOrder => {
                    self.order.write(0, self.machine.arrivals());
                    let count = self.machine.arrivals().len() as u64;
                    let call = Call::new(Collective::Broadcast, DataType::U32, count)
                        .with(&self.order, &self.order);
                    self.talk = Some(Talk::Order(self.comm.start(&call)?));
                }
                Action::GatherReady => {
                    let gathered = self.comm.gather_words(self.machine.ready_words())?;
                    return Err(self.machine.handle_gathered(&gathered));
                }
                Action::EndStep => self.is_step_over = true,
            }
        }
        Ok(())
    }

    fn start_flush(&mut self, flush: Flush) -> Result<()> {
        let tensors = self.machine.tensors_of(flush);
        self.report.flushes.push(FlushReport {
            dtype: flush.dtype,
            bytes: flush.bytes,
            tensors: tensors.to_vec(),
            ready: self.machine.ready_time(flush),
            start: Time(0),
            end: Time(0),
        });
        let set = self.machine.set();
        let mut filled = tensors.iter().filter(|&&t| set.bytes(t as usize) > 0);
        let (first, second) = (filled.next(), filled.next());
        let bytes = flush.bytes as usize;
        let (target, packed) = match (first, second) {
            (None, _) => (None, None),
            (Some(&only), None) => {
                self.packing.pass_over(&self.machine);
                (
                    self.tensors[only as usize].as_ref().map(|t| t.raw.clone()),
                    None,
                )
            }
            _ => {
                let buffer = self.packing.pack(&self.machine, flush, &self.tensors);
                (Some(buffer.part(0, bytes)), Some(buffer))
            }
        };
        let start = self.clock.now();
        let report = &mut self.report.flushes[flush.index as usize];
        (report.start, report.end) = (start, start);
        let Some(target) = target else {
            return Ok(());
        };
        let count = (bytes / flush.dtype.size_bytes()) as u64;
        let op = self.machine.options().op;
        let call = Call::all_reduce(flush.dtype, op, count, &target, &target);
        self.flights.push(Flight {
            flush,
            packed,
            operation: self.comm.start(&call)?,
        });
        Ok(())
    }

    /// The report, and the next step begins.
    fn finish_step(&mut self) -> StepReport {
        self.report.step_index = self.machine.step_index();
        self.report.rounds_count = self.machine.rounds_count();
        self.report.done = self.clock.now();
        if self.machine.arrivals().is_empty() {
            self.report.begin = self.report.backward_end;
        }
        self.machine.begin_step();
        self.packing.begin_step();
        self.end_announced();
        self.is_end_told = false;
        self.is_step_over = false;
        std::mem::take(&mut self.report)
    }

    fn wait_for_something(&mut self, is_given_up: impl Fn() -> bool) -> Result<Turn> {
        if let Some(flight) = self.flights.first_mut() {
            (flight.operation).wait_timeout_unless(SLICE, is_given_up)?;
            return Ok(Turn::Again);
        }
        if let Some(Talk::Round(operation) | Talk::Order(operation)) = &mut self.talk {
            operation.wait_timeout_unless(SLICE_ROUND, is_given_up)?;
            return Ok(Turn::Again);
        }
        Ok(Turn::Idle(self.machine.next_deadline()))
    }

    /// Ends what is under way.
    pub fn abandon(&mut self) {
        if let Some(Talk::Round(operation) | Talk::Order(operation)) = self.talk.take() {
            // In a round the peers would wait for this rank until their timeout. If the
            // communicator has failed already, there is nothing to cancel.
            let _ = operation.cancel();
        }
        let mut is_good = true;
        for flight in self.flights.drain(..) {
            // All ranks have started the same flushes, so they end; an error was reported or is
            // nobody's business now.
            is_good &= flight.operation.wait().is_ok();
        }
        if is_good {
            self.end_announced();
        }
    }

    /// Gives all tensors back, the last ones first: of borrows the latest is found at once.
    fn end_announced(&mut self) {
        let latest_first = self.tensors.iter_mut().rev();
        latest_first
            .filter_map(Option::take)
            .for_each(Announced::end);
    }
}

impl std::fmt::Debug for Service {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Service")
            .field("step_index", &self.machine.step_index())
            .finish_non_exhaustive()
    }
}
