//! Slots that are used again.
//!
//! Peers write into the memory of this rank: rings, and regions that they have mapped. Nobody can
//! take a mapping away from a process that lives. So the end of a connection is told in two steps.
//! Each side ends its sending half of the control socket when it writes nothing more. The slot is
//! free when the other half has ended too, or the process has. A peer that hangs keeps its slot
//! until it goes on or is killed.
//!
//! A process may say hello before this rank connects to it, while the slot still belongs to
//! another one. It waits (`early.rs`).

use super::ShmTransport;
use super::control::Past;
use super::peer::{Peer, PeerState};
use super::socket::Hello;
use crate::types::Rank;
use rustix::net::{Shutdown, shutdown};
use std::os::fd::{AsFd, OwnedFd};

impl ShmTransport {
    /// Whether a connection to this peer was asked for and has not ended.
    pub fn is_in_use(&self, peer: Rank) -> bool {
        let state = self.peers.get(peer as usize).map(|p| &p.state);
        !matches!(state, None | Some(PeerState::Idle | PeerState::Gone))
    }

    /// This rank writes into the peer's memory no more, and says so.
    pub(super) fn part(&mut self, peer: Rank) {
        self.unwatch(peer);
        let p = &mut self.peers[peer as usize];
        let (socket, process) = (p.control.close(), p.process.forget());
        // A peer without this rank's answer to its hello has written nothing.
        if let Some(socket) = socket.filter(|_| p.segment.is_some()) {
            // It fails where the peer is gone.
            let _ = shutdown(&socket, Shutdown::Write);
            p.past = Some(Past::new(socket, process));
        }
    }

    /// The slot is used again.
    pub(super) fn renew(&mut self, peer: Rank) {
        let p = &mut self.peers[peer as usize];
        debug_assert_eq!(p.state, PeerState::Gone);
        let (past, mut regions) = (p.past.take(), std::mem::take(&mut p.regions));
        regions.end();
        *p = Peer {
            past,
            regions,
            ..Peer::new()
        };
        for exported in self.regions.all_mut() {
            exported.known_to[peer as usize] = false;
        }
        self.own.connect_if(peer);
        self.ends.forget(peer);
    }

    /// Takes a connection whose hello says that it is a rank which is expected, or keeps it until
    /// this rank connects to that one.
    pub(super) fn meet_hello(&mut self, fd: OwnedFd, hello: Hello, memory: OwnedFd) {
        let is_peer = hello.ranks as usize == self.peers.len() && hello.rank > self.rank;
        let Some(p) = self.peers.get(hello.rank as usize).filter(|_| is_peer) else {
            return;
        };
        match p.is_awaited(hello.identity) {
            true => self.admit(fd, hello, memory),
            false => self.early.keep(fd, hello, memory),
        }
    }

    pub(super) fn admit(&mut self, fd: OwnedFd, hello: Hello, memory: OwnedFd) {
        let peer = hello.rank;
        if self.say_hello(peer, fd.as_fd()).unwrap_or(false) && self.meet(peer, fd) {
            self.adopt(peer, (hello.segment_bytes, memory), hello.guard);
        }
    }

    fn unwatch(&self, peer: Rank) {
        let p = &self.peers[peer as usize];
        let watched = [p.control.socket(), p.process.descriptor()];
        let watched = watched.into_iter().flatten();
        watched.for_each(|fd| self.watch.remove(fd));
    }
}
