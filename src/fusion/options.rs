//! [`FusionOptions`]: when ready tensors are flushed.

use crate::error::{Error, Result};
use crate::types::ReduceOp;
use std::time::Duration;

/// Fusion buffers of one [`Fusion`](crate::comm::Fusion), at most. Each holds one operation under
/// way, and a rank may run only 16 operations ahead; half of them are left for rounds.
pub const BUFFERS_COUNT_MAX: usize = 8;

const _: () = assert!(2 * BUFFERS_COUNT_MAX as u64 <= crate::limits::OPERATION_SLOTS);

/// When ready tensors are flushed, and how. All ranks must use the same values; they are compared
/// when a [`Fusion`](crate::comm::Fusion) is made.
#[derive(Clone, Debug, PartialEq)]
pub struct FusionOptions {
    /// Bytes of one flush, 1 to 2^40. Default 64 MiB. A flush happens as soon as this many bytes of
    /// one type are ready. A tensor of this size or more goes alone and is reduced where it lies.
    /// Smaller values start earlier and cost more operations.
    pub bytes_max: u64,
    /// How long a ready tensor may wait for company, 0 to one hour. Default 5 ms. It counts from
    /// the moment that the slowest rank has it, and needs no further arrival. Zero flushes what is
    /// ready at once.
    pub age_max: Duration,
    /// Tensors of one flush, at least 1. Default no limit. 1 switches fusion off.
    pub tensors_max: usize,
    /// Flushes under way at once, 1 to [`BUFFERS_COUNT_MAX`]. Default 3: one is packed, one
    /// travels, one is unpacked. Each takes a registered buffer of at most `bytes_max`.
    pub buffers_count: usize,
    /// What is done to the gradients. Default sum; must be defined for the type of every tensor.
    pub op: ReduceOp,
}

impl Default for FusionOptions {
    fn default() -> FusionOptions {
        FusionOptions {
            bytes_max: 64 << 20,
            age_max: Duration::from_millis(5),
            tensors_max: usize::MAX,
            buffers_count: 3,
            op: ReduceOp::Sum,
        }
    }
}

impl FusionOptions {
    /// Checks the ranges.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] with the field's name, its value and what is allowed.
    pub fn check(&self) -> Result<()> {
        if self.bytes_max == 0 || self.bytes_max > 1 << 40 {
            return Err(Error::invalid(format!(
                "FusionOptions: bytes_max is {}: 1 to 2^40",
                self.bytes_max
            )));
        }
        if self.age_max > Duration::from_secs(3600) {
            return Err(Error::invalid(format!(
                "FusionOptions: age_max is {:?}: at most one hour",
                self.age_max
            )));
        }
        if self.tensors_max == 0 {
            return Err(Error::invalid(
                "FusionOptions: tensors_max is 0: at least 1 (1 switches fusion off)",
            ));
        }
        if self.buffers_count == 0 || self.buffers_count > BUFFERS_COUNT_MAX {
            return Err(Error::invalid(format!(
                "FusionOptions: buffers_count is {}: 1 to {BUFFERS_COUNT_MAX}",
                self.buffers_count
            )));
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_are_taken_up_to_their_bounds_and_refused_beyond_by_name() {
        type Set = fn(&mut FusionOptions, u64);
        let most = BUFFERS_COUNT_MAX as u64;
        let fields: [(&str, Set, [u64; 2], &[u64]); 4] = [
            (
                "bytes_max",
                |o, n| o.bytes_max = n,
                [1, 1 << 40],
                &[0, (1 << 40) + 1],
            ),
            (
                "age_max",
                |o, n| o.age_max = Duration::from_secs(n),
                [0, 3600],
                &[3601],
            ),
            (
                "tensors_max",
                |o, n| o.tensors_max = n as usize,
                [1, u64::MAX],
                &[0],
            ),
            (
                "buffers_count",
                |o, n| o.buffers_count = n as usize,
                [1, most],
                &[0, most + 1],
            ),
        ];
        for (name, set, bounds, beyond) in fields {
            let check = |value| {
                let mut options = FusionOptions::default();
                set(&mut options, value);
                options.check()
            };
            for bound in bounds {
                assert_eq!(check(bound), Ok(()), "{name} = {bound}");
            }
            for &value in beyond {
                let text = check(value).unwrap_err().to_string();
                assert!(
                    text.contains(name) && text.contains(&value.to_string()),
                    "{text}"
                );
            }
        }
    }
}
