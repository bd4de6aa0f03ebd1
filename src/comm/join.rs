//! How a rank joins a job: from the environment, by name, or by the caller's exchange.

use super::communicator::Communicator;
use super::connect::{self, Common, Origin};
use super::say::say;
use super::{fetching, host};
use crate::bootstrap::{self, BusyClock, Exchange, GroupKeys, Meeting, Place};
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

    /// Joins a job whose processes can already exchange small values by key, for example through
    /// torch's `Store`: see [`Exchange`]. The ranks need not agree on a port or on the name of a
    /// job. Rank 0 listens on a free port and puts its address, and each other rank gets that one
    /// value; how many puts and gets a rank makes does not depend on the number of ranks. Waits
    /// until all ranks have come, at most for the configured timeout.
    ///
    /// `name` has 1 to 200 bytes, is equal on all ranks, and is used only once in this exchange,
    /// like the prefix of torch's `PrefixStore`. Keys begin with `linerate/` and the name. One
    /// short value stays in the exchange.
    ///
    /// If no secret is set ([`JobSettings::secret`]), rank 0 makes one and sends it by the
    /// exchange: a process that reads the exchange while the ranks meet can then join. If one is
    /// set, nothing secret goes there.
    ///
    /// ```
    /// use linerate::options::Exchange;
    /// use linerate::{Communicator, Config, ReduceOp};
    /// use std::collections::HashMap;
    /// use std::sync::{Condvar, Mutex};
    /// use std::time::Duration;
    ///
    /// /// A map that the threads of this process share.
    /// #[derive(Default)]
    /// struct Map(Mutex<HashMap<String, Vec<u8>>>, Condvar);
    ///
    /// type Fallible<T> = Result<T, Box<dyn std::error::Error + Send + Sync>>;
    ///
    /// impl Exchange for Map {
    ///     fn put(&self, key: &str, value: &[u8], _: Duration) -> Fallible<()> {
    ///         self.0.lock().unwrap().insert(key.into(), value.into());
    ///         self.1.notify_all();
    ///         Ok(())
    ///     }
    ///
    ///     fn get(&self, key: &str, limit: Duration) -> Fallible<Option<Vec<u8>>> {
    ///         let map = self.0.lock().unwrap();
    ///         let is_missing = |map: &mut HashMap<_, _>| !map.contains_key(key);
    ///         let (map, _) = self.1.wait_timeout_while(map, limit, is_missing).unwrap();
    ///         Ok(map.get(key).cloned())
    ///     }
    /// }
    ///
    /// let exchange = Map::default();
    /// let run = |rank| -> linerate::Result<f32> {
    ///     let world = Communicator::join_by(rank, 2, "world", &exchange, Config::default())?;
    ///     let mut data = [1.0f32; 100];
    ///     world.all_reduce(&mut data, ReduceOp::Sum)?;
    ///     world.finalize()?;
    ///     Ok(data[0])
    /// };
    /// let sums = std::thread::scope(|scope| {
    ///     let ranks = [0, 1].map(|rank| scope.spawn(move || run(rank)));
    ///     ranks.map(|rank| rank.join().unwrap())
    /// });
    /// assert!(sums.into_iter().all(|sum| sum == Ok(2.0)));
    /// ```
    ///
    /// # Errors
    /// [`Error::InvalidArgument`]: a rank, a name or a setting that is out of range.
    /// [`Error::Bootstrap`] if a rank cannot take part, with its reason, on all ranks; if ranks do
    /// not come in time; if the exchange returns an error, with the rank, the key and that error;
    /// if the name was used twice. [`Error::Malformed`] if a key holds what no rank has put there.
    ///
    /// [`JobSettings::secret`]: crate::options::JobSettings::secret
    /// [`Error::InvalidArgument`]: crate::Error::InvalidArgument
    /// [`Error::Bootstrap`]: crate::Error::Bootstrap
    /// [`Error::Malformed`]: crate::Error::Malformed
    pub fn join_by(
        rank: Rank,
        ranks: u32,
        name: &str,
        exchange: &dyn Exchange,
        config: Config,
    ) -> Result<Communicator> {
        let keys = GroupKeys::new((rank, ranks), name, exchange)?;
        config.check().map_err(|error| keys.decline(error))?;
        let clock = Clock::monotonic();
        let (config, why_fetching) = fetching::settle(config, ranks, &clock);
        let meeting = Meeting::by_exchange(&keys, &config, BusyClock::idle(&clock))?;
        Communicator::join_met(keys.place(), meeting, (config, &why_fetching), clock)
    }

    /// Joins the job that `place` names, as the rank that `place` names.
    pub fn join_at(place: &Place, config: Config) -> Result<Communicator> {
        config.check()?;
        let clock = Clock::monotonic();
        let (config, why_fetching) = fetching::settle(config, place.ranks, &clock);
        let meeting = Meeting::go_to(place, &config, BusyClock::idle(&clock))?;
        Communicator::join_met(place, meeting, (config, &why_fetching), clock)
    }

    /// Joins the ranks that this one has met.
    fn join_met(
        place: &Place,
        meeting: Meeting,
        (config, why_fetching): (Config, &str),
        clock: Clock,
    ) -> Result<Communicator> {
        let (rank, ranks) = (place.rank, place.ranks);
        let settled = meeting.settle(config);
        let opened = settled.and_then(|config| Ok((connect::open(rank, ranks, &config)?, config)));
        let ((mut engine, blob), config) = match opened {
            Ok(opened) => opened,
            // Tells the other ranks, so that they do not wait for this one.
            Err(error) => return Err(meeting.decline(error, BusyClock::idle(&clock))),
        };
        let contacts = meeting.exchange(blob, BusyClock::idle(&clock))?;
        let common = connect::connect(&mut engine, &contacts, &clock, || {})?;
        let communicator = connect::finish(engine, Origin::new(clock)?, false, &common);
        if config.debug {
            communicator.say_what_was_chosen(&config, &common, why_fetching);
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
            self.inner.config.window_bytes,
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
