//! [`Listener`]: accepts connections of ranks of the job over TCP, and no others.
//!
//! A peer that connects has to pass the handshake of [`crate::wire`] within [`HANDSHAKE_TIME`];
//! until then this process keeps one message of it. With TLS the two agree on keys within the same
//! time. At most [`UNAUTHENTICATED_MAX`] peers may be in their handshake, and the others wait in
//! the kernel's queue. The first few refusals are printed on standard error, and the others are
//! counted.

use super::credentials::{Credentials, DETAIL_TLS};
use super::note::note;
use super::secret_socket::SecretSocket;
use crate::config::{Config, differing_settings};
use crate::error::{Error, Result};
use crate::time::Time;
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

/// Peers in their handshake at once: a burst of ranks, and little memory.
pub(super) const UNAUTHENTICATED_MAX: usize = 256;
/// Records that a control connection keeps in either direction: it carries little, and rank 0 has
/// one for every rank.
pub(super) const TLS_RECORDS: usize = 1;
/// How long a handshake may take.
const HANDSHAKE_TIME: Duration = Duration::from_secs(5);
/// Where all places are taken, the oldest handshake is given up once it has taken this long.
const HANDSHAKE_TIME_FULL: Duration = Duration::from_millis(500);
/// Refusals that are printed one by one.
const PRINTED_MAX: u64 = 5;

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
    unauthenticated: Vec<Unauthenticated>,
    credentials: Credentials,
    /// Where the secret was made here.
    secret_socket: Option<SecretSocket>,
    own: Rank,
    refused: u64,
    last_refusal: Option<String>,
}

#[derive(Debug)]
struct Unauthenticated {
    stream: TcpStream,
    from: SocketAddr,
    since: Time,
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
    ) -> std::io::Result<Listener> {
        for socket in &sockets {
            socket.set_nonblocking(true)?;
            // The standard library may listen with 128 places, and all ranks come at once.
            rustix::net::listen(socket, 4096)?;
        }
        Ok(Listener {
            sockets,
            unauthenticated: Vec::new(),
            credentials: credentials.clone(),
            secret_socket: None,
            own,
            refused: 0,
            last_refusal: None,
        })
    }

    /// Serves the secret of the job, too.
    pub fn serve_secret(&mut self, socket: Option<SecretSocket>) {
        self.secret_socket = socket;
    }

    /// What to wait for.
    pub fn descriptors(&self) -> impl Iterator<Item = BorrowedFd<'_>> {
        let sockets = self.sockets.iter().map(AsFd::as_fd);
        let sockets = sockets.take(match self.unauthenticated.len() < UNAUTHENTICATED_MAX {
            true => usize::MAX,
            false => 0,
        });
        let secret_socket = self.secret_socket.iter().map(AsFd::as_fd);
        let unauthenticated = self.unauthenticated.iter().map(|peer| peer.stream.as_fd());
        sockets.chain(secret_socket).chain(unauthenticated)
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

    /// Ranks that have proven who they are since the last call. Does not block. The error is one of
    /// this process: no descriptor is left.
    pub fn poll(&mut self, now: Time) -> Result<Vec<Authenticated>> {
        self.secret_socket.iter().try_for_each(SecretSocket::poll)?;
        self.accept(now)?;
        let mut authenticated = Vec::new();
        let mut index = 0;
        while index < self.unauthenticated.len() {
            match self.unauthenticated[index].poll(self.own, &self.credentials) {
                Ok(Progress::Proven(rank, detail)) => {
                    let peer = self.unauthenticated.swap_remove(index);
                    authenticated.push(Authenticated {
                        rank,
                        detail: detail & !DETAIL_TLS,
                        stream: peer.stream,
                        tls: peer.tls,
                    });
                }
                Ok(Progress::Differs(rank)) => {
                    self.unauthenticated.swap_remove(index);
                    return Err(other_tls(rank, self.credentials.has_tls));
                }
                Ok(Progress::None)
                    if now.since(self.unauthenticated[index].since) < HANDSHAKE_TIME =>
                {
                    index += 1
                }
                Ok(Progress::None) => self.refuse(index, "said nothing more in time"),
                Err(why) => self.refuse(index, &why),
            }
        }
        Ok(authenticated)
    }

    fn accept(&mut self, now: Time) -> Result<()> {
        let what = || format!("rank {} cannot let a rank in", self.own);
        let mut accepted = Vec::new();
        let mut is_full = false;
        for socket in &self.sockets {
            loop {
                if self.unauthenticated.len() + accepted.len() >= UNAUTHENTICATED_MAX {
                    is_full = true;
                    break;
                }
                match socket.accept() {
                    Ok((stream, from)) => accepted.push((stream, from)),
                    Err(e) if e.kind() == ErrorKind::WouldBlock => break,
                    Err(e) => match Errno::from_io_error(&e) {
                        // The peer is gone already.
                        Some(Errno::CONNABORTED | Errno::INTR) => {}
                        Some(Errno::MFILE | Errno::NFILE) if !self.unauthenticated.is_empty() => {
                            is_full = true;
                            break;
                        }
                        _ => return Err(Error::os(what(), e)),
                    },
                }
            }
        }
        for (stream, from) in accepted {
            stream
                .set_nonblocking(true)
                .map_err(|e| Error::os(what(), e))?;
            self.unauthenticated.push(Unauthenticated {
                stream,
                from,
                since: now,
                message: [0; HANDSHAKE_BYTES],
                got: 0,
                responder: None,
                tls: None,
            });
        }
        let peers = &self.unauthenticated;
        let oldest = (0..peers.len()).min_by_key(|&i| peers[i].since);
        if let (true, Some(oldest)) = (is_full, oldest)
            && now.since(peers[oldest].since) >= HANDSHAKE_TIME_FULL
        {
            self.refuse(oldest, "had said nothing when others wanted its place");
        }
        Ok(())
    }

    fn refuse(&mut self, index: usize, why: &str) {
        let peer = self.unauthenticated.swap_remove(index);
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

impl Unauthenticated {
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
                self.say(&responder.verdict(refusal))?;
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
