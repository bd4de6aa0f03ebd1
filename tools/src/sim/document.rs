//! The JSON document of `sim`.

use super::step::Step;
use super::{Level, SimArgs};
use crate::bench::sweep::bus_factor;
use linerate::sim::{Fabric, FabricCall, FabricTimes, PathPart, Use};
use serde::Serialize;

/// Everything that was simulated.
#[derive(Debug, Serialize)]
pub struct Document {
    version: &'static str,
    pub fabric: Fabric,
    pub ranks: u32,
    pub hosts: u32,
    pub level: &'static str,
    pub chunk_bytes: u64,
    /// A row for each size and algorithm.
    pub results: Vec<Row>,
    /// The time of all rows together, where they are the exchanges of one allreduce.
    pub total_us: Option<f64>,
    /// A step of training, if that was asked for.
    pub step: Option<Step>,
}

/// A call.
#[derive(Clone, Debug, Serialize)]
pub struct Row {
    pub collective: String,
    pub bytes: u64,
    pub algorithm: String,
    pub time_us: f64,
    /// Bytes over the time, GB/s.
    pub algbw: f64,
    /// `algbw` times the factor that makes it comparable with a link's bandwidth, GB/s.
    pub busbw: f64,
    pub messages: u64,
    /// How much links and processors are used.
    pub uses: Vec<Use>,
    /// What the time goes to.
    pub path: Vec<PathPart>,
}

impl Document {
    /// A document without results yet.
    pub fn new(args: &SimArgs, fabric: &Fabric) -> Document {
        Document {
            version: env!("CARGO_PKG_VERSION"),
            fabric: fabric.clone(),
            ranks: args.ranks,
            hosts: args.ranks.div_ceil(fabric.gpus_per_host.max(1)),
            level: match args.level {
                Level::Schedule => "schedule",
                Level::Engine => "engine",
            },
            chunk_bytes: args.chunk(),
            results: Vec::new(),
            total_us: None,
            step: None,
        }
    }
}

impl Row {
    /// A call, what its time goes to, and its time.
    pub fn new(call: &FabricCall, times: &FabricTimes, ns: u64) -> Row {
        let algbw = match ns {
            0 => 0.0,
            ns => call.bytes as f64 / ns as f64,
        };
        Row {
            collective: call.collective.to_string(),
            bytes: call.bytes,
            algorithm: times.algorithm.into(),
            time_us: ns as f64 / 1e3,
            algbw,
            busbw: algbw * bus_factor(call.collective, call.ranks),
            messages: times.messages,
            uses: times.uses.clone(),
            path: times.path.clone(),
        }
    }
}
