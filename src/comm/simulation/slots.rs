//! Simulations of communicators whose peers come one by one (`comm/slots.rs`), for tests.

use super::{Simulation, communicator_of, engine_of};
use crate::bootstrap::{Cores, HostIdentity, RankContact};
use crate::comm::Communicator;
use crate::config::Config;
use crate::error::Result;
use crate::transport::sim::{SimOptions, World};
use crate::types::Rank;
use std::net::Ipv4Addr;

impl Simulation {
    /// `options.ranks` slots, of which the first `ranks` have processes that are connected. The
    /// others are vacant.
    pub fn of_slots(options: SimOptions, ranks: u32, config: &Config) -> Result<Simulation> {
        let slots = options.ranks;
        let world = World::new(options);
        let alone = (0..slots).map(|rank| alone(&world, rank, config));
        let mut simulation = Simulation {
            communicators: alone.collect::<Result<_>>()?,
            world,
            devices: None,
            ready: Vec::new(),
            moved: Vec::new(),
        };
        (ranks..slots).for_each(|rank| simulation.world.kill(rank));
        for comm in &simulation.communicators[..ranks as usize] {
            for peer in 0..ranks {
                comm.connect_one(peer, &simulation.contact(peer)?)?;
            }
        }
        simulation.run(|all| {
            all[..ranks as usize].iter().all(|comm| {
                let engine = comm.driving().unwrap().engine();
                (0..ranks).all(|peer| engine.is_connected(peer))
            })
        })?;
        Ok(simulation)
    }

    /// A new process has a slot that is vacant, and is connected to nobody.
    pub fn enter(&mut self, rank: Rank) -> Result<()> {
        let config = self.communicators[rank as usize].inner.config.clone();
        self.communicators[rank as usize] = alone(&self.world, rank, &config)?;
        Ok(())
    }

    /// Where the process that has a slot is reached.
    pub fn contact(&self, rank: Rank) -> Result<Vec<u8>> {
        let engine = self.communicators[rank as usize].driving()?.engine();
        let contact = RankContact {
            host: HostIdentity::own(None)?,
            place: Ipv4Addr::LOCALHOST.into(),
            cores: Cores::own(),
            megabytes_per_second: 1,
            engine: engine.contact(),
            findings: Vec::new(),
        };
        Ok(contact.emit())
    }
}

fn alone(world: &World, rank: Rank, config: &Config) -> Result<Communicator> {
    let mut engine = engine_of((world, None), rank, config)?;
    engine.start_alone();
    communicator_of(world, engine)
}
