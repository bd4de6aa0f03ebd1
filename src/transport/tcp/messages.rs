//! Messages: receives meet what comes, by tag and in order.

use super::peer::{Fate, Incoming, Loss, Payload, Peer, PeerState, Posted, Shared, Unexpected};
use crate::limits::MESSAGES_PER_PEER;
use crate::memory::View;
use crate::transport::{Outcome, PostError, TAG_CLASSES, URGENT_CLASS, tag_class};
use crate::wire::Frame;

/// Long messages of a peer that are not complete: every place of every class, and as many that come before their
/// announcements.
const INCOMING_MAX: usize = 2 * TAG_CLASSES * MESSAGES_PER_PEER as usize;

impl Peer {
    /// Messages of this class that are not matched yet, as far as is known.
    pub fn backlog(&self, class: usize) -> u16 {
        self.sent[class].wrapping_sub(self.matched_seen[class])
    }

    /// Whether a message of it is waited for; those that may come at any time do not count.
    pub fn awaits_message(&self) -> bool {
        let mut tags = self.posted.iter().map(|posted| tag_class(posted.tag));
        tags.any(|class| class != URGENT_CLASS)
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
                self.deliver(&posted, message.header, &bytes, shared);
                shared.spare.push(bytes);
            }
            Payload::Long(transfer) => {
                self.match_long(transfer, &posted, message.header, shared);
                return Ok(());
            }
            Payload::Own(source, send_token) => {
                self.deliver_own(&posted, message.header, source, shared);
                shared.complete(
                    self.rank,
                    send_token,
                    Outcome::Done,
                    source.len_bytes() as u64,
                    0,
                );
            }
        }
        self.count_match(tag);
        Ok(())
    }

    pub fn cancel(&mut self, token: u64, shared: &mut Shared) {
        if let Some(at) = self.posted.iter().position(|p| p.token == token) {
            self.posted.remove(at);
            return shared.complete(self.rank, token, Outcome::Cancelled, 0, 0);
        }
        let is_it = |i: &&mut Incoming| matches!(i.fate, Fate::Into(_, of, _) if of == token);
        if let Some(incoming) = self.incoming.values_mut().find(is_it) {
            // Its memory may end now: what is still to come goes nowhere.
            incoming.fate = Fate::Dropped;
            shared.complete(self.rank, token, Outcome::Cancelled, 0, 0);
        }
    }

    fn take_posted(&mut self, tag: u64) -> Option<Posted> {
        let at = self.posted.iter().position(|p| p.tag == tag)?;
        self.posted.remove(at)
    }

    fn count_match(&mut self, tag: u64) {
        let matched = &mut self.matched[tag_class(tag)];
        *matched = matched.wrapping_add(1);
    }

    fn deliver(&mut self, posted: &Posted, header: u64, bytes: &[u8], shared: &mut Shared) {
        let outcome = if bytes.len() <= posted.destination.len_bytes() {
            posted.destination.write(0, bytes);
            Outcome::Done
        } else {
            Outcome::Truncated
        };
        shared.complete(self.rank, posted.token, outcome, bytes.len() as u64, header);
    }

    fn deliver_own(&mut self, posted: &Posted, header: u64, source: View, shared: &mut Shared) {
        let bytes = source.len_bytes();
        let outcome = if bytes <= posted.destination.len_bytes() {
            posted.destination.part(0, bytes).copy_from(source);
            Outcome::Done
        } else {
            Outcome::Truncated
        };
        shared.complete(self.rank, posted.token, outcome, bytes as u64, header);
    }

    /// A message of this rank to itself. Its bytes stay where they are until a receive takes them, unless they are short.
    pub fn send_to_oneself(
        &mut self,
        (tag, header): (u64, u64),
        source: View,
        token: u64,
        shared: &mut Shared,
    ) {
        let bytes = source.len_bytes();
        if let Some(posted) = self.take_posted(tag) {
            self.deliver_own(&posted, header, source, shared);
            self.count_match(tag);
            return shared.complete(self.rank, token, Outcome::Done, bytes as u64, 0);
        }
        let payload = if bytes <= shared.limits.small_bytes_max as usize {
            let mut copied = vec![0; bytes];
            source.read(0, &mut copied);
            shared.complete(self.rank, token, Outcome::Done, bytes as u64, 0);
            Payload::Copied(copied)
        } else {
            Payload::Own(source, token)
        };
        self.unexpected_count[tag_class(tag)] += 1;
        self.unexpected.push_back(Unexpected {
            tag,
            header,
            payload,
        });
    }

    fn keep(&mut self, message: Unexpected) -> Result<(), Loss> {
        let count = &mut self.unexpected_count[tag_class(message.tag)];
        if *count >= MESSAGES_PER_PEER {
            return Err(Loss::Peer(format!(
                "it sent more than {MESSAGES_PER_PEER} messages without a receive"
            )));
        }
        *count += 1;
        self.unexpected.push_back(message);
        Ok(())
    }

    /// A short message has come.
    pub fn handle_eager(
        &mut self,
        tag: u64,
        header: u64,
        bytes: &[u8],
        shared: &mut Shared,
    ) -> Result<(), Loss> {
        if let Some(posted) = self.take_posted(tag) {
            self.deliver(&posted, header, bytes, shared);
            self.count_match(tag);
            return Ok(());
        }
        let mut copied = shared.spare.pop().unwrap_or_default();
        copied.clear();
        copied.extend_from_slice(bytes);
        self.keep(Unexpected {
            tag,
            header,
            payload: Payload::Copied(copied),
        })
    }

    /// A long message is announced.
    pub fn handle_announce(
        &mut self,
        (tag, header): (u64, u64),
        (transfer, total): (u64, u64),
        is_eager: bool,
        shared: &mut Shared,
    ) -> Result<(), Loss> {
        let incoming = self.incoming_of(transfer, total)?;
        if std::mem::replace(&mut incoming.is_announced, true) {
            let text = format!("it announced transfer {transfer} twice");
            return Err(Loss::Peer(text));
        }
        incoming.is_eager = is_eager;
        match self.take_posted(tag) {
            Some(posted) => {
                self.match_long(transfer, &posted, header, shared);
                Ok(())
            }
            None => self.keep(Unexpected {
                tag,
                header,
                payload: Payload::Long(transfer),
            }),
        }
    }

    /// The record of a long message that comes, made at the first sign of it.
    pub fn incoming_of(&mut self, transfer: u64, total: u64) -> Result<&mut Incoming, Loss> {
        if self.incoming.len() >= INCOMING_MAX && !self.incoming.contains_key(&transfer) {
            return Err(Loss::Peer(format!(
                "it has more than {INCOMING_MAX} long messages under way"
            )));
        }
        let incoming = self.incoming.entry(transfer).or_insert(Incoming {
            total,
            is_announced: false,
            is_eager: true,
            fate: Fate::Unmatched,
            arrived: 0,
            staged: Vec::new(),
        });
        if incoming.total != total {
            return Err(Loss::Peer(format!(
                "it says that transfer {transfer} has {total} bytes and that it has {}",
                incoming.total
            )));
        }
        Ok(incoming)
    }

    /// An announced message meets its receive.
    fn match_long(&mut self, transfer: u64, posted: &Posted, header: u64, shared: &mut Shared) {
        self.count_match(posted.tag);
        let incoming = (self.incoming.get_mut(&transfer)).expect("announced, and not over");
        let (total, is_eager) = (incoming.total, incoming.is_eager);
        let fits = total <= posted.destination.len_bytes() as u64;
        let staged = std::mem::take(&mut incoming.staged);
        self.staged_bytes -= staged.iter().map(|(_, b)| b.len() as u64).sum::<u64>();
        if fits {
            let place = posted.destination.part(0, total as usize);
            for (offset, bytes) in &staged {
                place.write(*offset as usize, bytes);
            }
            incoming.fate = Fate::Into(place, posted.token, header);
        } else {
            incoming.fate = Fate::Dropped;
        }
        for (_, bytes) in staged {
            shared.staging.give(bytes);
        }
        if is_eager {
            self.eager_matched += total;
        }
        if !fits {
            shared.complete(self.rank, posted.token, Outcome::Truncated, total, header);
        }
        match (is_eager, fits) {
            (true, _) => {}
            (false, true) => self.push_control(shared, Frame::Pull { transfer }),
            (false, false) => {
                self.push_control(shared, Frame::Skip { transfer });
                self.incoming.remove(&transfer);
            }
        }
        self.end_if_whole(transfer, shared);
    }

    /// Ends a long message of which everything has come, if its receive is there.
    pub fn end_if_whole(&mut self, transfer: u64, shared: &mut Shared) {
        let Some(incoming) = self.incoming.get(&transfer) else {
            return;
        };
        if !incoming.is_announced || incoming.arrived != incoming.total {
            return;
        }
        match incoming.fate {
            Fate::Unmatched => return,
            Fate::Into(_, token, header) => {
                shared.complete(self.rank, token, Outcome::Done, incoming.arrived, header);
            }
            Fate::Dropped => {}
        }
        self.incoming.remove(&transfer);
    }
}
