//! One run of all schedules together, in an order of arrival that the caller chooses.

use super::fault::{CheckError, Fault};
use super::value::Value;
use super::world::{GlobalStep, Resolved, Source, World};
use crate::schedule::{Action, BufferId, Join, Lane, Trigger};
use crate::types::{Collective, Rank};
use std::collections::{HashMap, VecDeque};

/// What happened in one run.
pub(super) struct Trace {
    /// What every step touched.
    pub resolved: Vec<Resolved>,
    /// For each step with [`Join::Any`]: the dependency that started it.
    pub started_by: Vec<Option<usize>>,
    /// For each wait: the signals that completed it.
    pub signals: HashMap<GlobalStep, Vec<GlobalStep>>,
    /// Signals by sender, receiver and lane.
    pub sent: HashMap<(Rank, Rank, Lane), GlobalStep>,
    /// Every storage at the end.
    pub memory: Vec<Vec<Value>>,
    /// The first wrong combination of values.
    pub first_value_error: Option<CheckError>,
}

struct Run<'w, 'a> {
    world: &'w World<'a>,
    trace: Trace,
    slots: Vec<Vec<u64>>,
    mail: HashMap<(Rank, Rank, Lane), Vec<Value>>,
    dependents: Vec<Vec<GlobalStep>>,
    /// Dependencies that are still to complete.
    missing: Vec<usize>,
    state: Vec<State>,
    /// Waits by receiver, sender and lane.
    waits: HashMap<(Rank, Rank, Lane), Vec<GlobalStep>>,
    /// Steps whose order matters.
    is_racing: Vec<bool>,
    ready: VecDeque<GlobalStep>,
    ready_racing: Vec<GlobalStep>,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum State {
    Waiting,
    /// Its dependencies are met.
    Ready,
    Done,
}

/// Runs everything. `choose(n)` picks which of n racing steps comes next. A message moves once both
/// ends are ready, as if nothing were buffered, so that what passes here passes on every transport.
pub(super) fn run(
    world: &World<'_>,
    choose: &mut dyn FnMut(usize) -> usize,
) -> Result<Trace, CheckError> {
    let mut run = Run::new(world);
    for global in 0..world.steps() {
        if world.step(global).dependencies.is_empty() {
            run.make_ready(global);
        }
    }
    loop {
        let next = run.ready.pop_front().or_else(|| {
            let options = run.ready_racing.len();
            (options > 0).then(|| {
                let choice = if options == 1 { 0 } else { choose(options) };
                run.ready_racing.remove(choice)
            })
        });
        match next {
            Some(global) => run.advance(global)?,
            None => break,
        }
    }
    run.check_all_done()?;
    Ok(run.trace)
}

impl<'w, 'a> Run<'w, 'a> {
    fn new(world: &'w World<'a>) -> Run<'w, 'a> {
        let steps = world.steps();
        let mut run = Run {
            world,
            trace: Trace {
                resolved: vec![Resolved::default(); steps],
                started_by: vec![None; steps],
                signals: HashMap::new(),
                sent: HashMap::new(),
                memory: initial_memory(world),
                first_value_error: None,
            },
            slots: (0..world.ranks())
                .map(|r| world.initial_slots(r).to_vec())
                .collect(),
            mail: HashMap::new(),
            dependents: vec![Vec::new(); steps],
            missing: vec![0; steps],
            state: vec![State::Waiting; steps],
            waits: HashMap::new(),
            is_racing: vec![false; steps],
            ready: VecDeque::new(),
            ready_racing: Vec::new(),
        };
        for rank in 0..world.ranks() {
            for global in world.global_steps(rank) {
                run.enter(rank, global);
            }
        }
        run.find_racing();
        run
    }

    fn enter(&mut self, rank: Rank, global: GlobalStep) {
        let step = self.world.step(global);
        for dependency in &step.dependencies {
            let earlier = self.world.global(rank, dependency.step);
            if self.dependents[earlier].last() != Some(&global) {
                self.dependents[earlier].push(global);
                self.missing[global] += 1;
            }
            self.is_racing[earlier] |= step.join == Join::Any;
        }
        if step.join == Join::Any {
            self.missing[global] = self.missing[global].min(1);
        }
        self.is_racing[global] |= step.trigger == Trigger::Caller;
        if let Action::WaitCount { peers, lane, .. } = &step.action {
            for &peer in peers {
                self.waits
                    .entry((rank, peer, *lane))
                    .or_default()
                    .push(global);
            }
        }
    }

    /// Signals race for a wait that needs only some of them.
    fn find_racing(&mut self) {
        for rank in 0..self.world.ranks() {
            for global in self.world.global_steps(rank) {
                if let Action::Signal { peers, lane, .. } = &self.world.step(global).action {
                    let mut waits = peers
                        .iter()
                        .filter_map(|p| self.waits.get(&(*p, rank, *lane)));
                    self.is_racing[global] |=
                        waits.any(|w| w.iter().any(|&w| is_partial(&self.world.step(w).action)));
                }
            }
        }
    }

    fn make_ready(&mut self, global: GlobalStep) {
        self.state[global] = State::Ready;
        if self.is_racing[global] {
            self.ready_racing.push(global);
        } else {
            self.ready.push_back(global);
        }
    }

    /// Executes a step whose dependencies are met, unless it waits for a peer.
    fn advance(&mut self, global: GlobalStep) -> Result<(), CheckError> {
        if self.state[global] == State::Done {
            return Ok(());
        }
        let (rank, index) = self.world.place(global);
        let resolved = self.world.resolve(global, &self.slots[rank as usize])?;
        match &self.world.step(global).action {
            Action::Send { .. } | Action::Recv { .. } => {
                self.trace.resolved[global] = resolved;
                return self.advance_message(global);
            }
            Action::WaitCount { count, .. } => {
                let arrived = self.trace.signals.get(&global).map_or(0, Vec::len);
                if arrived < *count as usize {
                    return Ok(());
                }
            }
            Action::Signal { peers, lane, .. } => {
                let has_payload = !resolved.sources.is_empty();
                let payload = has_payload.then(|| self.read(&resolved, global, false));
                for &peer in peers {
                    let key = (rank, peer, *lane);
                    if self.trace.sent.insert(key, global).is_some() {
                        let text = format!("a second signal to rank {peer} on lane {lane}");
                        return Err(CheckError::new(Fault::Signal, rank, Some(index), text));
                    }
                    if let Some(payload) = &payload {
                        self.mail.insert(key, payload.clone());
                    }
                }
                self.trace.resolved[global] = resolved;
                self.complete(global);
                self.arrive(global, rank, peers, *lane);
                return Ok(());
            }
            Action::Copy { premultiply, .. } => {
                self.execute(&resolved, global, *premultiply, false)
            }
            Action::Reduce { finish, .. } | Action::ReduceFrom { finish, .. } => {
                self.execute(&resolved, global, false, *finish)
            }
            Action::Put { .. } | Action::Get { .. } => {
                self.execute(&resolved, global, false, false)
            }
            Action::Nop => {}
        }
        self.trace.resolved[global] = resolved;
        self.complete(global);
        Ok(())
    }

    fn advance_message(&mut self, global: GlobalStep) -> Result<(), CheckError> {
        let partner = self.world.partner(global).expect("messages are paired");
        if self.state[partner] != State::Ready {
            return Ok(());
        }
        let is_send = matches!(self.world.step(global).action, Action::Send { .. });
        let (send, recv) = if is_send {
            (global, partner)
        } else {
            (partner, global)
        };
        // The other end may still be in the queue and not be resolved yet.
        let (recv_rank, recv_index) = self.world.place(recv);
        let source = self
            .world
            .resolve(send, &self.slots[self.world.place(send).0 as usize])?;
        let target = self.world.resolve(recv, &self.slots[recv_rank as usize])?;
        if source.len != target.len {
            let text = format!("gets {} elements into {}", source.len, target.len);
            return Err(CheckError::new(
                Fault::Length,
                recv_rank,
                Some(recv_index),
                text,
            ));
        }
        let values = self.read(&source, send, false);
        self.write(&target, &values);
        self.trace.resolved[send] = source;
        self.trace.resolved[recv] = target;
        self.complete(send);
        self.complete(recv);
        Ok(())
    }

    fn arrive(&mut self, signal: GlobalStep, from: Rank, peers: &[Rank], lane: Lane) {
        for &peer in peers {
            for wait in self
                .waits
                .get(&(peer, from, lane))
                .cloned()
                .unwrap_or_default()
            {
                let Action::WaitCount { count, .. } = self.world.step(wait).action else {
                    unreachable!("only waits are listed")
                };
                let arrived = self.trace.signals.entry(wait).or_default();
                if arrived.len() < count as usize {
                    arrived.push(signal);
                    if arrived.len() == count as usize && self.state[wait] == State::Ready {
                        self.ready.push_back(wait);
                    }
                }
            }
        }
    }

    fn complete(&mut self, global: GlobalStep) {
        if self.state[global] == State::Done {
            return;
        }
        self.state[global] = State::Done;
        for index in 0..self.dependents[global].len() {
            let dependent = self.dependents[global][index];
            if self.missing[dependent] == 0 {
                continue;
            }
            self.missing[dependent] -= 1;
            if self.missing[dependent] == 0 {
                if self.world.step(dependent).join == Join::Any {
                    self.trace.started_by[dependent] = Some(global);
                }
                self.make_ready(dependent);
            }
        }
    }

    fn execute(
        &mut self,
        resolved: &Resolved,
        global: GlobalStep,
        premultiply: bool,
        finish: bool,
    ) {
        let mut values = self.read(resolved, global, premultiply);
        if finish {
            for (k, value) in values.iter_mut().enumerate() {
                if value.is_defined() {
                    match value.finished() {
                        Ok(finished) => *value = finished,
                        Err(wrong) => self.note(global, k, wrong),
                    }
                }
            }
        }
        self.write(resolved, &values);
    }

    /// The sources combined in order, element by element.
    fn read(&mut self, resolved: &Resolved, global: GlobalStep, premultiply: bool) -> Vec<Value> {
        let (rank, _) = self.world.place(global);
        let mut values = vec![Value::UNDEFINED; resolved.len as usize];
        for (number, source) in resolved.sources.iter().enumerate() {
            for k in 0..values.len() {
                let operand = match source {
                    Source::Memory(touch) => {
                        self.trace.memory[touch.storage][touch.start as usize + k]
                    }
                    Source::Mail(from, lane) => match self.mail.get(&(*from, rank, *lane)) {
                        Some(mail) if mail.len() == values.len() => mail[k],
                        Some(mail) => {
                            let text = format!("{} elements of mail from rank {from}", mail.len());
                            self.note(global, k, (Fault::Length, text));
                            Value::UNDEFINED
                        }
                        None => {
                            let text = format!("no mail from rank {from} on lane {lane} yet");
                            self.note(global, k, (Fault::Signal, text));
                            Value::UNDEFINED
                        }
                    },
                };
                let outcome = match values[k] {
                    // The content of a barrier's messages does not matter.
                    _ if self.world.spec.collective == Collective::Barrier => Ok(operand),
                    _ if !operand.is_defined() => {
                        Err((Fault::Undefined, format!("source {number} is {operand}")))
                    }
                    _ if number > 0 => values[k].combined(operand),
                    _ if premultiply => operand.premultiplied(),
                    _ => Ok(operand),
                };
                match outcome {
                    Ok(value) => values[k] = value,
                    Err(wrong) => self.note(global, k, wrong),
                }
            }
        }
        if resolved.sources.len() > 1 {
            values.iter_mut().for_each(|v| *v = v.rounded());
        }
        values
    }

    fn write(&mut self, resolved: &Resolved, values: &[Value]) {
        for touch in &resolved.destinations {
            let start = touch.start as usize;
            self.trace.memory[touch.storage][start..start + values.len()].copy_from_slice(values);
        }
    }

    fn note(&mut self, global: GlobalStep, k: usize, (fault, text): (Fault, String)) {
        if self.trace.first_value_error.is_none() {
            let (rank, step) = self.world.place(global);
            let text = format!("{}: {text}", self.world.step(global).action);
            let error = CheckError::new(fault, rank, Some(step), text).at(k as u64);
            self.trace.first_value_error = Some(error);
        }
    }

    fn check_all_done(&self) -> Result<(), CheckError> {
        let Some(stuck) = (0..self.state.len())
            .filter(|&g| self.state[g] != State::Done)
            .min_by_key(|&g| self.world.place(g).1)
        else {
            return Ok(());
        };
        let (rank, step) = self.world.place(stuck);
        let why = match self.state[stuck] {
            State::Ready => "its dependencies are met, the peer never comes",
            _ => "its dependencies never complete",
        };
        let text = format!("{} waits for ever: {why}", self.world.step(stuck).action);
        Err(CheckError::new(Fault::Deadlock, rank, Some(step), text))
    }
}

fn is_partial(action: &Action) -> bool {
    matches!(action, Action::WaitCount { peers, count, .. } if (*count as usize) < peers.len())
}

fn initial_memory(world: &World<'_>) -> Vec<Vec<Value>> {
    let mut memory: Vec<_> = world
        .storage_lens
        .iter()
        .map(|&len| vec![Value::UNDEFINED; len as usize])
        .collect();
    for rank in 0..world.ranks() {
        let (storage, offset) = world.locate(rank, BufferId::INPUT);
        for element in 0..world.lens(rank).0 {
            memory[storage][(offset + element) as usize] = Value::input(rank, element);
        }
        for (storage, number) in world.caller_storages(rank) {
            for (element, value) in memory[storage].iter_mut().enumerate() {
                *value = Value::input(rank, (u64::from(number) << 16) | element as u64);
            }
        }
    }
    memory
}
