//! [`Repeats`]: calls that come again on the same memory, as the steps of a training do. Nothing of
//! them has to be checked or looked up again, which is half the instructions of a small operation.

use super::call::Call;
use super::check::Uses;
use super::raw::RawBuffer;
use crate::engine::AtOnce;
use crate::memory::View;

/// Calls remembered: a barrier and the few that a small loop makes. A longer list would cost the
/// others more than it gains.
const REPEATS_MAX: usize = 4;

/// The latest calls that can run at once, latest first.
#[derive(Default)]
pub(crate) struct Repeats {
    known: Vec<Repeat>,
}

/// A call and how to run it. The views are compared only; whether they are still there is the
/// caller's proof, who holds the buffers.
pub(super) struct Repeat {
    memory: [Option<View>; 2],
    algorithm: Option<String>,
    /// What it uses of its memory.
    pub uses: Uses,
    pub at_once: AtOnce,
}

impl Repeats {
    /// How to run this call on this memory, if it is known.
    #[inline]
    pub fn find(&mut self, call: &Call<'_>) -> Option<&mut Repeat> {
        let memory = memory_of(call);
        self.known.iter_mut().find(|known| {
            let arguments = &known.at_once.arguments;
            arguments.collective == call.collective
                && arguments.count == call.count
                && known.memory.each_ref().map(Option::as_ref) == memory
                && arguments.dtype == call.dtype
                && arguments.op == call.op
                && arguments.root == call.root
                && known.algorithm.as_deref() == call.algorithm
        })
    }

    /// Remembers a call instead of the one that was remembered first.
    pub fn remember(&mut self, call: &Call<'_>, uses: Uses, at_once: AtOnce) {
        self.known.truncate(REPEATS_MAX - 1);
        let repeat = Repeat {
            memory: memory_of(call).map(Option::<&View>::copied),
            algorithm: call.algorithm.map(String::from),
            uses,
            at_once,
        };
        self.known.insert(0, repeat);
    }
}

/// Where a call's input and output lie.
#[inline]
fn memory_of<'a>(call: &Call<'a>) -> [Option<&'a View>; 2] {
    [call.input, call.output].map(|buffer| buffer.map(RawBuffer::view_ref))
}
