//! [`Secure`]: TLS between the socket of a rail and what the rail sends and receives.
//!
//! Each side copies bytes once more than without TLS: into the record that is sealed, and out of
//! the one that was opened. So chunks are not sent without a copy, nor read straight into their
//! memory.

use super::handshake::Look;
use super::socket::{self, Target};
use crate::kernel;
use crate::memory::View;
use crate::wire::{ChannelSecrets, Tls, TlsError};
use rustix::io::Errno;
use std::os::fd::BorrowedFd;

/// Records sealed, or read, at once: little enough to stay in a core's cache.
const RECORDS: usize = 4;
/// TLS has failed; [`Secure::failure`] says why.
const FAILED: Errno = Errno::BADMSG;

/// See the module.
#[derive(Debug)]
pub struct Secure {
    tls: Tls,
    /// The kernel had no more bytes at the last look.
    is_drained: bool,
}

/// Reads from a rail, through what secures it if anything does, into the target and then the
/// buffer.
#[inline]
pub fn receive(
    secure: &mut Option<Box<Secure>>,
    socket: BorrowedFd<'_>,
    target: Target<'_>,
    buffer: &mut [u8],
) -> rustix::io::Result<usize> {
    match secure {
        None => socket::receive(socket, target, buffer),
        Some(secure) => secure.receive(socket, target, buffer),
    }
}

/// Reads from a rail, through what secures it if anything does, into one buffer.
#[inline]
pub fn receive_plain(
    secure: &mut Option<Box<Secure>>,
    socket: BorrowedFd<'_>,
    buffer: &mut [u8],
) -> rustix::io::Result<usize> {
    match secure {
        None => socket::receive_plain(socket, buffer),
        Some(secure) => secure.receive(socket, Target::Bytes(&mut []), buffer),
    }
}

impl Secure {
    /// TLS for the side that has connected.
    pub fn initiator(secrets: &ChannelSecrets) -> Result<Secure, String> {
        Tls::initiator(secrets, RECORDS)
            .map_or_else(|e| Err(e.to_string()), |tls| Ok(Secure::of(tls)))
    }

    /// TLS for the side that was connected to.
    pub fn responder(secrets: &ChannelSecrets) -> Result<Secure, String> {
        Tls::responder(secrets, RECORDS)
            .map_or_else(|e| Err(e.to_string()), |tls| Ok(Secure::of(tls)))
    }

    fn of(tls: Tls) -> Secure {
        Secure {
            tls,
            is_drained: true,
        }
    }

    /// Goes on with the handshake. What has come behind its end is kept.
    pub fn turn(&mut self, socket: BorrowedFd<'_>) -> Result<Look, String> {
        let kept = &mut |_: &[u8]| 0;
        while !self.tls.is_ready() {
            match socket::receive_plain(socket, self.tls.space()) {
                Ok(0) => return Err("it closed the connection while keys were agreed on".into()),
                Ok(bytes) => self.tls.note_received(bytes),
                Err(Errno::AGAIN) => break,
                Err(Errno::INTR) => continue,
                Err(error) => return Err(error.to_string()),
            }
            if let Err(error) = self.tls.open(kept) {
                return Ok(Look::Fatal(error.to_string()));
            }
        }
        match self.flush(socket) {
            Ok(true) if self.tls.is_ready() => Ok(Look::Done),
            Ok(_) => Ok(Look::Wait),
            Err(error) => Err(error.to_string()),
        }
    }

    /// Sends what is sealed; true: that was all.
    fn flush(&mut self, socket: BorrowedFd<'_>) -> rustix::io::Result<bool> {
        while !self.tls.unsent().is_empty() {
            match socket::send_some(socket, self.tls.unsent()) {
                Ok(sent) => self.tls.note_sent(sent),
                Err(Errno::AGAIN) => return Ok(false),
                Err(Errno::INTR) => {}
                Err(error) => return Err(error),
            }
        }
        Ok(true)
    }

    /// Whether sealed bytes wait for room.
    pub fn holds_sealed(&self) -> bool {
        !self.tls.unsent().is_empty()
    }

    /// Whether opened bytes wait to be taken.
    pub fn holds_opened(&self) -> bool {
        self.tls.holds_opened()
    }

    /// Whether the kernel had no more at the last look, and nothing is left of what it had.
    pub fn is_drained(&self) -> bool {
        self.is_drained && !self.tls.holds_opened()
    }

    /// Why it has failed, if it has.
    pub fn failure(&self) -> Option<&TlsError> {
        self.tls.failure()
    }

    /// Seals and sends these bytes, one after the other, as far as there is room: how many were
    /// taken, and whether sealed ones wait.
    pub fn send_parts(
        &mut self,
        socket: BorrowedFd<'_>,
        first: &[u8],
        second: &[u8],
        view: View,
    ) -> rustix::io::Result<(usize, bool)> {
        let total = first.len() + second.len() + view.len_bytes();
        let mut taken = 0;
        loop {
            if !self.flush(socket)? {
                return Ok((taken, true));
            }
            if taken == total {
                return Ok((taken, false));
            }
            while taken < total {
                let mut fill = |room: &mut [u8]| copy_parts((first, second, view), taken, room);
                match self.tls.seal(&mut fill) {
                    Ok(0) => break,
                    Ok(sealed) => taken += sealed,
                    // Reading finds the end of the connection, and tells it.
                    Err(_) => return Err(FAILED),
                }
            }
        }
    }

    fn receive(
        &mut self,
        socket: BorrowedFd<'_>,
        target: Target<'_>,
        buffer: &mut [u8],
    ) -> rustix::io::Result<usize> {
        let mut delivery = Delivery {
            target,
            buffer,
            in_target: 0,
            in_buffer: 0,
        };
        loop {
            let opened = self.tls.open(&mut |bytes| delivery.take(bytes));
            let bytes = delivery.in_target + delivery.in_buffer;
            if bytes > 0 {
                // A failure behind these is found at the next look.
                return Ok(bytes);
            }
            opened.map_err(|_| FAILED)?;
            let space = self.tls.space();
            let room = space.len();
            self.is_drained = true;
            match socket::receive_plain(socket, space)? {
                0 => return Ok(0),
                received => {
                    self.is_drained = received < room;
                    self.tls.note_received(received);
                }
            }
        }
    }
}

/// Copies what lies behind the first `skip` bytes of the parts; how much fits.
fn copy_parts(
    (first, second, view): (&[u8], &[u8], View),
    mut skip: usize,
    room: &mut [u8],
) -> usize {
    let mut at = 0;
    for part in [first, second] {
        let rest = &part[skip.min(part.len())..];
        skip -= part.len() - rest.len();
        let bytes = rest.len().min(room.len() - at);
        room[at..at + bytes].copy_from_slice(&rest[..bytes]);
        at += bytes;
    }
    let bytes = (view.len_bytes() - skip).min(room.len() - at);
    kernel::read(view, skip, &mut room[at..at + bytes]);
    at + bytes
}

/// Where opened bytes go: into the target, and what is more than fits there into the buffer.
struct Delivery<'a> {
    target: Target<'a>,
    buffer: &'a mut [u8],
    in_target: usize,
    in_buffer: usize,
}

impl Delivery<'_> {
    fn take(&mut self, bytes: &[u8]) -> usize {
        let first = match &mut self.target {
            Target::View(view) => {
                let here = bytes.len().min(view.len_bytes() - self.in_target);
                kernel::write(*view, self.in_target, &bytes[..here]);
                here
            }
            Target::Bytes(target) => {
                let here = bytes.len().min(target.len() - self.in_target);
                target[self.in_target..][..here].copy_from_slice(&bytes[..here]);
                here
            }
        };
        self.in_target += first;
        let rest = &bytes[first..];
        let here = rest.len().min(self.buffer.len() - self.in_buffer);
        self.buffer[self.in_buffer..][..here].copy_from_slice(&rest[..here]);
        self.in_buffer += here;
        first + here
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::memory::Region;

    #[test]
    fn parts_are_copied_in_order_from_anywhere() {
        let region = Region::private(4096).unwrap();
        kernel::write(region.view(), 0, b"viewed");
        let parts = (&b"first"[..], &b"2nd"[..], region.view().part(0, 6));
        let all = b"first2ndviewed";
        for skip in 0..all.len() {
            for room in 1..=all.len() {
                let mut out = vec![0; room];
                let copied = copy_parts(parts, skip, &mut out);
                assert_eq!(copied, room.min(all.len() - skip));
                assert_eq!(out[..copied], all[skip..skip + copied]);
            }
        }
    }

    #[test]
    fn what_does_not_fit_the_target_goes_behind_it_and_the_rest_stays() {
        let (mut target, mut buffer) = ([0; 4], [0; 3]);
        let mut delivery = Delivery {
            target: Target::Bytes(&mut target),
            buffer: &mut buffer,
            in_target: 0,
            in_buffer: 0,
        };
        assert_eq!(delivery.take(b"ab"), 2);
        assert_eq!(delivery.take(b"cdefghij"), 5);
        assert_eq!(delivery.take(b"hij"), 0);
        assert_eq!((&target, &buffer), (b"abcd", b"efg"));
    }
}
