//! Faults of slots that are used again: something of the old connection comes in the new one.

use super::access::TestPosts;
use super::{Fault, INJECTED, Mutant};
use linerate::Rank;
use linerate::transport::{Event, RemoteRange, View};
use std::collections::{HashMap, HashSet};

/// What is known of slots and their old connections.
#[derive(Default)]
pub struct Old {
    /// Slots that were used, and those that are used again.
    pub used: HashSet<Rank>,
    pub again: HashSet<Rank>,
    pub disconnected: HashSet<Rank>,
    /// The last short message and the last put to each peer.
    pub sends: HashMap<Rank, (u64, u64, View)>,
    pub puts: HashMap<Rank, (View, RemoteRange)>,
    /// A put that is done again with a later message: the peer looks at its memory then.
    pub late: Option<(Rank, View, RemoteRange)>,
    pub sends_until: u32,
    /// The ends of posts to peers that were disconnected.
    pub ends: Vec<Event>,
}

impl Mutant {
    /// A peer is connected; what becomes of it if that is not for the first time.
    pub(super) fn meet_again(&mut self, peer: Rank, found: &mut Vec<Event>) {
        if !self.old.again.remove(&peer) {
            return;
        }
        self.old.disconnected.remove(&peer);
        let token = INJECTED + self.reported.len() as u64;
        match self.fault {
            Fault::DeliversOld => {
                if let Some(&(tag, header, source)) = self.old.sends.get(&peer) {
                    self.reported.insert(token);
                    self.held.push((peer, tag, header, source, token));
                    self.send_held();
                }
            }
            Fault::PutsOld => {
                let last = self.old.puts.get(&peer);
                self.old.late = last.map(|&(source, destination)| (peer, source, destination));
                self.old.sends_until = 2;
            }
            Fault::CompletesOld => found.append(&mut self.old.ends),
            Fault::FailsNew => {
                let cause = "it was lost".to_string();
                found.push(Event::PeerFailed(peer, cause));
            }
            _ => {}
        }
    }

    /// Posts what is old, before something new.
    pub(super) fn post_old(&mut self) {
        if self.fault == Fault::DeliversOld {
            self.send_held();
        }
        self.old.sends_until = self.old.sends_until.saturating_sub(1);
        if self.old.sends_until == 0
            && let Some((peer, source, destination)) = self.old.late.take()
        {
            let token = INJECTED + self.reported.len() as u64;
            self.reported.insert(token);
            let _ = self.inner.test_put(peer, source, destination, token);
        }
    }
}
