//! [`Entries`]: what machines work on, which is indices with values, or only how many there would
//! be.

use super::format::ValueFormat;
use super::message::Message;
use super::spare::Spare;
use super::threshold::Thresholds;
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

/// Entries that have come.
#[derive(Clone, Copy, Debug)]
pub struct Arrival<'a> {
    /// The message that has them.
    pub message: &'a Message,
    /// How many.
    pub count: u64,
    /// How they lie there.
    pub pack: Pack,
    /// The coordinates that they can be of, from the first up to the second.
    pub range: (u64, u64),
}

/// A term of a sum.
#[derive(Clone, Copy, Debug)]
pub enum Term<'a, E> {
    /// The entries of the coordinates from the first up to the second.
    Here(&'a E, (u64, u64)),
    /// The entries of a message.
    Come(Arrival<'a>),
}

/// Entries of a sparse vector, by increasing index.
pub trait Entries: ByMagnitude + Coded + Send + 'static {
    /// No entries, of the coordinates from `from` to `to`.
    fn empty(from: u64, to: u64) -> Self;
    /// How many.
    fn len(&self) -> u64;
    /// Whether there are none.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }
    /// Those at the positions from `start` to `end`.
    fn slice(&self, start: u64, end: u64) -> Self;
    /// How many lie below a coordinate.
    fn below(&self, index: u64) -> u64;
    /// The index at a position.
    fn index_at(&self, position: u64) -> u64;
    /// The sum from left to right. A sum of several terms leaves out zeros, which change nothing in
    /// later additions.
    ///
    /// # Errors
    /// The number of the first message that is malformed, and why.
    fn sum(terms: &[Term<Self>], spare: &Spare) -> Result<Self, (usize, String)>;
    /// One after another.
    ///
    /// # Errors
    /// The number of the first part that does not begin behind the end of the one before.
    fn concat(parts: Vec<Self>) -> Result<Self, usize>;
    /// The entries that are finite and not zero, and apart from them those that are not finite.
    fn settle(self) -> (Self, Self);
    /// What returns of these picks. `applied` has their indices, with the values that took part:
    /// where the result has the index, the difference to that returns, elsewhere the whole pick.
    /// Zeros are left out.
    fn returned(&self, applied: &Self, result: &Self, spare: &Spare) -> Self;
    /// The difference to `other`, whose missing entries count as zeros; zeros are left out. `other`
    /// has no further indices.
    fn minus(&self, other: &Self) -> Self;
    /// Those whose index `other` has too.
    fn common(&self, other: &Self) -> Self;
    /// Ends these entries, and gives their memory to later ones.
    fn recycle(self, spare: &Spare);

    /// The sum of whole vectors.
    fn sum_of(parts: &[Self], spare: &Spare) -> Self {
        let all = |part| Term::Here(part, (0, u64::MAX));
        let terms: Vec<Term<Self>> = parts.iter().map(all).collect();
        Self::sum(&terms, spare).expect("no message that could be malformed")
    }

    /// All of them as a message.
    fn encode(&self, pack: Pack) -> Message {
        self.encode_slice((0, self.len()), pack, &Spare::default())
    }

    /// The entries of one message.
    fn decode(arrival: Arrival, spare: &Spare) -> Result<Self, String> {
        let mut entries = Self::with_room(arrival.count, spare);
        entries.decode_onto(arrival)?;
        Ok(entries)
    }

    /// The entries as a receiver of their message has them.
    fn rounded(&self, pack: Pack, range: (u64, u64)) -> Self {
        match pack.values {
            ValueFormat::F32 => self.clone(),
            _ => {
                let arrival = Arrival {
                    message: &self.encode(pack),
                    count: self.len(),
                    pack,
                    range,
                };
                Self::decode(arrival, &Spare::default()).expect("what this rank has encoded itself")
            }
        }
    }
}

/// Counting and selecting entries by their magnitudes.
pub trait ByMagnitude: Clone {
    /// How many have their magnitude in each bin.
    fn histogram(&self, level: Level) -> Vec<u64>;
    /// How many of those from a position on are not finite.
    fn wild_from(&self, position: u64) -> u64;
    /// How many have at least this magnitude.
    fn count_from(&self, magnitude: u32) -> u64;
    /// How many have at least each of these magnitudes.
    fn counts_from(&self, thresholds: Thresholds) -> Vec<u64>;
    /// Those above a magnitude, and of those with exactly that magnitude the first ones, this many:
    /// `count` in all.
    fn select(&self, from: (u32, u64), count: u64, spare: &Spare) -> Self;
    /// Those of at least a magnitude, where that makes passes over them shorter: for real entries
    /// always, for sizes never, so that all ranks of a job do alike.
    fn near(&self, least: u32, spare: &Spare) -> Option<Self>;
    /// The first `k` in the total order, and the others.
    fn top(&self, k: u64) -> (Self, Self);
}

/// Entries in messages.
pub trait Coded: Clone {
    /// No entries yet, with room for `count`.
    fn with_room(count: u64, spare: &Spare) -> Self;
    /// Those at the positions from `start` to `end` as a message of the next request. Its bytes may
    /// lie in memory that is used again after that request.
    fn encode_slice(&self, range: (u64, u64), pack: Pack, spare: &Spare) -> Message;
    /// Appends the entries of a message. The caller checks that they lie behind those that are
    /// there.
    ///
    /// # Errors
    /// What is wrong with the message; nothing is appended then.
    fn decode_onto(&mut self, arrival: Arrival) -> Result<(), String>;
    /// All values of the coordinates from `from` to `to`, without indices.
    fn encode_dense(&self, range: (u64, u64), pack: Pack) -> Message;
    /// From values of the coordinates from `from` to `to`: all that are not zero.
    fn decode_dense(message: &Message, range: (u64, u64), pack: Pack) -> Result<Self, String>;
}
