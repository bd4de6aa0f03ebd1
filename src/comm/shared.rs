//! What all clones of a communicator and its operations share. Each of them holds it in a
//! [`ProcessOwned`](crate::memory::ProcessOwned): who has a [`Shared`] is the process that made it,
//! and nothing here looks again.

use super::bind::{self, HeldBoth};
use super::call::Call;
use super::driving::Driving;
use super::family::Family;
use super::inside::Inside;
use super::plans::Plans;
use super::ranges::Garbage;
use crate::engine::{Clock, Engine, SpinTime, TaskCall, TaskId};
use crate::error::{Error, Result};
use crate::memory::ProcessMark;
use std::borrow::Cow;
use std::ops::Deref;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// Between two looks whether this rank may go: first and last.
const PAUSE_MIN: Duration = Duration::from_micros(20);
const PAUSE_MAX: Duration = Duration::from_millis(5);

/// The plans, and the engine with its threads ([`Driving`], to which it dereferences).
pub(in crate::comm) struct Shared {
    driving: Driving,
    plans: Mutex<Plans>,
    is_member: AtomicBool,
}

impl Shared {
    /// `local_ranks` ranks of this host share `cores` cores; 0: unknown.
    pub fn new(
        engine: Engine,
        clock: Clock,
        process: ProcessMark,
        plans: Plans,
        ((local_ranks, cores), family): ((usize, usize), Arc<Family>),
    ) -> Arc<Shared> {
        let own_cores = || std::thread::available_parallelism().map_or(1, usize::from);
        let cores = if cores > 0 { cores } else { own_cores() };
        let spin = SpinTime::new(local_ranks, cores);
        let garbage = Arc::new(Garbage::new(process));
        Arc::new(Shared {
            driving: Driving::new(Inside::new(engine), clock, spin, garbage, family),
            plans: Mutex::new(plans),
            is_member: AtomicBool::new(false),
        })
    }

    /// From now on waits on the family's other members drive this one, and the reverse.
    pub fn join_family(self: &Arc<Shared>) {
        self.is_member.store(true, Ordering::Relaxed);
        self.family().join(self);
    }

    /// The plans of calls. Anyone who holds it takes the engine no more.
    pub fn plans(&self) -> MutexGuard<'_, Plans> {
        self.plans.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Runs a call to its end.
    #[inline]
    pub fn run(&self, call: &Call<'_>) -> Result<()> {
        let mut inside = self.engine();
        let Inside { engine, repeats } = &mut *inside;
        let mut held = None;
        if let Some(known) = repeats.find(call) {
            let borrows = bind::borrow(call, &known.uses).or_else(|e| refuse(engine, e))?;
            let looks = self.spin.looks_at_once();
            // The engine is kept for a few turns of the core: longer than other threads would like,
            // and much less than an operation under way costs.
            for turn in 0..=looks.turns {
                match engine.run_at_once(&known.at_once, looks) {
                    Some(Ok(())) => return Ok(()),
                    Some(Err(error)) => {
                        if engine.failure().is_some() {
                            bind::fail(call, borrows, &error);
                        }
                        return Err(error);
                    }
                    None if turn == looks.turns || !engine.waits_at_once() => break,
                    None => std::thread::yield_now(),
                }
            }
            held = Some(borrows);
        }
        self.run_as_task(call, inside, held)
    }

    /// The rest of [`Shared::run`], where the call cannot end at once, or not yet. `held`: it is a
    /// known call.
    #[cold]
    fn run_as_task(
        &self,
        call: &Call<'_>,
        mut inside: MutexGuard<'_, Inside>,
        held: Option<HeldBoth<'_>>,
    ) -> Result<()> {
        let Inside { engine, repeats } = &mut *inside;
        let mut plans = self.plans();
        let bound = bind::bind(call, &mut plans, engine.rank(), engine.ranks())?;
        if let (None, Cow::Borrowed(slots)) = (&held, &bound.slots)
            && let plan = bound.plan
            && let Some(at_once) = engine.at_once(
                &plan.prepared,
                plan.fallback.as_ref(),
                bound.arguments,
                slots,
            )
        {
            repeats.remember(call, bound.uses.clone(), at_once);
        }
        let held = match held {
            Some(held) => held,
            None => bind::borrow(call, &bound.uses).or_else(|e| refuse(engine, e))?,
        };
        let task_call = bound.keep(call, held).or_else(|e| refuse(engine, e))?;
        let task = engine.submit(task_call, self.clock.now())?;
        drop((plans, inside));
        self.wait(task, None)?
            .expect("a wait without a limit ends with a result")
    }

    /// Starts a call.
    pub fn start(&self, call: &Call<'_>) -> Result<TaskId> {
        self.driving.start(|engine| {
            let task_call = self.task_call(call, engine);
            let task_call = task_call.or_else(|e| refuse(engine, e))?;
            engine.submit(task_call, self.clock.now())
        })
    }

    /// What the engine runs of a call.
    pub fn task_call(&self, call: &Call<'_>, engine: &Engine) -> Result<TaskCall> {
        let mut plans = self.plans();
        let bound = bind::bind(call, &mut plans, engine.rank(), engine.ranks())?;
        let held = bind::borrow(call, &bound.uses)?;
        bound.keep(call, held)
    }
}

/// Of a call that is refused: the cause, if the communicator has failed, which is why its memory
/// may be in use for good.
#[cold]
fn refuse<T>(engine: &mut Engine, error: Error) -> Result<T> {
    engine.check().and(Err(error))
}

impl Shared {
    /// Leaves in good order: waits, at most the timeout, until nothing that this rank has sent
    /// needs it. A simulated rank's network takes what is on its way along, and nobody waits for
    /// peers while a panic ends its thread.
    fn leave(&self) {
        let timeout = self.engine().config().timeout;
        let start = self.clock.now();
        let mut pause = PAUSE_MIN;
        while !self.engine().leave(self.clock.now()) {
            let is_over = self.clock.now().since(start) >= timeout;
            if is_over || self.clock.is_virtual() || std::thread::panicking() {
                return;
            }
            std::thread::sleep(pause);
            pause = (2 * pause).min(PAUSE_MAX);
        }
    }
}

impl Drop for Shared {
    fn drop(&mut self) {
        if self.is_member.load(Ordering::Relaxed) {
            self.family().leave();
        }
        self.leave();
    }
}

impl Deref for Shared {
    type Target = Driving;

    fn deref(&self) -> &Driving {
        &self.driving
    }
}
