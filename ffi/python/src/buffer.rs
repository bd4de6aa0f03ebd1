//! Registered memory.
#![allow(unsafe_code)]

use crate::dlpack;
use crate::errors::{OrRaise, invalid};
use linerate::DataType;
use pyo3::exceptions::PyBufferError;
use pyo3::ffi;
use pyo3::prelude::*;
use pyo3::types::PyCapsule;
use std::ffi::{CStr, c_int};
use std::ptr::null_mut;

/// Memory of one type in one dimension, such as that of Communicator.alloc(), which operations use
/// where it lies. numpy.asarray(buffer) and torch.from_dlpack(buffer) see it, and keep it alive.
#[pyclass(frozen, module = "linerate")]
pub struct Buffer {
    memory: linerate::Buffer<u8>,
    address: usize,
    dtype: DataType,
    /// What the buffer protocol tells: the number of elements and the bytes of one.
    shape: [isize; 1],
    strides: [isize; 1],
}

impl Buffer {
    pub fn new(memory: linerate::Buffer<u8>, dtype: DataType) -> linerate::Result<Buffer> {
        let address = memory.as_mut_slice()?.as_mut_ptr().expose_provenance();
        let bytes = dtype.size_bytes();
        Ok(Buffer {
            shape: [(memory.len() / bytes) as isize],
            strides: [bytes as isize],
            address,
            memory,
            dtype,
        })
    }

    /// Registered memory of `count` zeros of a type.
    pub fn alloc(
        py: Python<'_>,
        communicator: &linerate::Communicator,
        count: usize,
        dtype: &str,
    ) -> PyResult<Buffer> {
        let dtype = dtype.parse::<DataType>().or_raise(py)?;
        let bytes = count.checked_mul(dtype.size_bytes());
        let bytes = bytes
            .filter(|&bytes| bytes <= isize::MAX as usize)
            .ok_or_else(|| {
                invalid(
                    py,
                    format!("{count} elements of {dtype} do not fit an address space"),
                )
            })?;
        let memory = py.detach(|| communicator.alloc::<u8>(bytes)).or_raise(py)?;
        Buffer::new(memory, dtype).or_raise(py)
    }

    pub fn address(&self) -> usize {
        self.address
    }

    pub fn count(&self) -> u64 {
        self.shape[0] as u64
    }

    pub fn dtype(&self) -> DataType {
        self.dtype
    }
}

/// The format of a type in the module `struct`; none for those that it does not have.
fn format_of(dtype: DataType) -> Option<&'static CStr> {
    Some(match dtype {
        DataType::F64 => c"d",
        DataType::F32 => c"f",
        DataType::F16 => c"e",
        DataType::I8 => c"b",
        DataType::U8 => c"B",
        DataType::I16 => c"h",
        DataType::U16 => c"H",
        DataType::I32 => c"i",
        DataType::U32 => c"I",
        DataType::I64 => c"q",
        DataType::U64 => c"Q",
        DataType::Bool => c"?",
        DataType::C64 => c"Zf",
        DataType::C128 => c"Zd",
        _ => return None,
    })
}

#[pymethods]
impl Buffer {
    /// The type of its elements, such as 'f32'.
    #[getter(dtype)]
    fn dtype_name(&self) -> &'static str {
        self.dtype.name()
    }

    /// The address of its first element.
    #[getter(address)]
    fn address_number(&self) -> usize {
        self.address
    }

    /// The number of its bytes.
    #[getter]
    fn nbytes(&self) -> usize {
        self.memory.len()
    }

    /// The number of its elements.
    fn __len__(&self) -> usize {
        self.shape[0] as usize
    }

    fn __repr__(&self) -> String {
        format!("linerate.Buffer({} of {})", self.shape[0], self.dtype)
    }

    /// # Safety
    /// Python calls it with a place for a view.
    unsafe fn __getbuffer__(
        slf: Bound<'_, Self>,
        view: *mut ffi::Py_buffer,
        flags: c_int,
    ) -> PyResult<()> {
        let own = slf.get();
        if view.is_null() {
            return Err(PyBufferError::new_err("the place of a view is null"));
        }
        let Some(format) = format_of(own.dtype) else {
            return Err(PyBufferError::new_err(format!(
                "the buffer protocol has no elements of {}: use __dlpack__, for example torch.from_dlpack(buffer)",
                own.dtype
            )));
        };
        let wants = |flag: c_int| flags & flag == flag;
        // SAFETY: our caller promises a place; shape and strides live as long as the object, of
        // which the view keeps a reference, and nothing writes them.
        unsafe {
            (*view).buf = std::ptr::with_exposed_provenance_mut(own.address);
            (*view).len = own.memory.len() as isize;
            (*view).readonly = 0;
            (*view).itemsize = own.strides[0];
            (*view).format = match wants(ffi::PyBUF_FORMAT) {
                true => format.as_ptr().cast_mut(),
                false => null_mut(),
            };
            (*view).ndim = 1;
            (*view).shape = match wants(ffi::PyBUF_ND) {
                true => own.shape.as_ptr().cast_mut(),
                false => null_mut(),
            };
            (*view).strides = match wants(ffi::PyBUF_STRIDES) {
                true => own.strides.as_ptr().cast_mut(),
                false => null_mut(),
            };
            (*view).suboffsets = null_mut();
            (*view).internal = null_mut();
            (*view).obj = slf.into_ptr();
        }
        Ok(())
    }

    /// DLPack's capsule of this memory. The other arguments are those of the protocol, of which
    /// the memory of a CPU needs none.
    #[pyo3(signature = (*, stream=None, max_version=None, dl_device=None, copy=None))]
    fn __dlpack__<'py>(
        slf: &Bound<'py, Self>,
        stream: Option<Bound<'py, PyAny>>,
        max_version: Option<Bound<'py, PyAny>>,
        dl_device: Option<Bound<'py, PyAny>>,
        copy: Option<bool>,
    ) -> PyResult<Bound<'py, PyCapsule>> {
        let _ = (stream, max_version, dl_device);
        if copy == Some(true) {
            return Err(PyBufferError::new_err(
                "a copy is not made here: copy what you get",
            ));
        }
        dlpack::capsule_of(slf)
    }

    /// The device of DLPack that it lies on: the CPU.
    fn __dlpack_device__(&self) -> (i32, i32) {
        (1, 0)
    }
}
