//! The messages that go over a [`Link`] while it is measured. Both sides call the same functions.
//! The client is rank 1.
//!
//! This file has streams of messages, for bandwidth and for the check of what arrives. The client
//! posts, with a bounded number of messages under way on each stream. The time ends when the other
//! side has said that everything is there, and not when the last post ends: a transport may end a
//! post as soon as it has copied it. Times of single messages are in `trips.rs`.

use super::arena::{Arena, Keys, Pattern, Slots, poison, uses};
use super::args::{AtomicType, Verb};
use super::link::{Link, Mark, Post, Result};
use super::options::Options;
use super::statistics::{Flow, Marks};
use linerate::Rank;
use linerate::transport::Atomic;
use linerate::unstable::wait::Activity;
use linerate_job::access;
use std::sync::atomic::Ordering;
use std::time::Duration;

/// Atomic operations that are checked before times are taken.
const CHECKED_ATOMICS: u64 = 100;

/// When a part of a run is over.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Limit {
    /// This many messages, of all streams.
    Count(u64),
    /// Messages until then, and at most this many samples.
    Until(Duration, u64),
}

/// One side of a run.
pub struct Side<'a> {
    /// What is run.
    pub options: &'a Options,
    /// 0 is the server.
    pub rank: Rank,
    /// To the other side.
    pub link: Link,
    /// Memory of this side.
    pub arena: Arena,
    /// Keys of the other side's memory.
    pub keys: Keys,
}

/// How far a stream of messages has come on one side.
struct Progress {
    /// Messages that this side posts; unknown until time is up.
    total: Option<u64>,
    has_said_end: bool,
    marks: Marks,
    /// What this side has posted, when the other side has it.
    flow: Option<Flow>,
    /// Messages that the other side has posted, when it has said so.
    announced: Option<u64>,
    is_waited_for: bool,
}

impl Side<'_> {
    pub(super) fn verb(&self) -> Verb {
        self.options.test.verb()
    }

    /// Whether this side posts data, and whether the other one does.
    fn directions(&self) -> (bool, bool) {
        let (has_source, has_target) = uses(self.options, self.rank);
        match self.verb() {
            Verb::Read | Verb::Atomic => (has_target, has_source),
            Verb::Write | Verb::Send => (has_source, has_target),
        }
    }

    /// Compares what arrives of some messages with what was sent; gives the bytes that are wrong on
    /// this side.
    pub fn check(&mut self, slots: &Slots) -> Result<u64> {
        let (has_source, has_target) = uses(self.options, self.rank);
        let count = slots.checked(self.options.streams);
        let pattern = |rank| Pattern {
            seed: self.options.seed,
            rank,
        };
        for index in 0..count {
            let (at, bytes) = (slots.offset(index), slots.bytes);
            if has_source {
                pattern(self.rank).fill(self.arena.source.part(at, bytes), index);
            }
            if has_target {
                poison(self.arena.target.part(at, bytes));
            }
        }
        self.stream(slots, Limit::Count(count))?;
        let of_slot = |index| {
            let view = self.arena.target.part(slots.offset(index), slots.bytes);
            pattern(1 - self.rank).count_wrong(view, index)
        };
        let wrong = has_target.then(|| (0..count).map(of_slot).sum());
        Ok(wrong.unwrap_or(0))
    }

    /// Checks the client's operations on one word, one after another: each must return what the
    /// last one has left. Both sides return the bytes of the words that were wrong.
    pub fn check_atomic(&mut self, slots: &Slots) -> Result<u64> {
        let word = self.arena.source.part(0, slots.bytes);
        let (is_posting, is_owner) = self.directions();
        if is_owner {
            access::word(&word, 0).store(0, Ordering::Release);
        }
        self.link.reset_counts();
        self.link.meet()?;
        let mut wrong = 0;
        for index in 0..if is_posting { CHECKED_ATOMICS } else { 0 } {
            let result = self.arena.target.part(0, slots.bytes);
            let post = Post::Atomic(self.atomic(index), self.keys.source(0), result);
            self.link.post(0, post)?;
            let what = "waiting for an atomic operation";
            self.link
                .wait(what, |link| Ok(link.posts_ended(0) > index))?;
            wrong += u64::from(access::word(&result, 0).load(Ordering::Acquire) != index);
        }
        self.link.meet()?;
        if is_owner {
            wrong += u64::from(access::word(&word, 0).load(Ordering::Acquire) != CHECKED_ATOMICS);
        }
        Ok(wrong * slots.bytes)
    }

    /// The operation that adds one to a word that is `value`.
    fn atomic(&self, value: u64) -> Atomic {
        match self.options.atomic_type {
            AtomicType::FetchAndAdd => Atomic::FetchAdd(1),
            AtomicType::CmpAndSwap => Atomic::CompareSwap {
                compare: value,
                swap: value + 1,
            },
        }
    }

    /// Touches every slot once, on both sides.
    pub fn warm_up(&mut self, slots: &Slots) -> Result<()> {
        let streams = u64::from(self.options.streams);
        let count = slots.count.next_multiple_of(streams);
        self.stream(slots, Limit::Count(count)).map(|_| ())
    }

    /// Runs streams of messages. Returns what this side has posted, if it posts.
    pub fn stream(&mut self, slots: &Slots, limit: Limit) -> Result<Option<Flow>> {
        let (is_posting, is_receiving) = self.directions();
        let mut progress = Progress {
            total: match limit {
                Limit::Count(count) => Some(count),
                Limit::Until(..) => None,
            },
            has_said_end: false,
            marks: Marks::new(self.options.has_peak),
            flow: None,
            announced: None,
            is_waited_for: is_receiving,
        };
        self.link.reset_counts();
        self.post_receives(slots, is_receiving)?;
        self.link.meet()?;
        let start_ns = self.link.now_ns();
        while (is_posting && progress.flow.is_none()) || progress.is_waited_for {
            if is_posting && !progress.has_said_end {
                let (time_ns, first) = (self.link.now_ns(), self.made());
                self.link.sign(time_ns)?;
                if let Limit::Until(duration, _) = limit
                    && u128::from(time_ns - start_ns) >= duration.as_nanos()
                {
                    progress.total.get_or_insert(first);
                }
                let is_open = matches!(limit, Limit::Count(_)) || progress.total.is_none();
                if is_open && self.post_some(progress.total, slots)? {
                    progress.marks.note_post(first, time_ns);
                    self.link.note(Activity::Posting, true);
                }
            }
            let has_news = match is_posting || self.verb() == Verb::Send {
                true => self.link.poll()?,
                false => self.link.rest()?,
            };
            if is_posting && progress.flow.is_none() {
                self.look_at_own(&mut progress, start_ns, has_news)?;
            }
            if progress.is_waited_for {
                self.post_receives(slots, true)?;
                self.look_at_others(&mut progress)?;
            }
        }
        self.link.settle()?;
        Ok(progress.flow)
    }

    fn look_at_own(
        &mut self,
        progress: &mut Progress,
        start_ns: u64,
        has_news: bool,
    ) -> Result<()> {
        let ended = self.ended();
        if has_news && !progress.has_said_end {
            let time_ns = self.link.now_ns();
            progress.marks.note_end(ended, time_ns);
        }
        if progress.total == Some(ended) && !progress.has_said_end {
            progress.has_said_end = true;
            self.link.say(Mark::End, ended)?;
        }
        // What was read is here; what was written or sent is there when the other side says so.
        let is_over = progress.has_said_end
            && (self.options.test.is_one_sided() || self.link.heard(Mark::Arrived).is_some());
        if is_over {
            let seconds = (self.link.now_ns() - start_ns) as f64 * 1e-9;
            progress.flow = Some(Flow {
                messages: ended,
                seconds,
                peak: progress.marks.peak(),
            });
        }
        Ok(())
    }

    fn look_at_others(&mut self, progress: &mut Progress) -> Result<()> {
        progress.announced = progress.announced.or_else(|| self.link.heard(Mark::End));
        let received = (0..self.options.streams).map(|s| self.link.receives_ended(s));
        let has_arrived = match (progress.announced, self.verb()) {
            (None, _) => false,
            (Some(count), Verb::Send) => received.sum::<u64>() == count,
            (Some(_), Verb::Write | Verb::Read | Verb::Atomic) => true,
        };
        if has_arrived {
            progress.is_waited_for = false;
            if !self.options.test.is_one_sided() {
                self.link.say(Mark::Arrived, 0)?;
            }
        }
        Ok(())
    }

    fn made(&self) -> u64 {
        let streams = 0..self.options.streams;
        streams.map(|s| self.link.posts_made(s)).sum()
    }

    fn ended(&self) -> u64 {
        let streams = 0..self.options.streams;
        streams.map(|s| self.link.posts_ended(s)).sum()
    }

    /// Posts as many messages as there is room for, the streams in turns. Returns whether it posted
    /// any.
    #[inline]
    fn post_some(&mut self, total: Option<u64>, slots: &Slots) -> Result<bool> {
        if let Some(list) = self.options.post_list {
            return self.post_lists(list, total, slots);
        }
        let (streams, depth) = (self.options.streams, u64::from(self.options.depth));
        let mut has_posted = false;
        loop {
            let mut has_room = false;
            for stream in 0..streams {
                let made = self.link.posts_made(stream);
                let index = u64::from(stream) + made * u64::from(streams);
                let is_left = total.is_none_or(|total| index < total);
                if is_left && made - self.link.posts_ended(stream) < depth {
                    let post = self.data_post(slots, index);
                    has_room |= self.link.try_post(stream, post)?;
                }
            }
            has_posted |= has_room;
            if !has_room {
                return Ok(has_posted);
            }
        }
    }

    /// Posts the next list of each stream that has room for all of it. The poll that follows then
    /// hands it over at once. Returns whether it posted any.
    fn post_lists(&mut self, list: u32, total: Option<u64>, slots: &Slots) -> Result<bool> {
        let (streams, depth) = (
            u64::from(self.options.streams),
            u64::from(self.options.depth),
        );
        let mut has_posted = false;
        for stream in 0..self.options.streams {
            let made = self.link.posts_made(stream);
            let left = total.map_or(u64::MAX, |total| {
                let before = u64::from(stream) + made * streams;
                total.saturating_sub(before).div_ceil(streams)
            });
            let wanted = u64::from(list).min(left);
            if depth - (made - self.link.posts_ended(stream)) < wanted {
                continue;
            }
            for number in made..made + wanted {
                let post = self.data_post(slots, u64::from(stream) + number * streams);
                // A transport with less room than the depth takes the rest of the list later.
                if !self.link.try_post(stream, post)? {
                    break;
                }
                has_posted = true;
            }
        }
        Ok(has_posted)
    }

    #[inline]
    pub(super) fn data_post(&self, slots: &Slots, index: u64) -> Post {
        let (at, bytes) = (slots.offset(index), slots.bytes);
        match self.verb() {
            Verb::Send => Post::Send(self.arena.source.part(at, bytes)),
            Verb::Write => Post::Put(self.arena.source.part(at, bytes), self.keys.target(at)),
            Verb::Read => Post::Get(self.keys.source(at), self.arena.target.part(at, bytes)),
            Verb::Atomic => Post::Atomic(
                self.atomic(0),
                self.keys.source(at),
                self.arena.target.part(at, bytes),
            ),
        }
    }

    /// Keeps as many receives posted as the other side may have messages under way.
    #[inline]
    fn post_receives(&mut self, slots: &Slots, is_receiving: bool) -> Result<()> {
        if !is_receiving || self.verb() != Verb::Send {
            return Ok(());
        }
        let streams = self.options.streams;
        let depth = u64::from(self.options.depth);
        for stream in 0..streams {
            while self.link.receives_made(stream) - self.link.receives_ended(stream) < depth {
                let made = self.link.receives_made(stream);
                let index = u64::from(stream) + made * u64::from(streams);
                let into = self.arena.target.part(slots.offset(index), slots.bytes);
                if !self.link.try_receive(stream, into)? {
                    break;
                }
            }
        }
        Ok(())
    }
}
