//! How the ranks learn what steps take. If the algorithm is [`Algorithm::Auto`], measured times
//! correct those of the cost model.
//!
//! Every rank measures other times, but all ranks must choose the same algorithm. So the ranks tell
//! each other their times, after a few of the steps, at the beginning of the next step. In virtual
//! time nothing is learned, because a rank's own work takes no time there.

use super::state::{Pending, Steps, Task, Unit, Untold};
use crate::error::Result;
use crate::sparse::{Algorithm, Arrived, Request, StepModel};
use std::time::Duration;

impl Steps {
    /// Whether measured times enter the choice of the algorithm.
    fn is_learning(&self) -> bool {
        self.options.algorithm == Algorithm::Auto && !self.comm.inner.clock.is_virtual()
    }

    /// Keeps the times of a unit's step that has ended, if the ranks are to tell each other these
    /// times.
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

    /// The number of a unit's coordinates, its k, and the number of ranks.
    pub(super) fn shape_of(&self, unit: usize) -> (u64, u64, u32) {
        let unit = &self.units[unit];
        let count = self.starts[unit.tensors.end] - self.starts[unit.tensors.start];
        (count, unit.k, self.comm.ranks())
    }

    /// Tells the other ranks what the last step of the unit took, if that is due. Returns whether
    /// it was due.
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

    /// Learns from the times that all ranks have told. The shortest communication counts: it is
    /// that of the rank that began last, which has waited for no other rank to begin.
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
