//! [`HostIdentity`]: which ranks say that they share a host. Whether they can share memory is shown
//! later, by doing it.

use crate::error::{Error, Result};
use std::os::unix::fs::MetadataExt;

const BYTES: usize = 8;

/// A number that is equal on ranks of one host: of one kernel, started once, and one network
/// namespace.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HostIdentity(u64);

impl HostIdentity {
    /// Of this process; `named` (`LINERATE_HOSTID`) says it instead.
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

    /// As a number.
    pub fn number(self) -> u64 {
        self.0
    }

    /// What a rank says of itself: its host, then the rest.
    pub fn emit(self, rest: &[u8]) -> Vec<u8> {
        [&self.0.to_le_bytes(), rest].concat()
    }

    /// Checks, and takes both apart.
    pub fn parse(bytes: &[u8]) -> Result<(HostIdentity, &[u8])> {
        let parted = bytes.split_first_chunk::<BYTES>();
        parted
            .map(|(own, rest)| (HostIdentity(u64::from_le_bytes(*own)), rest))
            .ok_or_else(|| {
                Error::Malformed(format!(
                    "a host's identity of {} bytes, {BYTES} are needed",
                    bytes.len()
                ))
            })
    }
}

/// A number that is equal on processes of one user: others of the same host may hand each other no
/// memory.
pub(super) fn own_user() -> Result<u64> {
    let path = "/proc/self/ns/user";
    let space = std::fs::metadata(path).map_err(|e| Error::os(format!("reading {path}"), e))?;
    let user = rustix::process::geteuid().as_raw();
    Ok(HostIdentity::of(&[&user.to_string(), &space.ino().to_string()]).number())
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
        assert_eq!(
            HostIdentity::parse(&own.emit(b"x")).unwrap(),
            (own, &b"x"[..])
        );
        assert!(HostIdentity::parse(&[0; 7]).is_err());
    }
}
