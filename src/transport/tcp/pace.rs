//! [`Pace`]: no more than this many bits per second leave a rank, over all its connections
//! together.
//!
//! It models a slower link: it keeps the time at which that link would be free again, and nothing
//! is handed to the kernel earlier. While bytes of any peer wait, the link counts as busy without a
//! gap, so that a rank that was not scheduled for a moment makes up for it. A link for which nobody
//! waited gathers no credit. Peers whose bytes wait take turns. Bytes that come are not paced:
//! their senders do that.

use crate::time::Time;
use crate::types::Rank;
use std::collections::VecDeque;
use std::time::Duration;

/// Bytes handed over at a time, so that a short frame waits for little else: half a millisecond at
/// 1 Gbit/s.
const BYTES_MAX: usize = 64 * 1024;
/// The time for which a rank that was not scheduled makes up at most.
const LAG_MAX: Duration = Duration::from_millis(50);

/// See the module.
#[derive(Debug)]
pub struct Pace {
    bits_per_second: u64,
    free_at: Time,
    /// The peers with bytes that wait. The first one sends next, and is then the last one.
    turns: VecDeque<Rank>,
}

impl Pace {
    pub fn new(bits_per_second: u64) -> Pace {
        Pace {
            bits_per_second,
            free_at: Time::default(),
            turns: VecDeque::new(),
        }
    }

    /// How many bytes a peer may send now. `None`: it waits, and asks again until it is forgotten.
    pub fn allowance(&mut self, now: Time, peer: Rank) -> Option<usize> {
        let place = self.turns.iter().position(|&one| one == peer);
        let is_next = place == Some(0) || self.turns.is_empty();
        if now >= self.free_at && is_next {
            self.turns.rotate_left(place.map_or(0, |_| 1));
            return Some(BYTES_MAX);
        }
        if place.is_none() {
            self.turns.push_back(peer);
        }
        None
    }

    /// A peer has nothing more to send, or can send nothing.
    pub fn forget(&mut self, peer: Rank) {
        self.turns.retain(|&one| one != peer);
    }

    /// This many bytes were handed over.
    pub fn note_sent(&mut self, now: Time, bytes: usize) {
        let lag = if !self.turns.is_empty() {
            LAG_MAX
        } else {
            Duration::ZERO
        };
        let earliest = Time(now.0.saturating_sub(lag.as_nanos() as u64));
        let nanoseconds = bytes as u128 * 8_000_000_000 / u128::from(self.bits_per_second);
        self.free_at = self
            .free_at
            .max(earliest)
            .after(Duration::from_nanos(nanoseconds as u64));
    }

    /// When bytes that wait may leave.
    pub fn next(&self) -> Option<Time> {
        (!self.turns.is_empty()).then_some(self.free_at)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const GIGABIT: u64 = 1_000_000_000;

    /// Bytes that a peer with more than enough sends until `end`, when it is asked at these times.
    fn sent(pace: &mut Pace, times: impl Iterator<Item = u64>) -> usize {
        let mut total = 0;
        for time in times {
            while let Some(bytes) = pace.allowance(Time(time), 1) {
                pace.note_sent(Time(time), bytes);
                total += bytes;
            }
        }
        total
    }

    #[test]
    fn a_second_lets_pass_what_the_rate_says_however_unevenly_it_is_asked() {
        let second = 1_000_000_000u64;
        for gap in [1_000, 100_000, 3_000_000, 40_000_000] {
            let mut pace = Pace::new(GIGABIT);
            let got = sent(&mut pace, (second..2 * second).step_by(gap));
            let wanted = 125_000_000.0 * (1.0 - gap as f64 / 1e9);
            let off = (got as f64 - wanted).abs();
            assert!(
                off <= (gap as f64 / 8.0) + 2.0 * BYTES_MAX as f64,
                "{gap}: {got}"
            );
        }
    }

    #[test]
    fn an_idle_link_gathers_no_credit_and_a_long_sleep_little() {
        let mut pace = Pace::new(GIGABIT);
        pace.note_sent(Time(0), 125_000);
        assert_eq!(pace.next(), None);
        assert_eq!(pace.allowance(Time(999_999), 1), None);
        assert_eq!(pace.next(), Some(Time(1_000_000)));
        pace.forget(1);
        assert_eq!(pace.next(), None);
        // After an idle second two pieces cannot go at once.
        let later = Time(1_000_000_000);
        assert!(pace.allowance(later, 1).is_some());
        pace.note_sent(later, BYTES_MAX);
        assert!(pace.allowance(later, 1).is_none());
        // Bytes wait, and the rank sleeps for a second: what it makes up for is bounded.
        let got = sent(&mut pace, std::iter::once(2_000_000_000));
        let most = 125_000_000 * LAG_MAX.as_millis() as usize / 1000 + BYTES_MAX;
        assert!((most / 2..=most).contains(&got), "{got}");
    }

    #[test]
    fn peers_take_turns_in_whatever_order_they_ask() {
        let mut pace = Pace::new(GIGABIT);
        let mut sent = [0; 4];
        for time in (1..1_000_000_000).step_by(100_000) {
            for peer in 0..4 {
                if let Some(bytes) = pace.allowance(Time(time), peer) {
                    pace.note_sent(Time(time), bytes);
                    sent[peer as usize] += bytes;
                }
            }
        }
        let (least, most) = (sent.iter().min(), sent.iter().max());
        assert!(most.unwrap() - least.unwrap() <= BYTES_MAX, "{sent:?}");
        assert!(sent.iter().sum::<usize>() > 120_000_000, "{sent:?}");
        let (gone, next, later) = (pace.turns[0], pace.turns[1], Time(2_000_000_000));
        assert!(pace.allowance(later, next).is_none());
        pace.forget(gone);
        assert!(pace.allowance(later, next).is_some());
    }
}
