//! Whether peers fetch the caller's memory out of this rank's address space, or this rank stages it: decided by a measurement
//! when a rank joins, unless the settings say.
//!
//! What is compared is how long one rank is busy with a megabyte. Staging copies it twice, but where every rank has a core
//! the two copies run at the same time; fetching copies it once, through the kernel.

use crate::config::{Config, CrossMemory};
use crate::engine::Clock;
use crate::memory::{Region, View};
use crate::transport::Transport;
use crate::transport::shm::fetch_own;
use crate::types::Rank;

/// More than a core's own cache holds, of most cores, and little enough not to delay the start: about a millisecond.
const MEASURED_BYTES: usize = 1 << 20;
/// As messages are cut.
const PIECE_BYTES: usize = 256 << 10;
/// The best counts.
const PASSES: usize = 3;

/// Settings that say `on` or `off`, and why, for people.
pub(super) fn settle(config: Config, ranks: u32, clock: &Clock) -> (Config, String) {
    let (cma, why) = match config.cma {
        CrossMemory::On => (
            CrossMemory::On,
            "by LINERATE_CMA where it is allowed".into(),
        ),
        CrossMemory::Off => (CrossMemory::Off, "not, by LINERATE_CMA".into()),
        CrossMemory::Auto => {
            let cores = std::thread::available_parallelism().map_or(1, usize::from);
            let copies = if ranks as usize <= cores { 1.0 } else { 2.0 };
            decide(measure(clock), copies)
        }
    };
    (Config { cma, ..config }, why)
}

/// The other ranks that read long messages of this rank's memory where they lie.
pub(super) fn readers(transport: &dyn Transport, rank: Rank, ranks: u32) -> Vec<Rank> {
    let others = (0..ranks).filter(|&peer| peer != rank);
    others
        .filter(|&peer| transport.fetches(peer, usize::MAX))
        .collect()
}

/// What became of it, for people.
pub(super) fn describe(readers: &[Rank], ranks: u32, why: &str) -> String {
    match (readers.len() as u32 + 1, readers) {
        (1, _) => format!("staged for all others (fetched {why})"),
        (all, _) if all == ranks => format!("fetched by all others ({why})"),
        _ => format!(
            "fetched by ranks {readers:?} ({why}), staged for the others: they cannot read it, or do not want to"
        ),
    }
}

/// From GB/s of fetching and of copying, and the copies of a staged message that one core makes.
fn decide(rates: Result<[f64; 2], String>, copies: f64) -> (CrossMemory, String) {
    match rates {
        Err(reason) => (CrossMemory::Off, format!("not: {reason}")),
        Ok([fetching, copying]) => {
            let staging = copying / copies;
            let cma = match fetching > staging {
                true => CrossMemory::On,
                false => CrossMemory::Off,
            };
            let verb = match cma {
                CrossMemory::On => "where it is allowed",
                _ => "not",
            };
            let why = format!(
                "{verb}: fetching {fetching:.1} GB/s, staging {staging:.1} GB/s, measured at the start"
            );
            (cma, why)
        }
    }
}

/// GB/s of fetching and of copying.
fn measure(clock: &Clock) -> Result<[f64; 2], String> {
    let memory = || Region::private(MEASURED_BYTES).map_err(|e| e.to_string());
    let (source, target) = (memory()?, memory()?);
    // All pages are there before anything is timed.
    source.view().fill(1);
    target.view().fill(2);
    let mut best = [f64::MAX; 2];
    for _ in 0..PASSES {
        let fetched = timed(clock, source.view(), target.view(), |from, to| {
            fetch_own(from, to).map_err(|e| format!("process_vm_readv: {e}"))
        })?;
        let copied = timed(clock, source.view(), target.view(), |from, to| {
            to.copy_from(from);
            Ok(())
        })?;
        best = [best[0].min(fetched), best[1].min(copied)];
    }
    Ok(best.map(|time_ns| MEASURED_BYTES as f64 / time_ns))
}

fn timed(
    clock: &Clock,
    source: View,
    target: View,
    mut copy: impl FnMut(View, View) -> Result<(), String>,
) -> Result<f64, String> {
    let start = clock.now();
    for at in (0..MEASURED_BYTES).step_by(PIECE_BYTES) {
        let piece = |view: View| view.part(at, PIECE_BYTES);
        copy(piece(source), piece(target))?;
    }
    // A clock that has not moved would make it infinitely fast.
    Ok((clock.now().since(start).as_nanos() as f64).max(1.0))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_faster_one_is_taken_and_both_are_told() {
        let (cma, why) = decide(Ok([5.7, 15.0]), 1.0);
        assert_eq!(cma, CrossMemory::Off);
        assert!(
            why.contains("not: fetching 5.7") && why.contains("15.0"),
            "{why}"
        );
        let (cma, why) = decide(Ok([8.0, 15.0]), 2.0);
        assert_eq!(cma, CrossMemory::On);
        assert!(why.contains("staging 7.5"), "{why}");
        let (cma, why) = decide(Err("process_vm_readv: forbidden".into()), 1.0);
        assert_eq!(cma, CrossMemory::Off);
        assert!(why.contains("forbidden"), "{why}");
    }

    #[test]
    fn ranks_that_cannot_read_are_told_apart() {
        assert!(describe(&[], 3, "why").contains("staged for all"));
        assert!(describe(&[0, 2], 3, "why").contains("by all"));
        let text = describe(&[2], 4, "why");
        assert!(
            text.contains("[2]") && text.contains("staged for the others"),
            "{text}"
        );
    }

    #[test]
    fn what_the_settings_say_is_not_measured() {
        let clock = Clock::monotonic();
        for (cma, word) in [(CrossMemory::On, "where"), (CrossMemory::Off, "not")] {
            let config = Config {
                cma,
                ..Config::default()
            };
            let (settled, why) = settle(config, 2, &clock);
            assert_eq!(settled.cma, cma);
            assert!(why.contains(word) && why.contains("LINERATE_CMA"), "{why}");
        }
        let (settled, why) = settle(Config::default(), 2, &clock);
        assert_ne!(settled.cma, CrossMemory::Auto);
        assert!(
            why.contains("GB/s") || why.contains("process_vm_readv"),
            "{why}"
        );
    }
}
