//! RDMA: a protocol between two ranks over devices that write and read each other's memory, on one
//! or more rails per pair. What a device is, [`Device`] says; those of `verbs` and `ofi` are.
//!
//! * Short messages, announcements and signals are *records* in a ring of slots in the receiver's
//!   memory (`record.rs`), written with immediate data, so that each takes a receive of its queue
//!   and wakes a sleeper. The 32 bits say from whom it is, and its position. Credits see to it that
//!   every such write finds a receive and a free slot (`ring.rs`). Receive queues are not shared
//!   among peers: a shared one has too few places for many peers, and some devices have none.
//! * Devices may do what is posted in any order, and so may the lines of one write be seen. Only
//!   the 32 bits come after all bytes of their own write. So records are done in the order of their
//!   positions, and a long transfer ends when all its pieces have come.
//! * A long message is offered in a record, which says in how many pieces it comes, and the
//!   receiver grants a place in registered memory. The sender writes straight there. Nothing is
//!   copied. Memory that is not registered is registered for the one receive.
//! * Long puts are announced and written in pieces; the owner says when all have come. A put of at
//!   most [`INLINE_BYTES_MAX`](crate::limits::INLINE_BYTES_MAX) goes as a record and is copied by
//!   the owner: who finds a stamp must also find what was put before it. On request words are plain
//!   writes, of which the owner hears nothing, where the device keeps its order.
//! * Gets are reads; short ones leave with the call that posts them (`gets.rs`).
//! * Atomic operations are records too, and done by the owner's processor (`peer/asking.rs`).
//! * Pieces go over the rail with the least under way (`../pieces.rs`); records over one of them,
//!   the *lead*.
//! * Queues are joined through a control transport, another provider that is given to this one. It
//!   proves that a peer belongs to the job, survives cuts, and notices deaths. In jobs of more than
//!   a few ranks queues and rings are made at the first post, or for a receive that waits
//!   (`joining.rs`). When a queue fails, both sides end all of theirs, say what has come, and begin
//!   the next *generation* (`generation.rs`, `joining.rs`). What had come is never written again.
//!   The rest is, after the other side has said that its old queues are gone. A rail that comes
//!   back begins a generation too.
//! * Posts are linked and handed over by [`Transport::poll`], with one doorbell per peer and rail.
//!   Where devices keep their order, one in sixteen, and the last, makes a completion; else all do.
//!   A post that finds nothing before it leaves with its call.
//! * A receive whose memory is taken back while it may be written costs a generation: only the end
//!   of the queue stops the peer's device at once. So does memory that is taken back while it is
//!   sent.
//! * Where queues are not connected, nothing but the end of a registration stops a peer's device.
//!   So a generation begins when all posts of the last one have ended on both sides, a receive is
//!   cancelled when the peer has said so, and a region's registration ends when the peers that knew
//!   it have answered. Each peer has registrations of its own (`regions.rs`): those of one that is
//!   gone end, and others go on.
//! * Waiting is on a descriptor that completion channels, asynchronous events and the control
//!   transport make readable; channels are armed at slow looks. Devices without such a descriptor
//!   are polled after pauses.
//! * A slot that is used again begins with new rings and queues. The control transport brings no
//!   greeting of an old epoch.
//!
//! What it does not do: encryption and integrity checks (asking for them is an error), and device
//! memory that processors cannot map.
#![allow(unsafe_code)]

mod blame;
mod device;
mod generation;
mod gets;
mod greeting;
mod inbox;
mod incoming;
mod joining;
mod link;
#[cfg(test)]
mod news_tests;
mod outbox;
mod pair;
mod peer;
mod provider;
mod rail;
mod record;
mod regions;
mod ring;
mod shared;
mod simulated;
mod sizes;
mod transfers;

pub use device::{
    Bytes, Completion, Device, Failure, Local, Memory, News, OFFER_BYTES, Offer, Operation, Place,
    Queue, Segment,
};
pub use rail::{Rail, Registered};
pub use record::{RAILS_MAX, SLOT_BYTES};
pub use simulated::{Defect, DeviceWorld};
pub use sizes::{RECEIVES_AT_ONCE, Sizes};

use super::loopback::Loopback;
use super::posts::{Accepted, Ends, PeerState};
use super::registry::Registry;
use super::sleeping::readable_with;
use super::{Capabilities, Event, Transport, WaitSource};
use crate::config::VerbsSettings;
use crate::error::{Error, Result};
use crate::limits::{CHUNKS_IN_FLIGHT_GRANTED, INLINE_BYTES_MAX, MESSAGES_PER_PEER};
use crate::memory::Region;
use crate::prng::Prng;
use crate::types::Rank;
use generation::Phase;
use greeting::{GREETING_BYTES_MAX, Goodbye, Greeting};
use pair::Fault;
use peer::Peer;
use record::Immediate;
use shared::{Counts, Numbers, Shared};
use std::collections::VecDeque;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::time::Duration;

/// Completions taken at once.
const COMPLETIONS_AT_ONCE: usize = 32;
/// Batches of completions per rail and poll, so that one poll takes a bounded time.
const BATCHES_MAX: usize = 8;
/// Polls between two looks at the control transport, which cost system calls, while every pair is
/// up.
const CONTROL_POLLS: u32 = 1024;
/// How long a caller sleeps between two polls of a device that does not wake it: each pause is
/// twice as long as the last one, until something has come.
const PAUSE_MIN: Duration = Duration::from_micros(50);
const PAUSE_MAX: Duration = Duration::from_millis(1);

/// What a transport is made of.
pub struct Parts<D> {
    /// Rails.
    pub devices: Vec<D>,
    pub sizes: Sizes,
    /// Through which peers are found.
    pub control: Box<dyn Transport>,
}

/// A provider over such devices, of one rank.
pub struct RdmaTransport<D: Device> {
    capabilities: Capabilities,
    control: Box<dyn Transport>,
    control_events: Vec<Event>,
    peers: Vec<Peer<D>>,
    shared: Shared<D>,
    own: Loopback,
    /// Where greetings come, a place for each peer, and where they leave from.
    letters: Region,
    envelope: Region,
    letters_out: VecDeque<(Rank, Vec<u8>)>,
    /// Pairs that may be between two generations.
    joining: Vec<Rank>,
    completions: Vec<D::Completion>,
    random: Prng,
    polls: u32,
    /// The next one, where some device does not wake a sleeper.
    pause: Option<Duration>,
    /// What becomes readable; none in virtual time.
    ready: Option<Arc<OwnedFd>>,
    is_debugging: bool,
    /// It has said goodbye: only the control transport has still something to do.
    is_leaving: bool,
}

impl<D: Device> std::fmt::Debug for RdmaTransport<D> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} on {:?}", D::NAME, self.shared.rails)
    }
}

impl<D: Device> RdmaTransport<D> {
    /// The transport of `rank`.
    pub fn new(
        (rank, ranks): (Rank, u32),
        parts: Parts<D>,
        settings: &VerbsSettings,
        is_debugging: bool,
    ) -> Result<RdmaTransport<D>> {
        let (control, sizes) = (parts.control, parts.sizes);
        let rails: Vec<Rail<D>> = parts.devices.into_iter().map(Rail::new).collect();
        let ready = match control.wait_source() {
            WaitSource::Descriptor { ready: inner, .. } => {
                let descriptors = rails.iter().flat_map(|rail| rail.device.descriptors());
                let all = descriptors.chain([inner.as_fd()]);
                Some(Arc::new(readable_with(all, 0, "completion channels")?))
            }
            WaitSource::Virtual => None,
            _ => {
                return Err(Error::internal(
                    "RDMA over a control transport without a descriptor",
                ));
            }
        };
        let mut seed = [0; 8];
        getrandom::fill(&mut seed).map_err(|e| {
            Error::os(
                "random bytes for packet numbers",
                std::io::Error::other(e.to_string()),
            )
        })?;
        let blank = D::Completion::default();
        let mut transport = RdmaTransport {
            capabilities: capabilities(&rails, settings),
            control,
            control_events: Vec::new(),
            peers: (0..ranks).map(|p| Peer::new(p, sizes.ring)).collect(),
            shared: Shared {
                rank,
                settings: settings.clone(),
                sizes,
                rails,
                regions: Registry::new(),
                ends: Ends::default(),
                dirty: Vec::new(),
                bounces: Vec::new(),
                numbers: Numbers::default(),
                now: Default::default(),
                counts: Counts::default(),
                until_break: settings.break_after,
            },
            own: Loopback::new(rank),
            letters: Region::private(ranks as usize * GREETING_BYTES_MAX)?,
            envelope: Region::private(GREETING_BYTES_MAX)?,
            letters_out: VecDeque::new(),
            joining: Vec::new(),
            completions: vec![blank; COMPLETIONS_AT_ONCE],
            random: Prng::new(u64::from_le_bytes(seed)),
            polls: 0,
            pause: None,
            ready,
            is_debugging,
            is_leaving: false,
        };
        for rail in &mut transport.shared.rails {
            rail.arm();
        }
        Ok(transport)
    }

    #[inline]
    fn check_peer(&self, peer: Rank) -> Accepted {
        let state = self.peers.get(peer as usize).map(Peer::state);
        PeerState::check(state, peer, self.peers.len())
    }

    /// Takes what the devices have completed, so much of it that it takes a bounded time.
    fn poll_rails(&mut self) {
        self.take_completions(BATCHES_MAX);
    }

    /// Takes all that the devices have completed. A queue that is destroyed may take its
    /// completions with it, also those of receives.
    fn drain_rails(&mut self) {
        let all = self.shared.sizes.completions as usize / COMPLETIONS_AT_ONCE + 1;
        self.take_completions(all);
    }

    /// Brings the queues of a peer into the error state and takes everything that they still tell.
    /// This rank then knows all that the peer's device knows to have come here, and no completion
    /// comes after its queue has ended.
    fn stop_links(&mut self, rank: Rank) {
        let mut awaited = Vec::new();
        for link in self.peers[rank as usize].pair_mut().links_mut() {
            let ends = link.stop() && self.shared.rails[link.rail].ends_posts();
            awaited.extend(ends.then_some(link.rail));
        }
        super::do_until_done(|| {
            self.drain_rails();
            let pair = self.peers[rank as usize].pair();
            awaited.retain(|&at| pair.link_on(at).is_some_and(|link| !link.is_over()));
            awaited.is_empty()
        });
        for at in awaited {
            self.shared.rails[at].note_mute();
        }
    }

    fn take_completions(&mut self, batches_max: usize) {
        let mut room = std::mem::take(&mut self.completions);
        for at in 0..self.shared.rails.len() {
            for _ in 0..batches_max {
                let found = match self.shared.rails[at].device.poll(&mut room) {
                    Ok(found) => found,
                    Err(cause) => {
                        self.lose_rail(at, &cause);
                        break;
                    }
                };
                if found > 0 {
                    self.pause = self.pause.map(|_| PAUSE_MIN);
                }
                for completion in &room[..found] {
                    self.handle_completion(at, completion);
                }
                if found < room.len() {
                    break;
                }
            }
        }
        self.completions = room;
    }

    fn handle_completion(&mut self, at: usize, completion: &D::Completion) {
        let is_receive = completion.is_receive();
        if is_receive && completion.is_success() {
            return self.handle_arrival(at, completion);
        }
        let rail = &self.shared.rails[at];
        let Some(rank) = rail.peer_of(completion.queue()) else {
            return;
        };
        match completion.is_success() {
            true => {
                let peer = &mut self.peers[rank as usize];
                peer.handle_arrived(at, completion.id(), &mut self.shared);
            }
            false => self.handle_error(rank, at, completion, is_receive),
        }
    }

    /// A write with 32 bits has come.
    fn handle_arrival(&mut self, at: usize, completion: &D::Completion) {
        let rail = &self.shared.rails[at];
        let (number, what) = Immediate::parse(completion.immediate().unwrap_or_default());
        let named = self.shared.numbers.rank(number);
        let of_queue = match D::IS_CONNECTED {
            true => rail.peer_of(completion.queue()),
            false => named,
        };
        // Of a peer that is gone.
        let Some(rank) = of_queue else {
            return;
        };
        let peer = &mut self.peers[rank as usize];
        // Flushed receives are not posted again: a failed queue would flush them for ever.
        if let Some(link) = peer.pair_mut().link(at).filter(|_| D::IS_CONNECTED)
            && let Err(error) = link.note_taken()
        {
            let cause = format!("{}: receives: {error}", rail.name());
            peer.note_fault(Fault::of_rail(at, &cause), &mut self.shared);
        }
        peer.pair_mut().generation_mut().handle_proof();
        let result = match named == Some(rank) {
            true => peer.handle_immediate((number, what), &mut self.shared),
            false => Err(format!(
                "it writes with number {number}, which is not its own"
            )),
        };
        if let Err(text) = result {
            peer.pair_mut().note_offence(text);
            peer.mark(&mut self.shared);
        }
    }

    /// A post has failed. One that was flushed is a consequence, and says nothing of the cause.
    fn handle_error(
        &mut self,
        rank: Rank,
        at: usize,
        completion: &D::Completion,
        is_receive: bool,
    ) {
        let peer = &mut self.peers[rank as usize];
        if let Some(link) = peer.pair_mut().link(at) {
            match is_receive {
                true => link.note_flushed(),
                false => link.note_failed(completion.id()),
            }
        }
        let failure = self.shared.rails[at].device.explain(completion);
        if failure.is_refused && !is_receive {
            peer.handle_refused(at, completion.id(), &mut self.shared);
        }
        let fault = Fault {
            rail: failure.is_path.then_some(at),
            cause: failure.cause,
            is_consequence: failure.is_consequence,
        };
        peer.note_fault(fault, &mut self.shared);
        peer.look_for_end(&mut self.shared);
    }

    /// A device is gone; the cause names it.
    fn lose_rail(&mut self, at: usize, cause: &str) {
        let rail = &mut self.shared.rails[at];
        if rail.note_removed() {
            super::say(self.shared.rank, &format!("{}: {cause}", D::NAME));
            self.interrupt_rail(at, cause);
        }
    }

    /// Every pair of queues on a rail has failed.
    fn interrupt_rail(&mut self, at: usize, cause: &str) {
        for peer in &mut self.peers {
            if peer.pair().has_link(at) {
                peer.note_fault(Fault::of_rail(at, cause), &mut self.shared);
            }
        }
    }

    /// Handles the events of the devices, and what is due at this time.
    fn poll_events(&mut self) {
        let (mut has_news, now) = (false, self.shared.now);
        for at in 0..self.shared.rails.len() {
            let mut is_back = false;
            while let Some((news, cause)) = self.shared.rails[at].device.poll_news() {
                is_back |= self.handle_news(at, news, &cause);
            }
            has_news |= is_back;
            if is_back || self.shared.rails[at].blame_mut().end(now) {
                self.note_back(at);
            }
        }
        for rank in 0..self.peers.len() as Rank {
            let peer = &mut self.peers[rank as usize];
            let generation = peer.pair_mut().generation_mut();
            if generation.is_over(now, self.shared.settings.timeout)
                && let Some(trouble) = &generation.trouble
            {
                let cause = format!("{}: {}", super::UNREACHABLE, trouble.cause);
                self.fail(rank, &cause);
                continue;
            }
            let action = generation.handle_time(now, has_news);
            self.act(rank, action);
            self.take_back(rank);
        }
    }

    /// A rail can be used again: pairs that do without it are told.
    pub(super) fn note_back(&mut self, at: usize) {
        for peer in &mut self.peers {
            peer.pair_mut().note_back(at);
        }
    }

    /// Begins a generation with a rail that can be used again, if the pair is up and does without
    /// it. Nothing is lost. A pair that is between two generations does so once it is up.
    fn take_back(&mut self, rank: Rank) {
        let pair = self.peers[rank as usize].pair_mut();
        if !pair.is_up() {
            return;
        }
        let returned = pair.take_returned();
        let is_missed = |&at: &usize| {
            let rail = &self.shared.rails[at];
            pair.lacks_link(at) && rail.is_usable() && !rail.blame().is_on()
        };
        if let Some(at) = returned.into_iter().find(is_missed) {
            let cause = format!("{} can be used again", self.shared.rails[at].name());
            self.begin_anew(rank, &cause);
        }
    }

    /// Handles news of a device, whose text names it; true where its rail can be used. It may have
    /// been usable already: the state of a port is also read when queues are made, and these leave
    /// out a rail that is to blame.
    fn handle_news(&mut self, at: usize, news: News, cause: &str) -> bool {
        let rail = &mut self.shared.rails[at];
        match news {
            News::Down => {
                rail.device.note_down();
                self.interrupt_rail(at, cause);
            }
            News::Back => {
                rail.blame_mut().forgive();
                rail.refresh();
                return rail.is_usable();
            }
            // A port may get its address late, and is of no use without it.
            News::OtherAddress => {
                rail.refresh();
                return rail.is_usable();
            }
            News::Gone => self.lose_rail(at, cause),
            News::QueueFailed(number) => {
                if let Some(rank) = rail.peer_of(number) {
                    let peer = &mut self.peers[rank as usize];
                    let fault = Fault {
                        rail: None,
                        cause: format!("{cause}: queue pair {number}"),
                        is_consequence: false,
                    };
                    peer.note_fault(fault, &mut self.shared);
                }
            }
        }
        false
    }

    /// Posts what waits, and follows what has gone wrong.
    fn pump_dirty(&mut self) {
        while let Some(rank) = self.shared.dirty.pop() {
            let peer = &mut self.peers[rank as usize];
            peer.unmark();
            if let Some(text) = peer.pair_mut().take_offence() {
                self.fail(rank, &text);
                continue;
            }
            if peer.pair().generation().phase == Phase::Ending {
                self.end_generation(rank);
                continue;
            }
            peer.pump(&mut self.shared);
            if let Some(fault) = peer.pair_mut().take_fault() {
                self.handle_fault(rank, fault.rail, &fault.cause);
            } else if self.peers[rank as usize].pair().is_unused() {
                self.start(rank);
            }
        }
    }
}

fn capabilities<D: Device>(rails: &[Rail<D>], settings: &VerbsSettings) -> Capabilities {
    // Else a forked child would lack the pages, with all that lies beside the caller's bytes.
    let is_copied = |rail: &Rail<D>| rail.device.is_copied_at_fork();
    Capabilities {
        name: D::NAME,
        one_host: false,
        mapped: false,
        host_mapped: false,
        store_signals: false,
        shared_regions: false,
        inline_bytes: INLINE_BYTES_MAX,
        messages_per_peer: MESSAGES_PER_PEER,
        chunks_in_flight: CHUNKS_IN_FLIGHT_GRANTED,
        device_memory: false,
        cached_bytes_max: match rails.iter().all(is_copied) {
            true => settings.cached_bytes,
            false => 0,
        },
        rails: rails.len() as u32,
        latency_ns: 2_000.0,
        post_ns: 200.0,
        // Of the bytes of a packet of 4 KiB, 98 of 100 are payload.
        bytes_per_second: match rails
            .iter()
            .map(|rail| rail.device.bytes_per_second())
            .sum::<f64>()
        {
            0.0 => 12e9,
            all => 0.98 * all,
        },
    }
}

impl<D: Device> RdmaTransport<D> {
    /// Goes on with leaving; true: what was posted has arrived, and the peers are told. The caller
    /// may be done while its last message is still queued here.
    fn go_on_leaving(&mut self, word: u64) -> bool {
        let is_over = |peer: &Peer<D>| !peer.is_open() || peer.is_idle();
        if !self.is_leaving && self.peers.iter().all(is_over) {
            self.say_goodbye();
        }
        self.is_leaving && self.letters_out.is_empty() && self.control.leave(word)
    }

    /// Tells the peers what has come, so that they do not take it for lost.
    fn say_goodbye(&mut self) {
        self.is_leaving = true;
        for rank in 0..self.peers.len() as Rank {
            let peer = &self.peers[rank as usize];
            if peer.is_open() && !peer.pair().is_unused() {
                let sent = peer.sent();
                self.end_links(rank);
                let received = self.peers[rank as usize].inbox().consumed();
                let goodbye = Goodbye { received, sent };
                self.write_letter(rank, Greeting::Leaving(goodbye));
            }
        }
    }
}

impl<D: Device> Drop for RdmaTransport<D> {
    /// A rank that has not left in good order does what it can of it in a bounded time.
    fn drop(&mut self) {
        // In virtual time nothing happens while this waits.
        if self.is_leaving || self.ready.is_none() {
            return;
        }
        let (now, mut events) = (self.shared.now, Vec::new());
        super::do_until_done(|| {
            self.poll(now, &mut events);
            self.poll_slow(now, &mut events);
            events.clear();
            self.go_on_leaving(0)
        });
        if !self.is_leaving {
            self.say_goodbye();
        }
    }
}
