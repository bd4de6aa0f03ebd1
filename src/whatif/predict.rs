//! The time of a step of training on a network.

use super::algorithm::Algorithm;
use super::model::{LimitedBy, Prediction, WhatIf};
use super::plan::PlannedFlush;
use super::price::Prices;
use super::step;
use super::stragglers;
use super::trace::Trace;
use crate::error::Result;

/// Steps of which communication adds less than this share are limited by the computation.
const EXPOSED_SHARE_MIN: f64 = 0.01;
/// By which share the time of a schedule may differ from what prices say.
const PRICE_ERROR: f64 = 0.1;

impl WhatIf {
    /// Predicts a step with these gradients.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`](crate::Error::InvalidArgument): a field is out of range, or the
    /// GPUs do not fill their servers. The text names the field, its value and what is allowed.
    pub fn predict(&self, trace: &Trace) -> Result<Prediction> {
        self.count_members()?;
        self.predict_planned(trace, &trace.plan(self.rule, &self.fusion)?)
    }

    /// Predicts a step with the flushes of a plan, which bandwidths and overheads do not change.
    pub(super) fn predict_planned(
        &self,
        trace: &Trace,
        plan: &[PlannedFlush],
    ) -> Result<Prediction> {
        let members = self.count_members()?;
        let prices = Prices::new(self, members);
        let backward_ms = trace.backward_us() / 1e3;
        let batch_ms = trace.step_ms();
        let step = match self.algorithm {
            Algorithm::ByteScheduler { partition_bytes } => {
                step::by_priority(self, trace, &prices, partition_bytes)?
            }
            _ => step::in_order(self, trace, plan, &prices),
        };
        let stragglers_ms = batch_ms * self.spread * stragglers::waiting(self.gpus, self.quorum());
        let overhead_ms = step.overhead_ms + stragglers_ms;
        let step_ms = batch_ms + overhead_ms;
        let share = |part: f64| if step_ms > 0.0 { part / step_ms } else { 0.0 };
        let (least_ms, most_ms) = self.interval(trace, batch_ms, overhead_ms);
        let factor = |step_ms: f64| match step_ms > 0.0 {
            true => (batch_ms / step_ms).min(1.0),
            false => 1.0,
        };
        Ok(Prediction {
            batch_ms,
            backward_ms,
            sync_ms: step.sync_ms,
            overhead_ms,
            scaling_factor: factor(step_ms),
            low: factor(most_ms),
            high: factor(least_ms),
            link_utilisation: share(step.busy_ms),
            limited_by: match share(overhead_ms) < EXPOSED_SHARE_MIN {
                true => LimitedBy::Computation,
                false => step.exposed.largest(step.slowed_ms, stragglers_ms),
            },
            flushes: step.operations,
        })
    }

    /// Between which times a step is likely to be, in ms.
    fn interval(&self, trace: &Trace, batch_ms: f64, overhead_ms: f64) -> (f64, f64) {
        let (shorter, longer) = match self.algorithm {
            Algorithm::Linerate(_) => (PRICE_ERROR, PRICE_ERROR),
            // 2 k words instead of 6 k.
            Algorithm::OkTopk { .. } => (2.0 / 3.0, 0.0),
            _ => (0.0, 0.0),
        };
        // Two standard deviations of the mean.
        let batch = 2.0 * trace.spread / f64::from(trace.steps.max(1)).sqrt();
        let least_ms = batch_ms * (1.0 - batch).max(0.0) + overhead_ms * (1.0 - shorter);
        let most_ms = batch_ms * (1.0 + batch) + overhead_ms * (1.0 + longer);
        (least_ms * self.errors.0, most_ms * self.errors.1)
    }

    /// For how many GPUs an operation waits.
    fn quorum(&self) -> u32 {
        match self.algorithm {
            Algorithm::Partial { share } => (share * f64::from(self.gpus)).ceil() as u32,
            _ => self.gpus,
        }
    }

    /// By how much additions are shorter.
    pub(super) fn added_compression(&self) -> f64 {
        match self.adds_compressed {
            true => self.compression,
            false => 1.0,
        }
    }
}
