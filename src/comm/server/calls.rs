//! [`Calls`]: what the calls of a [`ParameterServer`](super::ParameterServer) have in common: who
//! may make them, with which buffers, and how they wait.

use super::request::Request;
use super::service::Service;
use super::shared::Shared;
use super::worker::Worker;
use crate::comm::Buffer;
use crate::comm::driving::Manner;
use crate::engine::Engine;
use crate::error::{Error, Result};
use crate::fusion::TensorSpec;
use crate::kernel;
use crate::memory::{Access, Element};
use crate::time::Time;
use crate::types::DataType;
use crate::wait::BackgroundThread;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// Longest sleep of a worker that waits. It bounds how late it notices a failure.
pub const PATIENCE: Duration = Duration::from_millis(50);

/// See the module.
pub struct Calls {
    pub tensors: Vec<TensorSpec>,
    /// A function updates the weights.
    pub has_function: bool,
    pub worker: Option<Mutex<Worker>>,
    pub service: Option<BackgroundThread<Service>>,
    pub shared: Arc<Shared>,
}

impl Calls {
    pub fn detach_by(&self, worker: &mut Worker) -> Result<()> {
        if worker.is_finishing() {
            return Ok(());
        }
        self.wait(worker, "finish", |worker| {
            worker.is_pushed() && worker.is_applied()
        })?;
        worker.start_finish()?;
        self.wait(worker, "finish", Worker::is_idle)
    }

    pub fn attach_by(&self, worker: &mut Worker) -> Result<()> {
        if !worker.has_begun || !worker.is_finishing() {
            return Err(Error::invalid(
                "attach of a worker that has not detached: it is there, go on with push",
            ));
        }
        worker.start_return()?;
        self.wait(worker, "attach", Worker::is_idle)?;
        self.come_back(worker)
    }

    /// Has the servers wait for this worker again.
    pub fn come_back(&self, worker: &mut Worker) -> Result<()> {
        let version = self.ask(worker, &Request::Attach, "attach")?;
        worker.end_return(version);
        Ok(())
    }

    /// Has all shards do something at one place of their order; gives the version of which they
    /// answer.
    pub fn ask(&self, worker: &mut Worker, request: &Request, what: &str) -> Result<u64> {
        worker.start_request(request)?;
        self.wait(worker, what, Worker::is_answered)?;
        worker.answer_of_all().map_err(|(server, failure)| {
            let layout = &self.shared.layout;
            let (rank, shard) = (layout.servers[server], layout.shard_of(server));
            Error::invalid(format!("{what}: shard {shard}, rank {rank}: {failure}"))
        })
    }

    pub fn push_by<G: Element>(&self, worker: &mut Worker, gradients: &[Buffer<G>]) -> Result<()> {
        let dtype = self.shared.layout.gradients;
        self.check(gradients, dtype, "push")?;
        self.wait(worker, "a wait for an OK", Worker::is_ok)?;
        let bytes = gathered(gradients, || worker.packed(0, dtype))?;
        worker.start_push(bytes)?;
        self.wait(worker, "push", Worker::is_pushed)
    }

    /// Pushes, waits for the OK or not, and pulls.
    pub fn exchange<G: Element, W: Element>(
        &self,
        what: &str,
        gradients: &[Buffer<G>],
        weights: &[Buffer<W>],
        waits: bool,
    ) -> Result<Vec<u64>> {
        let mut worker = self.ready_worker(what)?;
        self.check(weights, self.shared.layout.pulls, what)?;
        self.push_by(&mut worker, gradients)?;
        if waits {
            self.wait(&mut worker, "a wait for an OK", Worker::is_ok)?;
        }
        self.pull_by(&mut worker, weights)
    }

    pub fn pull_by<W: Element>(
        &self,
        worker: &mut Worker,
        weights: &[Buffer<W>],
    ) -> Result<Vec<u64>> {
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

    pub fn worker(&self, what: &str) -> Result<MutexGuard<'_, Worker>> {
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

    pub fn ready_worker(&self, what: &str) -> Result<MutexGuard<'_, Worker>> {
        let worker = self.worker(what)?;
        if !worker.has_begun {
            return Err(Error::invalid(format!(
                "{what} before the parameter server has weights: call init first, on every worker"
            )));
        }
        if worker.is_finishing() {
            return Err(Error::invalid(format!(
                "{what} after detach: call attach first"
            )));
        }
        Ok(worker)
    }

    pub fn new_worker(&self, what: &str) -> Result<MutexGuard<'_, Worker>> {
        let worker = self.worker(what)?;
        match worker.has_begun {
            false => Ok(worker),
            true => Err(Error::invalid(format!(
                "{what} of a parameter server that has weights already: init or load is called once"
            ))),
        }
    }

    pub fn check_type<T: Element>(&self, dtype: DataType, what: &str) -> Result<()> {
        match T::DTYPE == dtype {
            true => Ok(()),
            false => Err(Error::invalid(format!(
                "{what} with buffers of {}: this parameter server has {dtype}",
                T::DTYPE
            ))),
        }
    }

    pub fn check<T: Element>(
        &self,
        tensors: &[Buffer<T>],
        dtype: DataType,
        what: &str,
    ) -> Result<()> {
        self.check_type::<T>(dtype, what)?;
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
    pub fn wait(
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

    /// As [`Calls::wait`]; drives this rank's shard too, so that its thread need not
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
            if let Some(Err(error)) = service.map(Service::turn) {
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
        let first = layout.workers[0];
        let (awaited, known) = match slowest {
            // The first worker waits for the shards, and the others for it.
            None if !worker.has_begun && worker.number > 0 => (
                vec![first],
                "the first worker has given no weights to begin with (init or load)".into(),
            ),
            Some(slowest) => (
                vec![layout.workers[slowest as usize]],
                format!("worker {slowest} has the fewest pushes"),
            ),
            None => (worker.servers(), "a shard has not answered".into()),
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

/// The bytes of all tensors, one after another: those of the only buffer, or copies in `room`.
pub fn gathered<T: Element>(
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
