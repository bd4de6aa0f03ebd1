//! Errors of the library as the exceptions of `linerate/errors.py`.

use linerate::Error;
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::PyModule;

static MODULE: PyOnceLock<Py<PyModule>> = PyOnceLock::new();

/// The class of an error, by its name in `linerate/errors.py`.
fn class_of(error: &Error) -> &'static str {
    match error {
        Error::InvalidArgument(_) => "InvalidArgument",
        Error::Timeout { .. } => "Timeout",
        Error::Mismatch { .. } => "Mismatch",
        Error::PeerFailed { .. } => "PeerFailed",
        Error::Left { .. } => "Left",
        Error::Cancelled { .. } => "Cancelled",
        Error::ReceiveCancelled { .. } => "ReceiveCancelled",
        Error::Aborted { .. } => "Aborted",
        Error::CommunicatorFailed(_) => "CommunicatorFailed",
        Error::Forked => "Forked",
        Error::InUse { .. } => "InUse",
        Error::Exhausted { .. } => "Exhausted",
        Error::Unavailable { .. } => "Unavailable",
        Error::Bootstrap(_) => "Bootstrap",
        Error::Os { .. } => "SystemCallFailed",
        Error::NotFinite { .. } => "NotFinite",
        Error::Malformed(_) => "Malformed",
        _ => "Error",
    }
}

/// The ranks that an error names.
fn ranks_of(error: &Error) -> Vec<u32> {
    match error {
        Error::Timeout { missing, .. } => missing.clone(),
        Error::PeerFailed { rank, .. } | Error::Left { rank, .. } => vec![*rank],
        Error::Cancelled { by, .. } | Error::Aborted { by, .. } => vec![*by],
        Error::CommunicatorFailed(cause) => ranks_of(cause),
        _ => Vec::new(),
    }
}

/// What the rank was doing.
fn operation_of(error: &Error) -> Option<String> {
    match error {
        Error::Timeout { operation, .. }
        | Error::Left { operation, .. }
        | Error::Cancelled { operation, .. }
        | Error::ReceiveCancelled { operation } => Some(operation.clone()),
        Error::PeerFailed { during, .. } => {
            let text = during
                .trim_start_matches([',', ' '])
                .trim_start_matches("during ");
            (!text.is_empty()).then(|| text.to_owned())
        }
        Error::CommunicatorFailed(cause) => operation_of(cause),
        _ => None,
    }
}

/// The exception of an error, as an object.
pub fn exception_of<'py>(py: Python<'py>, error: &Error) -> PyResult<Bound<'py, PyAny>> {
    let module = MODULE.get_or_try_init(py, || {
        PyModule::import(py, "linerate.errors").map(Bound::unbind)
    })?;
    let cause = match error {
        Error::CommunicatorFailed(cause) => Some(exception_of(py, cause)?),
        _ => None,
    };
    let arguments = (
        error.to_string(),
        ranks_of(error),
        operation_of(error),
        cause,
    );
    module.bind(py).getattr(class_of(error))?.call1(arguments)
}

/// An error to be raised.
pub fn raise(py: Python<'_>, error: &Error) -> PyErr {
    match exception_of(py, error) {
        Ok(exception) => PyErr::from_value(exception),
        Err(other) => other,
    }
}

/// An argument is wrong.
pub fn invalid(py: Python<'_>, text: impl Into<String>) -> PyErr {
    raise(py, &Error::invalid(text))
}

/// Results of the library in Python.
pub trait OrRaise<T> {
    /// The value, or the exception of the error.
    fn or_raise(self, py: Python<'_>) -> PyResult<T>;
}

impl<T> OrRaise<T> for linerate::Result<T> {
    fn or_raise(self, py: Python<'_>) -> PyResult<T> {
        self.map_err(|error| raise(py, &error))
    }
}

impl<T> OrRaise<T> for std::result::Result<T, String> {
    fn or_raise(self, py: Python<'_>) -> PyResult<T> {
        self.map_err(|text| invalid(py, text))
    }
}
