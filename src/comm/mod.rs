//! What users hold: [`Communicator`], [`Buffer`], [`Call`], [`Operation`].
//!
//! Read first: [`Communicator::start`].

mod buffer;
mod call;
mod fusion;
mod operation;

pub use buffer::Buffer;
pub use call::{Call, Transfer};
pub use fusion::{FlushReport, Fusion, StepReport};
pub use operation::Operation;

use crate::config::Config;
use crate::error::{Error, Result};
use crate::memory::Element;
use crate::types::{Rank, ReduceOp};

/// A group of ranks that run collectives together. Cheap to clone; `Send + Sync`.
#[derive(Clone)]
pub struct Communicator {}

fn soon() -> Error {
    Error::Unavailable {
        transport: "any".into(),
        reason: "skeleton".into(),
    }
}

impl Communicator {
    /// Joins the job that the environment describes: `RANK`, `WORLD_SIZE`, `LOCAL_RANK`, `MASTER_ADDR`, `MASTER_PORT`
    /// as `linerate launch` and torchrun set them; one rank if `WORLD_SIZE` is not set.
    pub fn from_env(config: Config) -> Result<Communicator> {
        let _ = config;
        Err(soon())
    }

    /// Joins a job on this host by name; every rank names the same `job` and `ranks`.
    pub fn join(rank: Rank, ranks: u32, job: &str, config: Config) -> Result<Communicator> {
        let _ = (rank, ranks, job, config);
        Err(soon())
    }

    /// This rank.
    pub fn rank(&self) -> Rank {
        0
    }

    /// Number of ranks.
    pub fn ranks(&self) -> u32 {
        1
    }

    /// Name of the transport in use.
    pub fn transport(&self) -> &'static str {
        "shm"
    }

    /// Zeroed registered memory that collectives use without staging.
    pub fn alloc(&self, bytes: usize) -> Result<Buffer> {
        let _ = bytes;
        Err(soon())
    }

    /// Starts an operation and returns at once. Operations start in the same order on all ranks; any number may be
    /// under way.
    pub fn start(&self, call: &Call) -> Result<Operation> {
        let _ = call;
        Err(soon())
    }

    /// Starts and waits.
    pub fn run(&self, call: &Call) -> Result<()> {
        self.start(call)?.wait()
    }

    /// Nobody returns before all have called.
    pub fn barrier(&self) -> Result<()> {
        self.run(&Call::barrier())
    }

    /// Reduces a slice of the caller's memory in place, and waits.
    pub fn all_reduce<T: Element>(&self, data: &mut [T], op: ReduceOp) -> Result<()> {
        let _ = (data, op);
        Err(soon())
    }

    /// The algorithm that [`Communicator::start`] would choose, by name.
    pub fn algorithm_for(&self, call: &Call) -> Result<&'static str> {
        let _ = call;
        Err(soon())
    }
}
