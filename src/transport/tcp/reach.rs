//! [`Reach`]: how a peer is reached: its address, which side opens connections, and attempts that
//! have failed.

use super::address::{IDENTITY_BYTES, PeerAddress};
use crate::time::Time;
use crate::wire::Refusal;
use std::net::SocketAddr;
use std::time::Duration;

/// A port that refuses is tried this often. On the own host its process has ended then; elsewhere a
/// firewall may have refused.
const REFUSED_MAX: u32 = 3;
/// A peer that was never connected is tried this long, though its port refuses: it may have left in
/// good order, which those that were connected to it are about to tell.
const REFUSED_TIME: Duration = Duration::from_secs(1);
/// An unreachable peer is tried at least this often, and until the timeout. An attempt takes at
/// most the timeout divided by this.
const UNREACHABLE_MIN: u32 = 4;
/// Slow looks between two attempts, at most.
const PAUSE_LOOKS_MAX: u32 = 12;
/// Slow looks before this rank connects after all to a peer that connects itself.
const AWAIT_LOOKS: u32 = 500;

/// See the module.
#[derive(Debug, Default)]
pub struct Reach {
    address: Option<PeerAddress>,
    /// The epoch of the slot (clause 23), from 1, and that of the peer which it has joined.
    epoch: u32,
    joined: Option<u32>,
    /// This rank opens connections when there are too few.
    is_opener: bool,
    /// The peer is not connected yet, and is to be although nobody talks to it.
    is_awaited: bool,
    /// There has been a connection.
    was_connected: bool,
    /// A post was refused because there has been no connection.
    is_asked_for: bool,
    /// Attempts that have failed since the last connection, and when the first of them began.
    failures: u32,
    since: Option<Time>,
    /// Slow looks until the next attempt.
    pause_looks: u32,
    /// Attempts so far.
    made: u64,
}

impl Reach {
    /// How a peer is reached in an epoch.
    pub fn of_epoch(epoch: u32) -> Reach {
        Reach {
            epoch,
            ..Reach::default()
        }
    }

    pub fn epoch(&self) -> u32 {
        self.epoch
    }

    /// The epoch of the peer which this one has joined.
    pub fn joined(&self) -> Option<u32> {
        self.joined
    }

    /// The next epoch of the slot: both sides count alike from the last one that they have joined.
    pub fn next_epoch(&self) -> u32 {
        self.epoch.max(self.joined.unwrap_or(0)) + 1
    }

    /// Joins an epoch of the peer; false: it has joined another one.
    pub fn join(&mut self, theirs: u32) -> bool {
        *self.joined.get_or_insert(theirs) == theirs
    }

    /// Why a connection of this epoch of the peer may not be had while the slot is in use. `wanted`
    /// is the epoch that the peer has joined, 0 for none.
    pub fn refusal(&self, theirs: u32, wanted: u32) -> Option<Refusal> {
        let is_other = wanted != 0 && wanted != self.epoch;
        match self.joined {
            _ if is_other => Some(Refusal::Gone),
            // This rank is about to hear of the end of its own epoch.
            Some(joined) if theirs > joined => Some(Refusal::Early),
            Some(joined) if theirs < joined => Some(Refusal::Gone),
            _ => None,
        }
    }

    /// Why a connection of this epoch of the peer may not be had while the slot is not in use.
    pub fn refusal_when_over(&self, theirs: u32) -> Refusal {
        match theirs < self.next_epoch() {
            true => Refusal::Gone,
            false => Refusal::Early,
        }
    }

    pub fn set_address(&mut self, address: PeerAddress) {
        self.address = Some(address);
    }

    /// What names the peer's transport, if its address is known.
    pub fn identity(&self) -> Option<[u8; IDENTITY_BYTES]> {
        self.address.as_ref().map(|address| address.identity)
    }

    /// The peer is to be connected before anybody talks to it.
    pub fn await_connection(&mut self) {
        self.is_awaited = true;
    }

    pub fn set_opener(&mut self, is_opener: bool) {
        self.is_opener = is_opener;
    }

    /// Whether this rank opens connections when there are too few.
    pub fn is_opener(&self) -> bool {
        self.is_opener
    }

    /// Whether this rank opens the first connection although nobody talks to the peer.
    pub fn is_to_be_opened(&self) -> bool {
        self.is_awaited && self.is_opener
    }

    /// Whether a post is to wait because there has been no connection, which is asked for then.
    #[inline]
    pub fn lacks_first(&mut self) -> bool {
        self.is_asked_for |= !self.was_connected;
        !self.was_connected
    }

    /// Whether a post waits for the first connection.
    pub fn is_asked_for(&self) -> bool {
        self.is_asked_for
    }

    /// Begins an attempt: its number, from 1, and one of the peer's places, in turn.
    pub fn begin_attempt(&mut self, now: Time) -> Option<(u64, SocketAddr)> {
        let places = &self.address.as_ref()?.places;
        self.made += 1;
        self.since.get_or_insert(now);
        Some((self.made, places[(self.made as usize - 1) % places.len()]))
    }

    /// How long an attempt may take.
    pub fn attempt_time(timeout: Duration) -> Duration {
        timeout / UNREACHABLE_MIN
    }

    /// An attempt has failed; true where the peer is given up if there is no connection to it.
    pub fn note_failure(&mut self, now: Time, timeout: Duration, is_refused: bool) -> bool {
        self.failures += 1;
        self.pause_looks = self.failures.min(PAUSE_LOOKS_MAX);
        let since = *self.since.get_or_insert(now);
        let waited = now.since(since);
        let is_late = waited >= timeout && self.failures >= UNREACHABLE_MIN;
        let is_final = self.was_connected || waited >= REFUSED_TIME.min(timeout);
        is_late || (is_refused && is_final && self.failures >= REFUSED_MAX)
    }

    /// The peer has refused, because it connects itself or has connections enough.
    pub fn leave_to_peer(&mut self) {
        self.pause_looks = AWAIT_LOOKS;
    }

    /// There is a connection; true where this was awaited.
    pub fn note_connected(&mut self, is_outgoing: bool) -> bool {
        self.is_opener |= is_outgoing;
        (self.was_connected, self.is_asked_for) = (true, false);
        (self.failures, self.since, self.pause_looks) = (0, None, 0);
        std::mem::take(&mut self.is_awaited)
    }

    /// Whether attempts pause.
    pub fn is_paused(&self) -> bool {
        self.pause_looks > 0
    }

    /// Attempts that pause come nearer to the next one.
    pub fn count_slow_look(&mut self) {
        self.pause_looks = self.pause_looks.saturating_sub(1);
    }

    /// The next attempt may be made now.
    pub fn end_pause(&mut self) {
        self.pause_looks = 0;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TIMEOUT: Duration = Duration::from_nanos(100);

    #[test]
    fn a_port_that_refuses_is_given_up_after_three_attempts_and_a_silent_one_after_the_timeout() {
        let mut reach = Reach::default();
        reach.note_connected(true);
        let mut is_over = |now| reach.note_failure(Time(now), TIMEOUT, true);
        assert_eq!([1, 2, 3].map(&mut is_over), [false, false, true]);
        let (mut reach, long) = (Reach::default(), 2 * REFUSED_TIME);
        let mut is_over = |now| reach.note_failure(Time(1).after(now), long, true);
        let looks = [0.0, 0.5, 0.9, 1.0].map(|part| REFUSED_TIME.mul_f64(part));
        assert_eq!(looks.map(&mut is_over), [false, false, false, true]);
        let mut reach = Reach::default();
        let mut is_over = |now| reach.note_failure(Time(now), TIMEOUT, false);
        assert_eq!(
            [1, 2, 100, 101].map(&mut is_over),
            [false, false, false, true]
        );
    }

    #[test]
    fn an_epoch_joins_one_of_the_peer_and_the_next_ones_count_alike() {
        let mut one = Reach::of_epoch(1);
        assert_eq!(one.refusal(3, 0), None);
        assert!(one.join(3) && one.join(3) && !one.join(4));
        assert_eq!([one.refusal(3, 0), one.refusal(3, 1)], [None, None]);
        assert_eq!(one.refusal(3, 2), Some(Refusal::Gone));
        assert_eq!(one.refusal(2, 0), Some(Refusal::Gone));
        assert_eq!(one.refusal(4, 0), Some(Refusal::Early));
        assert_eq!(one.next_epoch(), 4);
        let over = [3, 4].map(|theirs| one.refusal_when_over(theirs));
        assert_eq!(over, [Refusal::Gone, Refusal::Early]);
    }

    #[test]
    fn a_connection_ends_pauses_and_is_told_once_where_it_was_awaited() {
        let mut reach = Reach::default();
        reach.await_connection();
        assert!(reach.lacks_first() && reach.is_asked_for());
        reach.note_failure(Time(1), TIMEOUT, false);
        assert!(reach.is_paused() && !reach.is_to_be_opened());
        assert!(reach.note_connected(true));
        assert!(!reach.is_paused() && reach.is_opener());
        assert!(!reach.lacks_first() && !reach.is_asked_for());
        assert!(!reach.note_connected(false));
    }
}
