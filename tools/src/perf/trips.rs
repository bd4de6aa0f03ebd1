//! Times of single messages over a [`Link`](super::link::Link). Both sides call the same functions;
//! the client is rank 1.
//!
//! A sample of messages or puts is half the time of one there and one back; a sample of gets is the
//! time of one. A put has no completion on the other side, but the contract keeps puts in order. So
//! a word is put behind the data, and the other side polls that word. Data that fits into the word
//! is the word, which a device writes without immediate data, as perftest's does.

use super::arena::Slots;
use super::args::Verb;
use super::link::{Mark, Post, Result};
use super::traffic::{Limit, Side};
use linerate::transport::{RemoteRange, View};
use linerate::unstable::wait::Activity;
use linerate_job::access;
use std::sync::atomic::Ordering;

/// Bytes of the word that a peer polls.
const WORD_BYTES: u64 = 8;
/// Looks at the word between two polls of the transport, without pauses: a look ends the trip, and
/// the time of a poll would be in the sample. A poll takes as long as some fifty looks.
const WORD_LOOKS: u32 = 256;
/// Looks between two polls where a device writes the word without polls of this side: the time of
/// some trips of a NIC. [`TRIPS_PER_POLL`] takes completions meanwhile.
const WORD_LOOKS_DEVICE: u32 = 4096;
/// Words put by a device between two polls: half of those that may be under way, as the other half
/// may lack a completion at a poll. The poll follows a post, while this side waits anyway; where
/// both sides share a processor, the poll is in the times.
const TRIPS_PER_POLL: u64 = 8;
/// Receives posted ahead of their messages, so that the next message finds one while the answer to
/// the last one is posted.
const TRIPS_AHEAD: u64 = 2;
/// Round trips before the first sample.
const UNTIMED_TRIPS: u64 = 50;
/// Samples for which there is room from the beginning, where their number is not known.
const SAMPLES_ROOM: usize = 1 << 20;
/// Where the word to put from lies in the region of flags.
const OUTGOING: u64 = linerate::unstable::limits::CACHE_LINE_BYTES as u64;

/// What single messages of one size need. It is found once, because the work between a look that
/// finds an answer and the next post is in the times.
struct Trips<'a> {
    slots: &'a Slots,
    /// Where the other side puts its word.
    flag: View,
    /// This side's word, and the part of it that is put there.
    outgoing: View,
    word: View,
    to: RemoteRange,
    /// The bits that a message sets.
    mask: u64,
    /// Whether the word is the whole message.
    is_word: bool,
    /// Looks between two polls.
    looks: u32,
}

impl Side<'_> {
    /// Times of single messages, us: half a round trip, or a whole get. The server gives none.
    pub fn trips(&mut self, slots: &Slots, limit: Limit) -> Result<Vec<f64>> {
        self.link.reset_counts();
        let trips = self.prepare_trips(slots);
        access::word(&trips.flag, 0).store(0, Ordering::Release);
        for trip in 0..TRIPS_AHEAD {
            self.receive_trip(&trips, trip)?;
        }
        self.link.meet()?;
        let samples = match (self.rank, self.verb()) {
            (1, Verb::Read | Verb::Atomic) => self.time_trips(&trips, limit, 1.0)?,
            (1, _) => self.time_trips(&trips, limit, 0.5)?,
            (_, _) => self.answer_trips(&trips).map(|()| Vec::new())?,
        };
        self.link.settle()?;
        Ok(samples)
    }

    fn prepare_trips<'a>(&self, slots: &'a Slots) -> Trips<'a> {
        let outgoing = self.arena.flags.part(OUTGOING, WORD_BYTES);
        let is_word = self.verb() == Verb::Write && slots.bytes <= WORD_BYTES;
        Trips {
            slots,
            flag: self.arena.flags.part(0, WORD_BYTES),
            outgoing,
            word: outgoing.part(0, slots.bytes.min(WORD_BYTES) as usize),
            to: self.keys.flag(),
            mask: word_mask(slots.bytes),
            is_word,
            looks: match is_word && self.link.has_devices() {
                true => WORD_LOOKS_DEVICE,
                false => WORD_LOOKS,
            },
        }
    }

    /// The client: times messages and their answers. It reads the clock when a message has left.
    /// Two readings are still one whole trip apart, and a reading adds nothing to it.
    fn time_trips(&mut self, trips: &Trips, limit: Limit, share: f64) -> Result<Vec<f64>> {
        for trip in 0..UNTIMED_TRIPS {
            self.begin_trip(trips, trip)?;
            self.end_trip(trips, trip)?;
        }
        let mut trip = UNTIMED_TRIPS;
        self.begin_trip(trips, trip)?;
        let mut before_ns = self.link.now_ns();
        let (most, until_ns) = match limit {
            Limit::Count(count) => (count, u64::MAX),
            Limit::Until(duration, most) => {
                (most, before_ns.saturating_add(duration.as_nanos() as u64))
            }
        };
        let mut samples = match limit {
            Limit::Count(count) => Vec::with_capacity(count as usize),
            Limit::Until(..) => Vec::with_capacity(SAMPLES_ROOM),
        };
        while (samples.len() as u64) < most && before_ns < until_ns {
            self.end_trip(trips, trip)?;
            trip += 1;
            self.begin_trip(trips, trip)?;
            let now_ns = self.link.now_ns();
            samples.push((now_ns - before_ns) as f64 * 1e-3 * share);
            self.link.sign(now_ns)?;
            before_ns = now_ns;
        }
        self.end_trip(trips, trip)?;
        self.link.say(Mark::End, 0)?;
        Ok(samples)
    }

    fn begin_trip(&mut self, trips: &Trips, trip: u64) -> Result<()> {
        match self.verb() {
            Verb::Write | Verb::Send => self.send_trip(trips, trip)?,
            Verb::Read | Verb::Atomic => {
                let post = self.data_post(trips.slots, trip);
                self.link.post(0, post)?;
            }
        }
        self.link.note(Activity::Posting, true);
        // A message leaves with its post, or else with a poll. A word leaves with its post where
        // nothing else is under way. Its answer may be here as soon as the post has returned, and a
        // look finds it sooner than a poll.
        match trips.is_word && !trip.is_multiple_of(TRIPS_PER_POLL) {
            true => Ok(()),
            false => self.link.poll().map(|_| ()),
        }
    }

    fn end_trip(&mut self, trips: &Trips, trip: u64) -> Result<()> {
        while !self.has_come(trips, trip) {
            self.link.poll()?;
        }
        self.receive_trip(trips, trip + TRIPS_AHEAD)
    }

    /// The server: answers each message, until the client has enough.
    fn answer_trips(&mut self, trips: &Trips) -> Result<()> {
        let mut trip = 0;
        while self.link.heard(Mark::End).is_none() {
            if self.options.test.is_one_sided() {
                self.link.rest()?;
                continue;
            }
            match self.has_come(trips, trip) {
                true => {
                    self.begin_trip(trips, trip)?;
                    self.receive_trip(trips, trip + TRIPS_AHEAD)?;
                    trip += 1;
                }
                false => self.link.poll().map(|_| ())?,
            }
        }
        Ok(())
    }

    /// Posts the receive of a trip, before the other side can send it.
    fn receive_trip(&mut self, trips: &Trips, trip: u64) -> Result<()> {
        if self.verb() == Verb::Send {
            let slots = trips.slots;
            let into = self.arena.target.part(slots.offset(trip), slots.bytes);
            while !self.link.try_receive(0, into)? {
                self.link.poll()?;
            }
        }
        Ok(())
    }

    fn send_trip(&mut self, trips: &Trips, trip: u64) -> Result<()> {
        if !trips.is_word {
            let post = self.data_post(trips.slots, trip);
            self.link.post(0, post)?;
        }
        if self.verb() == Verb::Write {
            access::store(trips.outgoing, 0, (trip + 1).to_le());
            self.link.post(0, Post::Put(trips.word, trips.to))?;
        }
        Ok(())
    }

    /// A word is looked at several times between two polls, because a poll takes as long as many
    /// looks.
    #[inline]
    fn has_come(&self, trips: &Trips, trip: u64) -> bool {
        match self.verb() {
            Verb::Send => self.link.receives_ended(0) > trip,
            Verb::Read | Verb::Atomic => self.link.posts_ended(0) > trip,
            Verb::Write => {
                let (word, mask) = (access::word(&trips.flag, 0), trips.mask);
                let wanted = (trip + 1) & mask;
                // Acquire: with the word comes what was put before it.
                (0..trips.looks).any(|_| word.load(Ordering::Acquire) & mask == wanted)
            }
        }
    }
}

/// The bits of the word that a message of this many bytes sets.
fn word_mask(bytes: u64) -> u64 {
    match bytes {
        0..WORD_BYTES => (1 << (8 * bytes)) - 1,
        _ => u64::MAX,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_message_shorter_than_the_word_sets_its_bits_only() {
        assert_eq!(word_mask(1), 0xff);
        assert_eq!(word_mask(7), u64::MAX >> 8);
        assert_eq!((word_mask(8), word_mask(1 << 20)), (u64::MAX, u64::MAX));
    }
}
