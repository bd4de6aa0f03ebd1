//! [`Early`]: peers that have said hello before this rank connects to them.

use super::socket::Hello;
use crate::types::Rank;
use std::collections::VecDeque;
use std::os::fd::OwnedFd;

/// Connections that may wait until this rank connects to their peers. If there are more, the oldest
/// is closed, and its peer connects again.
const EARLY_MAX: usize = 256;

/// Connections of peers that have said hello and that this rank does not connect to yet, each with
/// the peer's segment.
#[derive(Debug, Default)]
pub struct Early(VecDeque<(OwnedFd, Hello, OwnedFd)>);

impl Early {
    pub fn keep(&mut self, socket: OwnedFd, hello: Hello, segment: OwnedFd) {
        if self.0.len() >= EARLY_MAX {
            self.0.pop_front();
        }
        self.0.push_back((socket, hello, segment));
    }

    /// The oldest one of this rank and identity.
    pub fn take(&mut self, peer: Rank, identity: u64) -> Option<(OwnedFd, Hello, OwnedFd)> {
        let is_it = |hello: &Hello| (hello.rank, hello.identity) == (peer, identity);
        let at = self.0.iter().position(|(_, hello, _)| is_it(hello))?;
        self.0.remove(at)
    }
}
