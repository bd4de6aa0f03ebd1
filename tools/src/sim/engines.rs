//! [`Engines`]: the communicators of all ranks, on a fabric in virtual time.

use linerate::sim::{Fabric, FabricCall};
use linerate::{Collective, CollectiveBuilder, Communicator, Config, DataType, Operation};
use linerate::{Result, Simulation};

/// All ranks.
pub struct Engines {
    simulation: Simulation,
}

impl Engines {
    /// Communicators whose buffers have lengths and no bytes.
    pub fn new(fabric: &Fabric, ranks: u32, chunk_bytes: u64) -> Result<Engines> {
        let mut options = fabric.options(ranks, 0)?;
        options.size_only = true;
        let config = Config {
            chunk_bytes: chunk_bytes as usize,
            ..Config::default()
        };
        Ok(Engines {
            simulation: Simulation::new(options, config)?,
        })
    }

    /// The virtual time of a call, in nanoseconds. All ranks start it at the same time. The first
    /// call takes as long as later ones, because the algorithms of fabrics only send and receive:
    /// no rank has to be told where the memory of another is.
    pub fn time_ns(&mut self, call: &FabricCall, algorithm: &str) -> Result<u64> {
        let comms = self.simulation.communicators().to_vec();
        let start = self.simulation.now();
        let started = comms.iter().map(|comm| {
            let builder = builder(comm, call)?;
            builder.algorithm(algorithm).start()
        });
        let mut operations: Vec<Operation> = started.collect::<Result<_>>()?;
        for comm in &comms {
            self.simulation.world().wake_at(comm.rank(), start);
        }
        // One operation at a time is looked at, and only when something happens to its rank.
        for (comm, operation) in comms.iter().zip(&mut operations) {
            while !operation.test()? {
                while !self.simulation.advance()?.contains(&comm.rank()) {}
            }
        }
        Ok(self.simulation.now().since(start).as_nanos() as u64)
    }
}

/// A call on memory of its own; in place where a simulated schedule is.
fn builder<'c>(comm: &'c Communicator, call: &FabricCall) -> Result<CollectiveBuilder<'c>> {
    let ranks = u64::from(comm.ranks());
    let (collective, elements) = (call.collective, call.bytes / 4);
    let count = match collective.has_parts() {
        true => elements / ranks,
        false => elements,
    };
    let mut builder = comm
        .collective(collective, DataType::F32, count)
        .root(call.root);
    let alloc = |parts: u64| comm.alloc::<f32>((parts * count) as usize);
    let (input, output) = match collective {
        Collective::ReduceScatter | Collective::Scatter => (ranks, 1),
        Collective::AllGather | Collective::Gather => (1, ranks),
        Collective::AllToAll => (ranks, ranks),
        Collective::Barrier => return Ok(builder),
        _ => {
            let buffer = alloc(1)?;
            return Ok(builder.input(&buffer).output(&buffer));
        }
    };
    builder = builder.input(&alloc(input)?).output(&alloc(output)?);
    Ok(builder)
}
