//! What ranks tell each other before they agree on something: words and bytes of all, over the
//! communicator itself.

use super::Communicator;
use crate::error::{Error, Result};

impl Communicator {
    /// The words of all ranks, one rank after another. As many on every rank.
    pub(super) fn gather_words(&self, own: &[u64]) -> Result<Vec<u64>> {
        let bytes = self.gather_bytes(bytemuck::cast_slice(own))?;
        Ok(bytes
            .chunks_exact(8)
            .map(|word| u64::from_le_bytes(std::array::from_fn(|i| word[i])))
            .collect())
    }

    /// Bytes of all ranks, by rank; lengths may differ.
    pub(super) fn gather_blobs(&self, own: &[u8]) -> Result<Vec<Vec<u8>>> {
        let lengths = self.gather_words(&[own.len() as u64])?;
        let longest = lengths.iter().copied().max().unwrap_or(0) as usize;
        let mut padded = own.to_vec();
        padded.resize(longest, 0);
        let all = self.gather_bytes(&padded)?;
        let blobs = lengths.iter().enumerate().map(|(rank, &bytes)| {
            let start = rank * longest;
            all[start..start + bytes as usize].to_vec()
        });
        Ok(blobs.collect())
    }

    /// As many bytes of every rank, one rank after another.
    fn gather_bytes(&self, own: &[u8]) -> Result<Vec<u8>> {
        let mut all = vec![0; own.len() * self.ranks() as usize];
        self.all_gather(own, &mut all)?;
        Ok(all)
    }

    /// Calls that wait for other ranks cannot be made by simulated ones.
    pub(super) fn check_can_wait(&self, call: &str) -> Result<()> {
        if !self.inner.clock.is_virtual() {
            return Ok(());
        }
        Err(Error::invalid(format!(
            "{call} waits for the other ranks, and a simulated rank cannot wait inside a call: simulations have one \
             communicator of all their ranks"
        )))
    }
}
