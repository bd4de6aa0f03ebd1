//! Types of 8 and 16 bits on all bit patterns: every instruction set against what each operator
//! means, said once more in other words than the scalar code.

use super::*;
use crate::types::Bool;
use num_complex::Complex;

/// Each first value with each second one.
fn pairs<T: Element>(first: &[T], second: &[T]) -> [Vec<T>; 2] {
    let all = first
        .iter()
        .flat_map(|a| second.iter().map(move |b| (*a, *b)));
    let (a, b) = all.unzip();
    [a, b]
}

fn bytes() -> impl Iterator<Item = u8> {
    0..=u8::MAX
}

/// Every element of a reduction of two sources is `wanted` of its pair, by `to_bits`.
fn check_pairs<T: Element>(
    [a, b]: &[Vec<T>; 2],
    (combine, finish): (Combine, Finish),
    wanted: impl Fn(T, T) -> u32,
    to_bits: impl Fn(T) -> u32,
) {
    for isa in present() {
        let got = reduced(isa, combine, finish, &[&a[..], &b[..]]);
        for ((a, b), got) in a.iter().zip(b).zip(got) {
            let (got, wanted) = (to_bits(got), wanted(*a, *b));
            assert_eq!(
                got, wanted,
                "{isa:?}: {combine:?} {finish:?} of {a:?}, {b:?}"
            );
        }
    }
}

#[test]
fn truth_values_are_combined_as_bytes_that_are_0_or_not() {
    let all: Vec<Bool> = bytes().map(Bool::from_bits).collect();
    let pairs = pairs(&all, &all);
    for combine in COMBINES {
        let wanted = |a: Bool, b: Bool| {
            let (a, b) = (a.to_bits() > 0, b.to_bits() > 0);
            u32::from(match combine {
                Combine::Sum | Combine::Max | Combine::BitOr => a || b,
                Combine::Prod | Combine::Min | Combine::BitAnd => a && b,
                Combine::BitXor => a != b,
            })
        };
        let to_bits = |value: Bool| value.to_bits().into();
        check_pairs(&pairs, (combine, Finish::None), wanted, to_bits);
    }
}

/// The value of an operator, computed without overflow, wrapped to the type by `wrap` and then
/// divided if `finish` says so.
fn wide(combine: Combine, finish: Finish, (a, b): (i64, i64), wrap: impl Fn(i64) -> i64) -> i64 {
    let combined = wrap(match combine {
        Combine::Sum => a + b,
        Combine::Prod => a * b,
        Combine::Min => a.min(b),
        Combine::Max => a.max(b),
        Combine::BitAnd => a & b,
        Combine::BitOr => a | b,
        Combine::BitXor => a ^ b,
    });
    match finish {
        Finish::None => combined,
        Finish::Divide(ranks) => combined / i64::from(ranks),
    }
}

macro_rules! check_integers {
    ($type:ty, $pairs:expr) => {
        let to_bits = |value: $type| value as u32;
        for combine in COMBINES {
            for finish in [Finish::None, Finish::Divide(3), Finish::Divide(70_000)] {
                let wanted = |a: $type, b: $type| {
                    let wide = wide(combine, finish, (a.into(), b.into()), |v| {
                        (v as $type).into()
                    });
                    to_bits(wide as $type)
                };
                check_pairs(&$pairs, (combine, finish), wanted, to_bits);
            }
        }
    };
}

#[test]
fn integers_of_8_bits_are_right_for_all_pairs() {
    let unsigned: Vec<u8> = bytes().collect();
    let signed: Vec<i8> = bytes().map(|byte| byte as i8).collect();
    check_integers!(u8, pairs(&unsigned, &unsigned));
    check_integers!(i8, pairs(&signed, &signed));
}

#[test]
fn integers_of_16_bits_are_right_for_all_values_with_those_at_edges() {
    let edges = [
        0, 1, 2, 3, 0xff, 0x100, 0x7ffe, 0x7fff, 0x8000, 0x8001, 0xaaaa, 0xfffe, 0xffff,
    ];
    let unsigned: Vec<u16> = (0..=u16::MAX).collect();
    let signed: Vec<i16> = unsigned.iter().map(|value| *value as i16).collect();
    check_integers!(u16, pairs(&edges, &unsigned));
    check_integers!(i16, pairs(&edges.map(|value: u16| value as i16), &signed));
}

/// The bits that stand for every NaN in the checks.
const NAN: u32 = 0x7f;

macro_rules! check_floats {
    ($type:ident) => {
        let all: Vec<$type> = bytes().map($type::from_bits).collect();
        let pairs = pairs(&all, &all);
        for combine in COMBINES {
            for finish in [Finish::None, Finish::Divide(3)] {
                if !is_defined($type::DTYPE, combine, finish) {
                    continue;
                }
                let to_bits = |value: $type| match value.is_nan() {
                    true => NAN,
                    false => value.to_bits().into(),
                };
                let wanted = |a: $type, b: $type| {
                    let combined = combined(combine, a.to_f32(), b.to_f32());
                    let finished = match finish {
                        Finish::None => combined,
                        Finish::Divide(ranks) => combined / ranks as f32,
                    };
                    to_bits($type::from_f32(finished))
                };
                check_pairs(&pairs, (combine, finish), wanted, to_bits);
            }
        }
    };
}

/// What an operator means for two f32.
fn combined(combine: Combine, a: f32, b: f32) -> f32 {
    let is_less = a.total_cmp(&b).is_lt();
    match combine {
        Combine::Sum => a + b,
        Combine::Prod => a * b,
        _ if a.is_nan() || b.is_nan() => f32::NAN,
        Combine::Min if is_less => a,
        Combine::Max if !is_less => a,
        _ => b,
    }
}

#[test]
fn floats_of_8_bits_are_right_for_all_pairs() {
    check_floats!(F8E4M3);
    check_floats!(F8E5M2);
}

#[test]
fn floats_of_8_bits_are_folded_in_f32_and_rounded_once() {
    // Every single 16 + 0.5 would round back to 16, and 256 + 256 is no number of e4m3.
    // In e5m2 every single 16 + 1.5 would round back to 16.
    let [big, half] = [16.0, 0.5].map(|value| [F8E4M3::from_f32(value); 99]);
    let [huge, minus] = [256.0, -256.0].map(|value| [F8E4M3::from_f32(value); 99]);
    let [large, small] = [16.0, 1.5].map(|value| [F8E5M2::from_f32(value); 99]);
    for isa in present() {
        let sums = reduced(
            isa,
            Combine::Sum,
            Finish::None,
            &[&big, &half, &half, &half],
        );
        assert_eq!(sums, [F8E4M3::from_f32(18.0); 99], "{isa:?}");
        let sums = reduced(isa, Combine::Sum, Finish::None, &[&huge, &huge, &minus]);
        assert_eq!(sums, huge, "{isa:?}");
        let sums = reduced(isa, Combine::Sum, Finish::None, &[&huge, &huge]);
        assert!(sums.iter().all(|sum| sum.is_nan()), "{isa:?}");
        let sums = reduced(isa, Combine::Sum, Finish::None, &[&large, &small, &small]);
        assert_eq!(sums, [F8E5M2::from_f32(20.0); 99], "{isa:?}");
    }
}

#[test]
fn scaled_floats_of_8_bits_are_rounded_once() {
    let all: Vec<F8E4M3> = bytes().map(F8E4M3::from_bits).collect();
    let small: Vec<F8E5M2> = bytes().map(F8E5M2::from_bits).collect();
    for factor in [0.3f32, -2.0, 1e4, 1e-4] {
        for isa in present() {
            for (got, from) in scaled(isa, factor.into(), &all).into_iter().zip(&all) {
                let wanted = F8E4M3::from_f32(from.to_f32() * factor);
                let both_nan = got.is_nan() && wanted.is_nan();
                assert!(
                    both_nan || got.to_bits() == wanted.to_bits(),
                    "{isa:?} {from}"
                );
            }
            for (got, from) in scaled(isa, factor.into(), &small).into_iter().zip(&small) {
                let wanted = F8E5M2::from_f32(from.to_f32() * factor);
                let both_nan = got.is_nan() && wanted.is_nan();
                assert!(
                    both_nan || got.to_bits() == wanted.to_bits(),
                    "{isa:?} {from}"
                );
            }
        }
    }
}

#[test]
fn complex_numbers_are_summed_averaged_and_scaled_by_parts() {
    let a: Vec<Complex<f32>> = (0..333)
        .map(|i| Complex::new(i as f32, 0.1 * i as f32))
        .collect();
    let b: Vec<Complex<f32>> = (0..333)
        .map(|i| Complex::new(0.7, -3.0 * i as f32))
        .collect();
    let wide = |z: &Complex<f32>| Complex::new(f64::from(z.re), f64::from(z.im));
    let [c, d] = [&a, &b].map(|all| all.iter().map(wide).collect::<Vec<_>>());
    for isa in present() {
        let sums = reduced(isa, Combine::Sum, Finish::None, &[&a, &b]);
        let wanted: Vec<_> = a.iter().zip(&b).map(|(a, b)| a + b).collect();
        assert_eq!(sums, wanted, "{isa:?}");
        let averages = reduced(isa, Combine::Sum, Finish::Divide(3), &[&c, &d]);
        let wanted: Vec<_> = c.iter().zip(&d).map(|(c, d)| (c + d) / 3.0).collect();
        assert_eq!(averages, wanted, "{isa:?}");
        let halves: Vec<_> = d.iter().map(|d| d * 0.3).collect();
        assert_eq!(scaled(isa, 0.3, &d), halves, "{isa:?}");
    }
}

#[test]
#[should_panic(expected = "Prod is not defined for c64")]
fn products_of_complex_numbers_are_refused() {
    BoundReduction::new(DataType::C64, Combine::Prod, Finish::None);
}

#[test]
#[should_panic(expected = "averages are not defined for bool")]
fn averages_of_truth_values_are_refused() {
    BoundReduction::new(DataType::Bool, Combine::Sum, Finish::Divide(2));
}
