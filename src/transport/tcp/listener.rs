//! [`Listener`]: where other ranks connect to this one, and the connections whose peers have not
//! proven yet who they are.
//!
//! Unauthenticated peers are bounded in number and time. The silent ones are closed first, so that
//! a flood of them keeps no rank out.

use super::handshake::{DETAIL_RAIL, Incomplete, Look, nonce, send};
use super::rail::Rail;
use super::secure::Secure;
use super::shared::Shared;
use super::socket;
use crate::error::{Error, Result};
use crate::time::Time;
use crate::types::Rank;
use crate::wire::{Claim, HandshakeError, HandshakeMessage, JobKey, Refusal, Responder};
use rustix::event::epoll;
use std::net::{IpAddr, SocketAddr, TcpListener};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::Duration;

type Told<T> = std::result::Result<T, String>;

/// Connections that have not proven who they are.
const UNAUTHENTICATED_MAX: usize = 64;
/// How long a peer may take to prove who it is, by the clock and in looks: a clock that jumps must
/// not turn every peer away.
const UNAUTHENTICATED_TIME: Duration = Duration::from_secs(2);
const UNAUTHENTICATED_LOOKS: u32 = 1000;
/// Connections taken per look.
const ACCEPTS_MAX: usize = 16;

/// See the module.
#[derive(Debug)]
pub struct Listener {
    sockets: Vec<TcpListener>,
    unauthenticated: Vec<Unauthenticated>,
    has_said_full: bool,
}

impl Listener {
    /// Listens on a free port of each of these addresses.
    pub fn new(ips: Vec<IpAddr>) -> Result<Listener> {
        Ok(Listener {
            sockets: ips.into_iter().map(socket::listen).collect::<Result<_>>()?,
            unauthenticated: Vec::new(),
            has_said_full: false,
        })
    }

    /// Where it listens.
    pub fn places(&self) -> Result<Vec<SocketAddr>> {
        let places = self.sockets.iter().map(TcpListener::local_addr);
        places
            .collect::<std::io::Result<_>>()
            .map_err(|e| Error::os("reading the port of a listening socket", e))
    }

    /// What becomes readable when somebody connects.
    pub fn descriptors(&self) -> impl Iterator<Item = BorrowedFd<'_>> {
        self.sockets.iter().map(AsFd::as_fd)
    }

    /// Whether every peer that has connected has proven who it is.
    pub fn is_idle(&self) -> bool {
        self.unauthenticated.is_empty()
    }

    /// Connections of this rank that were let in and are no rails yet.
    pub fn proven_count(&self, rank: Rank) -> usize {
        let proven = self
            .unauthenticated
            .iter()
            .filter(|one| one.is_proven(rank));
        proven.count()
    }

    /// Takes connections that wait.
    pub fn accept(&mut self, shared: &mut Shared) {
        for at in 0..self.sockets.len() {
            for _ in 0..ACCEPTS_MAX {
                match self.sockets[at].accept() {
                    Ok((stream, from)) => {
                        // A socket that blocks would hold up the whole rank.
                        if stream.set_nonblocking(true).is_ok() {
                            self.admit(stream.into(), from, shared);
                        }
                    }
                    Err(error) => {
                        let code = error.raw_os_error();
                        if matches!(code, Some(libc::EMFILE | libc::ENFILE)) {
                            self.make_room_for_descriptors(shared);
                        }
                        break;
                    }
                }
            }
        }
    }

    /// No descriptor is left: connections on which nothing has come are closed.
    fn make_room_for_descriptors(&mut self, shared: &Shared) {
        let before = self.unauthenticated.len();
        self.unauthenticated.retain(|one| !one.is_silent());
        let gone = before - self.unauthenticated.len();
        if gone > 0 || !std::mem::replace(&mut self.has_said_full, true) {
            shared.say(&format!(
                "no file descriptor is left for a connection (RLIMIT_NOFILE): {gone} silent ones were closed; raise it with `ulimit -n`"
            ));
        }
    }

    fn admit(&mut self, socket: OwnedFd, from: SocketAddr, shared: &mut Shared) {
        if self.unauthenticated.len() >= UNAUTHENTICATED_MAX {
            let silent = self.unauthenticated.iter().position(|one| one.is_silent());
            let oldest = self.unauthenticated.remove(silent.unwrap_or(0));
            oldest.turn_away("too many others came before it said who it is", shared);
        }
        let timeout = shared.timeout;
        socket::prepare(socket.as_fd(), from.ip(), timeout, &mut shared.refused);
        shared.say_refused();
        let token = epoll::EventData::new_u64(u64::MAX);
        let flags = epoll::EventFlags::IN;
        // Without it the connection is looked at all the same, only not at once.
        let _ = epoll::add(&shared.epoll, &socket, token, flags);
        self.unauthenticated.push(Unauthenticated {
            socket,
            from,
            message: Incomplete::new(),
            stage: Stage::Silent,
            until: shared.now.after(UNAUTHENTICATED_TIME),
            looks: 0,
        });
    }

    /// Takes out the unauthenticated connection at this place, if there is one.
    pub fn take(&mut self, at: usize) -> Option<Unauthenticated> {
        (at < self.unauthenticated.len()).then(|| self.unauthenticated.swap_remove(at))
    }

    /// Puts it back at this place.
    pub fn put_back(&mut self, at: usize, one: Unauthenticated) {
        self.unauthenticated.push(one);
        let last = self.unauthenticated.len() - 1;
        self.unauthenticated.swap(at, last);
    }
}

/// A peer that has connected and not proven who it is.
#[derive(Debug)]
pub struct Unauthenticated {
    socket: OwnedFd,
    from: SocketAddr,
    message: Incomplete,
    stage: Stage,
    until: Time,
    looks: u32,
}

#[derive(Debug)]
enum Stage {
    /// Has not said hello.
    Silent,
    /// Has said it, to a rank that does not know the other's address yet.
    Early(Box<HandshakeMessage>, Claim),
    /// Has been challenged.
    Challenged(Box<Responder>, Claim),
    /// Has proven who it is, and agrees on keys.
    Securing(Box<Secure>, Claim),
}

/// What an unauthenticated peer waits for.
#[derive(Debug)]
pub enum Step {
    /// Nothing has come.
    Wait,
    /// It has made this claim in its hello, and is to be challenged.
    Hello(HandshakeMessage, Claim),
    /// It has proven the claim, and is to be told whether it may have the connection.
    Proven(Claim),
    /// It is a rail.
    Done,
}

impl Unauthenticated {
    /// Whether it has been let in, as this rank, and is no rail yet.
    fn is_proven(&self, rank: Rank) -> bool {
        matches!(&self.stage, Stage::Securing(_, claim) if claim.initiator == rank)
    }

    fn is_silent(&self) -> bool {
        matches!(self.stage, Stage::Silent)
    }

    /// Counts a look; true where it has had its time.
    pub fn is_late(&mut self, now: Time) -> bool {
        self.looks += 1;
        self.looks > UNAUTHENTICATED_LOOKS && now > self.until
    }

    /// Reads what it has said. The error: why it is turned away.
    pub fn look(&mut self) -> Told<Step> {
        if let Stage::Securing(secure, claim) = &mut self.stage {
            let tell = |e| format!("it is rank {}, and {e}", claim.initiator);
            return match secure.turn(self.socket.as_fd()).map_err(tell)? {
                Look::Fatal(reason) => Err(tell(reason)),
                Look::Wait => Ok(Step::Wait),
                _ => Ok(Step::Done),
            };
        }
        let message = self.message.read(self.socket.as_fd())?;
        match (&self.stage, message) {
            (Stage::Early(hello, claim), None) => Ok(Step::Hello(**hello, *claim)),
            (_, None) => Ok(Step::Wait),
            (Stage::Silent, Some(message)) => {
                let claim = Claim::parse(&message).map_err(|e| e.to_string())?;
                Ok(Step::Hello(message, claim))
            }
            (Stage::Early(..) | Stage::Securing(..), Some(_)) => {
                Err("it went on before it was challenged".into())
            }
            (Stage::Challenged(responder, claim), Some(message)) => {
                let tell =
                    |e: HandshakeError| format!("it says it is rank {}, and {e}", claim.initiator);
                responder.handle_proof(&message).map_err(tell)?;
                Ok(Step::Proven(*claim))
            }
        }
    }

    /// Keeps its hello until the address of the rank that it claims to be is known.
    pub fn wait_for_address(&mut self, hello: HandshakeMessage, claim: Claim) {
        if self.is_silent() {
            self.stage = Stage::Early(Box::new(hello), claim);
        }
    }

    /// Asks it for a proof of its claim.
    pub fn challenge(&mut self, hello: &HandshakeMessage, claim: Claim, key: &JobKey) -> Told<()> {
        let (responder, challenge) = Responder::new(key, hello, &nonce()?);
        send(&self.socket, &challenge)?;
        self.stage = Stage::Challenged(Box::new(responder), claim);
        Ok(())
    }

    /// Tells it whether it may have the connection; what follows from that.
    pub fn answer(&mut self, refusal: Option<Refusal>, has_tls: bool) -> Told<Look> {
        let Stage::Challenged(responder, claim) = &self.stage else {
            unreachable!("it has answered a challenge")
        };
        send(&self.socket, &responder.verdict(refusal))?;
        match refusal {
            None if has_tls => {
                let secure = Secure::responder(&responder.channel())?;
                self.stage = Stage::Securing(Box::new(secure), *claim);
                Ok(Look::Wait)
            }
            None => Ok(Look::Done),
            // This is no fault: it knows that this rank connects.
            Some(Refusal::Simultaneous) => Ok(Look::Awaited),
            Some(refusal) => Err(format!("rank {} was told: {refusal}", claim.initiator)),
        }
    }

    /// The rail that it has become, and whose it is.
    pub fn into_rail(self, shared: &Shared) -> Option<(Rank, Rail)> {
        let (secure, claim) = match self.stage {
            Stage::Challenged(_, claim) => (None, claim),
            Stage::Securing(secure, claim) => (Some(secure), claim),
            Stage::Silent | Stage::Early(..) => return None,
        };
        let _ = epoll::delete(&shared.epoll, &self.socket);
        let name = format!("from {}", self.from);
        let id = claim.detail & DETAIL_RAIL;
        let rail = Rail::new(id, self.socket, secure, false, name);
        Some((claim.initiator, rail))
    }

    /// Ends the connection, and tells people why.
    pub fn turn_away(self, reason: &str, shared: &mut Shared) {
        shared.counts.turned_away += 1;
        // A flood of them is told in a few lines.
        let count = shared.counts.turned_away;
        if count <= 8 || count.is_power_of_two() {
            shared.say(&format!(
                "a connection from {} was turned away ({count} so far): {reason}",
                self.from
            ));
        }
    }
}
