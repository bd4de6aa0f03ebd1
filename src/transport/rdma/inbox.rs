//! [`Inbox`]: the ring that one peer writes into, and what of it the peer was told.

use super::device::Device;
use super::rail::Registered;
use super::record::{RailKeys, SLOT_BYTES};
use super::ring::ReceiveRing;
use crate::memory::View;
use std::sync::Arc;

/// See the module.
#[derive(Debug)]
pub struct Inbox<D: Device> {
    ring: ReceiveRing,
    memory: Option<Arc<Registered<D>>>,
    /// The memory's registration of the last generation, to which the peer may still be writing.
    last_memory: Option<Arc<Registered<D>>>,
    /// The peer waits to hear that a position was consumed.
    is_awaited: bool,
    /// The peer waits to hear that a position was consumed, until the next slow look at most.
    is_awaited_slowly: bool,
}

impl<D: Device> Inbox<D> {
    pub fn new(slots: u32) -> Inbox<D> {
        Inbox {
            ring: ReceiveRing::new(slots),
            memory: None,
            last_memory: None,
            is_awaited: false,
            is_awaited_slowly: false,
        }
    }

    pub fn set_memory(&mut self, memory: Arc<Registered<D>>) {
        self.last_memory = self.memory.replace(memory);
    }

    /// Nothing of the last generation is under way: some devices do not end what is written to
    /// memory whose registration has ended.
    pub fn end_last_memory(&mut self) {
        self.last_memory = None;
    }

    /// The memory, once it is made.
    pub fn memory(&self) -> Option<&Arc<Registered<D>>> {
        self.memory.as_ref()
    }

    /// The memory's registration ends.
    pub fn end_memory(&mut self) {
        (self.memory, self.last_memory) = (None, None);
    }

    pub fn has_memory(&self) -> bool {
        self.memory.is_some()
    }

    /// What the peer has to know of the memory, once that is made: where it is, and the keys of the
    /// rails.
    pub fn address_and_keys(&self) -> Option<(u64, RailKeys)> {
        let memory = self.memory.as_ref()?;
        Some((memory.address(), memory.keys()))
    }

    /// The record of the position with these low bits has come.
    #[inline]
    pub fn arrive(&mut self, low_bits: u32) -> Result<(), String> {
        self.ring.arrive(low_bits)
    }

    /// The next position, if its record has come, to be done now.
    #[inline]
    pub fn take_next(&mut self) -> Option<u64> {
        self.ring.take_next()
    }

    /// What has come early is posted again.
    pub fn forget_early(&mut self) {
        self.ring.forget_early();
    }

    /// Positions that were done.
    pub fn received(&self) -> u64 {
        self.ring.received()
    }

    /// Of these, positions that the peer may be told of as consumed.
    pub fn consumed(&self) -> u64 {
        self.ring.consumed()
    }

    /// The put at this position has named no region: the peer is told so before it is told that the
    /// position was consumed.
    pub fn hold_back(&mut self, position: u64) {
        self.ring.hold_back(position);
    }

    /// The peer knows of the first such put.
    pub fn let_go(&mut self) {
        self.ring.let_go();
    }

    /// The slot of a position.
    #[inline]
    pub fn slot(&self, position: u64) -> View {
        let memory = self.memory.as_ref().expect("made with the connection");
        (memory.view()).part(self.ring.slot(position) * SLOT_BYTES, SLOT_BYTES)
    }

    /// Whether half of the ring was not told.
    #[inline]
    pub fn is_due(&self) -> bool {
        self.ring.is_due()
    }

    /// Whether the peer waits to hear what was consumed.
    #[inline]
    pub fn is_asked(&self) -> bool {
        self.is_awaited && self.ring.untold() > 0
    }

    /// Low bits of the positions that were consumed, which the peer is being told of.
    #[inline]
    pub fn tell(&mut self) -> u32 {
        self.is_awaited = false;
        self.ring.tell()
    }

    /// The peer waits to hear that a position was consumed, and the next slow look is early enough.
    pub fn await_slowly(&mut self) {
        self.is_awaited_slowly = true;
    }

    /// A slow look; true where the peer is to hear now.
    pub fn look_slowly(&mut self) -> bool {
        let is_awaited = std::mem::take(&mut self.is_awaited_slowly);
        self.is_awaited |= is_awaited;
        is_awaited
    }
}
