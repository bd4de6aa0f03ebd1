//! Schedules on a fabric take as long as communicators on it, to the nanosecond.

use linerate::collective::algorithms;
use linerate::sim::{Fabric, FabricCall, SlowNic, Tier};
use linerate::{Collective, CollectiveBuilder, Communicator, Config, DataType, Simulation};

/// A call on memory of `count` elements per part.
fn call(comm: &Communicator, (collective, count): (Collective, u64)) -> CollectiveBuilder<'_> {
    let ranks = u64::from(comm.ranks());
    let (input, output) = match collective {
        Collective::ReduceScatter | Collective::Scatter => (ranks, 1),
        Collective::AllGather | Collective::Gather => (1, ranks),
        Collective::AllToAll => (ranks, ranks),
        Collective::Barrier => (0, 0),
        _ => (1, 1),
    };
    let mut call = comm.collective(collective, DataType::F32, count);
    let alloc = |parts: u64| comm.alloc::<f32>((parts * count) as usize).unwrap();
    let in_place = matches!(
        collective,
        Collective::AllReduce | Collective::Broadcast | Collective::Reduce
    );
    if in_place {
        let buffer = alloc(1);
        call = call.input(&buffer).output(&buffer);
    } else if input > 0 {
        call = call.input(&alloc(input)).output(&alloc(output));
    }
    call
}

/// The virtual time of communicators, in nanoseconds.
fn by_engines(simulation: &mut Simulation, what: (Collective, u64), algorithm: &str) -> u64 {
    let comms = simulation.communicators().to_vec();
    let start = simulation.now();
    let mut operations: Vec<_> = (comms.iter())
        .map(|comm| call(comm, what).algorithm(algorithm).start().unwrap())
        .collect();
    let is_done = |operation: &mut linerate::Operation| operation.test().unwrap();
    (simulation.run(|_| operations.iter_mut().all(is_done))).unwrap();
    simulation.now().since(start).as_nanos() as u64
}

/// Calls whose times differ by more than they may, as lines, and how many there were.
fn differences(fabric: &Fabric, ranks: u32, sizes: &[u64]) -> (Vec<String>, usize) {
    let mut options = fabric.options(ranks, 1).unwrap();
    options.size_only = true;
    let mut simulation = Simulation::new(options, Config::default()).unwrap();
    let (mut lines, mut calls) = (Vec::new(), 0);
    for collective in Collective::ALL {
        let is_plain = !collective.has_part_lengths()
            && ![Collective::SendRecv, Collective::AllToAllV].contains(&collective);
        let candidates = algorithms(collective).iter().filter(|a| !a.needs.mapped);
        for algorithm in candidates.filter(|_| is_plain) {
            for &bytes in sizes {
                let of = FabricCall {
                    algorithm: Some(algorithm.name.into()),
                    ..FabricCall::new(collective, ranks, bytes)
                };
                let own = fabric.run(&of).unwrap().ns;
                let count = match collective.has_parts() {
                    true => bytes / 4 / u64::from(ranks),
                    false => bytes / 4,
                };
                let theirs = by_engines(&mut simulation, (collective, count), algorithm.name);
                calls += 1;
                if own != theirs {
                    lines.push(format!(
                        "{} {ranks} ranks {collective} {} of {bytes} B: {own} ns, communicators {theirs}",
                        fabric.name, algorithm.name
                    ));
                }
            }
        }
    }
    (lines, calls)
}

fn check(fabrics: &[(Fabric, u32)], sizes: &[u64]) {
    let (mut lines, mut calls) = (Vec::new(), 0);
    for (fabric, ranks) in fabrics {
        let found = differences(fabric, *ranks, sizes);
        lines.extend(found.0);
        calls += found.1;
    }
    let wrong = lines.len();
    assert!(
        lines.is_empty(),
        "{wrong} of {calls} differ:\n{}",
        lines.join("\n")
    );
}

#[test]
fn schedules_take_as_long_as_communicators() {
    let named = |name| Fabric {
        work: Default::default(),
        ..Fabric::named(name).unwrap()
    };
    let small = Fabric {
        name: "two switches, one slow NIC".into(),
        gpus_per_host: 4,
        nics_per_host: 2,
        tiers: vec![Tier {
            hosts: 2,
            oversubscription: 3.0,
            hop_ns: 250,
        }],
        slow_nics: vec![SlowNic {
            host: 1,
            nic: 1,
            share: 0.5,
        }],
        ..Fabric::default()
    };
    let fabrics = [
        (named("100g"), 2),
        (named("100g"), 7),
        (named("400g"), 16),
        (named("p3dn"), 24),
        (named("8x400g"), 32),
        (small, 16),
    ];
    check(&fabrics, &[4, 4 << 10, 96 << 10, 3 << 20, 17 << 20]);
    check(&[(named("oversubscribed"), 64)], &[512, 5 << 20]);
}
