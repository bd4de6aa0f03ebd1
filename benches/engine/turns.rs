//! Engines over the shared-memory transport, each of a rank of its own, driven in turn by one
//! thread: what an engine costs where a poll hands over everything that has come, as it does
//! between processes.
//!
//! Turns go from the last rank to the first, against the direction of a ring: each rank then finds
//! one message at its turn. Downwards a rank would find all that those before it have just sent,
//! and a drive would do more than it does anywhere.

use crate::{Runner, request_of, steps_of};
use linerate::collective::find;
use linerate::transport::{Options, Region, Time, open};
use linerate::unstable::bootstrap::nonce;
use linerate::unstable::engine::{Arguments, Contact, Engine, Host, Prepared, TaskCall, TaskId};
use linerate::{Collective, Config, DataType, Rank, ReduceOp};
use std::borrow::Cow;
use std::sync::Arc;

/// One rank, and its part in an operation that comes again and again.
struct Place {
    engine: Engine,
    /// The call on each of its buffers, which take turns.
    calls: Vec<Arguments>,
    calls_made: usize,
    prepared: Arc<Prepared>,
    /// The operation under way.
    task: Option<TaskId>,
}

/// Allreduce of `bytes` bytes in place, on each of this many buffers in turn.
pub fn all_reduce(ranks: u32, algorithm: &str, bytes: usize, buffers: usize) -> Runner {
    let mut places = connected(ranks, algorithm, bytes, buffers);
    Runner {
        steps: steps_of(Collective::AllReduce, algorithm, ranks),
        run: Box::new(move || {
            places.iter_mut().rev().for_each(Place::start);
            // Every rank is asked as often as the slowest one needs.
            while places
                .iter_mut()
                .rev()
                .fold(false, |runs, place| runs | place.drive())
            {}
        }),
    }
}

/// A drive that finds nothing to do: the only step.
pub fn idle(ranks: u32) -> Runner {
    let mut places = connected(ranks, "ring", 4096, 1);
    Runner {
        steps: 1,
        run: Box::new(move || assert!(!places[0].engine.drive(Time(0)))),
    }
}

impl Place {
    fn start(&mut self) {
        let arguments = self.calls[self.calls_made % self.calls.len()];
        self.calls_made += 1;
        let call = TaskCall {
            timeout: None,
            arguments,
            prepared: self.prepared.clone(),
            fallback: None,
            slots: Cow::Borrowed(&[]),
            others: Vec::new(),
            keep: [None, None],
            keep_others: Vec::new(),
            at_end: None,
        };
        self.task = Some(self.engine.submit(call, Time(0)).expect("a start"));
    }

    /// Drives it if its operation has not ended; whether it runs on.
    fn drive(&mut self) -> bool {
        let Some(task) = self.task else { return false };
        self.engine.drive(Time(0));
        match self.engine.result(task) {
            Some(result) => {
                result.expect("an operation");
                self.engine.release(task);
                self.task = None;
                false
            }
            None => true,
        }
    }
}

fn connected(ranks: u32, algorithm: &str, bytes: usize, buffers: usize) -> Vec<Place> {
    let place = |rank| place(rank, ranks, algorithm, (bytes, buffers));
    let mut places: Vec<Place> = (0..ranks).map(place).collect();
    let contacts: std::sync::Arc<[Contact]> =
        places.iter().map(|place| place.engine.contact()).collect();
    for place in &mut places {
        let begun = place.engine.connect(contacts.clone(), Vec::new());
        begun.expect("addresses of this process");
    }
    let mut waiting: Vec<usize> = (0..places.len()).collect();
    while !waiting.is_empty() {
        waiting.retain(|&rank| {
            let is_ready = places[rank].engine.poll_connect(Time(0));
            !is_ready.expect("a connection")
        });
    }
    places
}

fn place(rank: Rank, ranks: u32, algorithm: &str, (bytes, buffers): (usize, usize)) -> Place {
    let host = Host {
        threads_max: 1,
        cache_bytes: usize::MAX,
        is_size_only: false,
    };
    let transport = open(
        "shm",
        rank,
        ranks,
        nonce().expect("a nonce"),
        &Options::default(),
    )
    .expect("shm");
    let engine = Engine::new(transport, rank, ranks, Config::default(), host);
    let mut engine = engine.expect("an engine");
    let region = Arc::new(Region::shared("engine-bench", buffers * bytes).expect("memory"));
    // The transport keeps the region alive.
    let key = engine.register(region.clone()).expect("a registration");
    let whole = region.view().in_region(key, 0);
    let calls = (0..buffers).map(|index| {
        let buffer = whole.part(index * bytes, bytes);
        Arguments {
            collective: Collective::AllReduce,
            count: bytes as u64 / 4,
            dtype: DataType::F32,
            op: ReduceOp::Sum,
            root: 0,
            input: buffer,
            output: buffer,
        }
    });
    let found = find(Collective::AllReduce, algorithm).expect("an algorithm of that name");
    let schedule = (found.build)(&request_of(Collective::AllReduce, rank, ranks));
    Place {
        engine,
        calls: calls.collect(),
        calls_made: 0,
        prepared: Arc::new(Prepared::new(schedule, 0, found.needs.registered)),
        task: None,
    }
}
