//! Completion queues: every end comes once, from every communicator of a family, however it is
//! driven.

use super::{on_ranks, on_ranks_over, on_ranks_with};
use crate::prng::Prng;
use linerate::options::{Algorithm, Amount};
use linerate::reports::Completion;
use linerate::{
    Buffer, Communicator, CompletionQueue, Config, DataType, Error, Fusion, FusionOptions,
    PartialAllreduce, PartialOptions, ReduceOp, SparseAllreduce, SparseOptions, TensorSpec,
};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use std::collections::BTreeMap;
use std::future::Future;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::task::{Context, Wake, Waker};
use std::time::Duration;

const LONG: Duration = Duration::from_secs(30);

/// Whether the descriptor of a queue is readable within this time.
fn is_readable(queue: &CompletionQueue, time: Duration) -> bool {
    let mut set = [PollFd::from_borrowed_fd(
        queue.descriptor().unwrap(),
        PollFlags::IN,
    )];
    let time = Timespec {
        tv_sec: time.as_secs() as i64,
        tv_nsec: i64::from(time.subsec_nanos()),
    };
    poll(&mut set, Some(&time)).unwrap() == 1
}

/// Takes completions until there are as many.
fn take(queue: &CompletionQueue, count: usize) -> Vec<Completion> {
    let mut ended = Vec::new();
    while ended.len() < count {
        assert!(queue.wait_into(&mut ended, count, LONG).unwrap() > 0);
    }
    ended
}

/// Sums on communicators in an order that all ranks share, many under way; each buffer is used
/// again once its completion has come, and has the right sum then.
fn random_sums(world: &Communicator, seed: u64, operations: u64) {
    let duplicate = world.duplicate().unwrap();
    let odd_and_even = world.split(Some(world.rank() % 2), 0).unwrap().unwrap();
    let all = [world, &duplicate, &odd_and_even];
    let queue = duplicate.completion_queue().unwrap();
    let mut shared = Prng::new(seed);
    let mut own = Prng::new(seed ^ u64::from(world.rank() + 1));
    let buffers: Vec<Buffer<u64>> = (0..100).map(|_| world.alloc(40).unwrap()).collect();
    let mut free: Vec<usize> = (0..buffers.len()).collect();
    let mut wanted = BTreeMap::new();
    let mut ended = Vec::new();
    for number in 0..operations {
        if free.is_empty() || own.below(50) == 0 {
            let most = 1 + own.below(20) as usize;
            let limit = Duration::from_micros(own.below(300));
            queue.wait_into(&mut ended, most, limit).unwrap();
        }
        while free.is_empty() && ended.is_empty() {
            assert!(queue.wait_into(&mut ended, 200, LONG).unwrap() > 0);
        }
        for completion in ended.drain(..) {
            completion.result.unwrap();
            check(&buffers, completion.user, &mut wanted);
            free.push(completion.user as usize);
        }
        let comm = all[shared.below(3) as usize];
        let index = free.swap_remove(own.below(free.len() as u64) as usize);
        buffers[index]
            .write(0, &[number + u64::from(comm.rank()); 40])
            .unwrap();
        let ranks = u64::from(comm.ranks());
        wanted.insert(index as u64, ranks * number + ranks * (ranks - 1) / 2);
        let mut operation = comm
            .start_all_reduce(&buffers[index], ReduceOp::Sum)
            .unwrap();
        if own.below(4) == 0 {
            let _ = operation.test().unwrap();
        }
        operation.notify(&queue, index as u64).unwrap();
    }
    for completion in take(&queue, wanted.len()) {
        completion.result.unwrap();
        check(&buffers, completion.user, &mut wanted);
    }
    assert_eq!((queue.running_count(), wanted.len()), (0, 0));
    assert_eq!(queue.wait(Duration::ZERO).unwrap(), []);
    world.barrier().unwrap();
}

fn check(buffers: &[Buffer<u64>], user: u64, wanted: &mut BTreeMap<u64, u64>) {
    let wanted = wanted.remove(&user).expect("it comes once");
    let sums = buffers[user as usize].as_slice().unwrap();
    assert!(sums.iter().all(|&sum| sum == wanted));
}

#[test]
fn every_operation_of_every_communicator_ends_in_the_queue_once() {
    let seed = u64::from(std::process::id());
    println!("seed {seed}");
    for (ranks, has_thread) in [(2, false), (3, false), (2, true), (3, true)] {
        on_ranks_with(ranks, has_thread, |world| random_sums(&world, seed, 12_000));
    }
}

#[test]
fn a_million_operations_end_in_one_queue_once_each() {
    let seed = u64::from(std::process::id());
    println!("seed {seed}");
    on_ranks_over("shm", 2, false, &|world| {
        random_sums(&world, seed, 1_000_000);
    });
}

#[test]
fn each_completion_goes_to_one_of_the_threads_that_wait() {
    const OPERATIONS: u64 = 2000;
    on_ranks(2, |world| {
        let queue = world.completion_queue().unwrap();
        let (count, sum) = (AtomicU64::new(0), AtomicU64::new(0));
        let buffers: Vec<_> = (0..50).map(|_| world.alloc::<f32>(4).unwrap()).collect();
        let free: Vec<AtomicBool> = buffers.iter().map(|_| AtomicBool::new(true)).collect();
        std::thread::scope(|scope| {
            for _ in 0..3 {
                scope.spawn(|| {
                    while count.load(Ordering::Relaxed) < OPERATIONS {
                        for completion in queue.wait(Duration::from_millis(20)).unwrap() {
                            completion.result.unwrap();
                            sum.fetch_add(completion.user, Ordering::Relaxed);
                            free[completion.user as usize % 50].store(true, Ordering::Release);
                            count.fetch_add(1, Ordering::Relaxed);
                        }
                    }
                });
            }
            for number in 0..OPERATIONS {
                let place = number as usize % 50;
                while !free[place].swap(false, Ordering::Acquire) {
                    std::thread::yield_now();
                }
                let started = world.start_all_reduce(&buffers[place], ReduceOp::Sum);
                started.unwrap().notify(&queue, number).unwrap();
            }
        });
        assert_eq!(sum.into_inner(), OPERATIONS * (OPERATIONS - 1) / 2);
        world.barrier().unwrap();
    });
}

#[test]
fn the_descriptor_is_readable_exactly_while_completions_wait() {
    on_ranks_with(2, true, |world| {
        let queue = world.completion_queue().unwrap();
        let other = world.duplicate().unwrap();
        assert!(!is_readable(&queue, Duration::ZERO));
        // Nobody waits but poll: the progress thread moves both communicators.
        for (user, comm) in [&world, &other].into_iter().enumerate() {
            let mut operation = comm.start_barrier().unwrap();
            operation.notify(&queue, user as u64).unwrap();
        }
        let mut ended = Vec::new();
        while ended.len() < 2 {
            assert!(is_readable(&queue, LONG));
            assert_eq!(queue.wait_into(&mut ended, 1, Duration::ZERO).unwrap(), 1);
        }
        assert!(!is_readable(&queue, Duration::ZERO));
        world.barrier().unwrap();
    });
    on_ranks(1, |world| {
        let queue = world.completion_queue().unwrap();
        let text = queue.descriptor().unwrap_err().to_string();
        assert!(text.contains("LINERATE_PROGRESS"), "{text}");
    });
}

#[test]
fn what_cannot_end_is_a_completion_with_the_reason() {
    on_ranks(2, |world| {
        let other = world.duplicate().unwrap();
        let queue = world.completion_queue().unwrap();
        let buffers: Vec<_> = (0..6).map(|_| world.alloc::<f32>(9).unwrap()).collect();
        if world.rank() == 0 {
            // Rank 1 starts none of them.
            for (user, buffer) in (0..).zip(&buffers[..5]) {
                let started = other.start_all_reduce(buffer, ReduceOp::Sum);
                started.unwrap().notify(&queue, user).unwrap();
            }
            assert_eq!(queue.running_count(), 5);
            assert_eq!(queue.wait(Duration::from_millis(1)).unwrap(), []);
        }
        world.barrier().unwrap();
        if world.rank() == 1 {
            other.abort("the loss is not a number");
        } else {
            let ended = take(&queue, 5);
            let is_aborted = |completion: &Completion| {
                let error = completion.result.as_ref().unwrap_err();
                matches!(error.first_cause(), Error::Aborted { by: 1, .. })
            };
            assert!(ended.iter().all(is_aborted));
        }
        // The family's other communicator is as it was.
        let mut operation = world.start_all_reduce(&buffers[5], ReduceOp::Sum).unwrap();
        operation.notify(&queue, 77).unwrap();
        assert_eq!(take(&queue, 1)[0].user, 77);
        world.barrier().unwrap();
    });
}

#[test]
fn an_operation_is_in_one_queue_of_its_family_once() {
    on_ranks(1, |world| {
        let queue = world.completion_queue().unwrap();
        let mut operation = world.start_barrier().unwrap();
        operation.notify(&queue, 1).unwrap();
        let text = operation.notify(&queue, 2).unwrap_err().to_string();
        assert!(text.contains("in one queue"), "{text}");
        assert_eq!(
            take(&queue, 1)[0],
            Completion {
                user: 1,
                result: Ok(()),
                source: None,
            }
        );
        // It may be waited for all the same.
        operation.wait().unwrap();

        let job = format!("another-family-{}", std::process::id());
        let stranger = Communicator::join(0, 1, &job, Config::default()).unwrap();
        let mut operation = stranger.start_barrier().unwrap();
        let text = operation.notify(&queue, 3).unwrap_err().to_string();
        assert!(text.contains("another family"), "{text}");
        operation.wait().unwrap();
        assert_eq!(queue.wait(Duration::ZERO).unwrap(), []);

        // A queue that is gone forgets, and the operation goes on.
        let mut operation = world.start_barrier().unwrap();
        operation.notify(&queue, 4).unwrap();
        drop(queue);
        operation.wait().unwrap();
    });
}

/// Drops what it holds where it is woken.
struct DropWhenWoken(Mutex<Option<Communicator>>, AtomicBool);

impl Wake for DropWhenWoken {
    fn wake(self: Arc<Self>) {
        drop(self.0.lock().unwrap().take());
        self.1.store(true, Ordering::Release);
    }
}

#[test]
fn a_waker_may_drop_the_last_handle_on_the_progress_thread() {
    on_ranks_with(2, true, |world| {
        let twin = world.duplicate().unwrap();
        if world.rank() == 1 {
            // Rank 0 has been polled, and holds the communicator in its waker alone.
            twin.barrier().unwrap();
            return world.barrier().unwrap();
        }
        let mut operation = world.start_barrier().unwrap();
        let last = Arc::new(DropWhenWoken(
            Mutex::new(Some(world)),
            AtomicBool::new(false),
        ));
        let waker = Waker::from(last.clone());
        let polled = Pin::new(&mut operation).poll(&mut Context::from_waker(&waker));
        assert!(polled.is_pending());
        drop((operation, waker));
        twin.barrier().unwrap();
        drop(twin);
        let start = std::time::Instant::now();
        while !last.1.load(Ordering::Acquire) {
            assert!(start.elapsed() < LONG, "the waker does not return");
            std::thread::yield_now();
        }
    });
}

#[test]
fn simulated_operations_end_in_a_queue_when_the_simulation_is_stepped() {
    use linerate::sim::SimOptions;
    let options = SimOptions::new(3, 1);
    let mut simulation = linerate::Simulation::new(options, Config::default()).unwrap();
    let queues: Vec<_> = simulation
        .communicators()
        .iter()
        .map(|comm| comm.completion_queue().unwrap())
        .collect();
    for (comm, queue) in simulation.communicators().iter().zip(&queues) {
        let mut operation = comm.start_barrier().unwrap();
        operation.notify(queue, 6).unwrap();
    }
    let mut ended = Vec::new();
    let is_done = |_: &[Communicator]| {
        for queue in &queues {
            queue.wait_into(&mut ended, 9, LONG).unwrap();
        }
        ended.len() == 3
    };
    simulation.run(is_done).unwrap();
    assert!(
        ended
            .iter()
            .all(|completion| completion.user == 6 && completion.result.is_ok())
    );
}

/// A fusion buffer of two tensors of 100 and 50 elements, and memory for them.
fn fused(world: &Communicator) -> (Fusion, [Buffer<f32>; 2]) {
    let spec = |name: &str, count| TensorSpec {
        name: name.into(),
        count,
        dtype: DataType::F32,
    };
    let specs = vec![spec("a", 100), spec("b", 50)];
    let fusion = Fusion::new(world, FusionOptions::default(), specs).unwrap();
    (
        fusion,
        [world.alloc(100).unwrap(), world.alloc(50).unwrap()],
    )
}

#[test]
fn steps_of_a_fusion_buffer_and_results_of_a_partial_allreduce_are_completions() {
    on_ranks(3, |world| {
        let (fusion, tensors) = fused(&world);
        let partial =
            PartialAllreduce::new(&world, DataType::F32, 8, PartialOptions::default()).unwrap();
        let (gradient, update) = (
            world.alloc::<f32>(8).unwrap(),
            world.alloc::<f32>(8).unwrap(),
        );
        let queue = world.completion_queue().unwrap();
        for step in 0..20 {
            for (index, tensor) in tensors.iter().enumerate() {
                tensor
                    .write(0, &[world.rank() as f32 + index as f32])
                    .unwrap();
                fusion.announce(index, tensor).unwrap();
            }
            fusion.notify(&queue, 2 * step).unwrap();
            assert!(fusion.notify(&queue, 0).is_err(), "one queue, once");
            fusion.end_of_backward().unwrap();
            partial.submit(&gradient).unwrap();
            partial.notify(&queue, 2 * step + 1).unwrap();
            let barrier = 1000 + step;
            world
                .start_barrier()
                .unwrap()
                .notify(&queue, barrier)
                .unwrap();
            let mut ended: Vec<u64> = (take(&queue, 3).into_iter())
                .map(|end| end.result.map(|()| end.user).unwrap())
                .collect();
            ended.sort_unstable();
            assert_eq!(ended, [2 * step, 2 * step + 1, barrier]);
            assert!(partial.try_next(&update).unwrap().is_some());
            fusion.wait().unwrap();
            assert_eq!(
                tensors[1].as_slice().unwrap()[0],
                6.0,
                "0 + 1 + 2, and 1 each"
            );
        }
        assert_eq!(queue.running_count(), 0);
        partial.finish(&update, drop).unwrap();
        assert!(matches!(
            partial.notify(&queue, 0),
            Err(Error::InvalidArgument { .. })
        ));
    });
}

#[test]
fn a_fusion_buffer_that_ends_or_fails_is_a_completion_with_an_error() {
    on_ranks(2, |world| {
        let queue = world.completion_queue().unwrap();
        let (fusion, tensors) = fused(&world);
        if world.rank() == 0 {
            fusion.announce(0, &tensors[0]).unwrap();
            fusion.announce(1, &tensors[1]).unwrap();
        }
        // Rank 1 announces nothing.
        fusion.notify(&queue, 1).unwrap();
        fusion.end_of_backward().unwrap();
        let failed = take(&queue, 1).remove(0);
        assert_eq!((failed.user, failed.result.is_err()), (1, true));
        fusion.notify(&queue, 2).unwrap();
        let failed = take(&queue, 1).remove(0);
        assert_eq!((failed.user, failed.result.is_err()), (2, true));

        let (fusion, _tensors) = fused(&world);
        fusion.notify(&queue, 3).unwrap();
        drop(fusion);
        let dropped = take(&queue, 1).remove(0);
        assert_eq!((dropped.user, dropped.result.is_err()), (3, true));
        world.barrier().unwrap();
    });
}

/// A sparse allreduce of 1000 elements, of which a step selects ten, and memory for its gradient.
fn sparse(world: &Communicator, algorithm: Algorithm) -> (SparseAllreduce, Buffer<f32>) {
    let tensor = TensorSpec {
        name: "a".into(),
        count: 1000,
        dtype: DataType::F32,
    };
    let options = SparseOptions {
        algorithm,
        amount: Amount::Count(10),
        ..SparseOptions::default()
    };
    let sparse = SparseAllreduce::new(world, vec![tensor], options).unwrap();
    (sparse, world.alloc(1000).unwrap())
}

#[test]
fn steps_of_sparse_allreduces_go_on_while_a_thread_waits_for_their_queue() {
    for has_thread in [false, true] {
        on_ranks_with(3, has_thread, |world| {
            let queue = world.completion_queue().unwrap();
            let apart = world.duplicate().unwrap();
            let algorithms = [Algorithm::OkTopk, Algorithm::TopkA, Algorithm::Dense];
            let all = algorithms.into_iter().enumerate();
            let mut all: Vec<_> = all
                .map(|(number, algorithm)| {
                    // Those of one communicator would have to run one after the other.
                    let comm = match number {
                        0 => world.clone(),
                        1 => apart.clone(),
                        _ => world.duplicate().unwrap(),
                    };
                    sparse(&comm, algorithm)
                })
                .collect();
            for step in 0..20u64 {
                for (number, (sparse, gradient)) in (0..).zip(&mut all) {
                    let at = 7 * step as usize;
                    gradient.as_mut_slice().unwrap().fill(0.0);
                    gradient.write(at, &[world.rank() as f32 + 1.0]).unwrap();
                    sparse.start(std::slice::from_ref(gradient)).unwrap();
                    sparse.notify(&queue, number).unwrap();
                    let twice = sparse.notify(&queue, number).unwrap_err();
                    assert!(matches!(twice, Error::InvalidArgument(_)), "{twice}");
                }
                let mut ended: Vec<u64> = (take(&queue, 3).into_iter())
                    .map(|end| end.result.map(|()| end.user).unwrap())
                    .collect();
                ended.sort_unstable();
                assert_eq!(ended, [0, 1, 2]);
                for (sparse, gradient) in &mut all {
                    let started = sparse.start(std::slice::from_ref(gradient));
                    assert!(started.is_err(), "the result is to be taken first");
                    let result = sparse.test().unwrap().expect("it has ended");
                    let sum = world.alloc::<f32>(1000).unwrap();
                    result.add_to(std::slice::from_ref(&sum), 1.0).unwrap();
                    assert_eq!(sum.as_slice().unwrap()[7 * step as usize], 6.0);
                    assert!(sparse.test().is_err(), "no step is under way");
                    assert!(sparse.notify(&queue, 9).is_err(), "no step is under way");
                }
            }
            assert_eq!(queue.running_count(), 0);
            world.barrier().unwrap();
        });
    }
}

#[test]
fn a_sparse_step_that_ends_by_poll_alone_a_failure_or_a_drop_is_a_completion() {
    on_ranks_with(2, true, |world| {
        let queue = world.completion_queue().unwrap();
        // A step that is dropped leaves the others of its communicator without an order.
        let apart = world.duplicate().unwrap();
        let (mut good, gradient) = sparse(&apart, Algorithm::OkTopk);
        let one = std::slice::from_ref(&gradient);
        good.start(one).unwrap();
        good.notify(&queue, 1).unwrap();
        assert!(is_readable(&queue, LONG), "the thread has moved the step");
        assert_eq!(take(&queue, 1)[0].user, 1);
        assert!(good.test().unwrap().is_some());

        good.start(one).unwrap();
        good.notify(&queue, 2).unwrap();
        drop(good);
        // It may have ended before it was dropped.
        assert_eq!(take(&queue, 1)[0].user, 2);
        world.barrier().unwrap();
    });
    on_ranks_with(2, false, |world| {
        let queue = world.completion_queue().unwrap();
        let (mut failing, gradient) = sparse(&world, Algorithm::OkTopk);
        if world.rank() == 1 {
            // Not a number: the step fails on both ranks.
            gradient.write(3, &[f32::NAN]).unwrap();
        }
        failing.start(std::slice::from_ref(&gradient)).unwrap();
        failing.notify(&queue, 3).unwrap();
        let failed = take(&queue, 1).remove(0);
        assert!(matches!(failed.result, Err(Error::NotFinite { .. })));
        assert_eq!(failed.user, 3);
        let same = failing.test().unwrap_err();
        assert!(matches!(same, Error::NotFinite { .. }), "{same}");
        world.barrier().unwrap();
    });
}

/// The thread that waits moves a step, and so starts operations, while the progress thread is about
/// to rest.
#[test]
fn many_steps_of_a_sparse_allreduce_pass_a_progress_thread_that_comes_to_rest() {
    on_ranks_over("shm", 2, true, &|world: Communicator| {
        let queue = world.completion_queue().unwrap();
        let (mut sparse, gradient) = sparse(&world, Algorithm::OkTopk);
        let mut prng = Prng::new(u64::from(world.rank()));
        for number in 0..1000 {
            sparse.start(std::slice::from_ref(&gradient)).unwrap();
            sparse.notify(&queue, number).unwrap();
            assert_eq!(take(&queue, 1)[0].user, number);
            assert!(sparse.test().unwrap().is_some());
            std::thread::sleep(Duration::from_micros(prng.below(300)));
        }
        world.barrier().unwrap();
    });
}
