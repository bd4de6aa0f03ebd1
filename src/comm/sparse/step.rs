//! One step: a unit after the other, each from its selection to its residual.

use super::result::SparseResult;
use super::{SparseAllreduce, Unit, resolve};
use crate::comm::{Buffer, Call, Operation};
use crate::error::{Error, Result};
use crate::kernel::reduce;
use crate::kernel::select::{Picks, Source, collect};
use crate::sparse::{
    Action, Algorithm, Arrived, Counters, Finished, LocalSelection, Machine, NonFinite, Request,
    Step, Stream,
};
use crate::types::{Combine, DataType, Finish, ReduceOp};

/// A step under way.
pub(super) struct Pending {
    /// `None`: only the residuals are flushed.
    gradients: Option<Vec<Buffer>>,
    unit: usize,
    task: Task,
    operation: Option<Operation>,
    arrived: Arrived,
    result: SparseResult,
}

/// What the unit at hand is doing.
enum Task {
    /// It has not begun.
    Begin,
    /// A machine, with the picks it was given and the selection before them.
    Machine(Box<Machine<Stream>>, Stream, LocalSelection),
    /// Ranks tell each other how many values are not finite.
    Census,
    /// The dense allreduce.
    Dense(u64),
}

impl SparseAllreduce {
    pub(super) fn begin(&mut self, gradients: Option<Vec<Buffer>>) -> Result<()> {
        if self.pending.is_some() {
            return Err(Error::invalid(
                "a sparse allreduce is under way: test it until it ends before the next is started",
            ));
        }
        self.pending = Some(Pending {
            gradients,
            unit: 0,
            task: Task::Begin,
            operation: None,
            arrived: Arrived::Nothing,
            result: SparseResult {
                algorithm: self.options.algorithm,
                is_skipped: false,
                not_finite: 0,
                selected_local: 0,
                selected_global: 0,
                reduced: None,
                counters: Counters::default(),
                entries: Stream::default(),
                dense: None,
                starts: self.starts.clone(),
            },
        });
        Ok(())
    }

    /// Goes on as far as possible; the result at the end.
    pub(super) fn go_on(&mut self, is_waiting: bool) -> Result<Option<SparseResult>> {
        let Some(mut pending) = self.pending.take() else {
            return Err(Error::invalid("no sparse allreduce has been started"));
        };
        while pending.unit < self.units.len() {
            if let Some(mut operation) = pending.operation.take() {
                if is_waiting {
                    operation.wait()?;
                } else if !operation.test()? {
                    pending.operation = Some(operation);
                    self.pending = Some(pending);
                    return Ok(None);
                }
                pending.arrived = self.carrier.take();
            }
            self.turn(&mut pending)?;
        }
        self.steps += u64::from(!pending.result.is_skipped);
        Ok(Some(pending.result))
    }

    /// One thing after another, until there is an operation to wait for or the unit has ended.
    fn turn(&mut self, pending: &mut Pending) -> Result<()> {
        match std::mem::replace(&mut pending.task, Task::Begin) {
            Task::Begin => self.begin_unit(pending),
            Task::Machine(mut machine, picks, before) => {
                let arrived = std::mem::replace(&mut pending.arrived, Arrived::Nothing);
                match machine.next(arrived) {
                    Action::Start(request) => {
                        pending.operation = self.carrier.start(&request)?;
                        // What came before is reduced while this is under way.
                        assert_eq!(machine.next(Arrived::Nothing), Action::Wait);
                        if pending.operation.is_none() {
                            pending.arrived = self.carrier.take();
                        }
                        pending.task = Task::Machine(machine, picks, before);
                        Ok(())
                    }
                    Action::Wait => Err(Error::invalid("a machine waits for nothing")),
                    Action::Done => {
                        if let Some(error) = machine.failure() {
                            return Err(self.fail(error.clone()));
                        }
                        let finished = machine.finish().expect("a machine that is done");
                        self.end_machine(pending, picks, before, finished)
                    }
                }
            }
            Task::Census => {
                let Arrived::Words(words) =
                    std::mem::replace(&mut pending.arrived, Arrived::Nothing)
                else {
                    return Err(Error::invalid("a census gives words"));
                };
                self.begin_dense(pending, words[0])
            }
            Task::Dense(not_finite) => self.end_dense(pending, not_finite),
        }
    }

    /// Other ranks may not have seen what is wrong, and would wait for this one: the communicator has failed.
    fn fail(&self, error: Error) -> Error {
        let shared = &self.comm.inner.shared;
        shared.engine().fail_with(error.clone());
        shared.ring();
        error
    }

    fn begin_unit(&mut self, pending: &mut Pending) -> Result<()> {
        let ranks = self.comm.ranks();
        let unit = &mut self.units[pending.unit];
        let count = self.starts[unit.tensors.end] - self.starts[unit.tensors.start];
        if count == 0 {
            pending.unit += 1;
            return Ok(());
        }
        let shape = (count, unit.k, ranks);
        let mut algorithm = resolve(&self.options, shape, unit.reduced, self.prices);
        if pending.gradients.is_none() || self.steps < self.options.warm_up_steps {
            algorithm = Algorithm::Dense;
        }
        pending.result.algorithm = algorithm;
        let sources: Vec<(Source, Source)> = (unit.tensors.clone())
            .map(|t| {
                let residual = self.residuals.of(t).view();
                let gradient = pending.gradients.as_ref().map(|g| g[t].view());
                let alone = Source::of(residual);
                (gradient.map_or(alone, |g| Source::sum(residual, g)), alone)
            })
            .collect();
        if algorithm == Algorithm::Dense {
            let sums: Vec<Source> = sources.iter().map(|s| s.0).collect();
            let scan = collect(&sums, f32::MAX.to_bits(), usize::MAX, &mut Picks::default());
            let words = vec![scan.not_finite];
            pending.task = Task::Census;
            if ranks == 1 {
                pending.arrived = Arrived::Words(words);
                return Ok(());
            }
            let is_wide = true;
            pending.operation = self.carrier.start(&Request::Sum { words, is_wide })?;
            return Ok(());
        }
        let before = unit.selection.clone();
        let selected = (unit.selection).select(&sources, unit.k, algorithm, &self.options);
        let step = Step {
            picks: selected.picks.clone(),
            not_finite: selected.not_finite,
            count,
            k: unit.k,
        };
        let place = (self.comm.rank(), ranks);
        let machine = Machine::new(algorithm, &self.options, place, step, unit.state.clone());
        pending.task = Task::Machine(Box::new(machine), selected.picks, before);
        Ok(())
    }

    fn end_machine(
        &mut self,
        pending: &mut Pending,
        picks: Stream,
        before: LocalSelection,
        finished: Finished<Stream>,
    ) -> Result<()> {
        let unit = &mut self.units[pending.unit];
        pending.result.counters.add(&finished.counters);
        pending.result.not_finite += finished.not_finite;
        if finished.is_void {
            unit.selection = before;
            return self.end_void(pending, finished.not_finite);
        }
        if self.options.non_finite != NonFinite::Count {
            self.absorb(pending);
        }
        let unit = &mut self.units[pending.unit];
        if let Some(state) = finished.state {
            unit.state = state;
        }
        unit.reduced = finished.reduced.or(unit.reduced);
        let first = self.starts[unit.tensors.start];
        let unit = &self.units[pending.unit];
        for index in &picks.indices {
            self.change(unit, *index, |_| 0.0);
        }
        for list in &finished.returned {
            for (index, value) in list.indices.iter().zip(&list.values) {
                self.change(unit, *index, |old| old + value);
            }
        }
        let divisor = match self.options.is_average {
            true => self.comm.ranks() as f32,
            false => 1.0,
        };
        let result = &mut pending.result;
        result.selected_local += picks.indices.len() as u64;
        result.selected_global += finished.result.indices.len() as u64;
        result.reduced = finished.reduced;
        let indices = finished.result.indices.iter().map(|i| first + i);
        result.entries.indices.extend(indices);
        let values = finished.result.values.iter().map(|v| v / divisor);
        result.entries.values.extend(values);
        pending.unit += 1;
        Ok(())
    }

    /// Changes one residual, unless that would leave something that is not finite.
    fn change(&self, unit: &Unit, index: u64, change: impl FnOnce(f32) -> f32) {
        let index = self.starts[unit.tensors.start] + index;
        let tensor = self.starts.partition_point(|start| *start <= index) - 1;
        let at = (index - self.starts[tensor]) as usize;
        let view = self.residuals.of(tensor).view();
        let next = change(view.load(at));
        if next.is_finite() {
            view.store(at, next);
        }
    }

    /// Adds the unit's gradients to its residuals.
    fn absorb(&self, pending: &Pending) {
        if let Some(gradients) = &pending.gradients {
            for tensor in self.units[pending.unit].tensors.clone() {
                self.residuals.absorb(tensor, &gradients[tensor]);
            }
        }
    }

    /// Not a step, on any rank.
    fn end_void(&mut self, pending: &mut Pending, not_finite: u64) -> Result<()> {
        if self.options.non_finite == NonFinite::Skip {
            pending.result.is_skipped = true;
            pending.unit += 1;
            return Ok(());
        }
        // Of tensors with results of their own, those before this one have been applied to their residuals.
        Err(Error::NotFinite {
            count: not_finite,
            step: self.steps,
        })
    }

    fn begin_dense(&mut self, pending: &mut Pending, not_finite: u64) -> Result<()> {
        if not_finite > 0 && self.options.non_finite != NonFinite::Count {
            pending.result.not_finite += not_finite;
            return self.end_void(pending, not_finite);
        }
        let bytes = 4 * self.starts[self.tensors.len()] as usize;
        if self.dense.is_none() {
            self.dense = Some(self.comm.alloc(bytes)?);
        }
        let dense = self.dense.as_ref().expect("just made").clone();
        let unit = &self.units[pending.unit];
        for tensor in unit.tensors.clone() {
            let residual = self.residuals.of(tensor).view();
            let at = 4 * self.starts[tensor] as usize;
            let part = dense.view().part(at, residual.len_bytes());
            match &pending.gradients {
                None => part.copy_from(residual),
                Some(gradients) => {
                    let sources = [residual, gradients[tensor].view()];
                    reduce(DataType::F32, Combine::Sum, Finish::None, &sources, &[part]);
                }
            }
            if not_finite > 0 {
                // Such coordinates do not absorb this gradient.
                for index in 0..part.len_bytes() / 4 {
                    if !part.load::<f32>(index).is_finite() {
                        part.store(index, residual.load::<f32>(index));
                    }
                }
            }
        }
        let (from, to) = (
            self.starts[unit.tensors.start],
            self.starts[unit.tensors.end],
        );
        let part = dense.part(4 * from as usize, 4 * (to - from) as usize);
        pending.task = Task::Dense(not_finite);
        let op = if self.options.is_average {
            ReduceOp::Avg
        } else {
            ReduceOp::Sum
        };
        let call = Call::all_reduce(DataType::F32, op, to - from, &part, &part);
        pending.operation = Some(self.comm.start(&call)?);
        Ok(())
    }

    fn end_dense(&mut self, pending: &mut Pending, not_finite: u64) -> Result<()> {
        pending.arrived = Arrived::Nothing;
        let unit = &self.units[pending.unit];
        let (from, to) = (
            self.starts[unit.tensors.start],
            self.starts[unit.tensors.end],
        );
        let dense = self
            .dense
            .as_ref()
            .expect("a dense step has its buffer")
            .clone();
        let part = dense
            .view()
            .part(4 * from as usize, 4 * (to - from) as usize);
        let sums = [Source::of(part)];
        let born = collect(&sums, f32::MAX.to_bits(), usize::MAX, &mut Picks::default()).not_finite;
        let result = &mut pending.result;
        result
            .counters
            .add_dense(4 * (to - from), self.comm.ranks().into());
        result.not_finite += not_finite + born;
        if born > 0 && self.options.non_finite != NonFinite::Count {
            return self.end_void(pending, born);
        }
        for tensor in unit.tensors.clone() {
            self.residuals.of(tensor).view().fill(0);
        }
        result.selected_local += to - from;
        result.selected_global += to - from;
        result.dense = Some(dense);
        pending.unit += 1;
        Ok(())
    }
}
