//! Sparse allreduce: only the largest entries of the gradients travel, what is left waits in a
//! residual.
//!
//! ```sh
//! cargo run --release -- launch -n 2 -- target/release/examples/sparse
//! ```

use linerate::options::{Algorithm, Amount};
use linerate::{Communicator, DataType, Result, SparseAllreduce, SparseOptions, TensorSpec};

const COUNT: usize = 10_000;

fn main() -> Result<()> {
    let comm = Communicator::from_env()?;
    let tensor = TensorSpec {
        name: "weights".into(),
        count: COUNT as u64,
        dtype: DataType::F32,
    };
    let options = SparseOptions {
        algorithm: Algorithm::OkTopk,
        amount: Amount::Count(100),
        ..SparseOptions::default()
    };
    let mut sparse = SparseAllreduce::new(&comm, vec![tensor], options)?;
    let gradient = comm.alloc::<f32>(COUNT)?;
    let weights = comm.alloc::<f32>(COUNT)?;

    for step in 0..20 {
        for (index, value) in gradient.as_mut_slice()?.iter_mut().enumerate() {
            *value = ((index + step) % 97 + comm.rank() as usize) as f32;
        }
        let result = sparse.run(std::slice::from_ref(&gradient))?;
        result.add_to(std::slice::from_ref(&weights), -0.01)?;
        if comm.rank() == 0 && step % 5 == 0 {
            let sent = result.counters;
            println!(
                "step {step}: {} entries of {COUNT}; {sent}",
                result.selected_global
            );
        }
    }
    // What is left in the residuals, before ranks change or leave.
    sparse
        .flush_residual()?
        .add_to(std::slice::from_ref(&weights), -0.01)?;
    let residual = sparse.residual("weights").expect("it was declared");
    assert!(residual.as_slice()?.iter().all(|value| *value == 0.0));
    comm.finalize()
}
