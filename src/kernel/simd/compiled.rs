//! [`Compiled`] and [`Scale`]: one of the loops, as a function.

use crate::kernel::reduction::Stores;
use crate::memory::View;
use crate::types::Finish;
use std::ops::Range;

/// A compiled reduction; see [`super::Fold::run`]. The CPU must have the instruction set that it
/// was compiled for.
pub(super) type Compiled = unsafe fn(Finish, &[View], &[View], Range<usize>, Stores) -> usize;

/// A compiled multiplication; gives the count of elements that it did.
pub(super) type Scale = unsafe fn(f64, View, View) -> usize;
