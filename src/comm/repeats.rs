//! [`Repeats`]: blocking calls that come again on the same memory, as those of training steps do.
//! Such a call is not checked or looked up again.

use super::call::Call;
use super::check::{Checked, Uses};
use super::raw::RawBuffer;
use crate::engine::AtOnce;
use crate::memory::View;

/// How many calls are remembered: a barrier and the few calls of a small loop. A longer list would
/// cost all other calls more time than it saves.
const REPEATS_MAX: usize = 4;

/// The latest calls that can run at once, latest first.
#[derive(Default)]
pub(crate) struct Repeats {
    known: Vec<Repeat>,
}

/// A call and how to run it. The views are only compared, never used. A caller with equal views
/// holds the buffers, so the memory is there.
pub(super) struct Repeat {
    memory: [Option<View>; 2],
    algorithm: Option<String>,
    /// The bytes of its memory that it uses.
    pub uses: Uses,
    /// How many of them are not registered.
    pub unregistered_bytes: u64,
    pub at_once: AtOnce,
}

impl Repeats {
    /// How to run this call on this memory, if it has been remembered.
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

    /// Remembers a call. If the list is full, it forgets the oldest one.
    pub fn remember(&mut self, call: &Call<'_>, checked: &Checked, at_once: AtOnce) {
        self.known.truncate(REPEATS_MAX - 1);
        let repeat = Repeat {
            memory: memory_of(call).map(Option::<&View>::copied),
            algorithm: call.algorithm.map(String::from),
            uses: checked.uses.clone(),
            unregistered_bytes: checked.unregistered_bytes,
            at_once,
        };
        self.known.insert(0, repeat);
    }
}

/// The memory of a call's input and output.
#[inline]
fn memory_of<'a>(call: &Call<'a>) -> [Option<&'a View>; 2] {
    [call.input, call.output].map(|buffer| buffer.map(RawBuffer::view_ref))
}
