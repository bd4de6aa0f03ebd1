//! The one error type. Its texts say what was tried, with which values, what is allowed and what to
//! do.

use crate::types::Rank;
use std::sync::Arc;
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
        /// Which ranks are missing, and what is known of each.
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
    #[error(
        "rank {rank} failed: {cause}{during}; the ranks that live may go on together by Communicator::rebuild; a process that is started again cannot join them: to have all ranks, start the job again"
    )]
    PeerFailed {
        /// The peer.
        rank: Rank,
        /// How its failure was noticed.
        cause: String,
        /// What this rank was doing, after a comma; empty if nothing.
        during: String,
    },

    /// A peer has left in good order, and the operation needs it. Operations that do not need it go
    /// on.
    #[error(
        "rank {rank} has left, and {operation} needs it: all ranks call the same operations before they drop the communicator \
         (Communicator::finalize is an end that each waits for); the others go on by Communicator::rebuild"
    )]
    Left {
        /// The peer.
        rank: Rank,
        /// What needs it.
        operation: String,
    },

    /// The operation was cancelled, here or by a peer.
    #[error("rank {by} cancelled {operation}; the communicator must be rebuilt")]
    Cancelled {
        /// The rank that cancelled.
        by: Rank,
        /// What was cancelled.
        operation: String,
    },

    /// A receive with a tag was cancelled before it met a message
    /// ([`crate::Operation::cancel_receive`]). Nothing else has failed.
    #[error(
        "the {operation} was cancelled before it met a message; the message goes to the next receive"
    )]
    ReceiveCancelled {
        /// What was cancelled.
        operation: String,
    },

    /// A rank gave the communicator up ([`crate::Communicator::abort`]).
    #[error("rank {by} aborted the communicator: {reason}; it must be rebuilt")]
    Aborted {
        /// The rank that aborted.
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

    /// A slice, a copy or an operation was asked for on memory that another one uses.
    #[error("bytes {} to {} of a buffer are in use by {by}: {remedy}", bytes.start, bytes.end)]
    InUse {
        /// What was wanted, in bytes of the whole allocation.
        bytes: std::ops::Range<u64>,
        /// What uses some of it.
        by: String,
        /// What to do.
        remedy: String,
    },

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
        /// What it answered.
        #[source]
        cause: OsCause,
    },

    /// Gradients, or sums of them, are not finite, and the policy of a sparse allreduce is to stop
    /// there.
    #[error(
        "{count} values are not finite in step {step} of a sparse allreduce, counted over all ranks; residuals are as before the \
         step on every rank; find the gradient that is not finite, or take NonFinite::Skip with a gradient scaler, or \
         NonFinite::Count"
    )]
    NotFinite {
        /// How many values, in the gradients of all ranks and in sums.
        count: u64,
        /// Which step.
        step: u64,
    },

    /// Bytes from a peer or a file do not have the right form.
    #[error("{0}")]
    Malformed(String),

    /// A defect of this library, which no argument of the caller brings about.
    #[error(
        "internal fault of linerate: {0}; please report it with what all ranks printed; the communicator must be rebuilt"
    )]
    Internal(String),
}

/// An [`std::io::Error`] that can be cloned and compared.
#[derive(Clone, Debug)]
pub struct OsCause(Arc<std::io::Error>);

impl std::ops::Deref for OsCause {
    type Target = std::io::Error;

    fn deref(&self) -> &std::io::Error {
        &self.0
    }
}

impl std::fmt::Display for OsCause {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.0.fmt(f)
    }
}

impl PartialEq for OsCause {
    fn eq(&self, other: &OsCause) -> bool {
        let is_number_equal = self.raw_os_error() == other.raw_os_error();
        is_number_equal && self.kind() == other.kind() && self.to_string() == other.to_string()
    }
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
            cause: OsCause(Arc::new(cause)),
        }
    }

    /// A defect of this library, found by a check.
    pub(crate) fn internal(what: impl Into<String>) -> Error {
        Error::Internal(what.into())
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_the_system_refused_keeps_its_kind_and_its_source() {
        use std::error::Error as _;
        let refused = || std::io::Error::from_raw_os_error(libc::EACCES);
        let error = Error::os("opening a file", refused());
        assert_eq!(error, error.clone());
        assert_ne!(
            error,
            Error::os("opening a file", std::io::Error::other("no"))
        );
        let Error::Os { cause, .. } = &error else {
            panic!("{error:?}");
        };
        assert_eq!(cause.kind(), std::io::ErrorKind::PermissionDenied);
        let source = error.source().and_then(|source| source.downcast_ref());
        let number = source.and_then(std::io::Error::raw_os_error);
        assert_eq!(number, Some(libc::EACCES));
        assert_eq!(error.to_string(), format!("opening a file: {}", refused()));
    }

    #[test]
    fn a_failed_rank_is_told_what_works() {
        let error = Error::PeerFailed {
            rank: 3,
            cause: "its process ended".into(),
            during: String::new(),
        };
        let text = error.to_string();
        assert!(
            text.contains("rebuild") && text.contains("cannot join"),
            "{text}"
        );
    }
}
