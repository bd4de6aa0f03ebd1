//! A port for rank 0 of a job whose other ranks must know it before it listens.

use super::random::nonce;
use crate::error::{Error, Result};
use std::net::{Ipv4Addr, TcpListener};
use std::ops::RangeInclusive;

/// Those below are often servers' that begin later.
const LOWEST: u16 = 10_000;
const ATTEMPTS_MAX: u32 = 1000;

/// A port of loopback at which nobody listens.
///
/// Somebody else can take it before it is used, but hardly by accident: it is none of those that
/// the kernel gives to connections and to sockets bound to port 0, and each call draws another one.
pub fn free_port() -> Result<u16> {
    let is_given = |port: u16| given_by_the_kernel().contains(&port);
    let bind = |port: u16| TcpListener::bind((Ipv4Addr::LOCALHOST, port));
    for _ in 0..ATTEMPTS_MAX {
        let drawn = nonce()? % u64::from(u16::MAX - LOWEST + 1);
        let port = LOWEST + drawn as u16;
        if !is_given(port) && bind(port).is_ok() {
            return Ok(port);
        }
    }
    // The kernel gives nearly all of them.
    let listener = bind(0).and_then(|listener| listener.local_addr());
    let address = listener.map_err(|e| Error::os("finding a free port", e))?;
    Ok(address.port())
}

/// The ports of this network namespace that the kernel chooses from.
fn given_by_the_kernel() -> RangeInclusive<u16> {
    let text = std::fs::read_to_string("/proc/sys/net/ipv4/ip_local_port_range");
    parse_range(&text.unwrap_or_default()).unwrap_or(32_768..=60_999)
}

fn parse_range(text: &str) -> Option<RangeInclusive<u16>> {
    let mut ends = text.split_whitespace().map(str::parse);
    Some(ends.next()?.ok()?..=ends.next()?.ok()?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_kernel_gives_a_free_port_to_nobody_else() {
        assert_eq!(parse_range("32768\t60999\n"), Some(32_768..=60_999));
        assert_eq!(parse_range("here"), None);
        for _ in 0..20 {
            let port = free_port().unwrap();
            assert!(!given_by_the_kernel().contains(&port), "{port}");
            TcpListener::bind((Ipv4Addr::LOCALHOST, port)).unwrap();
        }
    }
}
