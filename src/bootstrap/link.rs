//! [`Link`]: one end of a control connection that has passed the handshake: frames of bounded
//! length, deadlines, no thread.
//!
//! A frame is its length (4 bytes, little-endian, of what follows), one byte that says what it is,
//! and the rest. With TLS all of it is sealed.

use crate::error::{Error, Result};
use crate::time::Time;
use crate::wait::Clock;
use crate::wire::Tls;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use std::io::{ErrorKind, Read, Write};
use std::net::{IpAddr, SocketAddr, TcpStream};
use std::os::fd::{AsFd, BorrowedFd};
use std::time::Duration;

/// What a frame is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(super) enum Kind {
    /// A question to the store.
    Request = 1,
    /// The store's answer.
    Answer = 2,
    /// The contacts of some ranks.
    Contacts = 3,
    /// The job has failed; the rest is the reason.
    Failure = 4,
}

impl Kind {
    const ALL: [Kind; 4] = [Kind::Request, Kind::Answer, Kind::Contacts, Kind::Failure];
}

/// Longest reason of a failure.
const REASON_BYTES_MAX: usize = 4096;
/// Longest sleep, so that a deadline is seen although the kernel's clock and ours differ.
const NAP: Duration = Duration::from_millis(100);

/// The other side is gone, or does not keep to the protocol.
#[derive(Debug)]
pub(super) struct Lost(pub String);

/// See the module.
#[derive(Debug)]
pub(super) struct Link {
    stream: TcpStream,
    tls: Option<Box<Tls>>,
    /// Where it comes from, and where it has arrived.
    pub from: SocketAddr,
    pub at: SocketAddr,
    received: Vec<u8>,
    /// Longest frame that this side takes.
    bytes_max: usize,
}

impl Link {
    /// Over a connection whose handshakes are over.
    pub fn new(
        stream: TcpStream,
        tls: Option<Box<Tls>>,
        bytes_max: usize,
    ) -> std::io::Result<Link> {
        stream.set_nonblocking(true)?;
        stream.set_nodelay(true)?;
        Ok(Link {
            from: plain(stream.peer_addr()?),
            at: plain(stream.local_addr()?),
            stream,
            tls,
            received: Vec::new(),
            bytes_max,
        })
    }

    /// Whether both ends are on this host.
    pub fn is_local(&self) -> bool {
        self.from.ip().is_loopback() || self.from.ip() == self.at.ip()
    }

    /// Says something, at most until the deadline.
    pub fn say(
        &mut self,
        kind: Kind,
        body: &[u8],
        by: (Time, &Clock),
    ) -> std::result::Result<(), Lost> {
        let mut frame = Vec::with_capacity(5 + body.len());
        frame.extend((1 + body.len() as u32).to_le_bytes());
        frame.push(kind as u8);
        frame.extend(body);
        let written = match &mut self.tls {
            None => write_all(&self.stream, &frame, by),
            Some(tls) => write_sealed(&self.stream, tls, &frame, by),
        };
        written.map_err(|e| Lost(e.to_string()))
    }

    /// Says why the job has failed.
    pub fn say_failure(&mut self, text: &str, by: (Time, &Clock)) {
        let mut end = text.len().min(REASON_BYTES_MAX);
        while !text.is_char_boundary(end) {
            end -= 1;
        }
        // Anyone who is gone needs no reason.
        let _ = self.say(Kind::Failure, &text.as_bytes()[..end], by);
    }

    /// The next frame that has arrived whole.
    pub fn hear(&mut self) -> std::result::Result<Option<(Kind, Vec<u8>)>, Lost> {
        loop {
            let (tls, received) = (&mut self.tls, &mut self.received);
            if let Some(tls) = tls {
                let mut take = |opened: &[u8]| {
                    received.extend(opened);
                    opened.len()
                };
                tls.open(&mut take).map_err(|e| Lost(e.to_string()))?;
            }
            if let Some(frame) = self.take_frame()? {
                return Ok(Some(frame));
            }
            let mut bytes = [0; 16 * 1024];
            let space = match &mut self.tls {
                None => &mut bytes[..],
                Some(tls) => tls.space(),
            };
            match ((&self.stream).read(space), &mut self.tls) {
                (Ok(0), _) => return Err(Lost("it closed the connection".into())),
                (Ok(count), None) => self.received.extend(&bytes[..count]),
                (Ok(count), Some(tls)) => tls.note_received(count),
                (Err(e), _) if e.kind() == ErrorKind::WouldBlock => return Ok(None),
                (Err(e), _) if e.kind() == ErrorKind::Interrupted => {}
                (Err(e), _) => return Err(Lost(e.to_string())),
            }
        }
    }

    fn take_frame(&mut self) -> std::result::Result<Option<(Kind, Vec<u8>)>, Lost> {
        let Some((length, rest)) = self.received.split_first_chunk::<4>() else {
            return Ok(None);
        };
        let length = u32::from_le_bytes(*length) as usize;
        if length == 0 || length > self.bytes_max + 1 {
            return Err(Lost(format!(
                "it claims a frame of {length} bytes, at most {} are allowed",
                self.bytes_max + 1
            )));
        }
        let Some(frame) = rest.get(..length) else {
            return Ok(None);
        };
        let kind = Kind::ALL.into_iter().find(|kind| *kind as u8 == frame[0]);
        let kind = kind.ok_or_else(|| Lost(format!("it sent a frame of kind {}", frame[0])))?;
        let body = frame[1..].to_vec();
        self.received.drain(..4 + length);
        Ok(Some((kind, body)))
    }

    /// Waits for the next frame; a failure that the other side tells is the error.
    pub fn wait(
        &mut self,
        who: &str,
        (deadline, clock): (Time, &Clock),
    ) -> Result<(Kind, Vec<u8>)> {
        loop {
            match self.hear() {
                Ok(Some((Kind::Failure, text))) => return Err(told(&text)),
                Ok(Some(frame)) => return Ok(frame),
                Ok(None) if clock.now() >= deadline => {
                    return Err(Error::Bootstrap(format!("{who} did not answer in time")));
                }
                Ok(None) => wait_for(&[self.as_fd()], PollFlags::IN, (deadline, clock)),
                Err(Lost(why)) => {
                    return Err(Error::Bootstrap(format!(
                        "{who} was lost: {why}; see what it printed"
                    )));
                }
            }
        }
    }
}

impl AsFd for Link {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.stream.as_fd()
    }
}

/// The error that a failure's text stands for.
pub(super) fn told(text: &[u8]) -> Error {
    let text = String::from_utf8_lossy(text);
    Error::Bootstrap(text.trim_start_matches("bootstrap: ").to_string())
}

/// IPv4 in the clothes of IPv6, as listeners of both see it, is IPv4.
fn plain(address: SocketAddr) -> SocketAddr {
    SocketAddr::new(address.ip().to_canonical(), address.port())
}

/// Whether an address is of every host.
pub(super) fn is_loopback(ip: IpAddr) -> bool {
    ip.to_canonical().is_loopback()
}

/// Sleeps until one of them is ready or the deadline has come; may end early.
pub(super) fn wait_for(
    descriptors: &[BorrowedFd<'_>],
    flags: PollFlags,
    (deadline, clock): (Time, &Clock),
) {
    let time = deadline.since(clock.now()).min(NAP);
    let mut set: Vec<PollFd<'_>> = Vec::with_capacity(descriptors.len());
    set.extend(descriptors.iter().map(|d| PollFd::new(d, flags)));
    let time = Timespec {
        tv_sec: time.as_secs() as i64,
        tv_nsec: time.subsec_nanos().into(),
    };
    // Ends early on signals, like any sleep; callers look again.
    let _ = poll(&mut set, Some(&time));
}

/// Seals all of this and writes it to a socket that does not block.
fn write_sealed(
    stream: &TcpStream,
    tls: &mut Tls,
    mut bytes: &[u8],
    by: (Time, &Clock),
) -> std::io::Result<()> {
    while !bytes.is_empty() {
        let mut fill = |room: &mut [u8]| {
            let here = bytes.len().min(room.len());
            room[..here].copy_from_slice(&bytes[..here]);
            here
        };
        let sealed = tls.seal(&mut fill).map_err(std::io::Error::other)?;
        bytes = &bytes[sealed..];
        write_all(stream, tls.unsent(), by)?;
        tls.note_sent(tls.unsent().len());
    }
    Ok(())
}

/// The handshake of TLS, of the side that waits for it.
pub(super) fn secure(
    mut stream: &TcpStream,
    tls: &mut Tls,
    (deadline, clock): (Time, &Clock),
) -> std::io::Result<()> {
    loop {
        write_all(stream, tls.unsent(), (deadline, clock))?;
        tls.note_sent(tls.unsent().len());
        if tls.is_ready() {
            return Ok(());
        }
        match stream.read(tls.space()) {
            Ok(0) => return Err(ErrorKind::UnexpectedEof.into()),
            Ok(count) => {
                tls.note_received(count);
                // What comes behind it is kept.
                tls.open(&mut |_| 0).map_err(std::io::Error::other)?;
            }
            Err(e) if e.kind() == ErrorKind::Interrupted => {}
            Err(e) if e.kind() == ErrorKind::WouldBlock && clock.now() < deadline => {
                wait_for(&[stream.as_fd()], PollFlags::IN, (deadline, clock));
            }
            Err(e) => return Err(e),
        }
    }
}

/// Writes to a socket that does not block.
pub(super) fn write_all(
    mut stream: &TcpStream,
    mut bytes: &[u8],
    (deadline, clock): (Time, &Clock),
) -> std::io::Result<()> {
    while !bytes.is_empty() {
        match stream.write(bytes) {
            Ok(count) => bytes = &bytes[count..],
            Err(e) if e.kind() == ErrorKind::Interrupted => {}
            Err(e) if e.kind() == ErrorKind::WouldBlock && clock.now() < deadline => {
                wait_for(&[stream.as_fd()], PollFlags::OUT, (deadline, clock));
            }
            Err(e) => return Err(e),
        }
    }
    Ok(())
}
