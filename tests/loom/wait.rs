//! Files of `src/wait` on the model's memory.

#[path = "../../src/wait/bell.rs"]
mod bell;
#[path = "../../src/wait/quota.rs"]
mod quota;

pub use crate::memory::{futex_wait, futex_wake_all};
pub use bell::Bell;
pub use quota::Quota;
