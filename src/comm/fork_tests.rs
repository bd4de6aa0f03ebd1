//! Processes that fork while they hold a communicator, as data loaders make trainers do.

use super::{Buffer, Call, Communicator, Fusion, PartialAllreduce};
use crate::config::Config;
use crate::error::{Error, Result};
use crate::fusion::{FusionOptions, TensorSpec};
use crate::memory::child::{kill, spawn, wait};
use crate::partial::PartialOptions;
use crate::types::{DataType, ReduceOp};
use std::io::{Read, Write};
use std::time::Duration;

fn join(rank: u32, job: &str, progress_thread: bool) -> Communicator {
    let config = Config {
        timeout: Duration::from_secs(20),
        progress_thread,
        ..Config::default()
    };
    Communicator::join(rank, 2, job, config).unwrap()
}

/// Runs both ranks of a job on threads of this process.
fn both(name: &str, progress_thread: bool, run: impl Fn(Communicator) + Sync) {
    let job = format!("{name}-{}-{progress_thread}", std::process::id());
    std::thread::scope(|scope| {
        for rank in 0..2 {
            let (run, job) = (&run, &job);
            scope.spawn(move || run(join(rank, job, progress_thread)));
        }
    });
}

fn sum(buffer: &Buffer) -> Call {
    let count = buffer.len_bytes() as u64 / 4;
    Call::all_reduce(DataType::F32, ReduceOp::Sum, count, buffer, buffer)
}

#[test]
fn a_forked_child_gets_an_error_from_every_call_and_the_parent_goes_on() {
    for progress_thread in [false, true] {
        both("fork", progress_thread, |comm| {
            let buffer = comm.alloc(1 << 20).unwrap();
            buffer.write(0, &vec![1.0f32; 1 << 18]);
            comm.run(&sum(&buffer)).unwrap();
            let tensor = TensorSpec {
                name: "weight".into(),
                count: 4,
                dtype: DataType::F32,
            };
            // Held once, so that the child drops the last handle it knows of.
            let only = format!("{}-only-{progress_thread}", std::process::id());
            let mut only = Some(join(comm.rank(), &only, progress_thread));
            let mut fusion =
                Some(Fusion::new(&comm, FusionOptions::default(), vec![tensor]).unwrap());
            let small = comm.alloc(16).unwrap();
            // Nobody else arrives until both ranks have looked at their children.
            let is_first = comm.rank() == 0;
            let mut under_way = is_first.then(|| comm.start(&sum(&buffer)).unwrap());
            let code = wait(spawn(|| {
                let fusion = fusion.take().unwrap();
                let is_refused = |result: Result<()>| result == Err(Error::Forked);
                let mut checks = vec![
                    is_refused(comm.alloc(64).map(drop)),
                    is_refused(comm.start(&sum(&buffer)).map(drop)),
                    is_refused(comm.run(&sum(&buffer))),
                    is_refused(comm.barrier()),
                    is_refused(comm.all_reduce(&mut [1.0f32], ReduceOp::Sum)),
                    is_refused(comm.algorithm_for(&sum(&buffer)).map(drop)),
                    is_refused(fusion.announce(0, &small)),
                    is_refused(fusion.end_of_backward()),
                    is_refused(fusion.wait().map(drop)),
                ];
                if let Some(mut operation) = under_way.take() {
                    checks.push(is_refused(operation.test().map(drop)));
                    checks.push(is_refused(operation.wait_timeout(Duration::ZERO).map(drop)));
                    checks.push(is_refused(operation.wait()));
                }
                // The memory is there to be read (the other rank may have added to it by now), and everything can be dropped.
                checks.push([2.0, 4.0].contains(&buffer.to_vec::<f32>()[7]));
                drop((buffer.clone(), small.clone(), comm.clone()));
                drop((fusion, only.take()));
                checks
                    .iter()
                    .position(|good| !good)
                    .map_or(77, |at| at as i32)
            }));
            assert_eq!(
                code,
                Some(77),
                "the number of the call that was not refused"
            );
            let operation = under_way.unwrap_or_else(|| comm.start(&sum(&buffer)).unwrap());
            operation.wait().unwrap();
            let all = buffer.to_vec::<f32>();
            assert!(all.iter().all(|&value| value == 4.0));
            let fusion = fusion.unwrap();
            fusion.announce(0, &small).unwrap();
            fusion.wait().unwrap();
            only.unwrap().barrier().unwrap();
            comm.barrier().unwrap();
        });
    }
}

#[test]
fn a_forked_child_cannot_use_a_partial_allreduce_and_rounds_go_on_without_it() {
    both("fork-partial", false, |comm| {
        let options = PartialOptions::default();
        let made = PartialAllreduce::new(&comm, DataType::F32, 4, options).unwrap();
        let mut partial = Some(made);
        let buffer = comm.alloc(16).unwrap();
        buffer.write(0, &[1.0f32; 4]);
        partial.as_ref().unwrap().submit(&buffer).unwrap();
        let code = wait(spawn(|| {
            let partial = partial.take().unwrap();
            let (one, is_refused) = (std::slice::from_ref(&buffer), Some(Error::Forked));
            let checks = [
                partial.submit(&buffer).err() == is_refused,
                partial.submit_parts(one).err() == is_refused,
                partial.next(&buffer).err() == is_refused,
                partial.next_parts(one).err() == is_refused,
                partial.try_next(&buffer).err() == is_refused,
                partial.exchange(&buffer, &buffer).err() == is_refused,
                partial.catch_up(&buffer, |_| ()).err() == is_refused,
                partial.finish(&buffer, |_| ()).err() == is_refused,
                partial.lag() == 0,
            ];
            drop(partial);
            (checks.iter().position(|good| !good)).map_or(77, |at| at as i32)
        }));
        assert_eq!(
            code,
            Some(77),
            "the number of the call that was not refused"
        );
        let partial = partial.unwrap();
        assert_eq!(partial.next(&buffer).unwrap().unwrap().round, 0);
        for round in 1..10 {
            let report = partial.exchange(&buffer, &buffer).unwrap().unwrap();
            assert_eq!(report.round, round);
        }
        partial.finish(&buffer, |_| ()).unwrap();
    });
}

#[test]
fn a_child_may_make_a_communicator_of_its_own_and_its_death_is_seen_although_it_has_forked() {
    let job = format!("fork-own-{}", std::process::id());
    let (mut ours, theirs) = std::os::unix::net::UnixStream::pair().unwrap();
    let child = spawn(|| {
        let comm = join(1, &job, false);
        comm.barrier().unwrap();
        // Holds copies of all sockets, as a data loader does when its trainer is killed.
        let loader = spawn(|| {
            std::thread::sleep(Duration::from_secs(60));
            0
        });
        (&theirs).write_all(&loader.to_le_bytes()).unwrap();
        let _ = comm.barrier();
        0
    });
    let comm = join(0, &job, false);
    comm.barrier().unwrap();
    let mut loader = [0; 4];
    ours.read_exact(&mut loader).unwrap();
    kill(child);
    let error = comm
        .run(&Call::barrier())
        .and_then(|()| comm.barrier())
        .unwrap_err();
    assert_eq!(wait(child), None);
    kill(i32::from_le_bytes(loader));
    let text = error.first_cause().to_string();
    assert!(text.contains("rank 1 failed: its process ended"), "{text}");
}
