//! The engine on simulated ranks: run-time lengths, messages longer than their scratch memory, the
//! news of a failure.

use super::{Arguments, Contact, Engine, Host, Prepared, TaskCall, TaskId};
use crate::config::Config;
use crate::error::Error;
use crate::kernel;
use crate::memory::{Region, RegionKey, View};
use crate::schedule::{BufferId, Builder, Extent, Range, Schedule};
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
            .for_each(|e| e.connect(contacts.clone(), Vec::new()).unwrap());
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
        self.submit_with(rank, self.arguments(rank, count), schedule, slots)
    }

    fn arguments(&self, rank: Rank, count: u64) -> Arguments {
        Arguments {
            collective: Collective::AllReduce,
            count,
            dtype: DataType::F32,
            op: ReduceOp::Sum,
            root: 0,
            input: self.inputs[rank as usize].view(),
            output: self.outputs[rank as usize].view(),
        }
    }

    fn submit_with(
        &mut self,
        rank: Rank,
        arguments: Arguments,
        schedule: Schedule,
        slots: Vec<u64>,
    ) -> TaskId {
        let call = TaskCall {
            timeout: None,
            arguments,
            prepared: Arc::new(Prepared::new(schedule, 0, false)),
            fallback: None,
            slots: slots.into(),
            others: Vec::new(),
            keep: [None, None],
            keep_others: Vec::new(),
            at_end: None,
        };
        self.engines[rank as usize]
            .submit(call, self.world.now())
            .unwrap()
    }

    /// Drives every engine until nothing moves and nothing is under way.
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
fn a_message_longer_than_its_receive_is_an_error_on_both_sides() {
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
    b.recv(0, range(BufferId::OUTPUT));
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
fn a_failure_that_is_told_behind_a_query_is_the_cause_and_not_what_the_query_shows() {
    let mut job = Job::new(SimOptions::new(3, 1), 4);
    let mut b = Builder::new("waits", 2, 3, false);
    b.recv(0, RESULT);
    let task = job.submit(2, b.build(), 4, Vec::new());
    let query = ControlMessage {
        kind: ControlKind::Query,
        rank: 1,
        sequence: 0,
        signature: 1,
        text: String::new(),
    };
    assert!(job.engines[1].driver.links.send_control(2, &query));
    let cause = Error::Cancelled {
        by: 0,
        operation: "a test".into(),
    };
    job.engines[0].fail(cause.clone(), true);
    // Both have come when rank 2 looks.
    while job.world.advance() {}
    let now = job.world.now();
    job.engines[2].drive(now);
    assert_eq!(job.engines[2].failure(), Some(&cause));
    assert_eq!(job.engines[2].result(task), Some(Err(cause)));
    // Without such news the disagreement is the cause.
    let mut job = Job::new(SimOptions::new(3, 1), 4);
    let mut b = Builder::new("waits", 2, 3, false);
    b.recv(0, RESULT);
    job.submit(2, b.build(), 4, Vec::new());
    assert!(job.engines[1].driver.links.send_control(2, &query));
    while job.world.advance() {}
    job.engines[2].drive(job.world.now());
    let failure = job.engines[2].failure();
    assert!(
        matches!(failure, Some(Error::Mismatch { .. })),
        "{failure:?}"
    );
}

/// Registers memory of a rank for more than one call.
fn register_cached(job: &mut Job, rank: Rank) -> RegionKey {
    let region = Arc::new(Region::private(16).unwrap());
    let key = job.engines[rank as usize].register_cached(region).unwrap();
    assert!(key.is_some());
    key
}

#[test]
fn a_failure_ends_the_registrations_of_callers_memory_and_no_others() {
    let mut job = Job::new(SimOptions::new(2, 1), 4);
    let key = register_cached(&mut job, 0);
    let region = Arc::new(Region::private(16).unwrap());
    let lasting = job.engines[0].register(region.clone()).unwrap();
    let given_back = register_cached(&mut job, 0);
    job.engines[0].deregister(given_back).unwrap();
    assert!(job.engines[0].keeps_cached());
    let cause = Error::Cancelled {
        by: 0,
        operation: "a test".into(),
    };
    job.engines[0].fail(cause, true);
    assert!(!job.engines[0].keeps_cached());
    assert_eq!(
        job.engines[0].register_cached(region).unwrap(),
        RegionKey::NONE
    );
    assert!(job.engines[0].deregister(key).is_err());
    job.engines[0].deregister(lasting).unwrap();
}

#[test]
fn a_leave_ends_the_registration_that_an_operation_uses_which_cannot_end() {
    for is_used in [false, true] {
        let mut job = Job::new(SimOptions::new(3, 1), 4);
        let key = register_cached(&mut job, 0);
        let mut b = Builder::new("waits", 0, 3, false);
        b.recv(1, RESULT);
        let output = job.outputs[0].view();
        let key_used = if is_used { key } else { RegionKey::NONE };
        let arguments = Arguments {
            output: output.in_region(key_used, 0),
            ..job.arguments(0, 4)
        };
        let task = job.submit_with(0, arguments, b.build(), Vec::new());
        job.settle();
        while !job.engines[1].leave(job.world.now()) {
            job.world.advance();
        }
        job.settle();
        let result = job.engines[0].result(task);
        assert!(
            matches!(result, Some(Err(Error::Left { rank: 1, .. }))),
            "{result:?}"
        );
        assert_eq!(job.engines[0].failure(), None);
        assert_eq!(job.engines[0].keeps_cached(), !is_used);
        assert_eq!(job.engines[0].deregister(key).is_err(), is_used);
    }
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

/// Whether each of three ranks of one host thinks that all map each other. `change` may change the
/// address by which a rank (the first) reaches another one.
fn told_of_host(nonce: u64, change: impl Fn(Rank, Rank, &mut Vec<u8>)) -> Vec<bool> {
    let ranks = 0..3;
    let host = Host {
        threads_max: 1,
        cache_bytes: usize::MAX,
        is_size_only: false,
    };
    let options = Default::default();
    let mut engines: Vec<Engine> = (ranks.clone())
        .map(|rank| {
            let transport =
                crate::transport::open("router:tcp", rank, 3, nonce + u64::from(rank), &options);
            Engine::new(transport.unwrap(), rank, 3, Config::default(), host).unwrap()
        })
        .collect();
    let contacts: Vec<Contact> = engines.iter().map(Engine::contact).collect();
    for (rank, engine) in ranks.clone().zip(&mut engines) {
        let mut of_rank = contacts.clone();
        for (peer, contact) in (0..).zip(&mut of_rank) {
            change(rank, peer, &mut contact.address.0);
        }
        let neighbours = ranks.clone().filter(|&peer| peer != rank).collect();
        engine.connect(of_rank.into(), neighbours).unwrap();
    }
    let clock = crate::wait::Clock::monotonic();
    let is_ready = |engine: &mut Engine| engine.poll_connect(clock.now()).unwrap();
    let mut waiting: Vec<&mut Engine> = engines.iter_mut().collect();
    let deadline = clock.now().after(std::time::Duration::from_secs(60));
    while !waiting.is_empty() {
        assert!(clock.now() < deadline, "ranks wait for each other");
        waiting.retain_mut(|engine| !is_ready(engine));
        std::thread::yield_now();
    }
    engines.iter().map(Engine::maps_host).collect()
}

#[test]
fn a_rank_that_maps_all_others_learns_that_two_of_them_do_not_map_each_other() {
    assert_eq!(told_of_host(0x7010, |_, _, _| {}), [true; 3]);
    // Rank 0 does not find rank 1, whose name in shared memory lies behind the host.
    let lose = |rank: Rank, peer: Rank, address: &mut Vec<u8>| {
        if (rank, peer) == (0, 1) {
            address[16] ^= 1;
        }
    };
    assert_eq!(told_of_host(0x7020, lose), [false; 3]);
}
