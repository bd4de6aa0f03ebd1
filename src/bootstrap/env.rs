//! The place of this process in its job, from the environment that launchers set: which rank of how
//! many, and how the ranks find rank 0. Pure: it is told how to look a name up.
//!
//! Sources: torchrun's documentation ("Environment Variables"), Open MPI 4 and 5 (`OMPI_*`,
//! `PMIX_*`), MPICH's hydra (`PMI_*`, `MPI_LOCAL*`), srun(1) ("OUTPUT ENVIRONMENT VARIABLES").

use super::nodelist::first_host;
use crate::error::{Error, Result};
use crate::limits::RANKS_MAX;
use crate::types::Rank;
use std::path::PathBuf;

/// Where a process stands in its job.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Place {
    /// Its rank.
    pub rank: Rank,
    /// Number of ranks.
    pub ranks: u32,
    /// Ranks on this host, if the launcher says.
    pub local_ranks: Option<u32>,
    /// The job's name, equal on all ranks and different from those of other jobs.
    pub job: String,
    /// Which start of the job this is: ranks of an earlier one are not let in.
    pub epoch: u64,
    /// How its ranks find rank 0.
    pub rendezvous: Rendezvous,
    /// Who has started it.
    pub launcher: Launcher,
}

/// Who has started a process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Launcher {
    /// None: the process is alone.
    Nobody,
    /// One that sets `RANK` and `WORLD_SIZE`: torchrun, `linerate launch`, a person.
    Torchrun,
    /// mpirun of Open MPI.
    OpenMpi,
    /// mpiexec of MPICH.
    Hydra,
    /// srun.
    Slurm,
}

impl Launcher {
    /// Its name, for people.
    pub fn name(self) -> &'static str {
        match self {
            Launcher::Nobody => "no launcher",
            Launcher::Torchrun => "RANK and WORLD_SIZE",
            Launcher::OpenMpi => "Open MPI",
            Launcher::Hydra => "MPICH",
            Launcher::Slurm => "Slurm",
        }
    }
}

/// How ranks find rank 0.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Rendezvous {
    /// All are on this host: a Unix socket named after the job.
    Host,
    /// Rank 0 listens there.
    Tcp {
        /// A name or an address.
        host: String,
        /// Not zero.
        port: u16,
    },
    /// Rank 0 listens on the first free one of the ports that [`Place::ports`] gives, on the host
    /// with this name.
    Ports(String),
    /// Rank 0 writes where it is into a file of this folder, which all ranks see.
    Folder(PathBuf),
    /// Rank 0 tells the launcher's daemons by PMIx.
    Pmix,
    /// Rank 0 tells the launcher's daemons by PMI-1 over this descriptor.
    Pmi(i32),
}

/// Ports that are derived from the name of a job: enough for one to be free.
const PORTS_COUNT: u64 = 8;
/// Below what Linux gives out by itself (net.ipv4.ip_local_port_range begins at 32768), above what
/// services use.
const PORTS: std::ops::Range<u64> = 20_000..32_000;

impl Place {
    /// The place of a rank of a job with this name: `tcp://host:port` and `file://folder` say where
    /// the ranks meet, any other name is one of this host.
    pub fn named(rank: Rank, ranks: u32, name: &str) -> Result<Place> {
        let rendezvous = parse_rendezvous("the job's name", name)?;
        check_rank(rank, ranks, ("rank", "ranks"))?;
        Ok(Place {
            rank,
            ranks,
            local_ranks: None,
            job: match rendezvous {
                Some(_) => String::new(),
                None => name.into(),
            },
            epoch: 0,
            rendezvous: rendezvous.unwrap_or(Rendezvous::Host),
            launcher: Launcher::Nobody,
        })
    }

    /// Whether the launcher says that all ranks are on this host.
    pub fn is_on_one_host(&self) -> bool {
        self.local_ranks == Some(self.ranks)
    }

    /// The ports that rank 0 of this job may listen on, in the order in which they are tried.
    pub fn ports(&self) -> Vec<u16> {
        ports_of(&self.job, self.epoch)
    }
}

/// The ports that follow from a name.
pub(super) fn ports_of(name: &str, epoch: u64) -> Vec<u16> {
    let mix = |hash: u64, byte: u8| crate::prng::mix(hash ^ u64::from(byte));
    let hash = name.bytes().fold(epoch.wrapping_add(1), mix);
    let width = PORTS.end - PORTS.start;
    let port = |i: u64| (PORTS.start + (hash.wrapping_add(i * 1009)) % width) as u16;
    (0..PORTS_COUNT).map(port).collect()
}

type Lookup<'a> = &'a dyn Fn(&str) -> Option<String>;

/// The place that torchrun, `linerate launch`, mpirun (Open MPI, MPICH) or srun have set.
/// `LINERATE_RENDEZVOUS` says where the ranks meet: `tcp://host:port`, `file://folder`, or
/// `launcher` (by what the launcher offers, even if all are on this host); `LINERATE_JOB` names a
/// job of this host. Without a launcher: one rank.
pub fn place_from_env(lookup: impl Fn(&str) -> Option<String>) -> Result<Place> {
    let lookup = |name: &str| lookup(name).filter(|text| !text.is_empty());
    let lookup: Lookup<'_> = &lookup;
    let launcher = launcher(lookup);
    let mut place = match launcher {
        Launcher::Torchrun => torchrun(lookup)?,
        Launcher::OpenMpi => open_mpi(lookup)?,
        Launcher::Hydra => hydra(lookup)?,
        Launcher::Slurm => slurm(lookup)?,
        Launcher::Nobody => return Ok(alone(launcher)),
    };
    if let Some(name) = lookup("LINERATE_JOB") {
        place.job = name;
    }
    let named = lookup("LINERATE_RENDEZVOUS");
    let explicit = match named.as_deref() {
        None => None,
        Some("launcher") => return offered(place, lookup),
        Some(text) => Some(
            parse_rendezvous("LINERATE_RENDEZVOUS", text)?
                .ok_or_else(|| bad_rendezvous("LINERATE_RENDEZVOUS", text))?,
        ),
    };
    match explicit {
        Some(rendezvous) => place.rendezvous = rendezvous,
        None if place.ranks == 1 => return Ok(alone(launcher)),
        None if place.launcher == Launcher::Hydra => return offered(place, lookup),
        None if lookup("LINERATE_JOB").is_some() || place.is_on_one_host() => {
            place.rendezvous = Rendezvous::Host;
        }
        None => return offered(place, lookup),
    }
    Ok(place)
}

fn launcher(lookup: Lookup<'_>) -> Launcher {
    if lookup("WORLD_SIZE").is_some() {
        Launcher::Torchrun
    } else if lookup("OMPI_COMM_WORLD_SIZE").is_some() {
        Launcher::OpenMpi
    } else if lookup("PMI_SIZE").is_some() {
        Launcher::Hydra
    } else if is_step_of_slurm(lookup) {
        Launcher::Slurm
    } else {
        Launcher::Nobody
    }
}

/// What a launcher says of this process, as unchecked text: for programs that behave differently as
/// a rank.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Launched {
    /// The variable that holds the number of ranks, and what it says.
    pub ranks: (&'static str, String),
    /// The rank.
    pub rank: Option<String>,
    /// Ranks on this host.
    pub local_ranks: Option<String>,
}

/// See [`Launched`]; `None` without a launcher.
pub fn launched_from_env(lookup: impl Fn(&str) -> Option<String>) -> Option<Launched> {
    let lookup = |name: &str| lookup(name).filter(|text| !text.is_empty());
    let (ranks, rank, local) = match launcher(&lookup) {
        Launcher::Torchrun => ("WORLD_SIZE", "RANK", "LOCAL_WORLD_SIZE"),
        Launcher::OpenMpi => (
            "OMPI_COMM_WORLD_SIZE",
            "OMPI_COMM_WORLD_RANK",
            "OMPI_COMM_WORLD_LOCAL_SIZE",
        ),
        Launcher::Hydra => ("PMI_SIZE", "PMI_RANK", "MPI_LOCALNRANKS"),
        Launcher::Slurm => (
            slurm_size(&lookup),
            "SLURM_PROCID",
            "SLURM_STEP_TASKS_PER_NODE",
        ),
        Launcher::Nobody => return None,
    };
    Some(Launched {
        ranks: (ranks, lookup(ranks).unwrap_or_default()),
        rank: lookup(rank),
        local_ranks: lookup(local),
    })
}

fn alone(launcher: Launcher) -> Place {
    Place {
        rank: 0,
        ranks: 1,
        local_ranks: Some(1),
        job: format!("alone-{}", std::process::id()),
        epoch: 0,
        rendezvous: Rendezvous::Host,
        launcher,
    }
}

/// The place with the rendezvous that the launcher offers; an error if it offers none.
fn offered(mut place: Place, lookup: Lookup<'_>) -> Result<Place> {
    let no_address = |why: &str| {
        Error::Bootstrap(format!(
            "{} says that this is rank {} of {} and gives no address of rank 0 ({why}): set LINERATE_RENDEZVOUS to tcp://HOST:PORT, a free port of rank 0's host, or to file://FOLDER, a folder that all ranks see",
            place.launcher.name(),
            place.rank,
            place.ranks
        ))
    };
    place.rendezvous = match place.launcher {
        Launcher::Nobody => Rendezvous::Host,
        Launcher::Torchrun => match lookup("MASTER_ADDR") {
            Some(host) if lookup("MASTER_PORT").is_some() => Rendezvous::Ports(host),
            _ => {
                return Err(Error::Bootstrap(
                    "neither LINERATE_JOB nor MASTER_ADDR and MASTER_PORT are set: they name the job, so that two jobs on one host do not meet; or set LINERATE_RENDEZVOUS to tcp://HOST:PORT or file://FOLDER".into(),
                ));
            }
        },
        Launcher::OpenMpi if lookup("PMIX_NAMESPACE").is_some() => Rendezvous::Pmix,
        Launcher::OpenMpi => return Err(no_address("PMIX_NAMESPACE is not set")),
        Launcher::Hydra => {
            let number = lookup("PMI_FD").and_then(|text| text.parse().ok());
            Rendezvous::Pmi(number.ok_or_else(|| no_address("PMI_FD is not set"))?)
        }
        Launcher::Slurm => {
            let list = lookup("SLURM_STEP_NODELIST").or_else(|| lookup("SLURM_JOB_NODELIST"));
            let list = list.ok_or_else(|| no_address("SLURM_JOB_NODELIST is not set"))?;
            let host = first_host(&list);
            let why = format!("SLURM_JOB_NODELIST is '{list}', which names no host");
            Rendezvous::Ports(host.ok_or_else(|| no_address(&why))?)
        }
    };
    Ok(place)
}

fn torchrun(lookup: Lookup<'_>) -> Result<Place> {
    let (rank, ranks) = rank_of(lookup, ("RANK", "WORLD_SIZE"))?;
    let words = ["MASTER_ADDR", "MASTER_PORT", "TORCHELASTIC_RUN_ID"];
    let words: Vec<String> = words.into_iter().filter_map(lookup).collect();
    Ok(Place {
        rank,
        ranks,
        local_ranks: number(lookup, "LOCAL_WORLD_SIZE")?.filter(|_| words.len() > 1),
        job: words.join(":"),
        epoch: number(lookup, "TORCHELASTIC_RESTART_COUNT")?
            .unwrap_or(0)
            .into(),
        rendezvous: Rendezvous::Host,
        launcher: Launcher::Torchrun,
    })
}

fn open_mpi(lookup: Lookup<'_>) -> Result<Place> {
    let (rank, ranks) = rank_of(lookup, ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"))?;
    let words = [
        "PMIX_NAMESPACE",
        "OMPI_MCA_ess_base_jobid",
        "OMPI_MCA_orte_precondition_transports",
    ];
    Ok(Place {
        rank,
        ranks,
        local_ranks: number(lookup, "OMPI_COMM_WORLD_LOCAL_SIZE")?,
        job: name_of("ompi", &words, lookup),
        epoch: 0,
        rendezvous: Rendezvous::Host,
        launcher: Launcher::OpenMpi,
    })
}

fn hydra(lookup: Lookup<'_>) -> Result<Place> {
    let (rank, ranks) = rank_of(lookup, ("PMI_RANK", "PMI_SIZE"))?;
    Ok(Place {
        rank,
        ranks,
        local_ranks: number(lookup, "MPI_LOCALNRANKS")?,
        job: String::new(),
        epoch: 0,
        rendezvous: Rendezvous::Host,
        launcher: Launcher::Hydra,
    })
}

/// Scripts of sbatch and shells of salloc are steps too, with numbers close to 2^32, and have one
/// task whatever the others have.
fn is_step_of_slurm(lookup: Lookup<'_>) -> bool {
    let step = lookup("SLURM_STEP_ID").and_then(|text| text.parse::<u32>().ok());
    lookup("SLURM_PROCID").is_some() && step.is_some_and(|step| step < u32::MAX - 64)
}

fn slurm_size(lookup: Lookup<'_>) -> &'static str {
    match lookup("SLURM_STEP_NUM_TASKS").is_some() {
        true => "SLURM_STEP_NUM_TASKS",
        false => "SLURM_NTASKS",
    }
}

fn slurm(lookup: Lookup<'_>) -> Result<Place> {
    let (rank, ranks) = rank_of(lookup, ("SLURM_PROCID", slurm_size(lookup)))?;
    let nodes = [
        "SLURM_STEP_NUM_NODES",
        "SLURM_JOB_NUM_NODES",
        "SLURM_NNODES",
    ];
    let nodes = nodes.into_iter().find_map(lookup);
    let words = ["SLURM_CLUSTER_NAME", "SLURM_JOB_ID", "SLURM_STEP_ID"];
    Ok(Place {
        rank,
        ranks,
        local_ranks: (nodes.as_deref() == Some("1")).then_some(ranks),
        job: name_of("slurm", &words, lookup),
        epoch: number(lookup, "SLURM_RESTART_COUNT")?.unwrap_or(0).into(),
        rendezvous: Rendezvous::Host,
        launcher: Launcher::Slurm,
    })
}

fn name_of(prefix: &str, names: &[&str], lookup: Lookup<'_>) -> String {
    let words: Vec<String> = names.iter().filter_map(|name| lookup(name)).collect();
    format!("{prefix}-{}", words.join("-"))
}

fn rank_of(lookup: Lookup<'_>, (rank_name, ranks_name): (&str, &str)) -> Result<(Rank, u32)> {
    let (rank, ranks) = (number(lookup, rank_name)?, number(lookup, ranks_name)?);
    let (Some(rank), Some(ranks)) = (rank, ranks) else {
        return Err(Error::Bootstrap(format!(
            "one of {rank_name} and {ranks_name} is set and the other is not: a launcher sets both"
        )));
    };
    check_rank(rank, ranks, (rank_name, ranks_name))?;
    Ok((rank, ranks))
}

pub(super) fn check_rank(
    rank: Rank,
    ranks: u32,
    (rank_name, ranks_name): (&str, &str),
) -> Result<()> {
    if ranks > 0 && ranks <= RANKS_MAX && rank < ranks {
        return Ok(());
    }
    Err(Error::Bootstrap(format!(
        "{rank_name}={rank} with {ranks_name}={ranks}: ranks are below the size, which is 1 to {RANKS_MAX}"
    )))
}

/// `tcp://host:port` and `file://folder`; `None` if the text is neither.
fn parse_rendezvous(source: &str, text: &str) -> Result<Option<Rendezvous>> {
    if let Some(folder) = text.strip_prefix("file://") {
        if folder.is_empty() {
            return Err(bad_rendezvous(source, text));
        }
        return Ok(Some(Rendezvous::Folder(folder.into())));
    }
    let Some(rest) = text.strip_prefix("tcp://") else {
        return Ok(None);
    };
    let bad = || bad_rendezvous(source, text);
    let (host, port) = rest.rsplit_once(':').ok_or_else(bad)?;
    let host = host.trim_start_matches('[').trim_end_matches(']');
    match port.parse() {
        Ok(port) if port > 0 && !host.is_empty() => Ok(Some(Rendezvous::Tcp {
            host: host.into(),
            port,
        })),
        _ => Err(bad()),
    }
}

fn bad_rendezvous(source: &str, text: &str) -> Error {
    Error::Bootstrap(format!(
        "{source} is '{text}': tcp://HOST:PORT, such as tcp://10.0.0.1:29400 (a free port of rank 0's host), or file://FOLDER, a folder that all ranks see"
    ))
}

fn number(lookup: Lookup<'_>, name: &str) -> Result<Option<u32>> {
    lookup(name)
        .map(|text| {
            text.trim().parse().map_err(|_| {
                Error::Bootstrap(format!("{name} is '{text}': a whole number is needed"))
            })
        })
        .transpose()
}

#[cfg(test)]
#[path = "env_tests.rs"]
mod tests;
