//! Words and bytes that all ranks exchange over the communicator itself, before they agree on
//! something.

use super::Communicator;
use crate::error::{Error, Result};

impl Communicator {
    /// The words of all ranks, one rank after another. Every rank gives equally many.
    pub(super) fn gather_words(&self, own: &[u64]) -> Result<Vec<u64>> {
        let bytes = self.gather_bytes(bytemuck::cast_slice(own))?;
        Ok(bytes
            .chunks_exact(8)
            .map(|word| u64::from_le_bytes(std::array::from_fn(|i| word[i])))
            .collect())
    }

    /// The bytes of all ranks, by rank. Their lengths may differ.
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

    /// As [`Communicator::gather_blobs`], of ranks that may have failed to make theirs: then the
    /// error of the first of them is that of all. `what` says what they make.
    pub(super) fn gather_made(&self, own: Result<Vec<u8>>, what: &str) -> Result<Vec<Vec<u8>>> {
        let framed = match &own {
            Ok(bytes) => [&[1], bytes.as_slice()].concat(),
            Err(error) => [&[0], error.to_string().as_bytes()].concat(),
        };
        let all = self.gather_blobs(&framed)?;
        // A rank that has failed knows its error best.
        own?;
        (0..)
            .zip(all)
            .map(|(rank, framed)| match framed.split_first() {
                Some((1, bytes)) => Ok(bytes.to_vec()),
                Some((_, text)) => {
                    let text = String::from_utf8_lossy(text);
                    Err(Error::Bootstrap(format!(
                        "rank {rank} could not make {what}: {text}"
                    )))
                }
                None => Err(Error::Malformed(format!(
                    "rank {rank} says nothing of {what}"
                ))),
            })
            .collect()
    }

    /// The bytes of all ranks, one rank after another. Every rank gives equally many.
    fn gather_bytes(&self, own: &[u8]) -> Result<Vec<u8>> {
        let mut all = vec![0; own.len() * self.ranks() as usize];
        self.all_gather(own, &mut all)?;
        Ok(all)
    }

    /// An error on a simulated rank, which cannot make a call that waits for other ranks. `call`
    /// names it.
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
