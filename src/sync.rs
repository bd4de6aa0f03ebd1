//! Locks, atomics and fences of the files that are checked under every interleaving.
//!
//! `wait/bell.rs`, `wait/quota.rs`, `wait/driver_lock.rs`, `wait/completions.rs`, `comm/driving.rs`
//! and `comm/family.rs` take them from here and from nowhere else, so that `tests/loom.rs` and
//! `tests/shuttle.rs` can compile the same files against loom's and shuttle's. The other files that
//! share memory without a lock (`transport/words.rs`, `transport/shm/{ring,recall}.rs`,
//! `engine/control.rs`, `comm/server/versions.rs`) take theirs from `memory` alone, for the same
//! purpose.

pub use std::sync::atomic::{AtomicBool, AtomicU32, Ordering, fence};
pub use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, TryLockError, Weak};
pub use std::thread::yield_now;
