//! Set-up and control sockets of the shm provider: they connect peers, make regions known, and tell
//! which peers have gone.

use super::control::{Ending, PeerProcess};
use super::fetch::{Guard, own_process};
use super::peer::PeerState;
use super::ring::Consumer;
use super::segment::Segment;
use super::socket::{self, Hello, Received, SocketMessage, identity_of};
use super::watch::Watched;
use super::{Address, Event, PostError, ShmTransport};
use crate::error::{Error, Result};
use crate::memory::{Region, RegionKey, RegionKind};
use crate::time::Time;
use crate::transport::ENDED;
use crate::types::Rank;
use socket::Connected;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::Ordering;
use std::time::Duration;

/// Connections that may wait to say who they are. If there are more, the oldest is closed.
const UNIDENTIFIED_MAX: usize = 256;
/// How often this rank looks whether peers that have not connected still live: a system call for
/// each.
const LOOK_EVERY: Duration = Duration::from_millis(100);

impl ShmTransport {
    pub(super) fn begin_connect(&mut self, peer: Rank, address: &Address) -> Result<()> {
        let (ranks, guard) = (self.peers.len(), self.own_guard());
        let Some(p) = self.peers.get_mut(peer as usize) else {
            return Err(Error::invalid(format!(
                "rank {peer} of a job of {ranks} ranks"
            )));
        };
        match p.state {
            PeerState::Idle => {}
            PeerState::Gone => self.renew(peer),
            PeerState::Connecting(_) | PeerState::Connected => {
                return Err(Error::invalid(format!(
                    "rank {peer} is connected already: disconnect it first"
                )));
            }
        }
        let p = &mut self.peers[peer as usize];
        if peer == self.rank {
            let RegionKind::Shared(fd) = self.segment.region().kind() else {
                unreachable!("segments are shared")
            };
            let again = Region::map_peer(fd.as_fd(), 0, Segment::bytes(ranks as u32))?;
            p.segment = Some(Segment::adopt(again, ranks as u32)?);
            p.state = PeerState::Connected;
            p.process = PeerProcess::own(own_process(), guard);
            self.ends.push(Event::Connected(peer));
            return Ok(());
        }
        p.state = PeerState::Connecting(address.0.clone());
        Ok(())
    }

    /// Does what needs system calls: new connections, announcements, hang-ups.
    pub(super) fn poll_sockets(&mut self, now: Time) {
        let is_time = now >= self.look_at;
        if is_time {
            self.look_at = now.after(LOOK_EVERY);
        }
        for peer in 0..self.peers.len() as Rank {
            self.try_connect(peer, is_time);
            if let Some(ending) = self.peers[peer as usize].control.take_ending() {
                self.end(peer, ending);
            }
        }
        let mut has_entered = false;
        for index in 0..self.watch.look() {
            match Watched::of_key(self.watch.found(index)) {
                Watched::Entrance => has_entered = true,
                Watched::Socket(peer) => self.read_socket(peer),
                Watched::Process(peer) => {
                    // What it had sent before is heard first.
                    self.read_socket(peer);
                    self.fail(peer, ENDED.into());
                }
            }
        }
        if has_entered && let Err(error) = self.accept_peers() {
            self.fail_expected(&error);
        }
        self.flush_outboxes();
    }

    /// Connects to a peer of a lower rank. A peer of a higher rank connects itself; this rank looks
    /// now and then whether it is still there.
    fn try_connect(&mut self, peer: Rank, is_time: bool) {
        let p = &mut self.peers[peer as usize];
        p.look_at_past(is_time);
        let PeerState::Connecting(name) = &p.state else {
            return;
        };
        if p.control.is_open() || p.past.is_some() {
            return;
        }
        let name = name.clone();
        if peer > self.rank
            && let Some((fd, hello, memory)) = self.early.take(peer, identity_of(&name))
        {
            return self.admit(fd, hello, memory);
        }
        if peer < self.rank || is_time {
            match socket::connect_to(&name) {
                Ok(Connected::Open(fd)) if peer < self.rank => self.greet(peer, fd),
                Ok(Connected::Open(_) | Connected::Busy) => {}
                Ok(Connected::Nobody) => {
                    self.fail(peer, format!("{ENDED} before it was connected"));
                }
                Err(error) => self.fail(peer, format!("this rank cannot reach it: {error}")),
            }
        }
    }

    /// Peers that have not connected fail: none can be let in any more, most likely because no
    /// descriptor is left.
    fn fail_expected(&mut self, error: &Error) {
        for peer in self.rank + 1..self.peers.len() as Rank {
            let p = &self.peers[peer as usize];
            if !p.control.is_open() && matches!(p.state, PeerState::Connecting(_)) {
                self.fail(peer, format!("this rank cannot let it in: {error}"));
            }
        }
    }

    fn accept_peers(&mut self) -> Result<()> {
        // A bounded number is accepted at a time, and the rest waits in the listener's queue. Those
        // of this round are heard before any of them has to make room.
        while self.unidentified.len() < UNIDENTIFIED_MAX
            && let Some(fd) = socket::accept_from(self.listener.as_fd())?
        {
            self.watch.add(&fd, Watched::Entrance.key())?;
            self.unidentified.push(fd);
        }
        let mut index = 0;
        while index < self.unidentified.len() {
            match socket::receive(self.unidentified[index].as_fd()) {
                Ok(Received::Nothing) => index += 1,
                Ok(Received::Message(SocketMessage::Hello(hello), Some(memory))) => {
                    let fd = self.dismiss(index);
                    self.meet_hello(fd, hello, memory);
                }
                _ => drop(self.dismiss(index)),
            }
        }
        if self.unidentified.len() >= UNIDENTIFIED_MAX {
            self.dismiss(0);
        }
        Ok(())
    }

    /// Takes out the connection at this place, which has said who it is or is given up.
    fn dismiss(&mut self, index: usize) -> OwnedFd {
        let fd = self.unidentified.remove(index);
        self.watch.remove(&fd);
        fd
    }

    fn greet(&mut self, peer: Rank, fd: OwnedFd) {
        if self.say_hello(peer, fd.as_fd()).unwrap_or(false) {
            self.meet(peer, fd);
        }
    }

    /// Watches a peer by its socket; false: that is not possible, and the peer has failed.
    pub(super) fn meet(&mut self, peer: Rank, fd: OwnedFd) -> bool {
        let p = &mut self.peers[peer as usize];
        p.process = PeerProcess::of(fd.as_fd());
        let watched = match p.process.descriptor() {
            Some(process) => self.watch.add(process, Watched::Process(peer).key()),
            None => Ok(()),
        };
        let watched = watched.and_then(|()| self.watch.add(&fd, Watched::Socket(peer).key()));
        p.control.open(fd);
        if let Err(error) = &watched {
            self.fail(peer, format!("this rank cannot hear it: {error}"));
        }
        watched.is_ok()
    }

    fn own_guard(&self) -> Guard {
        self.guard.as_deref().map_or(Guard::default(), Guard::of)
    }

    pub(super) fn say_hello(
        &mut self,
        peer: Rank,
        fd: std::os::fd::BorrowedFd<'_>,
    ) -> Result<bool> {
        // Who had the slot before does not write there any more (`slots.rs`).
        self.segment.clear_from(peer);
        self.read[peer as usize] = 0;
        let ranks = self.peers.len() as u32;
        let RegionKind::Shared(memory) = self.segment.region().kind() else {
            unreachable!("segments are shared")
        };
        let hello = SocketMessage::Hello(Hello {
            rank: self.rank,
            ranks,
            segment_bytes: Segment::bytes(ranks) as u64,
            guard: self.own_guard(),
            identity: identity_of(self.socket_name.as_bytes()),
        });
        let mut is_said = socket::send(fd, hello, Some(memory.as_fd()))?;
        if let (true, Some(alarm)) = (is_said, &self.alarm) {
            is_said = socket::send(fd, SocketMessage::Alarm, Some(alarm.as_fd()))?;
        }
        Ok(is_said)
    }

    /// Maps the peer's segment, looks whether its memory can be read, and tells it.
    pub(super) fn adopt(&mut self, peer: Rank, (bytes, memory): (u64, OwnedFd), guard: Guard) {
        let ranks = self.peers.len() as u32;
        let adopted = Region::map_peer(memory.as_fd(), 0, bytes.min(1 << 47) as usize)
            .and_then(|region| Segment::adopt(region, ranks));
        match adopted {
            Ok(segment) => {
                let p = &mut self.peers[peer as usize];
                p.outbound.open(segment.ring_from(self.rank));
                p.consumer = Some(Consumer::new(self.segment.ring_from(peer)));
                p.segment = Some(segment);
                let is_read = self.guard.is_some() && p.process.probe(guard);
                p.control.push(SocketMessage::Reads(is_read));
            }
            Err(error) => self.fail(peer, error.to_string()),
        }
    }

    /// Reads a peer's control socket only if the peer says that it has sent something.
    pub(super) fn read_announcements(&mut self, peer: Rank) -> Result<()> {
        let ranks = self.peers.len();
        let Some(p) = self.peers.get_mut(peer as usize) else {
            return Err(Error::invalid(format!(
                "rank {peer} of a job of {ranks} ranks"
            )));
        };
        let Some(segment) = &p.segment else {
            return Ok(());
        };
        // Pairs with the releases in `export_to` and `flush_outboxes`: the message is in the
        // socket.
        let announced = segment.announced().load(Ordering::Acquire);
        if p.control.note_announced(announced) {
            // The ring may be being read at this moment. If the peer failed now, what the ring
            // holds would be taken twice.
            if let Err(ending) = self.hear(peer) {
                self.peers[peer as usize].control.keep_ending(ending);
            }
        }
        Ok(())
    }

    fn read_socket(&mut self, peer: Rank) {
        if let Err(ending) = self.hear(peer) {
            self.end(peer, ending);
        }
    }

    /// Handles what a peer's control socket holds. The error says how the connection ends.
    fn hear(&mut self, peer: Rank) -> std::result::Result<(), Ending> {
        while let Some(received) = self.peers[peer as usize].control.receive() {
            match received {
                Ok(Received::Nothing) => break,
                Ok(Received::HungUp) => {
                    let cause = format!("{ENDED} (the control socket hung up)");
                    return Err(cause.into());
                }
                Ok(Received::Message(message, attached)) => {
                    self.handle_control(peer, message, attached)?;
                }
                Err(error) => {
                    if matches!(error, Error::Exhausted { .. }) {
                        // The peer would only see a hang-up.
                        let control = &self.peers[peer as usize].control;
                        control.send_last(SocketMessage::Exhausted);
                    }
                    let own = self.rank;
                    return Err(format!("rank {own} cannot hear it any more: {error}").into());
                }
            }
        }
        Ok(())
    }

    fn handle_control(
        &mut self,
        peer: Rank,
        message: SocketMessage,
        attached: Option<OwnedFd>,
    ) -> std::result::Result<(), Ending> {
        let p = &mut self.peers[peer as usize];
        let connecting = p.is_connecting();
        let is_adopted = p.segment.is_some();
        match (message, attached) {
            (SocketMessage::Hello(hello), Some(memory)) if connecting && !is_adopted => {
                let (rank, ranks) = (hello.rank, hello.ranks);
                let is_it = rank == peer && p.has_identity(hello.identity);
                if !is_it || ranks as usize != self.peers.len() {
                    return Err(format!("it says that it is rank {rank} of {ranks}").into());
                }
                self.adopt(peer, (hello.segment_bytes, memory), hello.guard);
                Ok(())
            }
            (SocketMessage::Alarm, Some(alarm)) if connecting && is_adopted => {
                if let Some(segment) = &mut p.segment {
                    segment.wake_through(alarm);
                }
                Ok(())
            }
            (SocketMessage::Reads(reads), None) if connecting && is_adopted => {
                p.process.set_reads_us(reads);
                p.state = PeerState::Connected;
                self.ends.push(Event::Connected(peer));
                Ok(())
            }
            (SocketMessage::Region(key, ..), Some(_))
                if p.regions.get(RegionKey(key)).is_some() =>
            {
                // Views of the first one are in use.
                Err(format!("it announced region {key} twice").into())
            }
            (SocketMessage::Region(key, bytes, offset), Some(memory)) => {
                let bytes = bytes.min(1 << 47) as usize;
                let region = Region::map_peer(memory.as_fd(), offset, bytes)
                    .map_err(|e| e.to_string())?;
                p.regions.insert(RegionKey(key), region);
                Ok(())
            }
            (SocketMessage::Freed(key), None) => Ok(p.regions.free(RegionKey(key))?),
            (SocketMessage::Bye(word), None) => Err(Ending::Left(word)),
            (SocketMessage::Exhausted, None) => {
                let cause = "it has no file descriptor left (RLIMIT_NOFILE): raise its limit with `ulimit -n`";
                Err(cause.to_string().into())
            }
            (SocketMessage::Unreadable, None) => Err(format!(
                "it could not read what rank {} had sent from memory that is not registered: it must stay as it is until the operation has ended; LINERATE_CMA=off stages it",
                self.rank
            )
            .into()),
            (message, _) => Err(format!("it sent an unexpected {message:?}").into()),
        }
    }

    pub(super) fn export_to(
        &mut self,
        peer: Rank,
        key: RegionKey,
    ) -> std::result::Result<(), PostError> {
        let Some(exported) = self.regions.get_mut(key) else {
            return Err(PostError::invalid(format!(
                "region {} is not registered",
                key.0
            )));
        };
        if exported.known_to[peer as usize] || peer == self.rank {
            return Ok(());
        }
        let Some((memory, offset)) = exported.region.file() else {
            return Err(PostError::invalid(format!(
                "region {} is private memory; peers cannot map it",
                key.0
            )));
        };
        let control = &self.peers[peer as usize].control;
        let fd = control.socket().ok_or(PostError::PeerFailed)?;
        let bytes = exported.region.len_bytes() as u64;
        let message = SocketMessage::Region(key.0, bytes, offset);
        match socket::send(fd, message, Some(memory)) {
            Ok(true) => {
                exported.known_to[peer as usize] = true;
                // Publishes "look at the socket" to `read_announcements`.
                self.segment.announced().fetch_add(1, Ordering::Release);
                Ok(())
            }
            Ok(false) => Err(PostError::WouldBlock),
            Err(error) => Err(error.into()),
        }
    }

    pub(super) fn flush_outboxes(&mut self) {
        for p in &mut self.peers {
            let sent = p.control.flush();
            if sent > 0 {
                // Publishes "look at the socket" to `read_announcements`.
                self.segment.announced().fetch_add(sent, Ordering::Release);
            }
        }
    }

    /// The peer has failed.
    pub(super) fn fail(&mut self, peer: Rank, cause: String) {
        self.end(peer, cause.into());
    }

    /// The peer is gone: what it had sent is delivered first, then the news is told, and the rest
    /// is flushed.
    fn end(&mut self, peer: Rank, ending: Ending) {
        if self.peers[peer as usize].state != PeerState::Gone {
            self.retire(peer, Some(ending));
        }
    }

    /// Goes on with leaving; true: nothing that this rank has sent needs it any more, and every
    /// peer is told. What lies in rings and in mapped memory stays with the peers.
    pub(super) fn go_on_leaving(&mut self, word: u64) -> bool {
        if self.peers.iter().any(|p| p.has_fetches()) {
            return false;
        }
        self.flush_outboxes();
        for (rank, p) in (0..).zip(&mut self.peers) {
            if rank != self.rank && p.control.say_goodbye(word) {
                p.wake();
            }
        }
        self.peers.iter().all(|p| p.control.is_told())
    }

    pub(super) fn close(&mut self, peer: Rank) {
        let p = &mut self.peers[peer as usize];
        if p.state == PeerState::Gone {
            // What had come before it failed is forgotten, too.
            p.matching.clear();
            return self.ends.forget(peer);
        }
        if !p.control.is_told() {
            // A peer that is gone does not read it.
            p.control.send_last(SocketMessage::Bye(0));
        }
        self.retire(peer, None);
        self.peers[peer as usize].matching.clear();
        self.ends.forget(peer);
    }

    /// Ends the connection: drains the ring, then flushes what is outstanding.
    fn retire(&mut self, peer: Rank, ending: Option<Ending>) {
        let was_connected = self.peers[peer as usize].state == PeerState::Connected;
        self.peers[peer as usize].state = PeerState::Gone;
        if was_connected {
            self.poll_ring(peer);
        }
        match ending {
            Some(Ending::Left(word)) => self.ends.push(Event::PeerLeft(peer, word)),
            Some(Ending::Failed(cause)) => self.ends.push(Event::PeerFailed(peer, cause)),
            None => {}
        }
        let recalled = self.recall(peer);
        self.part(peer);
        let p = &mut self.peers[peer as usize];
        p.consumer = None;
        p.outbound.close();
        let mut flushed = p.matching.flush(|_| true);
        flushed.extend(recalled);
        self.ends.flush(peer, flushed);
        if peer == self.rank {
            self.own.disconnect(&mut self.ends);
        }
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use crate::kernel;
    use crate::transport::test_posts::TestPosts;
    use crate::transport::{Diagnostics, Mapping, Outcome, Rma, Transport};
    use std::sync::Arc;

    /// Two connected ranks, and a region of rank 1 that rank 0 has mapped.
    fn mapped(nonce: u64, name: &str) -> ([ShmTransport; 2], RegionKey) {
        let mut both = connected(nonce, [false; 2]);
        let region = Region::shared(name, 4096).unwrap();
        kernel::store(region.view(), 0, 7u64);
        let key = both[1].register(Arc::new(region)).unwrap();
        both[1].export(0, key).unwrap();
        while both[0].mapped(1, key).unwrap().is_none() {}
        (both, key)
    }

    /// Two connected ranks, which may read each other or not.
    pub fn connected(nonce: u64, fetches: [bool; 2]) -> [ShmTransport; 2] {
        let mut both = [0, 1].map(|rank| {
            let nonce = nonce + u64::from(rank);
            ShmTransport::new(rank, 2, nonce, fetches[rank as usize]).unwrap()
        });
        let addresses = [both[0].local_address(), both[1].local_address()];
        for transport in &mut both {
            (0..2).for_each(|peer| transport.connect(peer, &addresses[peer as usize]).unwrap());
        }
        while both
            .iter()
            .any(|t| t.peers.iter().any(|p| p.state != PeerState::Connected))
        {
            both.iter_mut()
                .for_each(|t| t.poll_slow(Time(0), &mut Vec::new()));
        }
        both
    }

    fn mappings(name: &str) -> usize {
        let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
        maps.lines().filter(|line| line.contains(name)).count()
    }

    #[test]
    fn a_view_outlives_the_region_that_its_owner_frees() {
        let name = "linerate-freed";
        let ([mut reader, mut owner], key) = mapped(0xf4ee_0000, name);
        let view = reader.mapped(1, key).unwrap().unwrap();
        owner.deregister(key).unwrap();
        reader.poll_slow(Time(0), &mut Vec::new());
        assert!(
            reader.mapped(1, key).unwrap().is_none(),
            "nobody gets a new view"
        );
        reader.release_freed();
        assert_eq!(kernel::load::<u64>(view, 0), 7);
        assert_eq!(
            mappings(name),
            1,
            "the owner has unmapped it, the reader has not"
        );
        reader.release_freed();
        assert_eq!(mappings(name), 0);
    }

    #[test]
    fn a_peer_that_frees_its_control_memory_fails_and_the_memory_stays() {
        let ([mut reader, mut owner], key) = mapped(0xf4ee_0010, "linerate-pinned");
        let view = reader.mapped(1, key).unwrap().unwrap();
        reader.pin(1, key);
        owner.deregister(key).unwrap();
        let mut events = Vec::new();
        reader.poll_slow(Time(0), &mut events);
        let is_told = |event: &Event| matches!(event, Event::PeerFailed(1, cause) if cause.contains("holds its control memory"));
        assert!(events.iter().any(is_told), "{events:?}");
        (0..3).for_each(|_| reader.release_freed());
        assert_eq!(kernel::load::<u64>(view, 0), 7);
    }

    #[test]
    fn the_last_message_of_a_peer_that_dies_is_taken_once() {
        let [mut reader, mut owner] = connected(0xf4ee_0030, [false; 2]);
        let to = Region::private(1 << 20).unwrap();
        reader.test_recv(1, 5, to.view(), 6).unwrap();
        let from = Arc::new(Region::shared("linerate-last", 1 << 20).unwrap());
        kernel::store(from.view(), 0, 7u64);
        let key = owner.register(from.clone()).unwrap();
        owner.export(0, key).unwrap();
        let sent = from.view().in_region(key, 0);
        owner.test_send(0, 5, 8, sent, 9).unwrap();
        // The end of its process closes the socket like this, without a word.
        owner.peers[0].control.close();
        // That is heard while the message is looked at, whose memory was made known just before.
        let mut events = Vec::new();
        for _ in 0..2 {
            reader.poll(Time(0), &mut events);
            reader.poll_slow(Time(0), &mut events);
        }
        assert_eq!(kernel::load::<u64>(to.view(), 0), 7);
        assert!(Diagnostics::unmatched(&mut reader, &mut |_, _| true).is_none());
        let [Event::Completion(done), Event::PeerFailed(1, cause)] = &events[..] else {
            panic!("{events:?}");
        };
        assert_eq!((done.token, done.outcome), (6, Outcome::Done));
        assert!(cause.contains("ended"), "{cause}");
    }

    #[test]
    fn a_peer_that_ended_before_it_was_connected_is_not_waited_for() {
        for own in [0, 1] {
            let nonce = 0xf4ee_0020 + 2 * u64::from(own);
            let [mut first, second] = [own, 1 - own]
                .map(|rank| ShmTransport::new(rank, 2, nonce + u64::from(rank), false).unwrap());
            let address = second.local_address();
            drop(second);
            first.connect(1 - own, &address).unwrap();
            let mut events = Vec::new();
            first.poll_slow(Time(0), &mut events);
            let is_told = |event: &Event| matches!(event, Event::PeerFailed(peer, cause) if *peer == 1 - own && cause.contains("before it was connected"));
            assert!(events.iter().any(is_told), "rank {own}: {events:?}");
        }
    }
}
