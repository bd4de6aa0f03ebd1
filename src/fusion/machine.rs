//! [`Machine`]: one rank's part in the agreement on flushes.
//!
//! Events in (`handle_*`), actions out ([`Machine::poll_action`]). The driver performs the actions
//! in exactly the order in which they come out: they are operations of one communicator, and all
//! ranks get the same ones in the same order.

use super::bits::{Bits, is_set};
use super::step::Step;
use super::{Flush, FlushList, FusionOptions, TensorSet, build_flushes};
use crate::error::{Error, Result};
use crate::time::Time;
use crate::types::DataType;
use std::sync::Arc;
use std::time::Duration;

/// Flag of a round: this rank's backward pass has ended. After the reduction: those of all ranks
/// have.
const FLAG_ENDED: u64 = 1;

/// Flag of a round: no ready tensor of this rank is at its deadline. Inverted, so that *and* acts
/// as *or*.
const FLAG_NONE_EXPIRED: u64 = 2;

/// The most tensors that an error names; the others are counted.
const TENSORS_NAMED_MAX: usize = 8;

/// Pause after a round that flushed nothing, at least: a few times the cost of a round, so that
/// rounds never take most of the time even if the age limit is zero.
pub(super) const RETRY_MIN: Duration = Duration::from_micros(100);

/// What the driver has to do next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Action {
    /// Reduce [`Machine::round_words`] with bitwise and over all ranks, then call
    /// [`Machine::handle_round`].
    StartRound,
    /// Reduce these tensors ([`Machine::tensors_of`]). Nothing is reported back.
    StartFlush(Flush),
    /// Broadcast [`Machine::arrivals`] of rank 0, then call [`Machine::handle_order`].
    ShareOrder,
    /// Gather [`Machine::ready_words`] of all ranks, then call [`Machine::handle_gathered`] for the
    /// error.
    GatherReady,
    /// All flushes of the step have been handed out. The next step begins with
    /// [`Machine::begin_step`].
    EndStep,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    /// No operation of the agreement is under way.
    Collecting,
    /// `StartRound` was handed out.
    Round,
    /// The order must be shared; `bool`: `ShareOrder` was handed out.
    Order(bool),
    /// A tensor is missing; `bool`: `GatherReady` was handed out.
    Missing(bool),
    /// The step is complete; `bool`: `EndStep` was handed out.
    Complete(bool),
}

/// One rank's part in the agreement on flushes. See the module's documentation for the protocol.
#[derive(Clone, Debug)]
pub struct Machine {
    set: Arc<TensorSet>,
    options: FusionOptions,
    order: Vec<u32>,
    is_order_kept: bool,
    /// Flushes that were fixed beforehand, instead of agreed in rounds.
    plan: Option<FlushList>,
    round: Vec<u64>,
    step_index: u64,
    phase: Phase,
    step: Step,
}

impl Machine {
    /// A machine that agrees on flushes in rounds.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] if an option is out of range or the operator undefined for a
    /// type.
    pub fn new(set: Arc<TensorSet>, options: FusionOptions) -> Result<Machine> {
        options.check()?;
        let checked = (set.dtypes().iter()).try_for_each(|d| options.op.check_defined_for(*d));
        checked.map_err(|why| {
            Error::invalid(format!(
                "FusionOptions: op {why}: give one that the types of all declared tensors have"
            ))
        })?;
        Ok(Machine {
            order: (0..set.len() as u32).collect(),
            is_order_kept: false,
            plan: None,
            round: vec![0; set.len().div_ceil(64) + 1],
            step_index: 0,
            phase: Phase::Collecting,
            step: Step::new(set.len()),
            options,
            set,
        })
    }

    /// A machine whose flushes are fixed beforehand: flush i starts when its tensors are ready and
    /// flush i-1 has started. Needs no rounds; sizes, age and count of the options are not looked
    /// at.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] if an option is out of range, or the plan has a tensor twice or
    /// not at all (empty tensors may be left out), or two types in one flush.
    pub fn with_plan(
        set: Arc<TensorSet>,
        options: FusionOptions,
        plan: &[Vec<u32>],
    ) -> Result<Machine> {
        let list = FlushList::from_plan(&set, plan)?;
        let mut machine = Machine::new(set, options)?;
        machine.plan = Some(list);
        machine.begin_step();
        machine.step_index = 0;
        Ok(machine)
    }

    /// A tensor is ready on this rank.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`]: no such tensor, already announced in this step, or the backward
    /// pass has ended.
    pub fn handle_ready(&mut self, tensor: usize, now: Time) -> Result<()> {
        if tensor >= self.set.len() {
            return Err(Error::invalid(format!(
                "tensor {tensor} announced, {} are declared",
                self.set.len()
            )));
        }
        if self.step.is_ended || self.step.ready.contains(tensor) {
            let why = if self.step.is_ended {
                "after the end of the backward pass"
            } else {
                "twice"
            };
            return Err(Error::invalid(format!(
                "{} announced {why} in step {}",
                self.set.label(tensor),
                self.step_index
            )));
        }
        self.step.add_ready(&self.set, tensor, now);
        Ok(())
    }

    /// The backward pass of this rank has ended: nothing more comes in this step.
    ///
    /// # Errors
    /// With a fixed plan, [`Error::InvalidArgument`] naming the tensors that this rank has not
    /// announced.
    pub fn handle_end(&mut self) -> Result<()> {
        self.step.is_ended = true;
        if self.plan.is_some() {
            let missing = |&t: &usize| !self.step.ready.contains(t);
            let missing: Vec<_> = (0..self.set.len()).filter(missing).collect();
            if !missing.is_empty() {
                return Err(Error::invalid(format!(
                    "this rank never announced {} in step {}: every declared tensor must be announced before the end of \
                     the backward pass",
                    self.labels(&missing),
                    self.step_index
                )));
            }
        }
        Ok(())
    }

    /// The reduced words of the round under way.
    ///
    /// # Errors
    /// [`Error::Malformed`] if they are not what an *and* with this rank's words can give.
    pub fn handle_round(&mut self, reduced: &[u64], now: Time) -> Result<()> {
        assert_eq!(self.phase, Phase::Round, "no round is under way");
        let is_possible = reduced.len() == self.round.len()
            && reduced
                .iter()
                .zip(&self.round)
                .all(|(all, own)| all & !own == 0);
        if !is_possible {
            return Err(Error::Malformed(format!(
                "round {} of step {} of the fusion buffer: the reduction gave bits that this rank did not set",
                self.step.rounds_count, self.step_index
            )));
        }
        self.round.copy_from_slice(reduced);
        self.phase = Phase::Collecting;
        self.step.rounds_count += 1;
        let flags = self.flags();
        let is_end = flags & FLAG_ENDED != 0;
        if is_end && (0..self.set.len()).any(|t| self.is_missing(t)) {
            self.phase = Phase::Missing(false);
            return Ok(());
        }
        let flushes_before = self.step.flushes.len();
        self.take_flushes(is_end || flags & FLAG_NONE_EXPIRED == 0);
        if is_end {
            self.phase = match self.is_order_kept {
                true => Phase::Complete(false),
                false => Phase::Order(false),
            };
            return Ok(());
        }
        if self.step.flushes.len() == flushes_before {
            let pause = (self.options.age_max / 4).max(RETRY_MIN);
            self.step.retry_at = Some(now.after(pause));
        }
        Ok(())
    }

    /// Rank 0's order of announcement in the first step.
    ///
    /// # Errors
    /// [`Error::Malformed`] if it is not a permutation of the tensors.
    pub fn handle_order(&mut self, order: &[u32]) -> Result<()> {
        assert_eq!(self.phase, Phase::Order(true), "no order was asked for");
        let mut seen = Bits::new(self.set.len());
        for &tensor in order {
            if tensor as usize >= self.set.len() || seen.contains(tensor as usize) {
                return Err(Error::Malformed(format!(
                    "rank 0's order of tensors has {tensor} twice or is outside 0..{}",
                    self.set.len()
                )));
            }
            seen.insert(tensor as usize);
        }
        if order.len() != self.set.len() {
            return Err(Error::Malformed(format!(
                "rank 0's order has {} tensors, {} are declared",
                order.len(),
                self.set.len()
            )));
        }
        self.order.copy_from_slice(order);
        self.is_order_kept = true;
        self.phase = Phase::Complete(false);
        Ok(())
    }

    /// The ready sets of all ranks, one after another; gives the error of the step.
    pub fn handle_gathered(&mut self, gathered: &[u64]) -> Error {
        assert_eq!(self.phase, Phase::Missing(true), "nothing was gathered");
        let words = self.step.ready.words().len().max(1);
        let mut lines = Vec::new();
        for (rank, ready) in gathered.chunks_exact(words).enumerate() {
            let missing: Vec<_> = (0..self.set.len()).filter(|&t| !is_set(ready, t)).collect();
            if !missing.is_empty() {
                lines.push(format!(
                    "rank {rank} never announced {}",
                    self.labels(&missing)
                ));
            }
        }
        Error::InvalidArgument(format!(
            "step {} of the fusion buffer: {}: every rank must announce every declared tensor before the end of the \
             backward pass",
            self.step_index,
            lines.join("; ")
        ))
    }

    /// What to do next; `None`: wait for an event or for [`Machine::next_deadline`].
    pub fn poll_action(&mut self, now: Time) -> Option<Action> {
        if let Some(flush) = self.next_flush() {
            self.step.next_flush += 1;
            return Some(Action::StartFlush(flush));
        }
        match self.phase {
            Phase::Collecting if self.plan.is_some() => {
                if !self.is_plan_over() {
                    return None;
                }
                self.phase = Phase::Complete(true);
                Some(Action::EndStep)
            }
            Phase::Collecting if self.wants_round(now) => {
                self.fill_round(now);
                self.phase = Phase::Round;
                Some(Action::StartRound)
            }
            Phase::Order(false) => {
                self.phase = Phase::Order(true);
                Some(Action::ShareOrder)
            }
            Phase::Missing(false) => {
                self.phase = Phase::Missing(true);
                Some(Action::GatherReady)
            }
            Phase::Complete(false) => {
                self.phase = Phase::Complete(true);
                Some(Action::EndStep)
            }
            _ => None,
        }
    }

    /// When [`Machine::poll_action`] has something to do although nothing happens; `None`: never.
    pub fn next_deadline(&self) -> Option<Time> {
        if self.phase != Phase::Collecting || self.plan.is_some() {
            return None;
        }
        let reason = match self.step.has_reason(&self.options) {
            true => Time(0),
            false => self.age_deadline()?,
        };
        Some(reason.max(self.step.retry_at.unwrap_or(Time(0))))
    }

    /// Forgets the step that is complete and begins the next one.
    pub fn begin_step(&mut self) {
        self.phase = Phase::Collecting;
        self.step_index += 1;
        self.step.clear();
        if let Some(plan) = &self.plan {
            self.step.flushes.clone_from(plan);
        }
    }

    /// The declared tensors.
    pub fn set(&self) -> &TensorSet {
        &self.set
    }

    /// The options.
    pub fn options(&self) -> &FusionOptions {
        &self.options
    }

    /// Index of the step under way, from 0.
    pub fn step_index(&self) -> u64 {
        self.step_index
    }

    /// Rounds of this step that have ended.
    pub fn rounds_count(&self) -> u64 {
        self.step.rounds_count
    }

    /// This rank's words for the round that was just handed out.
    pub fn round_words(&self) -> &[u64] {
        &self.round
    }

    /// The set of tensors that are ready on this rank.
    pub fn ready_words(&self) -> &[u64] {
        self.step.ready.words()
    }

    /// The tensors that this rank announced in this step, in order.
    pub fn arrivals(&self) -> &[u32] {
        &self.step.arrivals
    }

    /// The tensors of a flush of this step, in the order in which they are packed.
    pub fn tensors_of(&self, flush: Flush) -> &[u32] {
        self.step.flushes.tensors_of(flush)
    }

    /// When the last tensor of a flush of this step was ready on this rank.
    pub fn ready_time(&self, flush: Flush) -> Time {
        let times = self.tensors_of(flush).iter();
        times
            .map(|&t| self.step.ready_at[t as usize])
            .max()
            .unwrap_or_default()
    }

    /// The largest flush of more than one tensor, in bytes: what a fusion buffer must hold.
    pub fn packed_bytes_max(&self) -> u64 {
        let Some(plan) = &self.plan else {
            return self.set.packed_bytes_max(&self.options);
        };
        let is_packed = |flush: &Flush| plan.tensors_of(*flush).len() > 1;
        (plan.iter().filter(is_packed).map(|flush| flush.bytes))
            .max()
            .unwrap_or(0)
    }

    /// Whether [`Machine::poll_action`] has something to do now.
    pub fn has_action(&self, now: Time) -> bool {
        self.has_flush() || self.wants_round(now) || self.is_plan_over()
    }

    /// Whether a flush can be started now.
    pub fn has_flush(&self) -> bool {
        self.next_flush().is_some()
    }

    /// Whether a tensor is part of a flush that all ranks know of.
    pub fn is_flushed(&self, tensor: usize) -> bool {
        self.step.flushed.contains(tensor)
    }

    pub(super) fn is_ready(&self, tensor: usize) -> bool {
        self.step.ready.contains(tensor)
    }

    /// Tensors of this type that are ready and not flushed.
    pub(super) fn waiting_count(&self, dtype: DataType) -> usize {
        self.step.waiting_count(dtype)
    }

    pub(super) fn order(&self) -> &[u32] {
        &self.order
    }

    pub(super) fn plan(&self) -> Option<&FlushList> {
        self.plan.as_ref()
    }

    /// The next flush of a plan that has not been handed out.
    pub(super) fn next_of(&self, plan: &FlushList) -> Option<Flush> {
        (self.step.next_flush < plan.len()).then(|| plan.get(self.step.next_flush))
    }

    /// With a plan: nothing is left of the step but its end.
    fn is_plan_over(&self) -> bool {
        let is_all = self.step.is_ended && self.step.next_flush == self.step.flushes.len();
        self.plan.is_some() && self.phase == Phase::Collecting && is_all
    }

    fn flags(&self) -> u64 {
        self.round[self.round.len() - 1]
    }

    /// Neither flushed nor ready on all ranks in the round that just ended.
    fn is_missing(&self, tensor: usize) -> bool {
        !self.step.flushed.contains(tensor) && !is_set(&self.round, tensor)
    }

    fn next_flush(&self) -> Option<Flush> {
        if self.step.next_flush == self.step.flushes.len() {
            return None;
        }
        let flush = self.step.flushes.get(self.step.next_flush);
        let is_ready = |&t: &u32| self.step.ready.contains(t as usize);
        (self.plan.is_none() || self.tensors_of(flush).iter().all(is_ready)).then_some(flush)
    }

    /// When the oldest ready tensor that is not flushed reaches the age limit.
    fn age_deadline(&self) -> Option<Time> {
        Some(self.step.oldest_ready_at()?.after(self.options.age_max))
    }

    fn wants_round(&self, now: Time) -> bool {
        self.next_deadline().is_some_and(|deadline| deadline <= now)
    }

    fn fill_round(&mut self, now: Time) {
        let is_expired = self.age_deadline().is_some_and(|deadline| deadline <= now);
        let last = self.round.len() - 1;
        self.round[..last].copy_from_slice(self.step.ready.words());
        self.round[last] = 0;
        if self.step.is_ended {
            self.round[last] |= FLAG_ENDED;
        }
        if !is_expired {
            self.round[last] |= FLAG_NONE_EXPIRED;
        }
    }

    /// Derives the flushes of the round that just ended, and marks their tensors and all ready
    /// empty ones.
    fn take_flushes(&mut self, is_forced: bool) {
        let (round, flushed) = (&self.round, &self.step.flushed);
        let candidates = |t: usize| is_set(round, t) && !flushed.contains(t);
        let first_new = self.step.flushes.len();
        build_flushes(
            &self.set,
            &self.options,
            &self.order,
            candidates,
            is_forced,
            &mut self.step.flushes,
        );
        self.step.mark_flushed(&self.set, first_new, &self.round);
    }

    fn labels(&self, tensors: &[usize]) -> String {
        let mut named: Vec<_> = (tensors.iter().take(TENSORS_NAMED_MAX))
            .map(|&t| self.set.label(t))
            .collect();
        if tensors.len() > TENSORS_NAMED_MAX {
            named.push(format!("{} more", tensors.len() - TENSORS_NAMED_MAX));
        }
        named.join(", ")
    }
}

#[cfg(test)]
#[path = "machine_tests.rs"]
mod tests;
