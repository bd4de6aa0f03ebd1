//! The `tcp` provider: messages, puts and gets over several connections (*rails*) per pair of
//! ranks.
//!
//! * Short messages and puts, announcements, answers and acknowledgements are *ordered frames*: one
//!   stream of bytes per direction (`stream.rs`), on one rail at a time, kept until the peer has
//!   acknowledged them. A post that finds the socket free is one system call; what is posted while
//!   it is not leaves together with the next.
//! * Long transfers are cut into *chunks*, and each rail takes the next one when its socket has
//!   room. They leave from the registered memory and are read straight into the memory that they
//!   are for.
//! * A long message is announced in the stream. Up to a bounded number of bytes per peer its chunks
//!   follow at once, and wait in a buffer if their receive is not posted yet; beyond that they wait
//!   to be asked for. So memory is bounded, and a message without a receive holds nothing up.
//! * A rail that is lost is replaced, and what had not come on it goes over the others:
//!   `peer/losses.rs`.
//! * Memory that is taken back is sent no more, not by the kernel either: `peer/withdrawal.rs`.
//! * Every connection begins with the handshake of [`crate::wire`]. The rank that connects is in
//!   `connector.rs`, the one that is connected to in `listener.rs`, and how connections become
//!   rails in `joining.rs`. In jobs of more than a few ranks connections are made at the first use,
//!   and [`Transport::connect`] only takes the address. It says the epochs of the slot on both
//!   sides, and a rank takes no connection of another one (`reach.rs`).
//! * The kernel looks for peers that are gone without a word (TCP_USER_TIMEOUT, keep-alive): its
//!   clock, not the caller's.
//! * Waiting is on an epoll descriptor, which becomes readable when anything comes. While a rank
//!   has few rails, polls read them directly. `io_uring` moved messages of 1 MiB over loopback 1.1
//!   times as fast (one stream, a core for each side, Linux 6.18), and 0.7 times with registered
//!   buffers and zero-copy sends, which loopback copies: too little for a second way.
//! * Rails may be encrypted ([`TcpSettings::has_tls`]): what leaves and comes then goes through
//!   `secure.rs`.
//!
//! What it does not do: it encrypts only if it is told to; otherwise packets that are changed on
//! their way after the handshake are believed. Memory is not mapped, and signals are puts.
#![allow(unsafe_code)]

mod address;
#[cfg(test)]
mod changes_tests;
mod connector;
mod handshake;
mod incoming;
mod joining;
mod listener;
mod pace;
#[cfg(test)]
mod parking_tests;
mod peer;
mod provider;
mod rail;
mod rails;
mod reach;
mod secure;
mod shared;
mod short_puts;
mod socket;
mod stream;
mod transfers;
mod zerocopy;

use super::buffers::Buffers;
use super::loopback::Loopback;
use super::posts::{Accepted, Ends, PeerState};
use super::registry::Registry;
use super::sleeping::{new_eventfd, readable_with};
use super::{Address, Capabilities, Event, Transport};
use crate::config::{TcpSettings, tls_without_secret};
use crate::error::{Error, Result};
use crate::limits::{CHUNKS_IN_FLIGHT, INLINE_BYTES_MAX, MESSAGES_PER_PEER, RANKS_MAX};
use crate::time::Time;
use crate::types::Rank;
use crate::wire::{JobKey, Limits};
use address::{IDENTITY_BYTES, PeerAddress};
use connector::Connecting;
use handshake::EPOCH_MAX;
use incoming::CHUNK_BYTES_MAX;
use listener::Listener;
use pace::Pace;
use peer::Peer;
use rail::Rail;
use rustix::event::epoll;
use rustix::net::Shutdown;
use shared::{Counts, Shared};
use std::collections::VecDeque;
use std::mem::MaybeUninit;
use std::net::{IpAddr, Ipv4Addr};
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::time::Duration;

/// Longest message or put that is copied into the stream: its copy costs less than the
/// acknowledgement of a chunk.
const SMALL_BYTES_MAX: u32 = 8 * 1024;
/// Longest message, put or get.
const TOTAL_BYTES_MAX: u64 = 1 << 48;
/// Bytes that all peers together may send before their receives; of that each gets its share,
/// within these bounds.
const EAGER_BYTES: u64 = 256 << 20;
const EAGER_BYTES_MAX: u64 = 4 << 20;
const EAGER_BYTES_MIN: u64 = 256 << 10;
/// With more rails than these, polls ask the kernel which have something.
const DIRECT_RAILS_MAX: usize = 6;
/// Polls between two looks for new connections, unless one is in the making.
const CONNECTION_POLLS: u32 = 64;
/// A put of at most this many bytes is a count: it leaves with the next frame to its peer, or with
/// the next poll.
const COUNT_BYTES: usize = 8;
/// How long a peer is not told what has come where it does not wait for that. What this rank sends
/// meanwhile tells it too, and a frame of its own would wake the peer. Where 64 ranks share two
/// cores, a short allreduce takes 0.6 of the time.
const TELL_AFTER: Duration = Duration::from_millis(50);
/// Connections that are closed here, and kept until the peer has read what was sent on them.
const CLOSING_MAX: usize = 64;

const _: () = assert!(SMALL_BYTES_MAX as usize >= INLINE_BYTES_MAX);
const _: () = assert!(rail::RX_BYTES >= SMALL_BYTES_MAX as usize + crate::wire::HEADER_BYTES);

/// The `tcp` provider of one rank.
#[derive(Debug)]
pub struct TcpTransport {
    rank: Rank,
    capabilities: Capabilities,
    identity: [u8; IDENTITY_BYTES],
    address: PeerAddress,
    key: JobKey,
    listener: Listener,
    connecting: Vec<Connecting>,
    peers: Vec<Peer>,
    shared: Shared,
    own: Loopback,
    /// Peers with rails, and how many rails they have together.
    active: Vec<Rank>,
    rails_count: usize,
    closing: VecDeque<OwnedFd>,
    /// When peers are told what has come, if some are owed that.
    tell_at: Option<Time>,
    /// The eventfd of the wait source, by which the threads of this rank wake each other.
    ring: Arc<OwnedFd>,
}

impl TcpTransport {
    /// The transport of `rank` in a job of `ranks` ranks. It listens on the addresses of the
    /// settings; where they name none, on loopback.
    pub fn new(rank: Rank, ranks: u32, settings: &TcpSettings) -> Result<TcpTransport> {
        settings.check()?;
        if rank >= ranks || ranks > RANKS_MAX {
            return Err(Error::invalid(format!(
                "rank {rank} of {ranks}: ranks are below the count, which is at most {RANKS_MAX}"
            )));
        }
        let ips = match settings.addresses.is_empty() {
            true => vec![IpAddr::V4(Ipv4Addr::LOCALHOST)],
            false => settings.addresses.clone(),
        };
        if ips.len() > address::PLACES_MAX {
            let text = format!("{} interfaces, {} at most", ips.len(), address::PLACES_MAX);
            return Err(Error::invalid(text));
        }
        let is_open = settings.secret.is_none() && !settings.is_insecure;
        if let (true, Some(ip)) = (is_open, ips.iter().find(|ip| !ip.is_loopback())) {
            return Err(Error::invalid(format!(
                "listening on {ip} without a secret would let anybody in: set LINERATE_SECRET to the same secret on all ranks, or say LINERATE_INSECURE=1"
            )));
        }
        if settings.has_tls && settings.secret.is_none() {
            return Err(tls_without_secret());
        }
        let listener = Listener::new(ips)?;
        let mut identity = [0; IDENTITY_BYTES];
        getrandom::fill(&mut identity).map_err(|e| {
            Error::os(
                "random bytes for the identity of a transport",
                std::io::Error::other(e.to_string()),
            )
        })?;
        let places = listener.places()?;
        let ring = new_eventfd()?;
        let descriptors = [listener.as_fd(), ring.as_fd()];
        let epoll = readable_with(descriptors, u64::MAX, "connections")?;
        Ok(TcpTransport {
            rank,
            capabilities: capabilities(settings),
            identity,
            address: PeerAddress { identity, places },
            key: JobKey::derive(settings.secret.as_deref().unwrap_or(&[]), b"linerate tcp"),
            listener,
            connecting: Vec::new(),
            peers: (0..ranks).map(|rank| Peer::new(rank, 0)).collect(),
            shared: Shared {
                rank,
                limits: Limits {
                    small_bytes_max: SMALL_BYTES_MAX,
                    chunk_bytes_max: CHUNK_BYTES_MAX,
                    total_bytes_max: TOTAL_BYTES_MAX,
                    has_crc: settings.has_crc,
                },
                eager_bytes: (EAGER_BYTES / u64::from(ranks))
                    .clamp(EAGER_BYTES_MIN, EAGER_BYTES_MAX),
                timeout: settings.timeout,
                rails: settings.rails,
                has_tls: settings.has_tls,
                regions: Registry::new(),
                ends: Ends::default(),
                epoll: Arc::new(epoll),
                void: vec![0; 64 * 1024],
                staging: Buffers::default(),
                pace: settings.pace_bits_per_second.map(Pace::new),
                now: Time::default(),
                polls: 0,
                is_leaving: false,
                is_debugging: settings.is_debugging,
                refused: socket::Refused::default(),
                counts: Counts::default(),
            },
            own: Loopback::new(rank),
            active: Vec::new(),
            rails_count: 0,
            closing: VecDeque::new(),
            tell_at: None,
            ring: Arc::new(ring),
        })
    }

    /// Notes where a peer is, and takes posts for it.
    fn begin(&mut self, peer: Rank, address: &Address) -> Result<()> {
        if peer as usize >= self.peers.len() {
            return Err(Error::invalid(format!(
                "connecting to rank {peer} of a job of {} ranks",
                self.peers.len()
            )));
        }
        let address = PeerAddress::parse(address);
        let address = address.map_err(|_| super::other_transport(peer, "tcp"))?;
        let known = &mut self.peers[peer as usize];
        let epoch = known.reach().next_epoch();
        if known.state() == PeerState::Open {
            return Err(Error::invalid(format!(
                "rank {peer} is connected already: disconnect it first"
            )));
        }
        if epoch > EPOCH_MAX {
            return Err(Error::Exhausted {
                what: format!("connecting to rank {peer} for the {epoch}th time"),
                limit: format!("a slot is used {EPOCH_MAX} times at most"),
                remedy: "start the job again".into(),
            });
        }
        *known = Peer::new(peer, epoch);
        known.open(address);
        self.own.connect_if(peer);
        self.shared.ends.forget(peer);
        self.listener.note_address();
        Ok(())
    }

    fn check_peer(&self, peer: Rank) -> Accepted {
        let state = self.peers.get(peer as usize).map(Peer::state);
        PeerState::check(state, peer, self.peers.len())
    }

    /// Hands what is to leave to the kernel, and connects if there is no connection.
    fn pump(&mut self, rank: Rank) {
        let peer = &mut self.peers[rank as usize];
        if peer.is_over() {
            if let Some(pace) = &mut self.shared.pace {
                pace.forget(rank);
            }
            return;
        }
        if let Err(reason) = peer.pump(&mut self.shared) {
            return self.fail(rank, &reason);
        }
        if peer.rails().is_empty() && peer.has_output() {
            self.connect_if_needed(rank, false);
        }
    }

    /// Reads every rail of a peer, answers and goes on sending.
    fn poll_peer(&mut self, rank: Rank) {
        let peer = &mut self.peers[rank as usize];
        match peer.read_rails(&mut self.shared) {
            Err(reason) => self.fail(rank, &reason),
            Ok(has_lost) => {
                if has_lost {
                    self.refresh_active();
                }
                if has_lost || self.peers[rank as usize].has_output() {
                    self.pump(rank);
                    self.connect_if_needed(rank, false);
                }
            }
        }
    }

    /// A peer has failed.
    fn fail(&mut self, rank: Rank, cause: &str) {
        // Its posts end, and the kernel must not read their memory any more.
        let rails = self.peers[rank as usize].rails_mut();
        rails.iter_mut().for_each(Rail::cut_if_held);
        self.end(rank, Event::PeerFailed(rank, cause.into()));
    }

    /// A peer is over: the event comes first, then the ends of what was outstanding.
    fn end(&mut self, rank: Rank, event: Event) {
        let peer = &mut self.peers[rank as usize];
        if peer.state() != PeerState::Open {
            return;
        }
        self.shared.ends.push(event);
        peer.end(&mut self.shared);
        self.connecting.retain(|one| one.peer() != rank);
        self.refresh_active();
    }

    /// Asks the kernel which rails have something.
    fn poll_ready(&mut self) {
        let mut space = [MaybeUninit::<epoll::Event>::uninit(); 64];
        let at_once = rustix::event::Timespec {
            tv_sec: 0,
            tv_nsec: 0,
        };
        let Ok((events, _)) = epoll::wait(&*self.shared.epoll, &mut space, Some(&at_once)) else {
            return;
        };
        let mut last = None;
        for event in events {
            let token = event.data.u64();
            let rank = (token >> 32) as Rank;
            if token != u64::MAX && last != Some(rank) {
                self.poll_peer(rank);
                last = Some(rank);
            }
        }
        for at in 0..self.active.len() {
            let Some(&rank) = self.active.get(at) else {
                return;
            };
            // What is parked is in no socket, so the kernel does not know of it.
            let is_due = |rail: &Rail| rail.parked.is_some_and(|poll| poll != self.shared.polls);
            if self.peers[rank as usize].rails().iter().any(is_due) {
                self.poll_peer(rank);
            } else if self.peers[rank as usize].has_output() {
                self.pump(rank);
            }
        }
    }

    /// Lets the wait source look for room where the kernel had none.
    fn arm(&mut self) {
        for peer in &mut self.peers {
            let rank = peer.rank();
            let rails = peer.rails_mut().iter_mut();
            for rail in rails.filter(|r| r.is_blocked != r.is_armed) {
                let token = u64::from(rank) << 32 | (rail.id & 0xffff_ffff);
                let flags = match rail.is_blocked {
                    true => epoll::EventFlags::IN | epoll::EventFlags::OUT,
                    false => epoll::EventFlags::IN,
                };
                let token = epoll::EventData::new_u64(token);
                if epoll::modify(&*self.shared.epoll, &rail.socket, token, flags).is_ok() {
                    rail.is_armed = rail.is_blocked;
                }
            }
        }
    }

    /// Ends the sending side of a peer's rails; they stay open until the other side has read to
    /// their ends.
    fn close_rails(&mut self, rank: Rank) {
        for socket in self.peers[rank as usize].take_sockets() {
            let _ = epoll::delete(&*self.shared.epoll, &socket);
            // A connection that is broken has no end to tell.
            let _ = rustix::net::shutdown(&socket, Shutdown::Write);
            self.closing.push_back(socket);
        }
        self.refresh_active();
    }

    /// Reads what still comes on closed connections: a socket that is closed with unread bytes
    /// drops what it has not sent.
    fn drain_closing(&mut self) {
        let void = &mut self.shared.void;
        self.closing.retain(|socket| {
            loop {
                match socket::receive_plain(socket.as_fd(), void) {
                    Ok(0) => return false,
                    Ok(_) => {}
                    Err(rustix::io::Errno::AGAIN) => return true,
                    Err(_) => return false,
                }
            }
        });
        while self.closing.len() > CLOSING_MAX {
            self.closing.pop_front();
        }
    }

    /// Tells the peers what has come, so that they do not take it for lost, and that nothing
    /// follows. A peer that is still being connected hears it behind what waits for the connection.
    fn say_goodbye(&mut self, word: u64) {
        self.shared.is_leaving = true;
        let own = self.rank;
        let is_told = |p: &&mut Peer| {
            p.rank() != own && !p.is_over() && (!p.rails().is_empty() || p.has_output())
        };
        for peer in self.peers.iter_mut().filter(is_told) {
            peer.say_goodbye(word, &self.shared);
        }
    }

    /// Goes on with leaving; true: everything that was said is with the peers' kernels.
    fn go_on_leaving(&mut self) -> bool {
        for rank in 0..self.peers.len() as Rank {
            if self.peers[rank as usize].has_output() {
                self.pump(rank);
            }
        }
        self.has_left()
    }

    /// Whether everything that was said is with the peers' kernels.
    fn has_left(&self) -> bool {
        let is_silent = |peer: &Peer| peer.is_over() || peer.is_told();
        let is_acknowledged = |socket: &OwnedFd| socket::unacknowledged_bytes(socket.as_fd()) == 0;
        let mut rails = self.peers.iter().flat_map(|peer| peer.rails().iter());
        self.peers.iter().all(is_silent)
            && rails.all(|rail| !rail.holds_sealed() && is_acknowledged(&rail.socket))
            && self.closing.iter().all(is_acknowledged)
    }
}

fn capabilities(settings: &TcpSettings) -> Capabilities {
    Capabilities {
        name: "tcp",
        one_host: false,
        mapped: false,
        host_mapped: false,
        store_signals: false,
        shared_regions: false,
        inline_bytes: INLINE_BYTES_MAX,
        messages_per_peer: MESSAGES_PER_PEER,
        chunks_in_flight: CHUNKS_IN_FLIGHT,
        device_memory: false,
        cached_bytes_max: 0,
        rails: settings.rails,
        latency_ns: 10_000.0,
        post_ns: 2_000.0,
        bytes_per_second: 3e9,
    }
}

impl Drop for TcpTransport {
    /// A rank that has not left in good order says goodbye now, and waits a bounded time until the
    /// kernels have what was said: perhaps that is why it fails.
    fn drop(&mut self) {
        if !self.shared.is_leaving {
            let mut events = Vec::new();
            let now = self.shared.now;
            self.poll(now, &mut events);
            // The clock stands still here, so a pace would let nothing go.
            self.shared.pace = None;
            self.say_goodbye(0);
            super::do_until_done(|| {
                let has_left = self.go_on_leaving();
                if !has_left {
                    self.poll(now, &mut events);
                    self.poll_slow(now, &mut events);
                    events.clear();
                }
                has_left
            });
        }
        for rank in 0..self.peers.len() as Rank {
            self.close_rails(rank);
        }
        self.drain_closing();
    }
}
