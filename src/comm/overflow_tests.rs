//! Sums of f16 that overflow behave as [`ReduceOp`] says, with every algorithm of an allreduce,
//! over shared memory and TCP.

use super::Communicator;
use crate::collective;
use crate::config::Config;
use crate::error::Error;
use crate::types::{Collective, DataType, ReduceOp};
use half::f16;
use std::collections::BTreeSet;
use std::time::Duration;

const RANKS: u32 = 3;

/// The results of an allreduce on three ranks that all give `value`, one after another for each
/// algorithm that can run.
fn results(transport: &str, value: f32, op: ReduceOp) -> Vec<f32> {
    let job = format!("overflow-{}-{transport}-{value}-{op}", std::process::id());
    let run = |rank: u32| -> Vec<f32> {
        let config = Config {
            transport: transport.into(),
            timeout: Duration::from_secs(20),
            ..Config::default()
        };
        let comm = Communicator::join(rank, RANKS, &job, config).unwrap();
        let buffer = comm.alloc::<f16>(16).unwrap();
        let call = comm.collective(Collective::AllReduce, DataType::F16, 16);
        let call = call.op(op).input(&buffer).output(&buffer);
        let mut found = Vec::new();
        for algorithm in collective::algorithms(Collective::AllReduce) {
            buffer.write(0, &[f16::from_f32(value); 16]).unwrap();
            match call.clone().algorithm(algorithm.name).run() {
                Ok(()) => found.extend(buffer.as_slice().unwrap().iter().map(|x| x.to_f32())),
                // The algorithm needs what this transport does not have.
                Err(Error::InvalidArgument(_)) => {}
                Err(other) => panic!("{}: {other}", algorithm.name),
            }
        }
        found
    };
    let run = &run;
    std::thread::scope(|scope| {
        let ranks = [0, 1, 2].map(|rank| scope.spawn(move || run(rank)));
        let all = ranks.map(|rank| rank.join().unwrap());
        assert!(all[0].len() >= 3 * 16, "{transport}: too few algorithms");
        assert_eq!((&all[0], &all[0]), (&all[1], &all[2]));
        all[0].clone()
    })
}

#[test]
fn an_average_of_f16_is_right_below_the_bound_and_beyond_it_where_it_is_scaled_first() {
    let mut beyond = BTreeSet::new();
    for transport in ["shm", "tcp"] {
        let all = |found: Vec<f32>, value| found.iter().all(|got| *got == value);
        let bound = results(transport, 10912.0, ReduceOp::Avg);
        assert!(all(bound, 10912.0), "{transport}");
        let scaled = results(transport, 57344.0, ReduceOp::PremulSum(0.25));
        assert!(all(scaled, 0.75 * 57344.0), "{transport}");
        let found = results(transport, 57344.0, ReduceOp::Avg);
        beyond.extend(found.into_iter().map(f32::to_bits));
    }
    // Which of the two depends on the algorithm; the docs name both.
    assert_eq!(beyond, [57344.0, f32::INFINITY].map(f32::to_bits).into());
}
