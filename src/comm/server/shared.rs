//! [`Shared`]: the communicator and the windows of a parameter server.

use super::layout::Layout;
use crate::comm::{Communicator, Window};
use crate::error::Result;

/// What a rank's shard and its worker share.
pub struct Shared {
    pub comm: Communicator,
    pub layout: Layout,
    pub data: Window<u8>,
    pub words: Window<u64>,
}

impl Shared {
    /// Whether all ranks have their windows.
    pub fn is_ready(&self) -> Result<bool> {
        Ok(self.data.is_ready()? && self.words.is_ready()?)
    }
}
