//! [`Tagged`]: sends and receives that meet by a tag.

use super::buffer::Buffer;
use super::raw::RawBuffer;
use super::{Communicator, Operation};
use crate::config::checked_timeout;
use crate::engine::{Source, TaggedCall, Transfer};
use crate::error::{Error, Result};
use crate::memory::{Access, Element};
use crate::types::Rank;
use std::time::Duration;

/// Sends and receives with one tag. Made by [`Communicator::tagged`].
#[derive(Clone, Copy, Debug)]
#[must_use = "a tag does nothing until something is started with it"]
pub struct Tagged<'a> {
    communicator: &'a Communicator,
    tag: u32,
    timeout: Option<Duration>,
}

impl Communicator {
    /// Sends and receives that meet by a tag, like those of MPI: a receive takes a message only if
    /// their tags are equal. Each is an operation of its own, which never waits when it is started.
    ///
    /// Messages of one rank with one tag are received in the order in which their sends were
    /// started, by receives in the order in which those were started. Messages with different tags
    /// do not hold each other up. Neither do collectives and [groups](Communicator::group), which
    /// never meet a send or receive with a tag. The buffer's length is the message's length, which
    /// is equal on both sides. A rank may send to itself.
    ///
    /// Up to 48 messages from one rank to another wait for their receives; what is sent after them
    /// waits at the sender, whatever its tag.
    ///
    /// ```
    /// use linerate::{Communicator, Config};
    /// let job = format!("tags-{}", std::process::id());
    /// let run = |rank: u32| -> linerate::Result<u64> {
    ///     let comm = Communicator::join(rank, 2, &job, Config::default())?;
    ///     let (first, second) = (comm.alloc::<u64>(1)?, comm.alloc::<u64>(1)?);
    ///     if rank == 0 {
    ///         first.write(0, &[70])?;
    ///         second.write(0, &[80])?;
    ///         let sends = [comm.tagged(7).start_send(&first, 1)?, comm.tagged(8).start_send(&second, 1)?];
    ///         sends.into_iter().try_for_each(|send| send.wait())?;
    ///     } else {
    ///         let mut receive = comm.tagged(8).start_recv_any(&second)?;
    ///         while !receive.test()? {}
    ///         assert_eq!(receive.source(), Some(0));
    ///         comm.tagged(7).start_recv(&first, 0)?.wait()?;
    ///     }
    ///     Ok(first.to_vec()?[0] + second.to_vec()?[0])
    /// };
    /// let got = std::thread::scope(|scope| {
    ///     let ranks: Vec<_> = (0..2).map(|rank| scope.spawn(move || run(rank))).collect();
    ///     ranks.into_iter().map(|rank| rank.join().unwrap()).collect::<Result<Vec<_>, _>>()
    /// })?;
    /// assert_eq!(got, [150, 150]);
    /// # Ok::<(), linerate::Error>(())
    /// ```
    pub fn tagged(&self, tag: u32) -> Tagged<'_> {
        Tagged {
            communicator: self,
            tag,
            timeout: None,
        }
    }
}

impl Tagged<'_> {
    /// How long each of them may make no progress before the communicator fails, instead of the
    /// communicator's timeout ([`Communicator::set_timeout`]). Each rank goes by its own value.
    pub fn timeout(mut self, timeout: Duration) -> Self {
        self.timeout = Some(timeout);
        self
    }

    /// Starts to send all elements of `buffer` to rank `peer`, and returns at once. It borrows the
    /// buffer until it has ended; a short message may end before it is received.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`]: there is no such peer; [`Error::InUse`]: something else uses the
    /// buffer; any failure of the communicator.
    pub fn start_send<T: Element>(&self, buffer: &Buffer<T>, peer: Rank) -> Result<Operation> {
        self.start(buffer.raw(), Some(peer), true)
    }

    /// Starts to receive from rank `peer` as many elements as `buffer` has, and returns at once. It
    /// borrows the buffer until it has ended. [`Operation::cancel_receive`] ends it while no
    /// message has come. Errors: as [`Tagged::start_send`].
    pub fn start_recv<T: Element>(&self, buffer: &Buffer<T>, peer: Rank) -> Result<Operation> {
        self.start(buffer.raw(), Some(peer), false)
    }

    /// As [`Tagged::start_recv`], from the rank whose message comes first.
    /// [`Operation::source`] says which that was.
    pub fn start_recv_any<T: Element>(&self, buffer: &Buffer<T>) -> Result<Operation> {
        self.start(buffer.raw(), None, false)
    }

    fn start(&self, buffer: &RawBuffer, peer: Option<Rank>, is_send: bool) -> Result<Operation> {
        let comm = self.communicator;
        let driving = comm.driving()?;
        let ranks = comm.ranks();
        if let Some(peer) = peer.filter(|&peer| peer >= ranks) {
            return Err(Error::invalid(format!(
                "a message with tag {} names rank {peer} of {ranks}: ranks are below {ranks}",
                self.tag
            )));
        }
        let (access, by) = match is_send {
            true => (Access::Shared, "a send"),
            false => (Access::Exclusive, "a receive"),
        };
        let timeout = self.timeout.map(checked_timeout).transpose()?;
        comm.settle()?;
        let buffer = driving.registered_here(buffer)?;
        let source = (!is_send).then(Source::unknown);
        let call = TaggedCall {
            transfer: Transfer {
                tag: self.tag,
                peer,
                source: source.clone(),
            },
            buffer: buffer.view(),
            keep: Vec::from_iter(buffer.keep_all(access, by)?),
            timeout,
        };
        let now = comm.inner.clock.now();
        let task = driving.start(|inside| inside.engine.submit_tagged(call, now))?;
        Ok(Operation::new(comm, task, source))
    }
}
