//! What becomes of messages that are read out of the sender's process; here both ranks are one
//! process.

use super::fetch::*;
use super::setup::tests::connected;
use super::{Event, Mapping, Outcome, PostError, ShmTransport, Transport};
use crate::kernel;
use crate::memory::{Region, View};
use crate::time::Time;
use crate::transport::test_posts::TestPosts;
use std::sync::Arc;

#[test]
fn what_lies_in_a_process_is_read_only_with_its_guard() {
    let (source, target) = (
        Region::private(70_000).unwrap(),
        Region::private(70_000).unwrap(),
    );
    let (source, target) = (source.view(), target.view());
    kernel::fill(source, 7);
    fetch_own(source.part(3, 66_001), target.part(1, 66_001)).unwrap();
    let mut bytes = vec![0; 70_000];
    kernel::read(target, 0, &mut bytes);
    assert_eq!(bytes.iter().filter(|&&byte| byte == 7).count(), 66_001);
    assert_eq!((bytes[0], bytes[66_002]), (0, 0));

    let word = 5;
    let guard = Guard::of(&word);
    assert!(Readable::probe(own_process(), guard).is_some());
    let other = Guard { secret: 6, ..guard };
    assert!(Readable::probe(own_process(), other).is_none());
    assert!(Readable::probe(own_process(), Guard::default()).is_none());
    let nowhere = Guard {
        address: 4096,
        ..guard
    };
    assert!(Readable::probe(own_process(), nowhere).is_none());
}

/// Makes memory unreadable and keeps it mapped: else another test's memory could take its place.
fn forbid(view: View) {
    let address = view.as_ptr().cast();
    let nothing = rustix::mm::MprotectFlags::empty();
    // SAFETY: the whole pages of a region that no test touches any more; it unmaps them when it is
    // dropped, as they are.
    unsafe { rustix::mm::mprotect(address, view.len_bytes(), nothing) }.unwrap();
}

#[test]
fn memory_that_is_not_there_is_an_error_whichever_part_is_missing() {
    let word = 5;
    let readable = Readable::probe(own_process(), Guard::of(&word)).unwrap();
    let target = Region::private(8192).unwrap();
    let source = Region::private(4096).unwrap();
    forbid(source.view());
    let end = source.view().as_ptr().addr() as u64 + 4096;
    for address in [4096, end - 4096, u64::MAX - 100] {
        let error = readable.fetch(address, target.view()).unwrap_err();
        assert_eq!(error.raw_os_error(), Some(libc::EFAULT), "{address:#x}");
    }
}

#[test]
fn another_process_with_the_number_of_the_peer_is_not_taken_for_it() {
    let word = 5;
    let mut readable = Readable::probe(own_process(), Guard::of(&word)).unwrap();
    readable.guard.secret = 9;
    let target = Region::private(64).unwrap();
    let error = readable.fetch(target.view().as_ptr().addr() as u64, target.view());
    assert_eq!(error.unwrap_err().raw_os_error(), Some(libc::ESRCH));
}

const BYTES: usize = 100_000;

fn filled(byte: u8) -> Region {
    let region = Region::private(BYTES).unwrap();
    kernel::fill(region.view(), byte);
    region
}

/// Token and outcome of what has ended.
fn ended(transport: &mut ShmTransport) -> Vec<(u64, Outcome)> {
    let mut events = Vec::new();
    transport.poll(Time(0), &mut events);
    transport.poll_slow(Time(0), &mut events);
    let ended = events.iter().filter_map(|event| match event {
        Event::Completion(c) => Some((c.token, c.outcome)),
        _ => None,
    });
    ended.collect()
}

fn is_all(view: View, byte: u8) -> bool {
    let mut bytes = vec![0; view.len_bytes()];
    kernel::read(view, 0, &mut bytes);
    bytes.iter().all(|&b| b == byte)
}

/// Memory of a sender: of a region that peers map, or of none.
fn memory_of(sender: &mut ShmTransport, is_registered: bool) -> (Arc<Region>, View) {
    let region = match is_registered {
        true => Region::shared("linerate-recalled", BYTES).unwrap(),
        false => Region::private(BYTES).unwrap(),
    };
    let region = Arc::new(region);
    kernel::fill(region.view(), 1);
    let view = match is_registered {
        true => {
            let key = sender.register(region.clone()).unwrap();
            region.view().in_region(key, 0)
        }
        false => region.view(),
    };
    (region, view)
}

#[test]
fn what_was_withdrawn_is_not_received_although_it_can_be_read() {
    for (nonce, is_registered) in [(0xfe7c_0000, false), (0xfe7c_0080, true)] {
        withdraw_and_send_again(nonce, is_registered);
    }
}

fn withdraw_and_send_again(nonce: u64, is_registered: bool) {
    let [mut receiver, mut sender] = connected(nonce, [true; 2]);
    let (early, late) = (filled(0), filled(0));
    let (_region, memory) = memory_of(&mut sender, is_registered);
    receiver.test_recv(1, 1, early.view(), 100).unwrap();
    for tag in [1, 2] {
        sender.test_send(0, tag, 0, memory, tag).unwrap();
    }
    assert!(!receiver.has_withdrawn(1));
    sender.withdraw();
    assert!(receiver.has_withdrawn(1) && !receiver.has_withdrawn(0));
    let cancelled = [(1, Outcome::Cancelled), (2, Outcome::Cancelled)];
    assert_eq!(ended(&mut sender), cancelled);
    kernel::fill(memory, 0xee);
    // The first met its receive, the second waits for one.
    assert_eq!(ended(&mut receiver), []);
    receiver.test_recv(1, 2, late.view(), 200).unwrap();
    assert_eq!(ended(&mut receiver), []);
    assert_eq!(ended(&mut sender), [], "they end once");

    kernel::fill(memory, 3);
    for tag in [1, 2] {
        sender.test_send(0, tag, 0, memory, 10 + tag).unwrap();
    }
    assert_eq!(
        ended(&mut receiver),
        [(100, Outcome::Done), (200, Outcome::Done)]
    );
    assert!(is_all(early.view(), 3) && is_all(late.view(), 3));
    assert_eq!(
        ended(&mut sender),
        [(11, Outcome::Done), (12, Outcome::Done)]
    );
    assert_eq!(sender.backlog(0, 1), 0, "what was withdrawn holds no place");
    sender.withdraw();
    assert_eq!(ended(&mut sender), []);
}

#[test]
fn a_sender_that_leaves_takes_its_memory_along() {
    for (nonce, is_registered) in [(0xfe7c_0010, false), (0xfe7c_0090, true)] {
        leave_and_change(nonce, is_registered);
    }
}

fn leave_and_change(nonce: u64, is_registered: bool) {
    let [mut receiver, mut sender] = connected(nonce, [true; 2]);
    let target = filled(0);
    let (_region, memory) = memory_of(&mut sender, is_registered);
    receiver.test_recv(1, 1, target.view(), 100).unwrap();
    sender.test_send(0, 1, 0, memory, 1).unwrap();
    sender.test_send(0, 2, 0, memory, 2).unwrap();
    sender.disconnect(0);
    let flushed = |token| (token, Outcome::Flushed);
    assert_eq!(ended(&mut sender), [flushed(1), flushed(2)]);
    kernel::fill(memory, 0xee);
    assert_eq!(ended(&mut receiver), [flushed(100)]);
    let late = receiver.test_recv(1, 2, target.view(), 200);
    assert_eq!(late, Err(PostError::PeerFailed));
}

#[test]
fn memory_is_read_only_between_ranks_that_both_want_it() {
    for (nonce, wanted) in [
        (0x20, [true, false]),
        (0x30, [false, true]),
        (0x40, [false; 2]),
    ] {
        let mut both = connected(0xfe7c_0000 + nonce, wanted);
        let memory = filled(1);
        for rank in [0, 1] {
            let sender = &mut both[rank as usize];
            assert!(!sender.fetches(1 - rank, BYTES));
            let refused = sender.test_send(1 - rank, 1, 0, memory.view(), 1);
            assert!(matches!(refused, Err(PostError::Invalid(_))), "{refused:?}");
        }
    }
    let [first, second] = connected(0xfe7c_0050, [true; 2]);
    assert!(first.fetches(1, FETCH_BYTES_MIN) && second.fetches(0, FETCH_BYTES_MIN));
    assert!(!first.fetches(1, FETCH_BYTES_MIN - 1) && !first.fetches(2, BYTES));
}

#[test]
fn a_message_that_is_too_long_is_told_and_not_read() {
    let [mut receiver, mut sender] = connected(0xfe7c_0060, [true; 2]);
    let (memory, target) = (filled(1), filled(0));
    let short = target.view().part(0, BYTES - 1);
    receiver.test_recv(1, 1, short, 100).unwrap();
    sender.test_send(0, 1, 0, memory.view(), 1).unwrap();
    assert_eq!(ended(&mut receiver), [(100, Outcome::Truncated)]);
    assert!(is_all(target.view(), 0));
    assert_eq!(ended(&mut sender), [(1, Outcome::Done)]);
}

#[test]
fn memory_that_is_gone_fails_the_peer_and_is_said_to_it() {
    let [mut receiver, mut sender] = connected(0xfe7c_0070, [true; 2]);
    let (memory, target) = (filled(1), filled(0));
    receiver.test_recv(1, 1, target.view(), 100).unwrap();
    sender.test_send(0, 1, 0, memory.view(), 1).unwrap();
    forbid(memory.view());
    let causes = |transport: &mut ShmTransport| {
        let mut events = Vec::new();
        transport.poll(Time(0), &mut events);
        transport.poll_slow(Time(0), &mut events);
        let failed = events.iter().find_map(|event| match event {
            Event::PeerFailed(_, cause) => Some(cause.clone()),
            _ => None,
        });
        let flushed =
            |e: &Event| matches!(e, Event::Completion(c) if c.outcome == Outcome::Flushed);
        assert_eq!(
            events.iter().filter(|e| flushed(e)).count(),
            1,
            "{events:?}"
        );
        failed.unwrap_or_default()
    };
    let cause = causes(&mut receiver);
    assert!(
        cause.contains("cannot be read there (Bad address"),
        "{cause}"
    );
    let cause = causes(&mut sender);
    assert!(
        cause.contains("could not read what rank 1 had sent"),
        "{cause}"
    );
}
