//! [`Listener`]: where other ranks connect to this one, and the connections whose peers have not
//! proven yet who they are.
//!
//! Unauthenticated peers are bounded in number ([`Places`]) and time, so that a flood of them keeps
//! no rank out.

use super::handshake::{DETAIL_RAIL, Incomplete, Look, nonce, send};
use super::rail::Rail;
use super::secure::Secure;
use super::shared::Shared;
use super::socket;
use crate::error::{Error, Result};
use crate::transport::places::{ENTRANCE, Places, Standing};
use crate::types::Rank;
use crate::wire::{Claim, HandshakeError, HandshakeMessage, JobKey, Refusal, Responder};
use std::collections::BTreeSet;
use std::net::{IpAddr, SocketAddr, TcpListener};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::Duration;

type Told<T> = std::result::Result<T, String>;

/// Connections that have not proven who they are: all ranks of a large job may come at once.
const UNAUTHENTICATED_MAX: usize = 1024;
/// How long a peer may take to prove who it is, by the clock and in looks: a clock that jumps must
/// not turn every peer away.
const UNAUTHENTICATED_TIME: Duration = Duration::from_secs(5);
const UNAUTHENTICATED_LOOKS: u64 = 1000;
/// Connections taken per look.
const ACCEPTS_MAX: usize = 16;

/// See the module.
#[derive(Debug)]
pub struct Listener {
    sockets: Vec<TcpListener>,
    places: Places<Unauthenticated>,
    /// Those whose hello waits for the address of the rank that they say they are.
    early: BTreeSet<u64>,
    /// Whether an address has become known since the last look.
    has_address: bool,
    /// What the last look found: the numbers of connections.
    found: Vec<u64>,
    looks: u64,
    has_said_full: bool,
}

impl Listener {
    /// Listens on a free port of each of these addresses.
    pub fn new(ips: Vec<IpAddr>) -> Result<Listener> {
        let listener = Listener {
            sockets: ips.into_iter().map(socket::listen).collect::<Result<_>>()?,
            places: Places::new(UNAUTHENTICATED_MAX)?,
            early: BTreeSet::new(),
            has_address: false,
            found: Vec::new(),
            looks: 0,
            has_said_full: false,
        };
        let mut sockets = listener.sockets.iter();
        sockets.try_for_each(|socket| listener.places.watch(socket))?;
        Ok(listener)
    }

    /// Where it listens.
    pub fn places(&self) -> Result<Vec<SocketAddr>> {
        let places = self.sockets.iter().map(TcpListener::local_addr);
        places
            .collect::<std::io::Result<_>>()
            .map_err(|e| Error::os("reading the port of a listening socket", e))
    }

    /// Whether every peer that has connected has proven who it is.
    pub fn is_idle(&self) -> bool {
        self.places.is_empty()
    }

    /// The address of another rank has become known: perhaps its hello waits for that.
    pub fn note_address(&mut self) {
        self.has_address = true;
    }

    /// Connections of another rank that were let in and are no rails yet.
    pub fn proven_count(&self, rank: Rank) -> usize {
        let proven = self.places.iter().filter(|one| one.is_proven(rank));
        proven.count()
    }

    /// Looks at what has come, takes connections that wait, and turns away those that are late.
    /// Returns how many connections there are to go on with.
    pub fn look(&mut self, shared: &mut Shared) -> usize {
        self.looks += 1;
        self.found.clear();
        if std::mem::take(&mut self.has_address) {
            self.found.extend(&self.early);
        }
        let mut is_entered = !self.places.is_open();
        for index in 0..self.places.look() {
            match self.places.found(index) {
                ENTRANCE => is_entered = true,
                number => self.found.push(number),
            }
        }
        if is_entered {
            self.accept(shared);
        }
        while let Some((number, since, one)) = self.places.oldest()
            && self.looks - one.admitted_at > UNAUTHENTICATED_LOOKS
            && shared.now > since.after(UNAUTHENTICATED_TIME)
        {
            self.turn_away(number, "it did not say who it is in time", shared);
        }
        self.found.len()
    }

    /// The number of a connection that the last look found.
    pub fn found(&self, index: usize) -> u64 {
        self.found[index]
    }

    fn accept(&mut self, shared: &mut Shared) {
        let mut has_room = true;
        'sockets: for at in 0..self.sockets.len() {
            for _ in 0..ACCEPTS_MAX {
                has_room = self.places.has_room(shared.now);
                if !has_room {
                    break 'sockets;
                }
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
        // If that fails, a new connection wakes nobody: the next look finds it.
        let _ = self.places.open(&self.sockets, has_room);
    }

    /// No descriptor is left: connections on which nothing has come are closed.
    fn make_room_for_descriptors(&mut self, shared: &mut Shared) {
        let mut gone = 0;
        while let Some((number, Standing::Silent)) = self.places.least_likely(shared.now) {
            gone += u64::from(self.places.take(number).is_some());
        }
        shared.counts.turned_away += gone;
        if gone > 0 || !std::mem::replace(&mut self.has_said_full, true) {
            shared.say(&format!(
                "no file descriptor is left for a connection (RLIMIT_NOFILE): {gone} silent ones were closed; raise it with `ulimit -n`"
            ));
        }
    }

    fn admit(&mut self, socket: OwnedFd, from: SocketAddr, shared: &mut Shared) {
        if self.places.is_full()
            && let Some((number, _)) = self.places.least_likely(shared.now)
        {
            let reason = "too many others came before it said who it is";
            self.turn_away(number, reason, shared);
        }
        let timeout = shared.timeout;
        socket::prepare(socket.as_fd(), from.ip(), timeout, &mut shared.refused);
        shared.say_refused();
        let one = Unauthenticated {
            socket,
            from,
            message: Incomplete::new(),
            stage: Stage::Silent,
            admitted_at: self.looks,
            epoch: 0,
        };
        match self.places.admit(one, shared.now) {
            Ok(number) => self.found.push(number),
            Err(error) => shared.say(&format!(
                "a connection from {from} cannot be waited for ({error}) and was closed"
            )),
        }
    }

    /// The connection with this number, unless it has left its place.
    pub fn get(&mut self, number: u64) -> Option<&mut Unauthenticated> {
        self.places.get_mut(number)
    }

    /// Notes how far this one has come.
    pub fn note(&mut self, number: u64) {
        let Some(one) = self.places.get_mut(number) else {
            return;
        };
        let (standing, is_early) = match one.stage {
            Stage::Silent => (Standing::Silent, false),
            Stage::Early(..) => (Standing::Claims, true),
            Stage::Challenged(..) => (Standing::Claims, false),
            Stage::Securing(..) => (Standing::Proven, false),
        };
        self.places.note(number, standing);
        match is_early {
            true => self.early.insert(number),
            false => self.early.remove(&number),
        };
    }

    /// Takes this one out.
    pub fn take(&mut self, number: u64) -> Option<Unauthenticated> {
        self.early.remove(&number);
        self.places.take(number)
    }

    /// Ends this connection, and tells people why.
    pub fn turn_away(&mut self, number: u64, reason: &str, shared: &mut Shared) {
        let Some(one) = self.take(number) else {
            return;
        };
        shared.counts.turned_away += 1;
        // A few lines are enough to tell of a flood.
        let count = shared.counts.turned_away;
        if count <= 8 || count.is_power_of_two() {
            shared.say(&format!(
                "a connection from {} was turned away ({count} so far): {reason}",
                one.from
            ));
        }
    }
}

impl AsFd for Listener {
    /// What becomes readable when somebody connects or says something.
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.places.as_fd()
    }
}

/// A peer that has connected and not proven who it is.
#[derive(Debug)]
pub struct Unauthenticated {
    socket: OwnedFd,
    from: SocketAddr,
    message: Incomplete,
    stage: Stage,
    /// The number of the look that has admitted it.
    admitted_at: u64,
    /// The epoch of this rank that it was told.
    epoch: u32,
}

impl AsFd for Unauthenticated {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

#[derive(Debug)]
enum Stage {
    /// Has not said hello.
    Silent,
    /// Has said hello to this rank, which does not know its address yet.
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
    pub fn wait_for_address(&mut self, hello: HandshakeMessage, claim: Claim) -> Told<()> {
        if let Stage::Silent = self.stage {
            self.stage = Stage::Early(Box::new(hello), claim);
        }
        Ok(())
    }

    /// Asks it for a proof of its claim.
    pub fn challenge(&mut self, hello: &HandshakeMessage, claim: Claim, key: &JobKey) -> Told<()> {
        let (responder, challenge) = Responder::new(key, hello, &nonce()?);
        send(&self.socket, &challenge)?;
        self.stage = Stage::Challenged(Box::new(responder), claim);
        Ok(())
    }

    /// Tells it whether it may have the connection, and this rank's epoch; what follows from that.
    pub fn answer(&mut self, refusal: Option<Refusal>, epoch: u32, has_tls: bool) -> Told<Look> {
        let Stage::Challenged(responder, claim) = &self.stage else {
            unreachable!("it has answered a challenge")
        };
        send(&self.socket, &responder.verdict(refusal, epoch))?;
        self.epoch = epoch;
        match refusal {
            None if has_tls => {
                let secure = Secure::responder(&responder.channel())?;
                self.stage = Stage::Securing(Box::new(secure), *claim);
                Ok(Look::Wait)
            }
            None => Ok(Look::Done),
            // This is no fault: it knows that this rank connects, or will.
            Some(Refusal::Simultaneous | Refusal::Early) => Ok(Look::Awaited),
            Some(refusal) => Err(format!("rank {} was told: {refusal}", claim.initiator)),
        }
    }

    /// The rail that it has become, whose it is, and the epoch of this rank that it was told.
    pub fn into_rail(self) -> Option<(Rank, Rail, u32)> {
        let (secure, claim) = match self.stage {
            Stage::Challenged(_, claim) => (None, claim),
            Stage::Securing(secure, claim) => (Some(secure), claim),
            Stage::Silent | Stage::Early(..) => return None,
        };
        let name = format!("from {}", self.from);
        let id = claim.detail & DETAIL_RAIL;
        let rail = Rail::new(id, self.socket, secure, false, name);
        Some((claim.initiator, rail, self.epoch))
    }
}
