//! Whether this process may open as many descriptors as a rank needs: asked before ranks wait for
//! each other. A soft limit that is too low for that is raised to the hard one.

use crate::error::{Error, Result};
use crate::types::Rank;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// Descriptors for each peer: its control socket, or before that its bootstrap stream; and its
/// process, to see it end.
const PER_PEER: u64 = 2;
/// Other descriptors: listener, segment, control memory and windows, a connection that has not said
/// who it is, memory of a peer on its way here, and a buffer.
const PER_RANK: u64 = 8;

/// Fails if the limit of descriptors is too low for a rank of a job of `ranks` ranks.
pub fn check_descriptors(rank: Rank, ranks: u32) -> Result<()> {
    let open = std::fs::read_dir("/proc/self/fd").map_or(0, Iterator::count) as u64;
    let limits = getrlimit(Resource::Nofile);
    // Each buffer takes one besides.
    let wanted = 2 * needed_by(ranks, open);
    let raised = limits.current.filter(|&soft| soft < wanted).and_then(|_| {
        let new = Rlimit {
            current: limits.maximum,
            ..limits
        };
        setrlimit(Resource::Nofile, new).ok().map(|()| new.current)
    });
    check(rank, ranks, open, raised.unwrap_or(limits.current))
}

fn needed_by(ranks: u32, open: u64) -> u64 {
    open + PER_RANK + PER_PEER * u64::from(ranks.saturating_sub(1))
}

fn check(rank: Rank, ranks: u32, open: u64, limit: Option<u64>) -> Result<()> {
    let needed = needed_by(ranks, open);
    match limit.filter(|&limit| limit < needed) {
        None => Ok(()),
        Some(limit) => Err(Error::Exhausted {
            what: format!(
                "rank {rank} of {ranks} needs {needed} file descriptors, of which {open} are open already"
            ),
            limit: format!("RLIMIT_NOFILE is {limit}"),
            remedy: format!(
                "raise it with `ulimit -n {}` or more: each buffer takes one",
                2 * needed
            ),
        }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_limit_that_is_too_low_says_how_many_are_needed() {
        assert!(check(0, 64, 4, None).is_ok());
        assert!(check(0, 64, 4, Some(138)).is_ok());
        let text = check(3, 64, 4, Some(137)).unwrap_err().to_string();
        assert!(
            text.contains("rank 3 of 64 needs 138") && text.contains("ulimit -n 276"),
            "{text}"
        );
        assert!(check(0, 1, 4, Some(12)).is_ok());
        assert!(check(0, 1, 4, Some(11)).is_err());
    }
}
