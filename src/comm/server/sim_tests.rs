//! Whole parameter servers in virtual time: every gradient is applied once on every shard, in one
//! order, which replays to the same bits; and the drift stays within its bound.

use super::leading::Mutant;
use super::opening::open_simulated;
use super::request::Request;
use super::shard::Shard;
use super::shared::Shared;
use super::*;
use crate::comm::Simulation;
use crate::config::Config;
use crate::prng::Prng;
use crate::staleness::{Entry, Staleness};
use crate::time::Time;
use crate::transport::sim::SimOptions;
use std::time::Duration;

/// Both sides of a rank.
pub struct Rank {
    pub shared: Arc<Shared>,
    pub shard: Option<Shard>,
    pub worker: Option<Worker>,
    weights: Option<Buffer<f32>>,
    gradient: Buffer<f32>,
    /// When it computes until, in a run.
    pub busy: Option<Time>,
    state: State,
    pub pushes: u64,
    /// What it asks for before its sixth push, if anything.
    request: Option<Request>,
    /// It stays away then, for longer than others wait.
    is_away: bool,
    /// It detaches then, and comes back.
    leaves: bool,
    /// It does not finish yet.
    stays: bool,
    is_evicted: bool,
    pub is_over: bool,
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum State {
    Opening,
    Beginning,
    Computing,
    Asking,
    Leaving,
    Away,
    Returning,
    Attaching,
    Pushing,
    Pulling,
    Finishing,
    Done,
}

pub const PUSHES: u64 = 12;
/// Before this push a worker asks for something, or stays away.
const SPECIAL: u64 = 5;
const EVICT_AFTER: Duration = Duration::from_millis(200);
const AWAY: Duration = Duration::from_secs(10);
/// How often a server looks whether somebody is overdue, at most.
const LOOK_EVERY: Duration = Duration::from_millis(50);

/// A rate that a worker sets, and from which version on.
const RATE: f32 = 0.5;
const FROM: u64 = 9;

/// What a run has shown.
struct Seen {
    options: ServerOptions,
    reports: Vec<ServerReport>,
    /// By shard and worker: how many pushes were applied.
    done: Vec<Vec<u64>>,
    /// By shard: the order, and the weights at the end.
    logs: Vec<Vec<Entry>>,
    shards: Vec<Vec<f32>>,
    /// The last weights of the workers that end well, and the number of the one that was killed or
    /// evicted.
    weights: Vec<Vec<f32>>,
    killed: Option<usize>,
    /// Somebody has set another rate.
    has_rate: bool,
    /// Somebody was away and came back.
    has_left: bool,
    /// A server that was killed.
    lost_server: Option<u32>,
}

/// Runs a job of one seed, in half of which a worker is killed. An error says that a rank failed.
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
    let has_rate = prng.below(2) == 0;
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
        ..ServerOptions::default()
    };
    let count = 1 + servers as usize + prng.below(300) as usize;
    let tensors = [TensorSpec {
        name: "all".into(),
        count: count as u64,
        dtype: DataType::F32,
    }];
    let magnitude = 10 + prng.below(13);
    let end = Time(prng.below(1 << magnitude));
    let network = match prng.below(2) {
        0 => SimOptions::new(ranks, seed),
        // Packets are lost, doubled and overtaken.
        _ => SimOptions::new(ranks, seed).hostile(),
    };
    let mut simulation = Simulation::new(network, Config::default()).unwrap();
    let mut all: Vec<Rank> = Vec::new();
    for comm in simulation.communicators() {
        let mut rank = Rank::new(comm, &tensors, &options, count);
        if let Some(shard) = &mut rank.shard {
            shard.mutant = mutant;
        }
        if has_rate && comm.rank() + 1 == ranks {
            rank.request = Some(Request::SetOptimizer(Optimizer::sgd(), RATE, FROM));
        }
        rank.is_away = Some(comm.rank()) == evictee;
        rank.leaves = Some(comm.rank()) == leaver;
        all.push(rank);
    }
    let world = simulation.world().clone();
    if let Some(victim) = victim {
        world.wake_at(victim, end);
    }
    let is_alive = |rank: u32| world.is_alive(rank);
    let speeds: Vec<u64> = (0..ranks).map(|_| 1000 << prng.below(8)).collect();
    let mut failure = None;
    let ran = simulation.run(|_| {
        let now = world.now();
        // Windows are made by all ranks together.
        let is_open = || all.iter().all(|rank| rank.shared.is_ready().unwrap());
        // Who gives the weights to begin with is needed until then.
        let first = all[0].shared.layout.workers[0];
        let may_die = |victim: u32| victim != first || all[victim as usize].pushes > 0;
        if let Some(victim) = victim.filter(|&victim| now >= end && is_alive(victim))
            && is_open()
            && may_die(victim)
        {
            world.kill(victim);
        }
        let may_finish = all.iter().all(|rank| !rank.leaves);
        for (rank, speed) in all.iter_mut().zip(&speeds) {
            rank.stays = !may_finish;
            if rank.stays && rank.pushes == PUSHES {
                world.wake_at(rank.shared.comm.rank(), now.after(LOOK_EVERY / 50));
            }
            if !is_alive(rank.shared.comm.rank()) {
                rank.is_over = true;
                continue;
            }
            if let Err(text) = rank.go_on(now, *speed, &mut prng) {
                failure = Some(text);
            }
            if let Some(busy) = rank.busy {
                world.wake_at(rank.shared.comm.rank(), busy);
            }
            if rank.shard.is_some() && options.evict_after.is_some() {
                let number = rank.shared.comm.rank();
                world.wake_at(number, now.after(LOOK_EVERY));
            }
        }
        failure.is_some() || all.iter().all(|rank| rank.is_over)
    });
    let case = format!("seed {seed}, {options:?}");
    ran.map_err(|error| format!("{case}: {error}"))?;
    if let Some(failure) = failure {
        return Err(format!("{case}: {failure}"));
    }
    let living = || all.iter().filter(|rank| is_alive(rank.shared.comm.rank()));
    let shards = || living().filter_map(|rank| rank.shard.as_ref());
    let well = living().filter(|rank| !rank.is_evicted);
    let weights = well.filter_map(|rank| Some(rank.weights.as_ref()?.to_vec().unwrap()));
    let evicted = all.iter().find(|rank| rank.is_evicted);
    let killed = victim.filter(|&victim| !is_alive(victim));
    let lost_server = killed.filter(|&killed| killed < servers);
    let killed = killed.or(evicted.map(|rank| rank.shared.comm.rank()));
    let workers = &all[0].shared.layout.workers;
    Ok(Seen {
        reports: shards().map(Shard::report).collect(),
        done: shards().map(|shard| shard.done().to_vec()).collect(),
        logs: shards().map(|shard| shard.log.clone()).collect(),
        shards: shards().map(Shard::weights).collect(),
        has_rate,
        has_left: leaver.is_some(),
        lost_server,
        weights: weights.collect(),
        killed: killed.and_then(|killed| workers.iter().position(|&rank| rank == killed)),
        options,
    })
}

impl Rank {
    pub fn new(
        comm: &Communicator,
        tensors: &[TensorSpec],
        options: &ServerOptions,
        count: usize,
    ) -> Rank {
        let Made {
            shared,
            shard,
            worker,
            ..
        } = open_simulated(comm, tensors, options.clone()).unwrap();
        Rank {
            weights: worker.is_some().then(|| comm.alloc(count).unwrap()),
            gradient: comm.alloc(count).unwrap(),
            shared,
            shard,
            worker,
            busy: None,
            state: State::Opening,
            pushes: 0,
            request: None,
            is_away: false,
            leaves: false,
            stays: false,
            is_evicted: false,
            is_over: false,
        }
    }

    /// Its server has seen that somebody is gone.
    pub fn has_lost(&self) -> bool {
        let shard = self.shard.as_ref();
        shard.is_some_and(|shard| !shard.report().lost.is_empty())
    }

    pub fn go_on(
        &mut self,
        now: Time,
        speed: u64,
        prng: &mut Prng,
    ) -> std::result::Result<(), String> {
        let text = |error: Error| error.to_string();
        if !self.shared.is_ready().unwrap() {
            return Ok(());
        }
        let is_served = match &mut self.shard {
            Some(shard) => shard.turn().map_err(text)?,
            None => true,
        };
        let (Some(worker), Some(weights)) = (&mut self.worker, &self.weights) else {
            self.is_over = is_served;
            return Ok(());
        };
        loop {
            match worker.turn() {
                Err(Error::Timeout { .. }) if self.is_away && self.state != State::Done => {
                    (self.is_evicted, self.state) = (true, State::Done);
                }
                Err(_) if self.is_evicted => {}
                turned => turned.map_err(text)?,
            }
            let next = match self.state {
                State::Opening => {
                    if worker.number == 0 {
                        worker.start_init(&weights.cast().unwrap()).unwrap();
                    }
                    State::Beginning
                }
                State::Beginning if worker.is_ready() && worker.is_pushed() => State::Computing,
                State::Computing if self.pushes == PUSHES => {
                    if !worker.is_applied() || self.stays {
                        return Ok(());
                    }
                    worker.start_finish().unwrap();
                    State::Finishing
                }
                State::Computing if self.pushes == SPECIAL && self.leaves => {
                    if !worker.is_applied() {
                        return Ok(());
                    }
                    worker.start_finish().unwrap();
                    State::Leaving
                }
                State::Leaving if worker.is_idle() => {
                    self.busy = Some(Time(now.0 + prng.below(40 * speed)));
                    State::Away
                }
                State::Away if self.busy.is_some_and(|busy| now < busy) => return Ok(()),
                State::Away => {
                    self.busy = None;
                    worker.start_return().unwrap();
                    State::Returning
                }
                State::Returning if worker.is_idle() => {
                    worker.start_request(&Request::Attach).unwrap();
                    State::Attaching
                }
                State::Attaching if worker.is_answered() => {
                    worker.end_return(worker.answer_of_all().unwrap());
                    self.leaves = false;
                    worker.start_pull(weights.cast().unwrap());
                    State::Pulling
                }
                State::Computing if self.pushes == SPECIAL && self.request.is_some() => {
                    let request = self.request.take().unwrap();
                    worker.start_request(&request).unwrap();
                    State::Asking
                }
                State::Asking if worker.is_answered() => {
                    worker.answer_of_all().unwrap();
                    State::Computing
                }
                State::Computing => match self.busy {
                    None => {
                        let away = match self.is_away && self.pushes == SPECIAL {
                            true => AWAY,
                            false => Duration::ZERO,
                        };
                        self.busy = Some(Time(now.0 + speed + prng.below(speed)).after(away));
                        return Ok(());
                    }
                    Some(busy) if now < busy => return Ok(()),
                    Some(_) if !worker.is_ok() => {
                        self.busy = Some(Time(now.0 + speed));
                        return Ok(());
                    }
                    Some(_) => {
                        self.busy = None;
                        self.pushes += 1;
                        // Whole numbers, so that sums are exact: which worker, and which push.
                        let value = gradient(worker.number, self.pushes);
                        self.gradient
                            .write(0, &vec![value; self.gradient.len()])
                            .unwrap();
                        worker.start_push(self.gradient.cast().unwrap()).unwrap();
                        State::Pushing
                    }
                },
                // It may go without the OK of its last push.
                State::Pushing
                    if worker.is_pushed()
                        && (worker.is_ok() || (self.leaves && self.pushes == SPECIAL)) =>
                {
                    worker.start_pull(weights.cast().unwrap());
                    State::Pulling
                }
                State::Pulling if worker.is_pulled() => {
                    let versions = worker.take_pulled();
                    let all = weights.to_vec().unwrap();
                    for (shard, _) in versions.iter().enumerate() {
                        let range = self.shared.layout.range(shard);
                        let part = &all[range];
                        if part.iter().any(|&one| one != part[0]) {
                            return Err(format!("torn: {part:?}"));
                        }
                    }
                    State::Computing
                }
                State::Finishing if worker.is_idle() => State::Done,
                State::Done => {
                    self.is_over = is_served;
                    return Ok(());
                }
                _ => return Ok(()),
            };
            self.state = next;
        }
    }
}

fn gradient(worker: usize, push: u64) -> f32 {
    -((worker as f32 + 1.0) * 64.0 + push as f32)
}

/// The sum of what is applied, if `done` of the pushes of each worker are: in rounds, their means.
fn applied(done: &[u64], is_bsp: bool) -> f32 {
    let round = |push: u64| {
        let of = (0..done.len()).filter(|&worker| done[worker] >= push);
        let all: Vec<f32> = of.map(|worker| gradient(worker, push)).collect();
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
fn replay(log: &[Entry], asker: u32) -> f32 {
    let (mut weight, mut version, mut from) = (0f32, 0, u64::MAX);
    let (mut pushes, mut open) = ([0; 6], Vec::new());
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
            Entry::Request(worker) if worker == asker => from = FROM.max(version + 1),
            Entry::Request(_) | Entry::EndOfRound | Entry::Evict(_) | Entry::Replace(_) => {}
        }
        if updates && !open.is_empty() {
            open.sort_unstable();
            let values = open.iter().map(|&worker| gradient(worker, pushes[worker]));
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
        weights,
        killed,
        has_rate,
        has_left,
        lost_server,
    } = run(seed, mutant)?;
    let ensure = |is_right: bool, what: &str| match is_right {
        true => Ok(()),
        false => Err(format!(
            "seed {seed}, {options:?}, killed {killed:?}, applied {done:?}: {what}"
        )),
    };
    let is_bsp = options.staleness == Staleness::Bsp;
    for (report, others) in reports.iter().zip(&done) {
        let pushes: u64 = others.iter().sum();
        let updates = if is_bsp { PUSHES } else { pushes };
        ensure(&done[0] == others, "shards differ")?;
        ensure(report.version == updates || has_left, "updates")?;
        ensure(report.staleness.iter().sum::<u64>() == pushes, "pushes")?;
    }
    for (worker, &pushes) in done[0].iter().enumerate() {
        let is_killed = Some(worker) == killed;
        ensure(pushes == PUSHES || (is_killed && pushes < PUSHES), "lost")?;
    }
    // The last worker to pull has every push, but those of a dead one that came later.
    ensure(logs.iter().all(|log| *log == logs[0]), "orders differ")?;
    let sum = replay(&logs[0], done[0].len() as u32 - 1);
    let bits = |all: &[f32]| all.iter().all(|one| one.to_bits() == sum.to_bits());
    ensure(shards.iter().all(|all| bits(all)), "replay")?;
    let expected = -applied(&done[0], is_bsp);
    let is_near = (sum - expected).abs() <= expected * 1e-5;
    // A round of others is the mean of fewer.
    ensure(
        is_near || has_rate || (has_left && is_bsp),
        "sums of the order",
    )?;
    let sizes = weights.first().map_or(0, Vec::len);
    for at in 0..sizes {
        let most = weights.iter().map(|one| one[at]).fold(f32::MIN, f32::max);
        let is_whole = most.to_bits() == sum.to_bits();
        ensure(is_whole || (killed.is_some() && most < sum), "sums")?;
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
        worker: killed.is_some_and(|killed| done[0][killed] < PUSHES),
        leader: lost_server == Some(0) && reports.iter().all(names),
        server: lost_server.is_some_and(|server| server > 0) && reports.iter().any(names),
    })
}

#[test]
fn every_gradient_is_applied_once_on_every_shard_and_the_drift_is_bounded() {
    let seeds = std::env::var("LINERATE_TEST_SEEDS").map_or(400, |seeds| seeds.parse().unwrap());
    let (mut workers, mut leaders, mut servers) = (0, 0, 0);
    for seed in 0..seeds {
        let lost = check(seed, Mutant::None).unwrap();
        workers += u64::from(lost.worker);
        leaders += u64::from(lost.leader);
        servers += u64::from(lost.server);
    }
    println!(
        "of {seeds} jobs {workers} lost a worker, {leaders} the leader, {servers} another server"
    );
    let least = seeds / 50;
    assert!(workers > least && leaders > least && servers > least);
}

#[test]
fn servers_that_are_broken_are_found() {
    for mutant in [
        Mutant::AppliesAtOnce,
        Mutant::NumbersEarly,
        Mutant::TellsEarly,
    ] {
        let found = (0..2000).find_map(|seed| check(seed, mutant).err());
        assert!(found.is_some(), "{mutant:?}");
    }
}
