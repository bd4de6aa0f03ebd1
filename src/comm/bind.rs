//! From a [`Call`] to what the engine runs: checks every length and finds out what is in place.

use super::buffer::Buffer;
use super::call::{Call, Transfer};
use super::plans::{Plan, Plans};
use crate::collective;
use crate::engine::{Arguments, TaskCall};
use crate::error::{Error, Result};
use crate::memory::View;
use crate::types::{Collective, Rank};
use std::any::Any;
use std::borrow::Cow;
use std::sync::Arc;

/// A call with its schedule and its memory, all still the caller's.
pub(super) struct Bound<'a> {
    pub arguments: Arguments,
    pub plan: &'a Plan,
    pub slots: Cow<'static, [u64]>,
    pub others: Vec<View>,
}

impl Bound<'_> {
    /// With a share of everything that must outlive the call.
    pub fn keep(self, call: &Call) -> TaskCall {
        let owner = |buffer: &Buffer| buffer.owner().clone() as Arc<dyn Any + Send + Sync>;
        TaskCall {
            arguments: self.arguments,
            prepared: self.plan.prepared.clone(),
            fallback: self.plan.fallback.clone(),
            slots: self.slots,
            others: self.others,
            keep: [
                call.input.as_ref().map(owner),
                call.output.as_ref().map(owner),
            ],
            keep_others: call.transfers.iter().map(|t| owner(&t.buffer)).collect(),
        }
    }
}

/// Finds the schedule and the memory of a call.
pub(super) fn bind<'a>(
    call: &Call,
    plans: &'a mut Plans,
    rank: Rank,
    ranks: u32,
) -> Result<Bound<'a>> {
    check_arguments(call, ranks)?;
    if call.collective == Collective::SendRecv {
        return bind_transfers(call, plans, rank);
    }
    let lengths = Lengths::of(call, rank, ranks)?;
    let input = window_of(call, "input", call.input.as_ref(), lengths.input)?;
    let output = window_of(call, "output", call.output.as_ref(), lengths.output)?;
    let in_place = find_in_place(call, rank, &lengths)?;
    let slots = match call.collective {
        Collective::AllGatherV => collective::all_gather_v_slots(&call.receive_counts).into(),
        Collective::AllToAllV => {
            collective::all_to_all_v_slots(&call.send_counts, &call.receive_counts).into()
        }
        Collective::Barrier => Cow::Borrowed(collective::BARRIER_SLOTS.as_slice()),
        _ => Cow::Borrowed(&[][..]),
    };
    let count = match call.collective {
        Collective::AllGatherV => call.receive_counts.iter().sum(),
        Collective::AllToAllV => 0,
        _ => call.count,
    };
    let arguments = arguments(call, count, input, output);
    Ok(Bound {
        arguments,
        plan: plans.plan(call, in_place)?,
        slots,
        others: Vec::new(),
    })
}

fn bind_transfers<'a>(call: &Call, plans: &'a mut Plans, rank: Rank) -> Result<Bound<'a>> {
    let element = call.dtype.size_bytes();
    let mut others = Vec::with_capacity(call.transfers.len());
    for (index, transfer) in call.transfers.iter().enumerate() {
        let bytes = transfer.buffer.len_bytes();
        if bytes % element != 0 {
            return Err(Error::invalid(format!(
                "transfer {index} has {bytes} bytes, which is no whole number of {}",
                call.dtype
            )));
        }
        others.push(transfer.buffer.view());
    }
    let plan = plans.plan_transfers(call)?;
    check_own_transfers(call, rank)?;
    let lengths = others
        .iter()
        .map(|view| (view.len_bytes() / element) as u64);
    let slots = collective::transfer_slots(lengths);
    Ok(Bound {
        arguments: arguments(call, call.count, View::empty(), View::empty()),
        plan,
        slots: slots.into(),
        others,
    })
}

/// What a rank sends to itself is copied from one buffer to the other, so their lengths must be equal.
fn check_own_transfers(call: &Call, rank: Rank) -> Result<()> {
    let own = |is_send| {
        let of_kind = move |t: &&Transfer| t.peer == rank && t.is_send == is_send;
        call.transfers.iter().filter(of_kind)
    };
    for (number, (send, receive)) in own(true).zip(own(false)).enumerate() {
        let (sent, wanted) = (send.buffer.len_bytes(), receive.buffer.len_bytes());
        if sent != wanted {
            return Err(Error::invalid(format!(
                "rank {rank} sends {sent} bytes to itself and receives {wanted} (transfer {number} of those): give both the same length"
            )));
        }
    }
    Ok(())
}

fn arguments(call: &Call, count: u64, input: View, output: View) -> Arguments {
    Arguments {
        collective: call.collective,
        count,
        dtype: call.dtype,
        op: call.op,
        root: call.root,
        input,
        output,
    }
}

fn check_arguments(call: &Call, ranks: u32) -> Result<()> {
    if call.root >= ranks {
        return Err(Error::invalid(format!(
            "root {} of {ranks} ranks: roots are below {ranks}",
            call.root
        )));
    }
    if call.collective.is_reducing() && !call.op.is_defined_for(call.dtype) {
        return Err(Error::invalid(format!(
            "{} is not defined for {}: premultiplied sums are for floats, bitand for integers",
            call.op, call.dtype
        )));
    }
    Ok(())
}

/// Elements that a call reads and writes on this rank.
struct Lengths {
    input: u64,
    output: u64,
    /// Where this rank's part begins in the larger of the two, in elements.
    own_part: u64,
}

impl Lengths {
    fn of(call: &Call, rank: Rank, ranks: u32) -> Result<Lengths> {
        let (count, p) = (call.count, u64::from(ranks));
        let all = count
            .checked_mul(p)
            .ok_or_else(|| Error::invalid(format!("{count} elements on {ranks} ranks")))?;
        let at_root = |elements| if rank == call.root { elements } else { 0 };
        let (input, output) = match call.collective {
            Collective::AllReduce => (count, count),
            Collective::Broadcast => (at_root(count), count),
            Collective::Reduce => (count, at_root(count)),
            Collective::ReduceScatter => (all, count),
            Collective::AllGather => (count, all),
            Collective::Gather => (count, at_root(all)),
            Collective::Scatter => (at_root(all), count),
            Collective::AllToAll => (all, all),
            Collective::AllGatherV => {
                let counts = counted(call, "receive_counts", &call.receive_counts, ranks)?;
                (call.receive_counts[rank as usize], counts)
            }
            Collective::AllToAllV => (
                counted(call, "send_counts", &call.send_counts, ranks)?,
                counted(call, "receive_counts", &call.receive_counts, ranks)?,
            ),
            Collective::Barrier | Collective::SendRecv => (0, 0),
        };
        let own_part = match call.collective {
            Collective::AllGatherV => call.receive_counts[..rank as usize].iter().sum(),
            _ => u64::from(rank) * count,
        };
        Ok(Lengths {
            input,
            output,
            own_part,
        })
    }
}

fn counted(call: &Call, name: &str, counts: &[u64], ranks: u32) -> Result<u64> {
    if counts.len() != ranks as usize {
        return Err(Error::invalid(format!(
            "{} has {} {name} for {ranks} ranks: one for each",
            call.collective,
            counts.len()
        )));
    }
    let sum = counts
        .iter()
        .try_fold(0u64, |sum, &count| sum.checked_add(count));
    sum.ok_or_else(|| {
        Error::invalid(format!(
            "the {name} of {} are more than 2^64",
            call.collective
        ))
    })
}

/// The part of a buffer that the call uses.
fn window_of(call: &Call, name: &str, buffer: Option<&Buffer>, elements: u64) -> Result<View> {
    let bytes = elements
        .checked_mul(call.dtype.size_bytes() as u64)
        .filter(|&b| b <= isize::MAX as u64);
    let (Some(bytes), given) = (bytes, buffer.map_or(0, Buffer::len_bytes)) else {
        return Err(Error::invalid(format!(
            "{elements} elements of {} do not fit an address space",
            call.dtype
        )));
    };
    // The root of a broadcast may give its data as the output alone, as in MPI.
    if call.collective == Collective::Broadcast && name == "input" && buffer.is_none() {
        return window_of(call, "output", call.output.as_ref(), elements);
    }
    if given < bytes as usize {
        return Err(Error::invalid(format!(
            "the {name} of {} of {} {} has {given} bytes on this rank, {bytes} are needed",
            call.collective, call.count, call.dtype
        )));
    }
    Ok(buffer.map_or(View::empty(), |buffer| {
        buffer.view().part(0, bytes as usize)
    }))
}

/// Whether input and output are the same memory, as the collective defines it. Any other overlap is an error.
fn find_in_place(call: &Call, rank: Rank, lengths: &Lengths) -> Result<bool> {
    let (Some(input), Some(output)) = (&call.input, &call.output) else {
        return Ok(call.collective == Collective::Broadcast
            && call.input.is_none()
            && rank == call.root);
    };
    if lengths.input == 0 || lengths.output == 0 {
        return Ok(false);
    }
    let Some(distance) = input.distance_to(output) else {
        return Ok(false);
    };
    let element = call.dtype.size_bytes() as isize;
    let part = lengths.own_part as isize * element;
    let wanted = match call.collective {
        Collective::AllGather | Collective::Gather | Collective::AllGatherV => -part,
        Collective::ReduceScatter | Collective::Scatter => part,
        _ => 0,
    };
    if distance == wanted {
        return Ok(true);
    }
    let (input_bytes, output_bytes) = (
        lengths.input as isize * element,
        lengths.output as isize * element,
    );
    if distance < input_bytes && -distance < output_bytes {
        return Err(Error::invalid(format!(
            "input and output of {} overlap at a distance of {distance} bytes: in place it is {wanted}, else they must be apart",
            call.collective
        )));
    }
    Ok(false)
}

/// An in-place call on memory that no [`Buffer`] owns.
pub(super) fn bind_view<'a>(call: &Call, plans: &'a mut Plans, view: View) -> Result<Bound<'a>> {
    if !call.op.is_defined_for(call.dtype) {
        return Err(Error::invalid(format!(
            "{} is not defined for {}",
            call.op, call.dtype
        )));
    }
    Ok(Bound {
        arguments: arguments(call, call.count, view, view),
        plan: plans.plan(call, true)?,
        slots: Cow::Borrowed(&[]),
        others: Vec::new(),
    })
}
