//! Properties of the kernels: every instruction set of this CPU against the scalar code, and the
//! scalar code against the words of the contract.

mod patterns;
mod update;

use super::*;
use crate::memory::{Element, Region};
use crate::types::{F8E4M3, F8E5M2};
use half::{bf16, f16};
use proptest::prelude::*;

const COMBINES: [Combine; 7] = [
    Combine::Sum,
    Combine::Prod,
    Combine::Min,
    Combine::Max,
    Combine::BitAnd,
    Combine::BitOr,
    Combine::BitXor,
];

/// Whether a reduction of this type exists.
fn is_defined(dtype: DataType, combine: Combine, finish: Finish) -> bool {
    let has_order = !dtype.is_complex();
    let has_bits = has_order && !dtype.is_float();
    let is_combined = match combine {
        Combine::Sum => true,
        Combine::Prod | Combine::Min | Combine::Max => has_order,
        Combine::BitAnd | Combine::BitOr | Combine::BitXor => has_bits,
    };
    is_combined && (finish == Finish::None || dtype != DataType::Bool)
}

fn present() -> impl Iterator<Item = Isa> {
    let all = [Isa::Scalar, Isa::Avx2, Isa::Avx512, Isa::Avx512Bf16];
    all.into_iter().filter(|isa| isa.is_present())
}

/// Region-backed elements; the region outlives the view in each test.
fn filled<T: Element>(values: &[T]) -> (Region, View) {
    let region = Region::private(size_of_val(values).max(1)).expect("memory for a test");
    let view = region.view().part(0, size_of_val(values));
    access::write(view, 0, bytemuck::cast_slice(values));
    (region, view)
}

fn values<T: Element>(view: View) -> Vec<T> {
    (0..view.len_bytes() / size_of::<T>())
        .map(|index| access::load(view, index))
        .collect()
}

fn reduction(isa: Isa, dtype: DataType, combine: Combine, finish: Finish) -> Reduction {
    Reduction {
        isa,
        stores: Stores::Cached,
        dtype,
        combine,
        finish,
    }
}

fn reduced<T: Element>(isa: Isa, combine: Combine, finish: Finish, sources: &[&[T]]) -> Vec<T> {
    let inputs: Vec<_> = sources.iter().map(|values| filled(values)).collect();
    let views: Vec<View> = inputs.iter().map(|(_, view)| *view).collect();
    let (_output_region, output) = filled(sources[0]);
    BoundReduction::of(reduction(isa, T::DTYPE, combine, finish)).run(&views, &[output]);
    values(output)
}

fn scaled<T: Element>(isa: Isa, factor: f64, from: &[T]) -> Vec<T> {
    let (_region, view) = filled(from);
    scale_with(isa, T::DTYPE, factor, view, view);
    values(view)
}

/// Whether an element is NaN, of a type that is not complex.
fn is_nan(dtype: DataType, view: View, index: usize) -> bool {
    match dtype {
        DataType::F64 => access::load::<f64>(view, index).is_nan(),
        DataType::F32 => access::load::<f32>(view, index).is_nan(),
        DataType::F16 => access::load::<f16>(view, index).is_nan(),
        DataType::Bf16 => access::load::<bf16>(view, index).is_nan(),
        DataType::F8E4M3 => access::load::<F8E4M3>(view, index).is_nan(),
        DataType::F8E5M2 => access::load::<F8E5M2>(view, index).is_nan(),
        _ => false,
    }
}

fn element(dtype: DataType, view: View, index: usize) -> Vec<u8> {
    let mut bytes = vec![0; dtype.size_bytes()];
    access::read(view, index * dtype.size_bytes(), &mut bytes);
    bytes
}

/// Equal bits, or (unless `nan_bits` matter) both NaN.
fn check_same(dtype: DataType, got: View, expected: View, nan_bits: bool) {
    let dtype = dtype.part();
    for index in 0..got.len_bytes() / dtype.size_bytes() {
        let both_nan = is_nan(dtype, got, index) && is_nan(dtype, expected, index);
        if nan_bits || !both_nan {
            assert_eq!(
                element(dtype, got, index),
                element(dtype, expected, index),
                "element {index}"
            );
        }
    }
}

/// Bytes that hold special values of the type more often than chance would have it.
fn write_random(dtype: DataType, view: View, seed: u64) {
    let dtype = dtype.part();
    let mut state = seed;
    for index in 0..view.len_bytes() / dtype.size_bytes() {
        state = crate::prng::mix(state.wrapping_add(index as u64));
        let special = (state >> 60) % 8;
        let bits = state.rotate_left(17);
        match dtype {
            DataType::F64 => access::store(view, index, special_f64(special, f64::from_bits(bits))),
            DataType::F32 => {
                let usual = f32::from_bits(bits as u32);
                access::store(view, index, special_f64(special, f64::from(usual)) as f32);
            }
            DataType::F16 => {
                let usual = f16::from_bits(bits as u16);
                access::store(
                    view,
                    index,
                    f16::from_f64(special_f64(special, usual.to_f64())),
                );
            }
            DataType::Bf16 => {
                let usual = bf16::from_bits(bits as u16);
                access::store(
                    view,
                    index,
                    bf16::from_f64(special_f64(special, usual.to_f64())),
                );
            }
            _ => access::write(
                view,
                index * dtype.size_bytes(),
                &bits.to_le_bytes()[..dtype.size_bytes()],
            ),
        }
    }
}

fn special_f64(special: u64, usual: f64) -> f64 {
    match special {
        0 => 0.0,
        1 => -0.0,
        2 => 1.0 + usual.to_bits() as f64 / u64::MAX as f64,
        3 if usual.to_bits().is_multiple_of(4) => f64::NAN,
        4 if usual.to_bits().is_multiple_of(4) => f64::INFINITY,
        5 if usual.to_bits().is_multiple_of(4) => f64::NEG_INFINITY,
        _ => usual,
    }
}

/// Views of one region, `bytes` long each: for an even skew all begin `skew` bytes into a cache
/// line (and can be streamed), for an odd one they lie apart so that their alignments differ.
fn spread(region: &Region, bytes: usize, count: usize, skew: usize) -> Vec<View> {
    if skew.is_multiple_of(2) {
        let stride = (bytes + 64).next_multiple_of(64);
        return (0..count)
            .map(|index| region.view().part(index * stride + skew, bytes))
            .collect();
    }
    let stride = bytes + 67;
    (0..count)
        .map(|index| {
            region
                .view()
                .part(index * stride + (skew * (index + 1)) % 64, bytes)
        })
        .collect()
}

#[derive(Clone, Copy, Debug)]
struct Shape {
    count: usize,
    sources: usize,
    destinations: usize,
    in_place: usize,
    skew: usize,
    seed: u64,
}

fn shape() -> impl Strategy<Value = Shape> {
    (
        0..700usize,
        1..=5usize,
        1..=3usize,
        0..=3usize,
        0..64usize,
        any::<u64>(),
    )
        .prop_map(
            |(count, sources, destinations, in_place, skew, seed)| Shape {
                count,
                sources,
                destinations,
                in_place: in_place.min(sources).min(destinations),
                skew,
                seed,
            },
        )
}

/// Runs one reduction and gives its destinations, of which the first `in_place` are the last
/// sources.
fn run(reduction: Reduction, shape: Shape) -> (Region, Vec<View>) {
    let dtype = reduction.dtype;
    let bytes = shape.count * dtype.size_bytes();
    let views_count = shape.sources + shape.destinations;
    let region = Region::private((bytes + 128) * views_count + 64).expect("memory for a test");
    let views = spread(&region, bytes, views_count, shape.skew);
    let (sources, rest) = views.split_at(shape.sources);
    for (index, source) in sources.iter().enumerate() {
        write_random(dtype, *source, shape.seed.wrapping_add(index as u64));
    }
    let mut destinations = rest.to_vec();
    for (index, destination) in destinations.iter_mut().take(shape.in_place).enumerate() {
        *destination = sources[shape.sources - 1 - index];
    }
    BoundReduction::of(reduction).run(sources, &destinations);
    (region, destinations)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]

    #[test]
    fn every_instruction_set_reduces_like_the_scalar_code(shape in shape(), ranks in 1..400u32) {
        for dtype in DataType::ALL {
            for combine in COMBINES {
                for finish in [Finish::None, Finish::Divide(ranks)] {
                    if !is_defined(dtype, combine, finish) {
                        continue;
                    }
                    let oracle = reduction(Isa::Scalar, dtype, combine, finish);
                    let (_region, expected) = run(oracle, shape);
                    let nan_bits = matches!(combine, Combine::Min | Combine::Max)
                        && shape.sources > 1 && finish == Finish::None;
                    for (isa, stores) in present().flat_map(|isa| [(isa, Stores::Cached), (isa, Stores::Streamed)]) {
                        let (_region, got) = run(Reduction { isa, stores, ..oracle }, shape);
                        for (got, expected) in got.iter().zip(&expected) {
                            check_same(dtype, *got, *expected, nan_bits);
                        }
                    }
                }
            }
        }
    }

    #[test]
    fn every_instruction_set_scales_like_the_scalar_code(shape in shape(), factor in -3.0..3.0f64) {
        for dtype in DataType::ALL.into_iter().filter(|dtype| dtype.part().is_float()) {
            let bytes = shape.count * dtype.size_bytes();
            let region = Region::private(3 * bytes + 64).expect("memory for a test");
            let part = |index| region.view().part(shape.skew + index * bytes, bytes);
            let [source, expected, got] = [0, 1, 2].map(part);
            write_random(dtype, source, shape.seed);
            scale_with(Isa::Scalar, dtype, factor, source, expected);
            for isa in present() {
                access::fill(got, 0x5a);
                scale_with(isa, dtype, factor, source, got);
                check_same(dtype, got, expected, false);
            }
        }
    }
}

#[test]
fn f32_sums_depend_on_the_order_and_follow_the_sources() {
    let (big, one) = ([1e8f32; 100], [1f32; 100]);
    let minus = [-1e8f32; 100];
    for isa in present() {
        let kept = reduced(isa, Combine::Sum, Finish::None, &[&big, &minus, &one]);
        let lost = reduced(isa, Combine::Sum, Finish::None, &[&big, &one, &minus]);
        assert_eq!((kept, lost), (vec![1.0; 100], vec![0.0; 100]), "{isa:?}");
    }
}

#[test]
fn halves_are_folded_in_f32_and_rounded_once() {
    // In f16 every single 2048 + 1 rounds back to 2048.
    let (big, one) = ([f16::from_f32(2048.0); 77], [f16::ONE; 77]);
    let (big_b, one_b) = ([bf16::from_f32(256.0); 77], [bf16::ONE; 77]);
    for isa in present() {
        let sums = reduced(isa, Combine::Sum, Finish::None, &[&big, &one, &one]);
        assert_eq!(sums, [f16::from_f32(2050.0); 77], "{isa:?}");
        let sums = reduced(isa, Combine::Sum, Finish::None, &[&big_b, &one_b, &one_b]);
        assert_eq!(sums, [bf16::from_f32(258.0); 77], "{isa:?}");
    }
}

#[test]
fn subnormal_bf16_results_are_rounded_and_not_flushed() {
    // Every subnormal, each among normal values: 0x0080 is the least normal one.
    let values: Vec<bf16> = (0..0x0080u16)
        .flat_map(|bits| [bits, 0x3f80, 0x8000 | bits])
        .map(bf16::from_bits)
        .collect();
    let tiny = vec![bf16::from_bits(1); values.len()];
    let halves = vec![bf16::from_f32(0.5); values.len()];
    let bits = |got: &[bf16]| got.iter().map(|b| b.to_bits()).collect::<Vec<_>>();
    for (combine, other) in [(Combine::Sum, &tiny), (Combine::Prod, &halves)] {
        let pair = [&values[..], other];
        let expected = bits(&reduced(Isa::Scalar, combine, Finish::None, &pair));
        let is_subnormal = |bits: &&u16| (1..0x80).contains(&(**bits & 0x7fff));
        assert!(expected.iter().filter(is_subnormal).count() > 200);
        for isa in present() {
            let got = reduced(isa, combine, Finish::None, &pair);
            assert_eq!(bits(&got), expected, "{isa:?} {combine:?}");
        }
    }
}

#[test]
fn nan_wins_in_both_orders_with_the_same_bits() {
    let noisy = [f32::from_bits(0xffc0_1234); 37];
    let quiet = [1f32; 37];
    for isa in present() {
        for combine in [Combine::Min, Combine::Max] {
            for pair in [[&noisy[..], &quiet], [&quiet, &noisy], [&noisy, &noisy]] {
                let result = reduced(isa, combine, Finish::None, &pair);
                let bits: Vec<u32> = result.iter().map(|value| value.to_bits()).collect();
                assert_eq!(bits, [0x7fc0_0000; 37], "{isa:?} {combine:?}");
            }
        }
    }
}

#[test]
fn minus_zero_is_less_than_plus_zero() {
    let (minus, plus) = ([-0f64; 19], [0f64; 19]);
    for isa in present() {
        for pair in [[&minus[..], &plus], [&plus, &minus]] {
            let least = reduced(isa, Combine::Min, Finish::None, &pair);
            let greatest = reduced(isa, Combine::Max, Finish::None, &pair);
            assert!(
                least.iter().all(|value| value.is_sign_negative()),
                "{isa:?}"
            );
            assert!(
                greatest.iter().all(|value| value.is_sign_positive()),
                "{isa:?}"
            );
        }
    }
}

#[test]
fn integers_wrap_and_averages_truncate_toward_zero() {
    let (a, b) = ([i8::MAX; 300], [1i8; 300]);
    let (c, d) = ([-4i64; 50], [-3i64; 50]);
    for isa in present() {
        assert_eq!(
            reduced(isa, Combine::Sum, Finish::None, &[&a, &b]),
            [i8::MIN; 300]
        );
        assert_eq!(
            reduced(isa, Combine::Sum, Finish::Divide(2), &[&c, &d]),
            [-3; 50]
        );
        assert_eq!(
            reduced(isa, Combine::Sum, Finish::Divide(128), &[&a, &b]),
            [-1; 300]
        );
        assert_eq!(
            reduced(isa, Combine::Sum, Finish::Divide(300), &[&a, &b]),
            [0; 300]
        );
        let product = reduced(isa, Combine::Prod, Finish::None, &[&[u64::MAX; 9], &[3; 9]]);
        assert_eq!(product, [u64::MAX - 2; 9]);
    }
}

#[test]
fn float_averages_are_true_quotients() {
    let sums: Vec<f32> = (0..200).map(|index| index as f32 * 0.7).collect();
    let zeros = vec![0f32; 200];
    for isa in present() {
        let expected: Vec<f32> = sums.iter().map(|sum| sum / 3.0).collect();
        assert_eq!(
            reduced(isa, Combine::Sum, Finish::Divide(3), &[&sums, &zeros]),
            expected
        );
    }
}

#[test]
fn all_16_bit_floats_survive_f32_and_round_like_the_half_crate() {
    let halves: Vec<f16> = (0..=u16::MAX)
        .map(f16::from_bits)
        .filter(|h| !h.is_nan())
        .collect();
    let brains: Vec<bf16> = (0..=u16::MAX)
        .map(bf16::from_bits)
        .filter(|b| !b.is_nan())
        .collect();
    // The products are the numbers themselves, ties between two of them, and close to ties on both
    // sides.
    let ulps = [0.0, 1.0, 0.99, 1.01, 3.0];
    for isa in present() {
        for ulp in ulps {
            let factor = (1.0 + ulp * 2f64.powi(-11)) as f32;
            let expected = halves.iter().map(|h| f16::from_f32(h.to_f32() * factor));
            let expected: Vec<u16> = expected.map(f16::to_bits).collect();
            let got = scaled(isa, factor.into(), &halves).into_iter();
            let got: Vec<u16> = got.map(f16::to_bits).collect();
            assert!(got == expected, "{isa:?}, f16 times {factor}");
            let factor = (1.0 + ulp * 2f64.powi(-8)) as f32;
            let expected = brains.iter().map(|b| bf16::from_f32(b.to_f32() * factor));
            let expected: Vec<u16> = expected.map(bf16::to_bits).collect();
            let got = scaled(isa, factor.into(), &brains).into_iter();
            let got: Vec<u16> = got.map(bf16::to_bits).collect();
            assert!(got == expected, "{isa:?}, bf16 times {factor}");
        }
    }
}

#[test]
fn one_source_is_a_copy_that_is_finished() {
    let values: Vec<bf16> = (0..99u8).map(|v| bf16::from_f32(v.into())).collect();
    for isa in present() {
        assert_eq!(
            reduced(isa, Combine::Prod, Finish::None, &[&values]),
            values
        );
        let halved: Vec<bf16> = values
            .iter()
            .map(|v| bf16::from_f32(v.to_f32() / 2.0))
            .collect();
        assert_eq!(
            reduced(isa, Combine::Prod, Finish::Divide(2), &[&values]),
            halved
        );
    }
}

#[test]
fn a_streamed_copy_keeps_every_bit_of_a_signalling_nan() {
    let noisy = [f16::from_bits(0x7d01); 500];
    let (_source_region, source) = filled(&noisy);
    let (_target_region, target) = filled(&[f16::ONE; 500]);
    reduce_streaming(
        DataType::F16,
        Combine::Sum,
        Finish::None,
        &[source],
        &[target],
    );
    let copied: Vec<f16> = values(target);
    assert!(copied.iter().all(|value| value.to_bits() == 0x7d01));
}

#[test]
fn only_equally_aligned_destinations_that_are_no_source_are_streamed() {
    let region = Region::private(4096).expect("memory for a test");
    let at = |start| region.view().part(start, 256);
    let head = |dtype, sources: &[View], destinations: &[View]| {
        let reduction = reduction(Isa::Avx2, dtype, Combine::Sum, Finish::None);
        simd::stream_head_bytes(&reduction, sources, destinations)
    };
    let source = at(3);
    assert_eq!(head(DataType::F32, &[source], &[at(512)]), Some(0));
    assert_eq!(
        head(DataType::F32, &[source], &[at(560), at(1072)]),
        Some(16)
    );
    assert_eq!(head(DataType::F32, &[source], &[at(560), at(1024)]), None);
    assert_eq!(head(DataType::F32, &[source], &[at(513)]), None);
    assert_eq!(head(DataType::F32, &[at(512)], &[at(512)]), None);
}

#[test]
fn size_only_views_are_left_alone() {
    let (_region, real) = filled(&[7u32; 4]);
    let ghost = View::size_only(16);
    reduce(
        DataType::U32,
        Combine::Sum,
        Finish::None,
        &[real, ghost],
        &[real],
    );
    reduce(
        DataType::U32,
        Combine::Sum,
        Finish::None,
        &[real, real],
        &[real, ghost],
    );
    scale(DataType::F32, 2.0, ghost, real);
    assert_eq!(values::<u32>(real), [7; 4]);
}

#[test]
#[should_panic(expected = "BitAnd is not defined for f16")]
fn bitwise_and_of_floats_is_refused() {
    let view = View::size_only(4);
    reduce(
        DataType::F16,
        Combine::BitAnd,
        Finish::None,
        &[view],
        &[view],
    );
}

#[test]
#[should_panic(expected = "views of 8 and 16 bytes")]
fn views_of_unequal_length_are_refused() {
    let (a, b) = (View::size_only(8), View::size_only(16));
    reduce(DataType::F32, Combine::Sum, Finish::None, &[a, b], &[a]);
}

#[test]
#[should_panic(expected = "6 bytes are no whole number of f32 elements")]
fn part_of_an_element_is_refused() {
    let view = View::size_only(6);
    reduce(DataType::F32, Combine::Sum, Finish::None, &[view], &[view]);
}

#[test]
#[should_panic(expected = "scaling is defined for floating point, not for i32")]
fn scaling_of_integers_is_refused() {
    scale(DataType::I32, 2.0, View::size_only(8), View::size_only(8));
}

#[test]
fn copies_are_alike_on_both_sides_of_the_length_from_which_vectors_make_them() {
    for bytes in [
        0,
        1,
        VECTORS_BYTES_MIN - 1,
        VECTORS_BYTES_MIN,
        VECTORS_BYTES_MIN + 77,
        100_003,
    ] {
        let region = Region::private(3 * bytes + 64).expect("memory for a test");
        let part = |index| region.view().part(5 + index * (bytes + 9), bytes);
        let [source, one, other] = [0, 1, 2].map(part);
        access::fill(region.view(), 0x5a);
        write_random(DataType::U8, source, 7);
        let expected = values::<u8>(source);
        copy(source, one);
        copy(one, one);
        let copying = BoundReduction::new(DataType::Bf16, Combine::Sum, Finish::None);
        if bytes % 2 == 0 {
            copying.run(&[source], &[other, source]);
            assert!(values::<u8>(other) == expected, "{bytes}");
        }
        assert!(
            values::<u8>(one) == expected && values::<u8>(source) == expected,
            "{bytes}"
        );
        let mut around = [0; 9];
        access::read(region.view().part(5 + bytes, 9), 0, &mut around);
        assert_eq!(around, [0x5a; 9], "{bytes}");
    }
}
