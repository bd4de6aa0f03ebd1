//! Messages: receives meet what comes, by tag and in order.

use super::{Loss, Peer};
use crate::memory::{View, abort_on_unwind, view_of_slice};
use crate::transport::matching::{Met, Payload, Posted};
use crate::transport::posts::PeerState;
use crate::transport::tcp::shared::Shared;
use crate::transport::{Outcome, PostError, URGENT_CLASS, tag_class};
use crate::types::Rank;
use crate::wire::Frame;

impl Peer {
    /// Messages of this tag's class that are not matched yet, as far as is known.
    pub fn backlog(&self, tag: u64) -> u32 {
        self.credits.backlog(tag_class(tag))
    }

    /// Whether a message of it is waited for; those that may come at any time do not count.
    pub fn awaits_message(&self) -> bool {
        let mut tags = self.matching.posted_tags();
        tags.any(|tag| tag_class(tag) != URGENT_CLASS)
    }

    /// The first message that waits and is meant: the peer, its tag and its header.
    pub fn find(&self, is_meant: &mut dyn FnMut(u64, u64) -> bool) -> Option<(Rank, u64, u64)> {
        self.matching.find(self.rank, is_meant)
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
        let is_over = self.state == PeerState::Gone;
        match (self.matching).receive(self.rank, posted, is_over, &mut shared.ends)? {
            Met::Nothing => {}
            Met::Whole(_) => self.count_match(tag),
            Met::Far(transfer, header) => self.match_long(transfer, &posted, header, shared),
        }
        Ok(())
    }

    pub fn cancel(&mut self, token: u64, shared: &mut Shared) {
        if !self.matching.cancel(self.rank, token, &mut shared.ends) && self.incoming.cancel(token)
        {
            shared
                .ends
                .complete(self.rank, token, Outcome::Cancelled, 0, 0);
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
        let (rank, ends) = (self.rank, &mut shared.ends);
        let arrive = || {
            self.matching
                .arrive(rank, (tag, header), view_of_slice(bytes), ends)
        };
        let (is_matched, _) = abort_on_unwind(arrive)?;
        if is_matched {
            self.count_match(tag);
        }
        Ok(())
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
            None => {
                let far = Payload::Far(transfer);
                (self.matching).keep(self.rank, (tag, header), far, &mut shared.ends)?;
            }
        }
        Ok(())
    }

    /// An announced message meets its receive.
    fn match_long(&mut self, transfer: u64, posted: &Posted, header: u64, shared: &mut Shared) {
        self.count_match(posted.tag);
        let met = (self.incoming).meet(transfer, posted, header, &mut shared.staging);
        if met.is_eager {
            self.eager.note_matched(met.total);
        }
        if !met.fits {
            let outcome = Outcome::Truncated;
            shared
                .ends
                .complete(self.rank, posted.token, outcome, met.total, header);
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
            shared
                .ends
                .complete(self.rank, token, Outcome::Done, bytes, header);
        }
    }
}
