//! [`Requests`]: gets and atomic operations that a rank has asked a peer for. The answer names the
//! request by a number.

use super::PostError;
use crate::memory::View;
use std::collections::BTreeMap;

/// Requests that may be under way to one peer.
pub(super) const REQUESTS_MAX: u64 = 1024;

#[derive(Debug)]
struct Request {
    destination: View,
    token: u64,
    arrived: u64,
}

/// Requests that wait for their answers, by numbers below [`REQUESTS_MAX`].
#[derive(Debug, Default)]
pub(super) struct Requests {
    under_way: BTreeMap<u64, Request>,
    next: u64,
}

impl Requests {
    /// Notes a request whose answer goes to `destination`; its number, which no other one under way
    /// has.
    pub fn begin(&mut self, destination: View, token: u64) -> Result<u64, PostError> {
        let mut numbers = (0..REQUESTS_MAX).map(|i| (self.next + i) % REQUESTS_MAX);
        let free = numbers.find(|id| !self.under_way.contains_key(id));
        let id = free.ok_or(PostError::WouldBlock)?;
        self.next = id + 1;
        let request = Request {
            destination,
            token,
            arrived: 0,
        };
        self.under_way.insert(id, request);
        Ok(id)
    }

    /// Whether none is under way.
    pub fn is_empty(&self) -> bool {
        self.under_way.is_empty()
    }

    /// Where the answer goes.
    pub fn place(&self, id: u64) -> Option<View> {
        self.under_way.get(&id).map(|request| request.destination)
    }

    /// A part of an answer has come; token and length if it was the last one.
    pub fn note_part(&mut self, id: u64, bytes: u64) -> Option<(u64, u64)> {
        let request = self.under_way.get_mut(&id)?;
        request.arrived += bytes;
        match request.arrived == request.destination.len_bytes() as u64 {
            true => self
                .end(id)
                .map(|(place, token)| (token, place.len_bytes() as u64)),
            false => None,
        }
    }

    /// An answer has come whole: where it goes, and the token.
    pub fn end(&mut self, id: u64) -> Option<(View, u64)> {
        let request = self.under_way.remove(&id)?;
        Some((request.destination, request.token))
    }

    /// The peer is gone: takes out all requests and gives their tokens.
    pub fn flush(&mut self) -> impl Iterator<Item = u64> + use<> {
        let all = std::mem::take(&mut self.under_way).into_values();
        all.map(|request| request.token)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::memory::Region;

    #[test]
    fn numbers_are_those_of_none_that_is_under_way_and_an_answer_comes_once() {
        let mut requests = Requests::default();
        let mut begin = || requests.begin(View::empty(), 7);
        let all: Vec<u64> = (0..REQUESTS_MAX).map(|_| begin().unwrap()).collect();
        assert!(all.iter().copied().eq(0..REQUESTS_MAX));
        assert_eq!(begin(), Err(PostError::WouldBlock));
        assert_eq!(requests.end(5).map(|(_, token)| token), Some(7));
        assert!(requests.end(5).is_none());
        assert_eq!(requests.begin(View::empty(), 8), Ok(5));
        assert_eq!(requests.flush().count(), REQUESTS_MAX as usize);
    }

    #[test]
    fn an_answer_in_parts_ends_with_the_last_one() {
        let region = Region::private(64).unwrap();
        let mut requests = Requests::default();
        let id = requests.begin(region.view().part(0, 64), 9).unwrap();
        assert_eq!(requests.place(id).map(|place| place.len_bytes()), Some(64));
        assert_eq!(requests.note_part(id, 40), None);
        assert_eq!(requests.note_part(id, 24), Some((9, 64)));
        assert!(requests.place(id).is_none() && requests.note_part(id, 1).is_none());
    }
}
