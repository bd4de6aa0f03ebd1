//! [`Asking`]: how a worker has all shards do something at one place of their order.

use super::layout::parts_of;
use super::operations::end_some;
use super::request::{Failure, Request};
use super::shared::Shared;
use super::signals::Signals;
use crate::comm::Operation;
use crate::engine::Engine;
use crate::error::Result;
use std::sync::Arc;

/// Bits of the number of an answer, above those of a [`Failure`].
const NUMBER_MASK: u64 = (1 << 24) - 1;

/// See the module.
pub struct Asking {
    shared: Arc<Shared>,
    /// The number of the worker.
    number: usize,
    /// A request that is being put to all shards.
    puts: Vec<Operation>,
    /// Requests that have been started, and those of which the first shard was told.
    started: u64,
    told: u64,
}

impl Asking {
    pub fn new(shared: Arc<Shared>, number: usize) -> Asking {
        Asking {
            shared,
            number,
            puts: Vec::new(),
            started: 0,
            told: 0,
        }
    }

    /// Puts a request to all shards. The last one is answered.
    pub fn start(&mut self, request: &Request) -> Result<()> {
        let (layout, comm) = (&self.shared.layout, &self.shared.comm);
        let bytes = request.emit();
        let source = comm.alloc::<u8>(bytes.len())?;
        source.write(0, &bytes)?;
        self.started += 1;
        for (shard, &server) in layout.servers.iter().enumerate() {
            let at = layout.request(shard, self.number);
            self.puts.push(self.shared.data.put(&source, server, at)?);
        }
        Ok(())
    }

    /// Tells the first shard of a request that is everywhere.
    pub fn turn(&mut self, signals: &mut Signals) -> Result<()> {
        end_some(&self.shared, &mut self.puts)?;
        if self.told == self.started || !self.puts.is_empty() {
            return Ok(());
        }
        self.told = self.started;
        let (layout, words) = (&self.shared.layout, &self.shared.words);
        let place = (layout.servers[0], layout.asked(self.number));
        signals.add((&self.shared.comm, words), place, 1)
    }

    /// Whether a put has ended.
    pub fn has_news(&self, engine: &Engine) -> bool {
        self.puts.iter().any(|put| put.has_ended(engine))
    }

    /// All shards have answered the last request.
    pub fn is_answered(&self) -> bool {
        let number = (self.started & NUMBER_MASK) as u32;
        let mut shards = 0..self.shared.layout.shards();
        shards.all(|shard| self.answer_of(shard).0 >> 8 == number)
    }

    fn answer_of(&self, shard: usize) -> (u32, u32) {
        let at = self.shared.layout.answered(shard);
        parts_of(self.shared.words.load(at))
    }

    /// The low bits of the versions that the shards have answered, or the first shard that has
    /// failed and why.
    pub fn answers(&self) -> std::result::Result<Vec<u32>, (usize, Failure)> {
        let answer = |shard| {
            let (word, version) = self.answer_of(shard);
            match Failure::from_code(word as u8) {
                Some(failure) => Err((shard, failure)),
                None => Ok(version),
            }
        };
        (0..self.shared.layout.shards()).map(answer).collect()
    }
}
