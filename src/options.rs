//! Types of the fields of [`Config`](crate::Config), [`SparseOptions`](crate::SparseOptions),
//! [`PartialOptions`](crate::PartialOptions) and of a rank's place in its job; and the options of a
//! [`ParameterServer`](crate::ParameterServer). An [`Exchange`] passes texts between processes by a
//! way that the program already has.
//!
//! A program that keeps the defaults names none of these.

pub use crate::bootstrap::{Exchange, Launcher, Place, Rendezvous};
pub use crate::comm::{NonFinitePush, PartialFusionOptions, ServerOptions};
pub use crate::config::{
    CrossMemory, FindingsFrom, JobSettings, Secret, TcpSettings, VerbsSettings,
};
pub use crate::optimizer::Optimizer;
pub use crate::partial::{Delivery, Divisor};
pub use crate::sparse::{
    Algorithm, Amount, Balance, DsaVariant, IndexFormat, Mode, NonFinite, Regions, SwitchRule,
    ValueFormat,
};
pub use crate::staleness::{Reading, Release, Staleness};
