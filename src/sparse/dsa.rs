//! TopkDSA (SparCML): the whole sum of the picks to everybody, by split and gather or by recursive
//! doubling.
//!
//! Nothing is selected from the sum, so that its fill-in decides between sparse and dense messages.
//! Sums that are not finite travel as such, because every rank with a pick there must know.

use super::counters::Phase;
use super::entries::{Arrival, Entries};
use super::faults;
use super::format::ValueFormat;
use super::io::Io;
use super::message::Message;
use super::options::DsaVariant;
use super::step::{Finished, Step, Terms};
use super::{oktopk, regions};
use crate::error::Result;
use crate::types::Rank;

pub(super) async fn run_split<E: Entries + Sync>(
    io: Io,
    step: Step<E>,
    terms: Terms,
    variant: DsaVariant,
) -> Result<Finished<E>> {
    let bounds = regions::equal(step.count, io.ranks);
    let split = oktopk::split(&io, &step, &terms, &bounds).await?;
    let (applied, sum) = (split.applied.as_ref().unwrap_or(&step.picks), split.sum);
    let (clean, wild) = sum.clone().settle();
    let own = vec![clean.len() + wild.len(), step.not_finite + wild.len()];
    let states = io.gather_words(Phase::Sizes, own.clone()).await;
    let names = ["non-zeros", "values that are not finite"];
    let range = |r: usize| (bounds[r], bounds[r + 1]);
    let width = |r: Rank| range(r as usize).1 - range(r as usize).0;
    faults::check_words(&states, (io.rank, &own), &names, |r, column| {
        width(r) + if column == 0 { 0 } else { step.count }
    })?;
    let sizes: Vec<u64> = states.iter().step_by(2).copied().collect();
    let not_finite: u64 = states.iter().skip(1).step_by(2).sum();
    if not_finite > 0 && terms.is_strict {
        return Ok(Finished::void(not_finite));
    }
    let nnz: u64 = sizes.iter().sum();
    let is_dense = match variant {
        DsaVariant::Small => false,
        DsaVariant::Big => true,
        _ => terms.options.switch.is_dense(nnz, step.count),
    };
    // Sums of zero are gone, sums that are not finite are not.
    let block = E::sum_of(&[clean, wild], &io.spare());
    let (message, bytes): (Message, Vec<u64>) = match is_dense {
        true => {
            let dense = |r| terms.pack.dense_bytes(range(r).1 - range(r).0);
            let own = block.encode_dense(range(io.rank as usize), terms.pack);
            (own, (0..sizes.len()).map(dense).collect())
        }
        false => {
            let bytes = sizes.iter().map(|s| terms.pack.bytes(*s));
            (block.encode(terms.pack), bytes.collect())
        }
    };
    let messages = io.gather(Phase::Gather, message, bytes).await;
    let decode = |(r, message): (usize, &Message)| {
        match is_dense {
            true => E::decode_dense(message, range(r), terms.pack),
            false => {
                let arrival = Arrival {
                    message,
                    count: sizes[r],
                    pack: terms.pack,
                    range: range(r),
                };
                E::decode(arrival, &io.spare())
            }
        }
        .map_err(|cause| faults::of_rank(r as Rank, cause))
    };
    let blocks = messages.iter().enumerate().map(decode);
    let blocks: Vec<E> = blocks.collect::<Result<_>>()?;
    let received = blocks[io.rank as usize].clone();
    let (result, wild) = E::concat(blocks).expect("blocks by region").settle();
    // Where the sum is not finite, every rank takes its own picks back.
    let mut returned = vec![step.picks.minus(applied), applied.common(&wild)];
    // What rounding takes from this rank's block returns, too.
    returned.push(block.settle().0.minus(&received));
    Ok(Finished {
        not_finite,
        reduced: Some(nnz),
        picks: step.picks,
        ..Finished::new(result, returned)
    })
}

/// Recursive doubling: in each round two groups of ranks exchange their sums, and groups double.
/// The first power of two of the P ranks take part; each of the others hands its picks to one of
/// those before the rounds, and gets the sum after them.
pub(super) async fn run_doubling<E: Entries + Sync>(
    io: Io,
    step: Step<E>,
    terms: Terms,
) -> Result<Finished<E>> {
    let core = 1 << io.ranks.ilog2();
    let mut partial = Partial {
        sum: step.picks.clone(),
        not_finite: step.not_finite,
        returned: Vec::new(),
        count: step.count,
    };
    // All ranks of a group have the same sum: one of them keeps what rounding takes from it.
    let half = |distance: u32| io.rank.is_multiple_of(distance);
    if io.rank >= core {
        partial
            .swap(&io, &terms, (Some(io.rank - core), None), true)
            .await?;
    } else if io.rank + core < io.ranks {
        let (own, other) = partial
            .swap(&io, &terms, (None, Some(io.rank + core)), true)
            .await?;
        partial.sum = E::sum_of(&[own, other], &io.spare());
    }
    let mut distance = 1;
    while io.rank < core && distance < core {
        let peer = io.rank ^ distance;
        let peers = (Some(peer), Some(peer));
        let (own, other) = partial.swap(&io, &terms, peers, half(distance)).await?;
        partial.sum = match io.rank < peer {
            true => E::sum_of(&[own, other], &io.spare()),
            false => E::sum_of(&[other, own], &io.spare()),
        };
        distance *= 2;
    }
    let exact = terms.exact();
    if io.rank < core && io.rank + core < io.ranks {
        partial
            .swap(&io, &exact, (Some(io.rank + core), None), false)
            .await?;
    } else if io.rank >= core {
        partial.not_finite = 0;
        partial.sum = E::empty(0, step.count);
        partial.sum = partial
            .swap(&io, &exact, (None, Some(io.rank - core)), false)
            .await?
            .1;
    }
    let (result, wild) = partial.sum.settle();
    let not_finite = partial.not_finite + wild.len();
    if not_finite > 0 && terms.is_strict {
        return Ok(Finished::void(not_finite));
    }
    let mut returned = partial.returned;
    returned.push(step.picks.common(&wild));
    Ok(Finished {
        not_finite,
        reduced: Some(result.len()),
        picks: step.picks,
        ..Finished::new(result, returned)
    })
}

/// A sum on its way.
struct Partial<E> {
    sum: E,
    not_finite: u64,
    returned: Vec<E>,
    count: u64,
}

impl<E: Entries> Partial<E> {
    /// Sends the sum to one peer and receives that of another, sizes first; both are dense if their
    /// lengths together say so. Returns the own sum as the peer sees it, and the other one. With
    /// `is_keeper` the difference that rounding makes returns to this rank.
    async fn swap(
        &mut self,
        io: &Io,
        terms: &Terms,
        (to, from): (Option<Rank>, Option<Rank>),
        is_keeper: bool,
    ) -> Result<(E, E)> {
        let (clean, wild) = self.sum.clone().settle();
        let own = E::sum_of(&[clean, wild], &io.spare());
        const HEADER: u64 = 16;
        let words = [own.len(), self.not_finite];
        let header = Message {
            data: words.iter().flat_map(|w| w.to_le_bytes()).collect(),
            bytes: HEADER,
            header_bytes: HEADER,
            ..Message::default()
        };
        let sends = to.map(|to| (to, header)).into_iter().collect();
        let receives = from.map(|from| (from, HEADER)).into_iter().collect();
        let headers = io.exchange(Phase::Sizes, sends, receives, HEADER).await;
        let (mut theirs, mut wild) = (0, 0);
        if let Some(header) = headers.first() {
            (theirs, wild) = (header.word(0), header.word(1));
        }
        let peer = from.or(to).unwrap_or(io.rank);
        self.check_header(io, peer, (theirs, wild))?;
        self.not_finite += wild;
        // If only one side sends, it does not know the other's length: the length of what is sent
        // decides.
        let length = |own: u64, theirs: u64| match (to, from) {
            (Some(_), Some(_)) => own + theirs,
            (Some(_), None) => own,
            _ => theirs,
        };
        let is_dense = (terms.options.switch).is_dense(length(own.len(), theirs), self.count);
        let range = (0, self.count);
        let bytes = match is_dense {
            true => terms.pack.dense_bytes(self.count),
            false => terms.pack.bytes(theirs),
        };
        let message = match is_dense {
            true => own.encode_dense(range, terms.pack),
            false => own.encode(terms.pack),
        };
        let decode = |message: &Message, count| match is_dense {
            true => E::decode_dense(message, range, terms.pack),
            false => {
                let arrival = Arrival {
                    message,
                    count,
                    pack: terms.pack,
                    range,
                };
                E::decode(arrival, &io.spare())
            }
        };
        let is_exact = to.is_none() || terms.pack.values == ValueFormat::F32;
        let seen = match is_exact {
            true => own.clone(),
            false => decode(&message, own.len()).expect("what this rank has encoded itself"),
        };
        if is_keeper && !is_exact {
            self.returned.push(own.minus(&seen));
        }
        let sends = to.map(|to| (to, message)).into_iter().collect();
        let receives = from.map(|from| (from, bytes)).into_iter().collect();
        let messages = io.exchange(Phase::Reduce, sends, receives, 0).await;
        let other = match messages.first() {
            None => E::empty(0, self.count),
            Some(message) => {
                decode(message, theirs).map_err(|cause| faults::of_rank(peer, cause))?
            }
        };
        Ok((seen, other))
    }

    fn check_header(&self, io: &Io, peer: Rank, (entries, wild): (u64, u64)) -> Result<()> {
        let most = (self.count, self.count.saturating_mul(io.ranks.into()));
        if entries > most.0 || wild > most.1 {
            return Err(faults::of_rank(
                peer,
                format_args!(
                    "it says {entries} entries and {wild} values that are not finite, where at most {} and {} can be",
                    most.0, most.1
                ),
            ));
        }
        Ok(())
    }
}
