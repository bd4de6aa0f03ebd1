//! Whether this process may open as many descriptors as a rank needs. A soft limit that is too low
//! is raised to the hard one before ranks meet: rank 0 has a connection of each.

use crate::error::{Error, Result};
use crate::types::Rank;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// Descriptors for each peer: its control socket, or before that its bootstrap stream; and its
/// process, to see it end.
const PER_PEER: u64 = 2;
/// Other descriptors: listener, segment, control memory and windows, a connection that has not said
/// who it is, memory of a peer on its way here, and a buffer.
const PER_RANK: u64 = 8;

/// Raises the soft limit of descriptors to the hard one, if it is too low for a rank of a job of
/// `ranks` ranks.
pub fn raise_descriptors(ranks: u32) {
    raise(ranks, open_descriptors());
}

/// Raises the soft limit in the same way; fails if the hard limit is too low, too.
pub fn check_descriptors(rank: Rank, ranks: u32) -> Result<()> {
    let open = open_descriptors();
    check((rank, ranks), open, raise(ranks, open))
}

fn open_descriptors() -> u64 {
    std::fs::read_dir("/proc/self/fd").map_or(0, Iterator::count) as u64
}

/// Raises the soft limit if it is too low, and gives the limits as they are then.
fn raise(ranks: u32, open: u64) -> Rlimit {
    let limits = getrlimit(Resource::Nofile);
    // Each buffer takes a descriptor, too.
    let wanted = 2 * needed_by(ranks, open);
    let raised = Rlimit {
        current: limits.maximum,
        ..limits
    };
    match limits.current.is_some_and(|soft| soft < wanted) {
        true if setrlimit(Resource::Nofile, raised).is_ok() => raised,
        _ => limits,
    }
}

fn needed_by(ranks: u32, open: u64) -> u64 {
    open + PER_RANK + PER_PEER * u64::from(ranks.saturating_sub(1))
}

fn check((rank, ranks): (Rank, u32), open: u64, limits: Rlimit) -> Result<()> {
    let needed = needed_by(ranks, open);
    let Some(limit) = limits.current.filter(|&limit| limit < needed) else {
        return Ok(());
    };
    let missing = needed - limit;
    let is_hard = limits.maximum.is_some_and(|hard| hard < needed);
    Err(Error::Exhausted {
        what: format!(
            "rank {rank} of {ranks} needs {needed} file descriptors, of which {open} are open already"
        ),
        limit: match is_hard {
            true => format!("RLIMIT_NOFILE is {limit}, also its hard limit, which lacks {missing}"),
            false => format!("RLIMIT_NOFILE is {limit} and could not be raised"),
        },
        remedy: match is_hard {
            true => format!(
                "raise the hard limit to {0} or more, since each buffer takes one: `nofile` in /etc/security/limits.conf, LimitNOFILE= of a service, `--ulimit nofile={0}` of a container, or `ulimit -Hn {0}` as root",
                2 * needed
            ),
            false => format!(
                "raise it with `ulimit -n {}` or more: each buffer takes one",
                2 * needed
            ),
        },
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text((rank, ranks): (Rank, u32), current: u64, maximum: Option<u64>) -> Option<String> {
        let limits = Rlimit {
            current: Some(current),
            maximum,
        };
        let checked = check((rank, ranks), 4, limits);
        checked.err().map(|error| error.to_string())
    }

    #[test]
    fn a_limit_that_is_too_low_says_how_many_are_needed() {
        assert_eq!(text((0, 64), 138, Some(138)), None);
        assert_eq!(text((0, 1), 12, None), None);
        let of_64 = text((3, 64), 137, None).unwrap();
        assert!(
            of_64.contains("rank 3 of 64 needs 138") && of_64.contains("ulimit -n 276"),
            "{of_64}"
        );
        assert!(text((0, 1), 11, None).is_some());
    }

    #[test]
    fn a_hard_limit_that_is_too_low_says_what_it_lacks_and_where_it_is_raised() {
        let of_1024 = text((0, 1024), 1000, Some(1000)).unwrap();
        for words in [
            "needs 2058",
            "hard limit, which lacks 1058",
            "nofile=4116",
            "LimitNOFILE",
        ] {
            assert!(of_1024.contains(words), "{of_1024}");
        }
    }

    #[test]
    fn a_soft_limit_that_is_too_low_is_raised_to_the_hard_one() {
        let before = getrlimit(Resource::Nofile);
        let ranks = before.current.map_or(0, |soft| soft as u32 + 1);
        let raised = raise(ranks, 0);
        assert_eq!(raised.current, before.maximum);
        assert_eq!(getrlimit(Resource::Nofile), raised);
        // What is enough stays.
        assert_eq!(raise(2, 0), raised);
    }
}
