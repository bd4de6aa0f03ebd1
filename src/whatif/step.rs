//! What happens in a step: flushes in the order of their plan, or parts of gradients by priority.

use super::model::WhatIf;
use super::plan::PlannedFlush;
use super::price::{Cost, Load, Prices};
use super::slowed::Slowed;
use super::trace::{Gradient, Trace};
use crate::error::{Error, Result};
use std::collections::BinaryHeap;

/// Parts of gradients in a step, at most.
const PARTITIONS_MAX: f64 = 1e6;

/// A step.
pub struct Step {
    /// From the start of the backward pass until all gradients are reduced, and the pass is done.
    pub sync_ms: f64,
    /// What communication adds to the step.
    pub overhead_ms: f64,
    /// How long a link is busy.
    pub busy_ms: f64,
    /// By how much the backward pass is slower.
    pub slowed_ms: f64,
    /// What communication took since the link was idle last.
    pub exposed: Cost,
    /// How many operations there were.
    pub operations: usize,
}

/// The link of a member, which does one operation after the other.
struct Queue<'w> {
    whatif: &'w WhatIf,
    free_ms: f64,
    /// When the last operation was done, and its gradients unpacked.
    done_ms: f64,
    busy_ms: f64,
    exposed: Cost,
    slowed: Slowed,
    operations: usize,
}

impl<'w> Queue<'w> {
    fn new(whatif: &'w WhatIf, backward_ms: f64) -> Queue<'w> {
        Queue {
            whatif,
            free_ms: 0.0,
            done_ms: 0.0,
            busy_ms: 0.0,
            exposed: Cost::default(),
            slowed: Slowed::new(whatif.slowing, backward_ms),
            operations: 0,
        }
    }

    /// Does this as soon as the link is free. Gradients are packed before that, and unpacked after,
    /// while the link does something else. Gives when all is done.
    fn run(&mut self, ready_ms: f64, mut cost: Cost) -> f64 {
        if ready_ms > self.free_ms {
            self.exposed = Cost::default();
        }
        // Who looks for what is ready only now and then comes half of the time late.
        let looked_at_ms = match cost.total() > 0.0 {
            true => ready_ms + self.whatif.cycle_us / 2e3,
            false => ready_ms,
        };
        let packing_ms = cost.packing / 2.0;
        let start_ms = self.free_ms.max(looked_at_ms + packing_ms);
        let end_ms = start_ms + cost.total() - cost.packing;
        self.slowed.add(start_ms, end_ms);
        cost.operations += self.free_ms.max(looked_at_ms) - self.free_ms.max(ready_ms);
        self.free_ms = end_ms;
        self.done_ms = self.done_ms.max(end_ms + packing_ms);
        self.exposed = self.exposed.plus(cost);
        // A link works at its whole rate or waits: what the transport does not reach is waiting.
        self.busy_ms += cost.wire * self.whatif.link_share;
        self.operations += 1;
        end_ms + packing_ms
    }

    fn end(self, backward_ms: f64) -> Step {
        let slowed_ms = self.slowed.end_ms(backward_ms) - backward_ms;
        let sync_ms = self.done_ms.max(backward_ms + slowed_ms);
        Step {
            sync_ms,
            overhead_ms: sync_ms - backward_ms,
            busy_ms: self.busy_ms,
            slowed_ms,
            exposed: self.exposed,
            operations: self.operations,
        }
    }
}

/// Bytes of some gradients, and as they are sent.
fn load<'t>(whatif: &WhatIf, gradients: impl Iterator<Item = &'t Gradient>) -> Load {
    let mut load = Load {
        bytes: 0.0,
        sent: 0.0,
        count: 0.0,
    };
    for gradient in gradients {
        let (bytes, size) = (gradient.bytes as f64, gradient.dtype.size_bytes() as f64);
        let sent_size = whatif.wire_dtype.map_or(size, |d| d.size_bytes() as f64);
        load.bytes += bytes;
        load.count += bytes / size;
        load.sent += bytes / size * sent_size;
    }
    load
}

/// The flushes one after another.
pub fn in_order(whatif: &WhatIf, trace: &Trace, plan: &[PlannedFlush], prices: &Prices) -> Step {
    let backward_ms = trace.backward_us() / 1e3;
    let mut queue = Queue::new(whatif, backward_ms);
    for flush in plan {
        let gradients = flush
            .tensors
            .iter()
            .map(|at| &trace.gradients[*at as usize]);
        let ready_ms = queue.slowed.end_ms(flush.time_ms);
        queue.run(ready_ms, prices.of(load(whatif, gradients)));
    }
    queue.end(backward_ms)
}

/// Parts of gradients, of which the last gradient's go first: its layer is the first of the next
/// forward pass. The times of layers in that pass are in proportion to their times in the backward
/// pass. An operation that has begun is not interrupted.
///
/// Source: Peng et al., "A Generic Communication Scheduler for Distributed DNN Training
/// Acceleration", SOSP 2019.
pub fn by_priority(
    whatif: &WhatIf,
    trace: &Trace,
    prices: &Prices,
    partition_bytes: u64,
) -> Result<Step> {
    let backward_ms = trace.backward_us() / 1e3;
    let parts_of = |gradient: &Gradient| gradient.bytes.div_ceil(partition_bytes) as f64;
    let partitions: f64 = trace.gradients.iter().map(parts_of).sum();
    if partitions > PARTITIONS_MAX {
        return Err(Error::invalid(format!(
            "{partitions} partitions of {partition_bytes} bytes; allowed: {PARTITIONS_MAX}, with larger ones"
        )));
    }
    let mut queue = Queue::new(whatif, backward_ms);
    let mut came_ms = vec![0.0; trace.gradients.len()];
    let mut reduced_ms = came_ms.clone();
    // What is ready: a gradient's place in the backward pass, and the parts that are left.
    let mut ready: BinaryHeap<(usize, u64)> = BinaryHeap::new();
    let (mut next, mut alone_ms) = (0, 0.0);
    let ready_alone_ms = |next: usize, before_ms: f64| {
        let gradient = trace.gradients.get(next);
        gradient.map(|gradient| before_ms + gradient.wait_us / 1e3)
    };
    loop {
        let coming = ready_alone_ms(next, alone_ms).map(|ms| (ms, queue.slowed.end_ms(ms)));
        if let Some((ms, ready_ms)) = coming
            && (ready.is_empty() || ready_ms <= queue.free_ms)
        {
            let parts = trace.gradients[next].bytes.div_ceil(partition_bytes);
            reduced_ms[next] = ready_ms;
            came_ms[next] = ready_ms;
            if parts > 0 {
                ready.push((next, parts));
            }
            (next, alone_ms) = (next + 1, ms);
            continue;
        }
        let Some((at, parts)) = ready.pop() else {
            break;
        };
        let gradient = &trace.gradients[at];
        let whole = load(whatif, std::iter::once(gradient));
        let share = match parts {
            1 => (gradient.bytes - 1) % partition_bytes + 1,
            _ => partition_bytes,
        } as f64
            / gradient.bytes as f64;
        let cost = prices.of(Load {
            bytes: whole.bytes * share,
            sent: whole.sent * share,
            count: whole.count * share,
        });
        reduced_ms[at] = queue.run(came_ms[at], cost);
        if parts > 1 {
            ready.push((at, parts - 1));
        }
    }
    let mut step = queue.end(backward_ms);
    let forward_ms = trace.forward_ms();
    let scale = if backward_ms > 0.0 {
        forward_ms / backward_ms
    } else {
        0.0
    };
    let mut end_ms = backward_ms + step.slowed_ms;
    for (gradient, reduced_ms) in trace.gradients.iter().zip(&reduced_ms).rev() {
        end_ms = end_ms.max(*reduced_ms) + gradient.wait_us / 1e3 * scale;
    }
    step.overhead_ms = (end_ms - forward_ms - backward_ms).max(0.0);
    Ok(step)
}
