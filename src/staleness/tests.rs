//! The oracles of the paper's text, and what must hold for any workers.

use super::controller::Reason;
use super::options::R_MAX_MAX;
use super::predict::{Extra, Pace, best_extra};
use super::*;
use crate::prng::Prng;
use std::time::Duration;

const SECOND_NS: f64 = 1e9;

fn pace(last_two: &serde_json::Value) -> Pace {
    let time = |at: usize| (last_two[at].as_f64().unwrap() * SECOND_NS).round() as u64;
    Pace {
        last_ns: time(1),
        interval_ns: time(1) - time(0),
    }
}

#[test]
fn the_controller_finds_what_exact_arithmetic_finds() {
    let text = include_str!("../../tests/data/staleness/oracles_dssp.json");
    let document: serde_json::Value = serde_json::from_str(text).unwrap();
    let cases = document["cases"].as_array().unwrap();
    assert_eq!(cases.len(), 5);
    for case in cases {
        let (fast, slow) = (pace(&case["fast_last_two"]), pace(&case["slow_last_two"]));
        let r_max = case["r_max"].as_u64().unwrap() as u32;
        for (reading, name, apart) in [
            (Reading::Wait, "nonneg_wait", "wait"),
            (Reading::Nearest, "abs_diff", "diff"),
        ] {
            let wanted = &case[name];
            let expected = Extra {
                r: wanted["r"].as_u64().unwrap() as u32,
                k: wanted["k"].as_u64().unwrap() as u32,
                apart_ns: (wanted[apart].as_f64().unwrap() * SECOND_NS).round() as u128,
            };
            let found = best_extra(fast, slow, r_max, reading);
            assert_eq!(found, Some(expected), "{case}, {name}");
        }
    }
}

/// Every pair, in the order in which ties are decided.
fn best_of_all(fast: Pace, slow: Pace, r_max: u32, reading: Reading) -> Option<Extra> {
    let all = (0..=r_max).flat_map(|r| (0..=r_max).map(move |k| (r, k)));
    let waits = all.filter_map(|(r, k)| {
        let (own, other) = (fast.after(r), slow.after(k + 1));
        let is_in = reading == Reading::Nearest || other >= own;
        is_in.then(|| (own.abs_diff(other), r, k))
    });
    let (apart_ns, r, k) = waits.min()?;
    Some(Extra { r, k, apart_ns })
}

#[test]
fn one_look_at_each_pair_of_neighbours_finds_the_best_of_all_pairs() {
    let mut prng = Prng::new(24);
    for case in 0..20_000 {
        // Small numbers, so that many are equal.
        let mut pace = || Pace {
            last_ns: prng.below(40),
            interval_ns: 1 + prng.below(12),
        };
        let (fast, slow) = (pace(), pace());
        let r_max = prng.below(14) as u32;
        for reading in [Reading::Wait, Reading::Nearest] {
            let expected = best_of_all(fast, slow, r_max, reading);
            let found = best_extra(fast, slow, r_max, reading);
            assert_eq!(found, expected, "case {case}: {fast:?} {slow:?} {r_max}");
        }
    }
}

fn dssp(s_lower: u32, r_max: u32, release: Release) -> Staleness {
    Staleness::Dssp {
        s_lower,
        r_max,
        release,
        reading: Reading::Wait,
    }
}

fn seconds(time: f64) -> Duration {
    Duration::from_secs_f64(time)
}

/// A controller for this many workers, all there.
fn with_workers(staleness: Staleness, workers: u32) -> Controller {
    let mut controller = Controller::new(staleness, workers).unwrap();
    (0..workers).for_each(|worker| assert_eq!(controller.attach(worker).unwrap(), 0));
    controller
}

/// The next push of a worker; who goes on.
fn push(controller: &mut Controller, worker: u32, time: f64) -> Vec<u32> {
    let clock = controller.pushes(worker).unwrap() + 1;
    let decisions = controller.push(worker, clock, seconds(time)).unwrap();
    let ok = decisions.iter().filter(|one| one.is_ok);
    ok.map(|one| one.worker).collect()
}

/// A run whose workers take their mean times, by ten per cent more or less.
fn uneven(staleness: Staleness, means: &[f64], until: f64, seed: u64) -> Run {
    let mut prng = Prng::new(seed);
    let compute = |worker: u32, _| seconds(means[worker as usize] * (0.9 + 0.2 * prng.unit()));
    run(
        staleness,
        means.len() as u32,
        seconds(until),
        compute,
        |_, _| (),
    )
    .unwrap()
}

/// All decisions of a run.
fn trace(staleness: Staleness, seed: u64) -> Vec<(Duration, u32, bool, u64)> {
    let mut prng = Prng::new(seed);
    let mut all = Vec::new();
    let compute = |worker: u32, _| seconds((1.0 + f64::from(worker)) * (0.5 + prng.unit()));
    let note = |decision: &Decision, time| {
        all.push((time, decision.worker, decision.is_ok, decision.drift));
    };
    run(staleness, 4, seconds(500.0), compute, note).unwrap();
    all
}

#[test]
fn modes_whose_bounds_are_equal_decide_alike() {
    for seed in 0..20 {
        for s in [0, 1, 3] {
            let ssp = trace(Staleness::Ssp(s), seed);
            assert_eq!(trace(dssp(s, 0, Release::Strict), seed), ssp);
            assert!(ssp.iter().any(|&(_, _, is_ok, _)| !is_ok));
        }
        let bsp = trace(Staleness::Bsp, seed);
        assert_eq!(trace(dssp(0, 0, Release::Strict), seed), bsp);
        assert_eq!(trace(dssp(0, 0, Release::Literal), seed), bsp);
        let asp = trace(Staleness::Asp, seed);
        for release in [Release::Strict, Release::Literal, Release::Paper] {
            assert_eq!(trace(dssp(u32::MAX, 12, release), seed), asp);
        }
    }
}

#[test]
fn a_strict_drift_is_never_above_the_upper_bound_and_the_slowest_never_waits() {
    for (staleness, seed) in [
        (dssp(3, 12, Release::Strict), 1),
        (dssp(0, 1, Release::Strict), 2),
        (Staleness::dssp(2, 2).unwrap(), 3),
        (Staleness::Ssp(5), 4),
        (Staleness::Bsp, 5),
    ] {
        let mut prng = Prng::new(seed);
        // Pareto with the exponent 1.1: no variance, and hardly a mean.
        let mut compute = || (1.0 - prng.unit()).powf(-1.0 / 1.1).min(1e6);
        let mut controller = with_workers(staleness, 8);
        let mut next: Vec<Option<f64>> = (0..8).map(|_| Some(compute())).collect();
        for _ in 0..100_000 {
            let times = next.iter().enumerate();
            let first = times.filter_map(|(worker, time)| Some((worker, (*time)?)));
            // Somebody can always push.
            let (worker, time) = first.min_by(|a, b| a.1.total_cmp(&b.1)).unwrap();
            next[worker] = None;
            for ok in push(&mut controller, worker as u32, time) {
                next[ok as usize] = Some(time + compute());
            }
            let pushes = (0..8).map(|worker| controller.pushes(worker).unwrap());
            let fewest = pushes.min().unwrap();
            let drift = controller.pushes(worker as u32).unwrap() - fewest;
            assert!(
                drift <= staleness.drift_max().unwrap(),
                "a drift of {drift}"
            );
            for other in 0..8 {
                let is_last = controller.pushes(other).unwrap() == fewest;
                assert!(
                    !is_last || !controller.is_waiting(other),
                    "{other} is last, and waits"
                );
            }
        }
    }
}

#[test]
fn throughput_is_what_the_paper_s_rules_give() {
    let rate = |staleness, slow| {
        let all: u64 = (0..8)
            .map(|seed| {
                uneven(staleness, &[1.0, slow], 3000.0, seed)
                    .pushes
                    .iter()
                    .sum::<u64>()
            })
            .sum();
        all as f64 / 8.0 / 3000.0
    };
    for (staleness, expected) in [
        (Staleness::Bsp, [0.952, 0.800]),
        (Staleness::Ssp(3), [0.953, 0.800]),
        (Staleness::Ssp(6), [0.954, 0.802]),
        (Staleness::Ssp(15), [0.957, 0.804]),
        (dssp(3, 12, Release::Strict), [0.954, 0.801]),
        (dssp(3, 12, Release::Paper), [1.472, 1.397]),
        (Staleness::Asp, [1.476, 1.399]),
    ] {
        for (slow, expected) in [2.1, 2.5].into_iter().zip(expected) {
            let found = rate(staleness, slow);
            let differs = (found / expected - 1.0).abs();
            assert!(
                differs < 0.02,
                "{staleness:?}, 1.0 and {slow}: {found}, not {expected}"
            );
        }
    }
    let literal = dssp(3, 12, Release::Literal);
    let found = [2.1, 2.5].map(|slow| rate(literal, slow));
    assert!(
        (0.95..=0.985).contains(&found[0]) && (0.80..=0.85).contains(&found[1]),
        "{found:?}"
    );
    // In a short time the pushes ahead count.
    let short = |staleness| {
        uneven(staleness, &[1.0, 2.1], 60.0, 1)
            .pushes
            .iter()
            .sum::<u64>() as f64
    };
    let (strict, ssp) = (
        short(dssp(3, 12, Release::Strict)),
        short(Staleness::Ssp(15)),
    );
    assert!(
        strict >= 0.97 * ssp,
        "{strict} pushes, and {ssp} with SSP 15"
    );
}

#[test]
fn a_grant_is_as_many_oks_as_it_says() {
    // The figure of the paper: worker 0 pushed at 9 and 10, worker 1 at 6.3 and 9.7.
    let mut controller = with_workers(dssp(1, 4, Release::Literal), 2);
    assert_eq!(push(&mut controller, 1, 6.3), [1]);
    assert_eq!(push(&mut controller, 0, 8.0), [0]);
    assert_eq!(push(&mut controller, 0, 9.0), [0]);
    assert_eq!(push(&mut controller, 1, 9.7), [1]);
    assert_eq!(push(&mut controller, 0, 9.5), [0]);
    // Its drift is 2 now, above the lower bound.
    let clock = controller.pushes(0).unwrap() + 1;
    let decisions = controller.push(0, clock, seconds(10.5)).unwrap();
    let [decision] = decisions[..] else {
        panic!("{decisions:?}")
    };
    // Its last two are 9.5 and 10.5: after 2 more it waits for 13.1 from 12.5 on.
    let Reason::Granted {
        pushes, slowest, ..
    } = decision.reason
    else {
        panic!("{decision}")
    };
    assert_eq!((pushes, slowest, decision.drift), (2, 1, 2));
    assert_eq!(
        decision.to_string(),
        "worker 0 goes on: its drift is 2, and it is granted 2 pushes, after which it should wait 600ms for worker 1"
    );
    // The second OK, although it is not more than the grant; then the controller is asked again.
    let next = controller.push(0, clock + 1, seconds(11.5)).unwrap();
    assert_eq!(next[0].reason, Reason::GrantLeft(0));
    let next = controller.push(0, clock + 2, seconds(12.5)).unwrap();
    let is_granted = matches!(next[0].reason, Reason::Granted { pushes: 4, .. });
    assert!(is_granted, "{}", next[0]);
}

#[test]
fn a_wait_that_is_the_shortest_now_lasts_as_the_mode_says() {
    for (release, pushes_waited_for) in [
        (Release::Strict, 1),
        (Release::Literal, 9),
        (Release::Paper, 1),
    ] {
        let mut controller = with_workers(dssp(1, 12, release), 2);
        for (worker, time) in [(1, 0.0), (0, 9.0), (0, 10.0), (1, 10.0), (0, 11.0)] {
            assert_eq!(push(&mut controller, worker, time), [worker]);
        }
        // Granted at 12 s until 20 s, when worker 1 is expected.
        assert!((12..20).all(|time| push(&mut controller, 0, f64::from(time)) == [0]));
        let decision = controller.push(0, 12, seconds(20.0)).unwrap()[0];
        let expected = (Reason::BestNow { slowest: 1 }, 10);
        assert_eq!((decision.reason, decision.drift), expected, "{release:?}");
        for number in 1..=pushes_waited_for {
            let time = 10.0 + 10.0 * f64::from(number);
            let ok = push(&mut controller, 1, time);
            let is_last = number == pushes_waited_for;
            assert_eq!(
                ok.contains(&0),
                is_last,
                "{release:?}: push {number} of worker 1"
            );
        }
    }
}

#[test]
fn pushes_without_a_pace_are_not_granted_anything() {
    let mut controller = with_workers(dssp(0, 12, Release::Strict), 2);
    let first = controller.push(0, 1, seconds(1.0)).unwrap();
    assert_eq!(first[0].reason, Reason::NoPace { slowest: 1 });
    assert_eq!(push(&mut controller, 1, 1.0), [1, 0]);
    // Two pushes at one time, and a clock that goes backwards.
    for time in [1.0, 0.5] {
        let clock = controller.pushes(0).unwrap() + 1;
        let next = controller.push(0, clock, seconds(time)).unwrap();
        assert_eq!(next[0].reason, Reason::NoPace { slowest: 1 });
        assert_eq!(push(&mut controller, 1, time), [1, 0]);
    }
}

#[test]
fn who_waits_for_a_worker_that_dies_goes_on() {
    let mut controller = with_workers(Staleness::Ssp(0), 4);
    for worker in [0, 1, 2] {
        assert_eq!(push(&mut controller, worker, 1.0), [0; 0]);
    }
    let released = controller.detach(3, seconds(1.5));
    assert_eq!(
        released.iter().map(|one| one.worker).collect::<Vec<_>>(),
        [0, 1, 2]
    );
    assert!(
        released
            .iter()
            .all(|one| one.is_ok && one.reason == Reason::Within(0))
    );
    // Who comes begins with the pushes of the slowest.
    assert_eq!(push(&mut controller, 0, 2.0), [0; 0]);
    assert_eq!(controller.attach(3).unwrap(), 1);
    let error = controller.push(3, 1, seconds(3.0)).unwrap_err().to_string();
    assert!(
        error.contains("push 1 of worker 3, whose next push is number 2"),
        "{error}"
    );
}

#[test]
fn the_slowest_is_overdue_when_it_and_those_who_wait_have_not_moved_for_long() {
    let mut controller = with_workers(Staleness::Ssp(1), 3);
    let overdue = |controller: &Controller, now| controller.overdue(seconds(now), seconds(1.0));
    push(&mut controller, 2, 0.5);
    push(&mut controller, 0, 1.0);
    // Nobody waits.
    assert_eq!(overdue(&controller, 100.0), None);
    push(&mut controller, 0, 2.0);
    push(&mut controller, 1, 2.5);
    assert!(!controller.is_waiting(0) && overdue(&controller, 100.0).is_none());
    push(&mut controller, 0, 4.0);
    push(&mut controller, 1, 4.5);
    push(&mut controller, 1, 4.6);
    assert!(controller.is_waiting(0) && controller.is_waiting(1));
    assert_eq!(overdue(&controller, 5.0), None);
    assert_eq!(overdue(&controller, 5.1), Some(2));
    // It goes: the one that is the slowest now could not push before.
    controller.detach(2, seconds(6.0));
    push(&mut controller, 0, 6.1);
    push(&mut controller, 0, 6.2);
    assert!(controller.is_waiting(0));
    assert_eq!(overdue(&controller, 7.1), None);
    assert_eq!(overdue(&controller, 7.3), Some(1));
}

#[test]
fn wrong_pushes_and_bounds_are_named() {
    let mut controller = with_workers(Staleness::Bsp, 2);
    assert_eq!(push(&mut controller, 0, 1.0), [0; 0]);
    for (worker, clock, what) in [
        (
            0,
            2,
            "push 2 of worker 0, which waits for the OK of its last push",
        ),
        (0, 1, "push 1 of worker 0, whose next push is number 2"),
        (1, 2, "push 2 of worker 1, whose next push is number 1"),
        (2, 1, "a push of worker 2, which is not there"),
    ] {
        let error = controller.push(worker, clock, seconds(2.0)).unwrap_err();
        assert!(error.to_string().contains(what), "{error}");
    }
    let there = controller.attach(1).unwrap_err().to_string();
    assert!(there.contains("worker 1 is there already"), "{there}");
    let above = Staleness::dssp(5, 4).unwrap_err().to_string();
    assert!(
        above.contains("lower bound of the drift is 5 and the upper one 4"),
        "{above}"
    );
    assert!(Staleness::dssp(0, R_MAX_MAX + 1).is_err());
    assert!(Controller::new(dssp(0, R_MAX_MAX + 1, Release::Paper), 1).is_err());
}
