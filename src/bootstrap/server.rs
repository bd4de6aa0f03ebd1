//! [`Server`]: rank 0's side of the rendezvous. It serves the store to the ranks that the gate has
//! let in, hears when one leaves, and tells all of them if the job cannot start.
//!
//! No thread of its own: it works whenever rank 0, which waits for the others anyway, gives it a
//! turn.

use super::gate::{Gate, TO_STORE};
use super::link::{Kind, Link, Lost, wait_for};
use super::store::{Answer, Request, Store};
use crate::error::{Error, Result};
use crate::time::Time;
use crate::types::Rank;
use crate::wait::Clock;
use rustix::event::PollFlags;
use std::collections::BTreeMap;
use std::os::fd::AsFd;
use std::time::Duration;

/// A rank reads all the time; one that is stopped is not waited for.
const SAY_TIME: Duration = Duration::from_secs(2);
/// After a failure, ranks that have not come yet are told for so long: a launcher starts hundreds
/// of processes in that time.
const TELL_TIME: Duration = Duration::from_secs(5);

/// See the module.
#[derive(Debug)]
pub(super) struct Server {
    gate: Gate,
    pub store: Store,
    guests: BTreeMap<Rank, Link>,
    ranks: u32,
    /// Longest frame of a guest.
    bytes_max: usize,
}

impl Server {
    pub fn new(gate: Gate, ranks: u32, bytes_max: usize) -> Server {
        Server {
            gate,
            store: Store::default(),
            guests: BTreeMap::new(),
            ranks,
            bytes_max,
        }
    }

    /// The rank's connection, if it has come.
    pub fn guest(&self, rank: Rank) -> Option<&Link> {
        self.guests.get(&rank)
    }

    /// How many were refused, for errors.
    pub fn refusals(&self) -> String {
        self.gate.refusals()
    }

    /// Sleeps until something comes, at most until the deadline.
    pub fn sleep(&self, by: (Time, &Clock)) {
        let guests = self.guests.values().map(AsFd::as_fd);
        let set: Vec<_> = self.gate.descriptors().chain(guests).collect();
        wait_for(&set, PollFlags::IN, by);
    }

    /// Takes what has come. Contacts are given back with their sender; everything else is the
    /// store's.
    pub fn turn(&mut self, clock: &Clock) -> Result<Vec<(Rank, Vec<u8>)>> {
        let now = clock.now();
        for proven in self.gate.turn(now)? {
            let mut link = match Link::new(proven.stream, proven.tls, self.bytes_max) {
                Ok(link) => link,
                // It was gone as soon as it had come; it comes again or not.
                Err(_) => continue,
            };
            let rank = proven.rank;
            let is_double = rank == 0 || self.guests.contains_key(&rank);
            let why = match rank {
                _ if proven.detail != TO_STORE => continue,
                _ if rank >= self.ranks => format!(
                    "rank 0 expects {} ranks, and somebody came as rank {rank}",
                    self.ranks
                ),
                _ if is_double => format!(
                    "two processes say that they are rank {rank}: one of them came from {}",
                    link.from
                ),
                _ => {
                    self.guests.insert(rank, link);
                    continue;
                }
            };
            link.say_failure(&why, (clock.now().after(SAY_TIME), clock));
            return Err(Error::Bootstrap(why));
        }
        let mut contacts = Vec::new();
        let mut requests = Vec::new();
        for (&rank, link) in &mut self.guests {
            loop {
                match link.hear() {
                    Ok(None) => break,
                    Ok(Some((Kind::Request, body))) => {
                        requests.push((rank, Request::parse(&body)?))
                    }
                    Ok(Some((Kind::Contacts, body))) => contacts.push((rank, body)),
                    Ok(Some((Kind::Failure, text))) => return Err(super::link::told(&text)),
                    Ok(Some((Kind::Answer, _))) => {
                        return Err(broke(rank, "it answers what nobody asked"));
                    }
                    Err(Lost(why)) => {
                        return Err(broke(rank, &format!("{why}; see what it printed")));
                    }
                }
            }
        }
        let mut answers = self.store.expire(now);
        for (rank, request) in requests {
            answers.extend(self.store.handle(rank, request, now));
        }
        self.answer(answers, clock)?;
        Ok(contacts)
    }

    /// Keeps a value of rank 0.
    pub fn put(&mut self, key: &str, value: Vec<u8>, clock: &Clock) -> Result<()> {
        let mut answers = Vec::new();
        self.store.put(key, value, &mut answers)?;
        self.answer(answers, clock)
    }

    fn answer(&mut self, answers: Vec<(Rank, Answer)>, clock: &Clock) -> Result<()> {
        for (rank, answer) in answers {
            if let Some(link) = self.guests.get_mut(&rank) {
                let by = (clock.now().after(SAY_TIME), clock);
                link.say(Kind::Answer, &answer.emit(), by)
                    .map_err(|Lost(why)| broke(rank, &why))?;
            }
        }
        Ok(())
    }

    /// The job cannot start: tells those who have come why, and until then (at most for some
    /// seconds) those who come.
    pub fn fail(mut self, error: Error, (deadline, clock): (Time, &Clock)) -> Error {
        let text = error.to_string();
        let mut told: Vec<Rank> = Vec::new();
        let by = || (clock.now().after(SAY_TIME), clock);
        for (rank, mut link) in std::mem::take(&mut self.guests) {
            link.say_failure(&text, by());
            told.push(rank);
        }
        let until = clock.now().after(TELL_TIME).min(deadline);
        while told.len() + 1 < self.ranks as usize && clock.now() < until {
            for proven in self.gate.turn(clock.now()).unwrap_or_default() {
                if let Ok(mut link) = Link::new(proven.stream, proven.tls, self.bytes_max) {
                    link.say_failure(&text, by());
                    told.push(proven.rank);
                }
            }
            self.sleep((until, clock));
        }
        error
    }

    /// The connections of these ranks; the others are closed, and nobody is let in any more.
    pub fn into_links(mut self, ranks: impl Iterator<Item = Rank>) -> Vec<(Rank, Link)> {
        ranks
            .filter_map(|rank| self.guests.remove(&rank).map(|link| (rank, link)))
            .collect()
    }
}

fn broke(rank: Rank, why: &str) -> Error {
    Error::Bootstrap(format!(
        "rank {rank} failed while others were waited for: {why}"
    ))
}
