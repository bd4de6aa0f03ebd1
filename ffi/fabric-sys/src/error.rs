//! What can go wrong before an operation is posted.

use crate::library::Version;
use std::fmt;

/// Why an object was not made, or a call failed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Error {
    /// There is no usable libfabric.
    Unavailable {
        /// Each file that was tried, in order, and why it was not taken.
        attempts: Vec<Attempt>,
        /// What to do about it.
        advice: String,
    },
    /// The library, a provider or the kernel refused.
    Refused {
        /// What was tried, with its values.
        what: String,
        /// The error number: one of `errno.h`, or from 256 on one of `rdma/fi_errno.h`.
        code: i32,
        /// What the library calls that number.
        text: String,
        /// What to do about it, empty if unknown.
        advice: String,
    },
    /// Arguments that this crate does not pass on.
    Invalid(String),
}

/// A file that was tried as libfabric.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Attempt {
    /// The name or path, as it was given to the loader.
    pub path: String,
    /// Why it was not taken.
    pub why: Unusable,
}

/// Why a file does not serve as libfabric.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Unusable {
    /// The loader refused it, for this reason: there is no such file, or it is no library.
    NotLoaded(String),
    /// It is a library, and not libfabric.
    NotLibfabric,
    /// It lacks a function that every libfabric from [`Version::MIN`] on has.
    NoSymbol {
        /// The function.
        name: &'static str,
        /// The version of its symbol.
        version: &'static str,
    },
    /// Its version is below [`Version::MIN`].
    TooOld(Version),
}

/// A result of this crate.
pub type Result<T> = std::result::Result<T, Error>;

impl Error {
    /// The error number, if the library gave one.
    pub fn code(&self) -> Option<i32> {
        match self {
            Error::Refused { code, .. } => Some(*code),
            _ => None,
        }
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Error::Unavailable { attempts, advice } => {
                f.write_str("no usable libfabric")?;
                for attempt in attempts {
                    write!(f, "; {}: {}", attempt.path, attempt.why)?;
                }
                write!(f, " ({advice})")
            }
            Error::Refused {
                what,
                code,
                text,
                advice,
            } => {
                write!(f, "{what}: {text} (code {code})")?;
                if !advice.is_empty() {
                    write!(f, "; {advice}")?;
                }
                Ok(())
            }
            Error::Invalid(why) => f.write_str(why),
        }
    }
}

impl std::error::Error for Error {}

impl fmt::Display for Unusable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Unusable::NotLoaded(why) => f.write_str(why),
            Unusable::NotLibfabric => f.write_str("it is a library without fi_version"),
            Unusable::NoSymbol { name, version } => {
                write!(f, "it has no {name} of version {version}")
            }
            Unusable::TooOld(version) => {
                write!(
                    f,
                    "it is version {version}, at least {} is needed",
                    Version::MIN
                )
            }
        }
    }
}

/// What is known about an error number of a call that makes objects; empty if nothing is.
pub(crate) fn advice_for(code: i32) -> String {
    match code {
        libc::ENOMEM => memlock_advice(),
        libc::ENODATA => {
            "no provider offers all of that here (fi_info -v lists what they offer)".to_owned()
        }
        libc::EPERM | libc::EACCES => "may this user open /dev/infiniband/uverbs*?".to_owned(),
        libc::EMFILE => "more files are needed than are allowed: raise ulimit -n".to_owned(),
        _ => String::new(),
    }
}

/// Memory that a device reads is locked, and a user may have few locked pages.
fn memlock_advice() -> String {
    let mut limit = libc::rlimit {
        rlim_cur: 0,
        rlim_max: 0,
    };
    // SAFETY: `limit` is writable.
    let status = unsafe { libc::getrlimit(libc::RLIMIT_MEMLOCK, &mut limit) };
    if status != 0 || limit.rlim_cur == libc::RLIM_INFINITY {
        return "memory or the device's room is short".to_owned();
    }
    format!(
        "at most {} KiB may be locked: raise it (ulimit -l unlimited; LimitMEMLOCK=infinity of a service)",
        limit.rlim_cur / 1024
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_error_names_each_file_that_was_tried() {
        let text = Error::Unavailable {
            attempts: vec![
                Attempt {
                    path: "/a".into(),
                    why: Unusable::NotLoaded("no such file".into()),
                },
                Attempt {
                    path: "/b".into(),
                    why: Unusable::TooOld(Version { major: 1, minor: 4 }),
                },
            ],
            advice: "install it".into(),
        }
        .to_string();
        assert_eq!(
            text,
            "no usable libfabric; /a: no such file; /b: it is version 1.4, at least 1.9 is needed (install it)"
        );
    }

    #[test]
    fn a_refusal_says_what_was_tried_and_what_to_do() {
        let error = Error::Refused {
            what: "registering 7 bytes".into(),
            code: libc::ENOMEM,
            text: "Cannot allocate memory".into(),
            advice: advice_for(libc::ENOMEM),
        };
        let text = error.to_string();
        assert!(text.starts_with("registering 7 bytes: Cannot allocate memory (code 12); "));
        assert_eq!(error.code(), Some(libc::ENOMEM));
        assert_eq!(Error::Invalid("y".into()).code(), None);
    }
}
