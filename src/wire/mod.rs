//! Bytes that ranks exchange besides data: check, parse, emit. What comes from a peer never panics.

mod control;
mod frame;
mod handshake;
mod tls;

pub use control::{ControlKind, ControlMessage, cut_text};
pub use frame::{Frame, FrameHeader, HEADER_BYTES, Limits};
pub use handshake::{
    Claim, HANDSHAKE_BYTES, HandshakeError, HandshakeMessage, Initiator, JobKey, NONCE_BYTES,
    Purpose, Refusal, Responder,
};
pub use tls::{ChannelSecrets, Tls, TlsError};
