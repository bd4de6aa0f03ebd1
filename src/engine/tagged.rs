//! [`Tagged`]: sends and receives that meet by a tag of the user.
//!
//! A rank numbers its messages with tags to each peer. The transport tells the receiver of each
//! one that comes ([`tells_arrival`](crate::transport::tells_arrival)), and the receiver takes them
//! up in the order of these numbers. A message meets the receive that has waited longest of those
//! for its tag and its sender; a receive meets the message that has waited longest. Until then the
//! transport does not know of the receive. So a receive from any rank costs no more than others,
//! and cancelling a receive loses no message.

use super::prepared::Prepared;
use super::tag;
use crate::collective;
use crate::limits::{RANKS_MAX, TAGGED_UNMATCHED};
use crate::memory::{Kept, View};
use crate::types::Rank;
use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

/// Schedules of single sends and receives that are kept.
const SCHEDULES_KEPT: usize = 64;

/// Who sent the message of a receive, once that is known.
#[derive(Clone, Debug)]
pub struct Source(Arc<AtomicU32>);

impl Source {
    /// Not known yet.
    pub fn unknown() -> Source {
        Source(Arc::new(AtomicU32::new(RANKS_MAX)))
    }

    /// The sender, if it is known.
    pub fn rank(&self) -> Option<Rank> {
        // Relaxed: the end of the operation orders what it has received.
        Some(self.0.load(Ordering::Relaxed)).filter(|&rank| rank < RANKS_MAX)
    }

    pub fn set(&self, rank: Rank) {
        self.0.store(rank, Ordering::Relaxed);
    }
}

/// A send or a receive with a tag.
#[derive(Clone, Debug)]
pub struct Transfer {
    pub tag: u32,
    /// The other side; `None`: a receive from any rank.
    pub peer: Option<Rank>,
    /// Of a receive: who has sent its message. `None`: it is a send.
    pub source: Option<Source>,
}

impl Transfer {
    /// What it is, for texts.
    pub fn describe(&self, bytes: usize) -> String {
        let peer = match self.peer {
            Some(rank) => format!("rank {rank}"),
            None => "any rank".into(),
        };
        match &self.source {
            None => format!("send of {bytes} bytes with tag {} to {peer}", self.tag),
            Some(_) => format!("receive of {bytes} bytes with tag {} from {peer}", self.tag),
        }
    }

    /// Whether it is a receive that takes this message.
    pub fn accepts(&self, message: &Message) -> bool {
        self.tag == message.tag && self.peer.is_none_or(|peer| peer == message.peer)
    }
}

/// The memory and the limits of a send or a receive with a tag.
pub struct TaggedCall {
    pub transfer: Transfer,
    pub buffer: View,
    pub keep: Vec<Kept>,
    pub timeout: Option<Duration>,
}

/// A message that has come and that no receive has taken.
#[derive(Clone, Copy, Debug)]
pub struct Message {
    pub peer: Rank,
    pub tag: u32,
    /// The tag of its first chunk, for the transport.
    pub first: u64,
}

/// The sends and receives with tags of one rank.
#[derive(Default)]
pub struct Tagged {
    /// Per peer: how many messages this rank has numbered.
    pub sent: Vec<u64>,
    /// Per peer: the number of its next message that has not been taken up.
    next: Vec<u64>,
    /// Tasks of receives that have met no message, in the order in which they have started.
    pub waiting: VecDeque<(usize, Transfer)>,
    /// Messages that no receive has met, in the order in which they were taken up.
    pub messages: VecDeque<Message>,
    /// Messages that have come before one with a lower number of the same peer.
    early: Vec<Message>,
    schedules: Vec<((Rank, bool), Arc<Prepared>)>,
}

impl Tagged {
    pub fn new(ranks: u32) -> Tagged {
        Tagged {
            sent: vec![0; ranks as usize],
            next: vec![0; ranks as usize],
            ..Tagged::default()
        }
    }

    /// Whether no receive waits for its message.
    #[inline]
    pub fn is_idle(&self) -> bool {
        self.waiting.is_empty()
    }

    /// How many receives wait for their messages.
    pub fn waiting_count(&self) -> usize {
        self.waiting.len()
    }

    /// The tasks of the receives that wait for their messages.
    pub fn tasks(&self) -> impl Iterator<Item = usize> + '_ {
        self.waiting.iter().map(|(task, _)| *task)
    }

    /// The receive of a task, if it waits for its message.
    pub fn of_task(&self, task: usize) -> Option<&Transfer> {
        let mut waiting = self.waiting.iter();
        waiting.find(|(of, _)| *of == task).map(|(_, it)| it)
    }

    /// Forgets the receive of a task; false: the task has none that waits for its message.
    pub fn forget(&mut self, task: usize) -> bool {
        let at = self.waiting.iter().position(|(of, _)| *of == task);
        at.and_then(|at| self.waiting.remove(at)).is_some()
    }

    /// Forgets all receives, because the communicator has failed.
    pub fn clear(&mut self) {
        self.waiting.clear();
    }

    /// Forgets what a peer has sent, and how much was sent to it.
    pub fn forget_peer(&mut self, peer: Rank) {
        self.sent[peer as usize] = 0;
        self.next[peer as usize] = 0;
        self.messages.retain(|message| message.peer != peer);
        self.early.retain(|message| message.peer != peer);
    }

    /// Notes a message that has come. Returns an error if no correct peer sends it.
    pub fn note(&mut self, peer: Rank, first: u64) -> std::result::Result<(), String> {
        let ahead = self.distance(peer, first);
        let message = Message {
            peer,
            tag: tag::user_tag(first),
            first,
        };
        let is_known = |early: &Message| (early.peer, early.first) == (peer, first);
        if ahead > u64::from(TAGGED_UNMATCHED) || self.early.iter().any(is_known) {
            return Err(format!(
                "it sent a message with tag {} whose number is {ahead} after the next one",
                message.tag
            ));
        }
        self.early.push(message);
        Ok(())
    }

    /// How far a message is from the next one of its peer.
    fn distance(&self, peer: Rank, first: u64) -> u64 {
        tag::tagged_distance(first, self.next[peer as usize])
    }

    /// The next message of a peer, if it has come.
    pub fn take_up(&mut self, peer: Rank) -> Option<Message> {
        let is_next = |m: &Message| m.peer == peer && self.distance(peer, m.first) == 0;
        let at = self.early.iter().position(is_next)?;
        self.next[peer as usize] += 1;
        Some(self.early.swap_remove(at))
    }

    /// The schedule of one send or receive.
    pub fn schedule(&mut self, place: (Rank, u32), peer: Rank, is_send: bool) -> Arc<Prepared> {
        let key = (peer, is_send);
        if let Some((_, known)) = self.schedules.iter().find(|(known, _)| *known == key) {
            return known.clone();
        }
        let schedule = collective::build_transfer(place.0, place.1, peer, is_send);
        let prepared = Arc::new(Prepared::new(schedule, 0, false));
        if self.schedules.len() == SCHEDULES_KEPT {
            self.schedules.remove(0);
        }
        self.schedules.push((key, prepared.clone()));
        prepared
    }
}
