//! Every collective with real numbers in virtual time, under any order of delivery.

#[path = "collectives/oracle.rs"]
mod oracle;

use linerate::transport::sim::SimOptions;
use linerate::{Buffer, Config, Operation, Simulation};
use oracle::{Case, cases};

/// Runs the cases one after another on a simulated job; returns each rank's bits per case.
fn run(cases: &[Case], options: SimOptions) -> Vec<Vec<Vec<u32>>> {
    let mut simulation = Simulation::new(options, Config::default()).unwrap();
    let mut bits = Vec::new();
    for case in cases {
        let comms = simulation.communicators().to_vec();
        let prepared: Vec<_> = comms
            .iter()
            .map(|c| {
                case.prepare(c.rank(), |bytes| match case.registered {
                    true => c.alloc(bytes).unwrap(),
                    false => Buffer::plain(bytes).unwrap(),
                })
            })
            .collect();
        let mut operations: Vec<Operation> = comms
            .iter()
            .zip(&prepared)
            .map(|(c, p)| c.start(&p.call).unwrap_or_else(|e| panic!("{case:?}: {e}")))
            .collect();
        let done = |operations: &mut Vec<Operation>| {
            operations
                .iter_mut()
                .all(|o| o.test().unwrap_or_else(|e| panic!("{case:?}: {e}")))
        };
        simulation
            .run(|_| done(&mut operations))
            .unwrap_or_else(|e| panic!("{case:?}: {e}"));
        let of_ranks: Vec<_> = prepared
            .iter()
            .enumerate()
            .map(|(rank, p)| case.check(rank as u32, p))
            .collect();
        if case.is_same_everywhere() {
            assert!(
                of_ranks.iter().all(|b| *b == of_ranks[0]),
                "{case:?}: ranks differ in bits"
            );
        }
        bits.push(of_ranks);
    }
    bits
}

/// Cases that can run on a fabric (`mapped`: on one host).
fn runnable(ranks: u32, mapped: bool) -> Vec<Case> {
    let needs_host = |case: &Case| {
        case.algorithm.is_some_and(|name| {
            linerate::collective::find(case.collective, name)
                .unwrap()
                .needs
                .mapped
        })
    };
    cases(ranks)
        .into_iter()
        .filter(|case| case.can_run_on_one_host() && (mapped || !needs_host(case)))
        .collect()
}

#[test]
fn every_algorithm_is_right_on_a_quiet_fabric() {
    for ranks in [1, 2, 3, 4, 5, 8, 13] {
        run(&runnable(ranks, false), SimOptions::new(ranks, 1));
    }
}

#[test]
fn every_algorithm_is_right_on_one_host() {
    for ranks in [1, 2, 3, 5, 8] {
        run(
            &runnable(ranks, true),
            SimOptions {
                mapped: true,
                ..SimOptions::new(ranks, 2)
            },
        );
    }
}

#[test]
fn a_simulated_rank_lends_no_slice_that_it_cannot_wait_for() {
    let simulation = Simulation::new(SimOptions::new(2, 1), Config::default()).unwrap();
    let mut data = vec![1.0f32; 8];
    let comm = &simulation.communicators()[0];
    let error = comm.all_reduce(&mut data, linerate::ReduceOp::Sum);
    assert!(error.unwrap_err().to_string().contains("Buffer"));
    // Nothing was started: the next operation is the first.
    let mut barriers: Vec<Operation> = simulation
        .communicators()
        .iter()
        .map(|c| c.start(&linerate::Call::barrier()).unwrap())
        .collect();
    let mut simulation = simulation;
    simulation
        .run(|_| barriers.iter_mut().all(|b| b.test().unwrap()))
        .unwrap();
}
