//! A step of training on a fabric in virtual time. Gradients are fused by linerate's rule, and the
//! flushes are reduced one after another while the backward pass goes on.

use linerate::sim::{Fabric, FabricCall, FabricTimes};
use linerate::whatif::{FlushRule, Trace};
use linerate::{Collective, FusionOptions, Result};
use std::collections::BTreeMap;

/// How a step is reduced.
#[derive(Clone, Debug)]
pub struct How {
    /// GPUs.
    pub ranks: u32,
    /// Age and size of a flush.
    pub fusion: FusionOptions,
    /// None: the one that linerate would choose.
    pub algorithm: Option<String>,
    /// Bytes of a chunk.
    pub chunk_bytes: u64,
}

/// A step. Times are milliseconds from the start of the backward pass.
pub struct Step {
    /// The end of the last flush.
    pub sync_ms: f64,
    /// By how much communication makes the step longer.
    pub overhead_ms: f64,
    /// The time of a step without communication divided by that with it.
    pub scaling_factor: f64,
    /// In the order of their plan.
    pub flushes: Vec<Flush>,
}

/// Gradients that are reduced together.
pub struct Flush {
    /// When its gradients were ready.
    pub ready_ms: f64,
    /// When its reduction began.
    pub begin_ms: f64,
    /// When it ended.
    pub end_ms: f64,
    /// The reduction.
    pub call: FabricCall,
    /// How long that took.
    pub times: FabricTimes,
}

/// Reduces the flushes of the trace.
pub fn run(trace: &Trace, fabric: &Fabric, how: &How) -> Result<Step> {
    let mut known: BTreeMap<u64, FabricTimes> = BTreeMap::new();
    let mut free_ms = 0.0f64;
    let mut flushes = Vec::new();
    for flush in trace.plan(FlushRule::Linerate, &how.fusion)? {
        let call = FabricCall {
            algorithm: how.algorithm.clone(),
            chunk_bytes: how.chunk_bytes,
            ..FabricCall::new(Collective::AllReduce, how.ranks, flush.bytes)
        };
        let times = match known.get(&flush.bytes) {
            Some(times) => times.clone(),
            None => fabric.run(&call)?,
        };
        known.insert(flush.bytes, times.clone());
        let begin_ms = free_ms.max(flush.time_ms);
        free_ms = begin_ms + times.ns as f64 / 1e6;
        flushes.push(Flush {
            ready_ms: flush.time_ms,
            begin_ms,
            end_ms: free_ms,
            call,
            times,
        });
    }
    let (batch_ms, backward_ms) = (trace.step_ms(), trace.backward_us() / 1e3);
    let overhead_ms = (free_ms - backward_ms).max(0.0);
    Ok(Step {
        sync_ms: free_ms,
        overhead_ms,
        scaling_factor: match batch_ms + overhead_ms {
            0.0 => 1.0,
            step_ms => batch_ms / step_ms,
        },
        flushes,
    })
}
