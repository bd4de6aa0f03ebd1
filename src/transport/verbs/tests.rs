//! Tests of fork(), which take unsafe code, and of memory that says it is a dma-buf, since a
//! machine without a GPU has none.

use crate::kernel;
use crate::memory::{Region, child};
use crate::time::Time;
use crate::transport::test_posts::TestPosts;
use crate::transport::{Event, Options, Outcome, Transport, open};
use rustix::fs::{MemfdFlags, ftruncate, memfd_create};
use std::sync::Arc;

fn poll(transport: &mut dyn Transport, events: &mut Vec<Event>) {
    transport.poll(Time(1), events);
    transport.poll_slow(Time(1), events);
}

/// The child writes to the memory, and ends; the parent's device goes on with the parent's pages.
#[test]
fn after_a_fork_the_parents_registered_memory_is_the_parents() {
    let opened = [0, 1].map(|rank| open("verbs", rank, 2, 0, &Options::default()));
    let [Ok(mut one), Ok(mut two)] = opened else {
        println!(
            "skipped: fork: {:?}",
            opened.into_iter().find_map(Result::err)
        );
        return;
    };
    one.connect(1, &two.local_address()).unwrap();
    two.connect(0, &one.local_address()).unwrap();
    let bytes = 100_000;
    let regions = [(); 2].map(|()| Arc::new(Region::private(bytes).unwrap()));
    let source = one.register(regions[0].clone()).unwrap();
    let place = two.register(regions[1].clone()).unwrap();
    let [source, place] =
        [(0, source), (1, place)].map(|(i, key)| regions[i].view().in_region(key, 0));
    for round in 0..6u8 {
        kernel::fill(source, round + 1);
        let forked = child::spawn(|| {
            kernel::fill(source, 0xcc);
            kernel::fill(place, 0xcc);
            0
        });
        two.test_recv(0, 5, place, 1).unwrap();
        let mut events = [Vec::new(), Vec::new()];
        // The first message waits for queue pairs, which both sides make.
        while one.test_send(1, 5, 0, source, 2).is_err() {
            poll(one.as_mut(), &mut events[0]);
            poll(two.as_mut(), &mut events[1]);
        }
        let is_done = |events: &[Event]| {
            let is_end = |event: &Event| matches!(event, Event::Completion(end) if end.outcome == Outcome::Done);
            events.iter().any(is_end)
        };
        while !(is_done(&events[0]) && is_done(&events[1])) {
            poll(one.as_mut(), &mut events[0]);
            poll(two.as_mut(), &mut events[1]);
        }
        assert_eq!(child::wait(forked), Some(0));
        let mut found = vec![0; bytes];
        kernel::read(place, 0, &mut found);
        assert!(found.iter().all(|&byte| byte == round + 1), "round {round}");
    }
}

/// Soft-RoCE registers no dma-buf, and refuses before it looks at the descriptor, which is of none.
#[test]
fn a_device_that_cannot_register_a_dmabuf_says_so_by_name() {
    let mut transport = match open("verbs", 0, 2, 0, &Options::default()) {
        Ok(transport) => transport,
        Err(error) => return println!("skipped: dma-buf: {error}"),
    };
    let fd = memfd_create("linerate-test", MemfdFlags::CLOEXEC).unwrap();
    ftruncate(&fd, 8192).unwrap();
    let region = Region::of_dmabuf(fd, 8192).unwrap();
    let text = transport
        .register(Arc::new(region))
        .unwrap_err()
        .to_string();
    assert!(
        text.contains("cannot register a dma-buf of 8192 bytes"),
        "{text}"
    );
    let device = &transport.ports()[0].device;
    assert!(text.contains(device.as_str()), "{text}");
    // What it can register still has the first name.
    let region = Arc::new(Region::private(8192).unwrap());
    assert_eq!(transport.register(region).unwrap().0, 1);
}
