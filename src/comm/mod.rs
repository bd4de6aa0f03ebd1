//! What users hold: [`Communicator`], [`Buffer`], [`Call`], [`Operation`], [`Group`], and [`Simulation`] for ranks in
//! virtual time.
//!
//! Communicators come from a job (`mod.rs`), from another one (`split.rs`), or from the survivors of one that failed
//! (`rebuild/`). `family.rs` says why a wait on one moves the others.
//!
//! Read first: [`Communicator::start`].

mod alarm;
mod attended;
mod bind;
mod buffer;
mod call;
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
mod operation;
mod partial;
mod plans;
mod prices;
mod ranges;
mod rebuild;
mod repeats;
mod shared;
mod simulation;
mod sparse;
mod split;

pub use buffer::Buffer;
pub use call::{Call, Transfer};
pub use fusion::{FlushReport, Fusion, StepReport};
pub use group::Group;
pub use host::last_level_cache_bytes;
pub use operation::Operation;
pub use partial::{PartialAllreduce, PartialFusion, PartialFusionOptions};
pub use plans::{Explanation, Path};
pub use prices::host as price_host;
pub use simulation::Simulation;
pub use sparse::{SparseAllreduce, SparseResult, StepTimes};

use crate::bootstrap::{self, Meeting, Place};
use crate::config::Config;
use crate::engine::{Clock, Engine, TaskCall};
use crate::error::{Error, Result};
use crate::memory::{Element, ProcessMark, Region, View, lend_slice};
use crate::types::{Collective, Rank, ReduceOp};
use connect::Common;
use family::Family;
use plans::Plans;
use repeats::memory_of;
use shared::Shared;
use std::borrow::Cow;
use std::io::Write;
use std::net::IpAddr;
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;

/// A group of ranks that run collectives together. Cheap to clone; `Send + Sync`.
///
/// Operations make progress while some thread of the process is inside a call (or always, with
/// [`Config::progress_thread`]): a call on any communicator that was made from this one, or that this one was made from.
/// The first failure ends the communicator on all ranks: every operation returns the first cause, and the ranks that live
/// go on with [`Communicator::rebuild`]. Take new registered memory then, too: a peer that was stopped in the middle of a
/// store may still write into what it had been given.
#[derive(Clone)]
pub struct Communicator {
    inner: Arc<Inner>,
}

struct Inner {
    shared: Arc<Shared>,
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
    progress: Mutex<Option<JoinHandle<()>>>,
}

impl Communicator {
    /// Joins the job that the environment describes, as torchrun, `linerate launch`, mpirun (Open MPI, MPICH) and srun set it:
    /// see [`bootstrap::place_from_env`]. One rank where none of them has started this process.
    pub fn from_env(config: Config) -> Result<Communicator> {
        let place = bootstrap::place_from_env(|name| std::env::var(name).ok())?;
        Communicator::join_at(&place, config)
    }

    /// Joins a job by name; every rank names the same `job` and `ranks`. `tcp://host:port` (a free port of rank 0's host) and
    /// `file://folder` (one that all ranks see) say where ranks of several hosts meet; any other name is one of a job on this
    /// host. Waits until all have come, at most the configured timeout.
    pub fn join(rank: Rank, ranks: u32, job: &str, config: Config) -> Result<Communicator> {
        Communicator::join_at(&Place::named(rank, ranks, job)?, config)
    }

    /// Joins a job at this place.
    pub fn join_at(place: &Place, config: Config) -> Result<Communicator> {
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
        let progress = match config.progress_thread {
            true => "a thread",
            false => "calls",
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
        let readers = fetching::readers(self.inner.shared.engine().transport(), rank, ranks);
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
        let shared = Shared::new(engine, clock, process, plans, (places, family));
        let inner = Inner {
            shared,
            config,
            identity: common.identity,
            places: common.places.clone(),
            rank,
            ranks,
            transport: capabilities.name,
            is_size_only,
            is_shared: capabilities.shared_regions,
            progress: Mutex::new(None),
        };
        Communicator {
            inner: Arc::new(inner),
        }
    }

    fn start_progress_thread(&self) -> Result<()> {
        let shared = self.inner.shared.clone();
        let thread = std::thread::Builder::new()
            .name("linerate-progress".into())
            .spawn(move || shared.run_progress_thread())
            .map_err(|e| Error::os("starting the progress thread", e))?;
        *self
            .inner
            .progress
            .lock()
            .unwrap_or_else(PoisonError::into_inner) = Some(thread);
        Ok(())
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

    /// Zeroed registered memory that collectives use without staging. Its pages are there when this returns, from the
    /// memory next to the calling thread's core, huge ones where [`Config::huge_pages`] says so.
    ///
    /// Errors: [`Error::Exhausted`] if there is not as much memory, naming the limit; nothing has been touched then.
    pub fn alloc(&self, bytes: usize) -> Result<Buffer> {
        self.inner.shared.process.check()?;
        let region = Arc::new(if self.inner.is_size_only {
            Region::size_only(bytes)
        } else if self.inner.is_shared {
            Region::shared("linerate-buffer", bytes)?
        } else {
            Region::private(bytes)?
        });
        region.populate(self.inner.config.huge_pages);
        let mut engine = self.inner.shared.engine();
        self.inner.shared.collect_garbage(&mut engine);
        let key = engine.register(region.clone())?;
        drop(engine);
        Ok(Buffer::registered(
            region,
            key,
            self.inner.shared.garbage.clone(),
            &self.inner.shared.family().ranges,
        ))
    }

    /// Memory that the caller keeps, named by its address, as a [`Buffer`]. Where it lies inside a registered buffer of this
    /// communicator or of one that either was made from the other, it is that part of it and is used without staging; else
    /// operations stage it. Whoever made the view has promised that the memory stays ([`View::new`]); a part of a
    /// registered buffer is also kept by the result.
    ///
    /// ```
    /// use linerate::{Communicator, Config};
    /// let communicator = Communicator::join(0, 1, "a job with memory", Config::default())?;
    /// let buffer = communicator.alloc(4096)?;
    /// let part = communicator.buffer_at(buffer.view().part(1024, 64))?;
    /// assert!(part.is_registered());
    /// # Ok::<(), linerate::Error>(())
    /// ```
    pub fn buffer_at(&self, view: View) -> Result<Buffer> {
        self.inner.shared.process.check()?;
        Ok(Buffer::at(view, &self.inner.shared.family().ranges))
    }

    /// The call with this communicator's registrations of its buffers: they may have been allocated from another one.
    fn with_own_keys<'a>(&self, call: &'a Call) -> Result<Cow<'a, Call>> {
        let shared = &self.inner.shared;
        let mut transfers = call.transfers.iter().map(|t| &t.buffer);
        let (mut input, mut output) = (call.input.iter(), call.output.iter());
        let is_home = |buffer: &Buffer| buffer.is_at_home(&shared.garbage);
        if input.all(is_home) && output.all(is_home) && transfers.all(is_home) {
            return Ok(Cow::Borrowed(call));
        }
        let mut call = call.clone();
        let transfers = call.transfers.iter_mut().map(|t| &mut t.buffer);
        for buffer in (call.input.iter_mut().chain(&mut call.output)).chain(transfers) {
            if !is_home(buffer) {
                *buffer = buffer.moved_to(&shared.garbage, |region| {
                    let mut engine = shared.engine();
                    shared.collect_garbage(&mut engine);
                    engine.register(region)
                })?;
            }
        }
        Ok(Cow::Owned(call))
    }

    /// Starts an operation and returns at once. Collectives start in the same order on all ranks, groups of sends and
    /// receives in matching order between each pair; any number may be under way. The buffers belong to the operation
    /// until it has ended.
    ///
    /// Errors: arguments that do not fit (nothing has been started), or a communicator that has failed.
    ///
    /// ```
    /// use linerate::{Call, Communicator, Config, DataType, ReduceOp};
    /// let communicator = Communicator::join(0, 1, "a job of one rank", Config::default())?;
    /// let buffer = communicator.alloc(4 * size_of::<f32>())?;
    /// buffer.write(0, &[1.0f32, 2.0, 3.0, 4.0]);
    /// let call = Call::all_reduce(DataType::F32, ReduceOp::Sum, 4, &buffer, &buffer);
    /// let mut operation = communicator.start(&call)?;
    /// while !operation.test()? {} // or compute, then `operation.wait()?`
    /// assert_eq!(buffer.to_vec::<f32>(), [1.0, 2.0, 3.0, 4.0]);
    /// # Ok::<(), linerate::Error>(())
    /// ```
    pub fn start(&self, call: &Call) -> Result<Operation> {
        let shared = &self.inner.shared;
        shared.process.check()?;
        let task_call = self.task_call(call)?;
        let task = shared.engine().submit(task_call, shared.clock.now())?;
        Ok(Operation::new(shared.clone(), task))
    }

    /// Lends this rank's part of a call that will be the next one here: see [`Engine::lend`].
    fn lend(&self, call: &Call) -> Result<bool> {
        let task_call = self.task_call(call)?;
        Ok(self.inner.shared.engine().lend(&task_call))
    }

    /// Accepts what is lent for a call that is started next: see [`Engine::accept`].
    fn accept(&self, call: &Call, has_come: impl FnMut(Rank)) -> Result<()> {
        let task_call = self.task_call(call)?;
        self.inner.shared.engine().accept(&task_call, has_come);
        Ok(())
    }

    fn task_call(&self, call: &Call) -> Result<TaskCall> {
        let call = &*self.with_own_keys(call)?;
        let mut plans = self.inner.shared.plans();
        Ok(bind::bind(call, &mut plans, self.inner.rank, self.inner.ranks)?.keep(call))
    }

    /// Starts and waits; faster than [`Communicator::start`] and [`Operation::wait`] where the other ranks are there
    /// and nothing else is under way.
    pub fn run(&self, call: &Call) -> Result<()> {
        let call = &*self.with_own_keys(call)?;
        let (rank, ranks) = (self.inner.rank, self.inner.ranks);
        let shared = &self.inner.shared;
        let memory = memory_of(call);
        shared.run(call, memory, |plans| bind::bind(call, plans, rank, ranks))
    }

    /// Nobody returns before all have called.
    pub fn barrier(&self) -> Result<()> {
        self.run(&Call::barrier())
    }

    /// Reduces a slice of the caller's memory in place, and waits. Memory inside a registered buffer is not staged.
    pub fn all_reduce<T: Element>(&self, data: &mut [T], op: ReduceOp) -> Result<()> {
        let call = Call {
            op,
            ..Call::new(Collective::AllReduce, T::DTYPE, data.len() as u64)
        };
        let shared = &self.inner.shared;
        if shared.clock.is_virtual() {
            // Nobody can wait here, and the loan must not end before the operation does.
            return Err(Error::invalid(
                "a simulated rank cannot wait inside a call on a slice: start an operation on a Buffer",
            ));
        }
        shared.process.check()?;
        lend_slice(data, |view| {
            if let Some(buffer) = Buffer::inside(view, &shared.family().ranges) {
                return self.run(&call.with(&buffer, &buffer));
            }
            let memory = [Some(&view); 2];
            shared.run(&call, memory, |plans| bind::bind_view(&call, plans, view))
        })
    }

    /// Gives the communicator up on all ranks: threads that wait on it, here and elsewhere, return
    /// [`Error::Aborted`] with this rank and the reason, and so does every later call. From any thread. If it has failed
    /// already, the first cause stays. Communicators that were split off from it, or that it was split off from, go on.
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
        let shared = &self.inner.shared;
        if !shared.process.is_forked() {
            shared.engine().abort(reason);
            shared.ring();
        }
    }

    /// The first cause, if it has failed. Looks for news of the other ranks, and waits for nothing.
    pub fn failure(&self) -> Option<Error> {
        let shared = &self.inner.shared;
        if let Err(forked) = shared.process.check() {
            return Some(forked);
        }
        let mut engine = shared.engine();
        engine.drive(shared.clock.now());
        engine.failure().cloned()
    }

    /// What its transport has done so far, by name: connections lost and replaced, for example. Empty where nothing is
    /// counted.
    pub fn transport_counts(&self) -> Vec<(&'static str, u64)> {
        match self.inner.shared.process.check() {
            Ok(()) => self.inner.shared.engine().transport().counts(),
            Err(_) => Vec::new(),
        }
    }

    /// The algorithm that runs if every rank's buffers are registered or not as those of `call` are, by name.
    pub fn algorithm_for(&self, call: &Call) -> Result<&'static str> {
        match call.collective {
            Collective::SendRecv => Ok("direct"),
            _ => Ok(self.explain(call)?.algorithm),
        }
    }

    /// What would run if every rank's buffers are registered or not as those of `call` are, why, and what the cost model says
    /// of everything that could run. Starts nothing. An error: the call cannot be planned; groups of sends and receives
    /// have no algorithms to choose from.
    pub fn explain(&self, call: &Call) -> Result<Explanation> {
        self.inner.shared.process.check()?;
        if call.collective == Collective::SendRecv {
            return Err(Error::invalid(
                "sendrecv has one algorithm, and nothing to explain",
            ));
        }
        let is_registered = |buffer: &Buffer| buffer.len_bytes() == 0 || buffer.is_registered();
        let mut buffers = call.input.iter().chain(&call.output);
        let plans = self.inner.shared.plans();
        plans.explain_call(call, buffers.all(is_registered))
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
    fn drop(&mut self) {
        if self.shared.process.is_forked() {
            // The progress thread, the sockets and whatever another thread had locked are the parent's.
            std::mem::forget(self.progress.get_mut().map(Option::take));
            return self.shared.leave_to_parent();
        }
        self.shared.stop_progress_thread();
        let thread = self
            .progress
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .take();
        if let Some(thread) = thread {
            // A panic of the progress thread has been printed; there is nobody to hand it to.
            let _ = thread.join();
        }
        // Threads that sleep on another member of the family hold this one; they let go when they wake.
        self.shared.ring();
    }
}

/// A line for people, whole even when several ranks share the terminal.
fn say(text: &str) {
    // Nobody can be told that standard error is closed.
    let _ = std::io::stderr().write_all(format!("linerate: {text}\n").as_bytes());
}
