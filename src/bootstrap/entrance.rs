//! [`Entrance`]: where the other ranks come to rank 0, over TCP or over a Unix socket of its host.
//! Both give connections and tell which rank is at the other end.
//!
//! On one host a rank only says its number: the kernel tells that its process is of this user, and
//! others are refused.

use super::link::Link;
use super::listener::{Listener, TO_HEAD};
use super::unix::{connect_to, is_same_user, listen_at};
use crate::error::{Error, Result};
use crate::time::Time;
use crate::transport::{ENTRANCE, Places};
use crate::types::Rank;
use rustix::io::Errno;
use std::io::{ErrorKind, Read, Write};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::{UnixListener, UnixStream};

/// What a rank of this host says first, before its number.
const MAGIC: [u8; 8] = *b"lnrtbs02";
const HELLO_BYTES: usize = 12;
/// Longest name in the abstract namespace.
const NAME_BYTES_MAX: usize = 107;
/// Processes of this user that have connected and not said which rank they are: a rank says it at
/// once.
const SILENT_MAX: usize = 256;
/// Connections that are taken between two looks.
const ACCEPTS_MAX: usize = 256;

/// See the module.
#[derive(Debug)]
pub(super) enum Entrance {
    /// Over TCP.
    Network(Box<Listener>),
    /// Of one host.
    Host(HostListener),
}

impl Entrance {
    /// Appends the ranks that have come since the last call, also if it returns an error.
    /// `bytes_max` is the longest frame of a rank.
    pub fn poll(
        &mut self,
        now: Time,
        bytes_max: usize,
        came: &mut Vec<(Rank, Link)>,
    ) -> Result<()> {
        // A connection that is lost already is dropped: its rank connects again, if it lives.
        match self {
            Entrance::Network(listener) => {
                let mut new = Vec::new();
                let polled = listener.poll(now, &mut new);
                for new in new.into_iter().filter(|new| new.detail == TO_HEAD) {
                    let link = Link::new(new.stream, new.tls, bytes_max);
                    came.extend(link.ok().map(|link| (new.rank, link)));
                }
                polled
            }
            Entrance::Host(listener) => {
                let mut new = Vec::new();
                let polled = listener.poll(now, &mut new);
                for (rank, stream) in new {
                    let link = Link::of_host(stream, bytes_max);
                    came.extend(link.ok().map(|link| (rank, link)));
                }
                polled
            }
        }
    }

    /// How many were refused, for errors.
    pub fn refusals(&self) -> String {
        match self {
            Entrance::Network(listener) => listener.refusals(),
            Entrance::Host(_) => String::new(),
        }
    }
}

impl AsFd for Entrance {
    /// What to wait for.
    fn as_fd(&self) -> BorrowedFd<'_> {
        match self {
            Entrance::Network(listener) => listener.as_fd(),
            Entrance::Host(listener) => listener.places.as_fd(),
        }
    }
}

/// Where the ranks of one host come.
#[derive(Debug)]
pub(super) struct HostListener {
    listener: UnixListener,
    places: Places<Silent>,
}

#[derive(Debug)]
struct Silent {
    stream: UnixStream,
    hello: [u8; HELLO_BYTES],
    got: usize,
}

impl AsFd for Silent {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.stream.as_fd()
    }
}

impl HostListener {
    /// Listens for the ranks of this job.
    pub fn new(job: &str) -> Result<HostListener> {
        let listener = listen_at(&name_of(job)?).map_err(|e| match e.kind() {
            ErrorKind::AddrInUse => Error::Bootstrap(format!(
                "job '{job}' is already running on this host; give this one another name (LINERATE_JOB) or another MASTER_PORT"
            )),
            _ => Error::os(format!("listening for the ranks of job '{job}'"), e),
        })?;
        let places = Places::new(SILENT_MAX)?;
        places.watch(&listener)?;
        Ok(HostListener { listener, places })
    }

    fn poll(&mut self, now: Time, came: &mut Vec<(Rank, UnixStream)>) -> Result<()> {
        for index in 0..self.places.look() {
            match self.places.found(index) {
                ENTRANCE => self.accept(now, came)?,
                number => came.extend(self.hear(number)),
            }
        }
        Ok(())
    }

    fn accept(&mut self, now: Time, came: &mut Vec<(Rank, UnixStream)>) -> Result<()> {
        for _ in 0..ACCEPTS_MAX {
            let stream = match self.listener.accept() {
                Ok((stream, _)) => stream,
                Err(e) => match Errno::from_io_error(&e) {
                    Some(Errno::AGAIN) => break,
                    Some(Errno::INTR | Errno::CONNABORTED) => continue,
                    Some(Errno::MFILE | Errno::NFILE) if self.make_room(now) => continue,
                    _ => return Err(Error::os("rank 0 cannot let a rank in", e)),
                },
            };
            if !is_same_user(&stream) || stream.set_nonblocking(true).is_err() {
                continue;
            }
            if self.places.is_full() {
                self.make_room(now);
            }
            let (hello, got) = ([0; HELLO_BYTES], 0);
            let silent = Silent { stream, hello, got };
            let number = self.places.admit(silent, now)?;
            came.extend(self.hear(number));
        }
        Ok(())
    }

    /// Closes the oldest connection that has said nothing; false: there is none.
    fn make_room(&mut self, now: Time) -> bool {
        let least = self.places.least_likely(now);
        least.is_some_and(|(number, _)| self.places.take(number).is_some())
    }

    /// Reads what a process has said; the rank that it is.
    fn hear(&mut self, number: u64) -> Option<(Rank, UnixStream)> {
        let silent = self.places.get_mut(number)?;
        while silent.got < HELLO_BYTES {
            match (&silent.stream).read(&mut silent.hello[silent.got..]) {
                Ok(count @ 1..) => silent.got += count,
                Err(e) if e.kind() == ErrorKind::WouldBlock => return None,
                Err(e) if e.kind() == ErrorKind::Interrupted => {}
                Ok(0) | Err(_) => break,
            }
        }
        let silent = self.places.take(number)?;
        let (magic, rank) = silent.hello.split_at(MAGIC.len());
        let is_rank = silent.got == HELLO_BYTES && magic == MAGIC;
        let rank = Rank::from_le_bytes(std::array::from_fn(|i| rank[i]));
        is_rank.then_some((rank, silent.stream))
    }
}

/// Connects to rank 0, whose socket has this name, and says which rank this is. The error may be
/// that rank 0 does not listen yet.
pub(super) fn come_to_host(rank: Rank, name: &str) -> std::io::Result<UnixStream> {
    let mut stream = connect_to(name)?;
    if !is_same_user(&stream) {
        let text = "a process of another user has that job's name";
        return Err(std::io::Error::other(text));
    }
    let mut hello = [0; HELLO_BYTES];
    hello[..MAGIC.len()].copy_from_slice(&MAGIC);
    hello[MAGIC.len()..].copy_from_slice(&rank.to_le_bytes());
    // It fits into a socket that has sent nothing yet.
    stream.write_all(&hello)?;
    Ok(stream)
}

/// The name of rank 0's socket.
pub(super) fn name_of(job: &str) -> Result<String> {
    let name = format!("linerate-job-{}-{job}", rustix::process::geteuid().as_raw());
    match name.len() <= NAME_BYTES_MAX {
        true => Ok(name),
        false => Err(Error::Bootstrap(format!(
            "job name '{job}' has {} bytes: use at most 60 characters",
            job.len()
        ))),
    }
}
