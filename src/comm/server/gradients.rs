//! [`OwnGradients`]: memory of a worker in which its caller makes gradients. Shards that map it
//! read them there ([`MappedGradients`]).

use super::layout::{BY_PUT, IN_PLACE};
use super::living::Living;
use super::shared::Shared;
use super::signals::Signals;
use crate::comm::Buffer;
use crate::error::{Error, Result};
use crate::memory::{Access, Kept, RegionKey, View};
use std::collections::VecDeque;
use std::sync::Arc;

/// See the module. Pushes are counted from 1 on.
pub struct OwnGradients {
    shared: Arc<Shared>,
    /// Pushes that lie here and are not applied by all shards, with their borrows.
    lent: VecDeque<(u64, Kept)>,
}

impl OwnGradients {
    pub fn new(shared: Arc<Shared>) -> OwnGradients {
        OwnGradients {
            shared,
            lent: VecDeque::new(),
        }
    }

    /// Takes the memory, and tells all shards where worker `number` has it.
    pub fn start(&mut self, number: usize, signals: &mut Signals, living: &Living) -> Result<()> {
        let shared = &self.shared;
        if shared.gradients.get().is_some() {
            return Ok(());
        }
        let (layout, comm) = (&shared.layout, &shared.comm);
        let memory = comm.alloc::<u8>(layout.own_bytes())?;
        let view = memory.raw().view();
        let words = [u64::from(view.key().0) + 1, view.offset() + 1];
        for server in living.servers().map(|server| layout.servers[server]) {
            living.without_ends(comm.export(server, view.key()))?;
            for (at, word) in (layout.gradient_region(number)..).zip(words) {
                signals.add((comm, &shared.words), (server, at), word)?;
            }
        }
        let _ = shared.gradients.set(memory);
        Ok(())
    }

    /// All servers know where the memory is, and there is room for this push.
    pub fn has_room(&self, push: u64, living: &Living) -> bool {
        let layout = &self.shared.layout;
        let words = &self.shared.words;
        // The last one that lay in the same slot was as many pushes before.
        let is_free =
            (self.lent.front()).is_none_or(|&(lent, _)| lent + layout.slots as u64 > push);
        let mut servers = living.servers();
        is_free && servers.all(|server| words.load(layout.reads(server)) != 0)
    }

    /// The room for a push.
    pub fn slot(&self, push: u64) -> Option<Buffer<u8>> {
        let layout = &self.shared.layout;
        let start = layout.own_slot(push - 1);
        let bytes = layout.total() * layout.gradients.size_bytes();
        let memory = self.shared.gradients.get()?;
        Some(memory.range(start..start + bytes))
    }

    /// Borrows the gradients of a push until all shards have applied it, if they lie in its room;
    /// whether they do.
    ///
    /// # Errors
    /// Something writes them.
    pub fn lend(&mut self, gradients: &Buffer<u8>, push: u64, living: &Living) -> Result<bool> {
        let place = |buffer: &Buffer<u8>| (buffer.raw().view().as_ptr(), buffer.len());
        let slot = self.slot(push).filter(|_| self.has_room(push, living));
        if slot.is_none_or(|slot| place(&slot) != place(gradients)) {
            return Ok(false);
        }
        let kept = gradients.raw().keep_all(Access::Shared, "a push")?;
        self.lent.extend(kept.map(|kept| (push, kept)));
        Ok(true)
    }

    /// All shards have applied the pushes up to this one.
    pub fn take_back(&mut self, applied: u64) {
        while self.lent.front().is_some_and(|&(push, _)| push <= applied) {
            self.lent.pop_front();
        }
    }

    /// Whether a server reads gradients here.
    pub fn is_read_by(&self, server: usize) -> bool {
        self.shared.words.load(self.shared.layout.reads(server)) == IN_PLACE
    }
}

impl Drop for OwnGradients {
    fn drop(&mut self) {
        // Shards may still read them: nobody writes there any more.
        let lent = std::mem::take(&mut self.lent);
        lent.into_iter().for_each(std::mem::forget);
    }
}

/// What a shard knows of a worker's memory for gradients.
#[derive(Clone, Copy)]
enum Known {
    /// Nothing: it may have none.
    Nothing,
    /// It is not mapped: gradients are put.
    Unmapped,
    Mapped(View),
}

/// The memory of all workers for their gradients, as a shard maps it.
pub struct MappedGradients {
    known: Vec<Known>,
}

impl MappedGradients {
    pub fn new(workers: usize) -> MappedGradients {
        MappedGradients {
            known: vec![Known::Nothing; workers],
        }
    }

    /// What a worker has told of is over.
    pub fn forget(&mut self, worker: usize) {
        self.known[worker] = Known::Nothing;
    }

    /// Maps what workers have told of, and tells them whether it could.
    pub fn note(
        &mut self,
        shared: &Shared,
        server: usize,
        is_there: impl Fn(usize) -> bool,
        signals: &mut Signals,
    ) -> Result<()> {
        let (layout, way) = (&shared.layout, (&shared.comm, &shared.words));
        for (worker, known) in self.known.iter_mut().enumerate() {
            let [key, offset] =
                [0, 1].map(|at| shared.words.load(layout.gradient_region(worker) + at));
            let is_new = matches!(known, Known::Nothing) && is_there(worker);
            if !is_new || key == 0 || offset == 0 {
                continue;
            }
            let rank = layout.workers[worker];
            let mut engine = shared.comm.driving()?.engine();
            let (mut now, mut how) = (Known::Unmapped, BY_PUT);
            if engine.maps(rank) {
                let Some(region) = engine.map(rank, RegionKey(key as u32 - 1))? else {
                    continue;
                };
                let (start, bytes) = (offset as usize - 1, layout.own_bytes());
                let end = start.checked_add(bytes);
                if end.is_none_or(|end| end > region.len_bytes()) {
                    let text = format!("worker {worker} has gradients beyond its memory");
                    return Err(Error::Malformed(text));
                }
                (now, how) = (Known::Mapped(region.part(start, bytes)), IN_PLACE);
            }
            drop(engine);
            *known = now;
            signals.add(way, (rank, layout.reads(server)), how)?;
        }
        Ok(())
    }

    /// Where a push lies, counted from 0 on, that is read where it lies.
    pub fn place(
        &self,
        shared: &Shared,
        (server, worker): (usize, usize),
        push: u64,
    ) -> Result<View> {
        let layout = &shared.layout;
        let Known::Mapped(memory) = self.known[worker] else {
            let text = format!("worker {worker} has memory that is not mapped");
            return Err(Error::Malformed(text));
        };
        let bytes = layout.bytes(layout.shard_of(server), layout.gradients);
        Ok(memory.part(layout.own_slot(push) + bytes.start, bytes.len()))
    }
}
