//! Where a rank listens, as bytes that the rendezvous carries from rank to rank.

use crate::error::{Error, Result};
use crate::transport::Address;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

const MAGIC: &[u8; 4] = b"LRT1";
/// Random bytes that name one transport: part of the key of every connection to it.
pub const IDENTITY_BYTES: usize = 16;
const ENTRY_BYTES: usize = 20;
/// Interfaces that one rank's rails may be spread over.
pub const PLACES_MAX: usize = 16;

/// A rank's identity and the places where it listens: rails are spread over them in turn.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PeerAddress {
    pub identity: [u8; IDENTITY_BYTES],
    pub places: Vec<SocketAddr>,
}

impl PeerAddress {
    pub fn emit(&self) -> Address {
        let mut out = MAGIC.to_vec();
        out.extend_from_slice(&self.identity);
        for place in &self.places {
            let (family, ip) = match place.ip() {
                IpAddr::V4(ip) => (4u16, ip.to_ipv6_mapped()),
                IpAddr::V6(ip) => (6, ip),
            };
            out.extend_from_slice(&family.to_le_bytes());
            out.extend_from_slice(&place.port().to_le_bytes());
            out.extend_from_slice(&ip.octets());
        }
        Address(out)
    }

    pub fn parse(address: &Address) -> Result<PeerAddress> {
        let malformed = || {
            let text = "bytes of {} that are no address of the tcp transport";
            Error::Malformed(text.replace("{}", &address.0.len().to_string()))
        };
        let rest = address.0.strip_prefix(MAGIC).ok_or_else(malformed)?;
        let (identity, rest) = rest.split_first_chunk().ok_or_else(malformed)?;
        let count = rest.len() / ENTRY_BYTES;
        if !rest.len().is_multiple_of(ENTRY_BYTES) || !(1..=PLACES_MAX).contains(&count) {
            return Err(malformed());
        }
        let places = rest.chunks_exact(ENTRY_BYTES).map(|entry| {
            let octets: [u8; 16] = std::array::from_fn(|i| entry[4 + i]);
            let ip = Ipv6Addr::from(octets);
            let ip: IpAddr = match u16::from_le_bytes([entry[0], entry[1]]) {
                4 => ip.to_ipv4_mapped().map(Ipv4Addr::into)?,
                6 => ip.into(),
                _ => return None,
            };
            Some(SocketAddr::new(
                ip,
                u16::from_le_bytes([entry[2], entry[3]]),
            ))
        });
        Ok(PeerAddress {
            identity: *identity,
            places: places.collect::<Option<_>>().ok_or_else(malformed)?,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_survive_and_nothing_else_is_taken() {
        let places = ["127.0.0.1:1", "[::1]:65535", "10.1.2.3:80"];
        let address = PeerAddress {
            identity: [9; 16],
            places: places.map(|place| place.parse().unwrap()).to_vec(),
        };
        let bytes = address.emit();
        assert_eq!(PeerAddress::parse(&bytes).unwrap(), address);
        for len in 0..bytes.0.len() {
            let is_whole = len == 20 + ENTRY_BYTES || len == 20 + 2 * ENTRY_BYTES;
            let parsed = PeerAddress::parse(&Address(bytes.0[..len].to_vec()));
            assert_eq!(parsed.is_ok(), is_whole, "{len} bytes");
        }
        let mut wrong = bytes.0.clone();
        wrong[20] = 5;
        let error = PeerAddress::parse(&Address(wrong)).unwrap_err();
        assert!(
            error.to_string().contains("80 bytes") || error.to_string().contains("80"),
            "{error}"
        );
    }
}
