//! [`DeviceWorld`]: devices in one thread. What they do next is drawn from a seed, one post at a
//! time and in the order of each queue, whenever the world is told to go on.
//!
//! The devices are strict: a write with 32 bits that finds no receive ends the test, as does a
//! queue with more posts than it has room for.

use super::device::{
    Completion, Device, Failure, Local, Memory, News, OFFER_BYTES, Offer, Operation, Place, Queue,
    Segment,
};
use super::sizes::{RECEIVES_AT_ONCE, Sizes};
use super::{Parts, RdmaTransport};
use crate::config::VerbsSettings;
use crate::error::Result;
use crate::kernel;
use crate::memory::{Region, View};
use crate::prng::Prng;
use crate::transport::sim::SimTransport;
use crate::transport::{Atomic, PortInUse, Transport};
use crate::types::Rank;
use std::collections::VecDeque;
use std::os::fd::BorrowedFd;
use std::sync::{Arc, Mutex, MutexGuard};

/// What an atomic operation and a word have.
const WORD_BYTES: usize = 8;
/// Bytes that a post may copy.
const INLINE_BYTES: u32 = 64;

/// See the module. A clone is the same world.
#[derive(Clone, Debug)]
pub struct DeviceWorld(Arc<Mutex<State>>);

#[derive(Debug)]
struct State {
    random: Prng,
    /// How often a queue fails instead of doing its next post.
    faults: f64,
    /// By key.
    memories: Vec<Option<Known>>,
    /// By number.
    queues: Vec<Line>,
    /// By device.
    ended: Vec<VecDeque<Ended>>,
}

/// Registered memory, and its device.
#[derive(Debug)]
struct Known {
    view: View,
    device: usize,
}

/// A queue, as the world sees it.
#[derive(Debug)]
struct Line {
    device: usize,
    peer: Option<u32>,
    posts: VecDeque<Post>,
    posts_max: usize,
    receives: u32,
    is_stopped: bool,
}

#[derive(Debug)]
struct Post {
    id: u64,
    operation: Operation,
    local: Bytes,
    is_signaled: bool,
}

/// The own bytes of a post.
#[derive(Debug)]
enum Bytes {
    Copied(Vec<u8>),
    Registered(Piece),
}

/// How something has ended.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Status {
    #[default]
    Done,
    Flushed,
    Refused,
    Broken,
}

/// What has ended on a device.
#[derive(Clone, Copy, Debug, Default)]
struct Ended {
    is_receive: bool,
    id: u64,
    queue: u32,
    status: Status,
    immediate: Option<u32>,
}

impl DeviceWorld {
    /// One device for each rank. `faults` is the share of posts at which their queue fails instead.
    pub fn new(ranks: u32, seed: u64, faults: f64) -> DeviceWorld {
        DeviceWorld(Arc::new(Mutex::new(State {
            random: Prng::new(seed),
            faults,
            memories: Vec::new(),
            queues: Vec::new(),
            ended: (0..ranks).map(|_| VecDeque::new()).collect(),
        })))
    }

    /// The transport of a rank, which finds its peers through `control`.
    pub fn transport(
        &self,
        of_rank: (Rank, u32),
        control: SimTransport,
        settings: &VerbsSettings,
    ) -> Result<Box<dyn Transport>> {
        let device = SimDevice {
            world: self.clone(),
            number: of_rank.0 as usize,
            name: format!("sim{}", of_rank.0),
        };
        let sizes = Sizes::of(settings.slots, of_rank.1.saturating_sub(1));
        let parts = Parts {
            devices: vec![device],
            sizes,
            control: Box::new(control),
        };
        let transport = RdmaTransport::new(of_rank, parts, settings, false)?;
        Ok(Box::new(transport))
    }

    /// Does one post, drawn from the seed; false: there is none.
    pub fn advance(&self) -> bool {
        let mut state = self.lock();
        let can_go_on =
            |line: &Line| line.peer.is_some() && !line.is_stopped && !line.posts.is_empty();
        let able: Vec<usize> = (0..state.queues.len())
            .filter(|&at| can_go_on(&state.queues[at]))
            .collect();
        if able.is_empty() {
            return false;
        }
        let at = able[state.random.below(able.len() as u64) as usize];
        state.go_on(at);
        true
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.0.lock().expect("a panic inside the simulation")
    }
}

impl State {
    /// Does the first post of a queue.
    fn go_on(&mut self, at: usize) {
        let faults = self.faults;
        let post = self.queues[at]
            .posts
            .pop_front()
            .expect("looked at just now");
        let peer = self.queues[at].peer.expect("looked at just now") as usize;
        let status = match self.queues[peer].is_stopped || self.random.chance(faults) {
            true => Status::Broken,
            false => self.perform(at, peer, &post),
        };
        if post.is_signaled || status != Status::Done {
            self.end(at, post.id, status);
        }
        if status != Status::Done {
            self.stop(at);
        }
        if status == Status::Refused {
            self.stop(peer);
        }
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
                    let line = &mut self.queues[peer];
                    assert!(line.receives > 0, "a write with 32 bits found no receive");
                    line.receives -= 1;
                    self.ended[device].push_back(Ended {
                        is_receive: true,
                        queue: peer as u32,
                        immediate: Some(bits),
                        ..Ended::default()
                    });
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
    fn own_bytes(&self, device: usize, local: &Bytes) -> Option<Own> {
        match local {
            Bytes::Copied(bytes) => Some(Own::Copied(bytes.clone())),
            Bytes::Registered(piece) => {
                let known = self.memories[piece.key as usize].as_ref()?;
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
        let known = self.memories.get(place.key as usize)?.as_ref()?;
        let start = known.view.as_ptr() as u64;
        let offset = usize::try_from(place.address.checked_sub(start)?).ok()?;
        let is_inside = offset.checked_add(bytes)? <= known.view.len_bytes();
        (known.device == device && is_inside).then(|| known.view.part(offset, bytes))
    }

    fn end(&mut self, at: usize, id: u64, status: Status) {
        let device = self.queues[at].device;
        self.ended[device].push_back(Ended {
            id,
            queue: at as u32,
            status,
            ..Ended::default()
        });
    }

    /// Brings a queue into the error state, in which all of it ends.
    fn stop(&mut self, at: usize) {
        let line = &mut self.queues[at];
        line.is_stopped = true;
        let posts = std::mem::take(&mut line.posts);
        let receives = std::mem::take(&mut line.receives);
        for post in posts {
            self.end(at, post.id, Status::Flushed);
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
enum Own {
    Copied(Vec<u8>),
    At(View),
}

/// A device of a rank.
#[derive(Debug)]
struct SimDevice {
    world: DeviceWorld,
    number: usize,
    name: String,
}

/// Memory that a device knows.
#[derive(Debug)]
struct SimMemory {
    world: DeviceWorld,
    key: u32,
    bytes: usize,
    _region: Option<Arc<Region>>,
}

/// A piece of such memory.
#[derive(Clone, Copy, Debug)]
struct Piece {
    key: u32,
    offset: usize,
    bytes: u32,
}

/// A queue to one peer.
#[derive(Debug)]
struct SimQueue {
    world: DeviceWorld,
    number: u32,
}

/// A post.
#[derive(Clone, Copy, Debug)]
struct SimRequest<'a> {
    id: u64,
    operation: Operation,
    local: Local<'a, Piece>,
    is_signaled: bool,
}

impl Segment for Piece {
    fn len_bytes(&self) -> u32 {
        self.bytes
    }
}

impl Memory for SimMemory {
    type Segment = Piece;

    fn remote_key(&self) -> u32 {
        self.key
    }

    fn segment(&self, offset: u64, bytes: u64) -> Option<Piece> {
        let (offset, bytes) = (usize::try_from(offset).ok()?, u32::try_from(bytes).ok()?);
        let is_inside = offset.checked_add(bytes as usize)? <= self.bytes;
        is_inside.then_some(Piece {
            key: self.key,
            offset,
            bytes,
        })
    }
}

impl Drop for SimMemory {
    fn drop(&mut self) {
        self.world.lock().memories[self.key as usize] = None;
    }
}

impl Completion for Ended {
    fn is_receive(&self) -> bool {
        self.is_receive
    }

    fn id(&self) -> u64 {
        self.id
    }

    fn queue(&self) -> u32 {
        self.queue
    }

    fn is_success(&self) -> bool {
        self.status == Status::Done
    }

    fn immediate(&self) -> Option<u32> {
        self.immediate
    }
}

impl Queue for SimQueue {
    type Segment = Piece;
    type Request<'a> = SimRequest<'a>;

    const BATCH: usize = 8;

    fn number(&self) -> u32 {
        self.number
    }

    fn inline_bytes_max(&self) -> u32 {
        INLINE_BYTES
    }

    fn request<'a>(
        id: u64,
        operation: Operation,
        local: Local<'a, Piece>,
        is_signaled: bool,
    ) -> SimRequest<'a> {
        SimRequest {
            id,
            operation,
            local,
            is_signaled,
        }
    }

    fn signal(request: &mut SimRequest<'static>) {
        request.is_signaled = true;
    }

    fn post(&self, requests: &[SimRequest<'_>]) -> std::result::Result<(), String> {
        let mut state = self.world.lock();
        let at = self.number as usize;
        for request in requests {
            let local = match request.local {
                Local::Empty => Bytes::Copied(Vec::new()),
                Local::Bytes(bytes) => Bytes::Copied(bytes.to_vec()),
                Local::One(piece) => Bytes::Registered(piece),
                Local::Copied(piece) => {
                    let device = state.queues[at].device;
                    let Some(Own::At(view)) = state.own_bytes(device, &Bytes::Registered(piece))
                    else {
                        return Err("memory that is not registered".into());
                    };
                    let mut bytes = vec![0; view.len_bytes()];
                    kernel::read(view, 0, &mut bytes);
                    Bytes::Copied(bytes)
                }
            };
            let line = &mut state.queues[at];
            if line.is_stopped {
                state.end(at, request.id, Status::Flushed);
                continue;
            }
            line.posts.push_back(Post {
                id: request.id,
                operation: request.operation,
                local,
                is_signaled: request.is_signaled,
            });
            assert!(line.posts.len() <= line.posts_max, "a queue overflows");
        }
        Ok(())
    }

    fn post_receives(&self) -> std::result::Result<(), String> {
        self.world.lock().queues[self.number as usize].receives += RECEIVES_AT_ONCE;
        Ok(())
    }

    fn stop(&self) -> bool {
        self.world.lock().stop(self.number as usize);
        true
    }
}

impl Drop for SimQueue {
    fn drop(&mut self) {
        let mut state = self.world.lock();
        let line = &mut state.queues[self.number as usize];
        line.is_stopped = true;
        line.posts.clear();
        line.receives = 0;
    }
}

impl Device for SimDevice {
    const NAME: &'static str = "rdma";

    type Memory = SimMemory;
    type Queue = SimQueue;
    type Completion = Ended;

    fn name(&self) -> &str {
        &self.name
    }

    fn port(&self) -> PortInUse {
        PortInUse {
            device: self.name.as_str().into(),
            number: 1,
            mtu_bytes: 4096,
            peers_mtu_bytes: None,
            gid_index: 0,
            is_ethernet: false,
            inline_bytes: INLINE_BYTES,
            queue_pairs: 1,
        }
    }

    fn bytes_per_second(&self) -> f64 {
        0.0
    }

    fn is_copied_at_fork(&self) -> bool {
        true
    }

    fn descriptors(&self) -> Vec<BorrowedFd<'_>> {
        Vec::new()
    }

    fn is_there(&self) -> bool {
        true
    }

    fn is_active(&self) -> bool {
        true
    }

    fn note_down(&mut self) {}

    fn refresh(&mut self) -> Option<String> {
        None
    }

    fn register(&self, view: View, region: Option<&Arc<Region>>, _: bool) -> Result<SimMemory> {
        let mut state = self.world.lock();
        let key = state.memories.len() as u32;
        state.memories.push(Some(Known {
            view,
            device: self.number,
        }));
        Ok(SimMemory {
            world: self.world.clone(),
            key,
            bytes: view.len_bytes(),
            _region: region.cloned(),
        })
    }

    fn open_queue(&self, sizes: Sizes, _: u32) -> Result<(SimQueue, Offer)> {
        let mut state = self.world.lock();
        let number = state.queues.len() as u32;
        state.queues.push(Line {
            device: self.number,
            peer: None,
            posts: VecDeque::new(),
            posts_max: sizes.sends as usize,
            receives: sizes.receives,
            is_stopped: false,
        });
        let mut offer = [0; OFFER_BYTES];
        offer[..4].copy_from_slice(&number.to_le_bytes());
        let world = self.world.clone();
        Ok((SimQueue { world, number }, offer))
    }

    fn join(
        &mut self,
        queue: &SimQueue,
        _: &Offer,
        other: &Offer,
    ) -> std::result::Result<(), String> {
        let peer = u32::from_le_bytes([other[0], other[1], other[2], other[3]]);
        let mut state = self.world.lock();
        if peer as usize >= state.queues.len() {
            return Err(format!("there is no queue {peer}"));
        }
        state.queues[queue.number as usize].peer = Some(peer);
        Ok(())
    }

    fn poll(&self, room: &mut [Ended]) -> std::result::Result<usize, String> {
        let mut state = self.world.lock();
        let ended = &mut state.ended[self.number];
        let count = ended.len().min(room.len());
        for (place, one) in room.iter_mut().zip(ended.drain(..count)) {
            *place = one;
        }
        Ok(count)
    }

    fn arm(&mut self) {}

    fn explain(&self, ended: &Ended) -> Failure {
        Failure {
            cause: format!("{}: queue {}: {:?}", self.name, ended.queue, ended.status),
            is_refused: ended.status == Status::Refused,
            is_path: ended.status == Status::Broken,
            is_consequence: ended.status == Status::Flushed,
        }
    }

    fn poll_news(&mut self) -> Option<(News, String)> {
        None
    }
}
