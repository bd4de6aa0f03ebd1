//! [`Header`]: what each rank says of its snapshot, and [`RoundReport`]: what follows from all of
//! them.

use super::ranks::RankSet;
use crate::error::{Error, Result};
use crate::types::Rank;
use std::fmt;

/// Bytes of a header.
pub const HEADER_BYTES: usize = 32;

const ACTIVE: u64 = 1;
const LAST: u64 = 2;
const HELD: u64 = 4;

/// One rank's snapshot of a round.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Header {
    /// Which round.
    pub round: u64,
    /// Whether the rank's own generation of the round had come.
    pub is_active: bool,
    /// Whether the rank has entered the round by finishing.
    pub is_last: bool,
    /// Whether the round was activated and waited for this rank, because of the bound of staleness.
    pub is_held: bool,
    /// The first generation in it.
    pub first_generation: u64,
    /// How many follow each other, the first included; 0: it holds nothing.
    pub generations: u64,
}

impl Header {
    /// As words.
    pub fn emit(&self) -> [u64; HEADER_BYTES / 8] {
        let flag = |is_set: bool, bit| if is_set { bit } else { 0 };
        let flags =
            flag(self.is_active, ACTIVE) | flag(self.is_last, LAST) | flag(self.is_held, HELD);
        [self.round, flags, self.first_generation, self.generations]
    }

    /// Parses words of a peer. [`RoundReport::of`] checks what they say.
    pub fn parse(words: [u64; HEADER_BYTES / 8]) -> Header {
        let [round, flags, first_generation, generations] = words;
        Header {
            round,
            is_active: flags & ACTIVE != 0,
            is_last: flags & LAST != 0,
            is_held: flags & HELD != 0,
            first_generation,
            generations,
        }
    }

    /// Whether the rank contributes.
    pub fn is_included(&self) -> bool {
        self.generations > 0
    }
}

/// Why a round did not begin with its first arrival.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Waited {
    /// It did, or waited for what its policy says.
    #[default]
    Policy,
    /// It was one that waits for all: full, every limiter-th, or the last.
    Full,
    /// For ranks that would have fallen behind by more than the bound of staleness
    /// ([`RoundReport::held`]).
    Staleness,
}

/// What a round was: the same on all ranks. As text, one line:
///
/// ```
/// use linerate::reports::RankSet;
/// use linerate::reports::RoundReport;
/// let report = RoundReport {
///     round: 7,
///     active: RankSet::all_but(4, &[3]),
///     included: RankSet::all_but(4, &[]),
///     staleness: vec![3, 0, 1],
///     divisor: 4,
///     ..RoundReport::default()
/// };
/// assert_eq!(
///     report.to_string(),
///     "round 7: 3 active (0-2), 4 included (0-3), generations by staleness [3, 0, 1], divided by 4"
/// );
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RoundReport {
    /// Its number. With merged or latest delivery: of the newest round in it.
    pub round: u64,
    /// Rounds in this result or skipped by it: 1 with ordered delivery.
    pub rounds: u64,
    /// Ranks whose generation of the round was there in time. Quorums and the number of active
    /// processes count these.
    pub active: RankSet,
    /// Ranks that contributed anything, late gradients included.
    pub included: RankSet,
    /// Ranks for which the round waited because of the bound of staleness.
    pub held: RankSet,
    /// Ranks that had died, and took no part.
    pub dead: RankSet,
    /// How many generations the sum has, by staleness, up to the greatest staleness.
    pub staleness: Vec<u64>,
    /// Why it waited.
    pub waited: Waited,
    /// What the sum was divided by; 1 if by nothing.
    pub divisor: u64,
    /// Whether it was the round of [`finish`](crate::comm::PartialAllreduce::finish).
    pub is_last: bool,
}

impl fmt::Display for RoundReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "round {}: {} active ({}), {} included ({}), generations by staleness {:?}, divided by {}",
            self.round,
            self.active.count(),
            self.active,
            self.included.count(),
            self.included,
            self.staleness,
            self.divisor
        )?;
        match self.waited {
            Waited::Policy => {}
            Waited::Full => f.write_str(", waited for all")?,
            Waited::Staleness => write!(f, ", waited for stale ranks {}", self.held)?,
        }
        if self.dead.count() > 0 {
            write!(f, ", dead {}", self.dead)?;
        }
        match self.is_last {
            true => f.write_str(", the last"),
            false => Ok(()),
        }
    }
}

impl RoundReport {
    /// The report of the headers of the ranks that take part: these of this many, ascending.
    /// `bound` is that of staleness.
    ///
    /// # Errors
    /// [`Error::Malformed`] for headers of another round or with generations that cannot be;
    /// [`Error::InvalidArgument`] if some ranks have finished and others have not.
    pub(crate) fn of(
        round: u64,
        (ranks, live): (u32, &[Rank]),
        headers: &[Header],
        is_full: bool,
        bound: Option<u32>,
    ) -> Result<RoundReport> {
        let mut report = RoundReport {
            round,
            rounds: 1,
            active: RankSet::new(ranks),
            included: RankSet::new(ranks),
            held: RankSet::new(ranks),
            dead: RankSet::new(ranks),
            divisor: 1,
            is_last: headers[0].is_last,
            ..RoundReport::default()
        };
        if live.len() < ranks as usize {
            report.dead = RankSet::all_but(ranks, live);
        }
        for (header, &rank) in headers.iter().zip(live) {
            report.add(header, rank, (live[0], bound))?;
        }
        report.waited = match (report.held.count(), is_full || report.is_last) {
            (0, false) => Waited::Policy,
            (_, true) => Waited::Full,
            (_, false) => Waited::Staleness,
        };
        Ok(report)
    }

    /// Number of active ranks: NAP, as published.
    pub fn active_count(&self) -> u32 {
        self.active.count()
    }

    /// Generations in the sum.
    pub fn generations(&self) -> u64 {
        self.staleness.iter().sum()
    }

    /// Adds the header of a rank. The header of rank `first` said whether this is the last round.
    fn add(
        &mut self,
        header: &Header,
        rank: Rank,
        (first, bound): (Rank, Option<u32>),
    ) -> Result<()> {
        let round = self.round;
        if header.is_last != self.is_last {
            let (last, other) = match header.is_last {
                true => (rank, first),
                false => (first, rank),
            };
            return Err(Error::invalid(format!(
                "rank {last} has finished its partial allreduce in round {round} and rank {other} has submitted a gradient: \
                 all ranks finish after the same number of submits"
            )));
        }
        let end = header.first_generation.checked_add(header.generations);
        let oldest = bound.map_or(0, |bound| round.saturating_sub(u64::from(bound)));
        let is_possible = header.generations == 0
            || (header.first_generation >= oldest && end.is_some_and(|end| end <= round + 1));
        if header.round != round || !is_possible {
            return Err(Error::Malformed(format!(
                "rank {rank} has {header:?} in round {round} of a partial allreduce: ranks may differ in their version of linerate"
            )));
        }
        if header.is_active {
            self.active.insert(rank);
        }
        if header.is_held {
            self.held.insert(rank);
        }
        if header.is_included() {
            self.included.insert(rank);
            let stalest = (round - header.first_generation) as usize;
            if self.staleness.len() <= stalest {
                self.staleness.resize(stalest + 1, 0);
            }
            for generation in header.first_generation..header.first_generation + header.generations
            {
                self.staleness[(round - generation) as usize] += 1;
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn header(first_generation: u64, generations: u64) -> Header {
        Header {
            round: 9,
            is_active: first_generation.wrapping_add(generations) == 10,
            first_generation,
            generations,
            ..Header::default()
        }
    }

    #[test]
    fn headers_come_back_as_they_went() {
        let all = Header {
            round: 1 << 40,
            is_active: true,
            is_last: true,
            is_held: true,
            first_generation: 7,
            generations: 3,
        };
        assert_eq!(Header::parse(all.emit()), all);
        assert_eq!(Header::parse(Header::default().emit()), Header::default());
    }

    #[test]
    fn a_report_counts_every_generation_by_its_staleness() {
        let headers = [header(9, 1), header(6, 4), header(0, 0), header(7, 1)];
        let report = RoundReport::of(9, (4, &[0, 1, 2, 3]), &headers, false, Some(3)).unwrap();
        assert_eq!(report.staleness, [2, 1, 2, 1]);
        assert_eq!(report.generations(), 6);
        assert_eq!(report.active.iter().collect::<Vec<_>>(), [0, 1]);
        assert_eq!(report.included.iter().collect::<Vec<_>>(), [0, 1, 3]);
        assert_eq!(report.waited, Waited::Policy);
    }

    #[test]
    fn headers_that_cannot_be_are_refused() {
        let refused = |bad: Header, bound| {
            RoundReport::of(9, (2, &[0, 1]), &[header(9, 1), bad], false, bound).is_err()
        };
        assert!(refused(header(5, 1), Some(3)), "staler than the bound");
        assert!(!refused(header(5, 1), None));
        assert!(refused(header(8, 3), None), "of the future");
        assert!(refused(header(u64::MAX, 1), None));
        assert!(refused(
            Header {
                round: 8,
                ..header(0, 0)
            },
            None
        ));
        let last = Header {
            is_last: true,
            ..header(0, 0)
        };
        let text = RoundReport::of(9, (5, &[0, 3]), &[header(9, 1), last], false, None)
            .unwrap_err()
            .to_string();
        assert!(
            text.contains("rank 3 has finished") && text.contains("rank 0 has submitted"),
            "{text}"
        );
    }
}
