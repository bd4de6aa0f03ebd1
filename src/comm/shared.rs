//! What all clones of a communicator and its operations share.

use super::bind::Bound;
use super::buffer::Garbage;
use super::call::Call;
use super::driving::Driving;
use super::family::Family;
use super::inside::Inside;
use super::plans::Plans;
use super::repeats::Memory;
use crate::engine::{Clock, Engine, SpinTime};
use crate::error::Result;
use crate::memory::ProcessMark;
use std::borrow::Cow;
use std::ops::Deref;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// The plans, and the engine with its threads ([`Driving`], to which it dereferences).
pub(in crate::comm) struct Shared {
    driving: Driving,
    plans: Mutex<Plans>,
    /// The process that may use it.
    pub process: ProcessMark,
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
            process,
            is_member: AtomicBool::new(false),
        })
    }

    /// From now on waits on the family's other members drive this one, and the reverse.
    pub fn join_family(self: &Arc<Shared>) {
        self.is_member.store(true, Ordering::Relaxed);
        self.family().join(self);
    }

    /// In a forked child: keeps it to the end of the process. Dropping it would say goodbye to peers in the parent's name,
    /// and a thread that exists in the parent only may have left it half changed.
    pub fn leave_to_parent(self: &Arc<Shared>) {
        std::mem::forget(self.clone());
    }

    /// The plans of calls. Whoever holds it takes the engine no more.
    pub fn plans(&self) -> MutexGuard<'_, Plans> {
        self.plans.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Runs a call on this memory to its end.
    #[inline]
    pub fn run(
        &self,
        call: &Call,
        memory: Memory<'_>,
        bind: impl FnOnce(&mut Plans) -> Result<Bound<'_>>,
    ) -> Result<()> {
        self.process.check()?;
        let mut inside = self.engine();
        let Inside { engine, repeats } = &mut *inside;
        let known = repeats.find(call, memory);
        let is_known = known.is_some();
        if let Some(at_once) = known {
            let looks = self.spin.looks_at_once();
            // The engine is kept for a few turns of the core: longer than other threads would like, and much less than
            // an operation under way costs.
            for turn in 0..=looks.turns {
                if let Some(result) = engine.run_at_once(at_once, looks) {
                    return result;
                }
                if turn == looks.turns || !engine.waits_at_once() {
                    break;
                }
                std::thread::yield_now();
            }
        }
        self.run_as_task(call, memory, inside, is_known, bind)
    }

    /// The rest of [`Shared::run`], where the call cannot end at once, or not yet.
    #[cold]
    fn run_as_task(
        &self,
        call: &Call,
        memory: Memory<'_>,
        mut inside: MutexGuard<'_, Inside>,
        is_known: bool,
        bind: impl FnOnce(&mut Plans) -> Result<Bound<'_>>,
    ) -> Result<()> {
        let Inside { engine, repeats } = &mut *inside;
        let mut plans = self.plans();
        let bound = bind(&mut plans)?;
        if let (false, Cow::Borrowed(slots)) = (is_known, &bound.slots)
            && let plan = bound.plan
            && let Some(at_once) = engine.at_once(
                &plan.prepared,
                plan.fallback.as_ref(),
                bound.arguments,
                slots,
            )
        {
            repeats.remember(call, memory, at_once);
        }
        let task = engine.submit(bound.keep(call), self.clock.now())?;
        drop((plans, inside));
        self.wait(task, None)?
            .expect("a wait without a limit ends with a result")
    }
}

impl Drop for Shared {
    fn drop(&mut self) {
        if self.is_member.load(Ordering::Relaxed) {
            self.family().leave();
        }
    }
}

impl Deref for Shared {
    type Target = Driving;

    fn deref(&self) -> &Driving {
        &self.driving
    }
}
