//! How a sparse allreduce works.

use crate::pointers::{Sized64, text};
use crate::status::{Fault, invalid};
use crate::words::{LINERATE_BF16, LINERATE_F32, LINERATE_I8, LINERATE_U32, LINERATE_U64};
use linerate::SparseOptions;
use linerate::options::{
    Amount, Balance, IndexFormat, Mode, NonFinite, Regions, SwitchRule, ValueFormat,
};
use std::ffi::c_char;

/// Exactly k entries in every step.
pub const LINERATE_EXACT: u32 = 0;
/// Thresholds are found exactly once in `reuse_steps` steps and corrected in between.
pub const LINERATE_THRESHOLD: u32 = 1;
/// As the published code does.
pub const LINERATE_PAPER: u32 = 2;

/// A value that is not finite is LINERATE_ERROR_NOT_FINITE on all ranks, and changes nothing.
pub const LINERATE_NOT_FINITE_ERROR: u32 = 0;
/// All ranks skip a step with a value that is not finite: for gradient scalers.
pub const LINERATE_NOT_FINITE_SKIP: u32 = 1;
/// Values that are not finite are left out, and counted.
pub const LINERATE_NOT_FINITE_COUNT: u32 = 2;

/// Regions have equal shares of all ranks' picks.
pub const LINERATE_REGIONS_BALANCED: u32 = 0;
/// Regions are the average of every rank's own equal shares, as in the paper.
pub const LINERATE_REGIONS_AVERAGED: u32 = 1;
/// Regions have equal shares of the coordinates.
pub const LINERATE_REGIONS_EQUAL: u32 = 2;

/// Entries are spread evenly where one rank has above min(4, 3p/4) times the mean of p ranks.
pub const LINERATE_BALANCE_AUTO: u32 = 0;
/// Entries are spread evenly where one rank has above 4 times the mean.
pub const LINERATE_BALANCE_PAPER: u32 = 1;
/// Entries are spread evenly where the cost model says that it is faster.
pub const LINERATE_BALANCE_COST: u32 = 2;
/// Entries are always spread evenly.
pub const LINERATE_BALANCE_ALWAYS: u32 = 3;
/// Entries are never spread.
pub const LINERATE_BALANCE_NEVER: u32 = 4;

/// How a sparse allreduce works. Zero everywhere but `size` is the default. All ranks give the same
/// values.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
#[allow(non_camel_case_types)]
pub struct linerate_sparse_options {
    /// sizeof(linerate_sparse_options).
    pub size: u64,
    /// "oktopk" (NULL: this), "topka", "topka2", "topkdsa", "topkdsa-small", "topkdsa-big",
    /// "topkdsa-doubling", "gtopk", "gaussiank", "dense", or "auto" (by the cost model and the
    /// steps before).
    pub algorithm: *const c_char,
    /// The share of all coordinates that a step selects, above 0 and at most 1; 0: `k`, or 1 % if
    /// that is 0, too.
    pub density: f64,
    /// How many entries a step selects, if `density` is 0.
    pub k: u64,
    /// Steps between two exact thresholds; 0: 32.
    pub reuse_steps: u64,
    /// Steps between two cuts of the regions; 0: 64.
    pub repartition_steps: u64,
    /// First steps that are dense; their residuals stay zero.
    pub warm_up_steps: u64,
    /// LINERATE_EXACT, ...
    pub mode: u32,
    /// LINERATE_NOT_FINITE_ERROR, ...
    pub not_finite: u32,
    /// LINERATE_REGIONS_BALANCED, ...
    pub regions: u32,
    /// LINERATE_BALANCE_AUTO, ...
    pub balance: u32,
    /// What values are on the wire: LINERATE_F32 (0: this), LINERATE_BF16 or LINERATE_I8 (with
    /// scales). The residuals keep what the rounding takes.
    pub values: u32,
    /// What indices are on the wire: LINERATE_U32, LINERATE_U64; 0: what suffices.
    pub indices: u32,
    /// Not 0: the density or k is of each tensor, and not of all together.
    pub is_per_tensor: u32,
    /// Not 0: the result is divided by the number of ranks.
    pub is_average: u32,
    /// Not 0: TopkDSA sends values without indices from half of the coordinates on, as SparCML; 0:
    /// from a third on.
    pub is_sparcml: u32,
    /// 0.
    pub reserved: u32,
}

// SAFETY: numbers and an address, the size first.
unsafe impl Sized64 for linerate_sparse_options {
    const NAME: &'static str = "linerate_sparse_options";
}

/// The options of a struct.
///
/// # Safety
/// Its algorithm is a string or NULL.
pub(super) unsafe fn options_of(given: &linerate_sparse_options) -> Result<SparseOptions, Fault> {
    let default = SparseOptions::default();
    let or = |value, default| if value == 0 { default } else { value };
    let algorithm = match given.algorithm.is_null() {
        true => default.algorithm,
        false => {
            // SAFETY: our caller promises it.
            let name = unsafe { text("algorithm", given.algorithm)? };
            name.parse().map_err(invalid)?
        }
    };
    let amount = match (given.density, given.k) {
        (0.0, 0) => default.amount,
        (0.0, k) => Amount::Count(k),
        (density, 0) => Amount::Density(density),
        (density, k) => {
            return Err(invalid(format!(
                "linerate_sparse_options: density is {density} and k is {k}: give one of them"
            )));
        }
    };
    let [mode, not_finite, regions, balance] =
        [given.mode, given.not_finite, given.regions, given.balance];
    let wrong = |field, value, last| {
        invalid(format!(
            "linerate_sparse_options: {field} is {value}: from 0 to {last}"
        ))
    };
    Ok(SparseOptions {
        algorithm,
        amount,
        per_tensor: given.is_per_tensor != 0,
        mode: match mode {
            LINERATE_EXACT => Mode::Exact,
            LINERATE_THRESHOLD => Mode::Threshold,
            LINERATE_PAPER => Mode::Paper,
            _ => return Err(wrong("mode", mode, LINERATE_PAPER)),
        },
        reuse_steps: or(given.reuse_steps, default.reuse_steps),
        repartition_steps: or(given.repartition_steps, default.repartition_steps),
        regions: match regions {
            LINERATE_REGIONS_BALANCED => Regions::Balanced,
            LINERATE_REGIONS_AVERAGED => Regions::Averaged,
            LINERATE_REGIONS_EQUAL => Regions::Equal,
            _ => return Err(wrong("regions", regions, LINERATE_REGIONS_EQUAL)),
        },
        balance: match balance {
            LINERATE_BALANCE_AUTO => Balance::Auto,
            LINERATE_BALANCE_PAPER => Balance::Paper,
            LINERATE_BALANCE_COST => Balance::Cost,
            LINERATE_BALANCE_ALWAYS => Balance::Always,
            LINERATE_BALANCE_NEVER => Balance::Never,
            _ => return Err(wrong("balance", balance, LINERATE_BALANCE_NEVER)),
        },
        switch: match given.is_sparcml {
            0 => SwitchRule::OkTopk,
            _ => SwitchRule::SparCml,
        },
        values: match given.values {
            0 | LINERATE_F32 => ValueFormat::F32,
            LINERATE_BF16 => ValueFormat::Bf16,
            LINERATE_I8 => ValueFormat::I8,
            other => {
                return Err(invalid(format!(
                    "linerate_sparse_options: values is {other}: LINERATE_F32, LINERATE_BF16, LINERATE_I8, or 0"
                )));
            }
        },
        indices: match given.indices {
            0 => IndexFormat::Auto,
            LINERATE_U32 => IndexFormat::U32,
            LINERATE_U64 => IndexFormat::U64,
            other => {
                return Err(invalid(format!(
                    "linerate_sparse_options: indices is {other}: LINERATE_U32, LINERATE_U64, or 0"
                )));
            }
        },
        non_finite: match not_finite {
            LINERATE_NOT_FINITE_ERROR => NonFinite::Error,
            LINERATE_NOT_FINITE_SKIP => NonFinite::Skip,
            LINERATE_NOT_FINITE_COUNT => NonFinite::Count,
            _ => return Err(wrong("not_finite", not_finite, LINERATE_NOT_FINITE_COUNT)),
        },
        warm_up_steps: given.warm_up_steps,
        is_average: given.is_average != 0,
    })
}
