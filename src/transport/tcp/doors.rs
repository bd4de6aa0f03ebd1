//! How connections come to be: listening, and the handshake with anyone who comes. Reaching peers
//! is in `dials.rs`.
//!
//! Either rank may connect. If both do so at the same moment, the connections of the lower rank are
//! kept: it refuses the other's while its own are on their way. Anyone who has connected opens
//! another connection when one is lost; when none is left, the side that notices does.
//!
//! Strangers are bounded in number and time: the silent ones go first, so that a flood of them
//! keeps no rank out.

use super::TcpTransport;
use super::peer::Peer;
use super::rail::Rail;
use super::secure::Secure;
use super::socket;
use crate::time::Time;
use crate::transport::Event;
use crate::transport::posts::PeerState;
use crate::types::Rank;
use crate::wire::{
    Claim, HANDSHAKE_BYTES, HandshakeError, HandshakeMessage, JobKey, NONCE_BYTES, Purpose,
    Refusal, Responder,
};
use rustix::event::epoll;
use rustix::io::Errno;
use std::net::SocketAddr;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::Duration;

/// Connections that have not proven who they are.
pub const STRANGERS_MAX: usize = 64;
/// How long one may take, by the clock and in looks: a clock that jumps must not turn everybody
/// away.
const STRANGER_TIME: Duration = Duration::from_secs(2);
const STRANGER_LOOKS: u32 = 1000;
/// Connections taken per look.
const ACCEPTS_MAX: usize = 16;
/// Connections between two ranks: those wanted by either side, and those that replace them before
/// the loss is known.
const RAILS_MAX: usize = 64;
/// Set in the detail of a claim by ranks with integrity checks, and with TLS; the rest is the
/// number of the rail.
pub const DETAIL_CRC: u64 = 1 << 63;
pub const DETAIL_TLS: u64 = 1 << 62;
const DETAIL_RAIL: u64 = DETAIL_TLS - 1;

/// Somebody who has connected and not proven anything.
#[derive(Debug)]
pub struct Stranger {
    socket: OwnedFd,
    from: SocketAddr,
    message: Incomplete,
    stage: StrangerStage,
    until: Time,
    looks: u32,
}

#[derive(Debug)]
enum StrangerStage {
    /// Has not said hello.
    Silent,
    /// Has said it, to a rank that does not know the other's address yet.
    Early(Box<HandshakeMessage>, Claim),
    /// Has been challenged.
    Challenged(Box<Responder>, Claim),
    /// Has proven who it is, and agrees on keys.
    Securing(Box<Secure>, Claim),
}

impl Stranger {
    /// Whether it has been let in, and is no rail yet.
    pub fn is_proven(&self, rank: Rank) -> bool {
        matches!(&self.stage, StrangerStage::Securing(_, claim) if claim.initiator == rank)
    }
}

/// A message of a handshake, as far as it has come.
#[derive(Debug)]
pub struct Incomplete {
    bytes: HandshakeMessage,
    filled: usize,
}

/// What a look at a connection in the making comes to.
pub enum Look {
    Wait,
    /// It is a rail.
    Done,
    /// It is over, for this reason.
    Over(String),
    /// The peer itself is over.
    Fatal(String),
    /// The peer connects itself.
    Awaited,
}

impl Incomplete {
    pub fn new() -> Incomplete {
        Incomplete {
            bytes: [0; HANDSHAKE_BYTES],
            filled: 0,
        }
    }

    /// Reads; the message if it is whole.
    pub fn read(&mut self, socket: BorrowedFd<'_>) -> Result<Option<HandshakeMessage>, String> {
        loop {
            match socket::receive_plain(socket, &mut self.bytes[self.filled..]) {
                Ok(0) => return Err("it closed the connection during the handshake, as ranks with another LINERATE_SECRET do".into()),
                Ok(bytes) => self.filled += bytes,
                Err(Errno::AGAIN) => return Ok(None),
                Err(Errno::INTR) => continue,
                Err(error) => return Err(error.to_string()),
            }
            if self.filled == HANDSHAKE_BYTES {
                self.filled = 0;
                return Ok(Some(self.bytes));
            }
        }
    }
}

pub fn send(socket: &OwnedFd, message: &HandshakeMessage) -> Result<(), String> {
    socket::send_whole(socket.as_fd(), message).map_err(|e| e.to_string())
}

pub fn nonce() -> Result<[u8; NONCE_BYTES], String> {
    let mut nonce = [0; NONCE_BYTES];
    getrandom::fill(&mut nonce).map_err(|e| format!("no random bytes: {e}"))?;
    Ok(nonce)
}

impl TcpTransport {
    /// Goes on with everything that is in the making. `is_slow`: attempts that pause come nearer to
    /// their next try.
    pub(super) fn look_at_doors(&mut self, is_slow: bool) {
        self.accept();
        self.look_at_strangers();
        self.look_at_dials();
        if is_slow {
            for rank in 0..self.peers.len() as Rank {
                let attempts = &mut self.peers[rank as usize].attempts;
                attempts.pause = attempts.pause.saturating_sub(1);
                self.dial_if_needed(rank, true);
            }
        }
    }

    fn accept(&mut self) {
        for at in 0..self.listeners.len() {
            for _ in 0..ACCEPTS_MAX {
                match self.listeners[at].accept() {
                    Ok((stream, from)) => {
                        // One that blocks would hold everybody up.
                        if stream.set_nonblocking(true).is_ok() {
                            self.admit(stream.into(), from);
                        }
                    }
                    Err(error) => {
                        let code = error.raw_os_error();
                        if matches!(code, Some(libc::EMFILE | libc::ENFILE)) {
                            self.make_room_for_descriptors();
                        }
                        break;
                    }
                }
            }
        }
    }

    /// No descriptor is left: those who have said nothing go.
    fn make_room_for_descriptors(&mut self) {
        let before = self.strangers.len();
        let is_known = |s: &Stranger| !matches!(s.stage, StrangerStage::Silent);
        self.strangers.retain(is_known);
        let gone = before - self.strangers.len();
        if gone > 0 || !std::mem::replace(&mut self.has_said_full, true) {
            self.shared.say(&format!(
                "no file descriptor is left for a connection (RLIMIT_NOFILE): {gone} silent ones were closed; raise it with `ulimit -n`"
            ));
        }
    }

    fn admit(&mut self, socket: OwnedFd, from: SocketAddr) {
        if self.strangers.len() >= STRANGERS_MAX {
            let silent = |s: &Stranger| matches!(s.stage, StrangerStage::Silent);
            let at = self.strangers.iter().position(silent).unwrap_or(0);
            let stranger = self.strangers.remove(at);
            self.turn_away(&stranger, "too many others came before it said who it is");
        }
        let shared = &mut self.shared;
        socket::prepare(
            socket.as_fd(),
            from.ip(),
            shared.timeout,
            &mut shared.refused,
        );
        shared.say_refused();
        let stranger = Stranger {
            socket,
            from,
            message: Incomplete::new(),
            stage: StrangerStage::Silent,
            until: self.shared.now.after(STRANGER_TIME),
            looks: 0,
        };
        let token = epoll::EventData::new_u64(u64::MAX);
        let flags = epoll::EventFlags::IN;
        // Without it the connection is looked at all the same, only not at once.
        let _ = epoll::add(&self.shared.epoll, &stranger.socket, token, flags);
        self.strangers.push(stranger);
    }

    fn turn_away(&mut self, stranger: &Stranger, reason: &str) {
        self.shared.counts.strangers += 1;
        // A flood of them is told in a few lines.
        let count = self.shared.counts.strangers;
        if count <= 8 || count.is_power_of_two() {
            self.shared.say(&format!(
                "a connection from {} was turned away ({count} so far): {reason}",
                stranger.from
            ));
        }
    }

    fn look_at_strangers(&mut self) {
        let mut at = 0;
        while at < self.strangers.len() {
            let mut stranger = self.strangers.swap_remove(at);
            stranger.looks += 1;
            let is_late = stranger.looks > STRANGER_LOOKS && self.shared.now > stranger.until;
            match self.look_at_stranger(&mut stranger) {
                Ok(Look::Wait) if is_late => {
                    self.turn_away(&stranger, "it did not say who it is in time");
                }
                Ok(Look::Wait) => {
                    self.strangers.push(stranger);
                    let last = self.strangers.len() - 1;
                    self.strangers.swap(at, last);
                    at += 1;
                }
                Ok(_) => {
                    let (secure, claim) = match stranger.stage {
                        StrangerStage::Challenged(_, claim) => (None, claim),
                        StrangerStage::Securing(secure, claim) => (Some(secure), claim),
                        _ => continue,
                    };
                    let _ = epoll::delete(&self.shared.epoll, &stranger.socket);
                    let id = claim.detail & DETAIL_RAIL;
                    let name = format!("from {}", stranger.from);
                    let rail = Rail::new(id, stranger.socket, secure, false, name);
                    self.adopt(claim.initiator, rail);
                }
                Err(reason) => self.turn_away(&stranger, &reason),
            }
        }
    }

    fn look_at_stranger(&mut self, stranger: &mut Stranger) -> Result<Look, String> {
        if let StrangerStage::Early(hello, claim) = &stranger.stage
            && let Some(key) = self.key_for(claim.initiator, true)
        {
            let (hello, claim) = (**hello, *claim);
            return self.challenge(stranger, &hello, claim, &key);
        }
        if let StrangerStage::Securing(secure, claim) = &mut stranger.stage {
            let tell = |e| format!("it is rank {}, and {e}", claim.initiator);
            return match secure.turn(stranger.socket.as_fd()).map_err(tell)? {
                Look::Fatal(reason) => Err(tell(reason)),
                look => Ok(look),
            };
        }
        let Some(message) = stranger.message.read(stranger.socket.as_fd())? else {
            return Ok(Look::Wait);
        };
        match &stranger.stage {
            StrangerStage::Silent => {
                let claim = Claim::parse(&message).map_err(|e| e.to_string())?;
                let is_other = claim.initiator < self.peers.len() as Rank
                    && claim.initiator != self.rank
                    && claim.responder == self.rank
                    && claim.purpose == Purpose::Data;
                if !is_other {
                    return Err(format!(
                        "it says it is rank {} and wants rank {}, and this is rank {} of {}",
                        claim.initiator,
                        claim.responder,
                        self.rank,
                        self.peers.len()
                    ));
                }
                match self.key_for(claim.initiator, true) {
                    Some(key) => self.challenge(stranger, &message, claim, &key),
                    None => {
                        stranger.stage = StrangerStage::Early(Box::new(message), claim);
                        Ok(Look::Wait)
                    }
                }
            }
            StrangerStage::Early(..) | StrangerStage::Securing(..) => {
                Err("it went on before it was challenged".into())
            }
            StrangerStage::Challenged(responder, claim) => {
                let rank = claim.initiator;
                let tell = |e: HandshakeError| format!("it says it is rank {rank}, and {e}");
                responder.handle_proof(&message).map_err(tell)?;
                let refusal = self.refusal(claim);
                send(&stranger.socket, &responder.verdict(refusal))?;
                match refusal {
                    None if self.shared.has_tls => {
                        let secure = Secure::responder(&responder.channel())?;
                        stranger.stage = StrangerStage::Securing(Box::new(secure), *claim);
                        Ok(Look::Wait)
                    }
                    None => Ok(Look::Done),
                    Some(Refusal::Simultaneous) => {
                        // No stranger, and no fault: it knows that this rank comes.
                        stranger.stage = StrangerStage::Silent;
                        Ok(Look::Awaited)
                    }
                    Some(refusal) => Err(format!("rank {rank} was told: {refusal}")),
                }
            }
        }
    }

    fn challenge(
        &mut self,
        stranger: &mut Stranger,
        hello: &HandshakeMessage,
        claim: Claim,
        key: &JobKey,
    ) -> Result<Look, String> {
        if claim.epoch != self.epoch_of(claim.initiator, true) {
            return Err(format!(
                "it says it is rank {}, and belongs to another incarnation of the job",
                claim.initiator
            ));
        }
        let (responder, challenge) = Responder::new(key, hello, &nonce()?);
        send(&stranger.socket, &challenge)?;
        stranger.stage = StrangerStage::Challenged(Box::new(responder), claim);
        Ok(Look::Wait)
    }

    /// Why a rank that has proven itself may not have this connection.
    fn refusal(&self, claim: &Claim) -> Option<Refusal> {
        let peer = &self.peers[claim.initiator as usize];
        let id = claim.detail & DETAIL_RAIL;
        let theirs = |bit: u64| claim.detail & bit != 0;
        let is_dialing = self.dials.iter().any(|dial| dial.peer == claim.initiator);
        match (self.shared.has_tls, theirs(DETAIL_TLS)) {
            (true, false) => return Some(Refusal::TlsHere),
            (false, true) => return Some(Refusal::TlsThere),
            _ => {}
        }
        match (self.shared.limits.has_crc, theirs(DETAIL_CRC)) {
            (true, false) => return Some(Refusal::CrcHere),
            (false, true) => return Some(Refusal::CrcThere),
            _ => {}
        }
        match peer.state {
            PeerState::Open => {}
            _ => return Some(Refusal::Gone),
        }
        if is_dialing && self.rank < claim.initiator {
            return Some(Refusal::Simultaneous);
        }
        let is_known = peer.rails.iter().any(|rail| rail.id == id);
        (is_known || peer.rails.len() >= RAILS_MAX).then_some(Refusal::Full)
    }

    /// The key of connections with a peer; which identity comes first is agreed on. `None`: its
    /// address is not known yet.
    pub(super) fn key_for(&self, peer: Rank, is_initiator: bool) -> Option<JobKey> {
        let theirs = self.peers[peer as usize].address.as_ref()?.identity;
        let pair = match is_initiator {
            true => [theirs, self.identity],
            false => [self.identity, theirs],
        };
        Some(self.key.derive_for(&pair.concat()))
    }

    pub(super) fn epoch_of(&self, peer: Rank, is_initiator: bool) -> u64 {
        let word = |id: &[u8]| u64::from_le_bytes(std::array::from_fn(|i| id[i]));
        let theirs = (self.peers[peer as usize].address.as_ref()).map_or(0, |a| word(&a.identity));
        let own = word(&self.identity);
        let (initiator, responder) = match is_initiator {
            true => (theirs, own),
            false => (own, theirs),
        };
        crate::prng::mix(initiator).wrapping_add(responder)
    }

    /// A connection is a rail from now on.
    pub(super) fn adopt(&mut self, rank: Rank, rail: Rail) {
        let token = epoll::EventData::new_u64(u64::from(rank) << 32 | (rail.id & 0xffff_ffff));
        let peer = &mut self.peers[rank as usize];
        if peer.state != PeerState::Open {
            // It has failed while keys were agreed on.
            return;
        }
        let is_secure = rail.secure.is_some();
        if let Err(error) = epoll::add(
            &self.shared.epoll,
            &rail.socket,
            token,
            epoll::EventFlags::IN,
        ) {
            // The other side sees it close and tries again.
            return self.shared.say(&format!(
                "a connection to rank {rank} cannot be waited for ({error}) and was closed"
            ));
        }
        peer.is_dialer |= rail.is_dialed;
        peer.attempts.count = 0;
        peer.attempts.since = None;
        peer.attempts.is_awaited = false;
        peer.attempts.pause = 0;
        if peer.lead.is_none() {
            peer.lead = Some(rail.id);
        }
        peer.rails.push(rail);
        if std::mem::take(&mut peer.is_awaited) {
            self.shared.ends.push(Event::Connected(rank));
        }
        self.refresh_active();
        self.pump(rank);
        if is_secure {
            // What came with the end of the handshake makes no descriptor readable.
            self.poll_peer(rank);
        }
    }

    /// Which peers have rails.
    pub(super) fn refresh_active(&mut self) {
        self.active.clear();
        let has_rails = |peer: &&Peer| !peer.rails.is_empty();
        self.active
            .extend(self.peers.iter().filter(has_rails).map(|peer| peer.rank));
        self.rails_count = self.peers.iter().map(|peer| peer.rails.len()).sum();
    }
}
