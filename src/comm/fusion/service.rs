//! [`Service`]: the thread of a [`Fusion`](super::Fusion).
//!
//! It starts operations in exactly the order in which the machine hands out actions, since they are operations of one
//! communicator. A flush that finds no free buffer therefore also holds back the rounds behind it: that is the
//! back-pressure. While anything is under way the thread waits inside the communicator, in short slices, so that
//! operations progress without a progress thread; otherwise it sleeps until an announcement or a deadline.

use super::{FlushReport, StepReport};
use crate::comm::{Buffer, Call, Communicator, Operation};
use crate::engine::Clock;
use crate::error::{Error, Result};
use crate::fusion::{Action, Flush, Machine};
use crate::time::Time;
use crate::types::{Collective, DataType, ReduceOp};
use std::sync::{Arc, Condvar, Mutex, MutexGuard};
use std::time::Duration;

/// How long the thread waits for one operation before it looks at the others: the latency of starting a round or
/// unpacking, and far above the cost of a look.
const SLICE: Duration = Duration::from_micros(100);

/// The same while only a round is under way: nothing but a stop could matter meanwhile.
const SLICE_ROUND: Duration = Duration::from_millis(1);

/// What callers and the thread share.
#[derive(Debug)]
pub struct Shared {
    state: Mutex<State>,
    /// The thread waits here for announcements.
    wake: Condvar,
    /// Callers wait here for the step.
    done: Condvar,
}

#[derive(Debug)]
struct State {
    /// Announced, not yet taken by the thread; at most one per tensor.
    inbox: Vec<(usize, Buffer, Time)>,
    is_announced: Vec<bool>,
    ended_at: Option<Time>,
    is_stopped: bool,
    report: Option<StepReport>,
    failure: Option<Error>,
}

impl Shared {
    pub fn new(tensors_count: usize) -> Shared {
        Shared {
            state: Mutex::new(State {
                inbox: Vec::with_capacity(tensors_count),
                is_announced: vec![false; tensors_count],
                ended_at: None,
                is_stopped: false,
                report: None,
                failure: None,
            }),
            wake: Condvar::new(),
            done: Condvar::new(),
        }
    }

    /// Hands a tensor to the thread; false if it may not be announced now.
    pub fn announce(&self, tensor: usize, buffer: &Buffer, now: Time) -> Result<bool> {
        let mut state = self.lock();
        if let Some(failure) = &state.failure {
            return Err(failure.clone());
        }
        if state.ended_at.is_some() || state.is_announced[tensor] {
            return Ok(false);
        }
        state.is_announced[tensor] = true;
        state.inbox.push((tensor, buffer.clone(), now));
        self.wake.notify_one();
        Ok(true)
    }

    pub fn end(&self, now: Time) -> Result<()> {
        let mut state = self.lock();
        if let Some(failure) = &state.failure {
            return Err(failure.clone());
        }
        state.ended_at.get_or_insert(now);
        self.wake.notify_one();
        Ok(())
    }

    pub fn wait(&self) -> Result<StepReport> {
        let mut state = self.lock();
        loop {
            if let Some(report) = state.report.take() {
                state.is_announced.fill(false);
                state.ended_at = None;
                return Ok(report);
            }
            if let Some(failure) = &state.failure {
                return Err(failure.clone());
            }
            state = self.done.wait(state).expect("no holder panics");
        }
    }

    pub fn stop(&self) {
        self.lock().is_stopped = true;
        self.wake.notify_one();
    }

    fn fail(&self, error: Error) {
        self.lock().failure.get_or_insert(error);
        self.done.notify_all();
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().expect("no holder panics")
    }
}

/// A flush whose allreduce is under way.
struct Flight {
    flush: Flush,
    /// The fusion buffer that it was packed into; `None`: reduced where it lies.
    packed: Option<Buffer>,
    operation: Operation,
}

/// An operation of the agreement that is under way.
enum Talk {
    Round(Operation),
    Order(Operation),
}

/// The thread's own state.
pub struct Service {
    comm: Communicator,
    machine: Machine,
    clock: Clock,
    shared: Arc<Shared>,
    /// Swapped with the inbox.
    taken: Vec<(usize, Buffer, Time)>,
    /// Per tensor, what was announced in this step.
    tensors: Vec<Option<Buffer>>,
    is_end_told: bool,
    free: Vec<Buffer>,
    flights: Vec<Flight>,
    talk: Option<Talk>,
    round: Buffer,
    order: Buffer,
    report: StepReport,
    is_step_over: bool,
}

impl Service {
    pub fn new(
        comm: Communicator,
        machine: Machine,
        clock: Clock,
        shared: Arc<Shared>,
    ) -> Result<Service> {
        let tensors_count = machine.set().len();
        let packed_bytes = usize::try_from(machine.packed_bytes_max())
            .map_err(|_| Error::invalid("FusionOptions: bytes_max is above the address space"))?;
        let buffers_count = machine.options().buffers_count;
        let free = (0..buffers_count)
            .map(|_| comm.alloc(packed_bytes.max(64)))
            .collect::<Result<_>>()?;
        Ok(Service {
            round: comm.alloc(machine.round_words().len() * 8)?,
            order: comm
                .alloc(tensors_count.max(1) * 4)?
                .part(0, tensors_count * 4),
            taken: Vec::with_capacity(tensors_count),
            tensors: vec![None; tensors_count],
            is_end_told: false,
            flights: Vec::with_capacity(buffers_count),
            talk: None,
            report: StepReport::default(),
            is_step_over: false,
            comm,
            machine,
            clock,
            shared,
            free,
        })
    }

    /// Runs until stopped or failed.
    pub fn run(mut self) {
        let guard = PanicGuard(self.shared.clone());
        while !self.shared.lock().is_stopped {
            if let Err(error) = self.turn() {
                self.shared.fail(error);
                break;
            }
        }
        self.abandon();
        drop(guard);
    }

    /// Takes what came, ends what is finished, starts what can be started, then waits.
    fn turn(&mut self) -> Result<()> {
        self.take_inbox()?;
        self.end_flights()?;
        self.end_talk()?;
        self.start_actions()?;
        if self.is_step_over && self.flights.is_empty() {
            self.publish();
        }
        self.wait_for_something()
    }

    fn take_inbox(&mut self) -> Result<()> {
        let ended_at = {
            let mut state = self.shared.lock();
            std::mem::swap(&mut state.inbox, &mut self.taken);
            // Until the caller has taken the report of the last step, this is still that step's end.
            state.ended_at.filter(|_| state.report.is_none())
        };
        for (tensor, buffer, at) in self.taken.drain(..) {
            if self.machine.arrivals().is_empty() {
                self.report.begin = at;
            }
            self.machine.handle_ready(tensor, at)?;
            self.tensors[tensor] = Some(buffer);
        }
        if let Some(at) = ended_at
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
            let flight = self.flights.remove(index);
            self.report.flushes[flight.flush.index as usize].end = self.clock.now();
            if let Some(packed) = flight.packed {
                self.unpack(flight.flush, &packed);
                self.free.push(packed);
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
        let (target, packed) = match (first, second) {
            (None, _) => (None, None),
            (Some(&only), None) => (self.tensors[only as usize].clone(), None),
            _ => {
                // There are as many buffers as flights, and a flight is free.
                let buffer = self.free.pop().expect("a free fusion buffer");
                self.pack(flush, &buffer);
                (Some(buffer.part(0, flush.bytes as usize)), Some(buffer))
            }
        };
        let start = self.clock.now();
        let report = &mut self.report.flushes[flush.index as usize];
        (report.start, report.end) = (start, start);
        let Some(target) = target else {
            return Ok(());
        };
        let count = flush.bytes / flush.dtype.size_bytes() as u64;
        let op = self.machine.options().op;
        let call = Call::all_reduce(flush.dtype, op, count, &target, &target);
        self.flights.push(Flight {
            flush,
            packed,
            operation: self.comm.start(&call)?,
        });
        Ok(())
    }

    fn pack(&self, flush: Flush, packed: &Buffer) {
        self.for_each_part(flush, packed, |tensor, part| {
            part.view().copy_from(tensor.view());
        });
    }

    fn unpack(&self, flush: Flush, packed: &Buffer) {
        self.for_each_part(flush, packed, |tensor, part| {
            tensor.view().copy_from(part.view());
        });
    }

    /// Every tensor of a flush with its place in the fusion buffer.
    fn for_each_part(&self, flush: Flush, packed: &Buffer, copy: impl Fn(&Buffer, Buffer)) {
        let mut start = 0;
        for &tensor in self.machine.tensors_of(flush) {
            let tensor = self.tensors[tensor as usize].as_ref();
            let tensor = tensor.expect("a flush has only announced tensors");
            copy(tensor, packed.part(start, tensor.len_bytes()));
            start += tensor.len_bytes();
        }
    }

    /// Hands the report to the caller and begins the next step.
    fn publish(&mut self) {
        self.report.step_index = self.machine.step_index();
        self.report.rounds_count = self.machine.rounds_count();
        self.report.done = self.clock.now();
        if self.machine.arrivals().is_empty() {
            self.report.begin = self.report.backward_end;
        }
        self.machine.begin_step();
        self.tensors.fill(None);
        self.is_end_told = false;
        self.is_step_over = false;
        let report = std::mem::take(&mut self.report);
        self.shared.lock().report = Some(report);
        self.shared.done.notify_all();
    }

    fn wait_for_something(&mut self) -> Result<()> {
        if let Some(flight) = self.flights.first_mut() {
            flight.operation.wait_timeout(SLICE)?;
            return Ok(());
        }
        if let Some(Talk::Round(operation) | Talk::Order(operation)) = &mut self.talk {
            operation.wait_timeout(SLICE_ROUND)?;
            return Ok(());
        }
        let deadline = self.machine.next_deadline();
        let state = self.shared.lock();
        let is_end_new = state.ended_at.is_some() && !self.is_end_told && state.report.is_none();
        if state.is_stopped || is_end_new || !state.inbox.is_empty() {
            return Ok(());
        }
        match deadline {
            Some(deadline) => {
                let limit = deadline.since(self.clock.now());
                drop(
                    self.shared
                        .wake
                        .wait_timeout(state, limit)
                        .expect("no holder panics"),
                );
            }
            None => drop(self.shared.wake.wait(state).expect("no holder panics")),
        }
        Ok(())
    }

    /// Ends what is under way when the thread ends.
    fn abandon(&mut self) {
        if let Some(Talk::Round(operation) | Talk::Order(operation)) = self.talk.take() {
            // In a round the peers would wait for this rank until their timeout. If the communicator has failed
            // already, there is nothing to cancel.
            let _ = operation.cancel();
        }
        for flight in self.flights.drain(..) {
            // All ranks have started the same flushes, so they end; an error was reported or is nobody's business now.
            let _ = flight.operation.wait();
        }
    }
}

/// Tells callers of a panic, so that none waits for ever.
struct PanicGuard(Arc<Shared>);

impl Drop for PanicGuard {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.0.fail(Error::Unavailable {
                transport: "fusion".into(),
                reason: "its thread panicked; the message is on standard error".into(),
            });
        }
    }
}
