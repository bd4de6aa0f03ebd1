//! The mutual challenge that every connection begins with, control and data alike: a pure state
//! machine without sockets, clock or randomness (nonces are arguments).
//!
//! ```text
//! initiator ── hello: who I am, whom I want, which epoch, why, nonce ──► responder
//!           ◄── challenge: nonce, HMAC(key, "responder", hello, nonce) ──
//!           ── proof: HMAC(key, "initiator", hello, both nonces) ──────►
//!           ◄── verdict: accepted or why not, a detail, HMAC ──────────
//! ```
//!
//! A peer without the job's key gets no further than the challenge, and a recorded hello or proof
//! is worth nothing, because the other side's nonce is fresh. Every message is [`HANDSHAKE_BYTES`]
//! long, and macs are compared in constant time. The handshake does not hide what follows, nor
//! protect it from an attacker who can change packets on the way; [`Tls`] does, with keys that both
//! sides derive here ([`ChannelSecrets`]).
//!
//! [`Tls`]: super::Tls

use super::ChannelSecrets;
use crate::types::Rank;
use hmac::{Hmac, KeyInit, Mac};
use sha2::Sha256;

/// Length of each of the four messages.
pub const HANDSHAKE_BYTES: usize = 80;

/// One message.
pub type HandshakeMessage = [u8; HANDSHAKE_BYTES];

/// Bytes of a nonce, and of a mac.
pub const NONCE_BYTES: usize = 32;

const HELLO: &[u8; 8] = b"lnrths01";
const CHALLENGE: &[u8; 8] = b"lnrths02";
const PROOF: &[u8; 8] = b"lnrths03";
const VERDICT: &[u8; 8] = b"lnrths04";

/// The low bits of a verdict's word say whether it is a refusal; the responder's detail follows.
const REFUSAL_BITS: u32 = 8;
const REFUSAL_MASK: u64 = (1 << REFUSAL_BITS) - 1;

/// What went wrong, as the side that found it sees it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, thiserror::Error)]
pub enum HandshakeError {
    /// Not one of ours, or not the one that is due.
    #[error("what it sent is no {0} of linerate (another program, or another version)")]
    Malformed(&'static str),
    /// The purpose has no meaning here.
    #[error("it wants purpose {0}, which this version does not know")]
    UnknownPurpose(u32),
    /// It does not know the secret, or speaks for another job, epoch or rank.
    #[error("its proof is wrong: it has another secret (LINERATE_SECRET), job, epoch or rank")]
    WrongProof,
    /// The other side is who it says, and does not want this connection.
    #[error("it refused the connection: {0}")]
    Refused(Refusal),
}

/// Why a responder refuses an initiator that has proven itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Refusal {
    /// Both sides connect to each other at the same moment, and the responder's own connection is
    /// kept.
    Simultaneous,
    /// As many connections as there may be.
    Full,
    /// The peer has been disconnected, or has failed.
    Gone,
    /// The responder checks frames (`LINERATE_INTEGRITY=crc`), and the initiator does not.
    CrcHere,
    /// The initiator checks frames, and the responder does not.
    CrcThere,
    /// The responder encrypts (`LINERATE_TLS=on`), and the initiator does not.
    TlsHere,
    /// The initiator encrypts, and the responder does not.
    TlsThere,
    /// The responder has not connected to the initiator yet, or not again.
    Early,
}

impl Refusal {
    const ALL: [Refusal; 8] = [
        Refusal::Simultaneous,
        Refusal::Full,
        Refusal::Gone,
        Refusal::CrcHere,
        Refusal::CrcThere,
        Refusal::TlsHere,
        Refusal::TlsThere,
        Refusal::Early,
    ];

    fn code(self) -> u64 {
        1 + self as u64
    }

    fn from_code(code: u64) -> Option<Refusal> {
        Refusal::ALL.into_iter().find(|r| r.code() == code)
    }
}

impl std::fmt::Display for Refusal {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Refusal::Simultaneous => "its own connection to this rank comes first",
            Refusal::Full => "it has as many connections to this rank as it may",
            Refusal::Gone => "it has given this rank up",
            Refusal::CrcHere => "it has LINERATE_INTEGRITY=crc (--integrity crc), the rank that connects off: all need the same",
            Refusal::CrcThere => "it has LINERATE_INTEGRITY=off, the rank that connects crc (--integrity crc): all need the same",
            Refusal::TlsHere => "it has LINERATE_TLS=on (--tls), the rank that connects off: all need the same",
            Refusal::TlsThere => "it has LINERATE_TLS=off, the rank that connects on (--tls): all need the same",
            Refusal::Early => "it does not connect to this rank yet",
        })
    }
}

/// What a connection is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u32)]
pub enum Purpose {
    /// Rendezvous and control.
    Control = 1,
    /// A rail of the `tcp` transport.
    Data = 2,
}

/// Who wants what: the part of a hello on which both sides must agree. It is not trusted before the
/// proof.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Claim {
    /// Why.
    pub purpose: Purpose,
    /// The rank that connects.
    pub initiator: Rank,
    /// The rank that it wants to reach.
    pub responder: Rank,
    /// Which incarnation of the job: processes that are left of an earlier one are refused.
    pub epoch: u64,
    /// Free for the purpose, and proven like the rest.
    pub detail: u64,
}

/// The key that a job's ranks share.
#[derive(Clone, PartialEq, Eq)]
pub struct JobKey([u8; 32]);

impl std::fmt::Debug for JobKey {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("JobKey(..)")
    }
}

impl JobKey {
    /// The key of a job: `secret` may be of any length (also none, where only loopback is served);
    /// `job` names the job.
    pub fn derive(secret: &[u8], job: &[u8]) -> JobKey {
        JobKey(mac(secret, &[b"linerate job key", job]))
    }

    /// A key for one use, from this one: another `context` gives another key.
    pub fn derive_for(&self, context: &[u8]) -> JobKey {
        JobKey(mac(&self.0, &[b"linerate derived key", context]))
    }

    fn mac(&self, parts: &[&[u8]]) -> [u8; NONCE_BYTES] {
        mac(&self.0, parts)
    }

    fn channel(&self, hello: &HandshakeMessage, nonce: &[u8; NONCE_BYTES]) -> ChannelSecrets {
        ChannelSecrets {
            initiator: self.mac(&[b"tls key of the initiator", hello, nonce]),
            responder: self.mac(&[b"tls key of the responder", hello, nonce]),
        }
    }
}

fn keyed(key: &[u8], parts: &[&[u8]]) -> Hmac<Sha256> {
    let mut mac = Hmac::<Sha256>::new_from_slice(key).expect("HMAC takes keys of any length");
    for part in parts {
        // Lengths first, so that no two lists of parts read alike.
        mac.update(&(part.len() as u64).to_le_bytes());
        mac.update(part);
    }
    mac
}

fn mac(key: &[u8], parts: &[&[u8]]) -> [u8; NONCE_BYTES] {
    keyed(key, parts).finalize().into_bytes().into()
}

impl Claim {
    /// The claim of a hello, by which the caller finds the key.
    pub fn parse(hello: &HandshakeMessage) -> Result<Claim, HandshakeError> {
        let word = |at: usize| u32::from_le_bytes(std::array::from_fn(|i| hello[at + i]));
        let long = |at: usize| u64::from_le_bytes(std::array::from_fn(|i| hello[at + i]));
        if &hello[..8] != HELLO || hello[20..24] != [0; 4] || hello[72..] != [0; 8] {
            return Err(HandshakeError::Malformed("hello"));
        }
        let purpose = match word(8) {
            1 => Purpose::Control,
            2 => Purpose::Data,
            other => return Err(HandshakeError::UnknownPurpose(other)),
        };
        Ok(Claim {
            purpose,
            initiator: word(12),
            responder: word(16),
            epoch: long(24),
            detail: long(32),
        })
    }

    fn emit(&self, nonce: &[u8; NONCE_BYTES]) -> HandshakeMessage {
        let mut out = [0; HANDSHAKE_BYTES];
        out[..8].copy_from_slice(HELLO);
        out[8..12].copy_from_slice(&(self.purpose as u32).to_le_bytes());
        out[12..16].copy_from_slice(&self.initiator.to_le_bytes());
        out[16..20].copy_from_slice(&self.responder.to_le_bytes());
        out[24..32].copy_from_slice(&self.epoch.to_le_bytes());
        out[32..40].copy_from_slice(&self.detail.to_le_bytes());
        out[40..72].copy_from_slice(nonce);
        out
    }
}

/// The side that connects.
#[derive(Clone, Debug)]
pub struct Initiator {
    key: JobKey,
    hello: HandshakeMessage,
    theirs: [u8; NONCE_BYTES],
}

impl Initiator {
    /// Begins; the second value is the hello to send. `nonce` is random and used once.
    pub fn new(
        key: &JobKey,
        claim: &Claim,
        nonce: &[u8; NONCE_BYTES],
    ) -> (Initiator, HandshakeMessage) {
        let hello = claim.emit(nonce);
        let initiator = Initiator {
            key: key.clone(),
            hello,
            theirs: [0; NONCE_BYTES],
        };
        (initiator, hello)
    }

    /// Checks the responder's challenge; gives the proof to send.
    pub fn handle_challenge(
        &mut self,
        message: &HandshakeMessage,
    ) -> Result<HandshakeMessage, HandshakeError> {
        if &message[..8] != CHALLENGE || message[72..] != [0; 8] {
            return Err(HandshakeError::Malformed("challenge"));
        }
        self.theirs.copy_from_slice(&message[8..40]);
        keyed(&self.key.0, &[b"responder", &self.hello, &self.theirs])
            .verify_slice(&message[40..72])
            .map_err(|_| HandshakeError::WrongProof)?;
        let proof = (self.key).mac(&[b"initiator", &self.hello, &self.theirs]);
        Ok(message_of(PROOF, &proof, 0))
    }

    /// The secrets of the connection, after a good challenge. No other connection has them, and no
    /// peer without the key can derive them.
    pub fn channel(&self) -> ChannelSecrets {
        self.key.channel(&self.hello, &self.theirs)
    }

    /// Checks the verdict: the responder's detail, if the connection may be used.
    pub fn handle_verdict(&self, message: &HandshakeMessage) -> Result<u32, HandshakeError> {
        let code = u64::from_le_bytes(std::array::from_fn(|i| message[40 + i]));
        if &message[..8] != VERDICT || message[48..] != [0; 32] {
            return Err(HandshakeError::Malformed("verdict"));
        }
        let parts = [
            b"verdict".as_slice(),
            &self.hello,
            &self.theirs,
            &code.to_le_bytes(),
        ];
        keyed(&self.key.0, &parts)
            .verify_slice(&message[8..40])
            .map_err(|_| HandshakeError::WrongProof)?;
        match code & REFUSAL_MASK {
            0 => Ok((code >> REFUSAL_BITS) as u32),
            code => Err(Refusal::from_code(code)
                .map_or(HandshakeError::Malformed("verdict"), |refusal| {
                    HandshakeError::Refused(refusal)
                })),
        }
    }
}

/// The side that was connected to.
#[derive(Clone, Debug)]
pub struct Responder {
    key: JobKey,
    hello: HandshakeMessage,
    own: [u8; NONCE_BYTES],
}

impl Responder {
    /// Answers a hello whose [`Claim`] the caller has looked at and has a key for; the second value
    /// is the challenge to send. `nonce` is random and used once.
    pub fn new(
        key: &JobKey,
        hello: &HandshakeMessage,
        nonce: &[u8; NONCE_BYTES],
    ) -> (Responder, HandshakeMessage) {
        let mut challenge = message_of(CHALLENGE, nonce, 0);
        challenge[40..72].copy_from_slice(&key.mac(&[b"responder", hello, nonce]));
        let responder = Responder {
            key: key.clone(),
            hello: *hello,
            own: *nonce,
        };
        (responder, challenge)
    }

    /// Whether the initiator is who it claims to be.
    pub fn handle_proof(&self, message: &HandshakeMessage) -> Result<(), HandshakeError> {
        if &message[..8] != PROOF || message[40..] != [0; 40] {
            return Err(HandshakeError::Malformed("proof"));
        }
        keyed(&self.key.0, &[b"initiator", &self.hello, &self.own])
            .verify_slice(&message[8..40])
            .map_err(|_| HandshakeError::WrongProof)
    }

    /// The secrets of the connection, after a good proof: see [`Initiator::channel`].
    pub fn channel(&self) -> ChannelSecrets {
        self.key.channel(&self.hello, &self.own)
    }

    /// The last message, after a good proof: accepted, or why not. The detail is free for the
    /// purpose, and proven like the rest.
    pub fn verdict(&self, refusal: Option<Refusal>, detail: u32) -> HandshakeMessage {
        let code = refusal.map_or(0, Refusal::code) | u64::from(detail) << REFUSAL_BITS;
        let parts = [
            b"verdict".as_slice(),
            &self.hello,
            &self.own,
            &code.to_le_bytes(),
        ];
        message_of(VERDICT, &self.key.mac(&parts), code)
    }
}

fn message_of(magic: &[u8; 8], words: &[u8; 32], code: u64) -> HandshakeMessage {
    let mut out = [0; HANDSHAKE_BYTES];
    out[..8].copy_from_slice(magic);
    out[8..40].copy_from_slice(words);
    out[40..48].copy_from_slice(&code.to_le_bytes());
    out
}

#[cfg(test)]
#[path = "handshake_tests.rs"]
mod tests;
