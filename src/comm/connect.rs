//! From an engine and the contacts of all ranks to a communicator: the end of every way to make one.

use super::Communicator;
use super::family::Family;
use super::host;
use super::prices;
use crate::bootstrap::{self, Cores};
use crate::config::Config;
use crate::cost::{self, Models};
use crate::engine::{Clock, Contact, Engine};
use crate::error::{Error, Result};
use crate::limits;
use crate::memory::ProcessMark;
use crate::transport;
use crate::types::Rank;
use std::sync::Arc;
use std::time::Duration;

/// Between two looks of a rank that waits for others to connect or to come.
pub(super) const LOOK_AGAIN: Duration = Duration::from_micros(200);

/// What the contacts of all ranks together say.
#[derive(Clone, Copy, Debug)]
pub(super) struct Common {
    /// What names the communicator on this host: all its ranks know the same contacts, and each has a random part.
    pub identity: u64,
    /// The cores that its ranks may run on.
    pub cores: Cores,
    /// Rank 0's prices: all ranks must choose alike. `None`: those of the transport.
    pub models: Option<Models>,
}

/// An engine that waits for the contacts of its peers, and its own contact as bytes.
pub(super) fn open(rank: Rank, ranks: u32, config: &Config) -> Result<(Engine, Vec<u8>)> {
    bootstrap::check_descriptors(rank, ranks)?;
    let provider = {
        let nonce = bootstrap::nonce()?;
        transport::open_with(&config.transport, rank, ranks, nonce, &config.tcp)?
    };
    let host = host::share_of_host(config, ranks as usize);
    let mut of_engine = config.clone();
    let is_default = config.chunk_bytes == limits::CHUNK_BYTES_DEFAULT;
    if is_default && provider.capabilities().name == "tcp" {
        of_engine.chunk_bytes = limits::CHUNK_BYTES_TCP;
    }
    let engine = Engine::new(provider, rank, ranks, of_engine, host)?;
    let prices = match rank {
        0 => prices::read_prices(&config.prices),
        _ => (Models::BUILT_IN, None),
    };
    if let Some(complaint) = prices.1 {
        super::say(&complaint);
    }
    let contact = bootstrap::emit_contact(&engine.contact());
    let contact = Cores::own().emit(&[cost::emit_bytes(&prices.0), contact].concat());
    Ok((engine, contact))
}

/// Begins to connect to the ranks with these contacts, by rank.
pub(super) fn begin(engine: &mut Engine, contacts: &[Vec<u8>]) -> Result<Common> {
    let mut cores = Cores::own();
    let mut models = None;
    let mut parsed: Vec<Contact> = Vec::with_capacity(contacts.len());
    for bytes in contacts {
        let (of_rank, rest) = Cores::parse(bytes)?;
        cores = cores.union(of_rank);
        let (of_rank, contact) = cost::parse_bytes(rest)?;
        models.get_or_insert(of_rank);
        parsed.push(bootstrap::parse_contact(contact)?);
    }
    engine.connect(parsed)?;
    let mix = |hash: u64, byte: &u8| crate::prng::mix(hash ^ u64::from(*byte)).wrapping_add(hash);
    Ok(Common {
        identity: contacts.iter().flatten().fold(1, mix),
        cores,
        models,
    })
}

/// Connects to everyone, at most for the timeout. `meanwhile` is called between two looks.
pub(super) fn connect(
    engine: &mut Engine,
    contacts: &[Vec<u8>],
    clock: &Clock,
    mut meanwhile: impl FnMut(),
) -> Result<Common> {
    let common = begin(engine, contacts)?;
    let timeout = engine.config().timeout;
    let deadline = clock.now().after(timeout);
    while !engine.poll_connect(clock.now())? {
        if clock.now() > deadline {
            return Err(Error::Bootstrap(format!(
                "rank {} could not connect to all ranks in {timeout:?}",
                engine.rank()
            )));
        }
        meanwhile();
        std::thread::sleep(LOOK_AGAIN);
    }
    Ok(common)
}

/// The communicator of a connected engine, making progress as its settings say.
pub(super) fn finish(
    engine: Engine,
    clock: Clock,
    hosts: Vec<u32>,
    family: Arc<Family>,
    common: &Common,
) -> Result<Communicator> {
    let has_thread = engine.config().progress_thread;
    let driving = (engine, clock, ProcessMark::current()?, family);
    let communicator = Communicator::assemble(driving, hosts, false, common);
    if has_thread {
        communicator.start_progress_thread()?;
    } else {
        communicator.inner.shared.join_family();
    }
    Ok(communicator)
}
