//! bf16 lanes on AVX512-BF16: as in `avx512.rs`, except that the CPU rounds.
//!
//! VCVTNE2PS2BF16 rounds to nearest even and quiets NaN as `half` does, but treats subnormals as
//! zero whatever MXCSR says. Vectors with a subnormal, which are rare, are rounded by the code of
//! `avx512.rs`, so that the bits are the same on every CPU. Source: Intel 64 and IA-32
//! Architectures Software Developer's Manual, volume 2.

use super::avx512::{
    Pair, divide_pair, join, load_pairs, max_pair, min_pair, prod_pair, splat_pair, sum_pair,
};
use super::lane::{FloatLane, Lane, entry_points, lane, narrowing_stores};
use std::arch::x86_64::*;

entry_points!(
    "avx512f,avx512bw,avx512dq,avx512vl,avx512bf16",
    fold_avx512_bf16
);

lane!("avx512f,avx512bw,avx512dq,avx512vl,avx512bf16", Bf16: Pair, 32 of 2 bytes,
    load_pairs store_pairs stream_pairs,
    sum_pair prod_pair min_pair max_pair, float splat_pair divide_pair);

/// VFPCLASSPS: subnormal.
const IS_SUBNORMAL: i32 = 0x20;

/// Where the elements of 16 bits come from: even places from the lower half of a vector, odd ones
/// from the upper.
static INTERLEAVE: [i16; 32] = {
    let mut from = [0; 32];
    let mut place = 0;
    while place < 16 {
        from[2 * place] = place as i16;
        from[2 * place + 1] = 16 + place as i16;
        place += 1;
    }
    from
};

#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512bf16")]
fn round_pair(value: Pair) -> __m512i {
    let [even, odd] = value;
    let subnormal =
        _mm512_fpclass_ps_mask::<IS_SUBNORMAL>(even) | _mm512_fpclass_ps_mask::<IS_SUBNORMAL>(odd);
    if subnormal != 0 {
        return round_subnormal(value);
    }
    let halves = _mm512_cvtne2ps_pbh(odd, even);
    // SAFETY: 32 elements are there; both types are 64 bytes without invalid values.
    unsafe {
        let places = _mm512_loadu_epi16(INTERLEAVE.as_ptr());
        _mm512_permutexvar_epi16(places, std::mem::transmute::<__m512bh, __m512i>(halves))
    }
}

/// It is not inlined, so that the loop keeps its registers.
#[cold]
#[inline(never)]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl")]
fn round_subnormal(value: Pair) -> __m512i {
    join(value)
}

narrowing_stores!("avx512f,avx512bw,avx512dq,avx512vl,avx512bf16", Pair => round_pair,
    store_pairs = _mm512_storeu_epi32 to i32, stream_pairs = _mm512_stream_si512 to __m512i);
