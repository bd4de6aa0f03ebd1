//! The rules against loops over plain numbers, and against numbers that were computed by hand.

use super::*;
use crate::kernel::{load, store};
use crate::memory::{Region, View};
use crate::prng::Prng;
use crate::types::DataType;
use half::{bf16, f16};

const COUNTS: [usize; 6] = [0, 1, 7, 8, 63, 4097];
const STEPS: u64 = 4;

/// A region and all of it, without a gap at the end.
fn room(count: usize, dtype: DataType) -> (Region, View) {
    let bytes = count * dtype.size_bytes();
    let region = Region::private(bytes.max(1)).expect("memory for a test");
    let view = region.view().part(0, bytes);
    (region, view)
}

fn optimizers() -> Vec<Optimizer> {
    let decayed = |momentum| Optimizer::Sgd {
        momentum,
        weight_decay: 0.01,
    };
    let (betas, epsilon) = ((0.8, 0.95), 1e-6);
    vec![
        Optimizer::sgd(),
        decayed(0.0),
        Optimizer::momentum(0.9),
        decayed(0.5),
        Optimizer::adam(),
        Optimizer::Adam {
            betas,
            epsilon,
            weight_decay: 0.1,
        },
        Optimizer::adamw(),
        Optimizer::AdamW {
            betas: (0.0, 0.0),
            epsilon,
            weight_decay: 0.1,
        },
    ]
}

fn step(optimizer: Optimizer, rate: f32, number: u64) -> Step {
    Step {
        optimizer,
        rate,
        number,
        scale: 1.0,
    }
}

fn in_place(gradient: (DataType, View), weights: View, states: [View; 2]) -> Weights {
    Weights {
        gradient,
        from: weights,
        to: weights,
        states,
        published: None,
    }
}

/// The numbers of one weight. They begin as PyTorch's: all states are 0.
#[derive(Clone, Copy, Default)]
struct Plain<T> {
    weight: T,
    states: [T; 2],
}

/// One step of one weight, as the documentation of PyTorch has it. The constants of the f32 version
/// are rounded from f64.
macro_rules! plain_step {
    ($float:ident) => {
        impl Plain<$float> {
            fn step(&mut self, step: &Step, gradient: f32) {
                let float = |value: f64| value as $float;
                let given = |value: f32| float(f64::from(value));
                let (rate, scaled) = (f64::from(step.rate), given(gradient) * given(step.scale));
                let w = self.weight;
                match step.optimizer {
                    Optimizer::Sgd {
                        momentum,
                        weight_decay,
                    } => {
                        let mut d = scaled;
                        if weight_decay != 0.0 {
                            d += given(weight_decay) * w;
                        }
                        if momentum != 0.0 {
                            if step.number > 1 {
                                d += given(momentum) * self.states[0];
                            }
                            self.states[0] = d;
                        }
                        self.weight = w - float(rate) * d;
                    }
                    Optimizer::Adam {
                        betas,
                        epsilon,
                        weight_decay,
                    }
                    | Optimizer::AdamW {
                        betas,
                        epsilon,
                        weight_decay,
                    } => {
                        let (mut d, mut kept) = (scaled, w);
                        if matches!(step.optimizer, Optimizer::AdamW { .. }) {
                            kept = w * float(1.0 - rate * f64::from(weight_decay));
                        } else if weight_decay != 0.0 {
                            d += given(weight_decay) * w;
                        }
                        let (first, second) = (f64::from(betas.0), f64::from(betas.1));
                        let number = step.number as i32;
                        let [m, v] = self.states;
                        let m = float(first) * m + float(1.0 - first) * d;
                        let v = float(second) * v + float(1.0 - second) * d * d;
                        self.states = [m, v];
                        let size = float(rate / (1.0 - first.powi(number)));
                        let root = float((1.0 - second.powi(number)).sqrt());
                        self.weight = kept - size * m / (v.sqrt() / root + given(epsilon));
                    }
                }
            }
        }
    };
}
plain_step!(f32);
plain_step!(f64);

/// A gradient of the type, and its value.
fn put_gradient(dtype: DataType, view: View, index: usize, value: f32) -> f32 {
    match dtype {
        DataType::F16 => {
            store(view, index, f16::from_f32(value));
            f16::from_f32(value).to_f32()
        }
        DataType::Bf16 => {
            store(view, index, bf16::from_f32(value));
            bf16::from_f32(value).to_f32()
        }
        _ => {
            store(view, index, value);
            value
        }
    }
}

fn random(prng: &mut Prng) -> f32 {
    (prng.next_u64() >> 40) as f32 / (1 << 23) as f32 - 1.0
}

/// Runs some steps on `count` weights, and compares all bits with those of a plain loop.
fn check_bits(optimizer: Optimizer, count: usize, dtype: DataType, published: Option<DataType>) {
    let (_a, gradient) = room(count, dtype);
    let rooms = [(); 4].map(|()| room(count, DataType::F32));
    let [first, second, one, two] = [0, 1, 2, 3].map(|index| rooms[index].1);
    let (_b, copy) = room(count, published.unwrap_or(DataType::F16));
    let states = match optimizer.states() {
        0 => [View::empty(); 2],
        1 => [one, View::empty()],
        _ => [one, two],
    };
    let mut prng = Prng::new(7);
    let mut plain = vec![Plain::<f32>::default(); count];
    let mut from = first;
    for (index, plain) in plain.iter_mut().enumerate() {
        plain.weight = random(&mut prng);
        store(from, index, plain.weight);
        // The first step does not read them.
        store(one, index, f32::NAN);
        store(two, index, f32::NAN);
    }
    for number in 1..=STEPS {
        let step = Step {
            scale: 0.7,
            ..step(optimizer, 0.05, number)
        };
        // In place, then out of place, by both ways to store.
        let to = if number % 2 == 1 { from } else { second };
        for (index, plain) in plain.iter_mut().enumerate() {
            let value = put_gradient(dtype, gradient, index, random(&mut prng));
            plain.step(&step, value);
        }
        let published = published.map(|dtype| (dtype, copy));
        let run = if number == 4 {
            update_streaming
        } else {
            update
        };
        let weights = Weights {
            to,
            published,
            ..in_place((dtype, gradient), from, states)
        };
        run(&step, &weights);
        from = if number % 2 == 1 { from } else { first };
        if to.as_ptr() == second.as_ptr() {
            (0..count).for_each(|index| store::<f32>(from, index, load(to, index)));
        }
        for (index, plain) in plain.iter().enumerate() {
            let what = format!("{optimizer:?} {dtype}, step {number}, {index} of {count}");
            let weight: f32 = load(to, index);
            assert_eq!(weight.to_bits(), plain.weight.to_bits(), "{what}");
            for (view, state) in states.iter().zip(plain.states).take(optimizer.states()) {
                assert_eq!(
                    load::<f32>(*view, index).to_bits(),
                    state.to_bits(),
                    "{what}"
                );
            }
            match published {
                Some((DataType::F16, view)) => {
                    assert_eq!(load::<f16>(view, index), f16::from_f32(weight), "{what}");
                }
                Some((_, view)) => {
                    assert_eq!(load::<bf16>(view, index), bf16::from_f32(weight), "{what}");
                }
                None => {}
            }
        }
    }
}

#[test]
fn updates_have_the_bits_of_a_plain_loop() {
    let types = [DataType::F32, DataType::F16, DataType::Bf16];
    for optimizer in optimizers() {
        for count in COUNTS {
            for dtype in types {
                for published in [None, Some(DataType::F16), Some(DataType::Bf16)] {
                    check_bits(optimizer, count, dtype, published);
                }
            }
        }
    }
}

#[test]
fn updates_are_near_those_of_exact_arithmetic() {
    for optimizer in optimizers() {
        let mut prng = Prng::new(3);
        let (_a, gradient) = room(1, DataType::F32);
        let rooms = [(); 3].map(|()| room(1, DataType::F32));
        let [weights, one, two] = [0, 1, 2].map(|index| rooms[index].1);
        let mut exact = Plain::<f64> {
            weight: 1.5,
            states: [0.0; 2],
        };
        store(weights, 0, 1.5f32);
        for number in 1..=200 {
            let step = step(optimizer, 0.01, number);
            let value = put_gradient(DataType::F32, gradient, 0, random(&mut prng));
            exact.step(&step, value);
            let gradient = (DataType::F32, gradient);
            update(&step, &in_place(gradient, weights, [one, two]));
        }
        let error = f64::from(load::<f32>(weights, 0)) - exact.weight;
        assert!(error.abs() < 2e-5, "{optimizer:?}: {error:e}");
    }
}

#[test]
fn parts_give_the_bits_of_the_whole() {
    for optimizer in optimizers() {
        let run = |cuts: &[usize]| {
            let count = cuts[cuts.len() - 1];
            let rooms = [(); 4].map(|()| room(count, DataType::F32));
            let views = [0, 1, 2, 3].map(|index| rooms[index].1);
            let mut prng = Prng::new(5);
            for number in 1..=2 {
                for index in 0..count {
                    store(views[0], index, random(&mut prng));
                }
                for ends in cuts.windows(2) {
                    let [gradient, weights, one, two] =
                        views.map(|view| view.part(ends[0] * 4, (ends[1] - ends[0]) * 4));
                    let gradient = (DataType::F32, gradient);
                    let step = step(optimizer, 0.1, number);
                    update(&step, &in_place(gradient, weights, [one, two]));
                }
            }
            let bits = (0..count).map(|index| load::<u32>(views[1], index));
            bits.collect::<Vec<_>>()
        };
        assert_eq!(run(&[0, 2000]), run(&[0, 1, 33, 700, 1999, 2000]));
    }
}

/// The weight after each step, of gradients that are given.
fn trace(optimizer: Optimizer, rate: f32, weight: f32, gradients: &[f32]) -> Vec<f32> {
    let rooms = [(); 4].map(|()| room(1, DataType::F32));
    let [gradient, weights, one, two] = [0, 1, 2, 3].map(|index| rooms[index].1);
    store(weights, 0, weight);
    let mut found = Vec::new();
    for (value, number) in gradients.iter().zip(1..) {
        store(gradient, 0, *value);
        let step = step(optimizer, rate, number);
        let gradient = (DataType::F32, gradient);
        update(&step, &in_place(gradient, weights, [one, two]));
        found.push(load(weights, 0));
    }
    found
}

#[test]
fn sgd_gives_what_was_computed_by_hand() {
    // w = 2 - 0.5 * 1.
    assert_eq!(trace(Optimizer::sgd(), 0.5, 2.0, &[1.0]), [1.5]);
    // Step 1: d = 1 + 0.25 * 2 = 1.5, b = d, w = 2 - 0.5 * 1.5 = 1.25.
    // Step 2: d = -1 + 0.25 * 1.25 = -0.6875, b = 0.5 * 1.5 + d = 0.0625,
    // w = 1.25 - 0.5 * 0.0625 = 1.21875.
    let optimizer = Optimizer::Sgd {
        momentum: 0.5,
        weight_decay: 0.25,
    };
    assert_eq!(trace(optimizer, 0.5, 2.0, &[1.0, -1.0]), [1.25, 1.21875]);
}

#[test]
fn adam_gives_what_was_computed_by_hand() {
    let near = |found: Vec<f32>, expected: [f32; 2]| {
        for (found, expected) in found.iter().zip(expected) {
            assert!((found - expected).abs() < 3e-7, "{found} {expected}");
        }
    };
    let (betas, epsilon) = ((0.5, 0.75), 0.5);
    let adam = |weight_decay| Optimizer::Adam {
        betas,
        epsilon,
        weight_decay,
    };
    // Step 1: m = 0.5 * 2 = 1, v = 0.25 * 4 = 1; corrected, m = 1 / 0.5 = 2 and v = 1 / 0.25 = 4;
    // w = 1 - 0.25 * 2 / (2 + 0.5) = 0.8.
    // Step 2: m = 0.5 * 1 - 0.5 * 2 = -0.5, v = 0.75 * 1 + 0.25 * 4 = 1.75; corrected,
    // m = -0.5 / 0.75 = -2 / 3 and v = 1.75 / 0.4375 = 4;
    // w = 0.8 + 0.25 * 2 / 3 / 2.5 = 0.8 + 1 / 15.
    let gradients = [2.0, -2.0];
    near(trace(adam(0.0), 0.25, 1.0, &gradients), [0.8, 13.0 / 15.0]);
    // A decay of 0.5 makes the gradients 1.5 + 0.5 * 1 and -2.4 + 0.5 * 0.8 of these.
    near(
        trace(adam(0.5), 0.25, 1.0, &[1.5, -2.4]),
        [0.8, 13.0 / 15.0],
    );
    // Decoupled, it takes 0.25 * 0.5 of the weight first:
    // w = 0.875 * 1 - 0.2 = 0.675, then w = 0.875 * 0.675 + 1 / 15.
    let decoupled = Optimizer::AdamW {
        betas,
        epsilon,
        weight_decay: 0.5,
    };
    let expected = [0.675, 0.875 * 0.675 + 1.0 / 15.0];
    near(trace(decoupled, 0.25, 1.0, &gradients), expected);
}

#[test]
fn adams_first_step_is_as_long_as_the_rate() {
    // The corrections cancel the betas in step 1: w moves by the rate, whatever the gradient.
    for gradient in [1e-3, 1.0, 1e3] {
        let found = trace(Optimizer::adam(), 0.01, 1.0, &[gradient]);
        assert!((found[0] - 0.99).abs() < 1e-6, "{gradient}: {found:?}");
    }
}

#[test]
fn a_weight_that_is_not_finite_stays_so_without_decay() {
    let found = trace(Optimizer::sgd(), 0.1, f32::INFINITY, &[1.0]);
    assert_eq!(found, [f32::INFINITY]);
}

#[test]
fn the_defaults_are_accepted_and_have_their_states() {
    let states: Vec<_> = optimizers().iter().map(Optimizer::states).collect();
    assert_eq!(states, [0, 0, 1, 1, 2, 2, 2, 2]);
    for optimizer in optimizers() {
        optimizer.check().unwrap();
    }
}

#[test]
fn options_out_of_range_are_refused() {
    let refused = |optimizer: Optimizer, text: &str| {
        let error = optimizer.check().expect_err(text).to_string();
        assert_eq!(error, text);
    };
    let sgd = |momentum, weight_decay| Optimizer::Sgd {
        momentum,
        weight_decay,
    };
    for (value, name) in [(-0.5, "-0.5"), (f32::INFINITY, "inf"), (f32::NAN, "NaN")] {
        let least = |rule: &str, field: &str| {
            format!("{rule}: {field} is {name}: it must be finite and at least 0")
        };
        let below_one = |rule: &str, field: &str| {
            format!("{rule}: {field} is {name}: it must be at least 0 and below 1")
        };
        refused(sgd(value, 0.0), &least("SGD", "momentum"));
        refused(sgd(0.0, value), &least("SGD", "weight_decay"));
        let four = |field: usize| {
            let mut numbers = [0.9, 0.999, 1e-8, 0.0];
            numbers[field] = value;
            let [first, second, epsilon, weight_decay] = numbers;
            ((first, second), epsilon, weight_decay)
        };
        for (field, text) in [
            (0, "betas.0"),
            (1, "betas.1"),
            (2, "epsilon"),
            (3, "weight_decay"),
        ] {
            let (betas, epsilon, weight_decay) = four(field);
            for (rule, optimizer) in [
                (
                    "Adam",
                    Optimizer::Adam {
                        betas,
                        epsilon,
                        weight_decay,
                    },
                ),
                (
                    "AdamW",
                    Optimizer::AdamW {
                        betas,
                        epsilon,
                        weight_decay,
                    },
                ),
            ] {
                let expected = match field {
                    0 | 1 => below_one(rule, text),
                    _ => least(rule, text),
                };
                refused(optimizer, &expected);
            }
        }
    }
    let one = Optimizer::Adam {
        betas: (0.9, 1.0),
        epsilon: 1e-8,
        weight_decay: 0.0,
    };
    refused(one, "Adam: betas.1 is 1: it must be at least 0 and below 1");
}

#[test]
#[should_panic(expected = "steps are numbered from 1 on")]
fn a_step_without_number_panics() {
    let none = [View::empty(); 2];
    let gradient = (DataType::F32, View::empty());
    let step = step(Optimizer::sgd(), 0.1, 0);
    update(&step, &in_place(gradient, View::empty(), none));
}

#[test]
fn gradients_that_are_not_finite_are_found() {
    let (_a, view) = room(100, DataType::Bf16);
    assert!(!has_nonfinite(DataType::Bf16, view));
    store(view, 99, bf16::NAN);
    assert!(has_nonfinite(DataType::Bf16, view));
}
