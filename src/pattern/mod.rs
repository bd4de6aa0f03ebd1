//! Who talks to whom at step k. Arithmetic on ranks only; no buffers, no schedules, no time.
//!
//! * [`ring`]: neighbours and distances modulo the number of ranks.
//! * [`tree`]: binomial trees with any root.
//! * [`power_of_two`]: the largest power of two inside any number of ranks, for recursive doubling
//!   and halving.
//! * [`bruck`]: doubling distances: dissemination and Bruck's all-gather.
//! * [`pairwise`]: rounds of disjoint pairs.
//! * [`hosts`]: ranks grouped by host.
//!
//! Source: Thakur, Rabenseifner, Gropp, "Optimization of Collective Communication Operations in
//! MPICH" (IJHPCA 2005); Bruck et al., "Efficient Algorithms for All-to-All Communications" (TPDS
//! 1997).

pub mod bruck;
pub mod hosts;
pub mod pairwise;
pub mod power_of_two;
pub mod ring;
pub mod tree;
