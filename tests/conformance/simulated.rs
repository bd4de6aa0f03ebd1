//! Runs a case on `sim`: one thread steps all roles and the world.

use super::actor::{Actor, Progress};
use super::mutants::{Fault, Mutant, Surroundings};
use super::script::Case;
use linerate::Rank;
use linerate::options::VerbsSettings;
use linerate::sim::{Hosts, Link, SimOptions, World};
use linerate::transport::{Address, Transport};
use linerate::unstable::rdma::{Defect, DeviceWorld};

/// More steps than any case takes: a case that needs more is stuck.
const STEPS_MAX: u32 = 1_000_000;

/// How often a queue of a device fails in place of doing its next post.
const FAULTS: [f64; 3] = [0.0, 0.001, 0.02];

/// Where the transport of a role is.
enum Place {
    Taken(Box<dyn Transport>),
    /// It comes when the first transport of this rank is gone.
    Succeeds(Rank),
    Left,
}

/// What carries the messages of all roles.
#[derive(Clone)]
struct Fabric {
    world: World,
    /// The `rdma` protocol over such devices, which finds its peers through the world.
    devices: Option<DeviceWorld>,
    has_short_rings: bool,
}

impl Fabric {
    fn transport(&self, rank: Rank) -> Box<dyn Transport> {
        let inner = self.world.transport(rank);
        let Some(devices) = &self.devices else {
            return Box::new(inner);
        };
        let of_rank = (rank, self.world.options().ranks);
        let settings = VerbsSettings {
            // In a short ring, slots are soon used again.
            slots: self.has_short_rings.then_some(8),
            ..VerbsSettings::default()
        };
        (devices.transport(of_rank, Box::new(inner), &settings)).expect("nothing is opened")
    }

    /// Lets something happen; false: nothing will.
    fn advance(&self) -> bool {
        let has_posts = self.devices.as_ref().is_some_and(DeviceWorld::advance);
        has_posts || self.world.advance()
    }
}

fn transport_of(fabric: &Fabric, rank: Rank, fault: Option<Fault>) -> Box<dyn Transport> {
    let inner = fabric.transport(rank);
    let Some(fault) = fault else {
        return inner;
    };
    let fabric = fabric.clone();
    let advance = Box::new(move || {
        fabric.advance();
    });
    let surroundings = Surroundings { rank, advance };
    Box::new(Mutant::new(inner, fault, surroundings))
}

/// Runs a case in a world whose weather follows from the seed; with a fault, every rank's transport
/// has it.
pub fn run(case: &Case, seed: u64, fault: Option<Fault>) -> Result<(), String> {
    let world = World::new(weather(case.ranks(), seed));
    let fabric = Fabric {
        world,
        devices: None,
        has_short_rings: false,
    };
    run_on(&fabric, case, fault).map_err(|text| format!("{}, seed {seed}: {text}", case.name))
}

/// Runs a case over devices that write and read each other's memory: in order, or in any.
pub fn run_rdma(case: &Case, seed: u64, is_ordered: bool) -> Result<(), String> {
    let ranks = case.ranks();
    // A queue that has failed is given up at a time, which such a clock jumps over.
    let is_jumping = case.name.contains("jumping_clock");
    let faults = match is_jumping {
        true => 0.0,
        false => FAULTS[seed as usize % FAULTS.len()],
    };
    let devices = match is_ordered {
        true => DeviceWorld::new(ranks, seed, faults),
        false => DeviceWorld::unordered(ranks, seed, faults),
    };
    run_on_devices(case, seed, devices).map_err(|text| {
        let order = if is_ordered {
            "in order"
        } else {
            "in any order"
        };
        format!("{}, rdma {order}, seed {seed}: {text}", case.name)
    })
}

/// Runs a case over devices without order that have a defect. A panic is a finding, too.
pub fn run_defective(case: &Case, seed: u64, defect: Defect) -> Result<(), String> {
    let run = || {
        let devices = DeviceWorld::unordered(case.ranks(), seed, 0.0).with(defect);
        run_on_devices(case, seed, devices)
    };
    std::panic::catch_unwind(run).unwrap_or_else(|_| Err(String::from("a panic")))
}

fn run_on_devices(case: &Case, seed: u64, devices: DeviceWorld) -> Result<(), String> {
    let quiet = SimOptions::new(case.ranks(), seed);
    let fabric = Fabric {
        world: World::new(quiet),
        devices: Some(devices),
        // Fewer messages fit into those.
        has_short_rings: seed.is_multiple_of(2) && !case.name.contains("full_queue"),
    };
    run_on(&fabric, case, None)
}

fn run_on(fabric: &Fabric, case: &Case, fault: Option<Fault>) -> Result<(), String> {
    let mut places: Vec<Place> = (0..case.ranks())
        .map(|rank| Place::Taken(transport_of(fabric, rank, fault)))
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
    let result = step_all(fabric, &mut actors, &mut places, fault);
    // The transports go before the memory that the actors lent them.
    drop(places);
    result
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
    fabric: &Fabric,
    actors: &mut [Actor],
    places: &mut [Place],
    fault: Option<Fault>,
) -> Result<(), String> {
    let world = &fabric.world;
    let mut idle_rounds = 0;
    for _ in 0..STEPS_MAX {
        let (mut is_moved, mut is_counting, mut is_over) = (false, false, true);
        for (actor, place) in actors.iter_mut().zip(places.iter_mut()) {
            if let Place::Succeeds(rank) = *place {
                is_over = false;
                if world.is_vacant(rank) {
                    *place = Place::Taken(transport_of(fabric, rank, fault));
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
        let is_idle = !is_moved && !fabric.advance() && !is_counting;
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
