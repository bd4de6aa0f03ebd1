//! [`Early`]: peers that have said hello before this rank connects to them.

use super::socket::Hello;
use crate::limits::RANKS_MAX;
use crate::types::Rank;
use std::collections::VecDeque;
use std::os::fd::OwnedFd;

/// Connections that may wait until this rank connects to their peers: one for each rank that there
/// may be. If there are more, the oldest is closed.
const EARLY_MAX: usize = RANKS_MAX as usize;

/// Connections of peers that have said hello and that this rank does not connect to yet, each with
/// the peer's segment.
#[derive(Debug, Default)]
pub struct Early(VecDeque<(OwnedFd, Hello, OwnedFd)>);

impl Early {
    pub fn keep(&mut self, socket: OwnedFd, hello: Hello, segment: OwnedFd) {
        // Of two of one process, the older one was given up.
        drop(self.take(hello.rank, hello.identity));
        if self.0.len() >= EARLY_MAX {
            self.0.pop_front();
        }
        self.0.push_back((socket, hello, segment));
    }

    /// The one of this rank and identity.
    pub fn take(&mut self, peer: Rank, identity: u64) -> Option<(OwnedFd, Hello, OwnedFd)> {
        let is_it = |hello: &Hello| (hello.rank, hello.identity) == (peer, identity);
        let at = self.0.iter().position(|(_, hello, _)| is_it(hello))?;
        self.0.remove(at)
    }
}
