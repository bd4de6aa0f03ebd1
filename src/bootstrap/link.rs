//! [`Frames`]: byte strings of bounded length over a connected socket, with deadlines and without a
//! thread. [`Link`]: one end of a control connection that has passed the handshake.
//!
//! A frame is its length (4 bytes, little-endian) and as many bytes. With TLS all of it is sealed.
//! The first byte of a link's frame says what the frame is.

use super::busy::BusyClock;
use crate::error::{Error, Result};
use crate::time::Time;
use crate::wire::{Tls, cut_text};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::net::{RecvFlags, SendFlags, recv, send};
use std::io::{ErrorKind, Read};
use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpStream};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::time::Duration;

/// Rank 0 gives up at the deadline and says who is missing; the others wait this much longer for
/// that.
pub(super) const LATE_ANSWER_TIME: Duration = Duration::from_secs(2);
/// Longest reason of a failure.
const REASON_BYTES_MAX: usize = 4096;
/// Longest sleep, so that a deadline is seen although the kernel's clock and ours differ.
const NAP: Duration = Duration::from_millis(100);

/// The other side is gone, or does not keep to the protocol.
#[derive(Debug)]
pub struct Lost(pub(super) String);

impl From<std::io::Error> for Lost {
    fn from(error: std::io::Error) -> Lost {
        Lost(error.to_string())
    }
}

/// See the module.
#[derive(Debug)]
pub(super) struct Frames {
    stream: OwnedFd,
    tls: Option<Box<Tls>>,
    received: Vec<u8>,
    /// Longest frame that this side takes.
    bytes_max: usize,
}

impl Frames {
    /// Frames over a connection whose handshakes are over.
    pub fn new(
        stream: OwnedFd,
        tls: Option<Box<Tls>>,
        bytes_max: usize,
    ) -> std::io::Result<Frames> {
        rustix::io::ioctl_fionbio(&stream, true)?;
        Ok(Frames {
            stream,
            tls,
            received: Vec::new(),
            bytes_max,
        })
    }

    /// Sends these bytes as one frame, at most until the deadline.
    pub fn send(
        &mut self,
        parts: &[&[u8]],
        by: (Time, BusyClock<'_>),
    ) -> std::result::Result<(), Lost> {
        let bytes: usize = parts.iter().map(|part| part.len()).sum();
        let mut frame = Vec::with_capacity(4 + bytes);
        frame.extend((bytes as u32).to_le_bytes());
        parts.iter().for_each(|part| frame.extend(*part));
        match &mut self.tls {
            None => write_all(self.stream.as_fd(), &frame, by)?,
            Some(tls) => write_sealed(self.stream.as_fd(), tls, &frame, by)?,
        }
        Ok(())
    }

    /// The next frame that has arrived whole; what was sent before the other side left comes first.
    pub fn receive(&mut self) -> std::result::Result<Option<Vec<u8>>, Lost> {
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
            let mut receive = || recv(&self.stream, &mut *space, RecvFlags::empty());
            // A side that closed with messages of ours unread resets the connection, which is told
            // before the bytes that it had sent.
            let got = match receive() {
                Err(Errno::CONNRESET) => receive(),
                got => got,
            };
            match (got, &mut self.tls) {
                (Ok((_, 0)), _) => return Err(Lost("it closed the connection".into())),
                (Ok((_, count)), None) => self.received.extend(&bytes[..count]),
                (Ok((_, count)), Some(tls)) => tls.note_received(count),
                (Err(Errno::AGAIN), _) => return Ok(None),
                (Err(Errno::INTR), _) => {}
                (Err(e), _) => return Err(std::io::Error::from(e).into()),
            }
        }
    }

    fn take_frame(&mut self) -> std::result::Result<Option<Vec<u8>>, Lost> {
        let Some((length, rest)) = self.received.split_first_chunk::<4>() else {
            return Ok(None);
        };
        let length = u32::from_le_bytes(*length) as usize;
        if length > self.bytes_max {
            return Err(Lost(format!(
                "it claims a frame of {length} bytes, at most {} are allowed",
                self.bytes_max
            )));
        }
        let Some(frame) = rest.get(..length).map(<[u8]>::to_vec) else {
            return Ok(None);
        };
        self.received.drain(..4 + length);
        Ok(Some(frame))
    }
}

impl AsFd for Frames {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.stream.as_fd()
    }
}

/// What a frame of a link is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(super) enum Kind {
    /// A rank tells rank 0 that it has come, and what it needs to know.
    Come = 1,
    /// Rank 0 tells a rank where to go.
    Go = 2,
    /// The contacts of some ranks.
    Contacts = 3,
    /// The job has failed; the rest is the reason.
    Failure = 4,
}

impl Kind {
    const ALL: [Kind; 4] = [Kind::Come, Kind::Go, Kind::Contacts, Kind::Failure];
}

/// See the module.
#[derive(Debug)]
pub(super) struct Link {
    frames: Frames,
    /// Where it comes from, and where it has arrived.
    pub from: SocketAddr,
    pub at: SocketAddr,
}

impl Link {
    /// A link over a connection whose handshakes are over. `bytes_max` is the longest body that
    /// this side takes.
    pub fn new(
        stream: TcpStream,
        tls: Option<Box<Tls>>,
        bytes_max: usize,
    ) -> std::io::Result<Link> {
        stream.set_nodelay(true)?;
        Ok(Link {
            from: plain(stream.peer_addr()?),
            at: plain(stream.local_addr()?),
            frames: Frames::new(stream.into(), tls, bytes_max + 1)?,
        })
    }

    /// A link over a Unix socket. It has no addresses but loopback.
    pub fn of_host(stream: UnixStream, bytes_max: usize) -> std::io::Result<Link> {
        let here = SocketAddr::from((Ipv4Addr::LOCALHOST, 0));
        Ok(Link {
            from: here,
            at: here,
            frames: Frames::new(stream.into(), None, bytes_max + 1)?,
        })
    }

    /// Where it comes from, for people.
    pub fn origin(&self) -> String {
        match self.from.port() {
            0 => "this host".into(),
            _ => self.from.to_string(),
        }
    }

    /// Whether both ends are on this host.
    pub fn is_local(&self) -> bool {
        self.from.ip().is_loopback() || self.from.ip() == self.at.ip()
    }

    /// Sends a frame, at most until the deadline.
    pub fn send(
        &mut self,
        kind: Kind,
        body: &[u8],
        by: (Time, BusyClock<'_>),
    ) -> std::result::Result<(), Lost> {
        self.frames.send(&[&[kind as u8], body], by)
    }

    /// Tells why the job has failed.
    pub fn send_failure(&mut self, text: &str, by: (Time, BusyClock<'_>)) {
        let text = cut_text(text, REASON_BYTES_MAX);
        // A rank that is gone needs no reason.
        let _ = self.send(Kind::Failure, text.as_bytes(), by);
    }

    /// The next frame that has arrived whole.
    pub fn receive(&mut self) -> std::result::Result<Option<(Kind, Vec<u8>)>, Lost> {
        let Some(mut frame) = self.frames.receive()? else {
            return Ok(None);
        };
        let first = *frame
            .first()
            .ok_or_else(|| Lost("it sent an empty frame".into()))?;
        let kind = Kind::ALL.into_iter().find(|kind| *kind as u8 == first);
        let kind = kind.ok_or_else(|| Lost(format!("it sent a frame of kind {first}")))?;
        Ok(Some((kind, frame.split_off(1))))
    }

    /// Waits for the next frame; a failure that the other side tells is the error.
    pub fn wait(
        &mut self,
        who: &str,
        (deadline, clock): (Time, BusyClock<'_>),
    ) -> Result<(Kind, Vec<u8>)> {
        loop {
            match self.receive() {
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
        self.frames.as_fd()
    }
}

/// The error that a failure's text stands for.
pub(super) fn told(text: &[u8]) -> Error {
    let text = String::from_utf8_lossy(text);
    Error::Bootstrap(text.trim_start_matches("bootstrap: ").to_string())
}

/// The address as IPv4, if a listener of both families shows an IPv4 address as one of IPv6.
fn plain(address: SocketAddr) -> SocketAddr {
    SocketAddr::new(address.ip().to_canonical(), address.port())
}

/// Whether this is a loopback address, which every host has.
pub(super) fn is_loopback(ip: IpAddr) -> bool {
    ip.to_canonical().is_loopback()
}

/// Sleeps until one of them is ready or the deadline has come; may end early.
pub(super) fn wait_for(
    descriptors: &[BorrowedFd<'_>],
    flags: PollFlags,
    (deadline, clock): (Time, BusyClock<'_>),
) {
    let time = clock.nap(deadline.since(clock.now()).min(NAP));
    let mut set: Vec<PollFd<'_>> = Vec::with_capacity(descriptors.len());
    set.extend(descriptors.iter().map(|d| PollFd::new(d, flags)));
    let time = Timespec {
        tv_sec: time.as_secs() as i64,
        tv_nsec: time.subsec_nanos().into(),
    };
    // Ends early on signals, like any sleep; callers look again.
    let _ = poll(&mut set, Some(&time));
    clock.work();
}

/// Seals these bytes and writes them to a socket that does not block.
fn write_sealed(
    stream: BorrowedFd<'_>,
    tls: &mut Tls,
    mut bytes: &[u8],
    by: (Time, BusyClock<'_>),
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

/// Does the handshake of TLS, and waits for the other side until the deadline.
pub(super) fn secure(
    mut stream: &TcpStream,
    tls: &mut Tls,
    (deadline, clock): (Time, BusyClock<'_>),
) -> std::io::Result<()> {
    loop {
        write_all(stream.as_fd(), tls.unsent(), (deadline, clock))?;
        tls.note_sent(tls.unsent().len());
        if tls.is_ready() {
            return Ok(());
        }
        match stream.read(tls.space()) {
            Ok(0) => return Err(ErrorKind::UnexpectedEof.into()),
            Ok(count) => {
                tls.note_received(count);
                // What comes after the handshake is kept.
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
    stream: BorrowedFd<'_>,
    mut bytes: &[u8],
    (deadline, clock): (Time, BusyClock<'_>),
) -> std::io::Result<()> {
    while !bytes.is_empty() {
        match send(stream, bytes, SendFlags::NOSIGNAL) {
            Ok(count) => bytes = &bytes[count..],
            Err(Errno::INTR) => {}
            Err(Errno::AGAIN) if clock.now() < deadline => {
                wait_for(&[stream], PollFlags::OUT, (deadline, clock));
            }
            Err(e) => return Err(e.into()),
        }
    }
    Ok(())
}
