//! [`Communicator`]: a group of ranks, what it is made of, and how it ends.

use super::buffer::Buffer;
use super::driving::Driving;
use super::progress::ProgressChoice;
use super::ranges::Ranges;
use super::raw::RawBuffer;
use crate::config::Config;
use crate::error::{Error, Result};
use crate::memory::{Element, ProcessOwned, Region};
use crate::types::Rank;
use crate::wait::Clock;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

/// Between two looks whether this rank may leave: first and last.
const PAUSE_MIN: Duration = Duration::from_micros(20);
const PAUSE_MAX: Duration = Duration::from_millis(5);

/// A group of ranks that run collectives together. Cheap to clone; `Send + Sync`.
///
/// Operations that were started make progress by a thread, or while some thread of the process is
/// inside a call on any communicator that was made from this one, or that this one was made from:
/// see [`Config::progress`]. The first failure ends the communicator on all ranks: every operation
/// returns the first cause, and the ranks that live go on with [`Communicator::rebuild`]. Take new
/// registered memory then, too: a peer that was stopped in the middle of a store may still write
/// into what it had been given.
///
/// A rank whose operations have ended may drop its communicator at any time: it leaves, and that is
/// no failure. What it has sent counts, and the drop of the last handle (operations are handles
/// too) waits, at most [`Config::timeout`], until nothing of it needs this process any more:
/// usually not at all, and never after a failure or for a peer that is gone. Operations of the
/// others that do not need it go on; one that does fails with [`Error::Left`], as does every
/// collective that they start later.
#[derive(Clone)]
pub struct Communicator {
    pub(super) inner: Arc<Inner>,
}

/// What all handles of a communicator share.
pub(super) struct Inner {
    /// The engine and all that moves it.
    pub driving: ProcessOwned<Arc<Driving>>,
    pub clock: Clock,
    pub config: Config,
    /// The registered buffers of this communicator and those that it was made from or that were
    /// made from it.
    pub ranges: Arc<Ranges>,
    /// Names it among the communicators of its hosts, equally on all ranks.
    pub identity: u64,
    /// Where its ranks are reached; none where all share memory.
    pub places: Vec<IpAddr>,
    pub rank: Rank,
    pub ranks: u32,
    pub transport: &'static str,
    pub is_size_only: bool,
    pub is_shared: bool,
    pub progress: ProgressChoice,
}

impl Communicator {
    /// The engine and the plans: the one way to them. An error in a forked child.
    #[inline]
    pub(super) fn driving(&self) -> Result<&Arc<Driving>> {
        self.inner.driving.get()
    }

    /// Wakes every thread of this rank that sleeps; a forked child has none of them.
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

    /// `count` zeroed elements of registered memory, which operations use where they lie. Its pages
    /// are there when this returns, from the memory next to the calling thread's core, huge ones
    /// where [`Config::huge_pages`] says so. Not collective.
    ///
    /// Errors: [`Error::Exhausted`] if there is not as much memory, naming the limit; nothing has
    /// been touched then.
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
        let mut engine = driving.engine();
        driving.collect_garbage(&mut engine);
        let key = engine.register(region.clone())?;
        drop(engine);
        Ok(RawBuffer::registered(
            region,
            key,
            driving.garbage.clone(),
            &self.inner.ranges,
        ))
    }

    /// Gives the communicator up on all ranks: threads that wait on it, here and elsewhere, return
    /// [`Error::Aborted`] with this rank and the reason, and so does every later call. From any
    /// thread. If it has failed already, the first cause stays. Communicators that were split off
    /// from it, or that it was split off from, go on.
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

    /// The collective end: returns when all ranks have called it, so that none leaves while another
    /// still needs it. Other handles of this communicator are used no more; their drops wait for
    /// nothing.
    ///
    /// ```
    /// use linerate::{Communicator, Config};
    /// let communicator = Communicator::join(0, 1, "a job that ends", Config::default())?;
    /// communicator.finalize()?;
    /// # Ok::<(), linerate::Error>(())
    /// ```
    ///
    /// # Errors
    /// Those of a barrier: [`Error::Left`] if a rank has dropped its communicator without it, and
    /// whatever has failed the communicator.
    pub fn finalize(self) -> Result<()> {
        self.barrier()
    }

    /// The first cause, if it has failed. Looks for news of the other ranks, and waits for nothing.
    pub fn failure(&self) -> Option<Error> {
        let driving = match self.driving() {
            Ok(driving) => driving,
            Err(forked) => return Some(forked),
        };
        let mut engine = driving.engine();
        engine.drive(driving.clock.now());
        engine.failure().cloned()
    }

    /// What its transport has done so far, by name: connections lost and replaced, for example.
    /// Empty where nothing is counted.
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
    /// Leaves in good order: waits, at most the timeout, until nothing that this rank has sent
    /// needs it. A simulated rank's network takes what is on its way along, and no rank waits for
    /// peers while a panic ends its thread. In a forked child everything is the parent's.
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
        // Threads that sleep on another member of the family hold this one; they let go when they
        // wake.
        driving.ring();
    }
}
