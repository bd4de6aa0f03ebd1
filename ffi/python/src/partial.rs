//! Partial allreduces: rounds that do not wait for slow ranks.

use crate::communicator::Communicator;
use crate::errors::{OrRaise, invalid};
use crate::memory::Keep;
use crate::queue::CompletionQueue;
use crate::vectors::Vector;
use crate::waiting;
use crate::words::{one_of, text_of};
use linerate::options::{Delivery, Divisor};
use linerate::reports::Waited;
use linerate::reports::{self, RankSet};
use linerate::{Buffer, DataType, PartialOptions, Policy};
use pyo3::prelude::*;
use pyo3::types::PyTuple;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

const DELIVERIES: [(&str, Delivery); 3] = [
    ("ordered", Delivery::Ordered),
    ("merged", Delivery::Merged),
    ("latest", Delivery::Latest),
];
const DIVISORS: [(&str, Divisor); 4] = [
    ("creation", Divisor::Creation),
    ("live", Divisor::Live),
    ("generations", Divisor::Generations),
    ("one", Divisor::One),
];
const WAITED: [(&str, Waited); 3] = [
    ("policy", Waited::Policy),
    ("full", Waited::Full),
    ("staleness", Waited::Staleness),
];

/// An allreduce that does not wait for slow ranks. In each step a rank submits its gradient and
/// takes a result. A gradient that is late for its round is part of a later one, so every gradient
/// is in exactly one sum. A thread of its own moves the rounds while the application computes.
///
/// PartialAllreduce(communicator, count, dtype) makes one for vectors of `count` elements of
/// `dtype`. Collective: all ranks give equal arguments. Rounds and other operations of the
/// communicator may be under way at once.
///
/// policy says when a round begins: 'solo' (with the first arrival), 'majority' (half of the
/// ranks), 'quorum' (`quorum` ranks), 'full' (all ranks), 'random-initiator' (a rank that is drawn
/// for each round from `seed`), or 'deadline' (`deadline` seconds after the first arrival, and not
/// before `quorum` ranks have arrived).
/// limiter: every (limiter + 1)-th round waits for all ranks; None: no round does.
/// staleness_max: the number of rounds after its own in which a gradient is included at the latest,
/// 0 to 1024; None: no bound, which needs another delivery than 'ordered'.
/// rounds_in_flight: the steps that a rank may be ahead of its last result, 1 to 4.
/// delivery: 'ordered' gives every result in order, 'merged' the sum of all rounds since the last
/// result, 'latest' only the newest result.
/// divisor: the sum is divided by the number of ranks at 'creation', of ranks that 'live', of
/// gradients in it ('generations'), or by 'one'.
/// survive: the living ranks go on after a rank has died.
#[pyclass(frozen, module = "linerate")]
pub struct PartialAllreduce {
    inner: Mutex<Option<Arc<linerate::PartialAllreduce>>>,
    communicator: Py<Communicator>,
    count: u64,
    dtype: DataType,
}

/// The policy of a text, with what only some policies take.
fn policy_of(
    py: Python<'_>,
    text: &str,
    quorum: Option<u32>,
    deadline: Option<f64>,
    seed: Option<u64>,
) -> PyResult<Policy> {
    let ranks = quorum.unwrap_or(1);
    let time = waiting::seconds(py, "deadline", deadline)?;
    let policies = [
        ("solo", Policy::Solo),
        ("majority", Policy::Majority),
        ("quorum", Policy::Quorum(ranks)),
        ("full", Policy::Full),
        (
            "random-initiator",
            Policy::RandomInitiator {
                seed: seed.unwrap_or(0),
            },
        ),
        (
            "deadline",
            Policy::Deadline {
                quorum: ranks,
                time: time.unwrap_or(Duration::ZERO),
            },
        ),
    ];
    let policy = one_of(py, "policy", text, &policies)?;
    let has_quorum = matches!(policy, Policy::Quorum(_) | Policy::Deadline { .. });
    let has_deadline = matches!(policy, Policy::Deadline { .. });
    let has_seed = matches!(policy, Policy::RandomInitiator { .. });
    for (name, is_given, is_taken) in [
        ("quorum", quorum.is_some(), has_quorum),
        ("deadline", deadline.is_some(), has_deadline),
        ("seed", seed.is_some(), has_seed),
    ] {
        if is_given && !is_taken {
            return Err(invalid(
                py,
                format!("{name} is given, and the policy '{text}' has none"),
            ));
        }
    }
    let missing = match policy {
        Policy::Quorum(_) if quorum.is_none() => "quorum",
        Policy::Deadline { .. } if deadline.is_none() => "deadline",
        _ => return Ok(policy),
    };
    Err(invalid(py, format!("the policy '{text}' needs {missing}")))
}

impl PartialAllreduce {
    fn get(&self, py: Python<'_>) -> PyResult<Arc<linerate::PartialAllreduce>> {
        let inner = self.inner.lock().unwrap_or_else(PoisonError::into_inner);
        (inner.clone()).ok_or_else(|| invalid(py, "this partial allreduce was closed"))
    }

    fn vector(
        &self,
        name: &str,
        argument: &Bound<'_, PyAny>,
        is_written: bool,
    ) -> PyResult<Vector> {
        let communicator = self.communicator.get().get(argument.py())?;
        let length = (self.count, self.dtype);
        Vector::of(&communicator, (name, argument), is_written, length)
    }

    /// Calls `work` with the partial allreduce by a thread, which keeps the memory.
    fn run<T: Send + 'static>(
        &self,
        py: Python<'_>,
        keep: Vec<Keep>,
        work: impl FnOnce(&linerate::PartialAllreduce) -> linerate::Result<T> + Send + 'static,
    ) -> PyResult<T> {
        let partial = self.get(py)?;
        let (result, keep) = waiting::run(py, move || Ok((work(&partial), keep)))?;
        drop(keep);
        result.or_raise(py)
    }

    fn take(
        &self,
        py: Python<'_>,
        update: Vector,
        work: impl FnOnce(
            &linerate::PartialAllreduce,
            &Buffer<u8>,
        ) -> linerate::Result<Option<reports::RoundReport>>
        + Send
        + 'static,
    ) -> PyResult<Option<RoundReport>> {
        let Vector { buffer, keep } = update;
        let report = self.run(py, vec![keep], move |partial| work(partial, &buffer))?;
        Ok(report.map(RoundReport))
    }
}

#[pymethods]
impl PartialAllreduce {
    #[new]
    #[pyo3(signature = (
        communicator, count, dtype="f32", *, policy="majority", quorum=None, deadline=None, seed=None,
        limiter=None, staleness_max=8, rounds_in_flight=1, delivery="ordered", divisor="creation",
        survive=false
    ))]
    #[allow(clippy::too_many_arguments)]
    fn new(
        py: Python<'_>,
        communicator: Py<Communicator>,
        count: u64,
        dtype: &str,
        policy: &str,
        quorum: Option<u32>,
        deadline: Option<f64>,
        seed: Option<u64>,
        limiter: Option<u32>,
        staleness_max: Option<u32>,
        rounds_in_flight: u32,
        delivery: &str,
        divisor: &str,
        survive: bool,
    ) -> PyResult<PartialAllreduce> {
        let dtype = dtype.parse::<DataType>().or_raise(py)?;
        let options = PartialOptions {
            policy: policy_of(py, policy, quorum, deadline, seed)?,
            limiter,
            staleness_max,
            rounds_in_flight,
            delivery: one_of(py, "delivery", delivery, &DELIVERIES)?,
            divisor: one_of(py, "divisor", divisor, &DIVISORS)?,
            survive,
        };
        let comm = communicator.get().get(py)?;
        let made = waiting::run(py, move || {
            linerate::PartialAllreduce::new(&comm, dtype, count, options)
        })?;
        Ok(PartialAllreduce {
            inner: Mutex::new(Some(Arc::new(made))),
            communicator,
            count,
            dtype,
        })
    }

    /// Submits the gradient of this rank's next step, `count` elements, and returns the number of
    /// the step, from 0 on. The gradient is copied. Waits only if this rank is rounds_in_flight
    /// steps ahead of the last result that it has taken.
    fn submit(&self, py: Python<'_>, gradient: &Bound<'_, PyAny>) -> PyResult<u64> {
        let Vector { buffer, keep } = self.vector("gradient", gradient, false)?;
        self.run(py, vec![keep], move |partial| partial.submit(&buffer))
    }

    /// Takes the next result: waits for it, copies it to `update` (`count` elements), and returns
    /// its report. None: no result is due before the next submit. Ctrl-C ends the wait; the result
    /// that was waited for still goes to `update`, and is not given again.
    fn next(&self, py: Python<'_>, update: &Bound<'_, PyAny>) -> PyResult<Option<RoundReport>> {
        let vector = self.vector("update", update, true)?;
        let partial = self.get(py)?;
        // Most results are there already: no thread has to wait for them.
        let buffer = &vector.buffer;
        if let Some(report) = py.detach(|| partial.try_next(buffer)).or_raise(py)? {
            return Ok(Some(RoundReport(report)));
        }
        self.take(py, vector, |partial, update| partial.next(update))
    }

    /// As next(), and returns None instead of waiting. A rank that is behind catches up by calling
    /// it until it returns None.
    fn try_next(&self, py: Python<'_>, update: &Bound<'_, PyAny>) -> PyResult<Option<RoundReport>> {
        let vector = self.vector("update", update, true)?;
        let partial = self.get(py)?;
        let report = py
            .detach(|| partial.try_next(&vector.buffer))
            .or_raise(py)?;
        Ok(report.map(RoundReport))
    }

    /// Submits a gradient and takes the next result, as submit() and next() do. The result goes to
    /// `update`, or in place of the gradient.
    #[pyo3(signature = (gradient, update=None))]
    fn exchange(
        &self,
        py: Python<'_>,
        gradient: &Bound<'_, PyAny>,
        update: Option<&Bound<'_, PyAny>>,
    ) -> PyResult<Option<RoundReport>> {
        let Some(update) = update else {
            let both = self.vector("gradient", gradient, true)?;
            return self.take(py, both, |partial, both| partial.exchange(both, both));
        };
        let from = self.vector("gradient", gradient, false)?;
        let to = self.vector("update", update, true)?;
        let keep = vec![from.keep, to.keep];
        let report = self.run(py, keep, move |partial| {
            partial.exchange(&from.buffer, &to.buffer)
        })?;
        Ok(report.map(RoundReport))
    }

    /// Runs a round that waits for all ranks and has everything that any of them has not delivered.
    /// Every result that this rank has not taken yet, and then that of this round, is copied to
    /// `update`, and `visit` is called with its report while `update` holds it. Returns all these
    /// reports. Collective, after as many submits on all ranks: at the end, and before validation
    /// and checkpoints. Submits may go on afterwards.
    #[pyo3(signature = (update, visit=None))]
    fn finish(
        &self,
        py: Python<'_>,
        update: &Bound<'_, PyAny>,
        visit: Option<Py<PyAny>>,
    ) -> PyResult<Vec<RoundReport>> {
        let Vector { buffer, keep } = self.vector("update", update, true)?;
        let is_left = Arc::new(AtomicBool::new(false));
        let has_left = is_left.clone();
        let work = move |partial: &linerate::PartialAllreduce| {
            let (mut told, mut raised) = (Vec::new(), None);
            partial.finish(&buffer, |report| {
                let report = RoundReport(report);
                if let Some(visit) = &visit
                    && raised.is_none()
                    && !has_left.load(Ordering::Relaxed)
                {
                    let call = |py: Python<'_>| visit.call1(py, (report.clone(),)).err();
                    raised = Python::try_attach(call).flatten();
                }
                told.push(report);
            })?;
            Ok((told, raised))
        };
        let ended = self.run(py, vec![keep], work);
        // After Ctrl-C the thread goes on, and calls nothing any more.
        is_left.store(true, Ordering::Relaxed);
        match ended? {
            (_, Some(raised)) => Err(raised),
            (told, None) => Ok(told),
        }
    }

    /// Has a queue told, once, with the number `user`, when a result can be taken or the rounds
    /// have failed. try_next() then has the result, or raises the error. An error if no result is
    /// due before the next submit.
    fn notify(&self, py: Python<'_>, queue: &CompletionQueue, user: u64) -> PyResult<()> {
        let (partial, queue) = (self.get(py)?, queue.get(py)?);
        py.detach(|| partial.notify(&queue, user)).or_raise(py)
    }

    /// The number of rounds that have ended less that of this rank's submits, at least 0.
    fn lag(&self, py: Python<'_>) -> PyResult<u64> {
        let partial = self.get(py)?;
        Ok(py.detach(|| partial.lag()))
    }

    /// The number of elements of a vector.
    #[getter]
    fn count(&self) -> u64 {
        self.count
    }

    /// The type of the elements, such as 'f32'.
    #[getter]
    fn dtype(&self) -> &'static str {
        self.dtype.name()
    }

    /// The communicator that it was made from.
    #[getter]
    fn communicator<'py>(&self, py: Python<'py>) -> Bound<'py, Communicator> {
        self.communicator.bind(py).clone()
    }

    /// Ends it on this rank. Call finish() before, so that nothing is lost. In the middle of a
    /// round it fails on all ranks, unless they survive. Nothing happens if it was closed before.
    fn close(&self, py: Python<'_>) {
        let mut inner = self.inner.lock().unwrap_or_else(PoisonError::into_inner);
        let taken = inner.take();
        drop(inner);
        py.detach(|| drop(taken));
    }

    fn __repr__(&self) -> String {
        format!(
            "linerate.PartialAllreduce({} of {})",
            self.count, self.dtype
        )
    }
}

/// What a round of a partial allreduce was, equal on all ranks.
#[pyclass(frozen, module = "linerate")]
#[derive(Clone)]
pub struct RoundReport(reports::RoundReport);

fn ranks<'py>(py: Python<'py>, set: &RankSet) -> PyResult<Bound<'py, PyTuple>> {
    PyTuple::new(py, set.iter().collect::<Vec<u32>>())
}

#[pymethods]
impl RoundReport {
    /// Its number, from 0 on; that of the newest round if the result has several.
    #[getter]
    fn round(&self) -> u64 {
        self.0.round
    }

    /// The number of rounds in the result, or skipped by it; 1 with ordered delivery.
    #[getter]
    fn rounds(&self) -> u64 {
        self.0.rounds
    }

    /// The ranks whose gradient of this round was there in time, ascending.
    #[getter]
    fn active<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyTuple>> {
        ranks(py, &self.0.active)
    }

    /// The ranks that contributed anything, late gradients included, ascending.
    #[getter]
    fn included<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyTuple>> {
        ranks(py, &self.0.included)
    }

    /// The ranks for which the round waited because of staleness_max, ascending.
    #[getter]
    fn held<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyTuple>> {
        ranks(py, &self.0.held)
    }

    /// The ranks that had died, ascending.
    #[getter]
    fn dead<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyTuple>> {
        ranks(py, &self.0.dead)
    }

    /// The number of gradients in the sum by their staleness in rounds: first those of this round,
    /// then those of the round before, and so on.
    #[getter]
    fn staleness<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyTuple>> {
        PyTuple::new(py, &self.0.staleness)
    }

    /// The number of gradients in the sum.
    #[getter]
    fn generations(&self) -> u64 {
        self.0.generations()
    }

    /// Why it waited: for its 'policy', for all ranks ('full'), or for stale ranks ('staleness').
    #[getter]
    fn waited(&self) -> &'static str {
        text_of(&self.0.waited, &WAITED)
    }

    /// What the sum was divided by; 1 if by nothing.
    #[getter]
    fn divisor(&self) -> u64 {
        self.0.divisor
    }

    /// Whether it was the round of finish().
    #[getter]
    fn is_last(&self) -> bool {
        self.0.is_last
    }

    fn __repr__(&self) -> String {
        format!("linerate.RoundReport({})", self.0)
    }
}
