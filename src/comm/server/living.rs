//! [`Living`]: which servers a rank sees, and who has a shard when a server has failed.

use super::layout::Layout;
use crate::engine::Engine;
use crate::error::{Error, Result};
use crate::types::Rank;

/// See the module.
pub struct Living {
    /// Servers that have ended.
    gone: Vec<bool>,
    copies: usize,
}

impl Living {
    pub fn new(layout: &Layout) -> Living {
        Living {
            gone: vec![false; layout.servers.len()],
            copies: layout.copies,
        }
    }

    /// Notes the servers of which `has_ended` says that they have ended; gives those that are new.
    ///
    /// # Errors
    /// No server is left that has the shard of one of them.
    pub fn note(
        &mut self,
        layout: &Layout,
        engine: &Engine,
        has_ended: impl Fn(usize, Rank) -> bool,
        what: impl Fn(usize) -> String,
    ) -> Result<Vec<usize>> {
        let mut new = Vec::new();
        for (server, &rank) in layout.servers.iter().enumerate() {
            if self.gone[server] || !has_ended(server, rank) {
                continue;
            }
            self.gone[server] = true;
            new.push(server);
        }
        // Later calls find it too.
        let is_lost = |server: &usize| self.server_of(layout.shard_of(*server), 0).is_none();
        match (0..self.gone.len()).find(is_lost) {
            Some(server) => Err(engine.error_of_ended(layout.servers[server], what(server))),
            None => Ok(new),
        }
    }

    pub fn is_there(&self, server: usize) -> bool {
        !self.gone[server]
    }

    /// The servers that are there.
    pub fn servers(&self) -> impl Iterator<Item = usize> + '_ {
        (0..self.gone.len()).filter(|&server| self.is_there(server))
    }

    /// A server that has a shard, and the one of this place among its copies if that is there.
    pub fn server_of(&self, shard: usize, preferred: usize) -> Option<usize> {
        let copies = (0..self.copies).map(|at| (preferred + at) % self.copies);
        let mut servers = copies.map(|copy| shard * self.copies + copy);
        servers.find(|&server| self.is_there(server))
    }

    /// The server that makes the order: the first that has the first shard.
    pub fn leader(&self) -> usize {
        self.server_of(0, 0).unwrap_or(0)
    }

    /// The server that has the order before it is told, so that it can lead: the other one that has
    /// the first shard.
    pub fn second(&self) -> Option<usize> {
        let second = self.copies - 1;
        (self.leader() < second && self.is_there(second)).then_some(second)
    }

    /// Whether what needs a server may fail because that has ended: another one has the shard.
    pub fn may_lose(&self) -> bool {
        self.copies > 1
    }

    /// The ranks whose end is an error of what is under way to them.
    pub fn needed<'a>(&self, layout: &'a Layout) -> &'a [Rank] {
        match self.may_lose() {
            true => &[],
            false => &layout.servers,
        }
    }

    /// Leaves an error out that says that a server has ended, if another one has its shard; the
    /// next [`Living::note`] says whether that is so.
    pub fn without_ends(&self, result: Result<()>) -> Result<()> {
        match result {
            Err(Error::PeerFailed { .. } | Error::Left { .. }) if self.may_lose() => Ok(()),
            result => result,
        }
    }
}
