//! What a world consists of: the queue of happenings, the ports between ranks, and per rank its
//! connections, operations, regions and unread events. What happens to them is in `posting.rs`,
//! `wire.rs` and `connection.rs`.

use super::matching::{Channel, Matcher, Receive};
use super::options::{SimOptions, Statistics};
use super::wires::Wires;
use crate::memory::{Region, RegionKey, View};
use crate::prng::Prng;
use crate::transport::registry::Registry;
use crate::transport::{Atomic, Completion, Event, Outcome, RemoteRange, TAG_CLASSES};
use crate::types::Rank;
use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap, VecDeque};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// Puts and gets of one rank to one peer that may be outstanding: more than any schedule has in
/// flight, and small enough that a program that never polls is noticed.
pub(super) const RMA_PER_PEER: u32 = 1024;

/// Receives that one rank may have posted for one peer.
pub(super) const RECEIVES_PER_PEER: u32 = 4096;

/// One operation of one rank. The generation tells a reused place from the operation that had it
/// before.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct OperationId {
    pub(super) rank: Rank,
    index: u32,
    generation: u32,
}

/// Which packet of an operation travels.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Leg {
    /// All of a small message or a put, with its bytes.
    Whole,
    /// That a large message exists.
    Announce,
    /// Which bytes a get wants, or what is done to a word.
    Request,
    /// The bytes of a large message that has matched, of a get, or what was in a word.
    Data,
}

/// What an operation does.
#[derive(Clone, Copy, Debug)]
pub(super) enum Action {
    Send {
        tag: u64,
        header: u64,
    },
    Put {
        to: RemoteRange,
    },
    Get {
        from: RemoteRange,
        into: View,
    },
    Change {
        word: RemoteRange,
        what: Atomic,
        into: View,
    },
}

/// The bytes of an operation until they are delivered.
#[derive(Clone, Debug)]
pub(super) enum Payload {
    /// Only their number exists.
    Nothing,
    /// Copied when posted.
    Copied(Box<[u8]>),
    /// Read where they lie, when they are delivered; the region is held until then.
    Held(View, Arc<Region>),
}

/// A send, put or get from its post until nothing refers to it any more.
#[derive(Clone, Debug)]
pub(super) struct Operation {
    pub(super) action: Action,
    pub(super) peer: Rank,
    pub(super) epoch: u32,
    pub(super) token: u64,
    pub(super) bytes: u64,
    pub(super) payload: Payload,
    pub(super) leg: Leg,
    /// The packet of `leg` has not arrived yet; a second copy of it is recognised by that.
    pub(super) is_on_wire: bool,
    /// Its poster has its completion.
    pub(super) is_reported: bool,
    /// How it will end.
    pub(super) outcome: Outcome,
    /// The receive that it met; its bytes are still under way.
    pub(super) receive: Option<Receive>,
    /// The receiver has the message or, of a large one, its announcement.
    pub(super) has_arrived: bool,
}

impl Operation {
    /// One that was posted to a peer and has not left.
    pub(super) fn new(
        action: Action,
        (peer, epoch): (Rank, u32),
        (bytes, payload): (u64, Payload),
        leg: Leg,
        token: u64,
    ) -> Operation {
        Operation {
            action,
            peer,
            epoch,
            token,
            bytes,
            payload,
            leg,
            is_on_wire: false,
            is_reported: false,
            outcome: Outcome::Done,
            receive: None,
            has_arrived: false,
        }
    }

    /// Whether the other side still has to get something of it.
    pub(super) fn is_under_way(&self) -> bool {
        match self.action {
            Action::Send { .. } => !self.has_arrived || self.receive.is_some(),
            Action::Put { .. } => true,
            // Its poster has no use for the answer any more.
            Action::Get { .. } | Action::Change { .. } => false,
        }
    }
}

/// The operations of one rank, in places that are used again.
#[derive(Debug, Default)]
pub(super) struct Operations {
    places: Vec<(u32, Option<Operation>)>,
    free: Vec<u32>,
}

impl Operations {
    pub(super) fn insert(&mut self, rank: Rank, operation: Operation) -> OperationId {
        let index = self.free.pop().unwrap_or_else(|| {
            self.places.push((0, None));
            (self.places.len() - 1) as u32
        });
        let place = &mut self.places[index as usize];
        place.1 = Some(operation);
        OperationId {
            rank,
            index,
            generation: place.0,
        }
    }

    pub(super) fn get(&mut self, id: OperationId) -> Option<&mut Operation> {
        let place = &mut self.places[id.index as usize];
        place.1.as_mut().filter(|_| place.0 == id.generation)
    }

    pub(super) fn remove(&mut self, id: OperationId) -> Option<Operation> {
        let place = &mut self.places[id.index as usize];
        if place.0 != id.generation {
            return None;
        }
        let operation = place.1.take()?;
        place.0 = place.0.wrapping_add(1);
        self.free.push(id.index);
        Some(operation)
    }

    /// How many there are.
    pub(super) fn count(&self) -> usize {
        self.places.len() - self.free.len()
    }

    /// Every one.
    pub(super) fn all_mut(&mut self) -> impl Iterator<Item = &mut Operation> {
        (self.places.iter_mut()).filter_map(|place| place.1.as_mut())
    }

    /// Those on one connection, oldest place first. Linear: connections end rarely.
    pub(super) fn of(&self, rank: Rank, channel: Channel) -> Vec<OperationId> {
        let on = |o: &Operation| o.peer == channel.peer && o.epoch == channel.epoch;
        let places = self.places.iter().enumerate();
        places
            .filter(|(_, place)| place.1.as_ref().is_some_and(on))
            .map(|(index, place)| OperationId {
                rank,
                index: index as u32,
                generation: place.0,
            })
            .collect()
    }
}

/// One side of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Phase {
    /// Not connected, by its own wish.
    Idle,
    /// Wants to be connected; the answer is under way.
    Connecting,
    Connected,
    /// The other side is gone and this one does not know yet.
    Broken,
    /// The other side is gone and this one was told.
    Failed,
}

/// What a rank keeps per peer.
#[derive(Clone, Copy, Debug)]
pub(super) struct Side {
    pub(super) phase: Phase,
    /// Connections of a pair are counted; the two sides are joined if they are in the same one.
    pub(super) epoch: u32,
    /// Messages sent that have not matched, per class of tags.
    pub(super) unmatched: [u32; TAG_CLASSES],
    /// Puts and gets outstanding.
    pub(super) rma: u32,
    /// Receives outstanding.
    pub(super) receives: u32,
    /// A send was answered with WouldBlock, so this rank is to be woken when there is room.
    pub(super) is_starved: bool,
    /// Latest arrival of a large and of a small packet, for worlds that do not reorder.
    pub(super) arrival_ns: [u64; 2],
}

impl Side {
    pub(super) const IDLE: Side = Side {
        phase: Phase::Idle,
        epoch: 0,
        unmatched: [0; TAG_CLASSES],
        rma: 0,
        receives: 0,
        is_starved: false,
        arrival_ns: [0; 2],
    };

    /// Whether it takes part in its epoch, as far as it knows.
    pub(super) fn is_up(&self) -> bool {
        matches!(self.phase, Phase::Connecting | Phase::Connected)
    }

    /// Whether it will still be told that its epoch has ended.
    pub(super) fn is_live(&self) -> bool {
        self.is_up() || self.phase == Phase::Broken
    }
}

/// A time that never comes.
pub(super) const NEVER: u64 = u64::MAX;

/// A registered region.
#[derive(Debug)]
pub(super) struct Registered {
    pub(super) region: Arc<Region>,
    /// By peer, the time from which it knows the region. It is [`NEVER`], or left out at the end,
    /// if the region was not exported to the peer.
    pub(super) exports: Vec<u64>,
}

/// One rank.
#[derive(Debug)]
pub(super) struct RankState {
    /// It has a transport that was neither dropped nor killed.
    pub(super) is_alive: bool,
    /// It leaves with this word as soon as nothing of it is under way, and does nothing any more.
    pub(super) leaving: Option<u64>,
    /// Counts its transports, so that an old one cannot act for a new one.
    pub(super) incarnation: u64,
    pub(super) is_ready: bool,
    pub(super) has_withdrawn: bool,
    pub(super) inbox: Vec<Event>,
    /// By peer; none until the first connection.
    pub(super) sides: Vec<Side>,
    pub(super) operations: Operations,
    pub(super) matcher: Matcher<OperationId>,
    pub(super) regions: Registry<Registered>,
    /// Peers' regions that this rank sees as memory; it holds them until its next poll after their
    /// end.
    pub(super) mappings: BTreeMap<(Rank, RegionKey), Arc<Region>>,
    pub(super) stale_mappings: Vec<(Rank, RegionKey)>,
    /// Memory of transports that were killed: their owners live on in this process, and have views
    /// of it.
    pub(super) buried: Vec<Arc<Region>>,
    pub(super) statistics: Statistics,
}

impl RankState {
    fn new() -> RankState {
        RankState {
            is_alive: false,
            leaving: None,
            incarnation: 0,
            is_ready: false,
            has_withdrawn: false,
            inbox: Vec::new(),
            sides: Vec::new(),
            operations: Operations::default(),
            matcher: Matcher::new(),
            regions: Registry::new(),
            mappings: BTreeMap::new(),
            stale_mappings: Vec::new(),
            buried: Vec::new(),
            statistics: Statistics::default(),
        }
    }

    pub(super) fn side(&self, peer: Rank) -> Side {
        self.sides.get(peer as usize).copied().unwrap_or(Side::IDLE)
    }

    pub(super) fn side_mut(&mut self, peer: Rank) -> &mut Side {
        if self.sides.len() <= peer as usize {
            self.sides.resize(peer as usize + 1, Side::IDLE);
        }
        &mut self.sides[peer as usize]
    }
}

impl Registered {
    /// Whether it was exported to `peer`.
    pub(super) fn is_exported_to(&self, peer: Rank) -> bool {
        self.known_at(peer) != NEVER
    }

    /// When `peer` knows it.
    pub(super) fn known_at(&self, peer: Rank) -> u64 {
        self.exports.get(peer as usize).copied().unwrap_or(NEVER)
    }

    /// Exports it to `peer`; false if that was done before.
    pub(super) fn export_to(&mut self, peer: Rank, known_ns: u64) -> bool {
        if self.exports.len() <= peer as usize {
            self.exports.resize(peer as usize + 1, NEVER);
        }
        let known = &mut self.exports[peer as usize];
        let is_new = *known == NEVER;
        *known = (*known).min(known_ns);
        is_new
    }
}

/// Why a rank loses a peer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Cause {
    Killed,
    /// In good order, with this word.
    Left(u64),
    Disconnected,
    Absent,
    /// The partition with this number.
    Partition(u64),
}

/// What a packet takes besides its ports and trunks, in nanoseconds.
#[derive(Clone, Copy, Debug)]
pub(super) struct Journey {
    /// Its latency, with what losses and jitter add.
    pub(super) ns: u64,
    /// By how much its second copy is later, if there is one.
    pub(super) copy_ns: Option<u64>,
    /// It pays the latency.
    pub(super) has_latency: bool,
}

/// Something that will happen at a known time.
#[derive(Clone, Copy, Debug)]
pub(super) enum Happening {
    /// The first byte of a packet to this rank leaves, and comes to the trunks between switches.
    Cross(OperationId, Leg, Rank, Journey),
    /// The first byte of a packet reaches the receive port of this rank.
    Arrive(OperationId, Leg, Rank),
    /// Its last byte is through the port.
    Deliver(OperationId),
    /// The sender of an announced message is asked for its bytes.
    Pull(OperationId),
    /// The poster learns how its operation ended.
    Acknowledge(OperationId),
    Connected {
        rank: Rank,
        peer: Rank,
        epoch: u32,
    },
    Lost {
        rank: Rank,
        peer: Rank,
        epoch: u32,
        cause: Cause,
    },
    Wake(Rank),
}

/// A happening in the queue; equal times in the order in which they were scheduled.
#[derive(Debug)]
struct Scheduled {
    at_ns: u64,
    sequence: u64,
    what: Happening,
}

impl PartialEq for Scheduled {
    fn eq(&self, other: &Scheduled) -> bool {
        self.sequence == other.sequence
    }
}

impl Eq for Scheduled {}

impl PartialOrd for Scheduled {
    fn partial_cmp(&self, other: &Scheduled) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Scheduled {
    fn cmp(&self, other: &Scheduled) -> std::cmp::Ordering {
        (self.at_ns, self.sequence).cmp(&(other.at_ns, other.sequence))
    }
}

/// Two sets of ranks that cannot reach each other.
#[derive(Debug)]
pub(super) struct Partition {
    pub(super) number: u64,
    pub(super) sides: [Vec<Rank>; 2],
}

/// The whole world, behind one lock.
#[derive(Debug)]
pub(super) struct State {
    pub(super) options: SimOptions,
    pub(super) clock: Arc<AtomicU64>,
    pub(super) now: u64,
    pub(super) prng: Prng,
    pub(super) ranks: Vec<RankState>,
    pub(super) wires: Wires,
    pub(super) ready: Vec<Rank>,
    pub(super) partitions: Vec<Partition>,
    pub(super) partition_last: u64,
    /// Ranks that leave.
    pub(super) leaving: Vec<Rank>,
    /// Waits for the partitions to heal.
    pub(super) parked: Vec<Happening>,
    queue: BinaryHeap<Reverse<Scheduled>>,
    /// What was scheduled in the order in which it happens, such as the answers to a thousand ranks
    /// that connect to a thousand others. A happening earlier than the last of these goes into the
    /// heap.
    in_order: VecDeque<Scheduled>,
    sequence: u64,
}

impl State {
    pub(super) fn new(options: SimOptions) -> State {
        // A wrong simulation is a fault of the program that asks for it.
        if let Err(error) = options.check() {
            panic!("{error}");
        }
        State {
            clock: Arc::new(AtomicU64::new(0)),
            now: 0,
            prng: Prng::new(options.seed),
            ranks: (0..options.ranks).map(|_| RankState::new()).collect(),
            wires: Wires::new(&options),
            ready: Vec::new(),
            partitions: Vec::new(),
            partition_last: 0,
            leaving: Vec::new(),
            parked: Vec::new(),
            queue: BinaryHeap::new(),
            in_order: VecDeque::new(),
            sequence: 0,
            options,
        }
    }

    pub(super) fn rank(&mut self, rank: Rank) -> &mut RankState {
        &mut self.ranks[rank as usize]
    }

    pub(super) fn schedule(&mut self, at_ns: u64, what: Happening) {
        self.sequence += 1;
        let scheduled = Scheduled {
            at_ns: at_ns.max(self.now),
            sequence: self.sequence,
            what,
        };
        match self.in_order.back() {
            Some(last) if last.at_ns > scheduled.at_ns => self.queue.push(Reverse(scheduled)),
            _ => self.in_order.push_back(scheduled),
        }
    }

    pub(super) fn next_ns(&self) -> Option<u64> {
        let heads = [self.queue.peek().map(|next| &next.0), self.in_order.front()];
        heads.into_iter().flatten().map(|next| next.at_ns).min()
    }

    /// The next happening that is due by now.
    pub(super) fn poll_due(&mut self) -> Option<Happening> {
        if self.next_ns()? > self.now {
            return None;
        }
        let is_of_heap = match (self.queue.peek(), self.in_order.front()) {
            (Some(Reverse(in_heap)), Some(in_order)) => in_heap < in_order,
            (in_heap, _) => in_heap.is_some(),
        };
        let next = match is_of_heap {
            true => self.queue.pop().map(|next| next.0),
            false => self.in_order.pop_front(),
        };
        next.map(|next| next.what)
    }

    pub(super) fn set_now(&mut self, now: u64) {
        self.now = now;
        // Relaxed: the clock is a number for logs and schedulers and publishes nothing else.
        self.clock.store(now, Ordering::Relaxed);
    }

    /// Notes that a rank has something to look at.
    pub(super) fn mark_ready(&mut self, rank: Rank) {
        let state = &mut self.ranks[rank as usize];
        if state.is_alive && state.leaving.is_none() && !state.is_ready {
            state.is_ready = true;
            self.ready.push(rank);
        }
    }

    /// Gives an event to a rank, to be read with its next poll.
    pub(super) fn report(&mut self, rank: Rank, event: Event) {
        let state = &mut self.ranks[rank as usize];
        if state.is_alive {
            state.inbox.push(event);
            self.mark_ready(rank);
        }
    }

    /// Reports the end of an operation to its poster.
    pub(super) fn complete(&mut self, id: OperationId, outcome: Outcome) {
        let Some(operation) = self.rank(id.rank).operations.get(id) else {
            return;
        };
        if std::mem::replace(&mut operation.is_reported, true) {
            return;
        }
        let is_rma = !matches!(operation.action, Action::Send { .. });
        let completion = Completion {
            token: operation.token,
            peer: operation.peer,
            outcome,
            bytes: operation.bytes,
            header: 0,
        };
        self.report(id.rank, Event::Completion(completion));
        if is_rma {
            let side = self.rank(id.rank).side_mut(completion.peer);
            side.rma = side.rma.saturating_sub(1);
        }
    }

    /// Reports the end of a receive.
    pub(super) fn complete_receive(&mut self, rank: Rank, completion: Completion) {
        self.report(rank, Event::Completion(completion));
        let side = self.rank(rank).side_mut(completion.peer);
        side.receives = side.receives.saturating_sub(1);
    }

    /// Reports the end of a receive without a message.
    pub(super) fn end_receive(&mut self, rank: Rank, peer: Rank, token: u64, outcome: Outcome) {
        let completion = Completion {
            token,
            peer,
            outcome,
            bytes: 0,
            header: 0,
        };
        self.complete_receive(rank, completion);
    }
}
