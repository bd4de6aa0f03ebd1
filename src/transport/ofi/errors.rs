//! Errors of this provider.

use crate::error::Error;

/// An error of the library below.
pub fn refused(error: linerate_fabric_sys::Error) -> Error {
    unavailable(error.to_string())
}

/// The transport cannot be used, for this reason.
pub fn unavailable(reason: impl Into<String>) -> Error {
    Error::Unavailable {
        transport: "ofi".into(),
        reason: reason.into(),
    }
}
