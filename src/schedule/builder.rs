//! [`Builder`]: appends steps in program order and finds their dependencies from the ranges they
//! touch.

use super::history::{Access, History, full};
use super::{
    Action, Buffer, BufferId, Dependency, Extent, Join, Lane, Operand, Range, Schedule, SlotId,
    Step, StepId, Trigger,
};
use crate::limits;
use crate::types::Rank;

/// The lane of [`Builder::roll_call`].
pub const ROLL_CALL: Lane = limits::LANES as Lane - 1;

/// Builds a [`Schedule`] for one rank.
///
/// Steps are appended in the order in which a single thread could run them. A step that reads or
/// writes a range depends on the earlier steps whose ranges overlap (unless both only read). A
/// signal depends on everything before it, and everything after a wait depends on it, so that
/// memory touched by peers in between needs no ranges here. [`Builder::step`] is for dependencies
/// of another kind.
#[derive(Debug)]
pub struct Builder {
    schedule: Schedule,
    histories: Vec<History>,
    has_dependents: Vec<bool>,
    last_fence: Option<StepId>,
    last_wait: Option<StepId>,
    /// The last signal: the steps before it have completed when a later wait has. Stays as it is
    /// once a step has [`Join::Any`], whose completion says nothing of its other dependencies.
    fenced: StepId,
    has_alternatives: bool,
    sends: Vec<u32>,
    receives: Vec<u32>,
}

impl Builder {
    /// An empty schedule. With `in_place` the input is part of the output, as the collective
    /// defines it; the builder functions then name ranges of the output only.
    pub fn new(name: &'static str, rank: Rank, ranks: u32, in_place: bool) -> Builder {
        assert!(
            rank < ranks && ranks <= limits::RANKS_MAX,
            "rank {rank} of {ranks}"
        );
        Builder {
            schedule: Schedule {
                name,
                rank,
                ranks,
                buffers: vec![Buffer::Input, Buffer::Output],
                steps: Vec::new(),
                slots: 0,
                in_place,
                is_cut: false,
            },
            histories: vec![History::default(); 2],
            has_dependents: Vec::new(),
            last_fence: None,
            last_wait: None,
            fenced: 0,
            has_alternatives: false,
            sends: vec![0; ranks as usize],
            receives: vec![0; ranks as usize],
        }
    }

    /// A private buffer that holds any run of blocks as long as `extent`.
    pub fn scratch(&mut self, extent: Extent) -> BufferId {
        self.buffer(Buffer::Scratch(extent))
    }

    /// A buffer in the window slot, which peers on the host can read and write.
    pub fn window(&mut self, extent: Extent) -> BufferId {
        self.buffer(Buffer::Window(extent))
    }

    /// Lets a long call be cut into several. All ranks must do so, or none.
    pub fn cut(&mut self) {
        self.schedule.is_cut = true;
    }

    /// A buffer that peers on the host reach instead of this rank's input and output. They learn
    /// from its first signal where it lies.
    pub fn shared(&mut self, extent: Extent) -> BufferId {
        let is_first = !(self.schedule.buffers.iter()).any(|b| matches!(b, Buffer::Shared(_)));
        assert!(is_first, "a schedule has at most one shared buffer");
        self.buffer(Buffer::Shared(extent))
    }

    /// Another buffer of the caller, by its number.
    pub fn caller(&mut self, number: u16) -> BufferId {
        self.buffer(Buffer::Caller(number))
    }

    /// The next run-time slots, `n` of them; returns the first.
    pub fn slots(&mut self, n: u32) -> SlotId {
        let first = self.schedule.slots;
        self.schedule.slots = first
            .checked_add(n)
            .expect("more slots than there are numbers");
        first
    }

    /// Sends to a peer.
    pub fn send(&mut self, peer: Rank, source: Range) -> StepId {
        let message = next(&mut self.sends[peer as usize]);
        self.append(Action::Send {
            peer,
            message,
            source,
        })
    }

    /// Receives from a peer.
    pub fn recv(&mut self, peer: Rank, destination: Range) -> StepId {
        let message = next(&mut self.receives[peer as usize]);
        self.append(Action::Recv {
            peer,
            message,
            destination,
        })
    }

    /// Writes into a peer's buffer.
    pub fn put(&mut self, peer: Rank, source: Range, destination: Range) -> StepId {
        self.append(Action::Put {
            peer,
            source,
            destination,
        })
    }

    /// Reads from a peer's buffer.
    pub fn get(&mut self, peer: Rank, source: Range, destination: Range) -> StepId {
        self.append(Action::Get {
            peer,
            source,
            destination,
        })
    }

    /// Copies between local buffers; a copy of a range to itself is left out.
    pub fn copy(&mut self, source: Range, destination: Range) {
        if source != destination {
            self.append(Action::Copy {
                source,
                destination,
                premultiply: false,
            });
        }
    }

    /// Copies, multiplied by the caller's factor.
    pub fn premultiply(&mut self, source: Range, destination: Range) -> StepId {
        self.append(Action::Copy {
            source,
            destination,
            premultiply: true,
        })
    }

    /// Combines local ranges in the order given.
    pub fn reduce(&mut self, sources: Vec<Range>, destination: Range, finish: bool) -> StepId {
        self.append(Action::Reduce {
            sources,
            destination,
            finish,
        })
    }

    /// Combines ranges of several ranks in the order given and stores the result to every
    /// destination.
    pub fn reduce_from(
        &mut self,
        sources: Vec<Operand>,
        destinations: Vec<Operand>,
        finish: bool,
    ) -> StepId {
        self.append(Action::ReduceFrom {
            sources,
            destinations,
            finish,
        })
    }

    /// Signals peers once everything before it is done. No peers: no step.
    pub fn signal(&mut self, peers: Vec<Rank>, lane: Lane) {
        self.signal_with(peers, lane, None);
    }

    /// Signals peers, with a payload.
    pub fn signal_with(&mut self, peers: Vec<Rank>, lane: Lane, payload: Option<Range>) {
        if !peers.is_empty() {
            self.append(Action::Signal {
                peers,
                lane,
                payload,
            });
        }
    }

    /// Waits for the signals of all these peers. No peers: no step.
    pub fn wait(&mut self, peers: Vec<Rank>, lane: Lane) {
        if !peers.is_empty() {
            let count = peers.len() as u32;
            self.append(Action::WaitCount { peers, lane, count });
        }
    }

    /// Appends a step with exactly these full dependencies and none that ranges imply: for
    /// activation and other control structure.
    pub fn step(
        &mut self,
        action: Action,
        after: &[StepId],
        join: Join,
        trigger: Trigger,
    ) -> StepId {
        let dependencies = after.iter().copied().map(full).collect();
        self.has_alternatives |= join == Join::Any;
        self.push(Step {
            action,
            dependencies,
            join,
            trigger,
        })
    }

    /// Adds a signal from every rank to every rank at the start, and a wait for all of them at the
    /// end: for collectives in which some ranks would otherwise end without a signal of the others,
    /// and never learn that they disagree. It uses the lane `ROLL_CALL`, which no algorithm does.
    pub fn roll_call(schedule: Schedule) -> Schedule {
        let peers: Vec<Rank> = (0..schedule.ranks)
            .filter(|&r| r != schedule.rank)
            .collect();
        let mut steps = schedule.steps;
        if let Some(count) = u32::try_from(peers.len()).ok().filter(|&count| count > 0) {
            let independent = |action| Step {
                action,
                dependencies: Vec::new(),
                join: Join::All,
                trigger: Trigger::None,
            };
            steps.push(independent(Action::Signal {
                peers: peers.clone(),
                lane: ROLL_CALL,
                payload: None,
            }));
            steps.push(independent(Action::WaitCount {
                peers,
                lane: ROLL_CALL,
                count,
            }));
        }
        Schedule { steps, ..schedule }
    }

    /// The finished schedule.
    pub fn build(self) -> Schedule {
        self.schedule
    }

    fn buffer(&mut self, buffer: Buffer) -> BufferId {
        self.schedule.buffers.push(buffer);
        self.histories.push(History::default());
        BufferId((self.schedule.buffers.len() - 1) as u16)
    }

    /// Appends a step after everything that its ranges and the fences imply.
    fn append(&mut self, action: Action) -> StepId {
        let step = self.schedule.steps.len() as StepId;
        let mut dependencies = Vec::new();
        let mut touched = Vec::new();
        action.for_each_local_range(|range, is_write| {
            touched.push(Access {
                step,
                index: touched.len() as u16,
                range: *range,
                is_write,
            })
        });
        for access in &touched {
            let history = &self.histories[access.range.buffer.0 as usize];
            history.collect(access, &self.schedule.steps, &mut dependencies);
        }
        drop_equals(&mut dependencies, &touched, &self.schedule.steps);
        let is_signal = matches!(action, Action::Signal { .. });
        let is_wait = matches!(action, Action::WaitCount { .. });
        if is_signal {
            // A signal waits for every earlier step that nothing else waits for; the rest follows
            // by rule 2 of the module.
            dependencies = (0..step)
                .filter(|&s| !self.has_dependents[s as usize])
                .map(full)
                .collect();
        }
        if is_signal || is_wait {
            if let Some(fence) = self.last_fence {
                add_full(&mut dependencies, fence);
            }
        } else if let Some(wait) = self.last_wait {
            add_full(&mut dependencies, wait);
        }
        let pushed = self.push(Step {
            action,
            dependencies,
            join: Join::All,
            trigger: Trigger::None,
        });
        for access in touched {
            let history = &mut self.histories[access.range.buffer.0 as usize];
            history.add(access, &self.schedule.steps);
        }
        if is_signal || is_wait {
            self.last_fence = Some(pushed);
        }
        if is_signal && !self.has_alternatives {
            self.fenced = pushed;
        }
        if is_wait {
            self.last_wait = Some(pushed);
            let fenced = self.fenced;
            self.histories
                .iter_mut()
                .for_each(|h| h.forget_before(fenced));
        }
        pushed
    }

    fn push(&mut self, step: Step) -> StepId {
        let id = self.schedule.steps.len() as StepId;
        assert!(
            self.schedule.steps.len() < limits::STEPS_MAX,
            "a schedule of more than {} steps",
            limits::STEPS_MAX
        );
        for dependency in &step.dependencies {
            assert!(
                dependency.step < id,
                "step {id} depends on step {}, which is not before it",
                dependency.step
            );
            self.has_dependents[dependency.step as usize] = true;
        }
        self.has_dependents.push(false);
        self.schedule.steps.push(step);
        id
    }
}

/// Sorts edges and drops those that repeat others. A step that reads and writes one range has some.
fn drop_equals(dependencies: &mut Vec<Dependency>, touched: &[Access], steps: &[Step]) {
    dependencies.sort_unstable_by_key(|d| (d.step, d.overlap));
    if dependencies
        .windows(2)
        .all(|pair| pair[0].step != pair[1].step)
    {
        return;
    }
    let ranges_of = |d: &Dependency| {
        let (theirs, ours) = d.overlap?;
        let (mut at, mut their_range) = (0, None);
        steps[d.step as usize]
            .action
            .for_each_local_range(|range, _| {
                if at == theirs {
                    their_range = Some(*range);
                }
                at += 1;
            });
        Some((their_range, touched[ours as usize].range))
    };
    let is_same = |a: &mut Dependency, b: &mut Dependency| {
        // A full edge is sorted first, and implies the others.
        a.step == b.step && (b.overlap.is_none() || ranges_of(a) == ranges_of(b))
    };
    dependencies.dedup_by(is_same);
}

fn add_full(dependencies: &mut Vec<Dependency>, step: StepId) {
    if !dependencies
        .iter()
        .any(|d| d.step == step && d.overlap.is_none())
    {
        dependencies.push(full(step));
    }
}

fn next(counter: &mut u32) -> u32 {
    let value = *counter;
    *counter += 1;
    value
}

#[cfg(test)]
mod tests {
    use super::*;

    fn block(index: u32, of: u32) -> Range {
        Range::new(BufferId::OUTPUT, Extent::block(index, of))
    }

    fn dependencies(schedule: &Schedule, step: StepId) -> Vec<StepId> {
        let mut steps: Vec<_> = schedule.steps[step as usize]
            .dependencies
            .iter()
            .map(|d| d.step)
            .collect();
        steps.dedup();
        steps
    }

    #[test]
    fn a_reader_waits_for_the_writer_and_not_for_other_readers() {
        let mut b = Builder::new("test", 0, 2, true);
        let recv = b.recv(1, block(0, 2));
        let first = b.send(1, block(0, 2));
        let second = b.send(1, block(0, 4));
        let elsewhere = b.send(1, block(1, 2));
        let again = b.recv(1, block(0, 1));
        let s = b.build();
        assert_eq!(dependencies(&s, first), [recv]);
        assert_eq!(dependencies(&s, second), [recv]);
        assert!(dependencies(&s, elsewhere).is_empty());
        assert_eq!(
            dependencies(&s, again),
            [first, second, elsewhere],
            "the first read covers what was received"
        );
    }

    #[test]
    fn messages_are_numbered_per_peer() {
        let mut b = Builder::new("test", 0, 3, true);
        for peer in [1, 2, 1] {
            b.send(peer, block(0, 1));
        }
        let s = b.build();
        let numbers: Vec<_> = s
            .steps
            .iter()
            .map(|s| match s.action {
                Action::Send { peer, message, .. } => (peer, message),
                _ => unreachable!(),
            })
            .collect();
        assert_eq!(numbers, [(1, 0), (2, 0), (1, 1)]);
    }

    #[test]
    fn fences_order_what_lies_around_them() {
        let mut b = Builder::new("test", 0, 2, true);
        let window = b.window(Extent::all(1));
        b.copy(block(0, 1), Range::new(window, Extent::all(1)));
        b.signal(vec![1], 0);
        b.wait(vec![1], 0);
        let get = b.get(1, Range::new(window, Extent::all(1)), block(0, 1));
        let s = b.build();
        assert_eq!(dependencies(&s, 1), [0], "the signal follows the copy");
        assert_eq!(dependencies(&s, 2), [1], "fences are a chain");
        assert!(
            dependencies(&s, get).contains(&2),
            "the get follows the wait"
        );
    }

    #[test]
    #[should_panic(expected = "is not before it")]
    fn a_step_cannot_depend_on_a_later_one() {
        let mut b = Builder::new("test", 0, 1, true);
        b.step(Action::Nop, &[0], Join::All, Trigger::None);
    }
}
