//! [`Tls`]: TLS 1.3 (RFC 8446) over a connection whose ends have proven the job's secret to each
//! other. It has no sockets: the caller puts in the bytes that come, and takes out those to send.
//! The protocol is that of rustls, the cryptography that of ring.
//!
//! Trust comes from the challenge that precedes it. Both ends derive the signing keys of both from
//! the job's key and the two nonces ([`ChannelSecrets`]), and accept no other key. A peer that does
//! not know the secret cannot sign, so none can stand between the two, and a recorded handshake is
//! worth nothing on another connection. Traffic is encrypted with keys that are agreed on anew
//! (X25519), so that an attacker who learns the secret later cannot read what was recorded.
//!
//! What it does not do: hide who talks to whom, when and how much; the challenge itself and its
//! ranks and job are readable. There are no sessions to resume and no early data.

mod trust;

pub use trust::ChannelSecrets;

use rustls::client::UnbufferedClientConnection;
use rustls::pki_types::{IpAddr, Ipv4Addr, ServerName};
use rustls::server::UnbufferedServerConnection;
use rustls::unbuffered::{ConnectionState, EncodeError, EncryptError, UnbufferedStatus};
use std::sync::Arc;

/// Bytes of one record: the most that are allowed, because each record costs a header, a tag and a
/// call.
const RECORD_BYTES: usize = 16 * 1024;
/// The longest sealed record (RFC 8446, 5.2). It leaves room for an announcement of new keys before
/// one of our records.
const SEALED_BYTES_MAX: usize = 5 + RECORD_BYTES + 256;

/// Is given opened bytes, and says how many of them it takes.
type Taker<'a> = dyn FnMut(&[u8]) -> usize + 'a;

/// Why a connection is over.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TlsError {
    /// The other end has another key than the one that proved the secret.
    #[error(
        "its TLS key is not that of the rank which proved the secret: somebody is between the two"
    )]
    OtherKey,
    /// The other end has ended TLS.
    #[error("the other side ended TLS")]
    Closed,
    /// The protocol was broken, or bytes were changed on their way.
    #[error("TLS: {0}")]
    Broken(String),
}

impl From<rustls::Error> for TlsError {
    fn from(error: rustls::Error) -> TlsError {
        match error {
            rustls::Error::InvalidCertificate(_) => TlsError::OtherKey,
            other => TlsError::Broken(other.to_string()),
        }
    }
}

/// See the module.
pub struct Tls {
    end: End,
    /// Sealed bytes that have come, from `start` to `filled`.
    coming: Box<[u8]>,
    start: usize,
    filled: usize,
    /// Sealed bytes to send, from `sent` to `sealed`.
    leaving: Box<[u8]>,
    sent: usize,
    sealed: usize,
    /// What is left of the last record, from `taken` on.
    opened: Vec<u8>,
    taken: usize,
    /// The next record, before it is sealed.
    plain: Box<[u8]>,
    /// What has ended it; nothing is tried after that.
    failure: Option<TlsError>,
}

enum End {
    Initiator(UnbufferedClientConnection),
    Responder(UnbufferedServerConnection),
}

/// The outcome of one step of the protocol.
enum Turn {
    /// There may be more to do.
    Again,
    /// Nothing more without further bytes.
    Idle,
    /// Nothing more without further bytes, and bytes may be sealed.
    Ready,
}

impl std::fmt::Debug for Tls {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let is_ready = self.is_ready();
        f.debug_struct("Tls").field("is_ready", &is_ready).finish()
    }
}

impl Tls {
    /// The end that has connected. It holds `records` records in each direction, as many as one
    /// system call moves.
    pub fn initiator(secrets: &ChannelSecrets, records: usize) -> Result<Tls, TlsError> {
        let config = Arc::new(trust::initiator(secrets, &trust::SUITES)?);
        // rustls asks for a name, which is not sent: keys say who is there.
        let name = ServerName::IpAddress(IpAddr::V4(Ipv4Addr::from([127, 0, 0, 1])));
        let connection = UnbufferedClientConnection::new(config, name)?;
        Tls::of(End::Initiator(connection), records)
    }

    /// The end that was connected to; see [`Tls::initiator`].
    pub fn responder(secrets: &ChannelSecrets, records: usize) -> Result<Tls, TlsError> {
        let config = Arc::new(trust::responder(secrets, &trust::SUITES)?);
        Tls::of(
            End::Responder(UnbufferedServerConnection::new(config)?),
            records,
        )
    }

    fn of(end: End, records: usize) -> Result<Tls, TlsError> {
        let buffer = || vec![0; records.max(1) * SEALED_BYTES_MAX].into();
        let mut tls = Tls {
            end,
            coming: buffer(),
            start: 0,
            filled: 0,
            leaving: buffer(),
            sent: 0,
            sealed: 0,
            opened: Vec::new(),
            taken: 0,
            plain: vec![0; RECORD_BYTES].into(),
            failure: None,
        };
        // The initiator has something to say at once.
        tls.open(&mut |_| 0)?;
        Ok(tls)
    }

    /// Whether the handshake is over: both ends have shown their keys.
    pub fn is_ready(&self) -> bool {
        match &self.end {
            End::Initiator(connection) => !connection.is_handshaking(),
            End::Responder(connection) => !connection.is_handshaking(),
        }
    }

    /// Where the caller puts sealed bytes that have come. It is not empty if [`Tls::open`] has
    /// given all earlier bytes.
    pub fn space(&mut self) -> &mut [u8] {
        if self.start > 0 {
            self.coming.copy_within(self.start..self.filled, 0);
            (self.start, self.filled) = (0, self.filled - self.start);
        }
        &mut self.coming[self.filled..]
    }

    /// This many bytes were put there.
    pub fn note_received(&mut self, bytes: usize) {
        self.filled += bytes;
    }

    /// Opens what has come and gives it to `take`, which returns how many bytes it takes; if it
    /// takes less than all, the call ends. Goes on with the handshake too, which may leave
    /// something to send.
    pub fn open(&mut self, take: &mut Taker<'_>) -> Result<(), TlsError> {
        loop {
            if self.holds_opened() {
                self.taken += take(&self.opened[self.taken..]);
                if self.holds_opened() {
                    return Ok(());
                }
            }
            if !matches!(self.turn(Some(take))?, Turn::Again) {
                return self.check_room();
            }
        }
    }

    /// Why it is over, if it is.
    pub fn failure(&self) -> Option<&TlsError> {
        self.failure.as_ref()
    }

    /// Whether there is something that [`Tls::open`] would give without further bytes.
    pub fn holds_opened(&self) -> bool {
        self.taken < self.opened.len()
    }

    /// Seals one record of the bytes that `fill` writes into its buffer, and returns how many they
    /// are. 0: the handshake is not over, or there is no room until sealed bytes have been sent.
    pub fn seal(&mut self, fill: &mut dyn FnMut(&mut [u8]) -> usize) -> Result<usize, TlsError> {
        if self.leaving.len() - self.sealed < SEALED_BYTES_MAX {
            return match &self.failure {
                None => Ok(0),
                Some(failure) => Err(failure.clone()),
            };
        }
        while !matches!(self.turn(None)?, Turn::Ready) {
            if !self.is_ready() {
                return Ok(0);
            }
        }
        let bytes = fill(&mut self.plain);
        let (plain, room) = (&self.plain[..bytes], &mut self.leaving[self.sealed..]);
        let coming = &mut self.coming[self.start..self.filled];
        let sealed = match &mut self.end {
            End::Initiator(end) => encrypt(end.process_tls_records(coming), plain, room),
            End::Responder(end) => encrypt(end.process_tls_records(coming), plain, room),
        };
        self.sealed += sealed.map_err(|error| self.fail(error))?;
        Ok(bytes)
    }

    /// What is to be sent.
    pub fn unsent(&self) -> &[u8] {
        &self.leaving[self.sent..self.sealed]
    }

    /// This many bytes of it were sent.
    pub fn note_sent(&mut self, bytes: usize) {
        self.sent += bytes;
        if self.sent == self.sealed {
            (self.sent, self.sealed) = (0, 0);
        }
    }

    /// An incomplete record never fills the buffer. So a full buffer holds a handshake message that
    /// is longer than any of this handshake.
    fn check_room(&mut self) -> Result<(), TlsError> {
        match self.filled - self.start < self.coming.len() {
            true => Ok(()),
            false => Err(self.fail(TlsError::Broken("a handshake without an end".into()))),
        }
    }

    fn fail(&mut self, error: TlsError) -> TlsError {
        self.failure = Some(error.clone());
        error
    }

    /// One step of the protocol. What it opens goes to `take` if that is given, and what is left of
    /// it is kept.
    fn turn(&mut self, take: Option<&mut Taker<'_>>) -> Result<Turn, TlsError> {
        if let Some(failure) = &self.failure {
            return Err(failure.clone());
        }
        let coming = &mut self.coming[self.start..self.filled];
        let room = &mut self.leaving[self.sealed..];
        let mut nobody = |_: &[u8]| 0;
        let take = take.unwrap_or(&mut nobody);
        if self.taken == self.opened.len() {
            self.opened.clear();
            self.taken = 0;
        }
        let opened = &mut self.opened;
        let stepped = match &mut self.end {
            End::Initiator(end) => step(end.process_tls_records(coming), room, opened, take),
            End::Responder(end) => step(end.process_tls_records(coming), room, opened, take),
        };
        let (discard, written, turn) = stepped.map_err(|error| self.fail(error))?;
        self.start += discard;
        self.sealed += written;
        Ok(turn)
    }
}

/// Returns the bytes that are done with, the bytes to send, and the outcome.
fn step<Data>(
    status: UnbufferedStatus<'_, '_, Data>,
    room: &mut [u8],
    opened: &mut Vec<u8>,
    take: &mut Taker<'_>,
) -> Result<(usize, usize, Turn), TlsError> {
    let mut discard = status.discard;
    let (mut written, mut turn) = (0, Turn::Again);
    match status.state? {
        ConnectionState::ReadTraffic(mut traffic) => {
            while let Some(record) = traffic.next_record() {
                let record = record?;
                discard += record.discard;
                // Bytes are given in order: while some are kept, none is given.
                let taken = match opened.is_empty() {
                    true => take(record.payload),
                    false => 0,
                };
                opened.extend_from_slice(&record.payload[taken..]);
            }
        }
        ConnectionState::EncodeTlsData(mut data) => {
            written = data.encode(room).map_err(|error| match error {
                EncodeError::InsufficientSize(_) => {
                    TlsError::Broken("it asks for more than it takes back".into())
                }
                other => TlsError::Broken(other.to_string()),
            })?;
        }
        // The data is in the buffer already, and leaves in order.
        ConnectionState::TransmitTlsData(data) => data.done(),
        ConnectionState::WriteTraffic(_) => turn = Turn::Ready,
        ConnectionState::BlockedHandshake => turn = Turn::Idle,
        ConnectionState::PeerClosed | ConnectionState::Closed => return Err(TlsError::Closed),
        _ => return Err(TlsError::Broken("it sent what was not agreed on".into())),
    }
    Ok((discard, written, turn))
}

fn encrypt<Data>(
    status: UnbufferedStatus<'_, '_, Data>,
    plain: &[u8],
    room: &mut [u8],
) -> Result<usize, TlsError> {
    match status.state? {
        ConnectionState::WriteTraffic(mut traffic) => {
            traffic.encrypt(plain, room).map_err(|error| match error {
                EncryptError::InsufficientSize(size) => TlsError::Broken(format!(
                    "a record of {} bytes, and room for {}",
                    size.required_size,
                    room.len()
                )),
                other => TlsError::Broken(other.to_string()),
            })
        }
        other => Err(TlsError::Broken(format!(
            "{other:?} where bytes may be sealed"
        ))),
    }
}

#[cfg(test)]
#[path = "tls_tests.rs"]
mod tests;
