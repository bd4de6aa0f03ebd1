//! Rendezvous of the ranks of one host: rank 0 serves a Unix socket ([`HostListener`]), each rank
//! introduces itself, and each gets the blobs of all.

use super::busy::BusyClock;
use super::contact::CONTACT_BYTES_MAX;
use super::contacts::send_down;
use super::entrance::{Entrance, HostListener, come_to_host, name_of};
use super::link::{Kind, LATE_ANSWER_TIME, Link};
use super::server::Server;
use super::tree::{Table, all_of_table, parse_table, table_bytes_max};
use crate::config::differing_settings;
use crate::error::{Error, Result};
use crate::time::Time;
use crate::types::Rank;
use rustix::io::Errno;
use std::time::Duration;

/// What a rank says of itself.
#[derive(Clone, Debug)]
pub struct Introduction {
    /// Its rank.
    pub rank: Rank,
    /// How many ranks it believes there are.
    pub ranks: u32,
    /// Settings that must be equal everywhere (see [`crate::Config::shared_fingerprint`]).
    pub fingerprint: u64,
    /// What the others need to reach it.
    pub blob: Vec<u8>,
}

/// Number of ranks and settings; the blob follows.
const HEADER_BYTES: usize = 12;
/// Pause of a rank until it looks for rank 0 again: the first and the longest.
const RETRY: Duration = Duration::from_millis(2);
const RETRY_MAX: Duration = Duration::from_millis(32);
/// How long a rank that cannot take part looks for rank 0, to say so.
const TELL_TIME: Duration = Duration::from_secs(5);

/// Carries every rank's blob to every rank of the job; returns them by rank.
pub fn exchange(
    own: &Introduction,
    job: &str,
    timeout: Duration,
    clock: BusyClock<'_>,
) -> Result<Vec<Vec<u8>>> {
    let by = (clock.now().after(timeout), clock);
    match own.rank {
        _ if own.ranks == 1 => Ok(vec![own.blob.clone()]),
        0 => serve(own, job, by),
        _ => ask(own, job, by),
    }
}

/// This rank cannot take part: tells the others, as far as they can be reached soon, and gives the
/// error back.
pub fn decline(rank: Rank, ranks: u32, job: &str, error: Error, clock: BusyClock<'_>) -> Error {
    let by = (clock.now().after(TELL_TIME), clock);
    let text = format!("rank {rank} cannot take part: {error}");
    if rank == 0 && ranks > 1 {
        if let Ok(server) = listen(job, ranks) {
            server.fail(Error::Bootstrap(text), by);
        }
    } else if ranks > 1 {
        // Rank 0 may be gone or never come; then it needs no reason.
        if let Ok(mut link) = reach((rank, ranks), job, by) {
            link.send_failure(&text, by);
        }
    }
    error
}

fn listen(job: &str, ranks: u32) -> Result<Server> {
    let entrance = Entrance::Host(HostListener::new(job)?);
    Server::new(entrance, ranks, HEADER_BYTES + CONTACT_BYTES_MAX)
}

/// Rank 0's part.
fn serve(
    own: &Introduction,
    job: &str,
    (deadline, clock): (Time, BusyClock<'_>),
) -> Result<Vec<Vec<u8>>> {
    let mut server = listen(job, own.ranks)?;
    let mut table: Table = [(own.rank, own.blob.clone())].into();
    if let Err(error) = gather(&mut server, own, job, &mut table, (deadline, clock)) {
        // Those that have not come in time do not come now.
        return Err(server.fail(error, (deadline, clock)));
    }
    let mut others = server.into_links(1..own.ranks);
    send_down(&mut others, &table, clock)?;
    all_of_table(table, own.ranks)
}

/// Waits until every rank has introduced itself.
fn gather(
    server: &mut Server,
    own: &Introduction,
    job: &str,
    table: &mut Table,
    (deadline, clock): (Time, BusyClock<'_>),
) -> Result<()> {
    loop {
        for (rank, body) in server.poll(Kind::Come, clock)? {
            let peer = parse(rank, &body)?;
            check(own, &peer)?;
            if table.insert(rank, peer.blob).is_some() {
                return Err(Error::Malformed(format!("rank {rank} came twice")));
            }
        }
        if table.len() == own.ranks as usize {
            return Ok(());
        }
        if clock.now() >= deadline {
            return Err(absent(own, job, table));
        }
        server.sleep((deadline, clock));
    }
}

/// The error that names the ranks that have not come and those that have.
fn absent(own: &Introduction, job: &str, table: &Table) -> Error {
    let (waiting, absent): (Vec<Rank>, Vec<Rank>) =
        (0..own.ranks).partition(|rank| table.contains_key(rank));
    Error::Bootstrap(format!(
        "ranks {absent:?} of job '{job}' did not come in time; ranks {waiting:?} came and waited for them; are all {} ranks started?",
        own.ranks
    ))
}

fn check(own: &Introduction, peer: &Introduction) -> Result<()> {
    if peer.ranks != own.ranks {
        return Err(Error::Bootstrap(format!(
            "rank 0 expects {} ranks, and somebody came as rank {} of {}",
            own.ranks, peer.rank, peer.ranks
        )));
    }
    if peer.fingerprint != own.fingerprint {
        let (theirs, own) = (peer.fingerprint, own.fingerprint);
        return Err(differing_settings(peer.rank, theirs, own));
    }
    Ok(())
}

/// Another rank's part.
fn ask(
    own: &Introduction,
    job: &str,
    (deadline, clock): (Time, BusyClock<'_>),
) -> Result<Vec<Vec<u8>>> {
    let mut head = reach((own.rank, own.ranks), job, (deadline, clock))?;
    let patience = (deadline.after(LATE_ANSWER_TIME), clock);
    // Where rank 0 was quicker to refuse, its reason is there to be read.
    let _ = head.send(Kind::Come, &emit(own), patience);
    let who = format!("rank 0 of job '{job}'");
    let mut table = Table::new();
    match head.wait(&who, patience)? {
        (Kind::Contacts, bytes) => parse_table(&bytes, own.ranks, &mut table)?,
        (kind, _) => return Err(Error::Malformed(format!("{who} sent {kind:?}"))),
    }
    all_of_table(table, own.ranks)
}

/// Connects to rank 0, which may come later.
fn reach(
    (rank, ranks): (Rank, u32),
    job: &str,
    (deadline, clock): (Time, BusyClock<'_>),
) -> Result<Link> {
    let name = name_of(job)?;
    let mut pause = RETRY;
    loop {
        let came = come_to_host(rank, &name);
        match came.and_then(|stream| Link::of_host(stream, table_bytes_max(ranks))) {
            Ok(link) => return Ok(link),
            Err(e) if matches!(Errno::from_io_error(&e), Some(Errno::MFILE | Errno::NFILE)) => {
                return Err(Error::os("connecting to rank 0", e));
            }
            Err(e) if clock.now() >= deadline => {
                return Err(Error::Bootstrap(format!(
                    "rank {rank} did not find rank 0 of job '{job}' in time ({e}); is rank 0 started on this host, with the same job name?"
                )));
            }
            Err(_) => clock.sleep(pause),
        }
        pause = (2 * pause).min(RETRY_MAX);
    }
}

fn emit(own: &Introduction) -> Vec<u8> {
    let mut bytes = own.ranks.to_le_bytes().to_vec();
    bytes.extend(own.fingerprint.to_le_bytes());
    bytes.extend(&own.blob);
    bytes
}

fn parse(rank: Rank, body: &[u8]) -> Result<Introduction> {
    let malformed = || Error::Malformed(format!("rank {rank} introduces itself in half a header"));
    let (header, blob) = body.split_at_checked(HEADER_BYTES).ok_or_else(malformed)?;
    Ok(Introduction {
        rank,
        ranks: u32::from_le_bytes(std::array::from_fn(|i| header[i])),
        fingerprint: u64::from_le_bytes(std::array::from_fn(|i| header[4 + i])),
        blob: blob.to_vec(),
    })
}

#[cfg(test)]
#[path = "local_tests.rs"]
mod tests;
