//! What a rank selects by itself, from step to step.

use crate::kernel;
use crate::kernel::reduce;
use crate::kernel::select::Source;
use crate::memory::Region;
use crate::prng::Prng;
use crate::sparse::local::Selected;
use crate::sparse::{Algorithm, LocalSelection, Mode, NonFinite, SparseOptions};
use crate::types::{Combine, DataType, Finish};

const COUNT: usize = 40_000;
const K: u64 = 400;

/// A rank by itself: picks leave its residual.
struct Alone {
    residual: Region,
    gradient: Region,
    selection: LocalSelection,
    options: SparseOptions,
    algorithm: Algorithm,
}

impl Alone {
    fn new(algorithm: Algorithm, mode: Mode, non_finite: NonFinite) -> Alone {
        Alone {
            residual: Region::private(4 * COUNT).unwrap(),
            gradient: Region::private(4 * COUNT).unwrap(),
            selection: LocalSelection::default(),
            options: SparseOptions {
                mode,
                non_finite,
                ..SparseOptions::default()
            },
            algorithm,
        }
    }

    fn step(&mut self, gradient: &[f32]) -> Selected {
        let bytes = 4 * COUNT;
        kernel::write(self.gradient.view(), 0, bytemuck::cast_slice(gradient));
        let (residual, gradient) = (
            self.residual.view().part(0, bytes),
            self.gradient.view().part(0, bytes),
        );
        let sources = [(Source::sum(residual, gradient), Source::of(residual))];
        let selected = (self.selection).select(&sources, K, self.algorithm, &self.options);
        if self.options.non_finite != NonFinite::Count {
            let views = [residual, gradient];
            reduce(
                DataType::F32,
                Combine::Sum,
                Finish::None,
                &views,
                &[residual],
            );
        }
        for index in &selected.picks.indices {
            kernel::store(residual, *index as usize, 0f32);
        }
        selected
    }
}

/// Sums of four uniform numbers: the tails end at 2.
fn gradient(prng: &mut Prng, scale: f32) -> Vec<f32> {
    let mut one = || {
        (0..4)
            .map(|_| prng.below(1 << 16) as f32 / 65536.0)
            .sum::<f32>()
            - 2.0
    };
    (0..COUNT).map(|_| one() * scale).collect()
}

#[test]
fn adding_in_the_same_pass_selects_the_same() {
    for algorithm in [Algorithm::OkTopk, Algorithm::GTopk] {
        for mode in [Mode::Exact, Mode::Threshold] {
            let mut apart = Alone::new(algorithm, mode, NonFinite::Error);
            let mut at_once = Alone::new(algorithm, mode, NonFinite::Count);
            let mut prng = Prng::new(7);
            // The threshold of the step before selects about k, all, next to nothing, and, where
            // all is zero, nothing.
            for scale in [1.0, 1.0, 1.0, 1e6, 1.0, 1e-6, 1.0, 0.0, 1e9, 1.0, 1.0] {
                let gradient = gradient(&mut prng, scale);
                let (a, b) = (apart.step(&gradient), at_once.step(&gradient));
                assert_eq!(a.picks, b.picks, "{algorithm} {mode:?} {scale}");
                assert_eq!(a.is_evaluated, b.is_evaluated);
                assert_eq!(apart.selection, at_once.selection);
            }
            // What is not finite is not added, and not selected.
            let mut wild = gradient(&mut prng, 1.0);
            (wild[5], wild[77]) = (f32::NAN, f32::INFINITY);
            let got = at_once.step(&wild);
            assert_eq!(got.not_finite, 2);
            assert!(got.picks.values.iter().all(|value| value.is_finite()));
        }
    }
}

#[test]
fn gaussiank_selects_about_k_where_the_published_corrections_jump_over_it() {
    let off = |mode| {
        let mut rank = Alone::new(Algorithm::Gaussiank, mode, NonFinite::Error);
        let mut prng = Prng::new(3);
        let counts = (0..12).map(|_| rank.step(&gradient(&mut prng, 1.0)).picks.indices.len());
        let is_off = |count: &usize| 3 * count < 2 * K as usize || 3 * count > 4 * K as usize;
        counts.filter(is_off).count()
    };
    assert_eq!(off(Mode::Exact), 0);
    assert!(off(Mode::Paper) > 0);
    // No threshold selects a part of what is all equal: the first k do.
    let mut rank = Alone::new(Algorithm::Gaussiank, Mode::Exact, NonFinite::Error);
    let picks = rank.step(&vec![1.0; COUNT]).picks;
    assert_eq!(picks.indices, (0..K).collect::<Vec<u64>>());
}
