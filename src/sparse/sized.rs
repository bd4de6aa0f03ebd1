//! [`Sized`]: how many entries there would be, for jobs larger than this machine's memory.
//!
//! The entries of one vector lie evenly in their coordinates, and their magnitudes evenly among all
//! magnitudes; those of different ranks lie independently or in the same places. All that depends
//! on the data of real entries follows from that, so that the same machines run with the same
//! control flow.

use super::entries::{Arrival, ByMagnitude, Coded, Entries, Pack, Term};
use super::message::Message;
use super::spare::Spare;
use super::threshold::Thresholds;
use crate::kernel::select::{Level, MAGNITUDE_INFINITE};

/// Where the entries of different ranks lie.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Support {
    /// Independently: a coordinate is empty in all vectors with the product of the probabilities
    /// that it is empty in each.
    Independent,
    /// All in the same places.
    Identical,
}

/// Entries without indices and values.
#[derive(Clone, Debug, PartialEq)]
pub struct Sized {
    from: u64,
    to: u64,
    count: u64,
    support: Support,
}

impl Sized {
    /// `count` entries of the coordinates from `from` to `to`.
    pub fn new(from: u64, to: u64, count: u64, support: Support) -> Sized {
        Sized {
            from,
            to,
            count: count.min(to - from),
            support,
        }
    }

    fn with(&self, from: u64, to: u64, count: u64) -> Sized {
        Sized::new(from, to, count, self.support)
    }

    /// Those of the coordinates from `from` to `to`.
    fn part(&self, from: u64, to: u64) -> Sized {
        let (low, high) = (from.max(self.from), to.min(self.to));
        if low >= high {
            return self.with(from, to.max(from), 0);
        }
        self.with(low, high, self.below(high) - self.below(low))
    }

    /// Entries of less than a magnitude.
    fn less(&self, magnitude: u32) -> u64 {
        let all = u128::from(MAGNITUDE_INFINITE);
        (u128::from(self.count) * u128::from(magnitude.min(MAGNITUDE_INFINITE)) / all) as u64
    }
}

impl Entries for Sized {
    fn empty(from: u64, to: u64) -> Sized {
        Sized::new(from, to, 0, Support::Independent)
    }

    fn len(&self) -> u64 {
        self.count
    }

    fn slice(&self, start: u64, end: u64) -> Sized {
        let (from, to) = (self.index_at(start), self.index_at(end));
        self.with(from, to.max(from + (end - start)), end - start)
    }

    fn below(&self, index: u64) -> u64 {
        let width = (self.to - self.from).max(1);
        let inside = index.clamp(self.from, self.to) - self.from;
        (u128::from(self.count) * u128::from(inside) / u128::from(width)) as u64
    }

    fn index_at(&self, position: u64) -> u64 {
        let width = u128::from(self.to - self.from);
        self.from + (u128::from(position) * width / u128::from(self.count.max(1))) as u64
    }

    fn sum(terms: &[Term<Sized>], spare: &Spare) -> Result<Sized, (usize, String)> {
        let part = |(number, term): (usize, &Term<Sized>)| match term {
            Term::Here(entries, (from, to)) => Ok(entries.part(*from, *to)),
            Term::Come(arrival) => Sized::decode(*arrival, spare).map_err(|cause| (number, cause)),
        };
        let parts = terms.iter().enumerate().map(part);
        let mut parts: Vec<Sized> = parts.collect::<Result<_, _>>()?;
        parts.retain(|part| part.count > 0);
        let Some(first) = parts.first() else {
            return Ok(Sized::empty(0, 0));
        };
        let from = parts.iter().map(|p| p.from).min().unwrap_or(0);
        let to = parts.iter().map(|p| p.to).max().unwrap_or(0);
        let width = (to - from) as f64;
        let is_identical = parts.iter().any(|p| p.support == Support::Identical);
        let support = if is_identical {
            Support::Identical
        } else {
            first.support
        };
        let count = match support {
            Support::Identical => parts.iter().map(|p| p.count).max().unwrap_or(0),
            Support::Independent => {
                let empty = parts.iter().map(|p| 1.0 - p.count as f64 / width);
                (width * (1.0 - empty.product::<f64>())).round() as u64
            }
        };
        Ok(Sized::new(from, to, count, support))
    }

    fn concat(parts: Vec<Sized>) -> Result<Sized, usize> {
        let parts: Vec<Sized> = parts.into_iter().filter(|p| p.count > 0).collect();
        let Some(first) = parts.first() else {
            return Ok(Sized::empty(0, 0));
        };
        let (from, to) = (first.from, parts.iter().map(|p| p.to).max().unwrap_or(0));
        let count = parts.iter().map(|p| p.count).sum();
        Ok(first.with(from, to.max(from + count), count))
    }

    fn settle(self) -> (Sized, Sized) {
        let none = self.with(self.from, self.to, 0);
        (self, none)
    }

    fn returned(&self, _: &Sized, _: &Sized, _: &Spare) -> Sized {
        self.with(self.from, self.to, 0)
    }

    fn minus(&self, _: &Sized) -> Sized {
        self.with(self.from, self.to, 0)
    }

    fn common(&self, _: &Sized) -> Sized {
        self.with(self.from, self.to, 0)
    }

    fn recycle(self, _: &Spare) {}
}

impl ByMagnitude for Sized {
    fn histogram(&self, level: Level) -> Vec<u64> {
        let width = level.magnitude(1) - level.magnitude(0);
        let count = |bin| {
            let from = level.magnitude(bin);
            self.less(from.saturating_add(width)) - self.less(from)
        };
        (0..level.bins()).map(count).collect()
    }

    fn wild_from(&self, _: u64) -> u64 {
        0
    }

    fn count_from(&self, magnitude: u32) -> u64 {
        self.count - self.less(magnitude)
    }

    fn counts_from(&self, thresholds: Thresholds) -> Vec<u64> {
        let counts = thresholds.magnitudes().map(|bits| self.count_from(bits));
        counts.collect()
    }

    fn select(&self, (magnitude, ties): (u32, u64), _: u64, _: &Spare) -> Sized {
        let above = self.count_from(magnitude.saturating_add(1));
        self.with(self.from, self.to, (above + ties).min(self.count))
    }

    /// There are no passes to make shorter, and entries near a magnitude do not lie evenly among
    /// all magnitudes.
    fn near(&self, _: u32, _: &Spare) -> Option<Sized> {
        None
    }

    fn top(&self, k: u64) -> (Sized, Sized) {
        let kept = self.count.min(k);
        let part = |count| self.with(self.from, self.to, count);
        (part(kept), part(self.count - kept))
    }
}

impl Coded for Sized {
    fn encode_slice(&self, (start, end): (u64, u64), pack: Pack, _: &Spare) -> Message {
        Message {
            // Inside a process the support goes along.
            data: vec![u8::from(self.support == Support::Identical)],
            ..Message::size_only(pack.bytes(end - start))
        }
    }

    fn decode_onto(&mut self, arrival: Arrival) -> Result<(), String> {
        let (message, count, (from, to)) = (arrival.message, arrival.count, arrival.range);
        let support = match message.data.as_slice() {
            [1] => Support::Identical,
            _ => Support::Independent,
        };
        let part = Sized::new(from, to, count, support);
        *self = match self.count {
            0 => part,
            // Both lie in the same coordinates.
            before => self.with(self.from.min(from), self.to.max(to), before + part.count),
        };
        Ok(())
    }

    fn with_room(_: u64, _: &Spare) -> Sized {
        Sized::empty(0, 0)
    }

    fn encode_dense(&self, (from, to): (u64, u64), pack: Pack) -> Message {
        Message::size_only(pack.dense_bytes(to - from))
    }

    fn decode_dense(_: &Message, (from, to): (u64, u64), _: Pack) -> Result<Sized, String> {
        Ok(Sized::new(from, to, to - from, Support::Independent))
    }
}
