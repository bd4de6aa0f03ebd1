//! Devices in one thread. What they do next is drawn from a seed, one post at a time and in the
//! order of each queue, whenever their world is told to go on.
//!
//! The devices are strict: a write with 32 bits that finds no receive ends the test, as does a
//! queue with more posts than it has room for.

mod device;
#[cfg(test)]
mod late_tests;
mod state;

#[cfg(test)]
pub use device::SimDevice;
pub use state::{Defect, DeviceWorld};
