//! Puts and gets that wait for the peer: [`ShortPuts`], which leave in the stream, and [`Gets`].
//! Long puts are [`Transfers`](super::transfers::Transfers).

use super::transfers::TRANSFERS_MAX;
use crate::memory::View;
use crate::transport::{Outcome, PostError};
use std::collections::{BTreeMap, VecDeque};

/// A short put that the peer has not acknowledged.
#[derive(Clone, Copy, Debug)]
struct ShortPut {
    /// Of its frame in the stream.
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

/// A get, or an atomic operation, that waits for its answer.
#[derive(Debug)]
struct Get {
    destination: View,
    token: u64,
    arrived: u64,
}

/// Gets and atomic operations under way, by number.
#[derive(Debug, Default)]
pub struct Gets {
    under_way: BTreeMap<u64, Get>,
    made: u64,
}

impl Gets {
    /// Notes one; its number.
    pub fn begin(&mut self, destination: View, token: u64) -> Result<u64, PostError> {
        if self.under_way.len() >= TRANSFERS_MAX {
            return Err(PostError::WouldBlock);
        }
        self.made += 1;
        let get = Get {
            destination,
            token,
            arrived: 0,
        };
        self.under_way.insert(self.made, get);
        Ok(self.made)
    }

    /// Where the bytes of one go.
    pub fn place(&self, id: u64) -> Option<View> {
        self.under_way.get(&id).map(|get| get.destination)
    }

    /// A chunk of an answer of this length begins.
    pub fn check_chunk(&self, id: u64, total: u64) -> Result<(), String> {
        let asked = self.place(id).map(|place| place.len_bytes() as u64);
        match asked == Some(total) {
            true => Ok(()),
            false => Err(format!(
                "it answers get {id} with {total} bytes, not {asked:?}"
            )),
        }
    }

    /// A chunk of an answer has come whole; token and length if it was the last one.
    pub fn note_chunk(&mut self, id: u64, bytes: u64) -> Option<(u64, u64)> {
        let get = self.under_way.get_mut(&id)?;
        get.arrived += bytes;
        let (token, total) = (get.token, get.destination.len_bytes() as u64);
        if get.arrived != total {
            return None;
        }
        self.under_way.remove(&id);
        Some((token, total))
    }

    /// An answer has come whole, of this many bytes if it is good: where they go, and the token.
    pub fn end(&mut self, id: u64, bytes: Option<usize>) -> Result<(View, u64), String> {
        let Some(get) = self.under_way.get(&id) else {
            return Err(format!("it answers get {id}, which nobody asked"));
        };
        let (place, token) = (get.destination, get.token);
        if let Some(bytes) = bytes
            && bytes != place.len_bytes()
        {
            // It is kept, so that it ends with the peer.
            let asked = place.len_bytes();
            return Err(format!("it answers a get of {asked} bytes with {bytes}"));
        }
        self.under_way.remove(&id);
        Ok((place, token))
    }

    /// The peer is gone: the tokens of all.
    pub fn flush(&mut self) -> impl Iterator<Item = u64> + use<> {
        let gets = std::mem::take(&mut self.under_way);
        gets.into_values().map(|get| get.token)
    }
}
