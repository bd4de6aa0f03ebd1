//! Machines of several ranks, stepped by hand: deadlines, missing tensors, fixed plans, misuse.

use super::*;
use crate::fusion::TensorSpec;
use crate::types::{DataType, ReduceOp};

const MS: u64 = 1_000_000;

fn set(counts: &[u64]) -> Arc<TensorSet> {
    let spec = |(index, &count): (usize, &u64)| TensorSpec {
        name: format!("layer{index}"),
        count,
        dtype: DataType::F32,
    };
    Arc::new(TensorSet::new(counts.iter().enumerate().map(spec).collect()).unwrap())
}

fn ranks(count: usize, counts: &[u64]) -> Vec<Machine> {
    let machine = Machine::new(set(counts), FusionOptions::default()).unwrap();
    vec![machine; count]
}

/// Lets all machines enter one round and gives them its result.
fn run_round(machines: &mut [Machine], now: Time) {
    let mut all = machines[0].round_words().to_vec();
    all.fill(u64::MAX);
    for machine in machines.iter_mut() {
        assert_eq!(machine.poll_action(now), Some(Action::StartRound));
        for (word, own) in all.iter_mut().zip(machine.round_words()) {
            *word &= own;
        }
    }
    for machine in machines.iter_mut() {
        machine.handle_round(&all, now).unwrap();
    }
}

/// The tensors of the flush that this machine hands out now.
fn flushed(machine: &mut Machine, now: Time) -> Vec<u32> {
    match machine.poll_action(now) {
        Some(Action::StartFlush(flush)) => machine.tensors_of(flush).to_vec(),
        other => panic!("a flush was expected, not {other:?}"),
    }
}

#[test]
fn a_gradient_at_0_followed_by_silence_is_flushed_at_5_ms() {
    let mut machines = ranks(2, &[1, 1]);
    for machine in &mut machines {
        machine.handle_ready(0, Time(0)).unwrap();
        assert_eq!(machine.next_deadline(), Some(Time(5 * MS)));
        assert_eq!(machine.poll_action(Time(5 * MS - 1)), None);
    }
    run_round(&mut machines, Time(5 * MS));
    for machine in &mut machines {
        assert_eq!(flushed(machine, Time(5 * MS)), [0]);
        assert_eq!(machine.poll_action(Time(100 * MS)), None);
        assert_eq!(machine.next_deadline(), None, "nothing waits any more");
    }
}

#[test]
fn the_age_counts_from_the_oldest_tensor_that_waits() {
    let mut machines = ranks(1, &[1, 1, 1]);
    machines[0].handle_ready(2, Time(MS)).unwrap();
    machines[0].handle_ready(0, Time(2 * MS)).unwrap();
    assert_eq!(machines[0].next_deadline(), Some(Time(6 * MS)));
    run_round(&mut machines, Time(6 * MS));
    assert_eq!(flushed(&mut machines[0], Time(6 * MS)), [0, 2]);
    machines[0].handle_ready(1, Time(7 * MS)).unwrap();
    assert_eq!(machines[0].next_deadline(), Some(Time(12 * MS)));
}

#[test]
fn empty_tensors_need_no_round_and_no_flush() {
    let mut machines = ranks(2, &[0, 1, 0]);
    for machine in &mut machines {
        machine.handle_ready(0, Time(0)).unwrap();
        assert_eq!(machine.next_deadline(), None);
        machine.handle_ready(1, Time(MS)).unwrap();
        machine.handle_ready(2, Time(MS)).unwrap();
        assert_eq!(machine.next_deadline(), Some(Time(6 * MS)));
        machine.handle_end().unwrap();
    }
    run_round(&mut machines, Time(2 * MS));
    for machine in &mut machines {
        assert_eq!(flushed(machine, Time(2 * MS)), [1]);
        assert_eq!(machine.poll_action(Time(2 * MS)), Some(Action::ShareOrder));
    }
}

#[test]
fn a_tensor_that_one_rank_never_announces_is_named_with_that_rank() {
    let mut machines = ranks(3, &[1; 70]);
    for (rank, machine) in machines.iter_mut().enumerate() {
        for tensor in (0..70).filter(|&t| rank != 1 || (t != 3 && t != 69)) {
            machine.handle_ready(tensor, Time(0)).unwrap();
        }
        machine.handle_end().unwrap();
    }
    run_round(&mut machines, Time(0));
    let gathered: Vec<u64> = (machines.iter())
        .flat_map(|m| m.ready_words().to_vec())
        .collect();
    for machine in &mut machines {
        assert_eq!(machine.poll_action(Time(0)), Some(Action::GatherReady));
        let text = machine.handle_gathered(&gathered).to_string();
        assert!(
            text.contains("rank 1 never announced tensor 3 'layer3', tensor 69 'layer69'"),
            "{text}"
        );
        assert!(
            !text.contains("rank 0") && !text.contains("rank 2"),
            "{text}"
        );
    }
}

#[test]
fn many_missing_tensors_are_counted_instead_of_listed() {
    let mut machines = ranks(1, &[1; 100]);
    machines[0].handle_end().unwrap();
    run_round(&mut machines, Time(0));
    assert_eq!(machines[0].poll_action(Time(0)), Some(Action::GatherReady));
    let text = machines[0].handle_gathered(&[0, 0]).to_string();
    assert!(text.contains("tensor 7 'layer7', 92 more"), "{text}");
}

#[test]
fn a_round_that_flushes_nothing_is_repeated_after_a_quarter_of_the_age() {
    let mut machines = ranks(2, &[1, 1]);
    machines[0].handle_ready(0, Time(0)).unwrap();
    machines[1].handle_ready(1, Time(0)).unwrap();
    run_round(&mut machines, Time(5 * MS));
    for machine in &mut machines {
        assert_eq!(machine.poll_action(Time(5 * MS)), None, "no spinning");
        assert_eq!(machine.next_deadline(), Some(Time(6_250_000)));
    }
    machines[1].handle_ready(0, Time(5 * MS + 1)).unwrap();
    assert_eq!(
        machines[1].next_deadline(),
        Some(Time(5 * MS)),
        "an arrival repeats it at once"
    );
    run_round(&mut machines, Time(6_250_000));
    assert_eq!(flushed(&mut machines[0], Time(6_250_000)), [0]);
}

#[test]
fn the_order_of_rank_0_is_kept_from_the_second_step_on() {
    let mut machines = ranks(2, &[1, 1, 1]);
    for step in 0..3 {
        let orders: [[usize; 3]; 2] = [[2, 0, 1], [1, 2, 0]];
        for (machine, order) in machines.iter_mut().zip(orders) {
            for tensor in order {
                machine.handle_ready(tensor, Time(0)).unwrap();
            }
            machine.handle_end().unwrap();
        }
        run_round(&mut machines, Time(0));
        let order = machines[0].arrivals().to_vec();
        for machine in &mut machines {
            let expected = if step == 0 { [0, 1, 2] } else { [2, 0, 1] };
            assert_eq!(flushed(machine, Time(0)), expected);
            if step == 0 {
                assert_eq!(machine.poll_action(Time(0)), Some(Action::ShareOrder));
                machine.handle_order(&order).unwrap();
            }
            assert_eq!(machine.poll_action(Time(0)), Some(Action::EndStep));
            assert_eq!(machine.poll_action(Time(0)), None);
            machine.begin_step();
        }
    }
}

#[test]
fn an_order_that_is_no_permutation_is_refused() {
    for bad in [&[0u32, 0][..], &[0, 2], &[0], &[0, 1, 1]] {
        let mut machines = ranks(1, &[1, 1]);
        machines[0].handle_ready(0, Time(0)).unwrap();
        machines[0].handle_ready(1, Time(0)).unwrap();
        machines[0].handle_end().unwrap();
        run_round(&mut machines, Time(0));
        flushed(&mut machines[0], Time(0));
        assert_eq!(machines[0].poll_action(Time(0)), Some(Action::ShareOrder));
        assert!(machines[0].handle_order(bad).is_err(), "{bad:?}");
    }
}

#[test]
fn misuse_is_an_error_that_names_the_tensor() {
    let mut machine = ranks(1, &[1, 1]).remove(0);
    machine.handle_ready(0, Time(0)).unwrap();
    let text = machine.handle_ready(0, Time(0)).unwrap_err().to_string();
    assert!(text.contains("'layer0' announced twice"), "{text}");
    assert!(machine.handle_ready(2, Time(0)).is_err());
    machine.handle_end().unwrap();
    let text = machine.handle_ready(1, Time(0)).unwrap_err().to_string();
    assert!(text.contains("after the end"), "{text}");
    let options = FusionOptions {
        op: ReduceOp::BitAnd,
        ..FusionOptions::default()
    };
    let text = Machine::new(set(&[1]), options).unwrap_err().to_string();
    assert!(text.contains("bitand is not defined for f32"), "{text}");
}

#[test]
fn words_that_no_reduction_can_give_are_refused() {
    let mut machine = ranks(1, &[1, 1]).remove(0);
    machine.handle_ready(0, Time(0)).unwrap();
    assert_eq!(machine.poll_action(Time(5 * MS)), Some(Action::StartRound));
    assert!(machine.handle_round(&[3, 0], Time(5 * MS)).is_err());
    assert!(machine.handle_round(&[1], Time(5 * MS)).is_err());
}

#[test]
fn a_fixed_plan_needs_no_round_and_keeps_its_order() {
    let plan = [vec![1], vec![0, 2]];
    let machine = Machine::with_plan(set(&[1, 1, 1]), FusionOptions::default(), &plan);
    let mut machine = machine.unwrap();
    for step in 0..2 {
        assert_eq!(machine.step_index(), step);
        machine.handle_ready(0, Time(0)).unwrap();
        machine.handle_ready(2, Time(0)).unwrap();
        assert_eq!(
            machine.poll_action(Time(100 * MS)),
            None,
            "flush 0 is first"
        );
        machine.handle_ready(1, Time(MS)).unwrap();
        assert_eq!(flushed(&mut machine, Time(MS)), [1]);
        assert_eq!(flushed(&mut machine, Time(MS)), [0, 2]);
        assert_eq!(machine.poll_action(Time(MS)), None, "not before the end");
        machine.handle_end().unwrap();
        assert_eq!(machine.poll_action(Time(MS)), Some(Action::EndStep));
        machine.begin_step();
    }
    machine.handle_ready(0, Time(0)).unwrap();
    let text = machine.handle_end().unwrap_err().to_string();
    assert!(text.contains("'layer1', tensor 2 'layer2'"), "{text}");
}

#[test]
fn a_plan_must_have_every_tensor_once() {
    let new = |plan: &[Vec<u32>]| {
        Machine::with_plan(set(&[1, 1, 0]), FusionOptions::default(), plan).map(|_| ())
    };
    assert_eq!(new(&[vec![0, 1]]), Ok(()));
    for bad in [
        vec![vec![0]],
        vec![vec![0, 1], vec![1]],
        vec![vec![0, 1], vec![3]],
        vec![vec![0, 1], vec![]],
    ] {
        assert!(new(&bad).is_err(), "{bad:?}");
    }
}
