//! Devices in one thread. What they do next is drawn from a seed, one post or a part of one at a
//! time, in the order of each queue or in any, whenever their world is told to go on.
//!
//! The devices are strict: a write with 32 bits that finds no receive ends the test, as do a queue
//! with more posts or completions than it has room for, and a source that changes before the
//! completion of its write.

mod device;
#[cfg(test)]
mod late_tests;
mod state;

#[cfg(test)]
pub use device::SimDevice;
pub use state::{Defect, DeviceWorld};
