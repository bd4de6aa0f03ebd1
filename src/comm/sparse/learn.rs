//! What steps took, told among the ranks: where the algorithm is chosen, measured times win over
//! the model's.
//!
//! Every rank has its own times, and all must choose alike: so they tell each other, at the
//! beginning of the step after, of few steps. In virtual time nothing is learned, since what ranks
//! do themselves takes none there.

use super::state::{Pending, SparseAllreduce, Task, Unit, Untold};
use crate::error::Result;
use crate::sparse::{Algorithm, Arrived, Request, StepModel};
use std::time::Duration;

impl SparseAllreduce {
    /// Whether times decide.
    fn is_learning(&self) -> bool {
        self.options.algorithm == Algorithm::Auto && !self.comm.inner.clock.is_virtual()
    }

    /// Keeps the time of a unit's step that is over, if it is to be told.
    pub(super) fn note(
        &mut self,
        unit: usize,
        algorithm: Algorithm,
        (communicate, own): (Duration, Duration),
    ) {
        if !self.is_learning() {
            return;
        }
        let shape = self.shape_of(unit);
        let (links, local) = self.prices;
        let Unit {
            experience,
            untold,
            reduced,
            ..
        } = &mut self.units[unit];
        if !experience.count(algorithm) {
            return;
        }
        let model = StepModel {
            links,
            local,
            experience,
        };
        *untold = Some(Untold {
            algorithm,
            modelled: model.plain_seconds(algorithm, shape, *reduced),
            communicate,
            own,
        });
    }

    /// Coordinates, k and ranks.
    pub(super) fn shape_of(&self, unit: usize) -> (u64, u64, u32) {
        let unit = &self.units[unit];
        let count = self.starts[unit.tensors.end] - self.starts[unit.tensors.start];
        (count, unit.k, self.comm.ranks())
    }

    /// Tells the others what the last step took, if that is due: whether this is under way.
    pub(super) fn tell(&mut self, pending: &mut Pending) -> Result<bool> {
        let Some(untold) = &self.units[pending.unit].untold else {
            return Ok(false);
        };
        let nanoseconds = |time: Duration| time.as_nanos() as u64;
        let words = vec![nanoseconds(untold.communicate), nanoseconds(untold.own)];
        pending.task = Task::Telling;
        if self.comm.ranks() == 1 {
            pending.arrived = Arrived::Words(words);
            return Ok(true);
        }
        let is_wide = true;
        let request = Request::GatherWords { words, is_wide };
        pending.operation = self.carrier.start(request)?;
        Ok(true)
    }

    /// Takes in what all have told. Who began to communicate last has waited for none of the
    /// others.
    pub(super) fn learn(&mut self, unit: usize, words: &[u64]) {
        let unit = &mut self.units[unit];
        let Some(untold) = unit.untold.take() else {
            return;
        };
        let column = |c: usize| words.iter().skip(c).step_by(2).copied();
        let communicate = column(0).min().unwrap_or(0);
        let own = column(1).max().unwrap_or(0);
        let seconds = 1e-9 * (communicate as f64 + own as f64);
        (unit.experience).learn(untold.algorithm, seconds, untold.modelled);
    }
}
