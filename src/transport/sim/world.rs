//! [`World`]: what the program that steps a simulation holds.

use super::options::{SimOptions, Statistics};
use super::provider::SimTransport;
use super::state::{Cause, Happening, State};
use crate::time::Time;
use crate::types::Rank;
use std::sync::atomic::AtomicU64;
use std::sync::{Arc, Mutex, MutexGuard};

/// A modelled fabric with all its ranks, in one process, in virtual time.
///
/// Time stands still while ranks act. Step every rank that [`World::take_ready`] names until it
/// names none, then [`World::advance`]:
///
/// ```
/// use linerate::sim::{SimOptions, World};
/// use linerate::transport::{Address, Transport};
/// let world = World::new(SimOptions::new(2, 1));
/// let mut ranks: Vec<_> = (0..2).map(|rank| world.transport(rank)).collect();
/// for rank in 0..2 {
///     let address = ranks[1 - rank].local_address();
///     ranks[rank].connect(1 - rank as u32, &address).unwrap();
/// }
/// let (mut ready, mut events) = (Vec::new(), Vec::new());
/// while world.advance() {
///     world.take_ready(&mut ready);
///     for rank in ready.drain(..) {
///         ranks[rank as usize].poll(world.now(), &mut events);
///     }
/// }
/// assert_eq!(events.len(), 2);
/// ```
///
/// Clones are the same world. The same options and calls give the same run.
#[derive(Clone, Debug)]
pub struct World {
    state: Arc<Mutex<State>>,
}

impl World {
    /// A world at time 0 whose ranks have no transports yet. Panics if an option is out of its
    /// range.
    pub fn new(options: SimOptions) -> World {
        World {
            state: Arc::new(Mutex::new(State::new(options))),
        }
    }

    /// The transport of a rank, which from now on is alive until it is dropped or killed. A rank
    /// that left can come back: its regions and connections are gone, its peers must connect to it
    /// again. Panics if the rank is alive or does not exist.
    pub fn transport(&self, rank: Rank) -> SimTransport {
        let mut state = self.lock();
        let ranks = state.options.ranks;
        assert!(rank < ranks, "rank {rank} in a world of {ranks} ranks");
        let incarnation = state.enter(rank);
        SimTransport::new(Arc::clone(&self.state), &state.options, rank, incarnation)
    }

    /// The time, nanoseconds since the world began.
    pub fn now(&self) -> Time {
        Time(self.lock().now)
    }

    /// The time as a word that can be read without the world's lock, nanoseconds.
    pub fn clock(&self) -> Arc<AtomicU64> {
        Arc::clone(&self.lock().clock)
    }

    /// When something will happen next, `None` if nothing will unless a rank acts.
    pub fn next_event_time(&self) -> Option<Time> {
        self.lock().next_ns().map(Time)
    }

    /// Jumps to the time of the next happening and lets everything that is due then happen. False
    /// if nothing is left to happen; the time stays as it is.
    pub fn advance(&self) -> bool {
        let mut state = self.lock();
        let Some(next_ns) = state.next_ns() else {
            return false;
        };
        state.set_now(next_ns);
        state.handle_due();
        true
    }

    /// Appends the ranks to which something has happened since they were last named here: an event
    /// to poll, a put into their memory, a wake-up, room in a queue that was full. Each once, in
    /// order.
    pub fn take_ready(&self, ready: &mut Vec<Rank>) {
        let mut state = self.lock();
        let named = ready.len();
        ready.append(&mut state.ready);
        for &rank in &ready[named..] {
            state.rank(rank).is_ready = false;
        }
    }

    /// Makes something happen at `time` (now, if that has passed): `rank` is named by
    /// [`World::take_ready`]. For time-outs and modelled computation.
    pub fn wake_at(&self, rank: Rank, time: Time) {
        self.lock().schedule(time.0, Happening::Wake(rank));
    }

    /// Kills a rank: its transport does nothing any more, and its peers are told after
    /// [`SimOptions::detection_ns`]. What it had on the wire may arrive or not.
    pub fn kill(&self, rank: Rank) {
        self.lock().leave(rank, Cause::Killed);
    }

    /// Whether a rank has a transport that has not left and was neither dropped nor killed.
    pub fn is_alive(&self, rank: Rank) -> bool {
        let mut state = self.lock();
        let own = state.rank(rank);
        own.is_alive && own.leaving.is_none()
    }

    /// Whether a rank may get a transport: it has none, nor is one still leaving.
    pub fn is_vacant(&self, rank: Rank) -> bool {
        !self.lock().rank(rank).is_alive
    }

    /// Cuts every path between a rank of `left` and one of `right`. What is under way waits; after
    /// [`SimOptions::detection_ns`] both sides give each other up. Partitions add up until
    /// [`World::heal`]. Panics if a rank is in both.
    pub fn partition(&self, left: &[Rank], right: &[Rank]) {
        self.lock().partition(left, right);
    }

    /// Ends all partitions. What waited sets out again; peers that were given up stay so.
    pub fn heal(&self) {
        self.lock().heal();
    }

    /// What a rank has done so far, over all its transports.
    pub fn statistics(&self, rank: Rank) -> Statistics {
        self.lock().rank(rank).statistics
    }

    /// Sends, puts and gets that the world still remembers: reported ones too, while a message
    /// waits to be received. For tests that look for leaks.
    pub fn remembered_operations(&self) -> usize {
        let state = self.lock();
        state.ranks.iter().map(|rank| rank.operations.count()).sum()
    }

    /// The options that it was made with.
    pub fn options(&self) -> SimOptions {
        self.lock().options.clone()
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().expect("a panic inside the simulation")
    }
}
