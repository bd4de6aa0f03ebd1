//! [`View`]: a raw range of bytes that peers may write concurrently.

use super::RegionKey;
use crate::limits::CACHE_LINE_BYTES;
use crate::types::{Bool, DataType, F8E4M3, F8E5M2};
use bytemuck::Pod;
use half::{bf16, f16};
use num_complex::Complex;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU8, AtomicU32, AtomicU64, Ordering};

/// A range of bytes: user memory, a region or part of one, or a mapped piece of a peer's memory.
///
/// Copyable and without a lifetime, so that a view alone reaches nothing. To read or write its
/// bytes is `unsafe`; the caller promises, or has been promised, the *access rule*:
///
/// * The bytes are mapped. The maker of the view ([`View::new`]), or the owner of the
///   [`Region`](super::Region) that it is of, keeps them mapped until every operation that was
///   given the view or a part of it has ended.
/// * No Rust reference conflicts: none exists to bytes that are written, and no mutable one to
///   bytes that are read. References to atomics, as [`View::word`] gives them, do not conflict.
/// * What other threads of this process do to the same bytes is ordered by signals or completions,
///   or all of it is atomic. Other processes may write at any time; bytes read then may be any.
///
/// A *size-only* view has a length and no bytes; copies and kernels do nothing on it. Simulations
/// of large jobs use it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct View {
    address: Option<NonNull<u8>>,
    bytes: usize,
    key: RegionKey,
    /// Offset of the first byte inside the region `key`.
    offset: u64,
}

// SAFETY: a view is an address, not a reference. All access goes through raw copies and atomics,
// whose order between threads and processes the engine's signals establish; see `View::new` for
// validity.
unsafe impl Send for View {}
// SAFETY: as for Send; shared access to the address itself is read-only.
unsafe impl Sync for View {}

/// The panic of [`View::part`]. It takes values, because a text that is made in place would need
/// their addresses, which would keep views out of registers wherever a part is taken.
#[cold]
#[inline(never)]
#[track_caller]
fn part_outside(start: usize, bytes: usize, all: usize) -> ! {
    panic!("part {start}+{bytes} of a view of {all} bytes")
}

/// The panic of [`View::load`] and [`View::store`]; see [`part_outside`].
#[cold]
#[inline(never)]
#[track_caller]
fn element_outside(index: usize, all: usize) -> ! {
    panic!("element {index} of a view of {all} bytes")
}

impl View {
    /// A view of `bytes` bytes at `address`, part of no region.
    ///
    /// # Safety
    /// The range must be mapped, readable and (if anything is written to it) writable until every
    /// operation that was given this view or a part of it has ended, and nobody may hold a Rust
    /// reference to its bytes while such an operation runs, except a shared one if it only reads.
    pub unsafe fn new(address: *mut u8, bytes: usize) -> View {
        View {
            address: NonNull::new(address),
            bytes,
            key: RegionKey::NONE,
            offset: 0,
        }
    }

    /// A view without bytes, for simulations in which only lengths matter.
    pub fn size_only(bytes: usize) -> View {
        View {
            address: None,
            bytes,
            key: RegionKey::NONE,
            offset: 0,
        }
    }

    /// The empty view.
    pub fn empty() -> View {
        View::size_only(0)
    }

    /// This view, known to lie `offset` bytes into the region `key`.
    pub fn in_region(self, key: RegionKey, offset: u64) -> View {
        View {
            key,
            offset,
            ..self
        }
    }

    /// Length in bytes.
    pub fn len_bytes(&self) -> usize {
        self.bytes
    }

    /// Whether the length is zero.
    pub fn is_empty(&self) -> bool {
        self.bytes == 0
    }

    /// Whether there are no bytes behind the length.
    pub fn is_size_only(&self) -> bool {
        self.address.is_none()
    }

    /// The region it is part of, [`RegionKey::NONE`] if of none.
    pub fn key(&self) -> RegionKey {
        self.key
    }

    /// Offset of the first byte in its region.
    pub fn offset(&self) -> u64 {
        self.offset
    }

    /// The address, null for a size-only view.
    pub fn as_ptr(&self) -> *mut u8 {
        self.address.map_or(std::ptr::null_mut(), NonNull::as_ptr)
    }

    /// The `bytes` bytes from `start`. Panics if they do not lie inside.
    #[inline]
    pub fn part(&self, start: usize, bytes: usize) -> View {
        if start > self.bytes || bytes > self.bytes - start {
            part_outside(start, bytes, self.bytes);
        }
        View {
            // SAFETY: start <= bytes, so the address stays inside (or one past) the range of `new`.
            address: self.address.map(|a| unsafe { a.add(start) }),
            bytes,
            key: self.key,
            offset: self.offset + start as u64,
        }
    }

    /// Whether both views share at least one byte of memory.
    pub fn overlaps(&self, other: &View) -> bool {
        let (a, b) = (self.as_ptr() as usize, other.as_ptr() as usize);
        a != 0 && b != 0 && a < b + other.bytes && b < a + self.bytes
    }

    /// Copies all bytes of `source`, which must be as long and not overlap unless it is the same
    /// range.
    ///
    /// # Safety
    /// The access rule of [`View`], for both.
    #[inline]
    pub unsafe fn copy_from(&self, source: View) {
        assert!(
            self.bytes == source.bytes,
            "copy between views of unequal length"
        );
        if let (Some(to), Some(from)) = (self.address, source.address)
            && to != from
        {
            debug_assert!(!self.overlaps(&source));
            // SAFETY: both ranges are mapped (the caller's promise) and do not overlap.
            unsafe { std::ptr::copy_nonoverlapping(from.as_ptr(), to.as_ptr(), self.bytes) }
        }
    }

    /// Writes `source` at `start`.
    ///
    /// # Safety
    /// The access rule of [`View`].
    pub unsafe fn write(&self, start: usize, source: &[u8]) {
        let target = self.part(start, source.len());
        if let Some(to) = target.address {
            // SAFETY: the target is mapped, and no slice overlaps it (the caller's promise).
            unsafe { std::ptr::copy_nonoverlapping(source.as_ptr(), to.as_ptr(), source.len()) }
        }
    }

    /// Reads into `target` from `start`; a size-only view reads as zeros.
    ///
    /// # Safety
    /// The access rule of [`View`].
    pub unsafe fn read(&self, start: usize, target: &mut [u8]) {
        let source = self.part(start, target.len());
        match source.address {
            // SAFETY: as in `write`, the other way round.
            Some(from) => unsafe {
                std::ptr::copy_nonoverlapping(from.as_ptr(), target.as_mut_ptr(), target.len())
            },
            None => target.fill(0),
        }
    }

    /// As [`View::write`], where a peer may write the same bytes meanwhile: each byte is stored
    /// atomically.
    ///
    /// # Safety
    /// The access rule of [`View`].
    pub unsafe fn write_contended(&self, start: usize, source: &[u8]) {
        let part = self.part(start, source.len());
        // SAFETY: the caller's promise.
        for (target, byte) in unsafe { part.bytes() }.zip(source) {
            target.store(*byte, Ordering::Relaxed);
        }
    }

    /// As [`View::read`], where a peer may write the same bytes meanwhile.
    ///
    /// # Safety
    /// The access rule of [`View`].
    pub unsafe fn read_contended(&self, start: usize, target: &mut [u8]) {
        target.fill(0);
        let part = self.part(start, target.len());
        // SAFETY: the caller's promise.
        for (byte, source) in target.iter_mut().zip(unsafe { part.bytes() }) {
            *byte = source.load(Ordering::Relaxed);
        }
    }

    /// Its bytes as atomics; none of a size-only view.
    ///
    /// # Safety
    /// The access rule of [`View`].
    unsafe fn bytes(&self) -> impl Iterator<Item = &AtomicU8> {
        let address = self.address.map(NonNull::as_ptr);
        let indices = 0..address.map_or(0, |_| self.bytes);
        // SAFETY: each byte is mapped, and access to it that may meet this one is atomic or of
        // another process (the caller's promise).
        indices.filter_map(move |i| address.map(|a| unsafe { AtomicU8::from_ptr(a.add(i)) }))
    }

    /// Sets every byte.
    ///
    /// # Safety
    /// The access rule of [`View`].
    pub unsafe fn fill(&self, byte: u8) {
        if let Some(to) = self.address {
            // SAFETY: the range is mapped for its length (the caller's promise).
            unsafe { std::ptr::write_bytes(to.as_ptr(), byte, self.bytes) }
        }
    }

    /// The element with this index, at any alignment; zero in a size-only view.
    ///
    /// # Safety
    /// The access rule of [`View`].
    #[inline]
    pub unsafe fn load<T: Pod>(&self, index: usize) -> T {
        let size = size_of::<T>();
        if index >= self.bytes / size {
            element_outside(index, self.bytes);
        }
        match self.address {
            // SAFETY: the element lies inside the range, which is mapped (the caller's promise);
            // every bit pattern is a valid `T: Pod`.
            Some(from) => unsafe { from.as_ptr().add(index * size).cast::<T>().read_unaligned() },
            None => T::zeroed(),
        }
    }

    /// Stores the element with this index, at any alignment.
    ///
    /// # Safety
    /// The access rule of [`View`].
    #[inline]
    pub unsafe fn store<T: Pod>(&self, index: usize, value: T) {
        let size = size_of::<T>();
        if index >= self.bytes / size {
            element_outside(index, self.bytes);
        }
        if let Some(to) = self.address {
            // SAFETY: the element lies inside the range, which is mapped (the caller's promise).
            unsafe {
                to.as_ptr()
                    .add(index * size)
                    .cast::<T>()
                    .write_unaligned(value)
            }
        }
    }

    /// The aligned 64-bit word at byte `start`, as an atomic. Panics on a size-only view.
    ///
    /// # Safety
    /// The access rule of [`View`].
    #[inline]
    pub unsafe fn word(&self, start: usize) -> &AtomicU64 {
        let part = self.part(start, 8);
        let address = part.address.expect("a word of a size-only view").as_ptr();
        assert!(
            address.addr().is_multiple_of(8),
            "word at an unaligned address"
        );
        // SAFETY: aligned, and mapped by the caller's promise; all access to words is atomic.
        unsafe { AtomicU64::from_ptr(address.cast()) }
    }

    /// The aligned cache line at byte `start`, as atomics. Panics on a size-only view.
    ///
    /// # Safety
    /// The access rule of [`View`].
    #[inline]
    pub unsafe fn line(&self, start: usize) -> &[AtomicU64; CACHE_LINE_BYTES / 8] {
        // SAFETY: the caller's promise.
        unsafe { &self.lines(start, 1)[0] }
    }

    /// This many aligned cache lines from byte `start` on, as atomics. Panics on a size-only view.
    ///
    /// # Safety
    /// The access rule of [`View`].
    #[inline]
    pub unsafe fn lines(&self, start: usize, count: usize) -> &[[AtomicU64; CACHE_LINE_BYTES / 8]] {
        let part = self.part(start, count * CACHE_LINE_BYTES);
        let address = part.address.expect("a line of a size-only view").as_ptr();
        assert!(
            address.addr().is_multiple_of(CACHE_LINE_BYTES),
            "line at an unaligned address"
        );
        // SAFETY: aligned, and mapped by the caller's promise; all access to words is atomic.
        unsafe { std::slice::from_raw_parts(address.cast(), count) }
    }

    /// The aligned 32-bit word at byte `start`, as an atomic. Panics on a size-only view.
    ///
    /// # Safety
    /// The access rule of [`View`].
    #[inline]
    pub unsafe fn word32(&self, start: usize) -> &AtomicU32 {
        let part = self.part(start, 4);
        let address = part.address.expect("a word of a size-only view").as_ptr();
        assert!(
            address.addr().is_multiple_of(4),
            "word at an unaligned address"
        );
        // SAFETY: as in `word`.
        unsafe { AtomicU32::from_ptr(address.cast()) }
    }
}

/// A Rust type that is an element type of the library: those of the table of [`DataType`], and no
/// other.
pub trait Element: Pod + Send + Sync + PartialEq + std::fmt::Debug + sealed::Sealed {
    /// Its code.
    const DTYPE: DataType;
}

mod sealed {
    /// An element has exactly the size of its `DTYPE`: memory is checked by one and used by the
    /// other.
    pub trait Sealed {}
}

macro_rules! element {
    ($($rust:ty => $dtype:ident),*) => {
        $(
            impl sealed::Sealed for $rust {}
            impl Element for $rust { const DTYPE: DataType = DataType::$dtype; }
            const _: () = assert!(size_of::<$rust>() == DataType::$dtype.size_bytes());
        )*
    };
}
element!(f64 => F64, f32 => F32, f16 => F16, bf16 => Bf16, i8 => I8, u8 => U8, i32 => I32, u32 => U32, i64 => I64, u64 => U64);
element!(Bool => Bool, i16 => I16, u16 => U16, F8E4M3 => F8E4M3, F8E5M2 => F8E5M2, Complex<f32> => C64, Complex<f64> => C128);

#[cfg(test)]
mod tests {
    use super::*;

    fn view(bytes: &mut [u8]) -> View {
        // SAFETY: the slice outlives the view in each test and is not used while the view is.
        unsafe { View::new(bytes.as_mut_ptr(), bytes.len()) }
    }

    #[test]
    fn parts_keep_their_place_in_the_region() {
        let mut bytes = [0u8; 32];
        let whole = view(&mut bytes).in_region(RegionKey(7), 100);
        let part = whole.part(8, 16);
        assert_eq!(
            (part.key(), part.offset(), part.len_bytes()),
            (RegionKey(7), 108, 16)
        );
        assert!(whole.part(32, 0).is_empty());
    }

    #[test]
    #[should_panic(expected = "part 8+25 of a view of 32 bytes")]
    fn a_part_past_the_end_panics() {
        let mut bytes = [0u8; 32];
        view(&mut bytes).part(8, 25);
    }

    #[test]
    fn elements_are_read_and_written_unaligned() {
        let mut bytes = [0u8; 17];
        let odd = view(&mut bytes).part(1, 16);
        // SAFETY: inside of the bytes above, which nothing else uses.
        let loaded = unsafe {
            odd.store(3, 0x01020304u32);
            odd.load::<u32>(3)
        };
        assert_eq!(loaded, 0x01020304);
    }

    #[test]
    fn size_only_views_have_length_and_no_bytes() {
        let ghost = View::size_only(1 << 40);
        // SAFETY: there are no bytes.
        let loaded = unsafe {
            ghost.store(5, 1u64);
            ghost.fill(1);
            ghost.copy_from(View::size_only(1 << 40));
            ghost.load::<u64>(5)
        };
        assert_eq!(loaded, 0);
        assert!(ghost.part(1 << 39, 8).is_size_only());
    }
}
