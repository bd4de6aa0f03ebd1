//! What a safe program cannot do: programs that do not build (`misuse/does_not_build`, with the
//! errors that rustc finds), and misuses of the public types that are errors and harm nothing else.
//! Those of buffers and operations are in `face.rs`.

#[path = "misuse/compiler.rs"]
mod compiler;
#[path = "groups/threads.rs"]
mod threads;

use compiler::{Errors, announced_in, errors_of};
use linerate::options::{Amount, PartialFusionOptions};
use linerate::sim::SimOptions;
use linerate::{
    Buffer, Collective, Communicator, Config, DataType, Error, Fusion, FusionOptions,
    PartialAllreduce, PartialFusion, PartialOptions, Policy, ReduceOp, Result, Simulation,
    SparseAllreduce, SparseOptions, TensorSpec,
};
use std::fmt::Debug;
use std::path::Path;
use std::time::Duration;
use threads::on_threads;

const COUNT: usize = 64;

#[test]
fn programs_that_misuse_memory_do_not_build() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/misuse");
    assert_eq!(errors_of(&folder.join("builds.rs")), Errors::new());
    for file in std::fs::read_dir(folder.join("does_not_build")).unwrap() {
        let program = file.unwrap().path();
        let announced = announced_in(&program);
        assert!(
            !announced.is_empty(),
            "{} announces no error",
            program.display()
        );
        assert_eq!(errors_of(&program), announced, "{}", program.display());
    }
}

/// Runs `body` on both ranks of a job of its own.
fn on_both(body: impl Fn(Communicator) + Sync) {
    let config = Config {
        timeout: Duration::from_secs(20),
        ..Config::default()
    };
    on_threads(2, &config, body);
}

fn filled(comm: &Communicator, count: usize, value: f32) -> Buffer<f32> {
    let buffer = comm.alloc(count).unwrap();
    buffer.as_mut_slice().unwrap().fill(value);
    buffer
}

fn specs(counts: &[usize]) -> Vec<TensorSpec> {
    let specs = counts.iter().enumerate().map(|(index, &count)| TensorSpec {
        name: format!("tensor {index}"),
        count: count as u64,
        dtype: DataType::F32,
    });
    specs.collect()
}

/// An error of arguments that says this.
#[track_caller]
fn refused<T: Debug>(result: Result<T>, words: &str) {
    let error = result.unwrap_err();
    assert!(matches!(error, Error::InvalidArgument(_)), "{error:?}");
    assert!(error.to_string().contains(words), "{error}");
}

/// An error that says that something else uses the elements.
#[track_caller]
fn in_use<T: Debug>(result: Result<T>) {
    let error = result.unwrap_err();
    assert!(matches!(error, Error::InUse { .. }), "{error:?}");
}

#[track_caller]
fn all_are(buffer: &Buffer<f32>, value: f32) {
    let elements = buffer.as_slice().unwrap();
    assert!(
        elements.iter().all(|element| *element == value),
        "{elements:?}"
    );
}

#[test]
fn a_fusion_buffer_that_is_misused_reduces_what_it_was_given() {
    on_both(|comm| {
        let fusion = Fusion::new(&comm, FusionOptions::default(), specs(&[COUNT, COUNT])).unwrap();
        let (first, second) = (filled(&comm, COUNT, 1.0), filled(&comm, COUNT, 2.0));
        let guard = first.as_mut_slice().unwrap();
        in_use(fusion.announce(0, &first));
        drop(guard);
        refused(fusion.announce(2, &first), "2 are declared");
        refused(fusion.announce(0, &first.range(1..)), "bytes");
        refused(
            fusion.announce(0, &comm.alloc::<i32>(COUNT).unwrap()),
            "i32",
        );
        fusion.announce(0, &first).unwrap();
        // Announced memory is the step's until it has ended.
        in_use(first.as_mut_slice());
        in_use(first.write(0, &[9.0]));
        in_use(comm.start_all_reduce(&first, ReduceOp::Sum));
        in_use(fusion.announce(1, &first));
        refused(fusion.announce(0, &second), "announced twice");
        // The last handle may go: the step holds the memory.
        let kept = second.range(..COUNT / 2);
        fusion.announce(1, &second).unwrap();
        drop(second);
        fusion.wait().unwrap();
        all_are(&first, 2.0);
        all_are(&kept, 4.0);
        // Dropped with a tensor announced: the memory comes back to its owner.
        comm.barrier().unwrap();
        fusion.announce(0, &first).unwrap();
        drop(fusion);
        first.as_mut_slice().unwrap().fill(3.0);
        comm.all_reduce(&first, ReduceOp::Sum).unwrap();
        all_are(&first, 6.0);
    });
}

#[test]
fn a_sparse_allreduce_that_is_misused_goes_on() {
    on_both(|comm| {
        let options = SparseOptions {
            amount: Amount::Count(COUNT as u64),
            ..SparseOptions::default()
        };
        let mut wrong = specs(&[COUNT]);
        wrong[0].dtype = DataType::I32;
        assert!(SparseAllreduce::new(&comm, wrong, options.clone()).is_err());
        let mut sparse = SparseAllreduce::new(&comm, specs(&[COUNT]), options).unwrap();
        let gradient = [filled(&comm, COUNT, 1.0)];
        refused(sparse.run(&[]), "gradient");
        refused(sparse.run(&[gradient[0].range(1..)]), "gradient");
        refused(
            sparse.run(&[gradient[0].clone(), gradient[0].clone()]),
            "gradient",
        );
        let guard = gradient[0].as_mut_slice().unwrap();
        in_use(sparse.run(&gradient));
        drop(guard);
        // Nothing was started by what was refused.
        assert!(sparse.test().is_err() || sparse.steps() == 0);
        sparse.start(&gradient).unwrap();
        in_use(gradient[0].as_mut_slice());
        assert!(sparse.start(&gradient).is_err(), "one step at a time");
        assert!(
            sparse.scale_residuals(0.5).is_err(),
            "the step has the residuals"
        );
        let result = loop {
            if let Some(result) = sparse.test().unwrap() {
                break result;
            }
            std::thread::yield_now();
        };
        let weights = filled(&comm, COUNT, 0.0);
        refused(result.add_to(&[weights.range(1..)], 1.0), "elements");
        let guard = weights.as_slice().unwrap();
        in_use(result.add_to(std::slice::from_ref(&weights), 1.0));
        drop(guard);
        result.add_to(std::slice::from_ref(&weights), 1.0).unwrap();
        all_are(&weights, 2.0);
        for bytes in [&[][..], &[7; 5], &[0xff; 4096]] {
            assert!(sparse.load(bytes).is_err());
        }
        sparse.run(&gradient).unwrap();
        // Dropped in the middle of a step: its buffers come back when the step has ended or failed.
        sparse.start(&gradient).unwrap();
        drop(sparse);
    });
}

#[test]
fn a_partial_allreduce_that_is_misused_goes_on() {
    on_both(|comm| {
        let options = PartialOptions {
            policy: Policy::Full,
            ..PartialOptions::default()
        };
        let partial = PartialAllreduce::new(&comm, DataType::F32, COUNT as u64, options).unwrap();
        let (gradient, update) = (filled(&comm, COUNT, 1.0), filled(&comm, COUNT, 0.0));
        assert!(partial.submit(&gradient.range(1..)).is_err());
        assert!(partial.submit(&comm.alloc::<i32>(COUNT).unwrap()).is_err());
        let guard = gradient.as_mut_slice().unwrap();
        in_use(partial.submit(&gradient));
        drop(guard);
        let guard = update.as_slice().unwrap();
        in_use(partial.next(&update));
        in_use(partial.exchange(&gradient, &update));
        drop(guard);
        // A gradient is copied when it is submitted, so it may be where its result goes.
        partial.exchange(&gradient, &gradient).unwrap().unwrap();
        all_are(&gradient, 1.0);
        partial.submit(&gradient).unwrap();
        gradient.as_mut_slice().unwrap().fill(5.0);
        assert!(partial.next(&update.range(..COUNT - 1)).is_err());
        partial.next(&update).unwrap().unwrap();
        all_are(&update, 1.0);
        partial.finish(&update, |_| ()).unwrap();
        assert!(partial.submit(&gradient).is_ok());
        assert!(partial.next(&update).unwrap().is_some());
    });
}

#[test]
fn a_partial_fusion_that_is_misused_goes_on() {
    on_both(|comm| {
        let mut options = PartialFusionOptions::default();
        options.partial.policy = Policy::Full;
        let fusion = PartialFusion::new(&comm, specs(&[COUNT, 8]), options).unwrap();
        let gradients = [filled(&comm, COUNT, 1.0), filled(&comm, 8, 1.0)];
        let updates = [filled(&comm, COUNT, 0.0), filled(&comm, 8, 0.0)];
        refused(fusion.submit(2, &gradients[0]), "2 are declared");
        assert!(fusion.submit(1, &gradients[0]).is_err());
        assert!(fusion.next(&updates[..1]).is_err());
        let guard = gradients[1].as_mut_slice().unwrap();
        assert!(fusion.submit(1, &gradients[1]).is_err());
        drop(guard);
        for (tensor, gradient) in gradients.iter().enumerate() {
            fusion.submit(tensor, gradient).unwrap();
        }
        fusion.next(&updates).unwrap();
        all_are(&updates[0], 1.0);
        all_are(&updates[1], 1.0);
    });
}

#[test]
fn a_group_and_a_builder_that_are_misused_leave_everything_as_it_was() {
    on_both(|comm| {
        let (mine, theirs) = (filled(&comm, COUNT, 1.0), filled(&comm, COUNT, 2.0));
        let peer = 1 - comm.rank();
        refused(comm.group().send(&mine, 2).run(), "rank 2");
        in_use(comm.group().send(&mine, peer).recv(&mine, peer).start());
        let guard = theirs.as_slice().unwrap();
        in_use(comm.group().send(&mine, peer).recv(&theirs, peer).start());
        drop(guard);
        comm.group()
            .send(&mine, peer)
            .recv(&theirs, peer)
            .run()
            .unwrap();
        all_are(&theirs, 1.0);
        let sum = |count| comm.collective(Collective::AllReduce, DataType::F32, count);
        assert!(sum(COUNT as u64).run().is_err(), "no memory");
        assert!(
            sum(COUNT as u64 + 1)
                .input(&mine)
                .output(&mine)
                .run()
                .is_err()
        );
        assert!(sum(u64::MAX).input(&mine).output(&mine).run().is_err());
        let bytes = comm.alloc::<i32>(COUNT).unwrap();
        refused(sum(8).input(&bytes).output(&mine).run(), "i32");
        assert!(
            sum(8)
                .input(&mine)
                .output(&mine)
                .algorithm("none such")
                .run()
                .is_err()
        );
        assert!(
            sum(8).input(&mine).output(&mine.range(4..)).run().is_err(),
            "they overlap"
        );
        let broadcast = comm
            .collective(Collective::Broadcast, DataType::F32, 8)
            .root(2);
        assert!(broadcast.input(&mine).output(&mine).run().is_err());
        let counts = comm.collective(Collective::AllGatherV, DataType::F32, 0);
        let counts = counts
            .receive_counts(&[u64::MAX, 2])
            .input(&mine)
            .output(&theirs);
        assert!(counts.run().is_err());
        sum(COUNT as u64).input(&mine).output(&mine).run().unwrap();
        all_are(&mine, 2.0);
    });
}

#[test]
fn lengths_that_do_not_fit_are_refused_in_every_collective() {
    on_both(|comm| {
        let (mut one, mut two) = (vec![1.0f32; 7], vec![2.0f32; 9]);
        let op = ReduceOp::Sum;
        refused(comm.all_reduce_into(&one, &mut two, op), "7 are needed");
        refused(comm.reduce_scatter(&one, &mut two, op), "18 are needed");
        refused(comm.reduce_scatter_in_place(&mut one, op), "2 equal blocks");
        refused(comm.all_gather(&one, &mut two), "14 are needed");
        refused(comm.all_gather_in_place(&mut one), "2 equal blocks");
        refused(
            comm.all_gather_v(&one, &mut two, &[1]),
            if comm.rank() == 0 {
                "1 are needed"
            } else {
                "none for rank 1"
            },
        );
        refused(
            comm.all_gather_v_in_place(&mut one, &[u64::MAX, u64::MAX]),
            "all-gatherv",
        );
        let none = if comm.rank() == 0 {
            "8 are needed"
        } else {
            "1 are needed"
        };
        refused(comm.gather_v(&one, &mut two, &[8, 1], 0), none);
        refused(comm.scatter_v(&two, &mut one, &[8, 1], 0), none);
        refused(comm.reduce_scatter_v(&two, &mut one, &[8, 1], op), none);
        if comm.rank() == 0 {
            refused(comm.gather_v(&one, &mut two, &[7, 9], 0), "64 are needed");
            refused(comm.scatter_v(&two, &mut one, &[7, 9], 0), "64 are needed");
        }
        refused(comm.all_to_all(&one[1..], &mut two), "6 are needed");
        refused(comm.all_to_all(&one, &mut two), "2 equal blocks");
        refused(comm.all_to_all_in_place(&mut one), "2 equal blocks");
        assert!(comm.all_to_all_v(&one, &[9, 9], &mut two, &[1, 1]).is_err());
        assert!(comm.all_reduce(&mut one, op).is_ok(), "nothing was started");
        assert_eq!(one, [2.0; 7]);
    });
}

#[test]
fn a_simulation_that_is_misused_says_so() {
    assert!(Simulation::new(SimOptions::new(0, 1), Config::default()).is_err());
    let mut simulation = Simulation::new(SimOptions::new(2, 1), Config::default()).unwrap();
    let comm = simulation.communicators()[0].clone();
    // Nobody can wait for virtual time inside a call.
    refused(comm.all_reduce(&mut [1.0f32], ReduceOp::Sum), "simulated");
    assert!(comm.duplicate().is_err());
    assert!(Fusion::new(&comm, FusionOptions::default(), specs(&[8])).is_err());
    let buffer = comm.alloc::<f32>(8).unwrap();
    let operation = comm.start_all_reduce(&buffer, ReduceOp::Sum).unwrap();
    // The other rank does not take part, and the simulation says that nothing moves.
    assert!(simulation.run(|_| false).is_err());
    assert!(operation.wait().is_err());
    assert!(simulation.leave(7).is_err());
}
