//! Every collective with real numbers in virtual time, under any order of delivery.

#[path = "collectives/types.rs"]
mod cases_of_types;
#[path = "simulated/choice.rs"]
mod choice;
#[path = "simulated/devices.rs"]
mod devices;
#[path = "simulated/fabrics.rs"]
mod fabrics;
#[path = "collectives/oracle.rs"]
mod oracle;
#[path = "../src/prng.rs"]
#[allow(dead_code)]
mod prng;
#[path = "seeds/values.rs"]
mod values;

use linerate::sim::{Hosts, Link, SimOptions};
use linerate::{Buffer, Collective, Config, Operation, Simulation};
use oracle::{Case, cases};
use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};

/// Operations of one job that are under way at once.
const AT_ONCE: usize = 6;

/// Runs the cases on a simulated job, several at a time; returns each rank's bits per case.
fn run(cases: &[Case], options: SimOptions) -> Vec<Vec<Vec<u32>>> {
    let seed = options.seed;
    run_in(
        cases,
        seed,
        Simulation::new(options, Config::default()).unwrap(),
    )
}

fn run_in(cases: &[Case], seed: u64, mut simulation: Simulation) -> Vec<Vec<Vec<u32>>> {
    let mut bits = Vec::new();
    for group in cases.chunks(AT_ONCE) {
        let comms = simulation.communicators().to_vec();
        let started: Vec<_> = group
            .iter()
            .map(|case| {
                let start = |c: &linerate::Communicator| {
                    let prepared = case.prepare(c.rank(), |count| match case.registered {
                        true => c.alloc(count).unwrap(),
                        false => Buffer::from_vec(vec![0f32; count]),
                    });
                    let operation = prepared
                        .start(c)
                        .unwrap_or_else(|e| panic!("{case:?}: {e}"));
                    (prepared, operation)
                };
                comms
                    .iter()
                    .map(start)
                    .unzip::<_, _, Vec<_>, Vec<Operation>>()
            })
            .collect();
        let (prepared, mut operations): (Vec<_>, Vec<_>) = started.into_iter().unzip();
        simulation
            .run(|_| {
                operations.iter_mut().flatten().all(|o| {
                    o.test()
                        .unwrap_or_else(|e| panic!("seed {seed}, {group:?}: {e}"))
                })
            })
            .unwrap_or_else(|e| panic!("seed {seed}, {group:?}: {e}"));
        for (case, prepared) in group.iter().zip(&prepared) {
            let of_ranks: Vec<_> = prepared
                .iter()
                .enumerate()
                .map(|(rank, p)| case.check(rank as u32, p))
                .collect();
            if case.is_same_everywhere() {
                assert!(
                    of_ranks.iter().all(|b| *b == of_ranks[0]),
                    "seed {seed}, {case:?}: ranks differ in bits"
                );
            }
            bits.push(of_ranks);
        }
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

/// Posts of devices, the parts of a write and completions, come in any order where devices have
/// none, and queues fail now and then.
#[test]
fn every_algorithm_is_right_on_rdma_devices() {
    let given = std::env::var("LINERATE_TEST_SEEDS").ok();
    let seeds = given.map_or(40, |text| text.parse::<u64>().unwrap() / 25);
    for seed in 0..seeds {
        let ranks = 2 + seed as u32 % 4;
        let simulation = devices::simulation(ranks, seed);
        run_in(&runnable(ranks, false), seed, simulation);
    }
}

#[test]
fn hosts_of_several_ranks_give_the_same_results() {
    for (ranks, ranks_per_host) in [(4, 2), (5, 2), (7, 3), (8, 4)] {
        let hosts = Some(Hosts {
            ranks_per_host,
            nics: ranks_per_host,
            link: Link::HOST,
        });
        let options = SimOptions {
            hosts,
            ..SimOptions::new(ranks, 3)
        };
        let cases = runnable(ranks, false);
        assert!(cases.iter().any(|c| c.algorithm == Some("hierarchical")));
        run(&cases, options);
    }
}

/// Delay, loss, duplicates and reordering of 1,000 seeds: the results are those of the definition,
/// and to the bit those of every other seed. Each seed runs every sixteenth case, so that each case
/// meets some sixty seeds.
#[test]
fn a_thousand_orders_of_delivery_give_the_same_bits() {
    const STRIDE: usize = 16;
    let shapes: Vec<(u32, bool)> = [2, 3, 4, 5, 6, 7, 8, 13]
        .into_iter()
        .flat_map(|p| [(p, false), (p, true)])
        .collect();
    let all: HashMap<(u32, bool), Vec<Case>> = shapes
        .iter()
        .map(|&(p, mapped)| ((p, mapped), runnable(p, mapped)))
        .collect();
    let given = std::env::var("LINERATE_TEST_SEEDS").ok();
    let seeds = given.map_or(1000, |text| text.parse::<u64>().unwrap().min(1000));
    let shapes_count = shapes.len() as u64;
    // The seeds of a shape, whose bits are compared.
    let compare = |shape: u64| {
        let mut known: HashMap<usize, Vec<Vec<u32>>> = HashMap::new();
        let (ranks, mapped) = shapes[shape as usize];
        for seed in (shape..seeds).step_by(shapes.len()) {
            let first = (seed / shapes_count) as usize % STRIDE;
            let chosen: Vec<(usize, Case)> = all[&(ranks, mapped)]
                .iter()
                .cloned()
                .enumerate()
                .skip(first)
                .step_by(STRIDE)
                .collect();
            let options = SimOptions {
                mapped,
                ..SimOptions::new(ranks, seed)
            }
            .hostile();
            let cases: Vec<Case> = chosen.iter().map(|(_, case)| case.clone()).collect();
            for ((index, case), bits) in chosen.into_iter().zip(run(&cases, options)) {
                let before = known.entry(index).or_insert_with(|| bits.clone());
                assert_eq!(
                    *before, bits,
                    "seed {seed}, {case:?}: other bits than with another seed"
                );
            }
        }
    };
    let next = AtomicU64::new(0);
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    std::thread::scope(|scope| {
        for _ in 0..threads {
            scope.spawn(|| {
                let take = || next.fetch_add(1, Ordering::Relaxed);
                (std::iter::repeat_with(take).take_while(|&shape| shape < shapes_count))
                    .for_each(compare);
            });
        }
    });
}

/// The virtual time of one allreduce on size-only memory, nanoseconds.
fn time_of(ranks: u32, algorithm: &str, bytes: usize) -> u64 {
    let options = SimOptions {
        size_only: true,
        ..SimOptions::new(ranks, 1)
    };
    let mut simulation = Simulation::new(options, Config::default()).unwrap();
    let what = (Collective::AllReduce, bytes as u64);
    choice::time_of(&mut simulation, what, algorithm)
}

#[test]
fn large_rings_take_the_time_of_their_bytes_and_small_ones_of_their_rounds() {
    let link = SimOptions::new(2, 1).network;
    let (ranks, bytes) = (8u32, 1usize << 30);
    let wire = 2.0 * f64::from(ranks - 1) / f64::from(ranks) * bytes as f64
        / link.bytes_per_second as f64
        * 1e9;
    let large = time_of(ranks, "ring", bytes) as f64;
    assert!(
        large >= wire && large < 1.05 * wire,
        "{large} ns for {wire} ns on the wire"
    );
    let rounds = f64::from(2 * (ranks - 1)) * link.latency_ns as f64;
    let small = time_of(ranks, "ring", 32) as f64;
    assert!(
        small >= rounds && small < 1.5 * rounds,
        "{small} ns for {rounds} ns of latency"
    );
}

#[test]
fn a_thousand_ranks_run_on_memory_that_has_only_a_size() {
    let link = SimOptions::new(2, 1).network;
    let time = time_of(1024, "recursive-doubling", 8) as f64;
    let rounds = 10.0 * link.latency_ns as f64;
    assert!(
        time >= rounds && time < 1.5 * rounds,
        "{time} ns for {rounds} ns of latency"
    );
}

#[test]
fn every_algorithm_takes_every_type() {
    for (ranks, mapped) in [(1, true), (2, true), (3, false), (5, true), (8, false)] {
        let options = SimOptions {
            mapped,
            ..SimOptions::new(ranks, 4)
        };
        let mut simulation = Simulation::new(options, Config::default()).unwrap();
        let comms = simulation.communicators().to_vec();
        for group in cases_of_types::cases(ranks, mapped).chunks(AT_ONCE) {
            let mut started: Vec<_> = (group.iter())
                .flat_map(|case| comms.iter().map(move |comm| (case, comm)))
                .map(|(case, comm)| {
                    let prepared = cases_of_types::prepare(case, comm);
                    let operation = prepared.start(comm).unwrap();
                    (case, comm, prepared, operation)
                })
                .collect();
            simulation
                .run(|_| started.iter_mut().all(|(.., o)| o.test().unwrap()))
                .unwrap_or_else(|e| panic!("{group:?}: {e}"));
            for (case, comm, prepared, _) in &started {
                cases_of_types::check(case, comm, prepared);
            }
        }
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
        .map(|c| c.start_barrier().unwrap())
        .collect();
    let mut simulation = simulation;
    simulation
        .run(|_| barriers.iter_mut().all(|b| b.test().unwrap()))
        .unwrap();
}

#[test]
fn waiting_for_a_simulated_operation_is_refused_and_leaves_it_to_end_well() {
    let mut simulation = Simulation::new(SimOptions::new(2, 1), Config::default()).unwrap();
    let start = |c: &linerate::Communicator| c.start_barrier().unwrap();
    let mut operations: Vec<Operation> = simulation.communicators().iter().map(start).collect();
    let error = operations[0]
        .wait_timeout(std::time::Duration::from_millis(1))
        .unwrap_err();
    assert!(error.to_string().contains("Simulation::run"), "{error}");
    simulation
        .run(|_| operations.iter_mut().all(|o| o.test().unwrap()))
        .unwrap();
}
