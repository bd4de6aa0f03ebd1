//! Slots that are used again (clause 23), by two ranks in one thread that end and begin their
//! connection at random. In whatever order their calls come, an epoch of one side meets one epoch
//! of the other, and in the end they meet.

use super::test_posts::TestPosts;
use super::{Event, Options, PostError, RegionKey, RemoteRange, Transport, open};
use crate::kernel;
use crate::memory::{Region, View};
use crate::prng::Prng;
use crate::time::Time;
use crate::types::Rank;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

const BYTES: usize = 70_000;
const TAG: u64 = 4;
/// Where the peer puts its epoch.
const WORD: u64 = 0;
/// Random steps before both sides only connect.
const STEPS: u32 = 3_000;
/// Steps of one side, on average, while the other one does nothing.
const RUN: u64 = 10;
/// Far more than the two need to meet.
const STEPS_MAX: u32 = 3_000_000;
/// Time that passes with each.
const STEP_NS: u64 = 10_000;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    Ended,
    Connecting,
    Connected,
}

struct Side {
    rank: Rank,
    transport: Box<dyn Transport>,
    phase: Phase,
    /// Counts its calls of `connect`.
    epoch: u64,
    /// The posts that have not ended, by token, with their epoch.
    posts: BTreeMap<u64, u64>,
    next_token: u64,
    is_receiving: bool,
    /// A message of the epoch has come.
    has_heard: bool,
    memory: View,
    key: RegionKey,
}

impl Side {
    fn new(name: &str, rank: Rank, ranks: u32, options: &Options) -> Option<Side> {
        let nonce = 0x5107_5000 + u64::from(rank);
        let mut transport = match open(name, rank, ranks, nonce, options) {
            Ok(transport) => transport,
            Err(error) => {
                println!("skipped: {error}");
                return None;
            }
        };
        let region = match transport.capabilities().shared_regions {
            true => Region::shared("linerate-slots", 3 * BYTES).unwrap(),
            false => Region::private(3 * BYTES).unwrap(),
        };
        // The transport keeps it.
        let region = Arc::new(region);
        let key = transport.register(region.clone()).unwrap();
        Some(Side {
            rank,
            transport,
            phase: Phase::Ended,
            epoch: 0,
            posts: BTreeMap::new(),
            next_token: 0,
            is_receiving: false,
            has_heard: false,
            memory: region.view().in_region(key, 0),
            key,
        })
    }

    fn peer(&self) -> Rank {
        1 - self.rank
    }

    fn connect(&mut self, address: &super::Address) {
        self.epoch += 1;
        self.phase = Phase::Connecting;
        (self.transport.connect(self.peer(), address)).expect("the slot is not in use");
    }

    fn disconnect(&mut self) {
        self.transport.disconnect(self.peer());
        self.phase = Phase::Ended;
    }

    fn note(&mut self, posted: Result<(), PostError>) -> bool {
        let is_accepted = posted.is_ok();
        if is_accepted {
            self.posts.insert(self.next_token, self.epoch);
        }
        self.next_token += 1;
        is_accepted
    }

    /// Sends or puts something that says its epoch.
    fn post(&mut self, prng: &mut Prng, other: RegionKey) {
        let (peer, token) = (self.peer(), self.next_token);
        let (at, bytes) = match prng.below(2) {
            0 => (BYTES, 8),
            _ => (2 * BYTES, BYTES),
        };
        let source = self.memory.part(at, bytes);
        let posted = match prng.below(3) {
            0 => {
                kernel::store(self.memory.part(BYTES, 8), 0, self.epoch);
                let place = RemoteRange {
                    key: other,
                    offset: WORD,
                };
                let source = self.memory.part(BYTES, 8);
                self.transport.test_put(peer, source, place, token)
            }
            _ => (self.transport).test_send(peer, TAG, self.epoch, source, token),
        };
        self.note(posted);
    }

    fn receive(&mut self) {
        if !self.is_receiving {
            let place = self.memory.part(BYTES, BYTES);
            let (peer, token) = (self.peer(), self.next_token);
            let posted = self.transport.test_recv(peer, TAG, place, token);
            self.is_receiving = self.note(posted);
        }
    }

    /// Polls, and notes which epochs have met.
    fn poll(&mut self, now: Time, met: &mut BTreeSet<[u64; 2]>) {
        let mut events = Vec::new();
        self.transport.poll(now, &mut events);
        self.transport.poll_slow(now, &mut events);
        for event in events {
            match event {
                Event::Connected(peer) if peer == self.peer() => {
                    assert_eq!(self.phase, Phase::Connecting, "rank {}", self.rank);
                    let is_old = |of: &&u64| **of < self.epoch;
                    assert_eq!(self.posts.values().find(is_old), None);
                    self.phase = Phase::Connected;
                    (self.has_heard, self.is_receiving) = (false, false);
                    kernel::store(self.memory.part(WORD as usize, 8), 0, 0u64);
                    let _ = self.transport.export(peer, self.key);
                }
                Event::PeerFailed(..) | Event::PeerLeft(..) => {
                    assert_ne!(self.phase, Phase::Ended, "rank {}: {event:?}", self.rank);
                    self.phase = Phase::Ended;
                }
                Event::Completion(end) => {
                    let of = self
                        .posts
                        .remove(&end.token)
                        .expect("posted, and not ended");
                    let is_old = of < self.epoch;
                    assert!(!(is_old && self.phase == Phase::Connected), "{end:?}");
                    if end.header > 0 {
                        self.meet([of, end.header], met);
                    }
                    if end.header > 0 && !is_old {
                        (self.has_heard, self.is_receiving) = (true, false);
                    }
                }
                _ => {}
            }
        }
        let put = kernel::load::<u64>(self.memory.part(WORD as usize, 8), 0);
        if self.phase == Phase::Connected && put > 0 {
            self.meet([self.epoch, put], met);
        }
    }

    /// These epochs of the two sides have met.
    fn meet(&self, [own, theirs]: [u64; 2], met: &mut BTreeSet<[u64; 2]>) {
        let pair = match self.rank {
            0 => [own, theirs],
            _ => [theirs, own],
        };
        met.insert(pair);
        for side in 0..2 {
            let same = met.iter().filter(|other| other[side] == pair[side]);
            assert_eq!(same.count(), 1, "one epoch met several: {met:?}");
        }
    }
}

fn check(name: &str, ranks: u32, hosts: [u64; 2], seed: u64) {
    let mut sides = Vec::new();
    for rank in 0..2 {
        let options = Options {
            host: hosts[rank as usize],
            ..Options::default()
        };
        match Side::new(name, rank, ranks, &options) {
            Some(side) => sides.push(side),
            None => return,
        }
    }
    let addresses = [0, 1].map(|rank: usize| sides[rank].transport.local_address());
    let keys = [0, 1].map(|rank: usize| sides[rank].key);
    let (mut prng, mut met) = (Prng::new(seed), BTreeSet::new());
    let (mut step, mut at) = (0, 0);
    while step < STEPS || !sides.iter().all(|side| side.has_heard) {
        if step > STEPS_MAX {
            let phases: Vec<_> = sides.iter().map(|side| (side.phase, side.epoch)).collect();
            panic!("{name}, seed {seed}: they do not meet: {phases:?}");
        }
        if prng.below(RUN) == 0 {
            at = prng.below(2) as usize;
        }
        let side = &mut sides[at];
        let is_random = step < STEPS;
        match prng.below(100) {
            0..2 if is_random => side.disconnect(),
            0..20 if side.phase == Phase::Ended => side.connect(&addresses[1 - at]),
            20..40 if side.phase == Phase::Connected => side.receive(),
            40..60 if side.phase == Phase::Connected => side.post(&mut prng, keys[1 - at]),
            60.. => side.poll(Time(1 + u64::from(step) * STEP_NS), &mut met),
            _ => {}
        }
        step += 1;
    }
}

fn check_seeds(name: &str, ranks: u32, hosts: [u64; 2]) {
    for seed in 0..6 {
        check(name, ranks, hosts, seed);
    }
}

#[test]
fn epochs_of_shared_memory_meet_one_to_one() {
    check_seeds("shm", 2, [0, 0]);
}

#[test]
fn epochs_of_connections_meet_one_to_one() {
    check_seeds("tcp", 2, [0, 0]);
    // Here connections are made at the first use.
    check_seeds("tcp", 40, [0, 0]);
}

#[test]
fn epochs_of_queue_pairs_meet_one_to_one() {
    check_seeds("verbs", 2, [0, 0]);
    check_seeds("verbs", 40, [0, 0]);
}

#[test]
fn epochs_of_a_router_meet_one_to_one() {
    check_seeds("router", 2, [0, 0]);
    check_seeds("router", 2, [0, 1]);
}
