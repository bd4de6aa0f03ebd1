//! Overlap with fusion: gradients are announced one by one while the backward pass runs, packed
//! together, and reduced while the rest is computed.
//!
//! ```sh
//! cargo run --release -- launch -n 2 -- target/release/examples/overlap
//! ```

use linerate::{
    Buffer, Communicator, DataType, Fusion, FusionOptions, ReduceOp, Result, TensorSpec,
};

/// Elements of the gradients of a small network, first layer first.
const LAYERS: [u64; 6] = [40_000, 200, 40_000, 200, 2_000, 10];

fn main() -> Result<()> {
    let comm = Communicator::from_env()?;
    let specs = LAYERS.iter().enumerate().map(|(layer, &count)| TensorSpec {
        name: format!("layer {layer}"),
        count,
        dtype: DataType::F32,
    });
    let options = FusionOptions {
        op: ReduceOp::Avg,
        ..FusionOptions::default()
    };
    let fusion = Fusion::new(&comm, options, specs.collect())?;
    let gradients: Vec<Buffer<f32>> = LAYERS
        .iter()
        .map(|&count| comm.alloc(count as usize))
        .collect::<Result<_>>()?;

    for step in 0..10 {
        // The backward pass makes the last layer's gradient first.
        for layer in (0..LAYERS.len()).rev() {
            backward(&mut gradients[layer].as_mut_slice()?, comm.rank() + step);
            fusion.announce(layer, &gradients[layer])?;
        }
        let report = fusion.wait()?;
        let average = (comm.ranks() - 1) as f32 / 2.0 + step as f32;
        for gradient in &gradients {
            assert!(gradient.as_slice()?.iter().all(|value| *value == average));
        }
        if comm.rank() == 0 {
            println!(
                "step {step}: {} tensors in {} allreduces, {:?} after the backward pass",
                LAYERS.len(),
                report.flushes.len(),
                report.exposed()
            );
        }
    }
    comm.finalize()
}

/// What a layer's backward pass would compute.
fn backward(gradient: &mut [f32], value: u32) {
    gradient.fill(value as f32);
}
