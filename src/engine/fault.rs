//! Failures: silence, disagreement and the end of a rank become one error on every rank.
//!
//! A rank whose operation makes no progress for the whole timeout asks every peer
//! ([`ControlKind::Query`]) and waits a moment for the answers. A peer that has called another
//! operation under the same number finds the disagreement and tells it. Otherwise the rank gives
//! up, with an error that names the ranks for which it waited and what each of them said. A rank
//! that fails tells all the others, so that they return the same first cause.

use super::core::Engine;
use super::news::{error_of, message_of};
use super::signature::Signature;
use super::suspect::{Answer, Suspect, name_ranks};
use super::task::Task;
use crate::error::Error;
use crate::time::Time;
use crate::transport::{Completion, Outcome};
use crate::types::Rank;
use crate::wire::{ControlKind, ControlMessage};
use std::time::Duration;

/// How long a rank waits for answers to a query; a rank inside a call answers far sooner.
const ANSWER_TIME_MAX: Duration = Duration::from_millis(500);

/// How long an operation makes no progress before its rank asks the peers for which it waits
/// whether they are in another one. That is far longer than ranks that compute alike wait for each
/// other, and short enough for a person.
const COMPARE_AFTER: Duration = Duration::from_millis(100);

impl Engine {
    /// The first cause, if the communicator has failed.
    pub fn failure(&self) -> Option<&Error> {
        self.failing.cause.as_ref()
    }

    /// Fails every task and tells the peers. `is_news`: this rank has found the failure; else a
    /// peer has told it.
    pub(super) fn fail(&mut self, error: Error, is_news: bool) {
        if is_news {
            // A peer may have failed before and told so: then that cause is the one to report.
            self.take_all_events();
        }
        if self.failing.cause.is_some() {
            return;
        }
        let (teller, mut error) = match self.failing.told.take() {
            Some((teller, told)) => (Some(teller), told),
            None => (None, error),
        };
        if let Error::PeerFailed { during, .. } = &mut error {
            *during = self.under_way();
        }
        self.failing.cause = Some(error.clone());
        self.has_chores = true;
        self.driver.moved = true;
        let others = self.driver.links.others();
        self.failing.untold = others.filter(|&peer| Some(peer) != teller).collect();
        // The peers are told before the memory is taken back, so that a peer that finds it taken
        // back finds the cause, too. They are told before this rank leaves, or it would look like
        // the cause.
        self.tell_failure();
        // Calls on borrowed memory return now: nothing may arrive in that memory any more.
        let driver = &mut self.driver;
        (self.rounds).for_each_mut(|round| driver.cancel_receives(round));
        // Nor may a peer use what it reads there from now on: the owner gets the memory back when
        // this returns, and may change it.
        self.driver.links.transport.withdraw();
        self.end_cached();
        self.tagged.clear();
        self.remotes.clear();
        self.tasks.fail(&error);
    }

    /// Tells the failure to the peers that do not know it yet. A peer that has no room for it now,
    /// such as one that is still being connected, is told later.
    pub(super) fn tell_failure(&mut self) {
        let Some(error) = self
            .failing
            .cause
            .as_ref()
            .filter(|_| !self.failing.untold.is_empty())
        else {
            return;
        };
        let message = message_of(error, self.rank());
        let links = &mut self.driver.links;
        self.failing
            .untold
            .retain(|&peer| links.gone(peer).is_none() && !links.send_control(peer, &message));
        links.transport.hand_over();
    }

    pub(super) fn handle_peer_failed(&mut self, peer: Rank, cause: String) {
        if let Some(done) = self.driver.links.hearsay(peer) {
            // The peer could not tell that it has left, because there was no connection.
            return self.handle_peer_left(peer, done);
        }
        if self.failing.is_lenient {
            // What it did before counts.
            self.take_all_events();
        }
        self.driver.links.end_connecting(peer);
        self.driver.links.mark_gone(peer, cause);
        self.driver.moved = true;
        if self.failing.is_lenient {
            self.fail_receives_of_ended();
            self.fail_remotes_of_ended();
        }
    }

    /// From now on the failure of a peer ends the operations on windows and the messages that need
    /// it, and no others. A collective needs all ranks and still fails everything.
    pub fn tolerate_failures(&mut self) {
        self.failing.is_lenient = true;
    }

    /// Changes when a peer has failed or left, or has been connected by
    /// [`Engine::connect_one`].
    pub fn peers_changed(&self) -> u32 {
        self.driver.links.peers_changed()
    }

    /// Whether a peer has failed or left.
    pub fn has_ended(&self, peer: Rank) -> bool {
        self.driver.links.gone(peer).is_some()
    }

    /// Whether a peer has failed.
    pub fn has_failed(&self, peer: Rank) -> bool {
        self.driver.links.has_failed(peer)
    }

    /// Whether what needs this peer ends, and the rest goes on.
    pub(super) fn ends_alone(&self, peer: Rank) -> bool {
        let links = &self.driver.links;
        links.left_in_order(peer) || (self.failing.is_lenient && links.has_failed(peer))
    }

    /// The error of an operation that needs a peer which has failed or left.
    pub fn error_of_ended(&self, rank: Rank, operation: String) -> Error {
        match self.driver.links.gone(rank) {
            Some(cause) if !self.driver.links.left_in_order(rank) => Error::PeerFailed {
                rank,
                cause: cause.to_string(),
                during: format!(", during {operation}"),
            },
            _ => Error::Left { rank, operation },
        }
    }

    pub(super) fn handle_control(&mut self, peer: Rank, completion: &Completion, now: Time) {
        if completion.outcome != Outcome::Done {
            return; // The peer is gone or the communicator ends; an event says which.
        }
        let message = self.driver.links.control_message(peer);
        // A peer whose receive cannot be posted again is gone, which an event reports.
        let _ = self.driver.links.post_control_receive(peer);
        match message {
            Ok(message) => self.handle_message(peer, message, now),
            Err(error) => self.fail(error, true),
        }
    }

    fn handle_message(&mut self, peer: Rank, message: ControlMessage, now: Time) {
        match message.kind {
            ControlKind::Query => self.answer(peer, &message),
            ControlKind::Status => {
                if let Some(suspect) = &mut self.failing.suspect {
                    suspect.answers[peer as usize] = Some(Answer {
                        started: message.sequence,
                        ended: message.signature,
                        text: message.text,
                    });
                }
            }
            ControlKind::Confirmed => self.failing.is_confirmed = true,
            ControlKind::Left => self.handle_left_message(&message),
            _ => {
                // What the peers did before they failed has arrived, so operations that can end do
                // so now. If one of them fails, this rank still reports the cause that it was told,
                // not its consequence.
                self.failing.untold.retain(|&other| other != peer);
                if self.failing.cause.is_some() {
                    return;
                }
                self.failing.told = Some((peer, error_of(&message, peer)));
                self.run_rounds(now);
                if let Some((_, told)) = self.failing.told.clone() {
                    self.fail(told, false);
                }
            }
        }
    }

    /// Fails with the disagreement that a query has shown, if no peer has told of a failure: what
    /// came together with the query has been handled, unless this is a look for news within that.
    #[cold]
    pub(super) fn fail_if_found(&mut self) {
        if self.failing.looking == 0
            && let Some(error) = self.failing.found.take()
        {
            self.fail(error, true);
        }
    }

    /// A peer whose operation makes no progress asks what this rank knows of it.
    fn answer(&mut self, peer: Rank, query: &ControlMessage) {
        let (sequence, theirs) = (query.sequence, Signature(query.signature));
        let ours = self.numbers.signature_of(sequence);
        if let Some(ours) = ours.filter(|&ours| theirs.0 != 0 && ours != theirs) {
            let detail = ours.describe_difference(self.rank(), theirs, peer);
            self.failing.found = Some(Error::Mismatch { sequence, detail });
            return;
        }
        // A peer that is further on may have called another operation under the number of the one
        // that this rank is in. This rank asks it in turn: so it finds that before it gives up.
        let oldest = self.rounds.all().next();
        let oldest = oldest.and_then(|r| Some((r.sequence()?, r.program.signature.0)));
        if let Some((sequence, signature)) = oldest.filter(|&(own, _)| own < query.sequence) {
            let counter = self.query_of(sequence, signature);
            self.driver.links.send_control(peer, &counter);
        }
        let text = self.last_deed();
        let status = ControlMessage {
            kind: ControlKind::Status,
            rank: self.rank(),
            sequence: self.numbers.next,
            signature: self.driver.retired,
            text,
        };
        // A peer that cannot take the answer gives up without it.
        self.driver.links.send_control(peer, &status);
    }

    /// What this rank has done so far, as a text for people.
    fn last_deed(&self) -> String {
        match self.numbers.next {
            0 => "no operation started".to_string(),
            n => {
                let last = self
                    .numbers
                    .signature_of(n - 1)
                    .expect("it is the last one");
                let (last, ended) = (last.describe(), self.driver.retired);
                format!("{n} operations started and {ended} ended, the last one {last}")
            }
        }
    }

    /// The first operation that this rank has not ended, as a part of an error's text; empty if
    /// there is none.
    fn under_way(&self) -> String {
        self.rounds.all().next().map_or(String::new(), |round| {
            let what = round.program.signature.describe();
            match round.sequence() {
                Some(sequence) => format!(", during operation {sequence}, {what}"),
                None => format!(", during {what}"),
            }
        })
    }

    /// Looks for messages that no receive of this rank takes, because they belong to an operation
    /// that this rank has called with other arguments or has ended. They show a disagreement that
    /// nothing else shows: where ranks disagree about a root, each may receive all that it waits
    /// for, some of it from the wrong rank.
    pub(super) fn check_strays(&mut self) {
        if self.failing.cause.is_some() {
            return;
        }
        let (retired, numbers) = (self.driver.retired, &self.numbers);
        let known = |sequence: u64| numbers.signature_of(sequence);
        let mut is_stray = |tag: u64, header: u64| {
            let sequence = super::tag::sequence_of(tag, retired);
            let ours = sequence.and_then(|s| Some((s, known(s)?)));
            ours.is_some_and(|(s, ours)| s < retired || ours.0 != header)
        };
        let found = self.driver.links.transport.unmatched(&mut is_stray);
        let Some((peer, tag, header)) = found else {
            return;
        };
        let sequence = super::tag::sequence_of(tag, retired).expect("it has one");
        let (ours, theirs) = (known(sequence).expect("it is known"), Signature(header));
        let own = self.rank();
        let detail = match ours == theirs {
            false => ours.describe_difference(own, theirs, peer),
            true => format!(
                "rank {peer} sent a message of {} to rank {own}, which expects none of it; make the counts of both equal",
                ours.describe()
            ),
        };
        self.fail(Error::Mismatch { sequence, detail }, true);
    }

    /// Looks for operations that need a peer that has failed, and for those that stand still.
    pub(super) fn check_silence(&mut self, now: Time) {
        if let Some(gone) = self.driver.links.first_failed() {
            // What the peer did before it failed has arrived, so operations that can end do so now:
            // a receive that is posted may end at once and let the next one be posted. What still
            // waits for the peer after that waits forever.
            while self.failing.cause.is_none() && self.drive(now) {}
            let error = self.needs_gone_peer().then_some(gone);
            if let (Some(error), None) = (error, &self.failing.cause) {
                return self.fail(error, true);
            }
        }
        self.note_moves();
        if let Some((suspect, task)) = self
            .failing
            .suspect
            .as_ref()
            .and_then(|s| Some((s, s.task?)))
        {
            let is_moving = !self.tasks[task].is_running()
                || now.since(self.tasks[task].last_moved) < suspect.waited;
            if is_moving {
                self.failing.suspect = None;
            } else if self.is_answered(suspect, now) {
                let error = self.give_up(task);
                self.fail(error, true);
            }
            return;
        }
        if let Some(task) = self.find_silent(now, |task| self.timeout_of(task)) {
            self.ask(Some(task), self.tasks[task].last_moved, now);
        } else if let Some(task) = self.find_silent(now, |_| COMPARE_AFTER) {
            self.compare(task);
        }
    }

    /// How long an operation may make no progress.
    fn timeout_of(&self, task: &Task) -> Duration {
        let own = task.call.as_ref().and_then(|call| call.timeout);
        own.unwrap_or(self.config.timeout)
    }

    /// Whether every peer has answered, or has had the time to.
    fn is_answered(&self, suspect: &Suspect, now: Time) -> bool {
        let is_here = |peer: Rank| suspect.answers[peer as usize].is_some();
        now >= suspect.deadline || self.driver.links.others().all(is_here)
    }

    /// Asks the peers for which an operation waits, once, what they believe it to be. Ranks that
    /// disagree about a root, for instance, may each wait for a message of the other; without this
    /// they would find out only at the end of the timeout.
    fn compare(&mut self, task: usize) {
        let Some(round) = self.rounds.of_task(task) else {
            return;
        };
        let Some(sequence) = round.sequence() else {
            return;
        };
        let generation = round.generation;
        if self.failing.compared == Some(generation) {
            return;
        }
        let query = self.query_of(sequence, round.program.signature.0);
        for peer in self.driver.awaited(round) {
            self.driver.links.send_control(peer, &query);
        }
        self.failing.compared = Some(generation);
    }

    fn query_of(&self, sequence: u64, signature: u64) -> ControlMessage {
        ControlMessage {
            kind: ControlKind::Query,
            rank: self.rank(),
            sequence,
            signature,
            text: String::new(),
        }
    }

    /// Asks every peer what it does, because something that is no operation has made no progress
    /// since `since`, which is too long. Once they have answered, or have had the time to, this
    /// returns the missing ranks and a text about every rank. Missing are the ranks that have not
    /// answered or, if all have, those in `awaited`. `None`: call again later.
    pub fn inquire(
        &mut self,
        since: Time,
        awaited: &[Rank],
        now: Time,
    ) -> Option<(Vec<Rank>, String)> {
        match self.failing.suspect.take() {
            Some(suspect) if suspect.task.is_none() && suspect.since == since => {
                if !self.is_answered(&suspect, now) {
                    self.failing.suspect = Some(suspect);
                    return None;
                }
                let is_silent = |rank: &Rank| suspect.answers[*rank as usize].is_none();
                let others = self.driver.links.others();
                let silent: Vec<Rank> = others.filter(is_silent).collect();
                let missing = match silent.is_empty() {
                    true => awaited.to_vec(),
                    false => silent,
                };
                let said = self.describe_ranks(&missing, &suspect.answers);
                Some((missing, said))
            }
            // An operation makes no progress, and its error says more.
            Some(suspect) if suspect.task.is_some() => {
                self.failing.suspect = Some(suspect);
                None
            }
            _ => {
                self.ask(None, since, now);
                None
            }
        }
    }

    /// Releases regions that peers have freed, once every round that may have a view of them has
    /// ended.
    pub(super) fn release_freed(&mut self) {
        if self.failing.cause.is_none() && self.rounds.have_all_ended() {
            self.driver.links.transport.release_freed();
        }
    }

    /// Notes for each task when its rounds last made progress.
    fn note_moves(&mut self) {
        for round in self.rounds.all() {
            let task = &mut self.tasks[round.task];
            task.last_moved = task.last_moved.max(round.last_moved);
        }
    }

    /// The first operation that has made no progress for `time`. Later ones may have to wait for
    /// earlier ones, so they are not silent while one of those moves.
    fn find_silent(&self, now: Time, time: impl Fn(&Task) -> Duration) -> Option<usize> {
        let rounds = self.rounds.all();
        let mut last_moved = Time::default();
        let mut tasks = rounds
            .map(|r| r.task)
            .chain(self.tasks.queue.front().copied())
            .chain(self.tagged.tasks())
            .chain(self.remotes.tasks());
        tasks.find(|&index| {
            let task = &self.tasks[index];
            last_moved = last_moved.max(task.last_moved);
            task.is_running() && now.since(last_moved) > time(task)
        })
    }

    /// The operation that was the `at`-th under way has ended: the timeout of the next ones begins
    /// anew.
    pub(super) fn refresh_later(&mut self, at: usize, now: Time) {
        let rounds = self.rounds.from(at);
        for index in rounds
            .map(|r| r.task)
            .chain(self.tasks.queue.front().copied())
        {
            let task = &mut self.tasks[index];
            task.last_moved = task.last_moved.max(now);
        }
    }

    fn needs_gone_peer(&self) -> bool {
        let mut needed = self
            .rounds
            .all()
            .flat_map(|round| self.driver.awaited(round));
        let is_queued = self.rounds.is_empty() && !self.tasks.queue.is_empty();
        let mut others = self.tagged.tasks().chain(self.remotes.tasks());
        let has_failed = |peer: Rank| self.driver.links.has_failed(peer);
        let needs = |task: usize| self.awaited_by(task).into_iter().any(has_failed);
        is_queued || needed.any(has_failed) || (!self.failing.is_lenient && others.any(needs))
    }

    /// The peers that a task without rounds waits for.
    fn awaited_by(&self, task: usize) -> Vec<Rank> {
        match self.remotes.peer_of(task) {
            Some(peer) => vec![peer],
            None if self.remotes.is_wait(task) => self.driver.links.others().collect(),
            None => self.awaited_by_receive(task),
        }
    }

    fn ask(&mut self, task: Option<usize>, since: Time, now: Time) {
        // Only collectives have a number that all ranks share, and that a peer can compare.
        let numbered = task
            .and_then(|task| self.rounds.of_task(task))
            .and_then(|r| Some((r.sequence()?, r.program.signature.0)));
        let (sequence, signature) = numbered.unwrap_or((self.numbers.next, 0));
        let query = self.query_of(sequence, signature);
        for peer in self.driver.links.others() {
            self.driver.links.send_control(peer, &query);
        }
        let waited = task.map_or(self.config.timeout, |task| {
            self.timeout_of(&self.tasks[task])
        });
        self.failing.suspect = Some(Suspect {
            task,
            since,
            sequence,
            is_numbered: numbered.is_some(),
            waited,
            deadline: now.after(ANSWER_TIME_MAX.min(waited)),
            answers: vec![None; self.ranks() as usize],
        });
    }

    /// A text that says of each rank whether it is missing and what it has last done. Ranks of
    /// which it says the same are named together.
    fn describe_ranks(&self, missing: &[Rank], answers: &[Option<Answer>]) -> String {
        let mut groups: Vec<(bool, String, Vec<Rank>)> = Vec::new();
        for rank in 0..self.ranks() {
            let is_missing = missing.contains(&rank);
            let trouble = self.driver.links.transport.trouble(rank);
            let deed = match &answers[rank as usize] {
                _ if rank == self.rank() => self.last_deed(),
                Some(answer) => answer.text.clone(),
                None => {
                    let last = self.driver.links.last_signal(rank);
                    let seen = last.map_or("no operation".into(), |(sequence, signature)| {
                        format!("operation {sequence}, {}", signature.describe())
                    });
                    format!(
                        "no answer (stopped, outside of any call, or this operation was not called), last seen in {seen}"
                    )
                }
            };
            let deed = match trouble {
                Some(trouble) => format!("{deed}; {trouble}"),
                None => deed,
            };
            match groups
                .iter_mut()
                .find(|g| (g.0, &g.1) == (is_missing, &deed))
            {
                Some(group) => group.2.push(rank),
                None => groups.push((is_missing, deed, vec![rank])),
            }
        }
        // The missing ranks come first, because peers are told only as much of the text as fits a
        // message.
        groups.sort_by_key(|group| !group.0);
        let say = |(is_missing, deed, ranks): &(bool, String, Vec<Rank>)| {
            let missing = match (is_missing, ranks.len()) {
                (false, _) => "",
                (true, 1) => " is missing",
                (true, _) => " are missing",
            };
            format!("{}{missing}: {deed}", name_ranks(ranks))
        };
        groups.iter().map(say).collect::<Vec<_>>().join("; ")
    }

    /// The error of an operation that has made no progress.
    fn give_up(&mut self, task: usize) -> Error {
        let suspect = self.failing.suspect.take().expect("somebody stood still");
        let round = self.rounds.of_task(task);
        let of_others = || self.awaited_by(task);
        let mut missing = round.map_or_else(of_others, |round| self.driver.awaited(round));
        if missing.is_empty() {
            // The operation cannot start before the ranks that have ended the fewest operations
            // have ended more.
            let ended = |rank: &Rank| suspect.answers[*rank as usize].as_ref().map(|a| a.ended);
            let least = self
                .driver
                .links
                .others()
                .filter_map(|rank| ended(&rank))
                .min();
            let is_behind = |rank: &Rank| ended(rank) == least;
            missing = self.driver.links.others().filter(is_behind).collect();
        }
        // A rank that answers waits, too: perhaps for ranks that do not answer, for instance
        // because the network between them is cut.
        let is_silent = |&rank: &Rank| suspect.answers[rank as usize].is_none();
        if !missing.iter().any(is_silent) {
            missing.extend(self.driver.links.others().filter(is_silent));
            missing.sort_unstable();
        }
        // A rank that has started the operation, or is inside an earlier one, waits as this rank
        // does. It is named only if all the missing ranks wait.
        let waits = |&rank: &Rank| {
            let answer = suspect.answers[rank as usize].as_ref();
            let is_inside = |a: &Answer| a.started > suspect.sequence.min(a.ended);
            suspect.is_numbered && answer.is_some_and(is_inside)
        };
        if !missing.iter().all(waits) {
            missing.retain(|rank| !waits(rank));
        }
        let detail = self.describe_ranks(&missing, &suspect.answers);
        Error::Timeout {
            rank: self.rank(),
            operation: format!(
                "operation {}, {}",
                suspect.sequence,
                self.tasks[task].describe()
            ),
            waited: suspect.waited,
            missing,
            detail,
        }
    }
}
