//! The interfaces of this host and their addresses, and which of them the settings name.
//!
//! Sources: rtnetlink(7) for the dump of addresses; NCCL_SOCKET_IFNAME of NCCL's documentation for how names are written.

use crate::error::{Error, Result};
use rustix::net::netlink::SocketAddrNetlink;
use rustix::net::{
    AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType, recv, sendto, socket_with,
};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, UdpSocket};

/// `RTM_GETADDR`, `RTM_NEWADDR`, `NLMSG_DONE`, `NLMSG_ERROR`; `NLM_F_REQUEST | NLM_F_DUMP`.
const GET_ADDRESS: u16 = 22;
const NEW_ADDRESS: u16 = 20;
const DONE: u16 = 3;
const ERROR: u16 = 2;
const REQUEST_DUMP: u16 = 0x301;
/// `IFA_ADDRESS`, `IFA_LOCAL`, `IFA_LABEL`.
const ADDRESS: u16 = 1;
const LOCAL: u16 = 2;
const LABEL: u16 = 3;
/// Answers are cut into pieces of at most this by the kernel.
const PIECE_BYTES: usize = 32 * 1024;
/// More pieces than any host needs.
const PIECES_MAX: usize = 256;

/// An address of this host.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Interface {
    pub name: String,
    pub ip: IpAddr,
}

/// All addresses of this network namespace, those that are valid on one link only left out.
pub(super) fn list() -> Result<Vec<Interface>> {
    let what = |e: rustix::io::Errno| {
        Error::os("asking the kernel for this host's addresses (netlink)", e)
    };
    let flags = SocketFlags::CLOEXEC;
    let socket = socket_with(AddressFamily::NETLINK, SocketType::RAW, flags, None).map_err(what)?;
    let mut request = Vec::new();
    request.extend(24u32.to_ne_bytes());
    request.extend(GET_ADDRESS.to_ne_bytes());
    request.extend(REQUEST_DUMP.to_ne_bytes());
    request.extend([0; 16]);
    sendto(
        &socket,
        &request,
        SendFlags::empty(),
        &SocketAddrNetlink::new(0, 0),
    )
    .map_err(what)?;
    let mut found = Vec::new();
    for _ in 0..PIECES_MAX {
        let mut piece = vec![0; PIECE_BYTES];
        let (_, bytes) = recv(&socket, &mut piece, RecvFlags::empty()).map_err(what)?;
        if parse_piece(&piece[..bytes.min(PIECE_BYTES)], &mut found) {
            break;
        }
    }
    found.retain(|interface| !is_of_one_link(interface.ip));
    Ok(found)
}

/// Adds the addresses of a piece; whether it was the last one.
fn parse_piece(mut rest: &[u8], found: &mut Vec<Interface>) -> bool {
    let half = |bytes: &[u8], at: usize| u16::from_ne_bytes([bytes[at], bytes[at + 1]]);
    while rest.len() >= 16 {
        let length = u32::from_ne_bytes(std::array::from_fn(|i| rest[i])) as usize;
        let kind = half(rest, 4);
        if length < 16 || length > rest.len() || matches!(kind, DONE | ERROR) {
            return true;
        }
        if kind == NEW_ADDRESS && length >= 24 {
            found.extend(parse_address(&rest[16..length]));
        }
        rest = &rest[length.next_multiple_of(4).min(rest.len())..];
    }
    false
}

/// One address: family, prefix, flags, scope, index of the interface; then attributes.
fn parse_address(bytes: &[u8]) -> Option<Interface> {
    let index = u32::from_ne_bytes(std::array::from_fn(|i| bytes[4 + i]));
    let (mut address, mut local, mut name) = (None, None, None);
    let mut rest = &bytes[8..];
    while rest.len() >= 4 {
        let length = u16::from_ne_bytes([rest[0], rest[1]]) as usize;
        if length < 4 || length > rest.len() {
            break;
        }
        let value = &rest[4..length];
        match u16::from_ne_bytes([rest[2], rest[3]]) {
            ADDRESS => address = parse_ip(value),
            LOCAL => local = parse_ip(value),
            LABEL => {
                name = String::from_utf8(value.strip_suffix(&[0]).unwrap_or(value).to_vec()).ok()
            }
            _ => {}
        }
        rest = &rest[length.next_multiple_of(4).min(rest.len())..];
    }
    // Of a point-to-point link the other side has ADDRESS, this one LOCAL.
    let ip = local.or(address)?;
    let name = name.unwrap_or_else(|| name_of(index));
    Some(Interface { name, ip })
}

fn parse_ip(bytes: &[u8]) -> Option<IpAddr> {
    let v4 = <[u8; 4]>::try_from(bytes).map(|b| IpAddr::V4(Ipv4Addr::from(b)));
    let v6 = <[u8; 16]>::try_from(bytes).map(|b| IpAddr::V6(Ipv6Addr::from(b)));
    v4.or(v6).ok()
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

/// Those whose names fit a list as `LINERATE_IFNAME` has it; an error says which there are.
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

    #[test]
    fn any_bytes_of_the_kernel_are_parsed_or_left() {
        let mut prng = crate::prng::Prng::new(5);
        for _ in 0..20_000 {
            let length = prng.below(80) as usize;
            let mut bytes: Vec<u8> = (0..length).map(|_| prng.next_u64() as u8).collect();
            if length >= 24 {
                bytes[..4].copy_from_slice(&(length as u32).to_ne_bytes());
                bytes[4..6].copy_from_slice(&NEW_ADDRESS.to_ne_bytes());
                bytes[24..].iter_mut().for_each(|byte| *byte %= 8);
            }
            parse_piece(&bytes, &mut Vec::new());
        }
    }
}
