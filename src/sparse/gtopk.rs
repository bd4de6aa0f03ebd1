//! gTopk: a binary tree of merges to rank 0, each keeping the k largest, and a binomial broadcast.
//!
//! What a merge drops returns to the residual of the rank that drops it, so that nothing is lost. Messages have room for k
//! entries, whatever they hold: 2k words once up and once down.

use super::counters::Phase;
use super::entries::Entries;
use super::io::{Io, Message};
use super::machine::{Finished, Step, Terms};

/// Entries and what is not finite, before the entries.
const HEADER: u64 = 16;

pub(super) async fn run<E: Entries + Sync>(io: Io, step: Step<E>, terms: Terms) -> Finished<E> {
    let tree = Tree {
        terms: &terms,
        k: step.k,
        count: step.count,
    };
    let (mut own, dropped) = step.picks.top(step.k);
    let (mut returned, mut not_finite) = (vec![dropped], step.not_finite);
    let mut distance = 1;
    // Up: rank r merges what r + 1, r + 2, r + 4, ... have, until it is its turn to send.
    while distance < io.ranks && io.rank.is_multiple_of(2 * distance) {
        if io.rank + distance < io.ranks {
            let bytes = tree.bytes();
            let receives = vec![(io.rank + distance, bytes)];
            let messages = io
                .exchange(Phase::Reduce, Vec::new(), receives, HEADER)
                .await;
            let (other, wild): (E, u64) = tree.decode(&messages[0]);
            let (sum, lost) = E::sum(&[own.clone(), other.clone()]).settle();
            not_finite += wild + lost.len();
            returned.extend([own.common(&lost), other.common(&lost)]);
            let (kept, dropped) = sum.top(step.k);
            returned.push(dropped);
            own = kept;
        }
        distance *= 2;
    }
    if io.rank > 0 {
        let (message, rounding) = tree.encode(&own, not_finite);
        returned.push(rounding);
        let sends = vec![(io.rank - distance, message)];
        io.exchange(Phase::Reduce, sends, Vec::new(), HEADER).await;
    }
    // Down the same tree. The root rounds; what it sends is passed on as it is.
    let message = match io.rank {
        0 => {
            let (message, rounding) = tree.encode(&own, not_finite);
            returned.push(rounding);
            message
        }
        rank => {
            let receives = vec![(rank - distance, tree.bytes())];
            let mut messages = io
                .exchange(Phase::Gather, Vec::new(), receives, HEADER)
                .await;
            messages.pop().expect("one message from one peer")
        }
    };
    while distance > 1 {
        distance /= 2;
        if io.rank + distance < io.ranks {
            let sends = vec![(io.rank + distance, message.clone())];
            io.exchange(Phase::Gather, sends, Vec::new(), HEADER).await;
        }
    }
    let (result, not_finite): (E, u64) = tree.decode(&message);
    if not_finite > 0 && terms.is_strict {
        return Finished::void(not_finite);
    }
    Finished {
        not_finite,
        ..Finished::new(result.settle().0, returned)
    }
}

struct Tree<'a> {
    terms: &'a Terms,
    k: u64,
    count: u64,
}

impl Tree<'_> {
    fn bytes(&self) -> u64 {
        HEADER + self.terms.pack.bytes(self.k)
    }

    /// A message, and what rounding left.
    fn encode<E: Entries>(&self, entries: &E, not_finite: u64) -> (Message, E) {
        let pack = self.terms.pack;
        let rounded = entries.rounded(pack, (0, self.count));
        let words = [entries.len(), not_finite];
        let mut data: Vec<u8> = words.iter().flat_map(|w| w.to_le_bytes()).collect();
        let body = entries.encode(pack).data;
        let is_size_only = (body.len() as u64) < pack.bytes(entries.len());
        data.extend(body);
        if !is_size_only {
            data.resize(self.bytes() as usize, 0);
        }
        let message = Message {
            data,
            bytes: self.bytes(),
            header_bytes: HEADER,
        };
        (message, entries.minus(&rounded))
    }

    /// Entries, and how many values were not finite.
    fn decode<E: Entries>(&self, message: &Message) -> (E, u64) {
        let word = |i: usize| u64::from_le_bytes(std::array::from_fn(|b| message.data[8 * i + b]));
        let count = word(0).min(self.k);
        let bytes = self.terms.pack.bytes(count);
        let from = HEADER as usize;
        let entries = Message {
            data: message
                .data
                .get(from..from + bytes as usize)
                .unwrap_or_default()
                .to_vec(),
            bytes,
            header_bytes: 0,
        };
        (
            E::decode(&entries, count, self.terms.pack, (0, self.count)),
            word(1),
        )
    }
}
