//! What C gives by address: strings, structs with their size, arrays, places for results.

use crate::status::{Fault, LINERATE_DONE, invalid};
use linerate::DataType;
use std::ffi::{CStr, c_char};
use std::mem::MaybeUninit;
use std::ptr;

/// No struct of any version is larger.
const STRUCT_BYTES_MAX: u64 = 4096;

/// Whether `count` values of type `T` can lie at this address.
#[inline]
fn check<T>(name: &str, address: *const T, count: usize) -> Result<(), Fault> {
    if address.is_null() {
        return Err(invalid(format!("{name} is NULL: give an address")));
    }
    check_range(name, address.addr(), align_of::<T>(), count, size_of::<T>())?;
    Ok(())
}

/// The bytes of `count` elements, if they can lie at this address.
#[inline]
fn check_range(
    name: &str,
    address: usize,
    align: usize,
    count: usize,
    size: usize,
) -> Result<usize, Fault> {
    let bytes = count
        .checked_mul(size)
        .filter(|&bytes| bytes <= isize::MAX as usize && address.checked_add(bytes).is_some());
    match bytes.filter(|_| address.is_multiple_of(align)) {
        Some(bytes) => Ok(bytes),
        None => Err(misplaced(name, address, align, count, size)),
    }
}

/// The error of an address at which `count` elements cannot lie.
#[cold]
fn misplaced(name: &str, address: usize, align: usize, count: usize, size: usize) -> Fault {
    invalid(match address.is_multiple_of(align) {
        false => format!(
            "{name} at {address:#x} is not aligned: its address must be a multiple of {align}"
        ),
        true => format!(
            "{name}: {count} elements of {size} bytes at {address:#x} do not fit an address space"
        ),
    })
}

/// The bytes of `count` elements of this type at an address that is not null.
pub(crate) fn bytes_of(
    name: &str,
    address: usize,
    count: u64,
    dtype: DataType,
) -> Result<usize, Fault> {
    let (align, size) = (dtype.align_bytes(), dtype.size_bytes());
    check_range(name, address, align, count as usize, size)
}

/// Stores a result.
///
/// # Safety
/// Unless it is null or not aligned, `place` is writable.
pub(crate) unsafe fn write<T>(name: &str, place: *mut T, value: T) -> Result<(), Fault> {
    check(name, place, 1)?;
    // SAFETY: our caller promises it, and the address was checked.
    unsafe { place.write(value) };
    Ok(())
}

/// An error unless a result can be stored there, before there is one.
pub(crate) fn check_place<T>(name: &str, place: *mut T) -> Result<(), Fault> {
    check(name, place, 1)
}

/// An array; empty if it is null and has no elements.
///
/// # Safety
/// Unless the address is null or not aligned, `count` values lie there and do not change while the
/// slice is in use.
pub(crate) unsafe fn array<'a, T>(
    name: &str,
    address: *const T,
    count: u64,
) -> Result<&'a [T], Fault> {
    if count == 0 {
        return Ok(&[]);
    }
    check(name, address, count as usize)?;
    // SAFETY: our caller promises it, and address and length were checked.
    Ok(unsafe { std::slice::from_raw_parts(address, count as usize) })
}

/// A string that ends with a 0.
///
/// # Safety
/// Unless it is null, it is one, and does not change while the result is in use.
pub(crate) unsafe fn text<'a>(name: &str, text: *const c_char) -> Result<&'a str, Fault> {
    check(name, text, 1)?;
    // SAFETY: our caller promises it.
    let text = unsafe { CStr::from_ptr(text) };
    text.to_str()
        .map_err(|_| invalid(format!("{name} is not UTF-8: {text:?}")))
}

/// Copies a text to the caller's buffer, cut if it is too long, always with its 0.
///
/// # Safety
/// `buffer` has `capacity` bytes; `needed` is null or writable.
pub(crate) unsafe fn write_text(
    text: &str,
    buffer: *mut c_char,
    capacity: u64,
    needed: *mut u64,
) -> Result<i32, Fault> {
    if !needed.is_null() {
        // SAFETY: our caller promises it.
        unsafe { write("needed", needed, text.len() as u64 + 1)? };
    }
    if capacity == 0 {
        return Ok(LINERATE_DONE);
    }
    check("buffer", buffer, 1)?;
    let mut length = text.len().min(capacity as usize - 1);
    while !text.is_char_boundary(length) {
        length -= 1;
    }
    // SAFETY: length + 1 is at most the capacity, and our caller promises that the buffer has so
    // many bytes.
    unsafe {
        buffer
            .cast::<u8>()
            .copy_from_nonoverlapping(text.as_ptr(), length);
        buffer.add(length).write(0);
    }
    Ok(LINERATE_DONE)
}

/// A struct of C that begins with its size, whose form this version knows.
///
/// # Safety
/// The first field is the size, a `u64`, and every bit pattern is a value of the type.
pub(crate) unsafe trait Sized64: Copy {
    /// The name of the type, for errors.
    const NAME: &'static str;
    /// The size of its first version: later ones have more fields.
    const FIRST_BYTES: usize = size_of::<Self>();
}

/// The size that a struct says, if a version of the type has it.
///
/// # Safety
/// Unless the address is null or not aligned, a `u64` lies there.
#[inline]
unsafe fn size_of_given<T: Sized64>(name: &str, address: *const T) -> Result<u64, Fault> {
    check(name, address.cast::<u64>(), 1)?;
    let align = align_of::<T>() as u64;
    // SAFETY: our caller promises it.
    let size = unsafe { address.cast::<u64>().read() };
    if size < T::FIRST_BYTES as u64 || size > STRUCT_BYTES_MAX || !size.is_multiple_of(align) {
        return Err(wrong_size::<T>(name, size));
    }
    Ok(size)
}

#[cold]
fn wrong_size<T: Sized64>(name: &str, size: u64) -> Fault {
    let own = size_of::<T>();
    invalid(format!(
        "{name} has a size of {size}: set its field `size` to sizeof({}), which is {own} in this version and at most {STRUCT_BYTES_MAX}",
        T::NAME
    ))
}

/// A copy of a struct. One of an earlier version is shorter; the fields that it lacks are zero. One
/// of a later version is longer; its further bytes must be zero. Zero stands for the default.
///
/// # Safety
/// Unless the address is null or not aligned, a struct lies there whose first field is its size.
pub(crate) unsafe fn read<T: Sized64>(name: &str, address: *const T) -> Result<T, Fault> {
    let mut space = MaybeUninit::uninit();
    // SAFETY: our caller promises it, and the struct stays as it is while it is copied.
    Ok(unsafe { *look(name, address, &mut space)? })
}

/// A struct where it lies if it is of this version, else a copy in `space`, as [`read`] makes it.
///
/// # Safety
/// As [`read`]; and nothing changes the struct while the result is used.
#[inline]
pub(crate) unsafe fn look<'a, T: Sized64>(
    name: &str,
    address: *const T,
    space: &'a mut MaybeUninit<T>,
) -> Result<&'a T, Fault> {
    // SAFETY: our caller promises it.
    let size = unsafe { size_of_given(name, address)? } as usize;
    match size == size_of::<T>() {
        // SAFETY: the struct has as many bytes, as its caller says, and is aligned.
        true => Ok(unsafe { &*address }),
        // SAFETY: our caller promises it.
        false => Ok(space.write(unsafe { read_other(name, address, size)? })),
    }
}

/// A copy of a struct of another version, of `size` bytes.
///
/// # Safety
/// Such a struct lies there.
#[cold]
unsafe fn read_other<T: Sized64>(name: &str, address: *const T, size: usize) -> Result<T, Fault> {
    let own = size_of::<T>();
    // SAFETY: the struct has `size` bytes, as its caller says.
    let is_known = (own..size).all(|at| unsafe { *address.cast::<u8>().add(at) } == 0);
    if !is_known {
        return Err(invalid(format!(
            "{name} sets fields that this version of the library does not know: it has {own} of {size} bytes; install a later one, or leave those fields zero"
        )));
    }
    let mut copy = MaybeUninit::<T>::zeroed();
    let bytes = copy.as_mut_ptr().cast::<u8>();
    // SAFETY: neither is shorter than what is copied, and the copy is our own. Every bit pattern is
    // a value.
    unsafe {
        bytes.copy_from_nonoverlapping(address.cast(), size.min(own));
        Ok(copy.assume_init())
    }
}

/// An error unless a struct with its size lies there, before there is a result for it; null stands
/// for one that is not wanted.
///
/// # Safety
/// Unless the address is null or not aligned, a struct lies there whose first field is its size.
pub(crate) unsafe fn check_wanted<T: Sized64>(name: &str, place: *const T) -> Result<(), Fault> {
    if !place.is_null() {
        // SAFETY: our caller promises it.
        unsafe { size_of_given(name, place)? };
    }
    Ok(())
}

/// Stores a struct where the caller has set the field `size` of one: as much of it as fits, with
/// the caller's size. What the caller's version has more is left, and null stands for one that is
/// not wanted.
///
/// # Safety
/// Unless the address is null or not aligned, a struct lies there whose first field is its size.
pub(crate) unsafe fn write_back<T: Sized64>(
    name: &str,
    place: *mut T,
    value: &T,
) -> Result<(), Fault> {
    if place.is_null() {
        return Ok(());
    }
    // SAFETY: our caller promises it.
    let size = unsafe { size_of_given(name, place)? } as usize;
    let after_size = size_of::<u64>()..size.min(size_of::<T>());
    let from = ptr::from_ref(value).cast::<u8>();
    // SAFETY: neither is shorter than what is copied.
    unsafe {
        let (from, to) = (
            from.add(after_size.start),
            place.cast::<u8>().add(after_size.start),
        );
        to.copy_from_nonoverlapping(from, after_size.len());
    }
    Ok(())
}

/// The structs of an array, whose first one says the size of all of them.
pub(crate) struct Structs<T> {
    name: &'static str,
    first: *const T,
    size: u64,
    count: u64,
}

impl<T: Sized64> Structs<T> {
    /// An array; empty if it has no structs.
    ///
    /// # Safety
    /// Unless the address is null or not aligned, `count` structs lie there, whose first field is
    /// their size, and stay until this is dropped.
    pub(crate) unsafe fn new(
        name: &'static str,
        first: *const T,
        count: u64,
    ) -> Result<Structs<T>, Fault> {
        let size = match count {
            0 => size_of::<T>() as u64,
            // SAFETY: our caller promises it.
            _ => unsafe { size_of_given(name, first)? },
        };
        check_range(
            name,
            first.addr(),
            align_of::<T>(),
            count as usize,
            size as usize,
        )?;
        Ok(Structs {
            name,
            first,
            size,
            count,
        })
    }

    /// Where the struct of this number lies.
    pub(crate) fn place(&self, number: u64) -> *const T {
        assert!(number < self.count, "struct {number} of {}", self.count);
        self.first.wrapping_byte_add((number * self.size) as usize)
    }

    pub(crate) fn size(&self) -> u64 {
        self.size
    }

    /// Copies of them, one by one.
    pub(crate) fn iter(&self) -> impl Iterator<Item = Result<T, Fault>> + '_ {
        (0..self.count).map(|number| {
            let place = self.place(number);
            // SAFETY: the caller of `new` promises it.
            let own = unsafe { place.cast::<u64>().read() };
            if own != self.size {
                return Err(invalid(format!(
                    "number {number} of {} has a size of {own}, the first one {}: all have sizeof({})",
                    self.name,
                    self.size,
                    T::NAME
                )));
            }
            // SAFETY: as above.
            unsafe { read(self.name, place) }
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[repr(C)]
    #[derive(Clone, Copy)]
    struct Later {
        size: u64,
        value: u64,
        added: u64,
        further: u64,
    }

    #[repr(C)]
    #[derive(Clone, Copy)]
    struct Now {
        size: u64,
        value: u64,
        added: u64,
    }

    // SAFETY: numbers, the size first.
    unsafe impl Sized64 for Now {
        const NAME: &'static str = "now";
        const FIRST_BYTES: usize = 16;
    }

    fn error(fault: Result<impl Sized, Fault>) -> String {
        match fault {
            Err(Fault::Library(error)) => error.to_string(),
            _ => panic!("an error of an argument"),
        }
    }

    const LATER: Later = Later {
        size: 32,
        value: 5,
        added: 6,
        further: 0,
    };

    #[test]
    fn structs_of_other_versions_are_read_with_zeros_for_what_they_lack() {
        let read_it = |later: Later| {
            // SAFETY: it is a struct with its size.
            let now = unsafe { read("it", (&raw const later).cast::<Now>()) };
            now.map(|now| (now.value, now.added))
        };
        assert_eq!(read_it(LATER).unwrap(), (5, 6));
        let with = |size, further| Later {
            size,
            further,
            ..LATER
        };
        assert_eq!(read_it(with(24, 9)).unwrap(), (5, 6));
        assert_eq!(read_it(with(16, 9)).unwrap(), (5, 0));
        assert!(error(read_it(with(32, 9))).contains("does not know"));
        for size in [0, 8, 15, 17, 4097, u64::MAX] {
            assert!(error(read_it(with(size, 0))).contains("sizeof(now)"));
        }
    }

    #[test]
    fn results_are_written_as_far_as_the_struct_of_the_caller_reaches() {
        let value = Now {
            size: 24,
            value: 1,
            added: 2,
        };
        for (size, added) in [(16, 6), (24, 2), (32, 2)] {
            let mut place = Later { size, ..LATER };
            // SAFETY: it is a struct with its size.
            unsafe { write_back("it", (&raw mut place).cast::<Now>(), &value).unwrap() };
            assert_eq!((place.size, place.value, place.added), (size, 1, added));
            assert_eq!(place.further, 0);
        }
    }

    #[test]
    fn structs_of_an_array_have_one_size() {
        let mut array = [LATER; 3];
        let values = |array: &[Later; 3]| {
            // SAFETY: structs with their size.
            let structs = unsafe { Structs::new("structs", array.as_ptr().cast::<Now>(), 3) };
            structs.and_then(|all| {
                all.iter()
                    .map(|one| Ok(one?.value))
                    .collect::<Result<Vec<_>, _>>()
            })
        };
        array[2].value = 7;
        assert_eq!(values(&array).unwrap(), [5, 5, 7]);
        array[1].size = 24;
        assert!(error(values(&array)).contains("number 1 of structs has a size of 24"));
        // SAFETY: null and a length that no memory has are what is tested.
        let bad = |first: *const Now, count| unsafe { Structs::new("structs", first, count) };
        assert!(error(bad(ptr::null(), 1)).contains("NULL"));
        assert!(error(bad(array.as_ptr().cast(), u64::MAX / 8)).contains("do not fit"));
        assert_eq!(bad(ptr::null(), 0).unwrap().iter().count(), 0);
    }

    #[test]
    fn addresses_are_checked_before_they_are_used() {
        let check = |address, count| bytes_of("input", address, count, DataType::F32);
        assert_eq!(check(16, 4).unwrap(), 16);
        assert!(error(check(18, 4)).contains("multiple of 4"));
        assert!(error(check(16, u64::MAX / 2)).contains("do not fit"));
        assert!(error(check(usize::MAX - 7, 4)).contains("do not fit"));
        assert!(bytes_of("input", 4, 1, DataType::C64).is_ok());
        // SAFETY: null is what is tested.
        let null = unsafe { array::<u64>("counts", std::ptr::null(), 1) };
        assert!(error(null).contains("counts is NULL"));
    }

    #[test]
    fn a_text_is_cut_at_a_character_and_says_its_length() {
        let (mut buffer, mut needed) = ([1 as c_char; 4], 0);
        // SAFETY: a buffer of this test.
        unsafe { write_text("aäöü", buffer.as_mut_ptr(), 4, &mut needed).unwrap() };
        assert_eq!(needed, 8);
        // SAFETY: it ends with a 0.
        assert_eq!(unsafe { text("it", buffer.as_ptr()) }.unwrap(), "aä");
    }
}
