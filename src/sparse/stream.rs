//! [`Stream`]: real entries.
//!
//! Its loops run over millions of entries in every step. None of them decides by a branch what an entry's value or place says:
//! where a third of the entries is kept, every third guess of such a branch is wrong, and costs as much as ten entries.

use super::entries::{Entries, Pack};
use super::format::BLOCK;
use super::global::Around;
use super::io::Message;
use super::matching::Marks;
use super::spare::Spare;
use super::sum;
use crate::kernel::select::{Level, MAGNITUDE_INFINITE, histogram_of, magnitude};

/// Entries that are collected or converted at a time; they stay in the first-level cache.
const BATCH: usize = 512;

/// Indices, increasing, with their values.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Stream {
    /// Coordinates.
    pub indices: Vec<u64>,
    /// As many values.
    pub values: Vec<f32>,
}

impl Stream {
    fn push(&mut self, index: u64, value: f32) {
        self.indices.push(index);
        self.values.push(value);
    }

    fn iter(&self) -> impl Iterator<Item = (u64, f32)> + '_ {
        self.indices
            .iter()
            .copied()
            .zip(self.values.iter().copied())
    }

    pub(super) fn extend(&mut self, indices: &[u64], values: &[f32]) {
        self.indices.extend_from_slice(indices);
        self.values.extend_from_slice(values);
    }

    /// Appends those that are kept to `kept`.
    fn filter_into(&self, kept: &mut Stream, mut is_kept: impl FnMut(u64, f32) -> bool) {
        self.change_into(kept, |index, value| (is_kept(index, value), value));
    }

    /// Appends those that are kept to `kept`, with the values that go with that. Each is written down, and the next over it unless
    /// it is kept.
    fn change_into(&self, kept: &mut Stream, mut change: impl FnMut(u64, f32) -> (bool, f32)) {
        let (mut indices, mut values) = ([0u64; BATCH], [0f32; BATCH]);
        let parts = self.indices.chunks(BATCH).zip(self.values.chunks(BATCH));
        for (part, part_values) in parts {
            let mut count = 0;
            for (index, value) in part.iter().zip(part_values) {
                let (is_kept, value) = change(*index, *value);
                // Never more than a batch has: the rest of the division is no other place.
                indices[count % BATCH] = *index;
                values[count % BATCH] = value;
                count += usize::from(is_kept);
            }
            kept.extend(&indices[..count], &values[..count]);
        }
    }

    fn filtered(&self, is_kept: impl FnMut(u64, f32) -> bool) -> Stream {
        let mut kept = Stream::default();
        self.filter_into(&mut kept, is_kept);
        kept
    }
}

impl Entries for Stream {
    fn empty(_: u64, _: u64) -> Stream {
        Stream::default()
    }

    fn len(&self) -> u64 {
        self.indices.len() as u64
    }

    fn part(&self, from: u64, to: u64, spare: &Spare) -> Stream {
        let range = self.below(from) as usize..self.below(to) as usize;
        let mut part = spare.stream(range.len());
        part.extend(&self.indices[range.clone()], &self.values[range]);
        part
    }

    fn slice(&self, start: u64, end: u64) -> Stream {
        let range = start as usize..end as usize;
        Stream {
            indices: self.indices[range.clone()].to_vec(),
            values: self.values[range].to_vec(),
        }
    }

    fn below(&self, index: u64) -> u64 {
        self.indices.partition_point(|i| *i < index) as u64
    }

    fn index_at(&self, position: u64) -> u64 {
        self.indices[position as usize]
    }

    fn sum(parts: &[Stream], spare: &Spare) -> Stream {
        sum::sum(parts, spare)
    }

    fn concat(parts: Vec<Stream>) -> Result<Stream, usize> {
        let mut all = Stream::default();
        for (number, part) in parts.iter().enumerate() {
            if !part.is_empty() && all.indices.last() >= part.indices.first() {
                return Err(number);
            }
            all.extend(&part.indices, &part.values);
        }
        Ok(all)
    }

    fn settle(mut self) -> (Stream, Stream) {
        let is_clean = |v: f32| (v != 0.0) & v.is_finite();
        let mut wild = Stream::default();
        if count_where(&self.values, |v| !is_clean(v)) == 0 {
            return (self, wild);
        }
        // A sum of millions nearly always has a zero: in place, not in new memory.
        let mut kept = 0;
        for at in 0..self.values.len() {
            let (index, value) = (self.indices[at], self.values[at]);
            if !value.is_finite() {
                wild.push(index, value);
            }
            self.indices[kept] = index;
            self.values[kept] = value;
            kept += usize::from(is_clean(value));
        }
        self.indices.truncate(kept);
        self.values.truncate(kept);
        (self, wild)
    }

    fn histogram(&self, level: Level) -> Vec<u64> {
        histogram_of(&self.values, level)
    }

    fn wild_from(&self, position: u64) -> u64 {
        count_where(&self.values[position as usize..], |value| {
            !value.is_finite()
        })
    }

    fn count_from(&self, least: u32) -> u64 {
        count_where(&self.values, |value| magnitude(value) >= least)
    }

    fn counts_from(&self, around: Around) -> Vec<u64> {
        let mut counts = [0u64; Around::COUNT + 1];
        for value in &self.values {
            counts[around.reached(magnitude(*value))] += 1;
        }
        // Who reaches one reaches those below it.
        for place in (1..Around::COUNT).rev() {
            counts[place] += counts[place + 1];
        }
        counts[1..].to_vec()
    }

    fn select(&self, (least, mut ties): (u32, u64), count: u64, spare: &Spare) -> Stream {
        let mut selected = spare.stream(count as usize);
        self.filter_into(&mut selected, |_, value| {
            let bits = magnitude(value);
            let is_tie = (bits == least) & (ties > 0);
            ties -= u64::from(is_tie);
            (bits > least) | is_tie
        });
        selected
    }

    fn near(&self, least: u32, spare: &Spare) -> Option<Stream> {
        Some(self.select((least - 1, 0), self.count_from(least), spare))
    }

    fn top(&self, k: u64) -> (Stream, Stream) {
        if self.len() <= k {
            return (self.clone(), Stream::default());
        }
        if k == 0 {
            return (Stream::default(), self.clone());
        }
        let mut all: Vec<u32> = self.values.iter().map(|v| magnitude(*v)).collect();
        let (above, least, _) = all.select_nth_unstable_by(k as usize - 1, |a, b| b.cmp(a));
        let least = *least;
        let mut ties = k as usize - above.iter().filter(|bits| **bits > least).count();
        let mut is_kept = |value| {
            let bits = magnitude(value);
            let is_tie = (bits == least) & (ties > 0);
            ties -= usize::from(is_tie);
            (bits > least) | is_tie
        };
        let kept = self.filtered(|_, value| is_kept(value));
        let mut marks = Marks::of(&kept.indices);
        let mut end = 0;
        let dropped = self.filtered(|index, _| {
            if index >= end {
                end = marks.mark(index);
            }
            !marks.has(index)
        });
        (kept, dropped)
    }

    fn returned(&self, applied: &Stream, result: &Stream, spare: &Spare) -> Stream {
        debug_assert_eq!(self.indices, applied.indices);
        let mut back = spare.stream(self.indices.len());
        let mut marks = Marks::of(&result.indices);
        let (mut end, mut at) = (0, 0);
        self.change_into(&mut back, |index, value| {
            if index >= end {
                end = marks.mark(index);
            }
            // Read in any case: a branch would guess.
            let applied = applied.values[at];
            at += 1;
            let rest = if marks.has(index) {
                value - applied
            } else {
                value
            };
            ((rest != 0.0) & rest.is_finite(), rest)
        });
        back
    }

    fn minus(&self, other: &Stream) -> Stream {
        let (mut difference, mut at) = (Stream::default(), 0);
        for (index, value) in self.iter() {
            while other.indices.get(at).is_some_and(|i| *i < index) {
                at += 1;
            }
            let rest = match other.indices.get(at) == Some(&index) {
                true => value - other.values[at],
                false => value,
            };
            if rest != 0.0 && rest.is_finite() {
                difference.push(index, rest);
            }
        }
        difference
    }

    fn common(&self, other: &Stream) -> Stream {
        let mut marks = Marks::of(&other.indices);
        let mut end = 0;
        self.filtered(|index, _| {
            if index >= end {
                end = marks.mark(index);
            }
            marks.has(index)
        })
    }

    fn encode_slice(&self, (start, end): (u64, u64), pack: Pack, spare: &Spare) -> Message {
        let mut data = spare.bytes(pack.bytes(end - start) as usize);
        data.clear();
        let range = start as usize..end as usize;
        let indices = &self.indices[range.clone()];
        match pack.is_wide {
            true => data.extend_from_slice(bytemuck::cast_slice(indices)),
            false => {
                let mut narrow = [0u32; BATCH];
                for batch in indices.chunks(BATCH) {
                    // Options are checked: every index fits.
                    (narrow.iter_mut().zip(batch)).for_each(|(to, index)| *to = *index as u32);
                    data.extend_from_slice(bytemuck::cast_slice(&narrow[..batch.len()]));
                }
            }
        }
        pack.values.encode(&self.values[range], &mut data);
        Message::of(data)
    }

    fn decode_onto(
        &mut self,
        message: &Message,
        count: u64,
        pack: Pack,
        (from, to): (u64, u64),
    ) -> Result<(), String> {
        check_length(message, pack.bytes(count))?;
        let count = count as usize;
        let width = if pack.is_wide { 8 } else { 4 };
        let first = self.indices.len();
        let mut bytes = [0u8; 8 * BATCH];
        for start in (0..count).step_by(BATCH) {
            let part = &mut bytes[..width * BATCH.min(count - start)];
            message.read(width * start, part);
            match pack.is_wide {
                true => {
                    let words = part.as_chunks::<8>().0.iter();
                    self.indices.extend(words.map(|b| u64::from_ne_bytes(*b)));
                }
                false => {
                    let words = part.as_chunks::<4>().0.iter();
                    let words = words.map(|b| u64::from(u32::from_ne_bytes(*b)));
                    self.indices.extend(words);
                }
            }
        }
        let checked = check_indices(&self.indices[first..], (from, to));
        if let Err(cause) = checked {
            self.indices.truncate(first);
            return Err(cause);
        }
        decode_values(message, (width * count, count), pack, &mut self.values);
        Ok(())
    }

    fn with_room(count: u64, spare: &Spare) -> Stream {
        spare.stream(count as usize)
    }

    fn recycle(self, spare: &Spare) {
        spare.keep(self);
    }

    fn encode_dense(&self, (from, to): (u64, u64), pack: Pack) -> Message {
        let mut values = vec![0f32; (to - from) as usize];
        for (index, value) in self.iter() {
            values[(index - from) as usize] = value;
        }
        let mut data = Vec::with_capacity(pack.dense_bytes(to - from) as usize);
        pack.values.encode(&values, &mut data);
        Message::of(data)
    }

    fn decode_dense(
        message: &Message,
        (from, to): (u64, u64),
        pack: Pack,
    ) -> Result<Stream, String> {
        check_length(message, pack.dense_bytes(to - from))?;
        let (mut values, mut entries) = (Vec::new(), Stream::default());
        decode_values(message, (0, (to - from) as usize), pack, &mut values);
        for (offset, value) in values.into_iter().enumerate() {
            if value != 0.0 {
                entries.push(from + offset as u64, value);
            }
        }
        Ok(entries)
    }
}

/// How many values are as asked. Sums as wide as the values they come from, and no early end: whole vectors.
fn count_where(values: &[f32], is_it: impl Fn(f32) -> bool) -> u64 {
    let count = |part: &[f32]| part.iter().map(|v| u32::from(is_it(*v))).sum::<u32>();
    let parts = values.chunks(1 << 20);
    parts.map(|part| u64::from(count(part))).sum()
}

/// Appends `count` values that lie in a message from `start` on.
fn decode_values(
    message: &Message,
    (start, count): (usize, usize),
    pack: Pack,
    values: &mut Vec<f32>,
) {
    // Blocks that share a scale divide a batch, so that batches are coded one by one.
    let (mut bytes, mut start) = ([0u8; 8 * BATCH], start);
    for first in (0..count).step_by(BATCH) {
        let batch = BATCH.min(count - first);
        let part = &mut bytes[..pack.values.bytes(batch as u64) as usize];
        message.read(start, part);
        pack.values.decode(part, batch, values);
        start += part.len();
    }
}

fn check_length(message: &Message, bytes: u64) -> Result<(), String> {
    match message.len_bytes() as u64 == bytes {
        true => Ok(()),
        false => Err(format!(
            "a message has {} bytes instead of {bytes}",
            message.len_bytes()
        )),
    }
}

fn check_indices(indices: &[u64], (from, to): (u64, u64)) -> Result<(), String> {
    // Increasing, so that the ends alone say whether all lie inside. No early exit: the loop is compiled to whole vectors.
    let falls = indices.windows(2).filter(|pair| pair[0] >= pair[1]).count();
    let ends = [indices.first(), indices.last()];
    if let Some(stray) = ends.into_iter().flatten().find(|i| !(from..to).contains(i)) {
        return Err(format!(
            "an entry has index {stray} outside of {from}..{to}"
        ));
    }
    match falls {
        0 => Ok(()),
        falls => Err(format!(
            "{falls} of {} entries have an index that is not above the one before",
            indices.len()
        )),
    }
}

const _: () = assert!(BATCH.is_multiple_of(BLOCK));
const _: () = assert!(MAGNITUDE_INFINITE == f32::INFINITY.to_bits());
