//! Entries in messages: indices, then values. What comes from a peer is checked before it is used.

use super::entries::{Arrival, Pack};
use super::format::BLOCK;
use super::message::Message;
use super::spare::Spare;
use super::stream::Stream;
use crate::kernel;

/// Entries that are converted at a time; they stay in the first-level cache.
pub(super) const BATCH: usize = 512;

/// Entries as a message, which is written where it is sent from if there is room.
pub(super) fn encode(indices: &[u64], values: &[f32], pack: Pack, spare: &Spare) -> Message {
    let bytes = pack.bytes(indices.len() as u64) as usize;
    let Some(place) = spare.outbox(bytes) else {
        let mut data = spare.bytes(bytes);
        data.clear();
        write(indices, values, pack, |part| data.extend_from_slice(part));
        return Message::of(data);
    };
    let (view, mut at) = (place.view(), 0);
    write(indices, values, pack, |part| {
        kernel::write(view, at, part);
        at += part.len();
    });
    Message::lying(place)
}

fn write(indices: &[u64], values: &[f32], pack: Pack, mut put: impl FnMut(&[u8])) {
    match pack.is_wide {
        true => put(bytemuck::cast_slice(indices)),
        false => {
            let mut narrow = [0u32; BATCH];
            for batch in indices.chunks(BATCH) {
                // Options are checked: every index fits.
                (narrow.iter_mut().zip(batch)).for_each(|(to, index)| *to = *index as u32);
                put(bytemuck::cast_slice(&narrow[..batch.len()]));
            }
        }
    }
    pack.values.encode(values, &mut put);
}

/// Appends what has come, unless something is wrong with it.
pub(super) fn decode_onto(stream: &mut Stream, arrival: Arrival) -> Result<(), String> {
    let Arrival {
        message,
        count,
        pack,
        range,
    } = arrival;
    check_length(message, pack.bytes(count))?;
    let first = stream.indices.len();
    let (mut falls, mut batch) = (0, [0u64; BATCH]);
    for start in (0..count as usize).step_by(BATCH) {
        let part = &mut batch[..BATCH.min(count as usize - start)];
        read_indices(arrival, start, part);
        let last = stream.indices[first..].last();
        falls += falls_of(part) + usize::from(last.is_some_and(|last| *last >= part[0]));
        stream.indices.extend_from_slice(part);
    }
    let checked = check_ends(&stream.indices[first..], range).and(match falls {
        0 => Ok(()),
        falls => Err(format!(
            "{falls} of {count} entries have an index that is not above the one before"
        )),
    });
    if let Err(cause) = checked {
        stream.indices.truncate(first);
        return Err(cause);
    }
    let start = indices_bytes(count as usize, pack);
    decode_values(message, (start, count as usize), pack, &mut stream.values);
    Ok(())
}

/// Entries that have come, a batch after the other, each checked when it is read.
pub(super) struct Incoming<'a> {
    arrival: Arrival<'a>,
    /// Entries that have been read, up to the end of this batch.
    read: usize,
    /// Entries of this batch that are done.
    done: usize,
    indices: [u64; Incoming::BATCH],
    values: Vec<f32>,
}

impl<'a> Incoming<'a> {
    /// Entries of a batch: few, because a batch of each peer is held beside a window of sums.
    const BATCH: usize = 256;

    pub fn new(arrival: Arrival<'a>) -> Result<Incoming<'a>, String> {
        check_length(arrival.message, arrival.pack.bytes(arrival.count))?;
        let mut incoming = Incoming {
            arrival,
            read: 0,
            done: 0,
            indices: [0; Incoming::BATCH],
            values: Vec::with_capacity(Incoming::BATCH),
        };
        incoming.refill()?;
        Ok(incoming)
    }

    /// The entries of this batch that are not done; none only at the end of all.
    pub fn ahead(&self) -> (&[u64], &[f32]) {
        let indices = &self.indices[self.done..self.values.len()];
        (indices, &self.values[self.done..])
    }

    /// This many of them are done.
    pub fn advance(&mut self, count: usize) -> Result<(), String> {
        self.done += count;
        match self.done < self.values.len() {
            true => Ok(()),
            false => self.refill(),
        }
    }

    fn refill(&mut self) -> Result<(), String> {
        let Arrival {
            message,
            count,
            pack,
            range,
        } = self.arrival;
        let part = Self::BATCH.min(count as usize - self.read);
        let last = self.values.len().checked_sub(1).map(|i| self.indices[i]);
        self.done = 0;
        self.values.clear();
        if part == 0 {
            return Ok(());
        }
        let lowest = last.map_or(range.0, |last| last + 1);
        let indices = &mut self.indices[..part];
        read_indices(self.arrival, self.read, indices);
        if indices[0] < lowest || indices[part - 1] >= range.1 || falls_of(indices) > 0 {
            return Err(self.fault());
        }
        let start =
            indices_bytes(count as usize, pack) + pack.values.bytes(self.read as u64) as usize;
        decode_values(message, (start, part), pack, &mut self.values);
        self.read += part;
        Ok(())
    }

    /// What is wrong with the message, which is checked again as a whole.
    fn fault(&self) -> String {
        let checked = decode_onto(&mut Stream::default(), self.arrival);
        let changed = "its entries change while they are read";
        checked.err().unwrap_or_else(|| changed.into())
    }
}

fn indices_bytes(count: usize, pack: Pack) -> usize {
    if pack.is_wide { 8 * count } else { 4 * count }
}

/// Indices from the one with number `first` on, at most a batch.
fn read_indices(arrival: Arrival, first: usize, indices: &mut [u64]) {
    let (message, pack) = (arrival.message, arrival.pack);
    let start = indices_bytes(first, pack);
    match pack.is_wide {
        true => message.read(start, bytemuck::cast_slice_mut(indices)),
        false => {
            let mut narrow = [0u32; BATCH];
            let narrow = &mut narrow[..indices.len()];
            message.read(start, bytemuck::cast_slice_mut(narrow));
            (indices.iter_mut().zip(narrow)).for_each(|(to, index)| *to = (*index).into());
        }
    }
}

/// Appends `count` values that lie in a message from `start` on.
pub(super) fn decode_values(
    message: &Message,
    (start, count): (usize, usize),
    pack: Pack,
    values: &mut Vec<f32>,
) {
    // A batch is a multiple of the blocks that share a scale, so batches are decoded one by one.
    let (mut bytes, mut start) = ([0u8; 8 * BATCH], start);
    for first in (0..count).step_by(BATCH) {
        let batch = BATCH.min(count - first);
        let part = &mut bytes[..pack.values.bytes(batch as u64) as usize];
        message.read(start, part);
        pack.values.decode(part, batch, values);
        start += part.len();
    }
}

pub(super) fn check_length(message: &Message, bytes: u64) -> Result<(), String> {
    match message.len_bytes() as u64 == bytes {
        true => Ok(()),
        false => Err(format!(
            "a message has {} bytes instead of {bytes}",
            message.len_bytes()
        )),
    }
}

/// How many are not above the one before. There is no early exit, so that the loop is vectorized.
fn falls_of(indices: &[u64]) -> usize {
    indices.windows(2).filter(|pair| pair[0] >= pair[1]).count()
}

/// Of increasing indices, the ends alone say whether all lie inside.
fn check_ends(indices: &[u64], (from, to): (u64, u64)) -> Result<(), String> {
    let ends = [indices.first(), indices.last()];
    match ends.into_iter().flatten().find(|i| !(from..to).contains(i)) {
        None => Ok(()),
        Some(stray) => Err(format!(
            "an entry has index {stray} outside of {from}..{to}"
        )),
    }
}

const _: () = assert!(BATCH.is_multiple_of(BLOCK) && Incoming::BATCH.is_multiple_of(BLOCK));
const _: () = assert!(Incoming::BATCH <= BATCH);
