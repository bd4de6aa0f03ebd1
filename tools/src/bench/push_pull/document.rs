//! The JSON document of a push-pull bench: the fields of `bench`, and what the first shard counted.

use super::Plan;
use crate::bench::link::Link;
use crate::bench::statistics::Summary;
use serde::Serialize;

/// Everything that was measured.
#[derive(Debug, Serialize)]
pub struct Document {
    version: &'static str,
    transport: String,
    ranks: u32,
    servers: u32,
    replicas: u32,
    workers: u32,
    mode: String,
    optimizer: &'static str,
    /// The network that was modelled, times being virtual; `null` where they are real.
    link: Option<Link>,
    /// `LINERATE_TCP_PACE`.
    pace_bits_per_second: Option<u64>,
    pub wrong: u64,
    pub results: Vec<Entry>,
}

/// One size.
#[derive(Debug, Serialize)]
pub struct Entry {
    pub collective: &'static str,
    /// Of a gradient, as are `count` and `dtype`.
    pub bytes: u64,
    pub count: u64,
    pub dtype: &'static str,
    /// The type of the weights that are pulled.
    pub pull: &'static str,
    pub memory: &'static str,
    pub iterations: u32,
    /// From when all workers have done a step until all have done the next one.
    pub time_us: Summary,
    /// From the start of a push until its OK; of the slowest worker, step by step, as is `pull_us`.
    pub push_us: Summary,
    /// From that OK until the weights are there: the update with the push, and the pull.
    pub pull_us: Summary,
    /// Of pulls that all workers begin together after the timed steps, with no update.
    pub pull_alone_us: Summary,
    pub algbw: f64,
    pub wrong: u64,
    /// Updates of the weights, those of the steps before the timed ones included, as are all
    /// counts.
    pub updates: u64,
    /// The most pushes by which a worker was ahead of the slowest.
    pub drift_max: u64,
    /// Pushes whose worker had to wait for its OK.
    pub waits: u64,
    /// Versions between that from which a gradient was computed and the update with it, as the mean
    /// of all pushes.
    pub staleness_mean: f64,
}

impl Document {
    /// A document without results yet.
    pub fn new(plan: &Plan, transport: &str) -> Document {
        Document {
            version: env!("CARGO_PKG_VERSION"),
            transport: transport.into(),
            ranks: plan.ranks,
            servers: plan.servers(),
            replicas: plan.args.replicas,
            workers: plan.workers(),
            mode: plan.args.mode.name.clone(),
            optimizer: plan.args.optimizer.name(),
            link: plan.link,
            pace_bits_per_second: plan.config.tcp.pace_bits_per_second,
            wrong: 0,
            results: Vec::new(),
        }
    }
}
