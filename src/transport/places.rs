//! [`Places`]: the connections of peers that have not proven who they are, bounded in number. One
//! look, which is one system call, tells which of them have said something.
//!
//! A rank says hello as soon as it is connected. So where all places are taken, the oldest peer
//! that has said nothing makes room for the next one. If each has said hello, the oldest that has
//! proven nothing within [`PROOF_TIME`] makes room. Until there is one, nobody is let in: others
//! wait in the kernel's queue. A rank that had to make room connects again, so that no flood of
//! peers keeps it out.
//!
//! Not here: how a connection is accepted, what is said on it, and how long that may take.

use crate::error::Result;
use crate::time::Time;
use crate::wait::Watch;
use std::collections::{BTreeMap, BTreeSet};
use std::os::fd::{AsFd, BorrowedFd};
use std::time::Duration;

/// Where all places are taken, a peer that has said hello has this long to prove what it said: some
/// round trips, and a rank's wait for a core.
pub const PROOF_TIME: Duration = Duration::from_millis(100);

/// The number that stands for the sockets that accept connections.
pub const ENTRANCE: u64 = u64::MAX;

/// How far a peer has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Standing {
    /// It has not said hello.
    Silent,
    /// It has said who it is.
    Claims,
    /// It has proven it, and stays until keys are agreed on.
    Proven,
}

/// See the module. Connections have numbers that grow.
#[derive(Debug)]
pub struct Places<T> {
    most: usize,
    watch: Watch,
    all: BTreeMap<u64, Place<T>>,
    silent: BTreeSet<u64>,
    claiming: BTreeSet<u64>,
    next: u64,
    is_open: bool,
}

#[derive(Debug)]
struct Place<T> {
    connection: T,
    since: Time,
}

impl<T: AsFd> Places<T> {
    /// At most this many places.
    pub fn new(most: usize) -> Result<Places<T>> {
        Ok(Places {
            most,
            watch: Watch::new()?,
            all: BTreeMap::new(),
            silent: BTreeSet::new(),
            claiming: BTreeSet::new(),
            next: 0,
            is_open: true,
        })
    }

    /// Watches what accepts connections, as [`ENTRANCE`].
    pub fn watch(&self, entrance: impl AsFd) -> Result<()> {
        self.watch.add(entrance, ENTRANCE)
    }

    /// Watches these entrances or does not: while nobody can be let in, they stay readable.
    pub fn open<E: AsFd>(&mut self, entrances: &[E], is_open: bool) -> Result<()> {
        if self.is_open != is_open {
            for entrance in entrances {
                match is_open {
                    true => self.watch(entrance)?,
                    false => self.watch.remove(entrance),
                }
            }
        }
        self.is_open = is_open;
        Ok(())
    }

    /// Whether entrances are watched.
    pub fn is_open(&self) -> bool {
        self.is_open
    }

    /// Looks, and does not block; how many have something.
    pub fn look(&mut self) -> usize {
        self.watch.look()
    }

    /// The number of what the last look found at this place.
    pub fn found(&self, index: usize) -> u64 {
        self.watch.found(index)
    }

    /// Gives a new connection a place, and a number.
    pub fn admit(&mut self, connection: T, now: Time) -> Result<u64> {
        let number = self.next;
        self.watch.add(&connection, number)?;
        self.next += 1;
        self.silent.insert(number);
        let since = now;
        self.all.insert(number, Place { connection, since });
        Ok(number)
    }

    /// The connection with this number, unless it has left its place.
    pub fn get_mut(&mut self, number: u64) -> Option<&mut T> {
        self.all.get_mut(&number).map(|place| &mut place.connection)
    }

    /// Notes how far it has come.
    pub fn note(&mut self, number: u64, standing: Standing) {
        if standing != Standing::Silent {
            self.silent.remove(&number);
        }
        match standing {
            Standing::Silent => false,
            Standing::Claims => self.claiming.insert(number),
            Standing::Proven => self.claiming.remove(&number),
        };
    }

    /// Takes it from its place.
    pub fn take(&mut self, number: u64) -> Option<T> {
        let place = self.all.remove(&number)?;
        self.silent.remove(&number);
        self.claiming.remove(&number);
        self.watch.remove(&place.connection);
        Some(place.connection)
    }

    /// Whether all places are taken.
    pub fn is_full(&self) -> bool {
        self.all.len() >= self.most
    }

    /// Whether another connection may have a place: one is free, or a peer can make room.
    pub fn has_room(&self, now: Time) -> bool {
        !self.is_full() || self.least_likely(now).is_some()
    }

    /// Whether no place is taken.
    pub fn is_empty(&self) -> bool {
        self.all.is_empty()
    }

    /// The peer that makes room for another one, and how far it has come; `None`: each may be a
    /// rank.
    pub fn least_likely(&self, now: Time) -> Option<(u64, Standing)> {
        let silent = self
            .silent
            .first()
            .map(|&number| (number, Standing::Silent));
        let claiming = || {
            let number = *self.claiming.first()?;
            let since = self.all.get(&number)?.since;
            (now.since(since) >= PROOF_TIME).then_some((number, Standing::Claims))
        };
        silent.or_else(claiming)
    }

    /// The number of the oldest connection, since when it has been here, and the connection.
    pub fn oldest(&self) -> Option<(u64, Time, &T)> {
        let (&number, place) = self.all.first_key_value()?;
        Some((number, place.since, &place.connection))
    }

    /// All connections.
    pub fn iter(&self) -> impl Iterator<Item = &T> {
        self.all.values().map(|place| &place.connection)
    }
}

impl<T> AsFd for Places<T> {
    /// Readable while a look would find something.
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.watch.as_fd()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::event::{EventfdFlags, eventfd};
    use std::os::fd::OwnedFd;

    fn connection() -> OwnedFd {
        eventfd(0, EventfdFlags::CLOEXEC).unwrap()
    }

    fn full(most: usize) -> Places<OwnedFd> {
        let mut places = Places::new(most).unwrap();
        while !places.is_full() {
            places.admit(connection(), Time(0)).unwrap();
        }
        places
    }

    #[test]
    fn the_oldest_silent_peer_makes_room_at_once_and_a_liar_after_its_time() {
        let mut places = full(3);
        places.note(0, Standing::Claims);
        assert_eq!(places.least_likely(Time(0)), Some((1, Standing::Silent)));
        places.note(1, Standing::Claims);
        places.note(2, Standing::Claims);
        let just_before = Time(0).after(PROOF_TIME - Duration::from_nanos(1));
        assert_eq!(places.least_likely(just_before), None);
        assert!(!places.has_room(just_before));
        let late = Time(0).after(PROOF_TIME);
        assert_eq!(places.least_likely(late), Some((0, Standing::Claims)));
        // One that has proven who it is stays, also where it said hello and proof at once.
        places.note(0, Standing::Proven);
        assert_eq!(places.least_likely(late), Some((1, Standing::Claims)));
        assert!(places.take(1).is_some() && places.take(1).is_none());
        assert!(!places.is_full() && places.has_room(Time(0)));
        assert_eq!(places.admit(connection(), late).unwrap(), 3);
        assert_eq!(places.least_likely(late), Some((3, Standing::Silent)));
        places.note(3, Standing::Proven);
        places.note(2, Standing::Proven);
        assert_eq!(places.least_likely(late), None);
        assert_eq!(places.oldest().unwrap().0, 0);
    }

    #[test]
    fn a_closed_entrance_is_not_found_until_it_is_open_again() {
        let mut places = full(1);
        let entrances = [connection()];
        places.watch(&entrances[0]).unwrap();
        rustix::io::write(&entrances[0], &1u64.to_ne_bytes()).unwrap();
        for is_open in [false, false, true, true] {
            places.open(&entrances, is_open).unwrap();
            assert_eq!(places.look(), usize::from(is_open));
        }
        assert_eq!(places.found(0), ENTRANCE);
    }
}
