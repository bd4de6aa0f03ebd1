//! The memory of an argument as a buffer of the library, if it is as long as was declared.
#![allow(unsafe_code)]

use crate::errors::{OrRaise, invalid};
use crate::memory::{Keep, Memory};
use linerate::{Buffer, Communicator, DataType};
use pyo3::prelude::*;
use pyo3::types::PyList;
use std::ptr::with_exposed_provenance_mut;

/// A buffer of the library, and what keeps its memory.
pub struct Vector {
    // Dropped before what keeps its memory.
    pub buffer: Buffer<u8>,
    pub keep: Keep,
}

impl Vector {
    /// The memory of an argument with this name, of `count` elements of `dtype`.
    pub fn of(
        communicator: &Communicator,
        (name, argument): (&str, &Bound<'_, PyAny>),
        is_written: bool,
        (count, dtype): (u64, DataType),
    ) -> PyResult<Vector> {
        let py = argument.py();
        let memory = Memory::of(name, argument, is_written)?;
        if (memory.count, memory.dtype) != (count, dtype) {
            return Err(invalid(
                py,
                format!(
                    "{name} has {} elements of {}, and {count} of {dtype} are needed",
                    memory.count, memory.dtype
                ),
            ));
        }
        let align = dtype.align_bytes();
        if count > 0 && !memory.address.is_multiple_of(align) {
            return Err(invalid(
                py,
                format!(
                    "{name} at {:#x} is not aligned: the address of {dtype} must be a multiple of {align}",
                    memory.address
                ),
            ));
        }
        let bytes = usize::try_from(count).map(|count| count.checked_mul(dtype.size_bytes()));
        let Ok(Some(bytes)) = bytes else {
            return Err(invalid(
                py,
                format!("{name} of {count} elements of {dtype} does not fit an address space"),
            ));
        };
        let address = with_exposed_provenance_mut::<u8>(memory.address);
        // SAFETY: the memory is that long, and `keep` keeps it for as long as the buffer is used.
        // That nothing else uses it meanwhile is the caller's to see to, as with any array that
        // threads share.
        let buffer = unsafe { communicator.adopt(address, bytes) }.or_raise(py)?;
        Ok(Vector {
            buffer,
            keep: memory.keep,
        })
    }

    /// One vector for each tensor: a list of as many arguments, or a single one for one tensor.
    pub fn all_of(
        communicator: &Communicator,
        (name, argument): (&str, &Bound<'_, PyAny>),
        is_written: bool,
        lengths: &[(u64, DataType)],
    ) -> PyResult<Vec<Vector>> {
        let Ok(list) = argument.cast::<PyList>() else {
            let [length] = lengths else {
                let text = format!("{name}: give a list of {} arrays", lengths.len());
                return Err(invalid(argument.py(), text));
            };
            let one = Vector::of(communicator, (name, argument), is_written, *length)?;
            return Ok(vec![one]);
        };
        if list.len() != lengths.len() {
            return Err(invalid(
                argument.py(),
                format!(
                    "{name} is a list of {}, and {} are needed",
                    list.len(),
                    lengths.len()
                ),
            ));
        }
        let each = list.iter().zip(lengths).enumerate();
        each.map(|(number, (own, length))| {
            let name = format!("{name}[{number}]");
            Vector::of(communicator, (&name, &own), is_written, *length)
        })
        .collect()
    }
}
