//! [`Connecting`]: a connection that this rank opens. `joining.rs` decides when it opens one.

use super::handshake::{DETAIL_CRC, DETAIL_TLS, Incomplete, Look, nonce, send};
use super::rail::Rail;
use super::secure::Secure;
use super::shared::Shared;
use super::socket;
use crate::time::Time;
use crate::types::Rank;
use crate::wire::{Claim, HandshakeError, HandshakeMessage, Initiator, JobKey, Purpose, Refusal};
use rustix::event::{PollFd, PollFlags, Timespec, epoll, poll};
use rustix::io::Errno;
use rustix::net::sockopt;
use std::net::SocketAddr;
use std::os::fd::{AsFd, OwnedFd};
use std::time::Duration;

/// Looks that an attempt may take at least, whatever the clock says.
const CONNECT_LOOKS: u32 = 100;

/// A connection that this rank opens.
#[derive(Debug)]
pub struct Connecting {
    peer: Rank,
    rail: u64,
    /// The peer's epoch, as it has told.
    epoch: u32,
    place: SocketAddr,
    socket: OwnedFd,
    message: Incomplete,
    stage: Stage,
    initiator: Box<Initiator>,
    has_tls: bool,
    secure: Option<Box<Secure>>,
    hello: HandshakeMessage,
    /// Until when the other host must have answered.
    until: Time,
    looks: u32,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    Connecting,
    Greeted,
    Proven,
}

impl Connecting {
    /// Begins to connect to a peer at this place, for a rail of this number. `wanted` is the epoch
    /// of the claim. The peer must have answered within `time`.
    pub fn begin(
        (peer, wanted): (Rank, u64),
        (rail, place): (u64, SocketAddr),
        key: &JobKey,
        time: Duration,
        shared: &mut Shared,
    ) -> Result<Connecting, String> {
        let bit = |is_set: bool, bit: u64| if is_set { bit } else { 0 };
        let crc = bit(shared.limits.has_crc, DETAIL_CRC);
        let tls = bit(shared.has_tls, DETAIL_TLS);
        let claim = Claim {
            purpose: Purpose::Data,
            initiator: shared.rank,
            responder: peer,
            epoch: wanted,
            detail: rail | crc | tls,
        };
        let (initiator, hello) = Initiator::new(key, &claim, &nonce()?);
        let connected = socket::connect(place, shared.timeout, &mut shared.refused);
        shared.say_refused();
        let socket = match connected {
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
        let _ = epoll::add(&shared.epoll, &socket, token, flags);
        Ok(Connecting {
            peer,
            rail,
            epoch: 0,
            place,
            socket,
            message: Incomplete::new(),
            stage: Stage::Connecting,
            initiator: Box::new(initiator),
            has_tls: shared.has_tls,
            secure: None,
            hello,
            until: shared.now.after(time),
            looks: 0,
        })
    }

    /// The peer that it leads to.
    pub fn peer(&self) -> Rank {
        self.peer
    }

    /// The peer's epoch, once it has become a rail.
    pub fn epoch(&self) -> u32 {
        self.epoch
    }

    /// The address that it connects to.
    pub fn place(&self) -> SocketAddr {
        self.place
    }

    /// The wait source looks at it no more.
    pub fn leave(&self, shared: &Shared) {
        let _ = epoll::delete(&shared.epoll, &self.socket);
    }

    /// The rail that it has become.
    pub fn into_rail(self) -> Rail {
        let name = format!("to {}", self.place);
        Rail::new(self.rail, self.socket, self.secure, true, name)
    }

    /// Goes on with it.
    pub fn look(&mut self, now: Time) -> Result<Look, String> {
        if self.stage == Stage::Connecting {
            if !self.is_answered() {
                self.looks += 1;
                return match self.looks > CONNECT_LOOKS && now > self.until {
                    true => Err("the host does not answer".into()),
                    false => Ok(Look::Wait),
                };
            }
            match sockopt::socket_error(&self.socket).map_err(|e| e.to_string())? {
                Ok(()) => {}
                Err(Errno::CONNREFUSED) => return Ok(Look::Over(Errno::CONNREFUSED.to_string())),
                Err(error) => return Err(error.to_string()),
            }
            send(&self.socket, &self.hello)?;
            self.stage = Stage::Greeted;
        }
        if let Some(secure) = &mut self.secure {
            return secure.turn(self.socket.as_fd());
        }
        let Some(message) = self.message.read(self.socket.as_fd())? else {
            return Ok(Look::Wait);
        };
        if self.stage == Stage::Greeted {
            return match self.initiator.handle_challenge(&message) {
                Ok(proof) => {
                    send(&self.socket, &proof)?;
                    self.stage = Stage::Proven;
                    Ok(Look::Wait)
                }
                Err(error) => Ok(Look::Fatal(error.to_string())),
            };
        }
        let verdict = self.initiator.handle_verdict(&message);
        self.epoch = verdict.unwrap_or(0);
        match verdict {
            Ok(_) if self.has_tls => {
                let secure = Secure::initiator(&self.initiator.channel())?;
                // The initiator speaks first.
                self.secure
                    .insert(Box::new(secure))
                    .turn(self.socket.as_fd())
            }
            Ok(_) => Ok(Look::Done),
            // It is tried again later.
            Err(HandshakeError::Refused(Refusal::Early)) => Err(Refusal::Early.to_string()),
            Err(HandshakeError::Refused(Refusal::Simultaneous | Refusal::Full)) => {
                Ok(Look::Awaited)
            }
            Err(error) => Ok(Look::Fatal(error.to_string())),
        }
    }

    /// Whether the other host has said yes or no.
    fn is_answered(&self) -> bool {
        let mut set = [PollFd::new(&self.socket, PollFlags::OUT)];
        let at_once = Timespec {
            tv_sec: 0,
            tv_nsec: 0,
        };
        poll(&mut set, Some(&at_once)) != Ok(0)
    }
}
