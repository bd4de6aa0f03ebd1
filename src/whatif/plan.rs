//! Flush plans: which gradients of a trace go together and when, without running anything.

use super::trace::{Gradient, Trace};
use crate::error::Result;
use crate::fusion::{
    Action, Arrival, FusionOptions, Machine, TensorSet, TensorSpec, build_paper_plan,
};
use crate::time::Time;
use std::sync::Arc;

/// Which rule decides what is flushed, and when.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum FlushRule {
    /// That of [`Fusion`](crate::Fusion): a gradient waits for company until a real deadline, and a
    /// flush has at most the size that is set, unless it is one gradient.
    #[default]
    Linerate,
    /// That of the published simulation (Zhang et al., NetAI 2020). Age and size are looked at only
    /// when a gradient arrives, and the size after it was added.
    Paper,
}

/// One flush of a plan.
#[derive(Clone, Debug, PartialEq)]
pub struct PlannedFlush {
    /// Milliseconds from the start of the backward pass.
    pub time_ms: f64,
    /// Bytes.
    pub bytes: u64,
    /// Gradients, by their position in the trace.
    pub tensors: Vec<u32>,
}

impl Trace {
    /// The gradients as tensors, for a [`Fusion`](crate::Fusion).
    pub fn tensors(&self) -> Vec<TensorSpec> {
        let spec = |gradient: &Gradient| TensorSpec {
            name: gradient.name.clone(),
            count: gradient.bytes / gradient.dtype.size_bytes() as u64,
            dtype: gradient.dtype,
        };
        self.gradients.iter().map(spec).collect()
    }

    /// The flushes of a backward pass if all ranks have every gradient at its time, and agreeing on
    /// flushes takes none. Of `options`, [`FlushRule::Paper`] knows `age_max` and `bytes_max`.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`](crate::Error::InvalidArgument): an option or a number of the
    /// trace is out of range, or there are too many gradients.
    pub fn plan(&self, rule: FlushRule, options: &FusionOptions) -> Result<Vec<PlannedFlush>> {
        self.check()?;
        match rule {
            FlushRule::Paper => {
                options.check()?;
                Ok(plan_as_published(self, options))
            }
            FlushRule::Linerate => run_machine(self, options),
        }
    }
}

fn plan_as_published(trace: &Trace, options: &FusionOptions) -> Vec<PlannedFlush> {
    let arrivals: Vec<_> = (trace.gradients.iter())
        .map(|g| Arrival {
            wait_us: g.wait_us,
            bytes: g.bytes,
        })
        .collect();
    let age_max_us = options.age_max.as_secs_f64() * 1e6;
    build_paper_plan(&arrivals, age_max_us, options.bytes_max)
        .into_iter()
        .map(|flush| PlannedFlush {
            time_ms: flush.time_us / 1e3,
            bytes: flush.bytes,
            tensors: flush.tensors.map(|t| t as u32).collect(),
        })
        .collect()
}

/// The real state machine, alone, in virtual time.
fn run_machine(trace: &Trace, options: &FusionOptions) -> Result<Vec<PlannedFlush>> {
    let set = Arc::new(TensorSet::new(trace.tensors())?);
    let mut machine = Machine::new(set, options.clone())?;
    let mut plan = Vec::new();
    let mut now_us = 0.0;
    for (tensor, gradient) in trace.gradients.iter().enumerate() {
        now_us += gradient.wait_us;
        let now = Time((now_us * 1e3) as u64);
        while let Some(deadline) = machine.next_deadline().filter(|deadline| *deadline < now) {
            take_flushes(&mut machine, deadline, &mut plan)?;
        }
        machine.handle_ready(tensor, now)?;
        take_flushes(&mut machine, now, &mut plan)?;
    }
    machine.handle_end()?;
    take_flushes(&mut machine, Time((now_us * 1e3) as u64), &mut plan)?;
    Ok(plan)
}

/// Does what the machine wants at this time. A round of one rank gives back its own words.
fn take_flushes(machine: &mut Machine, now: Time, plan: &mut Vec<PlannedFlush>) -> Result<()> {
    while let Some(action) = machine.poll_action(now) {
        match action {
            Action::StartRound => {
                let words = machine.round_words().to_vec();
                machine.handle_round(&words, now)?;
            }
            Action::StartFlush(flush) => plan.push(PlannedFlush {
                time_ms: now.0 as f64 / 1e6,
                bytes: flush.bytes,
                tensors: machine.tensors_of(flush).to_vec(),
            }),
            Action::ShareOrder => {
                let order = machine.arrivals().to_vec();
                machine.handle_order(&order)?;
            }
            Action::GatherReady | Action::EndStep => break,
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::types::DataType;

    const EXPECTED: &str = include_str!("../../tests/data/training_bottleneck/fusion_expected.csv");

    fn plan_of(trace: &Trace, rule: FlushRule) -> Vec<PlannedFlush> {
        trace.plan(rule, &FusionOptions::default()).unwrap()
    }

    fn trace(gradients: &[(f64, u64)]) -> Trace {
        let gradient = |&(wait_us, bytes): &(f64, u64)| Gradient {
            name: "g".into(),
            wait_us,
            bytes,
            dtype: DataType::F32,
        };
        Trace {
            name: "test".into(),
            gradients: gradients.iter().map(gradient).collect(),
            ..Trace::default()
        }
    }

    fn times(plan: &[PlannedFlush]) -> Vec<(f64, u64)> {
        plan.iter().map(|f| (f.time_ms, f.bytes)).collect()
    }

    #[test]
    fn paper_plans_equal_the_expected_ones_for_all_three_models() {
        for model in ["resnet50", "resnet101", "vgg16"] {
            let trace = Trace::load(model).unwrap();
            let plan = plan_of(&trace, FlushRule::Paper);
            let expected: Vec<Vec<_>> = (EXPECTED.lines().map(|line| line.split(',').collect()))
                .filter(|fields: &Vec<&str>| fields[0] == model)
                .collect();
            assert_eq!(plan.len(), expected.len(), "{model}");
            for (flush, fields) in plan.iter().zip(expected) {
                assert_eq!(flush.bytes, fields[3].parse::<u64>().unwrap(), "{model}");
                let time_ms: f64 = fields[2].parse().unwrap();
                assert!((flush.time_ms - time_ms).abs() <= 1e-6, "{model} {time_ms}");
            }
            let bytes: u64 = plan.iter().map(|f| f.bytes).sum();
            assert_eq!(bytes, trace.bytes(), "{model}");
            let last_ms = plan.last().unwrap().time_ms;
            assert!(
                (last_ms - trace.backward_us() / 1e3).abs() < 1e-9,
                "{model}"
            );
        }
    }

    #[test]
    fn a_gradient_at_0_and_100_ms_of_silence_differ_between_the_modes() {
        let trace = trace(&[(0.0, 4), (100_000.0, 8)]);
        let ours = plan_of(&trace, FlushRule::Linerate);
        assert_eq!(times(&ours), [(5.0, 4), (100.0, 8)]);
        let paper = plan_of(&trace, FlushRule::Paper);
        assert_eq!(times(&paper), [(100.0, 12)]);
    }

    #[test]
    fn our_plan_keeps_the_size_and_has_every_gradient_once() {
        for model in ["resnet50", "resnet101", "vgg16"] {
            let trace = Trace::load(model).unwrap();
            let options = FusionOptions::default();
            let plan = plan_of(&trace, FlushRule::Linerate);
            let mut tensors: Vec<_> = plan.iter().flat_map(|f| f.tensors.clone()).collect();
            tensors.sort_unstable();
            assert_eq!(
                tensors,
                (0..trace.gradients.len() as u32).collect::<Vec<_>>()
            );
            let fits = |f: &PlannedFlush| f.bytes <= options.bytes_max || f.tensors.len() == 1;
            assert!(plan.iter().all(fits), "{model}");
        }
    }

    #[test]
    fn oversized_exact_and_smaller_tensors_are_flushed_as_the_rule_says() {
        const MIB: u64 = 1 << 20;
        let plan = |bytes| {
            let trace = trace(&[(1000.0, bytes), (1000.0, 4)]);
            times(&plan_of(&trace, FlushRule::Linerate))
        };
        assert_eq!(plan(65 * MIB), [(1.0, 65 * MIB), (2.0, 4)]);
        assert_eq!(plan(64 * MIB), [(1.0, 64 * MIB), (2.0, 4)]);
        assert_eq!(plan(64 * MIB - 4), [(2.0, 64 * MIB)]);
    }
}
