//! [`Exchange`]: small values by key, which the caller carries; [`GroupKeys`]: what ranks put there
//! to meet.
//!
//! ```text
//! rank 0 ── linerate/NAME/rank0: where it listens, the job's secret ──► every other rank
//! rank r ── linerate/NAME/failed: why it cannot come ──► rank 0
//! ```
//!
//! Rank 0 puts the first key once and overwrites it when all have come, or with the reason if they
//! cannot meet. Another rank gets that key once, and again while it cannot reach rank 0. The second
//! key is for a rank that cannot tell rank 0 by a connection. So a rank's puts and gets do not
//! depend on the number of ranks: connections (`network.rs`) carry the rest.

use super::busy::BusyClock;
use super::credentials::Credentials;
use super::env::{Launcher, Place, Rendezvous, check_rank};
use super::link::{LATE_ANSWER_TIME, told};
use super::posted::{Here, Posted};
use super::publish::Finder;
use super::random::{fresh_secret, nonce};
use crate::config::{Config, JobSettings, Secret};
use crate::error::{Error, Result};
use crate::time::Time;
use crate::types::Rank;
use crate::wire::cut_text;
use std::cell::Cell;
use std::net::SocketAddr;
use std::time::Duration;

/// Longest name of a group: keys of many stores have 250 bytes.
const NAME_BYTES_MAX: usize = 200;
/// How often a rank that waits for another one's connection looks at the exchange.
const LOOK_EVERY: Duration = Duration::from_millis(250);
/// How long such a look may take: the rank's connections wait meanwhile.
const LOOK_TIME: Duration = Duration::from_millis(10);
/// How long a thread that has something to do in between stays inside the exchange: at first, and
/// at most.
const AWAY_MIN: Duration = Duration::from_millis(1);
const AWAY_MAX: Duration = Duration::from_millis(16);
/// Pause between two gets of an exchange that does not wait by itself.
const ASK_AGAIN: Duration = Duration::from_millis(1);
/// Bytes of a strange value that an error shows.
const SHOWN_BYTES_MAX: usize = 32;

/// Small values by key that all ranks of a group reach: torch's `Store`, a table of etcd or Redis,
/// a folder, a map that threads share. The caller makes one where it already has a way between its
/// processes, so that no second address is named: see [`Communicator::join_by`] and
/// [`Communicator::sibling`].
///
/// Methods are called on the thread that joins, inside the call, and never by two threads at once
/// for one call. An error is carried, as text, by the [`Error::Bootstrap`] of the call. A method
/// that panics unwinds through the call, and the other ranks give up within their timeout. A method
/// that does not return within its limit cannot be interrupted: the call returns later than its
/// timeout then, and the other ranks do not wait for it.
///
/// Keys have at most 250 bytes and values at most 8 KiB. Both are text.
///
/// [`Communicator::join_by`]: crate::Communicator::join_by
/// [`Communicator::sibling`]: crate::Communicator::sibling
pub trait Exchange {
    /// Stores the value of a key for all ranks, instead of the one that is there. Takes at most
    /// `limit`, else it is an error.
    fn put(
        &self,
        key: &str,
        value: &[u8],
        limit: Duration,
    ) -> std::result::Result<(), Box<dyn std::error::Error + Send + Sync>>;

    /// The latest value of a key. Waits until there is one, at most for `limit`; `None`: there was
    /// none in time. It looks at least once, however short the limit is. An exchange that cannot
    /// wait returns at once, and is asked again every millisecond.
    fn get(
        &self,
        key: &str,
        limit: Duration,
    ) -> std::result::Result<Option<Vec<u8>>, Box<dyn std::error::Error + Send + Sync>>;
}

/// The keys of one group in its caller's exchange, seen by one of its ranks.
pub struct GroupKeys<'a> {
    place: Place,
    /// See [`Here::group`].
    group: u64,
    exchange: &'a dyn Exchange,
    look_at: Cell<Time>,
}

impl<'a> GroupKeys<'a> {
    /// Those of the group with this name, of which the caller is rank `rank` of `ranks`.
    pub fn new(
        (rank, ranks): (Rank, u32),
        name: &str,
        exchange: &'a dyn Exchange,
    ) -> Result<GroupKeys<'a>> {
        check_rank(rank, ranks, ("rank", "ranks"))?;
        let is_good = (1..=NAME_BYTES_MAX).contains(&name.len());
        if !is_good || name.contains(char::is_control) {
            let length = name.len();
            return Err(Error::invalid(format!(
                "the group's name '{}' has {length} bytes: 1 to {NAME_BYTES_MAX}, and no control characters",
                name.escape_debug()
            )));
        }
        Ok(GroupKeys {
            place: Place {
                rank,
                ranks,
                local_ranks: None,
                job: name.into(),
                epoch: 0,
                rendezvous: Rendezvous::Host,
                launcher: Launcher::Nobody,
            },
            group: 0,
            exchange,
            look_at: Cell::new(Time(0)),
        })
    }

    /// These keys, for a group whose ranks are `members` in another communicator. The caller knows
    /// whether they share a host.
    pub fn of_members(mut self, members: &[Rank], is_one_host: bool) -> GroupKeys<'a> {
        let mix = |hash: u64, member: &Rank| crate::prng::mix(hash ^ u64::from(*member));
        self.group = members.iter().fold(1, mix);
        self.place.local_ranks = is_one_host.then_some(self.place.ranks);
        self
    }

    /// The place of the rank in its group.
    pub fn place(&self) -> &Place {
        &self.place
    }

    /// This rank cannot take part: puts the reason where the others look for it, and gives the
    /// error back.
    pub fn decline(&self, error: Error) -> Error {
        if self.place.ranks > 1 {
            self.fail(
                &format!("rank {} cannot take part", self.place.rank),
                &error,
            );
        }
        error
    }

    /// Puts the reason for which the ranks cannot meet.
    fn fail(&self, what: &str, error: &Error) {
        let key = match self.place.rank {
            0 => self.key_of_rank_0(),
            _ => self.key_of_failure(),
        };
        let error = error.to_string();
        let text = format!("{what}: {}", error.trim_start_matches("bootstrap: "));
        // Without the exchange the others learn it by a connection that ends, or give up in time.
        let _ = self.put(&key, &Posted::Failed(text), LATE_ANSWER_TIME);
    }

    /// What rank 0 is about to say of itself, without addresses.
    pub(super) fn introduce(&self, job: &JobSettings) -> Result<Here> {
        let secret = match job.secret {
            Secret::None => Some(fresh_secret()?),
            _ => None,
        };
        Ok(Here {
            ranks: self.place.ranks,
            group: self.group,
            nonce: nonce()?,
            secret,
            addresses: Vec::new(),
        })
    }

    /// What the ranks of this meeting prove to each other.
    pub(super) fn credentials(&self, config: &Config, here: &Here) -> Result<Credentials> {
        let (rank, name) = (self.place.rank, &self.place.job);
        let mut job = config.job.clone();
        match (&job.secret, &here.secret) {
            (Secret::None, Some(made)) => job.secret = Secret::Text(made.clone().into()),
            (Secret::None, None) => {
                return Err(Error::Bootstrap(format!(
                    "rank 0 of '{name}' has a secret and rank {rank} has none: set LINERATE_SECRET (or LINERATE_SECRET_FILE) on all ranks or on none"
                )));
            }
            (_, None) => {}
            (_, Some(_)) => {
                return Err(Error::Bootstrap(format!(
                    "rank {rank} of '{name}' has a secret and rank 0 has none: set LINERATE_SECRET (or LINERATE_SECRET_FILE) on all ranks or on none"
                )));
            }
        }
        let name = format!("{name} {:016x}", here.nonce);
        Credentials::new(&job, config.tcp.has_tls, &name, 0)
    }

    /// Rank 0 tells the others where it is.
    pub(super) fn publish(
        &self,
        here: &Here,
        (deadline, clock): (Time, BusyClock<'_>),
    ) -> Result<()> {
        self.look_at.set(clock.now().after(LOOK_EVERY));
        let (key, start) = (self.key_of_rank_0(), clock.now());
        let limit = deadline.since(start).max(LOOK_TIME);
        self.put(&key, &Posted::Here(here.clone()), limit)?;
        let took = clock.now().since(start);
        match took > limit {
            false => Ok(()),
            true => Err(self.refused("put", &key, limit, &format!("it took {took:?}"))),
        }
    }

    /// Rank 0: all have come, or it has given up. Either way the secret leaves the exchange, and a
    /// rank that comes too late is told.
    pub(super) fn close(&self, given_up: Option<&Error>) {
        if let Some(error) = given_up {
            return self.fail("rank 0 gave up", error);
        }
        // The ranks need the exchange no more, so that its end is no failure of theirs.
        let _ = self.put(&self.key_of_rank_0(), &Posted::Over, LATE_ANSWER_TIME);
    }

    /// Looks whether a rank that cannot come has said so: its reason is the error. Rank 0 calls
    /// this while it waits for the others. It looks if a look is due, or `is_last`.
    pub(super) fn look(&self, is_last: bool, clock: BusyClock<'_>) -> Result<()> {
        if !is_last && !self.is_due(clock) {
            return Ok(());
        }
        let key = self.key_of_failure();
        match self.get(&key, LOOK_TIME)? {
            None => Ok(()),
            Some(Posted::Failed(text)) => Err(told(text.as_bytes())),
            Some(_) => Err(self.strange(&key, "another value")),
        }
    }

    /// Where rank 0 is; waits until it has said so.
    pub(super) fn find(&self, (deadline, clock): (Time, BusyClock<'_>)) -> Result<Here> {
        let key = self.key_of_rank_0();
        let start = clock.now();
        let mut away = AWAY_MIN;
        loop {
            let asked = clock.now();
            let limit = clock.away(deadline.since(asked), away).max(AWAY_MIN);
            if let Some(posted) = self.get(&key, limit)? {
                self.look_at.set(clock.now().after(LOOK_EVERY));
                return self.check(posted);
            }
            let now = clock.now();
            if now >= deadline {
                return Err(Error::Bootstrap(format!(
                    "rank {} has waited {:?} for key '{key}' of the caller's exchange, where rank 0 says where it is; is rank 0 of '{}' started, with this name and the same exchange?",
                    self.place.rank,
                    now.since(start),
                    self.place.job
                )));
            }
            away = (2 * away).min(AWAY_MAX);
            match now.since(asked) < limit {
                true => clock.sleep(ASK_AGAIN),
                false => clock.work(),
            }
        }
    }

    /// The addresses of rank 0, which has said this; an error if it has said something else since.
    pub(super) fn addresses(&self, here: &Here, clock: BusyClock<'_>) -> Result<Vec<SocketAddr>> {
        if self.is_due(clock)
            && let Some(posted) = self.get(&self.key_of_rank_0(), LOOK_TIME)?
            && self.check(posted)? != *here
        {
            return Err(self.used_twice());
        }
        Finder::Known(here.addresses.clone()).addresses()
    }

    fn check(&self, posted: Posted) -> Result<Here> {
        let here = match posted {
            Posted::Here(here) => here,
            Posted::Failed(text) => return Err(told(text.as_bytes())),
            Posted::Over => return Err(self.used_twice()),
        };
        let (rank, ranks, name) = (self.place.rank, self.place.ranks, &self.place.job);
        if here.ranks != ranks {
            return Err(Error::Bootstrap(format!(
                "rank 0 of '{name}' expects {} ranks, and rank {rank} {ranks}: all ranks of a group name the same",
                here.ranks
            )));
        }
        if here.group != self.group {
            return Err(Error::Bootstrap(format!(
                "rank 0 of '{name}' has named {ranks} other members than rank {rank}, or in another order: all members name the same, and each group has a name of its own"
            )));
        }
        Ok(here)
    }

    /// Whether it is time for a look at the exchange.
    fn is_due(&self, clock: BusyClock<'_>) -> bool {
        let now = clock.now();
        let is_due = now >= self.look_at.get();
        if is_due {
            self.look_at.set(now.after(LOOK_EVERY));
        }
        is_due
    }

    fn key_of_rank_0(&self) -> String {
        format!("linerate/{}/rank0", self.place.job)
    }

    fn key_of_failure(&self) -> String {
        format!("linerate/{}/failed", self.place.job)
    }

    fn put(&self, key: &str, posted: &Posted, limit: Duration) -> Result<()> {
        let put = self.exchange.put(key, &posted.emit(), limit);
        put.map_err(|e| self.refused("put", key, limit, &e.to_string()))
    }

    fn get(&self, key: &str, limit: Duration) -> Result<Option<Posted>> {
        let got = self.exchange.get(key, limit);
        let got = got.map_err(|e| self.refused("get", key, limit, &e.to_string()))?;
        let parsed = got.map(|value| {
            let shown = String::from_utf8_lossy(&value).into_owned();
            let shown = cut_text(&shown, SHOWN_BYTES_MAX).escape_debug().to_string();
            let what = format!("{} bytes, '{shown}'", value.len());
            Posted::parse(&value).ok_or_else(|| self.strange(key, &what))
        });
        parsed.transpose()
    }

    fn refused(&self, what: &str, key: &str, limit: Duration, cause: &str) -> Error {
        Error::Bootstrap(format!(
            "rank {} could not {what} key '{key}' of the caller's exchange within {limit:?}: {cause}; the exchange has to outlive the call: see what runs it, and call again with another name",
            self.place.rank
        ))
    }

    fn strange(&self, key: &str, what: &str) -> Error {
        Error::Malformed(format!(
            "rank {} found {what} at key '{key}' of the caller's exchange, where 'linerate-1 here', ' failed' or ' over' is expected: another program or another version of this library has put it; take a name that nothing else uses",
            self.place.rank
        ))
    }

    fn used_twice(&self) -> Error {
        Error::Bootstrap(format!(
            "rank {}: another group has used the name '{}' in this exchange: give each group a name of its own, such as one with a number that counts them",
            self.place.rank, self.place.job
        ))
    }
}
