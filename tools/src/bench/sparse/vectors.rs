//! Tensors and their gradients.

use super::{Distribution, Plan};
use linerate::unstable::prng::{Prng, mix};
use linerate::{Buffer, DataType, Rank, TensorSpec};

/// Models that are built in.
const MODELS: [(&str, &str); 3] = [
    (
        "vgg16",
        include_str!("../../../../tests/data/sparse/vgg16_bn_cifar10.layers.csv"),
    ),
    (
        "lstm",
        include_str!("../../../../tests/data/sparse/lstm_an4_deepspeech.layers.csv"),
    ),
    (
        "bert",
        include_str!("../../../../tests/data/sparse/bert_base_pretraining.layers.csv"),
    ),
];

/// Elements that are written at a time.
const CHUNK: usize = 1 << 16;

/// Parts of a single vector that have scales of their own.
const PARTS: u64 = 16;

/// One vector.
pub fn single(count: u64) -> TensorSpec {
    TensorSpec {
        name: "vector".into(),
        count,
        dtype: DataType::F32,
    }
}

/// The tensors of a model, or of a file with lines `order,name,params`.
pub fn layers(name: &str) -> Result<Vec<TensorSpec>, String> {
    let built_in = MODELS.iter().find(|(model, _)| *model == name);
    let text = match built_in {
        Some((_, text)) => (*text).to_owned(),
        None => std::fs::read_to_string(name).map_err(|cause| {
            format!("--layers {name}: {cause}; built in are vgg16, lstm and bert")
        })?,
    };
    parse(&text).map_err(|cause| format!("--layers {name}: {cause}"))
}

fn parse(text: &str) -> Result<Vec<TensorSpec>, String> {
    let mut tensors = Vec::new();
    for (line, row) in text
        .lines()
        .enumerate()
        .skip(1)
        .filter(|(_, row)| !row.is_empty())
    {
        let mut fields = row.split(',');
        let (order, name, count) = (fields.next(), fields.next(), fields.next());
        let count = count.and_then(|count| count.trim().parse().ok());
        let (Some(order), Some(name), Some(count)) = (order, name, count) else {
            return Err(format!(
                "line {}: '{row}' is no order,name,params",
                line + 1
            ));
        };
        tensors.push(TensorSpec {
            // Names need not be unique in a file; residuals are kept by name.
            name: format!("{order} {name}"),
            count,
            dtype: DataType::F32,
        });
    }
    match tensors.is_empty() {
        true => Err("no tensors: a header, then lines of order,name,params".into()),
        false => Ok(tensors),
    }
}

/// Fills a rank's gradients: sums of four uniform numbers, so that a few are large, scaled as the
/// distribution says.
pub fn fill(plan: &Plan, rank: Rank, gradients: &[Buffer<f32>]) -> linerate::Result<()> {
    let total = plan.count().max(1);
    let mut first = 0;
    let mut values = vec![0f32; CHUNK];
    for (tensor, buffer) in gradients.iter().enumerate() {
        let mut prng = Prng::new(mix(plan.args.seed
            ^ u64::from(rank) << 48
            ^ (tensor as u64) << 24));
        let count = buffer.len();
        for start in (0..count).step_by(CHUNK) {
            let part = &mut values[..CHUNK.min(count - start)];
            for (offset, value) in part.iter_mut().enumerate() {
                let index = first + (start + offset) as u64;
                let bits = prng.next_u64();
                let sum: u64 = (0..4).map(|i| (bits >> (16 * i)) & 0xffff).sum();
                let scale = match plan.args.distribution {
                    Distribution::Uniform => 1.0,
                    Distribution::Powerlaw => ((index + 1) as f32).powf(-0.5),
                    Distribution::Layers if gradients.len() == 1 => scale_of(index * PARTS / total),
                    Distribution::Layers => scale_of(tensor as u64),
                };
                *value = (sum as f32 / 65536.0 - 2.0) * scale;
            }
            buffer.write(start, part)?;
        }
        first += count as u64;
    }
    Ok(())
}

/// From 1/16 to 16, the same on all ranks.
fn scale_of(layer: u64) -> f32 {
    f32::exp2((mix(layer) % 9) as f32 - 4.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_models_have_the_parameters_of_the_papers() {
        let count = |name| layers(name).unwrap().iter().map(|t| t.count).sum::<u64>();
        assert_eq!(
            (count("vgg16"), count("lstm"), count("bert")),
            (14_728_266, 27_569_568, 133_547_324)
        );
    }

    #[test]
    fn a_bad_line_is_named() {
        let error = parse("order,name,params\n0,a,5\n1,b,many\n").unwrap_err();
        assert!(error.contains("line 3"), "{error}");
        assert!(layers("no such model").unwrap_err().contains("bert"));
    }
}
