//! The lock-free files under loom: every interleaving and every value that the memory model allows.
//!
//! The production files are compiled here a second time, against a model of shared memory
//! (`loom/memory.rs`) in which words are loom's atomics and bytes are cells that notice an access
//! without order. Each test then weakens every ordering of the file, one at a time, and asserts
//! that loom finds a failure: so each ordering is needed, and would be missed.
// The files have more than the models use, and what is `unsafe` of real memory is safe of a
// model's.
#![allow(dead_code, unsafe_code, unused_unsafe)]

#[path = "../src/engine/control.rs"]
mod control;
#[path = "loom/memory.rs"]
mod memory;
#[path = "../src/transport/shm/recall.rs"]
mod recall;
#[path = "../src/transport/shm/ring.rs"]
mod ring;
#[path = "../src/comm/server/versions.rs"]
mod versions;
#[path = "loom/wait.rs"]
mod wait;
#[path = "../src/transport/words.rs"]
mod words;

use control::{Binding, Line, load_retired, store_retired};
use loom::thread::{self, yield_now};
use memory::{Place, RegionKey, View};
use ring::{Consumer, Producer, RecordHeader, RingMemory};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::Duration;
use wait::{Bell, Quota};

/// The bounds of a small world: a ring of four lines.
mod limits {
    pub const CACHE_LINE_BYTES: usize = 64;
    pub const LINE_PAYLOAD_BYTES: usize = 48;
    pub const RING_BYTES: usize = 4 * CACHE_LINE_BYTES;
    pub const CONTROL_BYTES: usize = 256;
    pub const LANES: usize = 4;
    pub const OPERATION_SLOTS: u64 = 16;
}

/// Accesses go to the model's memory.
mod kernel {
    use crate::memory::{View, Word, Word32};

    pub fn copy(source: View, destination: View) {
        destination.copy_from(source);
    }

    pub fn load<T: From<u64>>(view: View, index: usize) -> T {
        view.load(index)
    }

    pub fn store<T: Into<u64>>(view: View, index: usize, value: T) {
        view.store(index, value);
    }

    pub fn word(view: &View, start: usize) -> &Word {
        view.word(start)
    }

    pub fn word32(view: &View, start: usize) -> &Word32 {
        view.word32(start)
    }

    pub fn line(view: &View, start: usize) -> [&Word; 8] {
        view.line(start)
    }
}

mod schedule {
    pub type Lane = u8;
}

mod signature {
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub struct Signature(pub u64);
}

mod sync {
    pub use crate::memory::fence;
    pub use loom::sync::atomic::Ordering;
}

mod types {
    pub type Rank = u32;
}

/// Runs the models as they are, then with each ordering of `file` that they came by weakened.
/// `source` is the file's text: the models must come by all that stand in it.
fn check_every_ordering(file: &str, source: &str, models: &[fn()]) {
    memory::weaken(None);
    models.iter().for_each(|&model| loom::model(model));
    let places = memory::strong_places(file);
    let code: Vec<&str> = source
        .lines()
        .filter(|line| !line.trim_start().starts_with("//"))
        .collect();
    // Each half of `AcqRel` is weakened alone.
    let strong = [("Release", 1), ("Acquire", 1), ("SeqCst", 1), ("AcqRel", 2)];
    let count = |(order, parts): (&str, usize)| {
        let order = format!("Ordering::{order}");
        parts * code.iter().filter(|line| line.contains(&order)).count()
    };
    let written: usize = strong.into_iter().map(count).sum();
    assert_eq!(
        places.len(),
        written,
        "the models come by {places:?}, but {file} has {written} orderings"
    );
    for place in places {
        assert!(
            models.iter().any(|&model| fails(place.clone(), model)),
            "{place:?} can be weaker and no interleaving fails"
        );
    }
    memory::weaken(None);
}

/// Whether loom finds a failure with this ordering weakened.
fn fails(place: Place, model: fn()) -> bool {
    memory::weaken(Some(place));
    catch_unwind(AssertUnwindSafe(|| loom::model(model))).is_err()
}

/// Words of payload of each record: two lines, one, and two again, which no longer fit before the
/// end of the ring.
const RECORD_WORDS: [usize; 3] = [3, 0, 4];

fn header(number: usize, words: usize) -> RecordHeader {
    RecordHeader {
        kind: 1,
        payload_bytes: 8 * words as u32,
        words: [number as u64, 0, 0, 0, !(number as u64)],
    }
}

/// Three records go round the ring: the last is preceded by padding and lies where the first was.
fn ring_of_two_threads() {
    let memory = RingMemory {
        head: View::new(1),
        tail: View::new(1),
        bytes: View::new(limits::RING_BYTES / 8),
    };
    let (mut producer, mut consumer) = (Producer::new(memory), Consumer::new(memory));
    let sender = thread::spawn(move || {
        for (number, words) in RECORD_WORDS.into_iter().enumerate() {
            let payload = View::new(words);
            (0..words).for_each(|index| payload.store(index, (10 * number + index) as u64));
            while !producer.push(header(number, words), payload, 0) {
                yield_now();
            }
        }
    });
    for (number, words) in RECORD_WORDS.into_iter().enumerate() {
        let record = loop {
            match consumer.peek().unwrap() {
                Some(record) => break record,
                None => yield_now(),
            }
        };
        assert_eq!(record.header, header(number, words));
        for index in 0..words {
            assert_eq!(
                record.payload.load::<u64>(index),
                (10 * number + index) as u64
            );
        }
        consumer.release(&record);
    }
    sender.join().unwrap();
}

#[test]
fn every_ordering_of_the_ring_is_needed() {
    let source = include_str!("../src/transport/shm/ring.rs");
    check_every_ordering("ring.rs", source, &[ring_of_two_threads]);
}

fn line(stamp: u64) -> Line {
    let binding = Binding {
        input_key: RegionKey(stamp as u32),
        output_key: RegionKey(7),
        input_offset: stamp << 40,
        output_offset: 3,
        is_registered: true,
    };
    Line {
        stamp,
        signature: signature::Signature(100 + stamp),
        payload: binding.emit(),
    }
}

/// Two operations use one flag line; the sender stores the second when the reader has retired the
/// first.
fn line_used_twice() {
    const STAMPS: [u64; 2] = [1, 1 + limits::OPERATION_SLOTS];
    let (lines, retired) = (View::new(8), View::new(1));
    let sender = thread::spawn(move || {
        line(STAMPS[0]).store(lines, 0);
        while load_retired(retired, 0) < 1 {
            yield_now();
        }
        line(STAMPS[1]).store(lines, 0);
    });
    for (index, stamp) in STAMPS.into_iter().enumerate() {
        let signature = loop {
            match Line::arrived(lines, 0, stamp) {
                Some(signature) => break signature,
                None => yield_now(),
            }
        };
        assert_eq!(signature, line(stamp).signature);
        let binding = Binding::parse(Line::payload_view(lines, 0));
        assert_eq!(binding.emit(), line(stamp).payload);
        store_retired(retired, 0, index as u64 + 1);
    }
    sender.join().unwrap();
}

#[test]
fn every_ordering_of_flag_lines_is_needed() {
    let source = include_str!("../src/engine/control.rs");
    check_every_ordering("control.rs", source, &[line_used_twice]);
}

/// A sender says why it fails, takes its memory back and changes it, while a receiver reads it: who
/// has read what came later finds it taken back, and who finds it taken back finds the cause.
fn memory_that_is_taken_back() {
    let (word, memory, news) = (View::new(1), View::new(1), View::new(1));
    let relaxed = sync::Ordering::Relaxed;
    let sender = thread::spawn(move || {
        news.word(0).store(1, relaxed);
        recall::take_back(word, 7);
        memory.word(0).store(2, relaxed);
    });
    let read = memory.word(0).load(relaxed);
    let valid_from = recall::valid_from(word);
    assert!(read == 0 || valid_from == 7, "what was read counts");
    assert!(valid_from == 0 || news.word(0).load(relaxed) == 1);
    sender.join().unwrap();
}

#[test]
fn every_ordering_of_taking_memory_back_is_needed() {
    let source = include_str!("../src/transport/shm/recall.rs");
    check_every_ordering("recall.rs", source, &[memory_that_is_taken_back]);
}

/// A shard writes two versions of two weights, of which the second takes the place of what was
/// there first, while a worker reads: what it takes for whole is of the version that it has read.
fn weights_that_change_while_they_are_read() {
    let relaxed = sync::Ordering::Relaxed;
    let (words, weights) = (View::new(2), View::new(4));
    let at = |version: u64, index: usize| 16 * (version % 2) as usize + 8 * index;
    let shard = thread::spawn(move || {
        for version in [1, 2] {
            versions::begin(&words, version);
            for index in [0, 1] {
                let weight = weights.word(at(version, index));
                weight.store(version, relaxed);
            }
            versions::end(&words, version);
        }
    });
    let version = words.word(0).load(relaxed);
    versions::read_weights_after();
    let read = [0, 1].map(|index| weights.word(at(version, index)).load(relaxed));
    versions::read_begun_after();
    let begun = words.word(8).load(relaxed);
    if versions::is_whole(version, begun) {
        assert_eq!(read, [version; 2]);
    }
    shard.join().unwrap();
}

#[test]
fn every_fence_of_versions_is_needed() {
    let source = include_str!("../src/comm/server/versions.rs");
    check_every_ordering(
        "versions.rs",
        source,
        &[weights_that_change_while_they_are_read],
    );
}

/// A worker's gradients lie in one slot, and its second one waits until the server has read the
/// first. Then the place is another worker's, whose pushes count from 0 on.
fn slot_of_two_workers() {
    let (slot, pushed) = (View::new(1), View::new(1));
    let (moved, let_in) = (View::new(1), View::new(1));
    let push = move |number: u64, gradient: u64| {
        slot.store(0, gradient);
        assert_eq!(words::fetch_and_add(&pushed, 0, 1), number - 1);
    };
    let worker = thread::spawn(move || {
        push(1, 10);
        wait_until(&moved, 1);
        push(2, 20);
        wait_until(&let_in, 1);
        push(1, 30);
    });
    for (number, gradient) in [(1, 10), (2, 20)] {
        wait_until(&pushed, number);
        assert_eq!(slot.load::<u64>(0), gradient);
        words::fetch_and_add(&moved, 0, 1);
    }
    words::store(&pushed, 0, 0);
    words::fetch_and_add(&let_in, 0, 1);
    wait_until(&pushed, 1);
    assert_eq!(slot.load::<u64>(0), 30);
    worker.join().unwrap();
}

/// Until a word is this.
fn wait_until(memory: &View, value: u64) {
    while words::load(memory, 0) != value {
        yield_now();
    }
}

/// Two ranks store something each and count themselves. The second reads what both have stored.
fn last_of_two() {
    let (stored, count) = (View::new(2), View::new(1));
    let arrive = move |index: usize| {
        stored.store(index, 1u64);
        if words::fetch_and_add(&count, 0, 1) == 1 {
            assert_eq!([0, 1].map(|index| stored.load::<u64>(index)), [1, 1]);
        }
    };
    let other = thread::spawn(move || arrive(1));
    arrive(0);
    other.join().unwrap();
}

/// Two ranks change memory under a lock, which is a word that is 1 while one has it.
fn lock_of_two() {
    let (lock, memory) = (View::new(1), View::new(1));
    let change = move || {
        while words::compare_and_swap(&lock, 0, (0, 1)) != 0 {
            yield_now();
        }
        memory.store(0, memory.load::<u64>(0) + 1);
        words::compare_and_swap(&lock, 0, (1, 0));
    };
    let other = thread::spawn(change);
    change();
    other.join().unwrap();
    assert_eq!(memory.load::<u64>(0), 2);
}

/// The first of two ranks makes what both use. Its word is 1 meanwhile, and 2 then.
fn made_once() {
    let (word, memory) = (View::new(1), View::new(1));
    let use_it = move || {
        loop {
            match words::compare_and_swap(&word, 0, (0, 1)) {
                0 => {
                    memory.store(0, 7u64);
                    words::compare_and_swap(&word, 0, (1, 2));
                }
                1 => yield_now(),
                _ => break assert_eq!(memory.load::<u64>(0), 7),
            }
        }
    };
    let other = thread::spawn(use_it);
    use_it();
    other.join().unwrap();
}

#[test]
fn every_ordering_of_words_of_windows_is_needed() {
    let source = include_str!("../src/transport/words.rs");
    let models = [slot_of_two_workers, last_of_two, lock_of_two, made_once];
    check_every_ordering("words.rs", source, &models);
}

/// A peer stores two things and rings after each; nobody sleeps through the last one, or loom finds
/// a deadlock.
fn sleeper_and_waker() {
    let (count, sleeping, news) = (View::new(1), View::new(1), View::new(1));
    let bell = Bell::new(count, sleeping);
    let waker = thread::spawn(move || {
        for number in 1..=2 {
            // Relaxed: whether the sleeper sees it is a matter of the bell alone.
            news.word32(0).store(number, sync::Ordering::Relaxed);
            bell.wake();
        }
    });
    let all = move || news.word32(0).load(sync::Ordering::Relaxed) == 2;
    while !all() {
        bell.sleep(Duration::MAX, all);
    }
    waker.join().unwrap();
}

#[test]
fn every_fence_of_the_bell_is_needed() {
    let source = include_str!("../src/wait/bell.rs");
    check_every_ordering("bell.rs", source, &[sleeper_and_waker]);
}

/// A peer stores what the sleeper needs, while what it lacked when it slept last is still said.
/// (That several signals wake it together is in `tests/shuttle.rs`: loom takes minutes for two.)
fn sleeper_with_a_quota() {
    let (count, sleeping, news) = (View::new(1), View::new(1), View::new(1));
    let (bell, quota) = (Bell::new(count, sleeping), Quota::new(View::new(1)));
    quota.set(2);
    let waker = thread::spawn(move || {
        news.word32(0).store(1, sync::Ordering::Relaxed);
        bell.wake_when(|| quota.count(), || ());
    });
    let has_come = move || news.word32(0).load(sync::Ordering::Relaxed) == 1;
    while !has_come() {
        bell.sleep(Duration::MAX, || {
            quota.open();
            has_come()
        });
    }
    waker.join().unwrap();
}

#[test]
fn the_fence_of_the_quota_is_needed() {
    let source = include_str!("../src/wait/quota.rs");
    check_every_ordering("quota.rs", source, &[sleeper_with_a_quota]);
}
