//! [`Matching`], the matching of messages in `shm`, `tcp`, `verbs` and with the rank itself:
//! receives of one peer's messages meet what comes, by tag and in order.
//!
//! `F` says where the bytes of a message are, if they were not copied. The provider gets them from
//! there.

use super::posts::Ends;
use super::{Outcome, PostError, TAG_CLASSES, tag_class};
use crate::kernel;
use crate::limits::MESSAGES_PER_PEER;
use crate::memory::{View, abort_on_unwind, view_of_slice};
use crate::types::Rank;
use std::collections::VecDeque;

/// A receive that waits for its message.
#[derive(Clone, Copy, Debug)]
pub(super) struct Posted {
    pub tag: u64,
    pub destination: View,
    pub token: u64,
}

impl Posted {
    /// Ends the receive with a message whose bytes are here; how many were copied.
    #[inline]
    pub fn deliver(&self, peer: Rank, header: u64, source: View, ends: &mut Ends) -> u64 {
        let bytes = source.len_bytes();
        let (outcome, copied) = match bytes <= self.destination.len_bytes() {
            true => (Outcome::Done, bytes as u64),
            false => (Outcome::Truncated, 0),
        };
        if outcome == Outcome::Done {
            kernel::copy(source, self.destination.part(0, bytes));
        }
        ends.complete(peer, self.token, outcome, bytes as u64, header);
        copied
    }
}

/// A message that waits for its receive.
#[derive(Debug)]
pub(super) struct Message<F> {
    pub tag: u64,
    pub header: u64,
    pub payload: Payload<F>,
}

/// Where the bytes of a waiting message are.
#[derive(Debug)]
pub(super) enum Payload<F> {
    Copied(Vec<u8>),
    /// The bytes are elsewhere, and were not copied.
    Far(F),
}

/// What a receive has met.
#[derive(Debug)]
pub(super) enum Met<F> {
    /// No message yet: the receive waits.
    Nothing,
    /// A message whose bytes were here; both have ended, and this many bytes were copied.
    Whole(u64),
    /// A message with this header whose bytes are elsewhere.
    Far(F, u64),
}

/// Receives and messages of one peer that are not matched. The receives come first, because nearly
/// every message finds one.
#[derive(Debug)]
#[repr(C)]
pub(super) struct Matching<F> {
    posted: VecDeque<Posted>,
    messages: VecDeque<Message<F>>,
    /// How many `messages` there are, per class of tags.
    counts: [u32; TAG_CLASSES],
}

impl<F> Matching<F> {
    pub fn new() -> Matching<F> {
        Matching {
            posted: VecDeque::new(),
            messages: VecDeque::new(),
            counts: [0; TAG_CLASSES],
        }
    }

    /// Messages of a class that wait for receives.
    pub fn waiting(&self, class: usize) -> u32 {
        self.counts[class]
    }

    /// Tags of the receives that wait for messages.
    pub fn posted_tags(&self) -> impl Iterator<Item = u64> + '_ {
        self.posted.iter().map(|posted| posted.tag)
    }

    /// Lets a receive wait for its message.
    pub fn post(&mut self, posted: Posted) {
        self.posted.push_back(posted);
    }

    /// A receive that was taken waits again, as the first of its tag.
    pub fn put_back(&mut self, posted: Posted) {
        self.posted.push_front(posted);
    }

    /// The first receive with this tag, which a message has met.
    #[inline]
    pub fn take_posted(&mut self, tag: u64) -> Option<Posted> {
        let at = self.posted.iter().position(|p| p.tag == tag)?;
        self.posted.remove(at)
    }

    /// The first message with this tag, which a receive has met.
    #[inline]
    pub fn take_message(&mut self, tag: u64) -> Option<Message<F>> {
        let at = self.messages.iter().position(|m| m.tag == tag)?;
        self.counts[tag_class(tag)] -= 1;
        self.messages.remove(at)
    }

    /// Lets a receive meet what waits for it, or wait itself; where the connection `is_over`,
    /// nothing comes for it any more.
    pub fn receive(
        &mut self,
        peer: Rank,
        posted: Posted,
        is_over: bool,
        ends: &mut Ends,
    ) -> Result<Met<F>, PostError> {
        let Some(message) = self.take_message(posted.tag) else {
            if is_over {
                return Err(PostError::PeerFailed);
            }
            self.post(posted);
            return Ok(Met::Nothing);
        };
        Ok(match message.payload {
            Payload::Copied(bytes) => {
                let source = view_of_slice(&bytes);
                let copied = abort_on_unwind(|| posted.deliver(peer, message.header, source, ends));
                ends.spare.give(bytes);
                Met::Whole(copied)
            }
            Payload::Far(far) => Met::Far(far, message.header),
        })
    }

    /// A message whose bytes are here meets the receive that waits for it, or is copied and waits
    /// itself; whether it has met one, and how many bytes were copied.
    #[inline]
    pub fn arrive(
        &mut self,
        peer: Rank,
        (tag, header): (u64, u64),
        source: View,
        ends: &mut Ends,
    ) -> Result<(bool, u64), String> {
        if let Some(posted) = self.take_posted(tag) {
            return Ok((true, posted.deliver(peer, header, source, ends)));
        }
        let copied = Payload::Copied(ends.copy(source));
        self.keep(peer, (tag, header), copied, ends)?;
        Ok((false, source.len_bytes() as u64))
    }

    /// Keeps a message for a later receive; a sender that ignores its credits is refused.
    pub fn keep(
        &mut self,
        peer: Rank,
        (tag, header): (u64, u64),
        payload: Payload<F>,
        ends: &mut Ends,
    ) -> Result<(), String> {
        let count = &mut self.counts[tag_class(tag)];
        if *count >= MESSAGES_PER_PEER {
            return Err(format!(
                "it sent more than {MESSAGES_PER_PEER} messages without a receive"
            ));
        }
        *count += 1;
        self.messages.push_back(Message {
            tag,
            header,
            payload,
        });
        ends.note_unmatched(peer, tag);
        Ok(())
    }

    /// Ends the receive with this token; false: it does not wait.
    pub fn cancel(&mut self, peer: Rank, token: u64, ends: &mut Ends) -> bool {
        let at = self.posted.iter().position(|p| p.token == token);
        let is_posted = at.and_then(|at| self.posted.remove(at)).is_some();
        if is_posted {
            ends.complete(peer, token, Outcome::Cancelled, 0, 0);
        }
        is_posted
    }

    /// Forgets the messages whose bytes are elsewhere and that are not to be kept.
    pub fn retain_far(&mut self, mut is_kept: impl FnMut(&F) -> bool) {
        self.messages.retain(|message| {
            let is_kept = match &message.payload {
                Payload::Copied(_) => true,
                Payload::Far(far) => is_kept(far),
            };
            self.counts[tag_class(message.tag)] -= u32::from(!is_kept);
            is_kept
        });
    }

    /// The first message that waits and is meant: this peer, its tag and its header.
    pub fn find(
        &self,
        peer: Rank,
        is_meant: &mut dyn FnMut(u64, u64) -> bool,
    ) -> Option<(Rank, u64, u64)> {
        let mut waiting = self.messages.iter().map(|m| (peer, m.tag, m.header));
        waiting.find(|&(_, tag, header)| is_meant(tag, header))
    }

    /// The connection ends: messages that had come whole, and those of the rest that `is_kept`
    /// names, can be received later. Gives the tokens of the receives that wait.
    pub fn flush(&mut self, is_kept: impl FnMut(&F) -> bool) -> Vec<u64> {
        self.retain_far(is_kept);
        self.posted.drain(..).map(|posted| posted.token).collect()
    }

    /// Forgets every message.
    pub fn clear(&mut self) {
        self.messages.clear();
        self.counts = [0; TAG_CLASSES];
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::memory::Region;
    use crate::transport::Event;
    use crate::transport::test_posts::ended;

    fn posted(region: &Region, tag: u64, token: u64) -> Posted {
        Posted {
            tag,
            destination: region.view().part(0, 8),
            token,
        }
    }

    #[test]
    fn messages_of_a_tag_meet_receives_in_order_and_others_do_not_wait() {
        let region = Region::private(64).unwrap();
        let (mut matching, mut ends) = (Matching::<u32>::new(), Ends::default());
        for (tag, header) in [(1, 10), (2, 20), (1, 11)] {
            let bytes = vec![header as u8; 4];
            matching
                .keep(0, (tag, header), Payload::Copied(bytes), &mut ends)
                .unwrap();
        }
        matching
            .keep(0, (3, 30), Payload::Far(7), &mut ends)
            .unwrap();
        assert_eq!(matching.waiting(0), 4);
        assert_eq!(matching.find(7, &mut |tag, _| tag == 2), Some((7, 2, 20)));
        for (tag, header) in [(2, 20), (1, 10), (1, 11)] {
            let met = matching.receive(0, posted(&region, tag, 5), true, &mut ends);
            assert!(matches!(met, Ok(Met::Whole(_))));
            assert_eq!(ended(&mut ends), [(5, Outcome::Done, header)]);
            assert_eq!(
                kernel::load::<u32>(region.view(), 0),
                0x0101_0101 * header as u32
            );
        }
        let mut receive = |tag, is_over| {
            let posted = posted(&region, tag, 6);
            matching.receive(0, posted, is_over, &mut ends)
        };
        assert!(matches!(receive(3, true), Ok(Met::Far(7, 30))));
        assert!(matches!(receive(1, true), Err(PostError::PeerFailed)));
        assert!(matches!(receive(1, false), Ok(Met::Nothing)));
        assert_eq!(matching.waiting(0), 0);
    }

    #[test]
    fn a_receive_that_is_put_back_is_the_first_of_its_tag_and_can_be_cancelled() {
        let region = Region::private(64).unwrap();
        let (mut matching, mut ends) = (Matching::<()>::new(), Ends::default());
        [1, 2]
            .into_iter()
            .for_each(|token| matching.post(posted(&region, 9, token)));
        let first = matching.take_posted(9).unwrap();
        matching.put_back(first);
        assert_eq!(matching.take_posted(9).map(|p| p.token), Some(1));
        let cancelled = [2, 2].map(|token| matching.cancel(0, token, &mut ends));
        assert_eq!(cancelled, [true, false]);
        assert_eq!(ended(&mut ends), [(2, Outcome::Cancelled, 0)]);
        assert!(matching.take_posted(9).is_none());
    }

    #[test]
    fn one_message_too_many_is_refused_and_places_come_back() {
        let region = Region::private(64).unwrap();
        let (mut matching, mut ends) = (Matching::<()>::new(), Ends::default());
        for _ in 0..MESSAGES_PER_PEER {
            matching
                .keep(0, (1, 0), Payload::Copied(vec![]), &mut ends)
                .unwrap();
        }
        let text = matching
            .keep(0, (1, 0), Payload::Copied(vec![]), &mut ends)
            .unwrap_err();
        assert!(text.contains("without a receive"), "{text}");
        matching
            .keep(0, (1 << 62, 0), Payload::Copied(vec![]), &mut ends)
            .unwrap();
        let posted = posted(&region, 1, 0);
        matching.receive(0, posted, false, &mut ends).unwrap();
        matching
            .keep(0, (1, 0), Payload::Copied(vec![]), &mut ends)
            .unwrap();
    }

    #[test]
    fn what_had_come_outlives_the_connection() {
        let region = Region::private(64).unwrap();
        let (mut matching, mut ends) = (Matching::new(), Ends::default());
        matching.post(posted(&region, 4, 1));
        matching
            .keep(0, (5, 50), Payload::Copied(vec![1]), &mut ends)
            .unwrap();
        matching
            .keep(0, (5, 51), Payload::Far(false), &mut ends)
            .unwrap();
        matching
            .keep(0, (5, 52), Payload::Far(true), &mut ends)
            .unwrap();
        assert_eq!(matching.flush(|&is_whole| is_whole), [1]);
        assert_eq!(matching.waiting(0), 2);
        matching.clear();
        assert_eq!(matching.waiting(0), 0);
    }

    #[test]
    fn arrivals_are_told_of_tags_that_tell_them_where_no_receive_waits() {
        let region = Region::private(64).unwrap();
        let (mut matching, mut ends) = (Matching::<()>::new(), Ends::default());
        let (telling, silent) = (0b111 << 61 | 4, 0b110 << 61 | 4);
        for tag in [silent, telling] {
            matching
                .keep(2, (tag, 0), Payload::Copied(vec![]), &mut ends)
                .unwrap();
        }
        let mut events = Vec::new();
        ends.take(&mut events);
        assert_eq!(events, [Event::Unmatched(2, telling)]);
        matching.take_message(telling).unwrap();
        matching.post(posted(&region, telling, 1));
        matching
            .arrive(2, (telling, 0), View::empty(), &mut ends)
            .unwrap();
        events.clear();
        ends.take(&mut events);
        assert!(matches!(events[..], [Event::Completion(_)]), "{events:?}");
    }
}
