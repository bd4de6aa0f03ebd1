//! What a rank sent and received, by phase. Always on: a few additions per message.

use std::fmt;

/// Parts of an operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[repr(usize)]
pub enum Phase {
    /// Boundaries of regions.
    Partition = 0,
    /// Sizes and states, so that everybody knows what to expect.
    Sizes,
    /// Picks to the owners of their regions; merges of gTopk and of recursive doubling.
    Reduce,
    /// The global threshold.
    Select,
    /// Spreading the selected entries evenly.
    Balance,
    /// The result to everybody.
    Gather,
    /// A dense allreduce.
    Dense,
}

/// All phases, in order.
pub const PHASES: [Phase; 7] = [
    Phase::Partition,
    Phase::Sizes,
    Phase::Reduce,
    Phase::Select,
    Phase::Balance,
    Phase::Gather,
    Phase::Dense,
];

impl Phase {
    /// As documents spell it.
    pub fn name(self) -> &'static str {
        match self {
            Phase::Partition => "partition",
            Phase::Sizes => "sizes",
            Phase::Reduce => "reduce",
            Phase::Select => "select",
            Phase::Balance => "balance",
            Phase::Gather => "gather",
            Phase::Dense => "dense",
        }
    }
}

/// Traffic of one rank in one phase. A word is 4 bytes; an f32 with a u32 index are two.
///
/// What ranks do themselves (messages) is what went over the wire. A collective counts as its lower
/// bound: a gather of blocks as everything that is not the rank's own, received and sent (a ring's
/// traffic); a sum of w words as 2w control words.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Traffic {
    /// Words of entries sent.
    pub data_words_sent: u64,
    /// Words of entries received.
    pub data_words_received: u64,
    /// Words of counts, sizes, boundaries and states sent.
    pub control_words: u64,
    /// Messages sent.
    pub messages: u64,
    /// Bytes sent, of data and control.
    pub bytes_sent: u64,
    /// Bytes of entries received.
    pub bytes_received: u64,
}

impl Traffic {
    /// Adds another's.
    pub fn add(&mut self, other: &Traffic) {
        self.data_words_sent += other.data_words_sent;
        self.data_words_received += other.data_words_received;
        self.control_words += other.control_words;
        self.messages += other.messages;
        self.bytes_sent += other.bytes_sent;
        self.bytes_received += other.bytes_received;
    }
}

/// `12 messages sent, of 4096 bytes; 8192 bytes of entries received`
impl fmt::Display for Traffic {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Traffic {
            messages,
            bytes_sent,
            bytes_received,
            ..
        } = self;
        write!(
            f,
            "{messages} messages sent, of {bytes_sent} bytes; {bytes_received} bytes of entries received"
        )
    }
}

/// Traffic of one rank by phase.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counters([Traffic; PHASES.len()]);

/// The traffic of all phases together, as [`Traffic`] says it.
impl fmt::Display for Counters {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.total().fmt(f)
    }
}

impl Counters {
    /// Of one phase.
    pub fn of(&self, phase: Phase) -> &Traffic {
        &self.0[phase as usize]
    }

    pub(super) fn of_mut(&mut self, phase: Phase) -> &mut Traffic {
        &mut self.0[phase as usize]
    }

    /// Of all phases.
    pub fn total(&self) -> Traffic {
        let mut total = Traffic::default();
        self.0.iter().for_each(|traffic| total.add(traffic));
        total
    }

    /// Adds another's, phase by phase.
    pub fn add(&mut self, other: &Counters) {
        for phase in PHASES {
            self.of_mut(phase).add(other.of(phase));
        }
    }

    /// Counts what a dense allreduce of `bytes` bytes over `ranks` ranks moves at least.
    pub fn add_dense(&mut self, bytes: u64, ranks: u64) {
        let moved = 2 * bytes * (ranks - 1) / ranks;
        self.of_mut(Phase::Dense).add(&Traffic {
            data_words_sent: moved.div_ceil(4),
            data_words_received: moved.div_ceil(4),
            messages: 2 * (ranks - 1),
            bytes_sent: moved,
            bytes_received: moved,
            ..Traffic::default()
        });
    }
}
