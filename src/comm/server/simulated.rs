//! [`SimulatedServer`]: the parameter server of all ranks of a [`Simulation`], whose ranks cannot
//! wait. It steps the shards and workers that wait in threads elsewhere.
//!
//! Updates take no virtual time, as no local work of a simulation does.

use super::ServerOptions;
use super::opening::open_simulated;
use super::report::ServerReport;
use super::shard::Shard;
use super::worker::Worker;
use crate::comm::{Buffer, Simulation};
use crate::error::{Error, Result};
use crate::fusion::TensorSpec;
use crate::time::Time;

/// See the module.
pub struct SimulatedServer {
    ranks: Vec<SimulatedRank>,
}

struct SimulatedRank {
    shard: Option<Shard>,
    worker: Option<Worker>,
    /// Its shard has nothing more to do.
    is_served: bool,
}

/// What a worker trains with: buffers of all elements.
pub struct Training {
    /// Its gradients, which it pushes in turn.
    pub gradients: Vec<Buffer<u8>>,
    /// Where it pulls the weights.
    pub weights: Buffer<u8>,
    /// The versions of the last pull, by shard.
    pub versions: Vec<u64>,
    /// Its steps so far.
    pub steps: Vec<TrainedStep>,
}

/// When a step of a worker began, had its OK, and had the weights.
#[derive(Clone, Copy, Debug)]
pub struct TrainedStep {
    pub begun: Time,
    pub ok: Time,
    pub pulled: Time,
}

/// What a worker of a run can do now.
enum Turn {
    /// More, at once.
    Moved,
    /// Nothing until something comes.
    Waits,
    Done,
}

/// Where a worker is in a step.
#[derive(Clone, Copy)]
enum Phase {
    Free,
    Pushing { begun: Time },
    Pulling { begun: Time, ok: Time },
}

impl SimulatedServer {
    /// As [`ParameterServer::new`](super::ParameterServer::new), on all ranks.
    pub fn new(
        simulation: &Simulation,
        tensors: &[TensorSpec],
        options: &ServerOptions,
    ) -> Result<SimulatedServer> {
        if options.spares > 0 {
            return Err(Error::invalid(
                "ServerOptions: spares in a simulation, where nobody comes later",
            ));
        }
        let made = open_simulated(simulation.communicators().iter(), tensors, options)?;
        let ranks = made.into_iter().map(|made| SimulatedRank {
            shard: made.shard,
            worker: made.worker,
            is_served: false,
        });
        Ok(SimulatedServer {
            ranks: ranks.collect(),
        })
    }

    /// Gives the weights to begin with, in f32 and in the memory of the first worker.
    pub fn init(&mut self, simulation: &mut Simulation, weights: &Buffer<f32>) -> Result<()> {
        let bytes = weights.cast::<u8>()?;
        for worker in self.workers() {
            if worker.number == 0 {
                worker.start_init(&bytes)?;
            }
        }
        self.run(simulation, |worker, _| {
            Ok(match worker.is_ready() && worker.is_pushed() {
                true => Turn::Done,
                false => Turn::Waits,
            })
        })?;
        for worker in self.workers() {
            let _begun = worker.begin();
        }
        Ok(())
    }

    /// Each worker pushes a gradient, waits for its OK and pulls the weights, this many times, and
    /// without waiting for the others but as the mode says. `all` is by worker.
    pub fn train(
        &mut self,
        simulation: &mut Simulation,
        all: &mut [Training],
        steps: usize,
    ) -> Result<()> {
        let workers = self.workers().count();
        if all.len() != workers {
            return Err(Error::invalid(format!(
                "training of {} workers for a parameter server of {workers}: one for each",
                all.len()
            )));
        }
        let ends: Vec<usize> = all.iter().map(|own| own.steps.len() + steps).collect();
        let mut phases = vec![Phase::Free; workers];
        self.run(simulation, |worker, now| {
            let (own, phase) = (&mut all[worker.number], &mut phases[worker.number]);
            *phase = match *phase {
                Phase::Free if own.steps.len() == ends[worker.number] => return Ok(Turn::Done),
                Phase::Free => {
                    let next = own.steps.len() % own.gradients.len();
                    worker.start_push(own.gradients[next].clone())?;
                    Phase::Pushing { begun: now }
                }
                Phase::Pushing { begun } if worker.is_pushed() && worker.is_ok() => {
                    worker.start_pull(own.weights.clone());
                    Phase::Pulling { begun, ok: now }
                }
                Phase::Pulling { begun, ok } if worker.is_pulled() => {
                    own.versions = worker.take_pulled();
                    own.steps.push(TrainedStep {
                        begun,
                        ok,
                        pulled: now,
                    });
                    Phase::Free
                }
                _ => return Ok(Turn::Waits),
            };
            Ok(Turn::Moved)
        })
    }

    /// Every worker pulls the weights. `all` is by worker.
    pub fn pull(&mut self, simulation: &mut Simulation, all: &mut [Training]) -> Result<()> {
        for (worker, own) in self.workers().zip(all.iter()) {
            worker.start_pull(own.weights.clone());
        }
        self.run(simulation, |worker, _| {
            Ok(match worker.is_pulled() {
                true => Turn::Done,
                false => Turn::Waits,
            })
        })?;
        for (worker, own) in self.workers().zip(all) {
            own.versions = worker.take_pulled();
        }
        Ok(())
    }

    /// Ends the work of all ranks; gives the reports of the shards.
    pub fn finish(mut self, simulation: &mut Simulation) -> Result<Vec<ServerReport>> {
        self.run(simulation, |worker, _| {
            if worker.is_finishing() {
                return Ok(match worker.is_idle() {
                    true => Turn::Done,
                    false => Turn::Waits,
                });
            }
            if !worker.is_pushed() || !worker.is_applied() {
                return Ok(Turn::Waits);
            }
            worker.start_finish()?;
            Ok(Turn::Moved)
        })?;
        let ranks = &mut self.ranks;
        let mut failure = None;
        simulation.run(|_| {
            for rank in ranks.iter_mut() {
                failure = rank.serve().err().or(failure.take());
            }
            failure.is_some() || ranks.iter().all(|rank| rank.is_served)
        })?;
        match failure {
            Some(error) => Err(error),
            None => {
                let shards = self.ranks.iter().filter_map(|rank| rank.shard.as_ref());
                Ok(shards.map(Shard::report).collect())
            }
        }
    }

    /// The workers, by number.
    fn workers(&mut self) -> impl Iterator<Item = &mut Worker> {
        let all = self.ranks.iter_mut();
        let mut workers: Vec<&mut Worker> = all.filter_map(|rank| rank.worker.as_mut()).collect();
        workers.sort_by_key(|worker| worker.number);
        workers.into_iter()
    }

    /// Steps all ranks until every worker is done.
    fn run(
        &mut self,
        simulation: &mut Simulation,
        mut go_on: impl FnMut(&mut Worker, Time) -> Result<Turn>,
    ) -> Result<()> {
        let world = simulation.world().clone();
        let ranks = &mut self.ranks;
        let mut failure = None;
        simulation.run(|_| {
            let mut is_over = true;
            for rank in ranks.iter_mut() {
                match rank.go_on(|worker| go_on(worker, world.now())) {
                    Ok(is_done) => is_over &= is_done,
                    Err(error) => failure = Some(error),
                }
            }
            is_over || failure.is_some()
        })?;
        failure.map_or(Ok(()), Err)
    }
}

impl SimulatedRank {
    fn serve(&mut self) -> Result<()> {
        if let Some(shard) = &mut self.shard {
            self.is_served = shard.turn()?;
        } else {
            self.is_served = true;
        }
        Ok(())
    }

    /// Does what can be done now. True: its worker is done.
    fn go_on(&mut self, mut go_on: impl FnMut(&mut Worker) -> Result<Turn>) -> Result<bool> {
        self.serve()?;
        let Some(worker) = &mut self.worker else {
            return Ok(true);
        };
        loop {
            worker.turn()?;
            match go_on(worker)? {
                Turn::Moved => {}
                Turn::Waits => return Ok(false),
                Turn::Done => return Ok(true),
            }
        }
    }
}
