//! Folding for CRC32C: 256 bytes of a message at a time are combined with the next 256, whose
//! remainder is then that of both.
//!
//! Source: Gopal, Ozturk, Guilford and others, "Fast CRC Computation for Generic Polynomials Using
//! PCLMULQDQ Instruction" (Intel, 2009), with the reflected constants of its appendix for the
//! polynomial of RFC 3720 and vectors of four lanes.

use crate::memory::View;
use std::arch::x86_64::*;

/// What is folded at a time: four vectors.
pub(super) const BLOCK_BYTES: usize = 256;

/// The polynomial of CRC32C, lowest degree first.
const POLYNOMIAL: u32 = 0x82f6_3b78;

/// x^n modulo the polynomial, as the multiplication of reflected numbers needs it.
const fn power(n: u32) -> i64 {
    let mut rest: u32 = 1 << 31;
    let mut degree = 0;
    while degree < n {
        let is_over = rest & 1 == 1;
        rest >>= 1;
        if is_over {
            rest ^= POLYNOMIAL;
        }
        degree += 1;
    }
    (rest as i64) << 1
}

const BLOCK_BITS: u32 = 8 * BLOCK_BYTES as u32;
/// Factors that move the first and the second half of 16 bytes on by a block.
const FIRST: i64 = power(BLOCK_BITS + 32);
const SECOND: i64 = power(BLOCK_BITS - 32);

/// Whether this CPU has what [`fold`] needs.
pub(super) fn is_present() -> bool {
    is_x86_feature_detected!("avx512f") && is_x86_feature_detected!("vpclmulqdq")
}

/// Folds the whole blocks of a view that follow `state`. Gives 256 bytes that have the same
/// remainder from a state of zero.
///
/// # Safety
/// The CPU has AVX-512 F and VPCLMULQDQ; the view has bytes, at least one block of them.
#[target_feature(enable = "avx512f,vpclmulqdq")]
pub(super) unsafe fn fold(state: u32, view: View) -> [u8; BLOCK_BYTES] {
    let from = view.as_ptr().cast_const();
    // SAFETY: callers pass places inside the view, which is mapped for its length; loads need no
    // alignment.
    let load = |at: usize| unsafe { _mm512_loadu_si512(from.add(at).cast()) };
    let powers = _mm512_set_epi64(SECOND, FIRST, SECOND, FIRST, SECOND, FIRST, SECOND, FIRST);
    let mut sums = [load(0), load(64), load(128), load(192)];
    let state = _mm512_zextsi128_si512(_mm_cvtsi32_si128(state as i32));
    sums[0] = _mm512_xor_si512(sums[0], state);
    let mut at = BLOCK_BYTES;
    while at + BLOCK_BYTES <= view.len_bytes() {
        for (lane, sum) in sums.iter_mut().enumerate() {
            let first = _mm512_clmulepi64_epi128::<0x00>(*sum, powers);
            let second = _mm512_clmulepi64_epi128::<0x11>(*sum, powers);
            let moved = _mm512_xor_si512(first, second);
            *sum = _mm512_xor_si512(moved, load(at + 64 * lane));
        }
        at += BLOCK_BYTES;
    }
    let mut bytes = [0; BLOCK_BYTES];
    for (lane, sum) in sums.into_iter().enumerate() {
        // SAFETY: 64 bytes at four places of 256; stores need no alignment.
        unsafe { _mm512_storeu_si512(bytes.as_mut_ptr().add(64 * lane).cast(), sum) };
    }
    bytes
}
