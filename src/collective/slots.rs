//! Run-time lengths: which slot means what, and their values from a caller's counts.

use super::Request;
use crate::error::{Error, Result};
use crate::limits;
use crate::schedule::{Buffer, BufferId, Builder, Extent, Range, Schedule, SlotId};
use crate::types::{Collective, Rank};

/// Values of the slots of a collective with a part of its own length for every rank. Slots `2 * r`
/// and `2 * r + 1`: offset and length of rank r's part in the buffer that has all parts, where they
/// lie one after another; slot `2 * ranks`: 0, where a part begins in a buffer of its own. All
/// ranks have equal values.
pub fn part_slots(counts: &[u64]) -> Vec<u64> {
    let mut slots = layout(counts);
    slots.push(0);
    slots
}

/// Values of the slots of an all-to-allv. Slots `2 * r` and `2 * r + 1`: offset and length in the
/// input of what goes to rank r. Slots `2 * (ranks + r)` and the next: offset and length in the
/// output of what comes from rank r. Slot `4 * ranks`: 0.
pub fn all_to_all_v_slots(send_counts: &[u64], receive_counts: &[u64]) -> Vec<u64> {
    let mut slots = layout(send_counts);
    slots.extend(layout(receive_counts));
    slots.push(0);
    slots
}

/// The most transfers of a group: their buffers have numbers of 16 bits, after those of the input
/// and the output.
const TRANSFERS_MAX: usize = u16::MAX as usize - 1;

// Two lists have a buffer for each rank.
const _: () = assert!(2 * limits::RANKS_MAX as usize <= TRANSFERS_MAX);

/// Values of the slots of a barrier: offset 0 and length 1 of the element that its messages carry.
pub const BARRIER_SLOTS: [u64; 2] = [0, 1];

/// Offsets and lengths of parts that lie one after another.
fn layout(counts: &[u64]) -> Vec<u64> {
    let mut offset = 0;
    let mut slots = Vec::with_capacity(2 * counts.len() + 1);
    for &count in counts {
        slots.extend([offset, count]);
        offset += count;
    }
    slots
}

/// Ranges of a collective with a part of its own length for every rank.
pub(super) struct Parts {
    first: SlotId,
    /// Where a part begins in a buffer of its own.
    origin: SlotId,
    /// The buffer that has all parts, and the one that has one.
    buffers: (BufferId, BufferId),
    /// This rank's part where it is alone; in place it lies among the others.
    pub own: Range,
}

impl Parts {
    /// A rank's part among all.
    pub fn among(&self, rank: Rank) -> Range {
        Range::new(self.buffers.0, pair(self.first, rank))
    }

    /// A rank's part in that rank's own buffer, which holds nothing else.
    pub fn alone(&self, rank: Rank) -> Range {
        Range::new(self.buffers.1, self.length(rank))
    }

    /// The beginning of a buffer, as long as a rank's part.
    pub fn length(&self, rank: Rank) -> Extent {
        Extent::Slots {
            offset: self.origin,
            length: self.first + 2 * rank + 1,
        }
    }
}

pub(super) fn parts(b: &mut Builder, request: &Request) -> Parts {
    let first = b.slots(2 * request.ranks + 1);
    let buffers = match request.collective {
        Collective::ScatterV | Collective::ReduceScatterV => (BufferId::INPUT, BufferId::OUTPUT),
        _ => (BufferId::OUTPUT, BufferId::INPUT),
    };
    let mut parts = Parts {
        first,
        origin: first + 2 * request.ranks,
        buffers,
        own: Range::new(buffers.0, pair(first, request.rank)),
    };
    if !request.is_aliased() {
        parts.own = parts.alone(request.rank);
    }
    parts
}

/// Ranges of an all-to-allv.
pub(super) struct Exchanged {
    send: SlotId,
    receive: SlotId,
}

impl Exchanged {
    pub fn sent(&self, to: Rank) -> Range {
        Range::new(BufferId::INPUT, pair(self.send, to))
    }

    pub fn received(&self, from: Rank) -> Range {
        Range::new(BufferId::OUTPUT, pair(self.receive, from))
    }
}

pub(super) fn exchanged(b: &mut Builder, request: &Request) -> Exchanged {
    let exchanged = Exchanged {
        send: b.slots(2 * request.ranks),
        receive: b.slots(2 * request.ranks),
    };
    b.slots(1);
    exchanged
}

fn pair(first: SlotId, rank: Rank) -> Extent {
    let offset = first + 2 * rank;
    Extent::Slots {
        offset,
        length: offset + 1,
    }
}

/// Which buffers of a call are lists: a segment for each rank, instead of one buffer in which the
/// parts of all ranks lie one after another.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Lists {
    /// The input.
    pub input: bool,
    /// The output.
    pub output: bool,
}

/// The schedule of a collective with a length per rank or pair, where buffers are lists. The
/// segments are the caller's buffers: first those of the input, then those of the output. Messages
/// stay the same, so other ranks need not have lists.
pub fn with_lists(mut schedule: Schedule, collective: Collective, lists: Lists) -> Schedule {
    let ranks = schedule.ranks;
    let is_exchange = collective == Collective::AllToAllV;
    let zero = if is_exchange { 4 * ranks } else { 2 * ranks };
    let mut segments = 0;
    let of = [
        (lists.input, BufferId::INPUT, 0),
        (
            lists.output,
            BufferId::OUTPUT,
            if is_exchange { 2 * ranks } else { 0 },
        ),
    ];
    for (_, buffer, first) in of.into_iter().filter(|(is_list, ..)| *is_list) {
        let known = schedule.buffers.len() as u16;
        let numbers = segments..segments + ranks;
        (schedule.buffers).extend(numbers.map(|number| Buffer::Caller(number as u16)));
        segments += ranks;
        for step in &mut schedule.steps {
            step.action.for_each_local_range_mut(|range| {
                if let (true, Extent::Slots { offset, length }) =
                    (range.buffer == buffer, range.extent)
                {
                    range.buffer = BufferId(known + ((offset - first) / 2) as u16);
                    range.extent = Extent::Slots {
                        offset: zero,
                        length,
                    };
                }
            });
        }
    }
    schedule
}

/// One send or receive of a group.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct TransferShape {
    /// The other side; may be this rank.
    pub peer: Rank,
    /// Whether this rank sends.
    pub is_send: bool,
}

/// Values of the slots of a group: slot 0 is 0, where every buffer begins; slot `1 + i` is the
/// length of transfer i.
pub fn transfer_slots(lengths: impl Iterator<Item = u64>) -> Vec<u64> {
    std::iter::once(0).chain(lengths).collect()
}

/// The schedule of one send or receive between this rank and a peer, which may be this rank; its
/// buffer is the caller's buffer 0 (see [`transfer_slots`]).
pub fn build_transfer(rank: Rank, ranks: u32, peer: Rank, is_send: bool) -> Schedule {
    let mut b = Builder::new("direct", rank, ranks, false);
    let (offset, length) = (b.slots(2), 1);
    let range = Range::new(b.caller(0), Extent::Slots { offset, length });
    match is_send {
        true => b.send(peer, range),
        false => b.recv(peer, range),
    };
    b.build()
}

/// The schedule of a group of sends and receives, which all proceed at once. Transfer i has the
/// caller's buffer i (see [`transfer_slots`] for its length). The n-th send to a rank meets that
/// rank's n-th receive from here; to this rank itself it is a copy.
///
/// Errors: a rank out of range, more than 65534 transfers, or unequal numbers of sends to and
/// receives from this rank itself.
pub fn build_send_recv(rank: Rank, ranks: u32, transfers: &[TransferShape]) -> Result<Schedule> {
    let n = transfers.len();
    if n > TRANSFERS_MAX {
        return Err(Error::invalid(format!(
            "a group of {n} transfers: at most {TRANSFERS_MAX} fit one group"
        )));
    }
    let mut b = Builder::new("direct", rank, ranks, false);
    let zero = b.slots(n as u32 + 1);
    let mut own: [Vec<Range>; 2] = [Vec::new(), Vec::new()];
    for (index, transfer) in transfers.iter().enumerate() {
        if transfer.peer >= ranks {
            let text = format!("transfer {index} names rank {} of {ranks}", transfer.peer);
            return Err(Error::invalid(text));
        }
        let buffer = b.caller(index as u16);
        let range = Range::new(
            buffer,
            Extent::Slots {
                offset: zero,
                length: 1 + index as SlotId,
            },
        );
        match (transfer.peer == rank, transfer.is_send) {
            (true, is_send) => own[usize::from(is_send)].push(range),
            (false, true) => {
                b.send(transfer.peer, range);
            }
            (false, false) => {
                b.recv(transfer.peer, range);
            }
        }
    }
    let [receives, sends] = own;
    if sends.len() != receives.len() {
        return Err(Error::invalid(format!(
            "rank {rank} sends to itself {} times and receives from itself {} times: each send needs a receive in the same group",
            sends.len(),
            receives.len()
        )));
    }
    for (send, receive) in sends.into_iter().zip(receives) {
        b.copy(send, receive);
    }
    Ok(b.build())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_most_ranks_have_slots_and_segments_of_their_own() {
        let ranks = limits::RANKS_MAX;
        let request = Request {
            collective: Collective::AllToAllV,
            rank: 0,
            ranks,
            root: 0,
            in_place: false,
            premultiply: false,
            hosts: vec![0; ranks as usize],
            maps_host: false,
            is_mapped: false,
        };
        let mut b = Builder::new("pairwise", 0, ranks, false);
        let exchanged = exchanged(&mut b, &request);
        let last = ranks - 1;
        b.send(last, exchanged.sent(last));
        b.recv(last, exchanged.received(last));
        let lists = Lists {
            input: true,
            output: true,
        };
        let schedule = with_lists(b.build(), Collective::AllToAllV, lists);
        assert_eq!(schedule.slots, 4 * ranks + 1);
        let mut found = Vec::new();
        for step in &schedule.steps {
            let action = &step.action;
            action.for_each_local_range(|range, _| {
                let buffer = &schedule.buffers[usize::from(range.buffer.0)];
                found.push((buffer.clone(), range.extent));
            });
        }
        let of = |number: u32, length| {
            let offset = 4 * ranks;
            (
                Buffer::Caller(number as u16),
                Extent::Slots { offset, length },
            )
        };
        let wanted = [of(last, 2 * ranks - 1), of(2 * ranks - 1, 4 * ranks - 1)];
        assert_eq!(found, wanted);
    }

    #[test]
    fn a_group_has_a_bounded_number_of_transfers() {
        let one = TransferShape {
            peer: 1,
            is_send: true,
        };
        let most = vec![one; TRANSFERS_MAX];
        let schedule = build_send_recv(0, 2, &most).unwrap();
        assert_eq!(schedule.steps.len(), TRANSFERS_MAX);
        let more = vec![one; TRANSFERS_MAX + 1];
        let text = build_send_recv(0, 2, &more).unwrap_err().to_string();
        assert!(text.contains("at most 65534"), "{text}");
    }
}
