//! What partial and sparse collectives need of the engine, on simulated ranks: run-time lengths, activation by
//! the caller or by a peer, steps that run once, schedules that re-arm themselves.

use super::{Arguments, Contact, Engine, Host, Prepared, TaskCall, TaskId};
use crate::config::Config;
use crate::error::Error;
use crate::kernel;
use crate::memory::{Region, View};
use crate::schedule::{
    Action, BufferId, Builder, Extent, Join, Operand, Range, Schedule, StepId, Trigger,
};
use crate::transport::sim::{SimOptions, World};
use crate::types::{Collective, DataType, Rank, ReduceOp};
use crate::wire::{ControlKind, ControlMessage};
use std::sync::Arc;

const ALL: Range = Range::new(BufferId::INPUT, Extent::all(1));
const RESULT: Range = Range::new(BufferId::OUTPUT, Extent::all(1));

/// Engines of all ranks of a simulated job, with an input and an output each.
struct Job {
    world: World,
    engines: Vec<Engine>,
    inputs: Vec<Region>,
    outputs: Vec<Region>,
}

impl Job {
    fn new(options: SimOptions, elements: usize) -> Job {
        let config = Config {
            chunk_bytes: 4096,
            ..Config::default()
        };
        let (ranks, world) = (options.ranks, World::new(options));
        let host = Host {
            threads_max: 1,
            cache_bytes: usize::MAX,
            is_size_only: false,
        };
        let engine = |rank| {
            Engine::new(
                Box::new(world.transport(rank)),
                rank,
                ranks,
                config.clone(),
                host,
            )
            .unwrap()
        };
        let mut engines: Vec<Engine> = (0..ranks).map(engine).collect();
        let contacts: Arc<[Contact]> = engines.iter().map(Engine::contact).collect();
        engines
            .iter_mut()
            .for_each(|e| e.connect(contacts.clone()).unwrap());
        while !engines
            .iter_mut()
            .map(|e| e.poll_connect(world.now()).unwrap())
            .fold(true, |all, ready| all & ready)
        {
            world.advance();
        }
        let regions = || {
            (0..ranks)
                .map(|_| Region::private(4 * elements).unwrap())
                .collect()
        };
        Job {
            world,
            engines,
            inputs: regions(),
            outputs: regions(),
        }
    }

    fn submit(&mut self, rank: Rank, schedule: Schedule, count: u64, slots: Vec<u64>) -> TaskId {
        let arguments = Arguments {
            collective: Collective::AllReduce,
            count,
            dtype: DataType::F32,
            op: ReduceOp::Sum,
            root: 0,
            input: self.inputs[rank as usize].view(),
            output: self.outputs[rank as usize].view(),
        };
        let call = TaskCall {
            arguments,
            prepared: Arc::new(Prepared::new(schedule, 0, false)),
            fallback: None,
            slots: slots.into(),
            others: Vec::new(),
            keep: [None, None],
            keep_others: Vec::new(),
        };
        self.engines[rank as usize]
            .submit(call, self.world.now())
            .unwrap()
    }

    /// Steps everyone until nothing moves and nothing is under way.
    fn settle(&mut self) {
        loop {
            let now = self.world.now();
            while self
                .engines
                .iter_mut()
                .fold(false, |moved, e| e.drive(now) | moved)
            {}
            if !self.world.advance() {
                return;
            }
        }
    }

    fn fill(&self, rank: Rank, value: impl Fn(usize) -> f32) {
        let view = self.inputs[rank as usize].view();
        (0..view.len_bytes() / 4).for_each(|i| kernel::store(view, i, value(i)));
    }

    fn output(&self, rank: Rank) -> View {
        self.outputs[rank as usize].view()
    }
}

#[test]
fn a_length_that_only_the_sender_knows_travels_down_a_chain() {
    const CHUNK: u64 = 1024;
    for length in [0, 1, CHUNK - 1, CHUNK, CHUNK + 1, 3 * CHUNK, 3 * CHUNK + 7] {
        for seed in 0..20 {
            let bound = 4 * CHUNK;
            let mut job = Job::new(SimOptions::new(3, seed).hostile(), bound as usize);
            job.fill(0, |i| i as f32 + 1.0);
            let known = |buffer| {
                Range::new(
                    buffer,
                    Extent::Slots {
                        offset: 0,
                        length: 1,
                    },
                )
            };
            let tasks: Vec<TaskId> = (0..3)
                .map(|rank| {
                    let mut b = Builder::new("chain", rank, 3, false);
                    b.slots(3);
                    if rank == 0 {
                        b.send(1, known(BufferId::INPUT));
                    } else {
                        b.recv_filling(rank - 1, known(BufferId::OUTPUT), 2);
                    }
                    if rank == 1 {
                        let received = Extent::Slots {
                            offset: 0,
                            length: 2,
                        };
                        b.send(2, Range::new(BufferId::OUTPUT, received));
                    }
                    let length = if rank == 0 { length } else { bound };
                    job.submit(rank, b.build(), bound, vec![0, length, u64::MAX])
                })
                .collect();
            job.settle();
            for (rank, task) in tasks.into_iter().enumerate() {
                assert_eq!(
                    job.engines[rank].result(task),
                    Some(Ok(())),
                    "rank {rank}, {length} elements, seed {seed}"
                );
            }
            for rank in [1, 2] {
                let got = |i: u64| kernel::load::<f32>(job.output(rank), i as usize);
                assert!(
                    (0..length).all(|i| got(i) == i as f32 + 1.0),
                    "rank {rank}, {length} elements"
                );
                assert!(
                    (length..bound).all(|i| got(i) == 0.0),
                    "rank {rank}: bytes past {length} elements"
                );
            }
        }
    }
}

#[test]
fn a_message_longer_than_the_bound_is_an_error_on_both_sides() {
    let mut job = Job::new(SimOptions::new(2, 1), 64);
    let range = |buffer| {
        Range::new(
            buffer,
            Extent::Slots {
                offset: 0,
                length: 1,
            },
        )
    };
    let mut b = Builder::new("long", 0, 2, false);
    b.slots(3);
    b.send(1, range(BufferId::INPUT));
    let send = job.submit(0, b.build(), 64, vec![0, 9, 0]);
    let mut b = Builder::new("long", 1, 2, false);
    b.slots(3);
    b.recv_filling(0, range(BufferId::OUTPUT), 2);
    let recv = job.submit(1, b.build(), 64, vec![0, 8, 0]);
    job.settle();
    let text = job.engines[1]
        .result(recv)
        .unwrap()
        .unwrap_err()
        .to_string();
    assert!(text.contains("rank 0 sent 36 bytes"), "{text}");
    assert!(job.engines[1].failure().is_some());
    // The sender had handed its message over; it learns of the failure at its next step.
    assert!(job.engines[0].result(send).is_some());
    assert!(job.engines[0].failure().is_some());
}

/// A persistent sum: whoever comes first starts everyone; nobody waits for the other callers.
fn solo_sum(rank: Rank, ranks: u32) -> Schedule {
    const ACTIVATED: u8 = 2;
    let mut b = Builder::new("solo", rank, ranks, false);
    let peers: Vec<Rank> = (0..ranks).filter(|&r| r != rank).collect();
    let caller = b.step(Action::Nop, &[], Join::All, Trigger::Caller);
    let external = Action::WaitCount {
        peers: peers.clone(),
        lane: ACTIVATED,
        count: 1,
    };
    let external = b.step(external, &[], Join::All, Trigger::None);
    let go = b.step(Action::Nop, &[caller, external], Join::Any, Trigger::None);
    let pass_on = Action::Signal {
        peers: peers.clone(),
        lane: ACTIVATED,
        payload: None,
    };
    b.step(pass_on, &[go], Join::All, Trigger::None);
    let give = Action::Signal {
        peers: peers.clone(),
        lane: 0,
        payload: Some(ALL),
    };
    let give = b.step(give, &[go], Join::All, Trigger::None);
    let take = Action::WaitCount {
        peers: peers.clone(),
        lane: 0,
        count: ranks - 1,
    };
    let take = b.step(take, &[give], Join::All, Trigger::None);
    let operand = |r| {
        if r == rank {
            Operand::Local(ALL)
        } else {
            Operand::Mail(r, 0)
        }
    };
    let sum = Action::ReduceFrom {
        sources: (0..ranks).map(operand).collect(),
        destinations: vec![Operand::Local(RESULT)],
        finish: false,
    };
    let after: [StepId; 1] = [take];
    b.step(sum, &after, Join::All, Trigger::None);
    // A caller that comes after its round has begun still belongs to it: the round ends with everyone's Nop.
    b.persistent();
    b.build()
}

#[test]
fn one_activation_starts_every_rank_once_and_the_schedule_rearms_itself() {
    for seed in 0..50 {
        let ranks = 4;
        let mut job = Job::new(SimOptions::new(ranks, seed).hostile(), 4);
        let tasks: Vec<TaskId> = (0..ranks)
            .map(|rank| job.submit(rank, solo_sum(rank, ranks), 4, Vec::new()))
            .collect();
        job.settle();
        let completed = |job: &Job| -> Vec<u64> {
            tasks
                .iter()
                .enumerate()
                .map(|(rank, &task)| job.engines[rank].rounds_completed(task))
                .collect()
        };
        assert_eq!(completed(&job), [0; 4], "armed, and nobody has come");
        for round in 0..6u64 {
            (0..ranks).for_each(|rank| {
                job.fill(rank, |i| {
                    (round + 1) as f32 * 10f32.powi(rank as i32) + i as f32
                })
            });
            // The first caller starts the round everywhere; the results are there before anybody else calls.
            let order: Vec<Rank> = (0..ranks)
                .map(|step| (step + round as u32 + seed as u32) % ranks)
                .collect();
            let now = job.world.now();
            job.engines[order[0] as usize]
                .activate(tasks[order[0] as usize], now)
                .unwrap();
            if round % 2 == 0 {
                job.settle();
                check_sums(&job, round, seed);
                assert_eq!(
                    completed(&job).iter().filter(|&&n| n == round + 1).count(),
                    1,
                    "the others have not come"
                );
            }
            for &rank in &order[1..] {
                let now = job.world.now();
                job.engines[rank as usize]
                    .activate(tasks[rank as usize], now)
                    .unwrap();
            }
            job.settle();
            assert_eq!(
                completed(&job),
                [round + 1; 4],
                "seed {seed}: once per activation"
            );
            check_sums(&job, round, seed);
        }
    }
}

fn check_sums(job: &Job, round: u64, seed: u64) {
    for rank in 0..job.engines.len() as Rank {
        for i in 0..4 {
            let wanted = (round + 1) as f32 * 1111.0 + 4.0 * i as f32;
            assert_eq!(
                kernel::load::<f32>(job.output(rank), i),
                wanted,
                "seed {seed}, round {round}, rank {rank}"
            );
        }
    }
}

#[test]
fn the_news_of_a_failure_reaches_a_peer_that_had_no_room_for_it() {
    let mut job = Job::new(SimOptions::new(2, 1), 4);
    let status = ControlMessage {
        kind: ControlKind::Status,
        rank: 0,
        sequence: 0,
        signature: 0,
        text: String::new(),
    };
    let sent = (0..10_000).take_while(|_| job.engines[0].driver.links.send_control(1, &status));
    assert!(
        sent.count() < 1000,
        "a peer that takes nothing has room for a few only"
    );
    let cause = Error::Cancelled {
        by: 0,
        operation: "a test".into(),
    };
    job.engines[0].fail(cause.clone(), true);
    assert_eq!(job.engines[1].failure(), None, "no room for the news yet");
    let now = job.world.now();
    job.engines[0].drive_slow(now);
    job.settle();
    assert_eq!(job.engines[1].failure(), Some(&cause));
}

#[test]
fn a_message_longer_than_its_scratch_memory_is_reduced_chunk_by_chunk() {
    const CHUNK: u64 = 1024;
    for length in [1, 2 * CHUNK, 2 * CHUNK + 1, 3 * CHUNK, 9 * CHUNK + 7] {
        for seed in 0..20 {
            let mut job = Job::new(SimOptions::new(2, seed).hostile(), length as usize);
            for rank in 0..2 {
                job.fill(rank, |i| (i + 1) as f32 * (rank + 1) as f32);
            }
            let tasks: Vec<TaskId> = (0..2)
                .map(|rank| {
                    let mut b = Builder::new("exchange", rank, 2, false);
                    let scratch = Range::new(b.scratch(Extent::all(1)), Extent::all(1));
                    b.send(1 - rank, ALL);
                    b.recv(1 - rank, scratch);
                    b.reduce(vec![ALL, scratch], RESULT, true);
                    job.submit(rank, b.build(), length, Vec::new())
                })
                .collect();
            job.settle();
            for (rank, task) in (0..).zip(tasks) {
                let result = job.engines[rank as usize].result(task);
                assert_eq!(result, Some(Ok(())), "length {length}, seed {seed}");
                let output = job.output(rank);
                let wrong = (0..length as usize)
                    .filter(|&i| kernel::load::<f32>(output, i) != 3.0 * (i + 1) as f32);
                assert_eq!(wrong.count(), 0, "length {length}, seed {seed}");
            }
        }
    }
}
