//! The JSON document of `whatif`.

use super::errors::Known;
use super::fit;
use super::validate::Validation;
use linerate::Result;
use linerate::whatif::{FlushRule, Members, Trace, WhatIf};
use serde::Serialize;

/// Everything that was predicted. Numbers that are infinite are `null`.
#[derive(Debug, Serialize)]
pub struct Document {
    version: &'static str,
    pub model: String,
    pub gradients: usize,
    pub bytes: u64,
    pub backward_ms: f64,
    pub batch_ms: f64,
    /// The time of a step was not measured, but is taken from that of the backward pass.
    pub is_batch_guessed: bool,
    /// What all rows have.
    #[serde(flatten)]
    pub common: Common,
    /// What measured steps took, divided by what was predicted: the least, the most, and of how
    /// many points of this host that is known; 0: it is assumed.
    pub errors: Known,
    /// Steps of which the gradients are means, and what was guessed or left out.
    pub steps: u32,
    pub notes: Vec<String>,
    pub results: Vec<Entry>,
    /// A paragraph for each number of GPUs, compression and algorithm.
    pub advice: Vec<String>,
    /// What `--measured` found; `null` without it.
    pub fit: Option<fit::Report>,
    /// What `--validate` found; `null` without it, and `results` is empty with it.
    pub validation: Option<Validation>,
}

/// What was said of the job, besides what differs between rows.
#[derive(Debug, Serialize)]
pub struct Common {
    pub mode: &'static str,
    pub fusion_bytes: u64,
    pub fusion_age_ms: f64,
    pub link_share: f64,
    pub operation_us: f64,
    pub cycle_us: f64,
    pub slowing: f64,
    /// Gbit/s at which gradients are packed and compressed; `null`: in no time.
    pub packing_gbps: f64,
    pub adds_compressed: bool,
    pub wire_dtype: Option<&'static str>,
    /// Standard deviation of computing times as a share.
    pub spread: f64,
}

/// One row.
#[derive(Debug, Serialize)]
pub struct Entry {
    pub n: u32,
    /// `null` where every GPU has a link of its own.
    pub servers: Option<u32>,
    pub bandwidth_gbps: f64,
    pub latency_us: f64,
    pub compression: f64,
    pub algorithm: String,
    pub flushes: usize,
    pub t_back_ms: f64,
    pub t_sync_ms: f64,
    pub overhead_ms: f64,
    pub scaling_factor: f64,
    /// Between which factors it is likely to be.
    pub low: f64,
    pub high: f64,
    pub link_utilisation: f64,
    pub limited_by: &'static str,
    /// What reaches the scaling factor that was asked for.
    pub reached: Option<Reached>,
}

/// What reaches a scaling factor if all else is as in a row; `null`: nothing does.
#[derive(Debug, Serialize)]
pub struct Reached {
    pub scaling_factor: f64,
    pub bandwidth_gbps: Option<f64>,
    pub compression: Option<f64>,
    pub latency_us: Option<f64>,
}

impl Document {
    /// A document without results yet.
    pub fn new(trace: &Trace, base: &WhatIf, errors: Known) -> Document {
        let backward_ms = trace.backward_us() / 1e3;
        Document {
            version: env!("CARGO_PKG_VERSION"),
            model: trace.name.clone(),
            gradients: trace.gradients.len(),
            bytes: trace.bytes(),
            backward_ms,
            batch_ms: trace.step_ms(),
            is_batch_guessed: trace.batch_ms.is_none(),
            common: Common::new(base),
            errors,
            steps: trace.steps,
            notes: trace.notes.clone(),
            results: Vec::new(),
            advice: Vec::new(),
            fit: None,
            validation: None,
        }
    }
}

impl Common {
    fn new(base: &WhatIf) -> Common {
        Common {
            mode: match base.rule {
                FlushRule::Paper => "paper",
                FlushRule::Linerate => "linerate",
            },
            fusion_bytes: base.fusion.bytes_max,
            fusion_age_ms: base.fusion.age_max.as_secs_f64() * 1e3,
            link_share: base.link_share,
            operation_us: base.operation_us,
            cycle_us: base.cycle_us,
            slowing: base.slowing,
            packing_gbps: base.packing_bytes_per_second * 8e-9,
            adds_compressed: base.adds_compressed,
            wire_dtype: base.wire_dtype.map(|dtype| dtype.name()),
            spread: base.spread,
        }
    }
}

impl Entry {
    /// Predicts a row, and seeks what reaches the factor if there is one.
    pub fn new(trace: &Trace, whatif: &WhatIf, factor: Option<f64>) -> Result<Entry> {
        let predicted = whatif.predict(trace)?;
        let reached = factor.map(|factor| Reached::new(trace, whatif, factor));
        Ok(Entry {
            n: whatif.gpus,
            servers: match whatif.members {
                Members::Gpus => None,
                Members::Servers {
                    gpus_per_server, ..
                } => Some(whatif.gpus / gpus_per_server),
            },
            bandwidth_gbps: whatif.bits_per_second / 1e9,
            latency_us: whatif.latency_us,
            compression: whatif.compression,
            algorithm: whatif.algorithm.to_string(),
            flushes: predicted.flushes,
            t_back_ms: predicted.backward_ms,
            t_sync_ms: predicted.sync_ms,
            overhead_ms: predicted.overhead_ms,
            scaling_factor: predicted.scaling_factor,
            low: predicted.low,
            high: predicted.high,
            link_utilisation: predicted.link_utilisation,
            limited_by: predicted.limited_by.name(),
            reached: reached.transpose()?,
        })
    }
}

impl Reached {
    /// Seeks what reaches `target`.
    fn new(trace: &Trace, whatif: &WhatIf, target: f64) -> Result<Reached> {
        let bits_per_second = whatif.least_bits_per_second(trace, target)?;
        Ok(Reached {
            scaling_factor: target,
            bandwidth_gbps: bits_per_second.map(|bits| bits / 1e9),
            compression: whatif.least_compression(trace, target)?,
            latency_us: whatif.longest_latency_us(trace, target)?,
        })
    }
}
