//! Machines in memory, under any order of delivery: oracles, conservation, volume.

mod cases;
mod extremes;
mod hostile;
mod job;
mod memory;
mod oracles;
mod selecting;
mod volume;
