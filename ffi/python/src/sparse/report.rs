//! What a step of a sparse allreduce did.

use linerate::reports::{self, PHASES};
use linerate::{SparseAllreduce, SparseResult};
use pyo3::prelude::*;
use pyo3::types::PyDict;

/// What a step of a sparse allreduce did on this rank. Times are seconds.
#[pyclass(frozen, module = "linerate")]
#[derive(Clone, Debug)]
pub struct SparseReport {
    /// The algorithm that ran, such as 'oktopk'; with per_tensor that of the last tensor.
    #[pyo3(get)]
    algorithm: &'static str,
    /// The number of steps until now, without those that were skipped.
    #[pyo3(get)]
    steps: u64,
    /// The number of entries that a step is to select.
    #[pyo3(get)]
    k: u64,
    /// Whether the step was skipped because of a value that is not finite.
    #[pyo3(get)]
    is_skipped: bool,
    /// Whether some of the result is dense.
    #[pyo3(get)]
    is_dense: bool,
    /// The number of values that are not finite, of all ranks.
    #[pyo3(get)]
    not_finite: u64,
    /// The number of entries that this rank selected.
    #[pyo3(get)]
    selected_local: u64,
    /// The number of entries of the result.
    #[pyo3(get)]
    selected_global: u64,
    /// The number of non-zeros of the sum of all that was selected; None if it was not counted.
    #[pyo3(get)]
    reduced: Option<u64>,
    /// The time of selecting.
    #[pyo3(get)]
    select: f64,
    /// The time of communicating, with the wait for other ranks.
    #[pyo3(get)]
    communicate: f64,
    /// The time of changing residuals and making the result.
    #[pyo3(get)]
    apply: f64,
    counters: reports::Counters,
}

impl SparseReport {
    pub fn of(sparse: &SparseAllreduce, result: &SparseResult) -> SparseReport {
        SparseReport {
            algorithm: result.algorithm.name(),
            steps: sparse.steps(),
            k: sparse.k(),
            is_skipped: result.is_skipped,
            is_dense: result.dense().is_some(),
            not_finite: result.not_finite,
            selected_local: result.selected_local,
            selected_global: result.selected_global,
            reduced: result.reduced,
            select: result.times.select.as_secs_f64(),
            communicate: result.times.communicate.as_secs_f64(),
            apply: result.times.apply.as_secs_f64(),
            counters: result.counters,
        }
    }
}

#[pymethods]
impl SparseReport {
    /// What this rank sent and received, of all phases together.
    #[getter]
    fn traffic(&self) -> Traffic {
        Traffic::of(&self.counters.total())
    }

    /// What this rank sent and received by phase: 'partition', 'sizes', 'reduce', 'select',
    /// 'balance', 'gather' and 'dense'.
    #[getter]
    fn phases<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let phases = PyDict::new(py);
        for phase in PHASES {
            phases.set_item(phase.name(), Traffic::of(self.counters.of(phase)))?;
        }
        Ok(phases)
    }

    fn __repr__(&self) -> String {
        let skipped = if self.is_skipped { ", skipped" } else { "" };
        format!(
            "linerate.SparseReport(step {} by {}{skipped}: k {}, selected here {}, in the result {}; {})",
            self.steps,
            self.algorithm,
            self.k,
            self.selected_local,
            self.selected_global,
            self.counters
        )
    }
}

/// What a rank sent and received in a step of a sparse allreduce. A word is 4 bytes.
#[pyclass(frozen, module = "linerate")]
#[derive(Clone, Debug)]
pub struct Traffic {
    /// The number of messages sent.
    #[pyo3(get)]
    messages: u64,
    /// The number of bytes sent.
    #[pyo3(get)]
    bytes_sent: u64,
    /// The number of bytes of entries received.
    #[pyo3(get)]
    bytes_received: u64,
    /// The number of words of entries sent.
    #[pyo3(get)]
    data_words_sent: u64,
    /// The number of words of entries received.
    #[pyo3(get)]
    data_words_received: u64,
    /// The number of words of counts, sizes, boundaries and states sent.
    #[pyo3(get)]
    control_words: u64,
}

impl Traffic {
    fn of(traffic: &reports::Traffic) -> Traffic {
        Traffic {
            messages: traffic.messages,
            bytes_sent: traffic.bytes_sent,
            bytes_received: traffic.bytes_received,
            data_words_sent: traffic.data_words_sent,
            data_words_received: traffic.data_words_received,
            control_words: traffic.control_words,
        }
    }
}

#[pymethods]
impl Traffic {
    fn __repr__(&self) -> String {
        format!(
            "linerate.Traffic({} messages sent, of {} bytes; {} bytes of entries received)",
            self.messages, self.bytes_sent, self.bytes_received
        )
    }
}
