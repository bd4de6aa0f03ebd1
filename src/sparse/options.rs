//! What a caller chooses. Equal on all ranks.

use super::format::{IndexFormat, ValueFormat};
use crate::error::{Error, Result};
use std::fmt;
use std::str::FromStr;

/// How the picks of all ranks become a result.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Algorithm {
    /// Split and reduce by regions, global selection, all-gather (Li and Hoefler): at most 6k
    /// words.
    OkTopk,
    /// Everybody's picks to everybody; the result is their sum.
    TopkA,
    /// As [`Algorithm::TopkA`], but the result is only the k largest entries of the sum.
    TopkA2,
    /// Split and reduce, then all of the sum to everybody (SparCML).
    TopkDsa(DsaVariant),
    /// A tree of merges that keep k entries each, and a broadcast.
    GTopk,
    /// As TopkA, with picks by the estimate of a normal distribution, corrected until it selects
    /// 2/3 to 4/3 of k; with [`Mode::Paper`] in three rounds, whatever they end with.
    Gaussiank,
    /// A dense allreduce of the whole accumulator.
    Dense,
    /// What the cost model, the fill-in of the steps before and their times say is fastest:
    /// Ok-Topk, TopkDSA or dense. The same on all ranks, but not in every run.
    Auto,
}

impl Algorithm {
    /// Every algorithm, as the command line names them.
    pub const ALL: [Algorithm; 11] = [
        Algorithm::OkTopk,
        Algorithm::TopkA,
        Algorithm::TopkA2,
        Algorithm::TopkDsa(DsaVariant::Split),
        Algorithm::TopkDsa(DsaVariant::Small),
        Algorithm::TopkDsa(DsaVariant::Big),
        Algorithm::TopkDsa(DsaVariant::RecursiveDoubling),
        Algorithm::GTopk,
        Algorithm::Gaussiank,
        Algorithm::Dense,
        Algorithm::Auto,
    ];

    /// As the command line spells it.
    pub fn name(self) -> &'static str {
        match self {
            Algorithm::OkTopk => "oktopk",
            Algorithm::TopkA => "topka",
            Algorithm::TopkA2 => "topka2",
            Algorithm::TopkDsa(DsaVariant::Split) => "topkdsa",
            Algorithm::TopkDsa(DsaVariant::Small) => "topkdsa-small",
            Algorithm::TopkDsa(DsaVariant::Big) => "topkdsa-big",
            Algorithm::TopkDsa(DsaVariant::RecursiveDoubling) => "topkdsa-doubling",
            Algorithm::GTopk => "gtopk",
            Algorithm::Gaussiank => "gaussiank",
            Algorithm::Dense => "dense",
            Algorithm::Auto => "auto",
        }
    }
}

impl fmt::Display for Algorithm {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for Algorithm {
    type Err = String;

    fn from_str(text: &str) -> std::result::Result<Algorithm, String> {
        let mut all = Algorithm::ALL.into_iter();
        all.find(|a| a.name() == text).ok_or_else(|| {
            let names: Vec<_> = Algorithm::ALL.iter().map(|a| a.name()).collect();
            let names = names.join(" ");
            format!("unknown sparse algorithm '{text}': one of {names}")
        })
    }
}

/// How TopkDSA goes on after the split.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DsaVariant {
    /// Sparse or dense all-gather, whichever the switch rule says.
    Split,
    /// Always a sparse all-gather: SparCML's variant for small data.
    Small,
    /// Always a dense all-gather of the regions: SparCML's variant for large data.
    Big,
    /// No split: whole streams are exchanged and merged in log P rounds, dense from where the
    /// switch rule says.
    RecursiveDoubling,
}

/// From which fill-in on TopkDSA sends values without indices.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SwitchRule {
    /// SparCML: dense iff 2 nnz >= n, so that sparse is never longer than dense.
    SparCml,
    /// Ok-Topk's code: dense iff 2 nnz >= floor(2n/3).
    OkTopk,
}

impl SwitchRule {
    /// Whether `entries` of `count` coordinates are sent dense.
    pub fn is_dense(self, entries: u64, count: u64) -> bool {
        match self {
            SwitchRule::SparCml => 2 * entries >= count,
            SwitchRule::OkTopk => 2 * entries >= 2 * count / 3,
        }
    }
}

/// How many entries.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Amount {
    /// This share of all coordinates, in (0, 1]; at least one entry.
    Density(f64),
    /// This many, at least one.
    Count(u64),
}

impl Amount {
    /// k of `count` coordinates: never more than there are.
    pub fn of(self, count: u64) -> u64 {
        let k = match self {
            Amount::Density(density) => (count as f64 * density) as u64,
            Amount::Count(k) => k,
        };
        k.max(1).min(count)
    }
}

/// How picks and result are selected.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    /// Exactly k, every step, by the total order.
    Exact,
    /// Thresholds are found exactly once in this many steps and used again in between, corrected
    /// where the counts leave [k/2, 2k].
    Threshold,
    /// As the published code does: at a re-evaluation the whole reduced sum is gathered, which may
    /// cost 2 min(Pk, n) words; Gaussiank corrects its estimate in three rounds only.
    Paper,
}

/// How regions are cut at a repartition.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Regions {
    /// Equal shares of all ranks' picks, by bisection: no region receives more than 2(k + P) words.
    Balanced,
    /// The average of every rank's own equal shares, as the paper does.
    Averaged,
    /// Equal shares of the coordinates.
    Equal,
}

/// When the selected entries are spread evenly before the all-gather.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Balance {
    /// From three ranks on, iff the largest size is above min(4, 3P/4) times the mean.
    Auto,
    /// Iff the largest size is above 4 times the mean.
    Paper,
    /// Iff the cost model says that spreading and an even all-gather take less time than the uneven
    /// one.
    Cost,
    /// Always.
    Always,
    /// Never.
    Never,
}

impl FromStr for Balance {
    type Err = String;

    fn from_str(text: &str) -> std::result::Result<Balance, String> {
        Ok(match text {
            "auto" => Balance::Auto,
            "paper" => Balance::Paper,
            "cost" => Balance::Cost,
            "always" => Balance::Always,
            "never" => Balance::Never,
            _ => {
                return Err(format!(
                    "unknown balancing '{text}': one of auto paper cost always never"
                ));
            }
        })
    }
}

/// What values that are not finite do, in a gradient, in an accumulator or in a sum.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NonFinite {
    /// The call is an error on all ranks; residuals and outputs are as before it.
    Error,
    /// The step is skipped on all ranks, its gradient not absorbed: for gradient scalers.
    Skip,
    /// Such coordinates do not absorb this gradient on the rank concerned, all else goes on; they
    /// are counted. The fastest: nothing needs to be undone, so that one pass adds the gradient to
    /// the residual and selects.
    Count,
}

impl FromStr for NonFinite {
    type Err = String;

    fn from_str(text: &str) -> std::result::Result<NonFinite, String> {
        Ok(match text {
            "error" => NonFinite::Error,
            "skip" => NonFinite::Skip,
            "count" => NonFinite::Count,
            _ => {
                return Err(format!(
                    "unknown policy '{text}' for what is not finite: one of error skip count"
                ));
            }
        })
    }
}

/// How a sparse allreduce works. All fields are equal on all ranks.
#[derive(Clone, Debug, PartialEq)]
pub struct SparseOptions {
    /// Default Ok-Topk.
    pub algorithm: Algorithm,
    /// Entries of the result, over all tensors of a call; default 1 %.
    pub amount: Amount,
    /// Whether k counts for each tensor, not for all together; every tensor then is an operation of
    /// its own. Default false.
    pub per_tensor: bool,
    /// Default exact.
    pub mode: Mode,
    /// Steps between two exact thresholds (tau'); default 32.
    pub reuse_steps: u64,
    /// Steps between two repartitions (tau); default 64.
    pub repartition_steps: u64,
    /// Default balanced.
    pub regions: Regions,
    /// Default auto.
    pub balance: Balance,
    /// Default Ok-Topk's, two thirds.
    pub switch: SwitchRule,
    /// What values are on the wire; default f32. Fewer bits are made up for by the residuals.
    pub values: ValueFormat,
    /// What indices are on the wire; default u32 where it suffices.
    pub indices: IndexFormat,
    /// Default error.
    pub non_finite: NonFinite,
    /// How many first steps are dense, with residuals that stay zero; default none.
    pub warm_up_steps: u64,
    /// Whether the result is divided by the number of ranks; default false.
    pub is_average: bool,
}

impl Default for SparseOptions {
    fn default() -> SparseOptions {
        SparseOptions {
            algorithm: Algorithm::OkTopk,
            amount: Amount::Density(0.01),
            per_tensor: false,
            mode: Mode::Exact,
            reuse_steps: 32,
            repartition_steps: 64,
            regions: Regions::Balanced,
            balance: Balance::Auto,
            switch: SwitchRule::OkTopk,
            values: ValueFormat::F32,
            indices: IndexFormat::Auto,
            non_finite: NonFinite::Error,
            warm_up_steps: 0,
            is_average: false,
        }
    }
}

impl SparseOptions {
    /// Checks them for vectors of `count` coordinates.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] with the field, its value and what is allowed.
    pub fn check(&self, count: u64) -> Result<()> {
        let wrong = match self.amount {
            Amount::Density(density) if !(density > 0.0 && density <= 1.0) => Some(format!(
                "amount is a density of {density}: above 0 and at most 1"
            )),
            Amount::Count(0) => Some("amount is a count of 0: at least 1".into()),
            _ => None,
        };
        if let Some(wrong) = wrong {
            return Err(Error::invalid(format!("SparseOptions: {wrong}")));
        }
        for (name, steps) in [
            ("reuse_steps", self.reuse_steps),
            ("repartition_steps", self.repartition_steps),
        ] {
            if steps == 0 {
                return Err(Error::invalid(format!(
                    "SparseOptions: {name} is 0: at least 1; 1 means every step, 32 to 128 are usual"
                )));
            }
        }
        if self.indices == IndexFormat::U32 && count > 1 << 32 {
            return Err(Error::invalid(format!(
                "SparseOptions: indices is u32 for {count} coordinates: they reach 2^32; take u64 or auto"
            )));
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    type Change = fn(&mut SparseOptions);

    #[test]
    fn fields_are_taken_up_to_their_bounds_and_refused_beyond_by_name() {
        let with = |change: Change, count: u64| {
            let mut options = SparseOptions::default();
            change(&mut options);
            options.check(count)
        };
        let good: [Change; 5] = [
            |o| o.amount = Amount::Density(f64::MIN_POSITIVE),
            |o| o.amount = Amount::Density(1.0),
            |o| o.amount = Amount::Count(1),
            |o| (o.reuse_steps, o.repartition_steps) = (1, 1),
            |o| (o.reuse_steps, o.repartition_steps) = (u64::MAX, u64::MAX),
        ];
        for change in good {
            assert_eq!(with(change, 100), Ok(()));
        }
        let bad: [(&str, Change); 6] = [
            ("amount is a density of 0:", |o| {
                o.amount = Amount::Density(0.0)
            }),
            ("amount is a density of NaN", |o| {
                o.amount = Amount::Density(f64::NAN)
            }),
            ("amount is a density of 1.5", |o| {
                o.amount = Amount::Density(1.5)
            }),
            ("amount is a count of 0", |o| o.amount = Amount::Count(0)),
            ("reuse_steps is 0", |o| o.reuse_steps = 0),
            ("repartition_steps is 0", |o| o.repartition_steps = 0),
        ];
        for (told, change) in bad {
            let text = with(change, 100).unwrap_err().to_string();
            assert!(
                text.contains(told) && text.contains("at least 1") | text.contains("at most 1"),
                "{text}"
            );
        }
        let u32s: Change = |o| o.indices = IndexFormat::U32;
        assert_eq!(with(u32s, 1 << 32), Ok(()));
        let text = with(u32s, (1 << 32) + 1).unwrap_err().to_string();
        assert!(text.contains("indices is u32"), "{text}");
    }
}
