//! [`build_flushes`]: which ready tensors go together. Pure: the same arguments give the same list
//! on every rank.
//!
//! Rule, per element type: tensors of `bytes_max` or more go alone. The others are taken in the
//! kept order and packed one after another; a group ends before the tensor that would exceed
//! `bytes_max`, and when it reaches `bytes_max` or `tensors_max`. Groups that ended are flushed;
//! the last, unfinished one only when the flush is forced by age or by the end of the backward
//! pass. (The published simulation tests the size after adding, and so exceeds it.)

use super::bits::Bits;
use super::{FusionOptions, TensorSet, TensorSpec};
use crate::error::{Error, Result};
use crate::types::DataType;

/// One flush: tensors of one type that are reduced together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Flush {
    /// Position in its step, from 0.
    pub index: u32,
    /// Type of all its elements.
    pub dtype: DataType,
    /// Sum of its tensors' bytes.
    pub bytes: u64,
    first: u32,
    tensors_count: u32,
}

/// The flushes of one step in the order in which all ranks start them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct FlushList {
    tensors: Vec<u32>,
    flushes: Vec<Flush>,
}

impl FlushList {
    /// An empty list with room for `tensors_count` tensors.
    pub fn with_capacity(tensors_count: usize) -> FlushList {
        FlushList {
            tensors: Vec::with_capacity(tensors_count),
            flushes: Vec::with_capacity(tensors_count),
        }
    }

    /// A plan that somebody else made, as tensors per flush.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`]: an empty flush, a tensor twice, not declared or (unless empty)
    /// in none, mixed types.
    pub fn from_plan(set: &TensorSet, plan: &[Vec<u32>]) -> Result<FlushList> {
        let mut list = FlushList::with_capacity(set.len());
        let mut seen = Bits::new(set.len());
        for (index, tensors) in plan.iter().enumerate() {
            let Some(&first) = tensors.first() else {
                return Err(Error::invalid(format!(
                    "flush {index} of the plan is empty"
                )));
            };
            for &tensor in tensors {
                let tensor = tensor as usize;
                if tensor >= set.len() || seen.contains(tensor) {
                    return Err(Error::invalid(format!(
                        "flush {index} of the plan has tensor {tensor}: already in the plan, or not one of the {} declared",
                        set.len()
                    )));
                }
                if set.spec(tensor).dtype != set.spec(first as usize).dtype {
                    return Err(Error::invalid(format!(
                        "flush {index} of the plan mixes {} of {} and {} of {}",
                        set.label(first as usize),
                        set.spec(first as usize).dtype,
                        set.label(tensor),
                        set.spec(tensor).dtype
                    )));
                }
                seen.insert(tensor);
            }
            list.push(set, set.spec(first as usize).dtype, tensors);
        }
        match (0..set.len()).find(|&t| set.bytes(t) > 0 && !seen.contains(t)) {
            Some(tensor) => Err(Error::invalid(format!(
                "{} is in no flush of the plan",
                set.label(tensor)
            ))),
            None => Ok(list),
        }
    }

    /// Number of flushes.
    pub fn len(&self) -> usize {
        self.flushes.len()
    }

    /// The flush with this index. Panics if there is none.
    pub fn get(&self, index: usize) -> Flush {
        self.flushes[index]
    }

    /// All flushes, in order.
    pub fn iter(&self) -> impl Iterator<Item = Flush> + '_ {
        self.flushes.iter().copied()
    }

    /// The tensors of a flush of this list, in the order in which they are packed.
    pub fn tensors_of(&self, flush: Flush) -> &[u32] {
        &self.tensors[flush.first as usize..][..flush.tensors_count as usize]
    }

    /// Removes all, keeps the memory.
    pub fn clear(&mut self) {
        self.tensors.clear();
        self.flushes.clear();
    }

    /// Appends a flush of these tensors.
    pub(super) fn push(&mut self, set: &TensorSet, dtype: DataType, tensors: &[u32]) {
        self.tensors.extend_from_slice(tensors);
        self.end_flush(set, dtype, self.tensors.len() - tensors.len());
    }

    /// Makes a flush of the tensors from position `first` on, if there are any.
    fn end_flush(&mut self, set: &TensorSet, dtype: DataType, first: usize) {
        let tensors = &self.tensors[first..];
        if tensors.is_empty() {
            return;
        }
        self.flushes.push(Flush {
            index: self.flushes.len() as u32,
            dtype,
            bytes: tensors.iter().map(|&t| set.bytes(t as usize)).sum(),
            first: first as u32,
            tensors_count: tensors.len() as u32,
        });
    }
}

/// Appends to `list` the flushes that the `candidates` make, taken in `order` (a permutation of all
/// tensors). Empty tensors are never part of one. `is_forced`: nothing is kept back for company.
pub fn build_flushes(
    set: &TensorSet,
    options: &FusionOptions,
    order: &[u32],
    candidates: impl Fn(usize) -> bool,
    is_forced: bool,
    list: &mut FlushList,
) {
    for &dtype in set.dtypes() {
        let of_type = |&&tensor: &&u32| {
            let tensor = tensor as usize;
            // Candidates are tested first, because they are few: the data of the other tensors is
            // in no cache when the last gradient arrives.
            candidates(tensor) && set.spec(tensor).dtype == dtype && set.bytes(tensor) > 0
        };
        for &tensor in order.iter().filter(of_type) {
            if set.bytes(tensor as usize) >= options.bytes_max {
                list.push(set, dtype, &[tensor]);
            }
        }
        let (mut first, mut bytes) = (list.tensors.len(), 0);
        for &tensor in order.iter().filter(of_type) {
            let size = set.bytes(tensor as usize);
            if size >= options.bytes_max {
                continue;
            }
            if bytes + size > options.bytes_max {
                list.end_flush(set, dtype, first);
                (first, bytes) = (list.tensors.len(), 0);
            }
            list.tensors.push(tensor);
            bytes += size;
            if bytes == options.bytes_max || list.tensors.len() - first >= options.tensors_max {
                list.end_flush(set, dtype, first);
                (first, bytes) = (list.tensors.len(), 0);
            }
        }
        if is_forced {
            list.end_flush(set, dtype, first);
        } else {
            list.tensors.truncate(first);
        }
    }
}

impl FusionOptions {
    /// The flushes of a step in which all of these tensors are ready at once: for each the indices
    /// of its tensors. [`Fusion::with_plan`](crate::Fusion::with_plan) takes such a plan.
    ///
    /// ```
    /// use linerate::{DataType, FusionOptions, TensorSpec};
    /// let options = FusionOptions { bytes_max: 4096, ..FusionOptions::default() };
    /// let tensor = |count| TensorSpec { name: "a".into(), count, dtype: DataType::F32 };
    /// let tensors = vec![tensor(1000), tensor(100), tensor(2000)];
    /// assert_eq!(options.plan(tensors)?, [vec![2], vec![0], vec![1]]);
    /// # Ok::<(), linerate::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::InvalidArgument`]: an option is out of range, or there are too many tensors.
    pub fn plan(&self, tensors: Vec<TensorSpec>) -> Result<Vec<Vec<u32>>> {
        self.check()?;
        let set = TensorSet::new(tensors)?;
        let order: Vec<u32> = (0..set.len() as u32).collect();
        let mut list = FlushList::with_capacity(set.len());
        build_flushes(&set, self, &order, |_| true, true, &mut list);
        Ok(list.iter().map(|f| list.tensors_of(f).to_vec()).collect())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;

    fn flushes(sizes: &[(u64, DataType)], tensors_max: usize, is_forced: bool) -> Vec<Vec<u32>> {
        let specs = (sizes.iter())
            .map(|&(bytes, dtype)| TensorSpec {
                name: "t".into(),
                count: bytes / dtype.size_bytes() as u64,
                dtype,
            })
            .collect();
        let set = TensorSet::new(specs).unwrap();
        let options = FusionOptions {
            tensors_max,
            ..FusionOptions::default()
        };
        let order: Vec<u32> = (0..sizes.len() as u32).collect();
        let mut list = FlushList::default();
        build_flushes(&set, &options, &order, |_| true, is_forced, &mut list);
        list.iter().map(|f| list.tensors_of(f).to_vec()).collect()
    }

    fn f32s(sizes: &[u64]) -> Vec<(u64, DataType)> {
        sizes.iter().map(|&bytes| (bytes, DataType::F32)).collect()
    }

    #[test]
    fn a_tensor_of_65_mib_goes_alone_at_once() {
        let sizes = f32s(&[4, 65 * MIB, 8]);
        assert_eq!(flushes(&sizes, usize::MAX, false), [[1]]);
        assert_eq!(
            flushes(&sizes, usize::MAX, true),
            [vec![1], vec![0, 2]],
            "its neighbours stay together"
        );
    }

    #[test]
    fn exactly_64_mib_are_flushed_and_one_element_less_waits() {
        assert_eq!(flushes(&f32s(&[64 * MIB]), usize::MAX, false), [[0]]);
        assert_eq!(
            flushes(&f32s(&[63 * MIB, MIB]), usize::MAX, false),
            [[0, 1]]
        );
        assert!(flushes(&f32s(&[64 * MIB - 4]), usize::MAX, false).is_empty());
        assert!(flushes(&f32s(&[63 * MIB, MIB - 4]), usize::MAX, false).is_empty());
    }

    #[test]
    fn a_group_ends_before_the_tensor_that_would_exceed_the_size() {
        let sizes = f32s(&[60 * MIB, 10 * MIB, 50 * MIB]);
        assert_eq!(flushes(&sizes, usize::MAX, false), [[0]]);
        assert_eq!(flushes(&sizes, usize::MAX, true), [vec![0], vec![1, 2]]);
    }

    #[test]
    fn a_group_ends_at_the_count() {
        assert_eq!(
            flushes(&f32s(&[4; 5]), 2, false),
            [[0, 1], [2, 3]],
            "the fifth waits for company"
        );
        assert_eq!(flushes(&f32s(&[4; 3]), 1, false), [[0], [1], [2]]);
    }

    #[test]
    fn types_never_share_a_flush_and_empty_tensors_are_in_none() {
        let sizes = [
            (4, DataType::F32),
            (8, DataType::F64),
            (0, DataType::F32),
            (4, DataType::F32),
            (2, DataType::Bf16),
        ];
        assert_eq!(
            flushes(&sizes, usize::MAX, true),
            [vec![1], vec![0, 3], vec![4]]
        );
        assert!(flushes(&[], 1, true).is_empty());
        assert!(flushes(&f32s(&[0, 0]), 1, true).is_empty());
    }
}
