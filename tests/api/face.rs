//! Buffers and operations that safe programs misuse: each misuse is an error that names what is in
//! the way, and harms nothing else. Ranks are threads, each with a communicator of its own.

use crate::executor::{block_on, poll_once};
use crate::threads::on_threads;
use linerate::{
    Buffer, Collective, Communicator, Config, DataType, Error, Progress, ReduceOp, Result,
};
use std::fmt::Debug;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::Poll;
use std::time::{Duration, Instant};

/// Longer than anything here takes, on a loaded machine too.
const LONGEST: Duration = Duration::from_secs(20);

const COUNT: usize = 1000;

fn config(progress: Progress) -> Config {
    Config {
        timeout: LONGEST,
        progress,
        ..Config::default()
    }
}

/// Runs `body` on both ranks of a job of its own.
fn on_both(progress: Progress, body: impl Fn(Communicator) + Sync) {
    on_threads(2, &config(progress), body);
}

/// Something that one rank has done and another waits for.
#[derive(Default)]
struct Mark(AtomicBool);

impl Mark {
    fn set(&self) {
        self.0.store(true, Ordering::Release);
    }

    fn is_set(&self) -> bool {
        self.0.load(Ordering::Acquire)
    }

    fn wait(&self) {
        until("the other rank's mark", || self.is_set());
    }
}

/// Looks until something is so.
fn until(what: &str, is_so: impl Fn() -> bool) {
    let begun = Instant::now();
    while !is_so() {
        assert!(begun.elapsed() < LONGEST, "{what} does not come");
        std::thread::sleep(Duration::from_micros(200));
    }
}

/// What an error says that names the use of elements.
fn in_use<T: Debug>(result: Result<T>) -> String {
    let error = result.unwrap_err();
    assert!(matches!(error, Error::InUse { .. }), "{error:?}");
    error.to_string()
}

fn check_all_say(texts: &[String], words: &str) {
    for (index, text) in texts.iter().enumerate() {
        assert!(text.contains(words), "{index}: {text}");
    }
}

/// Registered memory whose elements are all this.
fn filled(comm: &Communicator, value: f32) -> Buffer<f32> {
    let buffer = comm.alloc(COUNT).unwrap();
    buffer.as_mut_slice().unwrap().fill(value);
    buffer
}

fn check_all(buffer: &Buffer<f32>, value: f32) {
    let elements = buffer.as_slice().unwrap();
    let wrong = elements.iter().filter(|&&element| element != value);
    assert_eq!(wrong.count(), 0, "elements that are not {value}");
}

#[test]
fn what_an_operation_uses_is_refused_to_others_by_its_name_until_it_has_ended() {
    for progress in [Progress::Inline, Progress::Thread] {
        let refused = Mark::default();
        on_both(progress, |comm| {
            let (input, output) = (filled(&comm, 1.0), filled(&comm, 0.0));
            if comm.rank() == 1 {
                refused.wait();
            }
            let operation = comm.start_all_reduce_into(&input, &output, ReduceOp::Sum);
            if comm.rank() == 0 {
                let bytes = output.cast::<u8>().unwrap();
                let sum = |dtype| comm.collective(Collective::AllReduce, dtype, 4);
                check_all_say(
                    &[
                        // It writes the output.
                        in_use(output.as_slice()),
                        in_use(output.as_mut_slice()),
                        in_use(output.to_vec()),
                        in_use(output.clone().range(COUNT - 1..).write(0, &[1.0])),
                        in_use(bytes.range(..1).as_slice()),
                        in_use(comm.start_broadcast(&output, 0)),
                        in_use(comm.all_reduce(&output, ReduceOp::Max)),
                        in_use(comm.group().send(&output, 1).start()),
                        in_use(sum(DataType::F32).input(&input).output(&bytes).start()),
                        // It reads the input.
                        in_use(input.as_mut_slice()),
                        in_use(input.write(7, &[1.0])),
                        in_use(comm.start_all_reduce(&input, ReduceOp::Sum)),
                    ],
                    "in use by allreduce, which has not ended: wait for the operation",
                );
                check_all(&input, 1.0);
                refused.set();
            }
            operation.unwrap().wait().unwrap();
            check_all(&output, 2.0);
            output.as_mut_slice().unwrap()[0] = 2.0;
            input.write(0, &[1.0]).unwrap();
            // Nothing that was refused has been started.
            comm.all_reduce(&output, ReduceOp::Sum).unwrap();
            check_all(&output, 4.0);
        });
    }
}

#[test]
fn an_operation_that_would_meet_a_slice_does_not_start() {
    on_both(Progress::Auto, |comm| {
        let peer = 1 - comm.rank();
        let (buffer, output) = (filled(&comm, 1.0), filled(&comm, 0.0));
        let mut slice = buffer.as_mut_slice().unwrap();
        let part = buffer.range(10..20);
        let sum = comm.collective(Collective::AllReduce, DataType::F32, 4);
        check_all_say(
            &[
                in_use(comm.start_all_reduce(&buffer, ReduceOp::Sum)),
                in_use(comm.all_reduce(&part, ReduceOp::Sum)),
                in_use(comm.start_all_reduce_into(&part, &part.clone(), ReduceOp::Sum)),
                in_use(comm.group().recv(&part, peer).run()),
                in_use(sum.clone().input(&buffer).output(&output).run()),
                in_use(buffer.as_slice()),
                in_use(part.to_vec()),
            ],
            "in use by a slice or a copy of it: drop the slice",
        );
        // The slice itself can be given to a call that waits.
        comm.all_reduce(&mut slice, ReduceOp::Sum).unwrap();
        assert_eq!(slice[..], [2.0; COUNT]);
        drop(slice);

        let slice = buffer.as_slice().unwrap();
        in_use(comm.start_all_reduce(&buffer, ReduceOp::Sum));
        let reading = comm.start_all_reduce_into(&buffer, &output, ReduceOp::Sum);
        reading.unwrap().wait().unwrap();
        assert_eq!(slice[..], [2.0; COUNT]);
        check_all(&output, 4.0);
        drop(slice);
        comm.all_reduce(&buffer, ReduceOp::Sum).unwrap();
        check_all(&buffer, 4.0);
    });
}

#[test]
fn a_start_that_is_refused_leaves_its_other_buffers_as_they_were() {
    on_both(Progress::Auto, |comm| {
        let peer = 1 - comm.rank();
        let (free, held) = (filled(&comm, 1.0), filled(&comm, 0.0));
        let slice = held.as_slice().unwrap();
        in_use(comm.group().send(&free, peer).recv(&held, peer).start());
        free.as_mut_slice().unwrap()[0] = 1.0;
        in_use(comm.start_all_reduce_into(&free, &held, ReduceOp::Sum));
        free.as_mut_slice().unwrap()[0] = 1.0;
        drop(slice);
        // One of them cannot be both sent and received into.
        let text = in_use(comm.group().send(&free, peer).recv(&free, peer).run());
        assert!(text.contains("sendrecv"), "{text}");
        free.as_mut_slice().unwrap()[0] = 1.0;
        (comm.group().send(&free, peer).recv(&held, peer).run()).unwrap();
        check_all(&held, 1.0);

        // Nor does a communicator that has failed use anything.
        comm.barrier().unwrap();
        comm.abort("to be refused");
        assert!(comm.start_all_reduce(&free, ReduceOp::Sum).is_err());
        assert!(comm.all_reduce(&free, ReduceOp::Sum).is_err());
        assert!(comm.group().send(&free, peer).run().is_err());
        free.as_mut_slice().unwrap()[0] = 1.0;
        let comm = comm.rebuild().unwrap();
        comm.all_reduce(&free, ReduceOp::Sum).unwrap();
        check_all(&free, 2.0);
    });
}

#[test]
fn a_slice_that_is_forgotten_keeps_its_elements_and_no_others() {
    on_both(Progress::Auto, |comm| {
        let buffer = filled(&comm, 1.0);
        let (written, read) = (buffer.range(..10), buffer.range(10..20));
        std::mem::forget(written.as_mut_slice().unwrap());
        std::mem::forget(read.as_slice().unwrap());
        let all = comm.start_all_reduce(&buffer, ReduceOp::Sum);
        let text = in_use(all);
        assert!(text.contains("a slice"), "{text}");
        in_use(written.as_slice());
        in_use(written.to_vec());
        in_use(read.as_mut_slice());
        in_use(comm.all_reduce(&read, ReduceOp::Sum));
        assert_eq!(read.to_vec().unwrap(), [1.0; 10]);
        let rest = buffer.range(20..);
        drop((buffer, written, read));
        comm.all_reduce(&rest, ReduceOp::Sum).unwrap();
        check_all(&rest, 2.0);
    });
}

#[test]
fn an_operation_that_is_forgotten_or_dropped_goes_on_and_frees_its_buffer_at_its_end() {
    for progress in [Progress::Inline, Progress::Thread] {
        for is_forgotten in [true, false] {
            let started = Mark::default();
            on_both(progress, |comm| {
                let buffer = filled(&comm, 1.0);
                if comm.rank() == 1 {
                    started.wait();
                    return comm.all_reduce(&buffer, ReduceOp::Sum).unwrap();
                }
                let operation = comm.start_all_reduce(&buffer, ReduceOp::Sum).unwrap();
                match is_forgotten {
                    true => std::mem::forget(operation),
                    false => drop(operation),
                }
                in_use(buffer.as_slice());
                started.set();
                until("the end of the operation", || {
                    // A call, which moves it where no thread does.
                    let moves = || comm.failure().is_none();
                    (progress == Progress::Thread || moves()) && buffer.as_slice().is_ok()
                });
                check_all(&buffer, 2.0);
            });
        }
    }
}

#[test]
fn memory_whose_last_handle_is_dropped_lives_until_its_operation_has_ended() {
    for progress in [Progress::Inline, Progress::Thread] {
        let dropped = Mark::default();
        on_both(progress, |comm| {
            let buffer = filled(&comm, 1.0);
            if comm.rank() == 1 {
                dropped.wait();
                comm.all_reduce(&buffer, ReduceOp::Sum).unwrap();
                check_all(&buffer, 2.0);
            } else {
                let operation = comm.start_all_reduce(&buffer, ReduceOp::Sum).unwrap();
                drop(buffer);
                // Memory that was given back would be among these.
                let others: Vec<_> = (0..8).map(|_| filled(&comm, -1.0)).collect();
                dropped.set();
                operation.wait().unwrap();
                others.iter().for_each(|other| check_all(other, -1.0));
            }
        });
    }
}

#[test]
fn of_two_threads_that_want_to_write_the_elements_one_gets_them() {
    const TURNS: u64 = 500;
    let buffer = Buffer::from_vec(vec![0u64; 4]);
    let [ready, tried] = [0, 0].map(|_| std::sync::Barrier::new(2));
    let write = |buffer: Buffer<u64>| {
        let mut won = 0;
        for _ in 0..TURNS {
            ready.wait();
            let slice = buffer.as_mut_slice();
            // Both have tried while the first slice is held.
            tried.wait();
            match slice {
                Ok(mut slice) => {
                    slice.iter_mut().for_each(|element| *element += 1);
                    won += 1;
                }
                Err(error) => assert!(matches!(error, Error::InUse { .. }), "{error}"),
            }
        }
        won
    };
    let won: u64 = std::thread::scope(|scope| {
        let threads = [0, 0].map(|_| scope.spawn(|| write(buffer.clone())));
        threads.map(|thread| thread.join().unwrap()).iter().sum()
    });
    assert_eq!(won, TURNS);
    assert_eq!(buffer.to_vec().unwrap(), [TURNS; 4]);
}

#[test]
fn ranges_side_by_side_are_used_by_operations_and_slices_at_once() {
    let used = Mark::default();
    on_both(Progress::Auto, |comm| {
        let buffer = filled(&comm, 1.0);
        let [first, second, third] = [0..300, 300..700, 700..COUNT].map(|part| buffer.range(part));
        if comm.rank() == 1 {
            used.wait();
        }
        let sum = comm.start_all_reduce(&first, ReduceOp::Sum).unwrap();
        let largest = comm.start_all_reduce(&third, ReduceOp::Max).unwrap();
        let mut slice = second.as_mut_slice().unwrap();
        slice.fill(7.0);
        if comm.rank() == 0 {
            in_use(buffer.range(299..301).as_slice());
            let text = in_use(buffer.range(300..701).as_slice());
            assert!(text.contains("bytes 1200 to 2804"), "{text}");
            used.set();
        }
        sum.wait().unwrap();
        largest.wait().unwrap();
        drop(slice);
        check_all(&first, 2.0);
        check_all(&second, 7.0);
        check_all(&third, 1.0);
    });
}

/// How an operation fails on rank 0 that rank 1 has not come to.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Failure {
    Aborted,
    PeerGone,
    Cancelled,
}

/// What rank 0 holds after it: registered memory that the operation used, between others, and
/// memory that was a `Vec`.
fn after(failure: Failure, check: impl Fn(&Communicator, &Buffer<f32>, &Buffer<f32>) + Sync) {
    let started = Mark::default();
    on_both(Progress::Auto, |comm| {
        if comm.rank() == 1 {
            started.wait();
            match failure {
                Failure::Aborted => comm.abort("the loss is not a number"),
                Failure::PeerGone => return,
                // Until the news has come, this rank stays.
                Failure::Cancelled => until("the news", || comm.failure().is_some()),
            }
            return;
        }
        let (buffer, plain) = (filled(&comm, 5.0), Buffer::from_vec(vec![5.0; COUNT]));
        let part = buffer.range(100..200);
        let first = comm.start_all_reduce(&part, ReduceOp::Sum).unwrap();
        let second = comm.start_all_reduce(&plain, ReduceOp::Sum).unwrap();
        started.set();
        if failure == Failure::Cancelled {
            first.cancel().unwrap();
        } else {
            first.wait().unwrap_err();
        }
        let error = second.wait().unwrap_err();
        let cause = error.first_cause();
        let is_expected = match failure {
            Failure::Aborted => matches!(cause, Error::Aborted { by: 1, .. }),
            Failure::PeerGone => matches!(cause, Error::Left { rank: 1, .. }),
            Failure::Cancelled => matches!(cause, Error::Cancelled { by: 0, .. }),
        };
        assert!(is_expected, "{failure:?}: {error}");
        let job = format!("alone-{failure:?}-{}", std::process::id());
        let alone = Communicator::join(0, 1, &job, config(Progress::Auto)).unwrap();
        check(&alone, &buffer, &plain);
    });
}

const FAILURES: [Failure; 3] = [Failure::Aborted, Failure::PeerGone, Failure::Cancelled];

#[test]
fn registered_memory_of_an_operation_that_failed_can_be_copied_and_nothing_else() {
    for failure in FAILURES {
        after(failure, |comm, buffer, _| {
            let (part, unused) = (buffer.range(100..200), buffer.range(300..400));
            check_all_say(
                &[
                    in_use(part.as_slice()),
                    in_use(part.as_mut_slice()),
                    in_use(buffer.as_slice()),
                    in_use(part.range(99..).cast::<u8>().unwrap().as_slice()),
                    in_use(comm.start_all_reduce(&part, ReduceOp::Sum)),
                    in_use(comm.all_reduce(buffer, ReduceOp::Sum)),
                    in_use((comm.group().recv(&unused, 0).send(&part, 0)).run()),
                ],
                match failure {
                    Failure::PeerGone => "others may still read there: copy the elements",
                    _ => "which failed while peers could write there: copy the elements",
                },
            );
            let written = part.write(0, &[7.0; 100]);
            match failure {
                // The communicator has not failed, and what others read counts.
                Failure::PeerGone => assert!(in_use(written).contains("has left")),
                _ => {
                    written.unwrap();
                    assert_eq!(part.to_vec().unwrap(), [7.0; 100]);
                }
            }
            let mut two = [0.0; 2];
            buffer.read(98, &mut two).unwrap();
            assert_eq!(two, [5.0; 2]);
            // What it did not use is as it was.
            for rest in [buffer.range(..100), buffer.range(200..)] {
                check_all(&rest, 5.0);
                rest.as_mut_slice().unwrap().fill(6.0);
                comm.all_reduce(&rest, ReduceOp::Sum).unwrap();
                check_all(&rest, 6.0);
            }
        });
    }
}

#[test]
fn memory_that_was_a_vec_is_free_again_after_a_failure() {
    for failure in FAILURES {
        after(failure, |comm, _, plain| {
            assert!(!plain.is_registered());
            plain.as_mut_slice().unwrap().fill(3.0);
            comm.all_reduce(plain, ReduceOp::Sum).unwrap();
            check_all(plain, 3.0);
        });
    }
}

#[test]
fn a_cast_that_does_not_fit_says_which_length_and_address_would() {
    let comm = Communicator::join(0, 1, "a job that casts", config(Progress::Auto)).unwrap();
    let bytes = comm.alloc::<u8>(16).unwrap();
    let text = |result: Result<Buffer<f32>>| match result {
        Err(Error::InvalidArgument(text)) => text,
        other => panic!("{other:?}"),
    };
    let odd = text(bytes.range(..10).cast());
    assert!(odd.contains("10 bytes"), "{odd}");
    assert!(odd.contains("the length must be a multiple of 4"), "{odd}");
    let shifted = text(bytes.range(1..9).cast());
    assert!(shifted.contains("and the address of 4"), "{shifted}");

    let numbers = bytes.range(4..12).cast::<f32>().unwrap();
    assert_eq!(numbers.len(), 2);
    let mut slice = numbers.as_mut_slice().unwrap();
    slice.fill(1.0);
    in_use(bytes.range(11..).as_slice());
    assert_eq!(bytes.range(12..).to_vec().unwrap(), [0; 4]);
    drop(slice);
    assert_eq!(bytes.to_vec().unwrap()[4..8], 1f32.to_ne_bytes());
    // Nothing lies anywhere.
    assert!(bytes.range(3..3).cast::<f64>().unwrap().is_empty());
}

#[test]
#[should_panic(expected = "elements 5..11 of a buffer of 10")]
fn a_range_that_is_not_inside_panics_as_that_of_a_slice_does() {
    let _ = Buffer::from_vec(vec![0u8; 10]).range(5..11);
}

#[test]
fn an_operation_that_is_awaited_ends_and_wakes_its_executor() {
    for progress in [Progress::Auto, Progress::Thread] {
        let polled = Mark::default();
        on_both(progress, |comm| {
            let buffers = [1.0, 10.0].map(|value| filled(&comm, value));
            if comm.rank() == 1 {
                polled.wait();
            }
            let mut operations = buffers
                .each_ref()
                .map(|buffer| comm.start_all_reduce(buffer, ReduceOp::Sum).unwrap());
            if comm.rank() == 0 {
                assert!(poll_once(&mut operations[1]).is_pending());
                polled.set();
            }
            let all = async {
                let [first, second] = operations;
                second.await.and(first.await)
            };
            block_on(all, LONGEST).unwrap();
            check_all(&buffers[0], 2.0);
            check_all(&buffers[1], 20.0);
        });
    }
}

#[test]
fn an_operation_whose_communicator_fails_wakes_who_awaits_it() {
    let polled = Mark::default();
    on_both(Progress::Auto, |comm| {
        if comm.rank() == 1 {
            polled.wait();
            return comm.abort("the loss is not a number");
        }
        let mut operation = comm.start_barrier().unwrap();
        assert!(poll_once(&mut operation).is_pending());
        polled.set();
        let error = block_on(operation, LONGEST).unwrap_err();
        assert!(matches!(error, Error::Aborted { by: 1, .. }), "{error}");
    });
}

#[test]
fn without_a_progress_thread_awaiting_is_an_error_and_the_operation_goes_on() {
    on_both(Progress::Inline, |comm| {
        let buffer = filled(&comm, 1.0);
        let mut operation = comm.start_all_reduce(&buffer, ReduceOp::Sum).unwrap();
        let Poll::Ready(Err(Error::InvalidArgument(text))) = poll_once(&mut operation) else {
            panic!("it was polled");
        };
        assert!(text.contains("set LINERATE_PROGRESS"), "{text}");
        operation.wait().unwrap();
        check_all(&buffer, 2.0);
    });
}

#[test]
fn a_future_that_is_dropped_goes_on() {
    let dropped = Mark::default();
    on_both(Progress::Auto, |comm| {
        let buffer = filled(&comm, 1.0);
        if comm.rank() == 1 {
            dropped.wait();
            return comm.all_reduce(&buffer, ReduceOp::Sum).unwrap();
        }
        let mut operation = comm.start_all_reduce(&buffer, ReduceOp::Sum).unwrap();
        assert!(poll_once(&mut operation).is_pending());
        drop(operation);
        in_use(buffer.as_slice());
        dropped.set();
        // No call: the thread that the poll has begun moves it.
        until("the end of the operation", || buffer.as_slice().is_ok());
        check_all(&buffer, 2.0);
    });
}

#[test]
fn with_a_progress_thread_an_operation_ends_while_its_starter_makes_no_call() {
    for transport in ["shm", "tcp"] {
        let (started, ended) = (Mark::default(), Mark::default());
        let config = Config {
            transport: transport.into(),
            // Every rank has a part in every step of it.
            algorithm: Some("ring".into()),
            ..config(Progress::Thread)
        };
        on_threads(2, &config, |comm| {
            let buffer = comm.alloc::<f32>(1 << 20).unwrap();
            buffer.as_mut_slice().unwrap().fill(1.0);
            if comm.rank() == 1 {
                started.wait();
                comm.all_reduce(&buffer, ReduceOp::Sum).unwrap();
                return ended.set();
            }
            let operation = comm.start_all_reduce(&buffer, ReduceOp::Sum).unwrap();
            started.set();
            let begun = Instant::now();
            while !ended.is_set() {
                assert!(begun.elapsed() < LONGEST, "{transport}: rank 1 waits");
                std::hint::spin_loop();
            }
            until("the end of the operation", || buffer.as_slice().is_ok());
            check_all(&buffer, 2.0);
            operation.wait().unwrap();
        });
    }
}
