//! Connections, and how they end: disconnect, death, partition.
//!
//! The connections of a pair are numbered (epochs). The side that connects first opens an epoch and
//! can send at once after the answer; the other side joins the epoch when it connects, and finds
//! what was sent. A side that lost its peer must connect again, which opens a new epoch: nothing of
//! the old one is delivered there. Small messages that were on the wire when their sender was
//! killed still arrive until the receiver notices; nothing else of the sender does. A sender that
//! leaves in good order stays until all that it had sent is there.

use super::matching::{Channel, Matcher, Receive};
use super::options::Flaw;
use super::state::{
    Action, Cause, Happening, Leg, Operation, OperationId, Partition, Payload, Phase, Side, State,
};
use crate::error::{Error, Result};
use crate::kernel;
use crate::transport::{Event, Outcome};
use crate::types::Rank;

impl Operation {
    /// Copies a large message that has not matched, because its sender's memory ends. The receiver
    /// then has it whole.
    fn hand_over(&mut self) {
        if !matches!(
            (self.action, self.leg),
            (Action::Send { .. }, Leg::Announce)
        ) {
            return;
        }
        self.leg = Leg::Whole;
        self.copy_source();
    }

    /// Copies what is sent or put, so that later changes of its memory do not count.
    fn copy_source(&mut self) {
        let is_own = matches!(self.action, Action::Send { .. } | Action::Put { .. });
        if let (Payload::Held(source, _region), true) = (&self.payload, is_own) {
            let mut bytes = vec![0; source.len_bytes()].into_boxed_slice();
            kernel::read(*source, 0, &mut bytes);
            self.payload = Payload::Copied(bytes);
        }
    }
}

impl State {
    pub(super) fn withdraw(&mut self, rank: Rank) {
        let state = self.rank(rank);
        state.has_withdrawn = true;
        let operations = state.operations.all_mut();
        operations.for_each(Operation::copy_source);
    }

    pub(super) fn connect(&mut self, rank: Rank, peer: Rank) -> Result<()> {
        let own = self.ranks[rank as usize].side(peer);
        if own.is_live() {
            return Err(Error::invalid(format!(
                "rank {rank} connects to rank {peer} a second time: disconnect first"
            )));
        }
        self.forget_arrived(rank, peer, own);
        self.forget_news(rank, peer);
        let other = self.ranks[peer as usize].side(rank);
        let is_there = self.ranks[peer as usize].is_alive;
        let epoch = if is_there && other.is_up() && other.epoch > own.epoch {
            other.epoch
        } else {
            own.epoch.max(other.epoch) + 1
        };
        *self.rank(rank).side_mut(peer) = Side {
            phase: Phase::Connecting,
            epoch,
            ..Side::IDLE
        };
        if !is_there {
            self.lose(rank, peer, Cause::Absent);
            return Ok(());
        }
        let link = self.options.link(self.options.class(rank, peer));
        let answer_ns = self.now + 2 * link.latency_ns;
        self.schedule(answer_ns, Happening::Connected { rank, peer, epoch });
        if let Some(number) = self.partition_of(rank, peer) {
            self.tell_later(rank, peer, Cause::Partition(number));
        }
        Ok(())
    }

    pub(super) fn handle_connected(&mut self, rank: Rank, peer: Rank, epoch: u32) {
        if self.partition_of(rank, peer).is_some() {
            self.parked.push(Happening::Connected { rank, peer, epoch });
            return;
        }
        let side = self.rank(rank).side_mut(peer);
        if side.phase == Phase::Connecting && side.epoch == epoch {
            side.phase = Phase::Connected;
            self.report(rank, Event::Connected(peer));
        }
    }

    pub(super) fn disconnect(&mut self, rank: Rank, peer: Rank) {
        let side = self.ranks[rank as usize].side(peer);
        if side.is_live() {
            self.end_channel(rank, peer, side.epoch, false);
            self.break_other_side(rank, peer, Cause::Disconnected);
        }
        self.forget_arrived(rank, peer, side);
        let state = self.rank(rank);
        state.side_mut(peer).phase = Phase::Idle;
        state.mappings.retain(|&(of, _), _| of != peer);
        self.forget_news(rank, peer);
    }

    /// Nothing of a connection that has ended is reported but the ends of its posts.
    fn forget_news(&mut self, rank: Rank, peer: Rank) {
        let is_news = |event: &Event| match *event {
            Event::Completion(_) => false,
            Event::Connected(of)
            | Event::PeerFailed(of, _)
            | Event::PeerLeft(of, _)
            | Event::Unmatched(of, _) => of == peer,
        };
        self.rank(rank).inbox.retain(|event| !is_news(event));
    }

    /// A rank leaves in good order: it does nothing any more, and is gone when all that it has sent
    /// is with its peers.
    pub(super) fn begin_leaving(&mut self, rank: Rank, word: u64) {
        let state = self.rank(rank);
        if state.is_alive && state.leaving.is_none() {
            state.leaving = Some(word);
            self.leaving.push(rank);
            self.go_on_leaving();
        }
    }

    /// Ends those leaving ranks of which nothing is under way. What lies in their memory for
    /// receives that are still to come is with the receivers from then on.
    pub(super) fn go_on_leaving(&mut self) {
        let mut at = 0;
        while let Some(&rank) = self.leaving.get(at) {
            let state = &mut self.ranks[rank as usize];
            let is_under_way = state.operations.all_mut().any(|o| o.is_under_way());
            match state.leaving {
                Some(_) if is_under_way => at += 1,
                Some(word) => {
                    state.operations.all_mut().for_each(Operation::hand_over);
                    self.leaving.remove(at);
                    self.leave(rank, Cause::Left(word));
                }
                // It was killed meanwhile.
                None => {
                    self.leaving.remove(at);
                }
            }
        }
    }

    /// A rank is gone: killed, or its transport was dropped.
    pub(super) fn leave(&mut self, rank: Rank, cause: Cause) {
        if !self.ranks[rank as usize].is_alive {
            return;
        }
        let peers = 0..self.rank(rank).sides.len() as Rank;
        let state = self.rank(rank);
        state.is_alive = false;
        state.leaving = None;
        state.inbox.clear();
        let registered = (state.regions.remove_all()).map(|registered| registered.region);
        let mapped = std::mem::take(&mut state.mappings).into_values();
        if cause == Cause::Killed {
            state.buried.extend(registered.chain(mapped));
        } else {
            drop((registered, mapped));
        }
        state.stale_mappings.clear();
        for peer in peers {
            let side = self.ranks[rank as usize].side(peer);
            if side.is_live() {
                self.end_channel(rank, peer, side.epoch, false);
                self.break_other_side(rank, peer, cause);
            }
            self.forget_arrived(rank, peer, side);
            self.rank(rank).side_mut(peer).phase = Phase::Idle;
        }
    }

    /// A rank that left comes back, without regions and connections.
    pub(super) fn enter(&mut self, rank: Rank) -> u64 {
        let state = self.rank(rank);
        assert!(!state.is_alive, "rank {rank} has a transport already");
        state.is_alive = true;
        state.has_withdrawn = false;
        state.incarnation += 1;
        let incarnation = state.incarnation;
        self.wires.reset(rank);
        incarnation
    }

    /// After one side has ended its part of a connection: the other one will notice, if it has
    /// joined.
    fn break_other_side(&mut self, rank: Rank, peer: Rank, cause: Cause) {
        let epoch = self.ranks[rank as usize].side(peer).epoch;
        let other = self.ranks[peer as usize].side(rank);
        if peer != rank && other.epoch == epoch && other.is_up() {
            self.lose(peer, rank, cause);
        }
    }

    /// `rank` will learn that its connection with `peer` has ended.
    fn lose(&mut self, rank: Rank, peer: Rank, cause: Cause) {
        self.rank(rank).side_mut(peer).phase = Phase::Broken;
        self.tell_later(rank, peer, cause);
    }

    /// Tells `rank`, after the detection time, that its connection with `peer` has ended. A
    /// partition that heals before then is not told.
    fn tell_later(&mut self, rank: Rank, peer: Rank, cause: Cause) {
        let at_ns = self.now + self.options.detection_ns;
        let epoch = self.ranks[rank as usize].side(peer).epoch;
        let lost = Happening::Lost {
            rank,
            peer,
            epoch,
            cause,
        };
        self.schedule(at_ns, lost);
    }

    pub(super) fn handle_lost(&mut self, rank: Rank, peer: Rank, epoch: u32, cause: Cause) {
        let side = self.ranks[rank as usize].side(peer);
        let has_healed =
            matches!(cause, Cause::Partition(n) if self.partition_of(rank, peer) != Some(n));
        if !side.is_live() || side.epoch != epoch || has_healed {
            return;
        }
        let waited_ns = self.options.detection_ns;
        let text = match cause {
            Cause::Left(_) => String::new(),
            Cause::Killed => format!("rank {peer} died; noticed after {waited_ns} ns"),
            Cause::Disconnected => format!("rank {peer} disconnected"),
            Cause::Absent => format!("rank {peer} has no transport"),
            Cause::Partition(_) => {
                format!(
                    "nothing heard of rank {peer} for {waited_ns} ns: the network is partitioned"
                )
            }
        };
        let news = match cause {
            Cause::Left(word) => Event::PeerLeft(peer, word),
            _ => Event::PeerFailed(peer, text),
        };
        self.report(rank, news);
        self.end_channel(rank, peer, epoch, true);
        self.rank(rank).side_mut(peer).phase = Phase::Failed;
    }

    /// Ends one side's part of a connection: its posts complete as flushed, and what it holds of
    /// the other side's is let go. With `keeps_arrived`, messages that are here as a whole are kept
    /// and can still be received.
    fn end_channel(&mut self, rank: Rank, peer: Rank, epoch: u32, keeps_arrived: bool) {
        let mine = Channel { peer, epoch };
        let theirs = Channel { peer: rank, epoch };
        let (mut foreign, receives, arrived) = self.take_channel(rank, mine, keeps_arrived);
        for receive in receives {
            self.end_receive(rank, peer, receive.token, Outcome::Flushed);
        }
        // Messages of the peer that are here, and those whose bytes are on their way.
        foreign.extend(self.rank(peer).operations.of(peer, theirs));
        foreign.retain(|id| !arrived.contains(id));
        for id in foreign {
            self.release(id, rank);
        }
        self.end_own_operations(rank, mine);
    }

    /// What a rank's matcher has of a connection: messages and receives, taken out, and the
    /// messages that stay there.
    fn take_channel(
        &mut self,
        rank: Rank,
        channel: Channel,
        keeps_arrived: bool,
    ) -> (Vec<OperationId>, Vec<Receive>, Vec<OperationId>) {
        let mut matcher = std::mem::replace(&mut self.rank(rank).matcher, Matcher::new());
        let mut arrived = Vec::new();
        let (messages, receives) = matcher.take(channel, |id: OperationId| {
            let operation = self.rank(id.rank).operations.get(id);
            let is_kept = keeps_arrived && operation.is_some_and(|o| o.leg == Leg::Whole);
            arrived.extend(is_kept.then_some(id));
            is_kept
        });
        self.rank(rank).matcher = matcher;
        (messages, receives, arrived)
    }

    /// Flushes a rank's own posts. The other side still refers to messages that it has not let go
    /// of.
    fn end_own_operations(&mut self, rank: Rank, channel: Channel) {
        let (peer, epoch) = (channel.peer, channel.epoch);
        let other = self.ranks[peer as usize].side(rank);
        let is_joined = peer != rank && self.ranks[peer as usize].is_alive && other.epoch == epoch;
        let keeps_all = is_joined && other.is_live();
        let keeps_whole = keeps_all || (is_joined && other.phase == Phase::Failed);
        if !keeps_whole {
            // The peer never joined, or is done: nobody else will clear its queue of our messages.
            let theirs = Channel { peer: rank, epoch };
            self.rank(peer).matcher.take(theirs, |_| false);
        }
        for id in self.rank(rank).operations.of(rank, channel) {
            self.complete(id, Outcome::Flushed);
            let is_needed = (self.rank(rank).operations.get(id)).is_some_and(|o| {
                matches!(o.action, Action::Send { .. })
                    && (keeps_all || (keeps_whole && o.leg == Leg::Whole))
            });
            if !is_needed {
                self.rank(rank).operations.remove(id);
            }
        }
    }

    /// Lets go of a failed peer's last messages, when this rank connects again, disconnects or is
    /// gone.
    fn forget_arrived(&mut self, rank: Rank, peer: Rank, side: Side) {
        if side.phase == Phase::Failed {
            let epoch = side.epoch;
            let (messages, _) = (self.rank(rank).matcher).take(Channel { peer, epoch }, |_| false);
            for id in messages {
                self.release(id, rank);
            }
        }
    }

    /// Lets go of a peer's operation that ends at `receiver`: a receive that it had met is flushed,
    /// and the operation is removed if its poster needs it no more.
    fn release(&mut self, id: OperationId, receiver: Rank) {
        let is_poster_gone = !self.ranks[id.rank as usize].is_alive;
        let Some(operation) = self.rank(id.rank).operations.get(id) else {
            return;
        };
        let receive = operation.receive.take();
        let is_done = operation.is_reported || is_poster_gone;
        if let Some(receive) = receive {
            self.end_receive(receiver, id.rank, receive.token, Outcome::Flushed);
        }
        if is_done {
            self.rank(id.rank).operations.remove(id);
        }
    }

    /// The partition that separates two ranks.
    pub(super) fn partition_of(&self, a: Rank, b: Rank) -> Option<u64> {
        let is_across = |partition: &&Partition| {
            let [left, right] = &partition.sides;
            let holds = |side: &[Rank], rank| side.binary_search(&rank).is_ok();
            (holds(left, a) && holds(right, b)) || (holds(left, b) && holds(right, a))
        };
        self.partitions.iter().find(is_across).map(|p| p.number)
    }

    pub(super) fn partition(&mut self, left: &[Rank], right: &[Rank]) {
        self.partition_last += 1;
        let number = self.partition_last;
        let mut sides = [left.to_vec(), right.to_vec()];
        sides.iter_mut().for_each(|side| side.sort_unstable());
        for (&a, &b) in sides[0]
            .iter()
            .flat_map(|a| sides[1].iter().map(move |b| (a, b)))
        {
            assert_ne!(a, b, "rank {a} on both sides of a partition");
            for (rank, peer) in [(a, b), (b, a)] {
                let is_up = self.ranks[rank as usize].side(peer).is_up();
                if is_up && self.partition_of(rank, peer).is_none() {
                    self.tell_later(rank, peer, Cause::Partition(number));
                }
            }
        }
        self.partitions.push(Partition { number, sides });
    }

    /// Everything can reach everything again. What waited sets out now.
    pub(super) fn heal(&mut self) {
        self.partitions.clear();
        let parked = std::mem::take(&mut self.parked);
        if self.options.flaw == Some(Flaw::LosesOnHeal) {
            return;
        }
        for what in parked {
            let at_ns = self.now + self.options.network.latency_ns;
            self.schedule(at_ns, what);
        }
    }
}
