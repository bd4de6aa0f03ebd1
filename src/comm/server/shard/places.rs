//! How a place of a worker goes from one process to another.
//!
//! The leader puts it in order ([`Entry::Replace`](crate::staleness::Entry)): what the process
//! before has pushed counts up to there, on all servers. It does so once until a process is there
//! again, so that a slow server is never told of more than its words hold. Each server connects the
//! next one when it has come to that entry, so that nothing of the one before arrives any more, and
//! takes the words of the place back. The next one begins when all servers have let it in, and is
//! there when its [`Request::Attach`](crate::comm::server::request::Request) is in order.

use super::{Pushes, Shard};
use crate::error::Result;

/// Why there is no place for a process.
pub enum NoPlace {
    /// There may be one later.
    NotNow(String),
    Never(String),
}

impl Shard {
    /// The place of a worker is that of another process from now on, which has not come yet.
    pub(super) fn forget(&mut self, worker: usize) -> Result<()> {
        let rank = self.shared.layout.workers[worker];
        let known = &self.workers[worker];
        if !known.is_finished {
            self.counts.lost.push(rank);
        }
        self.tell_leaders(worker, known.told.wrapping_neg())?;
        let known = &self.workers[worker];
        self.workers[worker] = Pushes {
            before: known.before + known.done,
            replaced: known.replaced + 1,
            told_by: self.signals.started(),
            is_finished: true,
            is_awaited: true,
            ..Pushes::default()
        };
        self.gradients.forget(worker);
        if let Some(leading) = &mut self.leading {
            leading.forget(worker);
        }
        Ok(())
    }

    /// Gives the place of a worker that is not there, and that is not reserved, to another process:
    /// gives its number, and how often that was done.
    ///
    /// # Errors
    /// Why there is none.
    pub fn give_place(
        &mut self,
        is_reserved: impl Fn(usize) -> bool,
    ) -> std::result::Result<(usize, u64), NoPlace> {
        let later = |text: &str| Err(NoPlace::NotNow(text.into()));
        let Some(leading) = self.leading.as_mut().filter(|leading| leading.leads()) else {
            return later("this server does not lead");
        };
        if leading.has_told_end() {
            return Err(NoPlace::Never("all workers have finished".into()));
        }
        if !self.has_begun {
            return later("it has no weights yet");
        }
        let workers = &self.shared.layout.workers;
        let Ok(driving) = self.shared.comm.driving() else {
            return later("the process has forked");
        };
        for (worker, known) in self.workers.iter().enumerate() {
            let rank = workers[worker];
            // A server does not come back.
            let is_server = self.shared.layout.servers.contains(&rank);
            let is_away = known.is_evicted || driving.engine().has_ended(rank);
            if !is_server
                && !is_reserved(worker)
                && known.is_finished
                && is_away
                && let Some(count) = leading.replace(worker)
            {
                return Ok((worker, count));
            }
        }
        let count = workers.len();
        let text = format!(
            "all {count} workers are there: a process takes the place of one that has ended, or one of ServerOptions::spares"
        );
        Err(NoPlace::NotNow(text))
    }

    /// How often the place of a worker was given to another process, as far as this server is in
    /// the order.
    pub fn replaced(&self, worker: usize) -> u64 {
        self.workers[worker].replaced
    }

    /// The process that has the place of a worker now is connected, and the one before does nothing
    /// any more: its words are taken back.
    pub fn clear(&mut self, worker: usize) {
        let (layout, words) = (&self.shared.layout, &self.shared.words);
        let of_worker = [
            layout.pushed(worker),
            layout.moved_worker(worker),
            layout.finished(worker),
            layout.held(worker),
            layout.asked(worker),
            layout.gradient_region(worker),
            layout.gradient_region(worker) + 1,
        ];
        of_worker.into_iter().for_each(|at| words.store(at, 0));
        self.signals.stay(layout.workers[worker]);
        self.gradients.forget(worker);
        self.workers[worker].is_awaited = false;
        if let Some(leading) = &mut self.leading {
            leading.let_in(worker);
        }
    }

    /// Whether the leaders have taken back what this server had told of the pushes of the process
    /// before.
    pub fn is_cleared(&self, worker: usize) -> bool {
        self.signals.has_ended(self.workers[worker].told_by)
    }

    /// Tells a process that has the place of a worker that it may begin.
    pub fn let_in(&mut self, worker: usize) -> Result<()> {
        let before = self.workers[worker].before;
        let (shared, layout) = (&self.shared, &self.shared.layout);
        let way = (&shared.comm, &shared.words);
        let rank = layout.workers[worker];
        let place = (rank, layout.resumed(self.index));
        self.signals.add(way, place, before + 1)?;
        let place = (rank, layout.ready(self.index));
        self.signals.add(way, place, self.weights.version() + 1)
    }
}
