//! [`Buffers`]: buffers for messages and chunks that come before their receives, kept for the next
//! ones.
//!
//! A new buffer of the size of a chunk is memory that the kernel zeroes page by page at its first
//! use, which takes longer than receiving into it.

/// Buffers that are kept, enough for a few chunks of a few peers: a burst does not hold memory for
/// good.
const KEPT_MAX: usize = 16;

/// See the module.
#[derive(Debug, Default)]
pub(super) struct Buffers(Vec<Vec<u8>>);

impl Buffers {
    /// A buffer of this length, whose contents have no meaning.
    pub fn take(&mut self, bytes: usize) -> Vec<u8> {
        let mut buffer = self.0.pop().unwrap_or_default();
        buffer.resize(bytes, 0);
        buffer
    }

    /// Keeps a buffer that is not used any more.
    pub fn give(&mut self, buffer: Vec<u8>) {
        if self.0.len() < KEPT_MAX {
            self.0.push(buffer);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn buffers_are_used_again_and_bounded() {
        let mut buffers = Buffers::default();
        let buffer = buffers.take(1 << 16);
        let at = buffer.as_ptr();
        buffers.give(buffer);
        let again = buffers.take(1 << 10);
        assert_eq!((again.as_ptr(), again.len()), (at, 1 << 10));
        (0..2 * KEPT_MAX).for_each(|_| buffers.give(vec![0; 8]));
        assert_eq!(buffers.0.len(), KEPT_MAX);
    }
}
