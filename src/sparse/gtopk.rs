//! gTopk: a binary tree of merges to rank 0, each keeping the k largest, and a binomial broadcast.
//!
//! What a merge drops returns to the residual of the rank that drops it, so that nothing is lost.
//! Messages have room for k entries, whatever they hold: 2k words once up and once down.
//!
//! No residual can hold a sum that is not finite. If such sums are only counted, every rank takes
//! back its own picks of their coordinates, and the tree begins anew without them.

use super::counters::Phase;
use super::entries::{Arrival, Entries};
use super::faults;
use super::io::Io;
use super::message::Message;
use super::step::{Finished, Step, Terms};
use crate::error::Result;
use crate::types::Rank;

/// Bytes before the entries: three words with the numbers of entries, of values of gradients that
/// are not finite, and of sums that are not.
const HEADER: u64 = 24;

pub(super) async fn run<E: Entries + Sync>(
    io: Io,
    step: Step<E>,
    terms: Terms,
) -> Result<Finished<E>> {
    let (mut picks, dropped) = step.picks.top(step.k);
    let mut returned = vec![dropped];
    let mut born = 0;
    loop {
        let mut tree = Tree {
            io: &io,
            terms: &terms,
            k: step.k,
            count: step.count,
            wild: step.not_finite,
            lost: Vec::new(),
            returned: Vec::new(),
        };
        let (message, distance) = tree.gather(picks.clone()).await?;
        let (result, wild, lost_count) = tree.scatter(message, distance).await?;
        born += lost_count;
        if wild + born > 0 && terms.is_strict {
            return Ok(Finished::void(wild + born));
        }
        if lost_count == 0 {
            returned.extend(tree.returned);
            return Ok(Finished {
                not_finite: wild + born,
                picks: step.picks,
                ..Finished::new(result.settle().0, returned)
            });
        }
        let lost = E::sum_of(&tree.lost, &io.spare());
        let apart = picks.common(&union(&io, &step, &terms, lost).await?);
        picks = picks.minus(&apart);
        returned.push(apart);
    }
}

/// The coordinates that any rank lost, at least one. None of them is picked in the next tree, so
/// there is a last tree.
async fn union<E: Entries>(io: &Io, step: &Step<E>, terms: &Terms, lost: E) -> Result<E> {
    let pack = terms.exact().pack;
    let own = [lost.len()];
    let sizes = io.gather_words(Phase::Sizes, own.to_vec()).await;
    let names = ["sums that are not finite"];
    faults::check_words(&sizes, (io.rank, &own), &names, |_, _| step.count)?;
    let bytes = sizes.iter().map(|size| pack.bytes(*size)).collect();
    let messages = (io.gather(Phase::Reduce, lost.encode(pack), bytes)).await;
    let parts = (0..).zip(messages.iter().zip(&sizes));
    let parts = parts.map(|(rank, (message, size))| {
        let arrival = Arrival {
            message,
            count: *size,
            pack,
            range: (0, step.count),
        };
        E::decode(arrival, &io.spare()).map_err(|cause| faults::of_rank(rank, cause))
    });
    let all = E::sum_of(&parts.collect::<Result<Vec<E>>>()?, &io.spare());
    match all.is_empty() {
        false => Ok(all),
        true => Err(faults::of_all(
            "sums are not finite, and no rank says which",
        )),
    }
}

/// One tree of merges, as a rank sees it.
struct Tree<'a, E> {
    io: &'a Io,
    terms: &'a Terms,
    k: u64,
    count: u64,
    /// Values that are not finite in the gradients of this rank and those below it.
    wild: u64,
    /// Sums that are not finite, by merge.
    lost: Vec<E>,
    returned: Vec<E>,
}

impl<E: Entries> Tree<'_, E> {
    /// Up the tree: rank r merges what r + 1, r + 2, r + 4, ... have, until it is its turn to send.
    /// Returns what this rank then has, and how far away the rank is that gets it.
    async fn gather(&mut self, mut own: E) -> Result<(Message, u32)> {
        let io = self.io;
        let (mut distance, mut lost_count) = (1, 0);
        while distance < io.ranks && io.rank.is_multiple_of(2 * distance) {
            let peer = io.rank + distance;
            if peer < io.ranks {
                let receives = vec![(peer, self.bytes())];
                let messages = io
                    .exchange(Phase::Reduce, Vec::new(), receives, HEADER)
                    .await;
                let (other, wild, lost) = self.decode(peer, &messages[0])?;
                (self.wild, lost_count) = (self.wild + wild, lost_count + lost);
                let (sum, lost) = E::sum_of(&[own, other], &io.spare()).settle();
                lost_count += lost.len();
                self.lost.push(lost);
                let (kept, dropped) = sum.top(self.k);
                self.returned.push(dropped);
                own = kept;
            }
            distance *= 2;
        }
        let (message, rounding) = self.encode(&own, lost_count);
        self.returned.push(rounding);
        if io.rank > 0 {
            let sends = vec![(io.rank - distance, message.clone())];
            io.exchange(Phase::Reduce, sends, Vec::new(), HEADER).await;
        }
        Ok((message, distance))
    }

    /// Passes the result down the tree. The root has rounded it, and ranks pass it on as it is.
    async fn scatter(&self, own: Message, mut distance: u32) -> Result<(E, u64, u64)> {
        let io = self.io;
        let (message, sender) = match io.rank {
            0 => (own, 0),
            rank => {
                let receives = vec![(rank - distance, self.bytes())];
                let mut messages = io
                    .exchange(Phase::Gather, Vec::new(), receives, HEADER)
                    .await;
                let message = messages.pop().expect("one message from one peer");
                (message, rank - distance)
            }
        };
        // It is checked before it is passed on: a rank that passes on a malformed message would be
        // taken for its author.
        let said = self.decode(sender, &message)?;
        while distance > 1 {
            distance /= 2;
            if io.rank + distance < io.ranks {
                let sends = vec![(io.rank + distance, message.clone())];
                io.exchange(Phase::Gather, sends, Vec::new(), HEADER).await;
            }
        }
        Ok(said)
    }

    fn bytes(&self) -> u64 {
        HEADER + self.terms.pack.bytes(self.k)
    }

    /// A message, and what rounding left.
    fn encode(&self, entries: &E, lost_count: u64) -> (Message, E) {
        let pack = self.terms.pack;
        let rounded = entries.rounded(pack, (0, self.count));
        let words = [entries.len(), self.wild, lost_count];
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
            ..Message::default()
        };
        (message, entries.minus(&rounded))
    }

    /// Entries, values of gradients that are not finite, and sums that are not.
    fn decode(&self, sender: Rank, message: &Message) -> Result<(E, u64, u64)> {
        let said = [0, 1, 2].map(|index| message.word(index));
        // Every merge loses k sums at most.
        let ranks = u64::from(self.io.ranks);
        let most = [
            self.k,
            self.count.saturating_mul(ranks),
            self.k.saturating_mul(ranks),
        ];
        if said.iter().zip(most).any(|(said, most)| *said > most) {
            return Err(faults::of_rank(
                sender,
                format_args!(
                    "it says {said:?} entries, values and sums that are not finite, where at most {most:?} can be"
                ),
            ));
        }
        let bytes = self.terms.pack.bytes(said[0]);
        let arrival = Arrival {
            message: &message.part(HEADER, bytes),
            count: said[0],
            pack: self.terms.pack,
            range: (0, self.count),
        };
        let entries =
            E::decode(arrival, &self.io.spare()).map_err(|cause| faults::of_rank(sender, cause))?;
        Ok((entries, said[1], said[2]))
    }
}
