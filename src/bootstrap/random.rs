//! Random numbers: secrets, names and nonces.

use crate::error::{Error, Result};

/// Bytes from the kernel's random number generator.
pub(super) fn random_bytes<const N: usize>() -> std::io::Result<[u8; N]> {
    let mut bytes = [0; N];
    getrandom::fill(&mut bytes).map_err(|e| std::io::Error::other(e.to_string()))?;
    Ok(bytes)
}

/// A secret for a job, for programs that start one: 256 random bits, in hexadecimal.
pub fn fresh_secret() -> Result<String> {
    let bytes: [u8; 32] = random_bytes().map_err(|e| Error::os("random bytes for a secret", e))?;
    Ok(bytes.iter().map(|byte| format!("{byte:02x}")).collect())
}

/// A number that differs between all processes and calls on this host, for names of sockets and
/// for ports.
pub fn nonce() -> Result<u64> {
    let bytes = random_bytes().map_err(|e| Error::os("random bytes for a name", e))?;
    Ok(u64::from_le_bytes(bytes))
}
