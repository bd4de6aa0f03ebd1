//! The contacts of all ranks to all ranks, over the tree of `tree.rs`, once the ranks have met.
//!
//! Every rank keeps its connection to rank 0 meanwhile: a rank that fails tells rank 0, or rank 0
//! sees its connection end, and rank 0 tells all.

use super::busy::BusyClock;
use super::connector::Connector;
use super::credentials::Credentials;
use super::link::{Kind, LATE_ANSWER_TIME, Link, Lost, told, wait_for};
use super::listener::{Listener, TO_PARENT};
use super::server::Server;
use super::tree::{self, Table};
use crate::error::{Error, Result};
use crate::time::Time;
use crate::types::Rank;
use rustix::event::PollFlags;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::AsFd;
use std::time::Duration;

/// A child that reads its contacts takes them at once; one that is stopped is waited for no longer.
const SEND_TIME: Duration = Duration::from_secs(10);

/// A rank that has met the others and is not rank 0.
pub(super) struct Other {
    /// Its connection to rank 0.
    pub head: Link,
    /// Where its children connect, if it has any.
    pub listener: Option<Listener>,
    /// Where its parent listens; `None`: that is rank 0.
    pub parent: Option<SocketAddr>,
    /// The address to connect from, if the settings name one.
    pub source: Option<IpAddr>,
    pub credentials: Credentials,
}

/// Rank 0's part of the exchange.
pub(super) fn spread(
    mut server: Server,
    ranks: u32,
    mut table: Table,
    (deadline, clock): (Time, BusyClock<'_>),
) -> Result<Table> {
    let gathered = gather_at_head(&mut server, ranks, &mut table, (deadline, clock));
    if let Err(error) = gathered {
        return Err(server.fail(error, (clock.now(), clock)));
    }
    let mut children = server.into_links(tree::children(0, ranks));
    send_down(&mut children, &table, clock)?;
    Ok(table)
}

fn gather_at_head(
    server: &mut Server,
    ranks: u32,
    table: &mut Table,
    (deadline, clock): (Time, BusyClock<'_>),
) -> Result<()> {
    while table.len() < ranks as usize {
        for (_, bytes) in server.poll(Kind::Contacts, clock)? {
            tree::parse_table(&bytes, ranks, table)?;
        }
        if clock.now() >= deadline {
            return Err(late(ranks, table));
        }
        if table.len() < ranks as usize {
            server.sleep((deadline, clock));
        }
    }
    Ok(())
}

fn late(ranks: u32, table: &Table) -> Error {
    let missing: Vec<Rank> = (0..ranks)
        .filter(|rank| !table.contains_key(rank))
        .collect();
    Error::Bootstrap(format!(
        "the contacts of ranks {missing:?} did not come in time (LINERATE_TIMEOUT): a rank between is stopped, or a firewall lets no connection to it through"
    ))
}

/// Sends the contacts of all to these ranks. If one is lost, those after it are told.
pub(super) fn send_down(
    children: &mut [(Rank, Link)],
    table: &Table,
    clock: BusyClock<'_>,
) -> Result<()> {
    let bytes = tree::emit_table(table);
    let mut sent = Ok(());
    for (rank, link) in children {
        let by = (clock.now().after(SEND_TIME), clock);
        sent = match sent {
            Ok(()) => link.send(Kind::Contacts, &bytes, by).map_err(|Lost(why)| {
                format!("rank {rank} left while contacts were exchanged: {why}")
            }),
            Err(text) => {
                link.send_failure(&text, by);
                Err(text)
            }
        };
    }
    sent.map_err(Error::Bootstrap)
}

/// The part of the other ranks: contacts of the ranks below go up, and contacts of all go down.
pub(super) fn pass_on(
    mut other: Other,
    (rank, ranks): (Rank, u32),
    mut table: Table,
    (deadline, clock): (Time, BusyClock<'_>),
) -> Result<Table> {
    let passed = pass_up(&mut other, (rank, ranks), &mut table, (deadline, clock));
    let (mut children, parent) = match passed {
        Ok(links) => links,
        Err(error) => return Err(first_cause(&mut other.head, error, clock)),
    };
    let all = wait_below(
        parent,
        other.head,
        rank,
        (deadline.after(LATE_ANSWER_TIME), clock),
    )?;
    let mut table = Table::new();
    tree::parse_table(&all, ranks, &mut table)?;
    send_down(&mut children, &table, clock)?;
    Ok(table)
}

/// The contacts of all, from the rank above; or the error by which rank 0 ends the job.
fn wait_below(
    parent: Option<Link>,
    mut head: Link,
    rank: Rank,
    (deadline, clock): (Time, BusyClock<'_>),
) -> Result<Vec<u8>> {
    let who = format!(
        "rank {}, from which the contacts come,",
        tree::parent(rank).unwrap_or(0)
    );
    let Some(mut parent) = parent else {
        return match head.wait(&who, (deadline, clock))? {
            (Kind::Contacts, bytes) => Ok(bytes),
            (kind, _) => Err(Error::Malformed(format!("{who} sent {kind:?}"))),
        };
    };
    let mut lost: Option<(String, Time)> = None;
    let mut is_head_there = true;
    loop {
        if is_head_there {
            match head.receive() {
                Ok(Some((Kind::Failure, text))) => return Err(told(&text)),
                Ok(_) => {}
                // Rank 0 leaves as soon as it has sent the contacts on their way.
                Err(Lost(_)) => is_head_there = false,
            }
        }
        let now = clock.now();
        match (&lost, parent.receive()) {
            (_, Ok(Some((Kind::Contacts, bytes)))) => return Ok(bytes),
            (_, Ok(Some((kind, _)))) => {
                return Err(Error::Malformed(format!("{who} sent {kind:?}")));
            }
            (_, Ok(None)) => {}
            // Rank 0 knows why, if it is still there.
            (None, Err(Lost(why))) => lost = Some((why, now.after(LATE_ANSWER_TIME).min(deadline))),
            (Some((why, until)), Err(_)) if !is_head_there || now >= *until => {
                return Err(Error::Bootstrap(format!(
                    "{who} was lost: {why}; see what it printed"
                )));
            }
            (Some(_), Err(_)) => {}
        }
        if now >= deadline {
            return Err(Error::Bootstrap(format!("{who} did not send them in time")));
        }
        let mut set = Vec::new();
        if is_head_there {
            set.push(head.as_fd());
        }
        if lost.is_none() {
            set.push(parent.as_fd());
        }
        wait_for(&set, PollFlags::IN, (deadline, clock));
    }
}

/// An error if rank 0 has told a failure or is lost. Before the contacts it sends nothing else.
fn check_failure(head: &mut Link) -> Result<()> {
    match head.receive() {
        Ok(None) => Ok(()),
        Ok(Some((Kind::Failure, text))) => Err(told(&text)),
        Ok(Some((kind, _))) => Err(Error::Malformed(format!("rank 0 sent {kind:?}"))),
        Err(Lost(why)) => Err(Error::Bootstrap(format!(
            "rank 0 was lost: {why}; see what it printed"
        ))),
    }
}

/// Tells rank 0 what has gone wrong here. Rank 0 tells all ranks, this one too, what it heard
/// first: that is the cause.
fn first_cause(head: &mut Link, error: Error, clock: BusyClock<'_>) -> Error {
    let until = clock.now().after(LATE_ANSWER_TIME);
    head.send_failure(&error.to_string(), (until, clock));
    loop {
        match head.receive() {
            Ok(Some((Kind::Failure, text))) => return told(&text),
            Ok(None) if clock.now() < until => {
                wait_for(&[head.as_fd()], PollFlags::IN, (until, clock))
            }
            Ok(Some(_)) => {}
            Ok(None) | Err(_) => return error,
        }
    }
}

type Links = (Vec<(Rank, Link)>, Option<Link>);

fn pass_up(
    other: &mut Other,
    (rank, ranks): (Rank, u32),
    table: &mut Table,
    (deadline, clock): (Time, BusyClock<'_>),
) -> Result<Links> {
    let below = tree::children(rank, ranks);
    // Those that have not sent their contacts yet, and those that have.
    let mut waiting: Vec<(Rank, Link)> = Vec::new();
    let mut children: Vec<(Rank, Link)> = Vec::new();
    while children.len() < below.len() {
        check_failure(&mut other.head)?;
        let listener = other
            .listener
            .as_mut()
            .expect("a rank with children listens");
        let mut authenticated = Vec::new();
        listener.poll(clock.now(), &mut authenticated)?;
        for new in authenticated {
            let mut known = waiting.iter().chain(&children);
            let is_new = known.all(|(known, _)| *known != new.rank);
            if new.detail == TO_PARENT && below.contains(&new.rank) && is_new {
                let link = Link::new(new.stream, new.tls, tree::table_bytes_max(ranks));
                waiting.extend(link.ok().map(|link| (new.rank, link)));
            }
        }
        for (child, mut link) in std::mem::take(&mut waiting) {
            match link.receive() {
                Ok(None) => waiting.push((child, link)),
                Ok(Some((Kind::Contacts, bytes))) => {
                    tree::parse_table(&bytes, ranks, table)?;
                    children.push((child, link));
                }
                Ok(Some((kind, _))) => {
                    return Err(Error::Malformed(format!("rank {child} sent {kind:?}")));
                }
                // Its connection to rank 0 tells why.
                Err(Lost(_)) => {}
            }
        }
        if clock.now() >= deadline {
            return Err(late(ranks, table));
        }
        if children.len() < below.len() {
            let links = waiting.iter().map(|(_, link)| link.as_fd());
            let set: Vec<_> = [listener.as_fd(), other.head.as_fd()]
                .into_iter()
                .chain(links)
                .collect();
            wait_for(&set, PollFlags::IN, (deadline, clock));
        }
    }
    let mut parent = match other.parent {
        None => None,
        Some(address) => {
            let connector = Connector {
                credentials: &other.credentials,
                own: rank,
                peer: tree::parent(rank).unwrap_or(0),
                detail: TO_PARENT,
                source: other.source,
                bytes_max: tree::table_bytes_max(ranks),
            };
            let head = &mut other.head;
            // A parent that has heard of a failure is gone.
            let addresses = || check_failure(head).map(|()| vec![address]);
            Some(connector.connect(addresses, (deadline, clock))?)
        }
    };
    let above = parent.as_mut().unwrap_or(&mut other.head);
    above
        .send(Kind::Contacts, &tree::emit_table(table), (deadline, clock))
        .map_err(|Lost(why)| {
            Error::Bootstrap(format!("the rank above rank {rank} was lost: {why}"))
        })?;
    Ok((children, parent))
}
