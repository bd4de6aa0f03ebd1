//! [`Server`]: rank 0's side of the rendezvous: the connections of the other ranks. It hears when
//! one is lost, and tells all of them if the job cannot start.
//!
//! It has no thread of its own: rank 0 polls it while it waits for the others. A poll reads only
//! the connections on which something has come.

use super::busy::BusyClock;
use super::entrance::Entrance;
use super::link::{Kind, Link, Lost, told, wait_for};
use crate::error::{Error, Result};
use crate::time::Time;
use crate::types::Rank;
use crate::wait::Watch;
use rustix::event::PollFlags;
use std::collections::BTreeMap;
use std::os::fd::AsFd;
use std::time::Duration;

/// A rank reads all the time; one that is stopped is waited for no longer.
const SEND_TIME: Duration = Duration::from_secs(2);
/// How long ranks that have not come yet are told of a failure: a launcher starts hundreds of
/// processes in that time.
const TELL_TIME: Duration = Duration::from_secs(5);
/// The key of the entrance; a connection has its rank.
const ENTRANCE: u64 = u64::MAX;

/// See the module.
#[derive(Debug)]
pub(super) struct Server {
    entrance: Entrance,
    links: BTreeMap<Rank, Link>,
    /// Of the entrance and the links.
    watch: Watch,
    ranks: u32,
    /// Longest frame of another rank.
    bytes_max: usize,
}

impl Server {
    pub fn new(entrance: Entrance, ranks: u32, bytes_max: usize) -> Result<Server> {
        let watch = Watch::new()?;
        watch.add(&entrance, ENTRANCE)?;
        Ok(Server {
            entrance,
            links: BTreeMap::new(),
            watch,
            ranks,
            bytes_max,
        })
    }

    /// The connection of a rank, if it has come.
    pub fn link(&self, rank: Rank) -> Option<&Link> {
        self.links.get(&rank)
    }

    /// How many were refused, for errors.
    pub fn refusals(&self) -> String {
        self.entrance.refusals()
    }

    /// Sleeps until something comes, at most until the deadline.
    pub fn sleep(&self, by: (Time, BusyClock<'_>)) {
        wait_for(&[self.watch.as_fd()], PollFlags::IN, by);
    }

    /// The frames that have come since the last call, all of the one kind that is due, with their
    /// senders. Does not block.
    pub fn poll(&mut self, due: Kind, clock: BusyClock<'_>) -> Result<Vec<(Rank, Vec<u8>)>> {
        let mut frames = Vec::new();
        for index in 0..self.watch.look() {
            match self.watch.found(index) {
                ENTRANCE => {}
                rank => self.read(rank as Rank, due, &mut frames)?,
            }
        }
        // The entrance is polled in any case, because it has deadlines.
        let mut new = Vec::new();
        let polled = (self.entrance).poll(clock.now(), self.bytes_max, &mut new);
        let ranks: Vec<Rank> = new.iter().map(|(rank, _)| *rank).collect();
        // All of them are admitted, so that all are told of an error.
        let admit = |first: Result<()>, (rank, link)| first.and(self.admit(rank, link, clock));
        new.into_iter().fold(polled, admit)?;
        for rank in ranks {
            // What came together with the end of the handshake is not in the socket any more.
            self.read(rank, due, &mut frames)?;
        }
        Ok(frames)
    }

    fn read(&mut self, rank: Rank, due: Kind, frames: &mut Vec<(Rank, Vec<u8>)>) -> Result<()> {
        let Some(link) = self.links.get_mut(&rank) else {
            return Ok(());
        };
        loop {
            match link.receive() {
                Ok(None) => return Ok(()),
                Ok(Some((kind, body))) if kind == due => frames.push((rank, body)),
                Ok(Some((Kind::Failure, text))) => return Err(told(&text)),
                Ok(Some((kind, _))) => {
                    return Err(broke(rank, &format!("it sent {kind:?} before {due:?}")));
                }
                Err(Lost(why)) => return Err(broke(rank, &format!("{why}; see what it printed"))),
            }
        }
    }

    fn admit(&mut self, rank: Rank, mut link: Link, clock: BusyClock<'_>) -> Result<()> {
        let why = match rank {
            _ if rank >= self.ranks => format!(
                "rank 0 expects {} ranks, and somebody came as rank {rank}",
                self.ranks
            ),
            _ if rank == 0 || self.links.contains_key(&rank) => format!(
                "two processes say that they are rank {rank}: one of them came from {}",
                link.origin()
            ),
            _ => {
                self.watch.add(&link, rank.into())?;
                self.links.insert(rank, link);
                return Ok(());
            }
        };
        link.send_failure(&why, (clock.now().after(SEND_TIME), clock));
        Err(Error::Bootstrap(why))
    }

    /// Sends a frame to a rank that has come.
    pub fn send(
        &mut self,
        rank: Rank,
        kind: Kind,
        body: &[u8],
        clock: BusyClock<'_>,
    ) -> Result<()> {
        let by = (clock.now().after(SEND_TIME), clock);
        let link = self.links.get_mut(&rank);
        let sent = link.map_or(Ok(()), |link| link.send(kind, body, by));
        sent.map_err(|Lost(why)| broke(rank, &why))
    }

    /// The job cannot start: tells the ranks that have come why, and those that come until the
    /// deadline (at most for [`TELL_TIME`]).
    pub fn fail(mut self, error: Error, (deadline, clock): (Time, BusyClock<'_>)) -> Error {
        let text = error.to_string();
        let mut told_count = 0;
        let by = || (clock.now().after(SEND_TIME), clock);
        for mut link in std::mem::take(&mut self.links).into_values() {
            link.send_failure(&text, by());
            self.watch.remove(&link);
            told_count += 1;
        }
        let until = clock.now().after(TELL_TIME).min(deadline);
        while told_count + 1 < self.ranks && clock.now() < until {
            let mut new = Vec::new();
            // The first error is the one that is told.
            let _ = (self.entrance).poll(clock.now(), self.bytes_max, &mut new);
            for (_, mut link) in new {
                link.send_failure(&text, by());
                told_count += 1;
            }
            self.sleep((until, clock));
        }
        error
    }

    /// The connections of these ranks; the others are closed, and no further rank is admitted.
    pub fn into_links(mut self, ranks: impl Iterator<Item = Rank>) -> Vec<(Rank, Link)> {
        ranks
            .filter_map(|rank| self.links.remove(&rank).map(|link| (rank, link)))
            .collect()
    }
}

fn broke(rank: Rank, why: &str) -> Error {
    Error::Bootstrap(format!(
        "rank {rank} failed while others were waited for: {why}"
    ))
}
