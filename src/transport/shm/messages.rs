//! The data path of the shm provider: sending, matching, fetching, acknowledging.

use super::fetch::Place;
use super::outbound::{ACKNOWLEDGEMENTS_MAX, ACKNOWLEDGEMENTS_ROOM};
use super::peer::{Far, PeerState};
use super::recall;
use super::ring::{Record, RecordHeader};
use super::socket::SocketMessage;
use super::{Outcome, PostError, RemoteRange, ShmTransport};
use crate::kernel;
use crate::limits::{
    CACHE_LINE_BYTES, CONTROL_BYTES, INLINE_BYTES_MAX, MESSAGES_PER_PEER, RING_BYTES,
    URGENT_MESSAGES,
};
use crate::memory::{RegionKey, View};
use crate::transport::matching::{Met, Payload, Posted};
use crate::transport::posts::no_such_rank;
use crate::transport::{Mapping, Signals, URGENT_CLASS, tag_class};
use crate::types::Rank;
use std::io::Error;
use std::sync::atomic::Ordering;

/// words: tag, header. The payload follows.
const EAGER: u8 = 1;
/// words: tag, header, key and id, offset, bytes.
const IN_REGION: u8 = 2;
/// words: id, bytes.
const ACKNOWLEDGED: u8 = 3;
/// words: tag, header, id, address in the sender's process, bytes.
const UNREGISTERED: u8 = 4;

/// A sender that a full queue held up is woken when this many messages have made room: often enough
/// that it never sleeps for long, and seldom enough to cost nothing.
const MADE_ROOM: u64 = MESSAGES_PER_PEER as u64 / 8;

/// Bytes of a ring that only messages of [`URGENT_CLASS`] and acknowledgements use. They hold one
/// message more than promised, because the end of the ring may leave a gap before a record.
const URGENT_ROOM: usize = (URGENT_MESSAGES as usize + 1) * (CONTROL_BYTES + CACHE_LINE_BYTES);

const _: () = assert!(ACKNOWLEDGEMENTS_ROOM + URGENT_ROOM <= RING_BYTES / 4);

/// Bytes of a ring that messages of a class of tags leave to others.
fn room_kept(class: usize) -> usize {
    match class {
        URGENT_CLASS => ACKNOWLEDGEMENTS_ROOM,
        _ => ACKNOWLEDGEMENTS_ROOM + URGENT_ROOM,
    }
}

/// What became of a message that met its receive.
#[derive(Debug)]
enum Delivery {
    /// The receive has ended.
    Ended,
    /// The message had been withdrawn; the receive goes on waiting.
    Withdrawn,
    /// The message cannot be had, for this reason; the receive goes on waiting.
    Lost(String),
}

/// Why a message could not be copied out of its sender's memory.
#[derive(Debug)]
enum Unread {
    /// The sender has no such range in a region that it has made known.
    NoRegion(RegionKey),
    /// The sender had not offered to be read.
    NotOffered,
    /// The kernel refused.
    Refused(Place, Error),
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
        if bytes <= INLINE_BYTES_MAX && peer != self.rank {
            self.send_copied(peer, tag, header, source)?;
            self.complete(token, peer, Outcome::Done, bytes as u64, 0);
            return Ok(());
        }
        let is_registered = self.is_mappable(source.key());
        let is_short = bytes <= INLINE_BYTES_MAX;
        if !is_short && !is_registered && !self.fetches(peer, bytes) {
            return Err(PostError::invalid(format!(
                "a send of {bytes} bytes from memory that is not registered; {INLINE_BYTES_MAX} at most"
            )));
        }
        if peer == self.rank {
            let message = (tag, header);
            self.own
                .send(message, source, Some(token), &mut self.ends)?;
            self.notify(peer);
            return Ok(());
        }
        let class = tag_class(tag);
        self.check_credit(peer, class)?;
        if !self.peers[peer as usize].outbound.has_place() {
            return Err(PostError::WouldBlock);
        }
        if is_registered {
            self.export_to(peer, source.key())?;
        }
        let p = &mut self.peers[peer as usize];
        let id = p.outbound.next_id();
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
        if !p.outbound.push(record, View::empty(), room_kept(class)) {
            return Err(PostError::WouldBlock);
        }
        p.credits.note_sent(class);
        p.outbound.note_sent(token, bytes as u64);
        p.wake();
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
        self.check_credit(peer, class)?;
        let p = &mut self.peers[peer as usize];
        let bytes = source.len_bytes();
        let record = RecordHeader {
            kind: EAGER,
            payload_bytes: bytes as u32,
            words: [tag, header, 0, 0, bytes as u64],
        };
        if !p.outbound.push(record, source, room_kept(class)) {
            return Err(PostError::WouldBlock);
        }
        p.credits.note_sent(class);
        p.wake();
        Ok(())
    }

    #[inline]
    fn check_credit(&mut self, peer: Rank, class: usize) -> std::result::Result<(), PostError> {
        if self.peers[peer as usize].credits.check(class).is_ok() {
            return Ok(());
        }
        self.look_at_matches(peer, class);
        self.peers[peer as usize].credits.check(class)
    }

    /// Messages of a class of tags to this peer that it has not matched yet.
    pub(super) fn unmatched(&mut self, peer: Rank, class: usize) -> u32 {
        self.look_at_matches(peer, class);
        self.peers[peer as usize].credits.backlog(class)
    }

    fn look_at_matches(&mut self, peer: Rank, class: usize) {
        let p = &mut self.peers[peer as usize];
        if let Some(segment) = &p.segment {
            // Pairs with the release store in `count_match`.
            let matched = segment
                .matched_from(self.rank, class)
                .load(Ordering::Acquire);
            p.credits.handle_told(class, matched as u16);
        }
    }

    pub(super) fn receive_message(
        &mut self,
        peer: Rank,
        tag: u64,
        destination: View,
        token: u64,
    ) -> std::result::Result<(), PostError> {
        if peer as usize >= self.peers.len() {
            return Err(no_such_rank(peer, self.peers.len()));
        }
        if peer == self.rank {
            return self.own.receive(tag, destination, token, &mut self.ends);
        }
        let posted = Posted {
            tag,
            destination,
            token,
        };
        loop {
            let p = &mut self.peers[peer as usize];
            let is_over = p.state == PeerState::Gone;
            match (p.matching).receive(peer, posted, is_over, &mut self.ends)? {
                Met::Nothing => return Ok(()),
                Met::Whole(_) => {
                    self.count_match(peer, tag);
                    return Ok(());
                }
                Met::Far(far, header) => match self.deliver_far(peer, posted, header, far) {
                    Delivery::Ended => return Ok(()),
                    Delivery::Withdrawn => {}
                    Delivery::Lost(_) if is_over => return Err(PostError::PeerFailed),
                    Delivery::Lost(reason) => {
                        // The receive is flushed with the peer.
                        self.peers[peer as usize].matching.post(posted);
                        self.fail(peer, reason);
                        return Ok(());
                    }
                },
            }
        }
    }

    /// Handles everything that the ring from this peer holds.
    pub(super) fn poll_ring(&mut self, peer: Rank) {
        let mut released = 0;
        loop {
            let Some(consumer) = self.peers[peer as usize].consumer.as_mut() else {
                return;
            };
            match consumer.peek() {
                Ok(None) => {
                    self.read[peer as usize] = consumer.read_so_far();
                    break;
                }
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
        if released >= MADE_ROOM {
            self.peers[peer as usize].wake();
        }
    }

    fn handle_record(&mut self, peer: Rank, record: &Record) -> std::result::Result<(), String> {
        let words = record.header.words;
        let (tag, header) = (words[0], words[1]);
        match record.header.kind {
            EAGER if record.payload.len_bytes() <= INLINE_BYTES_MAX => {
                let matching = &mut self.peers[peer as usize].matching;
                let message = (tag, header);
                let (is_matched, _) =
                    matching.arrive(peer, message, record.payload, &mut self.ends)?;
                if is_matched {
                    self.count_match(peer, tag);
                }
                Ok(())
            }
            IN_REGION => {
                let far = Far::InRegion {
                    key: RegionKey(words[2] as u32),
                    offset: words[3],
                    bytes: words[4],
                    id: (words[2] >> 32) as u32,
                };
                self.arrive(peer, tag, header, far)
            }
            UNREGISTERED => {
                let far = Far::Unregistered(Place {
                    id: words[2],
                    address: words[3],
                    bytes: words[4],
                });
                self.arrive(peer, tag, header, far)
            }
            ACKNOWLEDGED => {
                let done = self.peers[peer as usize].outbound.acknowledge(words[0])?;
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
    fn arrive(
        &mut self,
        peer: Rank,
        tag: u64,
        header: u64,
        far: Far,
    ) -> std::result::Result<(), String> {
        let matching = &mut self.peers[peer as usize].matching;
        let Some(posted) = matching.take_posted(tag) else {
            return matching.keep(peer, (tag, header), Payload::Far(far), &mut self.ends);
        };
        let delivery = self.deliver_far(peer, posted, header, far);
        if !matches!(delivery, Delivery::Ended) {
            self.peers[peer as usize].matching.put_back(posted);
        }
        match delivery {
            // A lost message does not keep this rank from taking what else a failed peer had sent.
            Delivery::Lost(reason) if self.peers[peer as usize].state != PeerState::Gone => {
                Err(reason)
            }
            _ => Ok(()),
        }
    }

    fn deliver_far(&mut self, peer: Rank, posted: Posted, header: u64, far: Far) -> Delivery {
        let (id, bytes) = match far {
            Far::InRegion { id, bytes, .. } => (id, bytes),
            Far::Unregistered(place) => (place.id as u32, place.bytes),
        };
        let fits = bytes <= posted.destination.len_bytes() as u64;
        let read = match fits {
            true => self.read_far(peer, posted.destination.part(0, bytes as usize), far),
            false => Ok(()),
        };
        // This is asked after the last read, whether that worked or not: the sender may have freed
        // the memory since.
        let delivery = match (self.is_recalled(peer, id), read) {
            (true, _) => Delivery::Withdrawn,
            (false, Err(unread)) => return Delivery::Lost(self.reason_of(peer, unread)),
            (false, Ok(())) => {
                let outcome = match fits {
                    true => Outcome::Done,
                    false => Outcome::Truncated,
                };
                self.complete(posted.token, peer, outcome, bytes, header);
                Delivery::Ended
            }
        };
        self.acknowledge(peer, id, bytes);
        self.count_match(peer, posted.tag);
        delivery
    }

    /// Copies a message out of the sender's memory.
    fn read_far(
        &mut self,
        peer: Rank,
        destination: View,
        far: Far,
    ) -> std::result::Result<(), Unread> {
        match far {
            Far::InRegion { key, offset, .. } => {
                let range = RemoteRange { key, offset };
                let found = self.remote(peer, range, destination.len_bytes());
                let source = found.ok().flatten().ok_or(Unread::NoRegion(key))?;
                kernel::copy(source, destination);
                Ok(())
            }
            Far::Unregistered(place) => self.fetch_message(peer, destination, place),
        }
    }

    fn count_match(&mut self, peer: Rank, tag: u64) {
        let class = tag_class(tag);
        let p = &mut self.peers[peer as usize];
        let matched = p.credits.count_match(class);
        // Publishes the sender's credit to `look_at_matches`.
        self.segment
            .matched_from(peer, class)
            .store(matched, Ordering::Release);
        if matched.is_multiple_of(MADE_ROOM) {
            p.wake();
        }
    }

    /// Tells the sender of a message that its memory is its own again. There is always room: see
    /// [`ACKNOWLEDGEMENTS_MAX`].
    pub(super) fn acknowledge(&mut self, peer: Rank, id: u32, bytes: u64) {
        let p = &mut self.peers[peer as usize];
        if !p.outbound.is_open() {
            return; // The connection ends; the sender's post is flushed.
        }
        let header = RecordHeader {
            kind: ACKNOWLEDGED,
            payload_bytes: 0,
            words: [u64::from(id), bytes, 0, 0, 0],
        };
        if p.outbound.push(header, View::empty(), 0) {
            p.wake();
        } else {
            self.fail(
                peer,
                format!("it has more than {ACKNOWLEDGEMENTS_MAX} messages under way"),
            );
        }
    }

    /// Reads a message that lies in the sender's memory and not in a region.
    fn fetch_message(
        &mut self,
        peer: Rank,
        destination: View,
        place: Place,
    ) -> std::result::Result<(), Unread> {
        let readable = self.peers[peer as usize].process.readable();
        let readable = readable.ok_or(Unread::NotOffered)?;
        let fetched = readable.fetch(place.address, destination);
        fetched.map_err(|error| Unread::Refused(place, error))
    }

    /// Why a message could not be had, as the cause of the sender's failure here. If the kernel
    /// refused to read it, the sender is told, because it would see only a hang-up.
    fn reason_of(&self, peer: Rank, unread: Unread) -> String {
        let (place, error) = match unread {
            Unread::NoRegion(key) => {
                return format!("it sent a message in region {}, which is unknown", key.0);
            }
            Unread::NotOffered => {
                return "it sent a message in memory that this rank cannot read and had not offered to"
                    .into();
            }
            Unread::Refused(place, error) => (place, error),
        };
        if error.raw_os_error() == Some(libc::ESRCH) {
            return crate::transport::ENDED.into();
        }
        let control = &self.peers[peer as usize].control;
        control.send_last(SocketMessage::Unreadable);
        format!(
            "{} bytes at {:#x}, which it sent, cannot be read there ({error}): memory that is sent must stay as it is until the operation has ended; LINERATE_CMA=off stages it",
            place.bytes, place.address
        )
    }

    /// Whether a peer had taken back the memory of this message when its last byte was read. `id`
    /// is the lower half of its number, which suffices: at most 128 messages are not acknowledged.
    fn is_recalled(&self, peer: Rank, id: u32) -> bool {
        let valid_from = recall::valid_from(self.segment.recalled_by(peer));
        valid_from != 0 && (valid_from as u32).wrapping_sub(id) as i32 > 0
    }

    /// Takes back the memory of all messages to this peer that it may not have read yet, and all
    /// regions; the tokens of the messages. The peer discards what it reads from now on.
    pub(super) fn recall(&mut self, peer: Rank) -> Vec<u64> {
        let p = &mut self.peers[peer as usize];
        if let Some(segment) = &p.segment {
            recall::take_back(segment.recalled_by(self.rank), p.outbound.next_id());
        }
        p.outbound.take_back()
    }
}
