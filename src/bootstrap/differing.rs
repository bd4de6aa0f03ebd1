//! Errors of ranks whose settings differ.

use crate::config::{Config, differing_settings};
use crate::error::Error;
use crate::types::Rank;

/// A rank has other settings than this one.
pub(super) fn other_settings(rank: Rank, theirs: u64, heads: u64) -> Error {
    Error::Bootstrap(differing_settings(rank, theirs, heads))
}

/// A rank that encrypts beside one that does not, found before either has said anything else.
pub(super) fn other_tls(rank: Rank, has_tls: bool) -> Error {
    let print = |has_tls| {
        let mut config = Config::default();
        config.tcp.has_tls = has_tls;
        config.shared_fingerprint()
    };
    other_settings(rank, print(!has_tls), print(has_tls))
}
