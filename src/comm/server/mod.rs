//! [`ParameterServer`]: some ranks hold the weights of a model, and workers push gradients to them
//! and pull weights from them.
//!
//! Each server rank has a shard: an equal part of all elements. A worker puts its gradient into
//! slots in the memory of all shards. The first shard has the ledger ([`crate::staleness`]): it
//! numbers a push when all shards have it, and says whether the worker goes on. All shards apply
//! pushes in the order of these numbers.
//!
//! `layout.rs` says where everything lies in the windows. `shard.rs` and `worker.rs` are what the
//! two sides do, `weights.rs` is the memory of a shard and its updates, and `signals.rs` changes
//! words of other ranks. A thread drives a shard, or the worker of its rank while that waits
//! (`service.rs`).
//!
//! Read first: [`ParameterServer::new`], then `shard.rs`.

mod layout;
mod options;
mod report;
mod service;
mod shard;
mod shared;
mod signals;
mod weights;
mod worker;

#[cfg(test)]
mod sim_tests;
#[cfg(test)]
mod thread_tests;

pub use options::{NonFinitePush, ServerOptions};
pub use report::{Decisions, ServerReport};
pub use worker::Answer;

use super::driving::Manner;
use super::{Buffer, Communicator};
use crate::engine::Engine;
use crate::error::{Error, Result};
use crate::fusion::TensorSpec;
use crate::kernel;
use crate::memory::{Access, Element};
use crate::time::Time;
use crate::types::{DataType, Rank};
use crate::wait::BackgroundThread;
use layout::Layout;
use service::Service;
use shard::Shard;
use shared::Shared;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use worker::Worker;

/// Longest sleep of a worker that waits. It bounds how late it notices a failure.
const PATIENCE: Duration = Duration::from_millis(50);

/// The weights of a model on some ranks, for workers that push gradients and pull weights. See
/// [`ParameterServer::new`].
///
/// A worker that fails, or drops this before [`finish`](ParameterServer::finish), ends for itself:
/// a push that some shards have not got whole is not applied anywhere, and no other worker waits
/// for it any more. The failure of a server is an error on all ranks.
pub struct ParameterServer {
    tensors: Vec<TensorSpec>,
    worker: Option<Mutex<Worker>>,
    service: Option<BackgroundThread<Service>>,
    shared: Arc<Shared>,
}

impl ParameterServer {
    /// Makes a parameter server for the gradients of these tensors. Collective, with the same
    /// arguments on all ranks. It works on a communicator of its own.
    ///
    /// A worker calls [`init`](ParameterServer::init) once and then
    /// [`step`](ParameterServer::step) for each gradient. A rank that only serves calls
    /// [`finish`](ParameterServer::finish).
    ///
    /// ```
    /// use linerate::options::{ServerOptions, Staleness};
    /// use linerate::{Buffer, Communicator, Config, DataType, ParameterServer, TensorSpec};
    /// let job = format!("server-{}", std::process::id());
    /// let run = |rank: u32| -> linerate::Result<f32> {
    ///     let comm = Communicator::join(rank, 3, &job, Config::default())?;
    ///     let tensor = TensorSpec { name: "weights".into(), count: 100, dtype: DataType::F32 };
    ///     let options = ServerOptions {
    ///         servers: vec![0], // Ranks 1 and 2 are the workers.
    ///         staleness: Staleness::Ssp(2),
    ///         rate: 0.5,
    ///         ..ServerOptions::default()
    ///     };
    ///     let server = ParameterServer::new(&comm, vec![tensor], options)?;
    ///     let weights = [Buffer::from_vec(vec![9f32; 100])];
    ///     if rank > 0 {
    ///         server.init(&weights)?;
    ///         for _step in 0..4 {
    ///             let gradient = Buffer::from_vec(vec![1f32; 100]);
    ///             server.step(&[gradient], &weights)?; // Push, wait for the OK, pull.
    ///         }
    ///     }
    ///     let least = weights[0].to_vec()?[0];
    ///     if let Some(report) = server.finish()? {
    ///         assert_eq!((report.version, report.drift_max <= 3), (8, true));
    ///     }
    ///     Ok(least)
    /// };
    /// let weights = std::thread::scope(|scope| {
    ///     let ranks: Vec<_> = (0..3).map(|rank| scope.spawn(move || run(rank))).collect();
    ///     ranks.into_iter().map(|rank| rank.join().unwrap()).collect::<Result<Vec<_>, _>>()
    /// })?;
    /// // Who pulls last has the pushes of both: 8 times 0.5 less.
    /// assert_eq!(weights[1].min(weights[2]), 5.0);
    /// # Ok::<(), linerate::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::InvalidArgument`]: an option is out of range, there are fewer elements than shards,
    /// or the arguments differ between ranks. [`Error::Exhausted`]: there is no memory for the
    /// shard: its weights twice, the state of the optimizer, and the slots of each worker.
    pub fn new(
        comm: &Communicator,
        tensors: Vec<TensorSpec>,
        options: ServerOptions,
    ) -> Result<ParameterServer> {
        let comm = comm.duplicate_apart()?;
        let own = format!("{tensors:?} {options:?}");
        for (rank, theirs) in (0..).zip(comm.gather_blobs(own.as_bytes())?) {
            if theirs != own.as_bytes() {
                return Err(Error::invalid(format!(
                    "rank {rank} makes a parameter server with other tensors or options than rank {}: {}; here {own}: all ranks give the same",
                    comm.rank(),
                    String::from_utf8_lossy(&theirs)
                )));
            }
        }
        let (shared, shard, worker) = open(comm, &tensors, options)?;
        let driving = shared.comm.driving()?;
        while !shared.is_ready()? {
            driving.attend((PATIENCE, Manner::Brief), || false, |_| false);
        }
        let service = shard.map(|shard| {
            let process = shared.comm.inner.driving.process();
            let service = Arc::new(Service::new(shared.clone(), shard));
            BackgroundThread::start(service, process, "linerate-shard")
        });
        Ok(ParameterServer {
            tensors,
            worker: worker.map(Mutex::new),
            service: service.transpose()?,
            shared,
        })
    }

    /// Gives the weights to begin with, one buffer for each tensor. Every worker calls it, once,
    /// before anything else. The values of the first worker count, and those of the others need
    /// only be as long. It returns when all shards have them.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`]: this rank is no worker, has called it before, or the buffers are
    /// not as long as the tensors; any failure of a rank.
    pub fn init(&self, weights: &[Buffer<f32>]) -> Result<()> {
        let mut worker = self.worker("init")?;
        if worker.has_begun {
            return Err(Error::invalid(
                "a parameter server has weights already: init is called once",
            ));
        }
        self.check(weights, DataType::F32, "init")?;
        worker.has_begun = true;
        if worker.number == 0 {
            let bytes = self.shared.layout.total() * size_of::<f32>();
            let bytes = gathered(weights, || self.shared.comm.alloc::<u8>(bytes))?;
            worker.start_init(&bytes)?;
        }
        self.wait(&mut worker, "init", |worker| {
            worker.is_ready() && worker.is_pushed()
        })
    }

    /// Pushes a gradient, one buffer for each tensor, and returns when they may be changed. Waits
    /// for the OK of the last push first.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`]: this rank is no worker, there are no weights yet, or the buffers
    /// are not of the type and lengths of the gradients; [`Error::InUse`]; any failure of a rank.
    pub fn push<G: Element>(&self, gradients: &[Buffer<G>]) -> Result<()> {
        let mut worker = self.ready_worker("push")?;
        self.push_by(&mut worker, gradients)
    }

    /// Waits until this worker may go on after its last push, as the mode says, and gives what the
    /// controller has said.
    ///
    /// # Errors
    /// [`Error::Timeout`], which names the worker that is the slowest; as of
    /// [`push`](ParameterServer::push).
    pub fn wait_ok(&self) -> Result<Answer> {
        let mut worker = self.ready_worker("a wait for an OK")?;
        self.wait(&mut worker, "a wait for an OK", Worker::is_ok)?;
        Ok(worker.answer())
    }

    /// Pulls the weights, which have all pushes of this worker, into one buffer for each tensor.
    /// Gives the version of each shard: the updates that it has made. Weights of one shard are of
    /// one version.
    ///
    /// # Errors
    /// As of [`push`](ParameterServer::push).
    pub fn pull<W: Element>(&self, weights: &[Buffer<W>]) -> Result<Vec<u64>> {
        let mut worker = self.ready_worker("pull")?;
        self.pull_by(&mut worker, weights)
    }

    /// Pushes a gradient, waits for its OK and pulls the weights. Errors: as of
    /// [`push`](ParameterServer::push) and [`wait_ok`](ParameterServer::wait_ok).
    pub fn step<G: Element, W: Element>(
        &self,
        gradients: &[Buffer<G>],
        weights: &[Buffer<W>],
    ) -> Result<Vec<u64>> {
        let mut worker = self.ready_worker("step")?;
        self.check(weights, self.shared.layout.pulls, "step")?;
        self.push_by(&mut worker, gradients)?;
        self.wait(&mut worker, "a wait for an OK", Worker::is_ok)?;
        self.pull_by(&mut worker, weights)
    }

    /// Ends this rank's part. A worker waits until its pushes are in the weights, and no other
    /// worker waits for it from then on. A server waits until all workers have finished or are
    /// gone, however long they train; the report of its shard is given.
    ///
    /// # Errors
    /// [`Error::PeerFailed`] or [`Error::Left`]: a server has ended early.
    pub fn finish(self) -> Result<Option<ServerReport>> {
        if let Some(worker) = &self.worker {
            let mut worker = worker.lock().unwrap_or_else(PoisonError::into_inner);
            self.wait(&mut worker, "finish", |worker| {
                worker.is_pushed() && worker.is_applied()
            })?;
            worker.start_finish()?;
            self.wait(&mut worker, "finish", Worker::is_idle)?;
        }
        let report = match &self.service {
            Some(service) => Some(service.get()?.wait_for_end()?),
            None => None,
        };
        Ok(report)
    }

    fn push_by<G: Element>(&self, worker: &mut Worker, gradients: &[Buffer<G>]) -> Result<()> {
        let dtype = self.shared.layout.gradients;
        self.check(gradients, dtype, "push")?;
        self.wait(worker, "a wait for an OK", Worker::is_ok)?;
        let bytes = gathered(gradients, || worker.packed(0, dtype))?;
        worker.start_push(bytes);
        self.wait(worker, "push", Worker::is_pushed)
    }

    fn pull_by<W: Element>(&self, worker: &mut Worker, weights: &[Buffer<W>]) -> Result<Vec<u64>> {
        let dtype = self.shared.layout.pulls;
        self.check(weights, dtype, "pull")?;
        let target = match weights {
            [only] => only.cast::<u8>()?,
            _ => worker.packed(1, dtype)?,
        };
        worker.start_pull(target.clone());
        self.wait(worker, "pull", Worker::is_pulled)?;
        if weights.len() > 1 {
            let mut start = 0;
            for tensor in weights {
                let raw = tensor.raw();
                let _held = raw.borrow_all(Access::Exclusive, "pull")?;
                let part = target.range(start..start + raw.len_bytes());
                kernel::copy(part.raw().view(), raw.view());
                start += raw.len_bytes();
            }
        }
        Ok(worker.take_pulled())
    }

    fn worker(&self, what: &str) -> Result<MutexGuard<'_, Worker>> {
        self.shared.comm.driving()?;
        let worker = self.worker.as_ref().ok_or_else(|| {
            Error::invalid(format!(
                "{what} of rank {}, which is no worker of the parameter server: its workers are ranks {:?}",
                self.shared.comm.rank(),
                self.shared.layout.workers
            ))
        })?;
        Ok(worker.lock().unwrap_or_else(PoisonError::into_inner))
    }

    fn ready_worker(&self, what: &str) -> Result<MutexGuard<'_, Worker>> {
        let worker = self.worker(what)?;
        match worker.has_begun {
            true => Ok(worker),
            false => Err(Error::invalid(format!(
                "{what} before the parameter server has weights: call init first, on every worker"
            ))),
        }
    }

    fn check<T: Element>(&self, tensors: &[Buffer<T>], dtype: DataType, what: &str) -> Result<()> {
        if T::DTYPE != dtype {
            return Err(Error::invalid(format!(
                "{what} with buffers of {}: this parameter server has {dtype}",
                T::DTYPE
            )));
        }
        let total = self.shared.layout.total();
        if matches!(tensors, [only] if only.len() == total) {
            return Ok(());
        }
        if tensors.len() != self.tensors.len() {
            return Err(Error::invalid(format!(
                "{what} with {} buffers for {} tensors: one for each, or one of {total} elements for all",
                tensors.len(),
                self.tensors.len()
            )));
        }
        let mut lengths = tensors.iter().map(Buffer::len).zip(&self.tensors);
        match lengths.find(|(len, tensor)| *len as u64 != tensor.count) {
            Some((len, tensor)) => Err(Error::invalid(format!(
                "{what} with a buffer of {len} elements for tensor '{}', which has {}",
                tensor.name, tensor.count
            ))),
            None => Ok(()),
        }
    }

    /// Does what can be done until `is_done`.
    fn wait(
        &self,
        worker: &mut Worker,
        what: &str,
        is_done: impl Fn(&Worker) -> bool,
    ) -> Result<()> {
        match &self.service {
            Some(service) => {
                let service = service.get()?;
                service.driving(|| self.wait_driving(worker, what, is_done, Some(service)))
            }
            None => self.wait_driving(worker, what, is_done, None),
        }
    }

    /// As [`ParameterServer::wait`]; drives this rank's shard too, so that its thread need not
    /// wake.
    fn wait_driving(
        &self,
        worker: &mut Worker,
        what: &str,
        is_done: impl Fn(&Worker) -> bool,
        service: Option<&Service>,
    ) -> Result<()> {
        let comm = &self.shared.comm;
        let (driving, clock) = (comm.driving()?, &comm.inner.clock);
        let begun = clock.now();
        let timeout = driving.engine().config().timeout;
        loop {
            driving.engine().check()?;
            if let Some(Err(Err(error))) = service.map(Service::turn) {
                return Err(error);
            }
            worker.turn()?;
            if is_done(worker) {
                return Ok(());
            }
            let now = clock.now();
            if now.since(begun) > timeout
                && let Some(error) = self.give_up(worker, what, (begun, now))
            {
                return Err(error);
            }
            let has_news = |engine: &Engine| {
                let of_service = || service.is_some_and(|service| service.has_news(engine));
                engine.failure().is_some() || worker.has_news(engine) || of_service()
            };
            driving.attend((PATIENCE, Manner::Brief), || false, has_news);
        }
    }

    /// Asks the other ranks what they do, because a wait has taken too long, and then ends the
    /// parameter server on all ranks with the error. `None`: go on waiting.
    fn give_up(&self, worker: &Worker, what: &str, (begun, now): (Time, Time)) -> Option<Error> {
        let (comm, layout) = (&self.shared.comm, &self.shared.layout);
        let slowest = worker.answer().slowest.filter(|_| !worker.is_ok());
        let (awaited, known) = match slowest {
            Some(slowest) => (
                vec![layout.workers[slowest as usize]],
                format!("worker {slowest} has the fewest pushes"),
            ),
            None => (layout.servers.clone(), "a shard has not answered".into()),
        };
        let driving = comm.driving().ok()?;
        let mut engine = driving.engine();
        let (missing, said) = engine.inquire(begun, &awaited, now)?;
        engine.fail_with(Error::Timeout {
            rank: comm.rank(),
            operation: format!(
                "{what} of worker {} after push {}",
                worker.number, worker.clock
            ),
            waited: now.since(begun),
            missing,
            detail: format!("{known}; {said}"),
        });
        // A peer may have told its error earlier. The first error is the one to report.
        engine.failure().cloned()
    }
}

impl std::fmt::Debug for ParameterServer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ParameterServer")
            .field("servers", &self.shared.layout.servers)
            .field("workers", &self.shared.layout.workers)
            .finish_non_exhaustive()
    }
}

/// Makes the windows, and what this rank does with them.
fn open(
    comm: Communicator,
    tensors: &[TensorSpec],
    options: ServerOptions,
) -> Result<(Arc<Shared>, Option<Shard>, Option<Worker>)> {
    let layout = Layout::new(tensors, &options, comm.ranks())?;
    comm.driving()?.engine().tolerate_failures();
    let place = |ranks: &[Rank]| ranks.iter().position(|&rank| rank == comm.rank());
    let (server, worker) = (place(&layout.servers), place(&layout.workers));
    let bytes = server.map_or(0, |shard| layout.server_bytes(shard));
    let data = comm.start_window(&comm.alloc::<u8>(bytes)?)?;
    let words = comm.start_window(&comm.alloc::<u64>(layout.words())?)?;
    let shared = Arc::new(Shared {
        comm,
        layout,
        data,
        words,
    });
    let shard = server.map(|shard| Shard::new(shared.clone(), shard, options));
    let worker = worker.map(|number| Worker::new(shared.clone(), number));
    Ok((shared, shard.transpose()?, worker.transpose()?))
}

/// The bytes of all tensors, one after another: those of the only buffer, or copies in `room`.
fn gathered<T: Element>(
    tensors: &[Buffer<T>],
    room: impl FnOnce() -> Result<Buffer<u8>>,
) -> Result<Buffer<u8>> {
    if let [only] = tensors {
        return only.cast::<u8>();
    }
    let (room, mut start) = (room()?, 0);
    for tensor in tensors {
        let raw = tensor.raw();
        let _held = raw.borrow_all(Access::Shared, "push")?;
        let part = room.range(start..start + raw.len_bytes());
        kernel::copy(raw.view(), part.raw().view());
        start += raw.len_bytes();
    }
    Ok(room)
}
