//! [`WhatIf`] and [`Prediction`]: what is asked, and what the answer has.

use super::algorithm::Algorithm;
use super::plan::FlushRule;
use crate::cost::Additions;
use crate::fusion::FusionOptions;
use crate::types::DataType;

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
    /// Milliseconds of a step on one GPU ([`Trace::step_ms`](super::Trace::step_ms)).
    pub batch_ms: f64,
    /// Milliseconds of the backward pass.
    pub backward_ms: f64,
    /// Milliseconds from the start of the backward pass until all gradients are reduced.
    pub sync_ms: f64,
    /// Milliseconds that communication, and waiting for slower GPUs, add to a step.
    pub overhead_ms: f64,
    /// The time of a step on one GPU, divided by that on all of them: 1 is perfect.
    pub scaling_factor: f64,
    /// The least scaling factor that is likely, by the spread of the trace's steps, the exactness
    /// of prices, and [`WhatIf::errors`].
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
