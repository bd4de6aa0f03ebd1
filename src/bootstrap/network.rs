//! Rendezvous over TCP: [`Network::meet`] brings the ranks together at rank 0, and
//! [`Network::exchange`] carries a blob of every rank to every rank in O(log ranks) rounds.
//!
//! ```text
//! rank r ── come: ranks, settings, its port ──► rank 0                     (when all have come)
//!        ◄── go: its address as rank 0 sees it, where its parent listens ──
//!        ── contacts of its part of the tree ──► parent ── ... ──► rank 0
//!        ◄── contacts of all ── parent ◄── ... ── rank 0
//! ```
//!
//! A rank does not say its own address: rank 0 sees where a connection comes from, which is where
//! that host can be reached, and where it arrives, which is an address of rank 0 that can be
//! reached. Every rank keeps its connection to rank 0 until the contacts are exchanged, so that the
//! failure of one rank is told to all, with one cause.

use super::busy::BusyClock;
use super::coming::{Coming, Going};
use super::connector::Connector;
use super::contacts::{Other, pass_on, spread};
use super::credentials::Credentials;
use super::entrance::Entrance;
use super::env::Place;
use super::exchange::GroupKeys;
use super::identity::{HostIdentity, own_user};
use super::interfaces::{self, Interface};
use super::link::{Kind, LATE_ANSWER_TIME, Link};
use super::listener::{Listener, TO_HEAD};
use super::note::note;
use super::posted::Here;
use super::publish::{self, Finder, Listening};
use super::server::Server;
use super::tree::{self, Table};
use crate::config::{Config, differing_settings};
use crate::error::{Error, Result};
use crate::time::Time;
use crate::transport::{self, Agreed, Offer, Options, agree};
use crate::types::Rank;
use std::collections::HashMap;
use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpListener};

/// Ranks that have met and exchanged nothing yet.
pub(super) struct Network {
    rank: Rank,
    ranks: u32,
    side: Side,
    deadline: Time,
    /// The address of this rank's host that the others can reach, and why it is this one.
    pub address: IpAddr,
    pub why: String,
    /// Whether all ranks say that they are on one host, and of one user.
    pub is_one_host: bool,
    /// What ranks of different hosts use, unless the settings say it.
    pub agreed: Agreed,
    /// How many ranks with lower numbers are on this rank's host.
    pub local: (u32, u32),
    /// The secret that rank 0 has made, where none was given.
    pub secret: Option<Vec<u8>>,
}

enum Side {
    /// Rank 0's.
    Head(Box<Server>),
    Other(Box<Other>),
}

impl Network {
    /// Brings the ranks of a job together.
    pub fn meet(place: &Place, config: &Config, clock: BusyClock<'_>) -> Result<Network> {
        let credentials =
            Credentials::new(&config.job, config.tcp.has_tls, &place.job, place.epoch)?
                .for_meeting();
        let named = named_interfaces(config)?;
        let named = named.as_deref();
        let by = (clock.now().after(config.timeout), clock);
        match place.rank {
            0 => {
                let listening = publish::listen(place, &credentials, named, config.timeout)?;
                let heard = (listening, None);
                head(place, config, heard, (&credentials, named), by)
            }
            _ => {
                let finder = Finder::new(place, config.timeout)?;
                let addresses = || finder.addresses();
                let link = reach_head(place, (&credentials, named), addresses, by)?;
                other(place, config, link, (credentials, named), by)
            }
        }
    }

    /// As [`Network::meet`], by the caller's exchange. The others hear there what happens to a rank
    /// before it is connected.
    pub fn meet_by(keys: &GroupKeys<'_>, config: &Config, clock: BusyClock<'_>) -> Result<Network> {
        let place = keys.place();
        let by = (clock.now().after(config.timeout), clock);
        let named = named_interfaces(config).map_err(|error| keys.decline(error))?;
        let named = named.as_deref();
        let (network, here) = match place.rank {
            0 => {
                let begun = begin_by(keys, config, named, by);
                let (listening, credentials, here) = begun.map_err(|error| keys.decline(error))?;
                let heard = (listening, Some(keys));
                let met = head(place, config, heard, (&credentials, named), by);
                keys.close(met.as_ref().err());
                (met?, here)
            }
            _ => {
                let reached = reach_by(keys, config, named, by);
                let (link, credentials, here) = reached.map_err(|error| keys.decline(error))?;
                let network = other(place, config, link, (credentials, named), by)?;
                (network, here)
            }
        };
        Ok(Network {
            secret: here.secret.map(String::into_bytes),
            ..network
        })
    }

    /// This rank cannot take part after all: tells the others.
    pub fn decline(self, error: Error, clock: BusyClock<'_>) -> Error {
        let text = format!("rank {} cannot take part: {error}", self.rank);
        match self.side {
            Side::Head(server) => {
                server.fail(Error::Bootstrap(text), (self.deadline, clock));
            }
            Side::Other(mut other) => other.head.send_failure(&text, (self.deadline, clock)),
        }
        error
    }

    /// Carries every rank's blob to every rank; returns them by rank.
    pub fn exchange(self, blob: &[u8], clock: BusyClock<'_>) -> Result<Vec<Vec<u8>>> {
        let table: Table = [(self.rank, blob.to_vec())].into();
        let by = (self.deadline, clock);
        let (rank, ranks) = (self.rank, self.ranks);
        let table = match self.side {
            Side::Head(server) => spread(*server, ranks, table, by)?,
            Side::Other(other) => pass_on(*other, (rank, ranks), table, by)?,
        };
        tree::all_of_table(table, ranks)
    }
}

/// The interfaces that the settings name.
pub(super) fn named_interfaces(config: &Config) -> Result<Option<Vec<Interface>>> {
    let list = config.job.interfaces.as_deref();
    list.map(|list| interfaces::named(&interfaces::list()?, list))
        .transpose()
}

/// Rank 0 listens, and says so in the caller's exchange.
fn begin_by(
    keys: &GroupKeys<'_>,
    config: &Config,
    named: Option<&[Interface]>,
    by: (Time, BusyClock<'_>),
) -> Result<(Listening, Credentials, Here)> {
    let mut here = keys.introduce(&config.job)?;
    let credentials = keys.credentials(config, &here)?;
    let listening = publish::listen_only(keys.place(), &credentials, named)?;
    here.addresses.clone_from(&listening.addresses);
    keys.publish(&here, by)?;
    Ok((listening, credentials, here))
}

/// Another rank connects to where rank 0 says it is in the caller's exchange.
fn reach_by(
    keys: &GroupKeys<'_>,
    config: &Config,
    named: Option<&[Interface]>,
    by: (Time, BusyClock<'_>),
) -> Result<(Link, Credentials, Here)> {
    let here = keys.find(by)?;
    let credentials = keys.credentials(config, &here)?;
    let addresses = || keys.addresses(&here, by.1);
    let link = reach_head(keys.place(), (&credentials, named), addresses, by)?;
    Ok((link, credentials, here))
}

/// Rank 0's part: it listens, and looks for failures in the caller's exchange, if there is one.
fn head(
    place: &Place,
    config: &Config,
    (listening, keys): (Listening, Option<&GroupKeys<'_>>),
    (credentials, named): (&Credentials, Option<&[Interface]>),
    (deadline, clock): (Time, BusyClock<'_>),
) -> Result<Network> {
    let addresses = listening.addresses.iter().map(SocketAddr::to_string);
    let addresses: Vec<String> = addresses.collect();
    let mut listener = Listener::new(listening.sockets, 0, credentials)?;
    listener.serve_secret(listening.secret_socket)?;
    if config.debug {
        note(&format!(
            "rank 0 of {}: it listens on {} ({})",
            place.ranks,
            addresses.join(", "),
            listening.why
        ));
    }
    let entrance = Entrance::Network(Box::new(listener));
    let mut server = Server::new(entrance, place.ranks, tree::table_bytes_max(place.ranks))?;
    let wanted = Coming {
        ranks: place.ranks,
        fingerprint: config.shared_fingerprint(),
        port: 0,
        host: HostIdentity::own(config.host_id.as_deref())?,
        user: own_user()?,
        offer: own_offer(place, config),
    };
    match receive_all(
        &mut server,
        (&wanted, must_have_rdma(config)),
        (named, keys),
        (deadline, clock),
    ) {
        Ok(met) => Ok(Network {
            rank: 0,
            ranks: place.ranks,
            side: Side::Head(Box::new(server)),
            deadline,
            address: met.address,
            why: met.why,
            is_one_host: met.is_one_host,
            agreed: met.agreed,
            local: met.local,
            secret: credentials.made_secret(),
        }),
        Err(error) => {
            // A rank that comes later finds the reason in the exchange, if there is one.
            let until = match keys.is_some() || clock.now() >= deadline {
                true => clock.now(),
                false => deadline,
            };
            Err(server.fail(error, (until, clock)))
        }
    }
}

/// What rank 0 knows when all have come.
struct Met {
    /// Its own address, and why this one.
    address: IpAddr,
    why: String,
    is_one_host: bool,
    agreed: Agreed,
    /// Its number among the ranks of its host, and how many these are.
    local: (u32, u32),
}

/// Waits until all have come and tells each where to go.
fn receive_all(
    server: &mut Server,
    (wanted, needs_rdma): (&Coming, bool),
    (named, keys): (Option<&[Interface]>, Option<&GroupKeys<'_>>),
    (deadline, clock): (Time, BusyClock<'_>),
) -> Result<Met> {
    let ranks = wanted.ranks;
    let mut come: Vec<Option<Coming>> = vec![None; ranks as usize];
    come[0] = Some(wanted.clone());
    let mut missing = ranks - 1;
    loop {
        for (rank, body) in server.poll(Kind::Come, clock)? {
            let coming = Coming::parse(&body)?;
            check(rank, &coming, wanted)?;
            if come[rank as usize].replace(coming).is_some() {
                return Err(Error::Malformed(format!("rank {rank} came twice")));
            }
            missing -= 1;
        }
        if missing == 0 {
            break;
        }
        let is_late = clock.now() >= deadline;
        if let Some(keys) = keys {
            keys.look(is_late, clock)?;
        }
        if is_late {
            return Err(absent(&come, &server.refusals()));
        }
        server.sleep((deadline, clock));
    }
    let come: Vec<Coming> = come.into_iter().flatten().collect();
    let is_here = |coming: &Coming| (coming.host, coming.user) == (wanted.host, wanted.user);
    let is_one_host = come.iter().all(is_here);
    let own = own_address(server, ranks, named);
    let seen = |rank: Rank| match server.link(rank) {
        Some(link) if !link.from.ip().is_loopback() => link.from.ip(),
        // A rank that comes over loopback is on rank 0's host.
        _ => own.0,
    };
    let offers: Vec<Offer> = come.iter().map(|coming| coming.offer.clone()).collect();
    let agreed = agree(&offers);
    if needs_rdma && !agreed.far.is_rdma() {
        let reason = format!(
            "{} was asked for, and not every rank has a device of one fabric: {}",
            transport::REQUIRED,
            transport::describe(&offers)
        );
        return Err(Error::Unavailable {
            transport: "auto".into(),
            reason,
        });
    }
    let local = local_ranks(&come);
    let answers: Vec<(Rank, String)> = (1..ranks)
        .map(|rank| {
            let parent = tree::parent(rank).filter(|&parent| parent > 0);
            let going = Going {
                own: seen(rank),
                parent: parent
                    .map(|parent| SocketAddr::new(seen(parent), come[parent as usize].port)),
                is_one_host,
                local: local[rank as usize],
                agreed: agreed.clone(),
            };
            (rank, going.emit())
        })
        .collect();
    for (rank, text) in answers {
        server.send(rank, Kind::Go, text.as_bytes(), clock)?;
    }
    let (address, why) = own;
    Ok(Met {
        address,
        why,
        is_one_host,
        agreed,
        local: local[0],
    })
}

/// The number of each rank among those of its host, and how many these are.
fn local_ranks(come: &[Coming]) -> Vec<(u32, u32)> {
    let mut counts: HashMap<HostIdentity, u32> = HashMap::new();
    let mut number = |coming: &Coming| {
        let count = counts.entry(coming.host).or_default();
        *count += 1;
        *count - 1
    };
    let numbers: Vec<u32> = come.iter().map(&mut number).collect();
    let of = |(coming, number): (&Coming, u32)| (number, counts[&coming.host]);
    come.iter().zip(numbers).map(of).collect()
}

/// Whether the transport is left to the ranks.
fn is_open(config: &Config) -> bool {
    matches!(config.transport.as_str(), "auto" | "router")
}

/// Whether the ranks must all have RDMA devices, and are to say so.
fn must_have_rdma(config: &Config) -> bool {
    config.job.needs_rdma && is_open(config)
}

/// What this rank's devices can do, if that is asked for.
fn own_offer(place: &Place, config: &Config) -> Offer {
    if !is_open(config) {
        return Err(format!("transport {} was asked for", config.transport).into());
    }
    let options = Options {
        tcp: config.tcp.clone(),
        verbs: config.verbs.clone(),
        ..Options::default()
    };
    transport::own_offer(place.rank, place.ranks, &options)
}

/// The address of rank 0's host at which most ranks of other hosts have arrived, or most of its own
/// host if there are no others.
fn own_address(server: &Server, ranks: u32, named: Option<&[Interface]>) -> (IpAddr, String) {
    let mut counts: Vec<(usize, IpAddr, bool)> = Vec::new();
    for link in (1..ranks).filter_map(|rank| server.link(rank)) {
        let (ip, is_far) = (link.at.ip(), !link.is_local());
        if ip.is_loopback() {
            continue;
        }
        match counts
            .iter_mut()
            .find(|(_, other, far)| (*other, *far) == (ip, is_far))
        {
            Some((count, _, _)) => *count += 1,
            None => counts.push((1, ip, is_far)),
        }
    }
    let best = counts
        .iter()
        .max_by_key(|(count, _, is_far)| (*is_far, *count));
    match (best, named.and_then(|named| named.first())) {
        (Some((count, ip, true)), _) => (
            *ip,
            format!("{count} ranks of other hosts reach this one there"),
        ),
        (Some((_, ip, false)), _) => (
            *ip,
            "the other ranks, all of this host, reach it there".into(),
        ),
        (None, Some(interface)) => (interface.ip, "LINERATE_IFNAME names its interface".into()),
        (None, None) => (
            Ipv4Addr::LOCALHOST.into(),
            "all ranks are on this host".into(),
        ),
    }
}

fn check(rank: Rank, coming: &Coming, wanted: &Coming) -> Result<()> {
    if coming.ranks != wanted.ranks {
        return Err(Error::Bootstrap(format!(
            "rank 0 expects {} ranks, and somebody came as rank {rank} of {}",
            wanted.ranks, coming.ranks
        )));
    }
    if coming.fingerprint != wanted.fingerprint {
        let (theirs, own) = (coming.fingerprint, wanted.fingerprint);
        return Err(differing_settings(rank, theirs, own));
    }
    Ok(())
}

/// The error that names the ranks that have not come and those that have.
fn absent(come: &[Option<Coming>], refusals: &str) -> Error {
    let of = |has_come: bool| -> Vec<usize> {
        let ranks = come.iter().enumerate();
        ranks
            .filter(|(_, coming)| coming.is_some() == has_come)
            .map(|(rank, _)| rank)
            .collect()
    };
    Error::Bootstrap(format!(
        "ranks {:?} did not come in time; ranks {:?} came and waited for them{refusals}; are all {} ranks started, with the same LINERATE_SECRET?",
        of(false),
        of(true),
        come.len()
    ))
}

/// Another rank's connection to rank 0, which is at one of these addresses.
fn reach_head(
    place: &Place,
    (credentials, named): (&Credentials, Option<&[Interface]>),
    addresses: impl FnMut() -> Result<Vec<SocketAddr>>,
    by: (Time, BusyClock<'_>),
) -> Result<Link> {
    let connector = Connector {
        credentials,
        own: place.rank,
        peer: 0,
        detail: TO_HEAD,
        source: source_of(named),
        bytes_max: tree::table_bytes_max(place.ranks),
    };
    connector.connect(addresses, by)
}

/// The address to connect from, if the settings name one.
fn source_of(named: Option<&[Interface]>) -> Option<IpAddr> {
    Some(named?.first()?.ip)
}

/// Another rank's part, once it is connected to rank 0.
fn other(
    place: &Place,
    config: &Config,
    mut head: Link,
    (credentials, named): (Credentials, Option<&[Interface]>),
    (deadline, clock): (Time, BusyClock<'_>),
) -> Result<Network> {
    let (rank, ranks) = (place.rank, place.ranks);
    let patience = deadline.after(LATE_ANSWER_TIME);
    let prepare = || -> Result<(Option<Listener>, Coming)> {
        let has_children = !tree::children(rank, ranks).is_empty();
        let listener = has_children.then(|| listen_for_children(&head, rank, &credentials));
        let (listener, port) = listener.transpose()?.unzip();
        let coming = Coming {
            ranks,
            fingerprint: config.shared_fingerprint(),
            port: port.unwrap_or(0),
            host: HostIdentity::own(config.host_id.as_deref())?,
            user: own_user()?,
            offer: own_offer(place, config),
        };
        Ok((listener, coming))
    };
    let (listener, coming) = match prepare() {
        Ok(prepared) => prepared,
        Err(error) => {
            head.send_failure(
                &format!("rank {rank} cannot take part: {error}"),
                (patience, clock),
            );
            return Err(error);
        }
    };
    // Where rank 0 was quicker to refuse, its reason is there to be read.
    let _ = head.send(Kind::Come, &coming.emit(), (patience, clock));
    let go = match head.wait("rank 0", (patience, clock))? {
        (Kind::Go, body) => Going::parse(&body)?,
        (kind, _) => return Err(Error::Malformed(format!("rank 0 sent {kind:?} before Go"))),
    };
    let why = explain(&head, named.is_some(), go.own);
    let secret = credentials.made_secret();
    Ok(Network {
        rank,
        ranks,
        side: Side::Other(Box::new(Other {
            head,
            listener,
            parent: go.parent,
            source: source_of(named),
            credentials,
        })),
        deadline,
        address: go.own,
        why,
        is_one_host: go.is_one_host,
        agreed: go.agreed,
        local: go.local,
        secret,
    })
}

/// A listener at this rank's address of its connection to rank 0; at all addresses, if that one is
/// loopback and other hosts are served.
fn listen_for_children(
    head: &Link,
    rank: Rank,
    credentials: &Credentials,
) -> Result<(Listener, u16)> {
    let ip = match head.at.ip() {
        ip if ip.is_loopback() && credentials.is_open && ip.is_ipv4() => {
            Ipv4Addr::UNSPECIFIED.into()
        }
        ip => ip,
    };
    let what = |e| {
        Error::os(
            format!("listening on {ip} for the ranks below rank {rank}"),
            e,
        )
    };
    let socket = TcpListener::bind((ip, 0)).map_err(what)?;
    let port = socket.local_addr().map_err(what)?.port();
    let listener = Listener::new(vec![socket], rank, credentials)?;
    Ok((listener, port))
}

fn explain(head: &Link, is_named: bool, address: IpAddr) -> String {
    match (is_named, head.at.ip().is_loopback()) {
        (true, _) => "LINERATE_IFNAME names its interface".into(),
        (false, true) if address.is_loopback() => "all ranks are on this host".into(),
        (false, true) => "rank 0 is on this host, and the others reach it there".into(),
        (false, false) => format!("the route to rank 0 at {} leaves by it", head.from.ip()),
    }
}

#[cfg(test)]
#[path = "network_tests.rs"]
mod tests;
