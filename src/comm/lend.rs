//! The arguments of blocking collectives: buffers, and slices that the caller lends until the call
//! returns.

use super::buffer::Buffer;
use super::raw::RawBuffer;
use crate::memory::{BufferMut, BufferRef, Element, view_of_slice, view_of_slice_mut};

/// Memory that a blocking collective reads: `&[T]`, `&[T; N]`, `&Vec<T>`, `&BufferRef<T>` or
/// `&Buffer<T>`. A registered `Buffer` is used where it lies. Everything else is staged, but for
/// long memory over verbs, which the library registers by itself.
pub trait Input<T: Element>: Lend {}

/// Memory that a blocking collective writes: `&mut [T]`, `&mut [T; N]`, `&mut Vec<T>`, `&mut
/// BufferMut<T>` or `&Buffer<T>`. A registered `Buffer` is used where it lies, and everything else
/// as an [`Input`] is.
pub trait Output<T: Element>: Lend {}

/// Memory that a caller can give to a blocking collective. The types of [`Input`] and [`Output`]
/// implement it, and no others.
pub trait Lend {
    #[doc(hidden)]
    fn lend(&mut self) -> Lent<'_>;
}

/// The memory of an argument.
#[doc(hidden)]
#[derive(Debug)]
pub enum Lent<'a> {
    /// All elements of a buffer.
    Buffer(&'a RawBuffer),
    /// The elements of a slice.
    Part(RawBuffer),
}

impl Lent<'_> {
    pub(super) fn raw(&self) -> &RawBuffer {
        match self {
            Lent::Buffer(raw) => raw,
            Lent::Part(raw) => raw,
        }
    }
}

macro_rules! lend {
    ($kind:ident, [$($generics:tt)*], $type:ty, $lend:expr) => {
        impl<$($generics)*> Lend for $type {
            fn lend(&mut self) -> Lent<'_> {
                $lend(&mut *self)
            }
        }
        impl<$($generics)*> $kind<E> for $type {}
    };
}

lend!(Input, [E: Element], &[E], read);
lend!(Input, [E: Element, const N: usize], &[E; N], |array: &mut &[E; N]| read(&array[..]));
lend!(Input, [E: Element], &Vec<E>, read);
lend!(Input, [E: Element], &BufferRef<'_, E>, read);
lend!(Output, [E: Element], &mut [E], write);
lend!(Output, [E: Element, const N: usize], &mut [E; N], |array: &mut &mut [E; N]| write(&mut array[..]));
lend!(Output, [E: Element], &mut Vec<E>, write);
lend!(Output, [E: Element], &mut BufferMut<'_, E>, write);
lend!(Output, [E: Element], &Buffer<E>, whole);
impl<E: Element> Input<E> for &Buffer<E> {}

fn read<T: Element>(slice: &[T]) -> Lent<'static> {
    Lent::Part(RawBuffer::lent(view_of_slice(slice)))
}

fn write<T: Element>(slice: &mut [T]) -> Lent<'static> {
    Lent::Part(RawBuffer::lent(view_of_slice_mut(slice)))
}

fn whole<'a, T: Element>(buffer: &'a &Buffer<T>) -> Lent<'a> {
    Lent::Buffer(buffer.raw())
}
