//! The first step of a call: [`check`] compares its lengths with its buffers and finds whether it
//! is in place.

use super::call::{Call, Transfer};
use super::raw::{RawBuffer, Use};
use crate::collective::Lists;
use crate::error::{Error, Result};
use crate::memory::{Access, View};
use crate::types::{Collective, Rank};

/// The bytes of input and output that a call uses.
pub(super) type Uses = [Option<Use>; 2];

/// What [`check`] finds out about the memory of a valid call.
pub(super) struct Checked {
    /// The parts of input and output that the call uses; empty if this rank has none.
    pub input: View,
    pub output: View,
    /// Whether input and output are the same memory, as the in-place form of the collective defines
    /// it.
    pub in_place: bool,
    pub uses: Uses,
    /// How many bytes of these are not registered.
    pub unregistered_bytes: u64,
}

/// Checks the arguments of a call on rank `rank` of `ranks` ranks.
pub(super) fn check(call: &Call<'_>, rank: Rank, ranks: u32) -> Result<Checked> {
    check_arguments(call, ranks)?;
    if call.collective == Collective::SendRecv {
        check_own_transfers(call, rank)?;
    }
    let mut lengths = Lengths::of(call, rank, ranks)?;
    let lists = call.lists();
    if lists != Lists::default() {
        check_segments(call, rank, ranks, &mut lengths, lists)?;
    }
    let input = window_of(call, "input", call.input, lengths.input)?;
    let output = window_of(call, "output", call.output, lengths.output)?;
    let in_place = find_in_place(call, rank, &lengths)?;
    let uses = uses_of(call, &lengths, in_place);
    Ok(Checked {
        input,
        output,
        in_place,
        unregistered_bytes: unregistered_bytes(call, &uses, in_place),
        uses,
    })
}

/// How many elements a call reads and writes on rank `rank` of `ranks` ranks.
#[inline]
pub(super) fn lengths_of(call: &Call<'_>, rank: Rank, ranks: u32) -> Result<[u64; 2]> {
    let lengths = Lengths::of(call, rank, ranks)?;
    Ok([lengths.input, lengths.output])
}

/// How many of the bytes that a call uses are not registered.
fn unregistered_bytes(call: &Call<'_>, uses: &Uses, is_in_place: bool) -> u64 {
    let of = |buffer: &RawBuffer, bytes: usize| match buffer.is_registered() {
        true => 0,
        false => bytes as u64,
    };
    let both = [call.input, call.output].into_iter().zip(uses);
    let both = both.filter_map(|(buffer, used)| Some(of(buffer?, used.as_ref()?.len())));
    // Input and output in place share their bytes.
    let of_both: u64 = match is_in_place {
        true => both.max().unwrap_or(0),
        false => both.sum(),
    };
    let transfers = call.transfers.iter();
    let of_transfers: u64 = (transfers.map(|t| of(&t.buffer, t.buffer.len_bytes()))).sum();
    of_both + of_transfers
}

/// What a rank sends to itself is copied from one buffer to another, so both must have one length.
fn check_own_transfers(call: &Call<'_>, rank: Rank) -> Result<()> {
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

/// Checks lists, which take the place of input and output. Each has a segment for each rank, as
/// long as its counts say.
fn check_segments(
    call: &Call<'_>,
    rank: Rank,
    ranks: u32,
    lengths: &mut Lengths,
    lists: Lists,
) -> Result<()> {
    let element = call.dtype.size_bytes();
    for (is_list, is_send, name) in [
        (lists.input, true, "input"),
        (lists.output, false, "output"),
    ] {
        if !is_list {
            continue;
        }
        let counts = match (call.collective, is_send) {
            (Collective::AllToAllV, true) => call.send_counts,
            _ => call.receive_counts,
        };
        let has_list = match call.collective {
            Collective::AllToAllV => true,
            Collective::AllGatherV => !is_send,
            Collective::GatherV => !is_send && rank == call.root,
            Collective::ScatterV => is_send && rank == call.root,
            Collective::ReduceScatterV => is_send,
            _ => false,
        };
        if !has_list {
            return Err(Error::invalid(format!(
                "the {name} of {} is a list on rank {rank}: lists are outputs of all-gatherv and of the root of gatherv, inputs of reduce-scatterv and of the root of scatterv, and both of all-to-allv",
                call.collective
            )));
        }
        let segments = call.transfers.iter().filter(|t| t.is_send == is_send);
        let bytes: Vec<usize> = segments.map(|t| t.buffer.len_bytes()).collect();
        if bytes.len() != ranks as usize {
            return Err(Error::invalid(format!(
                "the {name} of {} has {} segments for {ranks} ranks: one for each",
                call.collective,
                bytes.len()
            )));
        }
        for (of, (&bytes, &count)) in bytes.iter().zip(counts).enumerate() {
            if bytes as u64 != count.saturating_mul(element as u64) {
                return Err(Error::invalid(format!(
                    "segment {of} of the {name} of {} has {bytes} bytes, and its count is {count} {}",
                    call.collective, call.dtype
                )));
            }
        }
        match is_send {
            true => lengths.input = 0,
            false => lengths.output = 0,
        }
    }
    Ok(())
}

/// The ranges that a call uses, each with its access. In place, input and output in one allocation
/// are one exclusive range.
fn uses_of(call: &Call<'_>, lengths: &Lengths, is_in_place: bool) -> Uses {
    let size = call.dtype.size_bytes();
    let used = |buffer: Option<&RawBuffer>, elements: u64, access| {
        let bytes = elements as usize * size;
        buffer
            .filter(|_| bytes > 0)
            .map(|buffer| buffer.part_used(bytes, access))
    };
    let output = used(call.output, lengths.output, Access::Exclusive);
    if !is_in_place {
        return [used(call.input, lengths.input, Access::Shared), output];
    }
    let input = used(call.input, lengths.input, Access::Exclusive);
    match (input, output, call.input, call.output) {
        (Some(input), Some(output), Some(of_input), Some(of_output))
            if of_input.has_owner_of(of_output) =>
        {
            [None, Some(input.union(&output))]
        }
        (input, output, _, _) => [input, output],
    }
}

fn check_arguments(call: &Call<'_>, ranks: u32) -> Result<()> {
    if call.root >= ranks {
        return Err(Error::invalid(format!(
            "root {} of {ranks} ranks: roots are below {ranks}",
            call.root
        )));
    }
    if call.collective.is_reducing() {
        (call.op.check_defined_for(call.dtype)).map_err(Error::invalid)?;
    }
    Ok(())
}

/// How many elements a call reads and writes on this rank.
struct Lengths {
    input: u64,
    output: u64,
    /// Where this rank's block begins in the longer of input and output, in elements.
    own_part: u64,
}

impl Lengths {
    #[inline]
    fn of(call: &Call<'_>, rank: Rank, ranks: u32) -> Result<Lengths> {
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
            of if of.has_part_lengths() => {
                let sum = counted(call, "receive_counts", call.receive_counts, ranks)?;
                let own = call.receive_counts[rank as usize];
                match of {
                    Collective::AllGatherV => (own, sum),
                    Collective::GatherV => (own, at_root(sum)),
                    Collective::ScatterV => (at_root(sum), own),
                    _ => (sum, own),
                }
            }
            Collective::AllToAllV => (
                counted(call, "send_counts", call.send_counts, ranks)?,
                counted(call, "receive_counts", call.receive_counts, ranks)?,
            ),
            _ => (0, 0),
        };
        let own_part = match call.collective {
            of if of.has_part_lengths() => call.receive_counts[..rank as usize].iter().sum(),
            _ => u64::from(rank) * count,
        };
        Ok(Lengths {
            input,
            output,
            own_part,
        })
    }
}

fn counted(call: &Call<'_>, name: &str, counts: &[u64], ranks: u32) -> Result<u64> {
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
fn window_of(
    call: &Call<'_>,
    name: &str,
    buffer: Option<&RawBuffer>,
    elements: u64,
) -> Result<View> {
    let bytes = elements
        .checked_mul(call.dtype.size_bytes() as u64)
        .filter(|&b| b <= isize::MAX as u64);
    let (Some(bytes), given) = (bytes, buffer.map_or(0, RawBuffer::len_bytes)) else {
        return Err(Error::invalid(format!(
            "{elements} elements of {} do not fit an address space",
            call.dtype
        )));
    };
    // The root of a broadcast may give its data as the output alone, as in MPI.
    if call.collective == Collective::Broadcast && name == "input" && buffer.is_none() {
        return window_of(call, "output", call.output, elements);
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

/// Whether input and output are the same memory, as the in-place form of the collective defines it.
/// Any other overlap is an error.
fn find_in_place(call: &Call<'_>, rank: Rank, lengths: &Lengths) -> Result<bool> {
    let (Some(input), Some(output)) = (call.input, call.output) else {
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
        Collective::AllGather
        | Collective::Gather
        | Collective::AllGatherV
        | Collective::GatherV => -part,
        Collective::ReduceScatter
        | Collective::Scatter
        | Collective::ReduceScatterV
        | Collective::ScatterV => part,
        _ => 0,
    };
    let has_form = call.collective != Collective::AllToAllV;
    if distance == wanted && has_form {
        return Ok(true);
    }
    let (input_bytes, output_bytes) = (
        lengths.input as isize * element,
        lengths.output as isize * element,
    );
    if distance < input_bytes && -distance < output_bytes {
        if !has_form {
            return Err(Error::invalid(format!(
                "input and output of all-to-allv overlap at a distance of {distance} bytes: it has no in-place form, since \
                 parts that arrive would lie on parts that are still to be sent; give it an output of its own and copy \
                 that back"
            )));
        }
        return Err(Error::invalid(format!(
            "input and output of {} overlap at a distance of {distance} bytes: in place it is {wanted}, else they must be apart",
            call.collective
        )));
    }
    Ok(false)
}

#[cfg(test)]
mod tests {
    use crate::comm::Communicator;
    use crate::config::Config;

    #[test]
    fn an_all_to_allv_whose_buffers_overlap_is_refused_with_what_to_do() {
        let job = format!("in-place-v-{}", std::process::id());
        let comm = Communicator::join(0, 1, &job, Config::default()).unwrap();
        let buffer = comm.alloc::<u32>(16).unwrap();
        buffer.as_mut_slice().unwrap().fill(7);
        let output = buffer.range(..4);
        let part = |at: usize| comm.all_to_all_v(&buffer.range(at..at + 4), &[4], &output, &[4]);
        for at in [0, 1, 3] {
            let error = part(at).unwrap_err().to_string();
            let distance = format!("distance of -{} bytes", 4 * at).replace("-0", "0");
            assert!(error.contains(&distance), "{error}");
            assert!(error.contains("no in-place form"), "{error}");
            assert!(error.contains("give it an output of its own"), "{error}");
        }
        // Ranges that lie beside each other do not overlap.
        part(4).unwrap();
        let output = comm.alloc(4).unwrap();
        comm.all_to_all_v(&buffer.range(..4), &[4], &output, &[4])
            .unwrap();
        assert_eq!(*output.as_slice().unwrap(), [7; 4]);
    }
}
