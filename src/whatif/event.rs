//! [`Event`]: one event of a Chrome trace, of its fields those that any reader uses.

use super::trace::{TENSOR_BYTES_MAX, shown};
use crate::types::DataType;
use serde::Deserialize;
use serde_json::Value;

/// Events that one reader keeps, at most; a gradient counts as [`weight`] says. However long a file
/// is, that is about 1 GiB of memory.
pub const KEPT_MAX: usize = 16 << 20;

/// Characters of what [`short`] returns, at most.
const SHORT_CHARS: usize = 64;

/// Bytes of memory, about, for which an event counts.
const WEIGHT_BYTES: usize = 64;

/// As how many events a gradient with this name counts: its name is kept three times, in the event,
/// in its step and in the key by which steps are compared.
pub fn weight(name: &str) -> usize {
    8 + 3 * name.len() / WEIGHT_BYTES
}

/// An event; what it does not have is empty or 0.
#[derive(Deserialize)]
pub struct Event {
    #[serde(default)]
    pub name: String,
    #[serde(default)]
    pub cat: String,
    #[serde(default)]
    pub ph: String,
    #[serde(default)]
    pub ts: f64,
    #[serde(default)]
    pub dur: f64,
    #[serde(default)]
    pub pid: Value,
    #[serde(default)]
    pub tid: Value,
    #[serde(default)]
    pub args: Fields,
    /// Its place in the file, from 0.
    #[serde(skip)]
    pub at: u64,
}

/// The arguments of an event.
#[derive(Default, Deserialize)]
pub struct Fields {
    #[serde(default, rename = "Input Dims")]
    pub dims: Value,
    #[serde(default, rename = "Input type")]
    pub types: Value,
    #[serde(default)]
    pub correlation: Value,
    #[serde(default)]
    pub stream: Value,
    /// Of a collective: its name, the elements that a rank gives, and how many ranks there are.
    #[serde(default, rename = "Collective name")]
    pub collective: Value,
    #[serde(default, rename = "In msg nelems")]
    pub elements: Value,
    #[serde(default, rename = "Group size")]
    pub ranks: Value,
    #[serde(default)]
    pub dtype: Value,
    /// Of a process: its name.
    #[serde(default)]
    pub name: Value,
    /// Of a tensor of Horovod: `[2, 3]`.
    #[serde(default)]
    pub shape: Value,
    /// Of our own marks.
    #[serde(default)]
    pub bytes: Value,
    #[serde(default)]
    pub batch_ms: Value,
}

/// A number or name as it is kept: short.
pub fn short(value: &Value) -> String {
    value.to_string().chars().take(SHORT_CHARS).collect()
}

impl Event {
    /// When it starts and ends, in microseconds.
    pub fn span(&self) -> Result<(f64, f64), String> {
        for (what, value) in [("ts", self.ts), ("dur", self.dur)] {
            if !value.is_finite() || value < 0.0 {
                return Err(self.wrong(&format!(
                    "{what} is {value}; expected 0 or more microseconds"
                )));
            }
        }
        Ok((self.ts, self.ts + self.dur))
    }

    /// What is wrong, with the event's place and name.
    pub fn wrong(&self, reason: &str) -> String {
        format!("event {} ({}): {reason}", self.at, shown(&self.name))
    }
}

/// Bytes of a tensor with these dimensions.
pub fn bytes_of(dims: &[Value], dtype: DataType) -> Result<u64, String> {
    let mut bytes = Some(dtype.size_bytes() as u64);
    for dim in dims {
        bytes = bytes.and_then(|bytes| bytes.checked_mul(dim.as_u64()?));
    }
    bytes
        .filter(|bytes| *bytes <= TENSOR_BYTES_MAX)
        .ok_or_else(|| {
            format!(
                "its shape is {}; expected whole numbers, and at most {TENSOR_BYTES_MAX} bytes",
                shown(&Value::from(dims).to_string())
            )
        })
}
