//! [`Gate`]: lets ranks of the job in over TCP, and nobody else.
//!
//! Anyone who connects has to pass the handshake of [`crate::wire`] within a time; until then it
//! has one message's bytes of memory here. With TLS its keys are agreed on then, in the same time.
//! At most [`STRANGERS_MAX`] may be on trial, the others wait in the kernel's queue. Refusals are
//! told on standard error, the first ones each and then their number.

use super::credentials::{Credentials, DETAIL_TLS};
use super::differing::other_tls;
use super::handing::Handing;
use super::note::note;
use crate::error::{Error, Result};
use crate::time::Time;
use crate::types::Rank;
use crate::wire::{Claim, HANDSHAKE_BYTES, HandshakeMessage, Purpose, Refusal, Responder, Tls};
use rustix::io::Errno;
use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::fd::{AsFd, BorrowedFd};
use std::time::Duration;

/// [`Claim::detail`] of a rank that comes to the store.
pub(super) const TO_STORE: u64 = 1;
/// [`Claim::detail`] of a rank that comes to the one above it in the tree of contacts.
pub(super) const TO_PARENT: u64 = 2;
/// [`Claim::detail`] of a survivor that comes to the one who leads.
pub(super) const TO_LEADER: u64 = 3;

/// Connections on trial at once: a burst of ranks, and little memory.
pub(super) const STRANGERS_MAX: usize = 256;
/// Records that a control connection keeps in either direction: it has little to say, and rank 0
/// has one for every rank.
pub(super) const TLS_RECORDS: usize = 1;
/// How long a trial may take.
const TRIAL_TIME: Duration = Duration::from_secs(5);
/// Where all places are taken, a connection that has been on trial for so long makes room.
const TRIAL_TIME_FULL: Duration = Duration::from_millis(500);
/// Refusals that are told one by one.
const TOLD_MAX: u64 = 5;

/// A rank that has proven who it is.
#[derive(Debug)]
pub(super) struct Proven {
    pub rank: Rank,
    pub detail: u64,
    pub stream: TcpStream,
    pub tls: Option<Box<Tls>>,
}

/// See the module.
#[derive(Debug)]
pub(super) struct Gate {
    listeners: Vec<TcpListener>,
    strangers: Vec<Stranger>,
    credentials: Credentials,
    /// Where the secret was made here.
    handing: Option<Handing>,
    own: Rank,
    refused: u64,
    last_refusal: Option<String>,
}

#[derive(Debug)]
struct Stranger {
    stream: TcpStream,
    from: SocketAddr,
    since: Time,
    message: HandshakeMessage,
    got: usize,
    responder: Option<(Responder, Claim)>,
    /// It has proven itself, and agrees on keys.
    tls: Option<Box<Tls>>,
}

impl Gate {
    /// Behind these listeners.
    pub fn new(
        listeners: Vec<TcpListener>,
        own: Rank,
        credentials: &Credentials,
    ) -> std::io::Result<Gate> {
        for listener in &listeners {
            listener.set_nonblocking(true)?;
            // The standard library may listen with 128 places, and all ranks come at once.
            rustix::net::listen(listener, 4096)?;
        }
        Ok(Gate {
            listeners,
            strangers: Vec::new(),
            credentials: credentials.clone(),
            handing: None,
            own,
            refused: 0,
            last_refusal: None,
        })
    }

    /// Hands the secret of the job to those who may come.
    pub fn hand(&mut self, handing: Option<Handing>) {
        self.handing = handing;
    }

    /// What to wait for.
    pub fn descriptors(&self) -> impl Iterator<Item = BorrowedFd<'_>> {
        let listeners = self.listeners.iter().map(AsFd::as_fd);
        let listeners = listeners.take(match self.strangers.len() < STRANGERS_MAX {
            true => usize::MAX,
            false => 0,
        });
        let handing = self.handing.iter().map(AsFd::as_fd);
        let strangers = self.strangers.iter().map(|s| s.stream.as_fd());
        listeners.chain(handing).chain(strangers)
    }

    /// How many were refused, and the last of them, for the error of who waits in vain.
    pub fn refusals(&self) -> String {
        match &self.last_refusal {
            None => String::new(),
            Some(last) => format!(
                "; {} connections were refused, the last one {last}",
                self.refused
            ),
        }
    }

    /// Takes what has come; blocks nowhere. The error is one of this process: no descriptor is
    /// left.
    pub fn turn(&mut self, now: Time) -> Result<Vec<Proven>> {
        self.handing.iter().try_for_each(Handing::turn)?;
        self.accept(now)?;
        let mut proven = Vec::new();
        let mut index = 0;
        while index < self.strangers.len() {
            match self.strangers[index].turn(self.own, &self.credentials) {
                Ok(Progress::Proven(rank, detail)) => {
                    let stranger = self.strangers.swap_remove(index);
                    proven.push(Proven {
                        rank,
                        detail: detail & !DETAIL_TLS,
                        stream: stranger.stream,
                        tls: stranger.tls,
                    });
                }
                Ok(Progress::Differs(rank)) => {
                    self.strangers.swap_remove(index);
                    return Err(other_tls(rank, self.credentials.has_tls));
                }
                Ok(Progress::None) if now.since(self.strangers[index].since) < TRIAL_TIME => {
                    index += 1
                }
                Ok(Progress::None) => self.refuse(index, "said nothing more in time"),
                Err(why) => self.refuse(index, &why),
            }
        }
        Ok(proven)
    }

    fn accept(&mut self, now: Time) -> Result<()> {
        let what = || format!("rank {} cannot let a rank in", self.own);
        let mut accepted = Vec::new();
        let mut is_full = false;
        for listener in &self.listeners {
            loop {
                if self.strangers.len() + accepted.len() >= STRANGERS_MAX {
                    is_full = true;
                    break;
                }
                match listener.accept() {
                    Ok((stream, from)) => accepted.push((stream, from)),
                    Err(e) if e.kind() == ErrorKind::WouldBlock => break,
                    Err(e) => match Errno::from_io_error(&e) {
                        // Anyone who connected is gone already.
                        Some(Errno::CONNABORTED | Errno::INTR) => {}
                        Some(Errno::MFILE | Errno::NFILE) if !self.strangers.is_empty() => {
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
            self.strangers.push(Stranger {
                stream,
                from,
                since: now,
                message: [0; HANDSHAKE_BYTES],
                got: 0,
                responder: None,
                tls: None,
            });
        }
        let oldest = (0..self.strangers.len()).min_by_key(|&i| self.strangers[i].since);
        if let (true, Some(oldest)) = (is_full, oldest)
            && now.since(self.strangers[oldest].since) >= TRIAL_TIME_FULL
        {
            self.refuse(oldest, "had said nothing when others wanted its place");
        }
        Ok(())
    }

    fn refuse(&mut self, index: usize, why: &str) {
        let stranger = self.strangers.swap_remove(index);
        let text = format!("from {} {why}", stranger.from);
        self.refused += 1;
        if self.refused <= TOLD_MAX {
            let more = match self.refused == TOLD_MAX {
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

enum Progress {
    None,
    Proven(Rank, u64),
    /// A rank of the job that encrypts, and this one does not, or the other way round.
    Differs(Rank),
}

impl Stranger {
    fn turn(
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
            // What comes behind the handshake is kept.
            tls.open(&mut |_| 0)
                .map_err(|e| lost(std::io::Error::other(e)))?;
        }
        // It fits, as the messages before did.
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
#[path = "gate_tests.rs"]
mod tests;
