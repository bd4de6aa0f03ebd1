//! [`WhatIf`] and [`Prediction`]: the time of a step of training on a network.

use super::algorithm::Algorithm;
use super::plan::{FlushRule, PlannedFlush};
use super::price::Prices;
use super::step;
use super::stragglers;
use super::trace::Trace;
use crate::cost::Additions;
use crate::error::Result;
use crate::fusion::FusionOptions;
use crate::types::DataType;

/// Steps of which communication adds less than this share are limited by the computation.
const EXPOSED_SHARE_MIN: f64 = 0.01;
/// By which share the time of a schedule may differ from what prices say.
const PRICE_ERROR: f64 = 0.1;

/// Who are the members of the ring.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Members {
    /// All GPUs, as in the published model: each has a link of its own.
    Gpus,
    /// All servers. The GPUs of a server share a link, and reduce among themselves before and
    /// after.
    Servers {
        /// GPUs of a server, from 1.
        gpus_per_server: u32,
        /// Bits per second of a GPU's link inside of its server; infinity for no time.
        inside_bits_per_second: f64,
    },
}

/// GPUs, their network, and how gradients are put together: what a prediction is made for.
#[derive(Clone, Debug, PartialEq)]
pub struct WhatIf {
    /// GPUs that train together, from 1.
    pub gpus: u32,
    /// Who are the members of the ring.
    pub members: Members,
    /// How gradients are reduced.
    pub algorithm: Algorithm,
    /// Bits per second of a member's link; infinity for a network that takes no time.
    pub bits_per_second: f64,
    /// Microseconds from sending to receiving, of each of the `2 (N - 1)` messages of a ring.
    pub latency_us: f64,
    /// By how much gradients are shorter on the link than in memory, from 1. How long compressing
    /// takes, [`WhatIf::packing_bytes_per_second`] says.
    pub compression: f64,
    /// Whether additions are shorter too, by as much.
    pub adds_compressed: bool,
    /// The type as which elements are sent and added; none: each gradient's own.
    pub wire_dtype: Option<DataType>,
    /// Bytes of gradients per second that a GPU packs, compresses and converts, once before a flush
    /// is sent, and once after, while the link does something else; infinity for no time.
    pub packing_bytes_per_second: f64,
    /// Share of the link that the transport reaches, above 0 and at most 1.
    pub link_share: f64,
    /// Microseconds that each allreduce takes besides its bytes, messages and additions.
    pub operation_us: f64,
    /// Microseconds between two looks at what is ready: on average a flush starts half of this
    /// later, if the link is idle.
    pub cycle_us: f64,
    /// By how much communication slows computation while both run: 0 is not at all, and with 0.25
    /// a computation that takes 4 ms alone takes 5 ms.
    pub slowing: f64,
    /// Standard deviation of the time that a GPU computes for a step, as a share of that time. All
    /// wait for the slowest, but with [`Algorithm::Partial`].
    pub spread: f64,
    /// What measured steps took, divided by what was predicted of them: the least and the most.
    /// `(1.0, 1.0)`: no such errors are known. Only [`Prediction::low`] and [`Prediction::high`]
    /// depend on it.
    pub errors: (f64, f64),
    /// Additions of a GPU.
    pub additions: Additions,
    /// Which rule decides what is flushed.
    pub rule: FlushRule,
    /// Age and size of a flush.
    pub fusion: FusionOptions,
}

impl Default for WhatIf {
    /// The published model with 64 GPUs at 100 Gbit/s.
    fn default() -> WhatIf {
        WhatIf {
            gpus: 64,
            members: Members::Gpus,
            algorithm: Algorithm::Ring,
            bits_per_second: 100e9,
            latency_us: 0.0,
            compression: 1.0,
            adds_compressed: false,
            wire_dtype: None,
            packing_bytes_per_second: f64::INFINITY,
            link_share: 1.0,
            operation_us: 0.0,
            cycle_us: 0.0,
            slowing: 0.0,
            spread: 0.0,
            errors: (1.0, 1.0),
            additions: Additions::v100(),
            rule: FlushRule::Paper,
            fusion: FusionOptions::default(),
        }
    }
}

/// What takes the most of the communication at the end of a step: since the link was idle last.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LimitedBy {
    /// Nothing: communication adds less than 1 % to a step.
    Computation,
    /// Bytes on the links between members.
    Wire,
    /// Bytes on the links inside of servers.
    InsideServers,
    /// Latencies of messages.
    Latency,
    /// Additions.
    Additions,
    /// Packing and compressing gradients.
    Packing,
    /// What each allreduce takes besides, and the wait for a cycle.
    Operations,
    /// The computation, which communication slows.
    Slowing,
    /// GPUs that compute longer than others.
    Stragglers,
}

impl LimitedBy {
    /// Its name, for people and documents.
    pub fn name(self) -> &'static str {
        match self {
            LimitedBy::Computation => "computation",
            LimitedBy::Wire => "wire",
            LimitedBy::InsideServers => "links inside servers",
            LimitedBy::Latency => "latency",
            LimitedBy::Additions => "additions",
            LimitedBy::Packing => "packing",
            LimitedBy::Operations => "operations",
            LimitedBy::Slowing => "slowed computation",
            LimitedBy::Stragglers => "stragglers",
        }
    }
}

/// A predicted step of training.
#[derive(Clone, Debug, PartialEq)]
pub struct Prediction {
    /// Milliseconds of a step on one GPU ([`Trace::step_ms`]).
    pub batch_ms: f64,
    /// Milliseconds of the backward pass.
    pub backward_ms: f64,
    /// Milliseconds from the start of the backward pass until all gradients are reduced.
    pub sync_ms: f64,
    /// Milliseconds that communication, and waiting for slower GPUs, add to a step.
    pub overhead_ms: f64,
    /// The time of a step on one GPU, divided by that on all of them: 1 is perfect.
    pub scaling_factor: f64,
    /// The least scaling factor that is likely, by the spread of the trace's steps, the exactness of
    /// prices, and [`WhatIf::errors`].
    pub low: f64,
    /// The largest one.
    pub high: f64,
    /// Share of the step in which a member's link is busy.
    pub link_utilisation: f64,
    /// What takes the most of the overhead.
    pub limited_by: LimitedBy,
    /// Operations of a step: its flushes, or the partitions of [`Algorithm::ByteScheduler`].
    pub flushes: usize,
}

impl WhatIf {
    /// Predicts a step with these gradients.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`](crate::Error::InvalidArgument): a field is out of range, or the
    /// GPUs do not fill their servers. The text names the field, its value and what is allowed.
    pub fn predict(&self, trace: &Trace) -> Result<Prediction> {
        self.count_members()?;
        self.predict_planned(trace, &trace.plan(self.rule, &self.fusion)?)
    }

    /// Predicts a step with the flushes of a plan, which bandwidths and overheads do not change.
    pub(super) fn predict_planned(
        &self,
        trace: &Trace,
        plan: &[PlannedFlush],
    ) -> Result<Prediction> {
        let members = self.count_members()?;
        let prices = Prices::new(self, members);
        let backward_ms = trace.backward_us() / 1e3;
        let batch_ms = trace.step_ms();
        let step = match self.algorithm {
            Algorithm::ByteScheduler { partition_bytes } => {
                step::by_priority(self, trace, &prices, partition_bytes)?
            }
            _ => step::in_order(self, trace, plan, &prices),
        };
        let stragglers_ms = batch_ms * self.spread * stragglers::waiting(self.gpus, self.quorum());
        let overhead_ms = step.overhead_ms + stragglers_ms;
        let step_ms = batch_ms + overhead_ms;
        let share = |part: f64| if step_ms > 0.0 { part / step_ms } else { 0.0 };
        let (least_ms, most_ms) = self.interval(trace, batch_ms, overhead_ms);
        let factor = |step_ms: f64| match step_ms > 0.0 {
            true => (batch_ms / step_ms).min(1.0),
            false => 1.0,
        };
        Ok(Prediction {
            batch_ms,
            backward_ms,
            sync_ms: step.sync_ms,
            overhead_ms,
            scaling_factor: factor(step_ms),
            low: factor(most_ms),
            high: factor(least_ms),
            link_utilisation: share(step.busy_ms),
            limited_by: match share(overhead_ms) < EXPOSED_SHARE_MIN {
                true => LimitedBy::Computation,
                false => step.exposed.largest(step.slowed_ms, stragglers_ms),
            },
            flushes: step.operations,
        })
    }

    /// Between which times a step is likely to be, in ms.
    fn interval(&self, trace: &Trace, batch_ms: f64, overhead_ms: f64) -> (f64, f64) {
        let (shorter, longer) = match self.algorithm {
            Algorithm::Linerate(_) => (PRICE_ERROR, PRICE_ERROR),
            // 2 k words instead of 6 k.
            Algorithm::OkTopk { .. } => (2.0 / 3.0, 0.0),
            _ => (0.0, 0.0),
        };
        // Two standard deviations of the mean.
        let batch = 2.0 * trace.spread / f64::from(trace.steps.max(1)).sqrt();
        let least_ms = batch_ms * (1.0 - batch).max(0.0) + overhead_ms * (1.0 - shorter);
        let most_ms = batch_ms * (1.0 + batch) + overhead_ms * (1.0 + longer);
        (least_ms * self.errors.0, most_ms * self.errors.1)
    }

    /// For how many GPUs an operation waits.
    fn quorum(&self) -> u32 {
        match self.algorithm {
            Algorithm::Partial { share } => (share * f64::from(self.gpus)).ceil() as u32,
            _ => self.gpus,
        }
    }

    /// By how much additions are shorter.
    pub(super) fn added_compression(&self) -> f64 {
        match self.adds_compressed {
            true => self.compression,
            false => 1.0,
        }
    }
}
