//! Reaching peers: connections that this rank opens, and when it gives a peer up.

use super::TcpTransport;
use super::doors::{DETAIL_CRC, DETAIL_TLS, Incomplete, Look, nonce, send};
use super::rail::Rail;
use super::secure::Secure;
use super::socket;
use crate::time::Time;
use crate::transport::posts::PeerState;
use crate::transport::{ENDED, UNREACHABLE};
use crate::types::Rank;
use crate::wire::{Claim, HandshakeError, HandshakeMessage, Initiator, Purpose, Refusal};
use rustix::event::{PollFd, PollFlags, Timespec, epoll, poll};
use rustix::io::Errno;
use rustix::net::sockopt;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::{AsFd, OwnedFd};

/// A port that refuses is tried so often. On the own host its process has ended then; elsewhere a
/// firewall may have refused.
const REFUSED_MAX: u32 = 3;
/// An unreachable peer is tried at least so often, and as long as the timeout: each attempt takes
/// this share of it at most, by the clock and in looks.
const UNREACHABLE_MIN: u32 = 4;
const CONNECT_LOOKS: u32 = 100;
/// Slow looks before a peer that connects itself is reached for after all.
const AWAIT_LOOKS: u32 = 500;

/// A connection that this rank opens.
#[derive(Debug)]
pub struct Dial {
    pub peer: Rank,
    id: u64,
    place: SocketAddr,
    socket: OwnedFd,
    message: Incomplete,
    stage: DialStage,
    initiator: Box<Initiator>,
    has_tls: bool,
    secure: Option<Box<Secure>>,
    hello: HandshakeMessage,
    /// Until when the other host must have answered.
    until: Time,
    looks: u32,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum DialStage {
    Connecting,
    Greeted,
    Proven,
}

impl TcpTransport {
    /// Connects to a peer, if it is to be reached and there are too few connections. `is_slow`: a
    /// message of it is waited for in vain, and perhaps it is dead.
    pub(super) fn dial_if_needed(&mut self, rank: Rank, is_slow: bool) {
        let peer = &self.peers[rank as usize];
        if peer.is_over() || rank == self.rank || peer.attempts.pause > 0 {
            return;
        }
        let wanted = if peer.rails.is_empty() {
            // Nothing is asked of a peer that nobody talks to; but one that was connected shall be,
            // to see when it dies.
            let is_used = peer.has_output()
                || !peer.lost.is_empty()
                || !peer.retired.is_empty()
                || (peer.is_awaited && peer.is_dialer)
                || (is_slow && peer.awaits_message());
            if is_used {
                self.shared.rails as usize
            } else {
                0
            }
        } else if peer.is_dialer {
            self.shared.rails as usize
        } else {
            0
        };
        let dialed = self.dials.iter().filter(|d| d.peer == rank).count();
        let coming = self.strangers.iter().filter(|s| s.is_proven(rank)).count();
        let under_way = dialed + coming;
        for _ in (peer.rails.len() + under_way)..wanted {
            if let Err(reason) = self.dial(rank) {
                return self.note_failure(rank, &reason, None);
            }
        }
    }

    fn dial(&mut self, rank: Rank) -> Result<(), String> {
        let key = self.key_for(rank, false).ok_or("its address is unknown")?;
        let epoch = self.epoch_of(rank, false);
        let peer = &mut self.peers[rank as usize];
        let places = &peer
            .address
            .as_ref()
            .ok_or("its address is unknown")?
            .places;
        peer.attempts.made += 1;
        peer.attempts.since.get_or_insert(self.shared.now);
        let number = peer.attempts.made;
        let place = places[(number as usize - 1) % places.len()];
        let id = number << 1 | u64::from(self.rank > rank);
        let bit = |is_set: bool, bit: u64| if is_set { bit } else { 0 };
        let crc = bit(self.shared.limits.has_crc, DETAIL_CRC);
        let tls = bit(self.shared.has_tls, DETAIL_TLS);
        let claim = Claim {
            purpose: Purpose::Data,
            initiator: self.rank,
            responder: rank,
            epoch,
            detail: id | crc | tls,
        };
        let (initiator, hello) = Initiator::new(&key, &claim, &nonce()?);
        let dialed = socket::dial(place, self.shared.timeout, &mut self.shared.refused);
        self.shared.say_refused();
        let socket = match dialed {
            Ok(socket) => socket,
            Err(Errno::MFILE | Errno::NFILE) => {
                return Err(
                    "no file descriptor is left (RLIMIT_NOFILE): raise it with `ulimit -n`".into(),
                );
            }
            Err(error) => return Err(format!("{place}: {error}")),
        };
        let token = epoll::EventData::new_u64(u64::MAX);
        let flags = epoll::EventFlags::IN | epoll::EventFlags::OUT | epoll::EventFlags::ET;
        let _ = epoll::add(&self.shared.epoll, &socket, token, flags);
        self.dials.push(Dial {
            peer: rank,
            id,
            place,
            socket,
            message: Incomplete::new(),
            stage: DialStage::Connecting,
            initiator: Box::new(initiator),
            has_tls: self.shared.has_tls,
            secure: None,
            hello,
            until: self.shared.now.after(self.shared.timeout / UNREACHABLE_MIN),
            looks: 0,
        });
        Ok(())
    }

    pub(super) fn look_at_dials(&mut self) {
        let mut at = 0;
        while at < self.dials.len() {
            let look = look_at_dial(&mut self.dials[at], self.shared.now);
            if matches!(look, Ok(Look::Wait)) {
                at += 1;
                continue;
            }
            let dial = self.dials.swap_remove(at);
            let _ = epoll::delete(&self.shared.epoll, &dial.socket);
            let (rank, place) = (dial.peer, dial.place);
            match look {
                Ok(Look::Done) => {
                    let name = format!("to {place}");
                    let rail = Rail::new(dial.id, dial.socket, dial.secure, true, name);
                    self.adopt(rank, rail);
                }
                Ok(Look::Awaited) => {
                    let attempts = &mut self.peers[rank as usize].attempts;
                    (attempts.is_awaited, attempts.pause) = (true, AWAIT_LOOKS);
                }
                Ok(Look::Fatal(reason)) => self.fail(rank, &format!("{place}: {reason}")),
                Ok(Look::Over(reason)) => {
                    self.note_failure(rank, &format!("{place}: {reason}"), Some(place.ip()));
                }
                Ok(Look::Wait) => {}
                Err(reason) => self.note_failure(rank, &format!("{place}: {reason}"), None),
            }
        }
    }

    /// A connection could not be made. `refused_at`: this address refused it.
    fn note_failure(&mut self, rank: Rank, reason: &str, refused_at: Option<IpAddr>) {
        let now = self.shared.now;
        let peer = &mut self.peers[rank as usize];
        if peer.state != PeerState::Open {
            return;
        }
        let attempts = &mut peer.attempts;
        attempts.count += 1;
        attempts.pause = attempts.count.min(12);
        let since = *attempts.since.get_or_insert(now);
        let is_late = now.since(since) >= self.shared.timeout && attempts.count >= UNREACHABLE_MIN;
        let is_over = is_late || (refused_at.is_some() && attempts.count >= REFUSED_MAX);
        if is_over && peer.rails.is_empty() {
            let text = match refused_at.is_some_and(socket::is_own) {
                true => ENDED,
                false => UNREACHABLE,
            };
            self.fail(rank, &format!("{text}: {reason}"));
        }
    }
}

fn look_at_dial(dial: &mut Dial, now: Time) -> Result<Look, String> {
    if dial.stage == DialStage::Connecting {
        let mut set = [PollFd::new(&dial.socket, PollFlags::OUT)];
        let at_once = Timespec {
            tv_sec: 0,
            tv_nsec: 0,
        };
        if poll(&mut set, Some(&at_once)) == Ok(0) {
            dial.looks += 1;
            return match dial.looks > CONNECT_LOOKS && now > dial.until {
                true => Err("the host does not answer".into()),
                false => Ok(Look::Wait),
            };
        }
        match sockopt::socket_error(&dial.socket).map_err(|e| e.to_string())? {
            Ok(()) => {}
            Err(Errno::CONNREFUSED) => return Ok(Look::Over(Errno::CONNREFUSED.to_string())),
            Err(error) => return Err(error.to_string()),
        }
        send(&dial.socket, &dial.hello)?;
        dial.stage = DialStage::Greeted;
    }
    if let Some(secure) = &mut dial.secure {
        return secure.turn(dial.socket.as_fd());
    }
    let Some(message) = dial.message.read(dial.socket.as_fd())? else {
        return Ok(Look::Wait);
    };
    if dial.stage == DialStage::Greeted {
        return match dial.initiator.handle_challenge(&message) {
            Ok(proof) => {
                send(&dial.socket, &proof)?;
                dial.stage = DialStage::Proven;
                Ok(Look::Wait)
            }
            Err(error) => Ok(Look::Fatal(error.to_string())),
        };
    }
    match dial.initiator.handle_verdict(&message) {
        Ok(()) if dial.has_tls => {
            let secure = Secure::initiator(&dial.initiator.channel())?;
            // It speaks first.
            dial.secure
                .insert(Box::new(secure))
                .turn(dial.socket.as_fd())
        }
        Ok(()) => Ok(Look::Done),
        Err(HandshakeError::Refused(Refusal::Simultaneous | Refusal::Full)) => Ok(Look::Awaited),
        Err(error) => Ok(Look::Fatal(error.to_string())),
    }
}
