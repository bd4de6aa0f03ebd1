//! How a rank joins a job: from the environment, or by name.

use super::communicator::Communicator;
use super::connect::{self, Common, Origin};
use super::say::say;
use super::{fetching, host};
use crate::bootstrap::{self, Meeting, Place};
use crate::config::{Config, Progress};
use crate::error::Result;
use crate::types::Rank;
use crate::wait::Clock;

impl Communicator {
    /// Joins the job that the environment describes, as torchrun, `linerate launch`, mpirun (Open
    /// MPI, MPICH) and srun set it: see [`bootstrap::place_from_env`]. If none of them has started
    /// this process, the job has one rank. The settings come from the environment, too
    /// ([`Config::from_env`]).
    pub fn from_env() -> Result<Communicator> {
        Communicator::from_env_with(Config::from_env()?)
    }

    /// As [`Communicator::from_env`], with these settings instead of those of the environment.
    pub fn from_env_with(config: Config) -> Result<Communicator> {
        let place = bootstrap::place_from_env(|name| std::env::var(name).ok())?;
        Communicator::join_at(&place, config)
    }

    /// Joins a job by name; every rank gives the same `job` and `ranks`. Ranks of several hosts
    /// meet at `tcp://host:port` (a free port of rank 0's host) or in `file://folder` (a folder
    /// that all ranks see). Any other name is the name of a job on this host. Waits until all ranks
    /// have joined, at most for [`Config::timeout`].
    pub fn join(rank: Rank, ranks: u32, job: &str, config: Config) -> Result<Communicator> {
        Communicator::join_at(&Place::named(rank, ranks, job)?, config)
    }

    /// Joins the job that `place` names, as the rank that `place` names.
    pub fn join_at(place: &Place, config: Config) -> Result<Communicator> {
        config.check()?;
        let clock = Clock::monotonic();
        let (rank, ranks) = (place.rank, place.ranks);
        let (config, why_fetching) = fetching::settle(config, ranks, &clock);
        let meeting = Meeting::go_to(place, &config, &clock)?;
        let config = meeting.settle(config)?;
        let (mut engine, blob) = match connect::open(rank, ranks, &config) {
            Ok(opened) => opened,
            // Tells the other ranks, so that they do not wait for this one.
            Err(error) => return Err(meeting.decline(error, &clock)),
        };
        let contacts = meeting.exchange(blob, &clock)?;
        let common = connect::connect(&mut engine, &contacts, &clock, || {})?;
        let communicator = connect::finish(engine, Origin::new(clock)?, false, &common);
        if config.debug {
            communicator.say_what_was_chosen(&config, &common, &why_fetching);
        }
        Ok(communicator)
    }

    fn say_what_was_chosen(&self, config: &Config, common: &Common, why_fetching: &str) {
        let (rank, ranks) = (self.rank(), self.ranks());
        let progress = match config.progress {
            Progress::Auto if self.inner.progress.has_cores() => "a thread (auto)",
            Progress::Auto => "calls (auto)",
            Progress::Thread => "a thread",
            Progress::Inline => "calls",
        };
        let hosts = match common.hosts.iter().max().map_or(1, |most| most + 1) {
            1 => "all ranks are on this host".into(),
            count => format!("the ranks are on {count} hosts"),
        };
        say(&format!(
            "rank {rank} of {ranks}: transport {} (asked for {}; {hosts}), progress by {progress}, \
             chunks of {} B, windows of {} B, large copies and reductions by {} threads, timeout {:?}{}",
            self.transport(),
            config.transport,
            config.chunk_bytes,
            config.window_bytes,
            host::share_of_host(config, ranks as usize).threads_max,
            config.timeout,
            match (config.tcp.has_tls, self.transport()) {
                (true, "tcp" | "router") => "; connections are encrypted with TLS 1.3",
                _ => "",
            }
        ));
        let Ok(driving) = self.driving() else {
            return;
        };
        let readers = fetching::readers(driving.engine().transport(), rank, ranks);
        say(&format!(
            "rank {rank}: messages of memory that is not registered are {}",
            fetching::describe(config.cma, &readers, ranks, why_fetching)
        ));
    }
}
