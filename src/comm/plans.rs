//! [`Plans`]: chooses the schedules of a call. Prepared schedules are cached; a cached one serves
//! any count of elements.

mod explain;

pub use explain::{Explanation, Path};

use super::call::Call;
use super::say::say;
use crate::collective::{self, Algorithm, Available, Choice, Lists, Request, TransferShape};
use crate::config::Config;
use crate::cost::{Finding, Model, Models};
use crate::engine::Prepared;
use crate::error::{Error, Result};
use crate::limits::SCHEDULES_CACHED;
use crate::schedule::Builder;
use crate::transport::Capabilities;
use crate::types::{Collective, DataType, Rank};
use std::sync::Arc;

/// How many calls are remembered with their whole plan. A training step repeats a few sizes.
const RECENT_CALLS: usize = 16;

/// The most lines that `LINERATE_DEBUG=info` prints about choices.
const EXPLAINED_MAX: usize = 256;

/// What a cached schedule was built for.
#[derive(Clone, PartialEq)]
enum Key {
    Collective {
        collective: Collective,
        algorithm: u32,
        root: Rank,
        in_place: bool,
        is_mapped: bool,
        premultiply: bool,
        lists: Lists,
    },
    Transfers(Vec<TransferShape>),
}

/// All that the plan of a call depends on, besides the ranks.
#[derive(Clone, PartialEq)]
struct Recent {
    collective: Collective,
    count: u64,
    dtype: DataType,
    premultiply: bool,
    root: Rank,
    in_place: bool,
    is_mapped: bool,
    algorithm: Option<String>,
}

/// The schedules to run a call with.
#[derive(Clone)]
pub(super) struct Plan {
    pub prepared: Arc<Prepared>,
    /// Runs instead if `prepared` uses buffers of peers and some rank's buffer is not registered.
    pub fallback: Option<Arc<Prepared>>,
}

/// Chooses algorithms and caches their schedules. A full cache drops the entry that was used least
/// recently.
pub(super) struct Plans {
    /// Threads of this rank that share large copies and reductions.
    pub threads: u32,
    /// All other ranks fetch long messages of memory that is not registered from where they lie.
    pub is_fetched: bool,
    /// All ranks of this host map each other's memory.
    pub maps_host: bool,
    rank: Rank,
    ranks: u32,
    hosts: Vec<u32>,
    model: Model,
    findings: Vec<Finding>,
    /// What all ranks have if every caller's memory is registered.
    available: Available,
    mapped: bool,
    /// The algorithm that the settings name for every call (see [`crate::Config::algorithm`]).
    default_algorithm: Option<String>,
    /// Print what is chosen and why.
    debug: bool,
    cached: Vec<(Key, Arc<Prepared>)>,
    /// Latest first. It saves building a request and choosing by cost, which take several times as
    /// long as the rest of a small operation.
    recent: Vec<(Recent, Plan)>,
    explained: Vec<(Collective, &'static str, Option<u32>)>,
}

impl Plans {
    pub fn new(rank: Rank, hosts: Vec<u32>, mapped: bool, config: &Config) -> Plans {
        let ranks = hosts.len() as u32;
        let models = Models::BUILT_IN;
        let model = if mapped {
            models.of(ranks, ranks)
        } else {
            Model::FABRIC
        };
        let available = Available {
            mapped,
            registered: mapped,
            window_bytes: config.window_bytes as u64,
            chunk_bytes: config.chunk_bytes as u64,
            cores: ranks,
            caches: models.caches,
        };
        Plans {
            threads: 1,
            is_fetched: false,
            maps_host: mapped,
            rank,
            ranks,
            hosts,
            model,
            findings: Vec::new(),
            available,
            mapped,
            default_algorithm: config.algorithm.clone(),
            debug: config.debug,
            cached: Vec::new(),
            recent: Vec::new(),
            explained: Vec::new(),
        }
    }

    /// Takes what a transport says of its messages, where ranks send some. All ranks give equal
    /// arguments, before their first call.
    pub fn use_network(&mut self, of: &Capabilities) {
        if !self.mapped {
            self.model = Model::network(of.latency_ns, of.post_ns, of.bytes_per_second);
        }
    }

    /// Chooses as if copies and reductions took no time between hosts, as in a simulation.
    pub fn forget_local_work(&mut self) {
        if !self.mapped {
            self.model = self.model.without_local_work();
        }
    }

    /// Whether all ranks map each other's windows and there are fewer cores than ranks. Equal on
    /// all ranks.
    pub fn is_crowded_host(&self) -> bool {
        self.mapped && self.available.cores < self.ranks
    }

    /// The prices of messages, and whether messages stay inside one host.
    pub fn link_model(&self) -> (Model, bool) {
        (self.model, self.mapped)
    }

    /// The host of a rank.
    pub fn host(&self, rank: Rank) -> u32 {
        self.hosts[rank as usize]
    }

    /// Takes the prices and findings of a host on which all ranks share `cores` cores (0: unknown).
    /// All ranks give equal arguments, before their first call.
    pub fn use_models(&mut self, models: &Models, cores: usize) {
        let is_one_host = self.hosts.iter().all(|host| *host == self.hosts[0]);
        if is_one_host && cores > 0 {
            self.available.cores = cores as u32;
        }
        if self.mapped {
            self.available.caches = models.caches;
            self.model = models.of(self.ranks, self.available.cores);
            self.findings = models.findings_of(self.ranks, self.available.cores);
        }
    }

    /// The schedules of a call that has been checked. `is_mapped`: whether its buffers are, by the
    /// other ranks of this host.
    pub fn plan(&mut self, call: &Call, in_place: bool, is_mapped: bool) -> Result<Plan> {
        match call.collective {
            Collective::SendRecv => return self.plan_transfers(call),
            of if of == Collective::AllToAllV || of.has_part_lengths() => {
                return self.plan_anew(call, in_place, is_mapped);
            }
            _ => {}
        }
        let premultiply = call.op.factor().is_some();
        let is_same = |known: &Recent| {
            known.count == call.count
                && (known.collective, known.dtype, known.root)
                    == (call.collective, call.dtype, call.root)
                && (known.in_place, known.is_mapped) == (in_place, is_mapped)
                && known.premultiply == premultiply
                && known.algorithm.as_deref() == call.algorithm
        };
        if let Some(index) = self.recent.iter().position(|(known, _)| is_same(known)) {
            if index > 0 {
                self.recent[..=index].rotate_right(1);
            }
            return Ok(self.recent[0].1.clone());
        }
        let plan = self.plan_anew(call, in_place, is_mapped)?;
        let known = Recent {
            collective: call.collective,
            count: call.count,
            dtype: call.dtype,
            premultiply,
            root: call.root,
            in_place,
            is_mapped,
            algorithm: call.algorithm.map(String::from),
        };
        self.recent.truncate(RECENT_CALLS - 1);
        self.recent.insert(0, (known, plan.clone()));
        Ok(plan)
    }

    /// The schedule of a group of sends and receives.
    fn plan_transfers(&mut self, call: &Call) -> Result<Plan> {
        let shapes: Vec<TransferShape> = call
            .transfers
            .iter()
            .map(|t| TransferShape {
                peer: t.peer,
                is_send: t.is_send,
            })
            .collect();
        let (rank, ranks) = (self.rank, self.ranks);
        let key = Key::Transfers(shapes.clone());
        let prepared = self.cached(key, || {
            Ok(Prepared::new(
                collective::build_send_recv(rank, ranks, &shapes)?,
                0,
                false,
            ))
        })?;
        Ok(Plan {
            prepared,
            fallback: None,
        })
    }

    fn plan_anew(&mut self, call: &Call, in_place: bool, is_mapped: bool) -> Result<Plan> {
        let request = Request {
            is_mapped,
            ..self.request(call, in_place)
        };
        request.check()?;
        let (algorithm, is_forced) = self.algorithm(call, &request)?;
        if self.debug {
            self.explain(call, algorithm, is_forced);
        }
        let lists = call.lists();
        let prepared = self.prepare(&request, algorithm, lists)?;
        let fallback = match algorithm.needs.registered && !is_forced {
            true => {
                let staged = self.choose(call, &request, false).algorithm;
                Some(self.prepare(&request, staged, lists)?)
            }
            false => None,
        };
        Ok(Plan { prepared, fallback })
    }

    /// Prints what was chosen and why, once for each collective and size (in powers of two).
    fn explain(&mut self, call: &Call, algorithm: &Algorithm, is_forced: bool) {
        let bytes = bytes_of(call);
        let line = (call.collective, algorithm.name, bytes.checked_ilog2());
        if self.explained.contains(&line) || self.explained.len() >= EXPLAINED_MAX {
            return;
        }
        self.explained.push(line);
        let why = match (is_forced, algorithm.needs.registered) {
            (true, _) => "named by the caller or LINERATE_ALGO",
            (false, true) => {
                "it loses least by the cost model; staged instead if some rank's memory is not registered"
            }
            (false, false) => "it loses least by the cost model",
        };
        let memory = if self.mapped {
            "memory mapped by all ranks"
        } else {
            "messages"
        };
        say(&format!(
            "rank {}: {} of {bytes} B: {} ({why}; {memory})",
            self.rank, call.collective, algorithm.name
        ));
    }

    /// The algorithm of a call, and whether the user named it.
    pub fn algorithm(&self, call: &Call, request: &Request) -> Result<(&'static Algorithm, bool)> {
        let Some(name) = call.algorithm.or(self.default_algorithm.as_deref()) else {
            return Ok((self.choose(call, request, self.mapped).algorithm, false));
        };
        let Ok(algorithm) = collective::find(call.collective, name) else {
            if call.algorithm.is_none() {
                // The settings name one algorithm for all collectives, and not every collective has
                // one of that name.
                return Ok((self.choose(call, request, self.mapped).algorithm, false));
            }
            return Err(collective::find(call.collective, name).unwrap_err());
        };
        self.check_needs(call, request, algorithm)?;
        Ok((algorithm, true))
    }

    /// The request by which builders make the schedule of a call.
    pub fn request(&self, call: &Call, in_place: bool) -> Request {
        Request {
            collective: call.collective,
            rank: self.rank,
            ranks: self.ranks,
            root: call.root,
            in_place,
            premultiply: call.collective.is_reducing() && call.op.factor().is_some(),
            hosts: self.hosts.clone(),
            maps_host: self.maps_host,
            is_mapped: false,
        }
    }

    fn choose(&self, call: &Call, request: &Request, registered: bool) -> Choice {
        let available = self.available_if(registered);
        let known = (&self.model, &self.findings[..]);
        collective::choose(request, bytes_of(call), known, &available)
    }

    fn available_if(&self, registered: bool) -> Available {
        Available {
            registered,
            ..self.available
        }
    }

    fn check_needs(&self, call: &Call, request: &Request, algorithm: &Algorithm) -> Result<()> {
        let needs = algorithm.needs;
        let bytes = bytes_of(call);
        let unmet = if needs.mapped && !self.mapped {
            "all ranks on one host"
        } else if needs.payload_max && bytes > crate::limits::LINE_PAYLOAD_BYTES as u64 {
            "at most 48 bytes"
        } else if needs.plain && request.premultiply {
            "an operator other than a premultiplied sum"
        } else {
            return Ok(());
        };
        Err(Error::invalid(format!(
            "algorithm {} of {} needs {unmet}; name another or none",
            algorithm.name, call.collective
        )))
    }

    fn prepare(
        &mut self,
        request: &Request,
        algorithm: &'static Algorithm,
        lists: Lists,
    ) -> Result<Arc<Prepared>> {
        let place = collective::algorithms(request.collective)
            .iter()
            .position(|a| std::ptr::eq(a, algorithm));
        let place = place.expect("algorithms come from the table") as u32;
        // Without a roll call the root would end before the other ranks begin, and if two ranks
        // named different roots, neither would learn of it. Across hosts a roll call would cost a
        // message between every two ranks.
        let has_roll_call = self.mapped && request.collective.is_rooted();
        let key = Key::Collective {
            collective: request.collective,
            algorithm: place,
            root: request.root,
            in_place: request.in_place,
            is_mapped: request.is_mapped,
            premultiply: request.premultiply,
            lists,
        };
        self.cached(key, || {
            let mut schedule = (algorithm.build)(request);
            if lists != Lists::default() {
                schedule = collective::with_lists(schedule, request.collective, lists);
            }
            if has_roll_call {
                schedule = Builder::roll_call(schedule);
            }
            Ok(Prepared::new(schedule, place, algorithm.needs.registered))
        })
    }

    fn cached(
        &mut self,
        key: Key,
        build: impl FnOnce() -> Result<Prepared>,
    ) -> Result<Arc<Prepared>> {
        if let Some(index) = self.cached.iter().position(|(known, _)| *known == key) {
            if index > 0 {
                self.cached[..=index].rotate_right(1);
            }
            return Ok(self.cached[0].1.clone());
        }
        let prepared = Arc::new(build()?);
        self.cached.truncate(SCHEDULES_CACHED - 1);
        self.cached.insert(0, (key, prepared.clone()));
        Ok(prepared)
    }
}

/// Bytes of `count` elements, by which an algorithm is chosen. Equal on all ranks.
pub(super) fn bytes_of(call: &Call) -> u64 {
    let elements = match call.collective {
        of if of.has_part_lengths() => call.receive_counts.iter().copied().max().unwrap_or(0),
        // Counts differ between ranks, but all ranks must choose alike.
        Collective::AllToAllV => 0,
        _ => call.count,
    };
    elements.saturating_mul(call.dtype.size_bytes() as u64)
}
