//! [`World`]: the schedules of all ranks with every buffer as a numbered storage.

use super::fault::{CheckError, Fault};
use crate::schedule::{
    Action, Buffer, BufferId, Count, Extent, Lane, Operand, Range, Schedule, Step, StepId,
};
use crate::types::{Collective, Rank};
use std::collections::HashMap;

/// Contributors are a set of this many bits.
const RANKS_CHECKED_MAX: usize = 64;

/// What the schedules are to be checked against. Whether a rank is in place is in its schedule.
#[derive(Clone, Debug)]
pub struct Spec {
    /// Which collective.
    pub collective: Collective,
    /// The root of rooted collectives.
    pub root: Rank,
    /// Elements per rank, as a caller gives them.
    pub count: u64,
    /// Whether every input must be multiplied by its rank's factor, once.
    pub premultiply: bool,
    /// Run-time slots of each rank; may be empty where the schedules use none.
    pub slots: Vec<Vec<u64>>,
}

/// Index of a step among those of all ranks.
pub(super) type GlobalStep = usize;

/// Elements of one storage.
#[derive(Clone, Copy, Debug)]
pub(super) struct Touch {
    pub storage: usize,
    pub start: u64,
    pub len: u64,
    pub is_write: bool,
    /// The number of the range among the step's local ranges; `None` in a peer's memory.
    pub local: Option<u16>,
}

/// What a step reads.
#[derive(Clone, Copy, Debug)]
pub(super) enum Source {
    Memory(Touch),
    Mail(Rank, Lane),
}

/// A step with ranges as elements.
#[derive(Clone, Debug, Default)]
pub(super) struct Resolved {
    pub sources: Vec<Source>,
    pub destinations: Vec<Touch>,
    /// Elements that the step processes.
    pub len: u64,
}

/// Where an input or output in place lies: in this other buffer, from this element on.
#[derive(Clone, Copy, Debug)]
struct Alias {
    buffer: BufferId,
    offset: u64,
}

/// The schedules of all ranks.
pub(super) struct World<'a> {
    pub schedules: &'a [Schedule],
    pub spec: &'a Spec,
    /// First global step of every rank, and the number of all.
    bases: Vec<GlobalStep>,
    /// First storage of every rank, and the number of all.
    storage_bases: Vec<usize>,
    /// Elements of every storage.
    pub storage_lens: Vec<u64>,
    aliases: Vec<Option<Alias>>,
    /// The other end of a send or receive.
    partners: Vec<Option<GlobalStep>>,
}

impl<'a> World<'a> {
    pub fn new(schedules: &'a [Schedule], spec: &'a Spec) -> Result<World<'a>, CheckError> {
        let mut world = World {
            schedules,
            spec,
            bases: vec![0],
            storage_bases: vec![0],
            storage_lens: Vec::new(),
            aliases: Vec::new(),
            partners: Vec::new(),
        };
        for (rank, schedule) in schedules.iter().enumerate() {
            let rank = rank as Rank;
            check_shape(schedule, rank, schedules.len())?;
            world.aliases.push(world.alias(rank));
            let count = Count {
                count: spec.count,
                slots: world.initial_slots(rank),
            };
            let (input, output) = world.lens(rank);
            for buffer in &schedule.buffers {
                world.storage_lens.push(match buffer {
                    Buffer::Input => input,
                    Buffer::Output => output,
                    Buffer::Caller(number) => count.slots[1 + usize::from(*number)],
                    Buffer::Scratch(extent) | Buffer::Window(extent) | Buffer::Shared(extent) => {
                        check_slots(extent, &count, rank, None)?;
                        extent.length_max(&count)
                    }
                });
            }
            world
                .bases
                .push(world.bases[rank as usize] + schedule.steps.len());
            world.storage_bases.push(world.storage_lens.len());
        }
        world.partners = world.pair_messages()?;
        Ok(world)
    }

    /// The buffer that peers reach when they reach a rank's input or output.
    pub fn reached(&self, rank: Rank, buffer: BufferId) -> BufferId {
        let buffers = &self.schedules[rank as usize].buffers;
        let shared = buffers.iter().position(|b| matches!(b, Buffer::Shared(_)));
        match shared {
            Some(shared) if buffer.0 < 2 => BufferId(shared as u16),
            _ => buffer,
        }
    }

    pub fn ranks(&self) -> u32 {
        self.schedules.len() as u32
    }

    pub fn steps(&self) -> usize {
        *self.bases.last().expect("one base per rank and the end")
    }

    pub fn messages(&self) -> usize {
        self.partners.iter().flatten().count() / 2
    }

    pub fn global(&self, rank: Rank, step: StepId) -> GlobalStep {
        self.bases[rank as usize] + step as usize
    }

    pub fn global_steps(&self, rank: Rank) -> std::ops::Range<GlobalStep> {
        self.bases[rank as usize]..self.bases[rank as usize + 1]
    }

    pub fn place(&self, global: GlobalStep) -> (Rank, StepId) {
        let rank = self.bases.partition_point(|&base| base <= global) - 1;
        (rank as Rank, (global - self.bases[rank]) as StepId)
    }

    pub fn step(&self, global: GlobalStep) -> &'a Step {
        let (rank, step) = self.place(global);
        &self.schedules[rank as usize].steps[step as usize]
    }

    pub fn partner(&self, global: GlobalStep) -> Option<GlobalStep> {
        self.partners[global]
    }

    pub fn initial_slots(&self, rank: Rank) -> &'a [u64] {
        self.spec.slots.get(rank as usize).map_or(&[], |s| s)
    }

    /// Whose storage it is, and which buffer.
    pub fn owner(&self, storage: usize) -> (Rank, BufferId) {
        let rank = self.storage_bases.partition_point(|&base| base <= storage) - 1;
        let buffer = BufferId((storage - self.storage_bases[rank]) as u16);
        (rank as Rank, buffer)
    }

    /// The storage of a buffer and where its first element lies there.
    pub fn locate(&self, rank: Rank, buffer: BufferId) -> (usize, u64) {
        let base = self.storage_bases[rank as usize];
        match self.aliases[rank as usize] {
            Some(alias) if buffer.0 < 2 && buffer != alias.buffer => {
                (base + alias.buffer.0 as usize, alias.offset)
            }
            _ => (base + buffer.0 as usize, 0),
        }
    }

    /// The storages of a rank's other buffers of the caller, by number.
    pub fn caller_storages(&self, rank: Rank) -> impl Iterator<Item = (usize, u16)> {
        let base = self.storage_bases[rank as usize];
        let buffers = self.schedules[rank as usize].buffers.iter().enumerate();
        buffers.filter_map(move |(index, buffer)| match buffer {
            Buffer::Caller(number) => Some((base + index, *number)),
            _ => None,
        })
    }

    /// Whether input and output share memory on this rank.
    pub fn is_aliased(&self, rank: Rank) -> bool {
        self.aliases[rank as usize].is_some()
    }

    /// Elements of the input and the output.
    pub fn lens(&self, rank: Rank) -> (u64, u64) {
        let (count, ranks) = (self.spec.count, u64::from(self.ranks()));
        let slots = self.initial_slots(rank);
        let on_root = |n| if rank == self.spec.root { n } else { 0 };
        let end = |pairs: &[u64]| {
            pairs
                .chunks_exact(2)
                .map(|p| p[0] + p[1])
                .max()
                .unwrap_or(0)
        };
        match self.spec.collective {
            Collective::AllReduce | Collective::Broadcast => (count, count),
            Collective::Reduce => (count, on_root(count)),
            Collective::ReduceScatter => (ranks * count, count),
            Collective::AllGather => (count, ranks * count),
            Collective::Gather => (count, on_root(ranks * count)),
            Collective::Scatter => (on_root(ranks * count), count),
            Collective::AllToAll => (ranks * count, ranks * count),
            Collective::AllGatherV => (
                slots[2 * rank as usize + 1],
                end(&slots[..2 * ranks as usize]),
            ),
            Collective::GatherV => (
                slots[2 * rank as usize + 1],
                on_root(end(&slots[..2 * ranks as usize])),
            ),
            Collective::ScatterV => (
                on_root(end(&slots[..2 * ranks as usize])),
                slots[2 * rank as usize + 1],
            ),
            Collective::ReduceScatterV => (
                end(&slots[..2 * ranks as usize]),
                slots[2 * rank as usize + 1],
            ),
            Collective::AllToAllV => {
                let (send, receive) = slots.split_at(2 * ranks as usize);
                (end(send), end(receive))
            }
            Collective::Barrier => (0, 0),
            Collective::SendRecv => (end(slots), end(slots)),
        }
    }

    fn alias(&self, rank: Rank) -> Option<Alias> {
        let spec = self.spec;
        let is_root = rank == spec.root;
        let within = |buffer, offset| Some(Alias { buffer, offset });
        let part = u64::from(rank) * spec.count;
        let own_offset = || self.initial_slots(rank)[2 * rank as usize];
        match spec.collective {
            _ if !self.schedules[rank as usize].in_place => None,
            Collective::AllReduce | Collective::Broadcast | Collective::AllToAll => {
                within(BufferId::OUTPUT, 0)
            }
            Collective::Reduce if is_root => within(BufferId::OUTPUT, 0),
            Collective::AllGather => within(BufferId::OUTPUT, part),
            Collective::Gather if is_root => within(BufferId::OUTPUT, part),
            Collective::AllGatherV => within(BufferId::OUTPUT, own_offset()),
            Collective::GatherV if is_root => within(BufferId::OUTPUT, own_offset()),
            Collective::ReduceScatterV => within(BufferId::INPUT, own_offset()),
            Collective::ScatterV if is_root => within(BufferId::INPUT, own_offset()),
            Collective::ReduceScatter => within(BufferId::INPUT, part),
            Collective::Scatter if is_root => within(BufferId::INPUT, part),
            _ => None,
        }
    }

    fn pair_messages(&self) -> Result<Vec<Option<GlobalStep>>, CheckError> {
        let mut partners = vec![None; self.steps()];
        let mut open: HashMap<(Rank, Rank, u32, bool), (Rank, StepId)> = HashMap::new();
        for (rank, schedule) in self.schedules.iter().enumerate() {
            let rank = rank as Rank;
            for (index, step) in schedule.steps.iter().enumerate() {
                let (key, other) = match step.action {
                    Action::Send { peer, message, .. } => {
                        ((rank, peer, message, true), (rank, peer, message, false))
                    }
                    Action::Recv { peer, message, .. } => {
                        ((peer, rank, message, false), (peer, rank, message, true))
                    }
                    _ => continue,
                };
                let here = (rank, index as StepId);
                if let Some((peer, at)) = open.remove(&other) {
                    let there = self.global(peer, at);
                    partners[self.global(rank, here.1)] = Some(there);
                    partners[there] = Some(self.global(rank, here.1));
                } else if open.insert(key, here).is_some() {
                    let text = format!("{}: a message of that number exists", step.action);
                    return Err(CheckError::new(Fault::Unmatched, rank, Some(here.1), text));
                }
            }
        }
        match open.values().min() {
            None => Ok(partners),
            Some(&(rank, step)) => {
                let action = &self.schedules[rank as usize].steps[step as usize].action;
                let text = format!("{action}: the peer has no other end");
                Err(CheckError::new(Fault::Unmatched, rank, Some(step), text))
            }
        }
    }

    /// The elements that a step touches, with these values of the slots.
    pub fn resolve(&self, global: GlobalStep, slots: &[u64]) -> Result<Resolved, CheckError> {
        let (rank, index) = self.place(global);
        let mut resolver = Resolver {
            world: self,
            rank,
            step: index,
            slots,
            locals: 0,
        };
        let step = self.step(global);
        let (mut sources, mut destinations) = (Vec::new(), Vec::new());
        let local = |range: &Range| Operand::Local(*range);
        match &step.action {
            Action::Send { source, .. } => sources.push(local(source)),
            Action::Recv { destination, .. } => destinations.push(local(destination)),
            Action::Put {
                peer,
                source,
                destination,
            } => {
                sources.push(local(source));
                destinations.push(Operand::Peer(*peer, *destination));
            }
            Action::Get {
                peer,
                source,
                destination,
            } => {
                sources.push(Operand::Peer(*peer, *source));
                destinations.push(local(destination));
            }
            Action::Copy {
                source,
                destination,
                ..
            } => {
                sources.push(local(source));
                destinations.push(local(destination));
            }
            Action::Reduce {
                sources: many,
                destination,
                ..
            } => {
                sources.extend(many.iter().map(local));
                destinations.push(local(destination));
            }
            Action::ReduceFrom {
                sources: from,
                destinations: to,
                ..
            } => {
                sources.clone_from(from);
                destinations.clone_from(to);
            }
            Action::Signal { payload, .. } => sources.extend(payload.iter().map(local)),
            Action::WaitCount { .. } | Action::Nop => {}
        }
        resolver.operands(&sources, &destinations)
    }
}

/// Turns the operands of one step into elements.
struct Resolver<'w, 'a> {
    world: &'w World<'a>,
    rank: Rank,
    step: StepId,
    slots: &'w [u64],
    locals: u16,
}

impl Resolver<'_, '_> {
    fn operands(&mut self, from: &[Operand], to: &[Operand]) -> Result<Resolved, CheckError> {
        let mut resolved = Resolved::default();
        for operand in from {
            resolved.sources.push(match operand {
                Operand::Mail(peer, lane) => Source::Mail(*peer, *lane),
                Operand::Local(range) => Source::Memory(self.touch(None, range, false)?),
                Operand::Peer(peer, range) => {
                    Source::Memory(self.touch(Some(*peer), range, false)?)
                }
            });
        }
        for operand in to {
            resolved.destinations.push(match operand {
                Operand::Mail(..) => return Err(self.error(Fault::Malformed, "mail is read only")),
                Operand::Local(range) => self.touch(None, range, true)?,
                Operand::Peer(peer, range) => self.touch(Some(*peer), range, true)?,
            });
        }
        let lens: Vec<u64> = resolved.touches().map(|t| t.len).collect();
        if let Some(&first) = lens.first() {
            resolved.len = first;
            if let Some(other) = lens.iter().find(|&&len| len != first) {
                let text = format!("ranges of {first} and {other} elements");
                return Err(self.error(Fault::Length, text));
            }
        }
        Ok(resolved)
    }

    fn touch(
        &mut self,
        peer: Option<Rank>,
        range: &Range,
        is_write: bool,
    ) -> Result<Touch, CheckError> {
        let owner = peer.unwrap_or(self.rank);
        self.check_buffer(peer, range)?;
        let count = Count {
            count: self.world.spec.count,
            slots: self.slots,
        };
        check_slots(&range.extent, &count, self.rank, Some(self.step))?;
        let (start, len) = range.extent.resolve(&count);
        let origin = range.origin.position(count.count);
        let buffer = match peer {
            Some(peer) => self.world.reached(peer, range.buffer),
            None => range.buffer,
        };
        let (storage, offset) = self.world.locate(owner, buffer);
        // The bound is the buffer's own length: a buffer in place may end before its storage does.
        let (input, output) = self.world.lens(owner);
        let bound = match buffer {
            BufferId::INPUT => input,
            BufferId::OUTPUT => output,
            _ => self.world.storage_lens[storage],
        };
        if start < origin || start - origin + len > bound {
            let text = format!(
                "{range} is elements {start}..{} from {origin}, of {bound}",
                start + len
            );
            return Err(self.error(Fault::Bounds, text));
        }
        let local = peer.is_none().then(|| {
            self.locals += 1;
            self.locals - 1
        });
        Ok(Touch {
            storage,
            start: start - origin + offset,
            len,
            is_write,
            local,
        })
    }

    fn check_buffer(&self, peer: Option<Rank>, range: &Range) -> Result<(), CheckError> {
        let schedules = self.world.schedules;
        let own = schedules[self.rank as usize]
            .buffers
            .get(range.buffer.0 as usize);
        let Some(own) = own else {
            return Err(self.error(Fault::Malformed, format!("{range}: no such buffer")));
        };
        let Some(peer) = peer else { return Ok(()) };
        let theirs = schedules
            .get(peer as usize)
            .and_then(|s| s.buffers.get(range.buffer.0 as usize));
        let is_shared = !matches!(own, Buffer::Scratch(_)) && theirs == Some(own);
        if peer == self.rank || !is_shared {
            let text = format!("{range} of rank {peer} is not a shared buffer of both");
            return Err(self.error(Fault::Malformed, text));
        }
        Ok(())
    }

    fn error(&self, fault: Fault, text: impl Into<String>) -> CheckError {
        CheckError::new(fault, self.rank, Some(self.step), text)
    }
}

impl Resolved {
    pub fn touches(&self) -> impl Iterator<Item = &Touch> {
        let sources = self.sources.iter().filter_map(|source| match source {
            Source::Memory(touch) => Some(touch),
            Source::Mail(..) => None,
        });
        sources.chain(&self.destinations)
    }

    pub fn local(&self, index: u16) -> Option<&Touch> {
        self.touches().find(|t| t.local == Some(index))
    }
}

fn check_shape(schedule: &Schedule, rank: Rank, ranks: usize) -> Result<(), CheckError> {
    let error = |step, text: String| Err(CheckError::new(Fault::Malformed, rank, step, text));
    if schedule.rank != rank || schedule.ranks as usize != ranks || ranks > RANKS_CHECKED_MAX {
        let (r, n) = (schedule.rank, schedule.ranks);
        return error(None, format!("a schedule of rank {r} of {n} among {ranks}"));
    }
    for (index, step) in schedule.steps.iter().enumerate() {
        let here = Some(index as StepId);
        if step.dependencies.iter().any(|d| d.step as usize >= index) {
            return error(here, "depends on a step that is not before it".into());
        }
        let is_peer = |peer: &Rank| (*peer as usize) < ranks && *peer != rank;
        let is_good = match &step.action {
            Action::Send { peer, .. } | Action::Recv { peer, .. } => is_peer(peer),
            Action::Signal { peers, .. } => peers.iter().all(is_peer),
            Action::WaitCount { peers, count, .. } => {
                peers.iter().all(is_peer) && *count as usize <= peers.len()
            }
            _ => true,
        };
        if !is_good {
            return error(here, format!("{}: no such peers", step.action));
        }
    }
    Ok(())
}

fn check_slots(
    extent: &Extent,
    count: &Count<'_>,
    rank: Rank,
    step: Option<StepId>,
) -> Result<(), CheckError> {
    match *extent {
        Extent::Slots { offset, length } if offset.max(length) as usize >= count.slots.len() => {
            let text = format!("slots {offset} and {length} of {}", count.slots.len());
            Err(CheckError::new(Fault::Malformed, rank, step, text))
        }
        _ => Ok(()),
    }
}
