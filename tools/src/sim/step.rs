//! [`Step`]: a step of training on a fabric. Gradients are fused by linerate's rule, and the
//! flushes are reduced one after another while the backward pass goes on.

use super::SimArgs;
use super::document::Row;
use linerate::Collective;
use linerate::sim::{Fabric, FabricCall};
use linerate::whatif::FlushRule;
use serde::Serialize;
use std::collections::BTreeMap;

/// A step of training.
#[derive(Debug, Serialize)]
pub struct Step {
    pub model: String,
    /// Time of a step without communication.
    pub batch_ms: f64,
    pub is_batch_guessed: bool,
    pub backward_ms: f64,
    /// From the start of the backward pass to the end of the last flush.
    pub t_sync_ms: f64,
    /// By how much communication makes the step longer.
    pub overhead_ms: f64,
    pub scaling_factor: f64,
    pub flushes: Vec<Flush>,
}

/// Gradients that are reduced together. Times are from the start of the backward pass.
#[derive(Debug, Serialize)]
pub struct Flush {
    pub ready_ms: f64,
    pub begin_ms: f64,
    pub end_ms: f64,
    #[serde(flatten)]
    pub call: Row,
}

impl Step {
    /// Reduces the flushes of the trace.
    pub fn new(args: &SimArgs, fabric: &Fabric) -> Result<Step, String> {
        let text = |error: linerate::Error| error.to_string();
        let trace = args.trace.load(1.0)?;
        let plan = trace.plan(FlushRule::Linerate, &args.trace.fusion());
        let mut known: BTreeMap<u64, Row> = BTreeMap::new();
        let mut free_ms = 0.0f64;
        let mut flushes = Vec::new();
        for flush in plan.map_err(text)? {
            let row = match known.get(&flush.bytes) {
                Some(row) => row.clone(),
                None => {
                    let call = FabricCall {
                        algorithm: args.algo.clone(),
                        chunk_bytes: args.chunk(),
                        ..FabricCall::new(Collective::AllReduce, args.ranks, flush.bytes)
                    };
                    let times = fabric.run(&call).map_err(text)?;
                    Row::new(&call, &times, times.ns)
                }
            };
            known.insert(flush.bytes, row.clone());
            let begin_ms = free_ms.max(flush.time_ms);
            free_ms = begin_ms + row.time_us / 1e3;
            flushes.push(Flush {
                ready_ms: flush.time_ms,
                begin_ms,
                end_ms: free_ms,
                call: row,
            });
        }
        let (batch_ms, backward_ms) = (trace.step_ms(), trace.backward_us() / 1e3);
        let overhead_ms = (free_ms - backward_ms).max(0.0);
        Ok(Step {
            model: trace.name.clone(),
            batch_ms,
            is_batch_guessed: trace.batch_ms.is_none(),
            backward_ms,
            t_sync_ms: free_ms,
            overhead_ms,
            scaling_factor: batch_ms / (batch_ms + overhead_ms),
            flushes,
        })
    }
}
