//! The third step of a call: it borrows the call's memory, keeps it for as long as the engine uses
//! it, and fills the slots of the schedule.

use super::call::Call;
use super::check::{Checked, Uses};
use super::plans::Plan;
use super::raw::{RawBuffer, Use};
use crate::collective;
use crate::engine::{Arguments, TaskCall};
use crate::error::{Error, Result};
use crate::memory::{Access, Held, Kept};
use crate::types::Collective;
use std::borrow::Cow;

/// The borrows of a call's input and output.
pub(super) type HeldBoth<'a> = [Option<Held<'a>>; 2];

/// The call's arguments for the engine.
pub(super) fn arguments(call: &Call<'_>, checked: &Checked) -> Arguments {
    Arguments {
        collective: call.collective,
        count: match call.collective {
            of if of.has_part_lengths() => call.receive_counts.iter().sum(),
            Collective::AllToAllV => 0,
            _ => call.count,
        },
        dtype: call.dtype,
        op: call.op,
        root: call.root,
        input: checked.input,
        output: checked.output,
    }
}

/// The lengths and offsets that the call's schedule leaves open.
pub(super) fn slots(call: &Call<'_>) -> Cow<'static, [u64]> {
    match call.collective {
        of if of.has_part_lengths() => collective::part_slots(call.receive_counts).into(),
        Collective::AllToAllV => {
            collective::all_to_all_v_slots(call.send_counts, call.receive_counts).into()
        }
        Collective::SendRecv => {
            let element = call.dtype.size_bytes();
            let of = |buffer: &RawBuffer| (buffer.len_bytes() / element) as u64;
            collective::transfer_slots(call.transfers.iter().map(|t| of(&t.buffer))).into()
        }
        Collective::Barrier => Cow::Borrowed(collective::BARRIER_SLOTS.as_slice()),
        _ => Cow::Borrowed(&[]),
    }
}

/// The call with its schedule, and with a share of everything that must live until the engine is
/// done with it. The caller has borrowed input and output already.
pub(super) fn bind(
    call: &Call<'_>,
    plan: Plan,
    (arguments, slots): (Arguments, Cow<'static, [u64]>),
    [input, output]: HeldBoth<'_>,
) -> Result<TaskCall> {
    let keep_others = keep_transfers(call)?;
    Ok(TaskCall {
        arguments,
        prepared: plan.prepared,
        fallback: plan.fallback,
        slots,
        timeout: call.timeout,
        others: call.transfers.iter().map(|t| t.buffer.view()).collect(),
        keep: [
            call.input.and_then(|buffer| buffer.keep(input)),
            call.output.and_then(|buffer| buffer.keep(output)),
        ],
        keep_others,
        at_end: None,
    })
}

/// Borrows and keeps the buffers of a group's transfers.
fn keep_transfers(call: &Call<'_>) -> Result<Vec<Kept>> {
    let mut kept = Vec::with_capacity(call.transfers.len());
    for transfer in call.transfers {
        let buffer = &transfer.buffer;
        let access = match transfer.is_send {
            true => Access::Shared,
            false => Access::Exclusive,
        };
        let all = buffer.part_used(buffer.len_bytes(), access);
        match borrow_one(call, Some(buffer), Some(&all)) {
            Ok(held) => kept.extend(buffer.keep(held)),
            Err(error) => {
                // Nothing has been started, so the borrows taken above simply end.
                kept.into_iter().for_each(Kept::end);
                return Err(error);
            }
        }
    }
    Ok(kept)
}

/// Borrows the bytes of input and output that the call uses, if [`Call::borrows`] says so.
#[inline]
pub(super) fn borrow<'a>(call: &Call<'a>, uses: &Uses) -> Result<HeldBoth<'a>> {
    let input = borrow_one(call, call.input, uses[0].as_ref())?;
    let output = borrow_one(call, call.output, uses[1].as_ref())?;
    Ok([input, output])
}

/// Marks the borrows of a call that has failed for `reason` without becoming a task: peers may
/// still reach its memory.
#[cold]
pub(super) fn fail(call: &Call<'_>, held: HeldBoth<'_>, reason: &Error) {
    for (buffer, held) in [call.input, call.output].into_iter().zip(held) {
        // A call in place has one borrow for both.
        if let Some(held) = held.filter(|_| buffer.is_some_and(RawBuffer::is_reachable)) {
            held.fail(reason);
        }
    }
}

#[inline]
fn borrow_one<'a>(
    call: &Call<'_>,
    buffer: Option<&'a RawBuffer>,
    used: Option<&Use>,
) -> Result<Option<Held<'a>>> {
    match (buffer, used) {
        (Some(buffer), Some(used)) if call.borrows => buffer.borrow(used, call.collective.name()),
        _ => Ok(None),
    }
}
