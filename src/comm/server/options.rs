//! [`ServerOptions`]: who serves, who trains, and how weights follow gradients.

use crate::error::{Error, Result};
use crate::fusion::TensorSpec;
use crate::limits::RANKS_MAX;
use crate::optimizer::Optimizer;
use crate::staleness::Staleness;
use crate::types::{DataType, Rank};
use std::time::Duration;

/// The most pushes of a worker that a shard holds and has not applied.
const SLOTS_MAX: u32 = 64;
/// The most further servers of a shard.
const REPLICAS_MAX: u32 = 1;

/// What becomes of a push with a NaN or an infinity.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum NonFinitePush {
    /// Nobody looks: the weights get what was pushed.
    #[default]
    Accept,
    /// The parameter server fails on all ranks, with an error that names the worker.
    Error,
    /// The push counts, and no shard changes its weights.
    Skip,
}

/// How a [`ParameterServer`](super::ParameterServer) works. Equal on all ranks.
#[derive(Clone, Debug, PartialEq)]
pub struct ServerOptions {
    /// The ranks that hold the weights, one shard each, in this order; empty: all ranks.
    pub servers: Vec<Rank>,
    /// How many more servers have each shard: 0 or 1. With 1, two servers that follow each other in
    /// `servers` have the same shard, so that there are half as many shards. Either may fail: no
    /// push that has its OK is lost, and none is applied twice. Workers push to both, which takes
    /// twice the bytes, and pull from one. Put the two on two hosts.
    pub replicas: u32,
    /// The ranks that push and pull, in the order of their numbers as workers; empty: all ranks
    /// that are no servers, or all ranks if every one is a server.
    pub workers: Vec<Rank>,
    /// Places for workers that come later, besides those of workers that end:
    /// [`ParameterServer::join`](super::ParameterServer::join). Each takes memory of every server,
    /// as a worker does.
    pub spares: u32,
    /// How far workers may run ahead of the slowest one.
    pub staleness: Staleness,
    /// How weights follow gradients.
    pub optimizer: Optimizer,
    /// The learning rate.
    pub rate: f32,
    /// The type in which workers pull the weights: f32, f16 or bf16. The shards keep f32.
    pub pulls: DataType,
    /// Pushes of each worker that a shard holds and has not applied, 1 to 64.
    pub slots: u32,
    /// What becomes of a push with a NaN or an infinity.
    pub nonfinite: NonFinitePush,
    /// A worker that others have waited for, and that has not pushed, for longer than this is taken
    /// out: the others go on without it, and its calls fail. `None`: they wait until the timeout of
    /// the communicator, which ends the job with an error that names it. To be of use it is shorter
    /// than that.
    pub evict_after: Option<Duration>,
}

impl Default for ServerOptions {
    fn default() -> ServerOptions {
        ServerOptions {
            servers: Vec::new(),
            replicas: 0,
            workers: Vec::new(),
            spares: 0,
            staleness: Staleness::Bsp,
            optimizer: Optimizer::sgd(),
            rate: 0.01,
            pulls: DataType::F32,
            slots: 2,
            nonfinite: NonFinitePush::Accept,
            evict_after: None,
        }
    }
}

/// Whether gradients and pulled weights may be of this type.
pub(super) fn is_float(dtype: DataType) -> bool {
    [DataType::F32, DataType::F16, DataType::Bf16].contains(&dtype)
}

pub(super) fn check_rate(rate: f32) -> Result<()> {
    match rate.is_finite() && rate >= 0.0 {
        true => Ok(()),
        false => Err(Error::invalid(format!(
            "a learning rate of {rate}: finite, and not below 0"
        ))),
    }
}

impl ServerOptions {
    /// What all ranks have to give alike.
    pub(super) fn describe(&self, tensors: &[TensorSpec]) -> String {
        format!("{tensors:?} {self:?}")
    }

    /// An error unless the options suit this many ranks; else the servers and the workers.
    pub(super) fn check(&self, ranks: u32) -> Result<(Vec<Rank>, Vec<Rank>)> {
        self.staleness.check()?;
        self.optimizer.check()?;
        if !is_float(self.pulls) {
            return Err(Error::invalid(format!(
                "ServerOptions: pulls of {}: f32, f16 or bf16",
                self.pulls
            )));
        }
        check_rate(self.rate)?;
        if !(1..=SLOTS_MAX).contains(&self.slots) {
            return Err(Error::invalid(format!(
                "ServerOptions: {} slots: 1 to {SLOTS_MAX}",
                self.slots
            )));
        }
        if self.evict_after == Some(Duration::ZERO) {
            return Err(Error::invalid(
                "ServerOptions: evict_after is 0: nobody pushes as fast as that",
            ));
        }
        for (what, named) in [("servers", &self.servers), ("workers", &self.workers)] {
            let twice = |at: usize| named[..at].contains(&named[at]);
            let wrong = (0..named.len()).find(|&at| named[at] >= ranks || twice(at));
            if let Some(at) = wrong {
                return Err(Error::invalid(format!(
                    "ServerOptions: {what} name rank {}, which is named twice or not below {ranks}, the number of ranks",
                    named[at]
                )));
            }
        }
        if self.spares > RANKS_MAX - ranks.min(RANKS_MAX) {
            return Err(Error::invalid(format!(
                "ServerOptions: {} spares besides {ranks} ranks: {RANKS_MAX} in all at most",
                self.spares
            )));
        }
        let all: Vec<Rank> = (0..ranks).collect();
        let servers = match self.servers.is_empty() {
            true => all.clone(),
            false => self.servers.clone(),
        };
        if self.replicas > REPLICAS_MAX {
            return Err(Error::invalid(format!(
                "ServerOptions: {} replicas of each shard: 0 or {REPLICAS_MAX}",
                self.replicas
            )));
        }
        if !servers.len().is_multiple_of(self.replicas as usize + 1) {
            return Err(Error::invalid(format!(
                "ServerOptions: {} servers with a replica of each shard: two servers have one shard, so take an even number",
                servers.len()
            )));
        }
        let mut workers = match self.workers.is_empty() {
            true => (all.iter().copied())
                .filter(|rank| !servers.contains(rank))
                .collect(),
            false => self.workers.clone(),
        };
        if workers.is_empty() {
            workers = all;
        }
        Ok((servers, workers))
    }
}
