//! [`Trace`]: when the gradients of a model are ready in its backward pass, and their sizes.

use crate::error::{Error, Result};
use crate::types::DataType;

/// Bytes of one gradient, at most: 1 TiB, far above any GPU.
pub(super) const TENSOR_BYTES_MAX: u64 = 1 << 40;

/// Longest wait between two gradients: 1000 s.
pub(super) const WAIT_US_MAX: f64 = 1e9;

/// One gradient of a backward pass.
#[derive(Clone, Debug, PartialEq)]
pub struct Gradient {
    /// Name of the parameter.
    pub name: String,
    /// Microseconds since the previous gradient was ready; the first counts from the start of the
    /// backward pass.
    pub wait_us: f64,
    /// Its length in bytes, a whole number of elements.
    pub bytes: u64,
    /// The type of its elements.
    pub dtype: DataType,
}

/// The gradients of a step of training, in the order in which they become ready.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Trace {
    /// Name of the model, or the file's.
    pub name: String,
    /// The gradients.
    pub gradients: Vec<Gradient>,
    /// Time of a step without communication, in ms, where it was measured: forward pass, backward
    /// pass and update.
    pub batch_ms: Option<f64>,
    /// Time of a forward pass in ms, where it was measured.
    pub forward_ms: Option<f64>,
    /// Steps of which these are the means.
    pub steps: u32,
    /// Standard deviation of the times of these steps, as a share of their mean; 0 of one step.
    pub spread: f64,
    /// What wrote the trace, such as `torch.profiler`.
    pub source: String,
    /// The GPU or processor, where the trace names it.
    pub machine: String,
    /// What was guessed, or left out, when the trace was read.
    pub notes: Vec<String>,
}

/// A step whose time is not known takes this many backward passes: a forward pass takes about half
/// of one.
const STEP_BACKWARDS: f64 = 1.5;

impl Trace {
    /// Milliseconds of a step without communication: as measured, or else guessed as 1.5 times the
    /// backward pass.
    pub fn step_ms(&self) -> f64 {
        let guessed = STEP_BACKWARDS * self.backward_us() / 1e3;
        self.batch_ms.unwrap_or(guessed)
    }

    /// Microseconds from the start of the backward pass to its last gradient.
    pub fn backward_us(&self) -> f64 {
        self.gradients.iter().map(|g| g.wait_us).sum()
    }

    /// Milliseconds of a forward pass: as measured, or else what the backward pass leaves of a
    /// step.
    pub fn forward_ms(&self) -> f64 {
        let left = (self.step_ms() - self.backward_us() / 1e3).max(0.0);
        self.forward_ms.unwrap_or(left)
    }

    /// Sum of all lengths in bytes.
    pub fn bytes(&self) -> u64 {
        self.gradients.iter().map(|g| g.bytes).sum()
    }

    /// Refuses what no reader of files makes, but a caller may.
    pub(super) fn check(&self) -> Result<()> {
        for (at, gradient) in self.gradients.iter().enumerate() {
            let (wait_us, bytes) = (gradient.wait_us, gradient.bytes);
            if !(0.0..=WAIT_US_MAX).contains(&wait_us) {
                return Err(Error::invalid(format!(
                    "gradient {at} comes {wait_us} us after the one before; allowed: 0 to {WAIT_US_MAX:e}"
                )));
            }
            let size = gradient.dtype.size_bytes() as u64;
            if bytes > TENSOR_BYTES_MAX || !bytes.is_multiple_of(size) {
                return Err(Error::invalid(format!(
                    "gradient {at} has {bytes} bytes; allowed: elements of {size} bytes, and {TENSOR_BYTES_MAX} bytes at most"
                )));
            }
        }
        for (what, value) in [
            ("the time of a step in ms", self.step_ms()),
            ("the time of a forward pass in ms", self.forward_ms()),
            ("the spread of the trace's steps", self.spread),
        ] {
            if !(0.0..=WAIT_US_MAX).contains(&value) {
                return Err(Error::invalid(format!(
                    "{what} is {value}; allowed: 0 to {WAIT_US_MAX:e}"
                )));
            }
        }
        Ok(())
    }

    /// This trace with all times multiplied.
    pub fn scaled(mut self, factor: f64) -> Trace {
        for gradient in &mut self.gradients {
            gradient.wait_us *= factor;
        }
        self.batch_ms = self.batch_ms.map(|ms| ms * factor);
        self.forward_ms = self.forward_ms.map(|ms| ms * factor);
        self
    }
}

/// A field as an error shows it: short and printable.
pub(super) fn shown(text: &str) -> String {
    text.chars().take(40).flat_map(char::escape_debug).collect()
}
