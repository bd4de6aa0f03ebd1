//! [`check`]: runs the schedules of all ranks together on abstract values and proves that they do
//! what their collective is defined to do, for one count, whatever the timing.
//!
//! * `world`: every rank's buffers as numbered storages; ranges become elements of them.
//! * `value`: an element as "which input element, of which ranks, combined in which tree".
//! * `run`: one run in some order of arrival; finds missing messages and deadlocks.
//! * `order`: what happens before what; finds bytes touched by two steps that nothing orders.
//! * `definition`: what each collective must leave in every output.
//!
//! Where nothing races (no [`super::Join::Any`], no wait for a part of its peers) the order proof
//! makes one run stand for all. Elsewhere the orders of arrival are explored: all of them up to a
//! bound, then a seeded sample.
//!
//! It assumes what the engine guarantees: window slots and flag lines are not used again before
//! every rank has retired the operation, but callers own their input and output again as soon as
//! their own rank has. Not checked: whether slots describe disjoint parts, and anything about
//! bytes, chunks and credits.

mod definition;
mod fault;
mod order;
mod run;
mod value;
mod world;

#[cfg(test)]
mod tests;

pub use fault::{CheckError, Fault};
pub use value::Value;
pub use world::Spec;

use super::Schedule;
use crate::prng::Prng;
use run::Trace;
use world::World;

/// Orders of arrival that are tried one by one before sampling.
const ORDERS_MAX: usize = 256;
/// Orders that are sampled when there are more.
const ORDERS_SAMPLED: usize = 64;
/// What was checked.
#[derive(Clone, Debug)]
pub struct CheckReport {
    /// Steps of all ranks.
    pub steps: usize,
    /// Messages between ranks.
    pub messages: usize,
    /// Orders of arrival that were run.
    pub orders: usize,
    /// The outputs of all ranks after the last run.
    pub outputs: Vec<Vec<Value>>,
}

/// Checks the schedules of ranks `0..schedules.len()` (at most 64) against the definition of a
/// collective. For [`SendRecv`](crate::types::Collective::SendRecv), which has no definition beyond
/// its messages, see [`CheckReport::outputs`].
pub fn check(schedules: &[Schedule], spec: &Spec) -> Result<CheckReport, CheckError> {
    let world = World::new(schedules, spec)?;
    let mut orders = 0;
    let mut prefix: Vec<(usize, usize)> = Vec::new();
    let mut prng = Prng::new(spec.count);
    let last = loop {
        let mut taken = Vec::new();
        let is_sampled = orders >= ORDERS_MAX;
        let trace = run::run(&world, &mut |options| {
            let choice = match prefix.get(taken.len()) {
                _ if is_sampled => prng.below(options as u64) as usize,
                Some(&(choice, _)) => choice,
                None => 0,
            };
            taken.push((choice, options));
            choice
        })?;
        check_trace(&world, &trace)?;
        orders += 1;
        while taken.last().is_some_and(|&(c, options)| c + 1 == options) {
            taken.pop();
        }
        match taken.last_mut() {
            None if !is_sampled => break trace,
            _ if orders >= ORDERS_MAX + ORDERS_SAMPLED => break trace,
            Some(last) => last.0 += 1,
            None => {}
        }
        prefix = taken;
    };
    let outputs = definition::outputs(&world, &last);
    Ok(CheckReport {
        steps: world.steps(),
        messages: world.messages(),
        orders,
        outputs,
    })
}

/// Order first: a race explains a wrong value, not the other way round.
fn check_trace(world: &World<'_>, trace: &Trace) -> Result<(), CheckError> {
    order::check_order(world, trace)?;
    if let Some(error) = &trace.first_value_error {
        return Err(error.clone());
    }
    definition::check_results(world, trace)
}
