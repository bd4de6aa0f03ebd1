//! Words that processes share, and sleeping on them, with shuttle's locks.

use crate::sync::AtomicU32;
use shuttle::sync::{LockResult, Mutex, MutexGuard};
use std::cell::Cell;
use std::time::Duration;

thread_local! {
    // shuttle runs all threads of a model on the thread of its test.
    static IS_DEAF: Cell<bool> = const { Cell::new(false) };
}

/// Whether notifications are lost.
pub fn drop_notifications(is_deaf: bool) {
    IS_DEAF.set(is_deaf);
}

/// A condition whose notifications can be lost.
#[derive(Debug)]
pub struct Condvar(shuttle::sync::Condvar);

impl Condvar {
    pub fn new() -> Condvar {
        Condvar(shuttle::sync::Condvar::new())
    }

    pub fn wait<'a, T>(&self, guard: MutexGuard<'a, T>) -> LockResult<MutexGuard<'a, T>> {
        self.0.wait(guard)
    }

    pub fn notify_one(&self) {
        if !IS_DEAF.get() {
            self.0.notify_one();
        }
    }
}

#[derive(Debug)]
pub struct Word32 {
    value: AtomicU32,
    /// How many sleep.
    queue: Mutex<u32>,
    wake: shuttle::sync::Condvar,
}

impl std::ops::Deref for Word32 {
    type Target = AtomicU32;

    fn deref(&self) -> &AtomicU32 {
        &self.value
    }
}

/// One 32-bit word.
#[derive(Clone, Copy, Debug)]
pub struct View(&'static Word32);

impl View {
    /// Zero. It lives on: views have no owner.
    pub fn new() -> View {
        View(Box::leak(Box::new(Word32 {
            value: AtomicU32::new(0),
            queue: Mutex::new(0),
            wake: shuttle::sync::Condvar::new(),
        })))
    }

    pub fn word32(&self, _start: usize) -> &Word32 {
        self.0
    }
}

/// Sleeps while the word has this value, and for no time limit.
pub fn futex_wait(word: &Word32, expected: u32, _timeout: Duration) {
    let mut queue = word.queue.lock().unwrap();
    if word.load(crate::sync::Ordering::SeqCst) == expected {
        *queue += 1;
        queue = word.wake.wait(queue).unwrap();
        *queue -= 1;
    }
}

/// Wakes all.
pub fn futex_wake_all(word: &Word32) {
    if !IS_DEAF.get() {
        let _queue = word.queue.lock().unwrap();
        word.wake.notify_all();
    }
}

/// Wakes one of at least two sleepers without a change of the word, as the end of its time does;
/// false: they are fewer.
pub fn time_out_one(word: &Word32) -> bool {
    let queue = word.queue.lock().unwrap();
    if *queue >= 2 {
        word.wake.notify_one();
    }
    *queue >= 2
}
