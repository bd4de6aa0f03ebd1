//! Every algorithm against its definition, through the checker.

use super::*;
use crate::limits::{RANKS_MAX, STEPS_MAX};
use crate::prng::Prng;
use crate::schedule::{Action, CheckError, CheckReport, Schedule, Spec, check};
use crate::types::{Collective, Rank};

struct Case {
    algorithm: &'static Algorithm,
    ranks: u32,
    root: Rank,
    in_place: bool,
    premultiply: bool,
    hosts: Vec<u32>,
    /// Whether the ranks of a host map each other's memory: of even hosts, and of odd ones.
    maps: [bool; 2],
    /// Whether input and output are mapped: of even ranks, and of odd ones.
    are_mapped: [bool; 2],
}

impl Case {
    fn new(algorithm: &'static Algorithm, ranks: u32) -> Case {
        Case {
            algorithm,
            ranks,
            root: 0,
            in_place: false,
            premultiply: false,
            hosts: (0..ranks).map(|r| r / 4).collect(),
            maps: [true, false],
            are_mapped: [true, false],
        }
    }

    fn request(&self, rank: Rank) -> Request {
        let request = Request {
            collective: self.algorithm.collective,
            rank,
            ranks: self.ranks,
            root: self.root,
            in_place: self.in_place,
            premultiply: self.premultiply,
            hosts: self.hosts.clone(),
            maps_host: self.maps[self.hosts[rank as usize] as usize % 2],
            is_mapped: self.are_mapped[rank as usize % 2],
        };
        request.check().expect("a good request");
        request
    }

    fn build(&self) -> Vec<Schedule> {
        (0..self.ranks)
            .map(|r| (self.algorithm.build)(&self.request(r)))
            .collect()
    }

    fn check(&self, schedules: &[Schedule], count: u64) -> Result<CheckReport, CheckError> {
        check(
            schedules,
            &Spec {
                collective: self.algorithm.collective,
                root: self.root,
                count,
                premultiply: self.premultiply,
                slots: slots_of(self.algorithm.collective, self.ranks, count),
            },
        )
    }

    fn check_counts(&self, counts: &[u64]) {
        let schedules = self.build();
        for &count in counts {
            if let Err(error) = self.check(&schedules, count) {
                let rank = error.rank as usize;
                panic!(
                    "{} {} of {} ranks, root {}, count {count}, in place {}, premultiply {}: {error}\n{}",
                    self.algorithm.collective,
                    self.algorithm.name,
                    self.ranks,
                    self.root,
                    self.in_place,
                    self.premultiply,
                    schedules[rank]
                );
            }
        }
    }
}

/// Lengths that differ between ranks, some of them 0.
fn slots_of(collective: Collective, ranks: u32, count: u64) -> Vec<Vec<u64>> {
    let length =
        |from: u32, to: u32| Prng::new(u64::from(from * 64 + to) + 4096 * count).below(count + 1);
    let to_all = |from: u32| (0..ranks).map(|to| length(from, to)).collect::<Vec<_>>();
    let from_all = |to: u32| (0..ranks).map(|from| length(from, to)).collect::<Vec<_>>();
    let slots = |rank| match collective {
        _ if collective.has_part_lengths() => part_slots(&to_all(0)),
        Collective::AllToAllV => all_to_all_v_slots(&to_all(rank), &from_all(rank)),
        Collective::Barrier => BARRIER_SLOTS.to_vec(),
        _ => Vec::new(),
    };
    (0..ranks).map(slots).collect()
}

/// 0, 1, one less and one more than the ranks, and primes.
fn counts(collective: Collective, ranks: u32) -> Vec<u64> {
    if collective == Collective::Barrier {
        return vec![0];
    }
    let p = u64::from(ranks);
    let mut counts = vec![0, 1, p - 1, p, p + 1, 7, 97];
    counts.sort_unstable();
    counts.dedup();
    counts
}

fn sweep(collectives: &[Collective]) {
    for &collective in collectives {
        for algorithm in algorithms(collective) {
            for ranks in (1..=17).chain([32]) {
                sweep_ranks(algorithm, ranks);
            }
        }
    }
}

fn sweep_ranks(algorithm: &'static Algorithm, ranks: u32) {
    let collective = algorithm.collective;
    let mut roots: Vec<Rank> = match (collective.is_rooted(), ranks) {
        (false, _) => vec![0],
        (true, 1..=8) => (0..ranks).collect(),
        (true, _) => vec![0, 1, ranks - 1],
    };
    roots.dedup();
    let can_be_in_place = !matches!(collective, Collective::AllToAllV | Collective::Barrier);
    for root in roots {
        for in_place in [false, true] {
            for premultiply in [false, true] {
                let is_offered = (!premultiply
                    || (collective.is_reducing() && !algorithm.needs.plain))
                    && (!in_place || can_be_in_place);
                if is_offered {
                    let case = Case {
                        root,
                        in_place,
                        premultiply,
                        ..Case::new(algorithm, ranks)
                    };
                    case.check_counts(&counts(collective, ranks));
                }
            }
        }
    }
}

#[test]
fn allreduce_is_correct_for_every_algorithm_and_number_of_ranks() {
    sweep(&[Collective::AllReduce]);
}

#[test]
fn reduce_scatter_and_reduce_are_correct() {
    sweep(&[
        Collective::ReduceScatter,
        Collective::ReduceScatterV,
        Collective::Reduce,
    ]);
}

#[test]
fn gathering_collectives_are_correct() {
    sweep(&[
        Collective::AllGather,
        Collective::AllGatherV,
        Collective::Gather,
        Collective::GatherV,
    ]);
}

#[test]
fn broadcast_and_scatter_are_correct() {
    sweep(&[
        Collective::Broadcast,
        Collective::Scatter,
        Collective::ScatterV,
    ]);
}

#[test]
fn exchanges_and_barriers_are_correct() {
    sweep(&[
        Collective::AllToAll,
        Collective::AllToAllV,
        Collective::Barrier,
    ]);
}

#[test]
fn the_hierarchical_allreduce_takes_any_hosts() {
    let algorithm = find(Collective::AllReduce, "hierarchical").unwrap();
    for hosts in [
        vec![0, 0, 0, 0],
        vec![0, 1, 2],
        vec![0, 0, 1, 1, 2, 2],
        vec![5, 3, 5, 3],
        vec![0, 0, 0, 1],
        vec![2, 0, 1, 0, 0, 2, 0],
    ] {
        for code in 0..64 {
            let [in_place, premultiply, even, odd, is_even, is_odd] =
                std::array::from_fn(|bit| code >> bit & 1 == 1);
            let ranks = hosts.len() as u32;
            let case = Case {
                in_place,
                premultiply,
                hosts: hosts.clone(),
                maps: [even, odd],
                are_mapped: [is_even, is_odd],
                ..Case::new(algorithm, ranks)
            };
            case.check_counts(&counts(Collective::AllReduce, ranks));
        }
    }
}

/// A canary for checker and algorithms alike: a checker that misses a step's absence is blind, an
/// algorithm that does not need the step is slow.
#[test]
fn no_step_of_any_algorithm_can_be_left_out() {
    for collective in Collective::ALL {
        for algorithm in algorithms(collective) {
            // Only with a power of two ranks is every message of a barrier needed.
            let is_barrier = collective == Collective::Barrier;
            for ranks in if is_barrier {
                [2, 4, 8, 16]
            } else {
                [2, 3, 4, 6]
            } {
                let case = Case::new(algorithm, ranks);
                let schedules = case.build();
                let count = counts(collective, 13).pop().unwrap();
                for rank in 0..ranks as usize {
                    for step in 0..schedules[rank].steps.len() {
                        let mut broken = schedules.clone();
                        broken[rank].steps[step].action = Action::Nop;
                        assert!(
                            case.check(&broken, count).is_err(),
                            "{collective} {} of {ranks}: rank {rank} does not need step {step}\n{}",
                            algorithm.name,
                            schedules[rank]
                        );
                    }
                }
            }
        }
    }
}

#[test]
fn ranks_in_place_and_others_meet() {
    for collective in Collective::ALL {
        for algorithm in algorithms(collective) {
            if matches!(collective, Collective::AllToAllV | Collective::Barrier) {
                continue;
            }
            for ranks in [2, 3, 5, 8] {
                let case = Case::new(algorithm, ranks);
                let build = |rank| {
                    let in_place = rank % 2 == 1;
                    (algorithm.build)(&Request {
                        in_place,
                        ..case.request(rank)
                    })
                };
                let schedules: Vec<_> = (0..ranks).map(build).collect();
                let outcome = case.check(&schedules, 7);
                outcome
                    .unwrap_or_else(|e| panic!("{collective} {} of {ranks}: {e}", algorithm.name));
            }
        }
    }
}

#[test]
fn a_group_of_transfers_moves_everything_and_copies_to_itself() {
    let shape = |peer, is_send| TransferShape { peer, is_send };
    let shapes = [
        vec![
            shape(1, true),
            shape(0, false),
            shape(0, true),
            shape(1, false),
        ],
        vec![shape(0, true), shape(0, false)],
    ];
    let schedules: Vec<_> = (0..2)
        .map(|r| build_send_recv(r, 2, &shapes[r as usize]).unwrap())
        .collect();
    let spec = Spec {
        collective: Collective::SendRecv,
        root: 0,
        count: 0,
        premultiply: false,
        slots: vec![vec![0, 3, 2, 2, 4], vec![0, 4, 3]],
    };
    let report = check(&schedules, &spec).unwrap();
    // By transfer: who wrote its elements, and from which of that rank's transfers.
    let origins = |rank: usize| -> Vec<_> {
        let of = |v: &crate::schedule::Value| (v.contributors.trailing_zeros(), v.element >> 16);
        report.outputs[rank]
            .iter()
            .filter(|v| v.is_defined())
            .map(of)
            .collect()
    };
    let runs = |parts: &[((u32, u32), usize)]| -> Vec<_> {
        parts
            .iter()
            .flat_map(|&(origin, len)| std::iter::repeat_n(origin, len))
            .collect()
    };
    assert_eq!(
        origins(0),
        runs(&[((0, 0), 3), ((0, 2), 2), ((0, 2), 2), ((1, 0), 4)])
    );
    assert_eq!(origins(1), runs(&[((1, 0), 4), ((0, 0), 3)]));
    let lonely = build_send_recv(0, 2, &[shape(0, true)])
        .unwrap_err()
        .to_string();
    assert!(lonely.contains("each send needs a receive"), "{lonely}");
    assert!(build_send_recv(0, 2, &[shape(2, true)]).is_err());
}

#[test]
fn schedules_have_steps_in_proportion_to_the_ranks() {
    for collective in Collective::ALL {
        for algorithm in algorithms(collective) {
            let steps = |ranks| {
                let schedules = Case::new(algorithm, ranks).build();
                schedules.iter().map(|s| s.steps.len()).max().unwrap()
            };
            let (few, many) = (steps(16), steps(64));
            assert!(
                many <= 5 * few,
                "{collective} {}: {few}, {many}",
                algorithm.name
            );
        }
    }
}

#[test]
fn a_request_that_cannot_be_built_is_refused_with_the_reason() {
    let good = Case::new(find(Collective::AllToAllV, "pairwise").unwrap(), 3).request(0);
    let text = |request: Request| request.check().unwrap_err().to_string();
    let in_place = Request {
        in_place: true,
        ..good.clone()
    };
    assert!(text(in_place).contains("an output of its own"));
    let root = Request {
        root: 3,
        ..good.clone()
    };
    assert!(text(root).contains("root 3 of 3 ranks"));
    let premultiply = Request {
        premultiply: true,
        ..good.clone()
    };
    assert!(text(premultiply).contains("does not reduce"));
    let hosts = Request {
        hosts: vec![0],
        maps_host: false,
        is_mapped: false,
        ..good
    };
    assert!(text(hosts).contains("1 hosts given for 3 ranks"));
}

/// Steps and the highest number of a message to one peer.
fn steps_and_messages(schedule: &Schedule) -> (usize, u32) {
    let messages = schedule.steps.iter().map(|step| match step.action {
        Action::Send { message, .. } | Action::Recv { message, .. } => message + 1,
        _ => 0,
    });
    (schedule.steps.len(), messages.max().unwrap_or(0))
}

/// Schedules whose steps grow with the ranks take seconds to build for the most ranks, so their
/// steps are counted with fewer ranks and multiplied.
#[test]
fn every_algorithm_has_a_schedule_for_the_most_ranks() {
    const FEWER: u32 = 256;
    let of_ranks = |algorithm: &'static Algorithm, ranks: u32| {
        let case = Case::new(algorithm, ranks);
        let ranks = [0, ranks / 2 + 1, ranks - 1].into_iter();
        let built = ranks.map(move |rank| (algorithm.build)(&case.request(rank)));
        built.map(|built| steps_and_messages(&built))
    };
    let (mut short, mut long) = (0, 0);
    for algorithm in Collective::ALL.into_iter().flat_map(|one| algorithms(one)) {
        let name = algorithm.name;
        for (steps, messages) in of_ranks(algorithm, FEWER) {
            let times = (RANKS_MAX / FEWER) as usize;
            assert!(steps * times <= STEPS_MAX, "{name}: {steps}");
            assert!(messages <= 2 * FEWER, "{name}: {messages}");
        }
        match of_ranks(algorithm, FEWER).all(|(steps, _)| steps < 100) {
            true => {
                let counts = of_ranks(algorithm, RANKS_MAX);
                assert!(counts.max().unwrap() < (200, 200), "{name}");
                short += 1;
            }
            false => long += 1,
        }
    }
    assert!(short > 20 && long > 10, "{short} {long}");
}
