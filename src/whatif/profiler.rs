//! Reads what `torch.profiler` writes (`export_chrome_trace`), event by event: a file may be far
//! larger than memory.
//!
//! A gradient is ready when its `torch::autograd::AccumulateGrad` has been done: on the CPU at the
//! end of that event, on a GPU at the end of the last kernel that its thread had launched until
//! then. Its length is in `Input Dims`, which `record_shapes=True` writes. Steps are those of
//! `profiler.step()`; gradients of all of them are averaged.

use super::trace::{Gradient, TENSOR_BYTES_MAX, Trace, WAIT_US_MAX, shown};
use crate::fusion::TENSORS_MAX;
use crate::types::DataType;
use serde::Deserialize;
use serde::de::{DeserializeSeed, Deserializer, Error, IgnoredAny, MapAccess, SeqAccess, Visitor};
use serde_json::Value;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::fmt;
use std::io::Read;

const ACCUMULATE: &str = "torch::autograd::AccumulateGrad";
const EVALUATE: &str = "autograd::engine::evaluate_function";
const STEP: &str = "ProfilerStep#";

/// How events begin that send to other ranks.
const COMMUNICATION: [&str; 5] = [
    "record_param_comms",
    "c10d::",
    "gloo:",
    "nccl:",
    "ncclDevKernel",
];

/// Events that are kept, at most.
const KEPT_MAX: usize = 16 << 20;

/// An event of the file; of its fields those that are used.
#[derive(Deserialize)]
struct Event {
    #[serde(default)]
    name: String,
    #[serde(default)]
    cat: String,
    #[serde(default)]
    ph: String,
    #[serde(default)]
    ts: f64,
    #[serde(default)]
    dur: f64,
    #[serde(default)]
    pid: Value,
    #[serde(default)]
    tid: Value,
    #[serde(default)]
    args: Fields,
}

#[derive(Default, Deserialize)]
struct Fields {
    #[serde(default, rename = "Input Dims")]
    dims: Value,
    #[serde(default, rename = "Input type")]
    types: Value,
    #[serde(default)]
    correlation: Value,
}

/// A gradient that was accumulated. Times are microseconds.
struct Accumulated {
    start: f64,
    end: f64,
    thread: usize,
    /// Its bytes and type, or what is wrong with them.
    shape: Result<(u64, DataType), String>,
    label: String,
}

impl Accumulated {
    fn bytes(&self) -> Option<u64> {
        self.shape.as_ref().ok().map(|shape| shape.0)
    }
}

/// What is used of a file.
#[derive(Default)]
struct Kept {
    /// Events so far, and how many of them are kept.
    seen: u64,
    kept: usize,
    /// Threads that accumulate or launch, by process and number.
    threads: HashMap<(String, String), usize>,
    gradients: Vec<Accumulated>,
    /// Something is sent to other ranks.
    has_communication: bool,
    /// The processes of the gradients.
    processes: BTreeSet<String>,
    /// Starts of functions of a backward pass.
    backward: Vec<f64>,
    /// Starts and ends of steps.
    steps: Vec<(f64, f64)>,
    /// By thread: when it launched a kernel, and the number of that.
    launches: Vec<Vec<(f64, u64)>>,
    /// Starts and ends of kernels, by number.
    kernels: HashMap<u64, (f64, f64)>,
}

/// Reads a trace; the error says what is wrong with which event or line.
pub fn parse(name: &str, reader: impl Read) -> Result<Trace, String> {
    let mut kept = Kept::default();
    let mut notes = Vec::new();
    let mut json = serde_json::Deserializer::from_reader(reader);
    let end = Document(&mut kept).deserialize(&mut json);
    match end.and_then(|()| json.end()) {
        Ok(()) => {}
        Err(cause) if cause.is_eof() && !kept.gradients.is_empty() => notes.push(format!(
            "the file is cut off at line {}; what comes before is used",
            cause.line()
        )),
        Err(cause) => return Err(cause.to_string()),
    }
    kept.trace(name, notes)
}

/// The whole file: a list of events, or an object that has one.
struct Document<'a>(&'a mut Kept);

impl<'de> DeserializeSeed<'de> for Document<'_> {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, from: D) -> Result<(), D::Error> {
        from.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for Document<'_> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter) -> fmt::Result {
        f.write_str("a list of events, or an object with the list traceEvents")
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut events: A) -> Result<(), A::Error> {
        while let Some(event) = events.next_element()? {
            self.0.add(event).map_err(A::Error::custom)?;
        }
        Ok(())
    }

    fn visit_map<A: MapAccess<'de>>(self, mut fields: A) -> Result<(), A::Error> {
        while let Some(key) = fields.next_key::<String>()? {
            match key.as_str() {
                "traceEvents" => fields.next_value_seed(Document(&mut *self.0))?,
                _ => drop(fields.next_value::<IgnoredAny>()?),
            }
        }
        Ok(())
    }
}

impl Kept {
    fn add(&mut self, event: Event) -> Result<(), String> {
        let at = self.seen;
        self.seen += 1;
        if event.ph != "X" {
            return Ok(());
        }
        self.has_communication |= COMMUNICATION.iter().any(|of| event.name.starts_with(of));
        let is_kernel = matches!(event.cat.as_str(), "kernel" | "gpu_memcpy" | "gpu_memset");
        let is_launch = matches!(event.cat.as_str(), "cuda_runtime" | "cuda_driver");
        let is_gradient = event.name == ACCUMULATE;
        let is_backward = event.name.starts_with(EVALUATE);
        let is_step = event.name.starts_with(STEP) && !event.cat.starts_with("gpu");
        if !(is_kernel || is_launch || is_gradient || is_backward || is_step) {
            return Ok(());
        }
        let wrong = |what: &str, value: f64| {
            let name = shown(&event.name);
            Err(format!(
                "event {at} ({name}): {what} is {value}; expected 0 or more microseconds"
            ))
        };
        if !event.ts.is_finite() || event.ts < 0.0 {
            return wrong("ts", event.ts);
        }
        if !event.dur.is_finite() || event.dur < 0.0 {
            return wrong("dur", event.dur);
        }
        let (start, end) = (event.ts, event.ts + event.dur);
        self.kept += 1;
        if self.kept > KEPT_MAX {
            return Err(format!(
                "event {at}: more than {KEPT_MAX} events of steps; profile fewer steps"
            ));
        }
        if is_kernel {
            if let Some(number) = event.args.correlation.as_u64() {
                self.kernels.insert(number, (start, end));
            }
        } else if is_launch {
            if let Some(number) = event.args.correlation.as_u64() {
                let thread = self.thread(&event);
                self.launches[thread].push((start, number));
            }
        } else if is_gradient {
            let thread = self.thread(&event);
            self.processes.insert(event.pid.to_string());
            self.gradients.push(Accumulated {
                start,
                end,
                thread,
                shape: shape(&event.args.dims, &event.args.types),
                label: event.args.dims[0].to_string(),
            });
        } else if is_backward {
            self.backward.push(start);
        } else {
            self.steps.push((start, end));
        }
        Ok(())
    }

    fn thread(&mut self, event: &Event) -> usize {
        let key = (event.pid.to_string(), event.tid.to_string());
        let next = self.threads.len();
        let thread = *self.threads.entry(key).or_insert(next);
        if thread == next {
            self.launches.push(Vec::new());
        }
        thread
    }

    /// The trace of everything that was kept.
    fn trace(mut self, name: &str, mut notes: Vec<String>) -> Result<Trace, String> {
        if self.gradients.is_empty() {
            return Err(format!(
                "none of its {} events is {ACCUMULATE}: profile a backward pass with torch.profiler, and export_chrome_trace",
                self.seen
            ));
        }
        if self.processes.len() > 1 {
            let processes: Vec<_> = self.processes.iter().map(String::as_str).collect();
            return Err(format!(
                "gradients of {} processes ({}): give the trace of one rank",
                processes.len(),
                processes.join(", ")
            ));
        }
        self.gradients.sort_by(|a, b| a.start.total_cmp(&b.start));
        self.backward.sort_by(f64::total_cmp);
        self.steps.sort_by(|a, b| a.0.total_cmp(&b.0));
        for launches in &mut self.launches {
            launches.sort_by(|a, b| a.0.total_cmp(&b.0));
        }
        let groups = self.groups(&mut notes);
        // Most steps have the same gradients. The first may be a warm-up, and the last be cut off.
        let mut by_sizes: BTreeMap<Vec<_>, Vec<&Group>> = BTreeMap::new();
        for group in &groups {
            let sizes = group.gradients.iter().map(Accumulated::bytes);
            by_sizes.entry(sizes.collect()).or_default().push(group);
        }
        let longest = |all: &Vec<&Group>| (all.len(), all[0].gradients.len());
        let alike = by_sizes.into_values().max_by_key(longest).ok_or(
            "no gradient lies in a step: call profiler.step() after each step, within the profile",
        )?;
        let mut gradients = gradients_of(alike[0].gradients)?;
        if alike.len() < groups.len() {
            notes.push(format!(
                "{} of {} steps have other gradients than most, or the same in another order; they are not used",
                groups.len() - alike.len(),
                groups.len()
            ));
        }
        for group in &alike {
            let mut before = self.backward_start(group);
            for (gradient, accumulated) in gradients.iter_mut().zip(group.gradients) {
                let ready = self.ready(accumulated).max(before);
                gradient.wait_us += (ready - before) / alike.len() as f64;
                before = ready;
            }
        }
        let long = gradients.iter().position(|one| one.wait_us > WAIT_US_MAX);
        if let Some(at) = long {
            return Err(format!(
                "gradient {at} comes {} us after the one before: at most {WAIT_US_MAX:e}",
                gradients[at].wait_us
            ));
        }
        if self.has_communication {
            notes.push(
                "steps contain communication, as if it were computation: profile one process that trains alone".into(),
            );
        }
        let times: Vec<f64> = alike.iter().filter_map(|group| group.step_us).collect();
        if times.is_empty() {
            notes.push("no time of a step: call profiler.step() after each one".into());
        }
        let batch_us = times.iter().sum::<f64>() / times.len().max(1) as f64;
        Ok(Trace {
            name: name.into(),
            gradients,
            batch_ms: (!times.is_empty()).then_some(batch_us / 1e3),
            steps: alike.len() as u32,
            notes,
        })
    }

    /// The gradients step by step.
    fn groups(&self, notes: &mut Vec<String>) -> Vec<Group<'_>> {
        let all = &self.gradients[..];
        let place = |time: f64| all.partition_point(|one| one.start < time);
        if !self.steps.is_empty() {
            let group = |&(start, end): &(f64, f64)| Group {
                gradients: &all[place(start)..place(end)],
                begin: start,
                step_us: Some(end - start),
            };
            let groups = self.steps.iter().map(group);
            return groups.filter(|g| !g.gradients.is_empty()).collect();
        }
        notes.push("no steps are marked: they were told apart by gradients that repeat".into());
        let sizes: Vec<_> = all.iter().map(Accumulated::bytes).collect();
        let repeats = |period: &usize| {
            all.len().is_multiple_of(*period)
                && sizes.iter().zip(&sizes[*period..]).all(|(a, b)| a == b)
        };
        // Equal layers repeat within a step too: two gradients do not make a step.
        let period = (3..=all.len() / 2).find(repeats).unwrap_or(all.len());
        let mut groups: Vec<Group> = Vec::new();
        for gradients in all.chunks(period) {
            let before = groups.last().and_then(|group| group.gradients.last());
            groups.push(Group {
                gradients,
                begin: before.map_or(f64::NEG_INFINITY, |last| last.end),
                step_us: None,
            });
        }
        groups
    }

    /// When the backward pass of a step begins: on a GPU with its first kernel.
    fn backward_start(&self, group: &Group) -> f64 {
        let first = &group.gradients[0];
        let from = self.backward.partition_point(|time| *time < group.begin);
        let start = self.backward.get(from).copied();
        let start = start
            .filter(|time| *time <= first.start)
            .unwrap_or(first.start);
        let launches = &self.launches[first.thread];
        let from = launches.partition_point(|(time, _)| *time < start);
        let kernels = launches[from..].iter();
        let mut kernels = kernels.filter_map(|(_, number)| self.kernels.get(number));
        kernels.next().map_or(start, |kernel| kernel.0)
    }

    /// When a gradient is ready.
    fn ready(&self, gradient: &Accumulated) -> f64 {
        let launches = &self.launches[gradient.thread];
        let until = launches.partition_point(|(time, _)| *time <= gradient.end);
        let kernels = launches[..until].iter().rev();
        let mut kernels = kernels.filter_map(|(_, number)| self.kernels.get(number));
        kernels.next().map_or(gradient.end, |kernel| kernel.1)
    }
}

/// The gradients of a step, in order.
struct Group<'a> {
    gradients: &'a [Accumulated],
    /// Nothing of the step comes before.
    begin: f64,
    step_us: Option<f64>,
}

/// Gradients without times.
fn gradients_of(all: &[Accumulated]) -> Result<Vec<Gradient>, String> {
    if all.len() > TENSORS_MAX {
        return Err(format!(
            "{} gradients in a step: at most {TENSORS_MAX}",
            all.len()
        ));
    }
    let gradient = |(at, one): (usize, &Accumulated)| {
        let (bytes, dtype) = one
            .shape
            .clone()
            .map_err(|what| format!("gradient {at}: {what}"))?;
        Ok(Gradient {
            name: format!("gradient{at} {}", one.label),
            wait_us: 0.0,
            bytes,
            dtype,
        })
    };
    all.iter().enumerate().map(gradient).collect()
}

/// Bytes and type of the first input of an event.
fn shape(dims: &Value, types: &Value) -> Result<(u64, DataType), String> {
    let missing = "it has no shape: profile with record_shapes=True, and a torch that has Kineto";
    let dims = dims[0].as_array().ok_or(missing)?;
    let name = types[0].as_str().unwrap_or("float");
    let dtype = match name {
        "float" => DataType::F32,
        "double" => DataType::F64,
        "c10::Half" => DataType::F16,
        "c10::BFloat16" => DataType::Bf16,
        _ => return Err(format!("its type is '{}'", shown(name))),
    };
    let mut bytes = Some(dtype.size_bytes() as u64);
    for dim in dims {
        bytes = bytes.and_then(|bytes| bytes.checked_mul(dim.as_u64()?));
    }
    match bytes {
        Some(bytes) if bytes <= TENSOR_BYTES_MAX => Ok((bytes, dtype)),
        _ => Err(format!(
            "its shape is {}: whole numbers, and at most {TENSOR_BYTES_MAX} bytes",
            shown(&Value::from(dims.clone()).to_string())
        )),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const RECORDED: &str = include_str!("../../tests/data/profiler/cpu.json");

    fn read(text: &str) -> Result<Trace, String> {
        parse("test", text.as_bytes())
    }

    fn error(text: &str) -> String {
        read(text).unwrap_err()
    }

    /// A trace of these events, each as its fields.
    fn list(events: &[&str]) -> String {
        let events: Vec<_> = events
            .iter()
            .map(|e| format!("{{\"ph\":\"X\",{e}}}"))
            .collect();
        format!("[{}]", events.join(",\n"))
    }

    /// A gradient of this many floats.
    fn gradient(start: u32, dur: u32, count: u32) -> String {
        format!(
            r#""name":"{ACCUMULATE}","cat":"cpu_op","pid":7,"tid":1,"ts":{start},"dur":{dur},"args":{{"Input Dims":[[{count}]],"Input type":["float"]}}"#
        )
    }

    #[test]
    fn a_recorded_trace_gives_sizes_and_the_means_of_its_three_steps() {
        let trace = read(RECORDED).unwrap();
        let bytes: Vec<u64> = trace.gradients.iter().map(|one| one.bytes).collect();
        assert_eq!(bytes, [40, 20_480, 2048, 1 << 20, 2048, 1 << 19]);
        // Computed from the file by another program.
        let expected = [31172.061, 36.766, 32281.489, 49.743, 15789.445, 46.684];
        for (got, expected) in trace.gradients.iter().zip(expected) {
            assert!((got.wait_us - expected).abs() < 0.01, "{got:?}");
        }
        assert!((trace.batch_ms.unwrap() - 118.509).abs() < 0.001);
        assert_eq!((trace.steps, trace.notes.len()), (3, 0));
        assert_eq!(trace.gradients[1].name, "gradient1 [10,512]");
    }

    #[test]
    fn on_a_gpu_a_gradient_is_ready_with_the_last_kernel_launched_until_then() {
        let launch = |start: u32, number: u32| {
            format!(
                r#""name":"cudaLaunchKernel","cat":"cuda_runtime","pid":7,"tid":1,"ts":{start},"dur":2,"args":{{"correlation":{number}}}"#
            )
        };
        let kernel = |start: u32, dur: u32, number: u32| {
            format!(
                r#""name":"gemm","cat":"kernel","pid":0,"tid":7,"ts":{start},"dur":{dur},"args":{{"correlation":{number},"stream":7}}"#
            )
        };
        let backward = format!(
            r#""name":"{EVALUATE}: MmBackward0","cat":"cpu_op","pid":7,"tid":1,"ts":100,"dur":9"#
        );
        let events = [
            r#""name":"ProfilerStep#1","cat":"user_annotation","pid":7,"tid":1,"ts":90,"dur":900"#
                .into(),
            backward,
            // Of the forward pass.
            launch(95, 1),
            kernel(96, 9, 1),
            launch(101, 2),
            kernel(200, 50, 2),
            // Launches nothing: the kernel before it counts.
            gradient(110, 5, 10),
            gradient(120, 9, 20),
            launch(122, 3),
            kernel(260, 40, 3),
        ];
        let events: Vec<&str> = events.iter().map(String::as_str).collect();
        let trace = read(&list(&events)).unwrap();
        let waits: Vec<f64> = trace.gradients.iter().map(|one| one.wait_us).collect();
        assert_eq!(waits, [50.0, 50.0]);
        assert_eq!(trace.batch_ms, Some(0.9));
    }

    #[test]
    fn steps_that_are_not_marked_are_told_apart_by_what_repeats() {
        let events: Vec<String> = (0..9)
            .map(|at| gradient(100 * at, 10, 1 + at % 3))
            .collect();
        let events: Vec<&str> = events.iter().map(String::as_str).collect();
        let trace = read(&list(&events)).unwrap();
        assert_eq!(
            (trace.gradients.len(), trace.steps, trace.batch_ms),
            (3, 3, None)
        );
        assert_eq!(trace.notes.len(), 2);
        let waits: Vec<f64> = trace.gradients.iter().map(|one| one.wait_us).collect();
        assert_eq!(waits, [10.0, 100.0, 100.0]);
    }

    #[test]
    fn steps_that_communicate_are_told_of() {
        let sent = r#""name":"c10d::allreduce_","cat":"cpu_op","pid":7,"tid":1,"ts":1,"dur":1"#;
        let trace = read(&list(&[&gradient(1, 1, 1), sent])).unwrap();
        let is_told = |note: &String| note.contains("train") && note.contains("alone");
        assert!(trace.notes.iter().any(is_told), "{:?}", trace.notes);
    }

    #[test]
    fn a_file_that_is_cut_off_is_used_as_far_as_it_goes() {
        // Inside of the last of three steps.
        let last = RECORDED.rfind(&format!("\"{ACCUMULATE}\"")).unwrap();
        let trace = read(&RECORDED[..last]).unwrap();
        assert_eq!((trace.gradients.len(), trace.steps), (6, 2));
        assert!(trace.notes[0].contains("cut off"), "{:?}", trace.notes);
        assert!(trace.notes[1].contains("1 of 3 steps"), "{:?}", trace.notes);
        assert!(error(&RECORDED[..100]).contains("EOF"));
    }

    #[test]
    fn what_is_wrong_is_told_with_the_event() {
        let good = gradient(1, 1, 1);
        let cases = [
            (list(&[]), "none of its 0 events"),
            (
                list(&[
                    &good,
                    r#""name":"ProfilerStep#1","pid":7,"tid":1,"ts":5,"dur":9"#,
                ]),
                "no gradient lies in a step",
            ),
            (
                list(&[&good, &good.replace(r#""pid":7"#, r#""pid":8"#)]),
                "2 processes (7, 8)",
            ),
            (
                list(&[&good, &good.replace(r#""dur":1"#, r#""dur":-5"#)]),
                "event 1 (torch::autograd",
            ),
            (
                list(&[&good.replace("Input Dims", "Dims")]),
                "record_shapes=True",
            ),
            (list(&[&good.replace("[[1]]", "[[-1]]")]), "its shape is"),
            (
                list(&[&good.replace("[[1]]", "[[4611686018427387904]]")]),
                "its shape is",
            ),
            (
                list(&[&good.replace(r#"["float"]"#, r#"["long"]"#)]),
                "its type is 'long'",
            ),
            (
                list(&[&good.replace(r#""ts":1"#, r#""ts":"x""#)]),
                "line 1 column",
            ),
            ("{}".into(), "none of its 0 events"),
            ("[1]".into(), "line 1 column"),
            (format!("{} x", list(&[&good])), "trailing characters"),
        ];
        for (text, expected) in cases {
            let error = error(&text);
            assert!(error.contains(expected), "{text}: {error}");
        }
    }

    #[test]
    fn mutated_files_are_an_error_or_a_trace_and_never_a_panic() {
        let start = RECORDED.find("torch::autograd::AccumulateGrad").unwrap();
        let part = format!("[{{\"name\":\"{}", &RECORDED[start..start + 3000]);
        let mut prng = crate::prng::Prng::new(1);
        for _ in 0..20_000 {
            let mut bytes = part.clone().into_bytes();
            for _ in 0..=prng.below(4) {
                let at = prng.below(bytes.len() as u64) as usize;
                bytes[at] = prng.next_u64() as u8;
            }
            bytes.truncate(prng.below(1 + bytes.len() as u64) as usize);
            if let Ok(trace) = parse("test", &bytes[..]) {
                assert!(trace.gradients.iter().all(|one| one.wait_us >= 0.0));
            }
        }
    }
}
