//! [`Link`]: the queue to one peer on one rail, and what is under way on it.

use super::device::{Device, Local, Offer, Operation, Place, Queue, Segment};
use super::rail::SegmentOf;
use super::sizes::{RECEIVES_AT_ONCE, Sizes};
use crate::config::VerbsSettings;
use std::collections::VecDeque;

/// Short gets leave with a doorbell each while no more than this many posts are under way. A rank
/// that makes more of them between two polls wants throughput, not a short time for each.
pub const AT_ONCE_MAX: usize = 16;
/// Of words without a position, one in this many makes a completion.
const WORDS_PER_SIGNAL: u64 = 8;
/// A post of at least this many bytes makes a completion of its own, so that the next one follows
/// while the wire is still busy with those behind it: 64 KiB take 5 us at 100 Gbit/s.
const TOLD_BYTES_MIN: u64 = 64 << 10;

/// What a post was.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum What {
    /// A post from which nothing follows.
    Nothing,
    /// A record, in this slot.
    Record(usize),
    /// A piece of a long transfer.
    Piece {
        transfer: u64,
        offset: u64,
        bytes: u64,
    },
    /// A word without a position, which is not written again.
    Word { token: u64, bytes: u64 },
    /// A short get, by its number.
    Get(u64),
}

impl What {
    /// Whether it counts among the pieces, for which places are kept.
    #[inline]
    fn is_piece(self) -> bool {
        matches!(self, What::Piece { .. } | What::Get(_))
    }
}

#[derive(Clone, Copy, Debug)]
struct Sent {
    id: u64,
    what: What,
    bytes: u64,
}

/// A queue and what is under way on it.
pub struct Link<D: Device> {
    pub queue: D::Queue,
    pub rail: usize,
    /// What the peer was told of it.
    pub offer: Offer,
    depth: usize,
    /// One post in this many makes a completion at least: places come back in time, and most posts
    /// cost no completion.
    signal_every: u64,
    inline_bytes: u32,
    next_id: u64,
    since_signal: u64,
    /// Posted and not known to have arrived, in order.
    sent: VecDeque<Sent>,
    /// To be posted with the next doorbell.
    queued: Vec<<D::Queue as Queue>::Request<'static>>,
    pub outstanding_bytes: u64,
    /// Pieces of long transfers among what is under way.
    pub pieces: u32,
    /// Receives of the queue, and how many of them were taken and not posted again yet.
    receives: u32,
    taken: u32,
    /// Posts up to the last one that makes a completion, and up to the last one that has made it.
    told: u64,
    ended: u64,
    /// Posts that have not made their completion, of a device without order.
    open: usize,
    /// It is in the error state.
    is_stopped: bool,
}

impl<D: Device> std::fmt::Debug for Link<D> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "rail {}: {} under way", self.rail, self.sent.len())
    }
}

impl<D: Device> Link<D> {
    pub fn new(
        (queue, offer): (D::Queue, Offer),
        rail: usize,
        sizes: Sizes,
        settings: &VerbsSettings,
    ) -> Link<D> {
        let depth = sizes.sends;
        Link {
            // A device may have more room than it was asked for.
            inline_bytes: settings.inline_bytes.min(queue.inline_bytes_max()),
            signal_every: u64::from(settings.signal_every),
            queue,
            offer,
            rail,
            depth: depth as usize,
            next_id: 0,
            since_signal: 0,
            sent: VecDeque::with_capacity(depth as usize),
            queued: Vec::with_capacity(D::Queue::BATCH),
            outstanding_bytes: 0,
            pieces: 0,
            receives: sizes.receives,
            taken: 0,
            told: 0,
            ended: 0,
            open: 0,
            is_stopped: false,
        }
    }

    /// A receive was taken. Receives are posted again once enough of them were taken.
    #[inline]
    pub fn note_taken(&mut self) -> Result<(), String> {
        self.taken += 1;
        if self.taken == RECEIVES_AT_ONCE && !self.is_stopped {
            self.taken = 0;
            self.queue.post_receives()?;
        }
        Ok(())
    }

    /// Brings the queue into the error state, in which every post ends, and lets the last one make
    /// a completion; false: none is to be waited for.
    pub fn stop(&mut self) -> bool {
        self.is_stopped = true;
        if !self.queue.stop() {
            return false;
        }
        if self.since_signal == 0 {
            return true;
        }
        // This writes nothing. It has the room of what was queued; words always leave some.
        self.queued.clear();
        let place = Place::default();
        let posted = self.post_now(
            Operation::Write(place, None),
            (Local::Empty, 0),
            What::Nothing,
        );
        posted.is_ok()
    }

    /// A receive has ended without a message.
    pub fn note_flushed(&mut self) {
        self.taken += 1;
    }

    /// A post has ended without having arrived, as far as is known.
    pub fn note_failed(&mut self, id: u64) {
        self.ended = id + 1;
        self.open = self.open.saturating_sub(1);
    }

    /// Whether everything has ended, after [`Link::stop`]: no completion is to come.
    pub fn is_over(&self) -> bool {
        match D::IS_CONNECTED {
            true => self.taken >= self.receives && self.ended >= self.told,
            false => self.open == 0,
        }
    }

    /// Whether another post finds room.
    #[inline]
    pub fn has_room(&self) -> bool {
        self.sent.len() < self.depth
    }

    /// Whether a word without a position finds room. Half of the places stay free, because the last
    /// words make no completion until a later post does.
    #[inline]
    pub fn has_room_for_word(&self) -> bool {
        self.sent.len() < self.depth / 2
    }

    /// Adds a post to what leaves with the next [`Link::flush`]. Inlined, the post is made in its
    /// place: otherwise it is copied there, which takes 64 instructions.
    #[inline(always)]
    pub fn queue(&mut self, operation: Operation, local: Option<SegmentOf<D>>, what: What) {
        debug_assert!(self.has_room());
        let bytes = local.map_or(0, |segment| u64::from(segment.len_bytes()));
        self.since_signal += 1;
        let is_signaled =
            !D::IS_CONNECTED || self.since_signal >= self.signal_every || bytes >= TOLD_BYTES_MIN;
        if is_signaled {
            self.since_signal = 0;
        }
        let id = self.next_id;
        self.next_id += 1;
        let local = self.local(operation, local);
        (self.queued).push(D::Queue::request(id, operation, local, is_signaled));
        self.note_under_way(Sent { id, what, bytes });
    }

    #[inline]
    fn note_under_way(&mut self, sent: Sent) {
        self.open += 1;
        self.outstanding_bytes += sent.bytes;
        self.pieces += u32::from(sent.what.is_piece());
        self.sent.push_back(sent);
    }

    /// Posts an operation with this many bytes at once, where nothing is queued, and notes it while
    /// it is on its way.
    #[inline]
    pub fn post_now(
        &mut self,
        operation: Operation,
        (local, bytes): (Local<'_, SegmentOf<D>>, u64),
        what: What,
    ) -> Result<(), String> {
        debug_assert!(self.has_room() && self.queued.is_empty());
        let id = self.next_id;
        self.since_signal += 1;
        let is_signaled = !D::IS_CONNECTED
            || !matches!(what, What::Word { .. })
            || self.since_signal >= WORDS_PER_SIGNAL;
        if is_signaled {
            self.since_signal = 0;
        }
        let request = D::Queue::request(id, operation, local, is_signaled);
        let posted = self.queue.post(&[request]);
        self.next_id += 1;
        if is_signaled {
            self.told = self.next_id;
        }
        self.note_under_way(Sent { id, what, bytes });
        posted
    }

    /// Whether the latest posts make no completion.
    #[inline]
    pub fn is_untold(&self) -> bool {
        self.since_signal > 0 && self.queued.is_empty()
    }

    /// Whether this many bytes are copied into a post.
    #[inline]
    pub fn is_inline(&self, bytes: u64) -> bool {
        bytes <= u64::from(self.inline_bytes)
    }

    /// Short sources leave with the post: the device need not fetch them.
    #[inline]
    fn local(
        &self,
        operation: Operation,
        segment: Option<SegmentOf<D>>,
    ) -> Local<'static, SegmentOf<D>> {
        let Some(segment) = segment else {
            return Local::Empty;
        };
        let is_write = matches!(operation, Operation::Write(..));
        match is_write && segment.len_bytes() <= self.inline_bytes {
            true => Local::Copied(segment),
            false => Local::One(segment),
        }
    }

    /// Hands what was queued to the device, linked, with one doorbell per batch; how many doorbells
    /// that took. The last post makes a completion.
    #[inline]
    pub fn flush(&mut self) -> Result<usize, String> {
        let Some(last) = self.queued.last_mut() else {
            return Ok(0);
        };
        D::Queue::signal(last);
        self.since_signal = 0;
        self.told = self.next_id;
        let posted = self.queue.post(&self.queued);
        let doorbells = self.queued.len().div_ceil(D::Queue::BATCH);
        self.queued.clear();
        posted.map(|()| doorbells)
    }

    /// This post has arrived, and on a device with order all before it: takes out the first.
    #[inline]
    pub fn pop_arrived(&mut self, id: u64) -> Option<What> {
        let sent = match D::IS_CONNECTED {
            true => {
                self.ended = id + 1;
                self.sent.front().filter(|sent| sent.id <= id)?;
                self.sent.pop_front()?
            }
            false => {
                let at = self.sent.partition_point(|sent| sent.id < id);
                self.sent.get(at).filter(|sent| sent.id == id)?;
                self.open -= 1;
                self.sent.remove(at)?
            }
        };
        self.note_gone(sent.what, sent.bytes);
        Some(sent.what)
    }

    /// The post with this number, if it is under way.
    pub fn find(&mut self, id: u64) -> Option<&mut What> {
        let sent = self.sent.iter_mut().find(|sent| sent.id == id);
        sent.map(|sent| &mut sent.what)
    }

    /// Nothing follows from this post any more.
    pub fn end_post(&mut self, id: u64) {
        if let Some(at) = self.sent.iter().position(|sent| sent.id == id) {
            let sent = &mut self.sent[at];
            self.pieces -= u32::from(sent.what.is_piece());
            sent.what = What::Nothing;
        }
    }

    /// Destroys the queue; what was under way, whether it has arrived or not.
    pub fn end(self) -> Vec<What> {
        drop(self.queue);
        self.sent.into_iter().map(|sent| sent.what).collect()
    }

    /// Posts that are not known to have arrived.
    #[inline]
    pub fn under_way(&self) -> usize {
        self.sent.len()
    }

    /// Nothing is under way.
    #[inline]
    pub fn is_idle(&self) -> bool {
        self.sent.is_empty()
    }

    #[inline]
    fn note_gone(&mut self, what: What, bytes: u64) {
        self.outstanding_bytes -= bytes;
        self.pieces -= u32::from(what.is_piece());
    }
}
