//! An object of Python with `put` and `get` as the exchange by which ranks meet.

use linerate::options::Exchange;
use pyo3::prelude::*;
use pyo3::types::PyBytes;
use std::time::Duration;

type Fallible<T> = Result<T, Box<dyn std::error::Error + Send + Sync>>;

/// `put(key: str, value: bytes, limit: float)` and `get(key: str, limit: float) -> bytes | None`.
pub struct PyExchange(pub Py<PyAny>);

impl Exchange for PyExchange {
    fn put(&self, key: &str, value: &[u8], limit: Duration) -> Fallible<()> {
        let put = |py: Python<'_>| -> PyResult<()> {
            let value = PyBytes::new(py, value);
            self.0
                .call_method1(py, "put", (key, value, limit.as_secs_f64()))?;
            Ok(())
        };
        Python::try_attach(put).ok_or("the interpreter is shutting down")??;
        Ok(())
    }

    fn get(&self, key: &str, limit: Duration) -> Fallible<Option<Vec<u8>>> {
        let get = |py: Python<'_>| -> PyResult<Option<Vec<u8>>> {
            let value = self.0.call_method1(py, "get", (key, limit.as_secs_f64()))?;
            value.extract(py)
        };
        Ok(Python::try_attach(get).ok_or("the interpreter is shutting down")??)
    }
}
