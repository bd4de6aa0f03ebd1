//! Chunks that come before their receives: they wait a poll for them, and no longer.

use super::TcpTransport;
use crate::config::TcpSettings;
use crate::kernel;
use crate::memory::{Region, View};
use crate::time::Time;
use crate::transport::test_posts::TestPosts;
use crate::transport::{Event, Transport};
use std::sync::Arc;

/// More than is copied into the stream, and two of them fit the buffers of any new connection.
const BYTES: usize = 16 * 1024;
/// Far more than anything here takes.
const POLLS_MAX: usize = 10_000_000;

fn poll(transport: &mut TcpTransport) -> Vec<u64> {
    let mut events = Vec::new();
    transport.poll(Time::default(), &mut events);
    let tokens = events.into_iter().filter_map(|event| match event {
        Event::Completion(completion) => Some(completion.token),
        _ => None,
    });
    tokens.collect()
}

/// Two connected ranks, and registered memory of the first.
pub(super) fn pair(rails: u32) -> (TcpTransport, TcpTransport, View) {
    let settings = TcpSettings {
        rails,
        ..TcpSettings::default()
    };
    let [mut from, mut to] = [0, 1].map(|rank| TcpTransport::new(rank, 2, &settings).unwrap());
    let addresses = [from.local_address(), to.local_address()];
    from.connect(1, &addresses[1]).unwrap();
    to.connect(0, &addresses[0]).unwrap();
    let mut events = Vec::new();
    let is_connected = |transport: &TcpTransport| transport.rails_count == rails as usize;
    let mut looks = 0..POLLS_MAX;
    while !(is_connected(&from) && is_connected(&to)) {
        looks.next().expect("no connection");
        for transport in [&mut from, &mut to] {
            transport.poll_slow(Time::default(), &mut events);
            transport.poll(Time::default(), &mut events);
        }
    }
    let region = Arc::new(Region::private(2 * BYTES).unwrap());
    let key = from.register(region.clone()).unwrap();
    let view = region.view().in_region(key, 0);
    kernel::fill(view.part(0, BYTES), 1);
    kernel::fill(view.part(BYTES, BYTES), 2);
    (from, to, view)
}

/// Sends two messages, of which the first has a receive, and polls until that has ended: both are
/// there then, since the other side's kernel has all of them before the first poll.
fn receive_first(from: &mut TcpTransport, to: &mut TcpTransport, view: View, into: View) {
    to.test_recv(0, 1, into.part(0, BYTES), 1).unwrap();
    for tag in [1, 2] {
        let part = view.part((tag as usize - 1) * BYTES, BYTES);
        from.test_send(1, tag, 0, part, tag).unwrap();
    }
    assert!(!from.peers[1].has_output(), "the kernel took all of it");
    let mut looks = 0..POLLS_MAX;
    while poll(to).is_empty() {
        looks.next().expect("the first message never came");
    }
}

fn wait_for_second(to: &mut TcpTransport, into: View) {
    let mut looks = 0..POLLS_MAX;
    while poll(to) != [2] {
        looks.next().expect("the second message never came");
    }
    let is_right = |at: usize| kernel::load::<u8>(into, at) == 1 + (at / BYTES) as u8;
    assert!((0..2 * BYTES).all(is_right));
}

#[test]
fn a_receive_that_is_posted_after_the_poll_that_found_the_chunk_gets_it_without_a_copy() {
    // Polled one by one, and through the kernel's list of those that have something.
    for rails in [1, 8] {
        let (mut from, mut to, view) = pair(rails);
        let region = Region::private(2 * BYTES).unwrap();
        let into = region.view();
        receive_first(&mut from, &mut to, view, into);
        to.test_recv(0, 2, into.part(BYTES, BYTES), 2).unwrap();
        wait_for_second(&mut to, into);
        assert_eq!(to.shared.counts.chunks_staged, 0, "{rails} rails");
    }
}

#[test]
fn a_chunk_without_a_receive_holds_its_rail_up_for_one_poll_only() {
    for rails in [1, 8] {
        let (mut from, mut to, view) = pair(rails);
        let region = Region::private(2 * BYTES).unwrap();
        let into = region.view();
        receive_first(&mut from, &mut to, view, into);
        assert_eq!(to.shared.counts.chunks_staged, 0, "{rails} rails");
        assert!(poll(&mut to).is_empty());
        assert_eq!(to.shared.counts.chunks_staged, 1, "{rails} rails");
        to.test_recv(0, 2, into.part(BYTES, BYTES), 2).unwrap();
        wait_for_second(&mut to, into);
    }
}
