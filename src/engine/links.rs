//! [`Links`]: the transport, this rank's control memory, and that of each peer that is mapped here.
//! Signals, retirement counts and control messages go through here.

mod agreement;
mod connecting;

use super::control::{self, Binding, ControlLayout, Line, PAYLOAD_WORDS};
use super::signature::Signature;
use super::tag::{self, Token};
use crate::error::{Error, Result};
use crate::kernel;
use crate::limits::{
    CACHE_LINE_BYTES, CONTROL_BYTES, LANES, OPERATION_SLOTS, URGENT_MESSAGES, WINDOW_BYTES_MIN,
};
use crate::memory::{Region, RegionKey, View};
use crate::schedule::Lane;
use crate::time::Time;
use crate::transport::{Address, Event, PostError, RemoteRange, Transport};
use crate::types::Rank;
use crate::wire::{ControlKind, ControlMessage};
use std::sync::Arc;

/// What a rank tells its peers before the first operation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Contact {
    /// How its transport is reached.
    pub address: Address,
    /// Its control region.
    pub control_key: RegionKey,
    /// Its windows, [`RegionKey::NONE`] where memory is not mapped.
    pub window_key: RegionKey,
}

/// What is known of one peer.
#[derive(Debug, Default)]
struct Peer {
    is_connected: bool,
    /// This rank has mapped what it needs of the peer, and has made its own memory known to it.
    is_known: bool,
    /// Its control memory, where signals are stores.
    control: Option<View>,
    /// Its windows, where memory is mapped.
    window: Option<View>,
    /// Why it is gone, if it has failed.
    gone: Option<String>,
    /// How many collectives it had done when it left in good order.
    left: Option<u64>,
    /// What others say of its leave: the number of the first operation that cannot end without it.
    hearsay: Option<u64>,
    /// The core from which it sent its latest signal, plus 1; 0: not known.
    core: u16,
}

/// The transport, and the memory of signals. The order of the fields is kept, so that those that
/// every drive reads share cache lines.
#[repr(C)]
pub struct Links {
    pub transport: Box<dyn Transport>,
    pub rank: Rank,
    pub ranks: u32,
    /// The core on which this rank runs, plus 1, where ranks share cores; else 0.
    pub core: u16,
    layout: ControlLayout,
    control: View,
    control_key: RegionKey,
    window: View,
    window_key: RegionKey,
    /// Bytes of one window slot. Final when all peers are connected.
    pub window_bytes: usize,
    peers: Vec<Peer>,
    /// By rank; none before [`Links::connect`].
    contacts: Arc<[Contact]>,
    /// The other ranks whose memory may be mapped here: all, or those of this host, or none. Only
    /// these signal.
    pub mappable: Vec<Rank>,
    /// Whether all ranks of this host map each other's memory. Final when all peers are connected.
    pub maps_host: bool,
    /// Of `mappable`, how many have been told whether this rank maps all others of its host.
    told: u16,
    gone_count: u32,
    /// Peers that have left in good order.
    left_count: u32,
    /// Messages with tags that came before every peer was connected.
    pub unmatched: Vec<(Rank, u64)>,
    /// Peers that are being connected one by one.
    pub connecting: Vec<Rank>,
    /// How many have been connected so.
    connected_later: u32,
}

impl Links {
    /// Makes this rank's control memory and windows and registers them.
    pub fn new(
        mut transport: Box<dyn Transport>,
        rank: Rank,
        ranks: u32,
        window_bytes: usize,
    ) -> Result<Links> {
        let layout = ControlLayout::new(ranks);
        let capabilities = transport.capabilities().clone();
        let allocate = |name: &str, bytes: usize| {
            if capabilities.shared_regions {
                Region::shared(name, bytes)
            } else {
                Region::private(bytes)
            }
        };
        let control = Arc::new(allocate("linerate-control", layout.bytes())?);
        let control_key = transport.register(control.clone())?;
        let (mut window, mut window_key) = (View::empty(), RegionKey::NONE);
        if capabilities.mapped {
            let region = Arc::new(allocate(
                "linerate-window",
                OPERATION_SLOTS as usize * window_bytes,
            )?);
            window_key = transport.register(region.clone())?;
            window = region.view().in_region(window_key, 0);
        }
        Ok(Links {
            rank,
            ranks,
            layout,
            control: control.view().in_region(control_key, 0),
            control_key,
            window,
            window_key,
            window_bytes,
            peers: (0..ranks).map(|_| Peer::default()).collect(),
            contacts: Arc::default(),
            mappable: Vec::new(),
            maps_host: capabilities.mapped,
            told: 0,
            gone_count: 0,
            left_count: 0,
            unmatched: Vec::new(),
            connecting: Vec::new(),
            connected_later: 0,
            transport,
            core: 0,
        })
    }

    /// Every rank but this one.
    pub fn others(&self) -> impl Iterator<Item = Rank> + use<> {
        let rank = self.rank;
        (0..self.ranks).filter(move |&peer| peer != rank)
    }

    /// What peers need to know of this rank.
    pub fn contact(&self) -> Contact {
        Contact {
            address: self.transport.local_address(),
            control_key: self.control_key,
            window_key: self.window_key,
        }
    }

    /// Begins to connect to every rank. `neighbours`: the other ranks of this host.
    pub fn connect(&mut self, contacts: Arc<[Contact]>, neighbours: Vec<Rank>) -> Result<()> {
        let capabilities = self.transport.capabilities();
        self.mappable = match (capabilities.mapped, capabilities.host_mapped) {
            (true, _) => self.others().collect(),
            (false, true) => neighbours,
            (false, false) => Vec::new(),
        };
        for (peer, contact) in (0..self.ranks).zip(&contacts[..]) {
            self.transport.connect(peer, &contact.address)?;
        }
        self.contacts = contacts;
        Ok(())
    }

    /// Goes on with connecting; true when every peer can be signalled. An error names the rank that
    /// failed.
    pub fn poll_connect(&mut self, now: Time, events: &mut Vec<Event>) -> Result<bool> {
        events.clear();
        self.transport.poll_slow(now, events);
        self.transport.poll(now, events);
        for event in events.drain(..) {
            match event {
                Event::Connected(peer) => self.peers[peer as usize].is_connected = true,
                Event::PeerFailed(rank, cause) => self.mark_gone(rank, cause),
                Event::PeerLeft(rank, done) => self.mark_left(rank, done),
                Event::Unmatched(peer, tag) => self.unmatched.push((peer, tag)),
                Event::Completion(_) => {}
            }
        }
        let mut is_ready = true;
        for peer in 0..self.ranks {
            let p = &self.peers[peer as usize];
            let is_known = p.is_known || (p.is_connected && self.map_peer(peer)?);
            self.peers[peer as usize].is_known = is_known;
            // A peer that has all it needs of this rank may leave. That is no error if this rank
            // has all it needs of the peer.
            if !is_known && self.gone(peer).is_some() {
                return Err(self.peer_failed(peer));
            }
            is_ready &= is_known;
        }
        is_ready = is_ready && self.agree_on_host()?;
        if is_ready {
            for peer in self.others() {
                self.post_control_receive(peer)?;
            }
        }
        Ok(is_ready)
    }

    /// Makes this rank's control memory and window known to a connected peer, and maps the peer's.
    /// True when both are done.
    fn map_peer(&mut self, peer: Rank) -> Result<bool> {
        let capabilities = self.transport.capabilities();
        let mapped = capabilities.mapped;
        let store_signals =
            capabilities.store_signals || (capabilities.host_mapped && self.transport.maps(peer));
        let contact = &self.contacts[peer as usize];
        let (their_control, their_window) = (contact.control_key, contact.window_key);
        for (key, needed) in [(self.control_key, true), (self.window_key, mapped)] {
            let is_there = self.gone(peer).is_none() || self.connecting.contains(&peer);
            let is_wanted = needed && is_there;
            if is_wanted && is_blocked(self.transport.export(peer, key))? {
                return Ok(false);
            }
        }
        if store_signals && self.peers[peer as usize].control.is_none() {
            let view = self.transport.mapped(peer, their_control)?;
            self.peers[peer as usize].control =
                checked(view, ("control region", self.layout.bytes()), peer)?;
            self.transport.pin(peer, their_control);
        }
        if mapped && self.peers[peer as usize].window.is_none() {
            let view = self.transport.mapped(peer, their_window)?;
            let bytes = OPERATION_SLOTS as usize * WINDOW_BYTES_MIN;
            self.peers[peer as usize].window = checked(view, ("window", bytes), peer)?;
            self.transport.pin(peer, their_window);
            // Ranks with fewer threads have shorter slots, and all ranks use the shortest.
            let theirs = view.map_or(usize::MAX, |view| {
                view.len_bytes() / OPERATION_SLOTS as usize
            });
            self.window_bytes = self.window_bytes.min(theirs);
        }
        let p = &self.peers[peer as usize];
        Ok(p.control.is_some() >= store_signals && p.window.is_some() >= mapped)
    }

    /// Stores or sends a flag line to peers, and counts them in `done`; false: no room now, try
    /// again with the others. Peers to which it is stored are woken after the last store, because a
    /// wake-up waits for the stores before it: so all stores are under way together.
    #[inline(always)]
    pub fn signal(
        &mut self,
        peers: &[Rank],
        (sequence, lane): (u64, Lane),
        line: &Line,
        done: &mut u16,
    ) -> Result<bool> {
        let offset = self.layout.line(sequence, lane, self.rank);
        for &peer in peers {
            let Some(control) = self.peers[peer as usize].control else {
                // Signals of one step are stores to all its peers or to none.
                return self.send_lines(peers, sequence, (line, offset), done);
            };
            line.store(control, offset);
        }
        self.transport.notify_signals(peers);
        *done += peers.len() as u16;
        Ok(true)
    }

    /// As [`Links::signal`], where signals are puts. It is not inlined, so that it uses no
    /// registers where signals are stores.
    #[inline(never)]
    fn send_lines(
        &mut self,
        peers: &[Rank],
        sequence: u64,
        (line, offset): (&Line, usize),
        done: &mut u16,
    ) -> Result<bool> {
        let staging = self
            .control
            .part(self.layout.message(self.ranks), CACHE_LINE_BYTES);
        line.emit(staging);
        for &peer in peers {
            match self.put(peer, staging, offset) {
                Ok(true) => *done += 1,
                // The peer has done the operation and left: it needs no signal.
                Err(_) if self.has_done(peer, Some(sequence)) => *done += 1,
                put => return put,
            }
        }
        Ok(true)
    }

    /// Tells a peer how many operations this rank has retired; false: no room now. A store does not
    /// wake the peer. The next signal does, or the next drive (`Engine::wake_published`), so that a
    /// store and a signal share one wake-up.
    #[inline]
    pub fn publish_retired(&mut self, peer: Rank, retired: u64) -> Result<bool> {
        let offset = self.layout.retired(self.rank);
        if let Some(control) = self.peers[peer as usize].control {
            control::store_retired(control, offset, retired);
            return Ok(true);
        }
        let staging = self.control.part(self.layout.message(self.ranks), 8);
        kernel::store(staging, 0, retired);
        self.put(peer, staging, offset)
    }

    fn put(&mut self, peer: Rank, source: View, offset: usize) -> Result<bool> {
        let key = self.contacts[peer as usize].control_key;
        let range = RemoteRange {
            key,
            offset: offset as u64,
        };
        match self.post_put(peer, source, range, Token::FORGET) {
            Ok(()) => Ok(true),
            Err(error) => self.refused(peer, error).map(|()| false),
        }
    }

    /// The signature in a peer's line, if that line has arrived.
    #[inline]
    pub fn arrived(&self, peer: Rank, sequence: u64, lane: Lane) -> Option<Signature> {
        Line::arrived(
            self.control,
            self.layout.line(sequence, lane, peer),
            sequence + 1,
        )
    }

    /// As [`Links::arrived`], but looks up to `looks` times. It does not pause between looks: a
    /// pause takes as long as a line takes from core to core.
    #[inline(always)]
    pub fn arrived_within(
        &mut self,
        peer: Rank,
        sequence: u64,
        lane: Lane,
        looks: u32,
    ) -> Option<Signature> {
        let offset = self.layout.line(sequence, lane, peer);
        let (signature, core) = Line::arrived_within(self.control, offset, sequence + 1, looks)?;
        if self.core != 0 {
            self.peers[peer as usize].core = core;
        }
        Some(signature)
    }

    /// Whether a peer sent its latest signal from the core on which this rank runs. Such a peer
    /// cannot send its next signal while this rank looks for it.
    #[inline]
    pub fn is_beside(&self, peer: Rank) -> bool {
        self.core != 0 && self.peers[peer as usize].core == self.core
    }

    /// The payload of a peer's line, which has arrived.
    pub fn mail(&self, peer: Rank, sequence: u64, lane: Lane) -> View {
        Line::payload_view(self.control, self.layout.line(sequence, lane, peer))
    }

    /// What a peer said of its buffers in its first signal, which has arrived.
    pub fn binding(&self, peer: Rank, sequence: u64) -> Binding {
        Binding::parse(self.mail(peer, sequence, 0))
    }

    /// How many operations a peer has retired.
    #[inline]
    pub fn retired_by(&self, peer: Rank) -> u64 {
        control::load_retired(self.control, self.layout.retired(peer))
    }

    /// This rank's window slot of an operation, or a peer's.
    pub fn window_slot(&self, owner: Rank, sequence: u64) -> View {
        let window = if owner == self.rank {
            Some(self.window)
        } else {
            self.peers[owner as usize].window
        };
        let at = (sequence % OPERATION_SLOTS) as usize * self.window_bytes;
        match window {
            Some(window) if !window.is_empty() => window.part(at, self.window_bytes),
            _ => View::empty(),
        }
    }

    /// A payload as the words of a line.
    pub fn payload_words(payload: View) -> [u64; PAYLOAD_WORDS] {
        let mut bytes = [0u8; 8 * PAYLOAD_WORDS];
        kernel::read(payload, 0, &mut bytes[..payload.len_bytes()]);
        std::array::from_fn(|i| u64::from_le_bytes(std::array::from_fn(|j| bytes[8 * i + j])))
    }

    /// The latest operation of which a peer has sent a signal, and its signature there.
    pub fn last_signal(&self, peer: Rank) -> Option<(u64, Signature)> {
        let lines =
            (0..OPERATION_SLOTS).flat_map(|slot| (0..LANES as Lane).map(move |lane| (slot, lane)));
        let lines = lines.map(|(slot, lane)| self.layout.line(slot, lane, peer));
        lines
            .filter_map(|at| Line::last(self.control, at))
            .max_by_key(|(sequence, _)| *sequence)
    }

    /// Sends a control message, and wakes the peer; false: no room now. There is always room for
    /// the news of a failure, which is told once: questions and answers, which are repeated, take
    /// at most half of the places that a peer keeps for control messages.
    pub fn send_control(&mut self, peer: Rank, message: &ControlMessage) -> bool {
        let is_talk = matches!(message.kind, ControlKind::Query | ControlKind::Status);
        if is_talk && self.transport.backlog(peer, tag::control()) >= URGENT_MESSAGES / 2 {
            return false;
        }
        let staging = self
            .control
            .part(self.layout.message(self.ranks), CONTROL_BYTES);
        kernel::write(staging, 0, &message.emit());
        let posted = self.post_send(peer, (tag::control(), 0), staging, Token::FORGET);
        self.transport.notify(peer);
        // A peer that is gone needs no message.
        posted != Err(PostError::WouldBlock)
    }

    /// Posts the receive of the next control message of a peer.
    pub fn post_control_receive(&mut self, peer: Rank) -> Result<()> {
        let place = self.control.part(self.layout.message(peer), CONTROL_BYTES);
        match self.post_recv(peer, tag::control(), place, Token::control_receive(peer)) {
            Ok(()) | Err(PostError::PeerFailed) => Ok(()),
            Err(error) => Err(self.post_error(peer, error)),
        }
    }

    /// The control message that a peer's receive has brought.
    pub fn control_message(&self, peer: Rank) -> Result<ControlMessage> {
        let mut bytes = [0; CONTROL_BYTES];
        kernel::read(self.control, self.layout.message(peer), &mut bytes);
        ControlMessage::parse(&bytes)
    }

    /// Notes that a peer has failed.
    pub fn mark_gone(&mut self, peer: Rank, cause: String) {
        let gone = &mut self.peers[peer as usize].gone;
        self.gone_count += u32::from(gone.is_none());
        gone.get_or_insert(cause);
    }

    /// Notes that a peer has left in good order, after it has completed `done` collectives.
    pub fn mark_left(&mut self, peer: Rank, done: u64) {
        let left = &mut self.peers[peer as usize].left;
        self.left_count += u32::from(left.is_none());
        *left = Some(done);
    }

    /// Notes what others say of a peer's leave: this rank may have no connection to hear it from.
    pub fn note_hearsay(&mut self, peer: Rank, sequence: u64) {
        self.peers[peer as usize].hearsay = Some(sequence);
    }

    /// What others have said of a peer's leave.
    pub fn hearsay(&self, peer: Rank) -> Option<u64> {
        self.peers[peer as usize].hearsay
    }

    /// Whether a peer has done the collective of this number and has left. Then it needs nothing of
    /// that collective any more.
    #[inline(never)]
    pub fn has_done(&self, peer: Rank, sequence: Option<u64>) -> bool {
        let left = self.peers[peer as usize].left;
        left.zip(sequence)
            .is_some_and(|(done, sequence)| sequence < done)
    }

    /// Changes when a peer has failed or left, or has been connected in place of one that had.
    pub fn peers_changed(&self) -> u32 {
        self.gone_count + self.left_count + 3 * self.connected_later
    }

    /// Why a peer is gone, if it is.
    pub fn gone(&self, peer: Rank) -> Option<&str> {
        let known = &self.peers[peer as usize];
        (known.gone.as_deref()).or(known.left.map(|_| "it has left"))
    }

    /// The peers that have left, and how many collectives each has done.
    pub fn left(&self) -> impl Iterator<Item = (Rank, u64)> + '_ {
        let left = (0..).zip(&self.peers);
        left.filter_map(|(rank, peer)| Some((rank, peer.left?)))
    }

    /// Whether a peer has left in good order.
    pub fn left_in_order(&self, peer: Rank) -> bool {
        self.peers[peer as usize].left.is_some()
    }

    /// Whether a peer has failed.
    pub fn has_failed(&self, peer: Rank) -> bool {
        self.peers[peer as usize].gone.is_some()
    }

    /// The first peer that has failed.
    pub fn first_failed(&self) -> Option<Error> {
        if self.gone_count == 0 {
            return None;
        }
        let failed = (0..self.ranks).find(|&peer| self.has_failed(peer));
        failed.map(|peer| self.peer_failed(peer))
    }

    /// The first peer that is gone.
    pub fn first_gone(&self) -> Option<Error> {
        let gone = (0..self.ranks).find(|&peer| self.gone(peer).is_some());
        gone.map(|peer| self.peer_failed(peer))
    }

    /// The error of an operation that needs a peer that is gone.
    pub fn peer_failed(&self, peer: Rank) -> Error {
        let known = &self.peers[peer as usize];
        if known.left.is_some() && known.gone.is_none() {
            return Error::Left {
                rank: peer,
                operation: "an operation".into(),
            };
        }
        let cause = self.gone(peer).unwrap_or("its connection was lost");
        Error::PeerFailed {
            rank: peer,
            cause: cause.into(),
            during: String::new(),
        }
    }

    /// A post was not accepted. `Ok`: it is to be tried again, because there is no room now, or
    /// because this rank does not know yet why the peer is gone. The event that says it, and what
    /// other ranks say of it, come after the events that are being handled.
    pub fn refused(&self, peer: Rank, error: PostError) -> Result<()> {
        match error {
            PostError::WouldBlock => Ok(()),
            PostError::PeerFailed if self.gone(peer).is_none() => Ok(()),
            error => Err(self.post_error(peer, error)),
        }
    }

    /// The error of a post that cannot succeed later.
    pub fn post_error(&self, peer: Rank, error: PostError) -> Error {
        match error {
            PostError::PeerFailed => self.peer_failed(peer),
            PostError::Invalid(text) => Error::internal(*text),
            PostError::Failed(error) => *error,
            PostError::WouldBlock => Error::internal("a full queue was taken for an error"),
        }
    }
}

fn is_blocked(exported: std::result::Result<(), PostError>) -> Result<bool> {
    match exported {
        Ok(()) => Ok(false),
        Err(PostError::WouldBlock) => Ok(true),
        Err(error) => Err(Error::Bootstrap(format!(
            "sharing control memory: {error:?}"
        ))),
    }
}

fn checked(view: Option<View>, (what, bytes): (&str, usize), peer: Rank) -> Result<Option<View>> {
    match view {
        Some(view) if view.len_bytes() < bytes => Err(Error::Malformed(format!(
            "rank {peer} shares a {what} of {} bytes, {bytes} are needed: use the same settings on all ranks",
            view.len_bytes()
        ))),
        view => Ok(view),
    }
}
