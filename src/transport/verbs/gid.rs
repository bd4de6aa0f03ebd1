//! Which of a port's GIDs its packets carry.
//!
//! On Ethernet a port has a GID for each address of its interfaces and each version of RoCE.
//! Version 2 is UDP over IP and crosses routers; version 1 is an Ethernet frame of its own and does
//! not. The index matters to this side only; the peer is told the GID itself, and both sides must
//! use the same version and family.
//!
//! Order: version 2 before 1, then addresses of IPv4, then other IPv6, then those valid on one link
//! only. Source: the InfiniBand specification's annexes A16 (RoCE) and A17 (RoCEv2); how an IPv4
//! address is written: RFC 4291, section 2.5.5.2.

use crate::error::{Error, Result};
use crate::transport::Fabric;
use std::fmt;
use std::net::{Ipv4Addr, Ipv6Addr};

/// An entry of a port's table.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Gid {
    /// Its place in the table.
    pub index: u32,
    /// In network order.
    pub bytes: [u8; 16],
    /// What packets it stands for.
    pub kind: Fabric,
    /// The network interface whose address it is.
    pub interface: Option<String>,
}

/// A GID, and why that one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ChosenGid {
    /// The GID.
    pub gid: Gid,
    /// The reason, in words.
    pub reason: String,
}

/// What a GID's address is good for; the order is that of preference.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Scope {
    IpV4,
    IpV6,
    OneLink,
}

impl Gid {
    fn address(&self) -> Ipv6Addr {
        Ipv6Addr::from(self.bytes)
    }

    /// The IPv4 address that it is written from.
    pub fn ipv4(&self) -> Option<Ipv4Addr> {
        self.address().to_ipv4_mapped()
    }

    fn scope(&self) -> Scope {
        match self.ipv4() {
            Some(ip) if ip.is_link_local() => Scope::OneLink,
            Some(_) => Scope::IpV4,
            None if self.address().is_unicast_link_local() => Scope::OneLink,
            None => Scope::IpV6,
        }
    }

    /// Smaller is better.
    fn order(&self) -> (bool, Scope, u32) {
        (self.kind != Fabric::RoceV2, self.scope(), self.index)
    }
}

impl fmt::Display for Gid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} ({}", self.index, self.kind)?;
        match self.ipv4() {
            Some(ip) => write!(f, ", {ip}")?,
            None => write!(f, ", {}", self.address())?,
        }
        match &self.interface {
            Some(name) => write!(f, " of {name})"),
            None => f.write_str(")"),
        }
    }
}

/// The GID of an Ethernet port to use. `asked`: the index that a person wants.
pub fn choose(gids: &[Gid], asked: Option<u32>) -> Result<ChosenGid> {
    let there = || {
        let all: Vec<String> = gids.iter().map(Gid::to_string).collect();
        match all.is_empty() {
            true => "none is set".into(),
            false => format!("there are {}", all.join(", ")),
        }
    };
    if let Some(index) = asked {
        let gid = gids.iter().find(|gid| gid.index == index).ok_or_else(|| {
            Error::invalid(format!(
                "GID index {index} is not set on this port: {}",
                there()
            ))
        })?;
        return Ok(ChosenGid {
            gid: gid.clone(),
            reason: "its index was asked for".into(),
        });
    }
    let best = gids.iter().min_by_key(|gid| gid.order()).ok_or_else(|| {
        Error::invalid(
            "the port has no GID: give its network interface an address (ip address add) and set it up (ip link set up)",
        )
    })?;
    let mut reason = match (best.kind, best.scope()) {
        (Fabric::InfiniBand | Fabric::Efa, _) => "an InfiniBand port's own",
        (Fabric::RoceV2, Scope::IpV4) => "RoCEv2 with an IPv4 address, which routers forward",
        (Fabric::RoceV2, Scope::IpV6) => "RoCEv2; the interface has no IPv4 address",
        (Fabric::RoceV2, Scope::OneLink) => {
            "RoCEv2 by link-local address only: peers must be on the same link; give the interface an address to be routed"
        }
        (Fabric::RoceV1, _) => "RoCEv1: the port has no RoCEv2 GID, and packets cross no router",
    }
    .to_string();
    let is_rival = |gid: &&Gid| {
        gid.index != best.index && (gid.kind, gid.scope()) == (best.kind, best.scope())
    };
    let rivals: Vec<String> = gids
        .iter()
        .filter(is_rival)
        .map(|gid| gid.index.to_string())
        .collect();
    if !rivals.is_empty() {
        reason += &format!(" (the first of several: also {})", rivals.join(", "));
    }
    Ok(ChosenGid {
        gid: best.clone(),
        reason,
    })
}

/// The GID to use where this one may have left its place: the same address wherever it is, else the
/// best of the same kind, which is what the peers can reach; `None`: there is none.
pub fn find_again<'a>(gids: &'a [Gid], before: &Gid) -> Option<&'a Gid> {
    let of_kind = gids.iter().filter(|gid| gid.kind == before.kind);
    let is_elsewhere = |gid: &Gid| gid.index != before.index;
    of_kind.min_by_key(|gid| (gid.bytes != before.bytes, is_elsewhere(gid), gid.order()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn gid(index: u32, address: &str, kind: Fabric) -> Gid {
        let bytes = address.parse::<Ipv6Addr>().unwrap().octets();
        let interface = Some("eth0".into());
        Gid {
            index,
            bytes,
            kind,
            interface,
        }
    }

    /// As mlx5 fills its table: each address in both versions.
    fn usual() -> Vec<Gid> {
        use Fabric::{RoceV1, RoceV2};
        vec![
            gid(0, "fe80::a288:c2ff:fe32:1c7e", RoceV1),
            gid(1, "fe80::a288:c2ff:fe32:1c7e", RoceV2),
            gid(2, "::ffff:10.0.3.1", RoceV1),
            gid(3, "::ffff:10.0.3.1", RoceV2),
            gid(4, "fd00::3:1", RoceV1),
            gid(5, "fd00::3:1", RoceV2),
        ]
    }

    #[test]
    fn version_2_with_ipv4_wins_then_ipv6_then_one_link_then_version_1() {
        let mut gids = usual();
        for (expected, word) in [
            (3, "IPv4"),
            (5, "no IPv4"),
            (1, "link-local"),
            (2, "RoCEv1"),
            (4, "RoCEv1"),
            (0, "RoCEv1"),
        ] {
            let chosen = choose(&gids, None).unwrap();
            assert_eq!(chosen.gid.index, expected, "{gids:?}");
            assert!(chosen.reason.contains(word), "{chosen:?}");
            gids.retain(|gid| gid.index != expected);
        }
        let text = choose(&gids, None).unwrap_err().to_string();
        assert!(
            text.contains("no GID") && text.contains("ip address add"),
            "{text}"
        );
    }

    #[test]
    fn ipv4_addresses_of_one_link_are_not_preferred() {
        use Fabric::RoceV2;
        let gids = [
            gid(0, "::ffff:169.254.7.1", RoceV2),
            gid(1, "fd00::1", RoceV2),
        ];
        assert_eq!(choose(&gids, None).unwrap().gid.index, 1);
    }

    #[test]
    fn of_equals_the_first_is_taken_and_the_others_are_named() {
        use Fabric::RoceV2;
        let gids = [
            gid(7, "::ffff:10.0.0.2", RoceV2),
            gid(3, "::ffff:10.0.0.1", RoceV2),
        ];
        let chosen = choose(&gids, None).unwrap();
        assert_eq!(chosen.gid.index, 3);
        assert!(chosen.reason.ends_with("also 7)"), "{chosen:?}");
    }

    #[test]
    fn a_gid_that_moved_is_found_and_one_that_is_gone_replaced_by_its_kind() {
        let mut gids = usual();
        let before = gids[5].clone();
        gids[5].index = 9;
        assert_eq!(find_again(&gids, &before).unwrap().index, 9);
        gids.remove(5);
        assert_eq!(find_again(&gids, &before).unwrap().index, 3);
        gids.retain(|gid| gid.kind == Fabric::RoceV1);
        assert_eq!(find_again(&gids, &before), None);
        assert_eq!(find_again(&[], &before), None);
    }

    #[test]
    fn an_index_that_is_asked_for_is_used_or_refused_with_what_there_is() {
        assert_eq!(choose(&usual(), Some(0)).unwrap().gid.index, 0);
        let text = choose(&usual(), Some(9)).unwrap_err().to_string();
        assert!(
            text.contains("GID index 9") && text.contains("3 (RoCEv2, 10.0.3.1 of eth0)"),
            "{text}"
        );
        assert!(
            choose(&[], Some(0))
                .unwrap_err()
                .to_string()
                .contains("none is set")
        );
    }
}
