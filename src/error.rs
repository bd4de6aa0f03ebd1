//! The one error type. Its texts say what was tried, with which values, what is allowed and what to do.

use crate::types::Rank;
use std::time::Duration;

/// Result of everything that can fail.
pub type Result<T> = std::result::Result<T, Error>;

/// What went wrong. Cloneable, because the first cause is handed to every later caller.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The caller asked for something that does not exist or does not fit.
    #[error("{0}")]
    InvalidArgument(String),

    /// Nothing moved for the whole timeout.
    #[error(
        "rank {rank}: {operation} made no progress for {waited:?}; {detail}; raise the timeout (LINERATE_TIMEOUT, seconds) if that rank is only slow"
    )]
    Timeout {
        /// The rank that gave up.
        rank: Rank,
        /// What it was doing, with its sequence number.
        operation: String,
        /// How long nothing had moved.
        waited: Duration,
        /// The ranks it was waiting for.
        missing: Vec<Rank>,
        /// Who is missing and what is known of each.
        detail: String,
    },

    /// Two ranks called different operations at the same place of their programs.
    #[error("ranks disagree at operation {sequence}: {detail}")]
    Mismatch {
        /// Sequence number of the operation in its communicator.
        sequence: u64,
        /// Both sides, by rank, and the fields that differ.
        detail: String,
    },

    /// A peer died or its link did.
    #[error("rank {rank} failed: {cause}{during}; restart it and rebuild the communicator")]
    PeerFailed {
        /// Who.
        rank: Rank,
        /// How that was noticed.
        cause: String,
        /// What this rank was doing, after a comma; empty if nothing.
        during: String,
    },

    /// The operation was cancelled, here or by a peer.
    #[error("rank {by} cancelled {operation}; the communicator must be rebuilt")]
    Cancelled {
        /// Who cancelled.
        by: Rank,
        /// What was cancelled.
        operation: String,
    },

    /// A rank gave the communicator up ([`crate::Communicator::abort`]).
    #[error("rank {by} aborted the communicator: {reason}; it must be rebuilt")]
    Aborted {
        /// Who aborted.
        by: Rank,
        /// Why, as that rank said it; peers get the first 228 bytes.
        reason: String,
    },

    /// An earlier operation failed the communicator; nothing more can run on it.
    #[error("the communicator failed earlier and must be rebuilt; the first cause: {0}")]
    CommunicatorFailed(Box<Error>),

    /// The calling process was forked from the one that made the communicator.
    #[error(
        "this communicator belongs to the process that forked this one: make another one here, or leave communication to that process"
    )]
    Forked,

    /// Memory, descriptors or another bounded resource is used up.
    #[error("{what}: {limit}; {remedy}")]
    Exhausted {
        /// What was wanted, with its size.
        what: String,
        /// The limit that was hit, with its value.
        limit: String,
        /// What to do.
        remedy: String,
    },

    /// A transport cannot be used on this machine.
    #[error("transport {transport} is unavailable: {reason}")]
    Unavailable {
        /// Its name.
        transport: String,
        /// Why.
        reason: String,
    },

    /// The ranks could not find each other.
    #[error("bootstrap: {0}")]
    Bootstrap(String),

    /// The operating system refused a call.
    #[error("{what}: {cause}")]
    Os {
        /// The call and its arguments.
        what: String,
        /// The error's text.
        cause: String,
    },

    /// Gradients, or sums of them, are not finite, and the policy of a sparse allreduce is to stop there.
    #[error(
        "{count} values are not finite in step {step} of a sparse allreduce, counted over all ranks; residuals are as before the \
         step on every rank; find the gradient that is not finite, or take NonFinite::Skip with a gradient scaler, or \
         NonFinite::Count"
    )]
    NotFinite {
        /// Values, on all ranks and in sums.
        count: u64,
        /// Which step.
        step: u64,
    },

    /// Bytes from a peer or a file do not have the right form.
    #[error("{0}")]
    Malformed(String),
}

impl Error {
    /// The operating system refused `what`.
    pub fn os(what: impl Into<String>, cause: impl Into<std::io::Error>) -> Error {
        let cause: std::io::Error = cause.into();
        if matches!(cause.raw_os_error(), Some(libc::EMFILE | libc::ENFILE)) {
            return Error::Exhausted {
                what: what.into(),
                limit: "no file descriptor is left (RLIMIT_NOFILE)".into(),
                remedy: "raise it with `ulimit -n`".into(),
            };
        }
        Error::Os {
            what: what.into(),
            cause: cause.to_string(),
        }
    }

    /// An argument is wrong.
    pub fn invalid(what: impl Into<String>) -> Error {
        Error::InvalidArgument(what.into())
    }

    /// The first cause, without the wrapping of later calls.
    pub fn first_cause(&self) -> &Error {
        match self {
            Error::CommunicatorFailed(first) => first.first_cause(),
            other => other,
        }
    }
}
