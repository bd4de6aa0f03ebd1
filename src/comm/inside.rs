//! [`Inside`]: what the one lock of a communicator guards.

use super::plans::Plans;
use super::repeats::Repeats;
use crate::engine::Engine;
use std::ops::{Deref, DerefMut};

/// The engine, the plans of calls, and the calls that the engine can run at once.
pub(crate) struct Inside {
    pub engine: Engine,
    pub plans: Plans,
    pub repeats: Repeats,
    /// Bytes of all calls so far that were not in registered memory.
    pub unregistered_bytes: u64,
}

impl Inside {
    pub fn new(engine: Engine, plans: Plans) -> Inside {
        Inside {
            engine,
            plans,
            repeats: Repeats::default(),
            unregistered_bytes: 0,
        }
    }
}

impl Deref for Inside {
    type Target = Engine;

    fn deref(&self) -> &Engine {
        &self.engine
    }
}

impl DerefMut for Inside {
    fn deref_mut(&mut self) -> &mut Engine {
        &mut self.engine
    }
}
