//! [`Bool`]: a truth value whose byte may come from another rank.

use bytemuck::{Pod, Zeroable};
use std::fmt;

/// An element of type [`DataType::Bool`](super::DataType::Bool): one byte, false where it is 0 and
/// true where it is anything else. Rust's `bool` is no element, because it allows two bytes only,
/// and another rank may send any.
///
/// Values that are equally true are equal, whatever their bytes. A result that combines several
/// ranks has the byte 0 or 1.
///
/// ```
/// use linerate::elements::Bool;
/// use linerate::{Communicator, Config, ReduceOp};
/// let communicator = Communicator::join(0, 1, "a job of truth", Config::default())?;
/// let found = communicator.alloc::<Bool>(2)?;
/// found.write(0, &[true.into(), false.into()])?;
/// communicator.all_reduce(&found, ReduceOp::Max)?; // whether any rank has found it
/// assert_eq!(found.to_vec()?, [Bool::from(true), Bool::from(false)]);
/// assert!(bool::from(found.as_slice()?[0]));
/// # Ok::<(), linerate::Error>(())
/// ```
#[derive(Clone, Copy, Default, Pod, Zeroable)]
#[repr(transparent)]
pub struct Bool(u8);

impl Bool {
    /// The truth value with this byte.
    #[inline]
    pub const fn from_bits(bits: u8) -> Bool {
        Bool(bits)
    }

    /// Its byte.
    #[inline]
    pub const fn to_bits(self) -> u8 {
        self.0
    }
}

impl From<bool> for Bool {
    #[inline]
    fn from(value: bool) -> Bool {
        Bool(value.into())
    }
}

impl From<Bool> for bool {
    #[inline]
    fn from(value: Bool) -> bool {
        value.0 != 0
    }
}

impl PartialEq for Bool {
    fn eq(&self, other: &Bool) -> bool {
        bool::from(*self) == bool::from(*other)
    }
}

impl Eq for Bool {}

impl fmt::Debug for Bool {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        bool::from(*self).fmt(f)
    }
}
