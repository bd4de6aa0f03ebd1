//! What users hold: [`Communicator`], [`Buffer`], [`Call`], [`Operation`], and [`Simulation`] for ranks in
//! virtual time.
//!
//! Read first: [`Communicator::start`].

mod bind;
mod buffer;
mod call;
mod fusion;
mod host;
mod operation;
mod plans;
mod shared;
mod simulation;

pub use buffer::Buffer;
pub use call::{Call, Transfer};
pub use fusion::{FlushReport, Fusion, StepReport};
pub use operation::Operation;
pub use simulation::Simulation;

use crate::bootstrap::{self, Introduction};
use crate::config::Config;
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
    use_huge_pages: bool,
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
        let host = host::share_of_host(&config, ranks as usize);
        let mut engine = Engine::new(provider, rank, ranks, config.clone(), host)?;
        let blob = bootstrap::emit_contact(&engine.contact());
        let own = Introduction {
            rank,
            ranks,
            fingerprint: config.shared_fingerprint(),
            blob,
        };
        let blobs = bootstrap::exchange(&own, job, config.timeout, &clock)?;
        let contacts: Vec<Contact> = blobs
            .iter()
            .map(|b| bootstrap::parse_contact(b))
            .collect::<Result<_>>()?;
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
        let communicator = Communicator::assemble(engine, clock, vec![0; ranks as usize], false);
        if config.debug {
            let progress = if config.progress_thread {
                "a thread"
            } else {
                "calls"
            };
            say(&format!(
                "rank {rank} of {ranks}: transport {} (asked for {}; all ranks are on this host), progress by {progress}, \
                 chunks of {} B, windows of {} B, large copies and reductions by {} threads, timeout {:?}",
                communicator.transport(),
                config.transport,
                config.chunk_bytes,
                config.window_bytes,
                host.threads_max,
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
        let use_huge_pages = config.huge_pages;
        let plans = Plans::new(rank, hosts, is_mapped, config);
        let shared = Arc::new(Shared::new(engine, clock, plans, local_ranks));
        let inner = Inner {
            shared,
            rank,
            ranks,
            transport: capabilities.name,
            is_size_only,
            is_mapped: capabilities.store_signals,
            use_huge_pages,
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
    pub fn alloc(&self, bytes: usize) -> Result<Buffer> {
        let region = Arc::new(if self.inner.is_size_only {
            Region::size_only(bytes)
        } else if self.inner.is_mapped {
            Region::shared("linerate-buffer", bytes)?
        } else {
            Region::private(bytes)?
        });
        region.populate(self.inner.use_huge_pages);
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
        let bound = {
            let mut plans = shared.plans.lock().unwrap_or_else(PoisonError::into_inner);
            bind::bind(call, &mut plans, self.inner.rank, self.inner.ranks)?
        };
        let task = shared.engine().submit(bound, shared.clock.now())?;
        Ok(Operation::new(shared.clone(), task))
    }

    /// Starts and waits.
    pub fn run(&self, call: &Call) -> Result<()> {
        self.start(call)?.wait()
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
            let bound = {
                let mut plans = shared.plans.lock().unwrap_or_else(PoisonError::into_inner);
                bind::bind_views(&call, &mut plans, view, view)?
            };
            let task = shared.engine().submit(bound, shared.clock.now())?;
            shared
                .wait(task, None)
                .expect("a wait without a limit ends with a result")
        })
    }

    /// The algorithm that [`Communicator::start`] would use, by name.
    pub fn algorithm_for(&self, call: &Call) -> Result<&'static str> {
        if call.collective == Collective::SendRecv {
            return Ok("direct");
        }
        let plans = self
            .inner
            .shared
            .plans
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        let request = plans.request(call, false);
        request.check()?;
        Ok(plans.algorithm(call, &request)?.0.name)
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
