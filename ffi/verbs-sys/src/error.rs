//! What can go wrong before a work request is posted.

use std::fmt;

/// Why an object was not made, or a call failed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Error {
    /// There is no usable libibverbs.
    Unavailable(String),
    /// The library or the kernel refused.
    Refused {
        /// What was tried, with its values.
        what: String,
        /// The error number.
        errno: i32,
        /// What to do about it, empty if unknown.
        advice: String,
    },
    /// Arguments that this crate does not pass on.
    Invalid(String),
}

/// A result of this crate.
pub type Result<T> = std::result::Result<T, Error>;

impl Error {
    /// The refusal with this error number, with what is known about it.
    pub(crate) fn refused(what: impl Into<String>, errno: i32) -> Error {
        let advice = match errno {
            libc::ENOMEM => memlock_advice(),
            libc::EPERM | libc::EACCES => "may this user open /dev/infiniband/uverbs*?".to_owned(),
            _ => String::new(),
        };
        Error::Refused {
            what: what.into(),
            errno,
            advice,
        }
    }

    /// The refusal whose number is in `errno`. Nothing may have been called since.
    pub(crate) fn last(what: impl Into<String>) -> Error {
        let errno = last_errno();
        Error::refused(what, errno)
    }

    /// The error number, if the library or the kernel gave one.
    pub fn errno(&self) -> Option<i32> {
        match self {
            Error::Refused { errno, .. } => Some(*errno),
            _ => None,
        }
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Error::Unavailable(why) | Error::Invalid(why) => f.write_str(why),
            Error::Refused {
                what,
                errno,
                advice,
            } => {
                let cause = std::io::Error::from_raw_os_error(*errno);
                write!(f, "{what}: {cause}")?;
                if !advice.is_empty() {
                    write!(f, "; {advice}")?;
                }
                Ok(())
            }
        }
    }
}

impl std::error::Error for Error {}

/// `errno` of this thread.
pub(crate) fn last_errno() -> i32 {
    std::io::Error::last_os_error().raw_os_error().unwrap_or(0)
}

/// Registered memory and the queues of most devices are locked pages, of which a user may have few.
/// That is the usual cause where memory is left.
fn memlock_advice() -> String {
    match memlock_bytes() {
        None => {
            "there is no limit of locked memory, so memory or the device's room is short".to_owned()
        }
        Some(bytes) => format!(
            "at most {} KiB may be locked: raise it (ulimit -l unlimited, or memlock in /etc/security/limits.conf; \
             LimitMEMLOCK=infinity of a service)",
            bytes / 1024
        ),
    }
}

/// How many bytes this process may lock in memory (`ulimit -l`); `None`: any number. A process with
/// CAP_IPC_LOCK may lock more whatever it says.
pub fn memlock_bytes() -> Option<u64> {
    let mut limit = libc::rlimit {
        rlim_cur: 0,
        rlim_max: 0,
    };
    // SAFETY: `limit` is writable.
    let status = unsafe { libc::getrlimit(libc::RLIMIT_MEMLOCK, &mut limit) };
    (status == 0 && limit.rlim_cur != libc::RLIM_INFINITY).then_some(limit.rlim_cur)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_error_says_what_was_tried_and_what_to_do() {
        let text = Error::refused("registering 7 bytes on mlx5_0", libc::ENOMEM).to_string();
        assert!(
            text.starts_with("registering 7 bytes on mlx5_0: "),
            "{text}"
        );
        let expected = memlock_bytes().map_or("no limit", |_| "ulimit -l");
        assert!(text.contains(expected), "{text}");
        assert_eq!(
            Error::refused("x", libc::EINVAL).errno(),
            Some(libc::EINVAL)
        );
        assert_eq!(Error::Invalid("y".into()).errno(), None);
    }
}
