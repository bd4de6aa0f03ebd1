//! [`TensorSpec`] and [`TensorSet`]: the tensors that every rank announces in every step, declared
//! once.

use super::FusionOptions;
use crate::error::{Error, Result};
use crate::limits;
use crate::prng::mix;
use crate::types::DataType;

/// Tensors of one set, at most: the bit set of a round then has 8 KiB.
pub const TENSORS_MAX: usize = 1 << 16;

/// One declared tensor.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TensorSpec {
    /// Name, for errors and reports. Need not be unique.
    pub name: String,
    /// Elements; zero is allowed.
    pub count: u64,
    /// Element type.
    pub dtype: DataType,
}

/// The declared tensors of a job: the same on all ranks, in the same order.
#[derive(Clone, Debug)]
pub struct TensorSet {
    specs: Vec<TensorSpec>,
    bytes: Vec<u64>,
    dtypes: Vec<DataType>,
}

impl TensorSet {
    /// Checks and keeps the declaration.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`]: more than [`TENSORS_MAX`] tensors, or one above
    /// [`COUNT_MAX`](limits::COUNT_MAX) elements, or more than 2^64 bytes together.
    pub fn new(specs: Vec<TensorSpec>) -> Result<TensorSet> {
        if specs.len() > TENSORS_MAX {
            return Err(Error::invalid(format!(
                "{} tensors declared for fusion: at most {TENSORS_MAX}",
                specs.len()
            )));
        }
        if let Some((index, spec)) =
            (specs.iter().enumerate()).find(|(_, spec)| spec.count > limits::COUNT_MAX)
        {
            return Err(Error::invalid(format!(
                "tensor {index} '{}' has {} elements: at most {}",
                spec.name,
                spec.count,
                limits::COUNT_MAX
            )));
        }
        let bytes: Vec<u64> = (specs.iter())
            .map(|spec| spec.count * spec.dtype.size_bytes() as u64)
            .collect();
        // Sums over any of them then need no check.
        if (bytes.iter().try_fold(0u64, |sum, b| sum.checked_add(*b))).is_none() {
            return Err(Error::invalid(
                "the tensors declared for fusion have more than 2^64 bytes together",
            ));
        }
        let dtypes = (DataType::ALL.into_iter())
            .filter(|dtype| specs.iter().any(|spec| spec.dtype == *dtype))
            .collect();
        Ok(TensorSet {
            specs,
            bytes,
            dtypes,
        })
    }

    /// Number of tensors.
    pub fn len(&self) -> usize {
        self.specs.len()
    }

    /// The tensor with this index. Panics if there is none.
    pub fn spec(&self, tensor: usize) -> &TensorSpec {
        &self.specs[tensor]
    }

    /// Its length in bytes.
    pub fn bytes(&self, tensor: usize) -> u64 {
        self.bytes[tensor]
    }

    /// The types that occur, in the order of their codes.
    pub fn dtypes(&self) -> &[DataType] {
        &self.dtypes
    }

    /// Index and name as errors show them.
    pub fn label(&self, tensor: usize) -> String {
        format!("tensor {tensor} '{}'", self.specs[tensor].name)
    }

    /// Bytes of the largest flush that is packed: no more than `bytes_max`, and no more than all
    /// tensors of one type that are smaller than that.
    pub fn packed_bytes_max(&self, options: &FusionOptions) -> u64 {
        let of_type = |dtype: &DataType| -> u64 {
            (0..self.len())
                .filter(|&t| self.specs[t].dtype == *dtype && self.bytes[t] < options.bytes_max)
                .map(|t| self.bytes[t])
                .sum()
        };
        let largest = self.dtypes.iter().map(of_type).max().unwrap_or(0);
        largest.min(options.bytes_max)
    }

    /// A hash of one tensor's name, count and type.
    pub fn fingerprint_of(&self, tensor: usize) -> u64 {
        let spec = &self.specs[tensor];
        let mut hash = mix(spec.count ^ ((spec.dtype as u64) << 56));
        for chunk in spec.name.as_bytes().chunks(8) {
            let mut word = [0; 8];
            word[..chunk.len()].copy_from_slice(chunk);
            hash = mix(hash ^ u64::from_le_bytes(word));
        }
        mix(hash ^ spec.name.len() as u64)
    }

    /// A hash of the declaration and of the options that all ranks must share.
    pub fn fingerprint(&self, options: &FusionOptions) -> u64 {
        let fields = [
            self.len() as u64,
            options.bytes_max,
            options.age_max.as_nanos() as u64,
            options.tensors_max as u64,
            options.buffers_count as u64,
            u64::from(options.op.code()),
        ];
        let tensors = (0..self.len()).map(|tensor| self.fingerprint_of(tensor));
        (fields.into_iter().chain(tensors)).fold(0, |hash, word| mix(hash ^ word))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn spec(name: &str, count: u64, dtype: DataType) -> TensorSpec {
        TensorSpec {
            name: name.into(),
            count,
            dtype,
        }
    }

    #[test]
    fn the_fingerprint_sees_names_counts_types_order_and_options() {
        let options = FusionOptions::default();
        let (a, b) = (spec("a", 3, DataType::F32), spec("b", 4, DataType::F32));
        let base = TensorSet::new(vec![a.clone(), b.clone()]).unwrap();
        let others = [
            vec![b.clone(), a.clone()],
            vec![a.clone()],
            vec![spec("A", 3, DataType::F32), b.clone()],
            vec![spec("a", 4, DataType::F32), b.clone()],
            vec![spec("a", 3, DataType::I32), b.clone()],
        ];
        for other in others {
            let other = TensorSet::new(other).unwrap();
            assert_ne!(base.fingerprint(&options), other.fingerprint(&options));
        }
        let longer = FusionOptions {
            age_max: std::time::Duration::from_millis(6),
            ..options.clone()
        };
        assert_ne!(base.fingerprint(&options), base.fingerprint(&longer));
        assert_eq!(
            base.fingerprint(&options),
            base.clone().fingerprint(&options)
        );
    }

    #[test]
    fn a_fusion_buffer_is_no_larger_than_what_can_be_packed() {
        let options = FusionOptions {
            bytes_max: 100,
            ..FusionOptions::default()
        };
        let size = |specs| TensorSet::new(specs).unwrap().packed_bytes_max(&options);
        assert_eq!(size(vec![]), 0);
        assert_eq!(
            size(vec![spec("a", 25, DataType::F32)]),
            0,
            "it is reduced where it lies"
        );
        let small = vec![
            spec("a", 10, DataType::F32),
            spec("b", 5, DataType::F32),
            spec("c", 7, DataType::F64),
        ];
        assert_eq!(size(small), 60);
        assert_eq!(size(vec![spec("a", 24, DataType::F32); 3]), 100);
    }

    #[test]
    fn absurd_declarations_are_refused() {
        assert!(TensorSet::new(vec![spec("a", u64::MAX, DataType::F64)]).is_err());
        assert!(TensorSet::new(vec![spec("a", 1, DataType::F64); TENSORS_MAX + 1]).is_err());
    }
}
