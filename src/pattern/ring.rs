//! Positions on a ring.

/// The position `distance` after `index`.
pub fn after(index: u32, distance: u32, ranks: u32) -> u32 {
    (index + distance) % ranks
}

/// The position `distance` before `index`; `distance` at most `2 * ranks`.
pub fn before(index: u32, distance: u32, ranks: u32) -> u32 {
    (index + 2 * ranks - distance) % ranks
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn before_undoes_after() {
        for ranks in 1..9 {
            for index in 0..ranks {
                for distance in 0..=ranks {
                    assert_eq!(
                        before(after(index, distance, ranks), distance, ranks),
                        index
                    );
                }
            }
        }
    }
}
