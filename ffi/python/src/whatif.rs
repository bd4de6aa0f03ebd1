//! Predictions without ranks: what another network would do for a step of training, and how long a
//! collective takes on a fabric.

use crate::errors::{OrRaise, invalid};
use linerate::sim::{Fabric, FabricCall};
use linerate::whatif::{
    self, Additions, Algorithm, FlushRule, Gradient, Measured, Members, Overhead, WhatIf,
};
use linerate::{Collective, DataType};
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyTuple};
use std::time::Duration;

/// The gradients of a step of training, in the order in which they become ready. Each of
/// `gradients` is (name, wait, count, dtype): seconds since the gradient before was ready, or since
/// the backward pass began, and elements. `step` is the time of a step without communication (None:
/// 1.5 times the backward pass), `forward` that of its forward pass.
#[pyclass(frozen, module = "linerate")]
pub struct Trace(whatif::Trace);

#[pymethods]
impl Trace {
    #[new]
    #[pyo3(signature = (gradients, *, name="", step=None, forward=None))]
    fn new(
        py: Python<'_>,
        gradients: Vec<(String, f64, u64, String)>,
        name: &str,
        step: Option<f64>,
        forward: Option<f64>,
    ) -> PyResult<Trace> {
        let mut all = Vec::with_capacity(gradients.len());
        for (name, wait, count, dtype) in gradients {
            let dtype = dtype.parse::<DataType>().or_raise(py)?;
            all.push(Gradient {
                name,
                wait_us: wait * 1e6,
                bytes: count.saturating_mul(dtype.size_bytes() as u64),
                dtype,
            });
        }
        let trace = whatif::Trace {
            name: name.into(),
            gradients: all,
            batch_ms: step.map(|seconds| seconds * 1e3),
            forward_ms: forward.map(|seconds| seconds * 1e3),
            steps: 1,
            ..whatif::Trace::default()
        };
        // A plan looks at every number.
        trace
            .plan(FlushRule::Paper, &WhatIf::default().fusion)
            .or_raise(py)?;
        Ok(Trace(trace))
    }

    /// A built-in trace ('resnet50', 'resnet101', 'vgg16'), or a file that torch.profiler, Horovod
    /// or `linerate replay --trace-out` has written.
    #[staticmethod]
    fn load(py: Python<'_>, name: &str) -> PyResult<Trace> {
        let trace = py.detach(|| whatif::Trace::load(name));
        Ok(Trace(trace.or_raise(py)?))
    }

    /// The name of the model, or the file's.
    #[getter]
    fn name(&self) -> &str {
        &self.0.name
    }

    /// The gradients, as the constructor takes them.
    #[getter]
    fn gradients<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyTuple>> {
        let all = self.0.gradients.iter().map(|gradient| {
            let count = gradient.bytes / gradient.dtype.size_bytes() as u64;
            let wait = gradient.wait_us * 1e-6;
            (gradient.name.clone(), wait, count, gradient.dtype.name())
        });
        PyTuple::new(py, all)
    }

    /// The number of bytes of all gradients.
    #[getter]
    fn bytes(&self) -> u64 {
        self.0.bytes()
    }

    /// Seconds of a step without communication, as measured or guessed.
    #[getter]
    fn step(&self) -> f64 {
        self.0.step_ms() * 1e-3
    }

    /// Seconds of the backward pass.
    #[getter]
    fn backward(&self) -> f64 {
        self.0.backward_us() * 1e-6
    }

    /// What was guessed, or left out, when the file was read.
    #[getter]
    fn notes<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyTuple>> {
        PyTuple::new(py, &self.0.notes)
    }

    /// Predicts a step of training on `gpus` GPUs, by a network of `gbit` Gbit/s: by default as the
    /// published model (Zhang et al., NetAI 2020). `gpus_per_server` GPUs share a link, and reach
    /// each other with `inside_gbit`. `latency`, `operation` and `cycle` are seconds: from sending
    /// to receiving a message, of each allreduce besides its bytes, and between two looks at what
    /// is ready. `packing_gbit` is the speed of packing and compressing. `adding` is GB/s of
    /// additions: None is as measured on a V100. `algorithm` is as for `linerate whatif --algo`;
    /// `errors` are the least and the most that a step may take, divided by what is predicted.
    #[pyo3(signature = (
        *, gpus, gbit, algorithm="ring", gpus_per_server=None, inside_gbit=f64::INFINITY, latency=0.0,
        compression=1.0, wire_dtype=None, adds_compressed=false, link_share=1.0, operation=0.0,
        cycle=0.0, slowing=0.0, spread=0.0, packing_gbit=f64::INFINITY, adding=None,
        errors=(1.0, 1.0), fused_as="paper", fusion_bytes=67108864, fusion_age=0.005
    ))]
    #[allow(clippy::too_many_arguments)]
    fn predict(
        &self,
        py: Python<'_>,
        gpus: u32,
        gbit: f64,
        algorithm: &str,
        gpus_per_server: Option<u32>,
        inside_gbit: f64,
        latency: f64,
        compression: f64,
        wire_dtype: Option<&str>,
        adds_compressed: bool,
        link_share: f64,
        operation: f64,
        cycle: f64,
        slowing: f64,
        spread: f64,
        packing_gbit: f64,
        adding: Option<f64>,
        errors: (f64, f64),
        fused_as: &str,
        fusion_bytes: u64,
        fusion_age: f64,
    ) -> PyResult<Prediction> {
        let mut whatif = WhatIf {
            gpus,
            bits_per_second: gbit * 1e9,
            algorithm: algorithm.parse::<Algorithm>().or_raise(py)?,
            members: members(gpus_per_server, inside_gbit),
            latency_us: latency * 1e6,
            compression,
            adds_compressed,
            link_share,
            operation_us: operation * 1e6,
            cycle_us: cycle * 1e6,
            slowing,
            spread,
            packing_bytes_per_second: packing_gbit * 1e9 / 8.0,
            errors,
            rule: match fused_as {
                "paper" => FlushRule::Paper,
                "linerate" => FlushRule::Linerate,
                _ => {
                    let text = format!("fused_as is '{fused_as}': 'paper' or 'linerate'");
                    return Err(invalid(py, text));
                }
            },
            ..WhatIf::default()
        };
        if let Some(name) = wire_dtype {
            whatif.wire_dtype = Some(name.parse::<DataType>().or_raise(py)?);
        }
        if let Some(gbytes) = adding {
            let points = vec![(0.0, 0.0), (1e9, 1.0 / gbytes)];
            whatif.additions = Additions::measured(points).or_raise(py)?;
        }
        whatif.fusion.bytes_max = fusion_bytes;
        whatif.fusion.age_max = Duration::try_from_secs_f64(fusion_age)
            .map_err(|cause| invalid(py, format!("fusion_age is {fusion_age}: {cause}")))?;
        let predicted = py.detach(|| whatif.predict(&self.0));
        Ok(Prediction(predicted.or_raise(py)?))
    }

    /// Which overheads explain measured scaling factors: `points` are (Gbit/s, GPUs, factor), two
    /// at least. Gives for 'link_share', 'operation' (seconds) and 'slowing', which `predict`
    /// takes, a tuple: the value if all three are fitted together, its standard error, the value if
    /// it is the only overhead, and the share of the gap between the model and what was measured
    /// that it then explains.
    #[pyo3(signature = (points, *, gpus_per_server=None, inside_gbit=f64::INFINITY))]
    fn fit<'py>(
        &self,
        py: Python<'py>,
        points: Vec<(f64, u32, f64)>,
        gpus_per_server: Option<u32>,
        inside_gbit: f64,
    ) -> PyResult<Bound<'py, PyDict>> {
        let measured: Vec<Measured> = (points.into_iter())
            .map(|(gbit, gpus, scaling_factor)| Measured {
                gpus,
                bits_per_second: gbit * 1e9,
                scaling_factor,
            })
            .collect();
        let whatif = WhatIf {
            members: members(gpus_per_server, inside_gbit),
            ..WhatIf::default()
        };
        let fit = py.detach(|| whatif.fit(&self.0, &measured)).or_raise(py)?;
        let told = PyDict::new(py);
        for one in fit.overheads {
            let (name, scale) = match one.overhead {
                Overhead::LinkShare => ("link_share", 1.0),
                Overhead::Operation => ("operation", 1e-6),
                Overhead::Slowing => ("slowing", 1.0),
            };
            let explains = match fit.rms_ideal > 0.0 {
                true => 1.0 - (one.rms_alone / fit.rms_ideal).powi(2),
                false => 0.0,
            };
            let values = [one.value, one.uncertainty, one.alone].map(|value| value * scale);
            told.set_item(name, (values[0], values[1], values[2], explains))?;
        }
        Ok(told)
    }

    fn __repr__(&self) -> String {
        format!(
            "linerate.Trace({}: {} gradients, {} bytes)",
            self.0.name,
            self.0.gradients.len(),
            self.0.bytes()
        )
    }
}

fn members(gpus_per_server: Option<u32>, inside_gbit: f64) -> Members {
    gpus_per_server.map_or(Members::Gpus, |gpus_per_server| Members::Servers {
        gpus_per_server,
        inside_bits_per_second: inside_gbit * 1e9,
    })
}

/// A predicted step of training. Times are seconds.
#[pyclass(frozen, module = "linerate")]
pub struct Prediction(whatif::Prediction);

#[pymethods]
impl Prediction {
    /// The time of a step on one GPU, divided by that on all of them: 1 is perfect.
    #[getter]
    fn scaling_factor(&self) -> f64 {
        self.0.scaling_factor
    }

    /// The least factor that is likely.
    #[getter]
    fn low(&self) -> f64 {
        self.0.low
    }

    /// The largest factor that is likely.
    #[getter]
    fn high(&self) -> f64 {
        self.0.high
    }

    /// The time of a step on one GPU.
    #[getter]
    fn step(&self) -> f64 {
        self.0.batch_ms * 1e-3
    }

    /// The time from the start of the backward pass until all gradients are reduced.
    #[getter]
    fn sync(&self) -> f64 {
        self.0.sync_ms * 1e-3
    }

    /// What communication, and waiting for slower GPUs, add to a step.
    #[getter]
    fn overhead(&self) -> f64 {
        self.0.overhead_ms * 1e-3
    }

    /// The share of the step in which a link is busy.
    #[getter]
    fn link_utilisation(&self) -> f64 {
        self.0.link_utilisation
    }

    /// What takes the most of the overhead, such as 'wire' or 'computation'.
    #[getter]
    fn limited_by(&self) -> &'static str {
        self.0.limited_by.name()
    }

    /// The number of operations of a step.
    #[getter]
    fn flushes(&self) -> usize {
        self.0.flushes
    }

    fn __repr__(&self) -> String {
        format!(
            "linerate.Prediction(scaling factor {:.4}, {:.4} to {:.4}, limited by {})",
            self.0.scaling_factor,
            self.0.low,
            self.0.high,
            self.0.limited_by.name()
        )
    }
}

/// How long a collective takes on a fabric. Times are seconds.
#[pyclass(frozen, module = "linerate")]
pub struct FabricTimes(linerate::sim::FabricTimes);

#[pymethods]
impl FabricTimes {
    /// The algorithm.
    #[getter]
    fn algorithm(&self) -> &'static str {
        self.0.algorithm
    }

    /// Until the last rank has ended.
    #[getter]
    fn time(&self) -> f64 {
        self.0.ns as f64 * 1e-9
    }

    /// The number of messages between ranks.
    #[getter]
    fn messages(&self) -> u64 {
        self.0.messages
    }

    /// By kind of link, such as 'NICs' or 'trunks of tier 0': the share of the time in which they
    /// are busy, on average and of the busiest one.
    #[getter]
    fn uses<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let uses = PyDict::new(py);
        for of in &self.0.uses {
            uses.set_item(&of.what, (of.mean, of.most))?;
        }
        Ok(uses)
    }

    /// What the time goes to, the largest part first: (what it is, seconds).
    #[getter]
    fn path<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyTuple>> {
        let parts = self.0.path.iter();
        PyTuple::new(py, parts.map(|part| (&part.what, part.ns as f64 * 1e-9)))
    }

    fn __repr__(&self) -> String {
        format!(
            "linerate.FabricTimes({} in {:.3e} s)",
            self.0.algorithm,
            self.0.ns as f64 * 1e-9
        )
    }
}

/// How long a collective takes on a fabric of GPUs, in virtual time: nothing communicates. `fabric`
/// is 'p3dn', '100g', '200g', '400g', '8x400g' or 'oversubscribed', or a fabric in JSON. `bytes` is
/// the length of the longest buffer of a rank: the vector, or the parts of all ranks. `algorithm`
/// None is the one that linerate would choose.
#[pyfunction]
#[pyo3(signature = (fabric, collective, *, ranks, bytes, algorithm=None, root=0, chunk_bytes=None))]
#[allow(clippy::too_many_arguments)]
pub fn fabric_times(
    py: Python<'_>,
    fabric: &str,
    collective: &str,
    ranks: u32,
    bytes: u64,
    algorithm: Option<String>,
    root: u32,
    chunk_bytes: Option<u64>,
) -> PyResult<FabricTimes> {
    let fabric = fabric.parse::<Fabric>().or_raise(py)?;
    let collective = collective.parse::<Collective>().or_raise(py)?;
    let mut call = FabricCall {
        algorithm,
        root,
        ..FabricCall::new(collective, ranks, bytes)
    };
    if let Some(bytes) = chunk_bytes {
        call.chunk_bytes = bytes;
    }
    Ok(FabricTimes(py.detach(|| fabric.run(&call)).or_raise(py)?))
}
