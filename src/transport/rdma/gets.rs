//! Short gets, and atomic operations of the device, that find nothing before them: each leaves with
//! the call, as one post.
//!
//! A get takes 98 us at best in `perf read_lat` over Soft-RoCE, 115 as a transfer (`transfers.rs`),
//! and 83 in perftest. A get that a fault cuts goes on as a transfer. Of an atomic operation nobody
//! knows then whether it was done.

use super::device::{Device, Operation, Place};
use super::rail::Registered;
use crate::memory::{RegionKey, View};
use crate::transport::Atomic;
use std::collections::BTreeMap;
use std::sync::Arc;

/// A short get that is under way.
#[derive(Debug)]
pub struct Get<D: Device> {
    pub token: u64,
    /// Where it goes, and the registered memory that this is in.
    pub view: View,
    pub memory: Arc<Registered<D>>,
    /// The peer's region and the offset in it.
    pub range: (RegionKey, u64),
    pub atomic: Option<Atomic>,
}

/// Those under way to one peer, by number.
#[derive(Debug)]
pub struct Gets<D: Device> {
    under_way: BTreeMap<u64, Get<D>>,
    next: u64,
}

impl<D: Device> Gets<D> {
    /// None.
    pub fn new() -> Gets<D> {
        Gets {
            under_way: BTreeMap::new(),
            next: 0,
        }
    }

    /// Whether none is under way.
    pub fn is_empty(&self) -> bool {
        self.under_way.is_empty()
    }

    /// One that is about to be posted; its number.
    #[inline]
    pub fn add(&mut self, get: Get<D>) -> u64 {
        self.next += 1;
        self.under_way.insert(self.next, get);
        self.next
    }

    /// One that has ended.
    #[inline]
    pub fn remove(&mut self, number: u64) -> Option<Get<D>> {
        self.under_way.remove(&number)
    }

    /// The queue has ended before these.
    pub fn take_all(&mut self) -> impl Iterator<Item = Get<D>> + use<D> {
        std::mem::take(&mut self.under_way).into_values()
    }

    /// Whether one is under way to this region of the peer.
    pub fn is_under_way_to(&self, key: RegionKey) -> bool {
        self.under_way.values().any(|get| get.range.0 == key)
    }
}

/// What a device is asked to do to get what is there, or to change it.
pub fn operation(atomic: Option<Atomic>, place: Place) -> Operation {
    match atomic {
        None => Operation::Read(place),
        Some(Atomic::FetchAdd(add)) => Operation::FetchAndAdd { place, add },
        Some(Atomic::CompareSwap { compare, swap }) => Operation::CompareAndSwap {
            place,
            compare,
            swap,
        },
    }
}
