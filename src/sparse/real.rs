//! [`Entries`] of a [`Stream`]: real ones.
//!
//! The loops of selection and sums run over millions of entries in every step. They do not branch
//! on an entry's value or place: if a third of the entries is kept, every third prediction of such
//! a branch is wrong, and costs as much as ten entries.

use super::coding::{self, BATCH, check_length, decode_values};
use super::entries::{Arrival, ByMagnitude, Coded, Entries, Pack, Term};
use super::matching::IndexMarks;
use super::message::Message;
use super::spare::Spare;
use super::stream::Stream;
use super::sum;
use super::threshold::Thresholds;
use crate::kernel::select::{Level, MAGNITUDE_INFINITE, histogram_of, magnitude};

impl Stream {
    /// Appends those that are kept to `kept`.
    fn filter_into(&self, kept: &mut Stream, mut is_kept: impl FnMut(u64, f32) -> bool) {
        self.change_into(kept, |index, value| (is_kept(index, value), value));
    }

    /// Appends those that are kept to `kept`, with the values that `change` gives them. Each entry
    /// is written, and the next one over it unless it is kept.
    fn change_into(&self, kept: &mut Stream, mut change: impl FnMut(u64, f32) -> (bool, f32)) {
        let (mut indices, mut values) = ([0u64; BATCH], [0f32; BATCH]);
        let parts = self.indices.chunks(BATCH).zip(self.values.chunks(BATCH));
        for (part, part_values) in parts {
            let mut count = 0;
            for (index, value) in part.iter().zip(part_values) {
                let (is_kept, value) = change(*index, *value);
                // `count` is below BATCH: the remainder only spares the check of bounds.
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

    fn sum(terms: &[Term<Stream>], spare: &Spare) -> Result<Stream, (usize, String)> {
        sum::sum(terms, spare)
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
        // A sum of millions nearly always has a zero, so this works in place and not in new memory.
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

    fn returned(&self, applied: &Stream, result: &Stream, spare: &Spare) -> Stream {
        debug_assert_eq!(self.indices, applied.indices);
        let mut back = spare.stream(self.indices.len());
        let mut marks = IndexMarks::of(&result.indices);
        let (mut end, mut at) = (0, 0);
        self.change_into(&mut back, |index, value| {
            if index >= end {
                end = marks.mark(index);
            }
            // It is read in any case, which needs no branch.
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
        let mut marks = IndexMarks::of(&other.indices);
        let mut end = 0;
        self.filtered(|index, _| {
            if index >= end {
                end = marks.mark(index);
            }
            marks.has(index)
        })
    }

    fn recycle(self, spare: &Spare) {
        spare.keep(self);
    }
}

impl ByMagnitude for Stream {
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

    fn counts_from(&self, thresholds: Thresholds) -> Vec<u64> {
        let mut counts = [0u64; Thresholds::COUNT + 1];
        for value in &self.values {
            counts[thresholds.reached(magnitude(*value))] += 1;
        }
        // A value that reaches one reaches those below it.
        for place in (1..Thresholds::COUNT).rev() {
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
        let mut marks = IndexMarks::of(&kept.indices);
        let mut end = 0;
        let dropped = self.filtered(|index, _| {
            if index >= end {
                end = marks.mark(index);
            }
            !marks.has(index)
        });
        (kept, dropped)
    }
}

impl Coded for Stream {
    fn encode_slice(&self, (start, end): (u64, u64), pack: Pack, spare: &Spare) -> Message {
        let range = start as usize..end as usize;
        coding::encode(
            &self.indices[range.clone()],
            &self.values[range],
            pack,
            spare,
        )
    }

    fn decode_onto(&mut self, arrival: Arrival) -> Result<(), String> {
        coding::decode_onto(self, arrival)
    }

    fn with_room(count: u64, spare: &Spare) -> Stream {
        spare.stream(count as usize)
    }

    fn encode_dense(&self, (from, to): (u64, u64), pack: Pack) -> Message {
        let mut values = vec![0f32; (to - from) as usize];
        for (index, value) in self.iter() {
            values[(index - from) as usize] = value;
        }
        let mut data = Vec::with_capacity(pack.dense_bytes(to - from) as usize);
        let put = &mut |part: &[u8]| data.extend_from_slice(part);
        pack.values.encode(&values, put);
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

/// How many values are as asked. Counts are as wide as the values, and there is no early exit, so
/// that the loop is vectorized.
fn count_where(values: &[f32], is_it: impl Fn(f32) -> bool) -> u64 {
    let count = |part: &[f32]| part.iter().map(|v| u32::from(is_it(*v))).sum::<u32>();
    let parts = values.chunks(1 << 20);
    parts.map(|part| u64::from(count(part))).sum()
}

const _: () = assert!(MAGNITUDE_INFINITE == f32::INFINITY.to_bits());
