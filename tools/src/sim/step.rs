//! [`Step`]: the document of a step of training on a fabric.

use super::SimArgs;
use super::document::Row;
use linerate::sim::Fabric;
use linerate_job::step;
use serde::Serialize;

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
        let trace = args.trace.load(1.0)?;
        let how = step::How {
            ranks: args.ranks,
            fusion: args.trace.fusion(),
            algorithm: args.algo.clone(),
            chunk_bytes: args.chunk(),
        };
        let done = step::run(&trace, fabric, &how).map_err(|error| error.to_string())?;
        let flushes = done.flushes.iter().map(|flush| Flush {
            ready_ms: flush.ready_ms,
            begin_ms: flush.begin_ms,
            end_ms: flush.end_ms,
            call: Row::new(&flush.call, &flush.times, flush.times.ns),
        });
        Ok(Step {
            model: trace.name.clone(),
            batch_ms: trace.step_ms(),
            is_batch_guessed: trace.batch_ms.is_none(),
            backward_ms: trace.backward_us() / 1e3,
            t_sync_ms: done.sync_ms,
            overhead_ms: done.overhead_ms,
            scaling_factor: done.scaling_factor,
            flushes: flushes.collect(),
        })
    }
}
