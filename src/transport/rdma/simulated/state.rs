//! [`DeviceWorld`]: what devices in one thread have to do, and does one thing of it after another.

use crate::kernel;
use crate::memory::View;
use crate::prng::Prng;
use crate::transport::Atomic;
use crate::transport::rdma::device::{Operation, Place};
use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard};

/// What an atomic operation and a word have.
const WORD_BYTES: usize = 8;

/// See the module. A clone is the same world.
#[derive(Clone, Debug)]
pub struct DeviceWorld(Arc<Mutex<State>>);

#[derive(Debug)]
pub struct State {
    pub random: Prng,
    /// How often a queue fails instead of doing its next post.
    pub faults: f64,
    /// By key.
    pub memories: Vec<Option<Known>>,
    /// By number.
    pub queues: Vec<Line>,
    /// By device.
    pub ended: Vec<VecDeque<Ended>>,
}

/// Registered memory, and its device.
#[derive(Debug)]
pub struct Known {
    pub view: View,
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
}

#[derive(Debug)]
pub struct Post {
    pub id: u64,
    pub operation: Operation,
    pub local: Bytes,
    pub is_signaled: bool,
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
}

/// A piece of registered memory.
#[derive(Clone, Copy, Debug)]
pub struct Piece {
    pub key: u32,
    pub offset: usize,
    pub bytes: u32,
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

    pub(super) fn lock(&self) -> MutexGuard<'_, State> {
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
    pub fn own_bytes(&self, device: usize, local: &Bytes) -> Option<Own> {
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

    pub fn end(&mut self, at: usize, id: u64, status: Status) {
        let device = self.queues[at].device;
        self.ended[device].push_back(Ended {
            id,
            queue: at as u32,
            status,
            ..Ended::default()
        });
    }

    /// Brings a queue into the error state, in which all of it ends.
    pub fn stop(&mut self, at: usize) {
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
pub enum Own {
    Copied(Vec<u8>),
    At(View),
}
