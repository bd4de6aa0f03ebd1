//! Waits that let other Python threads run, and end when a signal handler raises.

use crate::errors::OrRaise;
use linerate::Result;
use pyo3::prelude::*;
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

/// How long a wait does not look for signals.
pub const SLICE: Duration = Duration::from_millis(50);

/// Calls `look` with a time that it may wait, until it says that all is over (`true`), or `limit`
/// has passed (`false`).
pub fn wait(
    py: Python<'_>,
    limit: Option<Duration>,
    mut look: impl FnMut(Duration) -> Result<bool> + Send,
) -> PyResult<bool> {
    let begun = Instant::now();
    loop {
        let left = limit.map_or(SLICE, |limit| {
            limit.saturating_sub(begun.elapsed()).min(SLICE)
        });
        if py.detach(|| look(left)).or_raise(py)? {
            return Ok(true);
        }
        py.check_signals()?;
        if limit.is_some_and(|limit| begun.elapsed() >= limit) {
            return Ok(false);
        }
    }
}

/// Runs something that waits for other ranks by a thread, so that a signal handler that raises ends
/// the wait for it. It goes on by itself then, and what it makes is dropped.
pub fn run<T: Send + 'static>(
    py: Python<'_>,
    work: impl FnOnce() -> Result<T> + Send + 'static,
) -> PyResult<T> {
    let (sender, receiver) = channel();
    let receiver = Mutex::new(receiver);
    let started = std::thread::Builder::new()
        .name("linerate-python".into())
        .spawn(move || {
            // Nobody waits for it any more after a signal.
            let _ = sender.send(work());
        });
    started
        .map_err(|error| linerate::Error::os("starting a thread", error))
        .or_raise(py)?;
    loop {
        // This thread alone locks it: `detach` asks for what threads may share.
        let receive = || {
            let receiver = receiver.lock().unwrap_or_else(PoisonError::into_inner);
            receiver.recv_timeout(SLICE)
        };
        match py.detach(receive) {
            Ok(result) => return result.or_raise(py),
            Err(RecvTimeoutError::Timeout) => py.check_signals()?,
            Err(RecvTimeoutError::Disconnected) => {
                let text = "a thread that waited for other ranks panicked";
                return Err(pyo3::exceptions::PySystemError::new_err(text));
            }
        }
    }
}

/// A number of seconds as Python gives it.
pub fn seconds(py: Python<'_>, name: &str, value: Option<f64>) -> PyResult<Option<Duration>> {
    let known = value.map(|value| {
        Duration::try_from_secs_f64(value)
            .map_err(|_| format!("{name} is {value}: a number of seconds, 0 or more, or None"))
    });
    known.transpose().or_raise(py)
}

/// What `await` of an operation or a step asks for.
pub fn in_asyncio(awaited: Bound<'_, PyAny>) -> PyResult<Bound<'_, PyAny>> {
    let module = PyModule::import(awaited.py(), "linerate.aio")?;
    let wait = module.getattr("wait")?.call1((awaited,))?;
    wait.call_method0("__await__")
}
