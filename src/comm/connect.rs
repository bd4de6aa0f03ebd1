//! Makes a communicator of an engine and the contacts of all ranks. Every way to make a
//! communicator ends here.

use super::communicator::{Communicator, Inner};
use super::driving::Driving;
use super::inside::Inside;
use super::plans::Plans;
use super::progress::{ProgressChoice, ProgressThread};
use super::ranges::{Garbage, Ranges};
use super::raw::Staging;
use super::say::say;
use super::{fetching, findings, host};
use crate::bootstrap::{self, Cores, HostIdentity, RankContact};
use crate::config::{Config, CrossMemory};
use crate::cost::{self, Models};
use crate::engine::{Contact, Engine};
use crate::error::{Error, Result};
use crate::limits;
use crate::memory::{ProcessMark, ProcessOwned};
use crate::transport::{self, Capabilities};
use crate::types::Rank;
use crate::wait::{Clock, SpinTime};
use std::collections::HashMap;
use std::net::{IpAddr, Ipv4Addr};
use std::sync::{Arc, Weak};
use std::time::Duration;

/// The first pause of a rank that waits for other ranks to connect or to come.
pub(super) const LOOK_AGAIN: Duration = Duration::from_micros(200);
/// The longest such pause. Each check costs time of a core, which other ranks need where ranks
/// share cores.
const LOOK_AGAIN_MAX: Duration = Duration::from_millis(2);

/// What the contacts of all ranks say together.
#[derive(Clone, Debug)]
pub(super) struct Common {
    /// Names the communicator on its hosts. It is a hash of all contacts: every rank knows the same
    /// ones, and each has a random part.
    pub identity: u64,
    /// The host of each rank, numbered from 0. Ranks with equal host identities share a host.
    pub hosts: Vec<u32>,
    /// The address of each rank; empty if all ranks share memory.
    pub places: Vec<IpAddr>,
    /// The cores that the ranks on this host may run on.
    pub cores: Cores,
    /// The least rate of the ranks' networks, because all ranks must choose alike. `None` in a
    /// simulation, where all are alike.
    pub bytes_per_second: Option<f64>,
    /// Rank 0's findings with the built-in prices, because all ranks must choose alike. `None` in a
    /// simulation.
    pub models: Option<Models>,
}

/// Opens an engine that waits for the contacts of its peers; returns it with its own contact as
/// bytes. `config.cma` has been decided already ([`super::fetching`]).
pub(super) fn open(rank: Rank, ranks: u32, config: &Config) -> Result<(Engine, Vec<u8>)> {
    bootstrap::check_descriptors(rank, ranks)?;
    let nonce = bootstrap::nonce()?;
    let options = transport::Options {
        fetches: config.cma == CrossMemory::On,
        tcp: config.tcp.clone(),
        verbs: config.verbs.clone(),
        host: HostIdentity::own(config.host_id.as_deref())?.0,
    };
    let provider = transport::open(&config.transport, rank, ranks, nonce, &options)?;
    let megabytes_per_second = (provider.capabilities().bytes_per_second / 1e6) as u32;
    let host = host::share_of_host(config, ranks as usize);
    let mut of_engine = config.clone();
    let is_default = config.chunk_bytes == limits::CHUNK_BYTES_DEFAULT;
    if is_default && !provider.capabilities().one_host {
        of_engine.chunk_bytes = limits::CHUNK_BYTES_TCP;
    }
    let is_default = config.window_bytes == limits::WINDOW_BYTES_DEFAULT;
    if is_default && provider.capabilities().mapped && host.threads_max > 1 {
        let shared = limits::WINDOW_BYTES_PER_THREAD * host.threads_max;
        of_engine.window_bytes = shared.min(limits::WINDOW_BYTES_MAX);
    }
    let engine = Engine::new(provider, rank, ranks, of_engine, host)?;
    let mut of_rank_0 = Vec::new();
    if rank == 0 {
        let (models, complaint) = findings::read_findings(&config.findings);
        complaint.iter().for_each(|complaint| say(complaint));
        of_rank_0 = cost::emit_bytes(&models);
    }
    let contact = RankContact {
        host: HostIdentity::own(config.host_id.as_deref())?,
        place: (config.tcp.addresses.first().copied()).unwrap_or(Ipv4Addr::LOCALHOST.into()),
        cores: Cores::own(),
        megabytes_per_second,
        engine: engine.contact(),
        findings: of_rank_0,
    };
    Ok((engine, contact.emit()))
}

/// Begins to connect to the ranks that have these contacts, by rank.
pub(super) fn begin(engine: &mut Engine, contacts: &[Vec<u8>]) -> Result<Common> {
    let known: Vec<(Rank, &[u8])> = (0..).zip(contacts.iter().map(Vec::as_slice)).collect();
    let (mut common, parsed) = read(engine, &known)?;
    let findings = &parsed[0].findings;
    common.models = Some(cost::parse_bytes(findings)?.0);
    let (rank, hosts) = (engine.rank(), &common.hosts);
    let own_host = hosts.get(rank as usize);
    let is_near = |&peer: &Rank| peer != rank && hosts.get(peer as usize) == own_host;
    let neighbours = (0..hosts.len() as Rank).filter(is_near).collect();
    let of_engines: Vec<Contact> = parsed.into_iter().map(|contact| contact.engine).collect();
    engine.connect(of_engines.into(), neighbours)?;
    Ok(common)
}

/// What the contacts of these ranks, this one among them, say together, and each of them.
///
/// # Errors
/// The transport joins ranks of one host only, and some rank is on another.
pub(super) fn read(
    engine: &Engine,
    contacts: &[(Rank, &[u8])],
) -> Result<(Common, Vec<RankContact>)> {
    let own = contacts.iter().position(|(rank, _)| *rank == engine.rank());
    let own = own.ok_or_else(|| Error::internal("a rank has not given its own contact"))?;
    let parsed = contacts.iter().map(|(_, bytes)| RankContact::parse(bytes));
    let parsed = parsed.collect::<Result<Vec<RankContact>>>()?;
    let identities = parsed.iter().map(|contact| (contact.host, contact.cores));
    let identities: Vec<(HostIdentity, Cores)> = identities.collect();
    let mut places: Vec<IpAddr> = parsed.iter().map(|contact| contact.place).collect();
    let rates = parsed.iter().map(|contact| contact.megabytes_per_second);
    let megabytes_per_second = rates.min().map_or(1, |least| least.max(1));
    let hosts = number_hosts(&identities);
    if engine.is_of_one_host() {
        places.clear();
    }
    let ranks: Vec<Rank> = contacts.iter().map(|(rank, _)| *rank).collect();
    check_reach(engine, &ranks, (&hosts, hosts[own]))?;
    let here = (identities.iter().zip(&hosts)).filter(|(_, host)| **host == hosts[own]);
    let cores = here.fold(Cores::own(), |all, ((_, of_rank), _)| all.union(*of_rank));
    let mix = |hash: u64, byte: &u8| crate::prng::mix(hash ^ u64::from(*byte)).wrapping_add(hash);
    let common = Common {
        identity: contacts.iter().flat_map(|(_, bytes)| *bytes).fold(1, mix),
        hosts,
        places,
        cores,
        bytes_per_second: Some(f64::from(megabytes_per_second) * 1e6),
        models: None,
    };
    Ok((common, parsed))
}

/// Numbers the hosts in the order in which they first occur.
fn number_hosts(identities: &[(HostIdentity, Cores)]) -> Vec<u32> {
    let mut known: HashMap<HostIdentity, u32> = HashMap::new();
    let mut number = |(host, _): &(HostIdentity, Cores)| {
        let next = known.len() as u32;
        *known.entry(*host).or_insert(next)
    };
    identities.iter().map(&mut number).collect()
}

/// An error if the transport joins ranks of one host only and some rank is on another.
fn check_reach(engine: &Engine, ranks: &[Rank], (hosts, own): (&[u32], u32)) -> Result<()> {
    let far = ranks.iter().zip(hosts).filter(|(_, host)| **host != own);
    let far: Vec<Rank> = far.map(|(rank, _)| *rank).collect();
    if far.is_empty() || !engine.is_of_one_host() {
        return Ok(());
    }
    Err(Error::Bootstrap(format!(
        "ranks {far:?} are on other hosts than rank {} (another boot id, network namespace or LINERATE_HOSTID), and transport {} joins ranks of one host only: use a transport that leaves the host (LINERATE_TRANSPORT), or, if they do share it, give all the same LINERATE_HOSTID",
        engine.rank(),
        engine.transport_name()
    )))
}

/// Connects to all ranks, at most for the timeout. Calls `meanwhile` between two checks.
pub(super) fn connect(
    engine: &mut Engine,
    contacts: &[Vec<u8>],
    clock: &Clock,
    mut meanwhile: impl FnMut(),
) -> Result<Common> {
    let common = begin(engine, contacts)?;
    let timeout = engine.config().timeout;
    let deadline = clock.now().after(timeout);
    let mut pause = LOOK_AGAIN;
    while !engine.poll_connect(clock.now())? {
        if clock.now() > deadline {
            return Err(Error::Bootstrap(format!(
                "rank {} could not connect to all ranks in {timeout:?}",
                engine.rank()
            )));
        }
        meanwhile();
        std::thread::sleep(pause);
        pause = (pause + pause / 8).min(LOOK_AGAIN_MAX);
    }
    Ok(common)
}

/// What a new communicator takes over from the one that it is made from.
#[derive(Clone)]
pub(super) struct Origin {
    pub clock: Clock,
    pub process: ProcessMark,
    /// The progress thread of its family: that of the communicator that it is made from, or a new
    /// one.
    pub thread: Arc<ProgressThread>,
    /// Whether waits on other members of the family drive the new communicator, and waits on it
    /// drive them. False if a thread of its own drives it.
    pub is_member: bool,
    pub ranges: Arc<Ranges>,
}

impl Origin {
    /// The origin of a communicator that is made from no other one.
    pub fn new(clock: Clock) -> Result<Origin> {
        Ok(Origin {
            thread: Arc::new(ProgressThread::new(clock.clone())),
            clock,
            process: ProcessMark::current()?,
            is_member: true,
            ranges: Arc::default(),
        })
    }

    /// The origin of a communicator that is made from `parent`. `is_member`: it joins the parent's
    /// family.
    pub fn of(parent: &Communicator, is_member: bool) -> Result<Origin> {
        let driving = parent.driving()?;
        Ok(Origin {
            clock: driving.clock.clone(),
            process: ProcessMark::current()?,
            thread: match is_member {
                true => parent.inner.progress.thread.clone(),
                false => Arc::new(ProgressThread::new(driving.clock.clone())),
            },
            is_member,
            ranges: parent.inner.ranges.clone(),
        })
    }
}

/// Makes the communicator of a connected engine.
pub(super) fn finish(
    mut engine: Engine,
    origin: Origin,
    is_size_only: bool,
    common: &Common,
) -> Communicator {
    let (rank, ranks) = (engine.rank(), engine.ranks());
    let config = engine.config().clone();
    let capabilities = engine.transport().capabilities().clone();
    let hosts = &common.hosts;
    let is_mapped = capabilities.mapped && hosts.iter().all(|&host| host == hosts[0]);
    let local_ranks = (hosts.iter())
        .filter(|&&host| host == hosts[rank as usize])
        .count();
    let mut plans = Plans::new(rank, hosts.clone(), is_mapped, &config);
    let readers = fetching::readers(engine.transport(), rank, ranks);
    plans.use_network(&Capabilities {
        bytes_per_second: (common.bytes_per_second).unwrap_or(capabilities.bytes_per_second),
        ..capabilities.clone()
    });
    if common.models.is_none() {
        plans.forget_local_work();
    }
    plans.maps_host = engine.maps_host();
    plans.is_fetched = ranks > 1 && readers.len() as u32 == ranks - 1;
    if let Some(models) = &common.models {
        plans.use_models(models, common.cores.count());
        plans.threads = host::share_of_host(&config, local_ranks).threads_max as u32;
    }
    let cores = match common.cores.count() {
        0 => std::thread::available_parallelism().map_or(1, usize::from),
        known => known,
    };
    let driving = Arc::new_cyclic(|driving: &Weak<Driving>| {
        let driving = driving.clone();
        let collect = move || {
            if let Some(driving) = driving.upgrade() {
                driving.collect_garbage(&mut driving.engine());
            }
        };
        Driving::new(
            Inside::new(engine, plans),
            origin.clock.clone(),
            SpinTime::new(local_ranks, cores),
            Arc::new(Garbage::new(origin.process, collect)),
            origin.thread.family.clone(),
        )
    });
    if origin.is_member {
        driving.family().join(&driving);
    }
    Communicator {
        inner: Arc::new(Inner {
            driving: ProcessOwned::new(origin.process, driving),
            progress: ProgressChoice::new(
                origin.thread,
                config.progress,
                common.cores.count() > local_ranks,
                origin.clock.is_virtual(),
            ),
            clock: origin.clock,
            ranges: origin.ranges,
            config,
            identity: common.identity,
            places: common.places.clone(),
            rank,
            ranks,
            transport: capabilities.name,
            is_one_host: capabilities.one_host,
            is_size_only,
            cached_bytes_max: capabilities.cached_bytes_max,
            is_shared: capabilities.shared_regions,
            staging: Staging::default(),
        }),
    }
}
