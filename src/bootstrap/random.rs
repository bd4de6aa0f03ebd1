//! Numbers that nobody else has: secrets and names.

use crate::error::{Error, Result};

/// A secret for a job, for anyone who starts one: 256 random bits, in hexadecimal.
pub fn fresh_secret() -> Result<String> {
    let mut bytes = [0; 32];
    getrandom::fill(&mut bytes).map_err(|e| {
        Error::os(
            "random bytes for a secret",
            std::io::Error::other(e.to_string()),
        )
    })?;
    Ok(bytes.iter().map(|byte| format!("{byte:02x}")).collect())
}

/// A number that differs between all processes and calls on this host, for names of sockets.
pub fn nonce() -> Result<u64> {
    let path = "/proc/sys/kernel/random/uuid";
    let text =
        std::fs::read_to_string(path).map_err(|e| Error::os(format!("reading {path}"), e))?;
    let digits: String = text
        .chars()
        .filter(char::is_ascii_hexdigit)
        .take(16)
        .collect();
    u64::from_str_radix(&digits, 16)
        .map_err(|e| Error::Malformed(format!("{path} says '{}': {e}", text.trim())))
}
