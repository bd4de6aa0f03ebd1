//! What users hold: [`Communicator`], [`Buffer`], [`Operation`], [`Group`], and [`Simulation`] for
//! ranks in virtual time.
//!
//! Communicators come from a job (`mod.rs`), from another one (`split.rs`), or from the survivors
//! of one that failed (`rebuild/`). `family.rs` says why a wait on one moves the others.
//!
//! A method makes a `Call` (`collectives.rs`, `started.rs`, `builder.rs`); `bind.rs` finds its
//! schedule and memory, and `shared.rs` runs it.

mod adopt;
mod alarm;
mod attended;
mod bind;
mod buffer;
mod builder;
mod call;
#[cfg(test)]
mod check_tests;
mod collectives;
mod connect;
mod driving;
mod family;
mod fetching;
#[cfg(test)]
mod fork_tests;
mod fusion;
mod gather;
mod group;
mod host;
mod inside;
mod lend;
mod operation;
#[cfg(test)]
mod overflow_tests;
mod partial;
mod plans;
mod prices;
mod progress;
mod ranges;
mod raw;
mod rebuild;
mod repeats;
mod shape;
mod shared;
mod simulation;
mod sparse;
mod split;
mod started;

pub use buffer::Buffer;
pub use builder::CollectiveBuilder;
pub use fusion::{FlushReport, Fusion, StepReport};
pub use group::Group;
pub use host::last_level_cache_bytes;
pub use lend::{Input, Lend, Output};
pub use operation::Operation;
pub use partial::{PartialAllreduce, PartialFusion, PartialFusionOptions};
pub use plans::{Explanation, Path};
pub use prices::host as price_host;
pub use simulation::Simulation;
pub use sparse::{SparseAllreduce, SparseResult, StepTimes};

use crate::bootstrap::{self, Meeting, Place};
use crate::config::{Config, Progress};
use crate::engine::{Clock, Engine};
use crate::error::{Error, Result};
use crate::memory::{Element, ProcessMark, ProcessOwned, Region};
use crate::types::Rank;
use call::{Call, Transfer};
use connect::Common;
use family::Family;
use plans::Plans;
use progress::ProgressThread;
use raw::RawBuffer;
use shared::Shared;
use std::io::Write;
use std::net::IpAddr;
use std::sync::Arc;

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
    inner: Arc<Inner>,
}

struct Inner {
    /// The engine and all that moves it.
    shared: ProcessOwned<Arc<Shared>>,
    clock: Clock,
    config: Config,
    /// Names it among the communicators of its hosts, equally on all ranks.
    identity: u64,
    /// Where its ranks are reached; none where all share memory.
    places: Vec<IpAddr>,
    rank: Rank,
    ranks: u32,
    transport: &'static str,
    is_size_only: bool,
    is_shared: bool,
    progress: ProgressThread,
}

impl Communicator {
    /// Joins the job that the environment describes, as torchrun, `linerate launch`, mpirun (Open
    /// MPI, MPICH) and srun set it: see [`bootstrap::place_from_env`]. One rank where none of them
    /// has started this process. Settings are those of the environment ([`Config::from_env`]).
    pub fn from_env() -> Result<Communicator> {
        Communicator::from_env_with(Config::from_env()?)
    }

    /// As [`Communicator::from_env`], with these settings instead of those of the environment.
    pub fn from_env_with(config: Config) -> Result<Communicator> {
        let place = bootstrap::place_from_env(|name| std::env::var(name).ok())?;
        Communicator::join_at(&place, config)
    }

    /// Joins a job by name; every rank names the same `job` and `ranks`. `tcp://host:port` (a free
    /// port of rank 0's host) and `file://folder` (one that all ranks see) say where ranks of
    /// several hosts meet; any other name is one of a job on this host. Waits until all have come,
    /// at most the configured timeout.
    pub fn join(rank: Rank, ranks: u32, job: &str, config: Config) -> Result<Communicator> {
        Communicator::join_at(&Place::named(rank, ranks, job)?, config)
    }

    /// Joins a job at this place.
    pub fn join_at(place: &Place, config: Config) -> Result<Communicator> {
        config.check()?;
        let clock = Clock::monotonic();
        let (rank, ranks) = (place.rank, place.ranks);
        let (config, why_fetching) = fetching::settle(config, ranks, &clock);
        let meeting = Meeting::go_to(place, &config, &clock)?;
        let config = meeting.settle(config)?;
        let (mut engine, blob) = match connect::open(rank, ranks, &config) {
            Ok(opened) => opened,
            // The others need not wait for this rank.
            Err(error) => return Err(meeting.decline(error, &clock)),
        };
        let contacts = meeting.exchange(blob, &clock)?;
        let common = connect::connect(&mut engine, &contacts, &clock, || {})?;
        let hosts = common.hosts.clone();
        let communicator = connect::finish(engine, clock, hosts, Arc::default(), &common)?;
        if config.debug {
            communicator.say_what_was_chosen(&config, &common, &why_fetching);
        }
        Ok(communicator)
    }

    fn say_what_was_chosen(&self, config: &Config, common: &Common, why_fetching: &str) {
        let (rank, ranks) = (self.rank(), self.ranks());
        let progress = match config.progress {
            Progress::Auto if self.inner.progress.has_cores() => "a thread (auto)",
            Progress::Auto => "calls (auto)",
            Progress::Thread => "a thread",
            Progress::Inline => "calls",
        };
        let hosts = match common.hosts.iter().max().map_or(1, |most| most + 1) {
            1 => "all ranks are on this host".into(),
            count => format!("the ranks are on {count} hosts"),
        };
        say(&format!(
            "rank {rank} of {ranks}: transport {} (asked for {}; {hosts}), progress by {progress}, \
             chunks of {} B, windows of {} B, large copies and reductions by {} threads, timeout {:?}{}",
            self.transport(),
            config.transport,
            config.chunk_bytes,
            config.window_bytes,
            host::share_of_host(config, ranks as usize).threads_max,
            config.timeout,
            match (config.tcp.has_tls, self.transport()) {
                (true, "tcp" | "router") => "; connections are encrypted with TLS 1.3",
                _ => "",
            }
        ));
        let Ok(shared) = self.shared() else {
            return;
        };
        let readers = fetching::readers(shared.engine().transport(), rank, ranks);
        say(&format!(
            "rank {rank}: messages of memory that is not registered are {}",
            fetching::describe(config.cma, &readers, ranks, why_fetching)
        ));
    }

    fn assemble(
        (mut engine, clock, process, family): (Engine, Clock, ProcessMark, Arc<Family>),
        hosts: Vec<u32>,
        is_size_only: bool,
        common: &Common,
    ) -> Communicator {
        let capabilities = engine.transport().capabilities().clone();
        let (rank, ranks) = (engine.rank(), engine.ranks());
        let config = engine.config().clone();
        let is_mapped = capabilities.mapped && hosts.iter().all(|&host| host == hosts[0]);
        let local_ranks = hosts
            .iter()
            .filter(|&&host| host == hosts[rank as usize])
            .count();
        let mut plans = Plans::new(rank, hosts, is_mapped, &config);
        let readers = fetching::readers(engine.transport(), rank, ranks);
        plans.is_fetched = ranks > 1 && readers.len() as u32 == ranks - 1;
        if let Some(models) = &common.models {
            plans.use_models(models, common.cores.count());
            plans.threads = host::share_of_host(&config, local_ranks).threads_max as u32;
        }
        let places = (local_ranks, common.cores.count());
        let progress = ProgressThread::new(config.progress, places.1 > places.0);
        let shared = Shared::new(engine, clock.clone(), process, plans, (places, family));
        let inner = Inner {
            shared: ProcessOwned::new(process, shared),
            clock,
            config,
            identity: common.identity,
            places: common.places.clone(),
            rank,
            ranks,
            transport: capabilities.name,
            is_size_only,
            is_shared: capabilities.shared_regions,
            progress,
        };
        Communicator {
            inner: Arc::new(inner),
        }
    }

    /// The engine, the plans and the family: the one way to them. An error in a forked child.
    #[inline]
    fn shared(&self) -> Result<&Arc<Shared>> {
        self.inner.shared.get()
    }

    /// Wakes every thread of this rank that sleeps; a forked child has none of them.
    fn ring(&self) {
        if let Ok(shared) = self.shared() {
            shared.ring();
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
        let shared = self.shared()?;
        let region = Arc::new(if self.inner.is_size_only {
            Region::size_only(bytes)
        } else if self.inner.is_shared {
            Region::shared("linerate-buffer", bytes)?
        } else {
            Region::private(bytes)?
        });
        region.populate(self.inner.config.huge_pages);
        let mut engine = shared.engine();
        shared.collect_garbage(&mut engine);
        let key = engine.register(region.clone())?;
        drop(engine);
        Ok(RawBuffer::registered(
            region,
            key,
            shared.garbage.clone(),
            &shared.family().ranges,
        ))
    }

    /// Starts an operation and returns at once. Collectives start in the same order on all ranks,
    /// groups of sends and receives in matching order between each pair; any number may be under
    /// way.
    ///
    /// Errors: arguments that do not fit (nothing has been started), or a communicator that has
    /// failed.
    fn start(&self, call: &Call<'_>) -> Result<Operation> {
        let shared = self.shared()?;
        let task = at_home(shared, call, |call| shared.start(call))?;
        Ok(Operation::new(self.clone(), task))
    }

    /// Starts an operation of a user, who may compute now: it goes on as [`Config::progress`] says.
    fn start_and_overlap(&self, call: &Call<'_>) -> Result<Operation> {
        let shared = self.shared()?;
        if !self.inner.progress.settle(shared)? && self.inner.config.debug {
            say(&format!(
                "rank {}: operations advance inside calls only, because the host has no more cores than ranks or \
                 LINERATE_PROGRESS is inline (thread overlaps all the same)",
                self.rank()
            ));
        }
        self.start(call)
    }

    /// Starts and waits; faster than both where the other ranks are there and nothing else is under
    /// way.
    #[inline]
    fn run(&self, call: &Call<'_>) -> Result<()> {
        let shared = self.shared()?;
        at_home(shared, call, |call| shared.run(call))
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
        if let Ok(shared) = self.shared() {
            shared.engine().abort(reason);
            shared.ring();
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
        let shared = match self.shared() {
            Ok(shared) => shared,
            Err(forked) => return Some(forked),
        };
        let mut engine = shared.engine();
        engine.drive(shared.clock.now());
        engine.failure().cloned()
    }

    /// What its transport has done so far, by name: connections lost and replaced, for example.
    /// Empty where nothing is counted.
    pub fn transport_counts(&self) -> Vec<(&'static str, u64)> {
        match self.shared() {
            Ok(shared) => shared.engine().transport().counts(),
            Err(_) => Vec::new(),
        }
    }

    /// What a call would run.
    fn explain(&self, call: &Call<'_>) -> Result<Explanation> {
        let shared = self.shared()?;
        let is_registered = |buffer: &RawBuffer| buffer.len_bytes() == 0 || buffer.is_registered();
        let mut buffers = call.input.into_iter().chain(call.output);
        let plans = shared.plans();
        plans.explain_call(call, buffers.all(is_registered))
    }
}

/// Buffers of a call with the registrations of the communicator that runs it.
struct OwnBuffers {
    input: Option<RawBuffer>,
    output: Option<RawBuffer>,
    transfers: Vec<Transfer>,
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
    fn drop(&mut self) {
        let Ok(shared) = self.shared.get() else {
            return self.progress.leave_to_parent();
        };
        self.progress.end(shared);
        // Threads that sleep on another member of the family hold this one; they let go when they
        // wake.
        shared.ring();
    }
}

/// This communicator's registrations of a call's buffers, where they have been allocated from
/// another one.
fn own_registrations(shared: &Shared, call: &Call<'_>) -> Result<Option<OwnBuffers>> {
    let is_home = |buffer: &RawBuffer| buffer.is_at_home(&shared.garbage);
    let mut all = call.input.into_iter().chain(call.output);
    if all.all(is_home) && call.transfers.iter().all(|t| is_home(&t.buffer)) {
        return Ok(None);
    }
    let moved = |buffer: &RawBuffer| match is_home(buffer) {
        true => Ok(buffer.clone()),
        false => buffer.moved_to(&shared.garbage, |region| {
            let mut engine = shared.engine();
            shared.collect_garbage(&mut engine);
            engine.register(region)
        }),
    };
    let transfers = call.transfers.iter().map(|transfer| {
        Ok(Transfer {
            buffer: moved(&transfer.buffer)?,
            ..transfer.clone()
        })
    });
    Ok(Some(OwnBuffers {
        input: call.input.map(moved).transpose()?,
        output: call.output.map(moved).transpose()?,
        transfers: transfers.collect::<Result<_>>()?,
    }))
}

/// Runs `then` with the call on buffers that have this communicator's registrations.
#[inline]
fn at_home<R>(
    shared: &Shared,
    call: &Call<'_>,
    then: impl FnOnce(&Call<'_>) -> Result<R>,
) -> Result<R> {
    match own_registrations(shared, call)? {
        None => then(call),
        Some(own) => then(&Call {
            input: own.input.as_ref(),
            output: own.output.as_ref(),
            transfers: &own.transfers,
            ..*call
        }),
    }
}

/// A line for people, whole even when several ranks share the terminal.
fn say(text: &str) {
    // Nobody can be told that standard error is closed.
    let _ = std::io::stderr().write_all(format!("linerate: {text}\n").as_bytes());
}
