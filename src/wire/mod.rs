//! Bytes that ranks exchange besides data: check, parse, emit. What comes from a peer never panics.

mod control;

pub use control::{CONTROL_TEXT_BYTES_MAX, ControlKind, ControlMessage};
