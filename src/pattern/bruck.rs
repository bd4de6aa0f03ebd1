//! Doubling distances: dissemination and Bruck's all-gather.

/// Distances 1, 2, 4, ... below `ranks`: after the round of distance d, a rank has heard (directly
/// or not) from the `2 * d` ranks that end with itself.
pub fn distances(ranks: u32) -> impl Iterator<Item = u32> {
    std::iter::successors(Some(1), |d| Some(d * 2)).take_while(move |&d| d < ranks)
}

/// How many parts travel in the round of a distance in Bruck's all-gather: all that the sender has,
/// or as many as the receiver still needs.
pub fn parts(distance: u32, ranks: u32) -> u32 {
    distance.min(ranks - distance)
}

/// A run of `len` positions from `start` on a ring, as one or two runs `(first, len)` that do not
/// wrap.
pub fn runs(start: u32, len: u32, ranks: u32) -> impl Iterator<Item = (u32, u32)> {
    let start = start % ranks;
    let first = len.min(ranks - start);
    [(start, first), (0, len - first)]
        .into_iter()
        .filter(|&(_, len)| len > 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dissemination_reaches_everybody() {
        for ranks in 1..70u32 {
            let heard: u32 = 1 + distances(ranks).map(|d| parts(d, ranks)).sum::<u32>();
            assert_eq!(heard, ranks);
        }
    }

    #[test]
    fn a_run_wraps_at_most_once() {
        assert_eq!(runs(3, 2, 5).collect::<Vec<_>>(), [(3, 2)]);
        assert_eq!(runs(3, 4, 5).collect::<Vec<_>>(), [(3, 2), (0, 2)]);
        assert_eq!(runs(8, 5, 5).collect::<Vec<_>>(), [(3, 2), (0, 3)]);
    }
}
