//! linerate
#![allow(missing_docs)]
#![allow(dead_code)]
pub mod collective;
pub mod comm;
pub mod config;
pub mod engine;
pub mod error;
pub mod fusion;
pub mod kernel;
pub mod limits;
pub mod memory;
pub mod pattern;
pub mod prng;
pub mod schedule;
pub mod time;
pub mod transport;
pub mod types;

pub use comm::{Buffer, Call, Communicator, FlushReport, Fusion, Operation, StepReport, Transfer};
pub use config::Config;
pub use error::{Error, Result};
pub use fusion::{FusionOptions, TensorSpec};
pub use types::{Collective, DataType, Rank, ReduceOp};
