//! The mean of the steps of a profile: most have equal gradients, and those are averaged.

use super::trace::{Gradient, Trace, WAIT_US_MAX};
use crate::fusion::TENSORS_MAX;
use crate::types::DataType;
use std::collections::BTreeMap;

/// A gradient of one step.
pub struct Ready {
    /// Equal in all steps.
    pub name: String,
    /// Microseconds from the start of the backward pass.
    pub ready_us: f64,
    /// Its bytes and type, or what is wrong with them.
    pub shape: Result<(u64, DataType), String>,
}

impl Ready {
    fn bytes(&self) -> Option<u64> {
        self.shape.as_ref().ok().map(|shape| shape.0)
    }
}

/// One step of a profile.
pub struct Step {
    /// In the order in which they were ready.
    pub gradients: Vec<Ready>,
    /// Microseconds of the step without communication.
    pub step_us: Option<f64>,
    /// Microseconds of its forward pass.
    pub forward_us: Option<f64>,
}

impl Step {
    fn backward_us(&self) -> Option<f64> {
        let ready = self.gradients.iter().map(|gradient| gradient.ready_us);
        ready.reduce(f64::max)
    }
}

/// The mean of the steps whose gradients most have; `None` if no step has gradients.
pub fn mean(
    name: &str,
    mut steps: Vec<Step>,
    mut notes: Vec<String>,
) -> Result<Option<Trace>, String> {
    steps.retain(|step| !step.gradients.is_empty());
    let steps_count = steps.len();
    // The first may be a warm-up, and the last be cut off.
    let mut alike: BTreeMap<Vec<_>, Vec<(Vec<usize>, Step)>> = BTreeMap::new();
    for step in steps {
        let all = &step.gradients;
        let mut order: Vec<usize> = (0..all.len()).collect();
        order.sort_by(|a, b| all[*a].name.cmp(&all[*b].name));
        let key = order
            .iter()
            .map(|at| (all[*at].name.clone(), all[*at].bytes()));
        let key = key.collect();
        alike.entry(key).or_default().push((order, step));
    }
    let longest = |all: &Vec<(Vec<usize>, Step)>| (all.len(), all[0].0.len());
    let Some(alike) = alike.into_values().max_by_key(longest) else {
        return Ok(None);
    };
    if alike.len() < steps_count {
        notes.push(format!(
            "{} of {steps_count} steps have other gradients than most, or the same in another order; they are not used",
            steps_count - alike.len()
        ));
    }
    let count = alike[0].0.len();
    if count > TENSORS_MAX {
        return Err(format!(
            "{count} gradients in a step: at most {TENSORS_MAX}"
        ));
    }
    let times: Vec<f64> = alike.iter().filter_map(|(_, step)| step.step_us).collect();
    let mut gradients = Vec::with_capacity(count);
    let (order, first) = &alike[0];
    for (place, at) in order.iter().enumerate() {
        let one = &first.gradients[*at];
        let shape = one.shape.clone();
        let (bytes, dtype) = shape.map_err(|what| format!("gradient {at}: {what}"))?;
        let ready = alike
            .iter()
            .map(|(order, step)| step.gradients[order[place]].ready_us);
        let ready_us = ready.sum::<f64>() / alike.len() as f64;
        let name = one.name.clone();
        gradients.push((
            *at,
            ready_us,
            Gradient {
                name,
                wait_us: 0.0,
                bytes,
                dtype,
            },
        ));
    }
    gradients.sort_by(|a, b| a.1.total_cmp(&b.1).then(a.0.cmp(&b.0)));
    let mut before = 0.0;
    for (at, (_, ready_us, gradient)) in gradients.iter_mut().enumerate() {
        gradient.wait_us = *ready_us - before;
        before = *ready_us;
        if !(0.0..=WAIT_US_MAX).contains(&gradient.wait_us) {
            return Err(format!(
                "gradient {at} comes {} us after the one before; expected 0 to {WAIT_US_MAX:e}",
                gradient.wait_us
            ));
        }
    }
    let batch_us = mean_of(&times);
    let forward: Vec<f64> = alike
        .iter()
        .filter_map(|(_, step)| step.forward_us)
        .collect();
    // Steps whose time is not known are compared by their backward passes.
    let compared: Vec<f64> = match times.len() == alike.len() {
        true => times.clone(),
        false => alike
            .iter()
            .filter_map(|(_, step)| step.backward_us())
            .collect(),
    };
    Ok(Some(Trace {
        name: name.into(),
        gradients: gradients.into_iter().map(|(_, _, one)| one).collect(),
        batch_ms: (!times.is_empty()).then_some(batch_us / 1e3),
        forward_ms: (!forward.is_empty()).then(|| mean_of(&forward) / 1e3),
        steps: alike.len() as u32,
        spread: spread_of(&compared),
        notes,
        ..Trace::default()
    }))
}

fn mean_of(times: &[f64]) -> f64 {
    times.iter().sum::<f64>() / times.len().max(1) as f64
}

/// The standard deviation as a share of the mean; 0 of fewer than two.
fn spread_of(times: &[f64]) -> f64 {
    let mean = mean_of(times);
    if times.len() < 2 || mean <= 0.0 {
        return 0.0;
    }
    let squares = times.iter().map(|time| (time - mean).powi(2));
    (squares.sum::<f64>() / (times.len() - 1) as f64).sqrt() / mean
}
