//! The transport contract: how bytes move between ranks. Providers: `shm`, `tcp`, both behind a
//! `router`, `verbs`, and `sim`.
//!
//! A transport is driven by one thread at a time (the engine's driver) and never blocks. It moves
//! bytes and knows nothing of collectives, types or schedules. Peers are world ranks.
//!
//! The clauses; `tests/conformance.rs` has one or more tests per number and runs on every provider:
//!
//!  1. Nothing blocks and nothing sleeps; every call returns in bounded time.
//!  2. Time is an argument. A provider never reads a clock.
//!  3. A full queue answers [`PostError::WouldBlock`] and changes nothing; the same post succeeds
//!     later. [`Event::Connected`] says that posts are taken: a provider that connects at the first
//!     use may give this answer until the connection is made, but not to the posts of clause 7 that
//!     always find room.
//!  4. Every accepted post gives exactly one [`Completion`] with its token, success or not.
//!  5. After [`Event::PeerFailed`] or [`Event::PeerLeft`] every outstanding post to that peer
//!     completes as [`Outcome::Flushed`], and later posts answer [`PostError::PeerFailed`], except
//!     a receive whose message had arrived before. (A message that the receiver itself reads out of
//!     the sender's memory arrives when a receive takes it.) One of the two events comes, once;
//!     that of a failure carries the cause. Where no connection was made yet, it comes once
//!     something is posted to the peer, or a receive of another class than [`URGENT_CLASS`] waits
//!     for it.
//!  6. A message matches a receive by (peer, tag). Messages of one (peer, tag) match in the order
//!     in which they were sent; nothing else is ordered.
//!  7. A message whose receive is not posted yet waits and never holds up a message with another
//!     tag. At most [`Capabilities::messages_per_peer`] of each class of tags ([`tag_class`]) wait
//!     per peer; a further send of that class would block, those of other classes do not. Whatever
//!     has been sent in other classes, at least [`URGENT_MESSAGES`] messages of [`URGENT_CLASS`],
//!     of at most [`CONTROL_BYTES`] each, find room.
//!  8. A completed send means that the source may be reused; what was sent leaves with the post, or
//!     with the next poll or [`Transport::hand_over`]. A completed receive means that all
//!     bytes are in the destination. A completed put or get means the same, and that the bytes of a
//!     put are visible to a peer that sees a later put or message of this rank.
//!  9. A message longer than its receive completes the receive as [`Outcome::Truncated`] with the
//!     sent length, writes nothing, and completes the send normally. A shorter one is a success
//!     with its length.
//! 10. Sends, puts and gets need memory in a registered region, except for at most
//!     [`Capabilities::inline_bytes`] bytes, which are copied when posted, and for sends for which
//!     [`Mapping::fetches`] says that the peer reads them where they lie. A peer that maps what it
//!     is sent needs a region that it can map ([`Mapping::sends_in_place`]). Receives take any
//!     memory.
//! 11. A region stays registered until [`Transport::deregister`]; its owner keeps it alive until
//!     the last completion that uses it. Keys are never reused. A put or get to a key that does not
//!     exist (any more) completes as [`Outcome::BadKey`] and touches nothing.
//! 12. The 64-bit header of a send arrives with it.
//! 13. [`Transport::cancel`] ends an outstanding receive as [`Outcome::Cancelled`] unless it
//!     completes first; either way there is exactly one completion.
//! 14. After [`Transport::disconnect`] nothing of the old connection is reported; outstanding posts
//!     to that peer complete as flushed first.
//! 15. A rank may be its own peer.
//! 16. Length zero is legal everywhere.
//! 17. [`Signals::notify`] wakes a peer that sleeps on its [`WaitSource`]; so does every message
//!     or put that arrives there, and the last of the signals that it wants
//!     ([`Signals::want_signals`]). A wake-up is never lost, and may be spurious.
//! 18. After [`Transport::withdraw`] no earlier send or put reads memory of its caller, nor does
//!     the kernel or a device on its behalf. What the peer itself reads there, mapped or out of
//!     this process, does not count. Each post that has not completed completes as
//!     [`Outcome::Cancelled`], or goes on from a copy. The peer receives such a message unchanged,
//!     or never: then its receive goes on waiting. Part of the message, or of a put, may be in the
//!     destination. What had been sent from copies, as all short messages are, still arrives. A
//!     peer that reads this rank's regions through [`Mapping::mapped`] is told so when it asks
//!     after its last read ([`Mapping::has_withdrawn`]); one that gets from them gets what is
//!     there. This call alone may wait, for some milliseconds, where a device is sending.
//! 19. [`Transport::inject`] is a send that has completed when it is accepted: no completion
//!     follows, and the source may be reused. Where it returns false, nothing has happened, and the
//!     caller posts the message.
//! 20. [`Rma::post_atomic`] changes an aligned word of 8 bytes of a region, of a peer's or of this
//!     rank's own, at once for all operations of that kind on it, no matter who posts them. What
//!     was there before comes to the result. One that completes as [`Outcome::Done`] has been done
//!     exactly once, whatever was lost and sent again meanwhile; one that is flushed at most once;
//!     one with a bad key not at all.
//! 21. A rank leaves in good order by [`Transport::leave`]; its peers get [`Event::PeerLeft`] with
//!     its word. All that it had sent counts: before the event its puts are visible and its
//!     messages have arrived, so that they meet later receives too. What a peer had sent to it is
//!     flushed unless it is known to have arrived. A rank that drops its transport without that
//!     leaves with the word 0, and what it had sent may be lost. A rank that ends in any other way
//!     has failed.
//! 22. A message whose tag begins with three ones ([`tells_arrival`]) and that finds no receive is
//!     reported once, by [`Event::Unmatched`], before the end of its peer is reported. A later
//!     receive with its tag meets it.
//! 23. A slot, the number of a peer, is used again by [`Transport::connect`] once its connection
//!     has ended: the peer has failed or left, or was disconnected. The new address may be that of
//!     another process. Each of these calls begins an *epoch* of the slot, and a connection joins
//!     one epoch of each side, so that a side whose peer has begun another one is told of the end
//!     of its own and connects again. Of the old epoch, only the ends of its posts are reported
//!     after the call, all of them before [`Event::Connected`]. What the old peer still sends or
//!     puts neither arrives in the new epoch nor changes memory after that event: where peers map
//!     memory, it comes once the old one has let go of that or its process has ended. Posts of the
//!     new epoch reach no region by what the old peer had told of it; its keys are told anew.
//!     Meanwhile the connections to other peers go on.
//!
//! # What a provider implements
//!
//! [`Transport`] itself: connections, registered memory, messages, progress and what a rank sleeps
//! on; [`Rma`]: puts, gets and atomic operations, which are the engine's signals where memory is
//! not mapped; and [`Signals::notify`]. The rest has defaults, so that an `impl` may be empty:
//! [`Mapping`] where peers reach memory in place, [`Expecting`] for what the router uses between
//! hosts, and [`Diagnostics`] for people, errors and tests.
//!
//! # Memory of posts
//!
//! The posts are `unsafe` because of one promise, which their caller makes and keeps: the bytes of
//! the view stay mapped, and nobody makes a Rust reference to them that conflicts (none at all to a
//! destination or a result, no mutable one to a source), until the completion of the post or the
//! end of the transport. What is copied when posted ([`Transport::inject`], and sources of at most
//! [`Capabilities::inline_bytes`]) and what is refused needs that until the call returns.
//!
//! [`URGENT_MESSAGES`]: crate::limits::URGENT_MESSAGES
//! [`CONTROL_BYTES`]: crate::limits::CONTROL_BYTES

mod abilities;
pub(crate) mod between;
mod buffers;
mod causes;
mod credits;
pub(crate) mod fabric;
mod loopback;
mod matching;
pub(crate) mod ofi;
pub(crate) mod open;
mod pieces;
mod places;
mod posts;
pub(crate) mod rdma;
mod registry;
mod requests;
mod rma;
pub(crate) mod router;
pub(crate) mod shm;
pub(crate) mod sim;
mod sleeping;
pub(crate) mod tcp;
mod transfers;
pub(crate) mod verbs;
pub(crate) mod words;

pub use abilities::{Diagnostics, Expecting, Mapping, PortInUse, Signals};
pub(crate) use between::{
    Agreed, Far, Lack, Offer, REQUIRED, agree, check_required, describe, own_offer,
};
pub(crate) use causes::proves_end;
pub use causes::{ENDED, LEFT, UNREACHABLE};
pub(crate) use fabric::Fabric;
pub use open::{Options, open};
#[cfg(test)]
pub(crate) use places::PROOF_TIME;
pub(crate) use places::{ENTRANCE, Places, Standing};
pub use rma::{Atomic, RemoteRange, Rma};

pub use crate::limits::{CONTROL_BYTES, MESSAGES_PER_PEER, URGENT_MESSAGES};
pub use crate::memory::{Region, RegionKey, View};
pub use crate::time::Time;
pub use crate::wait::{Traffic, WaitSource};

use crate::error::{Error, Result};
use crate::limits::LINE_PAYLOAD_BYTES;
use crate::types::Rank;
use std::sync::Arc;
use std::time::Duration;

/// What a provider can do and how much of it. Constant after construction.
#[derive(Clone, Debug, PartialEq)]
pub struct Capabilities {
    /// Its name, as flags spell it.
    pub name: &'static str,
    /// It joins ranks of one host only. Ranks on several hosts get an error that says so.
    pub one_host: bool,
    /// [`Mapping::mapped`] gives peers' regions as memory that can be read and written in place. It
    /// needs all of [`Mapping`].
    pub mapped: bool,
    /// Not `mapped`, but [`Mapping::mapped`] gives the regions of those peers of this host of which
    /// [`Mapping::maps`] holds, and stores to their memory are signals.
    pub host_mapped: bool,
    /// Stores to a peer's mapped memory are themselves the signal: after an ordinary release store
    /// the peer sees it, and [`Signals::notify`] only wakes it. Otherwise signals are puts. It
    /// needs all of [`Signals`].
    pub store_signals: bool,
    /// Peers may map regions, which therefore are shared memory ([`Region::shared`]).
    pub shared_regions: bool,
    /// Largest source that need not be registered: it is copied when posted. At least one cache
    /// line.
    pub inline_bytes: usize,
    /// Unmatched messages of one class of tags that a peer will hold for this rank; more are
    /// answered with WouldBlock.
    pub messages_per_peer: u32,
    /// Chunks of one message that the engine keeps under way, at most 8.
    pub chunks_in_flight: u32,
    /// Regions may be in device memory.
    pub device_memory: bool,
    /// Bytes of callers' memory that stay registered after a call, at most. 0: a registration does
    /// not make calls on that memory faster, or is not wanted.
    pub cached_bytes_max: u64,
    /// Links that one peer's traffic is spread over.
    pub rails: u32,
    /// Estimated time of an empty message, nanoseconds. A first guess for the cost model.
    pub latency_ns: f64,
    /// Estimated time that a message takes of a port besides its bytes, nanoseconds.
    pub post_ns: f64,
    /// Estimated bytes per second of a large message.
    pub bytes_per_second: f64,
}

/// In jobs of at most this many ranks, each rank is connected to all others before the first
/// operation. So its news reaches hosts whose ranks are busy, and all ranks notice a death. In
/// larger jobs connections between hosts are made at the first use.
const CONNECTED_RANKS_MAX: usize = 16;

const _: () = assert!(
    LINE_PAYLOAD_BYTES <= 64,
    "inline_bytes is at least one cache line"
);

/// How a rank is reached: provider-specific bytes that bootstrap carries from rank to rank.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Address(pub Vec<u8>);

/// The token of a post for whose completion nobody waits, so that a provider may learn of it, and
/// report it, late.
pub const UNAWAITED: u64 = 1 << 63;

/// Classes of tags, by their two highest bits. Messages of one class never take the places of
/// another.
pub const TAG_CLASSES: usize = 4;

/// The class whose short messages find room whatever else has been sent (clause 7).
pub const URGENT_CLASS: usize = 2;

/// Whether the arrival of a message with this tag is told where no receive waits for it
/// ([`Event::Unmatched`], clause 22).
pub const fn tells_arrival(tag: u64) -> bool {
    tag >> 61 == 0b111
}

/// The class of a tag.
pub const fn tag_class(tag: u64) -> usize {
    (tag >> 62) as usize
}

/// Why a post was not accepted.
#[derive(Clone, Debug, PartialEq)]
pub enum PostError {
    /// A queue is full; try again after the next poll.
    WouldBlock,
    /// The peer failed earlier.
    PeerFailed,
    /// The arguments break the contract; the text says how. (The box keeps the result of a post at
    /// two words.)
    #[allow(clippy::box_collection)]
    Invalid(Box<String>),
    /// Memory or something else that the post needs cannot be had; the error says why.
    Failed(Box<Error>),
}

const _: () = assert!(size_of::<std::result::Result<bool, PostError>>() == 16);

impl PostError {
    /// The arguments break the contract.
    pub fn invalid(how: impl Into<String>) -> PostError {
        PostError::Invalid(Box::new(how.into()))
    }
}

impl From<Error> for PostError {
    fn from(error: Error) -> PostError {
        PostError::Failed(Box::new(error))
    }
}

/// How a post ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// It did what was asked.
    Done,
    /// The message was longer than the receive.
    Truncated,
    /// Cancelled or withdrawn by this rank.
    Cancelled,
    /// The peer failed or was disconnected; a consequence, not a cause.
    Flushed,
    /// The peer has no such region, or the range is not inside it.
    BadKey,
}

/// The end of one post.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Completion {
    /// As given to the post.
    pub token: u64,
    /// The other side.
    pub peer: Rank,
    /// How it ended.
    pub outcome: Outcome,
    /// Bytes of the message, as sent.
    pub bytes: u64,
    /// The sender's header (receives only).
    pub header: u64,
}

/// What [`Transport::poll`] reports.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Event {
    /// A post ended.
    Completion(Completion),
    /// A connection is ready for posts.
    Connected(Rank),
    /// A peer is gone and had not said so; the text says how that was noticed.
    PeerFailed(Rank, String),
    /// A peer has left in good order, with this word (clause 21).
    PeerLeft(Rank, u64),
    /// A message of this peer with this tag has come, and no receive waits for it (clause 22).
    Unmatched(Rank, u64),
}

/// A provider. See the module for the numbered clauses. Puts and gets are in [`Rma`], and what only
/// some providers have in the other supertraits.
///
/// Tokens are chosen by the caller and come back in completions. Tags are 64 bits, equal on both
/// sides.
#[allow(unsafe_code)] // Posts ask their callers for a promise.
pub trait Transport: Rma + Mapping + Signals + Expecting + Diagnostics + Send {
    /// What it can do.
    fn capabilities(&self) -> &Capabilities;

    /// This rank's address, for its peers' [`Transport::connect`].
    fn local_address(&self) -> Address;

    /// Begins to connect to a peer; [`Event::Connected`] says when that is done. To itself, too. An
    /// error while the slot is in use (clause 23).
    fn connect(&mut self, peer: Rank, address: &Address) -> Result<()>;

    /// Ends the connection (clause 14).
    fn disconnect(&mut self, peer: Rank);

    /// Goes on with leaving in good order (clause 21): true when nothing that this rank has sent
    /// needs it any more and every peer that is connected is being told, so that the transport may
    /// be dropped. Called with the same word, and polls and slow polls between, until it is true or
    /// the caller has no more time. Nothing is posted after the first call.
    fn leave(&mut self, word: u64) -> bool;

    /// Names a region, so that it can be used in posts and by peers. The provider keeps it alive
    /// until it is deregistered.
    fn register(&mut self, region: Arc<Region>) -> Result<RegionKey>;

    /// Ends a registration. Peers get no view of it from their next polls on; see
    /// [`Mapping::release_freed`].
    fn deregister(&mut self, key: RegionKey) -> Result<()>;

    /// Sends a message.
    ///
    /// # Safety
    /// "Memory of posts" in the [module](self).
    unsafe fn post_send(
        &mut self,
        peer: Rank,
        tag: u64,
        header: u64,
        source: View,
        token: u64,
    ) -> std::result::Result<(), PostError>;

    /// Sends a message of at most [`Capabilities::inline_bytes`] bytes without a completion (clause
    /// 19); false: the message has to be posted.
    ///
    /// For short messages the completion is a fifth of the engine's work.
    ///
    /// # Safety
    /// "Memory of posts" in the [module](self).
    unsafe fn inject(
        &mut self,
        _peer: Rank,
        _tag: u64,
        _header: u64,
        _source: View,
    ) -> std::result::Result<bool, PostError> {
        Ok(false)
    }

    /// Takes back all memory that sends and puts of this rank, or its peers, may still read (clause
    /// 18): its owner gets it back now.
    fn withdraw(&mut self);

    /// Messages of this tag's class to this peer that were sent and, as far as is known, not
    /// matched yet. The caller keeps room for what matters with it (clause 7).
    fn backlog(&mut self, peer: Rank, tag: u64) -> u32;

    /// Receives a message.
    ///
    /// # Safety
    /// "Memory of posts" in the [module](self).
    unsafe fn post_recv(
        &mut self,
        peer: Rank,
        tag: u64,
        destination: View,
        token: u64,
    ) -> std::result::Result<(), PostError>;

    /// Ends the outstanding receive with this token (clause 13).
    fn cancel(&mut self, peer: Rank, token: u64);

    /// Sends what was posted and waits for the next poll, which may not come for a while.
    fn hand_over(&mut self) {}

    /// Makes progress and appends what happened. `now` is coarse: refreshed every few dozen polls.
    fn poll(&mut self, now: Time, events: &mut Vec<Event>);

    /// What to sleep on when there is nothing to do.
    fn wait_source(&self) -> WaitSource;

    /// Slow checks (hang-ups, control sockets), called before a wait sleeps and every few
    /// milliseconds at most.
    fn poll_slow(&mut self, now: Time, events: &mut Vec<Event>);

    /// When [`Transport::poll`] must be called again even if nothing arrives.
    fn next_timeout(&self) -> Option<Time> {
        None
    }
}

/// How often [`do_until_done`] looks. The pauses between the looks double, from the first to the
/// longest.
const LOOKS: u32 = 210;
const PAUSE_FIRST: Duration = Duration::from_micros(10);
const PAUSE_MAX: Duration = Duration::from_millis(5);

/// Does this until it says that it is done, and for a second at most.
fn do_until_done(mut step: impl FnMut() -> bool) {
    let mut pause = PAUSE_FIRST;
    for look in 0..LOOKS {
        if step() {
            return;
        }
        if look > 0 {
            std::thread::sleep(pause);
            pause = (2 * pause).min(PAUSE_MAX);
        }
    }
}

/// The error of a rank whose address is not one of this transport.
fn other_transport(peer: Rank, name: &str) -> crate::error::Error {
    crate::error::Error::Bootstrap(format!(
        "rank {peer} does not use the transport {name}, as this rank does: give all ranks the same (--transport, LINERATE_TRANSPORT)"
    ))
}

/// Tells people, on standard error, what they should know of their job.
fn say(rank: Rank, text: &str) {
    use std::io::Write;
    let line = format!("linerate: rank {rank}: {text}\n");
    // Nobody can be told that standard error is closed.
    let _ = std::io::stderr().write_all(line.as_bytes());
}

#[cfg(test)]
mod slots_tests;
#[cfg(test)]
mod test_posts;
#[cfg(test)]
mod traffic_tests;
