//! What a communicator holds: the library's, until it was closed.

use super::Communicator;
use crate::errors::invalid;
use crate::waiting;
use pyo3::prelude::*;
use std::sync::{Mutex, MutexGuard, PoisonError};

impl Communicator {
    pub(super) fn new(inner: linerate::Communicator) -> Communicator {
        Communicator {
            inner: Mutex::new(Some(inner)),
        }
    }

    fn lock(&self) -> MutexGuard<'_, Option<linerate::Communicator>> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The communicator of the library.
    pub fn get(&self, py: Python<'_>) -> PyResult<linerate::Communicator> {
        (self.lock().clone())
            .ok_or_else(|| invalid(py, "this communicator was closed: do not use it any more"))
    }

    /// A communicator that is made of this one, together with other ranks.
    pub(super) fn make(
        &self,
        py: Python<'_>,
        make: impl FnOnce(&linerate::Communicator) -> linerate::Result<linerate::Communicator>
        + Send
        + 'static,
    ) -> PyResult<Communicator> {
        let inner = self.get(py)?;
        let made = waiting::run(py, move || make(&inner))?;
        Ok(Communicator::new(made))
    }

    pub(super) fn take(&self) -> Option<linerate::Communicator> {
        self.lock().take()
    }

    pub(super) fn is_open(&self) -> bool {
        self.lock().is_some()
    }

    pub(super) fn description(&self) -> String {
        match &*self.lock() {
            Some(inner) => format!(
                "linerate.Communicator(rank {} of {} over {})",
                inner.rank(),
                inner.ranks(),
                inner.transport()
            ),
            None => "linerate.Communicator(closed)".into(),
        }
    }
}
