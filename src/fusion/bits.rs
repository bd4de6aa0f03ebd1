//! [`Bits`]: a fixed-size set of tensor indices, as 64-bit words that a reduction can combine.

/// A set of indices below a fixed length.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Bits {
    words: Vec<u64>,
}

impl Bits {
    /// An empty set of indices below `len`.
    pub fn new(len: usize) -> Bits {
        Bits {
            words: vec![0; len.div_ceil(64)],
        }
    }

    /// Adds an index.
    pub fn insert(&mut self, index: usize) {
        self.words[index / 64] |= 1 << (index % 64);
    }

    /// Whether the index is in the set.
    pub fn contains(&self, index: usize) -> bool {
        is_set(&self.words, index)
    }

    /// Removes all.
    pub fn clear(&mut self) {
        self.words.fill(0);
    }

    /// The words, lowest index in the lowest bit of the first.
    pub fn words(&self) -> &[u64] {
        &self.words
    }
}

/// Whether bit `index` of these words is set.
pub fn is_set(words: &[u64], index: usize) -> bool {
    words[index / 64] >> (index % 64) & 1 == 1
}
