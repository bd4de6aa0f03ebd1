//! Collectives: from a request to a schedule. Pure; knows no transport, no memory and no time.
//!
//! Each algorithm is one function `fn(&Request) -> Schedule` in a file of its own, listed in
//! [`algorithms`]. Layouts are NCCL's, in place too (see [`Request::input`] and [`Request::output`]).
//!
//! Read first: `request.rs`, then `ring.rs`.

mod request;

pub use request::Request;
