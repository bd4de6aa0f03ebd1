//! Messages: receives meet what comes, by tag and in order.

use super::device::Registered;
use super::peer::{Incoming, Payload, Peer, PeerState, Posted, Shared, Unexpected};
use super::record::Record;
use crate::limits::{INLINE_BYTES_MAX, MESSAGES_PER_PEER};
use crate::memory::View;
use crate::transport::{Outcome, PostError, URGENT_CLASS, tag_class};
use std::sync::Arc;

/// A rank tells after so many matches of a class; urgent ones at once.
const TELL_MATCHES: u16 = MESSAGES_PER_PEER as u16 / 4;

impl Peer {
    /// Messages of this class that are not matched yet, as far as is known.
    pub fn backlog(&self, class: usize) -> u16 {
        self.sent[class].wrapping_sub(self.matched_seen[class])
    }

    pub fn post_recv(
        &mut self,
        tag: u64,
        destination: View,
        token: u64,
        shared: &mut Shared,
    ) -> Result<(), PostError> {
        let posted = Posted {
            tag,
            destination,
            token,
        };
        let Some(at) = self.unexpected.iter().position(|u| u.tag == tag) else {
            if self.state == PeerState::Gone {
                return Err(PostError::PeerFailed);
            }
            self.posted.push_back(posted);
            return Ok(());
        };
        let message = self.unexpected.remove(at).expect("found just now");
        self.unexpected_count[tag_class(tag)] -= 1;
        match message.payload {
            Payload::Copied(bytes) => {
                self.deliver_copied(&posted, message.header, &bytes, shared);
                shared.spare.push(bytes);
            }
            Payload::Offered(transfer, total) => {
                self.match_long((transfer, total), &posted, message.header, shared);
            }
            Payload::Own(source, send_token) => {
                let bytes = source.len_bytes() as u64;
                self.deliver(&posted, message.header, source, shared);
                shared.complete(self.rank, send_token, Outcome::Done, bytes, 0);
            }
        }
        self.count_match(tag, shared);
        Ok(())
    }

    /// Ends a receive whose message has not begun to come; false: there is none with this token.
    pub fn cancel_posted(&mut self, token: u64, shared: &mut Shared) -> bool {
        let Some(at) = self.posted.iter().position(|p| p.token == token) else {
            return false;
        };
        self.posted.remove(at);
        shared.complete(self.rank, token, Outcome::Cancelled, 0, 0);
        true
    }

    /// The long message that a receive has met.
    pub fn incoming_of(&self, token: u64) -> Option<u32> {
        let is_it = |incoming: &Incoming| incoming.place.is_some() && incoming.token == token;
        let found = self.incoming.iter().find(|(_, i)| is_it(i));
        found.map(|(&transfer, _)| transfer)
    }

    /// A message of this rank to itself. Its bytes stay where they are until a receive takes them, unless they are short.
    pub fn send_to_oneself(
        &mut self,
        (tag, header): (u64, u64),
        source: View,
        token: Option<u64>,
        shared: &mut Shared,
    ) {
        let bytes = source.len_bytes();
        let complete = |shared: &mut Shared, rank| {
            if let Some(token) = token {
                shared.complete(rank, token, Outcome::Done, bytes as u64, 0);
            }
        };
        if let Some(posted) = self.take_posted(tag) {
            self.deliver(&posted, header, source, shared);
            return complete(shared, self.rank);
        }
        let payload = match token {
            Some(token) if bytes > INLINE_BYTES_MAX => Payload::Own(source, token),
            _ => {
                let mut copied = vec![0; bytes];
                source.read(0, &mut copied);
                complete(shared, self.rank);
                Payload::Copied(copied)
            }
        };
        self.unexpected_count[tag_class(tag)] += 1;
        self.unexpected.push_back(Unexpected {
            tag,
            header,
            payload,
        });
    }

    /// A short message lies in a slot.
    pub fn handle_message(
        &mut self,
        (tag, header): (u64, u64),
        source: View,
        shared: &mut Shared,
    ) -> Result<(), String> {
        if let Some(posted) = self.take_posted(tag) {
            self.deliver(&posted, header, source, shared);
            self.count_match(tag, shared);
            return Ok(());
        }
        let mut copied = shared.spare.pop().unwrap_or_default();
        copied.resize(source.len_bytes(), 0);
        source.read(0, &mut copied);
        shared.counts.copied_bytes += copied.len() as u64;
        self.keep(tag, header, Payload::Copied(copied))
    }

    /// A long message is announced.
    pub fn handle_offer(
        &mut self,
        (tag, header): (u64, u64),
        (transfer, total): (u32, u64),
        shared: &mut Shared,
    ) -> Result<(), String> {
        if self.incoming.contains_key(&transfer) {
            return Err(format!("it offered transfer {transfer} twice"));
        }
        match self.take_posted(tag) {
            Some(posted) => {
                self.match_long((transfer, total), &posted, header, shared);
                self.count_match(tag, shared);
                Ok(())
            }
            None => self.keep(tag, header, Payload::Offered(transfer, total)),
        }
    }

    /// The last bytes of a long message have come.
    pub fn handle_last(&mut self, transfer: u32, shared: &mut Shared) {
        let Some(incoming) = self.incoming.remove(&transfer) else {
            return;
        };
        if incoming.place.is_some() {
            let (token, total, header) = (incoming.token, incoming.total, incoming.header);
            // The registration of memory that was lent ends first.
            drop(incoming);
            shared.complete(self.rank, token, Outcome::Done, total, header);
        }
    }

    /// Tells the sender of a long message where to write it.
    pub fn push_grant(&mut self, transfer: u32, shared: &mut Shared) {
        let Some(incoming) = self.incoming.get(&transfer) else {
            return;
        };
        let record = match &incoming.place {
            Some(place) => Record::Grant {
                transfer,
                address: place.address() + incoming.offset,
                keys: place.keys(),
            },
            None => Record::Skip { transfer },
        };
        if incoming.place.is_none() {
            self.incoming.remove(&transfer);
        }
        self.push(record, View::empty(), None, shared);
    }

    fn take_posted(&mut self, tag: u64) -> Option<Posted> {
        let at = self.posted.iter().position(|p| p.tag == tag)?;
        self.posted.remove(at)
    }

    fn count_match(&mut self, tag: u64, shared: &mut Shared) {
        let matched = &mut self.matched[tag_class(tag)];
        *matched = matched.wrapping_add(1);
        if self.is_match_due(tag_class(tag)) {
            shared.mark(self);
        }
    }

    /// Whether the peer should hear now how many messages of a class were matched.
    pub fn is_match_due(&self, class: usize) -> bool {
        let untold = self.matched[class].wrapping_sub(self.matched_told[class]);
        untold >= TELL_MATCHES || (class == URGENT_CLASS && untold > 0)
    }

    fn deliver(&mut self, posted: &Posted, header: u64, source: View, shared: &mut Shared) {
        let bytes = source.len_bytes();
        let outcome = if bytes <= posted.destination.len_bytes() {
            posted.destination.part(0, bytes).copy_from(source);
            shared.counts.copied_bytes += bytes as u64;
            Outcome::Done
        } else {
            Outcome::Truncated
        };
        shared.complete(self.rank, posted.token, outcome, bytes as u64, header);
    }

    fn deliver_copied(&mut self, posted: &Posted, header: u64, bytes: &[u8], shared: &mut Shared) {
        let outcome = if bytes.len() <= posted.destination.len_bytes() {
            posted.destination.write(0, bytes);
            shared.counts.copied_bytes += bytes.len() as u64;
            Outcome::Done
        } else {
            Outcome::Truncated
        };
        shared.complete(self.rank, posted.token, outcome, bytes.len() as u64, header);
    }

    fn keep(&mut self, tag: u64, header: u64, payload: Payload) -> Result<(), String> {
        let count = &mut self.unexpected_count[tag_class(tag)];
        if *count >= MESSAGES_PER_PEER {
            return Err(format!(
                "it sent more than {MESSAGES_PER_PEER} messages without a receive"
            ));
        }
        *count += 1;
        self.unexpected.push_back(Unexpected {
            tag,
            header,
            payload,
        });
        Ok(())
    }

    /// An announced message meets its receive.
    fn match_long(
        &mut self,
        (transfer, total): (u32, u64),
        posted: &Posted,
        header: u64,
        shared: &mut Shared,
    ) {
        let token = posted.token;
        if total > posted.destination.len_bytes() as u64 {
            shared.complete(self.rank, token, Outcome::Truncated, total, header);
            return self.push(Record::Skip { transfer }, View::empty(), None, shared);
        }
        let destination = posted.destination.part(0, total as usize);
        let (place, offset) = match shared.regions.get(&destination.key()) {
            Some(registered) => (registered.clone(), destination.offset()),
            None => {
                shared.counts.lent += 1;
                let relaxed = shared.settings.is_relaxed;
                match Registered::lent(destination, &shared.rails, relaxed) {
                    Ok(registered) => (Arc::new(registered), 0),
                    Err(error) => {
                        // The receive is flushed with the peer, whose failure has this cause.
                        self.posted.push_back(*posted);
                        let text = format!("a receive of {total} bytes: {error}");
                        self.offence.get_or_insert(text);
                        return;
                    }
                }
            }
        };
        let incoming = Incoming {
            total,
            header,
            token,
            place: Some(place),
            offset,
        };
        self.incoming.insert(transfer, incoming);
        self.push_grant(transfer, shared);
    }
}
