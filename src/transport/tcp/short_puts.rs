//! [`ShortPuts`]: puts that have left in the stream. Long ones are transfers.

use crate::transport::transfers::TRANSFERS_MAX;
use crate::transport::{Outcome, PostError};
use std::collections::VecDeque;

/// A short put that the peer has not acknowledged.
#[derive(Clone, Copy, Debug)]
struct ShortPut {
    /// Where its frame begins and ends in the stream.
    position: u64,
    end: u64,
    token: u64,
    bytes: u64,
    is_bad: bool,
}

/// Short puts under way, in order.
#[derive(Debug, Default)]
pub struct ShortPuts(VecDeque<ShortPut>);

impl ShortPuts {
    /// Whether another one may begin.
    pub fn check(&self) -> Result<(), PostError> {
        match self.0.len() >= TRANSFERS_MAX {
            true => Err(PostError::WouldBlock),
            false => Ok(()),
        }
    }

    /// One has its place in the stream.
    #[inline]
    pub fn push(&mut self, (position, end): (u64, u64), token: u64, bytes: u64) {
        self.0.push_back(ShortPut {
            position,
            end,
            token,
            bytes,
            is_bad: false,
        });
    }

    /// The next one of which the peer has everything, because it has the stream before
    /// `acknowledged`: token, outcome and bytes.
    #[inline]
    pub fn pop_ended(&mut self, acknowledged: u64) -> Option<(u64, Outcome, u64)> {
        let put = *self.0.front().filter(|put| put.end <= acknowledged)?;
        self.0.pop_front();
        let outcome = match put.is_bad {
            true => Outcome::BadKey,
            false => Outcome::Done,
        };
        Some((put.token, outcome, put.bytes))
    }

    /// The one at this position has named no region.
    pub fn note_bad(&mut self, position: u64) {
        if let Some(put) = self.0.iter_mut().find(|put| put.position == position) {
            put.is_bad = true;
        }
    }

    /// The peer is gone: the tokens of all.
    pub fn flush(&mut self) -> impl Iterator<Item = u64> + '_ {
        self.0.drain(..).map(|put| put.token)
    }
}
