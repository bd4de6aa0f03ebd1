//! Bounds that several files share.

use std::time::Duration;

/// Largest blob of a rank: an address, some keys, its cores and prices.
pub(super) const BLOB_BYTES_MAX: usize = 4096;
/// Rank 0 gives up at the deadline and says who is missing; that is waited for a little longer.
pub(super) const LATE_ANSWER_TIME: Duration = Duration::from_secs(2);
