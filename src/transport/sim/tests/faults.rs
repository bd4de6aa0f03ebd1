//! Seeds, losses, duplicates, partitions, deaths and epochs.

use super::super::{SimOptions, World};
use super::{Job, LINK, MEGABYTE, plain};
use crate::memory::{Region, View};
use crate::transport::test_posts::TestPosts;
use crate::transport::{Event, Outcome, PostError, RemoteRange, Transport};
use crate::types::Rank;
use std::sync::Arc;

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
            job.at(from).test_put(to, source, place, token).unwrap();
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
    job.send(3, 0, 100, 9);
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
    let refused = job.at(0).test_send(2, 5, 0, source, 3);
    assert_eq!(refused, Err(PostError::PeerFailed));

    job.receive(0, 3, 100, 8);
    job.run();
    assert_eq!(job.end(0, 8).1.outcome, Outcome::Done, "it had arrived");

    // After healing, connecting again opens a new epoch in which nothing old is heard of.
    job.world.heal();
    job.connect(0, 3);
    job.connect(3, 0);
    job.run();
    job.receive(3, 0, 100, 4);
    job.send(0, 3, 100, 5);
    job.run();
    assert_eq!(job.end(3, 4).1.bytes, 100);
    assert_eq!(job.world.remembered_operations(), 0);
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
    job.at(0).test_send(1, 5, 77, source, 2).unwrap();
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
    assert!(job.failures(1)[0].2.contains("it has left with word 0"));
}

#[test]
fn what_a_rank_has_sent_arrives_before_the_news_that_it_has_left() {
    let mut job = Job::new(plain(2));
    job.receive(1, 0, MEGABYTE, 1);
    job.send(0, 1, MEGABYTE, 2);
    job.send(0, 1, 60_000, 3);
    let place = RemoteRange {
        key: job.key(1),
        offset: MEGABYTE as u64 + 500_000,
    };
    let source = job.part(0, 50_000);
    job.at(0).test_put(1, source, place, 4).unwrap();
    assert!(job.at(0).leave(9));
    let refused = job.at(0).test_send(1, 5, 0, View::empty(), 5);
    assert_eq!(refused, Err(PostError::PeerFailed));
    job.ranks[0] = None;
    job.run();
    let failures = job.failures(1);
    assert_eq!(failures.len(), 1, "{failures:?}");
    assert!(failures[0].2.contains("word 9"), "{failures:?}");
    let end = job.end(1, 1);
    assert_eq!(end.1.outcome, Outcome::Done);
    assert!(end.0 < failures[0].0, "{failures:?}");
    // Its memory is gone, and the second message is here.
    job.receive(1, 0, MEGABYTE, 6);
    job.run();
    assert_eq!(
        (job.end(1, 6).1.outcome, job.end(1, 6).1.bytes),
        (Outcome::Done, 60_000)
    );
    assert_eq!(job.world.remembered_operations(), 0);
}

#[test]
fn what_had_arrived_before_a_failure_can_be_received_after_it_until_the_next_connection() {
    let mut job = Job::new(plain(2));
    job.send(0, 1, 64, 1);
    job.send(0, 1, 64, 2);
    job.run();
    job.ranks[0] = None;
    job.run();
    job.receive(1, 0, 64, 3);
    job.run();
    assert_eq!(job.end(1, 3).1.outcome, Outcome::Done);
    let late = job.at(1).test_recv(0, 6, View::empty(), 4);
    assert_eq!(late, Err(PostError::PeerFailed), "no message of this tag");
    job.at(1).disconnect(0);
    assert_eq!(job.world.remembered_operations(), 0);
    assert!(job.failures(1)[0].2.contains("it has left with word 0"));
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
        job.at(0).test_send(1, 5, 44, View::empty(), 5).unwrap();
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
        a.test_send(1, 1, 2, View::empty(), 3),
        Err(PostError::WouldBlock)
    );
    while world.advance() {}
    a.test_send(1, 1, 2, View::empty(), 3).unwrap();
    while world.advance() {}
    b.connect(0, &a.local_address()).unwrap();
    while world.advance() {}
    b.test_recv(0, 1, View::empty(), 4).unwrap();
    b.poll(world.now(), &mut events);
    assert!(matches!(events[..], [Event::Connected(0), Event::Completion(c)] if c.header == 2));
}
