//! [`Communicator`]: a group of ranks, what its handles share, and how a rank leaves it.

use super::buffer::Buffer;
use super::driving::Driving;
use super::progress::ProgressChoice;
use super::ranges::Ranges;
use super::raw::{RawBuffer, Staging};
use crate::config::{Config, checked_timeout};
use crate::error::{Error, Result};
use crate::memory::{Element, ProcessOwned, Region};
use crate::types::Rank;
use crate::wait::Clock;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

/// Pauses between two checks whether this rank may leave: the first one and the longest.
const PAUSE_MIN: Duration = Duration::from_micros(20);
const PAUSE_MAX: Duration = Duration::from_millis(5);

/// A group of ranks that run collectives together. It is cheap to clone, `Send` and `Sync`.
///
/// Operations that were started advance by a progress thread, or while a thread of the process is
/// inside a call: on this communicator, on one that it was made from, or on one that was made from
/// it. See [`Config::progress`].
///
/// The first failure ends the communicator on all ranks: every operation returns the first cause.
/// The surviving ranks go on with [`Communicator::rebuild`]. They should then allocate registered
/// memory anew: a peer that was stopped in the middle of a store may still write into the old
/// memory.
///
/// A rank whose operations have ended may drop its communicator at any time. That it leaves is no
/// failure, and what it has sent still counts. Dropping the last handle (operations are handles
/// too) waits until the peers need nothing of this process any more, at most [`Config::timeout`].
/// Usually that takes no time; after a failure, or for a peer that is gone, the drop does not wait.
/// Operations of other ranks go on if they do not need the rank that has left. An operation that
/// needs it fails with [`Error::Left`], and so does every collective that is started later.
#[derive(Clone)]
pub struct Communicator {
    pub(super) inner: Arc<Inner>,
}

/// What all handles of a communicator share.
pub(super) struct Inner {
    /// The engine, and how threads drive it and wait on it.
    pub driving: ProcessOwned<Arc<Driving>>,
    pub clock: Clock,
    pub config: Config,
    /// The registered buffers of this communicator, of those that it was made from, and of those
    /// that were made from it.
    pub ranges: Arc<Ranges>,
    /// Names this communicator among those of its hosts; equal on all ranks.
    pub identity: u64,
    /// The address of each rank; empty if all ranks share memory.
    pub places: Vec<IpAddr>,
    pub rank: Rank,
    pub ranks: u32,
    pub transport: &'static str,
    /// The transport joins ranks of one host only.
    pub is_one_host: bool,
    pub is_size_only: bool,
    /// [`Capabilities::cached_bytes_max`](crate::transport::Capabilities::cached_bytes_max).
    pub cached_bytes_max: u64,
    pub is_shared: bool,
    pub progress: ProgressChoice,
    /// Memory of earlier batches.
    pub staging: Staging,
}

impl Communicator {
    /// The engine and the plans. Everything reaches them through this method, which returns an
    /// error in a forked child.
    #[inline]
    pub(super) fn driving(&self) -> Result<&Arc<Driving>> {
        self.inner.driving.get()
    }

    /// Wakes every sleeping thread of this rank. Does nothing in a forked child, which has no such
    /// threads.
    pub(super) fn ring(&self) {
        if let Ok(driving) = self.driving() {
            driving.ring();
        }
    }

    /// This rank.
    pub fn rank(&self) -> Rank {
        self.inner.rank
    }

    /// Number of ranks.
    pub fn ranks(&self) -> u32 {
        self.inner.ranks
    }

    /// Name of the transport in use.
    pub fn transport(&self) -> &'static str {
        self.inner.transport
    }

    /// Allocates `count` zeroed elements of registered memory, which operations use where they lie.
    /// When this returns, all pages are there, from the memory nearest to the core of the calling
    /// thread, and huge ones if [`Config::huge_pages`] asks for them. Not collective.
    ///
    /// # Errors
    /// [`Error::Exhausted`], which names the limit, if there is not enough memory; then nothing has
    /// been allocated. [`Error::InvalidArgument`]: the elements do not fit an address space;
    /// [`Error::Forked`].
    pub fn alloc<T: Element>(&self, count: usize) -> Result<Buffer<T>> {
        let bytes = count.checked_mul(size_of::<T>()).ok_or_else(|| {
            Error::invalid(format!(
                "{count} elements of {} do not fit an address space",
                T::DTYPE
            ))
        })?;
        Ok(Buffer::of(self.alloc_raw(bytes)?))
    }

    pub(crate) fn alloc_raw(&self, bytes: usize) -> Result<RawBuffer> {
        let driving = self.driving()?;
        let region = Arc::new(if self.inner.is_size_only {
            Region::size_only(bytes)
        } else if self.inner.is_shared {
            Region::shared("linerate-buffer", bytes)?
        } else {
            Region::private(bytes)?
        });
        region.populate(self.inner.config.huge_pages);
        let key = driving.register(region.clone())?;
        Ok(RawBuffer::registered(
            region,
            (key, driving.garbage.clone()),
            &self.inner.ranges,
        ))
    }

    /// Sets how long an operation of this communicator may make no progress before the communicator
    /// fails on all ranks, with an error that names the missing ranks. It also holds for operations
    /// under way. Until it is set, the value is [`Config::timeout`]; rebuilding and leaving always
    /// go by that one. Any thread may call it; each rank goes by its own value.
    ///
    /// ```
    /// use linerate::{Communicator, Config};
    /// use std::time::Duration;
    /// let communicator = Communicator::join(0, 1, "a job in a hurry", Config::default())?;
    /// communicator.set_timeout(Duration::from_secs(5))?;
    /// communicator.barrier()?;
    /// # Ok::<(), linerate::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::InvalidArgument`]: zero, or more than three decades; [`Error::Forked`].
    pub fn set_timeout(&self, timeout: Duration) -> Result<()> {
        let timeout = checked_timeout(timeout)?;
        self.driving()?.engine().set_timeout(timeout);
        Ok(())
    }

    /// Fails the communicator on all ranks. Threads that wait on it, on this rank and on others,
    /// return [`Error::Aborted`] with this rank and the reason, and so does every later call. Any
    /// thread may call it. If the communicator has failed already, the first cause stays.
    /// Communicators that it was split off from, or that were split off from it, go on.
    ///
    /// ```
    /// use linerate::{Communicator, Config, Error};
    /// let communicator = Communicator::join(0, 1, "a job to abort", Config::default())?;
    /// communicator.abort("the loss is not a number");
    /// let error = communicator.barrier().unwrap_err();
    /// assert!(matches!(error.first_cause(), Error::Aborted { by: 0, .. }));
    /// # Ok::<(), linerate::Error>(())
    /// ```
    pub fn abort(&self, reason: &str) {
        if let Ok(driving) = self.driving() {
            driving.engine().abort(reason);
            driving.ring();
        }
    }

    /// Ends the communicator collectively: it returns when all ranks have called it, so that no
    /// rank leaves while another still needs it. Do not use other handles of this communicator
    /// afterwards; dropping them does not wait.
    ///
    /// ```
    /// use linerate::{Communicator, Config};
    /// let communicator = Communicator::join(0, 1, "a job that ends", Config::default())?;
    /// communicator.finalize()?;
    /// # Ok::<(), linerate::Error>(())
    /// ```
    ///
    /// # Errors
    /// Those of a barrier: [`Error::Left`] if a rank has dropped its communicator without calling
    /// it, or the failure of the communicator.
    pub fn finalize(self) -> Result<()> {
        self.barrier()
    }

    /// Bytes of collectives and groups of transfers so far, on this rank, that were not in
    /// registered memory. Shared memory and verbs stage these, or let peers fetch them through the
    /// kernel; registered ones are used where they lie. TCP treats both alike.
    ///
    /// ```
    /// use linerate::{Communicator, Config, ReduceOp};
    /// let comm = Communicator::join(0, 1, "a job that counts", Config::default())?;
    /// comm.all_reduce(&comm.alloc::<f32>(10)?, ReduceOp::Sum)?;
    /// assert_eq!(comm.unregistered_bytes()?, 0);
    /// comm.all_reduce(&mut [0f32; 10][..], ReduceOp::Sum)?;
    /// assert_eq!(comm.unregistered_bytes()?, 40);
    /// # Ok::<(), linerate::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::Forked`].
    pub fn unregistered_bytes(&self) -> Result<u64> {
        Ok(self.driving()?.engine().unregistered_bytes)
    }

    /// The first cause if the communicator has failed. Looks for news of the other ranks without
    /// waiting.
    pub fn failure(&self) -> Option<Error> {
        let driving = match self.driving() {
            Ok(driving) => driving,
            Err(forked) => return Some(forked),
        };
        let mut engine = driving.engine();
        engine.drive(driving.clock.now());
        engine.failure().cloned()
    }

    /// Counters of the transport by name, such as connections lost and replaced. Empty if the
    /// transport counts nothing.
    pub fn transport_counts(&self) -> Vec<(&'static str, u64)> {
        match self.driving() {
            Ok(driving) => driving.engine().transport().counts(),
            Err(_) => Vec::new(),
        }
    }
}

impl std::fmt::Debug for Communicator {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Communicator")
            .field("rank", &self.inner.rank)
            .field("ranks", &self.inner.ranks)
            .field("transport", &self.inner.transport)
            .finish_non_exhaustive()
    }
}

impl Drop for Inner {
    /// Leaves in good order: waits, at most for the timeout, until no peer needs this rank for what
    /// it has sent. A simulated rank does not wait, because its network delivers what is on the
    /// way. A thread that panics does not wait either. In a forked child nothing happens: all of it
    /// belongs to the parent.
    fn drop(&mut self) {
        let Ok(driving) = self.driving.get() else {
            return;
        };
        driving.family().leave(&**driving);
        let start = self.clock.now();
        let mut pause = PAUSE_MIN;
        while !driving.engine().leave(self.clock.now()) {
            let is_over = self.clock.now().since(start) >= self.config.timeout;
            if is_over || self.clock.is_virtual() || std::thread::panicking() {
                break;
            }
            std::thread::sleep(pause);
            pause = (2 * pause).min(PAUSE_MAX);
        }
        // A thread that sleeps on another member of the family may hold a share of this `Driving`;
        // it drops the share when it wakes.
        driving.ring();
    }
}
