//! Operations whose timeout is not the communicator's.

use super::on_ranks;
use linerate::{Buffer, Collective, Communicator, DataType, Error};
use std::time::{Duration, Instant};

const SHORT: Duration = Duration::from_millis(300);
/// Of the communicator: no test waits so long.
const LONG: Duration = Duration::from_secs(30);

/// What rank 0 does alone.
type Lonely = fn(&Communicator, &Buffer<f32>) -> linerate::Result<()>;

/// Rank 0 does something that needs rank 1, which does something else until it hears of the end.
fn fails_early(lonely: Lonely) {
    on_ranks(2, |world| {
        let buffer = world.alloc::<f32>(100).unwrap();
        world.barrier().unwrap();
        let start = Instant::now();
        let error = match world.rank() {
            0 => lonely(&world, &buffer).unwrap_err(),
            _ => loop {
                if let Some(error) = world.failure() {
                    break error;
                }
                assert!(start.elapsed() < LONG);
                std::thread::sleep(Duration::from_millis(1));
            },
        };
        assert!(start.elapsed() < LONG);
        // Rank 0 may have begun before the clock of rank 1.
        assert!(world.rank() == 1 || start.elapsed() >= SHORT);
        let Error::Timeout {
            missing, waited, ..
        } = error.first_cause()
        else {
            panic!("{error}");
        };
        assert_eq!((&missing[..], *waited), (&[1][..], SHORT));
    });
}

#[test]
fn an_operation_may_have_less_time_than_its_communicator() {
    fails_early(|world, buffer| {
        let sum = world.collective(Collective::AllReduce, DataType::F32, 100);
        sum.input(buffer).output(buffer).timeout(SHORT).run()
    });
    fails_early(|world, buffer| {
        let sum = world.collective(Collective::AllReduce, DataType::F32, 100);
        let started = sum.input(buffer).output(buffer).timeout(SHORT).start();
        started?.wait()
    });
    fails_early(|world, buffer| world.group().recv(buffer, 1).timeout(SHORT).run());
}

#[test]
fn the_timeout_of_a_communicator_can_be_changed_while_an_operation_is_under_way() {
    fails_early(|world, _| {
        let operation = world.start_barrier()?;
        world.set_timeout(SHORT)?;
        operation.wait()
    });
}

#[test]
fn an_operation_with_more_time_outlives_a_short_timeout() {
    on_ranks(2, |world| {
        let buffer = world.alloc::<f32>(100).unwrap();
        world.barrier().unwrap();
        world.set_timeout(SHORT / 3).unwrap();
        if world.rank() == 1 {
            std::thread::sleep(SHORT);
        }
        let sum = world.collective(Collective::AllReduce, DataType::F32, 100);
        let sum = sum.input(&buffer).output(&buffer).timeout(LONG);
        sum.run().unwrap();
        world.set_timeout(LONG).unwrap();
        world.barrier().unwrap();
    });
}

#[test]
fn a_timeout_that_is_none_is_refused() {
    on_ranks(1, |world| {
        let buffer = world.alloc::<f32>(1).unwrap();
        let group = world.group().send(&buffer, 0).timeout(Duration::ZERO);
        let refused = [
            world.set_timeout(Duration::ZERO),
            world.set_timeout(Duration::MAX),
            group.run(),
            world
                .collective(Collective::Barrier, DataType::U8, 0)
                .timeout(Duration::ZERO)
                .run(),
        ];
        for error in refused.map(Result::unwrap_err) {
            assert!(error.to_string().contains("seconds above 0"), "{error}");
        }
        world.barrier().unwrap();
    });
}
