//! How a sparse allreduce works.

use crate::errors::{OrRaise, invalid};
use crate::words::one_of;
use linerate::SparseOptions;
use linerate::options::{
    Algorithm, Amount, Balance, IndexFormat, Mode, NonFinite, Regions, SwitchRule, ValueFormat,
};
use pyo3::prelude::*;

/// The options as Python gives them.
pub struct Chosen<'a> {
    pub algorithm: &'a str,
    pub density: Option<f64>,
    pub k: Option<u64>,
    pub per_tensor: bool,
    pub mode: &'a str,
    pub reuse_steps: u64,
    pub repartition_steps: u64,
    pub regions: &'a str,
    pub balance: &'a str,
    pub switch: &'a str,
    pub values: &'a str,
    pub indices: &'a str,
    pub non_finite: &'a str,
    pub warm_up_steps: u64,
    pub is_average: bool,
}

impl Chosen<'_> {
    pub fn options(&self, py: Python<'_>) -> PyResult<SparseOptions> {
        let modes = [
            ("exact", Mode::Exact),
            ("threshold", Mode::Threshold),
            ("paper", Mode::Paper),
        ];
        let regions = [
            ("balanced", Regions::Balanced),
            ("averaged", Regions::Averaged),
            ("equal", Regions::Equal),
        ];
        let switches = [
            ("oktopk", SwitchRule::OkTopk),
            ("sparcml", SwitchRule::SparCml),
        ];
        let indices = [
            ("auto", IndexFormat::Auto),
            ("u32", IndexFormat::U32),
            ("u64", IndexFormat::U64),
        ];
        let amount = match (self.density, self.k) {
            (None, None) => SparseOptions::default().amount,
            (Some(density), None) => Amount::Density(density),
            (None, Some(k)) => Amount::Count(k),
            (Some(density), Some(k)) => {
                let text = format!("density is {density} and k is {k}: give one of them");
                return Err(invalid(py, text));
            }
        };
        Ok(SparseOptions {
            algorithm: self.algorithm.parse::<Algorithm>().or_raise(py)?,
            amount,
            per_tensor: self.per_tensor,
            mode: one_of(py, "mode", self.mode, &modes)?,
            reuse_steps: self.reuse_steps,
            repartition_steps: self.repartition_steps,
            regions: one_of(py, "regions", self.regions, &regions)?,
            balance: self.balance.parse::<Balance>().or_raise(py)?,
            switch: one_of(py, "switch", self.switch, &switches)?,
            values: self.values.parse::<ValueFormat>().or_raise(py)?,
            indices: one_of(py, "indices", self.indices, &indices)?,
            non_finite: self.non_finite.parse::<NonFinite>().or_raise(py)?,
            warm_up_steps: self.warm_up_steps,
            is_average: self.is_average,
        })
    }
}
