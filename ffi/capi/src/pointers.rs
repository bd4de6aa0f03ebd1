//! What C gives by address: strings, structs with their size, arrays, places for results.

use crate::status::{Fault, LINERATE_DONE, invalid};
use linerate::DataType;
use std::ffi::{CStr, c_char};

/// No struct of any version is larger.
const STRUCT_BYTES_MAX: u64 = 4096;

/// Whether `count` values of type `T` can lie at this address.
fn check<T>(name: &str, address: *const T, count: usize) -> Result<(), Fault> {
    if address.is_null() {
        return Err(invalid(format!("{name} is NULL: give an address")));
    }
    check_range(name, address.addr(), align_of::<T>(), count, size_of::<T>())?;
    Ok(())
}

/// The bytes of `count` elements, if they can lie at this address.
fn check_range(
    name: &str,
    address: usize,
    align: usize,
    count: usize,
    size: usize,
) -> Result<usize, Fault> {
    if !address.is_multiple_of(align) {
        return Err(invalid(format!(
            "{name} at {address:#x} is not aligned: its address must be a multiple of {align}"
        )));
    }
    let bytes = count
        .checked_mul(size)
        .filter(|&bytes| bytes <= isize::MAX as usize && address.checked_add(bytes).is_some());
    bytes.ok_or_else(|| {
        invalid(format!(
            "{name}: {count} elements of {size} bytes at {address:#x} do not fit an address space"
        ))
    })
}

/// The bytes of `count` elements of this type at an address that is not null.
pub(crate) fn bytes_of(
    name: &str,
    address: usize,
    count: u64,
    dtype: DataType,
) -> Result<usize, Fault> {
    // A complex number is aligned as its parts are.
    let parts = if dtype.is_complex() { 2 } else { 1 };
    let size = dtype.size_bytes();
    check_range(name, address, size / parts, count as usize, size)
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
}

/// A copy of a struct. One of a later version is longer; its further bytes must be zero, which
/// stands for the default.
///
/// # Safety
/// Unless the address is null or not aligned, a struct lies there whose first field is its size.
pub(crate) unsafe fn read<T: Sized64>(name: &str, address: *const T) -> Result<T, Fault> {
    check(name, address, 1)?;
    let own = size_of::<T>() as u64;
    // SAFETY: our caller promises it; the first field is a u64.
    let size = unsafe { address.cast::<u64>().read() };
    if size < own || size > STRUCT_BYTES_MAX {
        return Err(invalid(format!(
            "{name} has a size of {size}: set its field `size` to sizeof({}), which is {own} in this version and at most {STRUCT_BYTES_MAX}",
            T::NAME
        )));
    }
    let rest = size_of::<T>()..size as usize;
    // SAFETY: the struct has `size` bytes, as its caller says.
    let is_known = rest
        .clone()
        .all(|at| unsafe { *address.cast::<u8>().add(at) } == 0);
    if !is_known {
        return Err(invalid(format!(
            "{name} sets fields that this version of the library does not know: it has {own} of {size} bytes; install a later one, or leave those fields zero"
        )));
    }
    // SAFETY: it has at least the bytes of `T`, and every bit pattern is a value.
    Ok(unsafe { address.read() })
}

/// The size that the first struct of an array says, which is the step to the next.
///
/// # Safety
/// As [`read`].
pub(crate) unsafe fn step_of<T: Sized64>(name: &str, first: *const T) -> Result<u64, Fault> {
    check(name, first, 1)?;
    // SAFETY: our caller promises it; the first field is a u64.
    let size = unsafe { first.cast::<u64>().read() };
    let (own, align) = (size_of::<T>() as u64, align_of::<T>() as u64);
    if size < own || size > STRUCT_BYTES_MAX || !size.is_multiple_of(align) {
        return Err(invalid(format!(
            "the first of {name} has a size of {size}: set its field `size` to sizeof({}), which is {own} in this version",
            T::NAME
        )));
    }
    Ok(size)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[repr(C)]
    #[derive(Clone, Copy)]
    struct Later {
        size: u64,
        value: u64,
        further: u64,
    }

    #[repr(C)]
    #[derive(Clone, Copy)]
    struct Now {
        size: u64,
        value: u64,
    }

    // SAFETY: two numbers, the size first.
    unsafe impl Sized64 for Now {
        const NAME: &'static str = "now";
    }

    fn error(fault: Result<impl Sized, Fault>) -> String {
        match fault {
            Err(Fault::Library(error)) => error.to_string(),
            _ => panic!("an error of an argument"),
        }
    }

    #[test]
    fn a_later_struct_is_read_while_its_further_fields_are_zero() {
        let read_it = |size, further| {
            let later = Later {
                size,
                value: 5,
                further,
            };
            // SAFETY: it is a struct with its size.
            unsafe { read("it", (&raw const later).cast::<Now>()) }.map(|now| now.value)
        };
        assert_eq!(read_it(24, 0).unwrap(), 5);
        assert_eq!(read_it(16, 9).unwrap(), 5);
        assert!(error(read_it(24, 9)).contains("does not know"));
        for size in [0, 8, 15, 4097, u64::MAX] {
            assert!(error(read_it(size, 0)).contains("sizeof(now)"));
        }
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
