//! The four steps of a call: [`check`] it, choose its schedule (`plans.rs`), bind its memory
//! (`bind.rs`), submit it to the engine. If a blocking call is remembered with this memory and its
//! peers have already called, it skips the first two and needs no task.

use super::bind::{self, HeldBoth};
use super::cached::CACHED_BYTES_MIN;
use super::call::{Call, Transfer};
use super::check::check;
use super::communicator::Communicator;
use super::driving::Driving;
use super::inside::Inside;
use super::operation::Operation;
use super::plans::Explanation;
use super::ranges::Owner;
use super::raw::RawBuffer;
use super::say::say;
use crate::engine::{Engine, TaskCall, TaskId};
use crate::error::{Error, Result};
use crate::memory::{Kept, Region, RegionKey};
use std::borrow::Cow;
use std::sync::{Arc, MutexGuard};
use std::time::Duration;

impl Communicator {
    /// Runs a call to its end. It is faster than to start and wait if the other ranks have already
    /// called and nothing else is under way.
    #[inline]
    pub(super) fn run(&self, call: &Call<'_>) -> Result<()> {
        let driving = self.driving()?;
        let left = self.with_own_registrations(driving, call, |call| driving.run(call, None))?;
        debug_assert!(left.is_none());
        Ok(())
    }

    /// As [`Communicator::run`], at most for `limit`: what has not ended by then goes on.
    pub(super) fn run_within(&self, call: &Call<'_>, limit: Duration) -> Result<Option<Operation>> {
        let driving = self.driving()?;
        let run = |call: &Call<'_>| driving.run(call, Some(limit));
        let left = self.with_own_registrations(driving, call, run)?;
        let left = left.map(|task| Operation::new(self, task, None));
        if left.is_some() {
            self.settle()?;
        }
        Ok(left)
    }

    /// What a call would run, if all buffers of other ranks are registered exactly when this rank's
    /// are.
    pub(super) fn explain(&self, call: &Call<'_>) -> Result<Explanation> {
        let is_registered = |buffer: &RawBuffer| buffer.len_bytes() == 0 || buffer.is_registered();
        let mut buffers = call.input.into_iter().chain(call.output);
        let inside = self.driving()?.engine();
        (inside.plans).explain_call(call, buffers.all(is_registered))
    }

    /// Starts a call.
    pub(super) fn start_call(&self, call: &Call<'_>) -> Result<TaskId> {
        let driving = self.driving()?;
        self.with_own_registrations(driving, call, |call| {
            driving.start(|inside| driving.submit(call, inside, None, false))
        })
    }

    /// Calls `then` with the call, on buffers that this communicator has registered.
    #[inline]
    fn with_own_registrations<R>(
        &self,
        driving: &Driving,
        call: &Call<'_>,
        then: impl FnOnce(&Call<'_>) -> Result<R>,
    ) -> Result<R> {
        let transfers = call.transfers.iter().map(|transfer| &transfer.buffer);
        let mut all = call.input.into_iter().chain(call.output).chain(transfers);
        let is_long = self.inner.cached_bytes_max > 0
            && (all.clone()).any(|buffer| buffer.len_bytes() >= CACHED_BYTES_MIN);
        let may_be_cached =
            |buffer: &RawBuffer| is_long && !buffer.is_registered() && buffer.len_bytes() > 0;
        let is_home = |buffer: &RawBuffer| buffer.is_at_home(&driving.garbage);
        if all.all(|buffer| is_home(buffer) && !may_be_cached(buffer)) {
            return then(call);
        }
        let moved = |buffer: &RawBuffer| match may_be_cached(buffer) {
            true => Ok(self.cached_here(driving, buffer)),
            false => driving.registered_here(buffer),
        };
        let input = call.input.map(moved).transpose()?;
        let is_same = |input: &RawBuffer, output: &RawBuffer| input.view() == output.view();
        let output = match (call.input, call.output) {
            (Some(before), Some(output)) if is_same(before, output) => input.clone(),
            (_, output) => output.map(moved).transpose()?,
        };
        let transfers = call.transfers.iter().map(|transfer| {
            Ok(Transfer {
                buffer: moved(&transfer.buffer)?,
                ..transfer.clone()
            })
        });
        then(&Call {
            input: input.as_ref(),
            output: output.as_ref(),
            transfers: &transfers.collect::<Result<Vec<_>>>()?,
            ..*call
        })
    }

    /// A caller's memory with a registration that the library has made by itself, or as it is where
    /// that is not possible.
    #[cold]
    fn cached_here(&self, driving: &Driving, buffer: &RawBuffer) -> RawBuffer {
        if !driving.engine().keeps_cached() {
            return buffer.clone();
        }
        let register = |region| driving.register_cached(region);
        let cached = &self.inner.ranges.cached;
        let found = cached.find_or(buffer.view(), self.inner.cached_bytes_max, |region| {
            let key = register(region.clone())?;
            Ok(Owner::of_cached(region, (key, driving.garbage.clone())))
        });
        let Some(owner) = found else {
            if self.inner.config.debug
                && let Some(reason) = cached.take_reason()
            {
                say(&format!(
                    "rank {}: memory that is not registered is copied before it is sent, because no registration can be kept: {reason}",
                    self.rank()
                ));
            }
            return buffer.clone();
        };
        match owner.key_in(&driving.garbage, register) {
            Ok(key) if key.is_some() => buffer.cached_in(owner, key),
            // Another communicator could register it, and this one cannot.
            _ => buffer.clone(),
        }
    }
}

impl Driving {
    /// Runs a call to its end, or for `limit`. Returns a task that has not ended by then.
    #[inline]
    fn run(&self, call: &Call<'_>, limit: Option<Duration>) -> Result<Option<TaskId>> {
        let mut inside = self.engine();
        let Inside {
            engine,
            repeats,
            unregistered_bytes,
            ..
        } = &mut *inside;
        let mut held = None;
        if let Some(known) = repeats.find(call) {
            let borrows = bind::borrow(call, &known.uses).or_else(|e| refuse(engine, e))?;
            let looks = self.spin.looks_at_once();
            // The engine stays locked while this thread gives its core away a few times. Other
            // threads wait that long, but starting an operation would cost much more.
            for turn in 0..=looks.turns {
                match engine.run_at_once(&known.at_once, looks) {
                    Some(Ok(())) => {
                        *unregistered_bytes += known.unregistered_bytes;
                        return Ok(None);
                    }
                    Some(Err(error)) => {
                        if engine.failure().is_some() {
                            bind::fail(call, borrows, &error);
                        }
                        return Err(error);
                    }
                    None if turn == looks.turns || !engine.waits_at_once() => break,
                    None => {
                        std::thread::yield_now();
                        engine.note_sleep();
                    }
                }
            }
            held = Some(borrows);
        }
        self.run_as_task(call, limit, inside, held)
    }

    /// Runs a call as a task, because it cannot end at once or its peers have not called yet.
    /// `held`: the borrows of a remembered call.
    #[cold]
    fn run_as_task(
        &self,
        call: &Call<'_>,
        limit: Option<Duration>,
        mut inside: MutexGuard<'_, Inside>,
        held: Option<HeldBoth<'_>>,
    ) -> Result<Option<TaskId>> {
        let task = self.submit(call, &mut inside, held, true)?;
        drop(inside);
        match (self.wait(task, limit)?, limit) {
            (Some(result), _) => result.map(|()| None),
            (None, Some(_)) => {
                self.family().end_rest();
                Ok(Some(task))
            }
            (None, None) => unreachable!("a wait without a limit ends with a result"),
        }
    }

    /// Starts a call on memory of this communicator: keeps other memory too until it has ended, and
    /// calls `at_end` when it has ended well.
    pub(super) fn start_call_with(
        &self,
        call: &Call<'_>,
        keep: Vec<Kept>,
        at_end: Box<dyn FnOnce() + Send>,
    ) -> Result<TaskId> {
        self.start(|inside| {
            let task_call = prepare(call, inside, None, false);
            let engine = &mut inside.engine;
            match task_call {
                Ok(mut task_call) => {
                    task_call.keep_others.extend(keep);
                    task_call.at_end = Some(at_end);
                    engine.submit(task_call, self.clock.now())
                }
                Err(error) => {
                    keep.into_iter().for_each(Kept::end);
                    refuse(engine, error)
                }
            }
        })
    }

    /// All four steps of a call. A call with `is_blocking` is remembered, if the next one like it
    /// may end at once. `held`: its borrows, if it was remembered already.
    fn submit(
        &self,
        call: &Call<'_>,
        inside: &mut Inside,
        held: Option<HeldBoth<'_>>,
        is_blocking: bool,
    ) -> Result<TaskId> {
        let task_call = prepare(call, inside, held, is_blocking);
        let engine = &mut inside.engine;
        let task_call = task_call.or_else(|e| refuse(engine, e))?;
        engine.submit(task_call, self.clock.now())
    }

    /// The buffer with this communicator's registration, if another communicator has allocated it.
    pub(super) fn registered_here(&self, buffer: &RawBuffer) -> Result<RawBuffer> {
        if buffer.is_at_home(&self.garbage) {
            return Ok(buffer.clone());
        }
        buffer.moved_to(&self.garbage, |region| self.register(region))
    }

    /// As [`Driving::register`], for memory of a caller ([`Engine::register_cached`]).
    fn register_cached(&self, region: Arc<Region>) -> Result<RegionKey> {
        let mut engine = self.engine();
        self.collect_garbage(&mut engine);
        engine.register_cached(region)
    }

    /// Registers a region. It gets no key where peers could not map it.
    pub(super) fn register(&self, region: Arc<Region>) -> Result<RegionKey> {
        let mut engine = self.engine();
        self.collect_garbage(&mut engine);
        engine.register(region)
    }
}

/// The first three steps of a call.
fn prepare(
    call: &Call<'_>,
    inside: &mut Inside,
    held: Option<HeldBoth<'_>>,
    is_blocking: bool,
) -> Result<TaskCall> {
    let Inside {
        engine,
        plans,
        repeats,
        unregistered_bytes,
    } = inside;
    let checked = check(call, engine.rank(), engine.ranks())?;
    *unregistered_bytes += checked.unregistered_bytes;
    let is_mapped = plans.maps_host
        && [checked.input, checked.output]
            .iter()
            .all(|view| view.is_empty() || engine.is_mappable(view.key()));
    let plan = plans.plan(call, checked.in_place, is_mapped)?;
    let (arguments, slots) = (bind::arguments(call, &checked), bind::slots(call));
    if let (true, None, Cow::Borrowed(slots)) = (is_blocking, &held, &slots)
        && let Some(at_once) =
            engine.at_once(&plan.prepared, plan.fallback.as_ref(), arguments, slots)
    {
        repeats.remember(call, &checked, at_once);
    }
    let held = match held {
        Some(held) => held,
        None => bind::borrow(call, &checked.uses)?,
    };
    bind::bind(call, plan, (arguments, slots), held)
}

/// The error of a call that cannot run. If the communicator has failed, its first cause counts: the
/// failure may be why the memory is in use for good.
#[cold]
fn refuse<T>(engine: &mut Engine, error: Error) -> Result<T> {
    engine.check().and(Err(error))
}
