//! How operations on memory of peers start, are posted and end (`remote.rs`).
//!
//! Each is a task, and moves one piece at a time: a deadline counts from the last piece. Memory
//! that is not registered goes through memory of the pool. The signal of a put is posted when its
//! last piece has completed, so a peer that sees the signal sees the bytes (clause 8 of the
//! transport contract).

use super::core::Engine;
use super::prepared::Prepared;
use super::remote::{Flush, RemoteCall, RemoteText, RemoteWork, Transfer, Wait};
use super::tag::{ROUNDS_MAX, Token};
use super::task::{TaskCall, TaskId};
use crate::collective;
use crate::error::{Error, Result};
use crate::kernel;
use crate::memory::{Kept, RegionKey, View};
use crate::time::Time;
use crate::transport::{Atomic, Completion, Outcome, PostError, RemoteRange, words};
use crate::types::Rank;
use std::sync::Arc;

/// Bytes of a piece in registered memory: 13 ms at 10 Gbit/s, and at 100 a wire is idle for less
/// than a hundredth of the time between two of them.
const PIECE_BYTES: usize = 16 << 20;
/// Bytes of a piece that is copied, which stays in a core's cache.
const STAGED_BYTES: usize = 512 << 10;
/// Bytes of a word.
const WORD_BYTES: usize = 8;

impl Engine {
    /// Starts an operation on memory of a peer.
    pub fn submit_remote(&mut self, call: RemoteCall, now: Time) -> Result<TaskId> {
        // A rank whose puts end at once may never wait, and would not see that a peer is gone.
        self.drive_slow_if_due(now);
        let local = call.work.local();
        let verb = match (call.work, call.signal) {
            (RemoteWork::Put(_), None) => "a put",
            (RemoteWork::Put(_), Some(_)) => "a put with a signal",
            (RemoteWork::Get(_), _) => "a get",
            (RemoteWork::Change(..), _) => "an atomic operation",
        };
        let text = RemoteText {
            verb,
            bytes: local.len_bytes(),
            peer: Some(call.peer),
        };
        let id = self.add_remote_task(call.keep, text, now)?;
        let remotes = &mut self.remotes;
        remotes.generation = remotes.generation.wrapping_add(1) & Token::REMOTE_GENERATION_MAX;
        let transfer = Transfer {
            task: id.index,
            generation: remotes.generation,
            peer: call.peer,
            place: call.place,
            work: call.work,
            signal: call.signal,
            done: 0,
            piece: 0,
            lent: None,
            is_signalling: false,
            is_posted: false,
        };
        let place = remotes.free.pop().unwrap_or_else(|| {
            remotes.all.push(None);
            remotes.all.len() as u32 - 1
        });
        remotes.all[place as usize] = Some(transfer);
        self.post_or_queue(place);
        self.driver.links.transport.hand_over();
        Ok(id)
    }

    /// Starts to wait until a word of this rank, which peers change, is at least `least`.
    pub fn submit_wait(
        &mut self,
        (word, least): (View, u64),
        keep: Vec<Kept>,
        now: Time,
    ) -> Result<TaskId> {
        let text = RemoteText {
            verb: "a wait for a signal",
            bytes: WORD_BYTES,
            peer: None,
        };
        let id = self.add_remote_task(keep, text, now)?;
        let task = id.index;
        self.remotes.waits.push(Wait { task, word, least });
        self.has_chores = true;
        self.look_at_words();
        Ok(id)
    }

    /// Starts to wait for the end of all operations on memory of `peer` with this key that have
    /// been started.
    pub fn submit_flush(&mut self, peer: Rank, key: RegionKey, now: Time) -> Result<TaskId> {
        let text = RemoteText {
            verb: "a flush",
            bytes: 0,
            peer: Some(peer),
        };
        let id = self.add_remote_task(Vec::new(), text, now)?;
        let places = (0..).zip(&self.remotes.all);
        let of = places.filter_map(|(place, one)| {
            let one = one.as_ref()?;
            (one.peer == peer && one.place.key == key).then_some((place, one.generation))
        });
        let of: Vec<(u32, u32)> = of.collect();
        match of.is_empty() {
            true => self.end_task(id.index, Ok(())),
            false => self.remotes.flushes.push(Flush { task: id.index, of }),
        }
        Ok(id)
    }

    fn add_remote_task(&mut self, keep: Vec<Kept>, text: RemoteText, now: Time) -> Result<TaskId> {
        let place = (self.rank(), self.ranks());
        let nothing = self.remotes.nothing.get_or_insert_with(|| {
            let schedule = collective::build_transfer(place.0, place.1, place.0, true);
            Arc::new(Prepared::new(schedule, 0, false))
        });
        let nothing = nothing.clone();
        let call = TaskCall::of_one(nothing, ((&[]).into(), Vec::new()), keep, None);
        let admitted = self.admit(&call, now).and_then(|_| {
            let count = self.remotes.count() + self.remotes.waits.len();
            match count < ROUNDS_MAX {
                true => Ok(()),
                false => Err(Error::Exhausted {
                    what: text.describe(),
                    limit: format!("{count} operations on windows are under way"),
                    remedy: "wait for some of them first".into(),
                }),
            }
        });
        if let Err(error) = admitted {
            call.end(false);
            return Err(error);
        }
        let id = self.tasks.add(call, 0, now);
        self.tasks[id.index].remote = Some(text);
        Ok(id)
    }

    /// Posts what waits to be posted, and looks at the words that tasks wait for.
    pub(super) fn run_remotes(&mut self) {
        for _ in 0..self.remotes.unposted.len() {
            let Some(place) = self.remotes.unposted.pop_front() else {
                break;
            };
            self.post_or_queue(place);
        }
        self.look_at_words();
    }

    fn look_at_words(&mut self) {
        let waits = self.remotes.waits.iter();
        let has_come = |wait: &Wait| words::load(&wait.word, 0) >= wait.least;
        let ended: Vec<usize> = waits
            .filter(|wait| has_come(wait))
            .map(|w| w.task)
            .collect();
        if ended.is_empty() {
            return;
        }
        (self.remotes.waits).retain(|wait| !ended.contains(&wait.task));
        self.driver.moved = true;
        ended
            .into_iter()
            .for_each(|task| self.end_task(task, Ok(())));
    }

    /// Posts the next piece of a transfer, or its signal. Where there is no room, that is tried
    /// again later.
    fn post_or_queue(&mut self, place: u32) {
        let Some(transfer) = self.remotes.all[place as usize].as_ref() else {
            return;
        };
        let peer = transfer.peer;
        let refused = match self.try_post(place) {
            Ok(Ok(())) => None,
            Ok(Err(error)) => self.driver.links.refused(peer, error).err(),
            Err(error) => Some(error),
        };
        match refused {
            None if self.remotes.all[place as usize]
                .as_ref()
                .is_some_and(|t| t.is_posted) =>
            {
                self.driver.moved = true;
            }
            None => {
                self.remotes.unposted.push_back(place);
                self.has_chores = true;
            }
            Some(error) => self.end_without(place, error),
        }
    }

    fn try_post(&mut self, place: u32) -> Result<std::result::Result<(), PostError>> {
        let driver = &mut self.driver;
        let transfer = self.remotes.all[place as usize]
            .as_mut()
            .expect("it is under way");
        let local = transfer.work.local();
        let inline_bytes = driver.links.transport.capabilities().inline_bytes;
        let left = local.len_bytes() - transfer.done;
        let is_put = matches!(transfer.work, RemoteWork::Put(_));
        let is_staged = transfer.is_signalling
            || (local.key() == RegionKey::NONE && !(is_put && local.len_bytes() <= inline_bytes));
        transfer.piece = match (transfer.is_signalling, is_staged) {
            (true, _) => WORD_BYTES,
            (_, true) => left.min(STAGED_BYTES),
            (_, false) => left.min(PIECE_BYTES),
        };
        let own = match transfer.is_signalling {
            true => View::empty(),
            false => local.part(transfer.done, transfer.piece),
        };
        if is_staged && transfer.lent.is_none() {
            let room = transfer.piece.max(WORD_BYTES);
            let lent = driver.pool.lend(room, driver.links.transport.as_mut())?;
            transfer.lent = Some(lent);
            if is_put && !transfer.is_signalling {
                kernel::copy(own, lent.view.part(0, transfer.piece));
            }
        }
        let moved = match (is_staged, &transfer.lent) {
            (true, Some(lent)) => lent.view.part(0, transfer.piece),
            _ => own,
        };
        let at = RemoteRange {
            key: transfer.place.key,
            offset: transfer.place.offset + transfer.done as u64,
        };
        let (peer, links) = (transfer.peer, &mut driver.links);
        let token = Token::remote(place, transfer.generation);
        let posted = match (transfer.work, transfer.signal) {
            (_, Some((word, add))) if transfer.is_signalling => {
                links.post_atomic(peer, (Atomic::FetchAdd(add), word), moved, token)
            }
            (RemoteWork::Put(_), _) => links.post_put(peer, moved, at, token),
            (RemoteWork::Get(_), _) => links.post_get(peer, at, moved, token),
            (RemoteWork::Change(what, _), _) => links.post_atomic(peer, (what, at), moved, token),
        };
        transfer.is_posted = posted.is_ok();
        Ok(posted)
    }

    /// A post of a transfer has ended.
    pub(super) fn handle_remote(
        &mut self,
        (place, generation): (u32, u32),
        completion: &Completion,
    ) {
        let found = self
            .remotes
            .all
            .get_mut(place as usize)
            .and_then(Option::as_mut);
        // Operations of a communicator that has failed are over.
        let Some(transfer) = found.filter(|one| one.generation == generation) else {
            return;
        };
        transfer.is_posted = false;
        let (task, peer) = (transfer.task, transfer.peer);
        match completion.outcome {
            Outcome::Done => {}
            Outcome::BadKey => {
                let what = self.tasks[task].describe();
                let error = Error::invalid(format!(
                    "{what}: that rank has ended its window; keep a window until all ranks have closed it"
                ));
                return self.end_without(place, error);
            }
            // The peer is gone. If the rest goes on, and its end has not been reported yet, the
            // operation ends with the report; else the communicator fails then.
            _ => {
                if self.ends_alone(peer) {
                    let operation = self.tasks[task].describe();
                    let error = self.error_of_ended(peer, operation);
                    self.end_remote(place, Err(error));
                }
                return;
            }
        }
        self.tasks[task].last_moved = self.now;
        if let (Some(lent), false) = (&transfer.lent, transfer.is_signalling) {
            let into = transfer.work.local().part(transfer.done, transfer.piece);
            if !matches!(transfer.work, RemoteWork::Put(_)) {
                kernel::copy(lent.view.part(0, transfer.piece), into);
            }
        }
        if !transfer.is_signalling {
            transfer.done += transfer.piece;
        }
        if let Some(lent) = transfer.lent.take() {
            self.driver.pool.give(lent);
        }
        let is_moved = transfer.done == transfer.work.local().len_bytes();
        if is_moved && (transfer.is_signalling || transfer.signal.is_none()) {
            return self.end_remote(place, Ok(()));
        }
        transfer.is_signalling = is_moved;
        self.post_or_queue(place);
    }

    /// A transfer has failed, and nothing of it is under way. Its failure is that of one operation
    /// if the peer has left in good order or has ended its window, or its failure is tolerated;
    /// else it is that of the communicator.
    fn end_without(&mut self, place: u32, error: Error) {
        match error {
            Error::Left { .. } | Error::InvalidArgument(_) => self.end_remote(place, Err(error)),
            Error::PeerFailed { .. } if self.failing.is_lenient => {
                self.end_remote(place, Err(error));
            }
            error => self.fail(error, true),
        }
    }

    fn end_remote(&mut self, place: u32, result: Result<()>) {
        let Some(transfer) = self.remotes.all[place as usize].take() else {
            return;
        };
        if let Some(lent) = transfer.lent {
            self.driver.pool.give(lent);
        }
        self.remotes.free.push(place);
        self.driver.moved = true;
        self.end_task(transfer.task, result);
        let gone = (place, transfer.generation);
        let mut over = Vec::new();
        self.remotes.flushes.retain_mut(|flush| {
            flush.of.retain(|&one| one != gone);
            if flush.of.is_empty() {
                over.push(flush.task);
            }
            !flush.of.is_empty()
        });
        over.into_iter()
            .for_each(|task| self.end_task(task, Ok(())));
    }

    /// Ends the operations on memory of ranks that have left, or whose failure is tolerated.
    pub(super) fn fail_remotes_of_ended(&mut self) {
        let is_lost = |one: &&Transfer| !one.is_posted && self.ends_alone(one.peer);
        let places = (0..).zip(&self.remotes.all);
        let lost = places.filter_map(|(place, one)| {
            let one = one.as_ref().filter(is_lost)?;
            Some((place, one.task, one.peer))
        });
        let lost: Vec<(u32, usize, Rank)> = lost.collect();
        for (place, task, rank) in lost {
            self.remotes.unposted.retain(|&other| other != place);
            let operation = self.tasks[task].describe();
            let error = self.error_of_ended(rank, operation);
            self.end_remote(place, Err(error));
        }
        // Nobody is left who could change a word.
        let links = &self.driver.links;
        let has_all_left = links.ranks > 1 && links.others().all(|rank| self.ends_alone(rank));
        if has_all_left && !self.remotes.waits.is_empty() {
            self.look_at_words();
            let rank = self.driver.links.others().last().unwrap_or(0);
            for Wait { task, .. } in std::mem::take(&mut self.remotes.waits) {
                let operation = self.tasks[task].describe();
                let error = self.error_of_ended(rank, operation);
                self.end_task(task, Err(error));
            }
        }
    }

    /// Makes a region known to a peer; false: there is no room now, and this is called again.
    pub fn export(&mut self, peer: Rank, key: RegionKey) -> Result<bool> {
        match self.driver.links.transport.export(peer, key) {
            Ok(()) => Ok(true),
            Err(error) => (self.driver.links.refused(peer, error)).map(|()| false),
        }
    }
}
