//! [`ParameterServer`]: some ranks hold the weights of a model, and workers push gradients to them
//! and pull weights from them.
//!
//! Each server rank has a shard: an equal part of all elements. A worker puts its gradient into
//! slots in the memory of all servers. The first server leads: it has the ledger
//! ([`crate::staleness`]), numbers a push when all servers have it, and says whether the worker
//! goes on. All servers apply pushes in the order of these numbers.
//!
//! With replicas two servers have the same shard, and do the same with it. What the leader puts in
//! order it tells the other server of its shard first, and everybody else when that has it
//! (`leading.rs`). So that one can lead when the first has failed: it waits until all who are there
//! have seen the failure, and goes on from its order. Of any other server that fails, nobody waits
//! for anything more.
//!
//! `layout.rs` says where everything lies in the windows. `shard.rs` and `worker.rs` are what the
//! two sides do, `gradients.rs` is memory of a worker that shards read, `weights.rs` is the memory
//! of a shard and its updates, `versions.rs` is how a worker finds weights of one version
//! (`pulling.rs`), and `signals.rs` changes words of other ranks. `order.rs` writes the order down.
//! `opening.rs` is how the ranks make all of that together, on a communicator of slots
//! (`comm/slots.rs`). A process that comes later (`coming.rs`) talks (`spoken.rs`) to the door of
//! each server (`door.rs`), and gets a place there (`shard/places.rs`).
//!
//! `asking.rs` is how a worker has all servers do something, `request.rs` what that can be, and
//! `checkpoint.rs` the files. `living.rs` is which servers are there. A thread drives a shard, or
//! the worker of its rank while that waits (`service.rs`); in a simulation, `simulated.rs` does.
//!
//! Read first: [`ParameterServer::new`], then `shard.rs`.

mod asking;
mod calls;
mod checkpoint;
mod coming;
mod door;
mod gradients;
mod layout;
mod leading;
mod living;
mod opening;
mod operations;
mod options;
mod order;
mod pulling;
mod report;
mod request;
mod service;
mod shard;
mod shared;
mod signals;
mod simulated;
mod spoken;
mod versions;
mod weights;
mod worker;

#[cfg(test)]
mod input_tests;
#[cfg(test)]
mod join_tests;
#[cfg(test)]
mod request_tests;
#[cfg(test)]
mod sim_lobby;
#[cfg(test)]
mod sim_newcomers;
#[cfg(test)]
mod sim_ranks;
#[cfg(test)]
mod sim_tests;
#[cfg(test)]
mod split_tests;
#[cfg(test)]
mod thread_tests;

pub use options::{NonFinitePush, ServerOptions};
pub use report::{Decisions, ServerReport};
pub use simulated::{SimulatedServer, Training};
pub use worker::Answer;

use self::calls::{Calls, gathered};
use self::coming::DoorAddress;
use self::opening::{Made, check_alike};
use self::options::check_rate;
use self::request::Request;
use self::weights::UpdateFn;
use super::{Buffer, Communicator};
use crate::bootstrap::note;
use crate::config::Config;
use crate::error::{Error, Result};
use crate::fusion::TensorSpec;
use crate::memory::Element;
use crate::optimizer::Optimizer;
use crate::staleness::Staleness;
use crate::types::DataType;
use crate::wait::BackgroundThread;
use service::Service;
use std::ops::Range;
use std::path::Path;
use std::sync::{Arc, Mutex, Once, PoisonError};
use worker::Worker;

/// The weights of a model on some ranks, for workers that push gradients and pull weights. See
/// [`ParameterServer::new`].
///
/// A worker that fails, or drops this before [`finish`](ParameterServer::finish), ends for itself:
/// a push that some shards have not got whole is not applied anywhere, and no other worker waits
/// for it any more. The failure of a server is an error on all ranks, unless another one has its
/// shard ([`ServerOptions::replicas`]).
pub struct ParameterServer {
    calls: Calls,
    address: DoorAddress,
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
        ParameterServer::open(comm, tensors, options, None)
    }

    /// As [`ParameterServer::new`], with a function that changes the weights in place of an
    /// optimizer. A server calls it for each update with all parts of its shard: which elements of
    /// all tensors these are, their gradient (with bulk synchronous workers the mean), and the
    /// weights, which it changes. What else it needs to know, it keeps; a checkpoint has the
    /// weights only. Ranks that do not serve never call it.
    ///
    /// ```
    /// use linerate::options::ServerOptions;
    /// use linerate::{Buffer, Communicator, Config, DataType, ParameterServer, TensorSpec};
    /// let job = format!("sign-{}", std::process::id());
    /// let comm = Communicator::join(0, 1, &job, Config::default())?;
    /// let tensor = TensorSpec { name: "weights".into(), count: 3, dtype: DataType::F32 };
    /// let server = ParameterServer::with_update(
    ///     &comm,
    ///     vec![tensor],
    ///     ServerOptions::default(),
    ///     |_range, gradient, weights| {
    ///         for (weight, gradient) in weights.iter_mut().zip(gradient) {
    ///             *weight -= 0.5 * gradient.signum();
    ///         }
    ///     },
    /// )?;
    /// let weights = [Buffer::from_vec(vec![1f32; 3])];
    /// server.init(&weights)?;
    /// server.step(&[Buffer::from_vec(vec![9f32, -4.0, 0.1])], &weights)?;
    /// assert_eq!(weights[0].to_vec()?, [0.5, 1.5, 0.5]);
    /// server.finish()?;
    /// # Ok::<(), linerate::Error>(())
    /// ```
    ///
    /// # Errors
    /// As of [`ParameterServer::new`].
    pub fn with_update(
        comm: &Communicator,
        tensors: Vec<TensorSpec>,
        options: ServerOptions,
        update: impl FnMut(Range<usize>, &[f32], &mut [f32]) + Send + 'static,
    ) -> Result<ParameterServer> {
        ParameterServer::open(comm, tensors, options, Some(Box::new(update)))
    }

    fn open(
        comm: &Communicator,
        tensors: Vec<TensorSpec>,
        options: ServerOptions,
        function: Option<UpdateFn>,
    ) -> Result<ParameterServer> {
        comm.check_can_wait("ParameterServer::new")?;
        let has_function = function.is_some();
        check_alike(comm, &tensors, &options, has_function)?;
        let mode = options.staleness;
        let made = opening::open(comm, &tensors, options, function)?;
        if matches!(mode, Staleness::Dssp { .. })
            && mode.drift_max().is_none()
            && made.shared.is_first()
        {
            static TOLD: Once = Once::new();
            TOLD.call_once(|| {
                note(
                    "this DSSP does not bound how far a worker runs ahead: Release::Literal and Release::Paper do not, Release::Strict does",
                );
            });
        }
        let Made {
            shared,
            shard,
            door,
            worker,
        } = made;
        let service = shard.map(|shard| {
            let process = shared.comm.inner.driving.process();
            let service = Arc::new(Service::new(shared.clone(), shard, door));
            BackgroundThread::start(service, process, "linerate-shard")
        });
        let address = DoorAddress::of(&shared);
        let calls = Calls {
            tensors,
            has_function,
            worker: worker.map(Mutex::new),
            service: service.transpose()?,
            shared,
        };
        Ok(ParameterServer { calls, address })
    }

    /// Where a process that comes later finds this parameter server: for
    /// [`ParameterServer::join`]. Equal on all ranks, and good as long as a server of the first
    /// shard serves. On one host it holds for processes of the same user; across hosts a process
    /// needs the same `LINERATE_SECRET` as all others.
    ///
    /// # Errors
    /// [`Error::Forked`].
    pub fn address(&self) -> Result<String> {
        self.calls.shared.comm.driving()?;
        Ok(self.address.to_string())
    }

    /// Joins a parameter server that is running, in a process that was started later. It takes the
    /// first free place of a worker: that of one that has ended or was evicted, or one of
    /// [`ServerOptions::spares`]. It begins with the drift of the slowest worker, as one that has
    /// pushed as often as that, and there are weights: it pulls them and goes on with
    /// [`step`](ParameterServer::step). The servers serve meanwhile.
    ///
    /// `address` is that of [`ParameterServer::address`]; tensors and options are those that all
    /// others have given to [`ParameterServer::new`]. The transport is theirs. Waits, at most for
    /// [`Config::timeout`], until a place is free.
    ///
    /// ```
    /// use linerate::options::ServerOptions;
    /// use linerate::{Buffer, Communicator, Config, DataType, ParameterServer, TensorSpec};
    /// use std::sync::mpsc::channel;
    /// let job = format!("join-{}", std::process::id());
    /// let tensor = TensorSpec { name: "weights".into(), count: 100, dtype: DataType::F32 };
    /// let options = ServerOptions {
    ///     servers: vec![0],
    ///     spares: 1,
    ///     rate: 1.0,
    ///     ..ServerOptions::default()
    /// };
    /// let (tell, address) = channel();
    /// let both = std::sync::Barrier::new(2);
    /// let train = |server: ParameterServer| -> linerate::Result<f32> {
    ///     let weights = [Buffer::from_vec(vec![0f32; 100])];
    ///     both.wait();
    ///     server.pull(&weights)?;
    ///     server.step(&[Buffer::from_vec(vec![1f32; 100])], &weights)?;
    ///     server.finish()?;
    ///     Ok(weights[0].to_vec()?[0])
    /// };
    /// std::thread::scope(|scope| {
    ///     for rank in 0..2 {
    ///         let (job, tensor, options) = (&job, &tensor, &options);
    ///         let (train, tell) = (&train, tell.clone());
    ///         scope.spawn(move || {
    ///             let comm = Communicator::join(rank, 2, job, Config::default()).unwrap();
    ///             let server = ParameterServer::new(&comm, vec![tensor.clone()], options.clone());
    ///             let server = server.unwrap();
    ///             if rank == 0 {
    ///                 return drop(server.finish().unwrap());
    ///             }
    ///             server.init(&[Buffer::from_vec(vec![9f32; 100])]).unwrap();
    ///             tell.send(server.address().unwrap()).unwrap();
    ///             // Both workers push once, and one update takes the mean.
    ///             assert_eq!(train(server).unwrap(), 8.0);
    ///         });
    ///     }
    ///     // Usually in another process.
    ///     let (tensors, address) = (vec![tensor.clone()], address.recv().unwrap());
    ///     let config = Config::default();
    ///     let server = ParameterServer::join(&address, tensors, options.clone(), config).unwrap();
    ///     assert_eq!(server.worker(), Some(1));
    ///     assert_eq!(train(server).unwrap(), 8.0);
    /// });
    /// ```
    ///
    /// # Errors
    /// [`Error::InvalidArgument`]: an option is out of range, or this is no such address.
    /// [`Error::Bootstrap`]: nobody listens there, no place is free in time, the workers have
    /// finished, or tensors or options differ. [`Error::Left`]: the last worker has finished while
    /// this process was let in.
    pub fn join(
        address: &str,
        tensors: Vec<TensorSpec>,
        options: ServerOptions,
        config: Config,
    ) -> Result<ParameterServer> {
        let evict_after = options.evict_after;
        let come = coming::come(address, &tensors, &options, config)?;
        let shared = Arc::new(come.shared);
        let worker = Worker::new(shared.clone(), come.worker, evict_after)?;
        let calls = Calls {
            tensors,
            has_function: come.has_function,
            worker: Some(Mutex::new(worker)),
            service: None,
            shared,
        };
        let mut worker = calls.worker("join")?;
        calls.wait(&mut worker, "join", Worker::is_ready)?;
        drop(come.talks);
        worker.begin();
        calls.come_back(&mut worker)?;
        drop(worker);
        let address = DoorAddress::parse(address)?;
        Ok(ParameterServer { calls, address })
    }

    /// The number of this rank as a worker; `None`: it is none.
    pub fn worker(&self) -> Option<u32> {
        let (rank, layout) = (self.calls.shared.comm.rank(), &self.calls.shared.layout);
        let at = layout.workers.iter().position(|&worker| worker == rank);
        at.map(|at| at as u32)
    }

    /// Gives the weights to begin with, one buffer for each tensor. Every worker calls it, once,
    /// before anything else. The values of the first worker count, and those of the others need
    /// only be as long. It returns when all shards have them.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`]: this rank is no worker, has called it before, or the buffers are
    /// not as long as the tensors; any failure of a rank.
    pub fn init(&self, weights: &[Buffer<f32>]) -> Result<()> {
        let mut worker = self.calls.new_worker("init")?;
        self.calls.check(weights, DataType::F32, "init")?;
        if worker.number == 0 {
            let bytes = self.calls.shared.layout.total() * size_of::<f32>();
            let bytes = gathered(weights, || self.calls.shared.comm.alloc::<u8>(bytes))?;
            worker.start_init(&bytes)?;
        }
        self.calls.wait(&mut worker, "init", |worker| {
            worker.is_ready() && worker.is_pushed()
        })?;
        worker.begin();
        Ok(())
    }

    /// Begins with the newest checkpoint of a folder, with its optimizer and the version of its
    /// weights, in place of [`init`](ParameterServer::init): every worker calls it, and the folder
    /// of the first one counts. Other shards may have written it, and more or fewer workers. If it
    /// fails on the first worker, that one may call `init`, and the others wait for it.
    ///
    /// Gives the version, and how many pushes of this worker the weights have; 0 if the checkpoint
    /// has no such worker.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`]: there is no whole checkpoint, it is of other tensors, or a
    /// server cannot read it; the text names the server and says why. As of
    /// [`init`](ParameterServer::init).
    pub fn load(&self, folder: impl AsRef<Path>) -> Result<(u64, u64)> {
        let mut worker = self.calls.new_worker("load")?;
        if worker.number == 0 {
            let folder = folder.as_ref();
            let request = Request::folder(Request::Load, folder)?;
            self.calls
                .ask(&mut worker, &request, &format!("load {}", folder.display()))?;
            worker.start_loaded()?;
        }
        self.calls.wait(&mut worker, "load", |worker| {
            worker.is_ready() && worker.is_idle()
        })?;
        Ok(worker.begin())
    }

    /// Has all shards write a checkpoint of one version into a folder, which all servers reach by
    /// this name. Gives the version. One worker calls it. A shard does nothing else while it
    /// writes: the timeout of the communicator has to be longer than that. Files of earlier
    /// checkpoints stay, and a file is there whole or not at all. A round of bulk synchronous
    /// workers that is not over is not in it.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`]: a server cannot write; the text names it and says why. As of
    /// [`push`](ParameterServer::push).
    pub fn save(&self, folder: impl AsRef<Path>) -> Result<u64> {
        let folder = folder.as_ref();
        let mut worker = self.calls.ready_worker("save")?;
        let request = Request::folder(Request::Save, folder)?;
        self.calls
            .ask(&mut worker, &request, &format!("save {}", folder.display()))
    }

    /// Has all shards update with this optimizer and learning rate from version `from` on, or from
    /// the next one if that is there already. Gives the version. One worker calls it. Another kind
    /// of optimizer begins with its first step; otherwise its state stays.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`]: a number is out of its range, or a function updates the weights;
    /// as of [`push`](ParameterServer::push).
    pub fn set_optimizer(&self, optimizer: Optimizer, rate: f32, from: u64) -> Result<u64> {
        optimizer.check()?;
        check_rate(rate)?;
        if self.calls.has_function {
            return Err(Error::invalid(
                "set_optimizer of a parameter server whose weights a function updates: the function knows its rate",
            ));
        }
        let mut worker = self.calls.ready_worker("set_optimizer")?;
        let request = Request::SetOptimizer(optimizer, rate, from);
        let next = self.calls.ask(&mut worker, &request, "set_optimizer")?;
        Ok(from.max(next))
    }

    /// Memory for the gradients of the next push: of all tensors, one after another. The shards
    /// that map it read them there, as those of one host in shared memory do, which spares the
    /// copies. It is pushed as the only buffer, and can be written again when the push is in the
    /// weights: until then this waits, if all [`ServerOptions::slots`] of it are pushed.
    ///
    /// # Errors
    /// [`Error::Exhausted`]: there is no memory; as of [`push`](ParameterServer::push).
    pub fn gradients<G: Element>(&self) -> Result<Buffer<G>> {
        let mut worker = self.calls.ready_worker("gradients")?;
        let dtype = self.calls.shared.layout.gradients;
        self.calls.check_type::<G>(dtype, "gradients")?;
        worker.start_gradients()?;
        self.calls
            .wait(&mut worker, "gradients", Worker::has_room)?;
        let slot = worker.slot().expect("it has one now");
        slot.cast()
    }

    /// Pushes a gradient, one buffer for each tensor, and returns when they may be changed. Waits
    /// for the OK of the last push first.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`]: this rank is no worker, there are no weights yet, or the buffers
    /// are not of the type and lengths of the gradients; [`Error::InUse`]; any failure of a rank.
    pub fn push<G: Element>(&self, gradients: &[Buffer<G>]) -> Result<()> {
        let mut worker = self.calls.ready_worker("push")?;
        self.calls.push_by(&mut worker, gradients)
    }

    /// Waits until this worker may go on after its last push, as the mode says, and gives what the
    /// controller has said.
    ///
    /// # Errors
    /// [`Error::Timeout`], which names the worker that is the slowest; as of
    /// [`push`](ParameterServer::push).
    pub fn wait_ok(&self) -> Result<Answer> {
        let mut worker = self.calls.ready_worker("a wait for an OK")?;
        self.calls
            .wait(&mut worker, "a wait for an OK", Worker::is_ok)?;
        Ok(worker.answer())
    }

    /// Pulls the weights, which have all pushes of this worker, into one buffer for each tensor.
    /// Gives the version of each shard: the updates that it has made. Weights of one shard are of
    /// one version.
    ///
    /// # Errors
    /// As of [`push`](ParameterServer::push).
    pub fn pull<W: Element>(&self, weights: &[Buffer<W>]) -> Result<Vec<u64>> {
        let mut worker = self.calls.ready_worker("pull")?;
        self.calls.pull_by(&mut worker, weights)
    }

    /// Pushes a gradient and pulls the weights, which have it. The wait for its OK is left to the
    /// next push. Errors: as of [`push`](ParameterServer::push).
    pub fn push_pull<G: Element, W: Element>(
        &self,
        gradients: &[Buffer<G>],
        weights: &[Buffer<W>],
    ) -> Result<Vec<u64>> {
        self.calls.exchange("push_pull", gradients, weights, false)
    }

    /// Pushes a gradient, waits for its OK and pulls the weights. Errors: as of
    /// [`push`](ParameterServer::push) and [`wait_ok`](ParameterServer::wait_ok).
    pub fn step<G: Element, W: Element>(
        &self,
        gradients: &[Buffer<G>],
        weights: &[Buffer<W>],
    ) -> Result<Vec<u64>> {
        self.calls.exchange("step", gradients, weights, true)
    }

    /// What the shard of this rank has done so far; `None`: it has none.
    pub fn report(&self) -> Result<Option<ServerReport>> {
        let service = self.calls.service.as_ref();
        service
            .map(|service| Ok(service.get()?.report()))
            .transpose()
    }

    /// Ends this rank's part as a worker, for good or until [`attach`](ParameterServer::attach):
    /// waits until its pushes are in the weights. No other worker waits for it from then on. A rank
    /// that also serves goes on with that.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`]: this rank is no worker; as of
    /// [`push`](ParameterServer::push).
    pub fn detach(&self) -> Result<()> {
        let mut worker = self.calls.worker("detach")?;
        self.calls.detach_by(&mut worker)
    }

    /// Begins again as a worker after [`detach`](ParameterServer::detach), with the drift of the
    /// slowest worker: as one that has pushed as often as that. It takes as long as a push. Another
    /// worker has to be there: with the last one the servers finish.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`]: this rank is no worker, or has not detached. [`Error::Left`]:
    /// the servers have finished. As of [`push`](ParameterServer::push).
    pub fn attach(&self) -> Result<()> {
        let mut worker = self.calls.worker("attach")?;
        self.calls.attach_by(&mut worker)
    }

    /// Ends this rank's part. A worker detaches ([`detach`](ParameterServer::detach)). A server
    /// waits until all workers have finished or are gone, however long they train; the report of
    /// its shard is given.
    ///
    /// # Errors
    /// [`Error::PeerFailed`] or [`Error::Left`]: a server has ended early. [`Error::Timeout`]: this
    /// worker was evicted.
    pub fn finish(self) -> Result<Option<ServerReport>> {
        let mut evicted = Ok(());
        if let Some(worker) = &self.calls.worker {
            let mut worker = worker.lock().unwrap_or_else(PoisonError::into_inner);
            evicted = worker.check_evicted();
            if evicted.is_ok() {
                self.calls.detach_by(&mut worker)?;
            }
        }
        let report = match &self.calls.service {
            Some(service) => Some(service.get()?.wait_for_end()?),
            None => None,
        };
        evicted.map(|()| report)
    }
}

impl std::fmt::Debug for ParameterServer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ParameterServer")
            .field("servers", &self.calls.shared.layout.servers)
            .field("workers", &self.calls.shared.layout.workers)
            .finish_non_exhaustive()
    }
}
