//! Ok-Topk (Li and Hoefler): split and reduce by regions, select globally, gather.
//!
//! 1. At a repartition, boundaries are found such that all regions get equally many picks.
//! 2. Each rank tells its sizes to the others, and sends its picks to the owners of their regions:
//!    in buckets of four messages, more where those are short. The next bucket is under way while
//!    the one before is added.
//! 3. Sizes and states of the sums are gathered: from here on all know whether the step counts, and
//!    how many non-zeros the sum has.
//! 4. The global threshold is used again, or the one of its neighbours that selects nearest to k
//!    (their counts travel with the sizes), while that is about k. Else histograms give the exact
//!    k-th. Both depend only on what all ranks have.
//! 5. The selected entries are spread evenly if they lie too unevenly, and gathered.
//!
//! The part of a pick that is not in the result returns.

use super::balance;
use super::counters::Phase;
use super::entries::{Arrival, Entries, Pack, Term};
use super::faults;
use super::foresight::Foresight;
use super::format::ValueFormat;
use super::global::{kth_largest, ties_of};
use super::io::Io;
use super::message::Message;
use super::options::{Mode, Regions};
use super::regions;
use super::spare::Spare;
use super::state::OkTopkState;
use super::step::{Finished, Step, Terms};
use super::threshold::{Steepness, Tracker, is_within};
use crate::error::Result;
use crate::types::Rank;

/// Messages of one bucket at least.
const BUCKET: u32 = 4;

pub(super) async fn run<E: Entries + Sync>(
    io: Io,
    step: Step<E>,
    terms: Terms,
    state: OkTopkState,
) -> Result<Finished<E>> {
    let mut next = state.clone();
    let options = &terms.options;
    let is_due = state.steps.is_multiple_of(options.repartition_steps);
    if is_due || state.is_forced || state.bounds.len() != io.ranks as usize + 1 {
        // Equal regions need no communication, and do not change.
        next.bounds = regions::cut(&io, &step.picks, step.count, options.regions).await?;
    }
    let split = split(&io, &step, &terms, &next.bounds).await?;
    let received = split.received;
    let (reduced, wild) = split.sum.settle();
    let not_finite = step.not_finite + wild.len();

    let guess = state.guess(options);
    let mut own = guess.map_or(Vec::new(), |thresholds| reduced.counts_from(thresholds));
    let guesses = own.len();
    own.extend([reduced.len(), received, not_finite]);
    let states = io.gather_words(Phase::Sizes, own.clone()).await;
    check_states(&states, (io.rank, &own), &step, &next.bounds)?;
    let column = |c: usize| states.iter().skip(c).step_by(own.len()).copied();
    let (lengths, loads) = (guesses, guesses + 1);
    let not_finite = column(guesses + 2).sum();
    if not_finite > 0 && terms.is_strict {
        return Ok(Finished {
            state: Some(state),
            ..Finished::void(not_finite)
        });
    }
    let nnz: u64 = column(lengths).sum();
    next.is_forced =
        options.regions == Regions::Balanced && column(loads).any(|r| 2 * r > 3 * step.k);
    next.steps += 1;
    let foresight = next.foresight.take();

    let is_paper = options.mode == Mode::Paper;
    let totals: Vec<u64> = (0..guesses).map(|guess| column(guess).sum()).collect();
    let guess = guess.map(|thresholds| match is_paper {
        // The published code knows one threshold.
        true => thresholds.middle(&totals),
        false => thresholds.nearest(&totals, step.k),
    });
    let result = match guess {
        None if is_paper => {
            let all = gather(&io, &step, &terms, reduced, column(lengths).collect()).await?;
            let (result, _) = all.0.top(step.k);
            next.tracker = Some(Tracker::found(state.tracker, least_of(&result)));
            // If a sum is not in the result, its picks return, so that its rounding does not count.
            let rounding = all.1.common(&result);
            (result, rounding)
        }
        Some((place, bits, total)) if is_paper || is_within(total, step.k, nnz) => {
            next.tracker = (state.tracker).map(|tracker| {
                let used = tracker.with(bits);
                used.followed(total, step.k, Steepness::Global)
            });
            let spare = io.spare();
            let chosen = reduced.select((bits - 1, 0), own[place], &spare);
            reduced.recycle(&spare);
            gather(&io, &step, &terms, chosen, column(place).collect()).await?
        }
        _ => {
            let (chosen, sizes, least) =
                select_exactly(&io, &step, reduced, foresight, (nnz, column(lengths))).await?;
            next.foresight = Some(Foresight::found(foresight, least.max(1)));
            next.tracker = Some(Tracker::found(state.tracker, least.max(1)));
            gather(&io, &step, &terms, chosen, sizes).await?
        }
    };
    // An entry that was rounded to zero is in the result all the same: its owner has the rounding.
    let (result, rounding) = result;
    let mut returned = vec![rounding];
    let result = match &split.applied {
        // Owners have sent no zeros, and nothing was rounded on the way.
        None => result,
        Some(applied) => {
            returned.push(step.picks.returned(applied, &result, &io.spare()));
            result.settle().0
        }
    };
    Ok(Finished {
        not_finite,
        reduced: Some(nnz),
        state: Some(next),
        picks: step.picks,
        is_rest_returned: split.applied.is_none(),
        ..Finished::new(result, returned)
    })
}

/// What ranks said of their regions: no more than those have coordinates.
fn check_states<E>(
    states: &[u64],
    own: (Rank, &[u64]),
    step: &Step<E>,
    bounds: &[u64],
) -> Result<()> {
    let guesses = own.1.len() - 3;
    let mut names = vec!["entries above a threshold"; guesses];
    names.extend([
        "non-zeros",
        "entries received",
        "values that are not finite",
    ]);
    let width = |rank: Rank| bounds[rank as usize + 1] - bounds[rank as usize];
    let loads = guesses + 1;
    faults::check_words(states, own, &names, |rank, column| match column {
        _ if column < loads => width(rank),
        _ if column == loads => width(rank).saturating_mul(bounds.len() as u64),
        _ => step.count + width(rank),
    })
}

/// What the split gives.
pub(super) struct Split<E> {
    /// This rank's picks as their receivers see them, if rounding changes them.
    pub applied: Option<E>,
    /// The sum over this rank's region.
    pub sum: E,
    /// Entries that came for it.
    pub received: u64,
}

/// A rank's part of a sum.
enum Part<E> {
    /// This rank's, which lies among its picks.
    Own,
    Entries(E),
    /// A message as it came, and its number of entries.
    Message(Message, u64),
}

/// A sum in rank order: the parts that have come, by rank, and the sum of those that are added.
struct RankOrderSum<'a, E> {
    picks: &'a E,
    /// The region.
    range: (u64, u64),
    pack: Pack,
    spare: &'a Spare,
    sum: E,
    parts: Vec<Option<Part<E>>>,
    next: usize,
}

impl<E: Entries> RankOrderSum<'_, E> {
    /// Adds the next parts as far as they have come without a gap. No message is kept after that.
    fn go_on(&mut self) -> Result<()> {
        let ready = |part: &Option<Part<E>>| part.is_some();
        let begin = self.next;
        let end = begin + self.parts[begin..].iter().take_while(|p| ready(p)).count();
        let is_alone = self.sum.is_empty() && matches!(self.parts[begin..end], [Some(Part::Own)]);
        // This rank's part alone would only be copied: it waits for the next part.
        if begin < end && !(is_alone && end < self.parts.len()) {
            let spare = self.spare;
            let sum = std::mem::replace(&mut self.sum, E::empty(0, 0));
            let mut terms = vec![Term::Here(&sum, self.range)];
            let parts = self.parts[begin..end].iter().flatten();
            terms.extend(parts.map(|part| self.term(part)));
            let added = E::sum(&terms, spare);
            // The first term is the sum so far.
            let rank = |number: usize| (begin + number - 1) as Rank;
            self.sum = added.map_err(|(number, cause)| faults::of_rank(rank(number), cause))?;
            sum.recycle(spare);
            self.next = end;
            for part in self.parts[begin..end].iter_mut().filter_map(Option::take) {
                if let Part::Entries(entries) = part {
                    entries.recycle(spare);
                }
            }
        }
        self.keep()
    }

    /// Turns messages whose turn has not come into entries.
    fn keep(&mut self) -> Result<()> {
        for rank in self.next..self.parts.len() {
            let Some(Part::Message(message, count)) = &self.parts[rank] else {
                continue;
            };
            let arrival = self.arrival(message, *count);
            let entries = E::decode(arrival, self.spare)
                .map_err(|cause| faults::of_rank(rank as Rank, cause))?;
            self.parts[rank] = Some(Part::Entries(entries));
        }
        Ok(())
    }

    fn term<'b>(&'b self, part: &'b Part<E>) -> Term<'b, E> {
        match part {
            Part::Own => Term::Here(self.picks, self.range),
            Part::Entries(entries) => Term::Here(entries, self.range),
            Part::Message(message, count) => Term::Come(self.arrival(message, *count)),
        }
    }

    fn arrival<'b>(&self, message: &'b Message, count: u64) -> Arrival<'b> {
        Arrival {
            message,
            count,
            pack: self.pack,
            range: self.range,
        }
    }
}

/// Sends this rank's picks to the owners of their regions, and adds up the picks of all ranks in
/// its own region.
pub(super) async fn split<E: Entries + Sync>(
    io: &Io,
    step: &Step<E>,
    terms: &Terms,
    bounds: &[u64],
) -> Result<Split<E>> {
    let (rank, p) = (io.rank, io.ranks);
    let range = |r: Rank| (bounds[r as usize], bounds[r as usize + 1]);
    let mine = range(rank);
    let spare = io.spare();
    let below: Vec<u64> = bounds.iter().map(|b| step.picks.below(*b)).collect();
    let places = |r: Rank| (below[r as usize], below[r as usize + 1]);
    let lengths: Vec<u64> = below.windows(2).map(|b| b[1] - b[0]).collect();
    let own = lengths[rank as usize];
    let sizes = io.all_to_all(Phase::Sizes, lengths.clone()).await;
    let names = ["entries for a region"];
    faults::check_words(&sizes, (rank, &[own]), &names, |_, _| mine.1 - mine.0)?;
    let mut ordered = RankOrderSum {
        picks: &step.picks,
        range: mine,
        pack: terms.pack,
        spare: &spare,
        sum: E::empty(mine.0, mine.1),
        parts: (0..p).map(|_| None).collect(),
        next: 0,
    };
    ordered.parts[rank as usize] = Some(Part::Own);
    let to = |j: &u32| (rank + p - j) % p;
    let from = |j: &u32| (rank + j) % p;
    let load = |j: u32| (lengths[to(&j) as usize], sizes[from(&j) as usize]);
    let mut first = 1;
    while first < p {
        let steps: Vec<u32> = (first..bucket_end(first, p, load)).collect();
        let sends = steps.iter().map(|j| {
            let message = (step.picks).encode_slice(places(to(j)), terms.pack, &spare);
            (to(j), message)
        });
        let receives = steps
            .iter()
            .map(|j| (from(j), terms.pack.bytes(sizes[from(j) as usize])));
        io.start_exchange(Phase::Reduce, sends.collect(), receives.collect())
            .await;
        ordered.go_on()?;
        let mut messages = io.wait(Phase::Reduce, 0).await.into_iter();
        for peer in steps.iter().map(from) {
            let size = sizes[peer as usize];
            ordered.parts[peer as usize] = Some(match size {
                0 => Part::Entries(E::empty(mine.0, mine.1)),
                _ => {
                    let message = messages.next();
                    Part::Message(message.expect("one from each peer that has any"), size)
                }
            });
        }
        ordered.go_on()?;
        first += steps.len() as u32;
    }
    // With a single rank there were no exchanges.
    ordered.go_on()?;
    let received = sizes.iter().sum::<u64>() - sizes[rank as usize];
    let sum = ordered.sum;
    let applied = || {
        let part = |r| step.picks.slice(places(r).0, places(r).1);
        let rounded = (0..p).map(|r| match r == rank {
            true => part(r),
            false => part(r).rounded(terms.pack, range(r)),
        });
        E::concat(rounded.collect()).expect("parts by region")
    };
    Ok(Split {
        applied: (terms.pack.values != ValueFormat::F32).then(applied),
        sum,
        received,
    })
}

/// Where the bucket ends that begins with a step: after at least four messages that together have
/// half of a bucket's share of what this rank sends, and of what it receives. If a rank waited for
/// nearly empty messages before it sends a long one, its delay would go on from rank to rank. Ranks
/// need not agree, because the rank that is furthest behind waits for steps that all others have
/// begun. Where all messages are about equally long they do agree, so no rank waits for a peer's
/// next bucket.
fn bucket_end(first: u32, ranks: u32, load: impl Fn(u32) -> (u64, u64)) -> u32 {
    let add = |a: (u64, u64), b: (u64, u64)| (a.0 + b.0, a.1 + b.1);
    let total = (1..ranks).map(&load).fold((0, 0), add);
    let buckets = u64::from((ranks - 1).div_ceil(BUCKET));
    let has_share = |loaded: u64, total: u64| 2 * buckets * loaded >= total;
    let mut loaded = (0, 0);
    for step in first..ranks {
        loaded = add(loaded, load(step));
        let is_long = step + 1 - first >= BUCKET;
        if is_long && has_share(loaded.0, total.0) && has_share(loaded.1, total.1) {
            return step + 1;
        }
    }
    ranks
}

/// Selects the first k of all entries in the total order, which should lie where they are foreseen.
/// Returns this rank's, the sizes of all ranks, and the least magnitude.
async fn select_exactly<E: Entries>(
    io: &Io,
    step: &Step<E>,
    reduced: E,
    foresight: Option<Foresight>,
    (nnz, lengths): (u64, impl Iterator<Item = u64>),
) -> Result<(E, Vec<u64>, u32)> {
    if nnz <= step.k {
        return Ok((reduced, lengths.collect(), 1));
    }
    let spare = io.spare();
    // Those that may be among the first k of all. All ranks foresee the same, so that they count
    // the same entries.
    let near = foresight.and_then(|foresight| reduced.near(foresight.floor(), &spare));
    let (kth, reduced) = match near {
        Some(near) => match kth_largest(io, &near, step.k).await {
            Some(kth) => {
                reduced.recycle(&spare);
                (Some(kth), near)
            }
            None => (kth_largest(io, &reduced, step.k).await, reduced),
        },
        None => (kth_largest(io, &reduced, step.k).await, reduced),
    };
    let kth = kth.ok_or_else(|| {
        faults::of_all(format_args!(
            "ranks said to have {nnz} non-zeros, and count fewer than {} by their magnitudes",
            step.k
        ))
    })?;
    let own = [kth.above, kth.tied];
    let counts = io.gather_words(Phase::Sizes, own.to_vec()).await;
    let names = ["entries above the k-th", "entries as large as the k-th"];
    faults::check_words(&counts, (io.rank, &own), &names, |_, _| step.count)?;
    let taken = ties_of(counts.iter().skip(1).step_by(2).copied(), kth.ties);
    let sizes: Vec<u64> = (counts.iter().step_by(2).zip(&taken))
        .map(|(a, t)| a + t)
        .collect();
    let ties = taken[io.rank as usize];
    let chosen = reduced.select((kth.least, ties), kth.above + ties, &spare);
    reduced.recycle(&spare);
    let total: u64 = sizes.iter().sum();
    if total != step.k {
        return Err(faults::of_all(format_args!(
            "ranks select {total} entries together instead of {}",
            step.k
        )));
    }
    Ok((chosen, sizes, kth.least))
}

/// Gathers the entries of all ranks. Returns them, and what rounding left of this rank's block.
async fn gather<E: Entries>(
    io: &Io,
    step: &Step<E>,
    terms: &Terms,
    chosen: E,
    mut sizes: Vec<u64>,
) -> Result<(E, E)> {
    let mut block = chosen;
    if balance::is_to_spread(&sizes, terms.options.balance, terms.prices) {
        block = balance::spread(io, block, &sizes, terms.pack, step.count).await?;
        sizes = balance::blocks(sizes.iter().sum(), io.ranks);
    }
    gather_blocks(io, (block, sizes), terms, step.count).await
}

/// Gathers blocks of these sizes, which their senders round. An entry that is rounded to zero stays
/// in the result.
async fn gather_blocks<E: Entries>(
    io: &Io,
    (block, sizes): (E, Vec<u64>),
    terms: &Terms,
    count: u64,
) -> Result<(E, E)> {
    let spare = io.spare();
    let own: Message = block.encode_slice((0, block.len()), terms.pack, &spare);
    let bytes = sizes.iter().map(|s| terms.pack.bytes(*s)).collect();
    let messages = io.gather(Phase::Gather, own, bytes).await;
    let mut result = E::with_room(sizes.iter().sum(), &spare);
    for (rank, (message, size)) in (0..).zip(messages.into_iter().zip(&sizes)) {
        let before = result.len();
        let arrival = Arrival {
            message: &message,
            count: *size,
            pack: terms.pack,
            range: (0, count),
        };
        result
            .decode_onto(arrival)
            .map_err(|cause| faults::of_rank(rank, cause))?;
        let is_behind =
            before == 0 || *size == 0 || result.index_at(before - 1) < result.index_at(before);
        if !is_behind {
            let cause = "its entries do not lie behind those of the rank before";
            return Err(faults::of_rank(rank, cause));
        }
        // Owners leave out sums that are not finite, or all ranks give up the step.
        let wild = result.wild_from(before);
        if wild > 0 {
            let cause = format_args!("{wild} of its selected sums are not finite");
            return Err(faults::of_rank(rank, cause));
        }
    }
    let rounding = match terms.pack.values {
        ValueFormat::F32 => E::empty(0, count),
        _ => block.minus(&block.rounded(terms.pack, (0, count))),
    };
    block.recycle(&spare);
    Ok((result, rounding))
}

/// The least magnitude of entries, found by bisection.
fn least_of<E: Entries>(entries: &E) -> u32 {
    let (mut low, mut high) = (1, f32::MAX.to_bits());
    while low < high {
        let middle = low + (high - low).div_ceil(2);
        match entries.count_from(middle) == entries.len() {
            true => low = middle,
            false => high = middle - 1,
        }
    }
    low
}
