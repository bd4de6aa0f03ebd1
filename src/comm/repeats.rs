//! [`Repeats`]: calls that come again on the same memory, as the steps of a training do. Nothing of them has to be
//! checked or looked up again, which is a third of the instructions of a small operation.

use super::bind::Bound;
use super::call::Call;
use super::plans::Plan;
use crate::engine::Arguments;
use crate::memory::View;
use std::borrow::Cow;

/// Calls remembered: a barrier and the few that a small loop makes. A longer list would cost the others more than it
/// gains.
const REPEATS_MAX: usize = 4;

/// The latest calls, latest first. Those with lengths per rank and groups of transfers are not among them.
#[derive(Default)]
pub(super) struct Repeats {
    known: Vec<Repeat>,
}

/// A call and what it was bound to. The views are compared only; whether they are still there is the caller's proof,
/// who holds the buffers.
struct Repeat {
    input: Option<View>,
    output: Option<View>,
    algorithm: Option<String>,
    arguments: Arguments,
    plan: Plan,
    slots: &'static [u64],
}

impl Repeats {
    /// Where the same call stands, if it is known.
    pub fn find(&self, call: &Call) -> Option<usize> {
        let (input, output) = views(call);
        let place = self.known.iter().position(|known| {
            let arguments = &known.arguments;
            (arguments.collective, arguments.count) == (call.collective, call.count)
                && (known.input, known.output) == (input, output)
                && (arguments.dtype, arguments.op, arguments.root)
                    == (call.dtype, call.op, call.root)
                && known.algorithm == call.algorithm
        })?;
        Some(place)
    }

    /// The call that stands there.
    pub fn bound(&self, place: usize) -> Bound<'_> {
        let known = &self.known[place];
        Bound {
            arguments: known.arguments,
            plan: &known.plan,
            slots: Cow::Borrowed(known.slots),
            others: Vec::new(),
        }
    }

    /// Remembers a call instead of the one that was remembered first.
    pub fn remember(
        &mut self,
        call: &Call,
        arguments: Arguments,
        plan: Plan,
        slots: &'static [u64],
    ) -> Bound<'_> {
        let (input, output) = views(call);
        self.known.truncate(REPEATS_MAX - 1);
        let repeat = Repeat {
            input,
            output,
            algorithm: call.algorithm.clone(),
            arguments,
            plan,
            slots,
        };
        self.known.insert(0, repeat);
        self.bound(0)
    }
}

fn views(call: &Call) -> (Option<View>, Option<View>) {
    let view = |buffer: &Option<super::Buffer>| buffer.as_ref().map(super::Buffer::view);
    (view(&call.input), view(&call.output))
}
