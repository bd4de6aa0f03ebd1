//! What users hold: [`Communicator`], [`Buffer`], [`Call`], [`Operation`], and [`Simulation`] for ranks in
//! virtual time.
//!
//! Read first: [`Communicator::start`].

mod bind;
mod buffer;
mod call;
mod fusion;
mod operation;
mod plans;
mod prices;
mod repeats;
mod shared;
mod simulation;

pub use buffer::Buffer;
pub use call::{Call, Transfer};
pub use fusion::{FlushReport, Fusion, StepReport};
pub use operation::Operation;
pub use plans::{Explanation, Path};
pub use prices::host as price_host;
pub use simulation::Simulation;

use crate::bootstrap::{self, Cores, Introduction};
use crate::config::Config;
use crate::cost::{self, Models};
use crate::engine::{Clock, Contact, Engine};
use crate::error::{Error, Result};
use crate::memory::{Element, Region, lend_slice};
use crate::transport;
use crate::types::{Collective, Rank, ReduceOp};
use plans::Plans;
use shared::Shared;
use std::io::Write;
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

/// A group of ranks that run collectives together. Cheap to clone; `Send + Sync`.
///
/// Operations make progress while some thread of the process is inside a call (or always, with
/// [`Config::progress_thread`]). The first failure ends the communicator on all ranks: every operation
/// returns the first cause, and a new communicator has to be made.
#[derive(Clone)]
pub struct Communicator {
    inner: Arc<Inner>,
}

struct Inner {
    shared: Arc<Shared>,
    rank: Rank,
    ranks: u32,
    transport: &'static str,
    is_size_only: bool,
    is_mapped: bool,
    progress: Mutex<Option<JoinHandle<()>>>,
}

impl Communicator {
    /// Joins the job that the environment describes: `RANK`, `WORLD_SIZE` and `LINERATE_JOB` or `MASTER_ADDR` and
    /// `MASTER_PORT`, as `linerate launch` and torchrun set them; one rank if `WORLD_SIZE` is not set.
    pub fn from_env(config: Config) -> Result<Communicator> {
        let place = bootstrap::place_from_env(|name| std::env::var(name).ok())?;
        Communicator::join(place.rank, place.ranks, &place.job, config)
    }

    /// Joins a job on this host by name; every rank names the same `job` and `ranks`. Waits until all have come, at
    /// most the configured timeout.
    pub fn join(rank: Rank, ranks: u32, job: &str, config: Config) -> Result<Communicator> {
        let clock = Clock::monotonic();
        let provider = transport::open(&config.transport, rank, ranks, bootstrap::nonce()?)?;
        let mut engine = Engine::new(provider, rank, ranks, config.clone(), false)?;
        let cores = Cores::own();
        let (prices, complaint) = match rank {
            0 => prices::read_prices(&config.prices),
            _ => (Models::BUILT_IN, None),
        };
        if let Some(text) = complaint {
            say(&text);
        }
        let contact = bootstrap::emit_contact(&engine.contact());
        let blob = cores.emit(&[cost::emit_bytes(&prices), contact].concat());
        let own = Introduction {
            rank,
            ranks,
            fingerprint: config.shared_fingerprint(),
            blob,
        };
        let blobs = bootstrap::exchange(&own, job, config.timeout, &clock)?;
        let mut cores = cores;
        let mut prices = Vec::with_capacity(blobs.len());
        let mut contacts: Vec<Contact> = Vec::with_capacity(blobs.len());
        for blob in &blobs {
            let (of_rank, rest) = Cores::parse(blob)?;
            cores = cores.union(of_rank);
            let (of_rank, contact) = cost::parse_bytes(rest)?;
            prices.push(of_rank);
            contacts.push(bootstrap::parse_contact(contact)?);
        }
        engine.connect(contacts)?;
        let deadline = clock.now().after(config.timeout);
        while !engine.poll_connect(clock.now())? {
            if clock.now() > deadline {
                return Err(Error::Bootstrap(format!(
                    "rank {rank} could not connect to all ranks in {:?}",
                    config.timeout
                )));
            }
            std::thread::sleep(Duration::from_micros(200));
        }
        let communicator =
            Communicator::assemble(engine, clock, vec![0; ranks as usize], cores, false);
        // All ranks must choose alike, so rank 0's prices are everyone's.
        let mut plans = communicator.inner.shared.plans();
        plans.use_models(&prices[0], cores.count());
        drop(plans);
        if config.debug {
            let progress = if config.progress_thread {
                "a thread"
            } else {
                "calls"
            };
            say(&format!(
                "rank {rank} of {ranks}: transport {} (asked for {}; all ranks are on this host), progress by {progress}, \
                 chunks of {} B, windows of {} B, timeout {:?}",
                communicator.transport(),
                config.transport,
                config.chunk_bytes,
                config.window_bytes,
                config.timeout
            ));
        }
        if config.progress_thread {
            communicator.start_progress_thread()?;
        }
        Ok(communicator)
    }

    fn assemble(
        mut engine: Engine,
        clock: Clock,
        hosts: Vec<u32>,
        cores: Cores,
        is_size_only: bool,
    ) -> Communicator {
        let capabilities = engine.transport().capabilities().clone();
        let (rank, ranks) = (engine.rank(), engine.ranks());
        let config = engine.config();
        let is_mapped = capabilities.mapped && hosts.iter().all(|&host| host == hosts[0]);
        let local_ranks = hosts
            .iter()
            .filter(|&&host| host == hosts[rank as usize])
            .count();
        let plans = Plans::new(rank, hosts, is_mapped, config);
        let shared = Arc::new(Shared::new(
            engine,
            clock,
            plans,
            (local_ranks, cores.count()),
        ));
        let inner = Inner {
            shared,
            rank,
            ranks,
            transport: capabilities.name,
            is_size_only,
            is_mapped: capabilities.store_signals,
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

    /// Zeroed registered memory that collectives use without staging.
    pub fn alloc(&self, bytes: usize) -> Result<Buffer> {
        let region = Arc::new(if self.inner.is_size_only {
            Region::size_only(bytes)
        } else if self.inner.is_mapped {
            Region::shared("linerate-buffer", bytes)?
        } else {
            Region::private(bytes)?
        });
        let mut engine = self.inner.shared.engine();
        self.inner.shared.collect_garbage(&mut engine);
        let key = engine.register(region.clone())?;
        drop(engine);
        Ok(Buffer::registered(
            region,
            key,
            self.inner.shared.garbage.clone(),
        ))
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
        let mut plans = shared.plans();
        let bound = bind::bind(call, &mut plans, self.inner.rank, self.inner.ranks)?;
        let task = shared
            .engine()
            .submit(bound.keep(call), shared.clock.now())?;
        Ok(Operation::new(shared.clone(), task))
    }

    /// Starts and waits; faster than [`Communicator::start`] and [`Operation::wait`] where the other ranks are there
    /// and nothing else is under way.
    pub fn run(&self, call: &Call) -> Result<()> {
        let (rank, ranks) = (self.inner.rank, self.inner.ranks);
        let shared = &self.inner.shared;
        shared.run(call, |plans| bind::bind(call, plans, rank, ranks))
    }

    /// Nobody returns before all have called.
    pub fn barrier(&self) -> Result<()> {
        self.run(&Call::barrier())
    }

    /// Reduces a slice of the caller's memory in place, and waits.
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
        lend_slice(data, |view| {
            shared.run(&call, |plans| bind::bind_view(&call, plans, view))
        })
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

impl Drop for Inner {
    fn drop(&mut self) {
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
    }
}

/// A line for people, whole even when several ranks share the terminal.
fn say(text: &str) {
    // Nobody can be told that standard error is closed.
    let _ = std::io::stderr().write_all(format!("linerate: {text}\n").as_bytes());
}
