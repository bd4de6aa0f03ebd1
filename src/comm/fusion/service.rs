//! [`Service`]: the work of a [`Fusion`](super::Fusion), no matter which thread drives it
//! (`driving.rs`).
//!
//! All operations are on one communicator, so all ranks have to start them in the same order: the
//! service starts them in the order of the machine's actions. While as many flushes are under way
//! as there are fusion buffers, it performs no action at all, so a flush that has to wait also
//! holds back the rounds after it. While an operation is under way, a turn waits for it in short
//! slices; the operations progress during these waits, without a progress thread.

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

/// How long a turn waits for one operation before it looks at the others. It is the longest delay
/// before a round is started or a flush is unpacked, and far longer than a look takes.
const SLICE: Duration = Duration::from_micros(100);

/// How long a turn waits while only an operation of the agreement is under way. There is nothing
/// else to look at meanwhile, so the slice is longer.
const SLICE_ROUND: Duration = Duration::from_millis(1);

/// What is left to do after a turn.
#[derive(Debug)]
pub enum Turn {
    /// Another turn is needed.
    Again,
    /// There is nothing to do until something is announced, or until this time.
    Idle(Option<Time>),
    /// The step is over, and this is its report.
    Published(StepReport),
}

/// A flush whose allreduce is under way.
struct Flight {
    flush: Flush,
    /// The fusion buffer into which it was packed. `None`: the tensor is reduced in its own memory.
    packed: Option<RawBuffer>,
    operation: Operation,
}

/// An operation under way by which the ranks agree: a round, or the broadcast of the order.
enum Talk {
    Round(Operation),
    Order(Operation),
}

/// Runs the machine's actions on a communicator of its own.
pub struct Service {
    comm: Communicator,
    machine: Machine,
    clock: Clock,
    /// What callers have announced since the last turn; swapped with the inbox of the board.
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

    /// The inbox from which the next turn takes what was announced.
    pub fn inbox(&mut self) -> &mut Inbox {
        &mut self.taken
    }

    /// Takes what was announced, ends the operations that are finished, starts those that can be
    /// started, and packs one tensor ahead. If there was nothing to pack, it waits for an operation
    /// under way, for one slice at most, and stops waiting when `is_given_up` returns true.
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

    /// Takes the announced tensors out of an inbox.
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

    /// Whether an action can be performed now.
    pub fn is_due(&self, now: Time) -> bool {
        self.machine.has_action(now)
    }

    /// When the next action can be performed, if nothing more is announced.
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

    /// Performs actions in order, as long as fewer flushes are under way than there are fusion
    /// buffers.
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

    /// Begins the next step, and returns the report of the last one.
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

    /// Ends all operations under way and, unless one of them fails, the borrows of the tensors.
    pub fn abandon(&mut self) {
        if let Some(Talk::Round(operation) | Talk::Order(operation)) = self.talk.take() {
            // Without this, peers in a round would wait for this rank until their timeout. The
            // cancel fails only if the communicator has failed already; then no peer waits.
            let _ = operation.cancel();
        }
        let mut is_good = true;
        for flight in self.flights.drain(..) {
            // The wait ends, because all ranks start the same flushes. An error of it needs no
            // report: the callers have an earlier one already, or the fusion buffer is dropped.
            is_good &= flight.operation.wait().is_ok();
        }
        if is_good {
            self.end_announced();
        }
    }

    /// Ends the borrows of all tensors. The last ones go first, because the list of borrows is
    /// searched from its end.
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
