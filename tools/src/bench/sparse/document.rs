//! The JSON document of a sparse bench: the fields of `bench`, and what was sent in each phase.

use super::Plan;
use crate::bench::statistics::Summary;
use serde::Serialize;
use std::collections::BTreeMap;

/// Everything that was measured.
#[derive(Debug, Serialize)]
pub struct Document {
    version: &'static str,
    transport: String,
    ranks: u32,
    seed: u64,
    density: f64,
    mode: String,
    distribution: String,
    values: String,
    balance: String,
    /// `LINERATE_TCP_PACE`.
    pace_bits_per_second: Option<u64>,
    /// The most memory that any rank has had resident, and that over the bytes of a vector.
    pub peak_memory_bytes: u64,
    pub peak_memory_vectors: f64,
    pub results: Vec<Entry>,
}

/// One algorithm. Words are of 4 bytes, and of one step.
#[derive(Debug, Serialize)]
pub struct Entry {
    pub collective: &'static str,
    pub bytes: u64,
    pub count: u64,
    pub dtype: &'static str,
    pub op: &'static str,
    pub algorithm: &'static str,
    /// What ran in the last step: what `auto` chose.
    pub ran: &'static str,
    pub memory: &'static str,
    pub in_place: bool,
    pub iterations: u32,
    #[serde(flatten)]
    pub times: StepTimes,
    pub algbw: f64,
    pub busbw: f64,
    /// `null`: not checked.
    pub wrong: Option<u64>,
    /// All phases together.
    #[serde(flatten)]
    pub traffic: Traffic,
    pub phases: BTreeMap<&'static str, Traffic>,
    pub selected_local: u64,
    pub selected_global: u64,
    /// Non-zeros of the sum of all picks; `null` where no rank learns it.
    pub reduced: Option<u64>,
}

/// Times of a step and of its parts.
#[derive(Debug, Serialize)]
pub struct StepTimes {
    pub time_us: Summary,
    /// Of the slowest rank.
    pub select_us: Summary,
    /// Of the rank that began it last.
    pub communicate_us: Summary,
    /// Of the slowest rank.
    pub apply_us: Summary,
}

/// What ranks sent and received: the most of any rank, or the mean.
#[derive(Debug, Serialize)]
pub struct Traffic {
    pub words_sent_max: u64,
    pub words_received_max: u64,
    pub words_received_mean: f64,
    pub control_words: u64,
    pub messages: u64,
}

impl Document {
    /// A document without results yet.
    pub fn new(plan: &Plan, transport: &str) -> Document {
        let lower = |value: String| value.to_lowercase();
        Document {
            version: env!("CARGO_PKG_VERSION"),
            transport: transport.into(),
            ranks: plan.ranks,
            seed: plan.args.seed,
            density: plan.args.density,
            mode: lower(format!("{:?}", plan.args.mode)),
            distribution: lower(format!("{:?}", plan.args.distribution)),
            values: lower(format!("{:?}", plan.args.values)),
            balance: lower(format!("{:?}", plan.args.balance)),
            pace_bits_per_second: plan.config.tcp.pace_bits_per_second,
            peak_memory_bytes: 0,
            peak_memory_vectors: 0.0,
            results: Vec::new(),
        }
    }
}
