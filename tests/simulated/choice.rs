//! The choice of algorithm on modelled networks: what is chosen takes at most a tenth longer than
//! the best algorithm. Times are virtual, so they are the same on every machine.

use linerate::collective::algorithms;
use linerate::sim::{Hosts, Link, SimOptions};
use linerate::{Collective, CollectiveBuilder, Communicator, Config, DataType, Simulation};
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

/// Of the best one's time.
const LOSS_MAX: f64 = 0.10;

const COLLECTIVES: [Collective; 9] = [
    Collective::AllReduce,
    Collective::ReduceScatter,
    Collective::AllGather,
    Collective::Broadcast,
    Collective::Reduce,
    Collective::Gather,
    Collective::Scatter,
    Collective::AllToAll,
    Collective::Barrier,
];

/// Ranks on hosts of as many ranks, and the rate of a rank's link in Gbit/s.
#[derive(Clone, Copy, Debug)]
struct Network {
    ranks: u32,
    each: u32,
    gbit: u64,
}

impl Network {
    fn simulation(self) -> Simulation {
        let options = SimOptions {
            size_only: true,
            hosts: (self.each > 1).then_some(Hosts {
                ranks_per_host: self.each,
                nics: self.each,
                link: Link::HOST,
            }),
            network: Link {
                bytes_per_second: self.gbit * 125_000_000,
                ..Link::ETHERNET_100G
            },
            ..SimOptions::new(self.ranks, 1)
        };
        Simulation::new(options, Config::default()).unwrap()
    }
}

/// The virtual time of a call of `count` bytes by an algorithm, in ns.
pub fn time_of(
    simulation: &mut Simulation,
    (collective, count): (Collective, u64),
    algorithm: &str,
) -> u64 {
    let comms = simulation.communicators().to_vec();
    let start = simulation.now();
    let mut operations: Vec<_> = (comms.iter())
        .map(|comm| {
            let call = call(comm, (collective, count)).algorithm(algorithm);
            call.start().unwrap()
        })
        .collect();
    simulation
        .run(|_| operations.iter_mut().all(|o| o.test().unwrap()))
        .unwrap();
    simulation.now().since(start).as_nanos() as u64
}

/// A call on memory of `count` bytes per part.
fn call(comm: &Communicator, (collective, count): (Collective, u64)) -> CollectiveBuilder<'_> {
    let ranks = u64::from(comm.ranks());
    let (input, output) = match collective {
        Collective::ReduceScatter | Collective::Scatter => (ranks, 1),
        Collective::AllGather | Collective::Gather => (1, ranks),
        Collective::AllToAll => (ranks, ranks),
        Collective::Barrier => (0, 0),
        _ => (1, 1),
    };
    let mut call = comm.collective(collective, DataType::U8, count);
    if input > 0 {
        call = call.input(&comm.alloc::<u8>((input * count) as usize).unwrap());
        call = call.output(&comm.alloc::<u8>((output * count) as usize).unwrap());
    }
    call
}

/// What loses more than it may, as lines, and how many choices there were.
fn losses(network: Network, sizes: &[u64]) -> (Vec<String>, usize) {
    let mut simulation = network.simulation();
    let (mut lines, mut choices) = (Vec::new(), 0);
    for collective in COLLECTIVES {
        let has_parts = matches!(
            collective,
            Collective::ReduceScatter
                | Collective::AllGather
                | Collective::Gather
                | Collective::Scatter
                | Collective::AllToAll
        );
        let sizes = match collective {
            Collective::Barrier => &[0],
            _ => sizes,
        };
        for &bytes in sizes {
            // Of the longer side of a call, whose parts are as many as ranks.
            let count = match has_parts {
                true => (bytes / u64::from(network.ranks)).max(1),
                false => bytes,
            };
            let what = (collective, count);
            let explained = call(&simulation.communicators()[0], what).explain();
            let chosen = explained.unwrap().planned;
            let candidates = algorithms(collective).iter().filter(|a| !a.needs.mapped);
            let times: Vec<(u64, &str)> = candidates
                .map(|a| (time_of(&mut simulation, what, a.name), a.name))
                .collect();
            let own = times.iter().find(|(_, name)| *name == chosen).unwrap().0;
            let (best, name) = times.into_iter().min().unwrap();
            choices += 1;
            if own as f64 > (1.0 + LOSS_MAX) * best as f64 {
                lines.push(format!(
                    "{network:?} {collective} of {bytes} B: {chosen} takes {own} ns, {name} {best}"
                ));
            }
        }
    }
    (lines, choices)
}

/// All that lose, of these networks.
fn check(networks: &[Network], sizes: &[u64]) {
    let next = AtomicUsize::new(0);
    let found = Mutex::new((Vec::new(), 0));
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    std::thread::scope(|scope| {
        for _ in 0..threads {
            scope.spawn(|| {
                while let Some(network) = networks.get(next.fetch_add(1, Ordering::Relaxed)) {
                    let (lines, count) = losses(*network, sizes);
                    let mut found = found.lock().unwrap();
                    found.0.extend(lines);
                    found.1 += count;
                }
            });
        }
    });
    let (lost, choices) = found.into_inner().unwrap();
    assert!(
        lost.is_empty(),
        "{} of {choices}:\n{}",
        lost.len(),
        lost.join("\n")
    );
}

#[test]
fn what_is_chosen_is_nearly_the_fastest_at_all_rates_and_sizes() {
    let sizes = [3, 9, 13, 16, 19, 22, 25, 28].map(|bits| 1 << bits);
    let of = |(ranks, each)| [25, 100, 400].map(|gbit| Network { ranks, each, gbit });
    let large = Network {
        ranks: 64,
        each: 8,
        gbit: 100,
    };
    let small = [(16, 1), (16, 8)].map(of).concat();
    check(&[&[large][..], &small[..]].concat(), &sizes);
}

/// Other networks and sizes than those that the formulas were fitted to.
#[test]
fn what_is_chosen_is_nearly_the_fastest_on_other_networks() {
    let sizes = [6, 11, 14, 17, 20, 24, 27].map(|bits| (1 << bits) + 40);
    let networks = [(64, 1, 50), (32, 4, 200), (24, 1, 100)];
    check(
        &networks.map(|(ranks, each, gbit)| Network { ranks, each, gbit }),
        &sizes,
    );
}
