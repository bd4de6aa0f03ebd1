//! [`Changes`]: atomic operations that the peer's processor does for this rank, by number.

use super::record::CHANGES_MAX;
use crate::memory::View;
use crate::transport::PostError;
use std::collections::BTreeMap;

/// See the module.
#[derive(Debug, Default)]
pub struct Changes {
    /// Where what was there goes, and the token.
    under_way: BTreeMap<u32, (View, u64)>,
    next: u32,
}

impl Changes {
    /// Notes one; its number.
    pub fn begin(&mut self, result: View, token: u64) -> Result<u32, PostError> {
        let mut numbers = (0..CHANGES_MAX).map(|i| (self.next + i) % CHANGES_MAX);
        let free = numbers.find(|id| !self.under_way.contains_key(id));
        let id = free.ok_or(PostError::WouldBlock)?;
        self.next = (id + 1) % CHANGES_MAX;
        self.under_way.insert(id, (result, token));
        Ok(id)
    }

    /// The peer has answered one: where what was there goes, and the token.
    pub fn end(&mut self, id: u32) -> Result<(View, u64), String> {
        self.under_way
            .remove(&id)
            .ok_or_else(|| format!("it answers atomic operation {id}, which nobody asked"))
    }

    /// The peer is gone: the tokens of all.
    pub fn flush(&mut self) -> Vec<u64> {
        let all = std::mem::take(&mut self.under_way).into_values();
        all.map(|(_, token)| token).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_come_again_when_they_are_free_and_an_answer_counts_once() {
        let mut changes = Changes::default();
        for id in 0..CHANGES_MAX {
            assert_eq!(changes.begin(View::empty(), 0), Ok(id));
        }
        assert_eq!(changes.begin(View::empty(), 0), Err(PostError::WouldBlock));
        changes.end(1).unwrap();
        assert!(changes.end(1).is_err());
        assert_eq!(changes.begin(View::empty(), 7), Ok(1));
        assert_eq!(changes.flush().len(), CHANGES_MAX as usize);
    }
}
