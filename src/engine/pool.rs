//! [`Pool`]: registered memory that the engine gives to rounds and takes back. It is for scratch
//! buffers, and for copies of chunks that are sent from unregistered memory.
//!
//! Peers reach it only for messages: they may fetch those that are sent from it, and write those
//! that are received in it. A piece comes back after the last completion of a post that uses it, so
//! it may be used again.

use crate::error::Result;
use crate::memory::{Region, View};
use crate::transport::Transport;
use std::sync::Arc;

/// A piece of pool memory, which goes back with [`Pool::give`].
#[derive(Clone, Copy, Debug)]
pub struct Lent {
    /// All its bytes; at least as many as asked for.
    pub view: View,
}

/// Pieces of memory, sorted by sizes that are powers of two.
#[derive(Debug)]
pub struct Pool {
    /// Free pieces of 2^i bytes.
    free: [Vec<Lent>; usize::BITS as usize],
    /// Keeps every piece alive until the pool ends.
    regions: Vec<Arc<Region>>,
    is_size_only: bool,
    is_shared: bool,
}

/// A chunk that is sent from a copy, because its source is not registered.
pub struct Bounced {
    pub token: u64,
    pub lent: Lent,
}

impl Pool {
    /// An empty pool. A size-only pool gives lengths without bytes.
    pub fn new(is_size_only: bool, is_shared: bool) -> Pool {
        Pool {
            free: std::array::from_fn(|_| Vec::new()),
            regions: Vec::new(),
            is_size_only,
            is_shared,
        }
    }

    /// A piece of at least `bytes` bytes: a returned one, or new memory.
    pub fn lend(&mut self, bytes: usize, transport: &mut dyn Transport) -> Result<Lent> {
        let class = class_of(bytes);
        if let Some(lent) = self.free[class].pop() {
            return Ok(lent);
        }
        let region = Arc::new(if self.is_size_only {
            Region::size_only(1 << class)
        } else if self.is_shared {
            Region::shared("linerate-pool", 1 << class)?
        } else {
            Region::private(1 << class)?
        });
        let key = transport.register(region.clone())?;
        let view = region.view().in_region(key, 0);
        self.regions.push(region);
        Ok(Lent { view })
    }

    /// Takes a piece back.
    pub fn give(&mut self, lent: Lent) {
        self.free[class_of(lent.view.len_bytes())].push(lent);
    }
}

/// Smallest class: one page, below which a mapping saves nothing.
const CLASS_MIN: u32 = 12;

fn class_of(bytes: usize) -> usize {
    bytes
        .max(1)
        .next_power_of_two()
        .trailing_zeros()
        .max(CLASS_MIN) as usize
}
