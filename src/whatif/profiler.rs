//! What `torch.profiler` writes (`export_chrome_trace`).
//!
//! A gradient is ready when its `torch::autograd::AccumulateGrad` has been done: on the CPU at the
//! end of that event, on a GPU at the end of the last kernel that its thread had launched until
//! then. Its length is in `Input Dims`, which `record_shapes=True` writes. Steps are those of
//! `profiler.step()`; gradients of all of them are averaged. What is communication and not
//! computation, `communication.rs` says.

use super::communication::{Communication, Kind, Measured};
use super::event::{Event, KEPT_MAX, bytes_of, short, weight};
use super::steps::{self, Ready, Step};
use super::trace::{Trace, shown};
use crate::types::DataType;
use serde_json::Value;
use std::collections::{BTreeSet, HashMap};

const ACCUMULATE: &str = "torch::autograd::AccumulateGrad";
const EVALUATE: &str = "autograd::engine::evaluate_function";
const STEP: &str = "ProfilerStep#";

/// Old versions write whole microseconds, so that a step may seem to end after the next begins.
const OVERLAP_US_MAX: f64 = 2.0;

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
pub struct Profile {
    kept: usize,
    /// Threads that accumulate, launch or communicate, by process and number.
    threads: HashMap<(String, String), usize>,
    gradients: Vec<Accumulated>,
    communication: Communication,
    /// The processes of the gradients.
    processes: BTreeSet<String>,
    /// Starts of functions of a backward pass.
    backward: Vec<f64>,
    /// Starts and ends of steps.
    steps: Vec<(f64, f64)>,
    /// By thread: when it launched a kernel, and the number of that.
    launches: Vec<Vec<(f64, u64)>>,
    /// Starts and ends of kernels that compute, by number.
    kernels: HashMap<u64, (f64, f64)>,
    /// The streams of these.
    streams: BTreeSet<u64>,
}

impl Profile {
    pub fn has_gradients(&self) -> bool {
        !self.gradients.is_empty()
    }

    pub fn add(&mut self, event: &Event) -> Result<(), String> {
        if event.ph != "X" {
            return Ok(());
        }
        let communication = Kind::of(event);
        let is_kernel = matches!(event.cat.as_str(), "kernel" | "gpu_memcpy" | "gpu_memset");
        let is_launch = matches!(event.cat.as_str(), "cuda_runtime" | "cuda_driver");
        let is_gradient = event.name == ACCUMULATE;
        let is_backward = event.name.starts_with(EVALUATE);
        let is_step = event.name.starts_with(STEP) && !event.cat.starts_with("gpu");
        let is_compute = is_kernel || is_launch || is_gradient || is_backward || is_step;
        if !is_compute && communication.is_none() {
            return Ok(());
        }
        let (start, end) = event.span()?;
        let label = match is_gradient {
            true => short(&event.args.dims[0]),
            false => String::new(),
        };
        self.kept += if is_gradient { weight(&label) } else { 1 };
        if self.kept > KEPT_MAX {
            let reason = format!("more than {KEPT_MAX} events of steps; profile fewer steps");
            return Err(event.wrong(&reason));
        }
        if let Some(kind) = communication {
            let thread = self.thread(event);
            self.communication.add(kind, event, thread, (start, end));
        } else if is_kernel {
            if let Some(number) = event.args.correlation.as_u64() {
                self.kernels.insert(number, (start, end));
            }
            if event.cat == "kernel" {
                self.streams.extend(event.args.stream.as_u64());
            }
        } else if is_launch {
            if let Some(number) = event.args.correlation.as_u64() {
                let thread = self.thread(event);
                self.launches[thread].push((start, number));
            }
        } else if is_gradient {
            let thread = self.thread(event);
            self.processes.insert(short(&event.pid));
            self.gradients.push(Accumulated {
                start,
                end,
                thread,
                shape: shape(&event.args.dims, &event.args.types),
                label,
            });
        } else if is_backward {
            self.backward.push(start);
        } else {
            self.steps.push((start, end));
        }
        Ok(())
    }

    fn thread(&mut self, event: &Event) -> usize {
        let key = (short(&event.pid), short(&event.tid));
        let next = self.threads.len();
        let thread = *self.threads.entry(key).or_insert(next);
        if thread == next {
            self.launches.push(Vec::new());
        }
        thread
    }

    /// The trace of everything that was kept.
    pub fn trace(mut self, name: &str, mut notes: Vec<String>) -> Result<Trace, String> {
        if self.processes.len() > 1 {
            let processes: Vec<_> = self.processes.iter().map(String::as_str).collect();
            return Err(format!(
                "gradients of {} processes ({}): give the trace of one rank",
                processes.len(),
                shown(&processes.join(", "))
            ));
        }
        self.sort()?;
        let groups = self.groups(&mut notes);
        if self.streams.len() > 1 {
            notes.push(format!(
                "kernels of {} streams: a gradient is taken as ready with the last kernel that its thread launched, on whichever stream",
                self.streams.len()
            ));
        }
        let mut all = Vec::with_capacity(groups.len());
        let (mut all_us, mut taken_us) = (0.0, 0.0);
        let thread = self.gradients[0].thread;
        let on_cpu = self.launches.iter().all(Vec::is_empty);
        let measured = self.communication.measured(thread, on_cpu);
        for group in &groups {
            let (step, taken) = self.step(group, measured.as_ref());
            all.push(step);
            let of_step = |measured: &Measured| measured.all(group.begin, group.end);
            all_us += measured.as_ref().map_or(0.0, of_step);
            taken_us += taken;
        }
        if let (Some(measured), Some(last)) = (&measured, groups.last()) {
            let count = groups.len() as f64;
            let (begin, end) = (last.begin, last.end);
            notes.push(measured.note(begin, end, all_us / count, taken_us / count));
        }
        let trace = steps::mean(name, all, notes)?;
        let mut trace = trace.ok_or(
            "no gradient lies in a step: call profiler.step() after each step, within the profile",
        )?;
        trace.source = "torch.profiler".into();
        if trace.batch_ms.is_none() {
            let missing = "no time of a step: call profiler.step() after each one";
            trace.notes.push(missing.into());
        }
        Ok(trace)
    }

    fn sort(&mut self) -> Result<(), String> {
        self.gradients.sort_by(|a, b| a.start.total_cmp(&b.start));
        self.backward.sort_by(f64::total_cmp);
        self.steps.sort_by(|a, b| a.0.total_cmp(&b.0));
        for (before, next) in self
            .steps
            .iter()
            .zip(&self.steps[1.min(self.steps.len())..])
        {
            if next.0 < before.1 - OVERLAP_US_MAX {
                return Err(format!(
                    "steps overlap: one ends at {} us, and the next begins at {} us; give the trace of one rank",
                    before.1, next.0
                ));
            }
        }
        for launches in &mut self.launches {
            launches.retain(|(_, number)| self.kernels.contains_key(number));
            launches.sort_by(|a, b| a.0.total_cmp(&b.0));
        }
        Ok(())
    }

    /// The gradients step by step.
    fn groups(&self, notes: &mut Vec<String>) -> Vec<Group<'_>> {
        let all = &self.gradients[..];
        let place = |time: f64| all.partition_point(|one| one.start < time);
        if !self.steps.is_empty() {
            let group = |&(start, end): &(f64, f64)| Group {
                gradients: &all[place(start)..place(end)],
                begin: start,
                end,
                is_marked: true,
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
            let begin = groups.last().map_or(f64::NEG_INFINITY, |group| group.end);
            groups.push(Group {
                gradients,
                begin,
                end: gradients.last().map_or(begin, |last| last.end),
                is_marked: false,
            });
        }
        groups
    }

    /// A step without what it communicates, and how much that was.
    fn step(&self, group: &Group, measured: Option<&Measured>) -> (Step, f64) {
        let start = self.backward_start(group);
        let (mut last, mut ready_before) = (start, 0f64);
        let mut gradients = Vec::with_capacity(group.gradients.len());
        let starting = |until| measured.map_or(0.0, |all| all.starting(start, until));
        for (at, accumulated) in group.gradients.iter().enumerate() {
            last = self.ready(accumulated).max(last);
            ready_before = ready_before.max(last - start - starting(last));
            gradients.push(Ready {
                name: format!("gradient{at} {}", accumulated.label),
                ready_us: ready_before,
                shape: accumulated.shape.clone(),
            });
        }
        let outside =
            |all: &Measured| all.all(group.begin, start) + all.all(last, group.end.max(last));
        let taken = measured.map_or(0.0, outside) + starting(last);
        let step_us = (group.end - group.begin - taken).max(0.0);
        let before = measured.map_or(0.0, |all| all.all(group.begin, start));
        let forward_us = (start - group.begin - before).clamp(0.0, step_us);
        let step = Step {
            gradients,
            step_us: group.is_marked.then_some(step_us),
            forward_us: group.is_marked.then_some(forward_us),
        };
        (step, taken)
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
        let number = launches.get(from).map(|launch| launch.1);
        number.map_or(start, |number| self.kernels[&number].0)
    }

    /// When a gradient is ready.
    fn ready(&self, gradient: &Accumulated) -> f64 {
        let launches = &self.launches[gradient.thread];
        let until = launches.partition_point(|(time, _)| *time <= gradient.end);
        let number = launches[..until].last().map(|launch| launch.1);
        number.map_or(gradient.end, |number| self.kernels[&number].1)
    }
}

/// The gradients of a step, in order.
struct Group<'a> {
    gradients: &'a [Accumulated],
    /// Nothing of the step lies outside of these times.
    begin: f64,
    end: f64,
    /// The times are those of a mark, and not of gradients.
    is_marked: bool,
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
    Ok((bytes_of(dims, dtype)?, dtype))
}
