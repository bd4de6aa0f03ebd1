//! [`Sizes`]: how many entries of each kind a rail has, and why.

use super::record::SLOT_BYTES;
use super::ring::TELLING_SLOTS;

/// Receives posted at once: posting them one by one costs as much as handling what took them.
pub const RECEIVES_AT_ONCE: u32 = 16;

/// How many entries of each kind a rail has, and why.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sizes {
    /// Of a ring, for records that carry something.
    pub slots: u32,
    /// Of a ring.
    pub ring: u32,
    /// Of a queue's send queue.
    pub sends: u32,
    /// Of a queue's receive queue.
    pub receives: u32,
    /// Of the completion queue.
    pub completions: u32,
}

/// Work requests for pieces of long transfers under way on one queue: the window holds two to
/// four, and more where small transfers make them short.
pub const PIECES_UNDER_WAY: u32 = 64;

/// Slots of a ring: in the largest jobs, and in small ones.
const SLOTS: std::ops::RangeInclusive<u32> = 8..=64;
/// Bytes that the rings of all peers lock at most, unless they have the least number of slots:
/// containers limit locked memory, and a host has several ranks.
const RINGS_BYTES_MAX: u64 = 64 << 20;

impl Sizes {
    /// For this many peers, with the slots that were asked for.
    pub fn of(slots: Option<u32>, peers: u32) -> Sizes {
        let peers = peers.max(1);
        let fitting = RINGS_BYTES_MAX / (2 * SLOT_BYTES as u64 * u64::from(peers));
        let fitting = (fitting as u32).clamp(*SLOTS.start(), *SLOTS.end());
        let slots = slots.unwrap_or(fitting);
        // Each position takes one receive, and so does each piece. Some receives are taken and not
        // posted again yet.
        let ring = slots + TELLING_SLOTS;
        let writes = ring + PIECES_UNDER_WAY;
        let receives = writes.next_multiple_of(RECEIVES_AT_ONCE) + RECEIVES_AT_ONCE;
        // Words and what makes a completion for them need some more.
        let sends = writes + ring;
        Sizes {
            slots,
            ring,
            sends,
            receives,
            // Every receive, and every send at worst.
            completions: (receives + sends) * peers,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_sums_that_grow_with_slots_and_completions_with_peers() {
        let one = Sizes::of(None, 1);
        let needed: u32 = 66 + 64;
        assert_eq!(one.receives, needed.next_multiple_of(16) + 16);
        assert_eq!(one.completions, one.receives + one.sends);
        let ten = Sizes::of(None, 10);
        assert_eq!((ten.sends, ten.receives), (one.sends, one.receives));
        assert_eq!(ten.completions, 10 * one.completions);
        assert_eq!(Sizes::of(None, 0), one);
        assert!(Sizes::of(Some(8), 1).receives < one.receives);
        let slots = [126, 255, 1023, 4095].map(|peers| Sizes::of(None, peers).slots);
        assert_eq!(slots, [64, 31, 8, 8]);
        assert_eq!(Sizes::of(Some(100), 4095).slots, 100);
    }

    #[test]
    fn a_rank_of_1024_that_uses_22_peers_pins_less_than_64_mib() {
        let sizes = Sizes::of(None, 1023);
        let rings = 2 * u64::from(sizes.ring) * SLOT_BYTES as u64;
        // What an mlx5 takes: numbers of entries are powers of two, of 64 bytes in a completion
        // queue, 256 in a send queue and 16 in a receive queue.
        let rounded = |entries: u32, bytes: u64| u64::from(entries.next_power_of_two()) * bytes;
        let pair = rounded(sizes.sends, 256) + rounded(sizes.receives, 16);
        // Both neighbours of a ring, 20 partners of recursive doubling and other ranks of its host.
        let pinned = rounded(sizes.completions, 64) + 22 * (rings + pair);
        assert!(pinned < 64 << 20, "{pinned} bytes");
    }
}
