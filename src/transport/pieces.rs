//! [`Pieces`]: what of a long transfer is still to be moved; and how long the next piece is, and
//! over which rail it goes.

/// The least piece into which a transfer is cut to occupy several rails: 64 KiB take 5 us at 100
/// Gbit/s, more than a post or a system call.
const PIECE_BYTES_MIN: u64 = 64 * 1024;

/// Ranges that wait to be posted. A piece that was lost with its queue pair comes back.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Pieces {
    /// Offset and length of each: none is empty, and they ascend and do not touch. There is nearly
    /// always one.
    ranges: Vec<(u64, u64)>,
}

impl Pieces {
    /// All pieces of this many bytes.
    pub fn all(bytes: u64) -> Pieces {
        Pieces {
            ranges: Vec::from_iter((bytes > 0).then_some((0, bytes))),
        }
    }

    /// Nothing waits.
    pub fn is_empty(&self) -> bool {
        self.ranges.is_empty()
    }

    /// How many bytes wait.
    pub fn len_bytes(&self) -> u64 {
        self.ranges.iter().map(|(_, bytes)| bytes).sum()
    }

    /// The next piece as (offset, bytes), and whether nothing waits after it.
    pub fn peek(&self, bytes_max: u64) -> Option<(u64, u64, bool)> {
        let (offset, bytes) = *self.ranges.first()?;
        let is_last = self.ranges.len() == 1 && bytes <= bytes_max;
        Some((offset, bytes.min(bytes_max), is_last))
    }

    /// Takes a piece of this many bytes, as [`Pieces::peek`] has shown it.
    pub fn take(&mut self, bytes: u64) {
        let first = &mut self.ranges[0];
        debug_assert!(bytes <= first.1);
        *first = (first.0 + bytes, first.1 - bytes);
        if first.1 == 0 {
            self.ranges.remove(0);
        }
    }

    /// A piece was not moved after all.
    pub fn give_back(&mut self, offset: u64, bytes: u64) {
        if bytes == 0 {
            return;
        }
        let at = self.ranges.partition_point(|range| range.0 < offset);
        self.ranges.insert(at, (offset, bytes));
        self.ranges.dedup_by(|after, before| {
            let is_next = before.0 + before.1 == after.0;
            if is_next {
                before.1 += after.1;
            }
            is_next
        });
    }
}

/// Beyond this many bytes, at most two pieces are under way on a rail. A record waits behind them
/// for 84 us at 100 Gbit/s, and at 400 Gbit/s there are 21 us to post the next piece.
const WINDOW_BYTES: u64 = 1 << 20;
/// The window is at most this many of the longest pieces, so that short messages wait less where
/// pieces are set to be short.
const WINDOW_PIECES: u64 = 4;

/// While this many bytes are under way on a rail, no further piece is posted. At least two pieces
/// of `piece_bytes` fit, and pieces have `longest` bytes at most.
pub(super) fn window_bytes(piece_bytes: u64, longest: u64) -> u64 {
    let window = WINDOW_BYTES.min(WINDOW_PIECES * longest);
    window.max(2 * piece_bytes)
}

/// How long a piece is where a transfer of `total` bytes has this many rails: its share, within
/// bounds.
pub(super) fn piece_bytes(total: u64, rails: usize, most: u64) -> u64 {
    let share = total.div_ceil(rails.max(1) as u64);
    share.clamp(PIECE_BYTES_MIN.min(most), most)
}

/// The rail with the least under way, of those that have room: the load decides, so that a slower
/// one gets less.
pub(super) fn choose_rail(rails: impl Iterator<Item = (usize, u64)>) -> Option<usize> {
    rails
        .min_by_key(|&(_, outstanding)| outstanding)
        .map(|(rail, _)| rail)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::prng::Prng;

    #[test]
    fn pieces_are_cut_in_order_and_the_last_is_known() {
        let mut pieces = Pieces::all(10);
        assert_eq!(pieces.peek(4), Some((0, 4, false)));
        pieces.take(4);
        assert_eq!(pieces.len_bytes(), 6);
        pieces.take(4);
        assert_eq!(pieces.peek(4), Some((8, 2, true)));
        pieces.take(2);
        assert!(pieces.is_empty() && Pieces::all(0).is_empty());
        assert_eq!(pieces.peek(4), None);
    }

    #[test]
    fn lost_pieces_come_back_once() {
        for seed in 0..100 {
            let mut prng = Prng::new(seed);
            let total = 1 + prng.below(1000);
            let mut pieces = Pieces::all(total);
            let (mut moved, mut lost) = (vec![0u8; total as usize], 0);
            while let Some((offset, bytes, _)) = pieces.peek(1 + prng.below(100)) {
                pieces.take(bytes);
                if lost < 20 && prng.below(3) == 0 {
                    lost += 1;
                    pieces.give_back(offset, bytes);
                    continue;
                }
                for byte in &mut moved[offset as usize..(offset + bytes) as usize] {
                    *byte += 1;
                }
            }
            assert!(moved.iter().all(|&times| times == 1), "seed {seed}");
        }
    }

    #[test]
    fn what_comes_back_grows_together() {
        let mut pieces = Pieces::all(30);
        pieces.take(10);
        pieces.take(10);
        pieces.give_back(0, 10);
        assert_eq!(pieces.peek(100), Some((0, 10, false)));
        pieces.give_back(10, 10);
        assert_eq!(pieces, Pieces::all(30));
        pieces.give_back(5, 0);
        assert_eq!(pieces, Pieces::all(30));
    }

    #[test]
    fn what_is_under_way_is_two_pieces_at_least_and_no_more_than_short_messages_can_wait_for() {
        let pieces = [64 << 10, 512 << 10, 1 << 20, 4 << 20];
        let window = |longest| pieces.map(|piece| window_bytes(piece.min(longest), longest));
        assert_eq!(window(4 << 20), [1 << 20, 1 << 20, 2 << 20, 8 << 20]);
        assert_eq!(window(64 << 10), [256 << 10; 4]);
    }

    #[test]
    fn the_least_loaded_rail_is_next_and_a_share_has_bounds() {
        assert_eq!(choose_rail([(0, 5), (2, 1), (3, 1)].into_iter()), Some(2));
        assert_eq!(choose_rail(std::iter::empty()), None);
        assert_eq!(piece_bytes(100 << 10, 2, 512 << 10), 64 << 10);
        assert_eq!(piece_bytes(1000 << 10, 2, 512 << 10), 500 << 10);
        assert_eq!(piece_bytes(10_000 << 10, 2, 512 << 10), 512 << 10);
        assert_eq!(piece_bytes(0, 0, 16), 16);
        // By default: a message of a mebibyte is one piece, and one for each of two rails.
        let most = u64::from(crate::config::VerbsSettings::default().chunk_bytes);
        assert_eq!(piece_bytes(1 << 20, 1, most), 1 << 20);
        assert_eq!(piece_bytes(1 << 20, 2, most), 512 << 10);
    }
}
