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
