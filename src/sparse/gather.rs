//! TopkA, TopkA2 and Gaussiank: every rank gets the picks of all ranks and adds them in rank order.
//!
//! Gaussiank differs in how picks are selected, not in how they travel: numbers of picks may differ
//! between ranks. TopkA2 keeps the k largest of the sum, and picks that are not among them return.

use super::counters::Phase;
use super::entries::{Arrival, Entries, Term};
use super::faults;
use super::io::Io;
use super::step::{Finished, Step, Terms};
use crate::error::Result;
use crate::types::Rank;

pub(super) async fn run<E: Entries + Sync>(
    io: Io,
    step: Step<E>,
    terms: Terms,
    is_cut: bool,
) -> Result<Finished<E>> {
    let own = vec![step.picks.len(), step.not_finite];
    let states = io.gather_words(Phase::Sizes, own.clone()).await;
    let names = ["entries", "values that are not finite"];
    faults::check_words(&states, (io.rank, &own), &names, |_, _| step.count)?;
    let sizes: Vec<u64> = states.iter().step_by(2).copied().collect();
    let mut not_finite: u64 = states.iter().skip(1).step_by(2).sum();
    if not_finite > 0 && terms.is_strict {
        return Ok(Finished::void(not_finite));
    }
    let message = step.picks.encode(terms.pack);
    let bytes = sizes.iter().map(|s| terms.pack.bytes(*s)).collect();
    let messages = io.gather(Phase::Gather, message, bytes).await;
    let range = (0, step.count);
    let applied = step.picks.rounded(terms.pack, range);
    let parts = (0..).zip(messages.iter().zip(&sizes));
    let parts: Vec<Term<E>> = parts
        .map(|(rank, (message, size))| match rank == io.rank {
            true => Term::Here(&applied, range),
            false => Term::Come(Arrival {
                message,
                count: *size,
                pack: terms.pack,
                range,
            }),
        })
        .collect();
    let spare = io.spare();
    let sum = E::sum(&parts, &spare);
    let sum = sum.map_err(|(rank, cause)| faults::of_rank(rank as Rank, cause))?;
    let (result, wild) = sum.settle();
    not_finite += wild.len();
    if not_finite > 0 && terms.is_strict {
        // All ranks come to this: they have added the same terms.
        return Ok(Finished::void(not_finite));
    }
    if is_cut {
        let reduced = Some(result.len());
        let (result, _) = result.top(step.k);
        let returned = vec![step.picks.returned(&applied, &result, &spare)];
        return Ok(Finished {
            not_finite,
            reduced,
            picks: step.picks,
            ..Finished::new(result, returned)
        });
    }
    // All picks took part, also those whose sum is zero; where a sum is not finite they return.
    let rounding = step.picks.minus(&applied);
    let returned = vec![rounding, applied.common(&wild)];
    Ok(Finished {
        not_finite,
        reduced: Some(result.len()),
        picks: step.picks,
        ..Finished::new(result, returned)
    })
}
