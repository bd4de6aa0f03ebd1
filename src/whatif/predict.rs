//! [`WhatIf`] and [`Prediction`]: the time of a step of training on a network.

use super::plan::{FlushRule, PlannedFlush};
use super::trace::Trace;
use crate::cost::Additions;
use crate::error::{Error, Result};
use crate::fusion::FusionOptions;

/// Steps of which communication adds less than this share are limited by the computation.
const EXPOSED_SHARE_MIN: f64 = 0.01;

/// Who are the members of the ring.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Members {
    /// All GPUs, as in the published model: each has a link of its own.
    Gpus,
    /// All servers. The GPUs of a server share a link, and reduce among themselves before and
    /// after.
    Servers {
        /// GPUs of a server, from 1.
        gpus_per_server: u32,
        /// Bits per second of a GPU's link inside of its server; infinity for no time.
        inside_bits_per_second: f64,
    },
}

/// GPUs, their network, and how gradients are put together: what a prediction is made for.
#[derive(Clone, Debug, PartialEq)]
pub struct WhatIf {
    /// GPUs that train together, from 1.
    pub gpus: u32,
    /// Who are the members of the ring.
    pub members: Members,
    /// Bits per second of a member's link; infinity for a network that takes no time.
    pub bits_per_second: f64,
    /// Microseconds from sending to receiving, of each of the `2 (N - 1)` messages of a ring.
    pub latency_us: f64,
    /// By how much gradients are shorter on the link than in memory, from 1. Compressing takes no
    /// time, and additions are not shorter.
    pub compression: f64,
    /// Share of the link that the transport reaches, above 0 and at most 1.
    pub link_share: f64,
    /// Microseconds that each allreduce takes besides its bytes, messages and additions.
    pub operation_us: f64,
    /// Microseconds between two looks at what is ready: on average a flush starts half of this
    /// later, if the link is idle.
    pub cycle_us: f64,
    /// By how much communication slows computation while both run: 0 is not at all, and with 0.25
    /// a computation that takes 4 ms alone takes 5 ms.
    pub slowing: f64,
    /// Additions of a GPU.
    pub additions: Additions,
    /// Which rule decides what is flushed.
    pub rule: FlushRule,
    /// Age and size of a flush.
    pub fusion: FusionOptions,
}

impl Default for WhatIf {
    /// The published model with 64 GPUs at 100 Gbit/s.
    fn default() -> WhatIf {
        WhatIf {
            gpus: 64,
            members: Members::Gpus,
            bits_per_second: 100e9,
            latency_us: 0.0,
            compression: 1.0,
            link_share: 1.0,
            operation_us: 0.0,
            cycle_us: 0.0,
            slowing: 0.0,
            additions: Additions::v100(),
            rule: FlushRule::Paper,
            fusion: FusionOptions::default(),
        }
    }
}

/// What takes the most of the communication at the end of a step: since the link was idle last.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LimitedBy {
    /// Nothing: communication adds less than 1 % to a step.
    Computation,
    /// Bytes on the links between members.
    Wire,
    /// Bytes on the links inside of servers.
    InsideServers,
    /// Latencies of messages.
    Latency,
    /// Additions.
    Additions,
    /// What each allreduce takes besides, and the wait for a cycle.
    Operations,
    /// The computation, which communication slows.
    Slowing,
}

impl LimitedBy {
    /// Its name, for people and documents.
    pub fn name(self) -> &'static str {
        match self {
            LimitedBy::Computation => "computation",
            LimitedBy::Wire => "wire",
            LimitedBy::InsideServers => "links inside servers",
            LimitedBy::Latency => "latency",
            LimitedBy::Additions => "additions",
            LimitedBy::Operations => "operations",
            LimitedBy::Slowing => "slowed computation",
        }
    }
}

/// A predicted step of training.
#[derive(Clone, Debug, PartialEq)]
pub struct Prediction {
    /// Milliseconds of a step on one GPU ([`Trace::step_ms`]).
    pub batch_ms: f64,
    /// Milliseconds of the backward pass.
    pub backward_ms: f64,
    /// Milliseconds from the start of the backward pass until all gradients are reduced.
    pub sync_ms: f64,
    /// Milliseconds that communication adds to a step.
    pub overhead_ms: f64,
    /// The time of a step on one GPU, divided by that on all of them: 1 is perfect.
    pub scaling_factor: f64,
    /// Share of the step in which a member's link is busy.
    pub link_utilisation: f64,
    /// What takes the most of the overhead.
    pub limited_by: LimitedBy,
    /// Flushes of a step.
    pub flushes: usize,
}

/// Where the time of communication goes, in ms.
#[derive(Clone, Copy, Debug, Default)]
struct Cost {
    wire: f64,
    inside: f64,
    latency: f64,
    additions: f64,
    operations: f64,
}

impl Cost {
    fn total(self) -> f64 {
        self.wire + self.inside + self.latency + self.additions + self.operations
    }

    fn plus(self, other: Cost) -> Cost {
        Cost {
            wire: self.wire + other.wire,
            inside: self.inside + other.inside,
            latency: self.latency + other.latency,
            additions: self.additions + other.additions,
            operations: self.operations + other.operations,
        }
    }

    /// The largest part, also of a computation that was slowed; of equal ones the first.
    fn largest(self, slowed_ms: f64) -> LimitedBy {
        let parts = [
            (self.wire, LimitedBy::Wire),
            (self.inside, LimitedBy::InsideServers),
            (self.latency, LimitedBy::Latency),
            (self.additions, LimitedBy::Additions),
            (self.operations, LimitedBy::Operations),
            (slowed_ms, LimitedBy::Slowing),
        ];
        let mut largest = parts[0];
        for part in parts {
            if part.0 > largest.0 {
                largest = part;
            }
        }
        largest.1
    }
}

/// A computation that is slower while communication runs.
struct Slowed {
    slowing: f64,
    /// How long all of it takes alone.
    alone_ms: f64,
    /// Starts and ends of communication, in their order.
    runs: Vec<(f64, f64)>,
}

impl Slowed {
    fn new(slowing: f64, alone_ms: f64) -> Slowed {
        Slowed {
            slowing,
            alone_ms,
            runs: Vec::new(),
        }
    }

    /// Communication runs from then to then, after all that were added.
    fn add(&mut self, start_ms: f64, end_ms: f64) {
        if self.slowing > 0.0 && start_ms < self.alone_ms * (1.0 + self.slowing) {
            self.runs.push((start_ms, end_ms));
        }
    }

    /// When that is done which ends at `alone_ms` if nothing slows it.
    fn end_ms(&self, alone_ms: f64) -> f64 {
        let mut end_ms = alone_ms;
        for &(start_ms, run_end_ms) in &self.runs {
            if end_ms <= start_ms {
                break;
            }
            // While communication runs, a part of 1 / (1 + slowing) gets done.
            let rest_ms = (end_ms - start_ms) * (1.0 + self.slowing);
            let run_ms = run_end_ms - start_ms;
            end_ms = match rest_ms <= run_ms {
                true => start_ms + rest_ms,
                false => end_ms + run_ms * self.slowing / (1.0 + self.slowing),
            };
        }
        end_ms
    }
}

/// Milliseconds for which a ring of `members` keeps the link of each busy: it sends and receives
/// `2 bytes (members - 1) / members`.
fn ring_ms(bytes: f64, members: f64, bits_per_second: f64) -> f64 {
    2.0 * (8.0 * bytes * (members - 1.0) / members) / bits_per_second * 1e3
}

impl WhatIf {
    /// Predicts a step with these gradients.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`]: a field is out of range, or the GPUs do not fill their servers.
    /// The text names the field, its value and what is allowed.
    pub fn predict(&self, trace: &Trace) -> Result<Prediction> {
        let members = self.count_members()?;
        let plan = trace.plan(self.rule, &self.fusion)?;
        let backward_ms = trace.backward_us() / 1e3;
        let batch_ms = trace.step_ms();
        // A link works at its whole rate or waits: what the transport does not reach is waiting.
        let (mut busy_ms, mut free_ms) = (0.0, 0.0f64);
        let mut exposed = Cost::default();
        let mut slowed = Slowed::new(self.slowing, backward_ms);
        for flush in &plan {
            let mut cost = self.cost(flush, members);
            let ready_ms = slowed.end_ms(flush.time_ms);
            if ready_ms > free_ms {
                exposed = Cost::default();
            }
            let looked_at_ms = match members > 1 {
                true => ready_ms + self.cycle_us / 2e3,
                false => ready_ms,
            };
            let start_ms = free_ms.max(looked_at_ms);
            let end_ms = start_ms + cost.total();
            slowed.add(start_ms, end_ms);
            cost.operations += start_ms - free_ms.max(ready_ms);
            free_ms = end_ms;
            exposed = exposed.plus(cost);
            busy_ms += cost.wire * self.link_share;
        }
        let slowed_ms = slowed.end_ms(backward_ms) - backward_ms;
        let sync_ms = free_ms.max(backward_ms + slowed_ms);
        let overhead_ms = sync_ms - backward_ms;
        let step_ms = batch_ms + overhead_ms;
        let share = |part: f64| if step_ms > 0.0 { part / step_ms } else { 0.0 };
        Ok(Prediction {
            batch_ms,
            backward_ms,
            sync_ms,
            overhead_ms,
            scaling_factor: if step_ms > 0.0 {
                batch_ms / step_ms
            } else {
                1.0
            },
            link_utilisation: share(busy_ms),
            limited_by: match share(overhead_ms) < EXPOSED_SHARE_MIN {
                true => LimitedBy::Computation,
                false => exposed.largest(slowed_ms),
            },
            flushes: plan.len(),
        })
    }

    /// Members of the ring; an error if a field is out of range.
    fn count_members(&self) -> Result<u32> {
        let check = |what: &str, value: f64, is_good: bool, allowed: &str| match is_good {
            true => Ok(()),
            false => Err(Error::invalid(format!(
                "{what} is {value}; allowed: {allowed}"
            ))),
        };
        let above = "more than 0, or infinity";
        let bits = self.bits_per_second;
        check("the bandwidth", bits, bits > 0.0, above)?;
        let latency = self.latency_us;
        let is_good = latency >= 0.0 && latency.is_finite();
        check("the latency in us", latency, is_good, "0 or more")?;
        let ratio = self.compression;
        let is_good = ratio >= 1.0 && ratio.is_finite();
        check("the compression", ratio, is_good, "1 (none) or more")?;
        let part = self.link_share;
        let is_good = part > 0.0 && part <= 1.0;
        check(
            "the share of the link",
            part,
            is_good,
            "more than 0, at most 1",
        )?;
        for (what, value) in [
            ("the time of an operation in us", self.operation_us),
            ("the time of a cycle in us", self.cycle_us),
            ("the slowing", self.slowing),
        ] {
            let is_good = value >= 0.0 && value.is_finite();
            check(what, value, is_good, "0 or more")?;
        }
        check(
            "the number of GPUs",
            self.gpus.into(),
            self.gpus > 0,
            "1 or more",
        )?;
        let Members::Servers {
            gpus_per_server: each,
            inside_bits_per_second: inside,
        } = self.members
        else {
            return Ok(self.gpus);
        };
        check("the bandwidth inside a server", inside, inside > 0.0, above)?;
        let is_good = each > 0 && self.gpus.is_multiple_of(each);
        let allowed = format!("a divisor of the {} GPUs", self.gpus);
        check(
            "the number of GPUs per server",
            each.into(),
            is_good,
            &allowed,
        )?;
        Ok(self.gpus / each)
    }

    /// What a flush costs.
    fn cost(&self, flush: &PlannedFlush, members: u32) -> Cost {
        let (bytes, members) = (flush.bytes as f64, f64::from(members));
        let others = members - 1.0;
        let bits_per_second = self.bits_per_second * self.link_share;
        Cost {
            wire: ring_ms(bytes, members, bits_per_second) / self.compression,
            inside: match self.members {
                Members::Gpus => 0.0,
                Members::Servers {
                    gpus_per_server,
                    inside_bits_per_second,
                } => ring_ms(bytes, gpus_per_server.into(), inside_bits_per_second),
            },
            latency: 2.0 * others * self.latency_us / 1e3,
            additions: others * self.additions.seconds(bytes / members) * 1e3,
            operations: match others > 0.0 {
                true => self.operation_us / 1e3,
                false => 0.0,
            },
        }
    }
}
