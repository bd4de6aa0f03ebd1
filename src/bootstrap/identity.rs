//! [`HostIdentity`]: which ranks say that they share a host. Whether they can share memory is shown
//! later, by doing it.

use crate::error::{Error, Result};
use std::os::unix::fs::MetadataExt;

/// A number that is equal on ranks of one host: of one boot of one kernel, and of one network
/// namespace.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct HostIdentity(pub u64);

impl HostIdentity {
    /// The identity of this process's host, or that of a name (`LINERATE_HOSTID`).
    pub fn own(named: Option<&str>) -> Result<HostIdentity> {
        if let Some(name) = named {
            return Ok(HostIdentity::of(&["named", name]));
        }
        let path = "/proc/sys/kernel/random/boot_id";
        let boot = std::fs::read_to_string(path);
        let boot = boot.map_err(|e| Error::os(format!("reading {path}"), e))?;
        let path = "/proc/self/ns/net";
        let space = std::fs::metadata(path).map_err(|e| Error::os(format!("reading {path}"), e))?;
        Ok(HostIdentity::of(&[boot.trim(), &space.ino().to_string()]))
    }

    fn of(words: &[&str]) -> HostIdentity {
        let bytes = words.iter().flat_map(|word| word.bytes().chain([0]));
        HostIdentity(bytes.fold(1, |hash, byte| {
            crate::prng::mix(hash ^ u64::from(byte)).wrapping_add(hash)
        }))
    }
}

/// A number that is equal on processes of one user: those of different users share no memory.
pub(super) fn own_user() -> Result<u64> {
    let path = "/proc/self/ns/user";
    let space = std::fs::metadata(path).map_err(|e| Error::os(format!("reading {path}"), e))?;
    let user = rustix::process::geteuid().as_raw();
    Ok(HostIdentity::of(&[&user.to_string(), &space.ino().to_string()]).0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_host_is_itself_and_a_name_is_another() {
        let own = HostIdentity::own(None).unwrap();
        assert_eq!(own, HostIdentity::own(None).unwrap());
        assert_ne!(own, HostIdentity::own(Some("a")).unwrap());
        assert_ne!(HostIdentity::own(Some("b")), HostIdentity::own(Some("a")));
        assert_ne!(
            HostIdentity::of(&["a", "bc"]),
            HostIdentity::of(&["ab", "c"])
        );
    }
}
