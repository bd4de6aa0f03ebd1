//! The interfaces of this host and their addresses, and which of them the settings name.
//!
//! Source: NCCL_SOCKET_IFNAME of NCCL's documentation for how names are written.

use super::netlink;
use crate::error::{Error, Result};
use rustix::net::{AddressFamily, SocketFlags, SocketType, socket_with};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, UdpSocket};

/// An address of this host.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Interface {
    pub name: String,
    pub ip: IpAddr,
}

/// All addresses of this network namespace, those that are valid on one link only left out.
pub(super) fn list() -> Result<Vec<Interface>> {
    let found = netlink::addresses()?.into_iter();
    let found = found.filter(|address| !is_of_one_link(address.ip));
    Ok(found
        .map(|address| Interface {
            name: address.label.unwrap_or_else(|| name_of(address.index)),
            ip: address.ip,
        })
        .collect())
}

/// Addresses of IPv6 come without a name.
fn name_of(index: u32) -> String {
    let flags = SocketFlags::CLOEXEC;
    let socket = socket_with(AddressFamily::INET, SocketType::DGRAM, flags, None);
    let name = socket.and_then(|socket| rustix::net::netdevice::index_to_name(socket, index));
    name.unwrap_or_else(|_| format!("interface {index}"))
}

fn is_of_one_link(ip: IpAddr) -> bool {
    match ip {
        IpAddr::V4(ip) => ip.is_link_local(),
        IpAddr::V6(ip) => ip.is_unicast_link_local(),
    }
}

/// The interfaces whose names fit a list as `LINERATE_IFNAME` has it; the error says which there
/// are.
pub(super) fn named(all: &[Interface], list: &str) -> Result<Vec<Interface>> {
    let (is_excluded, names) = match list.strip_prefix('^') {
        Some(names) => (true, names),
        None => (false, list),
    };
    let fits = |interface: &&Interface| {
        let mut names = names.split(',').map(str::trim).filter(|n| !n.is_empty());
        let is_named = names.any(|name| match name.strip_prefix('=') {
            Some(exact) => interface.name == exact,
            None => interface.name.starts_with(name),
        });
        // Without loopback, unless it is asked for.
        is_named != is_excluded && !(is_excluded && interface.ip.is_loopback())
    };
    let found: Vec<Interface> = all.iter().filter(fits).cloned().collect();
    if found.is_empty() {
        let there: Vec<String> = all
            .iter()
            .map(|i| format!("{} ({})", i.name, i.ip))
            .collect();
        return Err(Error::invalid(format!(
            "LINERATE_IFNAME is '{list}' and no interface of this host fits: {}; the beginnings of names, such as eth,ib0; =eth0 for that one only; ^docker,lo for all others",
            there.join(", ")
        )));
    }
    Ok(found)
}

/// The address that the route to `ip` leaves by: a datagram socket is connected, nothing is sent.
pub(super) fn source_for(ip: IpAddr) -> Option<IpAddr> {
    let any: IpAddr = match ip {
        IpAddr::V4(_) => Ipv4Addr::UNSPECIFIED.into(),
        IpAddr::V6(_) => Ipv6Addr::UNSPECIFIED.into(),
    };
    let socket = UdpSocket::bind((any, 0)).ok()?;
    socket.connect((ip, 9)).ok()?;
    Some(socket.local_addr().ok()?.ip())
}

/// The interface that has an address, for people.
pub(super) fn name_for(all: &[Interface], ip: IpAddr) -> String {
    let found = all.iter().find(|interface| interface.ip == ip);
    found.map_or_else(|| "no interface of this host".into(), |i| i.name.clone())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn interface(name: &str, ip: &str) -> Interface {
        Interface {
            name: name.into(),
            ip: ip.parse().unwrap(),
        }
    }

    #[test]
    fn this_host_has_loopback_and_routes_to_itself_over_it() {
        let all = list().unwrap();
        let loopback = "127.0.0.1".parse().unwrap();
        assert_eq!(name_for(&all, loopback), "lo", "{all:?}");
        assert_eq!(source_for(loopback), Some(loopback));
    }

    #[test]
    fn names_are_beginnings_exact_or_excluded() {
        let all = [
            interface("lo", "127.0.0.1"),
            interface("eth0", "10.0.0.1"),
            interface("eth01", "10.0.1.1"),
            interface("ib0", "fd00::1"),
        ];
        let names = |list| -> Vec<String> {
            let found = named(&all, list).unwrap();
            found.into_iter().map(|i| i.name).collect()
        };
        assert_eq!(names("eth"), ["eth0", "eth01"]);
        assert_eq!(names("=eth0, ib"), ["eth0", "ib0"]);
        assert_eq!(names("^eth01"), ["eth0", "ib0"]);
        assert_eq!(names("lo"), ["lo"]);
        let text = named(&all, "wlan").unwrap_err().to_string();
        assert!(
            text.contains("LINERATE_IFNAME") && text.contains("eth0 (10.0.0.1)"),
            "{text}"
        );
    }
}
