//! How the ranks of a communicator make a parameter server together.

use super::checkpoint::text_of;
use super::coming::DoorAddress;
use super::door::{Door, Known};
use super::layout::Layout;
use super::options::ServerOptions;
use super::shard::Shard;
use super::shared::Shared;
use super::spoken::{emit_parts, parse_parts};
use super::weights::UpdateFn;
use super::worker::Worker;
use crate::bootstrap::{Reunion, note};
use crate::comm::Communicator;
use crate::comm::connect::Origin;
use crate::comm::slots::Opened;
use crate::comm::window::Part;
use crate::error::{Error, Result};
use crate::fusion::TensorSpec;
use crate::types::Rank;
use std::sync::{Arc, OnceLock};

/// What a rank has of a parameter server.
pub struct Made {
    pub shared: Arc<Shared>,
    pub shard: Option<Shard>,
    pub door: Option<Door>,
    pub worker: Option<Worker>,
}

/// An error unless all ranks give the same.
pub fn check_alike(
    comm: &Communicator,
    tensors: &[TensorSpec],
    options: &ServerOptions,
    has_function: bool,
) -> Result<()> {
    let rule = match has_function {
        true => "a function",
        false => "an optimizer",
    };
    let own = format!("{} and {rule}", options.describe(tensors));
    for (rank, theirs) in (0..).zip(comm.gather_blobs(own.as_bytes())?) {
        if theirs != own.as_bytes() {
            return Err(Error::invalid(format!(
                "rank {rank} makes a parameter server with other tensors or options than rank {}: {}; here {own}: all ranks give the same",
                comm.rank(),
                String::from_utf8_lossy(&theirs)
            )));
        }
    }
    Ok(())
}

/// Makes a communicator of slots with the ranks of this one, the windows, and what this rank does
/// with them.
pub fn open(
    comm: &Communicator,
    tensors: &[TensorSpec],
    options: ServerOptions,
    function: Option<UpdateFn>,
) -> Result<Made> {
    let (ranks, has_function) = (comm.ranks(), function.is_some());
    let layout = Layout::new(tensors, &options, ranks)?;
    let what = "its part of a parameter server";
    let (rank, slots, config) = (comm.rank(), layout.slots(ranks), &comm.inner.config);
    let opened = Opened::new(rank, slots, config);
    let contact = opened.as_ref().map(|opened| opened.contact.clone());
    let contact = contact.map_err(Error::clone);
    let contacts = comm.gather_made(contact, what)?;
    let arguments = options.describe(tensors);
    let connect = || -> Result<Made> {
        let known: Vec<(Rank, Vec<u8>)> = (0..).zip(contacts.iter().cloned()).collect();
        let of_slots = opened?.finish(&known, Origin::of(comm, false)?)?;
        let family = comm.driving()?.family();
        of_slots.connect_all(&known, || {
            // The caller may have operations under way that must end before peers can make this
            // call.
            family.drive(None);
            Ok(())
        })?;
        make(&of_slots, layout, tensors, options, function)
    };
    let made = connect();
    let own = made
        .as_ref()
        .map_err(Error::clone)
        .map(|made| emit_parts(&made.shared.own_parts()));
    let all = comm.gather_made(own, what)?;
    let mut made = made?;
    let shared = made.shared.clone();
    let parts = all.iter().map(|bytes| {
        parse_parts(bytes).ok_or_else(|| Error::Malformed("a rank has other windows".to_string()))
    });
    let parts = parts.collect::<Result<Vec<[Part; 2]>>>()?;
    for (peer, &parts) in (0..).zip(&parts) {
        shared.set_parts(peer, parts)?;
    }
    // Who uses a window knows that its owner has made it known.
    comm.gather_words(&[0])?;
    if made.shard.is_some() {
        let known = Known {
            arguments,
            has_function,
            ranks,
            transport: shared.comm.inner.config.transport.clone(),
            contacts,
            parts,
        };
        made.door = open_door(&shared, known);
    }
    Ok(made)
}

/// `None`, with a note: nobody can come later.
fn open_door(shared: &Arc<Shared>, known: Known) -> Option<Door> {
    let inner = &shared.comm.inner;
    let reunion = Reunion::new(inner.identity, inner.rank, &inner.config, &inner.places);
    match reunion.and_then(|reunion| reunion.open()) {
        Ok(place) => Some(Door::new(shared.clone(), known, place)),
        Err(error) => {
            note(&format!(
                "rank {}: no process can join this parameter server later: {error}",
                inner.rank
            ));
            None
        }
    }
}

impl DoorAddress {
    pub fn of(shared: &Shared) -> DoorAddress {
        let (inner, layout) = (&shared.comm.inner, &shared.layout);
        let leaders = layout.servers[..layout.leaders()].iter();
        DoorAddress {
            identity: inner.identity,
            leaders: leaders
                .map(|&rank| (rank, inner.places.get(rank as usize).copied()))
                .collect(),
        }
    }
}

/// What a rank of a communicator has. No other rank knows of its windows yet.
fn make(
    comm: &Communicator,
    layout: Layout,
    tensors: &[TensorSpec],
    options: ServerOptions,
    function: Option<UpdateFn>,
) -> Result<Made> {
    let place = |ranks: &[Rank]| ranks.iter().position(|&rank| rank == comm.rank());
    let (server, worker) = (place(&layout.servers), place(&layout.workers));
    let bytes = server.map_or(0, |server| layout.server_bytes(server));
    let (data, words) = (comm.alloc::<u8>(bytes)?, comm.alloc::<u64>(layout.words())?);
    let (data, words) = (comm.window_of_slots(&data)?, comm.window_of_slots(&words)?);
    let shared = Arc::new(Shared {
        comm: comm.clone(),
        layout,
        tensors: text_of(tensors),
        data,
        words,
        gradients: OnceLock::new(),
    });
    let evict_after = options.evict_after;
    let shard = server.map(|server| Shard::new(shared.clone(), server, options, function));
    let worker = worker.map(|number| Worker::new(shared.clone(), number, evict_after));
    Ok(Made {
        shard: shard.transpose()?,
        door: None,
        worker: worker.transpose()?,
        shared,
    })
}

/// As [`open`], of all ranks of a simulation, which cannot wait for each other.
pub fn open_simulated<'a>(
    all: impl Iterator<Item = &'a Communicator>,
    tensors: &[TensorSpec],
    options: &ServerOptions,
) -> Result<Vec<Made>> {
    let made = all.map(|comm| {
        comm.driving()?.engine().tolerate_failures();
        let ranks = comm.ranks() - options.spares;
        let layout = Layout::new(tensors, options, ranks)?;
        make(comm, layout, tensors, options.clone(), None)
    });
    let made = made.collect::<Result<Vec<Made>>>()?;
    for own in &made {
        for peer in &made {
            let (peer, parts) = (peer.shared.comm.rank(), peer.shared.own_parts());
            own.shared.set_parts(peer, parts)?;
        }
    }
    Ok(made)
}
