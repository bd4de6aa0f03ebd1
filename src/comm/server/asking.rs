//! [`Asking`]: how a worker has all servers do something at one place of their order.

use super::layout::parts_of;
use super::living::Living;
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
    /// A request that is being put to all servers.
    puts: Vec<Operation>,
    /// Requests that have been started, and those of which the leaders were told.
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

    /// Puts a request to all servers. The last one is answered.
    pub fn start(&mut self, request: &Request, living: &Living) -> Result<()> {
        let (layout, comm) = (&self.shared.layout, &self.shared.comm);
        let bytes = request.emit();
        let source = comm.alloc::<u8>(bytes.len())?;
        source.write(0, &bytes)?;
        self.started += 1;
        for server in living.servers() {
            let (rank, at) = (layout.servers[server], layout.request(server, self.number));
            self.puts.push(self.shared.data.put(&source, rank, at)?);
        }
        Ok(())
    }

    /// Tells the leaders of a request that is everywhere.
    pub fn turn(&mut self, signals: &mut Signals, living: &Living) -> Result<()> {
        living.without_ends(end_some(&self.shared, &mut self.puts))?;
        if self.told == self.started || !self.puts.is_empty() {
            return Ok(());
        }
        self.told = self.started;
        let (layout, words) = (&self.shared.layout, &self.shared.words);
        let leaders = living.servers().filter(|&one| one < layout.leaders());
        for leader in leaders {
            let place = (layout.servers[leader], layout.asked(self.number));
            signals.add((&self.shared.comm, words), place, 1)?;
        }
        Ok(())
    }

    /// Whether a put has ended.
    pub fn has_news(&self, engine: &Engine) -> bool {
        self.puts.iter().any(|put| put.has_ended(engine))
    }

    /// All servers have answered the last request.
    pub fn is_answered(&self, living: &Living) -> bool {
        let number = (self.started & NUMBER_MASK) as u32;
        let mut servers = living.servers();
        servers.all(|server| self.answer_of(server).0 >> 8 == number)
    }

    fn answer_of(&self, server: usize) -> (u32, u32) {
        let at = self.shared.layout.answered(server);
        parts_of(self.shared.words.load(at))
    }

    /// The low bits of the versions that the servers have answered, or the first server that could
    /// not do it and why.
    pub fn answers(&self, living: &Living) -> std::result::Result<Vec<u32>, (usize, Failure)> {
        let answer = |server| {
            let (word, version) = self.answer_of(server);
            match Failure::from_code(word as u8) {
                Some(failure) => Err((server, failure)),
                None => Ok(version),
            }
        };
        living.servers().map(answer).collect()
    }
}
