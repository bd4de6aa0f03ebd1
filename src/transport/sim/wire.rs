//! What happens to packets: ports, loss, arrival, delivery, acknowledgement.
//!
//! A message of at most `INLINE_BYTES_MAX` bytes travels whole, from a copy made when it was
//! posted; its send is complete at once. A larger one is announced (an empty packet) and its bytes
//! travel when it has matched, from where they lie to where they belong: if the receive was there
//! first, at once, so that the whole message takes `latency + per_message + bytes / bandwidth`; if
//! not, after one more round trip, in which the receiver asks for them. A put travels whole
//! whatever its length. A get is an empty request and a reply, and so is an atomic operation.
//! Acknowledgements take one latency and no port.

use super::matching::{Channel, Receive};
use super::options::{Class, Flaw};
use super::ports::{Fate, is_small};
use super::state::{
    Action, Happening, Journey, Leg, Operation, OperationId, Payload, Phase, State,
};
use crate::kernel;
use crate::limits::INLINE_BYTES_MAX;
use crate::memory::View;
use crate::transport::{Atomic, Completion, Event, Outcome, RemoteRange, tag_class, tells_arrival};
use crate::types::Rank;
use std::sync::Arc;

impl Operation {
    /// Payload bytes of a packet.
    fn leg_bytes(&self, leg: Leg) -> u64 {
        match leg {
            Leg::Whole | Leg::Data => self.bytes,
            Leg::Announce | Leg::Request => 0,
        }
    }
}

impl State {
    /// Lets everything that is due happen.
    pub(super) fn handle_due(&mut self) {
        while let Some(what) = self.poll_due() {
            match what {
                Happening::Cross(id, leg, to, journey) => self.handle_cross(id, leg, to, journey),
                Happening::Arrive(id, leg, to) => self.handle_arrive(id, leg, to),
                Happening::Deliver(id) => self.handle_deliver(id),
                Happening::Pull(id) => self.handle_pull(id),
                Happening::Acknowledge(id) => self.handle_acknowledge(id),
                Happening::Connected { rank, peer, epoch } => {
                    self.handle_connected(rank, peer, epoch);
                }
                Happening::Lost {
                    rank,
                    peer,
                    epoch,
                    cause,
                } => self.handle_lost(rank, peer, epoch, cause),
                Happening::Wake(rank) => self.mark_ready(rank),
            }
        }
        self.go_on_leaving();
    }

    /// Puts a packet on the wire. Without `has_latency` it pays no latency: its announcement has
    /// paid that.
    pub(super) fn transmit(&mut self, id: OperationId, leg: Leg, has_latency: bool) {
        let Some((from, to, bytes, paid_ns)) = self.packet(id, leg) else {
            return;
        };
        let class = self.options.class(from, to);
        let link = self.options.link(class);
        let (drop, duplicate) = match class {
            Class::Network => (self.options.drop, self.options.duplicate),
            Class::Host | Class::Loopback => (0.0, 0.0),
        };
        let fate = Fate::draw(&mut self.prng, &link, drop, duplicate);
        let now = self.now;
        let sender = self.rank(from);
        sender.statistics.packets_sent += 1;
        sender.statistics.bytes_sent += bytes;
        sender.statistics.retransmits += u64::from(fate.losses);
        let route = self.wires.route(from, to);
        let hold_ns = self.wires.send_hold_ns(&route, bytes) - paid_ns;
        let held_ns = hold_ns * (1 + u64::from(fate.losses));
        let begin = self.wires.send(&route, now, held_ns, bytes);
        if let Some(operation) = self.rank(id.rank).operations.get(id) {
            operation.leg = leg;
            operation.is_on_wire = true;
        }
        let latency_ns = if has_latency { route.latency_ns } else { 0 };
        let lost_ns = u64::from(fate.losses) * self.options.retransmit_ns;
        let journey = Journey {
            ns: latency_ns + lost_ns + fate.jitter_ns,
            copy_ns: fate.copy_jitter_ns.map(|copy_ns| copy_ns - fate.jitter_ns),
            has_latency,
        };
        match route.has_trunks() {
            // Packets cross trunks in the order in which they leave.
            true => self.schedule(begin, Happening::Cross(id, leg, to, journey)),
            false => self.travel((id, leg, to), from, begin, journey),
        }
    }

    /// The first byte of a packet comes to the trunks.
    fn handle_cross(&mut self, id: OperationId, leg: Leg, to: Rank, journey: Journey) {
        let Some((from, _, bytes, paid_ns)) = self.packet(id, leg) else {
            return;
        };
        let now = self.now;
        let route = self.wires.route(from, to);
        let hold_ns = self.wires.send_hold_ns(&route, bytes) - paid_ns;
        let delay_ns = (self.wires).cross((from, to), &route, now, (hold_ns, bytes));
        self.travel((id, leg, to), from, now + delay_ns, journey);
    }

    /// A packet whose first byte leaves at `begin` arrives after its journey.
    fn travel(
        &mut self,
        (id, leg, to): (OperationId, Leg, Rank),
        from: Rank,
        begin: u64,
        journey: Journey,
    ) {
        let mut arrival_ns = begin + journey.ns;
        if !self.options.reorder && journey.has_latency {
            let is_small = self.packet(id, leg).is_none_or(|packet| is_small(packet.2));
            let last = &mut self.rank(from).side_mut(to).arrival_ns[usize::from(is_small)];
            arrival_ns = arrival_ns.max(*last);
            *last = arrival_ns;
        }
        self.schedule(arrival_ns, Happening::Arrive(id, leg, to));
        if let Some(copy_ns) = journey.copy_ns {
            self.schedule(arrival_ns + copy_ns, Happening::Arrive(id, leg, to));
        }
    }

    /// From whom to whom a packet goes, its payload bytes, and what it does not hold a port for
    /// because its announcement has.
    fn packet(&mut self, id: OperationId, leg: Leg) -> Option<(Rank, Rank, u64, u64)> {
        let operation = self.rank(id.rank).operations.get(id)?;
        let (bytes, peer) = (operation.leg_bytes(leg), operation.peer);
        let is_asked = matches!(operation.action, Action::Get { .. } | Action::Change { .. });
        let is_reply = leg == Leg::Data && is_asked;
        let is_announced = leg == Leg::Data && !is_reply;
        let (from, to) = if is_reply {
            (peer, id.rank)
        } else {
            (id.rank, peer)
        };
        let link = self.options.link(self.options.class(from, to));
        let paid_ns = if is_announced { link.per_message_ns } else { 0 };
        Some((from, to, bytes, paid_ns))
    }

    fn handle_arrive(&mut self, id: OperationId, leg: Leg, to: Rank) {
        let packet = self.packet(id, leg);
        if let Some((from, ..)) = packet
            && self.partition_of(from, to).is_some()
        {
            self.parked.push(Happening::Arrive(id, leg, to));
            return;
        }
        let is_expected = (self.rank(id.rank).operations.get(id))
            .is_some_and(|o| o.leg == leg && std::mem::replace(&mut o.is_on_wire, false));
        let (Some((from, _, bytes, paid_ns)), true) = (packet, is_expected) else {
            self.rank(to).statistics.duplicates += 1;
            return;
        };
        let now = self.now;
        let route = self.wires.route(from, to);
        let holds_ns = (
            self.wires.send_hold_ns(&route, bytes) - paid_ns,
            self.wires.receive_hold_ns(&route, bytes) - paid_ns,
        );
        let end = self.wires.receive(&route, now, holds_ns, bytes);
        let receiver = self.rank(to);
        receiver.statistics.packets_received += 1;
        receiver.statistics.bytes_received += bytes;
        self.schedule(end, Happening::Deliver(id));
    }

    fn handle_deliver(&mut self, id: OperationId) {
        let Some(operation) = self.rank(id.rank).operations.get(id) else {
            return;
        };
        let (action, leg, peer) = (operation.action, operation.leg, operation.peer);
        let (epoch, bytes) = (operation.epoch, operation.bytes);
        if let (Action::Send { tag, .. }, Leg::Whole | Leg::Announce) = (action, leg) {
            let rank = id.rank;
            operation.has_arrived = true;
            if self.is_accepted(peer, rank, epoch) {
                let channel = Channel { peer: rank, epoch };
                self.rank(peer).matcher.handle_arrival(channel, tag, id);
                self.match_stream(peer, channel, tag, true);
                if tells_arrival(tag) && self.rank(peer).matcher.has_arrived(channel, tag) {
                    self.report(peer, Event::Unmatched(rank, tag));
                }
            }
            return;
        }
        // Nothing moves on a connection that has ended at either side. A rank that waits for it is
        // told.
        if !self.is_open(id.rank, peer, epoch) {
            return;
        }
        match action {
            Action::Send { .. } => self.deliver_announced(id),
            Action::Put { to } => self.deliver_put(id, peer, to, bytes),
            Action::Get { from, .. } if leg == Leg::Request => {
                self.deliver_request(id, peer, from, bytes);
            }
            Action::Change { word, what, .. } if leg == Leg::Request => {
                self.deliver_change(id, peer, word, what);
            }
            Action::Get { into, .. } | Action::Change { into, .. } => {
                self.move_payload(id, into);
                self.complete(id, Outcome::Done);
                self.rank(id.rank).operations.remove(id);
            }
        }
    }

    /// The bytes of a large message are here.
    fn deliver_announced(&mut self, id: OperationId) {
        let operation = (self.rank(id.rank).operations.get(id)).expect("checked by the caller");
        let Some(receive) = operation.receive.take() else {
            return;
        };
        let (peer, bytes) = (operation.peer, operation.bytes);
        self.move_payload(id, receive.destination);
        self.end_met_receive(id, receive, Outcome::Done, bytes);
        self.acknowledge(id, peer, Outcome::Done);
    }

    fn deliver_put(&mut self, id: OperationId, peer: Rank, to: RemoteRange, bytes: u64) {
        let outcome = match self.exported(peer, id.rank, to, bytes) {
            Some((place, _)) => {
                self.move_payload(id, place);
                self.mark_ready(peer);
                Outcome::Done
            }
            None => Outcome::BadKey,
        };
        self.acknowledge(id, peer, outcome);
    }

    fn deliver_request(&mut self, id: OperationId, peer: Rank, from: RemoteRange, bytes: u64) {
        let Some((place, region)) = self.exported(peer, id.rank, from, bytes) else {
            self.acknowledge(id, peer, Outcome::BadKey);
            return;
        };
        if !(self.options.size_only && bytes > INLINE_BYTES_MAX as u64)
            && let Some(operation) = self.rank(id.rank).operations.get(id)
        {
            operation.payload = Payload::Held(place, region);
        }
        self.transmit(id, Leg::Data, true);
    }

    /// A word is changed when its request arrives, which happens once; what was there travels back.
    fn deliver_change(&mut self, id: OperationId, peer: Rank, word: RemoteRange, what: Atomic) {
        let Some((place, _)) = self.exported(peer, id.rank, word, 8) else {
            self.acknowledge(id, peer, Outcome::BadKey);
            return;
        };
        if !place.is_size_only()
            && let Some(operation) = self.rank(id.rank).operations.get(id)
        {
            let before = what.apply(&place).to_ne_bytes();
            operation.payload = Payload::Copied(Box::new(before));
        }
        self.mark_ready(peer);
        self.transmit(id, Leg::Data, true);
    }

    /// A range of a region that `owner` has exported to `user`.
    fn exported(
        &mut self,
        owner: Rank,
        user: Rank,
        range: RemoteRange,
        bytes: u64,
    ) -> Option<(View, Arc<crate::memory::Region>)> {
        let regions = &self.rank(owner).regions;
        let registered = regions.get(range.key)?;
        let is_known = owner == user || registered.is_exported_to(user);
        let place = regions.range(range, bytes).filter(|_| is_known)?;
        Some((place, Arc::clone(&registered.region)))
    }

    /// Matches what can be matched in one stream of `rank`. `is_arrival`: the message has just
    /// come, so its bytes follow without a round trip.
    pub(super) fn match_stream(
        &mut self,
        rank: Rank,
        channel: Channel,
        tag: u64,
        is_arrival: bool,
    ) {
        while let Some((id, receive)) = self.rank(rank).matcher.poll_match(channel, tag) {
            self.return_credit(channel, rank, tag);
            let operation = (self.rank(id.rank).operations.get(id))
                .expect("an unmatched message keeps its operation");
            let (bytes, leg) = (operation.bytes, operation.leg);
            if bytes > receive.destination.len_bytes() as u64 {
                self.end_met_receive(id, receive, Outcome::Truncated, bytes);
                self.end_matched(id, rank);
            } else if leg == Leg::Whole {
                self.move_payload(id, receive.destination);
                self.end_met_receive(id, receive, Outcome::Done, bytes);
                self.end_matched(id, rank);
            } else {
                operation.receive = Some(receive);
                if is_arrival {
                    self.transmit(id, Leg::Data, false);
                } else {
                    let latency_ns = self.latency_ns(rank, id.rank);
                    self.schedule(self.now + latency_ns, Happening::Pull(id));
                }
            }
        }
    }

    /// A message has left the receiver's queue: its sender may send another.
    fn return_credit(&mut self, channel: Channel, rank: Rank, tag: u64) {
        let side = self.rank(channel.peer).side_mut(rank);
        if side.epoch == channel.epoch {
            let unmatched = &mut side.unmatched[tag_class(tag)];
            *unmatched = unmatched.saturating_sub(1);
            if std::mem::replace(&mut side.is_starved, false) {
                self.mark_ready(channel.peer);
            }
        }
    }

    /// A matched message whose bytes need not travel any more.
    fn end_matched(&mut self, id: OperationId, receiver: Rank) {
        let is_reported =
            (self.rank(id.rank).operations.get(id)).is_some_and(|operation| operation.is_reported);
        if is_reported {
            self.rank(id.rank).operations.remove(id);
        } else {
            self.acknowledge(id, receiver, Outcome::Done);
        }
    }

    fn end_met_receive(&mut self, id: OperationId, receive: Receive, outcome: Outcome, bytes: u64) {
        let operation = (self.rank(id.rank).operations.get(id)).expect("checked by the caller");
        let Action::Send { header, .. } = operation.action else {
            unreachable!("only messages meet receives")
        };
        let peer = operation.peer;
        self.complete_receive(
            peer,
            Completion {
                token: receive.token,
                peer: id.rank,
                outcome,
                bytes,
                header,
            },
        );
    }

    /// Copies an operation's bytes to the beginning of `destination`.
    fn move_payload(&mut self, id: OperationId, destination: View) {
        let is_cut = self.options.flaw == Some(Flaw::CutsMessages) && self.prng.chance(1.0 / 50.0);
        let operation = (self.rank(id.rank).operations.get(id)).expect("checked by the caller");
        match &operation.payload {
            Payload::Nothing => {}
            Payload::Copied(bytes) => kernel::write(destination, 0, bytes),
            Payload::Held(source, _region) => {
                let bytes = source.len_bytes() - usize::from(is_cut && !source.is_empty());
                kernel::copy(source.part(0, bytes), destination.part(0, bytes));
            }
        }
    }

    fn handle_pull(&mut self, id: OperationId) {
        let Some(operation) = self.rank(id.rank).operations.get(id) else {
            return;
        };
        let peer = operation.peer;
        if self.partition_of(peer, id.rank).is_some() {
            self.parked.push(Happening::Pull(id));
            return;
        }
        self.transmit(id, Leg::Data, true);
    }

    fn acknowledge(&mut self, id: OperationId, from: Rank, outcome: Outcome) {
        if let Some(operation) = self.rank(id.rank).operations.get(id) {
            operation.outcome = outcome;
            let latency_ns = self.latency_ns(from, id.rank);
            self.schedule(self.now + latency_ns, Happening::Acknowledge(id));
        }
    }

    fn handle_acknowledge(&mut self, id: OperationId) {
        let Some(operation) = self.rank(id.rank).operations.get(id) else {
            return;
        };
        let (peer, outcome) = (operation.peer, operation.outcome);
        if self.partition_of(peer, id.rank).is_some() {
            self.parked.push(Happening::Acknowledge(id));
            return;
        }
        self.complete(id, outcome);
        self.rank(id.rank).operations.remove(id);
    }

    fn latency_ns(&self, from: Rank, to: Rank) -> u64 {
        self.wires.route(from, to).latency_ns
    }

    /// Whether `rank` still takes, or may one day take, messages that `peer` sent in an epoch.
    pub(super) fn is_accepted(&self, rank: Rank, peer: Rank, epoch: u32) -> bool {
        let state = &self.ranks[rank as usize];
        let side = state.side(peer);
        // Of a rank that leaves, the memory of receives may be gone.
        let is_there = state.is_alive && state.leaving.is_none();
        is_there && (side.epoch < epoch || (side.epoch == epoch && side.is_live()))
    }

    /// Whether both ends of an operation's connection are there.
    fn is_open(&self, poster: Rank, peer: Rank, epoch: u32) -> bool {
        let state = &self.ranks[poster as usize];
        let side = state.side(peer);
        state.is_alive
            && side.phase == Phase::Connected
            && side.epoch == epoch
            && self.is_accepted(peer, poster, epoch)
    }
}
