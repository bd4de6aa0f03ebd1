//! How connections become rails, and when this rank opens one.
//!
//! Either rank may connect. If both do so at the same moment, the connections of the lower rank are
//! kept: it refuses the other's while its own are on their way. The side that has connected opens
//! another connection when one is lost; when none is left, the side that notices does.

use super::TcpTransport;
use super::connector::Connecting;
use super::handshake::{
    DETAIL_CRC, DETAIL_RAIL, DETAIL_TLS, EPOCH_MAX, EPOCH_SHIFT, Look, epoch_of_rail,
};
use super::listener::{Step, Unauthenticated};
use super::peer::Peer;
use super::rail::Rail;
use super::reach::Reach;
use super::socket;
use crate::transport::posts::PeerState;
use crate::transport::{ENDED, Event, UNREACHABLE};
use crate::types::Rank;
use crate::wire::{Claim, JobKey, Purpose, Refusal};
use rustix::event::epoll;
use std::net::IpAddr;

/// Connections between two ranks: those wanted by either side, and those that replace them before
/// the loss is known.
const RAILS_MAX: usize = 64;

impl TcpTransport {
    /// Goes on with every connection that is being made. `is_slow`: attempts that pause come nearer
    /// to their next try.
    pub(super) fn look_at_connections(&mut self, is_slow: bool) {
        self.look_at_incoming();
        self.look_at_outgoing();
        if is_slow {
            for rank in 0..self.peers.len() as Rank {
                self.peers[rank as usize].reach_mut().count_slow_look();
                self.connect_if_needed(rank, true);
            }
        }
    }

    fn look_at_incoming(&mut self) {
        for index in 0..self.listener.look(&mut self.shared) {
            let number = self.listener.found(index);
            match self.look_at_unauthenticated(number) {
                Ok(Look::Wait) => self.listener.note(number),
                // It knows that this rank connects.
                Ok(Look::Awaited) => drop(self.listener.take(number)),
                Ok(_) => {
                    let one = self.listener.take(number);
                    if let Some((rank, rail, own)) = one.and_then(Unauthenticated::into_rail) {
                        let theirs = epoch_of_rail(rail.id);
                        self.adopt(rank, rail, (own, theirs));
                    }
                }
                Err(reason) => self.listener.turn_away(number, &reason, &mut self.shared),
            }
        }
    }

    fn look_at_unauthenticated(&mut self, number: u64) -> Result<Look, String> {
        // It may have had to make room for another one since it was found.
        let step = self.listener.get(number).map(Unauthenticated::look);
        match step.unwrap_or(Ok(Step::Wait))? {
            Step::Wait => Ok(Look::Wait),
            Step::Hello(hello, claim) => {
                let key = self.key_of(&claim)?;
                let one = self.listener.get(number);
                let answered = one.map(|one| match &key {
                    Some(key) => one.challenge(&hello, claim, key),
                    None => one.wait_for_address(hello, claim),
                });
                answered.unwrap_or(Ok(())).map(|()| Look::Wait)
            }
            Step::Proven(claim) => {
                let refusal = self.refusal(&claim);
                let has_tls = self.shared.has_tls;
                let known = &self.peers[claim.initiator as usize];
                let epoch = known.reach().epoch();
                if refusal == Some(Refusal::Early) && known.rails().is_empty() {
                    // No rail will tell of the end.
                    self.fail(claim.initiator, "it has ended the connection");
                }
                let one = self.listener.get(number);
                one.map_or(Ok(Look::Wait), |one| one.answer(refusal, epoch, has_tls))
            }
            Step::Done => Ok(Look::Done),
        }
    }

    /// The key by which a rank proves this claim; `None`: its address is not known yet.
    fn key_of(&self, claim: &Claim) -> Result<Option<JobKey>, String> {
        let is_other = claim.initiator < self.peers.len() as Rank
            && claim.initiator != self.rank
            && claim.responder == self.rank
            && claim.purpose == Purpose::Data;
        if !is_other {
            return Err(format!(
                "it says it is rank {} and wants rank {}, and this is rank {} of {}",
                claim.initiator,
                claim.responder,
                self.rank,
                self.peers.len()
            ));
        }
        let key = self.key_for(claim.initiator, true);
        if key.is_some() && self.wanted_epoch(claim).is_none() {
            if self.peers[claim.initiator as usize].rails().is_empty() {
                // Another process may have the slot, and this rank may soon know its address.
                return Ok(None);
            }
            return Err(format!(
                "it says it is rank {}, and belongs to another incarnation of the job",
                claim.initiator
            ));
        }
        Ok(key)
    }

    /// Which epoch of this rank's slot the claiming rank has joined, 0 for none; `None`: the claim
    /// is that of another process.
    fn wanted_epoch(&self, claim: &Claim) -> Option<u32> {
        let pair = self.pair_word(claim.initiator, true);
        let wanted = u32::try_from(claim.epoch.wrapping_sub(pair)).ok()?;
        (wanted <= EPOCH_MAX).then_some(wanted)
    }

    /// Why a rank that has proven itself may not have this connection.
    fn refusal(&self, claim: &Claim) -> Option<Refusal> {
        let peer = &self.peers[claim.initiator as usize];
        let theirs = |bit: u64| claim.detail & bit != 0;
        match (self.shared.has_tls, theirs(DETAIL_TLS)) {
            (true, false) => return Some(Refusal::TlsHere),
            (false, true) => return Some(Refusal::TlsThere),
            _ => {}
        }
        match (self.shared.limits.has_crc, theirs(DETAIL_CRC)) {
            (true, false) => return Some(Refusal::CrcHere),
            (false, true) => return Some(Refusal::CrcThere),
            _ => {}
        }
        let theirs = epoch_of_rail(claim.detail);
        if peer.state() != PeerState::Open {
            return Some(peer.reach().refusal_when_over(theirs));
        }
        let wanted = self.wanted_epoch(claim).unwrap_or(0);
        if let Some(refusal) = peer.reach().refusal(theirs, wanted) {
            return Some(refusal);
        }
        let mut connecting = self.connecting.iter();
        let is_connecting = connecting.any(|one| one.peer() == claim.initiator);
        if is_connecting && self.rank < claim.initiator {
            return Some(Refusal::Simultaneous);
        }
        let id = claim.detail & DETAIL_RAIL;
        let is_known = peer.rails().position(id).is_some();
        (is_known || peer.rails().len() >= RAILS_MAX).then_some(Refusal::Full)
    }

    /// The key of connections with a peer. Both identities go into it, first that of the side which
    /// connects (the peer, if it `is_initiator`). `None`: the peer's address is not known yet.
    fn key_for(&self, peer: Rank, is_initiator: bool) -> Option<JobKey> {
        let theirs = self.peers[peer as usize].reach().identity()?;
        let pair = match is_initiator {
            true => [theirs, self.identity],
            false => [self.identity, theirs],
        };
        Some(self.key.derive_for(&pair.concat()))
    }

    /// A word of both identities. A claim's epoch counts from there.
    fn pair_word(&self, peer: Rank, is_initiator: bool) -> u64 {
        let word = |id: &[u8]| u64::from_le_bytes(std::array::from_fn(|i| id[i]));
        let theirs = self.peers[peer as usize].reach().identity();
        let theirs = theirs.map_or(0, |identity| word(&identity));
        let own = word(&self.identity);
        let (initiator, responder) = match is_initiator {
            true => (theirs, own),
            false => (own, theirs),
        };
        crate::prng::mix(initiator).wrapping_add(responder)
    }

    /// Connects to a peer, if it is to be reached and there are too few connections. `is_slow`:
    /// also if a message of it is waited for, because it may be dead.
    pub(super) fn connect_if_needed(&mut self, rank: Rank, is_slow: bool) {
        let peer = &self.peers[rank as usize];
        if peer.is_over() || rank == self.rank || peer.reach().is_paused() {
            return;
        }
        let is_wanted = match peer.rails().is_empty() {
            // A peer that nobody talks to needs no connection. One that had a connection gets one
            // again, so that its death is seen.
            true => {
                peer.has_output() || peer.is_to_be_connected() || (is_slow && peer.awaits_message())
            }
            false => peer.reach().is_opener(),
        };
        if !is_wanted {
            return;
        }
        let outgoing = self.connecting.iter().filter(|one| one.peer() == rank);
        let under_way = outgoing.count() + self.listener.proven_count(rank);
        for _ in (peer.rails().len() + under_way)..self.shared.rails as usize {
            if let Err(reason) = self.begin_connecting(rank) {
                return self.note_failure(rank, &reason, None);
            }
        }
    }

    fn begin_connecting(&mut self, rank: Rank) -> Result<(), String> {
        let key = self.key_for(rank, false).ok_or("its address is unknown")?;
        let pair = self.pair_word(rank, false);
        let reach = self.peers[rank as usize].reach_mut();
        let wanted = pair.wrapping_add(u64::from(reach.joined().unwrap_or(0)));
        let own = u64::from(reach.epoch()) << EPOCH_SHIFT;
        let attempt = reach.begin_attempt(self.shared.now);
        let (number, place) = attempt.ok_or("its address is unknown")?;
        let rail = own | number << 1 | u64::from(self.rank > rank);
        let time = Reach::attempt_time(self.shared.timeout);
        let (to, over) = ((rank, wanted), (rail, place));
        let connecting = Connecting::begin(to, over, &key, time, &mut self.shared)?;
        self.connecting.push(connecting);
        Ok(())
    }

    fn look_at_outgoing(&mut self) {
        let mut at = 0;
        while at < self.connecting.len() {
            let look = self.connecting[at].look(self.shared.now);
            if matches!(look, Ok(Look::Wait)) {
                at += 1;
                continue;
            }
            let connecting = self.connecting.swap_remove(at);
            connecting.leave(&self.shared);
            let (rank, place) = (connecting.peer(), connecting.place());
            match look {
                Ok(Look::Done) => {
                    let own = self.peers[rank as usize].reach().epoch();
                    let theirs = connecting.epoch();
                    self.adopt(rank, connecting.into_rail(), (own, theirs));
                }
                Ok(Look::Awaited) => self.peers[rank as usize].reach_mut().leave_to_peer(),
                Ok(Look::Fatal(reason)) => self.fail(rank, &format!("{place}: {reason}")),
                Ok(Look::Over(reason)) => {
                    self.note_failure(rank, &format!("{place}: {reason}"), Some(place.ip()));
                }
                Ok(Look::Wait) => {}
                Err(reason) => self.note_failure(rank, &format!("{place}: {reason}"), None),
            }
        }
    }

    /// A connection could not be made. `refused_at`: this address refused it.
    fn note_failure(&mut self, rank: Rank, reason: &str, refused_at: Option<IpAddr>) {
        let (now, timeout) = (self.shared.now, self.shared.timeout);
        let peer = &mut self.peers[rank as usize];
        if peer.state() != PeerState::Open {
            return;
        }
        let is_over = peer
            .reach_mut()
            .note_failure(now, timeout, refused_at.is_some());
        if is_over && peer.rails().is_empty() {
            let text = match refused_at.is_some_and(socket::is_own) {
                true => ENDED,
                false => UNREACHABLE,
            };
            self.fail(rank, &format!("{text}: {reason}"));
        }
    }

    /// A connection between these epochs of the two sides is a rail from now on.
    fn adopt(&mut self, rank: Rank, rail: Rail, (own, theirs): (u32, u32)) {
        let token = epoll::EventData::new_u64(u64::from(rank) << 32 | (rail.id & 0xffff_ffff));
        let peer = &mut self.peers[rank as usize];
        let reach = peer.reach_mut();
        let is_joined = reach.epoch() == own && reach.join(theirs);
        if !is_joined || peer.state() != PeerState::Open {
            // The peer has failed while keys were agreed on, or either side has ended this epoch.
            return;
        }
        let is_secure = rail.secure.is_some();
        let flags = epoll::EventFlags::IN;
        if let Err(error) = epoll::add(&self.shared.epoll, &rail.socket, token, flags) {
            // The other side sees it close and tries again.
            return self.shared.say(&format!(
                "a connection to rank {rank} cannot be waited for ({error}) and was closed"
            ));
        }
        if peer.adopt(rail) {
            self.shared.ends.push(Event::Connected(rank));
        }
        self.refresh_active();
        self.pump(rank);
        if is_secure {
            // What came with the end of the handshake makes no descriptor readable.
            self.poll_peer(rank);
        }
    }

    /// Notes which peers have rails.
    pub(super) fn refresh_active(&mut self) {
        self.active.clear();
        let has_rails = |peer: &&Peer| !peer.rails().is_empty();
        self.active
            .extend(self.peers.iter().filter(has_rails).map(Peer::rank));
        self.rails_count = self.peers.iter().map(|peer| peer.rails().len()).sum();
    }
}
