//! What all clones of a communicator and its operations share.

use super::driving::Driving;
use super::plans::Plans;
use crate::engine::{Clock, Engine, SpinTime};
use std::ops::Deref;
use std::sync::Mutex;

/// The plans, and the engine with its threads ([`Driving`], to which it dereferences).
pub(super) struct Shared {
    driving: Driving,
    pub plans: Mutex<Plans>,
}

impl Shared {
    pub fn new(engine: Engine, clock: Clock, plans: Plans, local_ranks: usize) -> Shared {
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        Shared {
            driving: Driving::new(engine, clock, SpinTime::new(local_ranks, cores)),
            plans: Mutex::new(plans),
        }
    }
}

impl Deref for Shared {
    type Target = Driving;

    fn deref(&self) -> &Driving {
        &self.driving
    }
}
