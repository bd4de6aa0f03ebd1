//! [`Listener`]: accepts connections of ranks of the job over TCP, and no others.
//!
//! A peer that connects has to pass the handshake of [`crate::wire`] within [`HANDSHAKE_TIME`];
//! until then this process keeps one message of it. With TLS the two agree on keys within the same
//! time. At most [`UNAUTHENTICATED_MAX`] peers may be in their handshake.
//!
//! [`Places`] says which of them makes room if all places are taken, and why that keeps no rank
//! out. The first few refusals are printed on standard error, and the others are counted.

use super::credentials::{Credentials, DETAIL_TLS};
use super::note::note;
use super::secret_socket::SecretSocket;
use crate::config::{Config, differing_settings};
use crate::error::{Error, Result};
use crate::limits::BACKLOG;
use crate::time::Time;
use crate::transport::{ENTRANCE, Places, Standing};
use crate::types::Rank;
use crate::wire::{Claim, HANDSHAKE_BYTES, HandshakeMessage, Purpose, Refusal, Responder, Tls};
use rustix::io::Errno;
use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::fd::{AsFd, BorrowedFd};
use std::time::Duration;

/// [`Claim::detail`] of a rank that connects to rank 0.
pub(super) const TO_HEAD: u64 = 1;
/// [`Claim::detail`] of a rank that connects to the one above it in the tree of contacts.
pub(super) const TO_PARENT: u64 = 2;
/// [`Claim::detail`] of a survivor that connects to the one that leads.
pub(super) const TO_LEADER: u64 = 3;

/// Peers in their handshake at once: enough for a burst of ranks, and less than 1 MiB in all.
pub(super) const UNAUTHENTICATED_MAX: usize = 1024;
/// Records that a control connection keeps in either direction: it carries little, and rank 0 has
/// one for every rank.
pub(super) const TLS_RECORDS: usize = 1;
/// How long a handshake may take.
const HANDSHAKE_TIME: Duration = Duration::from_secs(5);
/// Connections that are taken between two looks at those that are there: a part of all places, so
/// that no peer is refused before it was looked at.
const ACCEPTS_MAX: usize = 256;
/// Refusals that are printed one by one.
const PRINTED_MAX: u64 = 5;

const _: () = assert!(4 * ACCEPTS_MAX <= UNAUTHENTICATED_MAX);

/// A rank that has proven who it is.
#[derive(Debug)]
pub(super) struct Authenticated {
    pub rank: Rank,
    pub detail: u64,
    pub stream: TcpStream,
    pub tls: Option<Box<Tls>>,
}

/// See the module.
#[derive(Debug)]
pub(super) struct Listener {
    sockets: Vec<TcpListener>,
    places: Places<Unauthenticated>,
    credentials: Credentials,
    /// Serves the secret, if it was made here.
    secret_socket: Option<SecretSocket>,
    own: Rank,
    refused: u64,
    last_refusal: Option<String>,
}

#[derive(Debug)]
struct Unauthenticated {
    stream: TcpStream,
    from: SocketAddr,
    message: HandshakeMessage,
    got: usize,
    responder: Option<(Responder, Claim)>,
    /// It has proven who it is, and agrees on keys.
    tls: Option<Box<Tls>>,
}

impl Listener {
    /// A listener on these sockets.
    pub fn new(
        sockets: Vec<TcpListener>,
        own: Rank,
        credentials: &Credentials,
    ) -> Result<Listener> {
        let places = Places::new(UNAUTHENTICATED_MAX)?;
        for socket in &sockets {
            let listen = || -> std::io::Result<()> {
                socket.set_nonblocking(true)?;
                // The standard library may listen with 128 places, and all ranks come at once.
                Ok(rustix::net::listen(socket, BACKLOG)?)
            };
            let what = || format!("rank {own} listening for others");
            listen().map_err(|e| Error::os(what(), e))?;
            places.watch(socket)?;
        }
        Ok(Listener {
            sockets,
            places,
            credentials: credentials.clone(),
            secret_socket: None,
            own,
            refused: 0,
            last_refusal: None,
        })
    }

    /// Serves the secret of the job, too.
    pub fn serve_secret(&mut self, socket: Option<SecretSocket>) -> Result<()> {
        socket.iter().try_for_each(|one| self.places.watch(one))?;
        self.secret_socket = socket;
        Ok(())
    }

    /// How many were refused, and the last of them, for the error of a rank that waits in vain.
    pub fn refusals(&self) -> String {
        match &self.last_refusal {
            None => String::new(),
            Some(last) => format!(
                "; {} connections were refused, the last one {last}",
                self.refused
            ),
        }
    }

    /// Appends the ranks that have proven who they are since the last call. Does not block. The
    /// error is one of this process, such as that no descriptor is left; the ranks that are here
    /// are to be told.
    pub fn poll(&mut self, now: Time, authenticated: &mut Vec<Authenticated>) -> Result<()> {
        let mut heard = Ok(());
        let mut is_entered = !self.places.is_open();
        for index in 0..self.places.look() {
            match self.places.found(index) {
                ENTRANCE => is_entered = true,
                number => heard = heard.and(self.hear(number, authenticated)),
            }
        }
        heard?;
        while let Some((number, since, _)) = self.places.oldest()
            && now.since(since) >= HANDSHAKE_TIME
        {
            self.refuse(number, "said nothing more in time");
        }
        if is_entered {
            self.secret_socket.iter().try_for_each(SecretSocket::poll)?;
            self.accept(now, authenticated)?;
        }
        Ok(())
    }

    /// Reads what a peer has said.
    fn hear(&mut self, number: u64, authenticated: &mut Vec<Authenticated>) -> Result<()> {
        // The peer may have given up its place since the look.
        let Some(peer) = self.places.get_mut(number) else {
            return Ok(());
        };
        match peer.poll(self.own, &self.credentials) {
            Ok(Progress::Proven(rank, detail)) => {
                let peer = self.places.take(number);
                authenticated.extend(peer.map(|peer| Authenticated {
                    rank,
                    detail: detail & !DETAIL_TLS,
                    stream: peer.stream,
                    tls: peer.tls,
                }));
            }
            Ok(Progress::Differs(rank)) => {
                self.places.take(number);
                return Err(other_tls(rank, self.credentials.has_tls));
            }
            Ok(Progress::None) => {
                let standing = peer.standing();
                self.places.note(number, standing);
            }
            Err(why) => self.refuse(number, &why),
        }
        Ok(())
    }

    fn accept(&mut self, now: Time, authenticated: &mut Vec<Authenticated>) -> Result<()> {
        let own = self.own;
        let what = || format!("rank {own} cannot let a rank in");
        let mut has_room = true;
        'sockets: for at in 0..self.sockets.len() {
            for _ in 0..ACCEPTS_MAX / self.sockets.len() {
                has_room = self.places.has_room(now);
                if !has_room {
                    break 'sockets;
                }
                let (stream, from) = match self.sockets[at].accept() {
                    Ok(new) => new,
                    Err(e) if e.kind() == ErrorKind::WouldBlock => break,
                    Err(e) => match Errno::from_io_error(&e) {
                        // The peer is gone already.
                        Some(Errno::CONNABORTED | Errno::INTR) => continue,
                        Some(Errno::MFILE | Errno::NFILE) if !self.places.is_empty() => {
                            has_room = self.make_room(now);
                            match has_room {
                                true => continue,
                                false => break 'sockets,
                            }
                        }
                        _ => return Err(Error::os(what(), e)),
                    },
                };
                stream
                    .set_nonblocking(true)
                    .map_err(|e| Error::os(what(), e))?;
                let peer = Unauthenticated {
                    stream,
                    from,
                    message: [0; HANDSHAKE_BYTES],
                    got: 0,
                    responder: None,
                    tls: None,
                };
                if self.places.is_full() {
                    self.make_room(now);
                }
                let number = self.places.admit(peer, now)?;
                self.hear(number, authenticated)?;
            }
        }
        self.places.open(&self.sockets, has_room)
    }

    /// Refuses the peer that is the least likely to be a rank; false: each may be one.
    fn make_room(&mut self, now: Time) -> bool {
        let least = self.places.least_likely(now);
        if let Some((number, standing)) = least {
            let why = match standing {
                Standing::Silent => "had said nothing when others wanted its place",
                _ => "had proven nothing when others wanted its place",
            };
            self.refuse(number, why);
        }
        least.is_some()
    }

    fn refuse(&mut self, number: u64, why: &str) {
        let Some(peer) = self.places.take(number) else {
            return;
        };
        let text = format!("from {} {why}", peer.from);
        self.refused += 1;
        if self.refused <= PRINTED_MAX {
            let more = match self.refused == PRINTED_MAX {
                true => "; further ones are only counted",
                false => "",
            };
            note(&format!(
                "rank {} refused a connection: one {text}{more}",
                self.own
            ));
        }
        self.last_refusal = Some(text);
    }
}

impl AsFd for Listener {
    /// What to wait for: readable when anything has come.
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.places.as_fd()
    }
}

/// The error of a rank that encrypts beside one that does not, found before either has said
/// anything else.
fn other_tls(rank: Rank, has_tls: bool) -> Error {
    let print = |has_tls| {
        let mut config = Config::default();
        config.tcp.has_tls = has_tls;
        config.shared_fingerprint()
    };
    differing_settings(rank, print(!has_tls), print(has_tls))
}

enum Progress {
    None,
    Proven(Rank, u64),
    /// A rank of the job that encrypts, and this one does not, or the other way round.
    Differs(Rank),
}

impl AsFd for Unauthenticated {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.stream.as_fd()
    }
}

impl Unauthenticated {
    fn standing(&self) -> Standing {
        match (&self.responder, &self.tls) {
            (_, Some(_)) => Standing::Proven,
            (Some(_), None) => Standing::Claims,
            (None, None) => Standing::Silent,
        }
    }

    fn poll(
        &mut self,
        own: Rank,
        credentials: &Credentials,
    ) -> std::result::Result<Progress, String> {
        if self.tls.is_some() {
            return self.secure();
        }
        loop {
            match self.stream.read(&mut self.message[self.got..]) {
                Ok(0) => return Err(self.left()),
                Ok(count) => self.got += count,
                Err(e) if e.kind() == ErrorKind::WouldBlock => return Ok(Progress::None),
                Err(e) if e.kind() == ErrorKind::Interrupted => {}
                Err(e) => return Err(format!("was lost: {e}")),
            }
            if self.got < HANDSHAKE_BYTES {
                continue;
            }
            self.got = 0;
            if let Some((responder, claim)) = &self.responder {
                let is_proven = responder.handle_proof(&self.message);
                is_proven.map_err(|e| format!("was refused: {e}"))?;
                let refusal = match (credentials.has_tls, claim.detail & DETAIL_TLS != 0) {
                    (true, false) => Some(Refusal::TlsHere),
                    (false, true) => Some(Refusal::TlsThere),
                    _ => None,
                };
                self.say(&responder.verdict(refusal, 0))?;
                return match refusal {
                    Some(_) => Ok(Progress::Differs(claim.initiator)),
                    None if credentials.has_tls => {
                        let tls = Tls::responder(&responder.channel(), TLS_RECORDS);
                        self.tls = Some(Box::new(tls.map_err(|e| e.to_string())?));
                        self.secure()
                    }
                    None => Ok(Progress::Proven(claim.initiator, claim.detail)),
                };
            }
            let claim = Claim::parse(&self.message).map_err(|e| format!("was refused: {e}"))?;
            self.check(&claim, own, credentials)?;
            let nonce = credentials.nonce().map_err(|e| e.to_string())?;
            let key = credentials.key().ok_or("came before there was a key")?;
            let (responder, challenge) = Responder::new(&key, &self.message, &nonce);
            self.say(&challenge)?;
            self.responder = Some((responder, claim));
        }
    }

    /// Goes on with TLS, after the proof.
    fn secure(&mut self) -> std::result::Result<Progress, String> {
        let (Some(tls), Some((_, claim))) = (&mut self.tls, &self.responder) else {
            return Ok(Progress::None);
        };
        let lost = |e: std::io::Error| format!("that is rank {} was lost: {e}", claim.initiator);
        while !tls.is_ready() {
            match (&self.stream).read(tls.space()) {
                Ok(0) => return Err(lost(ErrorKind::UnexpectedEof.into())),
                Ok(count) => tls.note_received(count),
                Err(e) if e.kind() == ErrorKind::WouldBlock => break,
                Err(e) if e.kind() == ErrorKind::Interrupted => continue,
                Err(e) => return Err(lost(e)),
            }
            // What comes after the handshake is kept.
            tls.open(&mut |_| 0)
                .map_err(|e| lost(std::io::Error::other(e)))?;
        }
        // It fits into the socket's buffer, as the messages before did.
        (&self.stream).write_all(tls.unsent()).map_err(lost)?;
        tls.note_sent(tls.unsent().len());
        match tls.is_ready() {
            true => Ok(Progress::Proven(claim.initiator, claim.detail)),
            false => Ok(Progress::None),
        }
    }

    fn check(
        &self,
        claim: &Claim,
        own: Rank,
        credentials: &Credentials,
    ) -> std::result::Result<(), String> {
        let wants = match claim {
            c if c.purpose != Purpose::Control => {
                "data, and this is where control connections go".into()
            }
            c if c.responder != own => format!("rank {}, and this is rank {own}", c.responder),
            c if c.epoch != credentials.epoch => format!(
                "start {} of the job, and this is start {}",
                c.epoch, credentials.epoch
            ),
            _ => return Ok(()),
        };
        Err(format!(
            "that says it is rank {} wants {wants}",
            claim.initiator
        ))
    }

    fn left(&self) -> String {
        match &self.responder {
            Some((_, claim)) => format!(
                "that said it is rank {} left at our challenge (it has another secret or job)",
                claim.initiator
            ),
            None => "left without a word".into(),
        }
    }

    /// A message fits into the buffer of a socket that has sent nothing yet.
    fn say(&self, message: &HandshakeMessage) -> std::result::Result<(), String> {
        (&self.stream)
            .write_all(message)
            .map_err(|e| format!("was lost: {e}"))
    }
}

#[cfg(test)]
#[path = "listener_tests.rs"]
mod tests;
