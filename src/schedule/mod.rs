//! Schedules: what one rank does for one collective, as a directed acyclic graph of steps.
//!
//! The vocabulary is that of Li et al., "Taming Unbalanced Training Workloads in Deep Learning with
//! Partial Collective Operations" (PPoPP 2020): operations with happens-before edges, consumable
//! operations, *and*/*or* dependencies, internal and external activation.
//!
//! A schedule is pure data. It names buffers, not addresses; ranges are blocks of a run-time count
//! (see [`Extent`]), so one schedule serves every count and can be cached, printed, compared and
//! checked. It contains no chunks and no byte counts: the engine cuts those.
//!
//! What order means (the builder, the checker and the engine all use exactly this):
//! 1. A step may process an element once each step that it has an *overlap* edge to has processed
//!    it, where both touch it in the same buffer, and each step that it has a *full* edge to has
//!    completed.
//! 2. A step completes when all its elements are processed and everything it depends on has
//!    completed.
//! 3. Steps with [`Join::Any`] start when the first of their dependencies completes. A step runs at
//!    most once. The engine runs no such steps, nor steps with a [`Trigger`]: the partial allreduce
//!    follows such schedules by itself, one per round.
//!
//! To add an algorithm: write a function in `collective/` that appends steps to a [`Builder`] in
//! program order (the builder finds the dependencies from the ranges), list it in
//! `collective/table.rs`, and the tests run it through the checker ([`check`]) against its
//! definition, for many numbers of ranks.
//!
//! Read first: this file, then `collective/ring.rs`.

mod builder;
mod check;
mod history;
mod print;
mod range;

pub use crate::types::{Combine, Finish};
pub use builder::Builder;
pub(crate) use builder::ROLL_CALL;
pub use check::{CheckError, CheckReport, Fault, Spec, Value, check};
pub use range::{Count, Extent, Point, Range};

use crate::types::Rank;

/// Index of a step in [`Schedule::steps`]. A step depends only on earlier ones.
pub type StepId = u32;

/// Index of a run-time length or offset, in elements; filled when the operation starts.
pub type SlotId = u32;

/// One of the signals that a pair of ranks exchange within one operation, 0 to 3.
pub type Lane = u8;

/// A buffer of a schedule.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct BufferId(pub u16);

impl BufferId {
    /// The caller's input.
    pub const INPUT: BufferId = BufferId(0);
    /// The caller's output.
    pub const OUTPUT: BufferId = BufferId(1);
}

/// What a buffer is.
#[derive(Clone, Debug, PartialEq)]
pub enum Buffer {
    /// The caller's input. Peers may read it between this rank's first signal and the end.
    Input,
    /// The caller's output. Peers may write it between this rank's first signal and the end.
    Output,
    /// Another buffer of the caller, for one transfer of a group.
    Caller(u16),
    /// Private memory of the engine, long enough for any run of as many blocks as the extent has.
    Scratch(Extent),
    /// Memory of the engine that every peer on the host maps, at the same place of every rank's
    /// window slot; as long as a [`Buffer::Scratch`] of the same extent.
    Window(Extent),
    /// As [`Buffer::Scratch`], and peers on the host that reach this rank's input or output reach
    /// this buffer instead. A schedule has at most one.
    Shared(Extent),
}

/// How dependencies combine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Join {
    /// All of them (also when there are none: the step starts when the schedule is armed).
    All,
    /// The first of them.
    Any,
}

/// What starts a step besides its dependencies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Trigger {
    /// Nothing else.
    None,
    /// The caller's arrival: *internal activation*. (External activation is a
    /// [`Action::WaitCount`].)
    Caller,
}

/// A range in this rank's buffers, in a peer's, or in the payload of a signal.
#[derive(Clone, Debug, PartialEq)]
pub enum Operand {
    /// In one of this rank's buffers.
    Local(Range),
    /// In the peer's buffer with the range's number, which is mapped here. It may be used only
    /// between that peer's signal and the end of its part in the operation.
    Peer(Rank, Range),
    /// The payload of the signal that this peer sent on this lane; all `count` elements of it.
    Mail(Rank, Lane),
}

/// What a step does. Peers are ranks of the communicator.
#[derive(Clone, Debug, PartialEq)]
pub enum Action {
    /// Sends a range. The n-th send to a peer meets that peer's n-th receive from here (`message` =
    /// n).
    Send {
        /// The receiver.
        peer: Rank,
        /// Which message of this pair.
        message: u32,
        /// What is sent.
        source: Range,
    },
    /// Receives a range of exactly the sent length.
    Recv {
        /// The sender.
        peer: Rank,
        /// Which message of this pair.
        message: u32,
        /// Where to.
        destination: Range,
    },
    /// Writes into a peer's window, or into its output between its arrival and its end.
    Put {
        /// The owner of the buffer.
        peer: Rank,
        /// The range to move.
        source: Range,
        /// A range of the peer's buffers.
        destination: Range,
    },
    /// Reads from a peer's mapped buffer.
    Get {
        /// The owner of the buffer.
        peer: Rank,
        /// A range of the peer's buffers.
        source: Range,
        /// Where to.
        destination: Range,
    },
    /// Copies between local buffers, multiplied by the caller's factor if `premultiply`.
    Copy {
        /// The range to move.
        source: Range,
        /// Where to.
        destination: Range,
        /// Multiply by the factor of a premultiplied sum.
        premultiply: bool,
    },
    /// destination = sources\[0\] op sources\[1\] op ..., in that order, all local. A source may be
    /// the destination.
    Reduce {
        /// In the order in which they are combined.
        sources: Vec<Range>,
        /// Where to.
        destination: Range,
        /// Apply the operator's last act (the division of an average).
        finish: bool,
    },
    /// As [`Action::Reduce`], over mapped memory too; the result is stored to every destination.
    ReduceFrom {
        /// In the order in which they are combined.
        sources: Vec<Operand>,
        /// Where to; local or peers' buffers.
        destinations: Vec<Operand>,
        /// Apply the operator's last act.
        finish: bool,
    },
    /// Tells peers that everything this step depends on is done and visible. The signal carries the
    /// addresses of this rank's input and output, or `payload` (at most
    /// [`crate::limits::LINE_PAYLOAD_BYTES`], which the chooser guarantees) instead.
    Signal {
        /// The receivers.
        peers: Vec<Rank>,
        /// Which signal of this operation.
        lane: Lane,
        /// Elements that travel with it.
        payload: Option<Range>,
    },
    /// Completes when `count` of these peers have signalled on the lane. With `count` = 1 and
    /// [`Join::Any`] behind it, it is *external activation*.
    WaitCount {
        /// The senders.
        peers: Vec<Rank>,
        /// Which signal.
        lane: Lane,
        /// How many of them.
        count: u32,
    },
    /// Nothing; joins dependencies.
    Nop,
}

/// An edge to an earlier step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Dependency {
    /// The earlier step.
    pub step: StepId,
    /// `Some((i, j))`: an overlap edge between range i of the earlier step and range j of this one,
    /// in the order of [`Action::for_each_local_range`]. `None`: a full edge.
    pub overlap: Option<(u16, u16)>,
}

/// One step.
#[derive(Clone, Debug, PartialEq)]
pub struct Step {
    /// What it does.
    pub action: Action,
    /// What it waits for.
    pub dependencies: Vec<Dependency>,
    /// How its dependencies combine.
    pub join: Join,
    /// What else starts it.
    pub trigger: Trigger,
}

/// What one rank does for one collective.
#[derive(Clone, Debug, PartialEq)]
pub struct Schedule {
    /// The algorithm's name.
    pub name: &'static str,
    /// This rank.
    pub rank: Rank,
    /// Number of ranks.
    pub ranks: u32,
    /// The buffers; the first two are the input and the output.
    pub buffers: Vec<Buffer>,
    /// Steps, each after everything it depends on.
    pub steps: Vec<Step>,
    /// Number of run-time slots.
    pub slots: u32,
    /// Whether input and output are the same memory (see [`Builder::new`]).
    pub in_place: bool,
    /// Whether a long call is cut into several, because some rank may have a [`Buffer::Shared`].
    /// All ranks must agree.
    pub is_cut: bool,
}

impl Schedule {
    /// Whether any step uses signals, so that the operation needs a slot of flag lines and windows.
    pub fn uses_signals(&self) -> bool {
        self.steps.iter().any(|s| {
            matches!(
                s.action,
                Action::Signal { .. } | Action::WaitCount { .. } | Action::Put { .. }
            )
        })
    }
}

impl Action {
    /// Calls `visit(range, is_write)` for every range in this rank's own buffers, in a fixed order:
    /// sources first, then destinations. [`Dependency::overlap`] counts in this order.
    pub fn for_each_local_range(&self, mut visit: impl FnMut(&Range, bool)) {
        match self {
            Action::Send { source, .. } | Action::Put { source, .. } => visit(source, false),
            Action::Recv { destination, .. } | Action::Get { destination, .. } => {
                visit(destination, true)
            }
            Action::Copy {
                source,
                destination,
                ..
            } => {
                visit(source, false);
                visit(destination, true);
            }
            Action::Reduce {
                sources,
                destination,
                ..
            } => {
                sources.iter().for_each(|s| visit(s, false));
                visit(destination, true);
            }
            Action::ReduceFrom {
                sources,
                destinations,
                ..
            } => {
                for (operands, is_write) in [(sources, false), (destinations, true)] {
                    for operand in operands {
                        if let Operand::Local(range) = operand {
                            visit(range, is_write);
                        }
                    }
                }
            }
            Action::Signal { payload, .. } => payload.iter().for_each(|p| visit(p, false)),
            Action::WaitCount { .. } | Action::Nop => {}
        }
    }

    /// As [`Action::for_each_local_range`], to change the ranges.
    pub fn for_each_local_range_mut(&mut self, mut visit: impl FnMut(&mut Range)) {
        match self {
            Action::Send { source, .. } | Action::Put { source, .. } => visit(source),
            Action::Recv { destination, .. } | Action::Get { destination, .. } => {
                visit(destination)
            }
            Action::Copy {
                source,
                destination,
                ..
            } => {
                visit(source);
                visit(destination);
            }
            Action::Reduce {
                sources,
                destination,
                ..
            } => {
                sources.iter_mut().for_each(&mut visit);
                visit(destination);
            }
            Action::ReduceFrom {
                sources,
                destinations,
                ..
            } => {
                for operand in sources.iter_mut().chain(destinations) {
                    if let Operand::Local(range) = operand {
                        visit(range);
                    }
                }
            }
            Action::Signal { payload, .. } => payload.iter_mut().for_each(visit),
            Action::WaitCount { .. } | Action::Nop => {}
        }
    }

    /// A range whose length is the number of elements that the step processes; `None` for steps
    /// that have no elements of their own. (All ranges of a step are equally long.)
    pub fn extent(&self) -> Option<&Range> {
        match self {
            Action::Send { source, .. }
            | Action::Put { source, .. }
            | Action::Copy { source, .. } => Some(source),
            Action::Recv { destination, .. }
            | Action::Get { destination, .. }
            | Action::Reduce { destination, .. } => Some(destination),
            Action::ReduceFrom {
                sources,
                destinations,
                ..
            } => destinations
                .iter()
                .chain(sources)
                .find_map(|operand| match operand {
                    Operand::Local(range) | Operand::Peer(_, range) => Some(range),
                    Operand::Mail(..) => None,
                }),
            Action::Signal { .. } | Action::WaitCount { .. } | Action::Nop => None,
        }
    }
}
