//! [`Isa`]: which of the instruction sets this CPU has.

use crate::types::DataType;
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
    /// 64-byte vectors, and bf16 are rounded by the CPU.
    Avx512Bf16,
}

impl Isa {
    /// The widest that this CPU has.
    #[inline]
    pub(super) fn best() -> Isa {
        static BEST: OnceLock<Isa> = OnceLock::new();
        *BEST.get_or_init(|| {
            let widest_first = [Isa::Avx512Bf16, Isa::Avx512, Isa::Avx2];
            let found = widest_first.into_iter().find(|isa| isa.is_present());
            found.unwrap_or(Isa::Scalar)
        })
    }

    /// The one that is fastest for a type.
    ///
    /// bf16 are widened and rounded in registers, which 64-byte vectors do faster. All other types
    /// stay at 32 bytes. They wait for memory: 64-byte vectors are no faster from a cache, and on
    /// Zen 4 a tenth slower where no cache has the destination. f16 converts a tenth faster with 32
    /// bytes (26.5 GB/s instead of 20 to 24).
    #[inline]
    pub(super) fn best_for(dtype: DataType) -> Isa {
        match dtype {
            DataType::Bf16 => Isa::best(),
            _ => Isa::best().min(Isa::Avx2),
        }
    }

    /// Whether this CPU has it.
    pub(super) fn is_present(self) -> bool {
        match self {
            Isa::Scalar => true,
            #[cfg(target_arch = "x86_64")]
            Isa::Avx2 => is_x86_feature_detected!("avx2") && is_x86_feature_detected!("f16c"),
            #[cfg(target_arch = "x86_64")]
            Isa::Avx512 => {
                Isa::Avx2.is_present()
                    && is_x86_feature_detected!("avx512f")
                    && is_x86_feature_detected!("avx512bw")
                    && is_x86_feature_detected!("avx512dq")
                    && is_x86_feature_detected!("avx512vl")
            }
            #[cfg(target_arch = "x86_64")]
            Isa::Avx512Bf16 => Isa::Avx512.is_present() && is_x86_feature_detected!("avx512bf16"),
            #[cfg(not(target_arch = "x86_64"))]
            _ => false,
        }
    }
}
