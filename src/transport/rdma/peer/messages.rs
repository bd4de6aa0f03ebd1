//! Messages: receives meet what comes, by tag and in order.

use super::{Offered, Peer};
use crate::memory::View;
use crate::transport::matching::{Met, Payload, Posted};
use crate::transport::posts::PeerState;
use crate::transport::rdma::device::Device;
use crate::transport::rdma::incoming::Incoming;
use crate::transport::rdma::outbox::About;
use crate::transport::rdma::rail::Registered;
use crate::transport::rdma::record::Record;
use crate::transport::rdma::shared::Shared;
use crate::transport::{Outcome, PostError, URGENT_CLASS, tag_class};
use crate::types::Rank;
use std::sync::Arc;

impl<D: Device> Peer<D> {
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
        shared: &mut Shared<D>,
    ) -> Result<(), PostError> {
        let posted = Posted {
            tag,
            destination,
            token,
        };
        let is_over = self.state == PeerState::Gone;
        match (self.matching).receive(self.rank, posted, is_over, &mut shared.ends)? {
            Met::Nothing => return Ok(()),
            Met::Whole(copied) => shared.counts.copied_bytes += copied,
            Met::Far(offered, header) => self.match_long(offered, &posted, header, shared),
        }
        self.count_match(tag, shared);
        Ok(())
    }

    /// Ends a receive whose message has not begun to come; false: there is none with this token.
    pub fn cancel_posted(&mut self, token: u64, shared: &mut Shared<D>) -> bool {
        self.matching.cancel(self.rank, token, &mut shared.ends)
    }

    /// Whether a receive has met a long message, which may be being written.
    pub fn is_granted(&self, token: u64) -> bool {
        self.incoming.has_receive(token)
    }

    /// Ends such a receive as soon as nothing of the peer is under way.
    pub fn cancel_later(&mut self, token: u64) {
        self.incoming.cancel_later(token);
    }

    /// Nothing of the peer is under way.
    pub fn handle_still(&mut self, shared: &mut Shared<D>) {
        self.inbox.end_last_memory();
        for token in self.incoming.cancelled() {
            self.cancel_granted(token, shared);
        }
    }

    /// Ends a receive that has met a long message, if its last bytes have not come. No device of
    /// the peer writes here any more.
    pub fn cancel_granted(&mut self, token: u64, shared: &mut Shared<D>) {
        if self.incoming.cancel(token) {
            shared
                .ends
                .complete(self.rank, token, Outcome::Cancelled, 0, 0);
        }
    }

    /// A message of this tag's class was sent without the ring.
    pub fn note_sent_by_letter(&mut self, tag: u64) {
        self.credits.note_sent(tag_class(tag));
    }

    /// A short message lies in a slot, or in a letter.
    pub fn handle_message(
        &mut self,
        (tag, header): (u64, u64),
        source: View,
        shared: &mut Shared<D>,
    ) -> Result<(), String> {
        let message = (tag, header);
        let (is_matched, copied) =
            (self.matching).arrive(self.rank, message, source, &mut shared.ends)?;
        shared.counts.copied_bytes += copied;
        if is_matched {
            self.count_match(tag, shared);
        }
        Ok(())
    }

    /// A long message is announced.
    pub(super) fn handle_offer(
        &mut self,
        (tag, header): (u64, u64),
        offered: Offered,
        shared: &mut Shared<D>,
    ) -> Result<(), String> {
        let Offered {
            transfer,
            total,
            pieces,
        } = offered;
        if self.incoming.is_known(transfer) || pieces == 0 || u64::from(pieces) > total {
            return Err(format!(
                "it offered transfer {transfer} of {total} bytes twice, or in {pieces} pieces"
            ));
        }
        match self.matching.take_posted(tag) {
            Some(posted) => {
                self.match_long(offered, &posted, header, shared);
                self.count_match(tag, shared);
                Ok(())
            }
            None => {
                let far = Payload::Far(offered);
                (self.matching).keep(self.rank, (tag, header), far, &mut shared.ends)
            }
        }
    }

    /// A piece of a transfer has come. Of those of the last generation only pieces of messages
    /// count, whose sender may have ended them. What it does not know to have come, it writes
    /// again.
    pub(super) fn handle_piece_come(
        &mut self,
        transfer: u32,
        number: u32,
        shared: &mut Shared<D>,
    ) -> Result<(), String> {
        match self.incoming.count(transfer, number) {
            Some(Some(whole)) => self.end_incoming(whole, shared),
            Some(None) => {}
            None if self.numbers[0] != Some(number) => {}
            None if self.puts.count(transfer)? => self.tell_put_done(transfer, shared),
            None => {}
        }
        Ok(())
    }

    /// All pieces of a put have come.
    pub(super) fn tell_put_done(&mut self, transfer: u32, shared: &mut Shared<D>) {
        let about = About::PutDone(transfer);
        self.push(Record::PutDone { transfer }, View::empty(), about, shared);
    }

    /// All pieces of a long message have come.
    fn end_incoming(&mut self, incoming: Incoming<D>, shared: &mut Shared<D>) {
        if let Some(place) = &incoming.place {
            shared.counts.copied_bytes += place.deliver();
            let (token, total, header) = (incoming.token, incoming.total, incoming.header);
            // The registration of memory for this receive alone ends first.
            drop(incoming);
            shared
                .ends
                .complete(self.rank, token, Outcome::Done, total, header);
        }
    }

    /// The sender of a message asks where it goes now, or whether all has come.
    pub(super) fn handle_again(&mut self, transfer: u32, shared: &mut Shared<D>) {
        match self.incoming.is_known(transfer) {
            true => {
                self.incoming.forget_told(transfer);
                self.push_grant(transfer, shared);
            }
            false => {
                let record = Record::Skip { transfer };
                self.push(record, View::empty(), About::Nothing, shared);
            }
        }
    }

    /// The peer of a put asks whether it is to be written again.
    pub(super) fn handle_put_again(
        &mut self,
        (transfer, pieces): (u32, u32),
        shared: &mut Shared<D>,
    ) {
        // The peer does not know yet that all has come, and is being told.
        if !self.outbox.is_telling_put(transfer) {
            self.puts.begin_again(transfer, pieces);
            self.push(
                Record::Go { transfer },
                View::empty(),
                About::Nothing,
                shared,
            );
        }
    }

    /// Tells the sender of a long message where to write it.
    pub(super) fn push_grant(&mut self, transfer: u32, shared: &mut Shared<D>) {
        let number = self.numbers[0].unwrap_or_default();
        if let Some(record) = self.incoming.grant(transfer, number) {
            self.push(record, View::empty(), About::Grant(transfer), shared);
        }
    }

    fn count_match(&mut self, tag: u64, shared: &mut Shared<D>) {
        self.credits.count_match(tag_class(tag));
        if !self.pair.is_unused() && self.is_match_due(tag_class(tag)) {
            self.mark(shared);
        }
    }

    /// Whether the peer should hear now how many messages of a class were matched.
    pub(super) fn is_match_due(&self, class: usize) -> bool {
        let is_urgent = class == URGENT_CLASS;
        self.credits.is_due(class) || (is_urgent && self.credits.has_untold(class))
    }

    /// An announced message meets its receive.
    fn match_long(
        &mut self,
        offered: Offered,
        posted: &Posted,
        header: u64,
        shared: &mut Shared<D>,
    ) {
        let Offered {
            transfer,
            total,
            pieces,
        } = offered;
        let token = posted.token;
        if total > posted.destination.len_bytes() as u64 {
            shared
                .ends
                .complete(self.rank, token, Outcome::Truncated, total, header);
            let record = Record::Skip { transfer };
            return self.push(record, View::empty(), About::Nothing, shared);
        }
        let destination = posted.destination.part(0, total as usize);
        let (key, relaxed) = (destination.key(), shared.settings.is_relaxed);
        let place = match shared.regions.get(key) {
            Some(for_all) => {
                let exposed = self.regions.expose(key, for_all, &shared.rails, relaxed);
                exposed.map(|registered| (registered, destination.offset()))
            }
            None => {
                shared.counts.receives_registered += 1;
                let registered = Registered::for_receive(destination, &shared.rails, relaxed);
                registered.map(|registered| (Arc::new(registered), 0))
            }
        };
        let (place, offset) = match place {
            Ok(place) => place,
            Err(error) => {
                // The receive is flushed with the peer, whose failure has this cause.
                self.matching.post(*posted);
                let text = format!("a receive of {total} bytes: {error}");
                return self.pair.note_offence(text);
            }
        };
        let incoming = Incoming {
            total,
            header,
            token,
            place: Some(place),
            offset,
            pieces,
            missing: pieces,
            number: 0,
            is_cancelled: false,
            is_told: false,
        };
        self.incoming.insert(transfer, incoming);
        self.push_grant(transfer, shared);
    }
}
