//! [`Stream`]: real entries.

use super::entries::{Entries, Pack};
use super::io::Message;
use super::sum;
use crate::kernel::select::{Level, MAGNITUDE_INFINITE, histogram_of, magnitude};

/// Indices, increasing, with their values.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Stream {
    /// Coordinates.
    pub indices: Vec<u64>,
    /// As many values.
    pub values: Vec<f32>,
}

impl Stream {
    pub(super) fn with_capacity(count: usize) -> Stream {
        Stream {
            indices: Vec::with_capacity(count),
            values: Vec::with_capacity(count),
        }
    }

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

    fn filtered(&self, mut is_kept: impl FnMut(u64, f32) -> bool) -> Stream {
        let mut kept = Stream::default();
        for (index, value) in self.iter() {
            if is_kept(index, value) {
                kept.push(index, value);
            }
        }
        kept
    }
}

/// Says of increasing indices whether a stream has them.
struct Finder<'a> {
    indices: &'a [u64],
    at: usize,
}

impl Finder<'_> {
    fn has(&mut self, index: u64) -> bool {
        while self.indices.get(self.at).is_some_and(|i| *i < index) {
            self.at += 1;
        }
        self.indices.get(self.at) == Some(&index)
    }
}

impl Entries for Stream {
    fn empty(_: u64, _: u64) -> Stream {
        Stream::default()
    }

    fn len(&self) -> u64 {
        self.indices.len() as u64
    }

    fn part(&self, from: u64, to: u64) -> Stream {
        self.slice(self.below(from), self.below(to))
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

    fn sum(parts: &[Stream]) -> Stream {
        sum::sum(parts)
    }

    fn concat(parts: Vec<Stream>) -> Result<Stream, usize> {
        let count = parts.iter().map(|p| p.indices.len()).sum();
        let mut all = Stream::with_capacity(count);
        for (number, part) in parts.iter().enumerate() {
            if !part.is_empty() && all.indices.last() >= part.indices.first() {
                return Err(number);
            }
            all.indices.extend_from_slice(&part.indices);
            all.values.extend_from_slice(&part.values);
        }
        Ok(all)
    }

    fn settle(self) -> (Stream, Stream) {
        let is_clean = |v: f32| v != 0.0 && v.is_finite();
        if self.values.iter().all(|v| is_clean(*v)) {
            return (self, Stream::default());
        }
        let wild = self.filtered(|_, v| !v.is_finite());
        (self.filtered(|_, v| is_clean(v)), wild)
    }

    fn histogram(&self, level: Level) -> Vec<u64> {
        histogram_of(&self.values, level)
    }

    fn count_from(&self, least: u32) -> u64 {
        self.values
            .iter()
            .filter(|v| magnitude(**v) >= least)
            .count() as u64
    }

    fn select(&self, least: u32, mut ties: u64) -> Stream {
        self.filtered(|_, value| {
            let bits = magnitude(value);
            let is_tie = bits == least && ties > 0;
            ties -= u64::from(is_tie);
            bits > least || is_tie
        })
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
        let mut dropped = Stream::with_capacity((self.len() - k) as usize);
        let kept = self.filtered(|index, value| {
            let bits = magnitude(value);
            let is_tie = bits == least && ties > 0;
            ties -= usize::from(is_tie);
            let is_kept = bits > least || is_tie;
            if !is_kept {
                dropped.push(index, value);
            }
            is_kept
        });
        (kept, dropped)
    }

    fn returned(&self, applied: &Stream, result: &Stream) -> Stream {
        debug_assert_eq!(self.indices, applied.indices);
        let mut in_result = Finder {
            indices: &result.indices,
            at: 0,
        };
        let mut back = Stream::default();
        for ((index, value), applied) in self.iter().zip(&applied.values) {
            let rest = match in_result.has(index) {
                true => value - applied,
                false => value,
            };
            if rest != 0.0 && rest.is_finite() {
                back.push(index, rest);
            }
        }
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
        let mut finder = Finder {
            indices: &other.indices,
            at: 0,
        };
        self.filtered(|index, _| finder.has(index))
    }

    fn encode(&self, pack: Pack) -> Message {
        let bytes = pack.bytes(self.len());
        let mut data = Vec::with_capacity(bytes as usize);
        match pack.is_wide {
            true => data.extend_from_slice(bytemuck::cast_slice(&self.indices)),
            false => {
                // Options are checked: every index fits.
                data.resize(4 * self.indices.len(), 0);
                for (bytes, index) in data.chunks_exact_mut(4).zip(&self.indices) {
                    bytes.copy_from_slice(&(*index as u32).to_ne_bytes());
                }
            }
        }
        pack.values.encode(&self.values, &mut data);
        Message::of(data)
    }

    fn decode(
        message: &Message,
        count: u64,
        pack: Pack,
        range: (u64, u64),
    ) -> Result<Stream, String> {
        check_length(message, pack.bytes(count))?;
        let count = count as usize;
        let width = if pack.is_wide { 8 } else { 4 };
        let (indices, values) = message.data.split_at(count * width);
        let indices: Vec<u64> = match pack.is_wide {
            true => {
                let mut wide = vec![0u64; count];
                bytemuck::cast_slice_mut(&mut wide).copy_from_slice(indices);
                wide
            }
            false => {
                let mut narrow = vec![0u32; count];
                bytemuck::cast_slice_mut(&mut narrow).copy_from_slice(indices);
                narrow.into_iter().map(u64::from).collect()
            }
        };
        check_indices(&indices, range)?;
        Ok(Stream {
            indices,
            values: pack.values.decode(values, count),
        })
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
        let values = pack.values.decode(&message.data, (to - from) as usize);
        let mut entries = Stream::default();
        for (offset, value) in values.into_iter().enumerate() {
            if value != 0.0 {
                entries.push(from + offset as u64, value);
            }
        }
        Ok(entries)
    }
}

fn check_length(message: &Message, bytes: u64) -> Result<(), String> {
    match message.data.len() as u64 == bytes {
        true => Ok(()),
        false => Err(format!(
            "a message has {} bytes instead of {bytes}",
            message.data.len()
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

const _: () = assert!(MAGNITUDE_INFINITE == f32::INFINITY.to_bits());
