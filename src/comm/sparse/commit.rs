//! The end of a step: the outcomes of its units enter the residuals and the result. They enter when
//! all units have an outcome, so a step changes either all units or none.

use super::result::SparseResult;
use super::state::{Outcome, Pending, Steps};
use crate::comm::buffer::Buffer;
use crate::kernel::{self, reduce};
use crate::memory::View;
use crate::sparse::{Finished, IndexMarks, NonFinite, Stream, WINDOW};
use crate::types::{Combine, DataType, Finish};

/// Number of elements of a residual that are changed in one go. They stay in the second-level cache
/// meanwhile, so the few picks among them do not have to wait for memory.
const BLOCK: usize = WINDOW;

/// Entries by increasing index, of which those from `at` on are still to be visited.
struct Rest<'a> {
    entries: &'a Stream,
    at: usize,
}

impl<'a> Rest<'a> {
    fn of(entries: &'a Stream) -> Rest<'a> {
        Rest { entries, at: 0 }
    }

    /// Visits the entries below an index. It does not search for the last of them, because a binary
    /// search waits for memory at every step.
    fn up_to(&mut self, end: u64, mut each: impl FnMut(u64, f32)) {
        let indices = &self.entries.indices[self.at..];
        for (index, value) in indices.iter().zip(&self.entries.values[self.at..]) {
            if *index >= end {
                break;
            }
            each(*index, *value);
            self.at += 1;
        }
    }
}

impl Steps {
    pub(super) fn commit(&mut self, mut pending: Pending) -> SparseResult {
        let clock = self.comm.inner.clock.clone();
        let begun = clock.now();
        let mut since = begun;
        let outcomes = std::mem::take(&mut pending.outcomes);
        let mut sparse = Vec::new();
        let mut spent = std::mem::take(&mut pending.spent).into_iter().peekable();
        for (unit, outcome) in outcomes.into_iter().enumerate() {
            match outcome {
                Outcome::Nothing => {}
                Outcome::Sparse(finished) => {
                    sparse.push(unit);
                    self.commit_sparse(&mut pending, unit, *finished);
                }
                Outcome::Dense { born } => self.commit_dense(&mut pending, unit, born),
            }
            let now = clock.now();
            if let Some(spent) = spent.next_if(|spent| spent.unit == unit) {
                let own = spent.select + now.since(since);
                self.note(unit, spent.algorithm, (spent.communicate, own));
            }
            since = now;
        }
        if let Some(dense) = &pending.result.dense {
            // For the sparse units of this step, the dense vector still has values of an earlier
            // step.
            for unit in sparse {
                let place = self.place_of(unit);
                let view = dense.raw().view();
                kernel::fill(view.part(place.start, place.len()), 0);
            }
        }
        pending.result.times.apply = since.since(begun);
        pending.result
    }

    fn commit_sparse(&mut self, pending: &mut Pending, unit: usize, finished: Finished<Stream>) {
        // With `NonFinite::Count` the selection has added the gradients to the residuals already.
        let is_added = self.options.non_finite == NonFinite::Count;
        let gradients = pending.gradients.as_ref().filter(|_| !is_added);
        let mut picks = Rest::of(&finished.picks);
        let mut returned: Vec<Rest> = finished.returned.iter().map(Rest::of).collect();
        let mut marks = IndexMarks::of(&finished.result.indices);
        let first = self.starts[self.units[unit].tensors.start];
        for tensor in self.units[unit].tensors.clone() {
            let residual = self.residuals.of(tensor).view();
            let gradient = gradients.map(|g| g[tensor].view());
            let base = self.starts[tensor] - first;
            let count = residual.len_bytes() / 4;
            for start in (0..count).step_by(BLOCK) {
                let end = count.min(start + BLOCK);
                if let Some(gradient) = gradient {
                    add(residual, gradient, start..end);
                }
                let until = base + end as u64;
                match finished.is_rest_returned {
                    true => {
                        marks.mark_up_to(base + start as u64, until);
                        // A pick that is not in the result stays in the residual.
                        picks.up_to(until, |index, value| {
                            let kept = if marks.has(index) { 0.0 } else { value };
                            kernel::store(residual, (index - base) as usize, kept);
                        });
                    }
                    false => picks.up_to(until, |index, _| {
                        kernel::store(residual, (index - base) as usize, 0f32);
                    }),
                }
                for rest in &mut returned {
                    rest.up_to(until, |index, value| {
                        give_back(residual, (index - base) as usize, value);
                    });
                }
            }
        }
        for list in finished.returned {
            self.spare.keep(list);
        }
        let unit = &mut self.units[unit];
        if let Some(state) = finished.state {
            unit.state = state;
        }
        unit.reduced = finished.reduced.or(unit.reduced);
        unit.dense_steps = 0;
        let result = &mut pending.result;
        result.selected_local += finished.picks.indices.len() as u64;
        result.selected_global += finished.result.indices.len() as u64;
        result.reduced = finished.reduced;
        unit.memory = finished.picks;
        let mut entries = finished.result;
        if self.options.is_average {
            let divisor = self.comm.ranks() as f32;
            entries.values.iter_mut().for_each(|v| *v /= divisor);
        }
        if first > 0 {
            entries.indices.iter_mut().for_each(|i| *i += first);
        }
        let all = &mut result.entries.stream;
        match all.indices.is_empty() {
            true => *all = entries,
            false => {
                all.indices.extend_from_slice(&entries.indices);
                all.values.extend_from_slice(&entries.values);
                self.spare.keep(entries);
            }
        }
    }

    fn commit_dense(&mut self, pending: &mut Pending, unit: usize, born: u64) {
        let tensors = self.units[unit].tensors.clone();
        let dense = self.dense.as_ref().expect("a dense step has its buffer");
        for tensor in tensors.clone() {
            let residual = self.residuals.of(tensor).view();
            if born == 0 {
                kernel::fill(residual, 0);
                continue;
            }
            let gradient = pending.gradients.as_ref().map(|g| g[tensor].view());
            let at = 4 * self.starts[tensor] as usize;
            let part = dense.view().part(at, residual.len_bytes());
            for index in 0..residual.len_bytes() / 4 {
                if kernel::load::<f32>(part, index).is_finite() {
                    kernel::store(residual, index, 0f32);
                } else {
                    // No rank applies such a coordinate, so every rank keeps its contribution.
                    kernel::store(part, index, 0f32);
                    if let Some(gradient) = gradient {
                        give_back(residual, index, kernel::load::<f32>(gradient, index));
                    }
                }
            }
        }
        self.units[unit].dense_steps += 1;
        self.units[unit].memory.indices.clear();
        self.units[unit].memory.values.clear();
        let count = self.starts[tensors.end] - self.starts[tensors.start];
        pending.result.selected_local += count;
        pending.result.selected_global += count;
        pending.result.dense = Some(Buffer::of(dense.clone()));
    }
}

fn add(residual: View, gradient: View, range: std::ops::Range<usize>) {
    let part = |view: View| view.part(4 * range.start, 4 * range.len());
    let own = part(residual);
    let sources = [own, part(gradient)];
    reduce(DataType::F32, Combine::Sum, Finish::None, &sources, &[own]);
}

/// Adds to one element of a residual, unless the sum is not finite.
fn give_back(residual: View, at: usize, value: f32) {
    let next = kernel::load::<f32>(residual, at) + value;
    if next.is_finite() {
        kernel::store(residual, at, next);
    }
}
