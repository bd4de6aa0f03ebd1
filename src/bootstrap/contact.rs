//! [`RankContact`]: what a rank tells all others of itself, as bytes.

use super::cores::{BYTES as CORES_BYTES, Cores};
use super::identity::HostIdentity;
use crate::engine::Contact;
use crate::error::{Error, Result};
use crate::memory::RegionKey;
use crate::transport::Address;
use std::net::{IpAddr, Ipv6Addr};

/// Longest contact: an address, some keys, the rank's cores and findings.
pub(super) const CONTACT_BYTES_MAX: usize = 4096;

/// Offsets of the fields; the address of the transport begins at the last one.
const PLACE_AT: usize = 8;
const CORES_AT: usize = PLACE_AT + 16;
const KEYS_AT: usize = CORES_AT + CORES_BYTES;
const RATE_AT: usize = KEYS_AT + 8;
const ADDRESS_BYTES_AT: usize = RATE_AT + 4;
const ADDRESS_AT: usize = ADDRESS_BYTES_AT + 4;

/// What a rank tells all others of itself.
#[derive(Clone, Debug, PartialEq)]
pub struct RankContact {
    /// Its host.
    pub host: HostIdentity,
    /// An address of its host.
    pub place: IpAddr,
    /// The cores that it may run on.
    pub cores: Cores,
    /// What its network carries, in 1e6 bytes a second.
    pub megabytes_per_second: u32,
    /// How its engine is reached.
    pub engine: Contact,
    /// Rank 0's findings, by which all ranks choose; empty for the other ranks.
    pub findings: Vec<u8>,
}

impl RankContact {
    /// The bytes to send.
    pub fn emit(&self) -> Vec<u8> {
        let place = match self.place {
            IpAddr::V4(ip) => ip.to_ipv6_mapped(),
            IpAddr::V6(ip) => ip,
        };
        let address = &self.engine.address.0;
        let mut bytes = Vec::with_capacity(ADDRESS_AT + address.len() + self.findings.len());
        bytes.extend(self.host.0.to_le_bytes());
        bytes.extend(place.octets());
        bytes.extend(self.cores.0);
        bytes.extend(self.engine.control_key.0.to_le_bytes());
        bytes.extend(self.engine.window_key.0.to_le_bytes());
        bytes.extend(self.megabytes_per_second.to_le_bytes());
        bytes.extend((address.len() as u32).to_le_bytes());
        bytes.extend(address);
        bytes.extend(&self.findings);
        bytes
    }

    /// Checks and parses.
    pub fn parse(bytes: &[u8]) -> Result<RankContact> {
        let malformed = || {
            let length = bytes.len();
            Error::Malformed(format!(
                "a contact of {length} bytes, at least {ADDRESS_AT} and an address are needed"
            ))
        };
        let (fixed, rest) = bytes.split_at_checked(ADDRESS_AT).ok_or_else(malformed)?;
        let word = |at: usize| u32::from_le_bytes(std::array::from_fn(|i| fixed[at + i]));
        let (address, findings) = rest
            .split_at_checked(word(ADDRESS_BYTES_AT) as usize)
            .ok_or_else(malformed)?;
        let place: [u8; 16] = std::array::from_fn(|i| fixed[PLACE_AT + i]);
        Ok(RankContact {
            host: HostIdentity(u64::from_le_bytes(std::array::from_fn(|i| fixed[i]))),
            place: Ipv6Addr::from(place).to_canonical(),
            megabytes_per_second: word(RATE_AT),
            cores: Cores(std::array::from_fn(|i| fixed[CORES_AT + i])),
            engine: Contact {
                address: Address(address.to_vec()),
                control_key: RegionKey(word(KEYS_AT)),
                window_key: RegionKey(word(KEYS_AT + 4)),
            },
            findings: findings.to_vec(),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_contact_survives_and_a_stump_is_refused() {
        for place in ["10.1.2.3", "fd00::17"] {
            let contact = RankContact {
                host: HostIdentity(7 << 40),
                place: place.parse().unwrap(),
                cores: Cores::own(),
                megabytes_per_second: 50_000,
                engine: Contact {
                    address: Address(b"name".to_vec()),
                    control_key: RegionKey(1),
                    window_key: RegionKey(u32::MAX),
                },
                findings: b"findings".to_vec(),
            };
            let bytes = contact.emit();
            assert_eq!(RankContact::parse(&bytes).unwrap(), contact);
            for length in 0..ADDRESS_AT + 4 {
                assert!(RankContact::parse(&bytes[..length]).is_err(), "{length}");
            }
            let least = RankContact::parse(&bytes[..ADDRESS_AT + 4]).unwrap();
            assert!(least.findings.is_empty());
        }
    }
}
