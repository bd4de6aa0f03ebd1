//! [`DeviceWorld`]: what devices in one thread have to do, and does one thing of it after another.

use crate::kernel;
use crate::memory::{Region, View};
use crate::prng::Prng;
use crate::transport::Atomic;
use crate::transport::rdma::device::{Operation, Place};
use crate::transport::rdma::record::Immediate;
use std::collections::{BTreeMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard};

/// What an atomic operation and a word have.
const WORD_BYTES: usize = 8;
/// Into how many parts, of whole lines, a write without order is divided at most.
const PARTS_MAX: usize = 4;
const LINE_BYTES: usize = 64;
/// How much of what has come, and is told late, each look at a device finds.
const FOUND_SHARE: f64 = 0.05;
/// What comes to a device without connected queues comes to none of them.
const NO_QUEUE: u32 = u32::MAX;

/// See the module. A clone is the same world.
#[derive(Clone, Debug)]
pub struct DeviceWorld(Arc<Mutex<State>>);

/// What devices do wrong, so that tests can show that they find it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Defect {
    /// Records are told with the position in which they come.
    NumbersByArrival,
    /// A write is told to have come before all of its bytes are there.
    TellsBeforeBytes,
    /// Memory can be written by its key after the end of its registration.
    KeepsKeys,
    /// Posts are told to have ended before they have.
    EndsEarly,
    /// What has ended is lost where the completion queue is full, and that has few places.
    Overruns,
}

/// Places of a completion queue that has few.
const FEW_PLACES: usize = 4;

#[derive(Debug)]
pub struct State {
    pub random: Prng,
    pub defect: Option<Defect>,
    /// Records that have come, by device and sender, where they are numbered so.
    come: BTreeMap<(usize, u32), u32>,
    /// Regions whose keys are kept.
    pub kept: Vec<Arc<Region>>,
    /// Of each completion queue.
    pub places: usize,
    /// Queues do their posts, and writes their lines, in order; completions come in that order.
    pub is_ordered: bool,
    /// How often a queue fails instead of doing its next post.
    pub faults: f64,
    /// By the low bits of their keys.
    pub memories: Vec<Option<Known>>,
    /// By number.
    pub queues: Vec<Line>,
    /// By device.
    pub ended: Vec<VecDeque<Ended>>,
    /// Posts that are done, and arrivals, of which their device is told later, where it has no
    /// order.
    late: Vec<(usize, Ended)>,
}

/// Registered memory, and its device.
#[derive(Debug)]
pub struct Known {
    pub view: View,
    /// By what peers name its first byte.
    pub place: Place,
    pub device: usize,
}

/// A queue, as the world sees it.
#[derive(Debug)]
pub struct Line {
    pub device: usize,
    pub peer: Option<u32>,
    pub posts: VecDeque<Post>,
    pub posts_max: usize,
    pub receives: u32,
    pub is_stopped: bool,
    /// Nobody is told of its posts any more.
    pub is_dropped: bool,
}

#[derive(Debug)]
pub struct Post {
    pub id: u64,
    pub operation: Operation,
    pub local: Bytes,
    pub is_signaled: bool,
    /// What may not change before the completion, and the sum of its bytes.
    pub source: Option<(Piece, u64)>,
    /// Of a write that is done in parts: which of them are done.
    pub is_written: Vec<bool>,
}

/// The own bytes of a post.
#[derive(Debug)]
pub enum Bytes {
    Copied(Vec<u8>),
    Registered(Piece),
}

/// How something has ended.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Status {
    #[default]
    Done,
    Flushed,
    Refused,
    Broken,
}

/// What has ended on a device.
#[derive(Clone, Copy, Debug, Default)]
pub struct Ended {
    pub is_receive: bool,
    pub id: u64,
    pub queue: u32,
    pub status: Status,
    pub immediate: Option<u32>,
    /// What a device without order may have read until now, and the sum of its bytes.
    pub source: Option<(Piece, u64)>,
}

/// A piece of registered memory.
#[derive(Clone, Copy, Debug)]
pub struct Piece {
    pub at: usize,
    pub offset: usize,
    pub bytes: u32,
}

impl DeviceWorld {
    /// One device for each rank. `faults` is the share of posts at which their queue fails instead.
    pub fn new(ranks: u32, seed: u64, faults: f64) -> DeviceWorld {
        DeviceWorld::of(ranks, seed, faults, true)
    }

    /// Devices that do posts, and the lines of a write, in any order, and tell so in any order.
    pub fn unordered(ranks: u32, seed: u64, faults: f64) -> DeviceWorld {
        DeviceWorld::of(ranks, seed, faults, false)
    }

    fn of(ranks: u32, seed: u64, faults: f64, is_ordered: bool) -> DeviceWorld {
        DeviceWorld(Arc::new(Mutex::new(State {
            random: Prng::new(seed),
            defect: None,
            come: BTreeMap::new(),
            kept: Vec::new(),
            places: usize::MAX,
            is_ordered,
            faults,
            memories: Vec::new(),
            queues: Vec::new(),
            ended: (0..ranks).map(|_| VecDeque::new()).collect(),
            late: Vec::new(),
        })))
    }

    /// All devices of this world have a defect.
    pub fn with(self, defect: Defect) -> DeviceWorld {
        self.lock().defect = Some(defect);
        self
    }

    /// Does one post, drawn from the seed, or tells of one; false: there is none.
    pub fn advance(&self) -> bool {
        let mut state = self.lock();
        let can_go_on =
            |line: &Line| line.peer.is_some() && !line.is_stopped && !line.posts.is_empty();
        let able: Vec<usize> = (0..state.queues.len())
            .filter(|&at| can_go_on(&state.queues[at]))
            .collect();
        let choices = able.len() + state.late.len();
        if choices == 0 {
            return false;
        }
        let choice = state.random.below(choices as u64) as usize;
        match able.get(choice) {
            Some(&at) => state.go_on(at),
            None => {
                let (device, ended) = state.late.swap_remove(choice - able.len());
                state.tell(device, ended);
            }
        }
        true
    }

    pub(super) fn is_ordered(&self) -> bool {
        self.lock().is_ordered
    }

    pub(super) fn lock(&self) -> MutexGuard<'_, State> {
        self.0.lock().expect("a panic inside the simulation")
    }
}

impl State {
    /// Does the first post of a queue, or where they have no order any, or a part of it.
    fn go_on(&mut self, at: usize) {
        let faults = self.faults;
        let count = self.queues[at].posts.len() as u64;
        let which = match self.is_ordered {
            true => 0,
            false => self.random.below(count) as usize,
        };
        let peer = self.queues[at].peer.expect("looked at just now") as usize;
        if !self.is_ordered && self.write_part(at, peer, which) {
            return;
        }
        let posts = &mut self.queues[at].posts;
        let post = posts.remove(which).expect("looked at just now");
        let is_cut = self.is_ordered && self.queues[peer].is_stopped;
        let status = match is_cut || self.random.chance(faults) {
            true => Status::Broken,
            false => self.perform(at, peer, &post),
        };
        // Without connected queues, what is written to memory that is not registered any more may
        // end well.
        let is_unnoticed = !self.is_ordered && status == Status::Refused && self.random.chance(0.5);
        let status = if is_unnoticed { Status::Done } else { status };
        let is_told = self.defect == Some(Defect::EndsEarly);
        if !is_told && (post.is_signaled || status != Status::Done) {
            let source = post.source.filter(|_| status == Status::Done);
            self.end(at, post.id, status, source);
        }
        if status != Status::Done && self.is_ordered {
            self.stop(at);
            if status == Status::Refused {
                self.stop(peer);
            }
        }
    }

    /// Does all posts of a queue.
    pub fn finish(&mut self, at: usize) {
        if self.queues[at].peer.is_some() && self.defect != Some(Defect::EndsEarly) {
            while !self.queues[at].posts.is_empty() {
                self.go_on(at);
            }
        }
        self.tell_late(at);
    }

    /// Tells of all posts of a queue that are done.
    fn tell_late(&mut self, at: usize) {
        let (ends, late): (Vec<_>, Vec<_>) =
            (self.late.drain(..)).partition(|(_, ended)| ended.queue as usize == at);
        self.late = late;
        for (device, ended) in ends {
            self.tell(device, ended);
        }
    }

    /// Does a part of a write that others follow; false: it is to be done as a whole.
    fn write_part(&mut self, at: usize, peer: usize, which: usize) -> bool {
        let (own, device) = (self.queues[at].device, self.queues[peer].device);
        let post = &self.queues[at].posts[which];
        let Operation::Write(place, _) = post.operation else {
            return false;
        };
        let Some(Own::At(source)) = self.own_bytes(own, &post.local) else {
            return false;
        };
        let bytes = source.len_bytes();
        let part = bytes.div_ceil(PARTS_MAX).next_multiple_of(LINE_BYTES);
        let (parts, done) = (bytes.div_ceil(part.max(1)), post.is_written.clone());
        let left: Vec<usize> = (0..parts).filter(|&n| done.get(n) != Some(&true)).collect();
        let Some(target) = self.find(device, place, bytes).filter(|_| left.len() > 1) else {
            return false;
        };
        let next = left[self.random.below(left.len() as u64) as usize];
        let (start, len) = (next * part, part.min(bytes - next * part));
        kernel::copy(source.part(start, len), target.part(start, len));
        if self.defect == Some(Defect::TellsBeforeBytes) {
            let operation = &mut self.queues[at].posts[which].operation;
            if let Operation::Write(_, immediate) = operation
                && let Some(bits) = immediate.take()
            {
                self.tell_arrival(peer, bits);
            }
        }
        let is_written = &mut self.queues[at].posts[which].is_written;
        is_written.resize(parts, false);
        is_written[next] = true;
        true
    }

    fn perform(&mut self, at: usize, peer: usize, post: &Post) -> Status {
        let own = self.queues[at].device;
        let Some(local) = self.own_bytes(own, &post.local) else {
            return Status::Broken;
        };
        let bytes = match &local {
            Own::Copied(bytes) => bytes.len(),
            Own::At(view) => view.len_bytes(),
        };
        let device = self.queues[peer].device;
        match post.operation {
            Operation::Write(place, immediate) => {
                let Some(target) = self.find(device, place, bytes) else {
                    return Status::Refused;
                };
                match local {
                    Own::Copied(bytes) => kernel::write(target, 0, &bytes),
                    Own::At(view) => kernel::copy(view, target),
                }
                if let Some(bits) = immediate {
                    self.tell_arrival(peer, bits);
                }
            }
            Operation::Read(place) => match (self.find(device, place, bytes), local) {
                (Some(source), Own::At(view)) => kernel::copy(source, view),
                _ => return Status::Refused,
            },
            Operation::FetchAndAdd { place, add } => {
                return self.change(device, place, Atomic::FetchAdd(add), local);
            }
            Operation::CompareAndSwap {
                place,
                compare,
                swap,
            } => {
                return self.change(device, place, Atomic::CompareSwap { compare, swap }, local);
            }
        }
        Status::Done
    }

    /// A write with these 32 bits has come to a queue.
    fn tell_arrival(&mut self, at: usize, bits: u32) {
        let device = self.queues[at].device;
        if self.is_ordered {
            let line = &mut self.queues[at];
            assert!(line.receives > 0, "a write with 32 bits found no receive");
            line.receives -= 1;
        }
        let by_arrival = self.defect == Some(Defect::NumbersByArrival);
        let bits = match Immediate::parse(bits) {
            (sender, Immediate::Slot(_)) if by_arrival => {
                let come = self.come.entry((device, sender)).or_default();
                *come += 1;
                Immediate::Slot(*come - 1).emit(sender)
            }
            _ => bits,
        };
        let ended = Ended {
            is_receive: true,
            queue: match self.is_ordered {
                true => at as u32,
                false => NO_QUEUE,
            },
            immediate: Some(bits),
            ..Ended::default()
        };
        // Its sender may hear of it first.
        match !self.is_ordered && self.random.chance(0.5) {
            true => self.late.push((device, ended)),
            false => self.tell(device, ended),
        }
    }

    /// Does all posts, and tells of them, but not of all that has come by them.
    #[cfg(test)]
    pub fn finish_all(&mut self) {
        (0..self.queues.len()).for_each(|at| self.finish(at));
    }

    /// A device is asked what has come: some of it that is late is told now.
    pub fn hurry(&mut self, device: usize) {
        for (of, ended) in std::mem::take(&mut self.late) {
            match of == device && ended.is_receive && self.random.chance(FOUND_SHARE) {
                true => self.tell(device, ended),
                false => self.late.push((of, ended)),
            }
        }
    }

    fn change(&mut self, device: usize, place: Place, what: Atomic, local: Own) -> Status {
        match (self.find(device, place, WORD_BYTES), local) {
            (Some(word), Own::At(view)) => {
                kernel::write(view, 0, &what.apply(&word).to_ne_bytes());
                Status::Done
            }
            _ => Status::Refused,
        }
    }

    /// The bytes of a post, if they are registered still.
    pub fn own_bytes(&self, device: usize, local: &Bytes) -> Option<Own> {
        match local {
            Bytes::Copied(bytes) => Some(Own::Copied(bytes.clone())),
            Bytes::Registered(piece) => {
                let known = self.memories[piece.at].as_ref()?;
                let is_own = known.device == device;
                let part = known.view.part(piece.offset, piece.bytes as usize);
                is_own.then_some(Own::At(part))
            }
        }
    }

    /// A place of a device's memory; none where it is not registered there.
    fn find(&self, device: usize, place: Place, bytes: usize) -> Option<View> {
        if bytes == 0 {
            return Some(View::empty());
        }
        let at = (place.key & u64::from(u32::MAX)) as usize;
        let known = self.memories.get(at)?.as_ref()?;
        let start = known.place.address;
        let offset = usize::try_from(place.address.checked_sub(start)?).ok()?;
        let is_inside = offset.checked_add(bytes)? <= known.view.len_bytes();
        let is_known = known.device == device && known.place.key == place.key;
        (is_known && is_inside).then(|| known.view.part(offset, bytes))
    }

    /// By what peers name new memory. Devices without order have long keys, and count from 0.
    pub fn name(&self, at: usize, view: View) -> Place {
        match self.is_ordered {
            true => Place {
                address: view.as_ptr() as u64,
                key: at as u64,
            },
            false => Place {
                address: 0,
                key: at as u64 | 7 << 40,
            },
        }
    }

    pub fn end(&mut self, at: usize, id: u64, status: Status, source: Option<(Piece, u64)>) {
        if self.queues[at].is_dropped {
            return;
        }
        let device = self.queues[at].device;
        let ended = Ended {
            id,
            queue: at as u32,
            status,
            source,
            ..Ended::default()
        };
        let is_late = !self.is_ordered && status == Status::Done && self.random.chance(0.5);
        match is_late {
            true => self.late.push((device, ended)),
            false => self.tell(device, ended),
        }
    }

    /// The sum of the bytes that a write reads, if it may be done late.
    pub fn source_of(&self, device: usize, piece: Piece) -> Option<(Piece, u64)> {
        let Some(Own::At(view)) = self.own_bytes(device, &Bytes::Registered(piece)) else {
            return None;
        };
        let mut bytes = vec![0; view.len_bytes()];
        kernel::read(view, 0, &mut bytes);
        let sum = |sum: u64, byte: &u8| (sum ^ u64::from(*byte)).wrapping_mul(0x100000001b3);
        Some((piece, bytes.iter().fold(0xcbf29ce484222325, sum)))
    }

    /// A completion, behind the others or anywhere among them.
    fn tell(&mut self, device: usize, ended: Ended) {
        let count = self.ended[device].len();
        if self.defect == Some(Defect::Overruns) && count >= FEW_PLACES {
            return;
        }
        assert!(count < self.places, "a completion queue overflows");
        let place = match self.is_ordered {
            true => count,
            false => self.random.below(count as u64 + 1) as usize,
        };
        self.ended[device].insert(place, ended);
    }

    /// How much memory a device knows.
    #[cfg(test)]
    pub fn of_device(&self, device: usize) -> usize {
        let known = self.memories.iter().flatten();
        known.filter(|known| known.device == device).count()
    }

    /// Nobody is told any more of what a queue has done.
    pub fn forget(&mut self, device: usize, queue: u32) {
        self.ended[device].retain(|ended| ended.queue != queue);
        self.late.retain(|(_, ended)| ended.queue != queue);
    }

    /// Brings a queue into the error state, in which all of it ends.
    pub fn stop(&mut self, at: usize) {
        let line = &mut self.queues[at];
        line.is_stopped = true;
        let posts = std::mem::take(&mut line.posts);
        let receives = std::mem::take(&mut line.receives);
        self.tell_late(at);
        for post in posts {
            self.end(at, post.id, Status::Flushed, None);
        }
        for _ in 0..receives {
            let device = self.queues[at].device;
            self.ended[device].push_back(Ended {
                is_receive: true,
                queue: at as u32,
                status: Status::Flushed,
                ..Ended::default()
            });
        }
    }
}

/// The bytes of a post that is being done.
pub enum Own {
    Copied(Vec<u8>),
    At(View),
}
