//! [`Shared`]: what the peers of one rank share.

use super::pace::Pace;
use super::socket::Refused;
use crate::memory::Region;
use crate::time::Time;
use crate::transport::buffers::Buffers;
use crate::transport::posts::Ends;
use crate::transport::registry::Registry;
use crate::types::Rank;
use crate::wire::Limits;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::Duration;

/// What the peers of one rank share.
#[derive(Debug)]
pub struct Shared {
    pub rank: Rank,
    pub limits: Limits,
    /// Bytes of long messages per peer that may come before their receives.
    pub eager_bytes: u64,
    pub timeout: Duration,
    pub rails: u32,
    pub has_tls: bool,
    pub regions: Registry<Arc<Region>>,
    pub ends: Ends,
    pub epoll: Arc<OwnedFd>,
    /// Takes bytes that nobody wants.
    pub void: Vec<u8>,
    /// For chunks that come before their receives.
    pub staging: Buffers,
    /// How fast bytes may leave, if that is limited.
    pub pace: Option<Pace>,
    pub now: Time,
    /// Polls so far, modulo 2^32.
    pub polls: u32,
    /// This rank has said goodbye: a connection that ends now is no loss.
    pub is_leaving: bool,
    /// Whether people want to know details.
    pub is_debugging: bool,
    pub refused: Refused,
    pub counts: Counts,
}

/// What has happened so far, for tests and for people.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Chunks into which transfers were cut, without those that were lost with a rail.
    pub chunks_sent: u64,
    /// Chunks that have come whole.
    pub chunks_received: u64,
    /// Chunks that came before their receives, and are copied once more.
    pub chunks_staged: u64,
    /// Chunks sent once more after a rail was lost.
    pub chunks_again: u64,
    /// Ordered frames that came twice, and were dropped.
    pub frames_twice: u64,
    /// Rails lost.
    pub rails_lost: u64,
    /// Rails on which the kernel copied although it was asked not to; they send with copies since.
    pub rails_copying: u64,
    /// Connections of unauthenticated peers that were turned away.
    pub turned_away: u64,
}

impl Counts {
    pub fn named(&self) -> Vec<(&'static str, u64)> {
        vec![
            ("chunks sent", self.chunks_sent),
            ("chunks received", self.chunks_received),
            ("chunks that came before their receive", self.chunks_staged),
            ("chunks sent again", self.chunks_again),
            ("frames that came twice", self.frames_twice),
            ("rails lost", self.rails_lost),
            ("rails that copy after all", self.rails_copying),
            ("unauthenticated peers turned away", self.turned_away),
        ]
    }
}

impl Shared {
    /// Says which options the kernel has refused, if anybody wants to know.
    pub fn say_refused(&mut self) {
        if let Some(text) = self.refused.take_text()
            && self.is_debugging
        {
            self.say(&text);
        }
    }

    /// Prints a line for people.
    pub fn say(&self, text: &str) {
        crate::transport::say(self.rank, text);
    }
}
