//! Runs one job in virtual time: first under faults, then, when they have stopped, to its end.

use crate::job::{Fault, Job};
use crate::values::Prepared;
use linerate::sim::World;
use linerate::transport::Time;
use linerate::{Buffer, Communicator, Error, Operation, Rank, Simulation};
use std::collections::VecDeque;

/// Longest virtual time of a job, from its first start: some ten timeouts.
const TIME_NS_MAX: u64 = 500_000_000;

/// Most points of virtual time of a job.
const STEPS_MAX: usize = 2_000_000;

/// Operations are looked at this often, and whenever nothing is under way.
const LOOK_NS: u64 = 10_000;

/// An operation that a rank has called.
struct Called {
    index: usize,
    prepared: Prepared,
    operation: Option<Operation>,
}

/// One rank.
struct Caller {
    rank: Rank,
    communicator: Communicator,
    is_dead: bool,
    /// The next operation to call.
    next: usize,
    called: VecDeque<Called>,
    ends: Vec<End>,
}

/// How an operation ended on a rank: its output, or the error; `None`: not called, or the rank
/// died.
pub type End = Option<Result<Vec<u8>, Error>>;

/// What came of a job.
pub struct Outcome {
    /// Per rank and operation.
    pub ends: Vec<Vec<End>>,
    /// Whether the fault struck while some operation was under way or still to be called.
    pub has_struck: bool,
    /// Of the dead rank: operations that it had called.
    pub called_by_dead: usize,
}

impl Caller {
    fn is_done(&self) -> bool {
        self.is_dead || (self.next == self.ends.len() && self.called.is_empty())
    }

    /// Calls what is due.
    fn call(&mut self, job: &Job, world: &World, since_ns: u64) {
        while self.next < self.ends.len() && self.called.len() < job.at_once {
            let index = self.next;
            let Some(planned) = job.operation_of(self.rank, index) else {
                self.next = self.ends.len();
                return;
            };
            if since_ns < job.starts_ns[self.rank as usize][index] {
                return;
            }
            self.next += 1;
            let prepared = planned.prepare(self.rank, |bytes| match planned.registered {
                true => self.communicator.alloc(bytes).expect("memory"),
                false => Buffer::from_vec(vec![0; bytes]),
            });
            let operation = match prepared.start(&self.communicator) {
                Ok(operation) => Some(operation),
                Err(error) => {
                    self.ends[index] = Some(Err(error));
                    continue;
                }
            };
            self.called.push_back(Called {
                index,
                prepared,
                operation,
            });
            world.wake_at(self.rank, world.now());
        }
    }

    /// Takes the ends of those that have ended.
    fn look(&mut self) {
        let ends = &mut self.ends;
        self.called.retain_mut(|called| {
            let operation = called.operation.as_mut().expect("not cancelled");
            let end = match operation.test() {
                Ok(false) => return true,
                Ok(true) => called.prepared.output.to_vec(),
                Err(error) => Err(error),
            };
            ends[called.index] = Some(end);
            false
        });
    }

    /// Cancels the oldest operation under way.
    fn cancel(&mut self) -> bool {
        self.look();
        let Some(called) = self.called.front_mut() else {
            return false;
        };
        let operation = called.operation.take().expect("not cancelled");
        operation.cancel().expect("an operation under way");
        let by = self.rank;
        let end = Error::Cancelled {
            by,
            operation: "its own".into(),
        };
        self.ends[called.index] = Some(Err(end));
        self.called.pop_front();
        true
    }
}

/// When something is done to the fabric or to a rank, nanoseconds after the first start.
fn moments(fault: Fault) -> Vec<u64> {
    match fault {
        Fault::Partition { at_ns, for_ns, .. } => vec![at_ns, at_ns + for_ns],
        Fault::LastingPartition { at_ns, .. }
        | Fault::Death { at_ns, .. }
        | Fault::Cancel { at_ns, .. } => vec![at_ns],
        Fault::None | Fault::Mismatch { .. } | Fault::Absent { .. } => Vec::new(),
    }
}

/// Does what the fault does at its `step`-th moment; whether it can make a difference.
fn strike(fault: Fault, step: usize, world: &World, callers: &mut [Caller]) -> bool {
    let ranks: Vec<Rank> = callers.iter().map(|c| c.rank).collect();
    let is_open = callers.iter().any(|c| !c.is_done());
    match (fault, step) {
        (Fault::Partition { .. }, 1) => world.heal(),
        (Fault::Partition { below, .. } | Fault::LastingPartition { below, .. }, _) => {
            let (left, right) = ranks.split_at(below as usize);
            world.partition(left, right);
        }
        (Fault::Death { rank, .. }, _) => {
            world.kill(rank);
            callers[rank as usize].is_dead = true;
        }
        (Fault::Cancel { rank, .. }, _) => return callers[rank as usize].cancel(),
        _ => {}
    }
    is_open
}

/// Runs a job to its end; an error says that it has none.
pub fn run(job: &Job) -> Result<Outcome, String> {
    let mut simulation = Simulation::new(job.options.clone(), job.config.clone())
        .map_err(|e| format!("the ranks cannot connect: {e}"))?;
    let world = simulation.world().clone();
    let mut callers: Vec<Caller> = simulation
        .communicators()
        .iter()
        .map(|communicator| Caller {
            rank: communicator.rank(),
            communicator: communicator.clone(),
            is_dead: false,
            next: 0,
            called: VecDeque::new(),
            ends: vec![None; job.operations.len()],
        })
        .collect();
    let begin = world.now();
    let mut moments: VecDeque<u64> = moments(job.fault).into();
    let wakes = job.starts_ns.iter().flatten().chain(&moments);
    wakes.for_each(|&at_ns| world.wake_at(0, Time(begin.0 + at_ns)));
    let (mut steps, mut struck, mut looked_ns, mut has_struck) = (0, 0, 0, false);
    let result = simulation.run(|_| {
        steps += 1;
        let since_ns = world.now().0 - begin.0;
        while moments.front().is_some_and(|&at_ns| at_ns <= since_ns) {
            moments.pop_front();
            has_struck |= strike(job.fault, struck, &world, &mut callers);
            struck += 1;
        }
        if steps == 1 || since_ns >= looked_ns + LOOK_NS || world.next_event_time().is_none() {
            looked_ns = since_ns;
            for caller in callers.iter_mut().filter(|c| !c.is_dead) {
                caller.look();
                caller.call(job, &world, since_ns);
                // A call on a rank that knows of a death fails those under way.
                caller.look();
            }
        }
        let is_late = since_ns > TIME_NS_MAX || steps > STEPS_MAX;
        is_late || (moments.is_empty() && callers.iter().all(Caller::is_done))
    });
    let open: Vec<(Rank, Vec<usize>)> = callers
        .iter()
        .filter(|c| !c.is_done())
        .map(|c| (c.rank, c.called.iter().map(|called| called.index).collect()))
        .collect();
    if let Err(error) = result {
        return Err(format!("ranks with operations {open:?} never end: {error}"));
    }
    if !open.is_empty() {
        let ns = world.now().0 - begin.0;
        return Err(format!(
            "ranks with operations {open:?} have not ended after {ns} ns, {steps} steps"
        ));
    }
    let dead = callers.iter().find(|c| c.is_dead);
    Ok(Outcome {
        called_by_dead: dead.map_or(0, |c| c.next),
        has_struck,
        ends: callers.into_iter().map(|c| c.ends).collect(),
    })
}
