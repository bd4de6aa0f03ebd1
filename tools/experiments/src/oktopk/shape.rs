//! What the paper sends, and its formulas (Li and Hoefler, "Near-Optimal Sparse Allreduce for
//! Distributed Deep Learning", PPoPP 2022, Table 1).

use linerate::SparseOptions;
use linerate::options::{Algorithm, DsaVariant};
use linerate::unstable::sparse::{Machine, OkTopkState, Sized, Step, Support};
use linerate_job::fabric::{Network, Outcome, run};

/// Coordinates of a vector, and entries that are kept.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Shape {
    pub count: u64,
    pub k: u64,
}

/// BERT with density 1 %.
pub const BERT: Shape = Shape {
    count: 133_547_324,
    k: 1_335_473,
};

/// What is compared, as the paper names it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scheme {
    Dense,
    TopkA,
    TopkDsa,
    GTopk,
    Gaussiank,
    OkTopk,
}

impl Scheme {
    pub const ALL: [Scheme; 6] = [
        Scheme::Dense,
        Scheme::TopkA,
        Scheme::TopkDsa,
        Scheme::GTopk,
        Scheme::Gaussiank,
        Scheme::OkTopk,
    ];

    pub fn name(self) -> &'static str {
        match self {
            Scheme::Dense => "Dense",
            Scheme::TopkA => "TopkA",
            Scheme::TopkDsa => "TopkDSA",
            Scheme::GTopk => "gTopk",
            Scheme::Gaussiank => "Gaussiank",
            Scheme::OkTopk => "Ok-Topk",
        }
    }

    pub fn algorithm(self) -> Algorithm {
        match self {
            Scheme::Dense => Algorithm::Dense,
            Scheme::TopkA => Algorithm::TopkA,
            Scheme::TopkDsa => Algorithm::TopkDsa(DsaVariant::Split),
            Scheme::GTopk => Algorithm::GTopk,
            Scheme::Gaussiank => Algorithm::Gaussiank,
            Scheme::OkTopk => Algorithm::OkTopk,
        }
    }

    /// Words on the critical path, at least and at most.
    pub fn words(self, shape: Shape, ranks: u32) -> (f64, f64) {
        let (n, k, p) = (shape.count as f64, shape.k as f64, f64::from(ranks));
        let others = (p - 1.0) / p;
        let both = |words| (words, words);
        match self {
            Scheme::Dense => both(2.0 * n * others),
            Scheme::TopkA | Scheme::Gaussiank => both(2.0 * k * (p - 1.0)),
            Scheme::TopkDsa => (4.0 * k * others, (2.0 * k + n) * others),
            Scheme::GTopk => both(4.0 * k * rounds(ranks)),
            Scheme::OkTopk => (2.0 * k * others, 6.0 * k * others),
        }
    }

    /// Messages on the critical path.
    pub fn messages(self, ranks: u32) -> f64 {
        let (p, log) = (f64::from(ranks), rounds(ranks));
        match self {
            Scheme::TopkA => log,
            Scheme::Dense | Scheme::GTopk | Scheme::Gaussiank => 2.0 * log,
            Scheme::TopkDsa => p + 2.0 * log,
            Scheme::OkTopk => 2.0 * p + 2.0 * log,
        }
    }
}

/// Rounds of an algorithm that doubles its reach in each, for any number of ranks.
fn rounds(ranks: u32) -> f64 {
    f64::from(ranks.next_power_of_two().trailing_zeros())
}

/// A step of all ranks without values, each with k picks.
pub fn run_sized(
    scheme: Scheme,
    (shape, ranks): (Shape, u32),
    support: Support,
    state: &OkTopkState,
    network: Option<&mut Network>,
) -> Result<Outcome<Sized>, String> {
    let options = SparseOptions::default();
    let machine = |rank| {
        let step = Step {
            picks: Sized::new(0, shape.count, shape.k, support),
            not_finite: 0,
            count: shape.count,
            k: shape.k,
        };
        let place = (rank, ranks);
        Machine::new(scheme.algorithm(), &options, place, step, state.clone())
    };
    run((0..ranks).map(machine).collect(), network)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_formulas_give_the_published_volumes_of_bert() {
        let close = |found: f64, wanted: f64| {
            assert!((found / wanted - 1.0).abs() < 1e-3, "{found} {wanted}")
        };
        for (ranks, dense, gathered, dsa, gtopk, oktopk) in [
            (
                32,
                2.587e8,
                8.280e7,
                (5.175e6, 1.320e8),
                2.671e7,
                (2.587e6, 7.762e6),
            ),
            (
                256,
                2.661e8,
                6.811e8,
                (5.321e6, 1.357e8),
                4.274e7,
                (2.661e6, 7.982e6),
            ),
        ] {
            let of = |scheme: Scheme| scheme.words(BERT, ranks);
            close(of(Scheme::Dense).0, dense);
            close(of(Scheme::TopkA).0, gathered);
            close(of(Scheme::TopkDsa).0, dsa.0);
            close(of(Scheme::TopkDsa).1, dsa.1);
            close(of(Scheme::GTopk).1, gtopk);
            close(of(Scheme::OkTopk).0, oktopk.0);
            close(of(Scheme::OkTopk).1, oktopk.1);
        }
    }
}
