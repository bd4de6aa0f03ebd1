//! [`Control`]: the socket to one peer over which memory and news travel, [`PeerProcess`]: the
//! process at its other end, and [`Past`]: both after the end of the connection.

use super::fetch::{Guard, Readable};
use super::socket::{self, Received, SocketMessage};
use crate::error::Result;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use std::collections::VecDeque;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

/// How a connection ends, unless this rank ends it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Ending {
    /// The peer has left in good order, with this word.
    Left(u64),
    /// It has failed, for this reason.
    Failed(String),
}

impl From<String> for Ending {
    fn from(reason: String) -> Ending {
        Ending::Failed(reason)
    }
}

/// See the module.
#[derive(Debug, Default)]
pub struct Control {
    socket: Option<OwnedFd>,
    /// Messages that the socket had no room for.
    outbox: VecDeque<SocketMessage>,
    /// How many messages the peer had announced at the last look.
    announced_seen: u64,
    /// How it ended, where that was heard while its ring was being read.
    ending: Option<Ending>,
    /// It has been told that this rank leaves.
    is_told: bool,
}

impl Control {
    /// Uses this socket from now on.
    pub fn open(&mut self, socket: OwnedFd) {
        self.socket = Some(socket);
    }

    /// Uses it no more, and gives it back.
    pub fn close(&mut self) -> Option<OwnedFd> {
        self.socket.take()
    }

    pub fn is_open(&self) -> bool {
        self.socket.is_some()
    }

    /// The socket, while there is one.
    pub fn socket(&self) -> Option<BorrowedFd<'_>> {
        self.socket.as_ref().map(AsFd::as_fd)
    }

    /// Sends a message when the socket has room.
    pub fn push(&mut self, message: SocketMessage) {
        self.outbox.push_back(message);
    }

    /// Sends what waits, as far as there is room; how many.
    pub fn flush(&mut self) -> u64 {
        let Some(socket) = &self.socket else {
            self.outbox.clear();
            return 0;
        };
        let mut sent = 0;
        while let Some(&message) = self.outbox.front() {
            if !socket::send(socket.as_fd(), message, None).unwrap_or(true) {
                break;
            }
            self.outbox.pop_front();
            sent += 1;
        }
        sent
    }

    /// Sends a message as the last one before the end. If the socket is full, the peer still sees
    /// the hang-up.
    pub fn send_last(&self, message: SocketMessage) {
        if let Some(socket) = &self.socket {
            let _ = socket::send(socket.as_fd(), message, None);
        }
    }

    /// The next message of the peer, while there is a socket.
    pub fn receive(&self) -> Option<Result<Received>> {
        self.socket.as_ref().map(|fd| socket::receive(fd.as_fd()))
    }

    /// The peer has announced this many messages; true where that is news.
    pub fn note_announced(&mut self, announced: u64) -> bool {
        let is_news = announced != self.announced_seen;
        self.announced_seen = announced;
        is_news
    }

    /// Tells the peer that this rank leaves, unless it was told; true where it is told now.
    pub fn say_goodbye(&mut self, word: u64) -> bool {
        let Some(socket) = self.socket.as_ref().filter(|_| !self.is_told) else {
            return false;
        };
        // A message that does not fit yet is sent later: the hang-up alone would say that this rank
        // has died.
        let bye = SocketMessage::Bye(word);
        self.is_told =
            self.outbox.is_empty() && socket::send(socket.as_fd(), bye, None).unwrap_or(true);
        self.is_told
    }

    /// Whether the peer was told that this rank leaves, or cannot be.
    pub fn is_told(&self) -> bool {
        self.is_told || self.socket.is_none()
    }

    /// Keeps how the peer has ended for when its ring is not being read. The first ending counts.
    pub fn keep_ending(&mut self, ending: Ending) {
        self.ending.get_or_insert(ending);
    }

    pub fn take_ending(&mut self) -> Option<Ending> {
        self.ending.take()
    }
}

/// The process of a peer.
#[derive(Debug, Default)]
pub struct PeerProcess {
    /// Becomes readable when the process ends. The socket does not show that while a forked child
    /// of the process holds a copy.
    descriptor: Option<OwnedFd>,
    /// Its process id, if it has one in this namespace.
    id: Option<i32>,
    /// Its memory can be read here.
    readable: Option<Readable>,
    /// It can read the memory of this process.
    reads_us: bool,
}

impl PeerProcess {
    /// The process at the other end of this socket.
    pub fn of(socket: BorrowedFd<'_>) -> PeerProcess {
        PeerProcess {
            descriptor: socket::process_of(socket),
            id: socket::process_id_of(socket).map(|pid| pid.as_raw_nonzero().get()),
            readable: None,
            reads_us: false,
        }
    }

    /// This process, which has this guard.
    pub fn own(id: i32, guard: Guard) -> PeerProcess {
        let readable = Readable::probe(id, guard);
        PeerProcess {
            descriptor: None,
            id: Some(id),
            reads_us: readable.is_some(),
            readable,
        }
    }

    /// Finds out whether it can be read here; it has this guard.
    pub fn probe(&mut self, guard: Guard) -> bool {
        self.readable = self.id.and_then(|id| Readable::probe(id, guard));
        self.readable.is_some()
    }

    /// Its memory, if that can be read here.
    pub fn readable(&self) -> Option<Readable> {
        self.readable
    }

    /// It says whether it can read the memory of this process.
    pub fn set_reads_us(&mut self, reads_us: bool) {
        self.reads_us = reads_us;
    }

    /// Whether it can read the memory of this process.
    pub fn reads_us(&self) -> bool {
        self.reads_us
    }

    /// What becomes readable when it ends, if there is such a descriptor.
    pub fn descriptor(&self) -> Option<BorrowedFd<'_>> {
        self.descriptor.as_ref().map(AsFd::as_fd)
    }

    /// It is not looked at any more; what becomes readable when it ends.
    pub fn forget(&mut self) -> Option<OwnedFd> {
        self.descriptor.take()
    }
}

/// A connection that has ended here: its socket, and what becomes readable when the process at its
/// other end ends.
#[derive(Debug)]
pub struct Past {
    socket: OwnedFd,
    process: Option<OwnedFd>,
}

impl Past {
    pub fn new(socket: OwnedFd, process: Option<OwnedFd>) -> Past {
        Past { socket, process }
    }

    /// Whether the other side writes into this rank's memory no more.
    pub fn has_let_go(&self) -> bool {
        loop {
            match socket::receive(self.socket.as_fd()) {
                // What it still says is of a connection that has ended.
                Ok(Received::Message(..)) => {}
                Ok(Received::HungUp) => return true,
                // Behind a message that cannot be read, the next look goes on.
                Ok(Received::Nothing) | Err(_) => break,
            }
        }
        let has_ended = |process: &OwnedFd| {
            let mut set = [PollFd::new(process, PollFlags::IN)];
            poll(&mut set, Some(&Timespec::default())) == Ok(1)
        };
        self.process.as_ref().is_some_and(has_ended)
    }
}
