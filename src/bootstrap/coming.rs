//! What a rank says to rank 0 when it comes ([`Coming`]), and what rank 0 answers when all have
//! come ([`Going`]), as bytes.

use super::identity::HostIdentity;
use crate::error::{Error, Result};
use crate::transport::{Agreed, Fabric, Far, Lack, Offer};
use std::net::{IpAddr, SocketAddr};

/// Longest reason that a rank tells another.
const REASON_CHARS_MAX: usize = 200;
/// What stands before the reason of a rank that has no fabric: without and with a device.
const LACKS: [u8; 2] = [0, u8::MAX];
/// Longest frame of a rank that comes or is to go: four bytes a character of the reason, and less
/// than 200 for the rest.
pub(super) const FRAME_BYTES_MAX: usize = 4 * REASON_CHARS_MAX + 200;

/// What a rank says when it comes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Coming {
    pub ranks: u32,
    pub fingerprint: u64,
    /// Where it listens for its children; 0 if it has none.
    pub port: u16,
    /// The host that it runs on, and the user that it runs as.
    pub host: HostIdentity,
    pub user: u64,
    /// What RDMA devices it has.
    pub offer: Offer,
}

/// Where rank 0 tells the others to go.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Going {
    /// The rank's own address, as rank 0 sees it.
    pub own: IpAddr,
    /// Where its parent listens; `None`: that is rank 0.
    pub parent: Option<SocketAddr>,
    pub is_one_host: bool,
    /// Its number among the ranks of its host, and how many these are.
    pub local: (u32, u32),
    pub agreed: Agreed,
}

fn hosts_word(is_one_host: bool) -> &'static str {
    if is_one_host { "one" } else { "several" }
}

impl Going {
    /// Words; the reason comes last, because it has several.
    pub fn emit(&self) -> String {
        let parent = self.parent.map_or("-".into(), |parent| parent.to_string());
        let hosts = hosts_word(self.is_one_host);
        let far = far_word(self.agreed.far, self.agreed.is_pity);
        let reason: String = self.agreed.reason.chars().take(REASON_CHARS_MAX).collect();
        let (local, locals) = self.local;
        format!(
            "{} {parent} {hosts} {local} {locals} {far} {reason}",
            self.own
        )
    }

    pub fn parse(text: &[u8]) -> Result<Going> {
        let shown = String::from_utf8_lossy(&text[..text.len().min(FRAME_BYTES_MAX)]);
        let bad = || Error::Malformed(format!("rank 0 says where to go: '{shown}'"));
        let words: Vec<&str> = shown.splitn(7, ' ').collect();
        let &[own, parent, hosts, local_rank, local_ranks, far, reason] = words.as_slice() else {
            return Err(bad());
        };
        let parent = match parent {
            "-" => None,
            address => Some(address.parse().map_err(|_| bad())?),
        };
        let mut either = [true, false].into_iter();
        let is_one_host = either.find(|&one| hosts_word(one) == hosts);
        let mut all = Far::ALL
            .into_iter()
            .flat_map(|far| [(far, false), (far, true)]);
        let far = all.find(|&(known, is_pity)| far_word(known, is_pity) == far);
        let (far, is_pity) = far.ok_or_else(bad)?;
        Ok(Going {
            own: own.parse().map_err(|_| bad())?,
            parent,
            is_one_host: is_one_host.ok_or_else(bad)?,
            local: (
                local_rank.parse().map_err(|_| bad())?,
                local_ranks.parse().map_err(|_| bad())?,
            ),
            agreed: Agreed {
                far,
                reason: reason.into(),
                is_pity,
            },
        })
    }
}

fn far_word(far: Far, is_pity: bool) -> &'static str {
    match (far, is_pity) {
        (Far::Tcp, true) => "tcp-although",
        _ => far.name(),
    }
}

impl Coming {
    pub fn emit(&self) -> Vec<u8> {
        let mut bytes = self.host.0.to_le_bytes().to_vec();
        bytes.extend(self.ranks.to_le_bytes());
        bytes.extend(self.fingerprint.to_le_bytes());
        bytes.extend(self.port.to_le_bytes());
        bytes.extend(self.user.to_le_bytes());
        // The fabric's number, or why there is none.
        match &self.offer {
            Ok(fabric) => {
                let at = Fabric::ALL.iter().position(|one| one == fabric);
                bytes.push(1 + at.expect("all are there") as u8);
            }
            Err(lack) => {
                bytes.push(LACKS[usize::from(lack.has_device)]);
                let why: String = lack.why.chars().take(REASON_CHARS_MAX).collect();
                bytes.extend(why.as_bytes());
            }
        }
        bytes
    }

    pub fn parse(bytes: &[u8]) -> Result<Coming> {
        let length = bytes.len();
        let malformed = || Error::Malformed(format!("a rank that comes says {length} bytes"));
        let (bytes, more) = bytes
            .split_first_chunk::<30>()
            .filter(|_| length <= FRAME_BYTES_MAX)
            .ok_or_else(malformed)?;
        let long = |at: usize| u64::from_le_bytes(std::array::from_fn(|i| bytes[at + i]));
        let offer = match more {
            [kind, why @ ..] if LACKS.contains(kind) => Err(Lack {
                why: String::from_utf8_lossy(why).into_owned(),
                has_device: *kind == LACKS[1],
            }),
            [number] => {
                let found = Fabric::ALL.get(usize::from(*number) - 1);
                Ok(*found.ok_or_else(malformed)?)
            }
            _ => return Err(malformed()),
        };
        Ok(Coming {
            ranks: u32::from_le_bytes(std::array::from_fn(|i| bytes[8 + i])),
            fingerprint: long(12),
            port: u16::from_le_bytes([bytes[20], bytes[21]]),
            host: HostIdentity(long(0)),
            user: long(22),
            offer,
        })
    }
}
