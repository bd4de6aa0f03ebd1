//! Messages: receives meet what comes, by tag and in order.

use super::peer::{Fate, Incoming, Loss, Peer};
use super::shared::Shared;
use crate::kernel;
use crate::limits::MESSAGES_PER_PEER;
use crate::memory::View;
use crate::transport::matching::{Met, Payload, Posted};
use crate::transport::posts::PeerState;
use crate::transport::{Outcome, PostError, TAG_CLASSES, URGENT_CLASS, tag_class};
use crate::wire::Frame;

/// Long messages of a peer that are not complete: every place of every class, and as many that come
/// before their announcements.
const INCOMING_MAX: usize = 2 * TAG_CLASSES * MESSAGES_PER_PEER as usize;

impl Incoming {
    /// Whether a frame is of this message: all of a transfer say the same length.
    pub fn check_total(&self, transfer: u64, total: u64) -> Result<(), Loss> {
        match self.total == total {
            true => Ok(()),
            false => Err(Loss::Peer(format!(
                "it says that transfer {transfer} has {total} bytes and that it has {}",
                self.total
            ))),
        }
    }
}

impl Peer {
    /// Messages of this class that are not matched yet, as far as is known.
    pub fn backlog(&self, class: usize) -> u16 {
        self.sent[class].wrapping_sub(self.matched_seen[class])
    }

    /// Whether a message of it is waited for; those that may come at any time do not count.
    pub fn awaits_message(&self) -> bool {
        let mut tags = self.matching.posted_tags();
        tags.any(|tag| tag_class(tag) != URGENT_CLASS)
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
        match self.matching.meet(self.rank, &posted, &mut shared.ends) {
            Met::Nothing if self.state == PeerState::Gone => return Err(PostError::PeerFailed),
            Met::Nothing => self.matching.post(posted),
            Met::Whole(_) => self.count_match(tag),
            Met::Far(transfer, header) => self.match_long(transfer, &posted, header, shared),
        }
        Ok(())
    }

    pub fn cancel(&mut self, token: u64, shared: &mut Shared) {
        if self.matching.cancel(token) {
            return shared.complete(self.rank, token, Outcome::Cancelled, 0, 0);
        }
        let is_it = |i: &&mut Incoming| matches!(i.fate, Fate::Into(_, of, _) if of == token);
        if let Some(incoming) = self.incoming.values_mut().find(is_it) {
            // Its memory may end now: what is still to come goes nowhere.
            incoming.fate = Fate::Dropped;
            shared.complete(self.rank, token, Outcome::Cancelled, 0, 0);
        }
    }

    fn count_match(&mut self, tag: u64) {
        let matched = &mut self.matched[tag_class(tag)];
        *matched = matched.wrapping_add(1);
    }

    /// A short message has come.
    pub fn handle_eager(
        &mut self,
        tag: u64,
        header: u64,
        bytes: &[u8],
        shared: &mut Shared,
    ) -> Result<(), Loss> {
        if let Some(posted) = self.matching.take_posted(tag) {
            posted.deliver_bytes(self.rank, header, bytes, &mut shared.ends);
            self.count_match(tag);
            return Ok(());
        }
        let mut copied = shared.ends.spare.pop().unwrap_or_default();
        copied.clear();
        copied.extend_from_slice(bytes);
        let copied = Payload::Copied(copied);
        self.matching.keep(tag, header, copied).map_err(Loss::Peer)
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
        match self.matching.take_posted(tag) {
            Some(posted) => {
                self.match_long(transfer, &posted, header, shared);
                Ok(())
            }
            None => {
                let kept = self.matching.keep(tag, header, Payload::Far(transfer));
                kept.map_err(Loss::Peer)
            }
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
        incoming.check_total(transfer, total)?;
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
                kernel::write(place, *offset as usize, bytes);
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
