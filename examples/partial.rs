//! Partial allreduce: one rank is slow, and the others do not wait for it. Every gradient is in
//! exactly one sum.
//!
//! ```sh
//! cargo run --release -- launch -n 4 -- target/release/examples/partial
//! ```

use linerate::{Communicator, DataType, PartialAllreduce, PartialOptions, Policy, Result};
use std::time::Duration;

const COUNT: usize = 1000;
const STEPS: u32 = 30;

fn main() -> Result<()> {
    let comm = Communicator::from_env()?;
    let options = PartialOptions {
        policy: Policy::Majority,
        ..PartialOptions::default()
    };
    let divisor = options.divisor;
    let partial = PartialAllreduce::new(&comm, DataType::F32, COUNT as u64, options)?;
    let gradient = comm.alloc::<f32>(COUNT)?;
    let update = comm.alloc::<f32>(COUNT)?;
    let mut weights = vec![0.0f32; COUNT];
    let mut late = 0;

    for _step in 0..STEPS {
        if comm.rank() == 0 {
            std::thread::sleep(Duration::from_millis(5)); // the slow rank
        }
        gradient.as_mut_slice()?.fill(1.0);
        if let Some(report) = partial.exchange(&gradient, &update)? {
            late += u32::from(!report.active.contains(comm.rank()));
            apply(&mut weights, &update.as_slice()?);
        }
    }
    // Before validation and checkpoints: what is pending anywhere is delivered to all.
    let mut last = Vec::new();
    partial.finish(&update, |_report| last.push(update.to_vec()))?;
    for update in last {
        apply(&mut weights, &update?);
    }

    println!(
        "rank {}: came too late to {late} of {STEPS} rounds ({divisor:?})",
        comm.rank()
    );
    // All gradients of all ranks are in the weights, each once.
    assert!(weights.iter().all(|weight| *weight == weights[0]));
    comm.finalize()
}

fn apply(weights: &mut [f32], update: &[f32]) {
    weights
        .iter_mut()
        .zip(update)
        .for_each(|(weight, update)| *weight -= update);
}
