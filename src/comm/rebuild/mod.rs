//! [`Communicator::rebuild`]: after a failure, the surviving ranks make a new communicator.
//!
//! The lowest surviving rank leads (`leader.rs`); the others are members (`member.rs`). They work
//! in rounds. In a round the leader waits until every old rank has come or is gone. Then it names
//! the members and sends the contacts of all members to each. When all members say that they are
//! connected, it commits. If a member is lost on the way, the leader begins a new round without it.
//! If the leader is lost, the next rank leads.
//!
//! All survivors commit, or none does. A member that was told to commit tells all others through
//! the new communicator before it returns ([`Engine::confirm`]). So a member that is connected and
//! loses the leader looks whether any rank has confirmed. A rank that has returned from the rebuild
//! does not come to the next leader, and every living rank comes or has left. So the next leader
//! knows that no rank has committed before it begins another round.
//!
//! A rank is gone if its connections hang up or refuse, or if it answers nothing for the
//! transport's timeout. Only ranks on its host then know that it has ended
//! ([`transport::proves_end`]), and they tell the leader. For ranks on other hosts it may still
//! live, behind a link that is cut or a firewall that refuses in its name. If a rank that is left
//! out may live, both sides of a cut could go on. Only one side may: the one with more than half of
//! the ranks, or with half of them and rank 0.
//!
//! The leader need not ask the members which ranks they have lost. Every rank is connected to every
//! other one, and tells it that the communicator has failed. So a rank that only one member has
//! lost is alive, hears of the failure and comes.

mod leader;
mod member;
#[cfg(test)]
mod tests;

use super::communicator::Communicator;
use super::connect::{self, Common, LOOK_AGAIN, Origin};
use super::driving::Driving;
use crate::bootstrap::Reunion;
use crate::engine::Engine;
use crate::error::{Error, Result};
use crate::time::Time;
use crate::transport;
use crate::types::Rank;
use crate::wait::Clock;
use std::sync::Arc;

/// This rank's part of a new communicator.
struct Candidate {
    engine: Engine,
    /// Old ranks, in the new order.
    members: Vec<Rank>,
    /// What the contacts of all members say, once they are known.
    common: Option<Common>,
    is_connected: bool,
}

/// A rank that takes part in a rebuild.
struct Survivor<'a> {
    old: &'a Communicator,
    driving: &'a Arc<Driving>,
    reunion: Reunion,
    deadline: Time,
    /// The number of the round, which the leader counts.
    round: u32,
    candidate: Option<Candidate>,
    /// Why the last round did not connect.
    obstacle: Option<Error>,
}

impl Communicator {
    /// Makes a new communicator of the surviving ranks, in the old order, after a failure: a
    /// timeout, a mismatch, a cancelled operation, an abort, or the death of ranks. Collective
    /// among the survivors: each of them calls it once, and it waits, at most for the configured
    /// timeout, until every other rank has called it or is gone. Like MPIX_Comm_shrink.
    ///
    /// The call fails this communicator, if it has not failed yet, so that ranks that wait on it
    /// learn of the rebuild. It stays failed. Its buffers may be used with the new communicator;
    /// they hold what the failed operations left. Ranks are numbered anew: see
    /// [`Communicator::rank`] and [`Communicator::ranks`], which may be 1. A rank that has dropped
    /// all handles of this communicator counts as gone.
    ///
    /// Communicators that were split off from this one are not rebuilt with it: rebuild them, too,
    /// or split the new one. A process that is started later cannot join.
    ///
    /// ```
    /// use linerate::{Communicator, Config};
    /// let job = format!("rebuild-{}", std::process::id());
    /// let run = |rank| -> linerate::Result<(u32, u32)> {
    ///     let comm = Communicator::join(rank, 3, &job, Config::default())?;
    ///     if rank == 0 {
    ///         return Ok((0, 0)); // it leaves
    ///     }
    ///     assert!(comm.barrier().is_err());
    ///     let comm = comm.rebuild()?;
    ///     comm.barrier()?;
    ///     Ok((comm.rank(), comm.ranks()))
    /// };
    /// let places = std::thread::scope(|scope| {
    ///     let ranks: Vec<_> = (0..3).map(|rank| scope.spawn(move || run(rank))).collect();
    ///     ranks.into_iter().map(|rank| rank.join().unwrap()).collect::<Result<Vec<_>, _>>()
    /// })?;
    /// assert_eq!(places, [(0, 0), (0, 2), (1, 2)]);
    /// # Ok::<(), linerate::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::Timeout`], which names the living ranks that have not called it.
    /// [`Error::Bootstrap`] if a rank cannot make its part, with that rank's reason, or if this is
    /// the smaller side of a network that is cut in two. [`Error::InvalidArgument`] in a
    /// simulation. After an error it may be called again.
    pub fn rebuild(&self) -> Result<Communicator> {
        self.rebuild_as(true).map(|(rebuilt, _)| rebuilt)
    }

    /// As [`Communicator::rebuild`], for a service that drives the communicator with a thread of
    /// its own. Also returns the surviving old ranks, in the new order.
    pub(super) fn rebuild_apart(&self) -> Result<(Communicator, Vec<Rank>)> {
        self.rebuild_as(false)
    }

    fn rebuild_as(&self, is_member: bool) -> Result<(Communicator, Vec<Rank>)> {
        self.check_can_wait("rebuild")?;
        let origin = Origin::of(self, is_member)?;
        self.abort("it is being rebuilt");
        let deadline = origin.clock.now().after(self.inner.config.timeout);
        let survivor = Survivor::new(self, deadline)?;
        let candidate = survivor.run()?;
        let common = candidate.common.expect("a connected candidate has met all");
        let rebuilt = connect::finish(candidate.engine, origin, false, &common);
        Ok((rebuilt, candidate.members))
    }
}

impl<'a> Survivor<'a> {
    fn new(old: &'a Communicator, deadline: Time) -> Result<Survivor<'a>> {
        let inner = &old.inner;
        Ok(Survivor {
            old,
            driving: old.driving()?,
            reunion: Reunion::new(inner.identity, inner.rank, &inner.config, &inner.places)?,
            deadline,
            round: 0,
            candidate: None,
            obstacle: None,
        })
    }

    fn clock(&self) -> &Clock {
        &self.driving.clock
    }

    fn run(mut self) -> Result<Candidate> {
        loop {
            let leader = self.leader();
            let committed = if leader == self.old.rank() {
                self.lead()?;
                true
            } else {
                self.follow(leader)?
            };
            if committed {
                let mut candidate = self.candidate.take().expect("a commit is of a candidate");
                candidate.engine.confirm();
                return Ok(candidate);
            }
        }
    }

    /// The lowest rank that is not gone.
    fn leader(&self) -> Rank {
        let own = self.old.rank();
        (0..own).find(|&rank| !self.is_gone(rank)).unwrap_or(own)
    }

    fn is_gone(&self, rank: Rank) -> bool {
        self.driving.engine().gone(rank).is_some()
    }

    /// Drives the old communicator, to hear of deaths, and the others of this process; then sleeps
    /// a little. Returns true if another rank already uses the candidate.
    fn look(&mut self) -> bool {
        let driving = self.driving;
        {
            let mut engine = driving.engine();
            let now = driving.clock.now();
            engine.drive(now);
            engine.drive_slow(now);
        }
        driving.family().drive(Some(&**driving));
        std::thread::sleep(LOOK_AGAIN);
        self.is_confirmed()
    }

    /// Whether another rank uses the communicator that this one has connected to.
    fn is_confirmed(&mut self) -> bool {
        let now = self.driving.clock.now();
        let connected = self.candidate.as_mut().filter(|c| c.is_connected);
        connected.is_some_and(|candidate| {
            candidate.engine.drive(now);
            candidate.engine.is_confirmed()
        })
    }

    fn is_late(&self) -> bool {
        self.driving.clock.now() > self.deadline
    }

    /// Makes this rank's part of a communicator of `members`. Returns its contact.
    fn stand(&mut self, members: Vec<Rank>) -> Result<Vec<u8>> {
        self.candidate = None;
        let own = members.iter().position(|&member| member == self.old.rank());
        let own = own.ok_or_else(|| {
            Error::Bootstrap(format!(
                "rank {} is alive and was left out of the rebuilt communicator of ranks {members:?}",
                self.old.rank()
            ))
        })?;
        let ranks = members.len() as u32;
        let (engine, contact) = connect::open(own as Rank, ranks, &self.old.inner.config)?;
        self.candidate = Some(Candidate {
            engine,
            members,
            common: None,
            is_connected: false,
        });
        Ok(contact)
    }

    /// Begins to connect the candidate.
    fn meet(&mut self, contacts: &[Vec<u8>]) -> Result<()> {
        let Some(candidate) = self.candidate.as_mut() else {
            return Ok(()); // It was given up meanwhile; the leader will hear of that.
        };
        candidate.common = Some(connect::begin(&mut candidate.engine, contacts)?);
        Ok(())
    }

    /// Goes on with connecting. Returns true once, when the candidate is connected. An error: a
    /// member was lost, and the candidate is given up.
    fn go_on_connecting(&mut self) -> Result<bool> {
        let now = self.driving.clock.now();
        let Some(candidate) = self.candidate.as_mut() else {
            return Ok(false);
        };
        if candidate.is_connected || candidate.common.is_none() {
            return Ok(false);
        }
        match candidate.engine.poll_connect(now) {
            Ok(is_ready) => {
                candidate.is_connected = is_ready;
                Ok(is_ready)
            }
            Err(error) => {
                self.candidate = None;
                self.obstacle = Some(error.clone());
                Err(error)
            }
        }
    }

    /// The old ranks of which this rank knows that they have ended.
    fn ended(&self) -> Vec<Rank> {
        let engine = self.driving.engine();
        let has_ended = |&r: &Rank| engine.gone(r).is_some_and(transport::proves_end);
        (0..self.old.ranks()).filter(has_ended).collect()
    }

    /// An error if ranks that are left out may live and go on by themselves. The error is returned
    /// as a doubt, in `Ok`, while a member on the host of such a rank may still say that it has
    /// ended. `ended`: for each old rank, whether a member has said so.
    fn check_alone(&self, members: &[Rank], ended: &[bool]) -> Result<Option<Error>> {
        let ranks = self.old.ranks();
        let own = self.ended();
        let may_live = |r: &Rank| !members.contains(r) && !own.contains(r) && !ended[*r as usize];
        let cut_off: Vec<Rank> = (0..ranks).filter(may_live).collect();
        let twice = 2 * members.len() as u32;
        if cut_off.is_empty() || twice > ranks || (twice == ranks && members[0] == 0) {
            return Ok(None);
        }
        let error = Error::Bootstrap(format!(
            "ranks {cut_off:?} cannot be reached and may live: of the two sides of a cut only that of more than half of the {ranks} ranks, or of half of them with rank 0, may go on; here are ranks {members:?}; start the job again when the network is whole"
        ));
        let inside = self.driving.engine();
        let host = |rank| inside.plans.host(rank);
        let has_witness = |r: &Rank| members.iter().any(|&m| host(m) == host(*r));
        match cut_off.iter().any(has_witness) {
            true => Ok(Some(error)),
            false => Err(error),
        }
    }

    /// The error of a rebuild that took too long.
    fn timeout(&self, missing: Vec<Rank>) -> Error {
        let absent = missing
            .iter()
            .map(|rank| format!("rank {rank} lives and has not called rebuild, or is stopped"));
        let obstacle = self.obstacle.iter().map(Error::to_string);
        let mut detail: Vec<String> = absent.chain(obstacle).collect();
        if detail.is_empty() {
            detail.push("all living ranks have come, and not all have connected".into());
        }
        Error::Timeout {
            rank: self.old.rank(),
            operation: "the rebuild of a failed communicator".into(),
            waited: self.old.inner.config.timeout,
            missing,
            detail: detail.join("; "),
        }
    }
}
