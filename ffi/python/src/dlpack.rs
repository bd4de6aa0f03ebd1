//! DLPack: the memory of tensors of other packages, and ours for them.
//! The layout is that of <https://github.com/dmlc/dlpack>, version 0.8.
#![allow(unsafe_code)]

use crate::buffer::Buffer;
use crate::errors::invalid;
use crate::memory::{Keep, Memory};
use linerate::DataType;
use pyo3::ffi;
use pyo3::prelude::*;
use pyo3::types::{PyCapsule, PyCapsuleMethods};
use std::ffi::{CStr, c_void};
use std::ptr::null_mut;

const NAME: &CStr = c"dltensor";
/// Memory of this process, and memory of it that a CUDA device can reach.
const CPU: i32 = 1;
const CUDA_HOST: i32 = 3;

#[repr(C)]
struct Tensor {
    data: *mut c_void,
    device: [i32; 2],
    dimensions: i32,
    code: u8,
    bits: u8,
    lanes: u16,
    shape: *mut i64,
    /// In elements; null: without gaps.
    strides: *mut i64,
    byte_offset: u64,
}

#[repr(C)]
struct Managed {
    tensor: Tensor,
    context: *mut c_void,
    deleter: Option<unsafe extern "C" fn(*mut Managed)>,
}

/// Codes and bits of our types.
const TYPES: [(u8, u8, DataType); 17] = [
    (2, 64, DataType::F64),
    (2, 32, DataType::F32),
    (2, 16, DataType::F16),
    (4, 16, DataType::Bf16),
    (0, 8, DataType::I8),
    (1, 8, DataType::U8),
    (0, 32, DataType::I32),
    (1, 32, DataType::U32),
    (0, 64, DataType::I64),
    (1, 64, DataType::U64),
    (6, 8, DataType::Bool),
    (0, 16, DataType::I16),
    (1, 16, DataType::U16),
    (10, 8, DataType::F8E4M3),
    (12, 8, DataType::F8E5M2),
    (5, 64, DataType::C64),
    (5, 128, DataType::C128),
];

/// The memory of an object that has `__dlpack__`.
pub fn memory_of(name: &str, object: &Bound<'_, PyAny>) -> PyResult<Memory> {
    let py = object.py();
    let (device, number): (i32, i32) = object.call_method0("__dlpack_device__")?.extract()?;
    if device != CPU && device != CUDA_HOST {
        return Err(invalid(
            py,
            format!(
                "{name} lies on device {number} of DLPack's kind {device}: this version takes memory of the CPU only; copy it there"
            ),
        ));
    }
    let capsule = object.call_method0("__dlpack__")?;
    let capsule = capsule.cast::<PyCapsule>()?;
    let managed = capsule.pointer_checked(Some(NAME))?.cast::<Managed>();
    // SAFETY: a capsule of this name has such a struct, and keeps it while it lives.
    let tensor = unsafe { &managed.as_ref().tensor };
    let known = TYPES
        .iter()
        .find(|known| (known.0, known.1) == (tensor.code, tensor.bits));
    let Some(&(_, _, dtype)) = known.filter(|_| tensor.lanes == 1) else {
        return Err(invalid(
            py,
            format!(
                "{name} has elements of DLPack's type {} of {} bits: no type of linerate is such",
                tensor.code, tensor.bits
            ),
        ));
    };
    let dimensions = tensor.dimensions as usize;
    let list = |start: *mut i64| match start.is_null() || dimensions == 0 {
        true => &[][..],
        // SAFETY: each has one number per dimension.
        false => unsafe { std::slice::from_raw_parts(start, dimensions) },
    };
    let (shape, strides) = (list(tensor.shape), list(tensor.strides));
    if !strides.is_empty() && !is_contiguous(shape, strides) {
        return Err(invalid(
            py,
            format!(
                "{name} of shape {shape:?} has gaps between its elements (strides {strides:?}): give a contiguous copy"
            ),
        ));
    }
    Ok(Memory {
        address: tensor.data.addr() + tensor.byte_offset as usize,
        count: shape.iter().product::<i64>() as u64,
        dtype,
        keep: Keep::Object(object.clone().unbind()),
    })
}

/// Whether elements lie one after another, in the order of rows.
fn is_contiguous(shape: &[i64], strides: &[i64]) -> bool {
    let mut wanted = 1;
    let mut sides = shape.iter().zip(strides).rev();
    let fits = |(&length, &stride): (&i64, &i64)| {
        let fits = length == 1 || stride == wanted;
        wanted *= length;
        fits
    };
    shape.contains(&0) || sides.all(fits)
}

/// What a capsule of ours owns.
struct Shared {
    managed: Managed,
    shape: i64,
    _owner: Py<Buffer>,
}

/// The memory of a buffer for other packages, which keep it while they use it.
pub fn capsule_of<'py>(buffer: &Bound<'py, Buffer>) -> PyResult<Bound<'py, PyCapsule>> {
    let own = buffer.get();
    let known = TYPES.iter().find(|known| known.2 == own.dtype());
    let &(code, bits, _) = known.expect("every type is listed");
    let shared = Box::into_raw(Box::new(Shared {
        managed: Managed {
            tensor: Tensor {
                data: std::ptr::with_exposed_provenance_mut(own.address()),
                device: [CPU, 0],
                dimensions: 1,
                code,
                bits,
                lanes: 1,
                shape: null_mut(),
                strides: null_mut(),
                byte_offset: 0,
            },
            context: null_mut(),
            deleter: Some(delete),
        },
        shape: own.count() as i64,
        _owner: buffer.clone().unbind(),
    }));
    // SAFETY: the box was just made, and nobody else has it.
    let managed = unsafe {
        (*shared).managed.tensor.shape = &raw mut (*shared).shape;
        (*shared).managed.context = shared.cast();
        std::ptr::NonNull::new_unchecked(&raw mut (*shared).managed)
    };
    // SAFETY: the pointer is valid until the deleter is called, by the taker or by the destructor.
    unsafe {
        PyCapsule::new_with_pointer_and_destructor(buffer.py(), managed.cast(), NAME, Some(destroy))
    }
}

/// Frees what a capsule owns. Its taker calls it, perhaps on a thread that Python does not know.
///
/// # Safety
/// `managed` is that of a capsule of ours, and is not used again.
unsafe extern "C" fn delete(managed: *mut Managed) {
    // SAFETY: our caller promises it.
    let shared = unsafe { (*managed).context.cast::<Shared>() };
    let free = |_: Python<'_>| {
        // SAFETY: it was made by `Box::into_raw`, and this is its one end.
        drop(unsafe { Box::from_raw(shared) });
    };
    // At the end of the interpreter the memory stays.
    let _ = Python::try_attach(free);
}

/// The end of a capsule that nobody has taken: one that was has another name.
///
/// # Safety
/// `capsule` is a capsule of ours.
unsafe extern "C" fn destroy(capsule: *mut ffi::PyObject) {
    // SAFETY: our caller promises it; Python calls it with the interpreter attached.
    unsafe {
        if ffi::PyCapsule_IsValid(capsule, NAME.as_ptr()) == 1 {
            let managed = ffi::PyCapsule_GetPointer(capsule, NAME.as_ptr());
            delete(managed.cast());
        }
    }
}
