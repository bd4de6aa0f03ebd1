//! A model of shared memory with the interface of `memory` of the library, in which each ordering
//! can be weakened.
//!
//! A word has two faces. Atomic access is loom's. Plain access goes to a cell in which loom finds
//! two accesses without an order between them; atomic stores write the cell too, because some words
//! are stored as atomics and, once a stamp has published them, read as bytes.

use loom::cell::Cell;
use loom::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use loom::sync::{Condvar, Mutex};
use std::cell::RefCell;
use std::collections::BTreeSet;
use std::panic::Location;
use std::time::Duration;

/// Where an ordering stands in a production file.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Place {
    file: String,
    line: u32,
    part: Part,
}

/// What of an operation's orderings is weakened alone.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Part {
    Whole,
    /// The halves of `AcqRel`.
    Acquire,
    Release,
    /// The ordering of a compare-and-swap that finds another value.
    Failure,
}

thread_local! {
    // loom runs all threads of a model on the thread of its test.
    static WEAKENED: RefCell<Option<Place>> = const { RefCell::new(None) };
    static SEEN: RefCell<BTreeSet<Place>> = const { RefCell::new(BTreeSet::new()) };
}

/// From now on the ordering at this place is relaxed, or the fence not there.
pub fn weaken(place: Option<Place>) {
    WEAKENED.with_borrow_mut(|weakened| *weakened = place);
}

/// The places of a file at which something stronger than relaxed was asked for.
pub fn strong_places(file: &str) -> Vec<Place> {
    SEEN.with_borrow(|seen| seen.iter().filter(|p| p.file == file).cloned().collect())
}

fn is_weakened(caller: &Location, part: Part) -> bool {
    let file = caller.file().rsplit('/').next().expect("a path has an end");
    let place = Place {
        file: file.into(),
        line: caller.line(),
        part,
    };
    let is_weakened = WEAKENED.with_borrow(|weakened| weakened.as_ref() == Some(&place));
    SEEN.with_borrow_mut(|seen| seen.insert(place));
    is_weakened
}

#[track_caller]
fn allowed(order: Ordering) -> Ordering {
    let caller = Location::caller();
    if order == Ordering::AcqRel {
        // Both are asked about, so that both are seen.
        let weakened = [Part::Acquire, Part::Release].map(|part| is_weakened(caller, part));
        return match weakened {
            [true, _] => Ordering::Release,
            [_, true] => Ordering::Acquire,
            _ => order,
        };
    }
    allowed_part(order, Part::Whole)
}

#[track_caller]
fn allowed_part(order: Ordering, part: Part) -> Ordering {
    if order != Ordering::Relaxed && is_weakened(Location::caller(), part) {
        return Ordering::Relaxed;
    }
    order
}

/// `std::sync::atomic::fence`.
#[track_caller]
pub fn fence(order: Ordering) {
    if !is_weakened(Location::caller(), Part::Whole) {
        loom::sync::atomic::fence(order);
    }
}

/// A 64-bit word.
pub struct Word {
    atomic: AtomicU64,
    plain: Cell<u64>,
}

impl Word {
    #[track_caller]
    pub fn store(&self, value: u64, order: Ordering) {
        self.plain.set(value);
        self.atomic.store(value, allowed(order));
    }

    #[track_caller]
    pub fn load(&self, order: Ordering) -> u64 {
        self.atomic.load(allowed(order))
    }

    /// Only for words that nobody reads as bytes.
    #[track_caller]
    pub fn compare_exchange(
        &self,
        current: u64,
        new: u64,
        success: Ordering,
        failure: Ordering,
    ) -> Result<u64, u64> {
        let (success, failure) = (allowed(success), allowed_part(failure, Part::Failure));
        self.atomic.compare_exchange(current, new, success, failure)
    }

    /// Only for words that nobody reads as bytes.
    #[track_caller]
    pub fn fetch_add(&self, value: u64, order: Ordering) -> u64 {
        self.atomic.fetch_add(value, allowed(order))
    }
}

/// A 32-bit word, and the queue of those who sleep on it.
pub struct Word32 {
    atomic: AtomicU32,
    queue: Mutex<()>,
    wake: Condvar,
}

impl Word32 {
    #[track_caller]
    pub fn store(&self, value: u32, order: Ordering) {
        self.atomic.store(value, allowed(order));
    }

    #[track_caller]
    pub fn load(&self, order: Ordering) -> u32 {
        self.atomic.load(allowed(order))
    }

    #[track_caller]
    pub fn fetch_add(&self, value: u32, order: Ordering) -> u32 {
        self.atomic.fetch_add(value, allowed(order))
    }

    #[track_caller]
    pub fn fetch_sub(&self, value: u32, order: Ordering) -> u32 {
        self.atomic.fetch_sub(value, allowed(order))
    }
}

/// Sleeps while the word has this value; never for a time, so that a lost wake-up is a deadlock.
pub fn futex_wait(word: &Word32, expected: u32, _timeout: Duration) {
    let queue = word.queue.lock().unwrap();
    if word.atomic.load(Ordering::Relaxed) == expected {
        drop(word.wake.wait(queue).unwrap());
    }
}

/// Wakes all.
pub fn futex_wake_all(word: &Word32) {
    let _queue = word.queue.lock().unwrap();
    word.wake.notify_all();
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RegionKey(pub u32);

struct Memory {
    words: Vec<Word>,
    /// Of each view the 32-bit word at its begin.
    first: Word32,
}

/// A range of memory, in whole words.
#[derive(Clone, Copy)]
pub struct View {
    memory: &'static Memory,
    start: usize,
    bytes: usize,
}

impl std::fmt::Debug for View {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}+{}", self.start, self.bytes)
    }
}

impl View {
    /// Zeroed memory, which lives on: views have no owner.
    pub fn new(words: usize) -> View {
        let word = |_| Word {
            atomic: AtomicU64::new(0),
            plain: Cell::new(0),
        };
        let first = Word32 {
            atomic: AtomicU32::new(0),
            queue: Mutex::new(()),
            wake: Condvar::new(),
        };
        let memory = Memory {
            words: (0..words).map(word).collect(),
            first,
        };
        View {
            memory: Box::leak(Box::new(memory)),
            start: 0,
            bytes: 8 * words,
        }
    }

    pub fn len_bytes(&self) -> usize {
        self.bytes
    }

    pub fn part(&self, start: usize, bytes: usize) -> View {
        assert!(start <= self.bytes && bytes <= self.bytes - start);
        View {
            memory: self.memory,
            start: self.start + start,
            bytes,
        }
    }

    pub fn word(&self, start: usize) -> &Word {
        &self.memory.words[self.part(start, 8).start / 8]
    }

    pub fn line(&self, start: usize) -> [&Word; 8] {
        std::array::from_fn(|index| self.word(start + 8 * index))
    }

    pub fn word32(&self, start: usize) -> &Word32 {
        assert_eq!(self.start + start, 0, "one 32-bit word a view");
        &self.memory.first
    }

    #[track_caller]
    pub fn load<T: From<u64>>(&self, index: usize) -> T {
        self.word(8 * index).plain.get().into()
    }

    #[track_caller]
    pub fn store<T: Into<u64>>(&self, index: usize, value: T) {
        self.word(8 * index).plain.set(value.into());
    }

    #[track_caller]
    pub fn copy_from(&self, source: View) {
        assert_eq!(self.bytes, source.bytes);
        for index in 0..self.bytes / 8 {
            self.store(index, source.load::<u64>(index));
        }
    }
}
