//! Runs a case on `sim`: one thread steps all roles and the world.

use super::actor::{Actor, Progress};
use super::mutants::{Fault, Mutant, Surroundings};
use super::script::Case;
use linerate::Rank;
use linerate::sim::{Hosts, Link, SimOptions, World};
use linerate::transport::{Address, Transport};

/// More steps than any case takes: a case that needs more is stuck.
const STEPS_MAX: u32 = 1_000_000;

/// Where the transport of a role is.
enum Place {
    Taken(Box<dyn Transport>),
    /// It comes when the first transport of this rank is gone.
    Succeeds(Rank),
    Left,
}

fn transport_of(world: &World, rank: Rank, fault: Option<Fault>) -> Box<dyn Transport> {
    let inner: Box<dyn Transport> = Box::new(world.transport(rank));
    let Some(fault) = fault else {
        return inner;
    };
    let world = world.clone();
    let advance = Box::new(move || {
        world.advance();
    });
    let surroundings = Surroundings { rank, advance };
    Box::new(Mutant::new(inner, fault, surroundings))
}

/// Runs a case in a world whose weather follows from the seed; with a fault, every rank's transport
/// has it.
pub fn run(case: &Case, seed: u64, fault: Option<Fault>) -> Result<(), String> {
    let world = World::new(weather(case.ranks(), seed));
    let mut places: Vec<Place> = (0..case.ranks())
        .map(|rank| Place::Taken(transport_of(&world, rank, fault)))
        .collect();
    let address = |role| match places.get(case.rank_of(role) as usize) {
        Some(Place::Taken(transport)) => transport.local_address(),
        _ => unreachable!("each rank has a transport"),
    };
    let roles = 0..case.roles.len() as u32;
    let addresses: Vec<Address> = roles.clone().map(address).collect();
    let mut actors: Vec<Actor> = roles
        .map(|role| Actor::new(case, role, addresses.clone()))
        .collect();
    places.extend(case.succeeds.map(Place::Succeeds));
    let result = step_all(&world, &mut actors, &mut places, fault);
    // The transports go before the memory that the actors lent them.
    drop(places);
    result.map_err(|text| format!("{}, seed {seed}: {text}", case.name))
}

/// From a quiet network to a broken one; odd seeds map memory, every fifth has hosts.
fn weather(ranks: u32, seed: u64) -> SimOptions {
    let quiet = SimOptions::new(ranks, seed);
    let mut options = match seed % 4 {
        0 => quiet,
        1 => quiet.hostile(),
        2 => SimOptions {
            drop: 0.3,
            duplicate: 0.3,
            ..quiet
        },
        _ => SimOptions {
            drop: 0.2,
            duplicate: 0.5,
            retransmit_ns: 5_000,
            ..quiet.hostile()
        },
    };
    options.mapped = seed % 3 == 1;
    if seed % 5 == 4 {
        options.hosts = Some(Hosts {
            ranks_per_host: 2,
            nics: 2,
            link: Link::HOST,
        });
    }
    options
}

fn step_all(
    world: &World,
    actors: &mut [Actor],
    places: &mut [Place],
    fault: Option<Fault>,
) -> Result<(), String> {
    let mut idle_rounds = 0;
    for _ in 0..STEPS_MAX {
        let (mut is_moved, mut is_counting, mut is_over) = (false, false, true);
        for (actor, place) in actors.iter_mut().zip(places.iter_mut()) {
            if let Place::Succeeds(rank) = *place {
                is_over = false;
                if world.is_vacant(rank) {
                    *place = Place::Taken(transport_of(world, rank, fault));
                }
                continue;
            }
            let Place::Taken(transport) = place else {
                continue;
            };
            let before = world.now();
            let progress = actor.step(transport.as_mut(), before)?;
            if world.now() != before {
                return Err(format!(
                    "{}: a call lasted {:?} of virtual time, so it waited for somebody",
                    actor.place(),
                    world.now().since(before)
                ));
            }
            let is_gone = matches!(progress, Progress::Exit | Progress::Left);
            is_moved |= is_gone || progress == Progress::Moved;
            is_counting |= progress == Progress::Counting;
            is_over &= progress == Progress::Done;
            if progress == Progress::Exit {
                world.kill(actor.rank());
            }
            if is_gone {
                *place = Place::Left;
            }
        }
        if is_over {
            return Ok(());
        }
        // A step may take rounds of its own without moving on: `Drain` takes two per message.
        let is_idle = !is_moved && !world.advance() && !is_counting;
        idle_rounds = if is_idle { idle_rounds + 1 } else { 0 };
        if idle_rounds > 4 * linerate::transport::MESSAGES_PER_PEER {
            let places: Vec<String> = actors.iter().map(Actor::place).collect();
            return Err(format!(
                "nothing will happen any more: {}",
                places.join("; ")
            ));
        }
    }
    Err(format!("not over after {STEPS_MAX} steps"))
}
