//! The interfaces of this process's network namespace, asked of the kernel (rtnetlink(7)). /sys/class/net shows those of the
//! namespace that /sys was mounted in, which may be another one.

use rustix::net::{
    AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType, recv, send, socket_with,
};

/// Message types, flags and attributes of linux/netlink.h, linux/rtnetlink.h and linux/if_link.h.
const RTM_NEWLINK: u16 = 16;
const RTM_GETLINK: u16 = 18;
const NLMSG_ERROR: u16 = 2;
const NLMSG_DONE: u16 = 3;
const REQUEST_DUMP: u16 = 0x301;
const IFLA_IFNAME: u16 = 3;
const IFLA_MTU: u16 = 4;
/// Of a message, of its interface part, of an attribute.
const HEADER_BYTES: usize = 16;
const INFO_BYTES: usize = 16;
const ATTRIBUTE_BYTES: usize = 4;
/// What the kernel puts into one answer, and answers until we think that it never ends.
const ANSWER_BYTES: usize = 64 * 1024;
const ANSWERS_MAX: usize = 10_000;

/// What the kernel says of an interface.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Link {
    /// Its number in the namespace.
    pub index: u32,
    /// IFF_* of netdevice(7).
    pub flags: u32,
    /// Such as eth0.
    pub name: String,
    /// Largest packet, bytes.
    pub mtu: u32,
}

/// All of them.
pub fn links() -> Result<Vec<Link>, String> {
    let text = |cause: rustix::io::Errno| format!("asking the kernel for interfaces: {cause}");
    let socket = socket_with(
        AddressFamily::NETLINK,
        SocketType::RAW,
        SocketFlags::CLOEXEC,
        None,
    )
    .map_err(text)?;
    let mut request = Vec::with_capacity(HEADER_BYTES + INFO_BYTES);
    request.extend(((HEADER_BYTES + INFO_BYTES) as u32).to_ne_bytes());
    request.extend(RTM_GETLINK.to_ne_bytes());
    request.extend(REQUEST_DUMP.to_ne_bytes());
    request.resize(HEADER_BYTES + INFO_BYTES, 0);
    send(&socket, &request, SendFlags::empty()).map_err(text)?;
    let (mut found, mut answer) = (Vec::new(), vec![0; ANSWER_BYTES]);
    for _ in 0..ANSWERS_MAX {
        let (_, bytes) = recv(&socket, &mut answer[..], RecvFlags::empty()).map_err(text)?;
        if parse(&answer[..bytes.min(ANSWER_BYTES)], &mut found)? {
            return Ok(found);
        }
    }
    Err("the kernel's list of interfaces has no end".into())
}

/// Adds the interfaces of one answer; whether it was the last one.
fn parse(mut answer: &[u8], found: &mut Vec<Link>) -> Result<bool, String> {
    while let Some(length) = number(answer, 0) {
        let length = length as usize;
        if length < HEADER_BYTES || length > answer.len() {
            return Err(format!("a message of {length} bytes from the kernel"));
        }
        let (message, rest) = answer.split_at(length);
        match half(message, 4) {
            Some(NLMSG_DONE) => return Ok(true),
            Some(NLMSG_ERROR) => return Err("the kernel lists no interfaces".into()),
            Some(RTM_NEWLINK) => found.extend(parse_link(&message[HEADER_BYTES..])),
            _ => {}
        }
        answer = rest.get(padding(length)..).unwrap_or_default();
    }
    Ok(false)
}

fn parse_link(body: &[u8]) -> Option<Link> {
    let (mut name, mut mtu) = (None, None);
    let mut rest = body.get(INFO_BYTES..)?;
    while let (Some(length), Some(kind)) = (half(rest, 0), half(rest, 2)) {
        let length = length as usize;
        let value = rest.get(ATTRIBUTE_BYTES..length)?;
        match kind {
            IFLA_IFNAME => {
                let text = value.split(|&byte| byte == 0).next()?;
                name = Some(String::from_utf8_lossy(text).into_owned());
            }
            IFLA_MTU => mtu = number(value, 0),
            _ => {}
        }
        rest = rest.get(length + padding(length)..).unwrap_or_default();
    }
    Some(Link {
        index: number(body, 4)?,
        flags: number(body, 8)?,
        name: name?,
        mtu: mtu?,
    })
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
        let mut body = vec![0; INFO_BYTES];
        body[4..8].copy_from_slice(&7u32.to_ne_bytes());
        body[8..12].copy_from_slice(&1u32.to_ne_bytes());
        body.extend(attribute(IFLA_IFNAME, b"eth0\0"));
        body.extend(attribute(99, b"xyz"));
        body.extend(attribute(IFLA_MTU, &1500u32.to_ne_bytes()));
        message(RTM_NEWLINK, &body)
    }

    #[test]
    fn an_answer_is_a_list_with_an_end() {
        let mut found = Vec::new();
        let answer = [link(), message(NLMSG_DONE, &[0; 4])].concat();
        assert_eq!(parse(&answer, &mut found), Ok(true));
        let expected = Link {
            index: 7,
            flags: 1,
            name: "eth0".into(),
            mtu: 1500,
        };
        assert_eq!(found, [expected]);
        assert_eq!(parse(&link(), &mut found), Ok(false));
    }

    #[test]
    fn damaged_answers_are_errors_or_nothing_and_never_a_panic() {
        let whole = link();
        for length in 0..whole.len() {
            let _ = parse(&whole[..length], &mut Vec::new());
        }
        for at in 0..whole.len() {
            for byte in [0, 1, 3, 255] {
                let mut damaged = whole.clone();
                damaged[at] = byte;
                let _ = parse(&damaged, &mut Vec::new());
            }
        }
        assert!(parse(&message(NLMSG_ERROR, &[]), &mut Vec::new()).is_err());
    }

    #[test]
    fn this_host_has_loopback() {
        assert!(links().unwrap().iter().any(|link| link.name == "lo"));
    }
}
