//! Data-parallel training: softmax regression on 8x8 images of digits, every rank on its share of
//! the images. `cargo build --release --examples && cargo run --release -- launch -n 2 --
//! target/release/examples/train`

use linerate::{Communicator, ReduceOp, Result};

const CLASSES: usize = 10;
/// Pixels of an image, and a 1 for the bias.
const INPUTS: usize = 65;

fn main() -> Result<()> {
    let comm = Communicator::from_env()?;
    let (ranks, rank) = (comm.ranks() as usize, comm.rank() as usize);
    let samples = load();
    let (training, test) = samples.split_at(samples.len() * 4 / 5);
    let mine: Vec<_> = training.iter().skip(rank).step_by(ranks).collect();

    // Every rank begins with rank 0's weights.
    let mut weights = vec![rank as f32; CLASSES * INPUTS];
    comm.broadcast(&mut weights, 0)?;

    for _epoch in 0..60 {
        let mut gradient = vec![0.0f32; weights.len()];
        for (image, digit) in &mine {
            let mut errors = softmax(&weights, image);
            errors[*digit] -= 1.0;
            for (row, error) in gradient.chunks_mut(INPUTS).zip(errors) {
                row.iter_mut().zip(image).for_each(|(g, x)| *g += error * x);
            }
        }
        // The sum over all ranks, and over how many images: shares differ by one.
        gradient.push(mine.len() as f32);
        comm.all_reduce(&mut gradient, ReduceOp::Sum)?;
        let rate = 1.0 / gradient[weights.len()];
        let both = weights.iter_mut().zip(&gradient);
        both.for_each(|(weight, g)| *weight -= rate * g);
    }

    let is_right = |(image, digit): &&([f32; INPUTS], usize)| {
        let chances = softmax(&weights, image);
        chances.iter().all(|chance| *chance <= chances[*digit])
    };
    let accuracy = 100.0 * test.iter().filter(is_right).count() as f32 / test.len() as f32;
    if rank == 0 {
        println!("accuracy {accuracy:.1} % on {} images", test.len());
    }
    comm.finalize()
}

/// How likely each class is.
fn softmax(weights: &[f32], image: &[f32; INPUTS]) -> [f32; CLASSES] {
    let mut scores = [0.0f32; CLASSES];
    for (score, row) in scores.iter_mut().zip(weights.chunks(INPUTS)) {
        *score = row.iter().zip(image).map(|(w, x)| w * x).sum();
    }
    let most = scores.iter().copied().fold(f32::MIN, f32::max);
    let powers = scores.map(|score| (score - most).exp());
    let sum: f32 = powers.iter().sum();
    powers.map(|power| power / sum)
}

/// Images and their digits: 64 pixels from 0 to 16 and the digit on each line.
fn load() -> Vec<([f32; INPUTS], usize)> {
    let csv = include_str!(concat!(
        env!("CARGO_MANIFEST_DIR"),
        "/tests/data/optdigits/digits.csv"
    ));
    let parse = |line: &str| {
        let values: Vec<u8> = line.split(',').map(|v| v.parse().unwrap()).collect();
        let mut image = [1.0f32; INPUTS];
        for (pixel, value) in image.iter_mut().zip(&values[..INPUTS - 1]) {
            *pixel = f32::from(*value) / 16.0;
        }
        (image, values[INPUTS - 1].into())
    };
    csv.lines().map(parse).collect()
}
