//! [`Machine`]: one rank's part of one step, of any algorithm.

use super::choose::Prices;
use super::entries::{Entries, Pack};
use super::io::{Action, Arrived, Io};
use super::options::{Algorithm, DsaVariant, NonFinite, SparseOptions};
use super::spare::Spare;
use super::state::OkTopkState;
use super::step::{Finished, Step, Terms};
use super::{dsa, gather, gtopk, oktopk};
use crate::error::{Error, Result};
use crate::types::Rank;
use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll, Waker};

type Run<E> = Pin<Box<dyn Future<Output = Result<Finished<E>>> + Send>>;

/// One rank's part of one step.
pub struct Machine<E> {
    io: Io,
    run: Option<Run<E>>,
    finished: Option<Finished<E>>,
    failure: Option<Error>,
}

impl<E: Entries + Sync> Machine<E> {
    /// A machine at its beginning. `state` is what Ok-Topk's last step gave.
    ///
    /// # Panics
    /// If the algorithm is dense, which has no picks, or auto, which the caller resolves.
    pub fn new(
        algorithm: Algorithm,
        options: &SparseOptions,
        place: (Rank, u32),
        step: Step<E>,
        state: OkTopkState,
    ) -> Machine<E> {
        let prices = Prices::default();
        Machine::with_prices((algorithm, prices), options, place, step, state)
    }

    /// A machine whose messages have these prices, by which [`super::Balance::Cost`] decides. They
    /// are equal on all ranks.
    ///
    /// # Panics
    /// As [`Machine::new`].
    pub fn with_prices(
        (algorithm, prices): (Algorithm, Prices),
        options: &SparseOptions,
        (rank, ranks): (Rank, u32),
        step: Step<E>,
        state: OkTopkState,
    ) -> Machine<E> {
        // Sums of counts over all ranks stay below count * ranks.
        let is_wide = step.count.saturating_mul(ranks.into()) > u64::from(u32::MAX);
        let io = Io::new(rank, ranks, is_wide);
        let terms = Terms {
            pack: Pack {
                values: options.values,
                is_wide: options.indices.is_wide(step.count),
            },
            is_strict: options.non_finite != NonFinite::Count,
            options: options.clone(),
            prices,
        };
        let own = io.clone();
        let run: Run<E> = match algorithm {
            Algorithm::OkTopk => Box::pin(oktopk::run(own, step, terms, state)),
            Algorithm::TopkA | Algorithm::TopkA2 | Algorithm::Gaussiank => {
                let is_cut = algorithm == Algorithm::TopkA2;
                Box::pin(gather::run(own, step, terms, is_cut))
            }
            Algorithm::TopkDsa(DsaVariant::RecursiveDoubling) => {
                Box::pin(dsa::run_doubling(own, step, terms))
            }
            Algorithm::TopkDsa(variant) => Box::pin(dsa::run_split(own, step, terms, variant)),
            Algorithm::GTopk => Box::pin(gtopk::run(own, step, terms)),
            Algorithm::Dense | Algorithm::Auto => {
                panic!("{algorithm} has no machine: the caller runs or chooses it")
            }
        };
        Machine {
            io,
            run: Some(run),
            finished: None,
            failure: None,
        }
    }

    /// Takes memory from here, and gives back there what it no longer needs. To be called at the
    /// beginning; else memory comes from the system.
    pub fn reuse(&mut self, spare: &Spare) {
        self.io.reuse(spare.clone());
    }

    /// Goes on with what arrived, and says what is wanted next. [`Arrived::Nothing`] at the
    /// beginning and after [`Action::Start`].
    ///
    /// # Panics
    /// After [`Action::Done`], or if something else arrived than was asked for.
    pub fn next(&mut self, arrived: Arrived) -> Action {
        self.io.put(arrived);
        let run = self.run.as_mut().expect("a machine that has not ended");
        match run.as_mut().poll(&mut Context::from_waker(Waker::noop())) {
            Poll::Pending => {
                (self.io.take()).expect("a machine that waits has asked for something")
            }
            Poll::Ready(end) => {
                self.run = None;
                match end {
                    Ok(mut finished) => {
                        finished.counters = self.io.counters();
                        self.finished = Some(finished);
                    }
                    Err(error) => self.failure = Some(error),
                }
                Action::Done
            }
        }
    }

    /// Why there is no result after [`Action::Done`]: a peer's words or entries are not what they
    /// can be. The peer is named if it alone has sent them. Other ranks may not have noticed and
    /// wait for this one: the communicator has failed.
    pub fn failure(&self) -> Option<&Error> {
        self.failure.as_ref()
    }

    /// The result, after [`Action::Done`]; none after a failure.
    pub fn finish(self) -> Option<Finished<E>> {
        self.finished
    }
}
