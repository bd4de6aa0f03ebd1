//! What messages cost, to the nanosecond.

use super::super::{Hosts, Link};
use super::{Job, LINK, MEGABYTE, plain};
use crate::kernel;
use crate::transport::RemoteRange;
use crate::transport::test_posts::TestPosts;

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
    kernel::fill(source, 7);
    let place = RemoteRange { key, offset: 16 };
    job.at(0).test_put(1, source, place, 1).unwrap();
    job.run_until(1_100 + MEGABYTE as u64 - 1);
    assert_eq!(kernel::load::<u8>(job.memory[1], 16), 0);
    job.run_until(1_100 + MEGABYTE as u64);
    assert_eq!(kernel::load::<u8>(job.memory[1], 16), 7);
    job.run();
    assert_eq!(job.end_ns(0, 1), 2_100 + MEGABYTE as u64);

    let mut job = Job::new(plain(2));
    let (key, into) = (job.key(1), job.part(0, MEGABYTE));
    kernel::fill(job.memory[1], 8);
    let place = RemoteRange { key, offset: 0 };
    job.at(0).test_get(1, place, into, 1).unwrap();
    job.run();
    assert_eq!(job.end_ns(0, 1), 2_200 + MEGABYTE as u64);
    assert_eq!(kernel::load::<u8>(into, MEGABYTE - 1), 8);
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
    job.at(1).test_recv(0, 6, destination, 3).unwrap();
    let source = job.part(0, 8);
    job.at(0).test_send(1, 6, 0, source, 4).unwrap();
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
        nics: 2,
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
