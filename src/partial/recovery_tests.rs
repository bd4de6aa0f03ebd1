//! Single situations after deaths: who counts, who initiates.

use super::*;
use crate::time::Time;

/// Machines of a job, the rank of each being its index.
fn machines(ranks: u32, policy: Policy) -> Vec<Machine> {
    let options = PartialOptions {
        policy,
        survive: true,
        ..PartialOptions::default()
    };
    (0..ranks)
        .map(|rank| Machine::new(rank, ranks, options.clone()))
        .collect()
}

fn submit(machine: &mut Machine) {
    machine.begin_submit().expect("there is room");
    machine.handle_submitted(Time(0));
}

fn actions(machine: &mut Machine) -> Vec<Action> {
    std::iter::from_fn(|| machine.poll_action()).collect()
}

fn arrived(to: u32, round: u64) -> Action {
    let notice = Notice::Arrived(round);
    Action::Tell { to, notice }
}

/// These ranks are left.
fn survive(machines: &mut [Machine], live: &[u32]) {
    let standing = |&rank: &u32| machines[rank as usize].standing();
    let standings: Vec<Standing> = live.iter().map(standing).collect();
    let options = machines[live[0] as usize].options().clone();
    let recovery = Recovery::of(live, &standings, &options).unwrap();
    for &rank in live {
        machines[rank as usize].handle_survived(&recovery, Time(0));
    }
}

#[test]
fn the_rank_that_counts_may_die_twice_in_one_round_and_all_say_again_that_they_have_arrived() {
    let mut all = machines(6, Policy::Quorum(3));
    for rank in [2, 3] {
        submit(&mut all[rank]);
        assert_eq!(actions(&mut all[rank]), [arrived(0, 0)]);
    }
    survive(&mut all, &[1, 2, 3, 4, 5]);
    for rank in [2, 3] {
        assert_eq!(
            actions(&mut all[rank]),
            [arrived(1, 0)],
            "rank 1 counts now"
        );
        let told = all[1].handle_notice(rank as u32, Notice::Arrived(0), Time(0));
        told.unwrap();
    }
    assert_eq!(actions(&mut all[1]), [], "2 of a quorum of 3");
    survive(&mut all, &[2, 3, 4, 5]);
    assert_eq!(actions(&mut all[2]), [], "it counts itself");
    assert_eq!(actions(&mut all[3]), [arrived(2, 0)]);
    submit(&mut all[4]);
    assert_eq!(actions(&mut all[4]), [arrived(2, 0)]);
    let tell = |from, machine: &mut Machine| {
        let told = machine.handle_notice(from, Notice::Arrived(0), Time(0));
        told.unwrap();
        actions(machine)
    };
    assert_eq!(tell(3, &mut all[2]), []);
    assert_eq!(tell(3, &mut all[2]), [], "the same again");
    let begun = tell(4, &mut all[2]);
    let is_begin =
        |action: &Action| matches!(action, Action::Begin { header, .. } if header.is_active);
    assert!(begun.iter().any(is_begin), "{begun:?}");
}

#[test]
fn the_next_draw_that_lives_initiates_where_the_first_has_died() {
    let seed = 5;
    // The first round whose first draw is rank 1, and its next draw of another rank.
    let round = (0..)
        .find(|&round| initiator(seed, round, 0, 4) == 1)
        .unwrap();
    let next = (1..).map(|attempt| initiator(seed, round, attempt, 4));
    let next = next.into_iter().find(|&rank| rank != 1).unwrap();
    let mut all = machines(4, Policy::RandomInitiator { seed });
    for number in 0..round {
        for rank in [0, 2, 3, 1] {
            submit(&mut all[rank]);
            // Everyone is woken, no matter who was drawn.
            actions(&mut all[rank]);
        }
        let headers: Vec<Header> = (0..4)
            .map(|_| Header {
                round: number,
                is_active: true,
                first_generation: number,
                generations: 1,
                ..Header::default()
            })
            .collect();
        wake(&mut all, number);
        for machine in &mut all {
            machine.handle_completed(&headers).unwrap();
            let Next::Taken(_, place) = machine.take() else {
                panic!("a result");
            };
            machine.give_back(place);
        }
    }
    survive(&mut all, &[0, 2, 3]);
    for rank in [0, 2, 3] {
        submit(&mut all[rank as usize]);
        let begins = !actions(&mut all[rank as usize]).is_empty();
        assert_eq!(begins, rank == next, "rank {rank} of round {round}");
    }
}

/// Gives every machine the signals of a round from all ranks that may wake it.
fn wake(all: &mut [Machine], round: u64) {
    for machine in all {
        for from in 0..4 {
            let _ = machine.handle_notice(from, Notice::Activate(round), Time(0));
        }
        actions(machine);
    }
}
