//! Registered memory: regions, views of them, and who uses which bytes.
//!
//! A [`Region`] owns pages that a transport can reach. A [`View`] is a raw range of bytes that
//! peers may write at any time, so it is never a slice: it is read and written through raw copies
//! and atomics, which are `unsafe` because a view has no lifetime. `kernel/access.rs` has them for
//! the rest of the crate, and says why they are safe there. This module does not decide who may
//! touch what when; the order comes from signals in the engine.
//!
//! Read first: `view.rs`.
#![allow(unsafe_code)]

mod available;
mod borrow;
mod borrows;
mod fork;
mod guards;
mod key;
mod pages;
mod region;
mod unmaps;
mod view;

pub use available::{available_memory_bytes, meminfo_field};
pub(crate) use borrow::{abort_on_unwind, view_of_slice, view_of_slice_mut};
pub use borrows::{Access, Borrows, Condition, Held, Kept};
#[cfg(test)]
pub(crate) use fork::child;
pub use fork::{ProcessMark, ProcessOwned};
pub use guards::{BufferMut, BufferRef};
pub use key::RegionKey;
pub use region::{Region, RegionKind};
pub use unmaps::Unmaps;
#[cfg(test)]
pub(crate) use unmaps::tests::alone;
pub use view::{Element, View};
