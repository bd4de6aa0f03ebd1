//! Jobs whose ranks leave one by one.

use crate::oracle::Case;
use crate::prng::Prng;
use linerate::options;
use linerate::options::Amount;
use linerate::sim::SimOptions;
use linerate::transport::Time;
use linerate::{
    Buffer, Collective, Communicator, Config, DataType, Operation, Progress, ReduceOp, Simulation,
    SparseAllreduce, SparseOptions, TensorSpec,
};
use std::fmt;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

/// What a job runs.
#[derive(Clone, Copy, Debug)]
pub enum Cell {
    Dense(Collective, Option<&'static str>),
    Sparse(options::Algorithm),
}

impl fmt::Display for Cell {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Cell::Dense(collective, name) => write!(f, "{collective} {}", name.unwrap_or("auto")),
            Cell::Sparse(algorithm) => write!(f, "sparse {algorithm:?}"),
        }
    }
}

pub fn jobs_per_cell() -> u64 {
    let asked = std::env::var("LINERATE_TEST_LEAVING").ok();
    asked.and_then(|text| text.parse().ok()).unwrap_or(2)
}

/// Every algorithm of every collective, and the free choice.
pub fn cells(ranks: u32, transport: &str) -> Vec<Cell> {
    let is_mapped = transport == "shm";
    let mut all = Vec::new();
    for collective in Collective::ALL {
        all.push(Cell::Dense(collective, None));
        for algorithm in linerate::collective::algorithms(collective) {
            let needs = &algorithm.needs;
            let is_possible = (is_mapped || !needs.mapped) && algorithm.name != "hierarchical";
            all.extend(is_possible.then_some(Cell::Dense(collective, Some(algorithm.name))));
        }
    }
    assert!(ranks == 4);
    if transport != "sim" {
        all.extend(options::Algorithm::ALL.map(Cell::Sparse));
    }
    all
}

fn cases(cell: (Collective, Option<&'static str>), ranks: u32, prng: &mut Prng) -> Vec<Case> {
    let (collective, algorithm) = cell;
    let number = 1 + prng.below(3);
    let case = |prng: &mut Prng| {
        let case = Case {
            collective,
            algorithm,
            ranks,
            root: prng.below(u64::from(ranks)) as u32,
            count: [1, 7, 500, 500, 20_000, 100_000][prng.below(6) as usize],
            op: ReduceOp::Sum,
            in_place: prng.below(2) == 0,
            registered: prng.below(2) == 0,
        };
        let needs =
            algorithm.map(|name| linerate::collective::find(collective, name).unwrap().needs);
        Case {
            registered: case.registered || needs.is_some_and(|n| n.registered),
            count: match needs {
                Some(needs) if needs.payload_max => case.count.min(12),
                _ => case.count,
            },
            ..case
        }
    };
    (0..number).map(|_| case(prng)).collect()
}

/// Lets a little time pass, or none.
fn pause(prng: &mut Prng) {
    match prng.below(6) {
        0..3 => {}
        3 => std::thread::yield_now(),
        4 => std::thread::sleep(Duration::from_micros(prng.below(300))),
        _ => std::thread::sleep(Duration::from_micros(prng.below(3000))),
    }
}

fn text(error: linerate::Error) -> String {
    error.to_string()
}

/// Runs a job of threads; what its ranks complain of.
pub fn threaded_job(transport: &str, ranks: u32, cell: &Cell, mut prng: Prng) -> Vec<String> {
    static JOBS: AtomicU32 = AtomicU32::new(0);
    let index = JOBS.fetch_add(1, Ordering::Relaxed);
    let job = format!("leaving-{}-{index}", std::process::id());
    let progress = [Progress::Thread, Progress::Inline][usize::from(prng.below(8) > 0)];
    let config = |rank: u32| Config {
        timeout: Duration::from_secs(20),
        transport: transport.into(),
        progress,
        host_id: (transport == "router").then(|| format!("{job} {}", rank / 2)),
        ..Config::default()
    };
    let cases = match *cell {
        Cell::Dense(collective, name) => cases((collective, name), ranks, &mut prng),
        Cell::Sparse(_) => Vec::new(),
    };
    let seeds: Vec<u64> = (0..ranks).map(|_| prng.next_u64()).collect();
    let run = |rank: u32| -> linerate::Result<()> {
        let mut own = Prng::new(seeds[rank as usize]);
        let comm = Communicator::join(rank, ranks, &job, config(rank))?;
        if let Cell::Sparse(algorithm) = *cell {
            return sparse_steps(comm, algorithm, &mut own);
        }
        let alloc = |registered: bool, count: usize| match registered {
            true => comm.alloc(count).unwrap(),
            false => Buffer::from_vec(vec![0.0f32; count]),
        };
        let calls: Vec<_> = (cases.iter())
            .map(|case| {
                (
                    case,
                    case.prepare(rank, |count| alloc(case.registered, count)),
                )
            })
            .collect();
        for (case, prepared) in &calls {
            pause(&mut own);
            match own.below(2) {
                0 => prepared.run(&comm)?,
                _ => prepared.start(&comm)?.wait()?,
            }
            case.check(rank, prepared);
        }
        pause(&mut own);
        match own.below(2) {
            0 => drop((calls, comm)),
            _ => drop((comm, calls)),
        }
        Ok(())
    };
    std::thread::scope(|scope| {
        let threads: Vec<_> = (0..ranks)
            .map(|rank| scope.spawn(move || run(rank)))
            .collect();
        let ends = (0..)
            .zip(threads)
            .map(|(rank, thread)| (rank, thread.join().unwrap()));
        let failed = ends.filter_map(|(rank, end): (u32, _)| {
            Some(format!("at rank {rank}: {}", text(end.err()?)))
        });
        failed.collect()
    })
}

/// A rank of a simulated job: its operations one after another, and when it goes.
struct Program {
    calls: Vec<(Case, crate::oracle::Prepared)>,
    next: usize,
    running: Option<Operation>,
    /// When it goes on.
    due: Time,
    has_left: bool,
}

/// Runs a job of simulated ranks; what they complain of.
pub fn simulated_job(ranks: u32, cell: &Cell, mut prng: Prng) -> Vec<String> {
    let Cell::Dense(collective, name) = *cell else {
        return Vec::new();
    };
    let cases = cases((collective, name), ranks, &mut prng);
    let mut options = SimOptions::new(ranks, prng.next_u64());
    if prng.below(2) == 0 {
        options = options.hostile();
    }
    let mut simulation = Simulation::new(options, Config::default()).unwrap();
    let mut programs: Vec<Program> = (simulation.communicators().iter())
        .map(|comm| {
            let alloc = |case: &Case, count| match case.registered {
                true => comm.alloc(count).unwrap(),
                false => Buffer::from_vec(vec![0.0f32; count]),
            };
            let prepare = |case: &Case| {
                let prepared = case.prepare(comm.rank(), |count| alloc(case, count));
                (case.clone(), prepared)
            };
            Program {
                calls: cases.iter().map(prepare).collect(),
                next: 0,
                running: None,
                due: Time(0),
                has_left: false,
            }
        })
        .collect();
    for program in &mut programs {
        program.due = simulation
            .now()
            .after(Duration::from_nanos(prng.below(50_000)));
    }
    for (rank, program) in (0..).zip(&programs) {
        simulation.world().wake_at(rank, program.due);
    }
    let mut failed = Vec::new();
    let mut steps = 0;
    while programs.iter().any(|program| !program.has_left) {
        let comms = simulation.communicators().to_vec();
        for (program, comm) in programs.iter_mut().zip(&comms) {
            if program.has_left {
                continue;
            }
            if simulation.now() < program.due {
                continue;
            }
            let ended = match &mut program.running {
                Some(operation) => operation.test(),
                None if program.next < program.calls.len() => {
                    let started = program.calls[program.next].1.start(comm);
                    started.map(|operation| {
                        program.running = Some(operation);
                        simulation.world().wake_at(comm.rank(), simulation.now());
                        false
                    })
                }
                None => {
                    simulation.leave(comm.rank()).unwrap();
                    program.has_left = true;
                    continue;
                }
            };
            match ended {
                Ok(false) => {}
                Ok(true) => {
                    let (case, prepared) = &program.calls[program.next];
                    case.check(comm.rank(), prepared);
                    program.running = None;
                    program.next += 1;
                    let pause_ns = [0, 0, 500, 50_000][prng.below(4) as usize];
                    program.due = simulation.now().after(Duration::from_nanos(pause_ns));
                    simulation.world().wake_at(comm.rank(), program.due);
                }
                Err(error) => {
                    failed.push(format!("at rank {}: {error}", comm.rank()));
                    program.has_left = true;
                    simulation.leave(comm.rank()).unwrap();
                }
            }
        }
        steps += 1;
        assert!(steps < 1_000_000, "it stands still");
        if programs.iter().any(|program| !program.has_left) {
            simulation.advance().unwrap();
        }
    }
    failed
}

fn sparse_steps(
    comm: Communicator,
    algorithm: options::Algorithm,
    prng: &mut Prng,
) -> linerate::Result<()> {
    let count = 500;
    let spec = TensorSpec {
        name: "gradient".into(),
        count,
        dtype: DataType::F32,
    };
    let options = SparseOptions {
        algorithm,
        amount: Amount::Count(20),
        ..SparseOptions::default()
    };
    let mut sparse = SparseAllreduce::new(&comm, vec![spec], options)?;
    let gradient = comm.alloc::<f32>(count as usize)?;
    for step in 0..2u32 {
        let values: Vec<f32> = (0..count)
            .map(|i| {
                (crate::prng::mix(u64::from(step) << 40 | u64::from(comm.rank()) << 32 | i) % 1000)
                    as f32
            })
            .collect();
        gradient.write(0, &values)?;
        pause(prng);
        drop(sparse.run(std::slice::from_ref(&gradient))?);
    }
    pause(prng);
    drop(sparse);
    drop(comm);
    Ok(())
}
