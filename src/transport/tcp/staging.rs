//! [`Staging`]: buffers for chunks that come before their receives, kept for the next ones.
//!
//! A new buffer of this size is memory that the kernel zeroes page by page at its first use, which
//! took longer than receiving into it.

/// Buffers kept, so that a burst does not hold memory for good: a few chunks of a few peers.
const KEPT_MAX: usize = 16;

/// See the module.
#[derive(Debug, Default)]
pub struct Staging(Vec<Vec<u8>>);

impl Staging {
    /// A buffer of this length; what is in it has no meaning.
    pub fn take(&mut self, bytes: usize) -> Vec<u8> {
        let mut buffer = self.0.pop().unwrap_or_default();
        buffer.resize(bytes, 0);
        buffer
    }

    /// Takes it back.
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
        let mut staging = Staging::default();
        let buffer = staging.take(1 << 16);
        let at = buffer.as_ptr();
        staging.give(buffer);
        let again = staging.take(1 << 10);
        assert_eq!((again.as_ptr(), again.len()), (at, 1 << 10));
        (0..2 * KEPT_MAX).for_each(|_| staging.give(vec![0; 8]));
        assert_eq!(staging.0.len(), KEPT_MAX);
    }
}
