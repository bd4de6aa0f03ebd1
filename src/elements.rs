//! Element types that Rust does not have: truth values whose bytes may come from another rank, and
//! floats of 8 bits. Those of 16 bits are of the crate `half`, complex numbers of `num-complex`.
//!
//! [`DataType`](crate::DataType) has the table of all.

pub use crate::types::{Bool, F8E4M3, F8E5M2};
