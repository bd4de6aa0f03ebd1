//! Flush plans: which gradients go together and when, without running anything.

use super::trace::Trace;
use linerate::transport::Time;
use linerate::unstable::fusion::{Action, Arrival, Machine, TensorSet, build_paper_plan};
use linerate::{DataType, FusionOptions, Result, TensorSpec};
use std::sync::Arc;

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

/// The gradients as tensors of f32.
pub fn tensor_specs(trace: &Trace) -> Vec<TensorSpec> {
    let spec = |gradient: &super::trace::Gradient| TensorSpec {
        name: gradient.name.clone(),
        count: gradient.bytes / 4,
        dtype: DataType::F32,
    };
    trace.gradients.iter().map(spec).collect()
}

/// The plan of the published simulation.
pub fn build_paper(trace: &Trace, options: &FusionOptions) -> Vec<PlannedFlush> {
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

/// The plan of our fusion buffer if all ranks have every gradient at its time and agreement takes
/// none: the real state machine, alone, in virtual time.
pub fn build_linerate(trace: &Trace, options: &FusionOptions) -> Result<Vec<PlannedFlush>> {
    let set = Arc::new(TensorSet::new(tensor_specs(trace))?);
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
    use super::super::trace::Gradient;
    use super::*;

    const EXPECTED: &str =
        include_str!("../../../tests/data/training_bottleneck/fusion_expected.csv");

    fn trace(gradients: &[(f64, u64)]) -> Trace {
        let gradient = |&(wait_us, bytes): &(f64, u64)| Gradient {
            name: "g".into(),
            wait_us,
            bytes,
        };
        Trace {
            name: "test".into(),
            gradients: gradients.iter().map(gradient).collect(),
            batch_ms: None,
        }
    }

    fn times(plan: &[PlannedFlush]) -> Vec<(f64, u64)> {
        plan.iter().map(|f| (f.time_ms, f.bytes)).collect()
    }

    #[test]
    fn paper_plans_equal_the_expected_ones_for_all_three_models() {
        for model in ["resnet50", "resnet101", "vgg16"] {
            let trace = Trace::load(model).unwrap();
            let plan = build_paper(&trace, &FusionOptions::default());
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
        let options = FusionOptions::default();
        let ours = build_linerate(&trace, &options).unwrap();
        assert_eq!(times(&ours), [(5.0, 4), (100.0, 8)]);
        assert_eq!(times(&build_paper(&trace, &options)), [(100.0, 12)]);
    }

    #[test]
    fn our_plan_keeps_the_size_and_has_every_gradient_once() {
        for model in ["resnet50", "resnet101", "vgg16"] {
            let trace = Trace::load(model).unwrap();
            let options = FusionOptions::default();
            let plan = build_linerate(&trace, &options).unwrap();
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
        let options = FusionOptions::default();
        let plan = |bytes| {
            let trace = trace(&[(1000.0, bytes), (1000.0, 4)]);
            times(&build_linerate(&trace, &options).unwrap())
        };
        assert_eq!(plan(65 * MIB), [(1.0, 65 * MIB), (2.0, 4)]);
        assert_eq!(plan(64 * MIB), [(1.0, 64 * MIB), (2.0, 4)]);
        assert_eq!(plan(64 * MIB - 4), [(2.0, 64 * MIB)]);
    }
}
