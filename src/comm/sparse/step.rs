//! One step: runs one unit after the other, each from its selection to its outcome. When all units
//! have an outcome, `commit.rs` changes the residuals and makes the result.

use super::result::{RecycledEntries, SparseResult, StepTimes};
use super::state::{Outcome, Pending, Spent, Steps, Task};
use crate::comm::buffer::Buffer;
use crate::error::{Error, Result};
use crate::kernel::select::Source;
use crate::memory::Access;
use crate::sparse::{
    Action, Algorithm, Arrived, Counters, Finished, Machine, NonFinite, SparseOptions, Step,
    StepModel, Stream, choose_with, probe_after,
};
use crate::time::Time;
use std::time::Duration;

impl Steps {
    pub(super) fn begin(&mut self, gradients: Option<&[Buffer<f32>]>) -> Result<()> {
        if self.pending.get()?.is_some() || self.ended.is_some() {
            return Err(Error::invalid(
                "a sparse allreduce is under way: test it until it ends before the next is started",
            ));
        }
        let mut kept = self.residuals.keep()?;
        let of_gradients = gradients
            .into_iter()
            .flatten()
            .map(|gradient| (gradient.raw(), Access::Shared));
        let of_dense = self.dense.iter().map(|dense| (dense, Access::Exclusive));
        for (raw, access) in of_gradients.chain(of_dense) {
            kept.extend(raw.keep_all(access, "a sparse allreduce")?);
        }
        let gradients = gradients.map(|all| all.iter().map(|g| g.raw().clone()).collect());
        *self.pending.get_mut()? = Some(Pending {
            gradients,
            _kept: kept,
            unit: 0,
            task: Task::Begin,
            operation: None,
            place: None,
            arrived: Arrived::Nothing,
            outcomes: Vec::new(),
            selections: Vec::new(),
            since: Time::default(),
            spent: Vec::new(),
            result: SparseResult {
                algorithm: self.options.algorithm,
                is_skipped: false,
                not_finite: 0,
                selected_local: 0,
                selected_global: 0,
                reduced: None,
                counters: Counters::default(),
                entries: RecycledEntries::new(&self.spare),
                dense: None,
                times: StepTimes::default(),
                starts: self.starts.clone(),
            },
        });
        Ok(())
    }

    /// Moves the step as far as possible. With `is_waiting` it waits for operations. Returns the
    /// result when the step has ended.
    pub(super) fn go_on(&mut self, is_waiting: bool) -> Result<Option<SparseResult>> {
        let Some(mut pending) = self.pending.get_mut()?.take() else {
            return Err(Error::invalid("no sparse allreduce has been started"));
        };
        let has_ended = self.advance(&mut pending, is_waiting);
        if let Ok(false) = has_ended {
            *self.pending.get_mut()? = Some(pending);
            return Ok(None);
        }
        let place = pending.place.take();
        let result = has_ended.map(|_| {
            self.steps += u64::from(!pending.result.is_skipped);
            self.commit(pending)
        });
        if let Some(place) = place {
            place.end(result.as_ref().map(drop).map_err(Clone::clone), None);
        }
        result.map(Some)
    }

    /// Moves the step until it waits for an operation or has ended. Returns whether it has ended.
    fn advance(&mut self, pending: &mut Pending, is_waiting: bool) -> Result<bool> {
        while pending.unit < self.units.len() {
            if let Some(mut operation) = pending.operation.take() {
                if is_waiting {
                    operation.wait()?;
                } else if !operation.test()? {
                    pending.operation = Some(operation);
                    return Ok(false);
                }
                pending.arrived = self.carrier.take();
            }
            self.turns += 1;
            self.turn(pending)?;
        }
        Ok(true)
    }

    /// Takes the result, if the step has ended; else moves it without waiting.
    pub(super) fn test(&mut self) -> Result<Option<SparseResult>> {
        match self.ended.take() {
            Some(ended) => ended.map(Some),
            None => self.go_on(false),
        }
    }

    /// Moves a step that a queue is told of. Returns whether anything moved.
    pub(super) fn go_on_for_queue(&mut self) -> bool {
        if !self.is_followed() {
            return false;
        }
        let turns = self.turns;
        self.ended = self.go_on(false).transpose();
        self.turns != turns || self.ended.is_some()
    }

    /// Whether a queue is to be told of the step under way.
    pub(super) fn is_followed(&self) -> bool {
        let pending = self.pending.get().ok().and_then(Option::as_ref);
        pending.is_some_and(|pending| pending.place.is_some())
    }

    /// Does the next piece of the present unit's task. Afterwards there may be an operation to wait
    /// for, or the unit has ended.
    fn turn(&mut self, pending: &mut Pending) -> Result<()> {
        match std::mem::replace(&mut pending.task, Task::Begin) {
            Task::Begin => match self.tell(pending)? {
                true => Ok(()),
                false => self.begin_unit(pending),
            },
            Task::Machine(mut machine) => {
                let arrived = std::mem::replace(&mut pending.arrived, Arrived::Nothing);
                match machine.next(arrived) {
                    Action::Start(request) => {
                        pending.operation = self.carrier.start(request)?;
                        // The machine reduces what came earlier while this request is under way.
                        assert_eq!(machine.next(Arrived::Nothing), Action::Wait);
                        if pending.operation.is_none() {
                            pending.arrived = self.carrier.take();
                        }
                        pending.task = Task::Machine(machine);
                        Ok(())
                    }
                    Action::Wait => Err(Error::internal("a sparse machine waits for nothing")),
                    Action::Done => {
                        if let Some(error) = machine.failure() {
                            return Err(self.fail(error.clone()));
                        }
                        let finished = machine.finish().expect("a machine that is done");
                        self.end_machine(pending, finished)
                    }
                }
            }
            Task::Census => {
                let Arrived::Words(words) =
                    std::mem::replace(&mut pending.arrived, Arrived::Nothing)
                else {
                    return Err(Error::internal(
                        "the census of a sparse allreduce gave no words",
                    ));
                };
                self.reduce_dense(pending, words[0])
            }
            Task::Dense => self.end_dense(pending),
            Task::Telling => {
                let Arrived::Words(words) =
                    std::mem::replace(&mut pending.arrived, Arrived::Nothing)
                else {
                    return Err(Error::internal(
                        "telling the times of a sparse allreduce gave no words",
                    ));
                };
                self.learn(pending.unit, &words);
                self.begin_unit(pending)
            }
        }
    }

    /// Fails the communicator with an error of a machine. Other ranks may not have seen the error,
    /// and would otherwise wait for this rank.
    fn fail(&self, error: Error) -> Error {
        match self.comm.driving() {
            Ok(driving) => {
                driving.engine().fail_with(error.clone());
                driving.ring();
                error
            }
            Err(forked) => forked,
        }
    }

    fn begin_unit(&mut self, pending: &mut Pending) -> Result<()> {
        let ranks = self.comm.ranks();
        let clock = self.comm.inner.clock.clone();
        let shape = self.shape_of(pending.unit);
        let count = shape.0;
        let unit = &mut self.units[pending.unit];
        pending.selections.push(unit.selection.clone());
        if count == 0 {
            pending.outcomes.push(Outcome::Nothing);
            pending.unit += 1;
            return Ok(());
        }
        let (links, local) = self.prices;
        let model = StepModel {
            links,
            local,
            experience: &unit.experience,
        };
        let seen = (unit.reduced, unit.dense_steps);
        let mut algorithm = resolve(&self.options, shape, seen, model);
        if pending.gradients.is_none() || self.steps < self.options.warm_up_steps {
            algorithm = Algorithm::Dense;
        }
        pending.result.algorithm = algorithm;
        pending.spent.push(Spent {
            unit: pending.unit,
            algorithm,
            select: Duration::ZERO,
            communicate: Duration::ZERO,
        });
        if algorithm == Algorithm::Dense {
            return self.begin_dense(pending);
        }
        let sources: Vec<(Source, Source)> = (unit.tensors.clone())
            .map(|t| {
                let residual = self.residuals.of(t).view();
                let gradient = pending.gradients.as_ref().map(|g| g[t].view());
                let alone = Source::of(residual);
                (gradient.map_or(alone, |g| Source::sum(residual, g)), alone)
            })
            .collect();
        let memory = std::mem::take(&mut unit.memory);
        let (k, options) = (unit.k, &self.options);
        let begun = clock.now();
        let selected = (unit.selection).select_into(memory, &sources, k, algorithm, options);
        pending.since = clock.now();
        pending.spend(pending.since.since(begun), Duration::ZERO);
        let step = Step {
            picks: selected.picks,
            not_finite: selected.not_finite,
            count,
            k: unit.k,
        };
        let place = (self.comm.rank(), ranks);
        let priced = (algorithm, self.prices.0);
        let state = unit.state.clone();
        let mut machine = Machine::with_prices(priced, &self.options, place, step, state);
        self.spare.empty_outbox();
        machine.reuse(&self.spare);
        pending.task = Task::Machine(Box::new(machine));
        Ok(())
    }

    fn end_machine(&mut self, pending: &mut Pending, finished: Finished<Stream>) -> Result<()> {
        let now = self.comm.inner.clock.now();
        pending.spend(Duration::ZERO, now.since(pending.since));
        pending.result.counters.add(&finished.counters);
        pending.result.not_finite += finished.not_finite;
        if finished.is_void {
            return self.end_void(pending, finished.not_finite);
        }
        pending.outcomes.push(Outcome::Sparse(Box::new(finished)));
        pending.unit += 1;
        Ok(())
    }

    /// Ends a step that does not count on any rank, because a value is not finite. All units of the
    /// step stay as they were before it, also those that have an outcome already.
    pub(super) fn end_void(&mut self, pending: &mut Pending, not_finite: u64) -> Result<()> {
        for (unit, before) in self.units.iter_mut().zip(pending.selections.drain(..)) {
            unit.selection = before;
        }
        pending.outcomes.clear();
        if self.options.non_finite == NonFinite::Skip {
            pending.result.is_skipped = true;
            pending.unit = self.units.len();
            return Ok(());
        }
        Err(Error::NotFinite {
            count: not_finite,
            step: self.steps,
        })
    }
}

/// The algorithm of a unit's step. It follows only from values that are equal on all ranks.
fn resolve(
    options: &SparseOptions,
    unit: (u64, u64, u32),
    (reduced, dense_steps): (Option<u64>, u64),
    model: StepModel,
) -> Algorithm {
    let chosen = match options.algorithm {
        Algorithm::Auto => choose_with(unit, reduced, model),
        other => return other,
    };
    let probe = || probe_after(dense_steps, unit, reduced, model);
    match chosen {
        Algorithm::Dense => probe().unwrap_or(chosen),
        _ => chosen,
    }
}
