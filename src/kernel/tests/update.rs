//! Updates of weights: every instruction set and way to store against one element at a time.

use super::*;
use crate::kernel::update::{
    AnyRule, Descent, Intake, Moments, Momentum, Rule, Weights, has_nonfinite, has_nonfinite_with,
    update, update_with,
};

const COUNTS: [usize; 10] = [0, 1, 7, 8, 63, 64, 65, 1024, 1100, 4097];
const GRADIENTS: [DataType; 3] = [DataType::F32, DataType::F16, DataType::Bf16];

fn rules() -> Vec<AnyRule> {
    let mut rules = Vec::new();
    for (scale, decay) in [(1.0, 0.0), (0.3, 0.01)] {
        let (intake, rate) = (Intake { scale, decay }, 0.1);
        rules.push(AnyRule::Descent(Descent { intake, rate }));
        for is_first in [true, false] {
            rules.push(AnyRule::Momentum(Momentum {
                intake,
                rate,
                momentum: 0.9,
                is_first,
            }));
            rules.push(AnyRule::Moments(Moments {
                intake,
                rate,
                keep: 1.0 - decay,
                old: [0.9, 0.999],
                new: [0.1, 0.001],
                root: 0.03,
                epsilon: 1e-8,
                is_first,
            }));
        }
    }
    rules
}

/// Views of one allocation, each `shift` bytes beyond a cache line.
struct Given {
    _region: Region,
    views: [View; 6],
}

impl Given {
    /// Gradients, weights, two states, room for new weights, and for published ones.
    fn new(count: usize, shift: usize, types: (DataType, DataType), seed: u64) -> Given {
        let place_bytes = (count * 4).next_multiple_of(64) + 64;
        let region = Region::private(6 * place_bytes).expect("memory for a test");
        let all = [
            types.0,
            DataType::F32,
            DataType::F32,
            DataType::F32,
            DataType::F32,
            types.1,
        ];
        let mut index = 0;
        let views = all.map(|dtype| {
            index += 1;
            let bytes = count * dtype.size_bytes();
            region.view().part((index - 1) * place_bytes + shift, bytes)
        });
        for (view, salt) in views[..4].iter().zip(0..) {
            let dtype = if salt == 0 { types.0 } else { DataType::F32 };
            write_random(dtype, *view, seed + salt);
        }
        Given {
            _region: region,
            views,
        }
    }

    fn weights(&self, types: (DataType, DataType), in_place: bool) -> Weights {
        let [gradient, from, a, b, to, published] = self.views;
        Weights {
            gradient: (types.0, gradient),
            from,
            to: if in_place { from } else { to },
            states: [a, b],
            published: Some((types.1, published)),
        }
    }
}

/// One element at a time, and its states.
fn apply(rule: &AnyRule, gradient: f32, weight: f32, states: [f32; 2]) -> (f32, Vec<f32>) {
    fn of<R: Rule>(rule: R, gradient: f32, weight: f32, states: [f32; 2]) -> (f32, Vec<f32>) {
        let (weight, states) = rule.apply(gradient, weight, states);
        (weight, states[..R::STATES].to_vec())
    }
    match rule {
        AnyRule::Descent(rule) => of(*rule, gradient, weight, states),
        AnyRule::Momentum(rule) => of(*rule, gradient, weight, states),
        AnyRule::Moments(rule) => of(*rule, gradient, weight, states),
    }
}

fn wide(dtype: DataType, view: View, index: usize) -> f32 {
    match dtype {
        DataType::F16 => access::load::<f16>(view, index).to_f32(),
        DataType::Bf16 => access::load::<bf16>(view, index).to_f32(),
        _ => access::load(view, index),
    }
}

fn check_equal(got: f32, expected: f32, what: &str) {
    let same = got.to_bits() == expected.to_bits() || (got.is_nan() && expected.is_nan());
    assert!(same, "{what}: {got:e} instead of {expected:e}");
}

fn check_update(
    (isa, stores): (Isa, Stores),
    rule: &AnyRule,
    (count, shift): (usize, usize),
    types: (DataType, DataType),
    in_place: bool,
) {
    let given = Given::new(count, shift, types, 17);
    let untouched = Given::new(count, shift, types, 17);
    let weights = given.weights(types, in_place);
    update_with(isa, stores, rule, &weights);
    let [gradient, from, a, b, ..] = untouched.views;
    for index in 0..count {
        let old = [access::load(a, index), access::load(b, index)];
        let (weight, states) = apply(
            rule,
            wide(types.0, gradient, index),
            access::load(from, index),
            old,
        );
        let what = format!(
            "{isa:?} {stores:?} {rule:?} of {types:?}, {index} of {count} at {shift}, in place: {in_place}"
        );
        check_equal(access::load(weights.to, index), weight, &what);
        for (slot, view) in weights.states.iter().enumerate() {
            let expected = states.get(slot).unwrap_or(&old[slot]);
            check_equal(access::load(*view, index), *expected, &what);
        }
        let rounded = match types.1 {
            DataType::F16 => f16::from_f32(weight).to_f32(),
            _ => bf16::from_f32(weight).to_f32(),
        };
        check_equal(wide(types.1, given.views[5], index), rounded, &what);
    }
}

#[test]
fn updates_equal_one_element_at_a_time_on_every_instruction_set() {
    for isa in present() {
        for stores in [Stores::Cached, Stores::Streamed] {
            for rule in rules() {
                for dtype in GRADIENTS {
                    for count in COUNTS {
                        let to = match count % 2 {
                            0 => DataType::F16,
                            _ => DataType::Bf16,
                        };
                        let shift = [0, 4, 60, 1, 64][count % 5];
                        let case = ((isa, stores), (count, shift), (dtype, to));
                        check_update(case.0, &rule, case.1, case.2, false);
                        check_update(case.0, &rule, case.1, case.2, true);
                    }
                }
            }
        }
    }
}

#[test]
fn size_only_views_are_not_updated_and_wrong_ones_refused() {
    let types = (DataType::F32, DataType::F16);
    let given = Given::new(70, 0, types, 3);
    let rule = AnyRule::Descent(Descent {
        intake: Intake {
            scale: 1.0,
            decay: 0.0,
        },
        rate: 1.0,
    });
    let before = values::<f32>(given.views[1]);
    let weights = given.weights(types, true);
    let ghost = Weights {
        gradient: (DataType::F16, View::size_only(140)),
        ..weights
    };
    update(&rule, &ghost);
    assert_eq!(
        before.iter().map(|x| x.to_bits()).collect::<Vec<_>>(),
        values::<u32>(given.views[1])
    );
    let refused = |weights: Weights, part: &str| {
        let error = std::panic::catch_unwind(|| update(&rule, &weights)).expect_err("a panic");
        let text = error.downcast_ref::<String>().expect("a text");
        assert!(text.contains(part), "{text}");
    };
    let short = (DataType::F16, given.views[0].part(0, 138));
    refused(
        Weights {
            gradient: short,
            ..weights
        },
        "an update of 70 weights: gradients of 138 bytes instead of 140",
    );
    refused(
        Weights {
            gradient: (DataType::I32, given.views[0]),
            ..weights
        },
        "they are f32, f16 or bf16",
    );
    refused(
        Weights {
            published: Some((DataType::F32, given.views[0])),
            ..weights
        },
        "they are f16 or bf16",
    );
}

#[test]
fn what_is_not_finite_is_found_anywhere() {
    /// The largest finite value, then those that are not finite.
    fn bits_of(dtype: DataType) -> [u32; 5] {
        let [largest, infinite, sign] = match dtype {
            DataType::F16 => [0x7bff, 0x7c00, 0x8000],
            DataType::Bf16 => [0x7f7f, 0x7f80, 0x8000],
            _ => [0x7f7f_ffff, 0x7f80_0000, 0x8000_0000],
        };
        [
            largest,
            infinite,
            infinite | sign,
            infinite | 1,
            sign | (sign - 1),
        ]
    }
    for dtype in GRADIENTS {
        let size = dtype.size_bytes();
        let [largest, others @ ..] = bits_of(dtype);
        for count in COUNTS {
            let region = Region::private(count * size + 1).expect("memory for a test");
            let view = region.view().part(1, count * size);
            let put = |index: usize, bits: u32| {
                access::write(view, index * size, &bits.to_le_bytes()[..size]);
            };
            (0..count).for_each(|index| put(index, largest));
            for isa in present() {
                assert!(!has_nonfinite_with(isa, dtype, view), "{dtype} {count}");
                for index in (0..count).step_by(61).chain(count.checked_sub(1)) {
                    let bits = others[index % others.len()];
                    put(index, bits);
                    assert!(has_nonfinite_with(isa, dtype, view), "{bits:x} at {index}");
                    put(index, largest);
                }
            }
        }
        assert!(!has_nonfinite(dtype, View::size_only(64)));
    }
}
