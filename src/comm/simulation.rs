//! [`Simulation`]: the ranks of a job in one process and in virtual time, on a modelled fabric.

use super::Communicator;
use super::connect::Common;
use crate::bootstrap::Cores;
use crate::config::Config;
use crate::engine::{Clock, Contact, Engine, Host};
use crate::error::{Error, Result};
use crate::memory::ProcessMark;
use crate::time::Time;
use crate::transport::sim::{SimOptions, World};
use crate::types::Rank;
use std::sync::Arc;

/// Real communicators of all ranks over the `sim` transport, stepped by one thread.
///
/// Operations are started and tested as usual; nobody can wait for one inside a rank, because the time of all ranks
/// is advanced by [`Simulation::run`]. The same options and seed give the same run. So what waits for other ranks inside a
/// call is not there: [`Communicator::split`], [`Communicator::duplicate`], [`Communicator::rebuild`] and
/// [`Fusion`](super::Fusion) return an error.
pub struct Simulation {
    world: World,
    communicators: Vec<Communicator>,
    ready: Vec<Rank>,
    /// Driven since the last [`Simulation::advance`], each once or more.
    moved: Vec<Rank>,
}

impl Simulation {
    /// A job of `options.ranks` ranks, connected. `size_only` buffers have lengths and no bytes.
    pub fn new(options: SimOptions, config: Config) -> Result<Simulation> {
        let world = World::new(options);
        let options = world.options();
        let clock = Clock::Virtual(world.clock());
        let process = ProcessMark::current()?;
        let host = Host {
            threads_max: 1,
            cache_bytes: usize::MAX,
            is_size_only: options.size_only,
        };
        let mut engines: Vec<Engine> = (0..options.ranks)
            .map(|rank| {
                let transport = Box::new(world.transport(rank));
                Engine::new(transport, rank, options.ranks, config.clone(), host)
            })
            .collect::<Result<_>>()?;
        let contacts: Arc<[Contact]> = engines.iter().map(Engine::contact).collect();
        for engine in &mut engines {
            engine.connect(contacts.clone())?;
        }
        let mut waiting: Vec<usize> = (0..engines.len()).collect();
        while !waiting.is_empty() {
            let mut still = Vec::new();
            for &rank in &waiting {
                if !engines[rank].poll_connect(world.now())? {
                    still.push(rank);
                }
            }
            if still.len() == waiting.len() && !world.advance() {
                return Err(Error::Bootstrap(format!(
                    "simulated ranks {still:?} cannot connect"
                )));
            }
            waiting = still;
        }
        let hosts: Vec<u32> = (0..options.ranks)
            .map(|rank| options.host_of(rank))
            .collect();
        let communicators = engines
            .into_iter()
            .map(|engine| {
                let (clock, hosts) = (clock.clone(), hosts.clone());
                let common = Common {
                    identity: 0,
                    hosts: hosts.clone(),
                    places: Vec::new(),
                    cores: Cores::own(),
                    models: None,
                };
                let driving = (engine, clock, process, Arc::default());
                Communicator::assemble(driving, hosts, options.size_only, &common)
            })
            .collect();
        Ok(Simulation {
            world,
            communicators,
            ready: Vec::new(),
            moved: Vec::new(),
        })
    }

    /// The communicators, by rank.
    pub fn communicators(&self) -> &[Communicator] {
        &self.communicators
    }

    /// The fabric, for faults and statistics.
    pub fn world(&self) -> &World {
        &self.world
    }

    /// Virtual time.
    pub fn now(&self) -> Time {
        self.world.now()
    }

    /// Steps all ranks until `is_done` says so. An error says that nothing can move any more.
    pub fn run(&mut self, mut is_done: impl FnMut(&[Communicator]) -> bool) -> Result<()> {
        self.settle();
        loop {
            self.moved.clear();
            if is_done(&self.communicators) {
                return Ok(());
            }
            if self.world.advance() {
                self.drive_ready();
            } else if !self.time_out() {
                return Err(stands_still());
            }
        }
    }

    /// Goes on to the next point of time at which something happens, and names the ranks to which it did: for jobs whose ranks
    /// go on one by one, where asking all of them at every point of time is most of the work. Whoever has started an operation
    /// says so by [`World::wake_at`]. An error says that nothing can move any more.
    pub fn advance(&mut self) -> Result<&[Rank]> {
        self.moved.clear();
        if self.world.advance() {
            self.drive_ready();
        } else if !self.time_out() {
            return Err(stands_still());
        }
        Ok(&self.moved)
    }

    /// Drives those ranks to which something has happened: at most points of time, one or two of a thousand.
    fn drive_ready(&mut self) {
        let now = self.world.now();
        loop {
            self.ready.clear();
            self.world.take_ready(&mut self.ready);
            if self.ready.is_empty() {
                return;
            }
            self.moved.extend_from_slice(&self.ready);
            for &rank in &self.ready {
                let mut engine = self.communicators[rank as usize].inner.shared.engine();
                while engine.drive(now) {}
            }
        }
    }

    /// Those that were not killed: a dead process stores nothing into its peers' memory.
    fn living(&self) -> impl Iterator<Item = &Communicator> {
        let is_alive = |c: &&Communicator| self.world.is_alive(c.rank());
        self.communicators.iter().filter(is_alive)
    }

    /// Drives all ranks until none moves at this point of virtual time.
    fn settle(&mut self) {
        let now = self.world.now();
        let mut moved = true;
        while moved {
            moved = false;
            for communicator in self.living() {
                moved |= communicator.inner.shared.engine().drive(now);
            }
        }
    }

    /// Nothing is under way: lets the time pass in which silent operations give up. False if none did.
    fn time_out(&mut self) -> bool {
        let engine = |c: &Communicator| c.inner.shared.clone();
        let timeout = self
            .communicators
            .iter()
            .map(|c| engine(c).engine().config().timeout)
            .max()
            .unwrap_or_default();
        let before: Vec<bool> = self
            .communicators
            .iter()
            .map(|c| engine(c).engine().failure().is_some())
            .collect();
        // Once to notice the silence, once more to end the waiting for answers.
        for _ in 0..2 {
            self.world
                .wake_at(0, self.world.now().after(timeout + timeout));
            while self.world.advance() {
                self.drive_ready();
            }
            for communicator in self.living() {
                engine(communicator).engine().drive_slow(self.world.now());
            }
            self.settle();
        }
        self.communicators
            .iter()
            .zip(before)
            .any(|(c, failed)| !failed && engine(c).engine().failure().is_some())
    }
}

fn stands_still() -> Error {
    Error::invalid("the simulation stands still: no message is under way and no rank can move")
}
