//! Memory of tests that drive a transport themselves: reads, writes and posts as safe functions.
//!
//! They may be safe because such a test keeps its regions until what it has posted has completed or
//! its transports have ended, and makes no references to their bytes.
// No test needs all of them.
#![allow(unsafe_code, dead_code)]

use linerate::Element;
use linerate::Rank;
use linerate::transport::View;
use linerate::transport::{Atomic, PostError, RemoteRange, Transport};
use std::sync::atomic::AtomicU32;

type Posted = Result<(), PostError>;

pub fn load<T: Element>(view: View, index: usize) -> T {
    // SAFETY: the test keeps the region.
    unsafe { view.load(index) }
}

pub fn store<T: Element>(view: View, index: usize, value: T) {
    // SAFETY: the test keeps the region.
    unsafe { view.store(index, value) }
}

pub fn read(view: View, start: usize, target: &mut [u8]) {
    // SAFETY: the test keeps the region.
    unsafe { view.read(start, target) }
}

pub fn write(view: View, start: usize, source: &[u8]) {
    // SAFETY: the test keeps the region.
    unsafe { view.write(start, source) }
}

pub fn fill(view: View, byte: u8) {
    // SAFETY: the test keeps the region.
    unsafe { view.fill(byte) }
}

/// A word to sleep on, which the transport keeps.
pub fn word32(view: &View, start: usize) -> &AtomicU32 {
    // SAFETY: the test keeps the transport.
    unsafe { view.word32(start) }
}

/// The posts of a [`Transport`], from and to memory that the test keeps.
pub trait TestPosts: Transport {
    fn test_send(&mut self, peer: Rank, tag: u64, header: u64, source: View, token: u64) -> Posted {
        // SAFETY: the test keeps the memory.
        unsafe { self.post_send(peer, tag, header, source, token) }
    }

    fn test_inject(
        &mut self,
        peer: Rank,
        tag: u64,
        header: u64,
        source: View,
    ) -> Result<bool, PostError> {
        // SAFETY: the test keeps the memory.
        unsafe { self.inject(peer, tag, header, source) }
    }

    fn test_recv(&mut self, peer: Rank, tag: u64, destination: View, token: u64) -> Posted {
        // SAFETY: the test keeps the memory.
        unsafe { self.post_recv(peer, tag, destination, token) }
    }

    fn test_put(
        &mut self,
        peer: Rank,
        source: View,
        destination: RemoteRange,
        token: u64,
    ) -> Posted {
        // SAFETY: the test keeps the memory.
        unsafe { self.post_put(peer, source, destination, token) }
    }

    fn test_get(
        &mut self,
        peer: Rank,
        source: RemoteRange,
        destination: View,
        token: u64,
    ) -> Posted {
        // SAFETY: the test keeps the memory.
        unsafe { self.post_get(peer, source, destination, token) }
    }

    fn test_atomic(
        &mut self,
        peer: Rank,
        what: Atomic,
        word: RemoteRange,
        result: View,
        token: u64,
    ) -> Posted {
        // SAFETY: the test keeps the memory.
        unsafe { self.post_atomic(peer, what, word, result, token) }
    }
}

impl<T: Transport + ?Sized> TestPosts for T {}
