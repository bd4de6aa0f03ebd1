//! Decides how a long message of memory that is not registered reaches a rank of the same host: the
//! peer fetches it out of this rank's address space, or this rank stages it. Unless the settings
//! decide it, a rank measures both when it joins.
//!
//! The measurement compares how long one rank is busy with a megabyte. Staging copies it twice; if
//! every rank has a core, the two copies run at the same time on two cores. Fetching copies it
//! once, through the kernel.

use crate::config::{Config, CrossMemory};
use crate::kernel;
use crate::memory::{Region, View};
use crate::transport::Transport;
use crate::transport::shm::fetch_own;
use crate::types::Rank;
use crate::wait::Clock;

/// More than the cache that most cores have for themselves, and little enough that the measurement
/// does not delay the start: it takes a few milliseconds.
const MEASURED_BYTES: usize = 1 << 20;
/// Messages are cut into chunks of this size by default.
const PIECE_BYTES: usize = 256 << 10;
/// Number of passes, of which the fastest counts. Of 275 ranks, 24 decided otherwise than the rest
/// of their job with 3 passes, and 6 with 12. Long messages of such a job take half or twice the
/// time.
const PASSES: usize = 12;

/// The settings with `cma` decided, which is then `On` or `Off`; and the reason as text for people.
pub(super) fn settle(config: Config, ranks: u32, clock: &Clock) -> (Config, String) {
    let (cma, why) = match config.cma {
        CrossMemory::On => (CrossMemory::On, "on by LINERATE_CMA".into()),
        CrossMemory::Off => (CrossMemory::Off, "off by LINERATE_CMA".into()),
        CrossMemory::Auto => {
            let cores = std::thread::available_parallelism().map_or(1, usize::from);
            let copies = if ranks as usize <= cores { 1.0 } else { 2.0 };
            decide(measure(clock), copies)
        }
    };
    (Config { cma, ..config }, why)
}

/// The other ranks that fetch long messages of this rank from where they lie.
pub(super) fn readers(transport: &dyn Transport, rank: Rank, ranks: u32) -> Vec<Rank> {
    let others = (0..ranks).filter(|&peer| peer != rank);
    others
        .filter(|&peer| transport.fetches(peer, usize::MAX))
        .collect()
}

/// How messages of memory that is not registered leave a rank with these settings and readers, as
/// text for people.
pub(super) fn describe(cma: CrossMemory, readers: &[Rank], ranks: u32, why: &str) -> String {
    let unwilling = match cma {
        CrossMemory::On if ranks > 1 => "; the others may not read this rank, or do not want to",
        _ => "",
    };
    match readers.len() as u32 + 1 {
        all if all == ranks && ranks > 1 => {
            format!("fetched by all others (process_vm_readv is {why})")
        }
        1 => format!("staged for all others (process_vm_readv is {why}{unwilling})"),
        _ => format!("fetched by ranks {readers:?} (process_vm_readv is {why}{unwilling})"),
    }
}

/// Decides from the rates of fetching and of copying, in GB/s. `copies`: how many of the two copies
/// of a staged message one core makes one after the other.
fn decide(rates: Result<[f64; 2], String>, copies: f64) -> (CrossMemory, String) {
    let [fetching, staging] = match rates {
        Err(reason) => return (CrossMemory::Off, format!("not possible: {reason}")),
        Ok([fetching, copying]) => [fetching, copying / copies],
    };
    let (cma, word) = match fetching > staging {
        true => (CrossMemory::On, "faster"),
        false => (CrossMemory::Off, "slower"),
    };
    let why = format!(
        "{word}: {fetching:.1} GB/s against {staging:.1} of staging, measured at the start"
    );
    (cma, why)
}

/// The rates of fetching and of copying, in GB/s.
fn measure(clock: &Clock) -> Result<[f64; 2], String> {
    let memory = || Region::private(MEASURED_BYTES).map_err(|e| e.to_string());
    let (source, target) = (memory()?, memory()?);
    // Touches all pages, so that no page fault is timed.
    kernel::fill(source.view(), 1);
    kernel::fill(target.view(), 2);
    let mut best = [f64::MAX; 2];
    for _ in 0..PASSES {
        let fetched = timed(clock, source.view(), target.view(), |from, to| {
            fetch_own(from, to).map_err(|e| format!("process_vm_readv: {e}"))
        })?;
        let copied = timed(clock, source.view(), target.view(), |from, to| {
            kernel::copy(from, to);
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
    // At least 1 ns: a clock that has not moved would make the rate infinite.
    Ok((clock.now().since(start).as_nanos() as f64).max(1.0))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_faster_one_is_taken_and_both_are_told() {
        let (cma, why) = decide(Ok([5.7, 15.0]), 1.0);
        assert_eq!(cma, CrossMemory::Off);
        assert!(why.contains("slower: 5.7 GB/s against 15.0"), "{why}");
        let (cma, why) = decide(Ok([8.0, 15.0]), 2.0);
        assert_eq!(cma, CrossMemory::On);
        assert!(why.contains("faster: 8.0 GB/s against 7.5"), "{why}");
        let (cma, why) = decide(Err("process_vm_readv: forbidden".into()), 1.0);
        assert_eq!(cma, CrossMemory::Off);
        assert!(
            why.contains("not possible: process_vm_readv: forbidden"),
            "{why}"
        );
    }

    #[test]
    fn ranks_that_cannot_read_are_told_apart() {
        let say = |cma, readers: &[Rank], ranks| describe(cma, readers, ranks, "why");
        let text = say(CrossMemory::Off, &[], 3);
        assert!(
            text.contains("staged for all others (process_vm_readv is why)"),
            "{text}"
        );
        let text = say(CrossMemory::On, &[], 3);
        assert!(
            text.contains("staged for all") && text.contains("may not read"),
            "{text}"
        );
        let text = say(CrossMemory::On, &[0, 2], 3);
        assert!(text.contains("fetched by all others"), "{text}");
        let text = say(CrossMemory::On, &[2], 4);
        assert!(
            text.contains("[2]") && text.contains("may not read"),
            "{text}"
        );
    }

    #[test]
    fn what_the_settings_say_is_not_measured() {
        let clock = Clock::monotonic();
        for (cma, word) in [(CrossMemory::On, "on by"), (CrossMemory::Off, "off by")] {
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
        let is_told = why.contains("GB/s") || why.contains("process_vm_readv");
        assert!(is_told, "{why}");
    }
}
