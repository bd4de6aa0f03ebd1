//! What the model promises beyond the contract: times to the nanosecond, and faults.

mod faults;
mod times;

use super::{Link, SimOptions, SimTransport, World};
use crate::kernel;
use crate::memory::{Region, RegionKey, View};
use crate::time::Time;
use crate::transport::test_posts::TestPosts;
use crate::transport::{
    Completion, Event, Mapping, Outcome, RemoteRange, Rma, Signals, Transport, WaitSource,
};
use crate::types::Rank;
use std::sync::Arc;

/// 1 us, 1 GB/s (so that a byte is a nanosecond), 100 ns per message.
const LINK: Link = Link {
    latency_ns: 1_000,
    bytes_per_second: 1_000_000_000,
    per_message_ns: 100,
    jitter_ns: 0,
};

const MEGABYTE: usize = 1_000_000;

fn plain(ranks: u32) -> SimOptions {
    SimOptions {
        network: LINK,
        ..SimOptions::new(ranks, 1)
    }
}

/// All ranks of a world, connected, each with a registered and exported region of its own, and what
/// they have been told.
struct Job {
    world: World,
    ranks: Vec<Option<SimTransport>>,
    memory: Vec<View>,
    /// (time since the connections stood, rank, event).
    log: Vec<(u64, Rank, Event)>,
    start_ns: u64,
}

impl Job {
    fn new(options: SimOptions) -> Job {
        let count = options.ranks;
        let world = World::new(options);
        let mut job = Job {
            ranks: (0..count).map(|rank| Some(world.transport(rank))).collect(),
            memory: Vec::new(),
            log: Vec::new(),
            start_ns: 0,
            world,
        };
        for rank in 0..count {
            for peer in 0..count {
                job.connect(rank, peer);
            }
        }
        job.run();
        for rank in 0..count {
            let region = Arc::new(Region::private(2 * MEGABYTE).unwrap());
            let view = region.view();
            let key = job.at(rank).register(region).unwrap();
            job.memory.push(view.in_region(key, 0));
            (0..count).for_each(|peer| job.at(rank).export(peer, key).unwrap());
        }
        job.run();
        job.log.clear();
        job.start_ns = job.world.now().0;
        job
    }

    fn at(&mut self, rank: Rank) -> &mut SimTransport {
        self.ranks[rank as usize].as_mut().expect("dropped")
    }

    fn connect(&mut self, rank: Rank, peer: Rank) {
        let address = self.at(peer).local_address();
        self.at(rank).connect(peer, &address).unwrap();
    }

    fn collect(&mut self) {
        let mut ready = Vec::new();
        self.world.take_ready(&mut ready);
        let now = self.world.now();
        for rank in ready {
            let mut events = Vec::new();
            if let Some(transport) = &mut self.ranks[rank as usize] {
                transport.poll(now, &mut events);
            }
            let at_ns = now.0 - self.start_ns;
            self.log
                .extend(events.into_iter().map(|e| (at_ns, rank, e)));
        }
    }

    fn run(&mut self) {
        self.collect();
        while self.world.advance() {
            self.collect();
        }
    }

    fn run_until(&mut self, at_ns: u64) {
        self.world.wake_at(0, Time(self.start_ns + at_ns));
        while self.world.now().0 < self.start_ns + at_ns && self.world.advance() {
            self.collect();
        }
    }

    fn key(&self, rank: Rank) -> RegionKey {
        self.memory[rank as usize].key()
    }

    fn part(&self, rank: Rank, bytes: usize) -> View {
        self.memory[rank as usize].part(0, bytes)
    }

    fn send(&mut self, from: Rank, to: Rank, bytes: usize, token: u64) {
        let source = self.part(from, bytes);
        self.at(from).test_send(to, 5, 9, source, token).unwrap();
    }

    fn receive(&mut self, at: Rank, from: Rank, bytes: usize, token: u64) {
        let destination = self.memory[at as usize].part(MEGABYTE, bytes);
        self.at(at).test_recv(from, 5, destination, token).unwrap();
    }

    /// When a token completed at a rank and how; panics unless exactly once.
    fn end(&self, rank: Rank, token: u64) -> (u64, Completion) {
        let mut ends = self.log.iter().filter_map(|(at, of, event)| match event {
            Event::Completion(c) if *of == rank && c.token == token => Some((*at, *c)),
            _ => None,
        });
        let end = ends.next();
        assert!(ends.next().is_none(), "token {token} completed twice");
        end.unwrap_or_else(|| panic!("token {token} never completed at rank {rank}"))
    }

    fn end_ns(&self, rank: Rank, token: u64) -> u64 {
        self.end(rank, token).0
    }

    fn failures(&self, rank: Rank) -> Vec<(u64, Rank, String)> {
        let failure = |(at, of, event): &(u64, Rank, Event)| match event {
            Event::PeerFailed(peer, text) if *of == rank => Some((*at, *peer, text.clone())),
            Event::PeerLeft(peer, word) if *of == rank => {
                Some((*at, *peer, format!("it has left with word {word}")))
            }
            _ => None,
        };
        self.log.iter().filter_map(failure).collect()
    }
}

#[test]
fn ready_names_receivers_of_puts_and_wake_ups_and_senders_that_have_room_again() {
    let mut job = Job::new(plain(2));
    let ready = |world: &World| {
        let mut ready = Vec::new();
        while world.advance() {}
        world.take_ready(&mut ready);
        ready
    };
    let place = RemoteRange {
        key: job.key(1),
        offset: 0,
    };
    let source = job.part(0, 8);
    job.at(0).test_put(1, source, place, 1).unwrap();
    assert_eq!(ready(&job.world), [1, 0]);
    job.at(0).notify(1);
    assert_eq!(ready(&job.world), [1]);
    while job.at(0).test_send(1, 5, 0, View::empty(), 2).is_ok() {}
    ready(&job.world);
    job.receive(1, 0, 0, 3);
    assert!(ready(&job.world).contains(&0));
    job.at(0).test_send(1, 5, 0, View::empty(), 2).unwrap();
    assert!(matches!(job.at(0).wait_source(), WaitSource::Virtual));
}

#[test]
fn size_only_worlds_move_time_and_signals_but_no_payload() {
    let mut options = plain(2);
    options.size_only = true;
    let mut job = Job::new(options);
    kernel::fill(job.memory[0], 9);
    job.receive(1, 0, MEGABYTE, 1);
    job.send(0, 1, MEGABYTE, 2);
    let region = Arc::new(Region::size_only(1 << 34));
    let ghost = region.view();
    let key = job.at(0).register(region).unwrap();
    let ghost = ghost.in_region(key, 0);
    job.at(1)
        .test_recv(0, 6, View::size_only(1 << 34), 3)
        .unwrap();
    job.run();
    assert_eq!(job.end_ns(1, 1), 1_100 + MEGABYTE as u64);
    assert_eq!(kernel::load::<u8>(job.memory[1], MEGABYTE), 0);
    job.at(0).test_send(1, 6, 0, ghost, 4).unwrap();
    job.receive(1, 0, 64, 5);
    job.send(0, 1, 64, 6);
    job.run();
    assert_eq!(job.end(1, 3).1.bytes, 1 << 34);
    assert_eq!(kernel::load::<u8>(job.memory[1], MEGABYTE), 9);
}

#[test]
fn a_region_that_was_not_exported_cannot_be_reached() {
    let mut job = Job::new(plain(2));
    let region = Arc::new(Region::private(64).unwrap());
    let key = job.at(1).register(region).unwrap();
    let place = RemoteRange { key, offset: 0 };
    let source = job.part(0, 8);
    job.at(0).test_put(1, source, place, 1).unwrap();
    job.run();
    assert_eq!(job.end(0, 1).1.outcome, Outcome::BadKey);
    job.at(1).export(0, key).unwrap();
    job.at(0).test_put(1, source, place, 2).unwrap();
    job.run();
    assert_eq!(job.end(0, 2).1.outcome, Outcome::Done);
}

#[test]
fn mapped_memory_is_known_after_a_latency_and_held_until_the_next_poll() {
    let mut options = plain(2);
    options.mapped = true;
    let mut job = Job::new(options);
    let region = Arc::new(Region::private(64).unwrap());
    let weak = Arc::downgrade(&region);
    let key = job.at(1).register(region).unwrap();
    assert!(job.at(0).mapped(1, key).unwrap().is_none(), "not exported");
    job.at(1).export(0, key).unwrap();
    assert!(job.at(0).mapped(1, key).unwrap().is_none(), "on its way");
    job.run();
    let view = job.at(0).mapped(1, key).unwrap().unwrap();
    kernel::store(view, 0, 3u64);
    job.at(1).deregister(key).unwrap();
    assert!(weak.upgrade().is_some(), "rank 0 has not polled");
    assert!(job.at(0).mapped(1, key).unwrap().is_none());
    job.run();
    assert!(weak.upgrade().is_none());
}

#[test]
fn a_thousand_ranks_step_each_other_and_leave_nothing_behind() {
    let count = 1024;
    let world = World::new(SimOptions::new(count, 3));
    let mut ranks: Vec<_> = (0..count).map(|rank| world.transport(rank)).collect();
    for rank in 0..count {
        for peer in [(rank + 1) % count, (rank + count - 1) % count] {
            let address = ranks[peer as usize].local_address();
            ranks[rank as usize].connect(peer, &address).unwrap();
        }
    }
    let rounds = 1 + speed_rounds();
    let mut sent = vec![0; count as usize];
    let (mut ready, mut events, mut received) = (Vec::new(), Vec::new(), 0);
    while world.advance() {
        world.take_ready(&mut ready);
        for rank in ready.drain(..) {
            let (own, next) = (&mut ranks[rank as usize], (rank + 1) % count);
            own.poll(world.now(), &mut events);
            for event in events.drain(..) {
                let is_next = matches!(event, Event::Connected(peer) if peer == next);
                let is_receive = matches!(event, Event::Completion(c) if c.token == 1);
                if matches!(event, Event::Connected(peer) if peer != next) || is_receive {
                    let previous = (rank + count - 1) % count;
                    own.test_recv(previous, 1, View::size_only(64), 1).unwrap();
                }
                received += u64::from(is_receive);
                if (is_next || is_receive) && sent[rank as usize] < rounds {
                    sent[rank as usize] += 1;
                    own.test_send(next, 1, 0, View::size_only(64), 2).unwrap();
                }
            }
        }
    }
    assert_eq!(received, u64::from(count) * rounds);
    assert_eq!(world.remembered_operations(), 0);
}

/// Rounds of the test above; LINERATE_SIM_ROUNDS=1000 makes it a speed test of a million messages.
fn speed_rounds() -> u64 {
    let text = std::env::var("LINERATE_SIM_ROUNDS").unwrap_or_default();
    text.parse().unwrap_or(8)
}
