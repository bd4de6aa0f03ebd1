//! [`Residuals`]: for each tensor, the part of this rank's gradients that no result has contained
//! yet.

use crate::comm::buffer::Buffer;
use crate::comm::raw::RawBuffer;
use crate::error::{Error, Result};
use crate::fusion::TensorSpec;
use crate::kernel::{self, scale};
use crate::memory::{Access, Kept};
use crate::types::DataType;

/// The first bytes of saved residuals. The last of them is the version of the format.
const MAGIC: [u8; 8] = *b"LRSPARS1";

/// One vector for each tensor. Tensors are found by name.
pub(super) struct Residuals {
    tensors: Vec<TensorSpec>,
    buffers: Vec<Buffer<f32>>,
}

/// What saved residuals belong to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Origin {
    pub ranks: u64,
    pub steps: u64,
    pub k: u64,
}

impl Residuals {
    pub fn new(tensors: &[TensorSpec]) -> Result<Residuals> {
        let bytes = |t: &TensorSpec| t.count as usize * t.dtype.size_bytes();
        let zeros = |t: &TensorSpec| {
            let raw = RawBuffer::plain(bytes(t).max(1))?.part(0, bytes(t));
            Ok(Buffer::of(raw))
        };
        Ok(Residuals {
            tensors: tensors.to_vec(),
            buffers: tensors.iter().map(zeros).collect::<Result<_>>()?,
        })
    }

    /// Borrows all residuals until the result is dropped.
    pub fn keep(&self) -> Result<Vec<Kept>> {
        let all = self
            .raw()
            .map(|raw| raw.keep_all(Access::Exclusive, "a sparse allreduce"));
        all.filter_map(Result::transpose).collect()
    }

    fn raw(&self) -> impl Iterator<Item = &RawBuffer> {
        self.buffers.iter().map(Buffer::raw)
    }

    pub fn of(&self, tensor: usize) -> &RawBuffer {
        self.buffers[tensor].raw()
    }

    pub fn named(&self, name: &str) -> Option<&Buffer<f32>> {
        let index = self.tensors.iter().position(|t| t.name == name)?;
        Some(&self.buffers[index])
    }

    pub fn reset(&self) {
        self.raw().for_each(|raw| kernel::fill(raw.view(), 0));
    }

    pub fn scale(&self, factor: f64) {
        for view in self.raw().map(RawBuffer::view) {
            scale(DataType::F32, factor, view, view);
        }
    }

    /// Returns the residuals as bytes: a header, then for each tensor the length of its name, its
    /// name, its count and its values. Numbers are little-endian.
    pub fn save(&self, origin: Origin) -> Vec<u8> {
        let mut bytes = MAGIC.to_vec();
        let word = |bytes: &mut Vec<u8>, w: u64| bytes.extend(w.to_le_bytes());
        for w in [
            origin.ranks,
            origin.steps,
            origin.k,
            self.tensors.len() as u64,
        ] {
            word(&mut bytes, w);
        }
        for (tensor, buffer) in self.tensors.iter().zip(&self.buffers) {
            word(&mut bytes, tensor.name.len() as u64);
            bytes.extend(tensor.name.as_bytes());
            word(&mut bytes, tensor.count);
            let start = bytes.len();
            bytes.resize(start + buffer.raw().len_bytes(), 0);
            kernel::read(buffer.raw().view(), 0, &mut bytes[start..]);
        }
        bytes
    }

    /// Loads residuals that were saved for the same tensors and k. It checks everything before it
    /// changes anything.
    pub fn load(&self, bytes: &[u8], k: u64) -> Result<Origin> {
        let mut reader = Reader { bytes, at: 0 };
        if reader.take(MAGIC.len())? != MAGIC {
            return Err(malformed("it does not begin as saved residuals do"));
        }
        let (ranks, steps, saved_k, tensors) = (
            reader.word()?,
            reader.word()?,
            reader.word()?,
            reader.word()?,
        );
        if saved_k != k || tensors != self.tensors.len() as u64 {
            return Err(malformed(&format!(
                "it has k {saved_k} and {tensors} tensors, this job k {k} and {}",
                self.tensors.len()
            )));
        }
        let mut parts = vec![None; self.tensors.len()];
        for _ in 0..tensors {
            let length = reader.word()? as usize;
            let name = String::from_utf8_lossy(reader.take(length)?).into_owned();
            let count = reader.word()?;
            let found = (self.tensors.iter()).position(|t| t.name == name && t.count == count);
            let index = found.ok_or_else(|| {
                malformed(&format!(
                    "this job has no tensor '{name}' of {count} elements"
                ))
            })?;
            parts[index] = Some(reader.take(count as usize * size_of::<f32>())?);
        }
        if let Some(missing) = parts.iter().position(Option::is_none) {
            let name = &self.tensors[missing].name;
            return Err(malformed(&format!("tensor '{name}' is missing")));
        }
        for (buffer, part) in self.buffers.iter().zip(parts.into_iter().flatten()) {
            kernel::write(buffer.raw().view(), 0, part);
        }
        Ok(Origin { ranks, steps, k })
    }
}

struct Reader<'a> {
    bytes: &'a [u8],
    at: usize,
}

impl<'a> Reader<'a> {
    fn take(&mut self, count: usize) -> Result<&'a [u8]> {
        let end = self
            .at
            .checked_add(count)
            .filter(|end| *end <= self.bytes.len());
        let end = end.ok_or_else(|| malformed("it ends early"))?;
        let part = &self.bytes[self.at..end];
        self.at = end;
        Ok(part)
    }

    fn word(&mut self) -> Result<u64> {
        let bytes = self.take(8)?;
        Ok(u64::from_le_bytes(std::array::from_fn(|i| bytes[i])))
    }
}

fn malformed(why: &str) -> Error {
    Error::Malformed(format!(
        "residuals cannot be loaded: {why}; nothing was changed. Load what a job with these tensors and this k saved, or start \
         from zero with reset"
    ))
}
