//! What a profile of `torch.profiler` says of communication: with `DistributedDataParallel` the
//! gradients of a bucket are reduced while the backward pass goes on.
//!
//! A thread that starts a collective is busy with that (`c10d::...`), and the transfer itself runs
//! on a thread of gloo or on a stream of NCCL. What a step spends with either outside of its
//! backward pass, and what the backward pass spends with starting collectives, is no computation.

use super::event::Event;
use super::spans::Spans;
use super::trace::shown;
use std::collections::{BTreeMap, BTreeSet};

const PARAMETERS: &str = "record_param_comms";
const ALLREDUCE: &str = "c10d::allreduce_";

/// What was read.
#[derive(Default)]
pub struct Communication {
    /// By thread: when it started collectives.
    starting: BTreeMap<usize, Vec<(f64, f64)>>,
    /// When bytes were under way.
    transfers: Vec<(f64, f64)>,
    /// Starts of allreduces and what they say of themselves, as `record_param_comms` and
    /// as `c10d::allreduce_` say it. Both speak of the same ones.
    parameters: Vec<(f64, String)>,
    allreduces: Vec<(f64, String)>,
    ranks: BTreeSet<u64>,
}

/// Which kind of event of communication this is, if any.
pub enum Kind {
    Starting,
    Transfer,
}

impl Kind {
    pub fn of(event: &Event) -> Option<Kind> {
        let of_gpu = event.cat.starts_with("gpu");
        let name = event.name.as_str();
        match event.cat.as_str() {
            "kernel" if name.starts_with("nccl") => Some(Kind::Transfer),
            "kernel" => None,
            _ if of_gpu => None,
            _ if name.starts_with("gloo:") => Some(Kind::Transfer),
            _ => {
                let starting = [PARAMETERS, "c10d::", "nccl:"];
                let is_starting = starting.iter().any(|start| name.starts_with(start));
                is_starting.then_some(Kind::Starting)
            }
        }
    }
}

impl Communication {
    pub fn add(&mut self, kind: Kind, event: &Event, thread: usize, span: (f64, f64)) {
        if let Kind::Transfer = kind {
            self.transfers.push(span);
            return;
        }
        self.starting.entry(thread).or_default().push(span);
        let args = &event.args;
        self.ranks.extend(args.ranks.as_u64());
        let collective = args.collective.as_str().unwrap_or_default();
        if event.name == PARAMETERS && collective.starts_with("allreduce") {
            let dtype = args.dtype.as_str().unwrap_or("?");
            let text = format!("{} {}", args.elements, shown(dtype));
            self.parameters.push((span.0, text));
        } else if event.name == ALLREDUCE {
            // The tensors are a list, which is the first input.
            let text = shown(&args.dims[0].to_string());
            self.allreduces.push((span.0, text));
        }
    }

    /// In order of time, if there is any; `thread` accumulates gradients, on the CPU if `on_cpu`.
    pub fn measured(&self, thread: usize, on_cpu: bool) -> Option<Measured<'_>> {
        if self.starting.is_empty() && self.transfers.is_empty() {
            return None;
        }
        let starting = self.starting.get(&thread).filter(|_| on_cpu);
        let starting = starting.cloned().unwrap_or_default();
        let mut all = self.transfers.clone();
        all.extend(&starting);
        let buckets = match self.parameters.is_empty() {
            true => &self.allreduces,
            false => &self.parameters,
        };
        Some(Measured {
            starting: Spans::new(starting),
            all: Spans::new(all),
            buckets,
            ranks: &self.ranks,
        })
    }
}

/// Communication in order of time.
pub struct Measured<'a> {
    starting: Spans,
    all: Spans,
    buckets: &'a [(f64, String)],
    ranks: &'a BTreeSet<u64>,
}

impl Measured<'_> {
    /// What a backward pass spent with starting collectives between two times.
    pub fn starting(&self, from: f64, to: f64) -> f64 {
        self.starting.covered(from, to)
    }

    /// What was under way or being started between two times.
    pub fn all(&self, from: f64, to: f64) -> f64 {
        self.all.covered(from, to)
    }

    /// The note for a step from `begin` to `end`, with the means of all steps in microseconds.
    pub fn note(&self, begin: f64, end: f64, all_us: f64, taken_us: f64) -> String {
        let of_step = |bucket: &&(f64, String)| (begin..end).contains(&bucket.0);
        let buckets: Vec<_> = self
            .buckets
            .iter()
            .filter(of_step)
            .map(|b| b.1.as_str())
            .collect();
        let ranks: Vec<_> = self.ranks.iter().map(u64::to_string).collect();
        let ranks = match ranks.is_empty() {
            true => String::new(),
            false => format!(" among {} ranks", ranks.join(" or ")),
        };
        let shown_max = 8;
        let more = match buckets.len() > shown_max {
            true => ", ...",
            false => "",
        };
        let elements = buckets[..buckets.len().min(shown_max)].join(", ");
        format!(
            "steps communicate{ranks}: {:.3} ms of a step, in {} allreduces (elements: {elements}{more}). {:.3} ms of that did not overlap \
             with the backward pass, or started collectives, and were taken out; that computing was slower meanwhile, and copies to buckets, were not",
            all_us / 1e3,
            buckets.len(),
            taken_us / 1e3,
        )
    }
}
