//! The posts of the engine, and the promise that [`Transport`](crate::transport::Transport) asks
//! for with each ("Memory of posts" in [`crate::transport`]): the memory stays until the
//! completion, and nobody makes a reference to it that conflicts.
//!
//! Who keeps this promise:
//!
//! - The task of a round holds its buffers ([`TaskCall::keep`]) until the round has ended; a call
//!   on slices borrows them and returns after its round. A round that ends well ends after its last
//!   completion. One that fails cancels its receives (`fault.rs`, `leaving.rs`) before buffers and
//!   slices go back.
//! - The transport holds what is registered with it. After a failure it reads and writes nothing
//!   else: sends from other memory are copied when posted, or read by the peer (clause 18).
//! - The task of an operation on memory of a peer holds its buffers until that has ended, and after
//!   a failure as long as the engine.
//! - Control memory is registered, and nobody makes references to it.
//!
//! An operation borrows its buffers (`memory/borrows.rs`), so that nobody gets a slice of them
//! meanwhile.
//!
//! [`TaskCall::keep`]: super::task::TaskCall::keep
#![allow(unsafe_code)]

use super::links::Links;
use crate::memory::View;
use crate::transport::{Atomic, PostError, RemoteRange};
use crate::types::Rank;

type Posted = std::result::Result<(), PostError>;

impl Links {
    /// [`Transport::post_send`](crate::transport::Transport::post_send) of a message of a round, or
    /// from control memory.
    #[inline]
    pub fn post_send(
        &mut self,
        peer: Rank,
        (tag, header): (u64, u64),
        source: View,
        token: u64,
    ) -> Posted {
        // SAFETY: the round and its task, or the transport, as above.
        unsafe { (self.transport).post_send(peer, tag, header, source, token) }
    }

    /// [`Transport::inject`](crate::transport::Transport::inject) of a message of a round.
    #[inline(always)]
    pub fn inject(
        &mut self,
        peer: Rank,
        (tag, header): (u64, u64),
        source: View,
    ) -> std::result::Result<bool, PostError> {
        // SAFETY: the round has not ended before this returns.
        unsafe { (self.transport).inject(peer, tag, header, source) }
    }

    /// [`Transport::post_recv`](crate::transport::Transport::post_recv) of a message of a round, or
    /// into control memory.
    #[inline]
    pub fn post_recv(&mut self, peer: Rank, tag: u64, destination: View, token: u64) -> Posted {
        // SAFETY: the round and its task, or the transport, as above.
        unsafe { (self.transport).post_recv(peer, tag, destination, token) }
    }

    /// [`Rma::post_put`](crate::transport::Rma::post_put) from control memory, or of an operation
    /// on memory of a peer.
    pub fn post_put(
        &mut self,
        peer: Rank,
        source: View,
        destination: RemoteRange,
        token: u64,
    ) -> Posted {
        // SAFETY: the transport holds control memory, or the task its buffers, as above.
        unsafe { (self.transport).post_put(peer, source, destination, token) }
    }

    /// [`Rma::post_get`](crate::transport::Rma::post_get) of an operation on memory of a peer.
    pub fn post_get(
        &mut self,
        peer: Rank,
        source: RemoteRange,
        destination: View,
        token: u64,
    ) -> Posted {
        // SAFETY: the task holds its buffers, as above.
        unsafe { (self.transport).post_get(peer, source, destination, token) }
    }

    /// [`Rma::post_atomic`](crate::transport::Rma::post_atomic) of an operation on memory of a
    /// peer.
    pub fn post_atomic(
        &mut self,
        peer: Rank,
        (what, word): (Atomic, RemoteRange),
        result: View,
        token: u64,
    ) -> Posted {
        // SAFETY: the task holds its buffers, as above.
        unsafe { (self.transport).post_atomic(peer, what, word, result, token) }
    }
}
