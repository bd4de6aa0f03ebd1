//! Options that Python names by a text, and the declared tensors.

use crate::errors::{OrRaise, invalid};
use linerate::{DataType, TensorSpec};
use pyo3::prelude::*;
use pyo3::types::{PyInt, PyTuple};

/// The value of an option that is one of these texts.
pub fn one_of<T: Clone>(py: Python<'_>, name: &str, text: &str, all: &[(&str, T)]) -> PyResult<T> {
    let found = all.iter().find(|(known, _)| *known == text);
    found.map(|(_, value)| value.clone()).ok_or_else(|| {
        let known: Vec<&str> = all.iter().map(|(known, _)| *known).collect();
        invalid(
            py,
            format!("{name} is '{text}': one of {}", known.join(" ")),
        )
    })
}

/// The text of a value of such an option.
pub fn text_of<T: PartialEq>(value: &T, all: &[(&'static str, T)]) -> &'static str {
    let found = all.iter().find(|(_, known)| known == value);
    found.map_or("unknown", |(text, _)| text)
}

/// A number of elements, or a list of tensors: (name, count) or (name, count, type).
pub fn tensors_of(tensors: &Bound<'_, PyAny>) -> PyResult<Vec<TensorSpec>> {
    let py = tensors.py();
    match tensors.extract::<u64>() {
        Ok(count) => {
            let name = "tensor 0".into();
            let dtype = DataType::F32;
            return Ok(vec![TensorSpec { name, count, dtype }]);
        }
        Err(error) if tensors.is_instance_of::<PyInt>() => return Err(error),
        Err(_) => {}
    }
    let wrong = |what: String| {
        invalid(
            py,
            format!(
                "{what}: give (name, count) or (name, count, type), such as ('weight', 1000, 'f32')"
            ),
        )
    };
    let mut specs = Vec::new();
    for tensor in tensors.try_iter()? {
        let tensor = tensor?;
        let number = specs.len();
        let Ok(parts) = tensor.cast::<PyTuple>() else {
            let kind = tensor.get_type().name()?;
            return Err(wrong(format!("tensor {number} is a {kind}")));
        };
        let (name, count, dtype) = match parts.len() {
            2 => parts
                .extract::<(String, u64)>()
                .map(|(name, count)| (name, count, "f32".into())),
            _ => parts.extract::<(String, u64, String)>(),
        }
        .map_err(|_| wrong(format!("tensor {number} is {parts}")))?;
        let dtype = dtype.parse::<DataType>().or_raise(py)?;
        specs.push(TensorSpec { name, count, dtype });
    }
    Ok(specs)
}
