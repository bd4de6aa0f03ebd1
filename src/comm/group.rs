//! [`Group`]: sends and receives that proceed together.

use super::buffer::Buffer;
use super::call::{Call, Transfer};
use super::{Communicator, Operation};
use crate::config::checked_timeout;
use crate::error::Result;
use crate::memory::Element;
use crate::types::Rank;
use std::time::Duration;

/// Sends and receives that are started together, so that they cannot deadlock, in whatever order
/// they are given. A group is like the calls between ncclGroupStart and ncclGroupEnd. Made by
/// [`Communicator::group`].
#[must_use = "a group does nothing until it is started"]
pub struct Group<'a> {
    communicator: &'a Communicator,
    transfers: Vec<Transfer>,
    timeout: Option<Duration>,
}

impl Communicator {
    /// An empty group of sends and receives: add transfers, then start it. The n-th send to a rank
    /// meets that rank's n-th receive from this one, counted over all groups in the order in which
    /// they are started. Otherwise the order of transfers inside a group does not matter. The
    /// buffer's length is the message's length, which must be equal on both sides. A rank may send
    /// to itself if it also receives from itself in the same group.
    ///
    /// Collectives need no group. The methods that start them never wait, so a rank can start any
    /// number of collectives and groups, on any number of communicators, before it waits for the
    /// first.
    ///
    /// ```
    /// use linerate::{Communicator, Config};
    /// let job = format!("group-{}", std::process::id());
    /// let run = |rank: u32| -> linerate::Result<u64> {
    ///     let comm = Communicator::join(rank, 2, &job, Config::default())?;
    ///     let (mine, theirs) = (comm.alloc::<u64>(1)?, comm.alloc::<u64>(1)?);
    ///     mine.write(0, &[u64::from(rank) + 10])?;
    ///     comm.group().send(&mine, 1 - rank).recv(&theirs, 1 - rank).run()?;
    ///     Ok(theirs.as_slice()?[0])
    /// };
    /// let got = std::thread::scope(|scope| {
    ///     let ranks: Vec<_> = (0..2).map(|rank| scope.spawn(move || run(rank))).collect();
    ///     ranks.into_iter().map(|rank| rank.join().unwrap()).collect::<Result<Vec<_>, _>>()
    /// })?;
    /// assert_eq!(got, [11, 10]);
    /// # Ok::<(), linerate::Error>(())
    /// ```
    pub fn group(&self) -> Group<'_> {
        Group {
            communicator: self,
            transfers: Vec::new(),
            timeout: None,
        }
    }
}

impl Group<'_> {
    /// Adds a send of all elements of `buffer` to rank `peer`.
    pub fn send<T: Element>(self, buffer: &Buffer<T>, peer: Rank) -> Self {
        self.with(buffer, peer, true)
    }

    /// Adds a receive from rank `peer` of as many elements as `buffer` has.
    pub fn recv<T: Element>(self, buffer: &Buffer<T>, peer: Rank) -> Self {
        self.with(buffer, peer, false)
    }

    /// How long the group may make no progress before the communicator fails, instead of the
    /// communicator's timeout ([`Communicator::set_timeout`]). Each rank goes by its own value.
    pub fn timeout(mut self, timeout: Duration) -> Self {
        self.timeout = Some(timeout);
        self
    }

    fn with<T: Element>(mut self, buffer: &Buffer<T>, peer: Rank, is_send: bool) -> Self {
        let buffer = buffer.raw().clone();
        self.transfers.push(Transfer {
            peer,
            is_send,
            buffer,
        });
        self
    }

    /// Starts all transfers and returns at once.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`](crate::Error::InvalidArgument): a peer that does not exist, or a
    /// rank that sends to itself what it does not receive; [`Error::InUse`](crate::Error::InUse):
    /// something else uses a buffer, for example another transfer of this group; any failure of the
    /// communicator.
    pub fn start(self) -> Result<Operation> {
        self.communicator.start_and_overlap(&self.call()?)
    }

    /// Starts all transfers and waits until all have ended. Errors: as [`Group::start`].
    pub fn run(self) -> Result<()> {
        self.communicator.run(&self.call()?)
    }

    fn call(&self) -> Result<Call<'_>> {
        Ok(Call {
            borrows: true,
            timeout: self.timeout.map(checked_timeout).transpose()?,
            ..Call::send_recv(&self.transfers)
        })
    }
}
