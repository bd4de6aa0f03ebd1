//! What is copied, and what the device moves by itself.

use super::access::TestPosts;
use super::pair::{Pair, check, fill, has_device};
use linerate::transport::{Region, RemoteRange};
use std::sync::Arc;

#[test]
fn long_messages_between_registered_buffers_are_not_copied() {
    if !has_device("copies between registered buffers") {
        return;
    }
    let mut pair = Pair::plain();
    let bytes = 300_000;
    let (source, place) = (pair.memory(0, bytes), pair.memory(1, bytes));
    for seed in 0..5 {
        fill(source.view, seed);
        pair.receive(1, 5, place.view, 1);
        pair.send(0, 5, source.view, 2);
        pair.done(0, 2);
        pair.done(1, 1);
        check(place.view, seed);
    }
    let range = RemoteRange {
        key: place.key,
        offset: 0,
    };
    pair.put(0, source.view, range, 3);
    pair.done(0, 3);
    pair.get(0, range, source.view, 4);
    pair.done(0, 4);
    check(source.view, 4);
    for rank in 0..2 {
        assert_eq!(pair.count(rank, "copied bytes"), 0, "rank {rank}");
        assert_eq!(pair.count(rank, "receives registered for themselves"), 0);
    }
    assert_eq!(pair.count(0, "written bytes"), 7 * bytes as u64);
}

#[test]
fn memory_that_is_not_registered_is_registered_for_the_one_receive() {
    if !has_device("receives of memory that is not registered") {
        return;
    }
    let mut pair = Pair::plain();
    let source = pair.memory(0, 200_000);
    let place = Arc::new(Region::private(200_001).unwrap());
    fill(source.view, 9);
    pair.receive(1, 5, place.view().part(1, 200_000), 1);
    pair.send(0, 5, source.view, 2);
    pair.done(1, 1);
    pair.done(0, 2);
    check(place.view().part(1, 200_000), 9);
    assert_eq!(pair.count(1, "receives registered for themselves"), 1);
    assert_eq!(pair.count(1, "copied bytes"), 0);
}

/// A device may let a word be seen before what was put earlier.
#[test]
fn a_word_is_written_by_the_processor_of_its_owner() {
    if !has_device("words that are copied") {
        return;
    }
    let mut pair = Pair::plain();
    let (source, place) = (pair.memory(0, 8), pair.memory(1, 8));
    fill(source.view, 3);
    pair.ranks[1].transport.export(0, place.key).unwrap();
    pair.greet(1);
    let before = pair.count(1, "copied bytes");
    let range = RemoteRange {
        key: place.key,
        offset: 0,
    };
    pair.put(0, source.view, range, 1);
    pair.done(0, 1);
    check(place.view, 3);
    assert_eq!(pair.count(1, "copied bytes"), before + 8);
}

/// What a short message tells in passing gives places of the ring back: messages that go there and
/// back cost one doorbell each.
#[test]
fn short_messages_in_turns_need_nothing_besides_to_tell_that_they_came() {
    if !has_device("short messages in turns") {
        return;
    }
    let mut pair = Pair::plain();
    let words = [0, 1].map(|rank| pair.memory(rank, 8));
    pair.greet(1);
    let before = [0, 1].map(|rank| pair.count(rank, "doorbells"));
    for token in 1..301 {
        for rank in 0..2 {
            pair.receive(1 - rank, 5, words[1 - rank].view, token);
            pair.send(rank, 5, words[rank].view, 1000 + token);
            pair.done(1 - rank, token);
            pair.done(rank, 1000 + token);
        }
    }
    let after = [0, 1].map(|rank| pair.count(rank, "doorbells"));
    assert_eq!(after, before.map(|count| count + 300));
}

/// Far more messages than a ring has slots, one side never looking meanwhile: no device ever misses
/// a receive.
#[test]
fn credits_see_to_it_that_no_receive_is_missing() {
    if !has_device("credits") {
        return;
    }
    let before = missing_receives();
    let mut pair = Pair::plain();
    let source = pair.memory(0, 64);
    let place = pair.memory(1, 64);
    let range = RemoteRange {
        key: place.key,
        offset: 0,
    };
    pair.put(0, source.view, range, 1);
    pair.done(0, 1);
    let mut sent = [0u64; 4];
    for (class, count) in (0u64..).zip(&mut sent) {
        let tag = class << 62 | 9;
        while (pair.ranks[0].transport)
            .test_send(1, tag, 0, source.view, 100)
            .is_ok()
        {
            *count += 1;
        }
        for _ in 0..100 {
            pair.step_one(0);
        }
    }
    for number in 0..200 {
        let posted = (pair.ranks[0].transport).test_put(1, source.view, range, 10_000 + number);
        if posted.is_err() {
            break;
        }
        pair.step_one(0);
    }
    assert!(sent.iter().sum::<u64>() >= 64, "{sent:?}");
    for (class, &count) in sent.iter().enumerate() {
        for _ in 0..count {
            pair.receive(1, (class as u64) << 62 | 9, place.view, 50);
            pair.done(1, 50);
        }
    }
    pair.greet(1);
    assert_eq!(pair.count(0, "generations begun"), 1);
    if let (Some(before), Some(after)) = (before, missing_receives()) {
        assert_eq!(before, after, "messages that found no receive");
    }
}

/// What the device counts of that, where it does.
fn missing_receives() -> Option<u64> {
    let text = std::fs::read_dir("/sys/class/infiniband").ok()?;
    let device = text.flatten().next()?.path();
    let counters = device.join("ports/1/hw_counters");
    let read = |name: &str| -> Option<u64> {
        let text = std::fs::read_to_string(counters.join(name)).ok()?;
        text.trim().parse().ok()
    };
    Some(read("sent_rnr_err")? + read("rcvd_rnr_err")?)
}
