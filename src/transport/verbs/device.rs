//! [`Rail`]: one port of one device with what all peers share on it, and [`Registered`]: memory
//! that all rails know.

use super::asked::{self, gigabits};
use super::choose;
use super::port::{Blame, Port};
use super::record::{RAILS_MAX, RailKeys, SLOT_BYTES};
use crate::config::VerbsSettings;
use crate::error::{Error, Result};
use crate::memory::{Region, RegionKind, View};
use crate::types::Rank;
use linerate_verbs_sys::raw::{
    ibv_access_flags as access, ibv_odp_caps, ibv_odp_general_caps,
    ibv_odp_transport_cap_bits as odp, ibv_qp_cap, ibv_qp_type,
};
use linerate_verbs_sys::{
    Completion, CompletionChannel, CompletionQueue, Context, Memory, Mr, Pd, PostError, QueuePair,
    QueuePairOptions, ReceiveRequest, Segment,
};
use std::collections::BTreeMap;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;

/// The id of every receive, by which a failed one is told from a send.
pub const RECEIVE_ID: u64 = u64::MAX;
/// Completions taken at once.
pub const COMPLETIONS_AT_ONCE: usize = 32;
/// Receives posted at once: posting them one by one costs as much as handling what took them.
pub const RECEIVES_AT_ONCE: u32 = 16;
/// Reads and atomics of one queue pair under way at once; devices have 16 or more.
const READS_MAX: i32 = 16;

/// One port of one device.
pub struct Rail {
    port: Port,
    blame: Blame,
    /// Posts of this many bytes are inline.
    inline_bytes: u32,
    reads_max: u8,
    /// The device can use memory whose pages are not locked, for what is written and read here.
    pages_on_demand: bool,
    /// The device is gone.
    is_removed: bool,
    /// The device has not ended the posts of a queue pair in the error state in time.
    is_mute: bool,
    /// Whether the next completion makes an event.
    is_armed: bool,
    /// The peers of queue pairs, by the numbers of these.
    pairs: BTreeMap<u32, Rank>,
    channel: Arc<CompletionChannel>,
    queue: Arc<CompletionQueue>,
    pd: Arc<Pd>,
    context: Arc<Context>,
}

impl std::fmt::Debug for Rail {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}:{}", self.name(), self.port.number())
    }
}

/// How many entries of each kind a rail has, and why.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sizes {
    /// Of a ring.
    pub slots: u32,
    /// Of a queue pair's send queue.
    pub sends: u32,
    /// Of a queue pair's receive queue.
    pub receives: u32,
    /// Of the completion queue.
    pub completions: u32,
}

/// Work requests for pieces of long transfers under way on one queue pair: the window holds two to
/// four, and more where small transfers make them short.
pub const PIECES_UNDER_WAY: u32 = 64;

/// Slots of a ring: in the largest jobs, and in small ones.
const SLOTS: std::ops::RangeInclusive<u32> = 8..=64;
/// Bytes that the rings of all peers lock at most, unless they have the least number of slots:
/// containers limit locked memory, and a host has several ranks.
const RINGS_BYTES_MAX: u64 = 64 << 20;

impl Sizes {
    /// For this many peers, with the slots that were asked for.
    pub fn of(slots: Option<u32>, peers: u32) -> Sizes {
        let peers = peers.max(1);
        let fitting = RINGS_BYTES_MAX / (2 * SLOT_BYTES as u64 * u64::from(peers));
        let fitting = (fitting as u32).clamp(*SLOTS.start(), *SLOTS.end());
        let slots = slots.unwrap_or(fitting);
        // Posts that tell a peer something while it does not poll. Positions are told by half rings
        // and once for the rest, or one by one where the peer waits; matches by quarters of a class
        // and once for the rest, or one by one in the urgent class; puts that named no region one
        // by one. The peer sends nothing meanwhile, so no more are needed.
        let class = crate::limits::MESSAGES_PER_PEER;
        let told = slots + 3 + 3 * (4 + 1) + class + 1 + slots;
        // Each position takes one receive, and so does each of those posts. Some receives are taken
        // and not posted again yet.
        let receives = (slots + told).next_multiple_of(RECEIVES_AT_ONCE) + RECEIVES_AT_ONCE;
        let sends = slots + told + PIECES_UNDER_WAY;
        Sizes {
            slots,
            sends,
            receives,
            // Every receive, and every send at worst.
            completions: (receives + sends) * peers,
        }
    }
}

impl Rail {
    /// Opens what peers share of a device's port.
    pub fn open(
        context: Arc<Context>,
        chosen: &choose::Rail,
        sizes: Sizes,
        token: u64,
        settings: &VerbsSettings,
    ) -> Result<Rail> {
        let name = context.name().to_string();
        let extended = context.attributes().map_err(refused)?;
        let attributes = extended.orig_attr;
        for (what, needed, most) in [
            (
                "work requests in a queue pair",
                sizes.sends.max(sizes.receives),
                attributes.max_qp_wr,
            ),
            ("completion entries", sizes.completions, attributes.max_cqe),
        ] {
            if i64::from(needed) > i64::from(most) {
                return Err(unavailable(format!(
                    "{name} has {most} {what} and this job needs {needed}, with {} slots per peer: lower LINERATE_VERBS_SLOTS, or run fewer ranks",
                    sizes.slots
                )));
            }
        }
        let state = context.port(chosen.port).map_err(refused)?;
        let gid = chosen.gid.as_ref().map(|chosen| chosen.gid.clone());
        let port = Port::new((name, chosen.port), gid, &state, settings.mtu_bytes);
        let pd = Pd::allocate(&context).map_err(refused)?;
        let channel = CompletionChannel::create(&context).map_err(refused)?;
        let queue = CompletionQueue::create(&context, sizes.completions, Some(&channel), 0, token)
            .map_err(refused)?;
        let mut rail = Rail {
            port,
            blame: Blame::default(),
            inline_bytes: 0,
            reads_max: (attributes
                .max_qp_rd_atom
                .min(attributes.max_qp_init_rd_atom))
            .clamp(1, READS_MAX) as u8,
            pages_on_demand: can_page_on_demand(&extended.odp_caps),
            is_removed: false,
            is_mute: false,
            is_armed: false,
            pairs: BTreeMap::new(),
            channel,
            queue,
            pd,
            context,
        };
        // Devices do not say how many inline bytes they have room for: they refuse more.
        rail.inline_bytes = settings.inline_bytes;
        if rail.inline_bytes > 0 && rail.queue_pair(sizes).is_err() {
            rail.inline_bytes = 0;
        }
        Ok(rail)
    }

    /// A queue pair that is ready to be joined, with all its receives.
    pub fn queue_pair(&self, sizes: Sizes) -> Result<QueuePair> {
        let options = QueuePairOptions {
            kind: ibv_qp_type::IBV_QPT_RC,
            send_queue: &self.queue,
            receive_queue: &self.queue,
            shared_receives: None,
            capacity: ibv_qp_cap {
                max_send_wr: sizes.sends,
                max_recv_wr: sizes.receives,
                max_send_sge: 1,
                max_recv_sge: 1,
                max_inline_data: self.inline_bytes,
            },
            is_all_signaled: false,
        };
        let pair = QueuePair::create(&self.pd, &options).map_err(refused)?;
        let allowed = access::IBV_ACCESS_LOCAL_WRITE
            | access::IBV_ACCESS_REMOTE_WRITE
            | access::IBV_ACCESS_REMOTE_READ
            | access::IBV_ACCESS_REMOTE_ATOMIC;
        pair.to_init(self.port.number(), allowed).map_err(refused)?;
        for _ in 0..sizes.receives / RECEIVES_AT_ONCE {
            post_receives(&pair)
                .map_err(|e| unavailable(format!("{}: receives: {e}", self.name())))?;
        }
        Ok(pair)
    }

    /// Takes completions; an error means that the device is gone.
    pub fn poll(&self, room: &mut [Completion]) -> std::result::Result<usize, String> {
        self.queue.poll(room).map_err(|e| e.to_string())
    }

    /// How many completions its queue holds.
    pub fn completions_max(&self) -> usize {
        self.queue.entries() as usize
    }

    /// Makes the next completion readable on the channel. What arrived before has to be polled
    /// afterwards.
    pub fn arm(&mut self) {
        while let Ok(Some(_)) = self.channel.poll_event() {
            self.is_armed = false;
        }
        if !self.is_armed && !self.is_removed {
            self.is_armed = self.queue.request_event(false).is_ok();
        }
    }

    /// The name of the device.
    pub fn name(&self) -> &str {
        self.port.device()
    }

    /// The port of the device.
    pub fn port(&self) -> &Port {
        &self.port
    }

    /// The port of the device.
    pub fn port_mut(&mut self) -> &mut Port {
        &mut self.port
    }

    /// Posts of this many bytes are inline.
    pub fn inline_bytes(&self) -> u32 {
        self.inline_bytes
    }

    /// Reads and atomics of one queue pair under way at once.
    pub fn reads_max(&self) -> u8 {
        self.reads_max
    }

    /// What the port carries, in bytes per second; 0: it does not say.
    pub fn bytes_per_second(&self) -> f64 {
        let state = self.context.port(self.port.number());
        state.map_or(0.0, |state| gigabits(&state) * 1e9 / 8.0)
    }

    /// The device, opened.
    pub fn context(&self) -> &Context {
        &self.context
    }

    /// What becomes readable when something has happened.
    pub fn descriptors(&self) -> [BorrowedFd<'_>; 2] {
        [self.channel.fd(), self.context.event_fd()]
    }

    /// Whose queue pair this is.
    #[inline]
    pub fn peer_of(&self, queue_pair: u32) -> Option<Rank> {
        self.pairs.get(&queue_pair).copied()
    }

    /// A queue pair is this peer's from now on.
    pub fn add_pair(&mut self, queue_pair: u32, peer: Rank) {
        self.pairs.insert(queue_pair, peer);
    }

    /// A queue pair is no more.
    pub fn remove_pair(&mut self, queue_pair: u32) {
        self.pairs.remove(&queue_pair);
    }

    /// The device is gone; true where that is news.
    pub fn note_removed(&mut self) -> bool {
        !std::mem::replace(&mut self.is_removed, true)
    }

    /// The device has not ended the posts of a queue pair in the error state. It is not waited for
    /// again.
    pub fn note_mute(&mut self) {
        self.is_mute = true;
    }

    /// Whether the device ends the posts of queue pairs in the error state, as far as is known.
    pub fn ends_posts(&self) -> bool {
        !self.is_removed && !self.is_mute
    }

    /// Whether packets get through, as far as is known.
    pub fn is_usable(&self) -> bool {
        self.port.is_active() && !self.is_removed
    }

    /// Whether the device answers. One that is gone does not, even before an event says so.
    fn is_there(&self) -> bool {
        !self.is_removed && self.context.port(self.port.number()).is_ok()
    }

    /// Asks the device for the state of its port; true where it has become usable.
    pub fn refresh(&mut self) -> bool {
        let was = self.is_usable();
        let number = self.port.number();
        let state = self.context.port(number);
        let gids = || asked::gids(&self.context, number);
        self.port.refresh(state.ok(), gids);
        !was && self.is_usable()
    }

    /// What has failed on it.
    pub fn blame(&self) -> &Blame {
        &self.blame
    }

    /// What has failed on it.
    pub fn blame_mut(&mut self) -> &mut Blame {
        &mut self.blame
    }
}

/// Posts receives. They have no memory: a write that takes one has its own address.
pub fn post_receives(pair: &QueuePair) -> std::result::Result<(), PostError> {
    const REQUESTS: [ReceiveRequest<'static>; RECEIVES_AT_ONCE as usize] = {
        let segments: &[Segment] = &[];
        let id = RECEIVE_ID;
        [ReceiveRequest { id, segments }; RECEIVES_AT_ONCE as usize]
    };
    pair.post_receive(&REQUESTS)
}

/// Whether reliable queue pairs may write to and read from memory that is paged in when they do.
fn can_page_on_demand(caps: &ibv_odp_caps) -> bool {
    let needed = odp::IBV_ODP_SUPPORT_WRITE | odp::IBV_ODP_SUPPORT_READ;
    caps.general_caps & u64::from(ibv_odp_general_caps::IBV_ODP_SUPPORT.0) != 0
        && caps.per_transport_caps.rc_odp_caps & needed.0 == needed.0
}

/// Memory that every rail knows.
pub struct Registered {
    view: View,
    /// By rail; none where the device is gone.
    mrs: Vec<Option<Mr>>,
}

impl std::fmt::Debug for Registered {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(
            f,
            "{} bytes on {} rails",
            self.view.len_bytes(),
            self.mrs.len()
        )
    }
}

/// Memory, as the library of the device takes it.
struct Bytes {
    view: View,
    _region: Option<Arc<Region>>,
}

// SAFETY: a view gives the same answers always; its bytes are mapped, writable and without Rust
// references as long as the region is held (a caller's: until it is deregistered, when devices and
// posts are done with it) or, for a receive's memory, until its completion (`View::new`), before
// which the registration ends. An empty region has a page all the same.
unsafe impl Memory for Bytes {
    fn address(&self) -> *mut u8 {
        self.view.as_ptr()
    }

    fn len_bytes(&self) -> usize {
        self.view.len_bytes().max(1)
    }
}

impl Registered {
    /// Registers a region with every rail.
    pub fn region(region: Arc<Region>, rails: &[Rail], is_relaxed: bool) -> Result<Registered> {
        let view = region.view();
        Registered::new(view, Some(region), rails, is_relaxed)
    }

    /// Registers memory for one receive. The registration ends before the receive's completion is
    /// given, so its pages are not worth locking where the device can do without.
    pub fn for_receive(view: View, rails: &[Rail], is_relaxed: bool) -> Result<Registered> {
        Registered::new(view, None, rails, is_relaxed)
    }

    fn new(
        view: View,
        region: Option<Arc<Region>>,
        rails: &[Rail],
        is_relaxed: bool,
    ) -> Result<Registered> {
        if view.is_size_only() {
            return Err(Error::invalid("registering memory that has no bytes"));
        }
        let mut flags = access::IBV_ACCESS_LOCAL_WRITE
            | access::IBV_ACCESS_REMOTE_WRITE
            | access::IBV_ACCESS_REMOTE_READ
            | access::IBV_ACCESS_REMOTE_ATOMIC;
        if is_relaxed {
            flags |= access::IBV_ACCESS_RELAXED_ORDERING;
        }
        let dmabuf = region
            .as_ref()
            .filter(|region| matches!(region.kind(), RegionKind::Dmabuf(_)));
        if let Some(region) = dmabuf {
            let register = |rail: &Rail| register_dmabuf(rail, region, flags);
            let mrs = on_all(rails, register)?;
            return Ok(Registered { view, mrs });
        }
        let register = |rail: &Rail| {
            let bytes = Bytes {
                view,
                _region: region.clone(),
            };
            let is_for_receive = region.is_none();
            let flags = match is_for_receive && rail.pages_on_demand {
                true => flags | access::IBV_ACCESS_ON_DEMAND,
                false => flags,
            };
            Mr::register(&rail.pd, Arc::new(bytes), flags).map_err(refused)
        };
        let mrs = on_all(rails, register)?;
        Ok(Registered { view, mrs })
    }

    /// All its bytes.
    #[inline]
    pub fn view(&self) -> View {
        self.view
    }

    /// How many rails know it.
    pub fn rails_count(&self) -> usize {
        self.mrs.len()
    }

    /// The address by which peers name it.
    pub fn address(&self) -> u64 {
        self.view.as_ptr() as u64
    }

    /// The keys by which peers name it.
    pub fn keys(&self) -> RailKeys {
        let mut keys = [0; RAILS_MAX];
        for (key, mr) in keys.iter_mut().zip(&self.mrs) {
            *key = mr.as_ref().map_or(0, Mr::remote_key);
        }
        keys
    }

    /// Whether a rail knows it.
    #[inline]
    pub fn is_on(&self, rail: usize) -> bool {
        self.mrs.get(rail).is_some_and(Option::is_some)
    }

    /// A piece of it, for posts on a rail.
    #[inline]
    pub fn segment(&self, rail: usize, offset: u64, bytes: u64) -> Option<Segment> {
        let mr = self.mrs.get(rail)?.as_ref()?;
        mr.segment(usize::try_from(offset).ok()?, u32::try_from(bytes).ok()?)
    }
}

/// Registers memory with every rail whose device is there, of which there must be one.
fn on_all(rails: &[Rail], register: impl Fn(&Rail) -> Result<Mr>) -> Result<Vec<Option<Mr>>> {
    let mut refusal = None;
    let mut mrs = Vec::with_capacity(rails.len());
    for rail in rails {
        match register(rail) {
            Ok(mr) => mrs.push(Some(mr)),
            Err(error) if rail.is_there() => return Err(error),
            Err(error) => {
                refusal = Some(error);
                mrs.push(None);
            }
        }
    }
    match refusal.filter(|_| mrs.iter().all(Option::is_none)) {
        Some(error) => Err(error),
        None => Ok(mrs),
    }
}

/// Registers the memory of a device with a rail, whose own device fetches it without a processor.
fn register_dmabuf(rail: &Rail, region: &Arc<Region>, flags: access) -> Result<Mr> {
    let RegionKind::Dmabuf(fd) = region.kind() else {
        unreachable!("asked by the caller")
    };
    let (address, bytes) = (region.view().as_ptr() as u64, region.len_bytes());
    let place = (address, bytes.max(1));
    let made = Mr::register_dmabuf(&rail.pd, fd.as_fd(), 0, place, flags, region.clone());
    made.map_err(|error| {
        unavailable(format!(
            "{} cannot register a dma-buf of {bytes} bytes: {error}; use memory of the host, or a device and driver that can",
            rail.name()
        ))
    })
}

/// An error of the library below.
pub fn refused(error: linerate_verbs_sys::Error) -> Error {
    unavailable(error.to_string())
}

/// The transport cannot be used, for this reason.
pub fn unavailable(reason: impl Into<String>) -> Error {
    Error::Unavailable {
        transport: "verbs".into(),
        reason: reason.into(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pages_on_demand_need_both_directions() {
        let mut caps = ibv_odp_caps::default();
        assert!(!can_page_on_demand(&caps));
        caps.per_transport_caps.rc_odp_caps =
            (odp::IBV_ODP_SUPPORT_WRITE | odp::IBV_ODP_SUPPORT_READ).0;
        assert!(!can_page_on_demand(&caps), "not in general");
        caps.general_caps = u64::from(ibv_odp_general_caps::IBV_ODP_SUPPORT.0);
        assert!(can_page_on_demand(&caps));
        caps.per_transport_caps.rc_odp_caps = odp::IBV_ODP_SUPPORT_WRITE.0;
        assert!(!can_page_on_demand(&caps));
    }

    #[test]
    fn sizes_are_sums_that_grow_with_slots_and_completions_with_peers() {
        let one = Sizes::of(None, 1);
        let needed: u32 = 64 + 64 + 3 + 15 + 65 + 64;
        assert_eq!(one.receives, needed.next_multiple_of(16) + 16);
        assert_eq!(one.completions, one.receives + one.sends);
        let ten = Sizes::of(None, 10);
        assert_eq!((ten.sends, ten.receives), (one.sends, one.receives));
        assert_eq!(ten.completions, 10 * one.completions);
        assert_eq!(Sizes::of(None, 0), one);
        assert!(Sizes::of(Some(8), 1).receives < one.receives);
        let slots = [126, 255, 1023, 4095].map(|peers| Sizes::of(None, peers).slots);
        assert_eq!(slots, [64, 31, 8, 8]);
        assert_eq!(Sizes::of(Some(100), 4095).slots, 100);
    }

    #[test]
    fn a_rank_of_1024_that_uses_22_peers_pins_less_than_64_mib() {
        let sizes = Sizes::of(None, 1023);
        let rings = 2 * u64::from(sizes.slots) * SLOT_BYTES as u64;
        // What an mlx5 takes: numbers of entries are powers of two, of 64 bytes in a completion
        // queue, 256 in a send queue and 16 in a receive queue.
        let rounded = |entries: u32, bytes: u64| u64::from(entries.next_power_of_two()) * bytes;
        let pair = rounded(sizes.sends, 256) + rounded(sizes.receives, 16);
        // Both neighbours of a ring, 20 partners of recursive doubling and other ranks of its host.
        let pinned = rounded(sizes.completions, 64) + 22 * (rings + pair);
        assert!(pinned < 64 << 20, "{pinned} bytes");
    }
}
