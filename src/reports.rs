//! What operations tell about themselves: which algorithm was chosen and why, what a step of fusion
//! or of a sparse allreduce did and how long it took, who took part in a round of a partial
//! allreduce.

pub use crate::collective::choose::Candidate;
pub use crate::comm::{Answer, Decisions, ServerReport};
pub use crate::comm::{Explanation, FlushReport, Path, StepReport, StepTimes};
pub use crate::cost::Bound;
pub use crate::error::OsCause;
pub use crate::partial::{RankSet, RoundReport, Waited};
pub use crate::sparse::{Counters, PHASES, Phase, Traffic};
pub use crate::wait::Completion;
