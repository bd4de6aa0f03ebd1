//! [`Arguments`]: what a call says, [`RoundCall`]: what a round needs of it, and the signature by
//! which ranks compare it.

use super::prepared::Prepared;
use super::signature::Signature;
use crate::memory::View;
use crate::types::{Collective, DataType, Rank, ReduceOp};
use std::sync::Arc;

/// The arguments of a call, apart from its schedule.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Arguments {
    /// The collective, for signatures and texts.
    pub collective: Collective,
    /// Elements per rank.
    pub count: u64,
    /// Element type.
    pub dtype: DataType,
    /// Operator.
    pub op: ReduceOp,
    /// Root.
    pub root: Rank,
    /// The whole input; empty if this rank has none.
    pub input: View,
    /// The whole output.
    pub output: View,
}

/// What a round needs of its call.
#[derive(Clone, Copy)]
pub struct RoundCall<'a> {
    pub prepared: &'a Arc<Prepared>,
    pub arguments: &'a Arguments,
    pub slots: &'a [u64],
    pub others: &'a [View],
}

pub(super) fn signature_of(arguments: &Arguments, prepared: &Prepared, slots: &[u64]) -> Signature {
    let signature = Signature::new(
        arguments.collective,
        arguments.dtype,
        arguments.op,
        arguments.root,
        prepared.algorithm,
        arguments.count,
    );
    match arguments.collective {
        // All ranks pass the same slots, so they are compared, too.
        of if of.has_part_lengths() => {
            let hash = slots
                .iter()
                .fold(0, |hash, &slot| crate::prng::mix(hash ^ slot));
            match of {
                Collective::AllGatherV => signature.with_counts(hash),
                _ => signature.with_hash_of_counts(hash),
            }
        }
        _ => signature,
    }
}
