//! Whole parameter servers in virtual time: every gradient is applied once on every shard, in one
//! order, and the drift stays within its bound.

use super::*;
use crate::comm::Simulation;
use crate::config::Config;
use crate::prng::Prng;
use crate::staleness::Staleness;
use crate::time::Time;
use crate::transport::sim::SimOptions;

/// Both sides of a rank.
struct Rank {
    shared: Arc<Shared>,
    shard: Option<Shard>,
    worker: Option<Worker>,
    weights: Option<Buffer<f32>>,
    gradient: Buffer<f32>,
    /// When it computes until, in a run.
    busy: Option<Time>,
    state: State,
    pushes: u64,
    is_over: bool,
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum State {
    Opening,
    Beginning,
    Computing,
    Pushing,
    Pulling,
    Finishing,
    Done,
}

const PUSHES: u64 = 12;

/// What a run has shown.
struct Seen {
    options: ServerOptions,
    reports: Vec<ServerReport>,
    /// By shard and worker: how many pushes were applied.
    done: Vec<Vec<u64>>,
    /// The last weights of the workers that live, and the number of the one that was killed.
    weights: Vec<Vec<f32>>,
    killed: Option<usize>,
}

/// Runs a job of one seed, in half of which a worker is killed.
fn run(seed: u64) -> Seen {
    let mut prng = Prng::new(seed);
    let ranks = 2 + prng.below(4) as u32;
    let servers = 1 + prng.below(u64::from(ranks)) as u32;
    let staleness = match prng.below(4) {
        0 => Staleness::Bsp,
        1 => Staleness::Ssp(prng.below(4) as u32),
        2 => Staleness::dssp(1, 1 + prng.below(5) as u32).unwrap(),
        _ => Staleness::Asp,
    };
    let options = ServerOptions {
        servers: (0..servers).collect(),
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
    // The first worker gives the weights to begin with, and servers are needed.
    let victim = (servers + 1..ranks).last().filter(|_| prng.below(2) == 0);
    let magnitude = 10 + prng.below(13);
    let end = Time(prng.below(1 << magnitude));
    let mut simulation = Simulation::new(SimOptions::new(ranks, seed), Config::default()).unwrap();
    let mut all: Vec<Rank> = Vec::new();
    for comm in simulation.communicators() {
        let (shared, shard, worker) = open(comm.clone(), &tensors, options.clone()).unwrap();
        all.push(Rank {
            weights: worker.is_some().then(|| comm.alloc(count).unwrap()),
            gradient: comm.alloc(count).unwrap(),
            shared,
            shard,
            worker,
            busy: None,
            state: State::Opening,
            pushes: 0,
            is_over: false,
        });
    }
    let world = simulation.world().clone();
    if let Some(victim) = victim {
        world.wake_at(victim, end);
    }
    let is_alive = |rank: u32| world.is_alive(rank);
    let speeds: Vec<u64> = (0..ranks).map(|_| 1000 << prng.below(8)).collect();
    simulation
        .run(|_| {
            let now = world.now();
            // Windows are made by all ranks together.
            let is_open = || all.iter().all(|rank| rank.shared.is_ready().unwrap());
            if let Some(victim) = victim.filter(|&victim| now >= end && is_alive(victim))
                && is_open()
            {
                world.kill(victim);
            }
            for (rank, speed) in all.iter_mut().zip(&speeds) {
                if !is_alive(rank.shared.comm.rank()) {
                    rank.is_over = true;
                    continue;
                }
                rank.go_on(now, *speed, &mut prng);
                if let Some(busy) = rank.busy {
                    world.wake_at(rank.shared.comm.rank(), busy);
                }
            }
            all.iter().all(|rank| rank.is_over)
        })
        .unwrap_or_else(|error| panic!("seed {seed}, {options:?}: {error}"));
    let living = || all.iter().filter(|rank| is_alive(rank.shared.comm.rank()));
    let shards = || all.iter().filter_map(|rank| rank.shard.as_ref());
    let weights = living().filter_map(|rank| Some(rank.weights.as_ref()?.to_vec().unwrap()));
    let killed = victim.filter(|&victim| !is_alive(victim));
    let workers = &all[0].shared.layout.workers;
    Seen {
        reports: shards().map(Shard::report).collect(),
        done: shards().map(|shard| shard.done().to_vec()).collect(),
        weights: weights.collect(),
        killed: killed.and_then(|killed| workers.iter().position(|&rank| rank == killed)),
        options,
    }
}

impl Rank {
    fn go_on(&mut self, now: Time, speed: u64, prng: &mut Prng) {
        if !self.shared.is_ready().unwrap() {
            return;
        }
        let is_served = match &mut self.shard {
            Some(shard) => shard.turn().unwrap(),
            None => true,
        };
        let (Some(worker), Some(weights)) = (&mut self.worker, &self.weights) else {
            self.is_over = is_served;
            return;
        };
        loop {
            worker.turn().unwrap();
            let next = match self.state {
                State::Opening => {
                    if worker.number == 0 {
                        worker.start_init(&weights.cast().unwrap()).unwrap();
                    }
                    State::Beginning
                }
                State::Beginning if worker.is_ready() && worker.is_pushed() => State::Computing,
                State::Computing if self.pushes == PUSHES => {
                    if !worker.is_applied() {
                        return;
                    }
                    worker.start_finish().unwrap();
                    State::Finishing
                }
                State::Computing => match self.busy {
                    None => {
                        self.busy = Some(Time(now.0 + speed + prng.below(speed)));
                        return;
                    }
                    Some(busy) if now < busy => return,
                    Some(_) => {
                        self.busy = None;
                        self.pushes += 1;
                        // Whole numbers, so that sums are exact: which worker, and which push.
                        let value = gradient(worker.number, self.pushes);
                        self.gradient
                            .write(0, &vec![value; self.gradient.len()])
                            .unwrap();
                        worker.start_push(self.gradient.cast().unwrap());
                        State::Pushing
                    }
                },
                State::Pushing if worker.is_pushed() && worker.is_ok() => {
                    worker.start_pull(weights.cast().unwrap());
                    State::Pulling
                }
                State::Pulling if worker.is_pulled() => {
                    let versions = worker.take_pulled();
                    let all = weights.to_vec().unwrap();
                    for (shard, _) in versions.iter().enumerate() {
                        let range = self.shared.layout.range(shard);
                        let part = &all[range];
                        assert!(part.iter().all(|&one| one == part[0]), "torn: {part:?}");
                    }
                    State::Computing
                }
                State::Finishing if worker.is_idle() => State::Done,
                State::Done => {
                    self.is_over = is_served;
                    return;
                }
                _ => return,
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

#[test]
fn every_gradient_is_applied_once_on_every_shard_and_the_drift_is_bounded() {
    let seeds = std::env::var("LINERATE_TEST_SEEDS").map_or(400, |seeds| seeds.parse().unwrap());
    let mut killed_count = 0;
    for seed in 0..seeds {
        let Seen {
            options,
            reports,
            done,
            weights,
            killed,
        } = run(seed);
        let (case, is_bsp) = (
            format!("seed {seed}, {options:?}, killed {killed:?}"),
            options.staleness == Staleness::Bsp,
        );
        for (report, others) in reports.iter().zip(&done) {
            assert_eq!(&done[0], others, "{case}");
            let pushes: u64 = others.iter().sum();
            let updates = if is_bsp { PUSHES } else { pushes };
            assert_eq!(report.version, updates, "{case}");
            assert_eq!(report.staleness.iter().sum::<u64>(), pushes, "{case}");
        }
        for (worker, &pushes) in done[0].iter().enumerate() {
            match Some(worker) == killed {
                true => assert!(pushes <= PUSHES, "{case}"),
                false => assert_eq!(pushes, PUSHES, "{case}"),
            }
        }
        killed_count += u64::from(killed.is_some_and(|killed| done[0][killed] < PUSHES));
        // The last worker to pull has every push, but those of a dead one that came later.
        let most = weights.iter().flatten().copied().fold(f32::MIN, f32::max);
        let sum = applied(&done[0], is_bsp);
        let is_right = (most + sum).abs() <= sum.abs() * 1e-5;
        assert!(is_right || killed.is_some(), "{case}: {most} for {sum}");
        assert!(most <= -sum * (1.0 + 1e-5), "{case}: {most} for {sum}");
        let bound = match options.staleness {
            Staleness::Bsp => 1,
            Staleness::Ssp(bound) => u64::from(bound) + 1,
            Staleness::Dssp { s_lower, r_max, .. } => u64::from(s_lower + r_max.max(1)),
            Staleness::Asp => u64::MAX,
        };
        assert!(reports[0].drift_max <= bound, "{case}");
    }
    assert!(
        killed_count > seeds / 20,
        "{killed_count} were killed in {seeds}"
    );
}
