//! Whole parameter servers in virtual time: every gradient is applied once on every shard, in one
//! order, which replays to the same bits; and the drift stays within its bound.

use super::leading::Mutant;
use super::request::Request;
use super::shard::Shard;
use super::sim_newcomers::{Newcomer, Step};
use super::sim_ranks::{EVICT_AFTER, LOOK_EVERY, PUSHES, Rank, gradient};
use super::*;
use crate::comm::Simulation;
use crate::config::Config;
use crate::prng::Prng;
use crate::staleness::{Entry, Staleness};
use crate::time::Time;
use crate::transport::sim::SimOptions;

/// A rate that a worker sets, and from which version on.
const RATE: f32 = 0.5;
const FROM: u64 = 9;

/// What a run has shown.
struct Seen {
    options: ServerOptions,
    reports: Vec<ServerReport>,
    /// By shard and worker: how many pushes were applied.
    done: Vec<Vec<u64>>,
    /// By worker: whether its last process has pushed all.
    ends_well: Vec<bool>,
    /// By shard: the order, and the weights at the end.
    logs: Vec<Vec<Entry>>,
    shards: Vec<Vec<f32>>,
    /// The last weights of the workers that end well.
    weights: Vec<Vec<f32>>,
    /// The worker who sets another rate, if one does.
    asker: Option<u32>,
    /// Somebody was away and came back.
    has_left: bool,
    /// A worker was killed or evicted, and a server that was killed.
    has_lost: bool,
    lost_server: Option<u32>,
    /// Processes that came later and pushed.
    joined: usize,
}

/// Runs a job of one seed, in half of which a worker is killed, and in half of which processes come
/// later. An error says that a rank failed.
fn run(seed: u64, mutant: Mutant) -> std::result::Result<Seen, String> {
    let mut prng = Prng::new(seed);
    let ranks = 2 + prng.below(4) as u32;
    let servers = 1 + prng.below(u64::from(ranks)) as u32;
    let staleness = match prng.below(4) {
        0 => Staleness::Bsp,
        1 => Staleness::Ssp(prng.below(4) as u32),
        2 => Staleness::dssp(1, 1 + prng.below(5) as u32).unwrap(),
        _ => Staleness::Asp,
    };
    let replicas = u32::from(servers.is_multiple_of(2) && prng.below(2) == 0);
    // The first worker gives the weights to begin with, and servers are needed unless others have
    // their shards.
    let victim = match replicas {
        1 if prng.below(4) > 0 => Some(prng.below(u64::from(servers)) as u32),
        _ => (servers + 1..ranks).last(),
    };
    let is_server = victim.is_some_and(|victim| victim < servers);
    let fate = prng.below(4);
    let evictee = victim.filter(|_| fate == 2 && staleness != Staleness::Asp);
    let evictee = evictee.filter(|_| !is_server);
    let victim = victim.filter(|_| fate < 2 || is_server);
    let newcomers = [0, 0, 1, 2][prng.below(4) as usize];
    let spares = match newcomers {
        0 => 0,
        _ => prng.below(3) as u32,
    };
    // Whether the others wait for them before they finish.
    let waits = prng.below(4) > 0;
    // The place of who sets it may be that of another, who asks for something else.
    let has_rate = prng.below(2) == 0 && newcomers == 0;
    // Somebody is there while it is away.
    let (first, others) = match servers == ranks {
        true => (0, ranks - 1),
        false => (servers, ranks - servers - 1),
    };
    let hit = victim.or(evictee);
    let is_needed = hit.is_some_and(|hit| hit >= first);
    let may_leave = others > u32::from(is_needed) && hit != Some(first);
    let leaver = Some(first).filter(|_| may_leave && prng.below(3) == 0);
    let options = ServerOptions {
        servers: (0..servers).collect(),
        replicas,
        evict_after: evictee.map(|_| EVICT_AFTER),
        staleness,
        rate: 1.0,
        slots: 1 + prng.below(3) as u32,
        spares,
        ..ServerOptions::default()
    };
    let count = 1 + servers as usize + prng.below(300) as usize;
    let tensors = [TensorSpec {
        name: "all".into(),
        count: count as u64,
        dtype: DataType::F32,
    }];
    let magnitude = 10 + prng.below(13);
    let network = match prng.below(2) {
        0 => SimOptions::new(ranks + spares, seed),
        // Packets are lost, doubled and overtaken.
        _ => SimOptions::new(ranks + spares, seed).hostile(),
    };
    let mut simulation = Simulation::of_slots(network, ranks, &Config::default()).unwrap();
    let mut all = Rank::all(&simulation, &tensors, &options);
    let given = (&tensors[..], &options);
    let lobbies = Rank::open_doors(&simulation, &mut all, given);
    for rank in &mut all {
        let number = rank.shared.comm.rank();
        if let Some(shard) = &mut rank.shard {
            shard.mutant = mutant;
        }
        if has_rate && number + 1 == ranks {
            rank.request = Some(Request::SetOptimizer(Optimizer::sgd(), RATE, FROM));
        }
        rank.is_away = Some(number) == evictee;
        rank.leaves = Some(number) == leaver;
    }
    let begun = simulation.now();
    let end = Time(begun.0 + prng.below(1 << magnitude));
    let mut coming: Vec<Newcomer> = Vec::new();
    for _ in 0..newcomers {
        let mut time = |magnitude: u64| Time(begun.0 + prng.below(1 << magnitude));
        let (begins, dies) = (time(magnitude + 1), time(magnitude + 2));
        let dies = Some(dies).filter(|_| prng.below(3) == 0);
        coming.push(Newcomer::new(begins, dies, 1000 << prng.below(8)));
    }
    let world = simulation.world().clone();
    if let Some(victim) = victim {
        world.wake_at(victim, end);
    }
    let is_alive = |rank: u32| world.is_alive(rank);
    let slots = ranks + spares;
    let speeds: Vec<u64> = (0..slots).map(|_| 1000 << prng.below(8)).collect();
    let (mut failure, mut has_killed, mut joined) = (None, false, 0);
    let ran = loop {
        let ran = simulation.run(|_| {
            let now = world.now();
            // Who gives the weights to begin with is needed until then.
            let first = all[0].shared.layout.workers[0];
            let may_die = |victim: u32| victim != first || all[victim as usize].pushes > 0;
            let dies = victim.filter(|_| !has_killed && now >= end);
            if let Some(victim) = dies.filter(|&victim| may_die(victim)) {
                has_killed = true;
                world.kill(victim);
            }
            for newcomer in &mut coming {
                newcomer.go_on(&mut all, (&world, &lobbies), given, &mut prng);
            }
            let is_settled = coming.iter().all(Newcomer::is_settled);
            let may_finish = all.iter().all(|rank| !rank.leaves) && (is_settled || !waits);
            for rank in &mut all {
                let number = rank.shared.comm.rank();
                rank.stays = !may_finish;
                if rank.stays && rank.pushes == PUSHES {
                    world.wake_at(number, now.after(LOOK_EVERY / 50));
                }
                if !is_alive(number) {
                    rank.is_over = true;
                    rank.door = None;
                    continue;
                }
                let speed = speeds[number as usize];
                match rank.go_on(now, speed, &mut prng) {
                    Ok(()) => {}
                    // All others have finished, and the servers leave.
                    Err(_) if !waits && rank.is_new() => world.kill(number),
                    Err(text) => failure = Some(text),
                }
                if let Some(busy) = rank.busy {
                    world.wake_at(number, busy);
                }
                if rank.shard.is_some() && options.evict_after.is_some() {
                    world.wake_at(number, now.after(LOOK_EVERY));
                }
            }
            let enters = coming.iter().any(|one| one.step == Step::Enters);
            let is_over = is_settled && all.iter().all(|rank| rank.is_over);
            failure.is_some() || is_over || enters
        });
        let entering = coming.iter_mut().filter(|one| one.step == Step::Enters);
        let mut is_over = ran.is_err() || failure.is_some();
        let before = joined;
        for newcomer in entering {
            newcomer.enter(&mut simulation, &mut all, &lobbies, given);
            joined += 1;
        }
        is_over |= joined == before;
        if is_over {
            break ran;
        }
    };
    let case = format!("seed {seed}, {options:?}");
    let steps: Vec<Step> = coming.iter().map(|newcomer| newcomer.step).collect();
    let states = all
        .iter()
        .map(|rank| (rank.shared.comm.rank(), rank.state, rank.pushes));
    let states: Vec<_> = states.collect();
    let case = format!("{case}, newcomers {steps:?}, ranks {states:?}");
    ran.map_err(|error| format!("{case}: {error}"))?;
    if let Some(failure) = failure {
        return Err(format!("{case}: {failure}"));
    }
    let living = || all.iter().filter(|rank| is_alive(rank.shared.comm.rank()));
    let shards = || living().filter_map(|rank| rank.shard.as_ref());
    let well = living().filter(|rank| !rank.is_evicted);
    let weights = well.filter_map(|rank| Some(rank.weights.as_ref()?.to_vec().unwrap()));
    let lost_server = victim.filter(|&victim| has_killed && victim < servers);
    let workers = &all[0].shared.layout.workers;
    let is_well = |rank: &&Rank| !rank.is_evicted;
    let ends_well = workers.iter().map(|&worker| {
        let mut well = living().filter(is_well);
        well.any(|rank| rank.shared.comm.rank() == worker)
    });
    let asker = workers.iter().position(|&rank| rank + 1 == ranks);
    Ok(Seen {
        reports: shards().map(Shard::report).collect(),
        done: shards().map(|shard| shard.report().pushes).collect(),
        ends_well: ends_well.collect(),
        asker: asker.map(|asker| asker as u32).filter(|_| has_rate),
        has_lost: has_killed || all.iter().any(|rank| rank.is_evicted) || newcomers > 0,
        joined,
        logs: shards().map(|shard| shard.log.clone()).collect(),
        shards: shards().map(Shard::weights).collect(),
        has_left: leaver.is_some(),
        lost_server,
        weights: weights.collect(),
        options,
    })
}

/// The sum of what is applied, if `done` of the pushes of each worker are: in rounds, their means.
fn applied(done: &[u64], is_bsp: bool) -> f32 {
    let round = |push: u64| {
        let of = (0..done.len()).filter(|&worker| done[worker] >= push);
        let all: Vec<f32> = of.map(|worker| gradient((worker, 0), push)).collect();
        let sum: f32 = all.iter().sum();
        if is_bsp {
            sum / all.len().max(1) as f32
        } else {
            sum
        }
    };
    (1..=PUSHES).map(round).sum()
}

/// The weights that an order leads to, of gradients that are equal everywhere.
fn replay(log: &[Entry], asker: Option<u32>) -> f32 {
    let (mut weight, mut version, mut from) = (0f32, 0, u64::MAX);
    let (mut pushes, mut processes, mut open) = ([0; 8], [0; 8], Vec::new());
    for entry in log {
        let mut updates = *entry == Entry::EndOfRound;
        match *entry {
            Entry::Push {
                worker, is_last, ..
            } => {
                pushes[worker as usize] += 1;
                open.push(worker as usize);
                updates = is_last;
            }
            Entry::Request(worker) if Some(worker) == asker => from = FROM.max(version + 1),
            Entry::Request(_) | Entry::EndOfRound | Entry::Evict(_) => {}
            Entry::Replace(worker) => processes[worker as usize] += 1,
        }
        if updates && !open.is_empty() {
            open.sort_unstable();
            let values = open
                .iter()
                .map(|&worker| gradient((worker, processes[worker]), pushes[worker]));
            let mean = values.reduce(|sum, value| sum + value).unwrap() / open.len() as f32;
            version += 1;
            weight -= if version >= from { RATE } else { 1.0 } * mean;
            open.clear();
        }
    }
    weight
}

/// Who was killed while others needed it.
struct Lost {
    worker: bool,
    joined: usize,
    leader: bool,
    server: bool,
}

/// Runs a job and looks at all that it has shown.
fn check(seed: u64, mutant: Mutant) -> std::result::Result<Lost, String> {
    let Seen {
        options,
        reports,
        done,
        logs,
        shards,
        ends_well,
        weights,
        asker,
        has_left,
        has_lost,
        lost_server,
        joined,
    } = run(seed, mutant)?;
    let ensure = |is_right: bool, what: &str| match is_right {
        true => Ok(()),
        false => Err(format!(
            "seed {seed}, {options:?}, {joined} joined, well {ends_well:?}, applied {done:?}: {what}"
        )),
    };
    let is_bsp = options.staleness == Staleness::Bsp;
    for (report, others) in reports.iter().zip(&done) {
        let pushes: u64 = others.iter().sum();
        let updates = if is_bsp { PUSHES } else { pushes };
        ensure(&done[0] == others, "shards differ")?;
        let is_round = is_bsp && (has_left || joined > 0);
        ensure(report.version == updates || is_round, "updates")?;
        ensure(report.staleness.iter().sum::<u64>() == pushes, "pushes")?;
    }
    for (worker, &pushes) in done[0].iter().enumerate() {
        let is_lost = !ends_well[worker];
        ensure(pushes == PUSHES || (is_lost && pushes < PUSHES), "lost")?;
    }
    // The last worker to pull has every push, but those of a dead one that came later.
    ensure(logs.iter().all(|log| *log == logs[0]), "orders differ")?;
    let sum = replay(&logs[0], asker);
    let bits = |all: &[f32]| all.iter().all(|one| one.to_bits() == sum.to_bits());
    ensure(shards.iter().all(|all| bits(all)), "replay")?;
    let expected = -applied(&done[0], is_bsp);
    let is_near = (sum - expected).abs() <= expected * 1e-5;
    // A round of others is the mean of fewer.
    ensure(
        is_near || asker.is_some() || joined > 0 || (has_left && is_bsp),
        "sums of the order",
    )?;
    let sizes = weights.first().map_or(0, Vec::len);
    for at in 0..sizes {
        let most = weights.iter().map(|one| one[at]).fold(f32::MIN, f32::max);
        let is_whole = most.to_bits() == sum.to_bits();
        ensure(is_whole || (has_lost && most < sum), "sums")?;
    }
    let bound = match options.staleness {
        Staleness::Bsp => 1,
        Staleness::Ssp(bound) => u64::from(bound) + 1,
        Staleness::Dssp { s_lower, r_max, .. } => u64::from(s_lower + r_max.max(1)),
        Staleness::Asp => u64::MAX,
    };
    let mut drifts = reports.iter().map(|report| report.drift_max);
    ensure(drifts.all(|drift| drift <= bound), "drift")?;
    // Those who have been told of it in time, and not only when all was over.
    let names = |report: &ServerReport| lost_server.is_some_and(|one| report.lost.contains(&one));
    Ok(Lost {
        worker: has_lost && done[0].iter().any(|&done| done < PUSHES),
        joined,
        leader: lost_server == Some(0) && reports.iter().all(names),
        server: lost_server.is_some_and(|server| server > 0) && reports.iter().any(names),
    })
}

#[test]
fn every_gradient_is_applied_once_on_every_shard_and_the_drift_is_bounded() {
    let seeds = std::env::var("LINERATE_TEST_SEEDS").map_or(400, |seeds| seeds.parse().unwrap());
    let threads = std::thread::available_parallelism().map_or(1, |count| count.get() as u64);
    let share = |thread| {
        let (mut workers, mut leaders, mut servers, mut joined) = (0, 0, 0, 0);
        for seed in (thread..seeds).step_by(threads as usize) {
            let lost = check(seed, Mutant::None).unwrap();
            workers += u64::from(lost.worker);
            leaders += u64::from(lost.leader);
            servers += u64::from(lost.server);
            joined += lost.joined as u64;
        }
        [workers, leaders, servers, joined]
    };
    let seen = std::thread::scope(|scope| {
        let all: Vec<_> = (0..threads)
            .map(|thread| scope.spawn(move || share(thread)))
            .collect();
        let all = all.into_iter().map(|thread| thread.join().unwrap());
        all.reduce(|sum, one| std::array::from_fn(|at| sum[at] + one[at]))
    });
    let seen = seen.unwrap();
    let [workers, leaders, servers, joined] = seen;
    println!(
        "of {seeds} jobs {workers} lost a worker, {leaders} the leader, {servers} another server; {joined} processes came later"
    );
    assert!(seen.iter().all(|&count| count > seeds / 50));
}

#[test]
fn servers_that_are_broken_are_found() {
    for mutant in [
        Mutant::AppliesAtOnce,
        Mutant::NumbersEarly,
        Mutant::TellsEarly,
        Mutant::LetsInEarly,
    ] {
        let found = (0..2000).find_map(|seed| check(seed, mutant).err());
        assert!(found.is_some(), "{mutant:?}");
    }
}
