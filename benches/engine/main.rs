//! The engine: whole operations on one rank alone, many steps over shared memory (`turns.rs`), and
//! on the simulated transport, where buffers have no bytes. One thread drives all ranks.
//!
//! Times include the transport's. Its share, and so the engine's own, is counted in instructions:
//! with `--operations COUNT NAME` this program runs one case that often and prints its steps, for
//! callgrind (`tools/speed --instructions` does both).
#![allow(missing_docs)]

mod turns;

use criterion::{Criterion, Throughput};
use linerate::collective::{Request, find};
use linerate::sim::SimOptions;
use linerate::{
    Collective, CollectiveBuilder, Communicator, Config, DataType, Operation, ReduceOp, Simulation,
};
use std::time::Duration;

/// A name, and what builds the runner of that case.
type Case = (&'static str, fn() -> Runner);

const CASES: [Case; 18] = [
    ("alone", alone),
    ("shm-ring-8", || turns::all_reduce(8, "ring", 32 << 10, 1)),
    ("shm-ring-8-short", || turns::all_reduce(8, "ring", 512, 1)),
    ("shm-ring-8-buffers", || {
        turns::all_reduce(8, "ring", 32 << 10, 8)
    }),
    ("shm-ring-8-long", || {
        turns::all_reduce(8, "ring", 256 << 10, 1)
    }),
    ("shm-recursive-doubling-8", || {
        turns::all_reduce(8, "recursive-doubling", 8, 1)
    }),
    ("shm-tree-8", || turns::all_reduce(8, "tree", 8, 1)),
    ("shm-window-8", || turns::all_reduce(8, "window", 64, 1)),
    ("shm-direct-8", || {
        turns::all_reduce(8, "direct", 1 << 10, 1)
    }),
    ("shm-idle", || turns::idle(8)),
    ("ring-8", || simulated(8, "ring", 32 << 10, false)),
    ("ring-64", || simulated(64, "ring", 256 << 10, false)),
    ("recursive-doubling-64", || {
        simulated(64, "recursive-doubling", 8, false)
    }),
    ("tree-64", || simulated(64, "tree", 8, false)),
    ("window-8", || simulated(8, "window", 64, true)),
    ("window-32", || simulated(32, "window", 64, true)),
    ("direct-8", || simulated(8, "direct", 1 << 10, true)),
    ("direct-32", || simulated(32, "direct", 4 << 10, true)),
];

/// Operations whose end is asked for at every step of virtual time.
const LEARNING: u32 = 5;

/// One operation of all ranks, and the steps of their schedules.
struct Runner {
    steps: u64,
    run: Box<dyn FnMut()>,
}

/// Allreduce of one rank: one copy, and everything around it.
fn alone() -> Runner {
    let job = format!("engine-bench-{}", std::process::id());
    let communicator = Communicator::join(0, 1, &job, Config::default()).expect("one rank");
    let [input, output] = [(); 2].map(|()| communicator.alloc::<f32>(2).expect("memory"));
    let call = communicator.collective(Collective::AllReduce, DataType::F32, 2);
    let explanation = call.input(&input).output(&output).explain();
    let name = explanation.expect("an algorithm").algorithm;
    Runner {
        steps: steps_of(Collective::AllReduce, name, 1),
        run: Box::new(move || {
            let result = communicator.all_reduce_into(&input, &output, ReduceOp::Sum);
            result.expect("an operation");
        }),
    }
}

/// Allreduce of many ranks in virtual time. `mapped`: they reach each other's memory.
fn simulated(ranks: u32, algorithm: &str, bytes: usize, mapped: bool) -> Runner {
    let options = SimOptions {
        size_only: true,
        mapped,
        ..SimOptions::new(ranks, 1)
    };
    let mut simulation = Simulation::new(options, Config::default()).expect("a simulation");
    let call = |communicator: &'static Communicator| {
        let buffer = communicator.alloc::<f32>(bytes / 4);
        let buffer = buffer.expect("memory without bytes");
        communicator
            .collective(Collective::AllReduce, DataType::F32, bytes as u64 / 4)
            .algorithm(algorithm)
            .input(&buffer)
            .output(&buffer)
    };
    // The calls are made once, and a case lives as long as the program.
    let communicators = Box::leak(simulation.communicators().to_vec().into_boxed_slice());
    let calls: Vec<CollectiveBuilder> = communicators.iter().map(call).collect();
    let (mut operations, mut polls_min) = (0u32, u64::MAX);
    let mut pending: Vec<Operation> = Vec::with_capacity(calls.len());
    Runner {
        steps: steps_of(Collective::AllReduce, algorithm, ranks),
        run: Box::new(move || {
            pending.extend(calls.iter().map(|call| call.start().expect("a start")));
            // Asking whether an operation has ended drives it: once it is known how long that
            // takes, nobody asks before.
            let first_look = match operations < LEARNING {
                true => 0,
                false => polls_min - polls_min / 16,
            };
            let mut polls = 0;
            let is_done = |_: &[Communicator]| {
                polls += 1;
                while polls >= first_look
                    && let Some(operation) = pending.last_mut()
                    && operation.test().expect("an operation")
                {
                    pending.pop();
                }
                pending.is_empty()
            };
            simulation.run(is_done).expect("a simulation that moves");
            (operations, polls_min) = (operations.saturating_add(1), polls_min.min(polls));
        }),
    }
}

/// Steps of all ranks.
fn steps_of(collective: Collective, algorithm: &str, ranks: u32) -> u64 {
    let algorithm = find(collective, algorithm).expect("an algorithm of that name");
    let of_rank = |rank| (algorithm.build)(&request_of(collective, rank, ranks));
    (0..ranks)
        .map(|rank| of_rank(rank).steps.len() as u64)
        .sum()
}

fn request_of(collective: Collective, rank: u32, ranks: u32) -> Request {
    Request {
        collective,
        rank,
        ranks,
        root: 0,
        in_place: ranks > 1,
        premultiply: false,
        hosts: vec![0; ranks as usize],
        maps_host: false,
        is_mapped: false,
    }
}

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    if let [flag, count, name] = &arguments[..]
        && flag == "--operations"
    {
        let count: u64 = count.parse().expect("--operations COUNT NAME");
        let (_, build) = CASES
            .iter()
            .find(|(case, _)| case == name)
            .expect("the name of a case");
        let mut runner = build();
        (0..count).for_each(|_| (runner.run)());
        println!("steps {}", runner.steps);
        return;
    }
    let mut criterion = Criterion::default()
        .sample_size(20)
        .warm_up_time(Duration::from_millis(300))
        .measurement_time(Duration::from_secs(1))
        .configure_from_args();
    let mut group = criterion.benchmark_group("engine");
    for (name, build) in CASES {
        let mut runner = build();
        // Steps of all ranks.
        group.throughput(Throughput::Elements(runner.steps));
        group.bench_function(name, |bencher| bencher.iter(|| (runner.run)()));
    }
    group.finish();
    criterion.final_summary();
}
