//! Models small enough to train in an experiment: their parameters are one vector of f32, and so
//! are their gradients.

use super::digits::{CLASSES, Image, PIXELS};
use linerate::unstable::prng::{Prng, mix};
use linerate::{Communicator, Result};
use std::ops::Range;

/// What a model says about some samples.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Verdict {
    /// Mean loss of a sample.
    pub loss: f64,
    /// Share of samples that are recognised; 0 where there is nothing to recognise.
    pub accuracy: f64,
}

/// A classifier of digits with one hidden layer: 64 pixels, `hidden` rectified units, 10 classes,
/// cross entropy.
#[derive(Clone, Debug)]
pub struct Classifier {
    hidden: usize,
    activations: Vec<f32>,
    errors: Vec<f32>,
}

impl Classifier {
    pub fn new(hidden: usize) -> Classifier {
        Classifier {
            hidden,
            activations: vec![0.0; hidden],
            errors: vec![0.0; hidden],
        }
    }

    /// Numbers in its vector of parameters.
    pub fn parameters(&self) -> usize {
        self.hidden * (PIXELS + 1) + CLASSES * (self.hidden + 1)
    }

    /// Parameters to begin with, the same for the same seed: uniform, with the variance that keeps
    /// activations in scale.
    pub fn start(&self, seed: u64) -> Vec<f32> {
        let mut prng = Prng::new(seed);
        let (first, second) = self.layers();
        let mut parameters = vec![0.0; self.parameters()];
        for (range, inputs) in [(first.weights, PIXELS), (second.weights, self.hidden)] {
            let most = (6.0 / inputs as f64).sqrt();
            for weight in &mut parameters[range] {
                *weight = ((2.0 * prng.unit() - 1.0) * most) as f32;
            }
        }
        parameters
    }

    /// Adds the mean gradient of a batch to `gradient`, which has the shape of the parameters;
    /// returns the mean loss.
    pub fn add_gradient(
        &mut self,
        parameters: &[f32],
        batch: &[&Image],
        gradient: &mut [f32],
    ) -> f64 {
        let share = 1.0 / batch.len() as f32;
        let (first, second) = self.layers();
        let mut loss = 0.0;
        for image in batch {
            let mut scores = self.scores(parameters, &image.pixels);
            loss += cross_entropy(&mut scores, image.digit);
            // `scores` has become probabilities. Their difference to the truth is the gradient of
            // the scores.
            scores[image.digit] -= 1.0;
            self.errors.fill(0.0);
            for (class, score) in scores.iter().enumerate() {
                let error = score * share;
                gradient[second.biases.start + class] += error;
                let row = second.row(class);
                let weights = &parameters[row.clone()];
                let slots = gradient[row].iter_mut();
                for (((slot, weight), activation), below) in slots
                    .zip(weights)
                    .zip(&self.activations)
                    .zip(&mut self.errors)
                {
                    *slot += error * activation;
                    *below += error * weight;
                }
            }
            for unit in (0..self.hidden).filter(|&unit| self.activations[unit] > 0.0) {
                gradient[first.biases.start + unit] += self.errors[unit];
                let slots = gradient[first.row(unit)].iter_mut();
                for (slot, pixel) in slots.zip(&image.pixels) {
                    *slot += self.errors[unit] * pixel;
                }
            }
        }
        loss / batch.len() as f64
    }

    /// Loss and accuracy on some images.
    pub fn judge(&mut self, parameters: &[f32], images: &[Image]) -> Verdict {
        let (mut loss, mut right) = (0.0, 0);
        for image in images {
            let mut scores = self.scores(parameters, &image.pixels);
            let best = (0..CLASSES).max_by(|&a, &b| scores[a].total_cmp(&scores[b]));
            right += usize::from(best == Some(image.digit));
            loss += cross_entropy(&mut scores, image.digit);
        }
        Verdict {
            loss: loss / images.len() as f64,
            accuracy: right as f64 / images.len() as f64,
        }
    }

    /// The scores of the classes. The activations of the hidden layer stay in `self`.
    fn scores(&mut self, parameters: &[f32], pixels: &[f32; PIXELS]) -> [f32; CLASSES] {
        let (first, second) = self.layers();
        for unit in 0..self.hidden {
            let sum = dot(&parameters[first.row(unit)], pixels);
            self.activations[unit] = (sum + parameters[first.biases.start + unit]).max(0.0);
        }
        std::array::from_fn(|class| {
            let sum = dot(&parameters[second.row(class)], &self.activations);
            sum + parameters[second.biases.start + class]
        })
    }

    fn layers(&self) -> (Layer, Layer) {
        let first = Layer::new(0, PIXELS, self.hidden);
        let second = Layer::new(first.biases.end, self.hidden, CLASSES);
        (first, second)
    }
}

/// Where the parameters of a layer lie: weights row by row, then biases.
struct Layer {
    inputs: usize,
    weights: Range<usize>,
    biases: Range<usize>,
}

impl Layer {
    fn new(start: usize, inputs: usize, outputs: usize) -> Layer {
        let middle = start + inputs * outputs;
        Layer {
            inputs,
            weights: start..middle,
            biases: middle..middle + outputs,
        }
    }

    fn row(&self, output: usize) -> Range<usize> {
        let start = self.weights.start + output * self.inputs;
        start..start + self.inputs
    }
}

/// Turns scores into probabilities; returns the loss of the true class.
fn cross_entropy(scores: &mut [f32; CLASSES], truth: usize) -> f64 {
    let most = scores.iter().copied().fold(f32::MIN, f32::max);
    scores
        .iter_mut()
        .for_each(|score| *score = (*score - most).exp());
    let sum: f32 = scores.iter().sum();
    scores.iter_mut().for_each(|score| *score /= sum);
    -f64::from(scores[truth].max(f32::MIN_POSITIVE)).ln()
}

fn dot(left: &[f32], right: &[f32]) -> f32 {
    left.iter().zip(right).map(|(l, r)| l * r).sum()
}

/// Linear regression on a hyperplane with noise: the samples of one rank, in memory as small
/// integers.
#[derive(Debug)]
pub struct Hyperplane {
    dimensions: usize,
    /// Coordinates, sample by sample, from -1 to 1 in steps of 1/127.
    coordinates: Vec<i8>,
    targets: Vec<f32>,
}

/// What a coordinate is divided by.
const STEPS: f32 = 127.0;
/// Accumulators of a sum of products, so that the compiler may use vectors.
const LANES: usize = 16;

impl Hyperplane {
    /// This many samples around a plane that `plane_seed` determines, with noise of the given
    /// deviation.
    pub fn new(
        (dimensions, samples): (usize, usize),
        noise: f64,
        plane_seed: u64,
        seed: u64,
    ) -> Hyperplane {
        let mut prng = Prng::new(plane_seed);
        let plane: Vec<f32> = (0..=dimensions)
            .map(|_| (2.0 * prng.unit() - 1.0) as f32)
            .collect();
        let mut prng = Prng::new(seed);
        let mut coordinates = Vec::with_capacity(dimensions * samples);
        let mut targets = Vec::with_capacity(samples);
        for sample in 0..samples {
            let words = (0..dimensions.div_ceil(8)).map(|_| prng.next_u64().to_le_bytes());
            // -128 becomes -127, so that both ends are alike.
            let bytes = words.flatten().map(|byte| (byte as i8).max(-127));
            coordinates.extend(bytes.take(dimensions));
            let row = &coordinates[sample * dimensions..];
            targets.push(value_at(&plane, row) + (noise * normal(&mut prng)) as f32);
        }
        Hyperplane {
            dimensions,
            coordinates,
            targets,
        }
    }

    /// Numbers in its vector of parameters: one per dimension and the plane's height.
    pub fn parameters(&self) -> usize {
        self.dimensions + 1
    }

    pub fn samples(&self) -> usize {
        self.targets.len()
    }

    /// Adds the mean gradient of these samples to `gradient`; returns their mean loss, half the
    /// square of the error.
    pub fn add_gradient(
        &self,
        parameters: &[f32],
        samples: Range<usize>,
        gradient: &mut [f32],
    ) -> f64 {
        let share = 1.0 / samples.len() as f32;
        let mut loss = 0.0;
        let count = samples.len() as f64;
        for sample in samples {
            let row = self.row(sample);
            let error = value_at(parameters, row) - self.targets[sample];
            loss += f64::from(error) * f64::from(error) / 2.0;
            let step = error * share / STEPS;
            for (slot, &coordinate) in gradient.iter_mut().zip(row) {
                *slot += step * f32::from(coordinate);
            }
            gradient[self.dimensions] += error * share;
        }
        loss / count
    }

    /// The mean loss of all its samples.
    pub fn judge(&self, parameters: &[f32]) -> Verdict {
        let loss = |sample| {
            let error = value_at(parameters, self.row(sample)) - self.targets[sample];
            f64::from(error) * f64::from(error) / 2.0
        };
        let total: f64 = (0..self.samples()).map(loss).sum();
        Verdict {
            loss: total / self.samples() as f64,
            accuracy: 0.0,
        }
    }

    fn row(&self, sample: usize) -> &[i8] {
        &self.coordinates[sample * self.dimensions..(sample + 1) * self.dimensions]
    }
}

/// The height of a plane at a place; the last parameter is its height at the origin.
fn value_at(plane: &[f32], place: &[i8]) -> f32 {
    let (slopes, height) = plane.split_at(plane.len() - 1);
    let mut lanes = [0.0f32; LANES];
    let (slope_blocks, place_blocks) = (slopes.chunks_exact(LANES), place.chunks_exact(LANES));
    let rest = slope_blocks
        .remainder()
        .iter()
        .zip(place_blocks.remainder());
    let rest: f32 = rest.map(|(slope, &at)| slope * f32::from(at)).sum();
    for (slopes, places) in slope_blocks.zip(place_blocks) {
        for lane in 0..LANES {
            lanes[lane] += slopes[lane] * f32::from(places[lane]);
        }
    }
    (lanes.iter().sum::<f32>() + rest) / STEPS + height[0]
}

/// Whether all ranks have parameters of the same bits.
pub fn are_equal(comm: &Communicator, parameters: &[f32]) -> Result<bool> {
    let bits = parameters.iter().map(|value| u64::from(value.to_bits()));
    let hash = bits.fold(0, |hash, bits| mix(hash ^ bits));
    let mut all = vec![0; comm.ranks() as usize];
    comm.all_gather(&[hash], &mut all)?;
    Ok(all.iter().all(|&other| other == hash))
}

/// A number from the normal distribution (Box and Muller, 1958).
fn normal(prng: &mut Prng) -> f64 {
    let radius = (-2.0 * (1.0 - prng.unit()).ln()).sqrt();
    radius * (std::f64::consts::TAU * prng.unit()).cos()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::digits::Digits;

    /// Compares a gradient with differences of the loss on both sides of a parameter.
    fn compare(gradient: &[f32], parameters: &[f32], loss: &mut dyn FnMut(&[f32]) -> f64) {
        let mut prng = Prng::new(5);
        let mut moved = parameters.to_vec();
        for _ in 0..40 {
            let at = prng.below(parameters.len() as u64) as usize;
            let step = 1e-2f32;
            moved[at] = parameters[at] + step;
            let above = loss(&moved);
            moved[at] = parameters[at] - step;
            let below = loss(&moved);
            moved[at] = parameters[at];
            let slope = (above - below) / (2.0 * f64::from(step));
            let difference = (slope - f64::from(gradient[at])).abs();
            assert!(
                difference < 2e-3 + 0.02 * slope.abs(),
                "parameter {at}: {slope} and {}",
                gradient[at]
            );
        }
    }

    #[test]
    fn the_classifiers_gradient_is_the_slope_of_its_loss() {
        let digits = Digits::load();
        let batch: Vec<&Image> = digits.training[..20].iter().collect();
        let mut model = Classifier::new(32);
        let parameters = model.start(3);
        let mut gradient = vec![0.0; model.parameters()];
        let loss = model.add_gradient(&parameters, &batch, &mut gradient);
        let alone = model.judge(&parameters, &digits.training[..20]);
        assert!((loss - alone.loss).abs() < 1e-9);
        compare(&gradient, &parameters, &mut |moved| {
            model.judge(moved, &digits.training[..20]).loss
        });
    }

    #[test]
    fn a_classifier_learns_real_digits() {
        let digits = Digits::load();
        let images: Vec<&Image> = digits.training.iter().collect();
        let mut model = Classifier::new(32);
        let mut parameters = model.start(1);
        let before = model.judge(&parameters, &digits.test);
        for _ in 0..20 {
            for batch in images.chunks(32) {
                let mut gradient = vec![0.0; model.parameters()];
                model.add_gradient(&parameters, batch, &mut gradient);
                let moves = parameters.iter_mut().zip(&gradient);
                moves.for_each(|(parameter, slope)| *parameter -= 0.2 * slope);
            }
        }
        let after = model.judge(&parameters, &digits.test);
        assert!(before.accuracy < 0.4, "{before:?}");
        assert!(after.accuracy > 0.93, "{after:?}");
    }

    #[test]
    fn the_gradient_of_a_plane_is_the_slope_of_its_loss() {
        let plane = Hyperplane::new((100, 30), 0.5, 1, 2);
        let parameters: Vec<f32> = (0..101).map(|i| (i % 7) as f32 / 7.0).collect();
        let mut gradient = vec![0.0; plane.parameters()];
        let loss = plane.add_gradient(&parameters, 0..30, &mut gradient);
        assert!((loss - plane.judge(&parameters).loss).abs() < 1e-9);
        compare(&gradient, &parameters, &mut |moved| plane.judge(moved).loss);
    }

    #[test]
    fn what_is_left_of_a_fitted_plane_is_its_noise() {
        let (dimensions, noise) = (24, 0.5);
        let plane = Hyperplane::new((dimensions, 2000), noise, 7, 8);
        let mut parameters = vec![0.0; plane.parameters()];
        for _ in 0..300 {
            let mut gradient = vec![0.0; plane.parameters()];
            plane.add_gradient(&parameters, 0..2000, &mut gradient);
            let moves = parameters.iter_mut().zip(&gradient);
            moves.for_each(|(parameter, slope)| *parameter -= 0.5 * slope);
        }
        let loss = plane.judge(&parameters).loss;
        assert!((loss - noise * noise / 2.0).abs() < 0.02, "{loss}");
    }
}
