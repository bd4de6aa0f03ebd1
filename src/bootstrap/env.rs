//! The place of this process in its job, from the environment that launchers set.

use crate::error::{Error, Result};
use crate::limits::RANKS_MAX;
use crate::types::Rank;

/// Where a process stands in its job.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Place {
    /// Its rank.
    pub rank: Rank,
    /// Number of ranks.
    pub ranks: u32,
    /// The job's name, equal on all ranks and different from those of other jobs on the host.
    pub job: String,
}

/// From `RANK` and `WORLD_SIZE` (torchrun and `linerate launch` set them). The job's name is `LINERATE_JOB`, or
/// else made of `MASTER_ADDR` and `MASTER_PORT`. Without `WORLD_SIZE`: one rank.
pub fn place_from_env(lookup: impl Fn(&str) -> Option<String>) -> Result<Place> {
    let Some(ranks) = number(&lookup, "WORLD_SIZE")? else {
        return Ok(Place {
            rank: 0,
            ranks: 1,
            job: format!("alone-{}", std::process::id()),
        });
    };
    let Some(rank) = number(&lookup, "RANK")? else {
        return Err(Error::Bootstrap(
            "WORLD_SIZE is set and RANK is not: a launcher sets both".into(),
        ));
    };
    if ranks == 0 || ranks > RANKS_MAX || rank >= ranks {
        return Err(Error::Bootstrap(format!(
            "RANK={rank} with WORLD_SIZE={ranks}: ranks are below the size, which is 1 to {RANKS_MAX}"
        )));
    }
    let job = lookup("LINERATE_JOB").or_else(|| {
        let address = lookup("MASTER_ADDR")?;
        Some(format!("{address}:{}", lookup("MASTER_PORT")?))
    });
    match job {
        Some(job) => Ok(Place { rank, ranks, job }),
        None if ranks == 1 => Ok(Place { rank, ranks, job: format!("alone-{}", std::process::id()) }),
        None => Err(Error::Bootstrap(
            "neither LINERATE_JOB nor MASTER_ADDR and MASTER_PORT are set: they name the job, so that two jobs on one host do not meet".into(),
        )),
    }
}

fn number(lookup: &impl Fn(&str) -> Option<String>, name: &str) -> Result<Option<u32>> {
    lookup(name)
        .map(|text| {
            text.trim().parse().map_err(|_| {
                Error::Bootstrap(format!("{name} is '{text}': a whole number is needed"))
            })
        })
        .transpose()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn place(pairs: &[(&str, &str)]) -> Result<Place> {
        place_from_env(|name| pairs.iter().find(|p| p.0 == name).map(|p| p.1.to_string()))
    }

    #[test]
    fn torchruns_variables_give_a_place() {
        let found = place(&[
            ("RANK", "3"),
            ("WORLD_SIZE", "4"),
            ("MASTER_ADDR", "127.0.0.1"),
            ("MASTER_PORT", "29500"),
        ]);
        assert_eq!(
            found.unwrap(),
            Place {
                rank: 3,
                ranks: 4,
                job: "127.0.0.1:29500".into()
            }
        );
    }

    #[test]
    fn no_launcher_means_one_rank() {
        assert_eq!(place(&[]).unwrap().ranks, 1);
    }

    #[test]
    fn half_a_launcher_is_an_error_that_names_the_variable() {
        for (pairs, word) in [
            (vec![("WORLD_SIZE", "2")], "RANK"),
            (
                vec![("WORLD_SIZE", "two"), ("RANK", "0")],
                "WORLD_SIZE is 'two'",
            ),
            (
                vec![("WORLD_SIZE", "2"), ("RANK", "2"), ("LINERATE_JOB", "j")],
                "RANK=2",
            ),
            (vec![("WORLD_SIZE", "0"), ("RANK", "0")], "WORLD_SIZE=0"),
            (vec![("WORLD_SIZE", "2"), ("RANK", "1")], "LINERATE_JOB"),
        ] {
            let text = place(&pairs).unwrap_err().to_string();
            assert!(text.contains(word), "{text}");
        }
    }
}
