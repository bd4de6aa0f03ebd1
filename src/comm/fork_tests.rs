//! A process forks while it holds a communicator, as the data loader of a trainer does.

mod calls;
mod cases;

use super::{
    Buffer, CollectiveBuilder, Communicator, CompletionQueue, Fusion, Operation, ParameterServer,
    PartialAllreduce, PartialFusion, PartialFusionOptions, ServerOptions, Simulation,
    SparseAllreduce, SparseResult, Window,
};
use crate::config::{Config, Progress};
use crate::error::{Error, Result};
use crate::fusion::{FusionOptions, TensorSpec};
use crate::memory::child::{kill, spawn, wait};
use crate::partial::PartialOptions;
use crate::sparse::{Algorithm, Amount, SparseOptions};
use crate::transport::sim::SimOptions;
use crate::types::{DataType, ReduceOp};
use cases::cases;
use std::io::{Read, Write};
use std::os::fd::BorrowedFd;
use std::time::Duration;

fn join(rank: u32, job: &str, transport: &str, progress: Progress) -> Communicator {
    let config = Config {
        timeout: Duration::from_secs(20),
        transport: transport.into(),
        progress,
        ..Config::default()
    };
    Communicator::join(rank, 2, job, config).unwrap()
}

/// All that one rank holds when it forks. Its child has copies of it.
struct Held {
    comm: Communicator,
    /// A communicator with one handle, which the child drops.
    only: Option<Communicator>,
    buffer: Buffer<f32>,
    /// The first elements of `buffer`, adopted by their address.
    adopted: Buffer<f32>,
    /// Registered memory that is never freed.
    registered: Buffer<f32>,
    small: Buffer<f32>,
    plain: Buffer<f32>,
    /// Operations of rank 0. Rank 1 starts them only after both ranks have checked their children.
    under_way: Vec<Operation>,
    queue: CompletionQueue,
    window: Option<Window<u64>>,
    fusion: Option<Fusion>,
    partial: Option<PartialAllreduce>,
    partial_fusion: Option<PartialFusion>,
    sparse: Option<SparseAllreduce>,
    /// A second sparse allreduce, whose step this process has started.
    sparse_under_way: Option<SparseAllreduce>,
    server: Option<ParameterServer>,
    simulation: Option<Simulation>,
    /// The sparse allreduces of the simulation's ranks.
    simulated: Vec<SparseAllreduce>,
    /// The results of a sparse step and of a dense one.
    results: [SparseResult; 2],
}

fn tensors() -> Vec<TensorSpec> {
    vec![TensorSpec {
        name: "weight".into(),
        count: 4,
        dtype: DataType::F32,
    }]
}

fn sparse_options() -> SparseOptions {
    SparseOptions {
        amount: Amount::Count(1),
        ..SparseOptions::default()
    }
}

fn hold(comm: Communicator, only: Communicator) -> Held {
    let (buffer, small) = (comm.alloc(1 << 18).unwrap(), comm.alloc(4).unwrap());
    small.write(0, &[4.0, 3.0, 2.0, 1.0]).unwrap();
    buffer.as_mut_slice().unwrap().fill(1.0);
    let adopted = adopt(&comm, &buffer.range(..4)).unwrap();
    assert!(adopted.is_registered());
    let partial = PartialAllreduce::new(&comm, DataType::F32, 4, PartialOptions::default());
    let partial_fusion = PartialFusion::new(&comm, tensors(), PartialFusionOptions::default());
    let mut sparse = SparseAllreduce::new(&comm, tensors(), sparse_options()).unwrap();
    let sparse_result = sparse.run(std::slice::from_ref(&small)).unwrap();
    let dense = SparseOptions {
        algorithm: Algorithm::Dense,
        ..sparse_options()
    };
    let mut sparse_under_way = SparseAllreduce::new(&comm, tensors(), dense).unwrap();
    let dense_result = sparse_under_way.run(std::slice::from_ref(&small));
    sparse_under_way
        .start(std::slice::from_ref(&small))
        .unwrap();
    let fusion = Fusion::new(&comm, FusionOptions::default(), tensors()).unwrap();
    let window = comm.window(&comm.alloc(4).unwrap()).unwrap();
    let server = ParameterServer::new(&comm, tensors(), ServerOptions::default()).unwrap();
    let under_way = match comm.rank() {
        0 => start_all(&comm, &buffer),
        _ => Vec::new(),
    };
    let simulation = Simulation::new(SimOptions::new(2, 1), Config::default()).unwrap();
    let simulated = simulation.communicators().iter();
    let simulated = simulated.map(|comm| SparseAllreduce::new(comm, tensors(), sparse_options()));
    Held {
        only: Some(only),
        queue: comm.completion_queue().unwrap(),
        window: Some(window),
        under_way,
        fusion: Some(fusion),
        partial: Some(partial.unwrap()),
        partial_fusion: Some(partial_fusion.unwrap()),
        sparse: Some(sparse),
        sparse_under_way: Some(sparse_under_way),
        server: Some(server),
        simulated: simulated.map(Result::unwrap).collect(),
        simulation: Some(simulation),
        results: [sparse_result, dense_result.unwrap()],
        plain: Buffer::from_vec(vec![5.0; 4]),
        adopted,
        registered: register(&comm, None).unwrap().cast().unwrap(),
        buffer,
        small,
        comm,
    }
}

/// Adopts the elements of `memory` by their address.
#[allow(unsafe_code)]
fn adopt(comm: &Communicator, memory: &Buffer<f32>) -> Result<Buffer<f32>> {
    let address = memory.raw().view().as_ptr().cast();
    // SAFETY: the callers keep the buffer for as long as they keep the result.
    unsafe { comm.adopt(address, memory.len()) }
}

/// The errors of `at` and of `run_at` with null addresses.
#[allow(unsafe_code)]
fn by_address(made: &CollectiveBuilder<'_>) -> [Option<Error>; 2] {
    let null = std::ptr::null_mut();
    // SAFETY: a null address is not looked at.
    unsafe {
        [
            made.clone().at(null, null).err(),
            made.run_at(null, null).err(),
        ]
    }
}

/// Registers memory that lives for ever.
#[allow(unsafe_code)]
fn register(comm: &Communicator, memfd: Option<BorrowedFd<'_>>) -> Result<Buffer<u8>> {
    let address = vec![0f32; 1024].leak().as_mut_ptr().cast();
    match memfd {
        // SAFETY: it is never freed, and named here alone.
        None => unsafe { comm.register(address, 4096) },
        // SAFETY: as above. It is refused.
        Some(memfd) => unsafe { comm.register_memfd(address, 4096, memfd, 0) },
    }
}

fn start_all(comm: &Communicator, buffer: &Buffer<f32>) -> Vec<Operation> {
    let started = [
        comm.start_all_reduce(buffer, ReduceOp::Sum),
        comm.start_barrier(),
        comm.start_barrier(),
    ];
    started.map(Result::unwrap).into()
}

/// Whether a call was refused with [`Error::Forked`].
fn is_refused<T>(result: Result<T>) -> bool {
    result.err() == Some(Error::Forked)
}

/// Functions that make something new for the calling process, so a child may call them.
const MAKE_OWN: [&str; 8] = [
    "Communicator::from_env",
    "Communicator::from_env_with",
    "Communicator::join",
    "Communicator::join_at",
    "Communicator::join_by",
    "ParameterServer::join",
    "Buffer::from_vec",
    "Simulation::new",
];

/// Types whose functions use no communicator.
const PLAIN: [&str; 11] = [
    "BufferMut",
    "BufferRef",
    "Collective",
    "Config",
    "DataType",
    "Error",
    "FusionOptions",
    "PartialOptions",
    "RankSet",
    "ReduceOp",
    "SparseOptions",
];

/// The functions, also those of traits, that users may call on all types but [`PLAIN`] on the first
/// page of the crate's docs. `tests/public.rs` checks the listing from which they are read.
fn public_functions() -> Vec<String> {
    let listing = include_str!("../../tests/data/public.txt");
    let function = |line: &str| {
        let (path, what) = line.strip_prefix("linerate::")?.split_once(" | ")?;
        let (of, name) = path.split_once("::")?;
        let is_type = of.starts_with(char::is_uppercase) && !PLAIN.contains(&of);
        let is_function = what.contains(&format!("fn {name}"));
        (is_type && is_function).then(|| path.to_owned())
    };
    listing.lines().filter_map(function).collect()
}

/// The parent goes on with everything that the child had copies of.
fn go_on(held: Held) {
    let Held {
        comm,
        buffer,
        small,
        mut under_way,
        ..
    } = held;
    if under_way.is_empty() {
        under_way = start_all(&comm, &buffer);
    }
    under_way
        .into_iter()
        .for_each(|operation| operation.wait().unwrap());
    let all = buffer.as_slice().unwrap();
    assert!(all.iter().all(|&value| value == 2.0));
    assert_eq!(held.plain.to_vec().unwrap(), [5.0; 4]);
    // The step borrows the gradient until it has ended.
    let mut started = held.sparse_under_way.unwrap();
    while started.test().unwrap().is_none() {}
    let one = std::slice::from_ref(&small);
    let fusion = held.fusion.unwrap();
    fusion.announce(0, &held.plain).unwrap();
    fusion.wait().unwrap();
    let partial = held.partial.unwrap();
    assert_eq!(partial.exchange(&small, &small).unwrap().unwrap().round, 0);
    partial.finish(&small, drop).unwrap();
    let partial = held.partial_fusion.unwrap();
    partial.submit(0, &small).unwrap();
    partial.next(one).unwrap();
    partial.finish(one, |_, _| ()).unwrap();
    let mut sparse = held.sparse.unwrap();
    let residual = sparse.residual("weight").unwrap().to_vec().unwrap();
    assert_eq!(residual, [0.0, 3.0, 2.0, 1.0], "only the child's was reset");
    sparse.run(one).unwrap();
    held.simulation.unwrap().run(|_| true).unwrap();
    held.only.unwrap().barrier().unwrap();
    assert_eq!(comm.split(Some(0), 0).unwrap().unwrap().ranks(), 2);
    comm.barrier().unwrap();
}

#[test]
fn every_public_function_in_a_forked_child_is_refused_or_harmless_and_the_parent_goes_on() {
    let mut wanted = public_functions();
    wanted.retain(|name| !MAKE_OWN.contains(&name.as_str()));
    wanted.sort();
    let kinds = [
        ("shm", Progress::Inline),
        ("shm", Progress::Thread),
        ("tcp", Progress::Inline),
    ];
    for (transport, progress) in kinds {
        both("fork", transport, progress, |comm, only| {
            let mut held = hold(comm, only);
            let (mut ours, theirs) = std::os::unix::net::UnixStream::pair().unwrap();
            let code = wait(spawn(|| {
                let lines = cases(&mut held).into_iter();
                let lines: String = lines
                    .map(|(name, is_right)| format!("{name} {is_right}\n"))
                    .collect();
                // One write: the text must fit the socket's buffer, because the parent reads only
                // after the child has ended.
                (&theirs).write_all(lines.as_bytes()).unwrap();
                drop((held.buffer.clone(), held.comm.clone(), held.only.take()));
                77
            }));
            drop(theirs);
            let mut text = String::new();
            ours.read_to_string(&mut text).unwrap();
            assert_eq!(code, Some(77), "after {text}");
            let (right, wrong): (Vec<&str>, Vec<&str>) =
                text.lines().partition(|line| line.ends_with(" true"));
            assert!(wrong.is_empty(), "{transport}: {wrong:?}");
            let mut names: Vec<&str> = (right.iter())
                .map(|line| line.trim_end_matches(" true"))
                .collect();
            names.sort_unstable();
            assert_eq!(names, wanted, "one case for each public function");
            go_on(held);
        });
    }
}

/// Runs both ranks of a job on threads of this process. Each gets a second communicator, too.
fn both(
    name: &str,
    transport: &str,
    progress: Progress,
    run: impl Fn(Communicator, Communicator) + Sync,
) {
    let job = format!("{name}-{}-{transport}-{progress:?}", std::process::id());
    std::thread::scope(|scope| {
        for rank in 0..2 {
            let (run, job) = (&run, &job);
            let join = move |job: &str| join(rank, job, transport, progress);
            scope.spawn(move || run(join(job), join(&format!("{job}-only"))));
        }
    });
}

#[test]
fn a_communicator_that_a_child_makes_leaves_memory_that_the_parent_has_registered() {
    let job = format!("fork-memory-{}", std::process::id());
    let alone = |job: &str| Communicator::join(0, 1, job, Config::default()).unwrap();
    let comm = alone(&job);
    let (registered, plain) = (
        comm.alloc::<f32>(4).unwrap(),
        Buffer::from_vec(vec![1.0f32; 4]),
    );
    let child = spawn(|| {
        let own = alone(&format!("{job}-own"));
        let blocking = own.all_reduce(&registered, ReduceOp::Sum);
        let started = own.start_all_reduce(&registered, ReduceOp::Sum);
        let group = own.group().send(&registered, 0).recv(&plain, 0).run();
        let is_refused = [blocking, started.map(drop), group].map(is_refused);
        let is_done = own.all_reduce(&plain, ReduceOp::Sum).is_ok();
        i32::from(is_refused == [true; 3] && is_done)
    });
    assert_eq!(wait(child), Some(1));
    comm.all_reduce(&registered, ReduceOp::Sum).unwrap();
}

#[test]
fn a_child_may_make_a_communicator_of_its_own_and_its_death_is_seen_although_it_has_forked() {
    let job = format!("fork-own-{}", std::process::id());
    let (mut ours, theirs) = std::os::unix::net::UnixStream::pair().unwrap();
    let child = spawn(|| {
        let comm = join(1, &job, "auto", Progress::Inline);
        comm.barrier().unwrap();
        // The grandchild holds copies of all sockets, as a data loader does when its trainer is
        // killed.
        let loader = spawn(|| {
            std::thread::sleep(Duration::from_secs(60));
            0
        });
        (&theirs).write_all(&loader.to_le_bytes()).unwrap();
        let _ = comm.barrier();
        0
    });
    let comm = join(0, &job, "auto", Progress::Inline);
    comm.barrier().unwrap();
    let mut loader = [0; 4];
    ours.read_exact(&mut loader).unwrap();
    kill(child);
    let first = comm.barrier();
    let error = first.and_then(|()| comm.barrier()).unwrap_err();
    assert_eq!(wait(child), None);
    kill(i32::from_le_bytes(loader));
    let text = error.first_cause().to_string();
    assert!(text.contains("rank 1 failed: its process ended"), "{text}");
}
