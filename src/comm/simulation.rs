//! [`Simulation`]: all ranks of a job in one process, in virtual time, on a simulated fabric.

#[cfg(test)]
mod slots;

use super::connect::{self, Common, Origin};
use super::driving::Driving;
use super::{Buffer, Communicator, SparseAllreduce, SparseResult};
use crate::bootstrap::Cores;
use crate::config::Config;
use crate::engine::{Contact, Engine, Host};
use crate::error::{Error, Result};
use crate::time::Time;
use crate::transport::rdma::DeviceWorld;
use crate::transport::sim::{SimOptions, World};
use crate::types::Rank;
use crate::wait::Clock;
use std::sync::Arc;

/// Real communicators of all ranks over the `sim` transport, stepped by one thread.
///
/// Operations are started and tested as usual. A rank cannot wait for one, because
/// [`Simulation::run`] advances the time of all ranks. Equal options and seeds give equal runs.
///
/// Calls that wait for other ranks return an error, such as [`Communicator::split`],
/// [`Communicator::duplicate`], [`Communicator::rebuild`] and [`Fusion`](super::Fusion).
/// [`Simulation::run_sparse`] steps a sparse allreduce of all ranks.
pub struct Simulation {
    world: World,
    /// What ranks write to each other by, if not by the world itself.
    devices: Option<DeviceWorld>,
    communicators: Vec<Communicator>,
    ready: Vec<Rank>,
    /// The ranks driven since the last [`Simulation::advance`]; a rank may be in it several times.
    moved: Vec<Rank>,
}

impl Simulation {
    /// A job of `options.ranks` ranks, connected. With `options.size_only`, buffers have lengths
    /// and no bytes.
    pub fn new(options: SimOptions, config: Config) -> Result<Simulation> {
        Simulation::over(None, options, config)
    }

    /// As [`Simulation::new`], over simulated RDMA devices, whose queues are joined by the
    /// simulated fabric.
    pub(crate) fn over(
        devices: Option<DeviceWorld>,
        options: SimOptions,
        config: Config,
    ) -> Result<Simulation> {
        config.check()?;
        options.check()?;
        let world = World::new(options);
        let options = world.options();
        let mut engines: Vec<Engine> = (0..options.ranks)
            .map(|rank| engine_of((&world, devices.as_ref()), rank, &config))
            .collect::<Result<_>>()?;
        let contacts: Arc<[Contact]> = engines.iter().map(Engine::contact).collect();
        for engine in &mut engines {
            engine.connect(contacts.clone(), Vec::new())?;
        }
        let mut waiting: Vec<usize> = (0..engines.len()).collect();
        while !waiting.is_empty() {
            let mut still = Vec::new();
            for &rank in &waiting {
                if !engines[rank].poll_connect(world.now())? {
                    still.push(rank);
                }
            }
            let has_moved = still.len() < waiting.len();
            if !has_moved && !advance((&world, devices.as_ref())) {
                return Err(Error::Bootstrap(format!(
                    "simulated ranks {still:?} cannot connect"
                )));
            }
            waiting = still;
        }
        let connected = engines.into_iter();
        let communicators = connected.map(|engine| communicator_of(&world, engine));
        let communicators = communicators.collect::<Result<_>>()?;
        Ok(Simulation {
            world,
            devices,
            communicators,
            ready: Vec::new(),
            moved: Vec::new(),
        })
    }

    /// The communicators, by rank.
    pub fn communicators(&self) -> &[Communicator] {
        &self.communicators
    }

    /// The simulated fabric, to inject faults and read statistics.
    pub fn world(&self) -> &World {
        &self.world
    }

    /// The virtual time.
    pub fn now(&self) -> Time {
        self.world.now()
    }

    /// A rank leaves in good order, as if it dropped every handle of its communicator. The network
    /// delivers what it has sent, and then its peers learn that it has left. Its operations that
    /// have not ended are given up.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`]: no such rank; any failure of a communicator.
    pub fn leave(&mut self, rank: Rank) -> Result<()> {
        let Some(leaving) = self.communicators.get(rank as usize) else {
            let ranks = self.communicators.len();
            return Err(Error::invalid(format!(
                "rank {rank} of a simulation of {ranks} leaves"
            )));
        };
        let driving = leaving.driving()?.clone();
        while !driving.engine().leave(self.world.now()) && self.go_on()? {}
        Ok(())
    }

    /// Steps all ranks until `is_done` returns true. An error says that nothing can move any more.
    pub fn run(&mut self, mut is_done: impl FnMut(&[Communicator]) -> bool) -> Result<()> {
        self.settle()?;
        loop {
            self.moved.clear();
            if is_done(&self.communicators) {
                return Ok(());
            }
            if !self.go_on()? && !self.time_out()? {
                return Err(stands_still());
            }
        }
    }

    /// Lets the next thing happen, and drives the ranks that it concerns; false: there is none.
    fn go_on(&mut self) -> Result<bool> {
        let has_devices = self.devices.is_some();
        let has_moved = advance((&self.world, self.devices.as_ref()));
        match (has_devices, has_moved) {
            (false, _) => self.drive_ready()?,
            (true, true) => self.settle()?,
            (true, false) => {
                // Greetings are looked for slowly while queues are up.
                self.drive_slow()?;
                self.settle()?;
                return Ok(advance((&self.world, self.devices.as_ref())));
            }
        }
        Ok(has_moved)
    }

    fn drive_slow(&self) -> Result<()> {
        for communicator in self.living() {
            let mut engine = communicator.driving()?.engine();
            engine.drive_slow(self.world.now());
        }
        Ok(())
    }

    /// Runs one step of a sparse allreduce on all ranks, from its start to its end. `sparse` and
    /// `gradients` have one entry for each rank, as for [`SparseAllreduce::start`]. Returns the
    /// results by rank.
    ///
    /// ```
    /// use linerate::{Buffer, Config, DataType, Simulation, SparseAllreduce, SparseOptions, TensorSpec};
    /// use linerate::options::Amount;
    /// use linerate::sim::SimOptions;
    /// let mut simulation = Simulation::new(SimOptions::new(3, 1), Config::default())?;
    /// let options = SparseOptions { amount: Amount::Count(1), ..SparseOptions::default() };
    /// let (mut sparse, mut gradients) = (Vec::new(), Vec::new());
    /// for comm in simulation.communicators() {
    ///     let tensor = TensorSpec { name: "weights".into(), count: 2, dtype: DataType::F32 };
    ///     sparse.push(SparseAllreduce::new(comm, vec![tensor], options.clone())?);
    ///     gradients.push(vec![Buffer::from_vec(vec![1.0, 5.0])]);
    /// }
    /// let results = simulation.run_sparse(&mut sparse, &gradients)?;
    /// for result in &results {
    ///     assert_eq!(result.nonzeros_of(0)?.collect::<Vec<_>>(), [(1, 15.0)]);
    /// }
    /// # Ok::<(), linerate::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::InvalidArgument`]: `sparse` or `gradients` does not have one entry for each rank,
    /// or nothing can move any more; any error of a rank's step.
    pub fn run_sparse(
        &mut self,
        sparse: &mut [SparseAllreduce],
        gradients: &[Vec<Buffer<f32>>],
    ) -> Result<Vec<SparseResult>> {
        let ranks = self.communicators.len();
        if (sparse.len(), gradients.len()) != (ranks, ranks) {
            return Err(Error::invalid(format!(
                "{} sparse allreduces and gradients of {} ranks for a simulation of {ranks}: one of both for each",
                sparse.len(),
                gradients.len()
            )));
        }
        for (own, gradients) in sparse.iter_mut().zip(gradients) {
            own.start(gradients)?;
        }
        let mut results: Vec<Option<SparseResult>> = vec![None; ranks];
        let mut error = None;
        self.run(|_| {
            for (own, result) in sparse.iter_mut().zip(&mut results) {
                if result.is_none() && error.is_none() {
                    match own.test() {
                        Ok(found) => *result = found,
                        Err(found) => error = Some(found),
                    }
                }
            }
            error.is_some() || results.iter().all(Option::is_some)
        })?;
        match error {
            Some(error) => Err(error),
            None => Ok(results.into_iter().flatten().collect()),
        }
    }

    /// Advances to the next point of time at which something happens, and returns the ranks to
    /// which it happened. It is for jobs whose ranks go on one by one, where asking all ranks at
    /// every point of time would be most of the work. A caller that has started an operation of a
    /// rank calls [`World::wake_at`] for that rank. An error says that nothing can move any more.
    pub fn advance(&mut self) -> Result<&[Rank]> {
        self.moved.clear();
        if !self.go_on()? && !self.time_out()? {
            return Err(stands_still());
        }
        Ok(&self.moved)
    }

    /// Drives the ranks to which something has happened. At most points of time that is one or two
    /// ranks of a thousand.
    fn drive_ready(&mut self) -> Result<()> {
        let now = self.world.now();
        loop {
            self.ready.clear();
            self.world.take_ready(&mut self.ready);
            if self.ready.is_empty() {
                return Ok(());
            }
            self.moved.extend_from_slice(&self.ready);
            for &rank in &self.ready {
                let mut engine = self.communicators[rank as usize].driving()?.engine();
                while engine.drive(now) {}
            }
        }
    }

    /// The communicators of ranks that were not killed. A dead process stores nothing into its
    /// peers' memory, so its rank is not driven.
    fn living(&self) -> impl Iterator<Item = &Communicator> {
        let is_alive = |c: &&Communicator| self.world.is_alive(c.rank());
        self.communicators.iter().filter(is_alive)
    }

    /// Drives all ranks until none moves at this point of virtual time.
    fn settle(&mut self) -> Result<()> {
        let now = self.world.now();
        let mut moved = true;
        while moved {
            moved = false;
            for communicator in self.living() {
                moved |= communicator.driving()?.engine().drive(now);
            }
        }
        Ok(())
    }

    /// Nothing is under way: advances the time until silent operations time out. Returns false if
    /// none did.
    fn time_out(&mut self) -> Result<bool> {
        let all = self.communicators.iter().map(Communicator::driving);
        let all: Vec<Arc<Driving>> = all.map(|driving| driving.cloned()).collect::<Result<_>>()?;
        let timeouts = all.iter().map(|driving| driving.engine().config().timeout);
        let timeout = timeouts.max().unwrap_or_default();
        let has_failed = |driving: &Arc<Driving>| driving.engine().failure().is_some();
        let before: Vec<bool> = all.iter().map(has_failed).collect();
        // The first pass notices the silence, the second one ends the wait for answers.
        for _ in 0..2 {
            self.world
                .wake_at(0, self.world.now().after(timeout + timeout));
            while self.go_on()? {}
            self.drive_slow()?;
            self.settle()?;
        }
        let mut after = all.iter().map(has_failed).zip(before);
        Ok(after.any(|(after, before)| after && !before))
    }
}

/// Lets the next thing happen on a device, or where there is none in the network.
fn advance((world, devices): (&World, Option<&DeviceWorld>)) -> bool {
    devices.is_some_and(DeviceWorld::advance) || world.advance()
}

fn engine_of(
    (world, devices): (&World, Option<&DeviceWorld>),
    rank: Rank,
    config: &Config,
) -> Result<Engine> {
    let options = world.options();
    let host = Host {
        threads_max: 1,
        cache_bytes: usize::MAX,
        is_size_only: options.size_only,
    };
    let network = Box::new(world.transport(rank));
    let transport = match devices {
        Some(devices) => devices.transport((rank, options.ranks), network, &config.verbs)?,
        None => network,
    };
    Engine::new(transport, rank, options.ranks, config.clone(), host)
}

fn communicator_of(world: &World, engine: Engine) -> Result<Communicator> {
    let options = world.options();
    let common = Common {
        identity: 0,
        hosts: (0..options.ranks)
            .map(|rank| options.host_of(rank))
            .collect(),
        places: Vec::new(),
        cores: Cores::own(),
        bytes_per_second: None,
        models: None,
    };
    let origin = Origin {
        is_member: false,
        ..Origin::new(Clock::Virtual(world.clock()))?
    };
    Ok(connect::finish(engine, origin, options.size_only, &common))
}

fn stands_still() -> Error {
    Error::invalid("the simulation stands still: no message is under way and no rank can move")
}
