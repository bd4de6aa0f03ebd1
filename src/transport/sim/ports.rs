//! [`Port`]: what serialises bytes, and so models congestion; and [`Fate`], what the wire does to a
//! packet.
//!
//! A port is a queue in time: a packet holds it for `per_message + bytes / bandwidth`. Small
//! packets pass between the packets of a large message, as they do on a wire with a 4 KiB MTU: they
//! wait only for other small ones, and large ones wait for everything. No capacity is lost or
//! gained by that.

use super::options::Link;

/// The times at which it is free.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Port {
    small_free_ns: u64,
    large_free_ns: u64,
}

impl Port {
    /// Holds the port for `hold_ns`, not before `now`; returns when that begins.
    pub(super) fn reserve(&mut self, now: u64, hold_ns: u64, is_small: bool) -> u64 {
        if is_small {
            let begin = now.max(self.small_free_ns);
            self.small_free_ns = begin + hold_ns;
            self.large_free_ns = self.large_free_ns.max(begin) + hold_ns;
            begin
        } else {
            let begin = now.max(self.large_free_ns);
            self.large_free_ns = begin + hold_ns;
            begin
        }
    }
}

/// Whether a packet of this size passes between the packets of large ones.
pub(super) fn is_small(bytes: u64) -> bool {
    bytes <= crate::limits::INLINE_BYTES_MAX as u64
}

/// What the wire does to one packet, drawn before it leaves.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Fate {
    /// Attempts that are lost before the one that arrives.
    pub(super) losses: u32,
    /// Extra latency of the one that arrives, nanoseconds.
    pub(super) jitter_ns: u64,
    /// Extra latency of its second copy, if there is one.
    pub(super) copy_jitter_ns: Option<u64>,
}

/// Losses in a row that the model draws at most. At a loss of one half, more happen once in 65536
/// packets.
pub(super) const LOSSES_MAX: u32 = 16;

impl Fate {
    /// Draws a fate.
    pub(super) fn draw(
        prng: &mut crate::prng::Prng,
        link: &Link,
        drop: f64,
        duplicate: f64,
    ) -> Fate {
        let mut fate = Fate::default();
        while drop > 0.0 && fate.losses < LOSSES_MAX && prng.chance(drop) {
            fate.losses += 1;
        }
        if link.jitter_ns > 0 {
            fate.jitter_ns = prng.below(link.jitter_ns + 1);
        }
        if duplicate > 0.0 && prng.chance(duplicate) {
            fate.copy_jitter_ns = Some(fate.jitter_ns + prng.below(link.jitter_ns + 1));
        }
        fate
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn large_packets_queue_and_small_ones_pass_between_them() {
        let mut port = Port::default();
        assert_eq!(port.reserve(0, 100, false), 0);
        assert_eq!(port.reserve(10, 5, true), 10);
        assert_eq!(port.reserve(10, 5, true), 15);
        assert_eq!(port.reserve(20, 100, false), 110);
    }

    #[test]
    fn a_quiet_link_draws_nothing() {
        let mut prng = crate::prng::Prng::new(1);
        let fate = Fate::draw(&mut prng, &Link::HOST, 0.0, 0.0);
        assert_eq!(fate, Fate::default());
        assert_eq!(
            prng.next_u64(),
            crate::prng::Prng::new(1).next_u64(),
            "so it costs no randomness"
        );
    }

    #[test]
    fn losses_are_bounded() {
        let mut prng = crate::prng::Prng::new(1);
        let worst = (0..1000)
            .map(|_| Fate::draw(&mut prng, &Link::HOST, 0.999, 0.0).losses)
            .max();
        assert_eq!(worst, Some(LOSSES_MAX));
    }
}
