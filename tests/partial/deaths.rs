//! Partial allreduces that survive deaths, with real processes: the others agree on every round,
//! its bits and its sum. `src/partial` tests the decisions alone, in far more histories.

use super::job::{TRANSPORTS, all_equal, results};
use linerate_children::{end, start, start_each, text};
use rustix::process::Signal;
use std::os::unix::process::ExitStatusExt;
use std::time::Duration;

const SURVIVE: (&str, &str) = ("LINERATE_TEST_SURVIVE", "1");

/// Runs a job in which these ranks kill themselves: in this step, by this fate (`partial/fate.rs`),
/// after a delay in us that is the same for all; what the others say, which is the same of all.
fn survivors(
    ranks: u32,
    (deaths, delay_us): (&[(usize, &str)], u32),
    extra: &[(&str, &str)],
) -> String {
    let mut own = vec![Vec::new(); ranks as usize];
    for &(rank, last) in deaths {
        own[rank].push(("LINERATE_TEST_LAST", last));
    }
    let delay = delay_us.to_string();
    let extra = [extra, &[SURVIVE, ("LINERATE_TEST_DELAY_US", &delay)]].concat();
    let outputs = end(start_each("survives", &own, &extra));
    let is_dead = |rank: usize| deaths.iter().any(|(dead, _)| *dead == rank);
    for (rank, _) in deaths {
        let ended = outputs[*rank].status.signal();
        assert_eq!(ended, Some(9), "rank {rank}: {}", text(&outputs[*rank]));
    }
    let live = (0..ranks as usize).filter(|&rank| !is_dead(rank));
    let all = results(&live.map(|rank| outputs[rank].clone()).collect::<Vec<_>>());
    all_equal(&all);
    all[0].clone()
}

#[test]
fn the_others_go_on_when_a_rank_dies_whatever_the_policy() {
    for transport in TRANSPORTS {
        for policy in ["solo", "majority", "random", "deadline", "limiter", "full"] {
            let extra = [transport, ("LINERATE_TEST_POLICY", policy)];
            let said = survivors(4, (&[(1, "10")], 300), &extra);
            assert!(said.ends_with(" 31 dead [1]"), "{policy}: {said}");
        }
    }
}

#[test]
fn survivors_agree_on_a_large_sum_soon_after_whose_begin_a_rank_died() {
    for transport in TRANSPORTS {
        for delay in [0, 1500, 4000] {
            let pad = ("LINERATE_TEST_PAD", "1000000");
            let extra = [transport, ("LINERATE_TEST_POLICY", "full"), pad];
            let said = survivors(3, (&[(2, "3")], delay), &extra);
            assert!(said.ends_with(" 31 dead [2]"), "{said}");
        }
    }
}

#[test]
fn all_but_one_may_die_one_after_another_or_together() {
    for transport in TRANSPORTS {
        let extra = [transport, ("LINERATE_TEST_POLICY", "majority")];
        // Those that count rounds 4 and 5, and the lowest rank, which leads rebuilds.
        let said = survivors(4, (&[(0, "4"), (1, "4"), (3, "12")], 0), &extra);
        assert!(said.ends_with(" 31 dead [0, 1, 3]"), "{said}");
    }
}

#[test]
fn processes_killed_at_any_moment_take_nothing_of_the_others_with_them() {
    for (index, transport) in TRANSPORTS.iter().cycle().take(8).enumerate() {
        let policy = ["solo", "majority", "random", "full"][index / 2];
        let extra = [*transport, ("LINERATE_TEST_POLICY", policy), SURVIVE];
        let mut children = start("survives", 4, &extra);
        children[3].wait_line("AT 3");
        let mut prng = crate::prng::Prng::new(index as u64);
        for victim in [1, 2] {
            std::thread::sleep(Duration::from_micros(prng.below(20_000)));
            children[victim].signal(Signal::KILL);
        }
        let outputs = end(children);
        all_equal(&results(&[outputs[0].clone(), outputs[3].clone()]));
    }
}

#[test]
fn survivors_agree_on_a_sum_half_of_whose_chunks_the_dead_rank_had_sent() {
    // A sum of 4 MB among 3 ranks: each sends 5.3 MB, in chunks of 512 KiB.
    let extra = [
        TRANSPORTS[1],
        ("LINERATE_TCP_PACE", "400mbit"),
        ("LINERATE_TEST_POLICY", "full"),
        ("LINERATE_TEST_PAD", "1000000"),
    ];
    for victim in [0, 2] {
        let said = survivors(3, (&[(victim, "3sent2600000")], 0), &extra);
        assert!(said.ends_with(&format!(" 31 dead [{victim}]")), "{said}");
    }
}

#[test]
fn a_rank_may_die_while_the_others_recover_from_an_earlier_death() {
    for transport in TRANSPORTS {
        for policy in ["solo", "majority"] {
            let extra = [transport, ("LINERATE_TEST_POLICY", policy)];
            let said = survivors(5, (&[(1, "6"), (3, "4recovering")], 0), &extra);
            assert!(said.ends_with(" 31 dead [1, 3]"), "{policy}: {said}");
        }
    }
}

#[test]
fn deaths_are_survived_where_results_are_merged_or_only_the_newest_is_taken() {
    for transport in TRANSPORTS {
        for delivery in ["merged", "latest"] {
            let extra = [
                transport,
                ("LINERATE_TEST_POLICY", "solo"),
                ("LINERATE_TEST_DELIVERY", delivery),
            ];
            let said = survivors(4, (&[(2, "9")], 300), &extra);
            assert!(said.ends_with(" 31 dead [2]"), "{delivery}: {said}");
        }
    }
}

#[test]
fn ranks_in_a_round_of_which_a_dead_rank_has_told_another_nothing_do_not_wait_for_that_rank() {
    for transport in TRANSPORTS {
        let extra = [transport, SURVIVE, ("LINERATE_TEST_POLICY", "solo")];
        let outputs = end(start("unaware", 4, &extra));
        let live = [0, 1, 3].map(|rank| outputs[rank].clone());
        assert_eq!(results(&live), ["3", "3", "3"]);
    }
}
