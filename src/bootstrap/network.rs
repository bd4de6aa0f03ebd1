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

use super::connector::Connector;
use super::contacts::{Other, pass_on, spread};
use super::credentials::Credentials;
use super::env::Place;
use super::identity::{HostIdentity, own_user};
use super::interfaces::{self, Interface};
use super::link::{Kind, LATE_ANSWER_TIME, Link};
use super::listener::{Listener, TO_HEAD};
use super::note::note;
use super::publish::{self, Finder};
use super::server::Server;
use super::tree::{self, Table};
use crate::config::{Config, differing_settings};
use crate::error::{Error, Result};
use crate::time::Time;
use crate::transport::{self, Agreed, Fabric, Offer, Options, agree};
use crate::types::Rank;
use crate::wait::Clock;
use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpListener};

/// Longest reason that a rank tells another.
const REASON_CHARS_MAX: usize = 200;
/// Longest frame of a rank that comes or is to go: four bytes a character of the reason, and less
/// than 200 for the rest.
const FRAME_BYTES_MAX: usize = 4 * REASON_CHARS_MAX + 200;

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
    pub local_rank: u32,
    /// The secret that rank 0 has made, where none was given.
    pub secret: Option<Vec<u8>>,
}

enum Side {
    /// Rank 0's.
    Head(Box<Server>),
    Other(Box<Other>),
}

/// What a rank says when it comes.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Coming {
    ranks: u32,
    fingerprint: u64,
    /// Where it listens for its children; 0 if it has none.
    port: u16,
    /// Where it is, and whose.
    host: HostIdentity,
    user: u64,
    /// What RDMA devices it has.
    offer: Offer,
}

/// Where rank 0 tells the others to go.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Going {
    /// The rank's own address, as rank 0 sees it.
    own: IpAddr,
    /// Where its parent listens; `None`: that is rank 0.
    parent: Option<SocketAddr>,
    is_one_host: bool,
    /// Its number among the ranks of its host.
    local_rank: u32,
    agreed: Agreed,
}

impl Network {
    /// Brings the ranks of a job together.
    pub fn meet(place: &Place, config: &Config, clock: &Clock) -> Result<Network> {
        let credentials =
            Credentials::new(&config.job, config.tcp.has_tls, &place.job, place.epoch)?
                .for_meeting();
        let list = config.job.interfaces.as_deref();
        let named = list
            .map(|list| interfaces::named(&interfaces::list()?, list))
            .transpose()?;
        let deadline = clock.now().after(config.timeout);
        match place.rank {
            0 => head(
                place,
                config,
                (&credentials, named.as_deref()),
                (deadline, clock),
            ),
            _ => other(
                place,
                config,
                (credentials, named.as_deref()),
                (deadline, clock),
            ),
        }
    }

    /// This rank cannot take part after all: tells the others.
    pub fn decline(self, error: Error, clock: &Clock) -> Error {
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
    pub fn exchange(self, blob: &[u8], clock: &Clock) -> Result<Vec<Vec<u8>>> {
        let table: Table = [(self.rank, blob.to_vec())].into();
        let by = (self.deadline, clock);
        let (rank, ranks) = (self.rank, self.ranks);
        let table = match self.side {
            Side::Head(server) => spread(*server, ranks, table, by)?,
            Side::Other(other) => pass_on(*other, (rank, ranks), table, by)?,
        };
        let missing: Vec<Rank> = (0..ranks).filter(|r| !table.contains_key(r)).collect();
        match missing.is_empty() {
            true => Ok(table.into_values().collect()),
            false => Err(Error::Malformed(format!(
                "a table of contacts without ranks {missing:?}"
            ))),
        }
    }
}

fn head(
    place: &Place,
    config: &Config,
    (credentials, named): (&Credentials, Option<&[Interface]>),
    (deadline, clock): (Time, &Clock),
) -> Result<Network> {
    let listening = publish::listen(place, credentials, named, config.timeout)?;
    let addresses = listening.addresses.iter().map(SocketAddr::to_string);
    let addresses: Vec<String> = addresses.collect();
    let mut listener = Listener::new(listening.sockets, 0, credentials)
        .map_err(|e| Error::os(format!("listening on {}", addresses.join(", ")), e))?;
    listener.serve_secret(listening.secret_socket);
    if config.debug {
        note(&format!(
            "rank 0 of {}: it listens on {} ({})",
            place.ranks,
            addresses.join(", "),
            listening.why
        ));
    }
    let mut server = Server::new(listener, place.ranks, tree::table_bytes_max(place.ranks));
    let wanted = Coming {
        ranks: place.ranks,
        fingerprint: config.shared_fingerprint(),
        port: 0,
        host: HostIdentity::own(config.host_id.as_deref())?,
        user: own_user()?,
        offer: own_offer(place, config),
    };
    match receive_all(&mut server, &wanted, named, (deadline, clock)) {
        Ok(((address, why), is_one_host, agreed)) => Ok(Network {
            rank: 0,
            ranks: place.ranks,
            side: Side::Head(Box::new(server)),
            deadline,
            address,
            why,
            is_one_host,
            agreed,
            local_rank: 0,
            secret: credentials.made_secret(),
        }),
        Err(error) => {
            let until = match clock.now() >= deadline {
                true => clock.now(),
                false => deadline,
            };
            Err(server.fail(error, (until, clock)))
        }
    }
}

/// Waits until all have come and tells each where to go; gives rank 0's own address, whether all
/// are on its host, and what they use if not.
fn receive_all(
    server: &mut Server,
    wanted: &Coming,
    named: Option<&[Interface]>,
    (deadline, clock): (Time, &Clock),
) -> Result<((IpAddr, String), bool, Agreed)> {
    let ranks = wanted.ranks;
    let mut come: Vec<Option<Coming>> = vec![None; ranks as usize];
    come[0] = Some(wanted.clone());
    loop {
        for (rank, body) in server.poll(Kind::Come, clock)? {
            let coming = Coming::parse(&body)?;
            check(rank, &coming, wanted)?;
            if come[rank as usize].replace(coming).is_some() {
                return Err(Error::Malformed(format!("rank {rank} came twice")));
            }
        }
        if come.iter().all(Option::is_some) {
            break;
        }
        if clock.now() >= deadline {
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
    let answers: Vec<(Rank, String)> = (1..ranks)
        .map(|rank| {
            let parent = tree::parent(rank).filter(|&parent| parent > 0);
            let going = Going {
                own: seen(rank),
                parent: parent
                    .map(|parent| SocketAddr::new(seen(parent), come[parent as usize].port)),
                is_one_host,
                local_rank: local_rank(&come, rank),
                agreed: agreed.clone(),
            };
            (rank, going.emit())
        })
        .collect();
    for (rank, text) in answers {
        server.send(rank, Kind::Go, text.as_bytes(), clock)?;
    }
    Ok((own, is_one_host, agreed))
}

/// The number of a rank among those of its host.
fn local_rank(come: &[Coming], rank: Rank) -> u32 {
    let own = &come[rank as usize].host;
    let before = come[..rank as usize].iter();
    before.filter(|coming| coming.host == *own).count() as u32
}

/// What this rank's devices can do, if that is asked for.
fn own_offer(place: &Place, config: &Config) -> Offer {
    if !matches!(config.transport.as_str(), "auto" | "router") {
        return Err(format!("transport {} was asked for", config.transport));
    }
    let options = Options {
        tcp: config.tcp.clone(),
        verbs: config.verbs.clone(),
        ..Options::default()
    };
    transport::own_offer(place.rank, place.ranks, &options)
}

fn hosts_word(is_one_host: bool) -> &'static str {
    if is_one_host { "one" } else { "several" }
}

/// The address of rank 0's host at which most ranks of other hosts have arrived; without any, at
/// which its own have.
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

/// Who has not come, and who has.
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

fn other(
    place: &Place,
    config: &Config,
    (credentials, named): (Credentials, Option<&[Interface]>),
    (deadline, clock): (Time, &Clock),
) -> Result<Network> {
    let (rank, ranks) = (place.rank, place.ranks);
    let finder = Finder::new(place, config.timeout)?;
    let source = named
        .and_then(|named| named.first())
        .map(|interface| interface.ip);
    let connector = Connector {
        credentials: &credentials,
        own: rank,
        peer: 0,
        detail: TO_HEAD,
        source,
        bytes_max: tree::table_bytes_max(ranks),
    };
    let mut head = connector.connect(|| finder.addresses(), (deadline, clock))?;
    let patience = deadline.after(LATE_ANSWER_TIME);
    let has_children = !tree::children(rank, ranks).is_empty();
    let listener = has_children.then(|| listen_for_children(&head, rank, &credentials));
    let (listener, port) = match listener.transpose() {
        Ok(Some((listener, port))) => (Some(listener), port),
        Ok(None) => (None, 0),
        Err(error) => {
            head.send_failure(
                &format!("rank {rank} cannot take part: {error}"),
                (patience, clock),
            );
            return Err(error);
        }
    };
    let coming = Coming {
        ranks,
        fingerprint: config.shared_fingerprint(),
        port,
        host: HostIdentity::own(config.host_id.as_deref())?,
        user: own_user()?,
        offer: own_offer(place, config),
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
            source,
            credentials,
        })),
        deadline,
        address: go.own,
        why,
        is_one_host: go.is_one_host,
        agreed: go.agreed,
        local_rank: go.local_rank,
        secret,
    })
}

/// A listener where the route from rank 0 arrives; anywhere if that is loopback and other hosts are
/// served.
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
    let listener = Listener::new(vec![socket], rank, credentials).map_err(what)?;
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

impl Going {
    /// Words, and the reason last: it has several.
    fn emit(&self) -> String {
        let parent = self.parent.map_or("-".into(), |parent| parent.to_string());
        let hosts = hosts_word(self.is_one_host);
        let far = far_word(self.agreed.is_verbs, self.agreed.is_pity);
        let reason: String = self.agreed.reason.chars().take(REASON_CHARS_MAX).collect();
        let local = self.local_rank;
        format!("{} {parent} {hosts} {local} {far} {reason}", self.own)
    }

    fn parse(text: &[u8]) -> Result<Going> {
        let shown = String::from_utf8_lossy(&text[..text.len().min(FRAME_BYTES_MAX)]);
        let bad = || Error::Malformed(format!("rank 0 says where to go: '{shown}'"));
        let words: Vec<&str> = shown.splitn(6, ' ').collect();
        let &[own, parent, hosts, local_rank, far, reason] = words.as_slice() else {
            return Err(bad());
        };
        let parent = match parent {
            "-" => None,
            address => Some(address.parse().map_err(|_| bad())?),
        };
        let mut either = [true, false].into_iter();
        let is_one_host = either.find(|&one| hosts_word(one) == hosts);
        let all = [(true, false), (false, true), (false, false)];
        let far = all
            .into_iter()
            .find(|&(is_verbs, is_pity)| far_word(is_verbs, is_pity) == far);
        let (is_verbs, is_pity) = far.ok_or_else(bad)?;
        Ok(Going {
            own: own.parse().map_err(|_| bad())?,
            parent,
            is_one_host: is_one_host.ok_or_else(bad)?,
            local_rank: local_rank.parse().map_err(|_| bad())?,
            agreed: Agreed {
                is_verbs,
                reason: reason.into(),
                is_pity,
            },
        })
    }
}

fn far_word(is_verbs: bool, is_pity: bool) -> &'static str {
    match (is_verbs, is_pity) {
        (true, _) => "verbs",
        (false, true) => "tcp-although",
        (false, false) => "tcp",
    }
}

impl Coming {
    fn emit(&self) -> Vec<u8> {
        let mut bytes = self.host.0.to_le_bytes().to_vec();
        bytes.extend(self.ranks.to_le_bytes());
        bytes.extend(self.fingerprint.to_le_bytes());
        bytes.extend(self.port.to_le_bytes());
        bytes.extend(self.user.to_le_bytes());
        // The fabric's number, or 0 and why there is none.
        match &self.offer {
            Ok(fabric) => {
                let at = Fabric::ALL.iter().position(|one| one == fabric);
                bytes.push(1 + at.expect("all are there") as u8);
            }
            Err(why) => {
                bytes.push(0);
                let why: String = why.chars().take(REASON_CHARS_MAX).collect();
                bytes.extend(why.as_bytes());
            }
        }
        bytes
    }

    fn parse(bytes: &[u8]) -> Result<Coming> {
        let length = bytes.len();
        let malformed = || Error::Malformed(format!("a rank that comes says {length} bytes"));
        let (bytes, more) = bytes
            .split_first_chunk::<30>()
            .filter(|_| length <= FRAME_BYTES_MAX)
            .ok_or_else(malformed)?;
        let long = |at: usize| u64::from_le_bytes(std::array::from_fn(|i| bytes[at + i]));
        let offer = match more {
            [0, why @ ..] => Err(String::from_utf8_lossy(why).into_owned()),
            [number] => {
                let found = Fabric::ALL.get(usize::from(*number) - 1);
                Ok(*found.ok_or_else(malformed)?)
            }
            _ => return Err(malformed()),
        };
        Ok(Coming {
            ranks: u32::from_le_bytes(std::array::from_fn(|i| bytes[8 + i])),
            fingerprint: long(12),
            port: u16::from_le_bytes([bytes[20], bytes[21]]),
            host: HostIdentity(long(0)),
            user: long(22),
            offer,
        })
    }
}

#[cfg(test)]
#[path = "network_tests.rs"]
mod tests;
