//! [`Signals`]: additions to words of other ranks, without waiting for each.

use crate::comm::{Buffer, Communicator, Operation, Window};
use crate::error::{Error, Result};
use crate::types::Rank;

/// Operations for which memory is allocated at a time.
const BATCH: usize = 64;

/// See the module.
pub struct Signals {
    free: Vec<Buffer<u64>>,
    under_way: Vec<Sent>,
    /// How many have been started.
    started: u64,
    /// Ranks for which nobody waits.
    left: Vec<Rank>,
}

struct Sent {
    /// Counted from 1 on.
    number: u64,
    operation: Operation,
    /// Where the word comes as it was before.
    room: Buffer<u64>,
    rank: Rank,
}

impl Signals {
    pub fn new() -> Signals {
        Signals {
            free: Vec::new(),
            under_way: Vec::new(),
            started: 0,
            left: Vec::new(),
        }
    }

    fn room(&mut self, comm: &Communicator) -> Result<Buffer<u64>> {
        if self.free.is_empty() {
            let batch = comm.alloc::<u64>(BATCH)?;
            let parts = (0..BATCH).map(|at| batch.range(at..=at));
            self.free.extend(parts);
        }
        Ok(self.free.pop().expect("there are some now"))
    }

    /// Adds to a word of a rank.
    pub fn add(
        &mut self,
        (comm, words): (&Communicator, &Window<u64>),
        (rank, at): (Rank, usize),
        add: u64,
    ) -> Result<()> {
        let room = self.room(comm)?;
        let operation = words.fetch_and_add(rank, at, add, &room)?;
        self.started += 1;
        self.under_way.push(Sent {
            number: self.started,
            operation,
            room,
            rank,
        });
        Ok(())
    }

    /// Has a word of a rank, which only this rank changes, become `new`. `old` is what it was.
    pub fn set(
        &mut self,
        way: (&Communicator, &Window<u64>),
        place: (Rank, usize),
        new: u64,
        old: &mut u64,
    ) -> Result<()> {
        let add = new.wrapping_sub(std::mem::replace(old, new));
        self.add(way, place, add)
    }

    /// What is under way to a rank is not waited for from now on.
    pub fn leave(&mut self, rank: Rank) {
        self.left.push(rank);
    }

    /// What is under way to a rank is waited for again: another process has its place.
    pub fn stay(&mut self, rank: Rank) {
        self.left.retain(|&left| left != rank);
    }

    /// How many operations have been started.
    pub fn started(&self) -> u64 {
        self.started
    }

    /// Whether the first `count` operations have ended, but those to ranks that were left.
    pub fn has_ended(&self, count: u64) -> bool {
        let mut all = self.under_way.iter();
        all.all(|sent| sent.number > count || self.left.contains(&sent.rank))
    }

    /// Whether all operations have ended and been collected, but those to ranks that were left.
    pub fn is_idle(&self) -> bool {
        let mut all = self.under_way.iter();
        all.all(|sent| self.left.contains(&sent.rank))
    }

    /// Takes memory back of operations that have ended.
    ///
    /// # Errors
    /// That of an operation that has failed, unless its rank has ended and is not one of those that
    /// are `needed`.
    pub fn collect(&mut self, comm: &Communicator, needed: &[Rank]) -> Result<()> {
        if self.under_way.is_empty() {
            return Ok(());
        }
        let driving = comm.driving()?;
        driving.drive_then(|engine| {
            (self.under_way.iter_mut()).for_each(|sent| sent.operation.look(engine));
        });
        let mut at = 0;
        while at < self.under_way.len() {
            if !self.under_way[at].operation.is_over() {
                at += 1;
                continue;
            }
            let sent = self.under_way.swap_remove(at);
            self.free.push(sent.room);
            match sent.operation.result() {
                Err(Error::PeerFailed { .. } | Error::Left { .. })
                    if !needed.contains(&sent.rank) => {}
                result => result?,
            }
        }
        Ok(())
    }
}
