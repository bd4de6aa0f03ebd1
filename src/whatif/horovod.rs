//! What Horovod writes (`HOROVOD_TIMELINE`): each tensor is a process, whose name is the tensor's.
//!
//! A reduction of a tensor is `NEGOTIATE_ALLREDUCE`, in which each rank that is ready leaves a mark
//! of its number, and then `ALLREDUCE` with phases inside, whose end has type and shape. Times
//! never go back. A tensor that is ready again begins the next step. The file has no end while
//! Horovod runs.

use super::event::{Event, KEPT_MAX, bytes_of, weight};
use super::spans::Spans;
use super::steps::{self, Ready, Step};
use super::trace::{Trace, shown};
use crate::fusion::TENSORS_MAX;
use crate::types::DataType;
use serde_json::Value;
use std::collections::{HashMap, HashSet};

const NEGOTIATE: &str = "NEGOTIATE_ALLREDUCE";
const REDUCE: &str = "ALLREDUCE";

/// The mark of rank 0, which writes the file.
const OWN_RANK: &str = "0";

/// Phases inside of each other, at most: Horovod has two.
const DEPTH_MAX: usize = 16;

/// What a tensor does.
#[derive(Clone, Copy, PartialEq)]
enum Phase {
    Negotiate,
    Reduce,
    /// Into or out of the fusion buffer.
    Copy,
    Transfer,
    /// It waits, or does what no reduction does.
    Other,
}

#[derive(Default)]
struct Tensor {
    name: Option<String>,
    /// The phases that it is in, and when they began.
    phases: Vec<(Phase, f64)>,
    /// Its last reduction.
    reduction: Option<usize>,
    /// Its bytes and type, or what is wrong with them.
    shape: Option<Result<(u64, DataType), String>>,
}

/// One allreduce of a tensor.
struct Reduction {
    pid: u64,
    ready: f64,
    /// Rank 0 itself left the mark.
    is_own: bool,
    end: Option<f64>,
}

/// What is used of a file.
#[derive(Default)]
pub struct Horovod {
    kept: usize,
    tensors: HashMap<u64, Tensor>,
    reductions: Vec<Reduction>,
    copies: Vec<(f64, f64)>,
    transfers: Vec<(f64, f64)>,
    /// When the last event was.
    last: f64,
}

impl Horovod {
    pub fn has_gradients(&self) -> bool {
        !self.reductions.is_empty()
    }

    pub fn add(&mut self, event: &Event) -> Result<(), String> {
        let Some(pid) = event.pid.as_u64() else {
            return Ok(());
        };
        match event.ph.as_str() {
            "M" if event.name == "process_name" => return self.add_name(pid, event),
            "B" if event.name == NEGOTIATE => {}
            // Of tensors that are reduced; and no file of another program has any.
            "B" | "E" | "X" if self.is_reduced(pid) => {}
            _ => return Ok(()),
        }
        let (now, _) = event.span()?;
        if now < self.last {
            return Err(event.wrong(&format!(
                "ts is {now} after {}; expected times that do not go back, of one rank",
                self.last
            )));
        }
        self.last = now;
        let tensor = self.tensors.entry(pid).or_default();
        self.kept += match event.name == NEGOTIATE {
            true => weight(tensor.name.as_deref().unwrap_or_default()),
            false => 1,
        };
        check_kept(self.kept, event)?;
        match event.ph.as_str() {
            "B" => {
                let phase = phase(&event.name);
                if phase == Phase::Negotiate {
                    tensor.phases.clear();
                    tensor.reduction = Some(self.reductions.len());
                    self.reductions.push(Reduction {
                        pid,
                        ready: now,
                        is_own: false,
                        end: None,
                    });
                } else if tensor.phases.len() == DEPTH_MAX {
                    let reason = format!("more than {DEPTH_MAX} phases inside of each other");
                    return Err(event.wrong(&reason));
                }
                tensor.phases.push((phase, now));
            }
            "X" => {
                let negotiates = matches!(tensor.phases.last(), Some((Phase::Negotiate, _)));
                if let (true, OWN_RANK, Some(at)) =
                    (negotiates, event.name.as_str(), tensor.reduction)
                {
                    self.reductions[at].ready = now;
                    self.reductions[at].is_own = true;
                }
            }
            _ => match (tensor.phases.pop(), tensor.reduction) {
                (Some((Phase::Reduce, _)), Some(at)) => {
                    self.reductions[at].end = Some(now);
                    let shape = shape(&event.args.dtype, &event.args.shape);
                    tensor.shape = tensor.shape.take().or(Some(shape));
                }
                (Some((Phase::Copy, start)), _) => self.copies.push((start, now)),
                (Some((Phase::Transfer, start)), _) => self.transfers.push((start, now)),
                _ => {}
            },
        }
        Ok(())
    }

    fn is_reduced(&self, pid: u64) -> bool {
        let tensor = self.tensors.get(&pid);
        tensor.is_some_and(|tensor| tensor.reduction.is_some())
    }

    fn add_name(&mut self, pid: u64, event: &Event) -> Result<(), String> {
        let Some(name) = event.args.name.as_str() else {
            return Ok(());
        };
        if self.tensors.len() > TENSORS_MAX {
            let reason = format!("more than {TENSORS_MAX} processes or tensors");
            return Err(event.wrong(&reason));
        }
        self.kept += weight(name);
        check_kept(self.kept, event)?;
        self.tensors.entry(pid).or_default().name = Some(name.into());
        Ok(())
    }

    /// The trace of everything that was kept.
    pub fn trace(self, name: &str, mut notes: Vec<String>) -> Result<Trace, String> {
        let mut seen = HashSet::new();
        let mut begins = vec![0];
        for (at, reduction) in self.reductions.iter().enumerate() {
            if !seen.insert(reduction.pid) {
                seen = HashSet::from([reduction.pid]);
                begins.push(at);
            }
        }
        begins.push(self.reductions.len());
        let steps: Vec<&[Reduction]> = begins
            .windows(2)
            .map(|two| &self.reductions[two[0]..two[1]])
            .collect();
        let mut all = Vec::with_capacity(steps.len());
        for (at, reductions) in steps.iter().enumerate() {
            let next = steps.get(at + 1).map(|next| earliest(next));
            all.push(self.step(reductions, next));
        }
        if self.reductions.iter().any(|one| !one.is_own) {
            notes.push("some tensors have no mark of rank 0: they are taken as ready when their negotiation begins".into());
        }
        notes.push("the timeline does not say when a backward pass begins: it is taken to begin with the first gradient".into());
        let count = steps.len() as f64;
        notes.push(format!(
            "a step communicates for {:.3} ms and copies to and from the fusion buffer for {:.3} ms (measured, mean of {count} steps); what came after the last gradient was taken out of the time of a step",
            Spans::new(self.transfers).total() / 1e3 / count,
            Spans::new(self.copies).total() / 1e3 / count,
        ));
        let trace = steps::mean(name, all, notes)?;
        let mut trace = trace.ok_or("no step has a gradient")?;
        trace.source = "Horovod".into();
        if trace.batch_ms.is_none() {
            let missing = "no time of a step: two steps are needed, and the end of each allreduce";
            trace.notes.push(missing.into());
        }
        Ok(trace)
    }

    /// A step, of which the next begins at `next`.
    fn step(&self, reductions: &[Reduction], next: Option<f64>) -> Step {
        let begin = earliest(reductions);
        let last = reductions.iter().map(|one| one.ready).fold(begin, f64::max);
        let mut gradients = Vec::with_capacity(reductions.len());
        for reduction in reductions {
            let tensor = &self.tensors[&reduction.pid];
            let name = tensor.name.as_deref();
            let missing = "its allreduce has no end with dtype and shape: record longer";
            let named = |what: String| {
                let pid = reduction.pid;
                format!(
                    "tensor {} of process {pid}: {what}",
                    shown(name.unwrap_or("?"))
                )
            };
            let shape = tensor.shape.clone().unwrap_or(Err(missing.into()));
            gradients.push(Ready {
                name: name.map_or_else(|| format!("tensor{}", reduction.pid), str::to_owned),
                ready_us: reduction.ready - begin,
                shape: shape.map_err(named),
            });
        }
        gradients.sort_by(|a, b| a.ready_us.total_cmp(&b.ready_us));
        let ends: Option<Vec<f64>> = reductions.iter().map(|one| one.end).collect();
        let end = ends.map(|ends| ends.into_iter().fold(last, f64::max));
        let step_us = next
            .zip(end)
            .map(|(next, end)| (next - begin - (end - last)).max(0.0));
        Step {
            gradients,
            step_us,
            forward_us: None,
        }
    }
}

fn check_kept(kept: usize, event: &Event) -> Result<(), String> {
    if kept > KEPT_MAX {
        let reason = format!("more than {KEPT_MAX} events; record fewer steps");
        return Err(event.wrong(&reason));
    }
    Ok(())
}

fn earliest(reductions: &[Reduction]) -> f64 {
    let ready = reductions.iter().map(|one| one.ready);
    ready.fold(f64::INFINITY, f64::min)
}

fn phase(name: &str) -> Phase {
    match name {
        NEGOTIATE => Phase::Negotiate,
        REDUCE => Phase::Reduce,
        _ if name.starts_with("MEMCPY_") => Phase::Copy,
        _ if name.ends_with("_ALLREDUCE") || name.starts_with("NCCL_") => Phase::Transfer,
        _ => Phase::Other,
    }
}

/// Bytes and type from `float32` and `[2, 3]`.
fn shape(dtype: &Value, shape: &Value) -> Result<(u64, DataType), String> {
    let missing = "the end of its allreduce has no dtype and shape";
    let dtype = dtype.as_str().ok_or(missing)?;
    let dtype: DataType = dtype.parse()?;
    let text = shape.as_str().ok_or(missing)?;
    let dims: Value = serde_json::from_str(text)
        .map_err(|_| format!("its shape is '{}'; expected such as [2, 3]", shown(text)))?;
    let dims = dims.as_array().ok_or(missing)?;
    Ok((bytes_of(dims, dtype)?, dtype))
}
