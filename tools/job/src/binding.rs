//! [`Bind`]: each local rank gets its own share of the cores. Left to itself the kernel may keep
//! two ranks on one core for seconds, and an exchange that takes half a microsecond between two
//! cores takes seven on one.
//!
//! A rank binds itself when it starts, before it has threads. What it starts inherits its cores.

use crate::output;
use clap::ValueEnum;
use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};
use std::path::Path;

/// Tells a rank that this binary has started what to bind itself to, by the name of a [`Bind`].
pub(crate) const BIND: &str = "LINERATE_BIND";

/// What ranks are bound to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Bind {
    /// Each rank to its own share of the cores that the command may use; where ranks are more than
    /// cores, equally many ranks to each core.
    Cores,
    /// Nothing.
    None,
}

impl Bind {
    /// As flags and the environment spell it.
    pub fn name(self) -> &'static str {
        match self {
            Bind::Cores => "cores",
            Bind::None => "none",
        }
    }
}

/// In a rank that this binary has started: binds it, if that was asked for. A rank that cannot be
/// bound runs unbound.
pub fn bind_rank() {
    let number = |name| std::env::var(name).ok()?.parse::<usize>().ok();
    let (Some(rank), Some(ranks)) = (number("LOCAL_RANK"), number("LOCAL_WORLD_SIZE")) else {
        return;
    };
    if std::env::var(BIND).ok().as_deref() != Some(Bind::Cores.name()) {
        return;
    }
    let Ok(allowed) = sched_getaffinity(None) else {
        // More cores than the call has room for.
        return;
    };
    let mut cores: Vec<usize> = (0..CpuSet::MAX_CPU)
        .filter(|&core| allowed.is_set(core))
        .collect();
    // Neighbours first: threads of one core, then cores of one package, go to the same rank.
    cores.sort_by_key(|&core| (place_of_core(core), core));
    let Some(share) = share(&cores, rank, ranks) else {
        return;
    };
    let mut set = CpuSet::new();
    share.iter().for_each(|&core| set.set(core));
    if let Err(error) = sched_setaffinity(None, &set) {
        output::print_error(&format!(
            "linerate: cannot bind rank {rank} to the cores {share:?}: {error}; it runs unbound, as with --bind none"
        ));
    }
}

/// Package and core of a processor, as the kernel counts them: threads of one core are equal.
fn place_of_core(processor: usize) -> (u32, u32) {
    let root = Path::new("/sys/devices/system/cpu").join(format!("cpu{processor}/topology"));
    let number = |name| {
        let text = std::fs::read_to_string(root.join(name)).ok()?;
        text.trim().parse().ok()
    };
    // Where the kernel does not say, the order is that of the numbers.
    let of = |name| number(name).unwrap_or(0);
    (of("physical_package_id"), of("core_id"))
}

/// The one processor that this thread may run on; `None`: there are several.
pub fn only_processor() -> Option<usize> {
    let allowed = sched_getaffinity(None).ok()?;
    let mut processors = (0..CpuSet::MAX_CPU).filter(|&processor| allowed.is_set(processor));
    let first = processors.next();
    first.filter(|_| processors.next().is_none())
}

/// The cores of one of `ranks` ranks: consecutive ones, all in use, shares as equal as can be.
/// Where ranks are more, each has one core, which neighbours share. `None`: no cores, or no such
/// rank.
fn share(cores: &[usize], rank: usize, ranks: usize) -> Option<&[usize]> {
    let start = |rank: usize| cores.len() * rank / ranks;
    let is_possible = rank < ranks && !cores.is_empty();
    is_possible.then(|| &cores[start(rank)..start(rank + 1).max(start(rank) + 1)])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shares_are_disjoint_and_leave_nothing() {
        for cores in 1..=17 {
            let all: Vec<usize> = (100..100 + cores).collect();
            for ranks in 1..=cores {
                let shares = (0..ranks).map(|rank| share(&all, rank, ranks).unwrap());
                let sizes: Vec<usize> = shares.clone().map(<[usize]>::len).collect();
                assert_eq!(shares.flatten().copied().collect::<Vec<_>>(), all);
                assert!(
                    sizes
                        .iter()
                        .all(|&n| n == cores / ranks || n == cores.div_ceil(ranks))
                );
            }
        }
    }

    #[test]
    fn ranks_that_are_more_than_cores_are_spread_evenly() {
        for cores in 1..=5 {
            let all: Vec<usize> = (100..100 + cores).collect();
            for ranks in cores..=17 {
                let mut ranks_on = vec![0; cores];
                for rank in 0..ranks {
                    let share = share(&all, rank, ranks).unwrap();
                    assert_eq!(share.len(), 1);
                    ranks_on[share[0] - 100] += 1;
                }
                let is_even = |&n: &usize| n == ranks / cores || n == ranks.div_ceil(cores);
                assert!(
                    ranks_on.iter().all(is_even),
                    "{ranks} on {cores}: {ranks_on:?}"
                );
            }
        }
    }

    #[test]
    fn ranks_that_are_not_there_have_no_share() {
        assert_eq!(share(&[4, 5], 2, 2), None);
        assert_eq!(share(&[], 0, 0), None);
        assert_eq!(share(&[], 0, 1), None);
    }
}
