//! Queue pairs that are broken on purpose: whatever was under way comes once.

use super::access::{self, TestPosts};
use super::pair::{Pair, check, fill, has_device};
use linerate::options::VerbsSettings;
use linerate::transport::{Atomic, Outcome, RemoteRange};
use std::process::Command;

const CHUNK: usize = 4096;
/// Long transfers of a few pieces, the last of them short.
const BYTES: usize = 7 * CHUNK + 100;
const PIECES: u64 = 8;

/// Breaks the sender's queue pair after this many pieces.
fn breaking(after: Option<u64>) -> VerbsSettings {
    VerbsSettings {
        chunk_bytes: CHUNK as u32,
        break_after: after,
        ..VerbsSettings::default()
    }
}

/// Rank 0 breaks its queue pair after `after` pieces, rank 1 after as many of its own if `is_both`.
fn broken(after: u64, is_both: bool) -> Pair {
    broken_on("verbs", after, is_both)
}

/// As [`broken`], on devices with this name.
fn broken_on(name: &str, after: u64, is_both: bool) -> Pair {
    let first = breaking(Some(after));
    let second = breaking(is_both.then_some(after));
    Pair::on(name, [&first, &second])
}

/// One path, and two where a guest or soft-verbs has as many devices.
fn paths() -> Vec<&'static str> {
    let soft = std::env::var("SOFT_VERBS").unwrap_or_default();
    if soft.contains("devices=2") {
        return vec!["verbs:soft0", "verbs:soft0,soft1"];
    }
    let devices = std::env::var("RDMA_VM_DEVICES").ok();
    let devices = devices.and_then(|text| text.parse::<u32>().ok());
    match devices.unwrap_or(1) {
        0 | 1 => vec!["verbs"],
        _ => vec!["verbs:rxe0", "verbs:rxe0,rxe1"],
    }
}

#[test]
fn a_message_that_is_cut_at_any_piece_comes_once_and_is_never_written_again() {
    if !has_device("messages cut at every piece") {
        return;
    }
    for path in paths() {
        for after in 1..=PIECES {
            for is_both in [false, true] {
                cut_both_ways(broken_on(path, after, is_both), after);
            }
        }
    }
}

/// Both write over what they have got as soon as they have it: whatever is written there again
/// shows.
fn cut_both_ways(mut pair: Pair, after: u64) {
    let sources = [0, 1].map(|rank| pair.memory(rank, BYTES));
    let places = [0, 1].map(|rank| pair.memory(rank, BYTES));
    for rank in 0..2 {
        fill(sources[rank].view, 40 + rank as u64);
        pair.receive(rank, 5, places[rank].view, 1);
        pair.send(rank, 5, sources[rank].view, 2);
    }
    let mut is_received = [false; 2];
    pair.until(|ranks| {
        for (rank, place) in places.iter().enumerate() {
            let has_come = ranks[rank].ends.iter().any(|end| end.token == 1);
            if has_come && !is_received[rank] {
                check(place.view, 41 - rank as u64);
                access::fill(place.view, 0xee);
                is_received[rank] = true;
            }
        }
        is_received == [true; 2]
    });
    for rank in 0..2 {
        pair.done(rank, 1);
        pair.done(rank, 2);
    }
    // Over every path: a queue pair that had nothing under way is not known to be broken before it
    // is used.
    let others = [0, 1].map(|rank| pair.memory(rank, BYTES));
    pair.receive(1, 6, others[1].view, 3);
    pair.send(0, 6, others[0].view, 4);
    pair.done(0, 4);
    pair.done(1, 3);
    pair.greet(after);
    for (rank, place) in places.iter().enumerate() {
        let mut bytes = vec![0; BYTES];
        access::read(place.view, 0, &mut bytes);
        assert!(
            bytes.iter().all(|&byte| byte == 0xee),
            "rank {rank} was written again, after {after} pieces"
        );
        assert!(pair.count(rank, "generations begun") >= 2);
    }
}

#[test]
fn the_pieces_of_all_paths_have_come_when_a_message_ends() {
    if !has_device("pieces on several paths") {
        return;
    }
    for path in paths() {
        let settings = breaking(None);
        let mut pair = Pair::on(path, [&settings, &settings]);
        let (source, place) = (pair.memory(0, BYTES), pair.memory(1, BYTES));
        for seed in 1..=5 {
            fill(source.view, seed);
            pair.receive(1, 5, place.view, 1);
            pair.send(0, 5, source.view, 2);
            pair.done(1, 1);
            pair.done(0, 2);
            check(place.view, seed);
        }
        assert!(pair.count(0, "pieces sent") >= 2 * 5, "{path}");
        assert_eq!(pair.count(0, "pieces sent again"), 0, "{path}");
    }
}

#[test]
fn puts_and_gets_that_are_cut_at_any_piece_end_well() {
    if !has_device("puts and gets cut at every piece") {
        return;
    }
    for after in 1..=2 * PIECES {
        let mut pair = broken(after, false);
        let source = pair.memory(0, BYTES);
        let back = pair.memory(0, BYTES);
        let place = pair.memory(1, 2 * BYTES);
        pair.ranks[1].transport.export(0, place.key).unwrap();
        let range = RemoteRange {
            key: place.key,
            offset: 11,
        };
        fill(source.view, after);
        pair.put(0, source.view, range, 1);
        pair.done(0, 1);
        check(place.view.part(11, BYTES), after);
        pair.get(0, range, back.view, 2);
        pair.done(0, 2);
        check(back.view, after);
        pair.greet(after);
        assert!(
            pair.count(0, "generations begun") >= 2,
            "after {after} pieces"
        );
    }
}

/// A get is done again; of an atomic operation nobody knows, and it is done at most once.
#[test]
fn short_gets_and_atomic_operations_that_are_cut_end_once() {
    if !has_device("short gets and atomic operations over a broken queue pair") {
        return;
    }
    for after in 1..=6 {
        let settings = VerbsSettings {
            has_device_atomics: true,
            ..breaking(Some(after))
        };
        let mut pair = Pair::new([&settings, &breaking(None)]);
        let back = pair.memory(0, 64);
        let (place, word) = (pair.memory(1, 64), pair.memory(1, 8));
        let range = |key| RemoteRange { key, offset: 0 };
        fill(place.view, after);
        for memory in [&place, &word] {
            pair.ranks[1].transport.export(0, memory.key).unwrap();
        }
        pair.greet(after);
        // Three of each under way at once.
        let results = [0, 1, 2].map(|_| pair.memory(0, 8));
        for (token, result) in (0..).zip(&results) {
            pair.get(0, range(place.key), back.view, token);
            let transport = &mut pair.ranks[0].transport;
            let posted = transport.test_atomic(
                1,
                Atomic::FetchAdd(1),
                range(word.key),
                result.view,
                10 + token,
            );
            posted.unwrap();
        }
        let mut done = 0;
        for token in 0..3 {
            pair.done(0, token);
            let outcome = pair.end(0, 10 + token).outcome;
            assert!(
                matches!(outcome, Outcome::Done | Outcome::Flushed),
                "{outcome:?}"
            );
            done += u64::from(outcome == Outcome::Done);
        }
        pair.greet(after);
        let sum = access::load::<u64>(word.view, 0);
        assert!((done..=3).contains(&sum), "{done} done, {sum} added");
        assert!(pair.ranks[0].ends.is_empty());
        assert!(
            pair.count(0, "generations begun") >= 2,
            "after {after} posts"
        );
        access::fill(back.view, 0);
        pair.get(0, range(place.key), back.view, 5);
        pair.done(0, 5);
        check(back.view, after);
    }
}

/// The order of messages of one tag survives, and each comes once.
#[test]
fn a_stream_of_messages_survives_a_broken_queue_pair() {
    if !has_device("a stream of messages over a broken queue pair") {
        return;
    }
    let lengths = [0, 1, 64, 4096, 4097, BYTES];
    for after in [1, 3, 10, 17] {
        let mut pair = broken(after, true);
        let slots: Vec<_> = (0..24)
            .map(|number| {
                let bytes = lengths[number % lengths.len()];
                [0, 1].map(|from| (pair.memory(from, bytes), pair.memory(1 - from, bytes)))
            })
            .collect();
        for (number, directions) in (0u64..).zip(&slots) {
            for (from, (source, place)) in directions.iter().enumerate() {
                fill(source.view, number);
                pair.receive(1 - from, 6, place.view, 1000 + number);
                pair.send(from, 6, source.view, number);
            }
        }
        for (number, directions) in (0u64..).zip(&slots) {
            for (from, (_, place)) in directions.iter().enumerate() {
                pair.done(from, number);
                let end = pair.end(1 - from, 1000 + number);
                assert_eq!((end.outcome, end.header), (Outcome::Done, number));
                check(place.view, number);
            }
        }
        assert_eq!(pair.ranks[0].ends.len() + pair.ranks[1].ends.len(), 0);
    }
}

/// The owner has ended a registration, and the one who writes has not heard of it: the device
/// refuses.
#[test]
fn a_key_whose_registration_has_ended_is_refused_by_the_device_and_the_pair_goes_on() {
    if !has_device("keys of ended registrations") {
        return;
    }
    let mut pair = Pair::plain();
    let source = pair.memory(0, 100_000);
    let place = pair.memory(1, 100_000);
    fill(source.view, 1);
    let range = RemoteRange {
        key: place.key,
        offset: 0,
    };
    pair.put(0, source.view, range, 1);
    pair.done(0, 1);
    check(place.view, 1);
    for (token, is_put, bytes) in [(2, true, 100_000), (3, false, 100_000), (4, false, 64)] {
        let place = pair.memory(1, 100_000);
        let range = RemoteRange {
            key: place.key,
            offset: 0,
        };
        // It learns the key by using it.
        pair.get(0, range, source.view, 100 + token);
        pair.done(0, 100 + token);
        fill(source.view, token);
        let before = pair.count(0, "generations begun");
        pair.ranks[1].transport.deregister(place.key).unwrap();
        match is_put {
            true => pair.put(0, source.view, range, token),
            false => pair.get(0, range, source.view.part(0, bytes), token),
        }
        pair.until_alone(|ranks| ranks[0].ends.iter().any(|end| end.token == token));
        assert_eq!(pair.end(0, token).outcome, Outcome::BadKey);
        let mut bytes = vec![1; 100_000];
        access::read(place.view, 0, &mut bytes);
        assert!(bytes.iter().all(|&byte| byte == 0), "it was written");
        assert!(pair.count(0, "generations begun") > before);
        pair.greet(token);
    }
}

/// A receive is taken back while its sender may be writing: nothing is written after that.
#[test]
fn a_receive_that_is_cancelled_while_it_is_written_is_not_written_any_more() {
    if !has_device("cancelled receives") {
        return;
    }
    for looks in 0..12 {
        let settings = breaking(None);
        let mut pair = Pair::new([&settings, &settings]);
        let source = pair.memory(0, 64 * CHUNK);
        let place = pair.memory(1, 64 * CHUNK);
        fill(source.view, 3);
        pair.receive(1, 5, place.view, 1);
        pair.send(0, 5, source.view, 2);
        for _ in 0..looks {
            pair.step();
        }
        pair.ranks[1].transport.cancel(0, 1);
        let mut events = Vec::new();
        let now = pair.now();
        pair.ranks[1].transport.poll(now, &mut events);
        access::fill(place.view, 0xee);
        // What had not met its receive yet meets this one.
        let other = pair.memory(1, 64 * CHUNK);
        pair.receive(1, 5, other.view, 3);
        pair.done(0, 2);
        pair.greet(looks);
        let mut bytes = vec![0; place.view.len_bytes()];
        access::read(place.view, 0, &mut bytes);
        assert!(bytes.iter().all(|&byte| byte == 0xee), "written after all");
    }
}

/// A thousand completions wait when a queue pair ends, more than a poll takes. All are taken: what
/// has come is not written again, and no receive is lost.
#[test]
fn a_storm_of_completions_at_the_end_of_a_queue_pair_is_taken_whole() {
    if !has_device("a storm of completions") {
        return;
    }
    let settings = VerbsSettings {
        slots: Some(1024),
        ..breaking(None)
    };
    let mut pair = Pair::new([&settings, &settings]);
    let (out, into) = (pair.memory(0, 64), pair.memory(1, 64));
    let range = RemoteRange {
        key: into.key,
        offset: 0,
    };
    fill(out.view, 99);
    let source = pair.memory(0, 64 * CHUNK);
    for round in 0..12 {
        let place = pair.memory(1, 64 * CHUNK);
        fill(source.view, round);
        pair.receive(1, 5, place.view, 1);
        pair.send(0, 5, source.view, 2);
        // The memory is granted and written, and rank 1 does not see that any more.
        let written = pair.count(0, "pieces sent");
        while pair.count(0, "pieces sent") == written {
            pair.step_one(1);
            pair.step_one(0);
        }
        for number in 0..900 {
            pair.put(0, out.view, range, 1000 + number);
            pair.step_one(0);
        }
        let before = pair.count(1, "generations begun");
        pair.ranks[1].transport.cancel(0, 1);
        for number in 0..900 {
            pair.done(0, 1000 + number);
        }
        check(into.view, 99);
        pair.greet(round);
        assert!(pair.count(1, "generations begun") > before, "nothing ended");
        pair.ranks.iter_mut().for_each(|rank| rank.ends.clear());
    }
    assert_eq!(pair.count(0, "positions sent again"), 0);
}

/// Memory is taken back while a message is read from it, and written over at once: what comes is as
/// it was.
#[test]
fn memory_that_is_taken_back_while_it_is_sent_is_not_read_any_more() {
    if !has_device("memory that is taken back while it is sent") {
        return;
    }
    let mut cancelled = 0;
    for looks in 0..12 {
        let settings = breaking(None);
        let mut pair = Pair::new([&settings, &settings]);
        let source = pair.memory(0, 64 * CHUNK);
        let place = pair.memory(1, 64 * CHUNK);
        fill(source.view, looks);
        let mut was = vec![0; 64 * CHUNK];
        access::read(source.view, 0, &mut was);
        pair.receive(1, 5, place.view, 1);
        pair.send(0, 5, source.view, 2);
        for _ in 0..looks {
            pair.step();
        }
        pair.ranks[0].transport.withdraw();
        access::fill(source.view, 0xee);
        cancelled += u32::from(pair.end(0, 2).outcome == Outcome::Cancelled);
        pair.greet(looks);
        let mut found = vec![0; 64 * CHUNK];
        access::read(place.view, 0, &mut found);
        match pair.ranks[1].ends.iter().any(|end| end.token == 1) {
            true => assert_eq!(found, was),
            false => {
                let mut both = found.iter().zip(&was);
                let later = both.position(|(&found, &was)| found != 0 && found != was);
                assert_eq!(later, None, "after {looks} looks");
            }
        }
    }
    assert!(cancelled > 0, "every message had come before");
}

/// Runs `ip`, which changes the machine: only in a guest of tools/rdma-vm.
fn ip(words: &str) {
    let done = Command::new("ip").args(words.split(' ')).output().unwrap();
    assert!(
        done.status.success(),
        "ip {words}: {}",
        String::from_utf8_lossy(&done.stderr)
    );
}

/// While the port is down its address goes, another one takes its place in the table, and then it
/// comes back.
#[test]
fn an_address_that_has_another_place_after_a_port_was_down_is_found_again() {
    if std::env::var_os("RDMA_VM_HOST").is_none() {
        println!("skipped: a port that goes down: only in a guest (tools/rdma-vm)");
        return;
    }
    let own = std::env::var("RDMA_VM_ADDRESSES_0").unwrap();
    let own = own.split(',').next().unwrap();
    let settings = VerbsSettings::default();
    let mut pair = Pair::on("verbs:rxe0", [&settings, &settings]);
    pair.greet(1);
    let place = |pair: &Pair| pair.ranks[0].transport.ports()[0].gid_index;
    let before = place(&pair);
    ip("link set eth0 down");
    ip(&format!("address del {own}/24 dev eth0"));
    ip("address add 10.99.0.1/24 dev eth0");
    ip(&format!("address add {own}/24 dev eth0"));
    ip("link set eth0 up");
    pair.greet(2);
    let after = place(&pair);
    assert_ne!(before, after, "the address has its old place");
    // And back: the first place is free again, and taken by nobody.
    ip("link set eth0 down");
    ip("address del 10.99.0.1/24 dev eth0");
    ip("link set eth0 up");
    pair.greet(3);
    assert_eq!(place(&pair), after);
    assert!(pair.count(0, "generations begun") >= 3);
}
