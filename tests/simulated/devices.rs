//! Jobs over RDMA devices in one thread, whose queues fail now and then.

use linerate::sim::SimOptions;
use linerate::unstable::rdma::{self, DeviceWorld};
use linerate::{Config, Simulation};

const FAULTS: [f64; 3] = [0.0, 0.001, 0.01];

/// A job of these ranks, whose devices keep an order by every third seed.
pub fn simulation(ranks: u32, seed: u64) -> Simulation {
    let faults = FAULTS[(seed / 4) as usize % FAULTS.len()];
    let devices = match seed.is_multiple_of(3) {
        true => DeviceWorld::new(ranks, seed, faults),
        false => DeviceWorld::unordered(ranks, seed, faults),
    };
    rdma::simulation(&devices, SimOptions::new(ranks, seed), Config::default()).unwrap()
}
