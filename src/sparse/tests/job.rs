//! A job of ranks with residuals over many steps, checked at each: conservation in integers, the
//! same result everywhere, nothing twice, and the volume rules of the paper.

use super::memory;
use crate::kernel;
use crate::kernel::select::Source;
use crate::memory::Region;
use crate::sparse::{
    Algorithm, Entries, Finished, LocalSelection, Machine, Mode, OkTopkState, Phase, Regions,
    SparseOptions, Step, Stream,
};

pub struct Rank {
    residual: Region,
    gradient: Region,
    selection: LocalSelection,
    pub state: OkTopkState,
}

pub struct Job {
    pub ranks: Vec<Rank>,
    pub count: usize,
    pub k: u64,
    pub algorithm: Algorithm,
    pub options: SparseOptions,
    /// The sum of all gradients so far less all results.
    owed: Vec<f64>,
    seed: u64,
}

/// What a step gave.
pub struct Outcome {
    pub picks: Vec<Stream>,
    pub finished: Vec<Finished<Stream>>,
}

impl Outcome {
    pub fn result(&self) -> &Stream {
        &self.finished[0].result
    }

    pub fn dense(&self, count: usize) -> Vec<f32> {
        let mut dense = vec![0.0; count];
        for (index, value) in self.result().indices.iter().zip(&self.result().values) {
            dense[*index as usize] = *value;
        }
        dense
    }
}

impl Job {
    pub fn new(
        ranks: usize,
        count: usize,
        k: u64,
        algorithm: Algorithm,
        options: SparseOptions,
    ) -> Job {
        let zeros = || Region::private((4 * count).max(1)).unwrap();
        let rank = |_| Rank {
            residual: zeros(),
            gradient: zeros(),
            selection: LocalSelection::default(),
            state: OkTopkState::default(),
        };
        Job {
            ranks: (0..ranks).map(rank).collect(),
            count,
            k: k.max(1).min(count as u64),
            algorithm,
            options,
            owed: vec![0.0; count],
            seed: 1,
        }
    }

    pub fn residual(&self, rank: usize) -> Vec<f32> {
        let mut values = vec![0f32; self.count];
        kernel::read(
            self.ranks[rank].residual.view(),
            0,
            bytemuck::cast_slice_mut(&mut values),
        );
        values
    }

    /// One step without checks.
    pub fn step_unchecked(&mut self, gradients: &[Vec<f32>]) -> Outcome {
        self.seed += 1;
        let bytes = 4 * self.count;
        let (mut machines, mut picks) = (Vec::new(), Vec::new());
        let before: Vec<LocalSelection> = self.ranks.iter().map(|r| r.selection.clone()).collect();
        for (rank, gradient) in gradients.iter().enumerate() {
            let r = &mut self.ranks[rank];
            kernel::write(r.gradient.view(), 0, bytemuck::cast_slice(gradient));
            let (a, b) = (
                r.residual.view().part(0, bytes),
                r.gradient.view().part(0, bytes),
            );
            let sources = [(Source::sum(a, b), Source::of(a))];
            let selected = r
                .selection
                .select(&sources, self.k, self.algorithm, &self.options);
            picks.push(selected.picks.clone());
            let step = Step {
                picks: selected.picks,
                not_finite: selected.not_finite,
                count: self.count as u64,
                k: self.k,
            };
            let place = (rank as u32, gradients.len() as u32);
            machines.push(Machine::new(
                self.algorithm,
                &self.options,
                place,
                step,
                r.state.clone(),
            ));
        }
        let finished = memory::run(machines, self.seed);
        for (rank, finished) in finished.iter().enumerate() {
            let r = &mut self.ranks[rank];
            if let Some(state) = &finished.state {
                r.state = state.clone();
            }
            if finished.is_void {
                r.selection = before[rank].clone();
            } else {
                commit(r, &picks[rank], finished, self.options.non_finite);
            }
        }
        Outcome { picks, finished }
    }

    pub fn set_seed(&mut self, seed: u64) {
        self.seed = seed;
    }

    /// One step of integers, with every check but that of volume.
    pub fn step_unbounded(&mut self, gradients: &[Vec<f32>]) -> Outcome {
        let outcome = self.step_unchecked(gradients);
        self.check(gradients, &outcome);
        outcome
    }

    /// One step of integers, with every check.
    pub fn step(&mut self, gradients: &[Vec<f32>]) -> Outcome {
        let outcome = self.step_unbounded(gradients);
        if self.algorithm == Algorithm::OkTopk {
            let what = self.what();
            self.check_volume(&outcome, &what);
        }
        outcome
    }

    fn what(&self) -> String {
        let (algorithm, ranks) = (self.algorithm, self.ranks.len());
        format!(
            "{algorithm} of {ranks} ranks, {} coordinates, k {}",
            self.count, self.k
        )
    }

    fn check(&mut self, gradients: &[Vec<f32>], outcome: &Outcome) {
        for gradient in gradients {
            self.owed
                .iter_mut()
                .zip(gradient)
                .for_each(|(o, g)| *o += f64::from(*g));
        }
        for (index, value) in outcome
            .result()
            .indices
            .iter()
            .zip(&outcome.result().values)
        {
            self.owed[*index as usize] -= f64::from(*value);
        }
        let what = self.what();
        let mut kept = vec![0.0; self.count];
        for rank in 0..self.ranks.len() {
            let residual = self.residual(rank);
            kept.iter_mut()
                .zip(residual)
                .for_each(|(k, r)| *k += f64::from(r));
        }
        assert_eq!(
            kept, self.owed,
            "{what}: residuals are not what the results leave"
        );
        for finished in &outcome.finished {
            assert_eq!(
                finished.result,
                *outcome.result(),
                "{what}: ranks have different results"
            );
        }
        let result = outcome.result();
        assert!(
            result.indices.windows(2).all(|w| w[0] < w[1]),
            "{what}: indices"
        );
        assert!(
            result.values.iter().all(|v| *v != 0.0),
            "{what}: a zero in the result"
        );
    }

    fn check_volume(&self, outcome: &Outcome, what: &str) {
        let p = self.ranks.len() as u64;
        let nnz = outcome.finished[0].reduced.unwrap();
        let selected = outcome.result().len();
        match self.options.mode {
            Mode::Threshold => {
                let least = self.k.div_ceil(2).min(nnz);
                assert!(
                    (least..=2 * self.k).contains(&selected),
                    "{what}: {selected} of {nnz}"
                );
            }
            _ => assert_eq!(selected, self.k.min(nnz), "{what}: entries of the result"),
        }
        let picked = outcome.picks.iter().map(Stream::len).max().unwrap();
        let k = self.k.max(picked).max(selected);
        let (mut sent, mut received, mut all) = (0, 0, 0);
        for (finished, picks) in outcome.finished.iter().zip(&outcome.picks) {
            let reduce = finished.counters.of(Phase::Reduce);
            assert!(
                reduce.data_words_sent <= 2 * picks.len(),
                "{what}: more than the picks"
            );
            if finished.state.as_ref().unwrap().steps % self.options.repartition_steps == 1
                && self.options.regions == Regions::Balanced
            {
                assert!(
                    reduce.data_words_received <= 2 * (k + p),
                    "{what}: {reduce:?}"
                );
            }
            let balance = finished.counters.of(Phase::Balance);
            assert!(
                balance.data_words_received <= 2 * selected.div_ceil(p),
                "{what}: {balance:?}"
            );
            let total = finished.counters.total();
            assert!(
                total.data_words_sent <= 6 * k + 2 * p,
                "{what}: sent {total:?}"
            );
            (sent, received) = (
                sent + reduce.data_words_sent,
                received + reduce.data_words_received,
            );
            all += total.data_words_received;
        }
        assert_eq!(sent, received, "{what}: words of the split");
        assert!(received <= 2 * picked * p, "{what}: words of the split");
        assert!(all <= p * (6 * k + 2 * p), "{what}: mean of words received");
    }
}

/// The residual after a step: the accumulator, zero at the picks, plus what returned.
fn commit(
    rank: &mut Rank,
    picks: &Stream,
    finished: &Finished<Stream>,
    policy: crate::sparse::NonFinite,
) {
    let (a, b) = (rank.residual.view(), rank.gradient.view());
    if policy != crate::sparse::NonFinite::Count {
        for index in 0..a.len_bytes() / 4 {
            kernel::store(
                a,
                index,
                kernel::load::<f32>(a, index) + kernel::load::<f32>(b, index),
            );
        }
    }
    for index in &picks.indices {
        kernel::store(a, *index as usize, 0f32);
    }
    for list in &finished.all_returned() {
        for (index, value) in list.indices.iter().zip(&list.values) {
            let index = *index as usize;
            kernel::store(a, index, kernel::load::<f32>(a, index) + value);
        }
    }
}
