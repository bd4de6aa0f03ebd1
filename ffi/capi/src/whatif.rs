//! Predictions: what another network would do for a step of training, and how long a collective
//! takes on a fabric. Nothing here communicates.

use crate::pointers::{Sized64, Structs, check_wanted, read, text, write, write_back, write_text};
use crate::status::{Fault, LINERATE_DONE, enter, invalid};
use crate::words::{collective_of, dtype_of, number_of};
use linerate::sim::{Fabric, FabricCall};
use linerate::whatif::{
    Additions, Algorithm, FlushRule, Gradient, LimitedBy, Members, Trace, WhatIf,
};
use std::ffi::c_char;
use std::time::Duration;

/// Communication adds less than 1 % to a step.
pub const LINERATE_LIMITED_BY_COMPUTATION: u32 = 0;
/// Bytes on the links between GPUs or servers.
pub const LINERATE_LIMITED_BY_WIRE: u32 = 1;
/// Bytes on the links inside of servers.
pub const LINERATE_LIMITED_BY_INSIDE: u32 = 2;
/// Latencies of messages.
pub const LINERATE_LIMITED_BY_LATENCY: u32 = 3;
/// Additions.
pub const LINERATE_LIMITED_BY_ADDITIONS: u32 = 4;
/// Packing and compressing gradients.
pub const LINERATE_LIMITED_BY_PACKING: u32 = 5;
/// What each allreduce takes besides, and the wait for a cycle.
pub const LINERATE_LIMITED_BY_OPERATIONS: u32 = 6;
/// The computation, which communication slows.
pub const LINERATE_LIMITED_BY_SLOWING: u32 = 7;
/// GPUs that compute longer than others.
pub const LINERATE_LIMITED_BY_STRAGGLERS: u32 = 8;

/// One gradient of a backward pass.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
#[allow(non_camel_case_types)]
pub struct linerate_gradient {
    /// sizeof(linerate_gradient).
    pub size: u64,
    /// Microseconds since the gradient before was ready; of the first since the backward pass
    /// began.
    pub wait_us: f64,
    /// Its bytes, a whole number of elements.
    pub bytes: u64,
    /// LINERATE_F32, ...
    pub dtype: u32,
    /// 0.
    pub reserved: u32,
}

// SAFETY: numbers, the size first.
unsafe impl Sized64 for linerate_gradient {
    const NAME: &'static str = "linerate_gradient";
}

/// What a trace says of a step. Zero is not known.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
#[allow(non_camel_case_types)]
pub struct linerate_step {
    /// sizeof(linerate_step).
    pub size: u64,
    /// Milliseconds of a step without communication; 0: 1.5 times the backward pass.
    pub step_ms: f64,
    /// Milliseconds of its forward pass; 0: what the backward pass leaves of a step.
    pub forward_ms: f64,
    /// Standard deviation of the times of the steps, as a share of their mean.
    pub spread: f64,
    /// Steps of which the gradients are means; 0: one.
    pub steps: u64,
}

// SAFETY: numbers, the size first.
unsafe impl Sized64 for linerate_step {
    const NAME: &'static str = "linerate_step";
}

/// GPUs, their network, and how gradients are put together. Zero everywhere but `size` and `gpus`
/// is the published model (Zhang et al., NetAI 2020) at 100 Gbit/s.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
#[allow(non_camel_case_types)]
pub struct linerate_whatif {
    /// sizeof(linerate_whatif).
    pub size: u64,
    /// GPUs that train together, from 1.
    pub gpus: u32,
    /// GPUs that share a link; 0: each has one of its own.
    pub gpus_per_server: u32,
    /// Gbit/s of a link; 0: 100; infinity: it takes no time.
    pub gbit: f64,
    /// Gbit/s of a GPU's link inside of its server; 0: it takes no time.
    pub inside_gbit: f64,
    /// Microseconds from sending to receiving a message.
    pub latency_us: f64,
    /// By how much gradients are shorter on the link; 0: 1, which is not at all.
    pub compression: f64,
    /// Share of the link that the transport reaches; 0: 1, which is all of it.
    pub link_share: f64,
    /// Microseconds that each allreduce takes besides its bytes.
    pub operation_us: f64,
    /// Microseconds between two looks at what is ready.
    pub cycle_us: f64,
    /// By how much communication slows computation while both run.
    pub slowing: f64,
    /// Standard deviation of the time that a GPU computes for a step, as a share of that time.
    pub spread: f64,
    /// Gbit/s at which a GPU packs and compresses gradients; 0: it takes no time.
    pub packing_gbit: f64,
    /// GB/s at which a GPU adds a vector to another; 0: as measured on one V100; infinity: it takes
    /// no time.
    pub adding_gbytes: f64,
    /// What measured steps took divided by what was predicted of them, the least and the most; 0:
    /// 1, which is that no error is known.
    pub error_least: f64,
    /// See `error_least`.
    pub error_most: f64,
    /// "ring", "auto", "tree", "hierarchical", "oktopk:0.01", "partial:0.5", "ps:4", "switchml",
    /// "bytescheduler", ...; NULL: "ring".
    pub algorithm: *const c_char,
    /// Bytes of one flush; 0: 64 MiB.
    pub fusion_bytes_max: u64,
    /// How long a ready gradient waits for others, in nanoseconds; 0: 5 ms.
    pub fusion_age_max_ns: u64,
    /// The type as which elements are sent and added, LINERATE_BF16, ...; 0: their own.
    pub wire_dtype: u32,
    /// 1: flushes are those of a fusion buffer of linerate; 0: those of the published simulation.
    pub is_fused_as_linerate: u32,
    /// 1: additions are of compressed gradients, too.
    pub adds_compressed: u32,
    /// 0.
    pub reserved: u32,
}

// SAFETY: numbers and an address, the size first.
unsafe impl Sized64 for linerate_whatif {
    const NAME: &'static str = "linerate_whatif";
}

/// A predicted step of training. Times are milliseconds.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
#[allow(non_camel_case_types)]
pub struct linerate_prediction {
    /// sizeof(linerate_prediction), set by the caller.
    pub size: u64,
    /// A step on one GPU.
    pub batch_ms: f64,
    /// The backward pass.
    pub backward_ms: f64,
    /// From the start of the backward pass until all gradients are reduced.
    pub sync_ms: f64,
    /// What communication and waiting for slower GPUs add to a step.
    pub overhead_ms: f64,
    /// The time of a step on one GPU, divided by that on all of them.
    pub scaling_factor: f64,
    /// The least factor that is likely.
    pub low: f64,
    /// The largest one.
    pub high: f64,
    /// Share of the step in which a link is busy.
    pub link_utilisation: f64,
    /// Operations of a step.
    pub flushes_count: u64,
    /// LINERATE_LIMITED_BY_WIRE, ...
    pub limited_by: u32,
    /// 0.
    pub reserved: u32,
}

// SAFETY: numbers, the size first.
unsafe impl Sized64 for linerate_prediction {
    const NAME: &'static str = "linerate_prediction";
}

/// A collective on a fabric of GPUs, in virtual time.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
#[allow(non_camel_case_types)]
pub struct linerate_fabric_call {
    /// sizeof(linerate_fabric_call).
    pub size: u64,
    /// "p3dn", "100g", "200g", "400g", "8x400g" or "oversubscribed"; or a fabric in JSON, such as
    /// {"nic_gbit": 25, "gpus_per_host": 4}.
    pub fabric: *const c_char,
    /// LINERATE_ALL_REDUCE, ..., of equal parts.
    pub collective: u32,
    /// Ranks, one for each GPU.
    pub ranks: u32,
    /// Bytes of the longest buffer of a rank: the vector, or the parts of all ranks.
    pub bytes: u64,
    /// Bytes of a chunk; 0: 256 KiB.
    pub chunk_bytes: u64,
    /// An algorithm; NULL: the one that linerate would choose.
    pub algorithm: *const c_char,
    /// Root of rooted collectives.
    pub root: u32,
    /// 0.
    pub reserved: u32,
}

// SAFETY: numbers and addresses, the size first.
unsafe impl Sized64 for linerate_fabric_call {
    const NAME: &'static str = "linerate_fabric_call";
}

/// How long a collective takes on a fabric.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
#[allow(non_camel_case_types)]
pub struct linerate_fabric_times {
    /// sizeof(linerate_fabric_times), set by the caller.
    pub size: u64,
    /// Until the last rank has ended.
    pub ns: u64,
    /// Messages between ranks.
    pub messages: u64,
    /// Share of the time in which the NICs are busy, on average.
    pub nic_use: f64,
}

// SAFETY: numbers, the size first.
unsafe impl Sized64 for linerate_fabric_times {
    const NAME: &'static str = "linerate_fabric_times";
}

/// What zero stands for.
fn or(value: f64, default: f64) -> f64 {
    if value == 0.0 { default } else { value }
}

fn flag(name: &str, value: u32) -> Result<bool, Fault> {
    match value {
        0 | 1 => Ok(value == 1),
        _ => Err(invalid(format!("{name} is {value}: 0 or 1"))),
    }
}

/// # Safety
/// `algorithm` is a string or NULL.
unsafe fn whatif_of(given: &linerate_whatif) -> Result<WhatIf, Fault> {
    let mut whatif = WhatIf {
        gpus: given.gpus,
        bits_per_second: or(given.gbit, 100.0) * 1e9,
        latency_us: given.latency_us,
        compression: or(given.compression, 1.0),
        link_share: or(given.link_share, 1.0),
        operation_us: given.operation_us,
        cycle_us: given.cycle_us,
        slowing: given.slowing,
        spread: given.spread,
        packing_bytes_per_second: or(given.packing_gbit, f64::INFINITY) * 1e9 / 8.0,
        errors: (or(given.error_least, 1.0), or(given.error_most, 1.0)),
        adds_compressed: flag("adds_compressed", given.adds_compressed)?,
        rule: match flag("is_fused_as_linerate", given.is_fused_as_linerate)? {
            true => FlushRule::Linerate,
            false => FlushRule::Paper,
        },
        ..WhatIf::default()
    };
    if given.gpus_per_server > 0 {
        whatif.members = Members::Servers {
            gpus_per_server: given.gpus_per_server,
            inside_bits_per_second: or(given.inside_gbit, f64::INFINITY) * 1e9,
        };
    }
    if !given.algorithm.is_null() {
        // SAFETY: our caller promises it.
        let name = unsafe { text("algorithm", given.algorithm)? };
        whatif.algorithm = name.parse::<Algorithm>()?;
    }
    if given.wire_dtype > 0 {
        whatif.wire_dtype = Some(dtype_of(given.wire_dtype)?);
    }
    if given.fusion_bytes_max > 0 {
        whatif.fusion.bytes_max = given.fusion_bytes_max;
    }
    if given.fusion_age_max_ns > 0 {
        whatif.fusion.age_max = Duration::from_nanos(given.fusion_age_max_ns);
    }
    let gbytes = given.adding_gbytes;
    if gbytes == f64::INFINITY {
        whatif.additions = Additions::free();
    } else if gbytes != 0.0 {
        whatif.additions = Additions::measured(vec![(0.0, 0.0), (1e9, 1.0 / gbytes)])?;
    }
    Ok(whatif)
}

fn number_of_limit(limit: LimitedBy) -> u32 {
    match limit {
        LimitedBy::Computation => LINERATE_LIMITED_BY_COMPUTATION,
        LimitedBy::Wire => LINERATE_LIMITED_BY_WIRE,
        LimitedBy::InsideServers => LINERATE_LIMITED_BY_INSIDE,
        LimitedBy::Latency => LINERATE_LIMITED_BY_LATENCY,
        LimitedBy::Additions => LINERATE_LIMITED_BY_ADDITIONS,
        LimitedBy::Packing => LINERATE_LIMITED_BY_PACKING,
        LimitedBy::Operations => LINERATE_LIMITED_BY_OPERATIONS,
        LimitedBy::Slowing => LINERATE_LIMITED_BY_SLOWING,
        LimitedBy::Stragglers => LINERATE_LIMITED_BY_STRAGGLERS,
    }
}

/// Reads the gradients of a step of training: `name` is "resnet50", "resnet101" or "vgg16", which
/// are built in, or a file that torch.profiler, Horovod or `linerate replay --trace-out` has
/// written. Writes at most `capacity` gradients, and how many there are to `needed`; ask for the
/// number first, with a capacity of 0. `step` and `needed` may be NULL.
///
/// Threads: any. After fork: as before.
///
/// # Safety
/// `name` is a string; `gradients` are `capacity` structs, of which the first has its size;
/// `needed` is writable or NULL; `step` is a struct with its size, or NULL.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn linerate_trace_load(
    name: *const c_char,
    gradients: *mut linerate_gradient,
    capacity: u64,
    needed: *mut u64,
    step: *mut linerate_step,
) -> i32 {
    enter(|| {
        // SAFETY: our caller promises it.
        let name = unsafe { text("name", name)? };
        // SAFETY: as above.
        let places = unsafe { Structs::new("gradients", gradients.cast_const(), capacity)? };
        // SAFETY: as above.
        unsafe { check_wanted("step", step)? };
        let trace = Trace::load(name)?;
        if !needed.is_null() {
            // SAFETY: as above.
            unsafe { write("needed", needed, trace.gradients.len() as u64)? };
        }
        for (number, gradient) in (0..capacity).zip(&trace.gradients) {
            let place = places.place(number).cast_mut();
            let told = linerate_gradient {
                size: 0,
                wait_us: gradient.wait_us,
                bytes: gradient.bytes,
                dtype: number_of(gradient.dtype),
                reserved: 0,
            };
            // SAFETY: as above; only the first need have its size.
            unsafe {
                place.cast::<u64>().write(places.size());
                write_back("gradients", place, &told)?;
            }
        }
        let told = linerate_step {
            size: 0,
            step_ms: trace.batch_ms.unwrap_or(0.0),
            forward_ms: trace.forward_ms.unwrap_or(0.0),
            spread: trace.spread,
            steps: trace.steps.into(),
        };
        // SAFETY: as above.
        unsafe { write_back("step", step, &told)? };
        Ok(LINERATE_DONE)
    })
}

/// Predicts a step of training with these gradients. `step` may be NULL.
///
/// Threads: any. After fork: as before.
///
/// # Safety
/// `whatif` and `prediction` are structs with their size; `gradients` are `count` structs; `step`
/// is a struct or NULL.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn linerate_whatif_predict(
    whatif: *const linerate_whatif,
    gradients: *const linerate_gradient,
    count: u64,
    step: *const linerate_step,
    prediction: *mut linerate_prediction,
) -> i32 {
    enter(|| {
        // SAFETY: our caller promises it.
        let given = unsafe { read("whatif", whatif)? };
        // SAFETY: as above.
        let whatif = unsafe { whatif_of(&given)? };
        // SAFETY: as above.
        let gradients = unsafe { Structs::new("gradients", gradients, count)? };
        // SAFETY: as above.
        unsafe { check_wanted("prediction", prediction)? };
        let mut trace = Trace {
            steps: 1,
            ..Trace::default()
        };
        if !step.is_null() {
            // SAFETY: as above.
            let step = unsafe { read("step", step)? };
            trace.batch_ms = Some(step.step_ms).filter(|ms| *ms != 0.0);
            trace.forward_ms = Some(step.forward_ms).filter(|ms| *ms != 0.0);
            trace.spread = step.spread;
            trace.steps = u32::try_from(step.steps.max(1)).unwrap_or(u32::MAX);
        }
        for gradient in gradients.iter() {
            let gradient = gradient?;
            trace.gradients.push(Gradient {
                name: String::new(),
                wait_us: gradient.wait_us,
                bytes: gradient.bytes,
                dtype: dtype_of(gradient.dtype)?,
            });
        }
        let predicted = whatif.predict(&trace)?;
        let told = linerate_prediction {
            size: 0,
            batch_ms: predicted.batch_ms,
            backward_ms: predicted.backward_ms,
            sync_ms: predicted.sync_ms,
            overhead_ms: predicted.overhead_ms,
            scaling_factor: predicted.scaling_factor,
            low: predicted.low,
            high: predicted.high,
            link_utilisation: predicted.link_utilisation,
            flushes_count: predicted.flushes as u64,
            limited_by: number_of_limit(predicted.limited_by),
            reserved: 0,
        };
        // SAFETY: as above.
        unsafe { write_back("prediction", prediction, &told)? };
        Ok(LINERATE_DONE)
    })
}

/// Runs a collective on a fabric in virtual time, from its schedules alone. Writes the name of the
/// algorithm to `algorithm`, cut if `capacity` is too small, always with its 0.
///
/// Threads: any; it uses all cores for a while. After fork: as before.
///
/// # Safety
/// `call` is a struct with its size, whose texts are strings or NULL; `times` is a struct with its
/// size, or NULL; `algorithm` has `capacity` bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn linerate_fabric_run(
    call: *const linerate_fabric_call,
    times: *mut linerate_fabric_times,
    algorithm: *mut c_char,
    capacity: u64,
) -> i32 {
    enter(|| {
        // SAFETY: our caller promises it.
        let given = unsafe { read("call", call)? };
        // SAFETY: as above.
        let fabric: Fabric = unsafe { text("fabric", given.fabric)? }.parse()?;
        let mut wanted =
            FabricCall::new(collective_of(given.collective)?, given.ranks, given.bytes);
        wanted.root = given.root;
        if given.chunk_bytes > 0 {
            wanted.chunk_bytes = given.chunk_bytes;
        }
        if !given.algorithm.is_null() {
            // SAFETY: as above.
            wanted.algorithm = Some(unsafe { text("algorithm", given.algorithm)? }.into());
        }
        // SAFETY: as above.
        unsafe { check_wanted("times", times)? };
        let done = fabric.run(&wanted)?;
        let nics = done.uses.iter().find(|of| of.what == "NICs");
        let told = linerate_fabric_times {
            size: 0,
            ns: done.ns,
            messages: done.messages,
            nic_use: nics.map_or(0.0, |of| of.mean),
        };
        // SAFETY: as above.
        unsafe {
            write_back("times", times, &told)?;
            write_text(done.algorithm, algorithm, capacity, std::ptr::null_mut())
        }
    })
}
