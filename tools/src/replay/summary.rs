//! [`Step`] and [`Summary`]: the numbers of a replay, from the times of all ranks. Pure.
//!
//! A time is that of the slowest rank, measured from the barrier before the backward pass:
//!
//! - *ready*: a flush has its last gradient; *start* and *end*: its allreduce begins and ends.
//! - *exposed*: from the end of the backward pass until all gradients are reduced.
//! - *overlap*: the share of the communication time before the end of the backward pass.
//! - *busbw*: all bytes times 2(P-1)/P, by the time in which an allreduce was under way.
//! - *scaling factor*: `batch / (batch + exposed)`.
//! - *last flush alone*: the last flush as a blocking call with nothing to hide behind
//!   (`alone.rs`). A step can expose less only by what it prepares before its last gradient is
//!   there.

use super::alone::Alone;
use linerate::reports::StepReport;
use linerate::transport::Time;
use std::time::Duration;

/// Words of a rank's step before those of its flushes; see [`encode`].
const HEADER_WORDS: usize = 9;

/// Words of a flush: ready, start, end. After those of all flushes comes one per gradient: ready.
const FLUSH_WORDS: usize = 3;

/// One step on all ranks.
#[derive(Clone, Debug)]
pub struct Step {
    /// Start of the backward pass on rank 0, since the start of the first step.
    pub begin: Time,
    /// Per rank, with times since the start of the backward pass.
    pub ranks: Vec<StepReport>,
    /// Per rank and gradient: when it was announced, since the start of the backward pass.
    pub gradients: Vec<Vec<Time>>,
    /// The slowest rank's times.
    pub slowest: StepReport,
    /// Its last flush by itself, from the latest start on a rank to the latest end; zero if it had
    /// none.
    pub alone: Duration,
    /// How long the threads of a rank were ready to run and had no processor; the longest of all
    /// ranks.
    pub waited: Duration,
    /// Elements whose sum was wrong, on all ranks.
    pub wrong: u64,
    /// How long processors ran the threads of all ranks, from the barrier until all was reduced.
    pub processor: Duration,
    /// How long the computation took while no rank communicated, on the slowest rank; zero where
    /// nothing could delay it.
    pub computed_alone: Duration,
}

/// What a rank sees of a step beside the report of its fusion.
#[derive(Clone, Copy, Default)]
pub struct Seen {
    /// Its last flush by itself.
    pub alone: Alone,
    /// How long its threads were ready to run and had no processor.
    pub waited: Duration,
    /// Elements whose sum was wrong.
    pub wrong: u64,
    /// How long processors ran its threads.
    pub processor: Duration,
    /// How long its computation took by itself.
    pub computed_alone: Duration,
}

/// What one rank tells the others of a step; `origin` is the start of its backward pass, `first`
/// that of its first step, and `ready` when it announced each gradient.
pub fn encode(
    report: &StepReport,
    ready: &[Time],
    origin: Time,
    first: Time,
    seen: Seen,
) -> Vec<u64> {
    let since = |time: Time| time.since(origin).as_nanos() as u64;
    let mut words = vec![
        origin.since(first).as_nanos() as u64,
        since(report.backward_end),
        since(report.done),
        seen.wrong + seen.alone.wrong,
        seen.alone.start.0,
        seen.alone.end.0,
        seen.waited.as_nanos() as u64,
        seen.processor.as_nanos() as u64,
        seen.computed_alone.as_nanos() as u64,
    ];
    for flush in &report.flushes {
        words.extend([flush.ready, flush.start, flush.end].map(since));
    }
    words.extend(ready.iter().map(|time| since(*time)));
    words
}

/// The step from the words of all ranks, each of `gradients_count` gradients; `own` has what all
/// ranks have in common.
pub fn decode(words: &[u64], own: &StepReport, gradients_count: usize) -> Step {
    let flushes_end = HEADER_WORDS + FLUSH_WORDS * own.flushes.len();
    let words_per_rank = flushes_end + gradients_count;
    let decode_rank = |words: &[u64]| {
        let mut report = own.clone();
        (report.begin, report.backward_end, report.done) =
            (Time(0), Time(words[1]), Time(words[2]));
        let times = words[HEADER_WORDS..flushes_end].chunks_exact(FLUSH_WORDS);
        for (flush, times) in report.flushes.iter_mut().zip(times) {
            (flush.ready, flush.start, flush.end) =
                (Time(times[0]), Time(times[1]), Time(times[2]));
        }
        report
    };
    let ranks: Vec<_> = words
        .chunks_exact(words_per_rank)
        .map(decode_rank)
        .collect();
    let mut slowest = ranks[0].clone();
    for rank in &ranks[1..] {
        slowest.backward_end = slowest.backward_end.max(rank.backward_end);
        slowest.done = slowest.done.max(rank.done);
        for (all, one) in slowest.flushes.iter_mut().zip(&rank.flushes) {
            all.ready = all.ready.max(one.ready);
            all.start = all.start.max(one.start);
            all.end = all.end.max(one.end);
        }
    }
    let latest = |word: usize| {
        let of_ranks = words.chunks_exact(words_per_rank).map(|rank| rank[word]);
        Time(of_ranks.max().unwrap_or(0))
    };
    let sum = |word: usize| -> u64 {
        let of_ranks = words.chunks_exact(words_per_rank).map(|rank| rank[word]);
        of_ranks.sum()
    };
    Step {
        begin: Time(words[0]),
        alone: latest(5).since(latest(4)),
        waited: Duration::from_nanos(latest(6).0),
        wrong: sum(3),
        processor: Duration::from_nanos(sum(7)),
        computed_alone: Duration::from_nanos(latest(8).0),
        gradients: (words.chunks_exact(words_per_rank))
            .map(|rank| rank[flushes_end..].iter().copied().map(Time).collect())
            .collect(),
        ranks,
        slowest,
    }
}

/// The measured numbers of one step.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Summary {
    /// Forward pass plus everything until all gradients are reduced, in ms.
    pub step_ms: f64,
    /// Communication time that the backward pass did not hide, in ms.
    pub exposed_ms: f64,
    /// Hidden share of the communication time, 0 to 1.
    pub overlap: f64,
    /// Bus bandwidth in GB/s (1e9); 0 for one rank.
    pub busbw: f64,
    /// `batch / (batch + exposed)`.
    pub scaling_factor: f64,
}

/// The numbers of a step, with the batch and forward times in ms.
pub fn summarise(step: &StepReport, ranks: u32, batch_ms: f64, forward_ms: f64) -> Summary {
    let exposed_ms = step.exposed().as_secs_f64() * 1e3;
    let bytes: u64 = step.flushes.iter().map(|f| f.bytes).sum();
    let total_ms = batch_ms + exposed_ms;
    Summary {
        step_ms: forward_ms + step.done.0 as f64 / 1e6,
        exposed_ms,
        overlap: step.overlap(),
        busbw: busbw(bytes, ranks, step.communication().as_secs_f64()),
        scaling_factor: if total_ms > 0.0 {
            batch_ms / total_ms
        } else {
            1.0
        },
    }
}

/// Bus bandwidth of an allreduce in GB/s.
pub fn busbw(bytes: u64, ranks: u32, seconds: f64) -> f64 {
    if seconds <= 0.0 {
        return 0.0;
    }
    let ranks = f64::from(ranks);
    bytes as f64 * 2.0 * (ranks - 1.0) / ranks / seconds / 1e9
}

/// Position of the step with the median exposed time (the lower of two).
pub fn median_step(steps: &[Step]) -> usize {
    let mut order: Vec<_> = (0..steps.len()).collect();
    order.sort_by_key(|&index| steps[index].slowest.exposed());
    order[(order.len() - 1) / 2]
}

/// The median of the times that the last flushes took by themselves (the lower of two).
pub fn median_alone(steps: &[Step]) -> Duration {
    let mut times: Vec<_> = steps.iter().map(|step| step.alone).collect();
    times.sort();
    times[(times.len() - 1) / 2]
}

/// The share of the steps' time for which the rank that waited most had no processor.
pub fn waited_share(steps: &[Step]) -> f64 {
    let waited: Duration = steps.iter().map(|step| step.waited).sum();
    let all: u64 = steps.iter().map(|step| step.slowest.done.0).sum();
    waited.as_secs_f64() * 1e9 / all.max(1) as f64
}

/// The exposed time over that of the last flush alone; `None` if there was no flush.
pub fn exposed_to_alone(exposed_ms: f64, alone: Duration) -> Option<f64> {
    (!alone.is_zero()).then(|| exposed_ms / (alone.as_secs_f64() * 1e3))
}

#[cfg(test)]
mod tests {
    use super::*;
    use linerate::DataType;
    use linerate::reports::FlushReport;

    fn report(offset: u64, spans: &[(u64, u64, u64)], end: u64, done: u64) -> StepReport {
        let flush = |&(ready, start, end): &(u64, u64, u64)| FlushReport {
            dtype: DataType::F32,
            bytes: 1_000_000,
            tensors: vec![0],
            ready: Time(offset + ready),
            start: Time(offset + start),
            end: Time(offset + end),
        };
        StepReport {
            flushes: spans.iter().map(flush).collect(),
            backward_end: Time(offset + end),
            done: Time(offset + done),
            ..StepReport::default()
        }
    }

    #[test]
    fn the_slowest_rank_counts_and_clocks_need_no_common_origin() {
        let a = report(1000, &[(1, 5, 20), (30, 31, 60)], 40, 70);
        let b = report(77, &[(2, 4, 25), (29, 33, 50)], 41, 65);
        let seen = |wrong, (start, end, wrong_alone), waited| Seen {
            alone: Alone {
                start: Time(start),
                end: Time(end),
                wrong: wrong_alone,
            },
            waited: Duration::from_nanos(waited),
            wrong,
            processor: Duration::from_nanos(2 * waited),
            computed_alone: Duration::from_nanos(end),
        };
        let mut words = encode(
            &a,
            &[Time(1007)],
            Time(1000),
            Time(900),
            seen(1, (10, 32, 0), 6),
        );
        words.extend(encode(
            &b,
            &[Time(80)],
            Time(77),
            Time(0),
            seen(2, (12, 30, 4), 14),
        ));
        let step = decode(&words, &a, 1);
        assert_eq!(
            (step.begin, step.wrong, step.ranks.len()),
            (Time(100), 7, 2)
        );
        assert_eq!(step.alone, Duration::from_nanos(20));
        assert_eq!(step.waited, Duration::from_nanos(14));
        assert_eq!(
            step.processor,
            Duration::from_nanos(12 + 28),
            "of all ranks"
        );
        assert_eq!(step.computed_alone, Duration::from_nanos(32));
        assert_eq!(step.ranks[1].flushes[1].start, Time(33));
        assert_eq!(step.gradients, [[Time(7)], [Time(3)]]);
        assert_eq!(
            step.slowest.flushes,
            report(0, &[(2, 5, 25), (30, 33, 60)], 0, 0).flushes
        );
        assert_eq!(
            (step.slowest.backward_end, step.slowest.done),
            (Time(41), Time(70))
        );
    }

    #[test]
    fn numbers_follow_their_definitions() {
        const MS: u64 = 1_000_000;
        let step = report(
            0,
            &[(0, 10 * MS, 20 * MS), (0, 40 * MS, 50 * MS)],
            45 * MS,
            55 * MS,
        );
        let numbers = summarise(&step, 4, 90.0, 45.0);
        assert_eq!(numbers.exposed_ms, 10.0);
        assert_eq!(numbers.step_ms, 100.0);
        assert_eq!(numbers.scaling_factor, 0.9);
        assert_eq!(numbers.overlap, 0.75);
        // 2 MB x 1.5 in 20 ms.
        assert!((numbers.busbw - 0.15).abs() < 1e-12);
        assert_eq!(busbw(1 << 20, 1, 1.0), 0.0);
    }

    #[test]
    fn a_step_without_time_has_factor_one() {
        let numbers = summarise(&StepReport::default(), 1, 0.0, 0.0);
        assert_eq!((numbers.scaling_factor, numbers.busbw), (1.0, 0.0));
    }

    #[test]
    fn the_median_is_a_step_that_was_measured() {
        let step = |exposed| {
            let report = report(0, &[], 0, exposed);
            let alone = Alone {
                end: Time(2 * exposed),
                ..Alone::default()
            };
            let seen = Seen {
                alone,
                waited: Duration::from_nanos(exposed / 5),
                ..Seen::default()
            };
            decode(&encode(&report, &[], Time(0), Time(0), seen), &report, 0)
        };
        assert_eq!(median_step(&[step(30), step(10), step(20)]), 2);
        assert_eq!(median_step(&[step(30), step(10)]), 1);
        assert_eq!(median_step(&[step(5)]), 0);
        let alone = median_alone(&[step(30), step(10), step(20)]);
        assert_eq!(alone, Duration::from_nanos(40));
        assert_eq!(exposed_to_alone(30e-6, alone), Some(0.75));
        assert_eq!(exposed_to_alone(1.0, Duration::ZERO), None);
        assert_eq!(waited_share(&[step(30), step(10), step(20)]), 0.2);
        assert_eq!(waited_share(&[]), 0.0);
    }
}
