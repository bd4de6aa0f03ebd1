//! Messages: receives meet what comes, by tag and in order.

use super::{Loss, Peer};
use crate::memory::View;
use crate::transport::matching::{Met, Payload, Posted};
use crate::transport::posts::PeerState;
use crate::transport::tcp::shared::Shared;
use crate::transport::{Outcome, PostError, URGENT_CLASS, tag_class};
use crate::types::Rank;
use crate::wire::Frame;

impl Peer {
    /// Messages of this tag's class that are not matched yet, as far as is known.
    pub fn backlog(&self, tag: u64) -> u32 {
        u32::from(self.credits.backlog(tag_class(tag)))
    }

    /// Whether a message of it is waited for; those that may come at any time do not count.
    pub fn awaits_message(&self) -> bool {
        let mut tags = self.matching.posted_tags();
        tags.any(|tag| tag_class(tag) != URGENT_CLASS)
    }

    /// The first message that waits and is meant: the peer, its tag and its header.
    pub fn find(&self, is_meant: &mut dyn FnMut(u64, u64) -> bool) -> Option<(Rank, u64, u64)> {
        let found = self.matching.find(is_meant);
        found.map(|(tag, header)| (self.rank, tag, header))
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
        if self.matching.cancel(token) || self.incoming.cancel(token) {
            shared.complete(self.rank, token, Outcome::Cancelled, 0, 0);
        }
    }

    #[inline]
    fn count_match(&mut self, tag: u64) {
        self.credits.count_match(tag_class(tag));
    }

    /// A short message has come.
    pub(super) fn handle_eager(
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
        Ok(self.matching.keep(tag, header, Payload::Copied(copied))?)
    }

    /// A long message is announced.
    pub(super) fn handle_announce(
        &mut self,
        (tag, header): (u64, u64),
        (transfer, total): (u64, u64),
        is_eager: bool,
        shared: &mut Shared,
    ) -> Result<(), Loss> {
        self.incoming.announce(transfer, total, is_eager)?;
        match self.matching.take_posted(tag) {
            Some(posted) => self.match_long(transfer, &posted, header, shared),
            None => self.matching.keep(tag, header, Payload::Far(transfer))?,
        }
        Ok(())
    }

    /// An announced message meets its receive.
    fn match_long(&mut self, transfer: u64, posted: &Posted, header: u64, shared: &mut Shared) {
        self.count_match(posted.tag);
        let met = (self.incoming).meet(transfer, posted, header, &mut shared.staging);
        if met.is_eager {
            self.eager.count_match(met.total);
        }
        if !met.fits {
            let outcome = Outcome::Truncated;
            shared.complete(self.rank, posted.token, outcome, met.total, header);
        }
        match (met.is_eager, met.fits) {
            (true, _) => {}
            (false, true) => self.push_control(shared, Frame::Pull { transfer }),
            (false, false) => {
                self.push_control(shared, Frame::Skip { transfer });
                self.incoming.forget(transfer);
            }
        }
        self.end_if_whole(transfer, shared);
    }

    /// Ends a long message of which everything has come, if its receive is there.
    pub(super) fn end_if_whole(&mut self, transfer: u64, shared: &mut Shared) {
        if let Some((token, header, bytes)) = self.incoming.take_whole(transfer) {
            shared.complete(self.rank, token, Outcome::Done, bytes, header);
        }
    }
}
