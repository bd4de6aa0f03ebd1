//! Start, stop, hand-over and failure of the threads that drive one engine, under thousands of
//! schedules.
//!
//! `comm/driving.rs`, `comm/family.rs` and files of `wait` are compiled here a second time, against
//! shuttle's locks, threads and atomics and a small engine (`shuttle/engine.rs`). Sleeps have no
//! time limit here: a thread that is not woken sleeps forever, and shuttle finds the deadlock.
// The files have more than the models use, and what is `unsafe` of real memory is safe of a
// model's.
#![allow(dead_code, unsafe_code, unused_unsafe)]

#[path = "../src/comm/driving.rs"]
mod driving;
#[path = "shuttle/engine.rs"]
mod engine;
#[path = "../src/comm/family.rs"]
mod family;
#[path = "shuttle/memory.rs"]
mod memory;
#[path = "../src/time.rs"]
mod time;
#[path = "shuttle/wait.rs"]
mod wait;

use driving::Driving;
use engine::{Engine, Peer, TaskId};
use family::{Family, Member};
use shuttle::thread::{self, JoinHandle};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::Duration;
use wait::{Background, Clock, SpinTime};

mod ranges {
    /// Nothing is ever freed here.
    #[derive(Default)]
    pub struct Garbage;

    impl Garbage {
        pub fn take(&self) -> Vec<u32> {
            Vec::new()
        }
    }
}

mod inside {
    pub type Inside = crate::engine::Engine;
}

/// Words are atomics of the model.
mod kernel {
    use crate::memory::{View, Word32};

    pub fn word32(view: &View, start: usize) -> &Word32 {
        view.word32(start)
    }
}

mod error {
    pub use linerate::{Error, Result};
}

mod types {
    pub use linerate::Rank;
}

mod sync {
    pub use crate::memory::Condvar;
    pub use shuttle::sync::atomic::{AtomicBool, AtomicU32, Ordering, fence};
    pub use shuttle::sync::{Arc, Mutex, MutexGuard, Weak};
    pub use shuttle::thread::yield_now;
    pub use std::sync::{PoisonError, TryLockError};
}

/// Longer than any model runs.
const LIMIT: Duration = Duration::from_secs(1_000_000);

/// Schedules per scheduler and model.
const SCHEDULES: usize = 10_000;

/// A rank with its progress thread, and its peer.
fn rank() -> (Arc<Driving>, Peer, JoinHandle<()>) {
    let (engine, peer) = Engine::new();
    // More ranks than cores: waits yield, then sleep, and never spin.
    let family = Arc::new(Family::new(Clock::new()));
    let driving = Arc::new(Driving::new(
        engine,
        Clock::new(),
        SpinTime::new(2, 1),
        Default::default(),
        family.clone(),
    ));
    family.join(&driving);
    let progress = thread::spawn(move || family.run());
    (driving, peer, progress)
}

/// A task that ends with the peer's `event`-th event, and a thread that waits for it.
fn waiter(driving: &Arc<Driving>, event: u32) -> (TaskId, JoinHandle<linerate::Result<()>>) {
    let task = driving.start(|engine| Ok(engine.submit(event))).unwrap();
    let driving = driving.clone();
    let thread = thread::spawn(move || {
        driving
            .wait(task, None)
            .expect("real time")
            .expect("no limit")
    });
    (task, thread)
}

fn stop(driving: &Driving, progress: JoinHandle<()>) {
    driving.family().stop();
    progress.join().unwrap();
}

/// Under random schedules, and under those of probabilistic concurrency testing with up to four
/// preemptions that matter.
fn explore(model: fn()) {
    shuttle::check_random(model, SCHEDULES);
    shuttle::check_pct(model, SCHEDULES, 4);
}

fn start_and_stop() {
    let (driving, peer, progress) = rank();
    let peer = thread::spawn(move || peer.deliver());
    // Without these the thread would rarely come so far that it rests.
    (0..30).for_each(|_| thread::yield_now());
    stop(&driving, progress);
    peer.join().unwrap();
}

#[test]
fn the_progress_thread_ends_whenever_it_is_told_to() {
    explore(start_and_stop);
}

fn progress_without_callers() {
    let (driving, peer, progress) = rank();
    let task = driving.start(|engine| Ok(engine.submit(1))).unwrap();
    peer.deliver();
    while driving.engine().result(task).is_none() {
        thread::yield_now();
    }
    stop(&driving, progress);
}

#[test]
fn operations_advance_while_nobody_waits() {
    explore(progress_without_callers);
}

fn two_waiters() {
    let (driving, peer, progress) = rank();
    let (first, second) = (waiter(&driving, 1), waiter(&driving, 2));
    let peer = thread::spawn(move || {
        peer.deliver();
        peer.deliver();
    });
    assert_eq!(first.1.join().unwrap(), Ok(()));
    assert_eq!(second.1.join().unwrap(), Ok(()));
    stop(&driving, progress);
    peer.join().unwrap();
}

#[test]
fn every_waiter_hears_of_its_end_whoever_drove() {
    explore(two_waiters);
}

fn waiter_and_tester() {
    let (driving, peer, progress) = rank();
    let (_, waiter) = waiter(&driving, 1);
    let task = driving.start(|engine| Ok(engine.submit(1))).unwrap();
    let peer = thread::spawn(move || peer.deliver());
    while driving.test(task).is_none() {
        thread::yield_now();
    }
    assert_eq!(waiter.join().unwrap(), Ok(()));
    stop(&driving, progress);
    peer.join().unwrap();
}

#[test]
fn a_thread_that_only_tests_wakes_those_who_wait() {
    explore(waiter_and_tester);
}

fn failure_while_threads_wait() {
    let (driving, peer, progress) = rank();
    let (first, second) = (waiter(&driving, 1), waiter(&driving, 2));
    let peer = thread::spawn(move || {
        peer.deliver();
        peer.die();
    });
    // The first may have ended before the peer did.
    let _ = first.1.join().unwrap();
    let error = second.1.join().unwrap().unwrap_err();
    assert!(matches!(error, linerate::Error::PeerFailed { rank: 1, .. }));
    stop(&driving, progress);
    peer.join().unwrap();
}

#[test]
fn a_failure_that_one_thread_notices_ends_every_wait() {
    explore(failure_while_threads_wait);
}

fn cancel_while_threads_wait() {
    let (driving, _peer, progress) = rank();
    let (task, first) = waiter(&driving, 1);
    let (_, second) = waiter(&driving, 2);
    driving.cancel(task);
    for waiter in [first, second] {
        let error = waiter.join().unwrap().unwrap_err();
        assert!(matches!(error, linerate::Error::Cancelled { .. }));
    }
    stop(&driving, progress);
}

#[test]
fn a_cancel_ends_every_wait() {
    explore(cancel_while_threads_wait);
}

fn queue_waiter() {
    let (driving, peer, progress) = rank();
    let completions = Arc::new(wait::Completions::default());
    for event in 1..=2 {
        let task = driving.start(|engine| Ok(engine.submit(event))).unwrap();
        let place = completions.place(u64::from(event));
        driving.engine().notify(task, place);
    }
    let waiter = {
        let (driving, completions) = (driving.clone(), completions.clone());
        thread::spawn(move || {
            let mut ended = Vec::new();
            while ended.len() < 2 {
                driving.wait_for(LIMIT, || completions.has_any());
                completions.take(&mut ended, 9);
            }
            ended
        })
    };
    let peer = thread::spawn(move || {
        peer.deliver();
        peer.deliver();
    });
    let ended = waiter.join().unwrap();
    let users: Vec<u64> = ended.iter().map(|completion| completion.user).collect();
    assert_eq!(users, [1, 2]);
    stop(&driving, progress);
    peer.join().unwrap();
}

#[test]
fn a_thread_that_waits_on_a_queue_hears_of_every_end() {
    explore(queue_waiter);
}

/// Tasks one after the other: who drives the family starts the next one, as with the steps of a
/// sparse allreduce.
struct Follower {
    driving: Arc<Driving>,
    /// The task under way, and how many come after it.
    state: sync::Mutex<(Option<TaskId>, u32)>,
    is_over: sync::AtomicBool,
}

impl Member for Follower {
    fn try_drive(&self) -> bool {
        let Ok(mut state) = self.state.try_lock() else {
            return false;
        };
        let (Some(task), left) = *state else {
            return false;
        };
        if self.driving.engine().result(task).is_none() {
            return false;
        }
        let next = |left| {
            let task = self.driving.start(|engine| Ok(engine.submit(2)));
            (Some(task.unwrap()), left)
        };
        *state = left.checked_sub(1).map_or((None, 0), next);
        let is_over = state.0.is_none();
        drop(state);
        if is_over {
            self.is_over.store(true, sync::Ordering::SeqCst);
            self.driving.ring();
        }
        true
    }

    fn drive(&self) -> bool {
        self.try_drive()
    }

    fn wake_watchers(&self) {}

    fn is_idle(&self) -> bool {
        self.state.try_lock().is_ok_and(|state| state.0.is_none())
    }

    fn alarm(&self) -> Option<&wait::Alarm> {
        None
    }

    fn sleep(&self, time: Duration, is_over: &dyn Fn() -> bool) {
        self.driving.sleep(time, is_over);
    }
}

fn follower() {
    let (driving, peer, progress) = rank();
    let first = driving.start(|engine| Ok(engine.submit(1))).unwrap();
    let follower = Arc::new(Follower {
        driving: driving.clone(),
        state: sync::Mutex::new((Some(first), 2)),
        is_over: sync::AtomicBool::new(false),
    });
    let family = driving.family();
    family.join(&follower);
    family.end_rest();
    let peer = thread::spawn(move || {
        peer.deliver();
        peer.deliver();
    });
    driving.wait_for(LIMIT, || follower.is_over.load(sync::Ordering::SeqCst));
    family.leave(&*follower);
    stop(&driving, progress);
    peer.join().unwrap();
}

#[test]
fn a_thread_that_drives_may_start_operations_while_the_progress_thread_comes_to_rest() {
    explore(follower);
}

/// The canary: with notifications that reach nobody, each model must be seen to hang.
#[test]
fn a_dropped_notification_is_found() {
    let models: [(&str, fn()); 6] = [
        ("stop", start_and_stop),
        ("two waiters", two_waiters),
        ("waiter and tester", waiter_and_tester),
        ("failure", failure_while_threads_wait),
        ("cancel", cancel_while_threads_wait),
        ("queue", queue_waiter),
    ];
    for (name, model) in models {
        memory::drop_notifications(true);
        let found = catch_unwind(AssertUnwindSafe(|| explore(model))).is_err();
        memory::drop_notifications(false);
        assert!(found, "{name}: no schedule hangs without notifications");
    }
}
