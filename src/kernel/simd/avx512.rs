//! AVX-512 lanes. Source: Intel 64 and IA-32 Architectures Software Developer's Manual, volume 2.

use super::lane::{FloatLane, IntegerLane, Lane, entry_points, lane, narrowing_stores, pairwise};
use std::arch::x86_64::*;

entry_points!(
    "avx512f,avx512bw,avx512dq,avx512vl",
    fold_avx512,
    scale_avx512
);

macro_rules! avx512_lanes {
    ($($lane:ident: $register:ty, $count:literal of $size:literal bytes, { $($rest:tt)* })*) => {
        $(lane!("avx512f,avx512bw,avx512dq,avx512vl", $lane: $register,
            $count of $size bytes, $($rest)*);)*
    };
}

avx512_lanes! {
    F64: __m512d, 8 of 8 bytes, { _mm512_loadu_pd _mm512_storeu_pd _mm512_stream_pd,
        _mm512_add_pd _mm512_mul_pd min_f64 max_f64, float _mm512_set1_pd _mm512_div_pd }
    F32: __m512, 16 of 4 bytes, { _mm512_loadu_ps _mm512_storeu_ps _mm512_stream_ps,
        _mm512_add_ps _mm512_mul_ps min_f32 max_f32, float _mm512_set1_ps _mm512_div_ps }
    F16: __m512, 16 of 2 bytes, { load_f16 store_f16 stream_f16,
        _mm512_add_ps _mm512_mul_ps min_f32 max_f32, float _mm512_set1_ps _mm512_div_ps }
    Bf16: Pair, 32 of 2 bytes, { load_pairs store_pairs stream_pairs,
        sum_pair prod_pair min_pair max_pair, float splat_pair divide_pair }
    I8: __m512i, 64 of 1 bytes, { _mm512_loadu_epi8 _mm512_storeu_epi8 _mm512_stream_si512,
        _mm512_add_epi8 prod_8 _mm512_min_epi8 _mm512_max_epi8, integer _mm512_and_si512 _mm512_or_si512 _mm512_xor_si512 }
    U8: __m512i, 64 of 1 bytes, { _mm512_loadu_epi8 _mm512_storeu_epi8 _mm512_stream_si512,
        _mm512_add_epi8 prod_8 _mm512_min_epu8 _mm512_max_epu8, integer _mm512_and_si512 _mm512_or_si512 _mm512_xor_si512 }
    Bool: __m512i, 64 of 1 bytes, { load_bool _mm512_storeu_epi8 _mm512_stream_si512,
        _mm512_or_si512 _mm512_and_si512 _mm512_and_si512 _mm512_or_si512, integer _mm512_and_si512 _mm512_or_si512 _mm512_xor_si512 }
    I16: __m512i, 32 of 2 bytes, { _mm512_loadu_epi16 _mm512_storeu_epi16 _mm512_stream_si512,
        _mm512_add_epi16 _mm512_mullo_epi16 _mm512_min_epi16 _mm512_max_epi16, integer _mm512_and_si512 _mm512_or_si512 _mm512_xor_si512 }
    U16: __m512i, 32 of 2 bytes, { _mm512_loadu_epi16 _mm512_storeu_epi16 _mm512_stream_si512,
        _mm512_add_epi16 _mm512_mullo_epi16 _mm512_min_epu16 _mm512_max_epu16, integer _mm512_and_si512 _mm512_or_si512 _mm512_xor_si512 }
    I32: __m512i, 16 of 4 bytes, { _mm512_loadu_epi32 _mm512_storeu_epi32 _mm512_stream_si512,
        _mm512_add_epi32 _mm512_mullo_epi32 _mm512_min_epi32 _mm512_max_epi32, integer _mm512_and_si512 _mm512_or_si512 _mm512_xor_si512 }
    U32: __m512i, 16 of 4 bytes, { _mm512_loadu_epi32 _mm512_storeu_epi32 _mm512_stream_si512,
        _mm512_add_epi32 _mm512_mullo_epi32 _mm512_min_epu32 _mm512_max_epu32, integer _mm512_and_si512 _mm512_or_si512 _mm512_xor_si512 }
    I64: __m512i, 8 of 8 bytes, { _mm512_loadu_epi64 _mm512_storeu_epi64 _mm512_stream_si512,
        _mm512_add_epi64 _mm512_mullo_epi64 _mm512_min_epi64 _mm512_max_epi64, integer _mm512_and_si512 _mm512_or_si512 _mm512_xor_si512 }
    U64: __m512i, 8 of 8 bytes, { _mm512_loadu_epi64 _mm512_storeu_epi64 _mm512_stream_si512,
        _mm512_add_epi64 _mm512_mullo_epi64 _mm512_min_epu64 _mm512_max_epu64, integer _mm512_and_si512 _mm512_or_si512 _mm512_xor_si512 }
}

/// The bf16 of the even places and those of the odd ones, widened. Kept apart they need no
/// shuffles.
pub(super) type Pair = [__m512; 2];

/// The upper half of 32 bits.
const UPPER: i32 = 0xffff_0000_u32 as i32;

/// VRANGE: the lesser, -0 below +0, with the sign of the result; a NaN loses.
const RANGE_MIN: i32 = 0b0100;
/// VRANGE: the greater, otherwise as [`RANGE_MIN`].
const RANGE_MAX: i32 = 0b0101;

macro_rules! range {
    ($name:ident, $register:ty, $range:ident::<$mode:ident>, $compare:ident, $blend:ident, $nan:expr) => {
        #[inline]
        #[target_feature(enable = "avx512f,avx512dq")]
        fn $name(a: $register, b: $register) -> $register {
            let ordered = $range::<$mode>(a, b);
            $blend(ordered, $compare::<_CMP_UNORD_Q>(a, b), $nan)
        }
    };
}
range!(
    min_f32,
    __m512,
    _mm512_range_ps::<RANGE_MIN>,
    _mm512_cmp_ps_mask,
    _mm512_mask_mov_ps,
    _mm512_set1_ps(f32::from_bits(0x7fc0_0000))
);
range!(
    max_f32,
    __m512,
    _mm512_range_ps::<RANGE_MAX>,
    _mm512_cmp_ps_mask,
    _mm512_mask_mov_ps,
    _mm512_set1_ps(f32::from_bits(0x7fc0_0000))
);
range!(
    min_f64,
    __m512d,
    _mm512_range_pd::<RANGE_MIN>,
    _mm512_cmp_pd_mask,
    _mm512_mask_mov_pd,
    _mm512_set1_pd(f64::from_bits(0x7ff8_0000_0000_0000))
);
range!(
    max_f64,
    __m512d,
    _mm512_range_pd::<RANGE_MAX>,
    _mm512_cmp_pd_mask,
    _mm512_mask_mov_pd,
    _mm512_set1_pd(f64::from_bits(0x7ff8_0000_0000_0000))
);

/// # Safety
/// 32 readable bytes.
#[inline]
#[target_feature(enable = "avx512f")]
unsafe fn load_f16(from: *const __m256i) -> __m512 {
    // SAFETY: the caller's contract.
    _mm512_cvtph_ps(unsafe { _mm256_loadu_si256(from) })
}

narrowing_stores!("avx512f", __m512 => _mm512_cvtps_ph::<_MM_FROUND_TO_NEAREST_INT>,
    store_f16 = _mm256_storeu_si256 to __m256i, stream_f16 = _mm256_stream_si256 to __m256i);

/// The bf16 in the upper half of each f32; the lower half has no meaning. Rounds to nearest even by
/// adding just under half of the last kept bit, or half of it if that bit is set; a NaN is cut and
/// made quiet.
#[inline]
#[target_feature(enable = "avx512f")]
fn round_to_bf16(value: __m512) -> __m512i {
    let bits = _mm512_castps_si512(value);
    let odd = _mm512_and_si512(_mm512_srli_epi32::<16>(bits), _mm512_set1_epi32(1));
    let half = _mm512_add_epi32(odd, _mm512_set1_epi32(0x7fff));
    let rounded = _mm512_add_epi32(bits, half);
    let is_nan = _mm512_cmp_ps_mask::<_CMP_UNORD_Q>(value, value);
    _mm512_mask_or_epi32(rounded, is_nan, bits, _mm512_set1_epi32(0x0040_0000))
}

/// # Safety
/// 64 readable bytes.
#[inline]
#[target_feature(enable = "avx512f")]
pub(super) unsafe fn load_pairs(from: *const i32) -> Pair {
    // SAFETY: the caller's contract.
    let both = unsafe { _mm512_loadu_epi32(from) };
    let odd = _mm512_and_si512(both, _mm512_set1_epi32(UPPER));
    [_mm512_slli_epi32::<16>(both), odd].map(|bits| _mm512_castsi512_ps(bits))
}

#[inline]
#[target_feature(enable = "avx512f")]
pub(super) fn join([even, odd]: Pair) -> __m512i {
    let even = _mm512_srli_epi32::<16>(round_to_bf16(even));
    let odd = _mm512_and_si512(round_to_bf16(odd), _mm512_set1_epi32(UPPER));
    _mm512_or_si512(even, odd)
}

narrowing_stores!("avx512f", Pair => join,
    store_pairs = _mm512_storeu_epi32 to i32, stream_pairs = _mm512_stream_si512 to __m512i);

#[inline]
#[target_feature(enable = "avx512f")]
pub(super) fn splat_pair(value: f32) -> Pair {
    [_mm512_set1_ps(value); 2]
}

pairwise!(
    "avx512f,avx512dq",
    Pair,
    sum_pair = _mm512_add_ps,
    prod_pair = _mm512_mul_ps,
    min_pair = min_f32,
    max_pair = max_f32,
    divide_pair = _mm512_div_ps
);

/// Truth values as 0 and 1.
///
/// # Safety
/// 64 readable bytes.
#[inline]
#[target_feature(enable = "avx512f,avx512bw")]
unsafe fn load_bool(from: *const i8) -> __m512i {
    // SAFETY: the caller's contract.
    _mm512_min_epu8(unsafe { _mm512_loadu_epi8(from) }, _mm512_set1_epi8(1))
}

/// The low bytes of the products: of the even bytes and of the odd bytes apart, in 16 bits.
#[inline]
#[target_feature(enable = "avx512f,avx512bw")]
fn prod_8(a: __m512i, b: __m512i) -> __m512i {
    let even = _mm512_mullo_epi16(a, b);
    let odd = _mm512_mullo_epi16(_mm512_srli_epi16::<8>(a), _mm512_srli_epi16::<8>(b));
    let odd = _mm512_slli_epi16::<8>(odd);
    _mm512_mask_mov_epi8(odd, 0x5555_5555_5555_5555, even)
}
