//! [`Lanes`]: what the queues, the memory and the device of one domain share, with the posts that
//! wait for room; and these as the protocol sees them.

use crate::transport::rdma::{self, Local, Operation};
use linerate_fabric_sys as fabric;
use linerate_fabric_sys::{
    Completion, CompletionQueue, Endpoint, Mr, Peer, Place, PollError, Posted, Read, Write,
};
use std::collections::{BTreeMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// The number of every receive.
const RECEIVE_ID: u64 = u64::MAX;
/// A post's number has that of its queue above its own.
const ID_BITS: u32 = 40;
/// Completions that are taken from the provider at once.
const BATCH: usize = 16;
/// What has come to an endpoint came by no queue.
const NO_QUEUE: u32 = u32::MAX;

/// See the module.
pub struct Lanes {
    endpoint: Arc<Endpoint>,
    queue: Arc<CompletionQueue>,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    /// Registered memory, by numbers that are not used twice.
    memories: BTreeMap<u64, Arc<Mr>>,
    next_memory: u64,
    /// The peers of queues, once they are joined.
    peers: BTreeMap<u32, Option<Arc<Peer>>>,
    next_queue: u32,
    /// Posts that found no room, by queue: one peer may take none for long.
    waiting: BTreeMap<u32, VecDeque<Request>>,
    /// What has ended without having been posted.
    ended: VecDeque<Ended>,
    /// Receives that are to be posted.
    receives: usize,
}

impl Lanes {
    /// Of an endpoint whose posts and arrivals complete in `queue`, with this many receives.
    pub fn new(
        endpoint: Arc<Endpoint>,
        queue: Arc<CompletionQueue>,
        receives: usize,
    ) -> Result<Lanes, fabric::Error> {
        let state = State {
            receives,
            ..State::default()
        };
        let lanes = Lanes {
            endpoint,
            queue,
            state: Mutex::new(state),
        };
        lanes.post_receives(&mut lanes.lock())?;
        Ok(lanes)
    }

    pub fn endpoint(&self) -> &Arc<Endpoint> {
        &self.endpoint
    }

    pub fn queue(&self) -> &Arc<CompletionQueue> {
        &self.queue
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Memory that posts may name from now on.
    pub fn add_memory(self: &Arc<Lanes>, region: Arc<Mr>) -> OfiMemory {
        let mut state = self.lock();
        let number = state.next_memory;
        state.next_memory += 1;
        state.memories.insert(number, Arc::clone(&region));
        OfiMemory {
            lanes: Arc::clone(self),
            number,
            region,
        }
    }

    /// A queue to a peer that is not known yet.
    pub fn add_queue(self: &Arc<Lanes>) -> OfiQueue {
        let mut state = self.lock();
        let number = state.next_queue;
        // A post's number has room for this many, of which few live at once.
        state.next_queue = (number + 1) % (1 << (u64::BITS - ID_BITS));
        state.peers.insert(number, None);
        OfiQueue {
            lanes: Arc::clone(self),
            number,
        }
    }

    /// A queue leads to this peer.
    pub fn join(&self, queue: u32, peer: Arc<Peer>) {
        self.lock().peers.insert(queue, Some(peer));
    }

    /// Takes what has ended, and lets posts and receives go on that found no room.
    pub fn poll(&self, room: &mut [Ended]) -> Result<usize, String> {
        let mut state = self.lock();
        let mut found = 0;
        while found < room.len()
            && let Some(ended) = state.ended.pop_front()
        {
            room[found] = ended;
            found += 1;
        }
        while found < room.len() {
            let mut batch = [Completion::default(); BATCH];
            let asked = BATCH.min(room.len() - found);
            match self.queue.poll(&mut batch[..asked]) {
                Ok(0) => break,
                // Fewer than asked for may be all before a failure, which has others behind it.
                Ok(count) => {
                    for one in &batch[..count] {
                        state.receives += usize::from(one.id() == Some(RECEIVE_ID));
                        room[found] = Ended::of(one);
                        found += 1;
                    }
                }
                Err(PollError::Operation(failure)) => match failure.id {
                    Some(RECEIVE_ID) => state.receives += 1,
                    // What a peer has begun and has not done, the peer hears of.
                    None => {}
                    Some(id) => {
                        room[found] = Ended {
                            id,
                            failure: Some(text_of(&failure).into()),
                            ..Ended::default()
                        };
                        found += 1;
                    }
                },
                Err(PollError::Queue(error)) => return Err(error.to_string()),
            }
        }
        self.post_receives(&mut state).map_err(|e| e.to_string())?;
        self.go_on(&mut state);
        Ok(found)
    }

    fn post_receives(&self, state: &mut State) -> Result<(), fabric::Error> {
        while state.receives > 0 {
            match self.endpoint.post_receive(RECEIVE_ID)? {
                Posted::Started => state.receives -= 1,
                Posted::Busy => break,
            }
        }
        Ok(())
    }

    /// Posts what waits, as far as there is room.
    fn go_on(&self, state: &mut State) {
        if state.waiting.is_empty() {
            return;
        }
        let mut waiting = std::mem::take(&mut state.waiting);
        for (&queue, requests) in &mut waiting {
            while let Some(request) = requests.front()
                && self.try_post(state, queue, request) == Posted::Started
            {
                requests.pop_front();
            }
        }
        waiting.retain(|_, requests| !requests.is_empty());
        state.waiting = waiting;
    }

    /// Posts a request. What cannot be posted has ended.
    fn try_post(&self, state: &mut State, queue: u32, request: &Request) -> Posted {
        let posted = self.hand_over(state, queue, request);
        posted.unwrap_or_else(|cause| {
            state.ended.push_back(Ended {
                id: named(queue, request.id),
                failure: Some(cause.into()),
                ..Ended::default()
            });
            Posted::Started
        })
    }

    fn hand_over(&self, state: &State, queue: u32, request: &Request) -> Result<Posted, String> {
        let peer = state.peers.get(&queue).and_then(Option::as_ref);
        let peer = peer.ok_or("a post to a queue that is not joined")?;
        let piece = request.piece.ok_or("a post without registered memory")?;
        let region = state.memories.get(&piece.memory);
        let segment = region.and_then(|region| region.segment(piece.offset, piece.bytes as usize));
        let segment = segment.ok_or("a post of memory that is not registered any more")?;
        let id = named(queue, request.id);
        let posted = match request.operation {
            Operation::Write(place, data) => self.endpoint.post_write(&Write {
                id,
                source: segment,
                peer,
                place: place_of(place),
                data,
                is_more: false,
            }),
            Operation::Read(place) => self.endpoint.post_read(&Read {
                id,
                destination: segment,
                peer,
                place: place_of(place),
                is_more: false,
            }),
            Operation::FetchAndAdd { .. } | Operation::CompareAndSwap { .. } => {
                return Err("this provider has no atomic operations".into());
            }
        };
        posted.map_err(|error| error.to_string())
    }
}

/// Why a post has ended badly. Its number says nothing to people.
fn text_of(failure: &fabric::Failure) -> String {
    let what = match failure.operation {
        Some(fabric::Operation::Read) => "a read",
        _ => "a write",
    };
    format!(
        "{what} of {}: {} ({})",
        failure.name, failure.text, failure.provider_text
    )
}

fn place_of(place: rdma::Place) -> Place {
    Place {
        address: place.address,
        key: place.key,
    }
}

/// The number of a post among those of all queues.
fn named(queue: u32, id: u64) -> u64 {
    u64::from(queue) << ID_BITS | id & ((1 << ID_BITS) - 1)
}

/// Registered memory.
pub struct OfiMemory {
    lanes: Arc<Lanes>,
    number: u64,
    region: Arc<Mr>,
}

impl Drop for OfiMemory {
    fn drop(&mut self) {
        let known = self.lanes.lock().memories.remove(&self.number);
        // Closing it must not meet the lock.
        drop(known);
    }
}

/// A piece of registered memory.
#[derive(Clone, Copy, Debug)]
pub struct Piece {
    memory: u64,
    offset: usize,
    bytes: u32,
}

impl rdma::Segment for Piece {
    #[inline]
    fn len_bytes(&self) -> u32 {
        self.bytes
    }
}

impl rdma::Memory for OfiMemory {
    type Segment = Piece;

    fn remote_key(&self) -> u64 {
        self.region.place(0).map_or(0, |place| place.key)
    }

    fn remote_address(&self) -> u64 {
        self.region.place(0).map_or(0, |place| place.address)
    }

    #[inline]
    fn segment(&self, offset: u64, bytes: u64) -> Option<Piece> {
        let (offset, bytes) = (usize::try_from(offset).ok()?, u32::try_from(bytes).ok()?);
        self.region.segment(offset, bytes as usize)?;
        Some(Piece {
            memory: self.number,
            offset,
            bytes,
        })
    }
}

/// What posts to one peer.
pub struct OfiQueue {
    lanes: Arc<Lanes>,
    number: u32,
}

impl Drop for OfiQueue {
    fn drop(&mut self) {
        let mut state = self.lanes.lock();
        state.waiting.remove(&self.number);
        let peer = state.peers.remove(&self.number);
        drop(state);
        drop(peer);
    }
}

/// A post.
#[derive(Clone, Copy, Debug)]
pub struct Request {
    id: u64,
    operation: Operation,
    piece: Option<Piece>,
}

impl rdma::Queue for OfiQueue {
    type Segment = Piece;
    type Request<'a> = Request;

    const BATCH: usize = 16;

    fn number(&self) -> u32 {
        self.number
    }

    /// Nothing is copied: EFA copies no bytes of a write.
    fn inline_bytes_max(&self) -> u32 {
        0
    }

    #[inline]
    fn request(id: u64, operation: Operation, local: Local<'_, Piece>, _: bool) -> Request {
        let piece = match local {
            Local::One(piece) | Local::Copied(piece) => Some(piece),
            Local::Empty | Local::Bytes(_) => None,
        };
        Request {
            id,
            operation,
            piece,
        }
    }

    fn signal(_: &mut Request) {}

    #[inline]
    fn post(&self, requests: &[Request]) -> std::result::Result<(), String> {
        let mut state = self.lanes.lock();
        let mut must_wait = state.waiting.contains_key(&self.number);
        for request in requests {
            must_wait =
                must_wait || self.lanes.try_post(&mut state, self.number, request) == Posted::Busy;
            if must_wait {
                let waiting = state.waiting.entry(self.number).or_default();
                waiting.push_back(*request);
            }
        }
        Ok(())
    }

    /// The device has its own.
    fn post_receives(&self) -> std::result::Result<(), String> {
        Ok(())
    }

    /// What waits ends; what is under way goes on.
    fn stop(&self) -> bool {
        let mut state = self.lanes.lock();
        for request in state.waiting.remove(&self.number).unwrap_or_default() {
            state.ended.push_back(Ended {
                id: named(self.number, request.id),
                is_stopped: true,
                failure: Some("the queue was stopped".into()),
                ..Ended::default()
            });
        }
        true
    }
}

/// What has ended, or has come.
#[derive(Clone, Debug, Default)]
pub struct Ended {
    id: u64,
    /// Of a write of a peer that has come; none: a post has ended.
    data: Option<u32>,
    failure: Option<Arc<str>>,
    /// It was not posted, because its queue was stopped.
    is_stopped: bool,
}

impl Ended {
    #[inline]
    fn of(one: &Completion) -> Ended {
        Ended {
            id: one.id().unwrap_or(RECEIVE_ID),
            data: one.data(),
            failure: None,
            is_stopped: false,
        }
    }

    /// Why it has ended badly.
    pub fn failure(&self) -> Option<&str> {
        self.failure.as_deref()
    }

    /// Whether it was not posted, because its queue was stopped.
    pub fn is_stopped(&self) -> bool {
        self.is_stopped
    }
}

impl rdma::Completion for Ended {
    #[inline]
    fn is_receive(&self) -> bool {
        self.data.is_some()
    }

    #[inline]
    fn id(&self) -> u64 {
        self.id & ((1 << ID_BITS) - 1)
    }

    #[inline]
    fn queue(&self) -> u32 {
        match self.data.is_some() {
            true => NO_QUEUE,
            false => (self.id >> ID_BITS) as u32,
        }
    }

    #[inline]
    fn is_success(&self) -> bool {
        self.failure.is_none()
    }

    #[inline]
    fn immediate(&self) -> Option<u32> {
        self.data
    }
}
