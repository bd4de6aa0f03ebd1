//! Connections, and how they end: disconnect, death, partition.
//!
//! The connections of a pair are numbered (epochs). Whoever connects first opens an epoch and can send at
//! once after the answer; the other side joins the epoch when it connects, and finds what was sent. A
//! side that lost its peer must connect again, which opens a new epoch: nothing of the old one is
//! delivered there. Small messages that were on the wire when their sender left still arrive until the
//! receiver notices; nothing else of a sender that left does.

use super::matching::Channel;
use super::state::{Cause, Happening, OperationId, Partition, Phase, Side, State};
use crate::error::{Error, Result};
use crate::transport::{Completion, Event, Outcome};
use crate::types::Rank;

impl State {
    pub(super) fn connect(&mut self, rank: Rank, peer: Rank) -> Result<()> {
        let own = self.ranks[rank as usize].side(peer);
        if own.is_live() {
            return Err(Error::invalid(format!(
                "rank {rank} connects to rank {peer} a second time: disconnect first"
            )));
        }
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
            self.suspect(rank, peer, number);
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
            self.end_channel(rank, peer, side.epoch);
            self.break_other_side(rank, peer, Cause::Disconnected);
        }
        let state = self.rank(rank);
        state.side_mut(peer).phase = Phase::Idle;
        state.mappings.retain(|&(of, _), _| of != peer);
        state.inbox.retain(|event| {
            !matches!(event, Event::Connected(of) | Event::PeerFailed(of, _) if *of == peer)
        });
    }

    /// A rank is gone: killed, or its transport was dropped.
    pub(super) fn leave(&mut self, rank: Rank, cause: Cause) {
        if !self.ranks[rank as usize].is_alive {
            return;
        }
        let mut peers: Vec<Rank> = self.rank(rank).sides.keys().copied().collect();
        peers.sort_unstable();
        let state = self.rank(rank);
        state.is_alive = false;
        state.inbox.clear();
        state.regions.clear();
        state.mappings.clear();
        state.stale_mappings.clear();
        for peer in peers {
            let side = self.ranks[rank as usize].side(peer);
            if side.is_live() {
                self.end_channel(rank, peer, side.epoch);
                self.break_other_side(rank, peer, cause);
            }
            self.rank(rank).side_mut(peer).phase = Phase::Idle;
        }
    }

    /// A rank that left comes back with nothing but its name.
    pub(super) fn enter(&mut self, rank: Rank) -> u64 {
        let state = self.rank(rank);
        assert!(!state.is_alive, "rank {rank} has a transport already");
        state.is_alive = true;
        state.incarnation += 1;
        state.ports = Default::default();
        state.incarnation
    }

    /// After one side has ended its part of a connection: the other one will notice, if it has joined.
    fn break_other_side(&mut self, rank: Rank, peer: Rank, cause: Cause) {
        let epoch = self.ranks[rank as usize].side(peer).epoch;
        let other = self.ranks[peer as usize].side(rank);
        if peer != rank && other.epoch == epoch && other.is_up() {
            self.lose(peer, rank, cause);
        }
    }

    /// `rank` will learn that its connection with `peer` has ended.
    fn lose(&mut self, rank: Rank, peer: Rank, cause: Cause) {
        let at_ns = self.now + self.options.detection_ns;
        let side = self.rank(rank).side_mut(peer);
        side.phase = Phase::Broken;
        let epoch = side.epoch;
        self.schedule(
            at_ns,
            Happening::Lost {
                rank,
                peer,
                epoch,
                cause,
            },
        );
    }

    /// `rank` will give `peer` up unless the partition heals first.
    fn suspect(&mut self, rank: Rank, peer: Rank, number: u64) {
        let epoch = self.ranks[rank as usize].side(peer).epoch;
        let at_ns = self.now + self.options.detection_ns;
        let cause = Cause::Partition(number);
        self.schedule(
            at_ns,
            Happening::Lost {
                rank,
                peer,
                epoch,
                cause,
            },
        );
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
            Cause::Killed => format!("rank {peer} died; noticed after {waited_ns} ns"),
            Cause::Left => format!("rank {peer} dropped its transport"),
            Cause::Disconnected => format!("rank {peer} disconnected"),
            Cause::Absent => format!("rank {peer} has no transport"),
            Cause::Partition(_) => {
                format!(
                    "nothing heard of rank {peer} for {waited_ns} ns: the network is partitioned"
                )
            }
        };
        self.report(rank, Event::PeerFailed(peer, text));
        self.end_channel(rank, peer, epoch);
        self.rank(rank).side_mut(peer).phase = Phase::Failed;
    }

    /// Ends one side's part of a connection: its posts complete as flushed, and what it holds of the other
    /// side's is let go.
    fn end_channel(&mut self, rank: Rank, peer: Rank, epoch: u32) {
        let mine = Channel { peer, epoch };
        let theirs = Channel { peer: rank, epoch };
        let (messages, receives) = self.rank(rank).matcher.take(mine);
        for receive in receives {
            self.flush_receive(rank, peer, receive.token);
        }
        // Messages of the peer that are here, and those whose bytes are on their way.
        let mut foreign = messages;
        foreign.extend(self.rank(peer).operations.of(peer, theirs));
        for id in foreign {
            self.release(id, rank);
        }
        let other = self.ranks[peer as usize].side(rank);
        let is_kept = peer != rank
            && self.ranks[peer as usize].is_alive
            && other.epoch == epoch
            && other.is_live();
        if !is_kept {
            // The peer never joined (or is done), so nobody else will clear its queue of our messages.
            self.rank(peer).matcher.take(theirs);
        }
        for id in self.rank(rank).operations.of(rank, mine) {
            self.complete(id, Outcome::Flushed);
            let is_message = (self.rank(rank).operations.get(id))
                .is_some_and(|o| matches!(o.action, super::state::Action::Send { .. }));
            if !(is_kept && is_message) {
                self.rank(rank).operations.remove(id);
            }
        }
    }

    /// Lets go of a peer's operation that ends at `receiver`: a receive that it had met is flushed, and if
    /// its poster needs it no more it is gone.
    fn release(&mut self, id: OperationId, receiver: Rank) {
        let is_poster_gone = !self.ranks[id.rank as usize].is_alive;
        let Some(operation) = self.rank(id.rank).operations.get(id) else {
            return;
        };
        let receive = operation.receive.take();
        let is_done = operation.is_reported || is_poster_gone;
        if let Some(receive) = receive {
            self.flush_receive(receiver, id.rank, receive.token);
        }
        if is_done {
            self.rank(id.rank).operations.remove(id);
        }
    }

    fn flush_receive(&mut self, rank: Rank, peer: Rank, token: u64) {
        self.complete_receive(
            rank,
            Completion {
                token,
                peer,
                outcome: Outcome::Flushed,
                bytes: 0,
                header: 0,
            },
        );
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
                    self.suspect(rank, peer, number);
                }
            }
        }
        self.partitions.push(Partition { number, sides });
    }

    /// Everything can reach everything again. What waited sets out now.
    pub(super) fn heal(&mut self) {
        self.partitions.clear();
        for what in std::mem::take(&mut self.parked) {
            let at_ns = self.now + self.options.network.latency_ns;
            self.schedule(at_ns, what);
        }
    }
}
