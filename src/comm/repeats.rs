//! [`Repeats`]: calls that come again on the same memory, as the steps of a training do. Nothing of them has to be
//! checked or looked up again, which is half the instructions of a small operation.

use super::Buffer;
use super::call::Call;
use crate::engine::AtOnce;
use crate::memory::View;

/// Calls remembered: a barrier and the few that a small loop makes. A longer list would cost the others more than it
/// gains.
const REPEATS_MAX: usize = 4;

/// The latest calls that can run at once, latest first.
#[derive(Default)]
pub(crate) struct Repeats {
    known: Vec<Repeat>,
}

/// A call and how to run it. The views are compared only; whether they are still there is the caller's proof, who
/// holds the buffers.
struct Repeat {
    memory: [Option<View>; 2],
    algorithm: Option<String>,
    at_once: AtOnce,
}

impl Repeats {
    /// How to run this call on this memory, if it is known.
    #[inline]
    pub fn find(&mut self, call: &Call, memory: Memory<'_>) -> Option<&mut AtOnce> {
        let found = self.known.iter_mut().find(|known| {
            let arguments = &known.at_once.arguments;
            arguments.collective == call.collective
                && arguments.count == call.count
                && known.memory.each_ref().map(Option::as_ref) == memory
                && arguments.dtype == call.dtype
                && arguments.op == call.op
                && arguments.root == call.root
                && known.algorithm == call.algorithm
        });
        found.map(|known| &mut known.at_once)
    }

    /// Remembers a call instead of the one that was remembered first.
    pub fn remember(&mut self, call: &Call, memory: Memory<'_>, at_once: AtOnce) {
        self.known.truncate(REPEATS_MAX - 1);
        let repeat = Repeat {
            memory: memory.map(Option::<&View>::copied),
            algorithm: call.algorithm.clone(),
            at_once,
        };
        self.known.insert(0, repeat);
    }
}

/// The memory that a call names: input and output.
pub(super) type Memory<'a> = [Option<&'a View>; 2];

/// The memory of a call's buffers.
#[inline]
pub(super) fn memory_of(call: &Call) -> Memory<'_> {
    [&call.input, &call.output].map(|buffer| buffer.as_ref().map(Buffer::view_ref))
}
