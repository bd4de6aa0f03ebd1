//! [`Stream`]: real indices and values. `real.rs` says what machines do with them.

/// Indices, increasing, with their values.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Stream {
    /// Coordinates.
    pub indices: Vec<u64>,
    /// As many values.
    pub values: Vec<f32>,
}

impl Stream {
    pub(super) fn push(&mut self, index: u64, value: f32) {
        self.indices.push(index);
        self.values.push(value);
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = (u64, f32)> + '_ {
        self.indices
            .iter()
            .copied()
            .zip(self.values.iter().copied())
    }

    pub(super) fn extend(&mut self, indices: &[u64], values: &[f32]) {
        self.indices.extend_from_slice(indices);
        self.values.extend_from_slice(values);
    }
}
