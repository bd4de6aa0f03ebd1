//! What the kernel says of the interfaces and addresses of this process's network namespace
//! (rtnetlink(7)): the one reader of it. /sys/class/net shows those of the namespace that /sys was
//! mounted in, which may be another one, and getifaddrs(3) says nothing of the size of packets.

use crate::error::{Error, Result};
use rustix::net::{
    AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType, recv, send, socket_with,
};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// Message types, flags and attributes of linux/netlink.h, linux/rtnetlink.h, linux/if_link.h and
/// linux/if_addr.h.
const RTM_NEWLINK: u16 = 16;
const RTM_GETLINK: u16 = 18;
const RTM_NEWADDR: u16 = 20;
const RTM_GETADDR: u16 = 22;
const NLMSG_ERROR: u16 = 2;
const NLMSG_DONE: u16 = 3;
const REQUEST_DUMP: u16 = 0x301;
const IFLA_IFNAME: u16 = 3;
const IFLA_MTU: u16 = 4;
const IFA_ADDRESS: u16 = 1;
const IFA_LOCAL: u16 = 2;
const IFA_LABEL: u16 = 3;
/// Bytes of a message's header, of an attribute's, and of what stands before the attributes of an
/// interface and of an address.
const HEADER_BYTES: usize = 16;
const ATTRIBUTE_BYTES: usize = 4;
const LINK_BYTES: usize = 16;
const ADDRESS_BYTES: usize = 8;
/// What the kernel puts into one answer at most, and the number of answers after which we give up.
const ANSWER_BYTES: usize = 64 * 1024;
const ANSWERS_MAX: usize = 10_000;

/// An interface.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NetworkLink {
    /// Its number in the namespace.
    pub index: u32,
    /// IFF_* of netdevice(7).
    pub flags: u32,
    /// Such as eth0.
    pub name: String,
    /// Largest packet, bytes.
    pub mtu: u32,
}

/// An address of an interface.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct LinkAddress {
    /// The interface's number.
    pub index: u32,
    /// The interface's name, or an alias such as eth0:1. IPv6 addresses have none.
    pub label: Option<String>,
    pub ip: IpAddr,
}

/// All interfaces of this process's network namespace.
pub fn network_links() -> Result<Vec<NetworkLink>> {
    let mut found = Vec::new();
    dump(RTM_GETLINK, &mut |kind, body| {
        found.extend((kind == RTM_NEWLINK).then(|| parse_link(body)).flatten());
    })?;
    Ok(found)
}

/// All their addresses.
pub(super) fn addresses() -> Result<Vec<LinkAddress>> {
    let mut found = Vec::new();
    dump(RTM_GETADDR, &mut |kind, body| {
        found.extend((kind == RTM_NEWADDR).then(|| parse_address(body)).flatten());
    })?;
    Ok(found)
}

/// Gives every message of the answer, as its kind and its body.
fn dump(request: u16, each: &mut dyn FnMut(u16, &[u8])) -> Result<()> {
    let what = "asking the kernel for interfaces and addresses (netlink)";
    let failed = |cause: rustix::io::Errno| Error::os(what, cause);
    let flags = SocketFlags::CLOEXEC;
    let socket =
        socket_with(AddressFamily::NETLINK, SocketType::RAW, flags, None).map_err(failed)?;
    // The longer of the two bodies; all zero means everything.
    let bytes = HEADER_BYTES + LINK_BYTES;
    let mut message = Vec::with_capacity(bytes);
    message.extend((bytes as u32).to_ne_bytes());
    message.extend(request.to_ne_bytes());
    message.extend(REQUEST_DUMP.to_ne_bytes());
    message.resize(bytes, 0);
    send(&socket, &message, SendFlags::empty()).map_err(failed)?;
    let mut answer = vec![0; ANSWER_BYTES];
    for _ in 0..ANSWERS_MAX {
        let (_, bytes) = recv(&socket, &mut answer[..], RecvFlags::empty()).map_err(failed)?;
        if parse(&answer[..bytes.min(ANSWER_BYTES)], each)? {
            return Ok(());
        }
    }
    Err(Error::Malformed(format!("{what}: the answer has no end")))
}

/// Gives the messages of one answer; whether it was the last one.
fn parse(mut answer: &[u8], each: &mut dyn FnMut(u16, &[u8])) -> Result<bool> {
    while let Some(length) = number(answer, 0) {
        let length = length as usize;
        if length < HEADER_BYTES || length > answer.len() {
            let text = format!("a message of {length} bytes from the kernel (netlink)");
            return Err(Error::Malformed(text));
        }
        let (message, rest) = answer.split_at(length);
        match half(message, 4) {
            Some(NLMSG_DONE) => return Ok(true),
            Some(NLMSG_ERROR) => {
                let text = "the kernel lists no interfaces (netlink)";
                return Err(Error::Malformed(text.into()));
            }
            Some(kind) => each(kind, &message[HEADER_BYTES..]),
            None => {}
        }
        answer = rest.get(padding(length)..).unwrap_or_default();
    }
    Ok(false)
}

fn parse_link(body: &[u8]) -> Option<NetworkLink> {
    let (mut name, mut mtu) = (None, None);
    for (kind, value) in attributes(body.get(LINK_BYTES..)?) {
        match kind {
            IFLA_IFNAME => name = Some(text(value)),
            IFLA_MTU => mtu = number(value, 0),
            _ => {}
        }
    }
    Some(NetworkLink {
        index: number(body, 4)?,
        flags: number(body, 8)?,
        name: name?,
        mtu: mtu?,
    })
}

fn parse_address(body: &[u8]) -> Option<LinkAddress> {
    let (mut address, mut local, mut label) = (None, None, None);
    for (kind, value) in attributes(body.get(ADDRESS_BYTES..)?) {
        match kind {
            IFA_ADDRESS => address = parse_ip(value),
            IFA_LOCAL => local = parse_ip(value),
            IFA_LABEL => label = Some(text(value)),
            _ => {}
        }
    }
    Some(LinkAddress {
        index: number(body, 4)?,
        label,
        // On a point-to-point link, ADDRESS is the other side's and LOCAL this side's.
        ip: local.or(address)?,
    })
}

/// Kinds and values, up to the first that is damaged.
fn attributes(mut rest: &[u8]) -> impl Iterator<Item = (u16, &[u8])> {
    std::iter::from_fn(move || {
        let (length, kind) = (half(rest, 0)? as usize, half(rest, 2)?);
        let value = rest.get(ATTRIBUTE_BYTES..length)?;
        rest = rest.get(length + padding(length)..).unwrap_or_default();
        Some((kind, value))
    })
}

fn text(value: &[u8]) -> String {
    let end = value.iter().position(|&byte| byte == 0);
    String::from_utf8_lossy(&value[..end.unwrap_or(value.len())]).into_owned()
}

fn parse_ip(bytes: &[u8]) -> Option<IpAddr> {
    let v4 = <[u8; 4]>::try_from(bytes).map(|b| IpAddr::V4(Ipv4Addr::from(b)));
    let v6 = <[u8; 16]>::try_from(bytes).map(|b| IpAddr::V6(Ipv6Addr::from(b)));
    v4.or(v6).ok()
}

/// Messages and attributes begin at multiples of four.
fn padding(length: usize) -> usize {
    length.next_multiple_of(4) - length
}

fn number(bytes: &[u8], at: usize) -> Option<u32> {
    let four = bytes.get(at..at + 4)?;
    Some(u32::from_ne_bytes(four.try_into().ok()?))
}

fn half(bytes: &[u8], at: usize) -> Option<u16> {
    let two = bytes.get(at..at + 2)?;
    Some(u16::from_ne_bytes(two.try_into().ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn attribute(kind: u16, value: &[u8]) -> Vec<u8> {
        let length = ATTRIBUTE_BYTES + value.len();
        let mut bytes = (length as u16).to_ne_bytes().to_vec();
        bytes.extend(kind.to_ne_bytes());
        bytes.extend(value);
        bytes.resize(length + padding(length), 0);
        bytes
    }

    fn message(kind: u16, body: &[u8]) -> Vec<u8> {
        let mut bytes = ((HEADER_BYTES + body.len()) as u32).to_ne_bytes().to_vec();
        bytes.extend(kind.to_ne_bytes());
        bytes.resize(HEADER_BYTES, 0);
        bytes.extend(body);
        bytes
    }

    fn link() -> Vec<u8> {
        let mut body = vec![0; LINK_BYTES];
        body[4..8].copy_from_slice(&7u32.to_ne_bytes());
        body[8..12].copy_from_slice(&1u32.to_ne_bytes());
        body.extend(attribute(IFLA_IFNAME, b"eth0\0"));
        body.extend(attribute(99, b"xyz"));
        body.extend(attribute(IFLA_MTU, &1500u32.to_ne_bytes()));
        message(RTM_NEWLINK, &body)
    }

    fn address(attributes: &[Vec<u8>]) -> Vec<u8> {
        let mut body = vec![0; ADDRESS_BYTES];
        body[4..8].copy_from_slice(&7u32.to_ne_bytes());
        body.extend(attributes.concat());
        message(RTM_NEWADDR, &body)
    }

    /// Everything in an answer, and whether it was the last.
    fn read(answer: &[u8]) -> Result<(Vec<NetworkLink>, Vec<LinkAddress>, bool)> {
        let (mut links, mut addresses) = (Vec::new(), Vec::new());
        let is_last = parse(answer, &mut |kind, body| {
            links.extend((kind == RTM_NEWLINK).then(|| parse_link(body)).flatten());
            addresses.extend((kind == RTM_NEWADDR).then(|| parse_address(body)).flatten());
        })?;
        Ok((links, addresses, is_last))
    }

    #[test]
    fn an_answer_is_a_list_with_an_end() {
        let near = attribute(IFA_LOCAL, &[10, 0, 0, 1]);
        let far = attribute(IFA_ADDRESS, &[10, 0, 0, 2]);
        let six = attribute(IFA_ADDRESS, &[0xfd; 16]);
        let label = attribute(IFA_LABEL, b"eth0:1\0");
        let answer = [
            link(),
            address(&[far, near, label]),
            address(&[six]),
            address(&[]),
            message(NLMSG_DONE, &[0; 4]),
        ];
        let (links, addresses, is_last) = read(&answer.concat()).unwrap();
        let expected = NetworkLink {
            index: 7,
            flags: 1,
            name: "eth0".into(),
            mtu: 1500,
        };
        assert_eq!((links, is_last), (vec![expected], true));
        let shown: Vec<_> = addresses
            .iter()
            .map(|a| (a.label.as_deref(), a.ip))
            .collect();
        let expected = [
            (Some("eth0:1"), [10, 0, 0, 1].into()),
            (None, [0xfd; 16].into()),
        ];
        assert_eq!(shown, expected);
        assert!(!read(&link()).unwrap().2);
    }

    #[test]
    fn damaged_answers_are_errors_or_nothing_and_never_a_panic() {
        let near = attribute(IFA_LOCAL, &[10, 0, 0, 1]);
        let whole = [link(), address(&[near])].concat();
        for length in 0..whole.len() {
            let _ = read(&whole[..length]);
        }
        for at in 0..whole.len() {
            for byte in [0, 1, 3, 255] {
                let mut damaged = whole.clone();
                damaged[at] = byte;
                let _ = read(&damaged);
            }
        }
        assert!(read(&message(NLMSG_ERROR, &[])).is_err());
        let mut long = link();
        long[0] += 4;
        assert!(read(&long).is_err());
    }

    #[test]
    fn this_namespace_has_loopback_with_its_address() {
        let links = network_links().unwrap();
        let lo = links.iter().find(|link| link.name == "lo").unwrap();
        let addresses = addresses().unwrap();
        let of_lo = addresses.iter().filter(|a| a.index == lo.index);
        assert!(of_lo.clone().any(|a| a.ip.is_loopback()), "{addresses:?}");
    }
}
