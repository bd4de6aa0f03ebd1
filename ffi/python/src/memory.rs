//! The memory of an argument: what has the buffer protocol or `__dlpack__`, a [`Buffer`] of ours,
//! or an address with a count and a type.
#![allow(unsafe_code)]

use crate::buffer::Buffer;
use crate::dlpack;
use crate::errors::{OrRaise, invalid};
use linerate::DataType;
use pyo3::ffi;
use pyo3::prelude::*;
use pyo3::types::PyTuple;
use std::ffi::CStr;
use std::mem::MaybeUninit;
use std::ptr::with_exposed_provenance_mut;

/// A view that was asked for by the buffer protocol, and is given back when this is dropped.
/// [`pyo3::buffer::PyUntypedBuffer`] refuses views without shape or strides, as ctypes and arrays
/// without dimensions give them.
pub struct View(Box<ffi::Py_buffer>);

// SAFETY: a view is given back with the interpreter attached, on any thread; what it points to is
// only read here.
unsafe impl Send for View {}
// SAFETY: as for Send.
unsafe impl Sync for View {}

impl View {
    fn of(object: &Bound<'_, PyAny>) -> PyResult<View> {
        let mut view = Box::new(MaybeUninit::<ffi::Py_buffer>::uninit());
        // SAFETY: the object lives, and the place is for a view.
        let status = unsafe {
            ffi::PyObject_GetBuffer(object.as_ptr(), view.as_mut_ptr(), ffi::PyBUF_FULL_RO)
        };
        if status != 0 {
            return Err(PyErr::fetch(object.py()));
        }
        // SAFETY: it was filled in.
        Ok(View(unsafe { view.assume_init() }))
    }

    /// Whether its elements have no gaps, in the order of rows or of columns.
    fn is_contiguous(&self) -> bool {
        // SAFETY: it is a view.
        unsafe { ffi::PyBuffer_IsContiguous(&raw const *self.0, b'A' as std::ffi::c_char) == 1 }
    }

    fn format(&self) -> String {
        match self.0.format.is_null() {
            true => "B".into(),
            // SAFETY: a format is a string that lives as long as the view.
            false => unsafe { CStr::from_ptr(self.0.format) }
                .to_string_lossy()
                .into_owned(),
        }
    }

    /// Numbers per dimension; empty if the view has none.
    fn numbers(&self, start: *const isize) -> &[isize] {
        match start.is_null() || self.0.ndim == 0 {
            true => &[],
            // SAFETY: there is one per dimension, and they live as long as the view.
            false => unsafe { std::slice::from_raw_parts(start, self.0.ndim as usize) },
        }
    }
}

impl Drop for View {
    fn drop(&mut self) {
        let view = &raw mut *self.0;
        // At the end of the interpreter the view stays.
        // SAFETY: it is a view that was not given back.
        let _ = Python::try_attach(|_| unsafe { ffi::PyBuffer_Release(view) });
    }
}

/// What keeps the memory where it is, until the operation on it has ended.
pub enum Keep {
    /// The memory belongs to the caller.
    Caller,
    /// A view that was asked for by the buffer protocol.
    View(#[allow(dead_code)] View),
    /// An object that owns the memory.
    Object(#[allow(dead_code)] Py<PyAny>),
}

/// Elements of one type, without gaps.
pub struct Memory {
    pub address: usize,
    pub count: u64,
    pub dtype: DataType,
    pub keep: Keep,
}

impl Memory {
    /// The memory of an argument with this name.
    pub fn of(name: &str, argument: &Bound<'_, PyAny>, is_written: bool) -> PyResult<Memory> {
        let py = argument.py();
        if let Ok(tuple) = argument.cast::<PyTuple>() {
            return Memory::of_tuple(name, tuple);
        }
        if let Ok(buffer) = argument.cast::<Buffer>() {
            let own = buffer.get();
            return Ok(Memory {
                address: own.address(),
                count: own.count(),
                dtype: own.dtype(),
                keep: Keep::Object(argument.clone().unbind()),
            });
        }
        // SAFETY: it is a live object, and the interpreter is attached.
        if unsafe { ffi::PyObject_CheckBuffer(argument.as_ptr()) } == 1 {
            return Memory::of_view(py, name, View::of(argument)?, is_written);
        }
        if argument.hasattr("__dlpack__")? {
            return dlpack::memory_of(name, argument);
        }
        Err(invalid(
            py,
            format!(
                "{name} is a {}: give something with the buffer protocol or __dlpack__, such as an array, or (address, count, type)",
                argument.get_type().name()?
            ),
        ))
    }

    /// Registers it with a communicator. The caller keeps it where it is until it is deregistered.
    pub fn register(self, py: Python<'_>, comm: &linerate::Communicator) -> PyResult<()> {
        let bytes = self.count as usize * self.dtype.size_bytes();
        let address = with_exposed_provenance_mut(self.address);
        // SAFETY: the caller keeps it, as the documentation says.
        drop(unsafe { comm.register(address, bytes) }.or_raise(py)?);
        Ok(())
    }

    /// Ends the registration that begins where it lies.
    pub fn deregister(self, py: Python<'_>, comm: &linerate::Communicator) -> PyResult<()> {
        let address = self.address;
        py.detach(|| comm.deregister(with_exposed_provenance_mut(address)))
            .or_raise(py)
    }

    fn of_tuple(name: &str, tuple: &Bound<'_, PyTuple>) -> PyResult<Memory> {
        let py = tuple.py();
        let owner = tuple.get_item(3).ok();
        let given = tuple.get_slice(0, 3).extract::<(usize, u64, String)>();
        let (address, count, dtype) = given.ok().filter(|_| tuple.len() <= 4).ok_or_else(|| {
            let text =
                "give (address, count, type), such as (0x7f00, 10, 'f32'), and perhaps its owner";
            invalid(py, format!("{name} is a tuple: {text}"))
        })?;
        Ok(Memory {
            address,
            count,
            dtype: dtype.parse::<DataType>().or_raise(py)?,
            keep: owner.map_or(Keep::Caller, |owner| Keep::Object(owner.unbind())),
        })
    }

    fn of_view(py: Python<'_>, name: &str, view: View, is_written: bool) -> PyResult<Memory> {
        let raw = &view.0;
        if is_written && raw.readonly != 0 {
            return Err(invalid(
                py,
                format!("{name} is read-only, and this call writes it"),
            ));
        }
        if !view.is_contiguous() {
            return Err(invalid(
                py,
                format!(
                    "{name} of shape {:?} has gaps between its elements (strides {:?} in bytes): give a contiguous copy",
                    view.numbers(raw.shape),
                    view.numbers(raw.strides)
                ),
            ));
        }
        let dtype = dtype_of(py, name, &view.format(), raw.itemsize as usize)?;
        Ok(Memory {
            address: raw.buf.expose_provenance(),
            count: (raw.len / raw.itemsize) as u64,
            dtype,
            keep: Keep::View(view),
        })
    }
}

/// The type of a format of the module `struct`, whose elements have this many bytes.
fn dtype_of(py: Python<'_>, name: &str, format: &str, bytes: usize) -> PyResult<DataType> {
    let refuse = |why: &str| {
        let text = format!("{name} has elements of format '{format}' of {bytes} bytes: {why}");
        Err(invalid(py, text))
    };
    let foreign = if cfg!(target_endian = "little") {
        ['>', '!']
    } else {
        ['<', '<']
    };
    if format.starts_with(foreign) && bytes > 1 {
        return refuse(
            "their bytes are in the order of another machine; give a copy in this one's",
        );
    }
    let code = format.trim_start_matches(['@', '=', '<', '>', '!']);
    Ok(match (code, bytes) {
        ("d", 8) => DataType::F64,
        ("f", 4) => DataType::F32,
        ("e", 2) => DataType::F16,
        ("?", 1) => DataType::Bool,
        ("Zf", 8) => DataType::C64,
        ("Zd", 16) => DataType::C128,
        ("b", 1) => DataType::I8,
        ("B" | "c", 1) => DataType::U8,
        ("h" | "i" | "l" | "q" | "n", 2) => DataType::I16,
        ("h" | "i" | "l" | "q" | "n", 4) => DataType::I32,
        ("h" | "i" | "l" | "q" | "n", 8) => DataType::I64,
        ("H" | "I" | "L" | "Q" | "N", 2) => DataType::U16,
        ("H" | "I" | "L" | "Q" | "N", 4) => DataType::U32,
        ("H" | "I" | "L" | "Q" | "N", 8) => DataType::U64,
        _ => return refuse("no type of linerate is such; structured and long ones have none"),
    })
}
