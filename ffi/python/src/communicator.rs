//! Communicators: made, asked and ended. Their collectives are in `collectives.rs`, what each holds
//! in `communicator/state.rs`.

mod state;

use crate::buffer::Buffer;
use crate::collectives::{Arguments, Options};
use crate::errors::{OrRaise, exception_of};
use crate::exchange::PyExchange;
use crate::fusion::Fusion;
use crate::memory::Memory;
use crate::operation::Operation;
use crate::partial::PartialAllreduce;
use crate::pure::{self, Explanation};
use crate::queue::CompletionQueue;
use crate::settings::{Settings, config_of};
use crate::sparse::SparseAllreduce;
use crate::waiting;
use linerate::Collective;
use pyo3::prelude::*;
use pyo3::types::PyDict;
use std::sync::Mutex;

/// A group of ranks of which each calls the same operations in the same order.
///
/// Memory is anything with the buffer protocol or `__dlpack__`, a Buffer, or a tuple (address,
/// count, type). A call takes all of its elements, in any shape without gaps. Collectives take
/// `algorithm`, the name of one of algorithms() (None: the cost model chooses), `timeout`, the
/// seconds without progress after which the communicator fails (None: that of set_timeout()), and
/// `async_op`: True returns an Operation at once, False waits and returns None.
#[pyclass(frozen, module = "linerate")]
pub struct Communicator {
    inner: Mutex<Option<linerate::Communicator>>,
}

#[pymethods]
impl Communicator {
    /// Joins the job that the environment describes, as `linerate launch`, torchrun, mpirun and
    /// srun set it; one rank if none of them has started this process. `settings` are values by the
    /// names that they have in the environment, such as {'LINERATE_TIMEOUT': '60'}.
    #[staticmethod]
    #[pyo3(signature = (settings=None))]
    fn from_env(py: Python<'_>, settings: Settings) -> PyResult<Communicator> {
        let config = config_of(py, settings)?;
        let joined = waiting::run(py, move || linerate::Communicator::from_env_with(config))?;
        Ok(Communicator::new(joined))
    }

    /// Joins a job by name, as rank `rank` of `ranks`. Ranks of several hosts meet at
    /// 'tcp://host:port' (a free port of rank 0's host) or in 'file://folder'; any other name is
    /// that of a job on this host.
    #[staticmethod]
    #[pyo3(signature = (rank, ranks, job, settings=None))]
    fn join(
        py: Python<'_>,
        rank: u32,
        ranks: u32,
        job: String,
        settings: Settings,
    ) -> PyResult<Communicator> {
        let config = config_of(py, settings)?;
        let join = move || linerate::Communicator::join(rank, ranks, &job, config);
        Ok(Communicator::new(waiting::run(py, join)?))
    }

    /// Joins a job whose processes have a way between them already, such as torch's Store:
    /// `exchange` has put(key: str, value: bytes, limit: float) and get(key: str, limit: float),
    /// which returns bytes, or None if there is no value after `limit` seconds. `name` is one that
    /// all ranks name alike and no other use of the exchange has.
    #[staticmethod]
    #[pyo3(signature = (rank, ranks, name, exchange, settings=None))]
    fn join_by(
        py: Python<'_>,
        rank: u32,
        ranks: u32,
        name: String,
        exchange: Py<PyAny>,
        settings: Settings,
    ) -> PyResult<Communicator> {
        let config = config_of(py, settings)?;
        let join = move || {
            linerate::Communicator::join_by(rank, ranks, &name, &PyExchange(exchange), config)
        };
        Ok(Communicator::new(waiting::run(py, join)?))
    }

    /// The rank of this process, from 0 on.
    #[getter]
    fn rank(&self, py: Python<'_>) -> PyResult<u32> {
        Ok(self.get(py)?.rank())
    }

    /// The number of ranks.
    #[getter]
    fn ranks(&self, py: Python<'_>) -> PyResult<u32> {
        Ok(self.get(py)?.ranks())
    }

    /// The transport in use, such as 'shm' or 'tcp'.
    #[getter]
    fn transport(&self, py: Python<'_>) -> PyResult<&'static str> {
        Ok(self.get(py)?.transport())
    }

    /// Bytes of collectives so far, on this rank, that were not in registered memory: shared memory
    /// and verbs stage these, or let other ranks fetch them through the kernel.
    #[getter]
    fn unregistered_bytes(&self, py: Python<'_>) -> PyResult<u64> {
        self.get(py)?.unregistered_bytes().or_raise(py)
    }

    /// Sets the number of seconds that an operation may make no progress before the communicator
    /// fails.
    fn set_timeout(&self, py: Python<'_>, timeout: f64) -> PyResult<()> {
        let timeout = waiting::seconds(py, "timeout", Some(timeout))?;
        self.get(py)?
            .set_timeout(timeout.unwrap_or_default())
            .or_raise(py)
    }

    /// A communicator of the same ranks with an order of operations of its own. Collective.
    fn duplicate(&self, py: Python<'_>) -> PyResult<Communicator> {
        self.make(py, |inner| inner.duplicate())
    }

    /// Ranks of one `color` form a communicator, in the order of `key`, then of their ranks; None
    /// for a rank whose color is None. Collective.
    #[pyo3(signature = (color, key=0))]
    fn split(
        &self,
        py: Python<'_>,
        color: Option<u32>,
        key: i32,
    ) -> PyResult<Option<Communicator>> {
        let inner = self.get(py)?;
        let made = waiting::run(py, move || inner.split(color, key))?;
        Ok(made.map(Communicator::new))
    }

    /// A communicator of some ranks, made by these alone: `members` are their numbers here, in the
    /// order of the new ranks. They meet by `exchange` under `name`, as in join_by().
    fn sibling(
        &self,
        py: Python<'_>,
        members: Vec<u32>,
        name: String,
        exchange: Py<PyAny>,
    ) -> PyResult<Communicator> {
        self.make(py, move |inner| {
            inner.sibling(&members, &name, &PyExchange(exchange))
        })
    }

    /// After a failure: a communicator of the ranks that live. All of them call it.
    fn rebuild(&self, py: Python<'_>) -> PyResult<Communicator> {
        self.make(py, |inner| inner.rebuild())
    }

    /// Fails the communicator on all ranks: their operations raise Aborted with this reason.
    fn abort(&self, py: Python<'_>, reason: &str) -> PyResult<()> {
        let inner = self.get(py)?;
        py.detach(|| inner.abort(reason));
        Ok(())
    }

    /// The first cause if the communicator has failed; None if it has not.
    fn failure<'py>(&self, py: Python<'py>) -> PyResult<Option<Bound<'py, PyAny>>> {
        let inner = self.get(py)?;
        let error = py.detach(|| inner.failure());
        let exception = error.map(|error| exception_of(py, error.first_cause()));
        exception.transpose()
    }

    /// Ends the communicator on all ranks: returns when all have called it.
    fn finalize(&self, py: Python<'_>) -> PyResult<()> {
        self.get(py)?;
        match self.take() {
            Some(inner) => waiting::run(py, move || inner.finalize()),
            None => Ok(()),
        }
    }

    /// Closes it on this rank, without waiting for the others to call it; nothing happens if it
    /// was closed before. A rank that still needs this one gets an error.
    fn close(&self, py: Python<'_>) {
        let inner = self.take();
        py.detach(|| drop(inner));
    }

    /// Itself.
    fn __enter__(slf: Py<Self>) -> Py<Self> {
        slf
    }

    /// Ends it as finalize() does, or after an exception as close() does.
    #[pyo3(signature = (kind, _value, _traceback))]
    fn __exit__(
        &self,
        py: Python<'_>,
        kind: Option<Bound<'_, PyAny>>,
        _value: Option<Bound<'_, PyAny>>,
        _traceback: Option<Bound<'_, PyAny>>,
    ) -> PyResult<()> {
        match kind {
            // Others are not waited for that may never come.
            Some(_) => self.close(py),
            None if self.is_open() => self.finalize(py)?,
            None => {}
        }
        Ok(())
    }

    fn __repr__(&self) -> String {
        self.description()
    }

    /// Registered memory of `count` elements of a type such as 'f32', all 0. Operations use it
    /// where it lies. Not collective.
    #[pyo3(signature = (count, dtype="f32"))]
    fn alloc(&self, py: Python<'_>, count: usize, dtype: &str) -> PyResult<Buffer> {
        Buffer::alloc(py, &self.get(py)?, count, dtype)
    }

    /// Registers memory that the caller owns, so that operations use it where it lies. It stays
    /// where it is until deregister().
    fn register(&self, py: Python<'_>, memory: &Bound<'_, PyAny>) -> PyResult<()> {
        Memory::of("memory", memory, true)?.register(py, &self.get(py)?)
    }

    /// Ends a registration of register().
    fn deregister(&self, py: Python<'_>, memory: &Bound<'_, PyAny>) -> PyResult<()> {
        Memory::of("memory", memory, true)?.deregister(py, &self.get(py)?)
    }

    /// A queue for operations of this communicator and of those made of it.
    fn completion_queue(&self, py: Python<'_>) -> PyResult<CompletionQueue> {
        let queue = self.get(py)?.completion_queue().or_raise(py)?;
        Ok(CompletionQueue::new(queue))
    }

    /// The reduction of all ranks' `input`, on every rank: in `output`, or in place. Both have n
    /// elements of one type, equal on all ranks. `op` is 'sum', 'avg', 'min', 'max', 'prod',
    /// 'premulsum:FACTOR', 'bitand', 'bitor' or 'bitxor'.
    #[pyo3(signature = (input, output=None, *, op="sum", algorithm=None, timeout=None, async_op=false))]
    #[allow(clippy::too_many_arguments)]
    fn all_reduce(
        slf: Bound<'_, Self>,
        input: &Bound<'_, PyAny>,
        output: Option<&Bound<'_, PyAny>>,
        op: &str,
        algorithm: Option<&str>,
        timeout: Option<f64>,
        async_op: bool,
    ) -> PyResult<Option<Operation>> {
        let options =
            Options::new(slf.py(), algorithm, timeout, async_op)?.with_op(slf.py(), op)?;
        let call = Arguments::inout(Collective::AllReduce, input, output)?;
        options.run(&slf, call)
    }

    /// The root's elements, on all ranks: `data` has n elements, equal on all ranks.
    #[pyo3(signature = (data, root=0, *, algorithm=None, timeout=None, async_op=false))]
    fn broadcast(
        slf: Bound<'_, Self>,
        data: &Bound<'_, PyAny>,
        root: u32,
        algorithm: Option<&str>,
        timeout: Option<f64>,
        async_op: bool,
    ) -> PyResult<Option<Operation>> {
        let options = Options::new(slf.py(), algorithm, timeout, async_op)?.with_root(root);
        options.run(&slf, Arguments::inout(Collective::Broadcast, data, None)?)
    }

    /// The reduction of all ranks' `input`, on the root: in `output`, or in place. Both have n
    /// elements. Operators are those of all_reduce().
    #[pyo3(signature = (input, root=0, output=None, *, op="sum", algorithm=None, timeout=None, async_op=false))]
    #[allow(clippy::too_many_arguments)]
    fn reduce(
        slf: Bound<'_, Self>,
        input: &Bound<'_, PyAny>,
        root: u32,
        output: Option<&Bound<'_, PyAny>>,
        op: &str,
        algorithm: Option<&str>,
        timeout: Option<f64>,
        async_op: bool,
    ) -> PyResult<Option<Operation>> {
        let options =
            Options::new(slf.py(), algorithm, timeout, async_op)?.with_op(slf.py(), op)?;
        let call = Arguments::inout(Collective::Reduce, input, output)?;
        options.with_root(root).run(&slf, call)
    }

    /// Block r of every `output` is rank r's `input`. An input has n elements, and an output has n
    /// for each rank, in the order of ranks.
    #[pyo3(signature = (input, output, *, algorithm=None, timeout=None, async_op=false))]
    fn all_gather(
        slf: Bound<'_, Self>,
        input: &Bound<'_, PyAny>,
        output: &Bound<'_, PyAny>,
        algorithm: Option<&str>,
        timeout: Option<f64>,
        async_op: bool,
    ) -> PyResult<Option<Operation>> {
        let options = Options::new(slf.py(), algorithm, timeout, async_op)?;
        let call = Arguments::of(Collective::AllGather, Some(input), Some(output))?;
        options.run(&slf, call)
    }

    /// Rank r's `output` is the reduction of block r of all `input`s. An output has n elements, and
    /// an input has n for each rank. Operators are those of all_reduce().
    #[pyo3(signature = (input, output, *, op="sum", algorithm=None, timeout=None, async_op=false))]
    #[allow(clippy::too_many_arguments)]
    fn reduce_scatter(
        slf: Bound<'_, Self>,
        input: &Bound<'_, PyAny>,
        output: &Bound<'_, PyAny>,
        op: &str,
        algorithm: Option<&str>,
        timeout: Option<f64>,
        async_op: bool,
    ) -> PyResult<Option<Operation>> {
        let options =
            Options::new(slf.py(), algorithm, timeout, async_op)?.with_op(slf.py(), op)?;
        let call = Arguments::of(Collective::ReduceScatter, Some(input), Some(output))?;
        options.run(&slf, call)
    }

    /// Block r of the root's `output` is rank r's `input`. An input has n elements, and the output
    /// has n for each rank; other ranks need none.
    #[pyo3(signature = (input, output=None, root=0, *, algorithm=None, timeout=None, async_op=false))]
    #[allow(clippy::too_many_arguments)]
    fn gather(
        slf: Bound<'_, Self>,
        input: &Bound<'_, PyAny>,
        output: Option<&Bound<'_, PyAny>>,
        root: u32,
        algorithm: Option<&str>,
        timeout: Option<f64>,
        async_op: bool,
    ) -> PyResult<Option<Operation>> {
        let options = Options::new(slf.py(), algorithm, timeout, async_op)?.with_root(root);
        let call = Arguments::of(Collective::Gather, Some(input), output)?;
        options.run(&slf, call)
    }

    /// Rank r's `output` is block r of the root's `input`. An output has n elements, and the input
    /// has n for each rank; other ranks need none.
    #[pyo3(signature = (output, input=None, root=0, *, algorithm=None, timeout=None, async_op=false))]
    #[allow(clippy::too_many_arguments)]
    fn scatter(
        slf: Bound<'_, Self>,
        output: &Bound<'_, PyAny>,
        input: Option<&Bound<'_, PyAny>>,
        root: u32,
        algorithm: Option<&str>,
        timeout: Option<f64>,
        async_op: bool,
    ) -> PyResult<Option<Operation>> {
        let options = Options::new(slf.py(), algorithm, timeout, async_op)?.with_root(root);
        let call = Arguments::of(Collective::Scatter, input, Some(output))?;
        options.run(&slf, call)
    }

    /// Block r of `input` goes to rank r, and comes from it to block r of `output`. Both have n
    /// elements for each rank.
    #[pyo3(signature = (input, output, *, algorithm=None, timeout=None, async_op=false))]
    fn all_to_all(
        slf: Bound<'_, Self>,
        input: &Bound<'_, PyAny>,
        output: &Bound<'_, PyAny>,
        algorithm: Option<&str>,
        timeout: Option<f64>,
        async_op: bool,
    ) -> PyResult<Option<Operation>> {
        let options = Options::new(slf.py(), algorithm, timeout, async_op)?;
        let call = Arguments::of(Collective::AllToAll, Some(input), Some(output))?;
        options.run(&slf, call)
    }

    /// As all_gather(), with a number of elements for each rank, `counts`, equal on all ranks: rank
    /// r's `input` has counts[r] elements, and every `output` has the sum of all. A list with
    /// memory for each rank may be the `output`; its lengths are the counts if none are given.
    #[pyo3(signature = (input, output, counts=None, *, algorithm=None, timeout=None, async_op=false))]
    #[allow(clippy::too_many_arguments)]
    fn all_gather_v(
        slf: Bound<'_, Self>,
        input: &Bound<'_, PyAny>,
        output: &Bound<'_, PyAny>,
        counts: Option<Vec<u64>>,
        algorithm: Option<&str>,
        timeout: Option<f64>,
        async_op: bool,
    ) -> PyResult<Option<Operation>> {
        let options = Options::new(slf.py(), algorithm, timeout, async_op)?;
        let call = Arguments::of(Collective::AllGatherV, Some(input), Some(output))?;
        options.with_counts(None, counts).run(&slf, call)
    }

    /// As reduce_scatter(), with a number of elements for each rank, `counts`, equal on all ranks:
    /// rank r's `output` has counts[r] elements, and every `input` has the sum of all. A list with
    /// memory for each rank may be the `input`; its lengths are the counts if none are given.
    #[pyo3(signature = (input, output, counts=None, *, op="sum", algorithm=None, timeout=None, async_op=false))]
    #[allow(clippy::too_many_arguments)]
    fn reduce_scatter_v(
        slf: Bound<'_, Self>,
        input: &Bound<'_, PyAny>,
        output: &Bound<'_, PyAny>,
        counts: Option<Vec<u64>>,
        op: &str,
        algorithm: Option<&str>,
        timeout: Option<f64>,
        async_op: bool,
    ) -> PyResult<Option<Operation>> {
        let options =
            Options::new(slf.py(), algorithm, timeout, async_op)?.with_op(slf.py(), op)?;
        let call = Arguments::of(Collective::ReduceScatterV, Some(input), Some(output))?;
        options.with_counts(None, counts).run(&slf, call)
    }

    /// As all_to_all(), with a number of elements for each pair: `input` has send_counts[r]
    /// elements for rank r, and `output` has receive_counts[r] from it, in the order of ranks.
    /// Never in place. Lists with memory for each rank may be `input` and `output`; their lengths
    /// are the counts where None is given.
    #[pyo3(signature = (input, send_counts, output, receive_counts, *, algorithm=None, timeout=None, async_op=false))]
    #[allow(clippy::too_many_arguments)]
    fn all_to_all_v(
        slf: Bound<'_, Self>,
        input: &Bound<'_, PyAny>,
        send_counts: Option<Vec<u64>>,
        output: &Bound<'_, PyAny>,
        receive_counts: Option<Vec<u64>>,
        algorithm: Option<&str>,
        timeout: Option<f64>,
        async_op: bool,
    ) -> PyResult<Option<Operation>> {
        let options = Options::new(slf.py(), algorithm, timeout, async_op)?;
        let call = Arguments::of(Collective::AllToAllV, Some(input), Some(output))?;
        options
            .with_counts(send_counts, receive_counts)
            .run(&slf, call)
    }

    /// As gather(), with a number of elements for each rank, `counts`, equal on all ranks: rank r's
    /// `input` has counts[r] elements, and the root's `output` has the sum of all, or is a list
    /// with memory for each rank.
    #[pyo3(signature = (input, counts, output=None, root=0, *, algorithm=None, timeout=None, async_op=false))]
    #[allow(clippy::too_many_arguments)]
    fn gather_v(
        slf: Bound<'_, Self>,
        input: &Bound<'_, PyAny>,
        counts: Vec<u64>,
        output: Option<&Bound<'_, PyAny>>,
        root: u32,
        algorithm: Option<&str>,
        timeout: Option<f64>,
        async_op: bool,
    ) -> PyResult<Option<Operation>> {
        let options = Options::new(slf.py(), algorithm, timeout, async_op)?.with_root(root);
        let call = Arguments::of(Collective::GatherV, Some(input), output)?;
        options.with_counts(None, Some(counts)).run(&slf, call)
    }

    /// As scatter(), with a number of elements for each rank, `counts`, equal on all ranks: rank
    /// r's `output` has counts[r] elements, and the root's `input` has the sum of all, or is a list
    /// with memory for each rank.
    #[pyo3(signature = (output, counts, input=None, root=0, *, algorithm=None, timeout=None, async_op=false))]
    #[allow(clippy::too_many_arguments)]
    fn scatter_v(
        slf: Bound<'_, Self>,
        output: &Bound<'_, PyAny>,
        counts: Vec<u64>,
        input: Option<&Bound<'_, PyAny>>,
        root: u32,
        algorithm: Option<&str>,
        timeout: Option<f64>,
        async_op: bool,
    ) -> PyResult<Option<Operation>> {
        let options = Options::new(slf.py(), algorithm, timeout, async_op)?.with_root(root);
        let call = Arguments::of(Collective::ScatterV, input, Some(output))?;
        options.with_counts(None, Some(counts)).run(&slf, call)
    }

    /// Returns when all ranks have called it; an Operation has ended then.
    #[pyo3(signature = (*, timeout=None, async_op=false))]
    fn barrier(
        slf: Bound<'_, Self>,
        timeout: Option<f64>,
        async_op: bool,
    ) -> PyResult<Option<Operation>> {
        let options = Options::new(slf.py(), None, timeout, async_op)?;
        options.run(&slf, Arguments::of(Collective::Barrier, None, None)?)
    }

    /// Sends the elements of `data` to the rank `peer`, with a tag of 32 bits that the receive
    /// names, too. It may end before the message is received; `data` may be changed then.
    #[pyo3(signature = (data, peer, tag=0, *, timeout=None, async_op=false))]
    fn send(
        slf: Bound<'_, Self>,
        data: &Bound<'_, PyAny>,
        peer: u32,
        tag: u32,
        timeout: Option<f64>,
        async_op: bool,
    ) -> PyResult<Option<Operation>> {
        let options = Options::new(slf.py(), None, timeout, async_op)?;
        let memory = Memory::of("data", data, false)?;
        options.transfer(&slf, memory, tag, |tagged, data| {
            tagged.start_send(data, peer)
        })
    }

    /// Receives into `data`, which is as long as what is sent, from the rank `peer`, or from any if
    /// that is None. Returns the rank that has sent; with async_op the Operation, whose `source` it
    /// is.
    #[pyo3(signature = (data, peer=None, tag=0, *, timeout=None, async_op=false))]
    fn recv<'py>(
        slf: Bound<'py, Self>,
        data: &Bound<'py, PyAny>,
        peer: Option<u32>,
        tag: u32,
        timeout: Option<f64>,
        async_op: bool,
    ) -> PyResult<Bound<'py, PyAny>> {
        let py = slf.py();
        let options = Options::new(py, None, timeout, true)?;
        let memory = Memory::of("data", data, true)?;
        let started = options.transfer(&slf, memory, tag, |tagged, memory| match peer {
            Some(peer) => tagged.start_recv(memory, peer),
            None => tagged.start_recv_any(memory),
        })?;
        let operation = Bound::new(py, started.expect("it was started"))?;
        if async_op {
            return Ok(operation.into_any());
        }
        operation.get().wait_for(py, None)?;
        operation.getattr("source")
    }

    /// A PartialAllreduce of vectors of `count` elements of `dtype`, which has the options, too.
    /// Collective.
    #[pyo3(signature = (count, dtype="f32", **options))]
    fn partial<'py>(
        slf: Bound<'py, Self>,
        count: u64,
        dtype: &str,
        options: Option<&Bound<'py, PyDict>>,
    ) -> PyResult<Bound<'py, PyAny>> {
        slf.py()
            .get_type::<PartialAllreduce>()
            .call((slf, count, dtype), options)
    }

    /// A SparseAllreduce of one tensor, if `tensors` is a number of elements, or of a list of
    /// tensors: (name, count). SparseAllreduce has the options, too. Collective.
    #[pyo3(signature = (tensors, **options))]
    fn sparse<'py>(
        slf: Bound<'py, Self>,
        tensors: Bound<'py, PyAny>,
        options: Option<&Bound<'py, PyDict>>,
    ) -> PyResult<Bound<'py, PyAny>> {
        slf.py()
            .get_type::<SparseAllreduce>()
            .call((slf, tensors), options)
    }

    /// A Fusion buffer of a list of tensors: (name, count) or (name, count, type). Fusion has the
    /// options, too. Collective.
    #[pyo3(signature = (tensors, **options))]
    fn fusion<'py>(
        slf: Bound<'py, Self>,
        tensors: Bound<'py, PyAny>,
        options: Option<&Bound<'py, PyDict>>,
    ) -> PyResult<Bound<'py, PyAny>> {
        slf.py().get_type::<Fusion>().call((slf, tensors), options)
    }

    /// What a collective such as 'all_reduce' of `count` elements of `dtype` would run here, and
    /// why. With is_registered the memory is of alloc() on all ranks. Starts nothing.
    #[pyo3(signature = (collective, count, dtype="f32", *, op="sum", root=0, algorithm=None, is_registered=false))]
    #[allow(clippy::too_many_arguments)]
    fn explain(
        &self,
        py: Python<'_>,
        collective: &str,
        count: u64,
        dtype: &str,
        op: &str,
        root: u32,
        algorithm: Option<&str>,
        is_registered: bool,
    ) -> PyResult<Explanation> {
        let (call, more) = ((collective, count, dtype), (op, root, algorithm));
        pure::explain(py, &self.get(py)?, call, more, is_registered)
    }
}
