//! [`Device`]: what the protocol asks of one rail: a port of an RDMA device or a domain of a
//! fabric, with what all peers share on it.
//!
//! A device reaches each peer through a [`Queue`]. Writes with 32 bits complete at the peer too,
//! after all of their bytes. Whether queues keep an order, and what their end stops,
//! [`Device::IS_CONNECTED`] says. The two halves of a queue find each other by an [`Offer`], which
//! the protocol carries and does not look into.

use super::sizes::Sizes;
use crate::error::Result;
use crate::memory::{Region, View};
use crate::transport::PortInUse;
use std::fmt::Debug;
use std::os::fd::BorrowedFd;
use std::sync::Arc;

/// Bytes of an offer.
pub const OFFER_BYTES: usize = 72;
/// What one half of a queue tells the other one; its meaning is the device's.
pub type Offer = [u8; OFFER_BYTES];

/// A place in a peer's memory, as one rail names it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Place {
    pub address: u64,
    pub key: u64,
}

/// What a post does to the peer's memory.
#[derive(Clone, Copy, Debug)]
pub enum Operation {
    /// Writes. With 32 bits it takes a receive of the peer and completes there.
    Write(Place, Option<u32>),
    /// Reads.
    Read(Place),
    /// Adds to an aligned word of 8 bytes. The own memory gets what was there.
    FetchAndAdd { place: Place, add: u64 },
    /// Puts `swap` where `compare` is, in the same way.
    CompareAndSwap {
        place: Place,
        compare: u64,
        swap: u64,
    },
}

/// The own bytes of a post.
#[derive(Clone, Copy, Debug)]
pub enum Local<'a, S> {
    Empty,
    /// The device reads or writes them until the completion.
    One(S),
    /// They are copied when posted: at most [`Queue::inline_bytes_max`].
    Copied(S),
    /// Bytes of memory that is not registered, copied when posted.
    Bytes(&'a [u8]),
}

/// A piece of registered memory, for posts on one rail.
pub trait Segment: Copy {
    fn len_bytes(&self) -> u32;
}

/// Memory that one rail knows.
pub trait Memory: Send + Sync {
    type Segment: Segment;

    /// By what peers name it.
    fn remote_key(&self) -> u64;

    /// What peers call its first byte.
    fn remote_address(&self) -> u64;

    /// A piece of it; none where it is not inside.
    fn segment(&self, offset: u64, bytes: u64) -> Option<Self::Segment>;
}

/// What has ended.
pub trait Completion: Clone + Default + Send {
    /// Whether it was a receive, not a post.
    fn is_receive(&self) -> bool;

    /// The number of the post.
    fn id(&self) -> u64;

    /// The number of the queue. What has come to a device without connected queues has none.
    fn queue(&self) -> u32;

    /// Whether it has ended well.
    fn is_success(&self) -> bool;

    /// The 32 bits of the write that has taken the receive.
    fn immediate(&self) -> Option<u32>;
}

/// Why a post or a receive has ended badly.
#[derive(Clone, Debug)]
pub struct Failure {
    pub cause: String,
    /// The peer's device has refused the place.
    pub is_refused: bool,
    /// The way to the peer is to blame.
    pub is_path: bool,
    /// It ended because the queue did, for another cause.
    pub is_consequence: bool,
}

/// What posts to one peer.
pub trait Queue: Send {
    type Segment: Segment;
    /// A post, as the device takes it.
    type Request<'a>: Send;

    /// Posts that one doorbell takes.
    const BATCH: usize;

    /// Its number on this rail.
    fn number(&self) -> u32;

    /// Bytes that a post may copy.
    fn inline_bytes_max(&self) -> u32;

    /// A post with this number, whose success makes a completion or not. Failures always do.
    fn request<'a>(
        id: u64,
        operation: Operation,
        local: Local<'a, Self::Segment>,
        is_signaled: bool,
    ) -> Self::Request<'a>;

    /// Lets the success of a post make a completion.
    fn signal(request: &mut Self::Request<'static>);

    /// Hands posts over, in order.
    fn post(&self, requests: &[Self::Request<'_>]) -> std::result::Result<(), String>;

    /// Posts [`RECEIVES_AT_ONCE`](super::sizes::RECEIVES_AT_ONCE) receives. They have no memory: a
    /// write that takes one has its own address.
    fn post_receives(&self) -> std::result::Result<(), String>;

    /// Ends all posts, of which each makes a completion; false: it cannot. Where queues are not
    /// connected, posts may end as if nothing had been said.
    fn stop(&self) -> bool;
}

/// What has happened to a rail.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum News {
    /// Nothing gets through now.
    Down,
    /// Packets get through again.
    Back,
    /// Its address may be another one.
    OtherAddress,
    /// Nothing works on it any more.
    Gone,
    /// The queue with this number has failed.
    QueueFailed(u32),
}

/// See the module.
pub trait Device: Debug + Send + Sized + 'static {
    /// The name of the transport.
    const NAME: &'static str;
    /// Whether a queue is connected to one of the peer's. What is posted to it is done, and
    /// completes, in order. Its end ends what is posted, here and at the peer.
    ///
    /// Otherwise posts, and the lines of a write, are done in any order, and nothing but the end of
    /// a registration stops a peer. Every post makes a completion, also one that could not be
    /// handed over; success means that its bytes are there, or nowhere where the registration has
    /// ended. What comes is not known by its queue.
    const IS_CONNECTED: bool;

    type Memory: Memory<Segment = <Self::Queue as Queue>::Segment>;
    type Queue: Queue;
    type Completion: Completion;

    /// For people.
    fn name(&self) -> &str;

    /// Where it is on the network; `queue_pairs` is 1. None where it has no port.
    fn port(&self) -> Option<PortInUse>;

    /// What it carries; 0: it does not say.
    fn bytes_per_second(&self) -> f64;

    /// Whether a forked child has pages of its own beside registered ones.
    fn is_copied_at_fork(&self) -> bool;

    /// What becomes readable when something has happened.
    fn descriptors(&self) -> Vec<BorrowedFd<'_>>;

    /// Whether no write of a peer goes on after the end of its registration, also one that has
    /// begun. Otherwise the memory of a receive is not given to peers.
    fn stops_at_end(&self) -> bool;

    /// Whether the device answers.
    fn is_there(&self) -> bool {
        true
    }

    /// Whether packets get through, as far as the device has told.
    fn is_active(&self) -> bool {
        true
    }

    /// Packets do not get through now.
    fn note_down(&mut self) {}

    /// Asks the device how it is on the network; news for people.
    fn refresh(&mut self) -> Option<String> {
        None
    }

    /// Registers memory: a region, or the memory of one receive, whose registration ends before its
    /// completion is given. Relaxed order is allowed where `is_relaxed`.
    fn register(
        &self,
        view: View,
        region: Option<&Arc<Region>>,
        is_relaxed: bool,
    ) -> Result<Self::Memory>;

    /// One half of a queue, with all its receives, and what the other half has to know.
    fn open_queue(&self, sizes: Sizes, packet_number: u32) -> Result<(Self::Queue, Offer)>;

    /// Joins a half with the other one. The error says why not.
    fn join(
        &mut self,
        queue: &Self::Queue,
        own: &Offer,
        other: &Offer,
    ) -> std::result::Result<(), String>;

    /// Takes completions; an error means that the device is gone.
    fn poll(&self, room: &mut [Self::Completion]) -> std::result::Result<usize, String>;

    /// Makes descriptors readable with the next completion. What arrived before has to be polled
    /// afterwards. False: they may not become readable, and the device has to be polled.
    fn arm(&mut self) -> bool;

    /// Why this has ended badly.
    fn explain(&self, completion: &Self::Completion) -> Failure;

    /// The next news, and its text for people.
    fn poll_news(&mut self) -> Option<(News, String)> {
        None
    }
}

/// Bytes that a device knows, as the library below takes them.
pub struct Bytes {
    view: View,
    _region: Option<Arc<Region>>,
}

impl Bytes {
    /// Those of a region, or of the memory of one receive.
    pub fn new(view: View, region: Option<&Arc<Region>>) -> Bytes {
        Bytes {
            view,
            _region: region.cloned(),
        }
    }

    /// The first one. It is always the same. They are mapped, writable and without Rust references
    /// as long as the region is held (a caller's: until it is deregistered, when devices and posts
    /// are done with it) or, for a receive's memory, until its completion
    /// ([`View::new`](crate::memory::View)), before which the registration ends.
    pub fn address(&self) -> *mut u8 {
        self.view.as_ptr()
    }

    /// How many, always the same: an empty region has a page all the same.
    pub fn len_bytes(&self) -> usize {
        self.view.len_bytes().max(1)
    }
}
