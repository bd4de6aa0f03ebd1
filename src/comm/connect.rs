//! From an engine and the contacts of all ranks to a communicator: the end of every way to make one.

use super::Communicator;
use super::family::Family;
use crate::bootstrap;
use crate::config::Config;
use crate::engine::{Clock, Contact, Engine};
use crate::error::{Error, Result};
use crate::transport;
use crate::types::Rank;
use std::sync::Arc;
use std::time::Duration;

/// Between two looks of a rank that waits for others to connect or to come.
pub(super) const LOOK_AGAIN: Duration = Duration::from_micros(200);

/// An engine that waits for the contacts of its peers, and its own contact as bytes.
pub(super) fn open(rank: Rank, ranks: u32, config: &Config) -> Result<(Engine, Vec<u8>)> {
    let provider = transport::open(&config.transport, rank, ranks, bootstrap::nonce()?)?;
    let engine = Engine::new(provider, rank, ranks, config.clone(), false)?;
    let contact = bootstrap::emit_contact(&engine.contact());
    Ok((engine, contact))
}

/// Begins to connect to the ranks with these contacts, by rank.
pub(super) fn begin(engine: &mut Engine, contacts: &[Vec<u8>]) -> Result<()> {
    let contacts: Vec<Contact> = contacts
        .iter()
        .map(|bytes| bootstrap::parse_contact(bytes))
        .collect::<Result<_>>()?;
    engine.connect(contacts)
}

/// Connects to everyone, at most for the timeout. `meanwhile` is called between two looks.
pub(super) fn connect(
    engine: &mut Engine,
    contacts: &[Vec<u8>],
    clock: &Clock,
    mut meanwhile: impl FnMut(),
) -> Result<()> {
    begin(engine, contacts)?;
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
    Ok(())
}

/// What names a communicator on this host: all its ranks know the same contacts, and each has a random part.
pub(super) fn identity_of(contacts: &[Vec<u8>]) -> u64 {
    let bytes = contacts.iter().flatten();
    bytes.fold(1, |hash, &byte| {
        crate::prng::mix(hash ^ u64::from(byte)).wrapping_add(hash)
    })
}

/// The communicator of a connected engine, making progress as its settings say.
pub(super) fn finish(
    engine: Engine,
    clock: Clock,
    hosts: Vec<u32>,
    family: &Arc<Family>,
    identity: u64,
) -> Result<Communicator> {
    let has_thread = engine.config().progress_thread;
    let communicator =
        Communicator::assemble(engine, clock, hosts, false, family.clone(), identity);
    if has_thread {
        communicator.start_progress_thread()?;
    } else {
        communicator.inner.shared.join_family();
    }
    Ok(communicator)
}
