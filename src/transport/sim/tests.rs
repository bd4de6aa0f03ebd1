//! What the model promises beyond the contract: times to the nanosecond, and faults.

use super::{Hosts, Link, SimOptions, SimTransport, World};
use crate::memory::{Region, RegionKey, View};
use crate::time::Time;
use crate::transport::{Completion, Event, Outcome, PostError, RemoteRange, Transport, WaitSource};
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
        self.at(from).post_send(to, 5, 9, source, token).unwrap();
    }

    fn receive(&mut self, at: Rank, from: Rank, bytes: usize, token: u64) {
        let destination = self.memory[at as usize].part(MEGABYTE, bytes);
        self.at(at).post_recv(from, 5, destination, token).unwrap();
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
            _ => None,
        };
        self.log.iter().filter_map(failure).collect()
    }
}

#[test]
fn a_message_takes_latency_plus_cost_plus_bytes_over_bandwidth() {
    for bytes in [0, 1, 4096, 4097, MEGABYTE] {
        let mut job = Job::new(plain(2));
        job.receive(1, 0, bytes, 1);
        job.send(0, 1, bytes, 2);
        job.run();
        assert_eq!(job.end_ns(1, 1), 1_100 + bytes as u64, "{bytes} bytes");
        let sent_ns = if bytes <= 4096 {
            0 // copied
        } else {
            2_100 + bytes as u64 // read where it lies, and acknowledged
        };
        assert_eq!(job.end_ns(0, 2), sent_ns, "{bytes} bytes");
    }
}

#[test]
fn puts_and_gets_take_their_one_and_two_ways() {
    let mut job = Job::new(plain(2));
    let (source, key) = (job.part(0, MEGABYTE), job.key(1));
    source.fill(7);
    let place = RemoteRange { key, offset: 16 };
    job.at(0).post_put(1, source, place, 1).unwrap();
    job.run_until(1_100 + MEGABYTE as u64 - 1);
    assert_eq!(job.memory[1].load::<u8>(16), 0);
    job.run_until(1_100 + MEGABYTE as u64);
    assert_eq!(job.memory[1].load::<u8>(16), 7);
    job.run();
    assert_eq!(job.end_ns(0, 1), 2_100 + MEGABYTE as u64);

    let mut job = Job::new(plain(2));
    let (key, into) = (job.key(1), job.part(0, MEGABYTE));
    job.memory[1].fill(8);
    let place = RemoteRange { key, offset: 0 };
    job.at(0).post_get(1, place, into, 1).unwrap();
    job.run();
    assert_eq!(job.end_ns(0, 1), 2_200 + MEGABYTE as u64);
    assert_eq!(into.load::<u8>(MEGABYTE - 1), 8);
}

#[test]
fn a_late_receive_of_a_large_message_costs_one_more_round_trip() {
    let mut job = Job::new(plain(2));
    job.send(0, 1, 10_000, 1);
    job.run_until(5_000);
    job.receive(1, 0, 10_000, 2);
    job.run();
    assert_eq!(job.end_ns(1, 2), 5_000 + 2_000 + 10_000);
}

#[test]
fn two_senders_into_one_receiver_take_twice_as_long() {
    let mut job = Job::new(plain(3));
    for from in [0, 1] {
        job.receive(2, from, MEGABYTE, u64::from(from));
        job.send(from, 2, MEGABYTE, 9);
    }
    job.run();
    let last = job.end_ns(2, 0).max(job.end_ns(2, 1));
    assert!((2_000_000..2_002_000).contains(&last), "{last} ns");
}

#[test]
fn one_sender_to_two_receivers_takes_twice_as_long_and_two_directions_do_not() {
    let mut job = Job::new(plain(3));
    for to in [1, 2] {
        job.receive(to, 0, MEGABYTE, 7);
        job.send(0, to, MEGABYTE, u64::from(to));
    }
    job.run();
    let last = job.end_ns(1, 7).max(job.end_ns(2, 7));
    assert!((2_000_000..2_002_000).contains(&last), "{last} ns");

    let mut job = Job::new(plain(2));
    for (from, to) in [(0, 1), (1, 0)] {
        job.receive(to, from, MEGABYTE, 7);
        job.send(from, to, MEGABYTE, 8);
    }
    job.run();
    assert_eq!(job.end_ns(1, 7), 1_100 + MEGABYTE as u64);
    assert_eq!(job.end_ns(0, 7), 1_100 + MEGABYTE as u64);
}

#[test]
fn a_signal_is_not_stuck_behind_a_large_message() {
    let mut job = Job::new(plain(2));
    job.receive(1, 0, MEGABYTE, 1);
    job.send(0, 1, MEGABYTE, 2);
    job.run_until(50_000);
    let destination = job.memory[1].part(0, 8);
    job.at(1).post_recv(0, 6, destination, 3).unwrap();
    let source = job.part(0, 8);
    job.at(0).post_send(1, 6, 0, source, 4).unwrap();
    job.run();
    assert_eq!(job.end_ns(1, 3), 50_000 + 1_108);
}

#[test]
fn ranks_of_one_host_use_their_own_link() {
    let link = Link {
        latency_ns: 10,
        per_message_ns: 1,
        ..LINK
    };
    let mut options = plain(4);
    options.hosts = Some(Hosts {
        ranks_per_host: 2,
        link,
    });
    let mut job = Job::new(options);
    for to in [1, 2] {
        job.receive(to, 0, 100, 1);
        job.send(0, to, 100, u64::from(to));
    }
    job.run();
    assert_eq!((job.end_ns(1, 1), job.end_ns(2, 1)), (111, 1_200));
}

/// Traffic of every kind and size between four ranks; returns what happened when.
fn mixed_traffic(options: SimOptions) -> Job {
    let mut job = Job::new(options);
    for round in 0..30u64 {
        for (from, to) in [(0, 1), (1, 2), (2, 3), (3, 0), (0, 2)] {
            let bytes = [0, 8, 4096, 5_000, 60_000][(round % 5) as usize];
            job.receive(to, from, bytes, 1_000 * u64::from(from + 1) + round);
            job.send(from, to, bytes, 10_000 * u64::from(to + 1) + round);
            let place = RemoteRange {
                key: job.key(to),
                offset: MEGABYTE as u64 + 500_000,
            };
            let source = job.part(from, bytes);
            let token = 100_000 * u64::from(to + 1) + round;
            job.at(from).post_put(to, source, place, token).unwrap();
        }
    }
    job.run();
    assert_eq!(
        job.log.len(),
        30 * 5 * 3,
        "exactly one completion for every post"
    );
    assert_eq!(job.world.remembered_operations(), 0);
    job
}

#[test]
fn the_same_seed_gives_the_same_run_and_another_seed_another() {
    let run = |seed| {
        let options = SimOptions {
            network: LINK,
            ..SimOptions::new(4, seed)
        };
        mixed_traffic(options.hostile()).log
    };
    assert_eq!(run(1), run(1));
    assert_ne!(run(1), run(2));
}

#[test]
fn lost_packets_are_sent_again_and_cost_the_timeout() {
    let mut options = plain(4);
    let quiet = mixed_traffic(options.clone());
    options.drop = 0.2;
    let lossy = mixed_traffic(options);
    let retransmits = |job: &Job| -> u64 {
        (0..4)
            .map(|rank| job.world.statistics(rank).retransmits)
            .sum()
    };
    assert_eq!(retransmits(&quiet), 0);
    assert!(retransmits(&lossy) > 10, "{}", retransmits(&lossy));
    let end = |job: &Job| job.log.last().map(|(at, ..)| *at).unwrap();
    assert!(end(&lossy) > end(&quiet) + 100_000);
}

#[test]
fn second_copies_are_thrown_away() {
    let mut options = plain(4);
    options.duplicate = 0.5;
    let job = mixed_traffic(options);
    let thrown: u64 = (0..4)
        .map(|rank| job.world.statistics(rank).duplicates)
        .sum();
    assert!(thrown > 50, "{thrown}");
}

#[test]
fn a_partition_that_heals_in_time_only_delays() {
    let mut job = Job::new(plain(2));
    job.receive(1, 0, MEGABYTE, 1);
    job.world.partition(&[0], &[1]);
    job.send(0, 1, MEGABYTE, 2);
    job.run_until(500_000);
    assert!(job.log.is_empty());
    job.world.heal();
    job.run();
    assert!(job.failures(0).is_empty() && job.failures(1).is_empty());
    assert_eq!(job.end_ns(1, 1), 500_000 + 1_100 + MEGABYTE as u64);
    assert_eq!(job.end(0, 2).1.outcome, Outcome::Done);
}

#[test]
fn a_partition_that_lasts_makes_both_sides_give_up_and_nobody_else() {
    let mut job = Job::new(plain(4));
    job.receive(2, 0, 100, 1);
    job.send(0, 3, MEGABYTE, 2);
    job.run_until(200_000);
    job.world.partition(&[0, 1], &[2, 3]);
    job.run();
    for rank in 0..4 {
        let failures = job.failures(rank);
        assert_eq!(failures.len(), 2, "rank {rank}: {failures:?}");
        assert!(
            failures
                .iter()
                .all(|f| f.0 == 1_200_000 && f.2.contains("partitioned"))
        );
    }
    assert_eq!(job.end(2, 1).1.outcome, Outcome::Flushed);
    assert_eq!(job.end(0, 2).1.outcome, Outcome::Flushed);
    let source = job.part(0, 8);
    let refused = job.at(0).post_send(2, 5, 0, source, 3);
    assert_eq!(refused, Err(PostError::PeerFailed));

    // After healing, connecting again opens a new epoch in which nothing old is heard of.
    job.world.heal();
    job.connect(0, 3);
    job.connect(3, 0);
    job.run();
    job.receive(3, 0, 100, 4);
    job.send(0, 3, 100, 5);
    job.run();
    assert_eq!(job.end(3, 4).1.bytes, 100);
}

#[test]
fn survivors_learn_of_a_death_once_and_after_the_detection_time() {
    let mut job = Job::new(plain(3));
    job.receive(1, 0, MEGABYTE, 1);
    job.send(0, 1, MEGABYTE, 2);
    job.send(1, 0, MEGABYTE, 3);
    job.run_until(10_000);
    job.world.kill(0);
    job.run();
    for rank in [1, 2] {
        let failures = job.failures(rank);
        assert_eq!(failures.len(), 1);
        assert_eq!((failures[0].0, failures[0].1), (1_010_000, 0));
        assert!(failures[0].2.contains("rank 0 died"), "{}", failures[0].2);
    }
    let event = job
        .log
        .iter()
        .position(|l| matches!(l.2, Event::PeerFailed(..)));
    let flushed = job.log.iter().position(
        |l| matches!(&l.2, Event::Completion(c) if c.outcome == Outcome::Flushed && l.1 == 1),
    );
    assert!(event < flushed, "the cause comes before its consequences");
    assert_eq!(job.end(1, 1).1.outcome, Outcome::Flushed);
    assert_eq!(job.end(1, 3).1.outcome, Outcome::Flushed);
    assert!(!job.log.iter().any(|l| l.1 == 0), "the dead hear nothing");
    assert_eq!(job.world.remembered_operations(), 0);
}

#[test]
fn a_rank_that_died_comes_back_as_a_stranger() {
    let mut job = Job::new(plain(2));
    job.world.kill(0);
    job.ranks[0] = Some(job.world.transport(0));
    job.run();
    assert_eq!(job.failures(1).len(), 1);
    job.connect(0, 1);
    job.at(1).disconnect(0);
    job.connect(1, 0);
    job.run();
    job.receive(1, 0, 8, 1);
    let source = View::size_only(8);
    job.at(0).post_send(1, 5, 77, source, 2).unwrap();
    job.run();
    assert_eq!(job.end(1, 1).1.header, 77);
    let mut keys = Vec::new();
    for _ in 0..2 {
        let region = Arc::new(Region::private(8).unwrap());
        keys.push(job.at(0).register(region).unwrap());
    }
    assert!(!keys.contains(&job.key(0)), "keys are never used again");
}

#[test]
fn what_was_on_the_wire_when_its_sender_left_still_arrives() {
    let mut job = Job::new(plain(2));
    job.send(0, 1, 64, 1);
    job.ranks[0] = None;
    job.receive(1, 0, 64, 2);
    job.receive(1, 0, 64, 3);
    job.run();
    assert_eq!(job.end(1, 2).1.outcome, Outcome::Done);
    assert_eq!(job.end(1, 3).1.outcome, Outcome::Flushed);
    assert_eq!(job.world.remembered_operations(), 0);
    assert!(job.failures(1)[0].2.contains("dropped its transport"));
}

#[test]
fn a_reconnected_pair_hears_nothing_of_its_old_epoch() {
    for delay_ns in [0, 500, 1_500, 5_000, 100_000, 2_000_000] {
        let mut job = Job::new(plain(2));
        job.send(0, 1, 8, 1);
        job.send(0, 1, MEGABYTE, 2);
        job.receive(0, 1, 8, 3);
        job.run_until(delay_ns);
        job.at(0).disconnect(1);
        job.at(1).disconnect(0);
        job.collect();
        assert_eq!(job.end(0, 3).1.outcome, Outcome::Flushed);
        job.connect(1, 0);
        job.connect(0, 1);
        job.run();
        job.receive(1, 0, 8, 4);
        job.run();
        let fresh = |l: &&(u64, Rank, Event)| l.1 == 1;
        let told: Vec<_> = job.log.iter().filter(fresh).collect();
        assert_eq!(told.len(), 1, "{told:?}");
        assert!(matches!(told[0].2, Event::Connected(0)));
        job.at(0).post_send(1, 5, 44, View::empty(), 5).unwrap();
        job.run();
        assert_eq!(job.end(1, 4).1.header, 44);
        assert_eq!(job.world.remembered_operations(), 0);
    }
}

#[test]
fn whoever_connects_first_can_send_before_the_other_side_joins() {
    let world = World::new(plain(2));
    let (mut a, mut b) = (world.transport(0), world.transport(1));
    let mut events = Vec::new();
    a.connect(1, &b.local_address()).unwrap();
    assert_eq!(
        a.post_send(1, 1, 2, View::empty(), 3),
        Err(PostError::WouldBlock)
    );
    while world.advance() {}
    a.post_send(1, 1, 2, View::empty(), 3).unwrap();
    while world.advance() {}
    b.connect(0, &a.local_address()).unwrap();
    while world.advance() {}
    b.post_recv(0, 1, View::empty(), 4).unwrap();
    b.poll(world.now(), &mut events);
    assert!(matches!(events[..], [Event::Connected(0), Event::Completion(c)] if c.header == 2));
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
    job.at(0).post_put(1, source, place, 1).unwrap();
    assert_eq!(ready(&job.world), [1, 0]);
    job.at(0).notify(1);
    assert_eq!(ready(&job.world), [1]);
    while job.at(0).post_send(1, 5, 0, View::empty(), 2).is_ok() {}
    ready(&job.world);
    job.receive(1, 0, 0, 3);
    assert!(ready(&job.world).contains(&0));
    job.at(0).post_send(1, 5, 0, View::empty(), 2).unwrap();
    assert!(matches!(job.at(0).wait_source(), WaitSource::Virtual));
}

#[test]
fn size_only_worlds_move_time_and_signals_but_no_payload() {
    let mut options = plain(2);
    options.size_only = true;
    let mut job = Job::new(options);
    job.memory[0].fill(9);
    job.receive(1, 0, MEGABYTE, 1);
    job.send(0, 1, MEGABYTE, 2);
    let region = Arc::new(Region::size_only(1 << 34));
    let ghost = region.view();
    let key = job.at(0).register(region).unwrap();
    let ghost = ghost.in_region(key, 0);
    job.at(1)
        .post_recv(0, 6, View::size_only(1 << 34), 3)
        .unwrap();
    job.run();
    assert_eq!(job.end_ns(1, 1), 1_100 + MEGABYTE as u64);
    assert_eq!(job.memory[1].load::<u8>(MEGABYTE), 0);
    job.at(0).post_send(1, 6, 0, ghost, 4).unwrap();
    job.receive(1, 0, 64, 5);
    job.send(0, 1, 64, 6);
    job.run();
    assert_eq!(job.end(1, 3).1.bytes, 1 << 34);
    assert_eq!(job.memory[1].load::<u8>(MEGABYTE), 9);
}

#[test]
fn a_region_that_was_not_exported_cannot_be_reached() {
    let mut job = Job::new(plain(2));
    let region = Arc::new(Region::private(64).unwrap());
    let key = job.at(1).register(region).unwrap();
    let place = RemoteRange { key, offset: 0 };
    let source = job.part(0, 8);
    job.at(0).post_put(1, source, place, 1).unwrap();
    job.run();
    assert_eq!(job.end(0, 1).1.outcome, Outcome::BadKey);
    job.at(1).export(0, key).unwrap();
    job.at(0).post_put(1, source, place, 2).unwrap();
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
    view.store(0, 3u64);
    job.at(1).deregister(key).unwrap();
    assert!(weak.upgrade().is_some(), "rank 0 has not polled");
    assert!(job.at(0).mapped(1, key).unwrap().is_none());
    job.run();
    assert!(weak.upgrade().is_none());
}

#[test]
fn a_thousand_ranks_fit_and_leave_nothing_behind() {
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
                    own.post_recv(previous, 1, View::size_only(64), 1).unwrap();
                }
                received += u64::from(is_receive);
                if (is_next || is_receive) && sent[rank as usize] < rounds {
                    sent[rank as usize] += 1;
                    own.post_send(next, 1, 0, View::size_only(64), 2).unwrap();
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
