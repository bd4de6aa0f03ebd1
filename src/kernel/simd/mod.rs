//! Vector code for x86-64: AVX2 (with F16C) and AVX-512 (F, BW, DQ, VL), chosen once at run time.
//!
//! Each function does as many leading elements as it can and says how many; the caller does the rest
//! with the scalar code. Elsewhere, and on older CPUs, that is all of them.
//!
//! Not here: the integer division of averages (done block by block in scalar code after the vector sum)
//! and conversions other than those among f32, f16 and bf16.
#![allow(unsafe_code)]

#[cfg(target_arch = "x86_64")]
mod avx2;
#[cfg(target_arch = "x86_64")]
mod avx512;
#[cfg(target_arch = "x86_64")]
mod lane;
#[cfg(target_arch = "x86_64")]
mod x86;

use crate::memory::View;
use crate::types::{Combine, DataType, Finish};
use std::sync::OnceLock;

/// An instruction set that the kernels are written for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Isa {
    /// No vector code of ours.
    Scalar,
    /// 32-byte vectors.
    Avx2,
    /// 64-byte vectors.
    Avx512,
}

impl Isa {
    /// The widest that this CPU has.
    #[inline]
    pub(super) fn best() -> Isa {
        static BEST: OnceLock<Isa> = OnceLock::new();
        *BEST.get_or_init(|| {
            let widest_first = [Isa::Avx512, Isa::Avx2];
            let found = widest_first.into_iter().find(|isa| isa.is_present());
            found.unwrap_or(Isa::Scalar)
        })
    }

    /// Whether this CPU has it.
    pub(super) fn is_present(self) -> bool {
        match self {
            Isa::Scalar => true,
            #[cfg(target_arch = "x86_64")]
            Isa::Avx2 => is_x86_feature_detected!("avx2") && is_x86_feature_detected!("f16c"),
            #[cfg(target_arch = "x86_64")]
            Isa::Avx512 => {
                is_x86_feature_detected!("avx512f")
                    && is_x86_feature_detected!("avx512bw")
                    && is_x86_feature_detected!("avx512dq")
                    && is_x86_feature_detected!("avx512vl")
            }
            #[cfg(not(target_arch = "x86_64"))]
            _ => false,
        }
    }
}

/// Reduces leading elements; how many bytes of each view are done. The arguments are as
/// [`crate::kernel::reduce`] checks them, none is size-only, and the CPU has `isa`.
#[inline]
pub(super) fn reduce(
    isa: Isa,
    dtype: DataType,
    combine: Combine,
    finish: Finish,
    sources: &[View],
    destinations: &[View],
) -> usize {
    match isa {
        Isa::Scalar => 0,
        #[cfg(target_arch = "x86_64")]
        _ => x86::reduce(isa, dtype, (combine, finish), sources, destinations),
        #[cfg(not(target_arch = "x86_64"))]
        _ => 0,
    }
}

/// Scales leading elements; how many. Arguments as in [`crate::kernel::scale`], none size-only.
pub(super) fn scale(
    isa: Isa,
    dtype: DataType,
    factor: f64,
    source: View,
    destination: View,
) -> usize {
    match isa {
        Isa::Scalar => 0,
        #[cfg(target_arch = "x86_64")]
        _ => x86::scale(isa, dtype, factor, source, destination),
        #[cfg(not(target_arch = "x86_64"))]
        _ => 0,
    }
}

/// Converts leading elements; how many. Arguments as in [`crate::kernel::convert`], none size-only.
pub(super) fn convert(
    isa: Isa,
    from: DataType,
    source: View,
    to: DataType,
    destination: View,
) -> usize {
    match isa {
        Isa::Scalar => 0,
        #[cfg(target_arch = "x86_64")]
        _ => x86::convert(isa, from, source, to, destination),
        #[cfg(not(target_arch = "x86_64"))]
        _ => 0,
    }
}
