//! [`Shared`]: the communicator and the windows of a parameter server.

use super::layout::Layout;
use crate::comm::window::Part;
use crate::comm::{Buffer, Communicator, Window};
use crate::error::Result;
use crate::types::Rank;
use std::sync::OnceLock;
use std::time::Duration;

/// What a rank's shard and its worker share.
pub struct Shared {
    pub comm: Communicator,
    pub layout: Layout,
    /// Names and lengths of the tensors, as a checkpoint tells them.
    pub tensors: String,
    pub data: Window<u8>,
    pub words: Window<u64>,
    /// Memory for gradients that shards may have mapped. It goes after the communicator: who has
    /// mapped it relies on it while this rank is connected.
    pub gradients: OnceLock<Buffer<u8>>,
}

impl Shared {
    /// The time since the clock of this rank began.
    pub fn now(&self) -> Duration {
        Duration::from_nanos(self.comm.inner.clock.now().0)
    }

    /// Whether this rank has the first shard.
    pub fn is_first(&self) -> bool {
        self.layout.servers[0] == self.comm.rank()
    }

    /// This rank's parts of the windows: data, and words.
    pub fn own_parts(&self) -> [Part; 2] {
        [self.data.own_part(), self.words.own_part()]
    }

    /// The parts of the process that has this slot from now on. Makes those of this rank known to
    /// it.
    pub fn set_parts(&self, rank: Rank, [data, words]: [Part; 2]) -> Result<()> {
        self.data.set_part(rank, data)?;
        self.words.set_part(rank, words)
    }
}
