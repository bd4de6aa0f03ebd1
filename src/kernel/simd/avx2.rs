//! AVX2 lanes, with F16C. Source: Intel 64 and IA-32 Architectures Software Developer's Manual,
//! volume 2.

use super::lane::{FloatLane, IntegerLane, Lane, entry_points, lane, narrowing_stores, pairwise};
use std::arch::x86_64::*;

entry_points!("avx2,f16c", fold_avx2, scale_avx2);

macro_rules! avx2_lanes {
    ($($lane:ident: $register:ty, $count:literal of $size:literal bytes, { $($rest:tt)* })*) => {
        $(lane!("avx2,f16c", $lane: $register, $count of $size bytes, $($rest)*);)*
    };
}

avx2_lanes! {
    F64: __m256d, 4 of 8 bytes, { _mm256_loadu_pd _mm256_storeu_pd _mm256_stream_pd,
        _mm256_add_pd _mm256_mul_pd min_f64 max_f64, float _mm256_set1_pd _mm256_div_pd }
    F32: __m256, 8 of 4 bytes, { _mm256_loadu_ps _mm256_storeu_ps _mm256_stream_ps,
        _mm256_add_ps _mm256_mul_ps min_f32 max_f32, float _mm256_set1_ps _mm256_div_ps }
    F16: __m256, 8 of 2 bytes, { load_f16 store_f16 stream_f16,
        _mm256_add_ps _mm256_mul_ps min_f32 max_f32, float _mm256_set1_ps _mm256_div_ps }
    Bf16: Pair, 16 of 2 bytes, { load_pairs store_pairs stream_pairs,
        sum_pair prod_pair min_pair max_pair, float splat_pair divide_pair }
    I8: __m256i, 32 of 1 bytes, { _mm256_loadu_si256 _mm256_storeu_si256 _mm256_stream_si256,
        _mm256_add_epi8 prod_8 _mm256_min_epi8 _mm256_max_epi8, integer _mm256_and_si256 _mm256_or_si256 _mm256_xor_si256 }
    U8: __m256i, 32 of 1 bytes, { _mm256_loadu_si256 _mm256_storeu_si256 _mm256_stream_si256,
        _mm256_add_epi8 prod_8 _mm256_min_epu8 _mm256_max_epu8, integer _mm256_and_si256 _mm256_or_si256 _mm256_xor_si256 }
    Bool: __m256i, 32 of 1 bytes, { load_bool _mm256_storeu_si256 _mm256_stream_si256,
        _mm256_or_si256 _mm256_and_si256 _mm256_and_si256 _mm256_or_si256, integer _mm256_and_si256 _mm256_or_si256 _mm256_xor_si256 }
    I16: __m256i, 16 of 2 bytes, { _mm256_loadu_si256 _mm256_storeu_si256 _mm256_stream_si256,
        _mm256_add_epi16 _mm256_mullo_epi16 _mm256_min_epi16 _mm256_max_epi16, integer _mm256_and_si256 _mm256_or_si256 _mm256_xor_si256 }
    U16: __m256i, 16 of 2 bytes, { _mm256_loadu_si256 _mm256_storeu_si256 _mm256_stream_si256,
        _mm256_add_epi16 _mm256_mullo_epi16 _mm256_min_epu16 _mm256_max_epu16, integer _mm256_and_si256 _mm256_or_si256 _mm256_xor_si256 }
    I32: __m256i, 8 of 4 bytes, { _mm256_loadu_si256 _mm256_storeu_si256 _mm256_stream_si256,
        _mm256_add_epi32 _mm256_mullo_epi32 _mm256_min_epi32 _mm256_max_epi32, integer _mm256_and_si256 _mm256_or_si256 _mm256_xor_si256 }
    U32: __m256i, 8 of 4 bytes, { _mm256_loadu_si256 _mm256_storeu_si256 _mm256_stream_si256,
        _mm256_add_epi32 _mm256_mullo_epi32 _mm256_min_epu32 _mm256_max_epu32, integer _mm256_and_si256 _mm256_or_si256 _mm256_xor_si256 }
    I64: __m256i, 4 of 8 bytes, { _mm256_loadu_si256 _mm256_storeu_si256 _mm256_stream_si256,
        _mm256_add_epi64 prod_64 min_i64 max_i64, integer _mm256_and_si256 _mm256_or_si256 _mm256_xor_si256 }
    U64: __m256i, 4 of 8 bytes, { _mm256_loadu_si256 _mm256_storeu_si256 _mm256_stream_si256,
        _mm256_add_epi64 prod_64 min_u64 max_u64, integer _mm256_and_si256 _mm256_or_si256 _mm256_xor_si256 }
}

/// The bf16 of the even places and those of the odd ones, widened. Kept apart they need no
/// shuffles.
type Pair = [__m256; 2];

/// The upper half of 32 bits.
const UPPER: i32 = 0xffff_0000_u32 as i32;

/// MINPS and MAXPS give their second operand for two zeros and for NaN. Both orders agree
/// otherwise, so the `or` of both is the minimum with -0 < +0, and the `and` the maximum.
macro_rules! extreme {
    ($name:ident, $register:ty, $extreme:ident, $both:ident, $compare:ident, $blend:ident, $nan:expr) => {
        #[inline]
        #[target_feature(enable = "avx2")]
        fn $name(a: $register, b: $register) -> $register {
            let ordered = $both($extreme(a, b), $extreme(b, a));
            $blend(ordered, $nan, $compare::<_CMP_UNORD_Q>(a, b))
        }
    };
}
extreme!(
    min_f32,
    __m256,
    _mm256_min_ps,
    _mm256_or_ps,
    _mm256_cmp_ps,
    _mm256_blendv_ps,
    _mm256_set1_ps(f32::from_bits(0x7fc0_0000))
);
extreme!(
    max_f32,
    __m256,
    _mm256_max_ps,
    _mm256_and_ps,
    _mm256_cmp_ps,
    _mm256_blendv_ps,
    _mm256_set1_ps(f32::from_bits(0x7fc0_0000))
);
extreme!(
    min_f64,
    __m256d,
    _mm256_min_pd,
    _mm256_or_pd,
    _mm256_cmp_pd,
    _mm256_blendv_pd,
    _mm256_set1_pd(f64::from_bits(0x7ff8_0000_0000_0000))
);
extreme!(
    max_f64,
    __m256d,
    _mm256_max_pd,
    _mm256_and_pd,
    _mm256_cmp_pd,
    _mm256_blendv_pd,
    _mm256_set1_pd(f64::from_bits(0x7ff8_0000_0000_0000))
);

/// # Safety
/// 16 readable bytes.
#[inline]
#[target_feature(enable = "avx2,f16c")]
unsafe fn load_f16(from: *const __m128i) -> __m256 {
    // SAFETY: the caller's contract.
    _mm256_cvtph_ps(unsafe { _mm_loadu_si128(from) })
}

narrowing_stores!("avx2,f16c", __m256 => _mm256_cvtps_ph::<_MM_FROUND_TO_NEAREST_INT>,
    store_f16 = _mm_storeu_si128 to __m128i, stream_f16 = _mm_stream_si128 to __m128i);

/// The bf16 in the upper half of each f32; the lower half has no meaning. Rounds to nearest even by
/// adding just under half of the last kept bit, or half of it if that bit is set; a NaN is cut and
/// made quiet.
#[inline]
#[target_feature(enable = "avx2")]
fn round_to_bf16(value: __m256) -> __m256i {
    let bits = _mm256_castps_si256(value);
    let odd = _mm256_and_si256(_mm256_srli_epi32::<16>(bits), _mm256_set1_epi32(1));
    let half = _mm256_add_epi32(odd, _mm256_set1_epi32(0x7fff));
    let rounded = _mm256_add_epi32(bits, half);
    let is_nan = _mm256_castps_si256(_mm256_cmp_ps::<_CMP_UNORD_Q>(value, value));
    let quiet = _mm256_or_si256(bits, _mm256_set1_epi32(0x0040_0000));
    _mm256_blendv_epi8(rounded, quiet, is_nan)
}

/// # Safety
/// 32 readable bytes.
#[inline]
#[target_feature(enable = "avx2")]
unsafe fn load_pairs(from: *const __m256i) -> Pair {
    // SAFETY: the caller's contract.
    let both = unsafe { _mm256_loadu_si256(from) };
    let odd = _mm256_and_si256(both, _mm256_set1_epi32(UPPER));
    [_mm256_slli_epi32::<16>(both), odd].map(|bits| _mm256_castsi256_ps(bits))
}

#[inline]
#[target_feature(enable = "avx2")]
fn join([even, odd]: Pair) -> __m256i {
    let even = _mm256_srli_epi32::<16>(round_to_bf16(even));
    _mm256_blend_epi16::<0b1010_1010>(even, round_to_bf16(odd))
}

narrowing_stores!("avx2", Pair => join,
    store_pairs = _mm256_storeu_si256 to __m256i, stream_pairs = _mm256_stream_si256 to __m256i);

#[inline]
#[target_feature(enable = "avx2")]
fn splat_pair(value: f32) -> Pair {
    [_mm256_set1_ps(value); 2]
}

pairwise!(
    "avx2",
    Pair,
    sum_pair = _mm256_add_ps,
    prod_pair = _mm256_mul_ps,
    min_pair = min_f32,
    max_pair = max_f32,
    divide_pair = _mm256_div_ps
);

/// Truth values as 0 and 1.
///
/// # Safety
/// 32 readable bytes.
#[inline]
#[target_feature(enable = "avx2")]
unsafe fn load_bool(from: *const __m256i) -> __m256i {
    // SAFETY: the caller's contract.
    _mm256_min_epu8(unsafe { _mm256_loadu_si256(from) }, _mm256_set1_epi8(1))
}

/// The low bytes of the products: of the even bytes and of the odd bytes apart, in 16 bits.
#[inline]
#[target_feature(enable = "avx2")]
fn prod_8(a: __m256i, b: __m256i) -> __m256i {
    let even = _mm256_mullo_epi16(a, b);
    let odd = _mm256_mullo_epi16(_mm256_srli_epi16::<8>(a), _mm256_srli_epi16::<8>(b));
    let odd = _mm256_slli_epi16::<8>(odd);
    _mm256_or_si256(odd, _mm256_and_si256(even, _mm256_set1_epi16(0xff)))
}

/// The low 64 bits of the products, from 32-bit halves: `al*bl + ((ah*bl + al*bh) << 32)`.
#[inline]
#[target_feature(enable = "avx2")]
fn prod_64(a: __m256i, b: __m256i) -> __m256i {
    let low = _mm256_mul_epu32(a, b);
    let ah_bl = _mm256_mul_epu32(_mm256_srli_epi64::<32>(a), b);
    let al_bh = _mm256_mul_epu32(a, _mm256_srli_epi64::<32>(b));
    let high = _mm256_slli_epi64::<32>(_mm256_add_epi64(ah_bl, al_bh));
    _mm256_add_epi64(low, high)
}

#[inline]
#[target_feature(enable = "avx2")]
fn min_i64(a: __m256i, b: __m256i) -> __m256i {
    _mm256_blendv_epi8(a, b, _mm256_cmpgt_epi64(a, b))
}

#[inline]
#[target_feature(enable = "avx2")]
fn max_i64(a: __m256i, b: __m256i) -> __m256i {
    _mm256_blendv_epi8(b, a, _mm256_cmpgt_epi64(a, b))
}

/// Where `a > b` as unsigned numbers: with the sign bits flipped the signed comparison says so.
#[inline]
#[target_feature(enable = "avx2")]
fn is_above(a: __m256i, b: __m256i) -> __m256i {
    let sign = _mm256_set1_epi64x(i64::MIN);
    _mm256_cmpgt_epi64(_mm256_xor_si256(a, sign), _mm256_xor_si256(b, sign))
}

#[inline]
#[target_feature(enable = "avx2")]
fn min_u64(a: __m256i, b: __m256i) -> __m256i {
    _mm256_blendv_epi8(a, b, is_above(a, b))
}

#[inline]
#[target_feature(enable = "avx2")]
fn max_u64(a: __m256i, b: __m256i) -> __m256i {
    _mm256_blendv_epi8(b, a, is_above(a, b))
}
