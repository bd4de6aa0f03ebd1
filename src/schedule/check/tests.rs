//! Canaries: right schedules, and variants with one mistake each, which the checker must find.

use super::*;
use crate::schedule::{
    Action, BufferId, Builder, Extent, Join, Operand, Range, Step, StepId, Trigger,
};
use crate::types::{Collective, Rank};

const INPUT: BufferId = BufferId::INPUT;
const OUTPUT: BufferId = BufferId::OUTPUT;

fn all(buffer: BufferId) -> Range {
    Range::new(buffer, Extent::all(1))
}

fn builder(rank: Rank, ranks: u32) -> Builder {
    Builder::new("canary", rank, ranks, false)
}

fn spec(collective: Collective) -> Spec {
    Spec {
        collective,
        root: 0,
        count: 5,
        premultiply: false,
        slots: Vec::new(),
    }
}

/// What the checker says about an allreduce.
fn fault(schedules: &[Schedule]) -> Option<Fault> {
    check(schedules, &spec(Collective::AllReduce))
        .err()
        .map(|e| e.fault)
}

/// Allreduce of two ranks: 0 send, 1 receive, 2 reduce.
fn exchange() -> Vec<Schedule> {
    let one = |rank: Rank| {
        let mut b = builder(rank, 2);
        let scratch = b.scratch(Extent::all(1));
        b.send(1 - rank, all(INPUT));
        b.recv(1 - rank, all(scratch));
        b.reduce(vec![all(INPUT), all(scratch)], all(OUTPUT), true);
        b.build()
    };
    vec![one(0), one(1)]
}

/// An allreduce of two ranks over mapped memory: 0 signal, 1 wait, 2 reduce one half, 3 signal, 4
/// wait.
fn mapped() -> Vec<Schedule> {
    let one = |rank: Rank| {
        let half = |buffer| Range::new(buffer, Extent::block(rank, 2));
        let both = |buffer| {
            vec![
                Operand::Local(half(buffer)),
                Operand::Peer(1 - rank, half(buffer)),
            ]
        };
        let mut b = builder(rank, 2);
        b.signal(vec![1 - rank], 0);
        b.wait(vec![1 - rank], 0);
        b.reduce_from(both(INPUT), both(OUTPUT), true);
        b.signal(vec![1 - rank], 1);
        b.wait(vec![1 - rank], 1);
        b.build()
    };
    vec![one(0), one(1)]
}

/// `schedules` with a change to one step of rank 1.
fn with(
    mut schedules: Vec<Schedule>,
    step: StepId,
    change: impl FnOnce(&mut Step),
) -> Vec<Schedule> {
    change(&mut schedules[1].steps[step as usize]);
    schedules
}

fn nop(step: &mut Step) {
    step.action = Action::Nop;
}

#[test]
fn the_schedules_that_the_canaries_change_are_right() {
    for schedules in [exchange(), mapped()] {
        let report = check(&schedules, &spec(Collective::AllReduce)).unwrap();
        assert_eq!(report.orders, 1, "nothing races");
        assert!(
            report.outputs[0]
                .iter()
                .all(|v| v.contributors == 3 && v.is_finished)
        );
    }
}

#[test]
fn a_dropped_message_is_found() {
    assert_eq!(fault(&with(exchange(), 0, nop)), Some(Fault::Unmatched));
    assert_eq!(fault(&with(exchange(), 1, nop)), Some(Fault::Unmatched));
}

#[test]
fn a_contributor_counted_twice_is_found() {
    let twice = |step: &mut Step| {
        if let Action::Reduce { sources, .. } = &mut step.action {
            sources[1] = sources[0];
        }
    };
    assert_eq!(fault(&with(exchange(), 2, twice)), Some(Fault::Combined));
}

#[test]
fn a_missing_dependency_is_found_with_its_place() {
    let schedules = with(exchange(), 2, |step| step.dependencies.clear());
    let error = check(&schedules, &spec(Collective::AllReduce)).unwrap_err();
    assert_eq!(
        (error.fault, error.rank, error.step, error.element),
        (Fault::Unordered, 1, Some(2), Some(0))
    );
    let text = error.to_string();
    assert!(text.contains("step 1 of rank 1 (recv @0 #0"), "{text}");
    assert!(text.contains("nothing orders them"), "{text}");
}

#[test]
fn an_overlap_edge_orders_only_the_elements_that_overlap() {
    // The reduction reads all of scratch, but waits only for the copy of its first element's block.
    let one = |is_complete: bool| {
        let mut b = builder(0, 1);
        let scratch = b.scratch(Extent::all(1));
        for block in 0..2 {
            let half = |buffer| Range::new(buffer, Extent::block(block, 2));
            b.copy(half(INPUT), half(scratch));
        }
        b.reduce(vec![all(scratch)], all(OUTPUT), true);
        let mut schedule = b.build();
        if !is_complete {
            schedule.steps[2].dependencies.retain(|d| d.step == 0);
        }
        schedule
    };
    assert_eq!(fault(&[one(true)]), None);
    assert_eq!(fault(&[one(false)]), Some(Fault::Unordered));
}

#[test]
fn a_chain_of_overlap_edges_through_one_element_is_an_order() {
    let one = |is_complete: bool| {
        let mut b = builder(0, 1);
        let scratch = b.scratch(Extent::all(1));
        b.copy(all(INPUT), all(scratch));
        b.reduce(vec![all(scratch)], all(scratch), true);
        b.copy(all(scratch), all(OUTPUT));
        let mut schedule = b.build();
        assert!(schedule.steps[2].dependencies.iter().all(|d| d.step == 1));
        if !is_complete {
            schedule.steps[1].dependencies.clear();
        }
        schedule
    };
    assert_eq!(fault(&[one(true)]), None);
    assert_eq!(fault(&[one(false)]), Some(Fault::Unordered));
}

#[test]
fn a_missing_signal_leaves_the_peer_waiting() {
    assert_eq!(fault(&with(mapped(), 0, nop)), Some(Fault::Deadlock));
    assert_eq!(fault(&with(mapped(), 3, nop)), Some(Fault::Deadlock));
}

#[test]
fn memory_of_a_peer_that_has_not_arrived_or_has_left_is_not_touched() {
    assert_eq!(fault(&with(mapped(), 1, nop)), Some(Fault::Lifetime));
    assert_eq!(fault(&with(mapped(), 4, nop)), Some(Fault::Lifetime));
}

#[test]
fn a_signal_that_does_not_follow_the_work_is_found() {
    let early = |step: &mut Step| step.dependencies.clear();
    assert_eq!(fault(&with(mapped(), 3, early)), Some(Fault::Lifetime));
}

#[test]
fn windows_may_be_read_after_their_owner_has_left_but_not_before_they_are_filled() {
    let one = |rank: Rank, is_waiting: bool| {
        let mut b = builder(rank, 2);
        let window = b.window(Extent::all(1));
        b.copy(all(INPUT), all(window));
        b.signal(vec![1 - rank], 0);
        if is_waiting {
            b.wait(vec![1 - rank], 0);
        }
        let sources = vec![
            Operand::Local(all(window)),
            Operand::Peer(1 - rank, all(window)),
        ];
        b.reduce_from(sources, vec![Operand::Local(all(OUTPUT))], true);
        b.build()
    };
    assert_eq!(fault(&[one(0, true), one(1, true)]), None);
    assert_eq!(
        fault(&[one(0, true), one(1, false)]),
        Some(Fault::Unordered)
    );
}

#[test]
fn different_trees_are_found_and_swapped_operands_are_not_different() {
    let one = |rank: Rank, order: [Rank; 3]| {
        let mut b = builder(rank, 3);
        let scratch = b.scratch(Extent::all(3));
        let part = |r: Rank| Range::new(scratch, Extent::part(r, 3));
        for peer in (0..3).filter(|&p| p != rank) {
            b.send(peer, all(INPUT));
            b.recv(peer, part(peer));
        }
        let source = |r: Rank| if r == rank { all(INPUT) } else { part(r) };
        b.reduce(order.map(source).to_vec(), all(OUTPUT), true);
        b.build()
    };
    let ascending = [0, 1, 2];
    let swapped = [one(0, ascending), one(1, [1, 0, 2]), one(2, ascending)];
    assert_eq!(fault(&swapped), None);
    let rotated = [one(0, ascending), one(1, ascending), one(2, [2, 0, 1])];
    assert_eq!(fault(&rotated), Some(Fault::Tree));
}

#[test]
fn the_last_act_is_applied_exactly_once() {
    let unfinished = |step: &mut Step| {
        if let Action::Reduce { finish, .. } = &mut step.action {
            *finish = false;
        }
    };
    assert_eq!(
        fault(&with(exchange(), 2, unfinished)),
        Some(Fault::Finished)
    );
    let mut b = builder(0, 1);
    b.reduce(vec![all(INPUT)], all(OUTPUT), true);
    b.reduce(vec![all(OUTPUT)], all(OUTPUT), true);
    assert_eq!(fault(&[b.build()]), Some(Fault::Finished));
}

#[test]
fn inputs_are_multiplied_exactly_once() {
    let premultiplied = Spec {
        premultiply: true,
        ..spec(Collective::AllReduce)
    };
    let error = check(&exchange(), &premultiplied).unwrap_err();
    assert_eq!(error.fault, Fault::Premultiplied);
    let mut b = builder(0, 1);
    b.premultiply(all(INPUT), all(OUTPUT));
    b.premultiply(all(OUTPUT), all(OUTPUT));
    b.reduce(vec![all(OUTPUT)], all(OUTPUT), true);
    let error = check(&[b.build()], &premultiplied).unwrap_err();
    assert_eq!((error.fault, error.step), (Fault::Premultiplied, Some(1)));
}

#[test]
fn two_ranks_that_both_receive_before_they_send_are_stuck() {
    let one = |rank: Rank| {
        let mut b = builder(rank, 2);
        b.recv(1 - rank, all(OUTPUT));
        b.send(1 - rank, all(OUTPUT));
        b.build()
    };
    assert_eq!(fault(&[one(0), one(1)]), Some(Fault::Deadlock));
}

#[test]
fn both_ends_of_a_message_are_equally_long() {
    let shorter = |step: &mut Step| {
        if let Action::Send { source, .. } = &mut step.action {
            source.extent = Extent::block(0, 2);
        }
    };
    assert_eq!(fault(&with(exchange(), 0, shorter)), Some(Fault::Length));
}

#[test]
fn ranges_stay_inside_their_buffers_and_peers_see_only_shared_ones() {
    let mut b = builder(0, 1);
    b.copy(
        Range::new(INPUT, Extent::all(2)),
        Range::new(OUTPUT, Extent::all(2)),
    );
    assert_eq!(fault(&[b.build()]), Some(Fault::Bounds));
    let private = with(mapped(), 2, |step| {
        if let Action::ReduceFrom { sources, .. } = &mut step.action {
            sources[1] = Operand::Peer(0, all(BufferId(7)));
        }
    });
    assert_eq!(fault(&private), Some(Fault::Malformed));
}

#[test]
fn what_nobody_wrote_is_not_read() {
    let mut b = builder(0, 1);
    let scratch = b.scratch(Extent::all(1));
    b.reduce(vec![all(scratch)], all(OUTPUT), true);
    assert_eq!(fault(&[b.build()]), Some(Fault::Undefined));
}

#[test]
fn an_input_that_is_not_in_place_stays_intact() {
    let mut b = builder(0, 1);
    b.reduce(vec![all(INPUT)], all(OUTPUT), true);
    b.copy(all(OUTPUT), all(INPUT));
    assert_eq!(fault(&[b.build()]), Some(Fault::InputChanged));
}

#[test]
fn a_wrong_contributor_is_found() {
    let keep_own = (0..2).map(|rank| {
        let mut b = builder(rank, 2);
        b.copy(all(INPUT), all(OUTPUT));
        b.build()
    });
    let schedules: Vec<_> = keep_own.collect();
    let error = check(&schedules, &spec(Collective::Broadcast)).unwrap_err();
    assert_eq!(
        (error.fault, error.rank, error.element),
        (Fault::Result, 1, Some(0))
    );
}

#[test]
fn nobody_leaves_a_barrier_early() {
    let one = |rank: Rank| {
        let mut b = builder(rank, 2);
        b.signal(vec![1 - rank], 0);
        b.wait(vec![1 - rank], 0);
        b.build()
    };
    let barrier = Spec {
        count: 0,
        ..spec(Collective::Barrier)
    };
    assert!(check(&[one(0), one(1)], &barrier).is_ok());
    let error = check(&with(vec![one(0), one(1)], 1, nop), &barrier).unwrap_err();
    assert_eq!((error.fault, error.rank), (Fault::Barrier, 1));
}

#[test]
fn mail_is_sent_once_and_read_after_it_has_come() {
    let one = |rank: Rank| {
        let mut b = builder(rank, 2);
        b.signal_with(vec![1 - rank], 0, Some(all(INPUT)));
        b.wait(vec![1 - rank], 0);
        let sources = vec![Operand::Local(all(INPUT)), Operand::Mail(1 - rank, 0)];
        b.reduce_from(sources, vec![Operand::Local(all(OUTPUT))], true);
        b.build()
    };
    let both = || vec![one(0), one(1)];
    assert_eq!(fault(&both()), None);
    assert_eq!(fault(&with(both(), 1, nop)), Some(Fault::Signal));
    let twice = |step: &mut Step| {
        step.action = Action::Signal {
            peers: vec![0],
            lane: 0,
            payload: None,
        };
    };
    assert_eq!(fault(&with(both(), 1, twice)), Some(Fault::Signal));
}

/// Ranks 0 and 1 fill their windows and signal; rank 2 reads the windows of `read` once one of the
/// two has signalled.
fn first_come(read: &[Rank]) -> Vec<Schedule> {
    let one = |rank: Rank| {
        let mut b = builder(rank, 3);
        let window = b.window(Extent::all(1));
        if rank < 2 {
            b.copy(all(INPUT), all(window));
            b.signal(vec![2], 0);
            return b.build();
        }
        let wait = Action::WaitCount {
            peers: vec![0, 1],
            lane: 0,
            count: 1,
        };
        let scratch = b.scratch(Extent::all(1));
        let wait = b.step(wait, &[], Join::All, Trigger::None);
        for &peer in read {
            let get = Action::Get {
                peer,
                source: all(window),
                destination: all(scratch),
            };
            b.step(get, &[wait], Join::All, Trigger::None);
        }
        b.build()
    };
    (0..3).map(one).collect()
}

#[test]
fn every_order_of_arrival_is_explored() {
    let anything = spec(Collective::SendRecv);
    let with_slots = Spec {
        slots: vec![vec![0, 5]; 3],
        ..anything
    };
    let report = check(&first_come(&[]), &with_slots).unwrap();
    assert_eq!(report.orders, 2);
    for peer in [0, 1] {
        let error = check(&first_come(&[peer]), &with_slots).unwrap_err();
        assert_eq!(
            error.fault,
            Fault::Unordered,
            "only the other may have come"
        );
    }
}

#[test]
fn the_first_dependency_alone_starts_a_step_that_waits_for_any() {
    let one = |join: Join| {
        let mut b = builder(0, 1);
        let scratch = b.scratch(Extent::all(1));
        b.copy(all(INPUT), all(scratch));
        let arrival = b.step(Action::Nop, &[], Join::All, Trigger::Caller);
        let reduce = Action::Reduce {
            sources: vec![all(scratch)],
            destination: all(OUTPUT),
            finish: true,
        };
        b.step(reduce, &[0, arrival], join, Trigger::None);
        b.build()
    };
    assert_eq!(fault(&[one(Join::All)]), None);
    assert_eq!(fault(&[one(Join::Any)]), Some(Fault::Unordered));
}
