//! [`Run`]: the tasks of all ranks in virtual time. What a message costs, and who acts first of
//! those that act at one time, is as in `transport/sim`.

use super::fabric::Fabric;
use super::tasks::{Kind, NONE, Task, Tasks};
use crate::cost::Additions;
use crate::engine::PIECE_BYTES;
use crate::error::Result;
use crate::limits::INLINE_BYTES_MAX;
use crate::transport::sim::{Carried, Route, Wires};
use crate::types::Rank;
use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};

/// Which packet of a message travels.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Leg {
    /// All of a short message.
    Whole,
    /// That a long message exists.
    Announce,
    /// The bytes of a long message: its announcement has met the receive.
    Data,
    /// The bytes of a long message that its receiver has asked for.
    Asked,
}

impl Leg {
    /// Bytes that follow their announcement at once pay no latency: it has paid that.
    fn latency_ns(self, route: &Route) -> u64 {
        match self {
            Leg::Data => 0,
            Leg::Whole | Leg::Announce | Leg::Asked => route.latency_ns,
        }
    }
}

/// Something that happens to a task at a known time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Event {
    /// The first byte of a packet comes to the trunks.
    Cross(Leg),
    /// It comes to the receive port.
    Arrive(Leg),
    /// The last byte is through.
    Deliver(Leg),
    /// The sender is asked for the bytes of its message.
    Pull,
    /// A message is posted: the rank has done what that takes.
    Post,
    /// A send or local work has ended.
    End,
}

/// When, in which order of those at this time, to which task, and what.
type Due = (u64, u64, u32, Event);

/// What one task has come to. Times are nanoseconds.
#[derive(Clone, Copy, Debug)]
pub(super) struct State {
    /// When it was begun; of a message, posted.
    pub(super) begun_ns: u64,
    pub(super) end_ns: u64,
    /// The task whose end let it begin.
    pub(super) cause: u32,
    is_posted: bool,
    has_arrived: bool,
    /// Of a receive: it was posted after its message had come.
    pub(super) is_late: bool,
    /// Of a send: how long its bytes waited for the sender's port, for trunks and for the
    /// receiver's port.
    pub(super) waits_ns: [u32; 3],
}

/// A run.
pub(super) struct Run {
    pub(super) tasks: Tasks,
    pub(super) states: Vec<State>,
    pub(super) wires: Wires,
    pub(super) now: u64,
    queue: BinaryHeap<Reverse<Due>>,
    /// What was scheduled in the order in which it happens, which is most; the queue has the rest.
    in_order: VecDeque<Due>,
    sequence: u64,
    /// Tasks that may begin.
    ready: VecDeque<u32>,
    /// By rank, tasks that have ended since it acted last; and the ranks that have some.
    inboxes: Vec<VecDeque<u32>>,
    marked: VecDeque<u16>,
    /// Tasks that wait for less now, and what they waited for; kept for its memory.
    released: Vec<(u32, u32)>,
    /// When the processor of a rank is free, and what it has done: nanoseconds and bytes.
    pub(super) processors: Vec<(u64, Carried)>,
    slowness: Vec<f64>,
    additions: Additions,
    copied_ns: f64,
    message_ns: u64,
}

impl Run {
    /// All tasks before their beginning, on a fabric that was checked for these ranks.
    pub(super) fn new(fabric: &Fabric, tasks: Tasks, wires: Wires, ranks: u32) -> Result<Run> {
        let mut slowness = vec![1.0; ranks as usize];
        for slow in &fabric.slow_ranks {
            slowness[slow.rank as usize] = slow.times;
        }
        let state = State {
            begun_ns: 0,
            end_ns: 0,
            cause: NONE,
            is_posted: false,
            has_arrived: false,
            is_late: false,
            waits_ns: [0; 3],
        };
        Ok(Run {
            states: vec![state; tasks.all.len()],
            tasks,
            wires,
            now: 0,
            queue: BinaryHeap::new(),
            in_order: VecDeque::new(),
            sequence: 0,
            ready: VecDeque::new(),
            inboxes: vec![VecDeque::new(); ranks as usize],
            marked: VecDeque::new(),
            released: Vec::new(),
            processors: vec![(0, Carried::default()); ranks as usize],
            slowness,
            additions: fabric.additions()?,
            copied_ns: fabric.work.copy_gbytes.map_or(0.0, |rate| 1.0 / rate),
            message_ns: fabric.work.message_ns,
        })
    }

    /// Runs everything.
    pub(super) fn go(&mut self) {
        let all = 0..self.tasks.all.len() as u32;
        let free: Vec<u32> = all
            .filter(|&task| self.tasks.all[task as usize].holds == 0)
            .collect();
        // One rank after the other starts its part.
        let mut last = 0;
        for task in free {
            let rank = self.tasks.all[task as usize].rank;
            if std::mem::replace(&mut last, rank) != rank {
                self.begin_ready();
            }
            self.ready.push_back(task);
        }
        self.begin_ready();
        self.let_ranks_act();
        while let Some((at, _, task, event)) = self.poll_due() {
            self.now = at;
            self.handle(task, event);
            // Ranks act when all that is due at this time has happened.
            if self.next_due().is_none_or(|next| next.0 > at) {
                self.let_ranks_act();
            }
        }
        let is_left = |task: &Task| task.holds > 0;
        assert!(
            !self.tasks.all.iter().any(is_left),
            "a schedule stands still"
        );
    }

    fn schedule(&mut self, at: u64, task: u32, event: Event) {
        self.sequence += 1;
        let due = (at, self.sequence, task, event);
        match self.in_order.back() {
            Some(last) if last.0 > at => self.queue.push(Reverse(due)),
            _ => self.in_order.push_back(due),
        }
    }

    fn next_due(&self) -> Option<Due> {
        match (self.queue.peek(), self.in_order.front()) {
            (Some(Reverse(queued)), Some(in_order)) => Some(*queued.min(in_order)),
            (queued, in_order) => queued.map(|of| of.0).or(in_order.copied()),
        }
    }

    fn poll_due(&mut self) -> Option<Due> {
        let next = self.next_due()?;
        match self.in_order.front() == Some(&next) {
            true => self.in_order.pop_front(),
            false => self.queue.pop().map(|of| of.0),
        }
    }

    /// A rank will find, when it acts next, that a task has ended.
    fn report(&mut self, task: u32) {
        let rank = self.tasks.all[task as usize].rank;
        let inbox = &mut self.inboxes[rank as usize];
        if inbox.is_empty() {
            self.marked.push_back(rank);
        }
        inbox.push_back(task);
    }

    /// One rank after the other looks at what has ended, and does what that lets it do.
    fn let_ranks_act(&mut self) {
        while let Some(rank) = self.marked.pop_front() {
            while let Some(task) = self.inboxes[rank as usize].pop_front() {
                self.end(task);
                self.begin_ready();
            }
        }
    }

    fn begin_ready(&mut self) {
        while let Some(task) = self.ready.pop_front() {
            let own = self.tasks.all[task as usize];
            let (busy_ns, bytes) = self.work_of(&own);
            let is_message = matches!(own.kind, Kind::Send | Kind::Receive);
            self.states[task as usize].begun_ns = self.now;
            let processor = &mut self.processors[own.rank as usize];
            processor.1.bytes += bytes;
            if busy_ns > 0 {
                let begin = processor.0.max(self.now);
                processor.0 = begin + busy_ns;
                processor.1.busy_ns += busy_ns;
                self.states[task as usize].begun_ns = begin;
                let event = if is_message { Event::Post } else { Event::End };
                self.schedule(begin + busy_ns, task, event);
            } else if is_message {
                self.post(task);
            } else {
                self.end(task);
            }
        }
    }

    /// How long a task keeps the processor of its rank, nanoseconds, and the bytes that it works
    /// on.
    fn work_of(&self, own: &Task) -> (u64, u64) {
        let (ns, bytes) = match own.kind {
            Kind::Nothing => (0.0, 0),
            // A part of a short vector may have no elements.
            Kind::Add if own.bytes == 0 => (0.0, 0),
            Kind::Send | Kind::Receive => (self.message_ns as f64, 0),
            Kind::Copy => (f64::from(own.bytes) * self.copied_ns, u64::from(own.bytes)),
            Kind::Add => {
                let seconds = self.additions.seconds(f64::from(own.bytes));
                let times = u64::from(own.additions);
                (seconds * 1e9 * times as f64, u64::from(own.bytes) * times)
            }
        };
        (
            (ns * self.slowness[own.rank as usize]).round() as u64,
            bytes,
        )
    }

    fn handle(&mut self, task: u32, event: Event) {
        match event {
            Event::Post => {
                self.post(task);
                self.begin_ready();
            }
            Event::End => self.report(task),
            Event::Pull => self.transmit(task, Leg::Asked),
            Event::Cross(leg) => {
                let (from, to, route) = self.route(task);
                let (sent_ns, bytes) = self.hold_of(task, leg, &route);
                let delay_ns = (self.wires).cross((from, to), &route, self.now, (sent_ns, bytes));
                self.note(task, leg, 1, delay_ns);
                let arrival = self.now + delay_ns + leg.latency_ns(&route);
                self.schedule(arrival, task, Event::Arrive(leg));
            }
            Event::Arrive(leg) => {
                let (_, _, route) = self.route(task);
                let (sent_ns, bytes) = self.hold_of(task, leg, &route);
                let paid_ns = self.paid_ns(leg, &route);
                let hold_ns = self.wires.receive_hold_ns(&route, bytes) - paid_ns;
                let end = (self.wires).receive(&route, self.now, (sent_ns, hold_ns), bytes);
                self.note(task, leg, 2, end - self.now - hold_ns.max(sent_ns));
                self.schedule(end, task, Event::Deliver(leg));
            }
            Event::Deliver(leg) => self.deliver(task, leg),
        }
    }

    /// A message, or the receive of one, is posted.
    fn post(&mut self, task: u32) {
        let own = self.tasks.all[task as usize];
        self.states[task as usize].begun_ns = self.now;
        if own.has_next_chunk {
            let cause = self.states[task as usize].cause;
            if self.lets_begin(task + 1, cause) {
                self.ready.push_front(task + 1);
            }
        }
        if own.kind == Kind::Send {
            let is_short = own.bytes as usize <= INLINE_BYTES_MAX;
            self.transmit(task, if is_short { Leg::Whole } else { Leg::Announce });
            if is_short {
                self.end(task);
            }
            return;
        }
        let state = &mut self.states[task as usize];
        state.is_posted = true;
        if state.has_arrived {
            state.is_late = true;
            if own.bytes as usize <= INLINE_BYTES_MAX {
                return self.report(task);
            }
            let (_, _, route) = self.route(own.partner);
            self.schedule(self.now + route.latency_ns, own.partner, Event::Pull);
        }
    }

    fn transmit(&mut self, task: u32, leg: Leg) {
        let (_, _, route) = self.route(task);
        let (hold_ns, bytes) = self.hold_of(task, leg, &route);
        let begin = self.wires.send(&route, self.now, hold_ns, bytes);
        self.note(task, leg, 0, begin - self.now);
        if route.has_trunks() {
            return self.schedule(begin, task, Event::Cross(leg));
        }
        self.schedule(begin + leg.latency_ns(&route), task, Event::Arrive(leg));
    }

    fn deliver(&mut self, task: u32, leg: Leg) {
        let receive = self.tasks.all[task as usize].partner;
        let state = &mut self.states[receive as usize];
        match (leg, state.is_posted) {
            (Leg::Whole, true) => self.report(receive),
            (Leg::Announce, true) => self.transmit(task, Leg::Data),
            (Leg::Whole | Leg::Announce, false) => state.has_arrived = true,
            (Leg::Data | Leg::Asked, _) => {
                let (_, _, route) = self.route(task);
                self.schedule(self.now + route.latency_ns, task, Event::End);
                self.report(receive);
            }
        }
    }

    /// The ranks and the way of a send.
    pub(super) fn route(&self, send: u32) -> (Rank, Rank, Route) {
        let own = &self.tasks.all[send as usize];
        let (from, to) = (own.rank, self.tasks.all[own.partner as usize].rank);
        let (from, to) = (Rank::from(from), Rank::from(to));
        (from, to, self.wires.route(from, to))
    }

    /// How long a packet holds the sender's port, and its payload bytes.
    fn hold_of(&self, send: u32, leg: Leg, route: &Route) -> (u64, u64) {
        let bytes = match leg {
            Leg::Announce => 0,
            _ => u64::from(self.tasks.all[send as usize].bytes),
        };
        let hold_ns = self.wires.send_hold_ns(route, bytes);
        (hold_ns - self.paid_ns(leg, route), bytes)
    }

    /// An announcement has paid what a message holds a port besides its bytes.
    fn paid_ns(&self, leg: Leg, route: &Route) -> u64 {
        match leg {
            Leg::Data | Leg::Asked => self.wires.message_ns(route),
            Leg::Whole | Leg::Announce => 0,
        }
    }

    /// Notes for what a packet waits. Only the waits of bytes are kept.
    fn note(&mut self, send: u32, leg: Leg, what: usize, ns: u64) {
        if leg != Leg::Announce {
            let waits = &mut self.states[send as usize].waits_ns;
            waits[what] = ns.min(u64::from(u32::MAX)) as u32;
        }
    }

    /// One thing fewer holds a task back. Returns whether it may begin.
    fn lets_begin(&mut self, task: u32, cause: u32) -> bool {
        let own = &mut self.tasks.all[task as usize];
        own.holds -= 1;
        if own.holds == 0 {
            self.states[task as usize].cause = cause;
        }
        own.holds == 0
    }

    /// A task ends. Where work takes no time, those that follow it in its step end with it, as far
    /// as they may and as a piece of work goes, and only then others begin.
    fn end(&mut self, first: u32) {
        let mut released = std::mem::take(&mut self.released);
        let (mut task, mut bytes) = (first, 0);
        let next = loop {
            self.states[task as usize].end_ns = self.now;
            let own = self.tasks.all[task as usize];
            bytes += u64::from(own.bytes);
            let edges = self.tasks.successors(task);
            released.extend(edges.map(|at| (self.tasks.edge(at), task)));
            let is_work = matches!(own.kind, Kind::Copy | Kind::Add);
            if !(is_work && own.has_next_chunk) {
                break NONE;
            }
            let (next, more) = (task + 1, self.tasks.all[task as usize + 1]);
            released.retain(|(later, _)| *later != next);
            if !self.lets_begin(next, task) {
                break NONE;
            }
            if self.work_of(&more).0 > 0 || bytes + u64::from(more.bytes) > PIECE_BYTES as u64 {
                break next;
            }
            self.states[next as usize].begun_ns = self.now;
            self.processors[more.rank as usize].1.bytes += self.work_of(&more).1;
            task = next;
        };
        released.sort_unstable();
        let is_whole = self.tasks.all[first as usize].is_whole;
        for (at, (later, cause)) in released.drain(..).enumerate() {
            if self.lets_begin(later, cause) {
                match is_whole && at == 0 {
                    true => self.ready.push_front(later),
                    false => self.ready.push_back(later),
                }
            }
        }
        if next != NONE {
            self.ready.push_front(next);
        }
        self.released = released;
    }

    /// The name of a NIC, for people.
    pub(super) fn name_of_nic(&self, nic: u32) -> String {
        let (host, nic) = self.wires.place_of_nic(nic);
        format!("NIC {nic} of host {host}")
    }
}
