//! Our own timeline, which `linerate replay --trace-out` writes: a process per rank, a span
//! `backward N` per step, and a mark of the category `gradient` when a gradient is ready.

use super::event::{Event, KEPT_MAX, weight};
use super::steps::{self, Ready, Step};
use super::trace::{TENSOR_BYTES_MAX, Trace, shown};
use crate::types::DataType;
use std::collections::BTreeMap;

const BACKWARD: &str = "backward ";
const GRADIENT: &str = "gradient";
const CATEGORY: &str = "replay";

/// What one rank did.
#[derive(Default)]
struct Rank {
    /// Starts of backward passes, and the time of a step if it was known.
    steps: Vec<(f64, Option<f64>)>,
    /// When gradients were ready.
    gradients: Vec<(f64, String, (u64, DataType))>,
}

/// What is used of a file.
#[derive(Default)]
pub struct Timeline {
    kept: usize,
    ranks: BTreeMap<u64, Rank>,
}

impl Timeline {
    pub fn has_gradients(&self) -> bool {
        self.ranks.values().any(|rank| !rank.gradients.is_empty())
    }

    pub fn add(&mut self, event: &Event) -> Result<(), String> {
        let is_gradient = event.ph == "i" && event.cat == GRADIENT;
        let is_backward =
            event.ph == "X" && event.cat == CATEGORY && event.name.starts_with(BACKWARD);
        if !is_gradient && !is_backward {
            return Ok(());
        }
        let (start, _) = event.span()?;
        self.kept += if is_gradient { weight(&event.name) } else { 1 };
        if self.kept > KEPT_MAX {
            let reason = format!("more than {KEPT_MAX} events of steps; replay fewer steps");
            return Err(event.wrong(&reason));
        }
        let Some(pid) = event.pid.as_u64() else {
            let pid = shown(&event.pid.to_string());
            return Err(event.wrong(&format!("pid is {pid}; expected a rank")));
        };
        let rank = self.ranks.entry(pid).or_default();
        if is_backward {
            rank.steps.push((start, event.args.batch_ms.as_f64()));
        } else {
            let shape = shape(event)?;
            rank.gradients.push((start, event.name.clone(), shape));
        }
        Ok(())
    }

    /// The trace of the lowest rank.
    pub fn trace(self, name: &str, mut notes: Vec<String>) -> Result<Trace, String> {
        let count = self.ranks.len();
        let mut ranks = self.ranks.into_iter();
        let found = ranks.find(|(_, rank)| !rank.gradients.is_empty());
        let (number, mut rank) = found.ok_or("no gradient is marked")?;
        if count > 1 {
            notes.push(format!("the gradients of rank {number}, of {count} ranks"));
        }
        rank.steps.sort_by(|a, b| a.0.total_cmp(&b.0));
        rank.gradients.sort_by(|a, b| a.0.total_cmp(&b.0));
        let place = |time: f64| rank.gradients.partition_point(|one| one.0 < time);
        let mut all = Vec::with_capacity(rank.steps.len());
        for (at, (start, batch_ms)) in rank.steps.iter().enumerate() {
            let next = rank.steps.get(at + 1).map_or(f64::INFINITY, |next| next.0);
            let gradients = &rank.gradients[place(*start)..place(next)];
            let ready = |(at, one): (usize, &(f64, String, (u64, DataType)))| Ready {
                name: match one.1.is_empty() {
                    true => format!("gradient{at}"),
                    false => one.1.clone(),
                },
                ready_us: one.0 - start,
                shape: Ok(one.2),
            };
            all.push(Step {
                gradients: gradients.iter().enumerate().map(ready).collect(),
                step_us: batch_ms.filter(|ms| *ms >= 0.0).map(|ms| ms * 1e3),
                forward_us: None,
            });
        }
        let trace = steps::mean(name, all, notes)?;
        let outside = || format!("no gradient of rank {number} lies in a span 'backward N'");
        Ok(Trace {
            source: "linerate replay".into(),
            ..trace.ok_or_else(outside)?
        })
    }
}

fn shape(event: &Event) -> Result<(u64, DataType), String> {
    let (bytes, dtype) = (&event.args.bytes, &event.args.dtype);
    let dtype: Option<DataType> = dtype.as_str().and_then(|name| name.parse().ok());
    let bytes = bytes.as_u64().filter(|bytes| *bytes <= TENSOR_BYTES_MAX);
    bytes.zip(dtype).ok_or_else(|| {
        event.wrong(&format!(
            "bytes are {}, dtype is {}; expected at most {TENSOR_BYTES_MAX}, and such as \"f32\"",
            shown(&event.args.bytes.to_string()),
            shown(&event.args.dtype.to_string())
        ))
    })
}
