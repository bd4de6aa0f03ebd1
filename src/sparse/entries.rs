//! What machines work on: indices with values, or only how many there would be.

use super::format::ValueFormat;
use super::global::Around;
use super::io::Message;
use super::spare::Spare;
use crate::kernel::select::Level;

/// How entries lie in a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pack {
    /// What values are.
    pub values: ValueFormat,
    /// Indices have 8 bytes instead of 4.
    pub is_wide: bool,
}

impl Pack {
    /// Bytes of `count` entries.
    pub fn bytes(self, count: u64) -> u64 {
        let index = if self.is_wide { 8 } else { 4 };
        count * index + self.values.bytes(count)
    }

    /// Bytes of the values of `width` coordinates without indices.
    pub fn dense_bytes(self, width: u64) -> u64 {
        self.values.bytes(width)
    }
}

/// Entries of a sparse vector, by increasing index.
pub trait Entries: Clone + Send + 'static {
    /// None of the coordinates from `from` to `to`.
    fn empty(from: u64, to: u64) -> Self;
    /// How many.
    fn len(&self) -> u64;
    /// Whether there are none.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }
    /// Those of the coordinates from `from` to `to`.
    fn part(&self, from: u64, to: u64, spare: &Spare) -> Self;
    /// Those at the positions from `start` to `end`.
    fn slice(&self, start: u64, end: u64) -> Self;
    /// How many lie below a coordinate.
    fn below(&self, index: u64) -> u64;
    /// The index at a position.
    fn index_at(&self, position: u64) -> u64;
    /// The sum from left to right. Sums that are zero are kept: later terms may follow.
    fn sum(parts: &[Self], spare: &Spare) -> Self;
    /// One after another. Each begins behind the end of the one before, else the number of the first that does not.
    fn concat(parts: Vec<Self>) -> Result<Self, usize>;
    /// Without zeros and without what is not finite; the latter apart.
    fn settle(self) -> (Self, Self);
    /// How many have their magnitude in each bin.
    fn histogram(&self, level: Level) -> Vec<u64>;
    /// How many of those from a position on are not finite.
    fn wild_from(&self, position: u64) -> u64;
    /// How many have at least this magnitude.
    fn count_from(&self, magnitude: u32) -> u64;
    /// How many have at least each of these magnitudes.
    fn counts_from(&self, around: Around) -> Vec<u64>;
    /// Those above a magnitude, and the first so many of exactly that: `count` of them.
    fn select(&self, from: (u32, u64), count: u64, spare: &Spare) -> Self;
    /// Those of at least a magnitude, where that makes passes over them shorter: for real entries always, for sizes never, so that all
    /// ranks of a job have the same.
    fn near(&self, least: u32, spare: &Spare) -> Option<Self>;
    /// The first `k` in the total order, and the others.
    fn top(&self, k: u64) -> (Self, Self);
    /// What returns of these picks, of which `applied` (the same indices) took part: the difference where the result has
    /// the index, all elsewhere. Zeros are left out.
    fn returned(&self, applied: &Self, result: &Self, spare: &Spare) -> Self;
    /// The difference to `other`, whose missing entries count as zeros; zeros are left out. `other` has no further indices.
    fn minus(&self, other: &Self) -> Self;
    /// Those whose index `other` has too.
    fn common(&self, other: &Self) -> Self;
    /// Those at the positions from `start` to `end` as a message.
    fn encode_slice(&self, range: (u64, u64), pack: Pack, spare: &Spare) -> Message;
    /// Appends those of a message of `count` entries of the coordinates from `from` to `to`; what is wrong with it, if anything
    /// is, and then nothing is appended. Whether they lie behind what is there is the caller's to see.
    fn decode_onto(
        &mut self,
        message: &Message,
        count: u64,
        pack: Pack,
        range: (u64, u64),
    ) -> Result<(), String>;
    /// None yet, with room for `count`.
    fn with_room(count: u64, spare: &Spare) -> Self;
    /// The end of it; its memory is used again.
    fn recycle(self, spare: &Spare);
    /// All values of the coordinates from `from` to `to`, without indices.
    fn encode_dense(&self, range: (u64, u64), pack: Pack) -> Message;
    /// From values of the coordinates from `from` to `to`: all that are not zero.
    fn decode_dense(message: &Message, range: (u64, u64), pack: Pack) -> Result<Self, String>;

    /// All as a message.
    fn encode(&self, pack: Pack) -> Message {
        self.encode_slice((0, self.len()), pack, &Spare::default())
    }

    /// A message by itself.
    fn decode(
        message: &Message,
        count: u64,
        pack: Pack,
        range: (u64, u64),
    ) -> Result<Self, String> {
        let mut entries = Self::with_room(count, &Spare::default());
        entries.decode_onto(message, count, pack, range)?;
        Ok(entries)
    }

    /// As whoever gets the message sees them.
    fn rounded(&self, pack: Pack, range: (u64, u64)) -> Self {
        match pack.values {
            ValueFormat::F32 => self.clone(),
            _ => Self::decode(&self.encode(pack), self.len(), pack, range)
                .expect("what this rank has encoded itself"),
        }
    }
}
