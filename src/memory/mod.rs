//! Registered memory: regions, views of them, and words that processes share.
//!
//! A [`Region`] owns pages that a transport can reach. A [`View`] is a raw range of bytes that peers may
//! write at any time, so it is never a slice: it is read and written through raw copies and atomics.
//! This module does not decide who may touch what when; the order comes from signals in the engine.
//!
//! Read first: `view.rs`.
#![allow(unsafe_code)]

mod borrow;
mod futex;
mod pages;
mod region;
mod view;

pub(crate) use borrow::lend_slice;
pub use futex::{futex_wait, futex_wake_all};
pub use region::{Region, RegionKey, RegionKind};
pub use view::{Element, View};
