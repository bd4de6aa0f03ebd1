//! The data path of the shm provider: sending, matching, fetching, acknowledging.

use super::fetch::{Delivery, Place};
use super::peer::{Outstanding, Payload, PeerState, Posted, Unexpected};
use super::ring::{Record, RecordHeader};
use super::{Outcome, PostError, RemoteRange, ShmTransport};
use crate::limits::{
    CACHE_LINE_BYTES, CONTROL_BYTES, INLINE_BYTES_MAX, MESSAGES_PER_PEER, RING_BYTES,
    URGENT_MESSAGES,
};
use crate::memory::{RegionKey, View};
use crate::transport::{Transport, URGENT_CLASS, tag_class};
use crate::types::Rank;
use std::sync::atomic::Ordering;

/// words: tag, header. The payload follows.
const EAGER: u8 = 1;
/// words: tag, header, key and id, offset, bytes.
const IN_REGION: u8 = 2;
/// words: id, bytes.
const ACKNOWLEDGED: u8 = 3;
/// words: tag, header, id, address in the sender's process, bytes.
const UNREGISTERED: u8 = 4;

/// A sender that a full queue held up is woken when this many messages have made room: often enough that it
/// never sleeps for long, and seldom enough to cost nothing.
const MADE_ROOM: u64 = MESSAGES_PER_PEER as u64 / 8;

/// Messages to one peer that lie in this rank's memory and are not acknowledged. The ring back keeps a cache line for the
/// acknowledgement of each, so that none has to wait for room: a rank may send its last one and end.
const ACKNOWLEDGEMENTS_MAX: usize = 128;

/// Bytes of a ring that only acknowledgements use.
const ACKNOWLEDGEMENTS_ROOM: usize = ACKNOWLEDGEMENTS_MAX * CACHE_LINE_BYTES;

/// Bytes of a ring that only messages of [`URGENT_CLASS`] use, and acknowledgements: one more than promised, because the end
/// of the ring may leave a gap before a record.
const URGENT_ROOM: usize = (URGENT_MESSAGES as usize + 1) * (CONTROL_BYTES + CACHE_LINE_BYTES);

const _: () = assert!(ACKNOWLEDGEMENTS_ROOM + URGENT_ROOM <= RING_BYTES / 4);

/// Bytes of a ring that messages of a class of tags leave to others.
fn room_kept(class: usize) -> usize {
    match class {
        URGENT_CLASS => ACKNOWLEDGEMENTS_ROOM,
        _ => ACKNOWLEDGEMENTS_ROOM + URGENT_ROOM,
    }
}

impl ShmTransport {
    pub(super) fn send_message(
        &mut self,
        peer: Rank,
        tag: u64,
        header: u64,
        source: View,
        token: u64,
    ) -> std::result::Result<(), PostError> {
        let bytes = source.len_bytes();
        if bytes <= INLINE_BYTES_MAX {
            self.send_copied(peer, tag, header, source)?;
            self.complete(token, peer, Outcome::Done, bytes as u64, 0);
            return Ok(());
        }
        let is_registered = self.regions.contains_key(&source.key());
        if !is_registered && !self.fetches(peer, bytes) {
            return Err(PostError::Invalid(format!(
                "a send of {bytes} bytes from memory that is not registered; {INLINE_BYTES_MAX} at most"
            )));
        }
        let class = tag_class(tag);
        if !self.has_message_credit(peer, class) {
            return Err(PostError::WouldBlock);
        }
        if self.peers[peer as usize].outstanding.len() >= ACKNOWLEDGEMENTS_MAX {
            return Err(PostError::WouldBlock);
        }
        if is_registered {
            self.export_to(peer, source.key())?;
        }
        let p = &mut self.peers[peer as usize];
        let producer = p.producer.as_mut().expect("connected");
        let id = p.next_id;
        let (kind, place, at) = match is_registered {
            true => {
                let place = u64::from(source.key().0) | (id << 32);
                (IN_REGION, place, source.offset())
            }
            false => (UNREGISTERED, id, source.as_ptr().expose_provenance() as u64),
        };
        let record = RecordHeader {
            kind,
            payload_bytes: 0,
            words: [tag, header, place, at, bytes as u64],
        };
        if !producer.push(record, View::empty(), room_kept(class)) {
            return Err(PostError::WouldBlock);
        }
        p.sent[class] += 1;
        p.next_id += 1;
        p.outstanding.push(Outstanding {
            id: id as u32,
            token: Some(token),
            bytes: bytes as u64,
            is_unregistered: !is_registered,
        });
        p.segment.as_ref().expect("connected").wake();
        Ok(())
    }

    /// Sends a message of [`INLINE_BYTES_MAX`] bytes at most, whose bytes go with its record.
    #[inline]
    pub(super) fn send_copied(
        &mut self,
        peer: Rank,
        tag: u64,
        header: u64,
        source: View,
    ) -> std::result::Result<(), PostError> {
        let class = tag_class(tag);
        if !self.has_message_credit(peer, class) {
            return Err(PostError::WouldBlock);
        }
        let p = &mut self.peers[peer as usize];
        let producer = p.producer.as_mut().expect("connected");
        let bytes = source.len_bytes();
        let record = RecordHeader {
            kind: EAGER,
            payload_bytes: bytes as u32,
            words: [tag, header, 0, 0, bytes as u64],
        };
        if !producer.push(record, source, room_kept(class)) {
            return Err(PostError::WouldBlock);
        }
        p.sent[class] += 1;
        p.segment.as_ref().expect("connected").wake();
        Ok(())
    }

    fn has_message_credit(&mut self, peer: Rank, class: usize) -> bool {
        let p = &self.peers[peer as usize];
        p.sent[class] - p.matched_seen[class] < u64::from(MESSAGES_PER_PEER)
            || self.unmatched(peer, class) < MESSAGES_PER_PEER
    }

    /// Messages of a class of tags to this peer that it has not matched yet.
    pub(super) fn unmatched(&mut self, peer: Rank, class: usize) -> u32 {
        let p = &mut self.peers[peer as usize];
        if let Some(segment) = &p.segment {
            // Pairs with the release store in `count_match`; a hostile count cannot pass what was sent.
            let matched = segment
                .matched_from(self.rank, class)
                .load(Ordering::Acquire);
            p.matched_seen[class] = matched.clamp(p.matched_seen[class], p.sent[class]);
        }
        (p.sent[class] - p.matched_seen[class]) as u32
    }

    pub(super) fn receive_message(
        &mut self,
        peer: Rank,
        tag: u64,
        destination: View,
        token: u64,
    ) -> std::result::Result<(), PostError> {
        if peer as usize >= self.peers.len() {
            return Err(PostError::Invalid(format!(
                "rank {peer} of a job of {} ranks",
                self.peers.len()
            )));
        }
        let posted = Posted {
            tag,
            destination,
            token,
        };
        while let Some(message) = self.peers[peer as usize].take_unexpected(tag) {
            match self.deliver_unexpected(peer, posted, message) {
                Delivery::Ended => return Ok(()),
                Delivery::Withdrawn => {}
                Delivery::Lost(reason) => {
                    // Flushed with it, unless it has failed already.
                    self.post(peer, posted)?;
                    self.fail(peer, reason);
                    return Ok(());
                }
            }
        }
        self.post(peer, posted)
    }

    fn post(&mut self, peer: Rank, posted: Posted) -> std::result::Result<(), PostError> {
        let p = &mut self.peers[peer as usize];
        if p.state == PeerState::Gone {
            return Err(PostError::PeerFailed);
        }
        p.posted.push(posted);
        Ok(())
    }

    /// Handles everything that the ring from this peer holds.
    #[inline]
    pub(super) fn poll_ring(&mut self, peer: Rank) {
        let mut released = 0;
        loop {
            let Some(consumer) = self.peers[peer as usize].consumer.as_mut() else {
                return;
            };
            match consumer.peek() {
                Ok(None) => break,
                Ok(Some(record)) => {
                    let handled = self.handle_record(peer, &record);
                    if let Some(consumer) = self.peers[peer as usize].consumer.as_mut() {
                        consumer.release(&record);
                        released += 1;
                    }
                    if let Err(reason) = handled {
                        return self.fail(peer, reason);
                    }
                }
                Err(reason) => return self.fail(peer, format!("its ring is corrupt: {reason}")),
            }
        }
        if released >= MADE_ROOM
            && let Some(segment) = &self.peers[peer as usize].segment
        {
            segment.wake();
        }
    }

    fn handle_record(&mut self, peer: Rank, record: &Record) -> std::result::Result<(), String> {
        let words = record.header.words;
        let (tag, header) = (words[0], words[1]);
        match record.header.kind {
            EAGER if record.payload.len_bytes() <= INLINE_BYTES_MAX => {
                match self.peers[peer as usize].take_posted(tag) {
                    Some(posted) => {
                        self.deliver(peer, posted, header, record.payload);
                        self.count_match(peer, tag);
                    }
                    None => {
                        let mut bytes = self.spare.pop().unwrap_or_default();
                        bytes.resize(record.payload.len_bytes(), 0);
                        record.payload.read(0, &mut bytes);
                        self.keep_unexpected(
                            peer,
                            Unexpected {
                                tag,
                                header,
                                payload: Payload::Copied(bytes),
                            },
                        )?;
                    }
                }
                Ok(())
            }
            IN_REGION => {
                let payload = Payload::InRegion {
                    key: RegionKey(words[2] as u32),
                    offset: words[3],
                    bytes: words[4],
                    id: (words[2] >> 32) as u32,
                };
                self.arrive(
                    peer,
                    Unexpected {
                        tag,
                        header,
                        payload,
                    },
                )
            }
            UNREGISTERED => {
                let payload = Payload::Unregistered(Place {
                    id: words[2],
                    address: words[3],
                    bytes: words[4],
                });
                self.arrive(
                    peer,
                    Unexpected {
                        tag,
                        header,
                        payload,
                    },
                )
            }
            ACKNOWLEDGED => {
                let outstanding = &mut self.peers[peer as usize].outstanding;
                let index = outstanding
                    .iter()
                    .position(|o| u64::from(o.id) == words[0])
                    .ok_or_else(|| {
                        format!("it acknowledged message {}, which was not sent", words[0])
                    })?;
                let done = outstanding.remove(index);
                if let Some(token) = done.token {
                    self.complete(token, peer, Outcome::Done, done.bytes, 0);
                }
                Ok(())
            }
            kind => Err(format!(
                "it sent a malformed record: kind {kind} with {} bytes",
                record.payload.len_bytes()
            )),
        }
    }

    /// A message that lies in the sender's memory meets its receive, or waits for it.
    fn arrive(&mut self, peer: Rank, message: Unexpected) -> std::result::Result<(), String> {
        let Some(posted) = self.peers[peer as usize].take_posted(message.tag) else {
            return self.keep_unexpected(peer, message);
        };
        let delivery = self.deliver_unexpected(peer, posted, message);
        if !matches!(delivery, Delivery::Ended) {
            // It was the first of its tag.
            self.peers[peer as usize].posted.insert(0, posted);
        }
        match delivery {
            // Of a peer that has failed whatever can be had is taken.
            Delivery::Lost(reason) if self.peers[peer as usize].state != PeerState::Gone => {
                Err(reason)
            }
            _ => Ok(()),
        }
    }

    /// Keeps a message for a later receive; a sender that ignores its credits is refused.
    fn keep_unexpected(
        &mut self,
        peer: Rank,
        message: Unexpected,
    ) -> std::result::Result<(), String> {
        let unexpected = &mut self.peers[peer as usize].unexpected;
        let class = tag_class(message.tag);
        let waiting = unexpected
            .iter()
            .filter(|u| tag_class(u.tag) == class)
            .count();
        if waiting >= MESSAGES_PER_PEER as usize {
            return Err(format!(
                "it sent more than {MESSAGES_PER_PEER} messages without a receive"
            ));
        }
        unexpected.push_back(message);
        Ok(())
    }

    fn deliver_unexpected(&mut self, peer: Rank, posted: Posted, message: Unexpected) -> Delivery {
        let mut delivery = Delivery::Ended;
        match message.payload {
            Payload::Copied(bytes) => {
                let sent = bytes.len();
                if sent <= posted.destination.len_bytes() {
                    posted.destination.write(0, &bytes);
                    self.complete(
                        posted.token,
                        peer,
                        Outcome::Done,
                        sent as u64,
                        message.header,
                    );
                } else {
                    self.complete(
                        posted.token,
                        peer,
                        Outcome::Truncated,
                        sent as u64,
                        message.header,
                    );
                }
                self.spare.push(bytes);
            }
            Payload::InRegion {
                key,
                offset,
                bytes,
                id,
            } => {
                let fetched = usize::try_from(bytes).ok().and_then(|bytes| {
                    self.remote(peer, RemoteRange { key, offset }, bytes)
                        .ok()
                        .flatten()
                });
                let Some(source) = fetched else {
                    let text = format!("it sent a message in region {}, which is unknown", key.0);
                    return Delivery::Lost(text);
                };
                self.deliver(peer, posted, message.header, source);
                self.acknowledge(peer, id, bytes);
            }
            Payload::Unregistered(place) => {
                delivery = self.fetch_message(peer, posted, message.header, place);
                if matches!(delivery, Delivery::Lost(_)) {
                    return delivery;
                }
            }
        }
        self.count_match(peer, posted.tag);
        delivery
    }

    fn deliver(&mut self, peer: Rank, posted: Posted, header: u64, source: View) {
        let bytes = source.len_bytes();
        let outcome = if bytes <= posted.destination.len_bytes() {
            posted.destination.part(0, bytes).copy_from(source);
            Outcome::Done
        } else {
            Outcome::Truncated
        };
        self.complete(posted.token, peer, outcome, bytes as u64, header);
    }

    fn count_match(&mut self, peer: Rank, tag: u64) {
        let class = tag_class(tag);
        let p = &mut self.peers[peer as usize];
        p.matched[class] += 1;
        // Publishes the sender's credit to `has_message_credit`.
        self.segment
            .matched_from(peer, class)
            .store(p.matched[class], Ordering::Release);
        if p.matched[class].is_multiple_of(MADE_ROOM)
            && let Some(segment) = &p.segment
        {
            segment.wake();
        }
    }

    /// Tells the sender of a message that its memory is its own again. There is always room: see
    /// [`ACKNOWLEDGEMENTS_MAX`].
    pub(super) fn acknowledge(&mut self, peer: Rank, id: u32, bytes: u64) {
        let p = &mut self.peers[peer as usize];
        let (Some(producer), Some(segment)) = (p.producer.as_mut(), p.segment.as_ref()) else {
            return; // The connection ends; the sender's post is flushed.
        };
        let header = RecordHeader {
            kind: ACKNOWLEDGED,
            payload_bytes: 0,
            words: [u64::from(id), bytes, 0, 0, 0],
        };
        if producer.push(header, View::empty(), 0) {
            segment.wake();
        } else {
            self.fail(
                peer,
                format!("it has more than {ACKNOWLEDGEMENTS_MAX} messages under way"),
            );
        }
    }
}
