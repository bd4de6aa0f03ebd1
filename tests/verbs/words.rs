//! Words without immediate data (`has_plain_words`): each ends once, whatever becomes of the queue
//! pair.

use super::access;
use super::pair::{Memory, Pair, check, fill, has_device};
use linerate::options::VerbsSettings;
use linerate::transport::{Outcome, RemoteRange};

const CHUNK: usize = 4096;

/// Rank 0 puts plain words, and breaks its queue pair after this many pieces.
fn plain(break_after: Option<u64>) -> Pair {
    let settings = VerbsSettings {
        chunk_bytes: CHUNK as u32,
        has_plain_words: true,
        break_after,
        ..VerbsSettings::default()
    };
    Pair::new([&settings, &VerbsSettings::default()])
}

/// A word to put from and the one to put to, of which rank 0 knows.
fn words(pair: &mut Pair) -> (Memory, Memory, RemoteRange) {
    let (source, place) = (pair.memory(0, 8), pair.memory(1, 8));
    pair.ranks[1].transport.export(0, place.key).unwrap();
    pair.greet(1);
    let range = RemoteRange {
        key: place.key,
        offset: 0,
    };
    (source, place, range)
}

#[test]
fn plain_words_arrive_and_end_in_order() {
    if !has_device("plain words") {
        return;
    }
    let mut pair = plain(None);
    let (source, place, range) = words(&mut pair);
    // More at once than leave by themselves: the others go the common way, in order behind them.
    for round in 0..4u64 {
        let tokens = 40 * round..40 * (round + 1);
        for token in tokens.clone() {
            access::store(source.view, 0, token);
            pair.put(0, source.view, range, token);
        }
        pair.until(|ranks| ranks[0].ends.len() == 40);
        let ends = std::mem::take(&mut pair.ranks[0].ends);
        let ends: Vec<_> = ends.iter().map(|end| (end.token, end.outcome)).collect();
        let expected: Vec<_> = tokens.map(|token| (token, Outcome::Done)).collect();
        assert_eq!(ends, expected);
        pair.greet(round);
        assert_eq!(access::load::<u64>(place.view, 0), 40 * round + 39);
    }
    // One alone, for which no later one asks.
    access::store(source.view, 0, 7u64);
    pair.put(0, source.view, range, 7);
    pair.done(0, 7);
    assert_eq!(access::load::<u64>(place.view, 0), 7);
    assert_eq!(pair.count(0, "generations begun"), 1);
}

#[test]
fn plain_words_that_are_cut_end_once_and_are_not_written_again() {
    if !has_device("plain words over a broken queue pair") {
        return;
    }
    for after in 1..=4 {
        let mut pair = plain(Some(after));
        let (source, place, range) = words(&mut pair);
        let long = [0, 1].map(|rank| pair.memory(rank, 4 * CHUNK));
        fill(long[0].view, after);
        pair.receive(1, 5, long[1].view, 1);
        for token in 10..15u64 {
            access::store(source.view, 0, token);
            pair.put(0, source.view, range, token);
        }
        pair.send(0, 5, long[0].view, 2);
        pair.done(1, 1);
        pair.done(0, 2);
        check(long[1].view, after);
        for token in 10..15 {
            let outcome = pair.end(0, token).outcome;
            assert!(
                matches!(outcome, Outcome::Done | Outcome::Flushed),
                "{outcome:?}"
            );
        }
        access::store(place.view, 0, 99u64);
        pair.greet(after);
        assert!(pair.ranks[0].ends.is_empty());
        assert_eq!(access::load::<u64>(place.view, 0), 99, "written again");
        assert!(
            pair.count(0, "generations begun") >= 2,
            "after {after} pieces"
        );
        pair.put(0, source.view, range, 20);
        pair.done(0, 20);
        assert_eq!(access::load::<u64>(place.view, 0), 14);
    }
}

#[test]
fn a_plain_word_to_a_region_that_has_ended_is_refused() {
    if !has_device("plain words to ended regions") {
        return;
    }
    let mut pair = plain(None);
    let (source, place, range) = words(&mut pair);
    pair.ranks[1].transport.deregister(place.key).unwrap();
    access::store(source.view, 0, 5u64);
    pair.put(0, source.view, range, 3);
    pair.until_alone(|ranks| !ranks[0].ends.is_empty());
    assert_eq!(pair.end(0, 3).outcome, Outcome::BadKey);
    assert_eq!(access::load::<u64>(place.view, 0), 0);
    pair.greet(2);
    assert!(pair.ranks[0].ends.is_empty());
}
