//! Posts: checked against the contract, then handed to the wire.

use super::matching::{Channel, Receive};
use super::state::{
    Action, Happening, Leg, Operation, Payload, Phase, RECEIVES_PER_PEER, RMA_PER_PEER, Registered,
    State,
};
use crate::error::Result;
use crate::kernel;
use crate::limits::{INLINE_BYTES_MAX, MESSAGES_PER_PEER};
use crate::memory::{Region, RegionKey, View};
use crate::transport::{Atomic, Outcome, PostError, RemoteRange, tag_class};
use crate::types::Rank;
use std::sync::Arc;

/// Largest message: a bound for arithmetic, far above any memory.
const MESSAGE_BYTES_MAX: usize = 1 << 40;

type Posted = std::result::Result<(), PostError>;

impl State {
    pub(super) fn backlog(&mut self, rank: Rank, peer: Rank, tag: u64) -> u32 {
        self.rank(rank).side(peer).unmatched[tag_class(tag)]
    }

    pub(super) fn post_send(
        &mut self,
        rank: Rank,
        peer: Rank,
        (tag, header): (u64, u64),
        source: View,
        token: u64,
    ) -> Posted {
        let epoch = self.check_connected(rank, peer)?;
        let payload = self.check_source(rank, source)?;
        let side = self.rank(rank).side_mut(peer);
        let unmatched = &mut side.unmatched[tag_class(tag)];
        if *unmatched >= MESSAGES_PER_PEER {
            side.is_starved = true;
            return Err(PostError::WouldBlock);
        }
        *unmatched += 1;
        let is_eager = source.len_bytes() <= INLINE_BYTES_MAX;
        let leg = if is_eager { Leg::Whole } else { Leg::Announce };
        let (action, bytes) = (Action::Send { tag, header }, source.len_bytes() as u64);
        let operation = Operation::new(action, (peer, epoch), (bytes, payload), leg, token);
        let id = self.rank(rank).operations.insert(rank, operation);
        if is_eager {
            self.complete(id, Outcome::Done);
        }
        if self.is_accepted(peer, rank, epoch) {
            let channel = Channel { peer: rank, epoch };
            self.rank(peer).matcher.handle_sent(channel, tag, id);
            self.transmit(id, leg, true);
        } else if is_eager {
            self.rank(rank).operations.remove(id);
        }
        self.rank(rank).statistics.posts += 1;
        Ok(())
    }

    pub(super) fn post_recv(
        &mut self,
        rank: Rank,
        peer: Rank,
        tag: u64,
        destination: View,
        token: u64,
    ) -> Posted {
        let epoch = match self.check_connected(rank, peer) {
            // The last messages of a failed peer can still be received if they are here.
            Err(PostError::PeerFailed) if self.has_last_message(rank, peer, tag) => {
                self.rank(rank).side(peer).epoch
            }
            answer => answer?,
        };
        let side = self.rank(rank).side_mut(peer);
        if side.receives >= RECEIVES_PER_PEER {
            return Err(PostError::WouldBlock);
        }
        side.receives += 1;
        let channel = Channel { peer, epoch };
        let receive = Receive { destination, token };
        self.rank(rank)
            .matcher
            .handle_receive(channel, tag, receive);
        self.match_stream(rank, channel, tag, false);
        Ok(())
    }

    pub(super) fn post_put(
        &mut self,
        rank: Rank,
        peer: Rank,
        source: View,
        to: RemoteRange,
        token: u64,
    ) -> Posted {
        let epoch = self.check_connected(rank, peer)?;
        let payload = self.check_source(rank, source)?;
        let bytes = source.len_bytes() as u64;
        let action = Action::Put { to };
        self.post_rma(rank, (peer, epoch), action, (bytes, payload), token)
    }

    pub(super) fn post_get(
        &mut self,
        rank: Rank,
        peer: Rank,
        from: RemoteRange,
        into: View,
        token: u64,
    ) -> Posted {
        let epoch = self.check_connected(rank, peer)?;
        if into.len_bytes() > INLINE_BYTES_MAX {
            self.check_registered(rank, into)?;
        }
        let bytes = into.len_bytes() as u64;
        let action = Action::Get { from, into };
        self.post_rma(
            rank,
            (peer, epoch),
            action,
            (bytes, Payload::Nothing),
            token,
        )
    }

    pub(super) fn post_atomic(
        &mut self,
        rank: Rank,
        peer: Rank,
        what: Atomic,
        (word, into): (RemoteRange, View),
        token: u64,
    ) -> Posted {
        let epoch = self.check_connected(rank, peer)?;
        what.check(word, into)?;
        let action = Action::Change { word, what, into };
        self.post_rma(rank, (peer, epoch), action, (8, Payload::Nothing), token)
    }

    fn post_rma(
        &mut self,
        rank: Rank,
        (peer, epoch): (Rank, u32),
        action: Action,
        (bytes, payload): (u64, Payload),
        token: u64,
    ) -> Posted {
        let side = self.rank(rank).side_mut(peer);
        if side.rma >= RMA_PER_PEER {
            return Err(PostError::WouldBlock);
        }
        side.rma += 1;
        let leg = match action {
            Action::Get { .. } | Action::Change { .. } => Leg::Request,
            _ => Leg::Whole,
        };
        let operation = Operation::new(action, (peer, epoch), (bytes, payload), leg, token);
        let id = self.rank(rank).operations.insert(rank, operation);
        self.transmit(id, leg, true);
        self.rank(rank).statistics.posts += 1;
        Ok(())
    }

    /// Ends a receive that has not matched. One that has ends by itself.
    pub(super) fn cancel(&mut self, rank: Rank, peer: Rank, token: u64) {
        if self.rank(rank).matcher.cancel(peer, token).is_some() {
            self.end_receive(rank, peer, token, Outcome::Cancelled);
        }
    }

    pub(super) fn register(&mut self, rank: Rank, region: Arc<Region>) -> Result<RegionKey> {
        let exports = Vec::new();
        let regions = &mut self.rank(rank).regions;
        regions.add(region.view(), Registered { region, exports })
    }

    /// How many regions a rank has registered so far, for its counts.
    pub(super) fn registered_count(&mut self, rank: Rank) -> (&'static str, u64) {
        self.rank(rank).regions.count()
    }

    /// Ends a registration; false if there is none.
    pub(super) fn deregister(&mut self, rank: Rank, key: RegionKey) -> bool {
        let Ok(registered) = self.rank(rank).regions.remove(key) else {
            return false;
        };
        let peers = (0..registered.exports.len() as Rank).filter(|&p| registered.is_exported_to(p));
        for peer in peers {
            let state = self.rank(peer);
            if state.mappings.contains_key(&(rank, key)) {
                state.stale_mappings.push((rank, key));
                self.mark_ready(peer);
            }
        }
        true
    }

    pub(super) fn export(&mut self, rank: Rank, peer: Rank, key: RegionKey) -> Posted {
        self.check_connected(rank, peer)?;
        let known_ns = self.now + self.options.link(self.options.class(rank, peer)).latency_ns;
        let Some(registered) = self.rank(rank).regions.get_mut(key) else {
            return Err(PostError::invalid(format!(
                "export of region {} to rank {peer}: rank {rank} has not registered it",
                key.0
            )));
        };
        if registered.export_to(peer, known_ns) && self.options.mapped {
            self.schedule(known_ns, Happening::Wake(peer));
        }
        Ok(())
    }

    pub(super) fn mapped(&mut self, rank: Rank, peer: Rank, key: RegionKey) -> Option<View> {
        if !self.options.mapped {
            return None;
        }
        let now = self.now;
        let registered = self.ranks[peer as usize].regions.get(key)?;
        if peer == rank {
            return Some(registered.region.view());
        }
        if registered.known_at(rank) > now {
            return None;
        }
        let region = Arc::clone(&registered.region);
        let view = region.view();
        self.rank(rank).mappings.insert((peer, key), region);
        Some(view)
    }

    fn has_last_message(&self, rank: Rank, peer: Rank, tag: u64) -> bool {
        let state = &self.ranks[rank as usize];
        let epoch = state.side(peer).epoch;
        state.matcher.has_arrived(Channel { peer, epoch }, tag)
    }

    /// The epoch of a connection that takes posts.
    fn check_connected(&mut self, rank: Rank, peer: Rank) -> std::result::Result<u32, PostError> {
        if peer >= self.options.ranks {
            return Err(PostError::invalid(format!(
                "rank {peer} in a world of {} ranks",
                self.options.ranks
            )));
        }
        let side = self.ranks[rank as usize].side(peer);
        match side.phase {
            Phase::Connected | Phase::Broken => Ok(side.epoch),
            Phase::Connecting => Err(PostError::WouldBlock),
            Phase::Failed => Err(PostError::PeerFailed),
            Phase::Idle => Err(PostError::invalid(format!(
                "rank {rank} is not connected to rank {peer}: call connect first"
            ))),
        }
    }

    /// The bytes of a source: copied if they are few, held if they are registered.
    fn check_source(
        &mut self,
        rank: Rank,
        source: View,
    ) -> std::result::Result<Payload, PostError> {
        let bytes = source.len_bytes();
        if bytes <= INLINE_BYTES_MAX {
            if bytes == 0 || source.is_size_only() {
                return Ok(Payload::Nothing);
            }
            let mut copy = vec![0; bytes].into_boxed_slice();
            kernel::read(source, 0, &mut copy);
            return Ok(Payload::Copied(copy));
        }
        let region = self.check_registered(rank, source)?;
        Ok(if self.options.size_only {
            Payload::Nothing
        } else {
            Payload::Held(source, region)
        })
    }

    /// The region that a view lies in, if it is registered and the view is where its key says.
    fn check_registered(
        &mut self,
        rank: Rank,
        view: View,
    ) -> std::result::Result<Arc<Region>, PostError> {
        let bytes = view.len_bytes();
        let refuse = |why: String| {
            Err(PostError::invalid(format!(
                "{bytes} bytes of rank {rank}: {why}"
            )))
        };
        if bytes > MESSAGE_BYTES_MAX {
            return refuse(format!("at most {MESSAGE_BYTES_MAX} can move at once"));
        }
        let regions = &self.ranks[rank as usize].regions;
        let Some(registered) = regions.get(view.key()) else {
            return refuse(format!(
                "not in a registered region (key {}); only {INLINE_BYTES_MAX} bytes may be anywhere",
                view.key().0
            ));
        };
        let range = RemoteRange {
            key: view.key(),
            offset: view.offset(),
        };
        match regions.range(range, bytes as u64) {
            Some(place) if view.is_size_only() || place.as_ptr() == view.as_ptr() => {
                Ok(Arc::clone(&registered.region))
            }
            _ => refuse(format!(
                "not at offset {} of region {}, which has {} bytes",
                view.offset(),
                view.key().0,
                registered.region.len_bytes()
            )),
        }
    }
}
