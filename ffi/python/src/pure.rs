//! Functions without ranks: schedules, predicted times and plans of fusion; and what a communicator
//! says of its choice.

use crate::errors::{OrRaise, invalid};
use crate::fusion::options_of;
use crate::words::tensors_of;
use linerate::collective::{self, Request};
use linerate::{Collective, DataType, Rank, ReduceOp, reports};
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyTuple};

/// The names of the algorithms of a collective, such as 'all_reduce' or 'broadcast'.
#[pyfunction]
pub fn algorithms<'py>(py: Python<'py>, collective: &str) -> PyResult<Bound<'py, PyTuple>> {
    let collective = collective.parse::<Collective>().or_raise(py)?;
    let all = collective::algorithms(collective).iter();
    PyTuple::new(py, all.map(|algorithm| algorithm.name))
}

/// One host without a list of hosts. The library refuses more ranks than have a place here.
fn hosts_of(hosts: Option<Vec<u32>>, ranks: u32) -> Vec<u32> {
    hosts.unwrap_or_else(|| vec![0; ranks.min(1 << 16) as usize])
}

/// The schedule of one rank of `ranks` as text: a line for each step, with the steps that it waits
/// for. Ranges are parts of buffers: `in[1/4]` is the second of four blocks of the input. `hosts`
/// has the number of each rank's host; None: all ranks share one.
#[pyfunction]
#[pyo3(signature = (collective, algorithm, ranks, rank=0, *, root=0, in_place=false, hosts=None))]
#[allow(clippy::too_many_arguments)]
pub fn schedule(
    py: Python<'_>,
    collective: &str,
    algorithm: &str,
    ranks: u32,
    rank: Rank,
    root: Rank,
    in_place: bool,
    hosts: Option<Vec<u32>>,
) -> PyResult<String> {
    let collective = collective.parse::<Collective>().or_raise(py)?;
    let algorithm = collective::find(collective, algorithm).or_raise(py)?;
    let request = Request {
        collective,
        rank,
        ranks,
        root,
        in_place,
        premultiply: false,
        hosts: hosts_of(hosts, ranks),
        maps_host: true,
        is_mapped: true,
    };
    request.check().or_raise(py)?;
    Ok(py.detach(|| (algorithm.build)(&request).to_string()))
}

/// The seconds that the cost model predicts for every algorithm that can run the collective, by
/// name, cheapest first. `count` elements of `dtype` are what each rank gives, as in the method of
/// the collective's name. Ranks of one host share memory and `cores` cores (None: one for each
/// rank); with `hosts`, the number of each rank's host, they are on a fabric of 100 Gbit/s. With
/// is_registered the memory is of Communicator.alloc() on all ranks. Prices are those of one
/// machine: Communicator.explain() knows the host that it is on.
#[pyfunction]
#[pyo3(signature = (
    collective, count, dtype="f32", *, ranks, root=0, hosts=None, cores=None, is_registered=false
))]
#[allow(clippy::too_many_arguments)]
pub fn cost<'py>(
    py: Python<'py>,
    collective: &str,
    count: u64,
    dtype: &str,
    ranks: u32,
    root: Rank,
    hosts: Option<Vec<u32>>,
    cores: Option<u32>,
    is_registered: bool,
) -> PyResult<Bound<'py, PyDict>> {
    let collective = collective.parse::<Collective>().or_raise(py)?;
    let dtype = dtype.parse::<DataType>().or_raise(py)?;
    if cores == Some(0) {
        return Err(invalid(py, "cores is 0: 1 or more, or None"));
    }
    let request = Request {
        collective,
        rank: 0,
        ranks,
        root,
        in_place: false,
        premultiply: false,
        hosts: hosts_of(hosts, ranks),
        maps_host: true,
        is_mapped: true,
    };
    let bytes = count.saturating_mul(dtype.size_bytes() as u64);
    let cores = cores.unwrap_or(ranks);
    let all = collective::predict(&request, bytes, cores, is_registered).or_raise(py)?;
    let times = PyDict::new(py);
    for candidate in all {
        times.set_item(candidate.algorithm.name, candidate.predicted_ns * 1e-9)?;
    }
    Ok(times)
}

/// The flushes of a fusion buffer if all tensors are ready at once: for each a list of the numbers
/// of its tensors. `tensors` and the options are those of Fusion, whose `plan` the result may be.
#[pyfunction]
#[pyo3(signature = (tensors, *, bytes_max=67108864, tensors_max=None))]
pub fn fusion_plan(
    py: Python<'_>,
    tensors: &Bound<'_, PyAny>,
    bytes_max: u64,
    tensors_max: Option<usize>,
) -> PyResult<Vec<Vec<u32>>> {
    let tensors = tensors_of(tensors)?;
    options_of(bytes_max, tensors_max)
        .plan(tensors)
        .or_raise(py)
}

/// What a collective would run on a communicator, and why. Times are seconds.
#[pyclass(frozen, module = "linerate")]
pub struct Explanation(reports::Explanation);

/// What a communicator would run; see `Communicator.explain`.
pub fn explain(
    py: Python<'_>,
    communicator: &linerate::Communicator,
    (collective, count, dtype): (&str, u64, &str),
    (op, root, algorithm): (&str, Rank, Option<&str>),
    is_registered: bool,
) -> PyResult<Explanation> {
    let collective = collective.parse::<Collective>().or_raise(py)?;
    let dtype = dtype.parse::<DataType>().or_raise(py)?;
    let op = op.parse::<ReduceOp>().or_raise(py)?;
    let mut built = communicator.collective(collective, dtype, count);
    built = built.op(op).root(root);
    if let Some(algorithm) = algorithm {
        built = built.algorithm(algorithm);
    }
    if !is_registered {
        // It is only looked at whether it is registered.
        built = built.input(&linerate::Buffer::from_vec(vec![0u8]));
    }
    Ok(Explanation(built.explain().or_raise(py)?))
}

#[pymethods]
impl Explanation {
    /// The algorithm that runs, if the memory of all ranks is as this rank's.
    #[getter]
    fn algorithm(&self) -> &'static str {
        self.0.algorithm
    }

    /// The algorithm that all ranks plan. If it needs registered memory and some rank's is not
    /// registered, another one runs.
    #[getter]
    fn planned(&self) -> &'static str {
        self.0.planned
    }

    /// Why `algorithm` runs.
    #[getter]
    fn why(&self) -> &'static str {
        self.0.why
    }

    /// How bytes get from rank to rank, such as 'windows' or 'messages'.
    #[getter]
    fn path(&self) -> String {
        self.0.path.to_string()
    }

    /// The number of bytes of a chunk; messages are cut into chunks.
    #[getter]
    fn chunk_bytes(&self) -> u64 {
        self.0.chunk_bytes
    }

    /// The number of bytes of a window slot; 0 where windows are not used.
    #[getter]
    fn window_bytes(&self) -> u64 {
        self.0.window_bytes
    }

    /// The number of calls into which this one is cut, because a window slot holds no more.
    #[getter]
    fn segments(&self) -> u64 {
        self.0.segments
    }

    /// The number of threads of a rank that share large copies and reductions.
    #[getter]
    fn threads(&self) -> u32 {
        self.0.threads
    }

    /// The time that the cost model predicts for `algorithm`.
    #[getter]
    fn predicted(&self) -> f64 {
        self.0.predicted_ns * 1e-9
    }

    /// The predicted times of all algorithms that could run on such memory, by name, cheapest
    /// first.
    #[getter]
    fn candidates<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let times = PyDict::new(py);
        for candidate in &self.0.candidates {
            times.set_item(candidate.algorithm.name, candidate.predicted_ns * 1e-9)?;
        }
        Ok(times)
    }

    fn __repr__(&self) -> String {
        format!(
            "linerate.Explanation({} by {}: {}, predicted {:.3e} s)",
            self.0.algorithm,
            self.0.path,
            self.0.why,
            self.0.predicted_ns * 1e-9
        )
    }
}
