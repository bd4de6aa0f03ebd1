//! linerate
#![allow(missing_docs)]
pub mod bootstrap;
pub mod collective;
pub mod comm;
pub mod config;
pub mod cost;
pub mod engine;
pub mod error;
pub mod kernel;
pub mod limits;
pub mod memory;
pub mod pattern;
pub mod prng;
pub mod schedule;
pub mod time;
pub mod transport;
pub mod types;
pub mod wire;

pub use comm::{Buffer, Call, Communicator, Operation, Simulation, Transfer};
pub use config::Config;
pub use error::{Error, Result};
pub use types::{Collective, DataType, Rank, ReduceOp};
