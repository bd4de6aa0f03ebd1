//! What would another network do for a step of training? A prediction from measured gradients.
//!
//! A [`Trace`] says when each gradient of a backward pass is ready, and how long it is.
//! [`WhatIf`] says how many GPUs train, by which network, and with which fusion of gradients;
//! [`WhatIf::predict`] gives the time of a step and the scaling factor: the time of a step on one
//! GPU divided by that on all. `linerate whatif` prints both for many networks.
//!
//! ```
//! use linerate::whatif::{Trace, WhatIf};
//! let trace = Trace::load("resnet50")?;
//! let network = WhatIf { bits_per_second: 10e9, ..WhatIf::default() };
//! let predicted = network.predict(&trace)?;
//! assert!(predicted.scaling_factor > 0.5 && predicted.scaling_factor < 0.6);
//! // Would a compression of gradients to a fifth help?
//! let compressed = WhatIf { compression: 5.0, ..network }.predict(&trace)?;
//! assert!(compressed.scaling_factor > 0.99);
//! # Ok::<(), linerate::Error>(())
//! ```
//!
//! # The model
//!
//! Flushes are reduced one after another, each by a ring of all members, in the order of their plan
//! ([`Trace::plan`]). Of a flush of `S` bytes among `N` members a link carries `2 S (N - 1) / N`
//! bytes, and a GPU makes `N - 1` additions of `S / N` bytes. Communication does not slow the
//! computation, and all GPUs have their gradients at the same time. With the defaults of [`WhatIf`]
//! this is the published model. Its fields `operation_us`, `cycle_us`, `slowing`, `spread` and
//! `packing_bytes_per_second` add what that model leaves out, and [`WhatIf::fit`] finds the first
//! of them from measured scaling factors. [`Algorithm`] says what else than a ring is priced.
//!
//! Source: Zhang et al., "Is Network the Bottleneck of Distributed Training?", NetAI 2020. Nothing
//! here runs: a prediction is a pure function. Read first: `model.rs`, then
//! `predict.rs`, `step.rs` and `price.rs`.

mod algorithm;
#[cfg(test)]
mod algorithm_tests;
mod check;
mod chrome;
#[cfg(test)]
mod chrome_tests;
mod communication;
mod event;
mod fit;
mod horovod;
#[cfg(test)]
mod horovod_tests;
mod load;
mod model;
mod plan;
mod predict;
#[cfg(test)]
mod predict_tests;
mod price;
mod profiler;
#[cfg(test)]
mod profiler_tests;
mod reach;
mod slowed;
mod spans;
mod step;
mod steps;
mod stragglers;
mod text;
mod timeline;
mod trace;

pub use crate::cost::Additions;
pub use algorithm::Algorithm;
pub use fit::{Fit, Fitted, Measured, Overhead};
pub use model::{LimitedBy, Members, Prediction, WhatIf};
pub use plan::{FlushRule, PlannedFlush};
pub use trace::{Gradient, Trace};
