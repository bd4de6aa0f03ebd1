//! The Python package `linerate`: its module `_linerate`, whose classes `linerate/__init__.py`
//! shows and `_linerate.pyi` describes.
//!
//! Calls take memory by its address (`memory.rs`), let other Python threads run while they wait,
//! and look for signals meanwhile (`waiting.rs`). Errors of the library become the exceptions of
//! `linerate/errors.py` (`errors.rs`).

mod buffer;
mod collectives;
mod communicator;
mod dlpack;
mod errors;
mod exchange;
mod fusion;
mod memory;
mod operation;
mod partial;
mod pure;
mod queue;
mod settings;
mod sparse;
mod vectors;
mod waiting;
mod whatif;
mod words;

use pyo3::prelude::*;

#[pymodule]
mod _linerate {
    #[pymodule_export]
    use super::buffer::Buffer;
    #[pymodule_export]
    use super::communicator::Communicator;
    #[pymodule_export]
    use super::fusion::{FlushReport, Fusion, StepReport};
    #[pymodule_export]
    use super::operation::Operation;
    #[pymodule_export]
    use super::partial::{PartialAllreduce, RoundReport};
    #[pymodule_export]
    use super::pure::{Explanation, algorithms, cost, fusion_plan, schedule};
    #[pymodule_export]
    use super::queue::CompletionQueue;
    #[pymodule_export]
    use super::sparse::{SparseAllreduce, SparseReport, SparseStep, Traffic};

    #[pymodule_export]
    use super::whatif::{FabricTimes, Prediction, Trace, fabric_times};

    #[pymodule_export]
    const VERSION: &str = env!("CARGO_PKG_VERSION");
}
