//! Recovery: a rank dies in the middle of the job, and the others go on without it.
//!
//! ```sh
//! for RANK in 0 1 2; do RANK=$RANK WORLD_SIZE=3 LINERATE_JOB=recover target/release/examples/recover & done; wait
//! ```

use linerate::{Communicator, ReduceOp, Result};

const STEPS: u32 = 20;

fn main() -> Result<()> {
    let mut comm = Communicator::from_env()?;
    let started = comm.ranks();
    let mut weights = vec![0.0f32; 1000];
    let mut step = 0;
    while step < STEPS {
        if step == 10 && comm.ranks() == started && comm.rank() == started - 1 && started > 1 {
            std::process::abort(); // what a crash does
        }
        // The input stays as it is until the step counts: a step that fails is repeated.
        let gradient = vec![1.0f32; weights.len()];
        let mut sum = vec![0.0f32; weights.len()];
        match comm.all_reduce_into(&gradient, &mut sum, ReduceOp::Avg) {
            Ok(()) => {
                weights
                    .iter_mut()
                    .zip(&sum)
                    .for_each(|(weight, g)| *weight -= g);
                step += 1;
            }
            Err(error) => {
                eprintln!("{error}");
                comm = comm.rebuild()?;
                // A survivor may have applied a step whose end another one did not see: all go on
                // from the latest.
                let mut latest = [step];
                comm.all_reduce(&mut latest, ReduceOp::Max)?;
                let holds = [if step == latest[0] {
                    comm.rank()
                } else {
                    u32::MAX
                }];
                let mut root = [0];
                comm.all_reduce_into(&holds, &mut root, ReduceOp::Min)?;
                comm.broadcast(&mut weights, root[0])?;
                step = latest[0];
            }
        }
    }
    assert!(weights.iter().all(|weight| *weight == -(STEPS as f32)));
    println!("rank {} of {}: {STEPS} steps", comm.rank(), comm.ranks());
    comm.finalize()
}
