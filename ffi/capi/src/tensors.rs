//! The declared tensors of fusion buffers and of sparse allreduces.

use crate::pointers::{Sized64, Structs, text};
use crate::status::Fault;
use crate::words::dtype_of;
use linerate::TensorSpec;
use std::ffi::c_char;

/// A tensor, declared once for all steps.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
#[allow(non_camel_case_types)]
pub struct linerate_tensor {
    /// sizeof(linerate_tensor).
    pub size: u64,
    /// Its name, for errors and saved residuals; NULL: "tensor" and its number.
    pub name: *const c_char,
    /// Elements; 0 is allowed.
    pub count: u64,
    /// LINERATE_F32, ...
    pub dtype: u32,
    /// 0.
    pub reserved: u32,
}

// SAFETY: numbers and an address, the size first.
unsafe impl Sized64 for linerate_tensor {
    const NAME: &'static str = "linerate_tensor";
}

/// The tensors of an array.
///
/// # Safety
/// `tensors` are `count` structs whose names are strings or NULL.
pub(crate) unsafe fn tensors_of(
    tensors: *const linerate_tensor,
    count: u64,
) -> Result<Vec<TensorSpec>, Fault> {
    // SAFETY: our caller promises it.
    let tensors = unsafe { Structs::new("tensors", tensors, count)? };
    let mut specs = Vec::new();
    for (number, tensor) in tensors.iter().enumerate() {
        let tensor = tensor?;
        let name = match tensor.name.is_null() {
            true => format!("tensor {number}"),
            // SAFETY: as above.
            false => unsafe { text("the name of a tensor", tensor.name)? }.into(),
        };
        specs.push(TensorSpec {
            name,
            count: tensor.count,
            dtype: dtype_of(tensor.dtype)?,
        });
    }
    Ok(specs)
}
