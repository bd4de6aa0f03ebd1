//! [`Layout`]: where everything lies in the two windows of a parameter server.
//!
//! A shard is a range of the weights. Each server has one, and with
//! [`ServerOptions::replicas`] two servers that follow each other have the same.

use super::options::{ServerOptions, is_float};
use super::request::REQUEST_BYTES;
use crate::error::{Error, Result};
use crate::fusion::TensorSpec;
use crate::limits::CACHE_LINE_BYTES;
use crate::staleness::Staleness;
use crate::types::{DataType, Rank};
use std::ops::Range;

/// Elements to which the length of a shard is rounded up, so that shards begin on cache lines.
const ROUND: usize = CACHE_LINE_BYTES;

/// A word of a number that counts and a value, of which the low halves count. Only one rank writes
/// it, by adding the difference to what it was.
pub fn word_of(count: u64, value: u32) -> u64 {
    u64::from(count as u32) | u64::from(value) << 32
}

/// The number and the value of a word.
pub fn parts_of(word: u64) -> (u32, u32) {
    (word as u32, (word >> 32) as u32)
}

/// In the words that count the pushes that have arrived in another server: one push that is to be
/// left out; and that the worker has ended there.
pub const SKIPPED: u64 = 1 << 48;
pub const LOST: u64 = 1 << 47;

/// How the weights to begin with have come.
pub const BY_INIT: u64 = 1;
pub const BY_LOAD: u64 = 2;

/// How a shard gets gradients that lie in a worker's memory for them.
pub const BY_PUT: u64 = 1;
pub const IN_PLACE: u64 = 2;

/// In the value of a worker's word of pushes: the last one is read where it lies.
pub const LIES_THERE: u32 = 1 << 31;

/// See the module.
#[derive(Debug)]
pub struct Layout {
    pub servers: Vec<Rank>,
    pub workers: Vec<Rank>,
    /// How many of the workers, the last ones, come later.
    pub spares: usize,
    /// Servers that have the same shard.
    pub copies: usize,
    pub gradients: DataType,
    pub pulls: DataType,
    pub slots: usize,
    /// One update takes the pushes of all workers.
    pub is_bsp: bool,
    /// Elements of all tensors, and of a shard but the last.
    total: usize,
    per_shard: usize,
}

impl Layout {
    pub fn new(tensors: &[TensorSpec], options: &ServerOptions, ranks: u32) -> Result<Layout> {
        let (servers, mut workers) = options.check(ranks)?;
        workers.extend(ranks..ranks + options.spares);
        let gradients = tensors.first().map_or(DataType::F32, |first| first.dtype);
        let is_other = |one: &&TensorSpec| one.dtype != gradients || !is_float(one.dtype);
        if let Some(other) = tensors.iter().find(is_other) {
            return Err(Error::invalid(format!(
                "tensor '{}' of a parameter server is of {}: all tensors are of f32, of f16 or of bf16",
                other.name, other.dtype
            )));
        }
        let mut counts = tensors.iter().map(|tensor| tensor.count as usize);
        let total = counts.try_fold(0usize, |sum, count| sum.checked_add(count));
        let total = total.filter(|&total| total <= isize::MAX as usize / 16);
        let copies = options.replicas as usize + 1;
        let shards = servers.len() / copies;
        let Some(total) = total.filter(|&total| total >= shards) else {
            return Err(Error::invalid(format!(
                "a parameter server of {} tensors with {shards} shards: at least one element for each shard, and no more than fit memory",
                tensors.len(),
            )));
        };
        let even = total.div_ceil(shards);
        let rounded = even.next_multiple_of(ROUND);
        // Every shard has something also where few elements are shared out.
        let is_whole = rounded * (shards - 1) < total;
        let per_shard = if is_whole { rounded } else { even };
        let is_whole = per_shard * (shards - 1) < total;
        Ok(Layout {
            per_shard: if is_whole { per_shard } else { total / shards },
            copies,
            spares: options.spares as usize,
            gradients,
            pulls: options.pulls,
            slots: options.slots as usize,
            is_bsp: options.staleness == Staleness::Bsp,
            total,
            servers,
            workers,
        })
    }

    /// Ranks that there can be, of `ranks` that there were at the beginning.
    pub fn slots(&self, ranks: u32) -> u32 {
        ranks + self.spares as u32
    }

    pub fn shards(&self) -> usize {
        self.servers.len() / self.copies
    }

    /// The shard that a server has.
    pub fn shard_of(&self, server: usize) -> usize {
        server / self.copies
    }

    /// Servers that can put pushes in order: those of the first shard.
    pub fn leaders(&self) -> usize {
        self.copies
    }

    /// Elements of all tensors.
    pub fn total(&self) -> usize {
        self.total
    }

    /// The elements of a shard.
    pub fn range(&self, shard: usize) -> Range<usize> {
        let start = shard * self.per_shard;
        match shard + 1 == self.shards() {
            true => start..self.total,
            false => start..start + self.per_shard,
        }
    }

    /// The bytes of a shard in elements of this type.
    pub fn bytes(&self, shard: usize, dtype: DataType) -> Range<usize> {
        let Range { start, end } = self.range(shard);
        start * dtype.size_bytes()..end * dtype.size_bytes()
    }

    fn room(&self, server: usize, dtype: DataType) -> usize {
        let bytes = self.range(self.shard_of(server)).len() * dtype.size_bytes();
        bytes.next_multiple_of(CACHE_LINE_BYTES)
    }

    /// Where a push lies in a worker's own memory for gradients.
    pub fn own_slot(&self, push: u64) -> usize {
        (push % self.slots as u64) as usize * self.own_room()
    }

    fn own_room(&self) -> usize {
        let bytes = self.total * self.gradients.size_bytes();
        bytes.next_multiple_of(CACHE_LINE_BYTES)
    }

    /// Bytes of a worker's own memory for gradients.
    pub fn own_bytes(&self) -> usize {
        self.slots * self.own_room()
    }

    /// Where a push of a worker lies in a server's memory.
    pub fn slot(&self, server: usize, worker: usize, push: u64) -> usize {
        let slot = worker * self.slots + (push % self.slots as u64) as usize;
        slot * self.room(server, self.gradients)
    }

    /// Where the weights of a version lie, as they are pulled.
    pub fn weights(&self, server: usize, version: u64) -> usize {
        let slots = self.workers.len() * self.slots;
        let start = slots * self.room(server, self.gradients);
        start + (version % 2) as usize * self.room(server, self.pulls)
    }

    /// Where the first worker puts the weights to begin with, in f32. Where they are pulled in
    /// another type, the shard keeps them here.
    pub fn first(&self, server: usize) -> usize {
        match self.pulls {
            DataType::F32 => self.weights(server, 0),
            _ => self.weights(server, 1) + self.room(server, self.pulls),
        }
    }

    fn after_weights(&self, server: usize) -> usize {
        match self.pulls {
            DataType::F32 => self.weights(server, 1) + self.room(server, self.pulls),
            _ => self.first(server) + self.room(server, DataType::F32),
        }
    }

    /// Where a request of a worker lies in a server's memory.
    pub fn request(&self, server: usize, worker: usize) -> usize {
        self.after_weights(server) + worker * REQUEST_BYTES
    }

    /// Bytes of a server's memory.
    pub fn server_bytes(&self, server: usize) -> usize {
        self.request(server, self.workers.len())
    }

    /// The word of a server with the number of a worker's pushes that have come, and the version
    /// that the last one was computed from.
    pub fn pushed(&self, worker: usize) -> usize {
        worker
    }

    /// The word of a leader that counts the pushes of a worker in another server; see [`SKIPPED`]
    /// and [`LOST`].
    pub fn arrived(&self, server: usize, worker: usize) -> usize {
        self.workers.len() * (1 + server) + worker
    }

    fn after_arrived(&self) -> usize {
        self.workers.len() * (1 + self.servers.len())
    }

    /// The word of a server that is not 0 when the weights to begin with are there: [`BY_INIT`] or
    /// [`BY_LOAD`].
    pub fn begun(&self) -> usize {
        self.after_arrived()
    }

    /// The word of the first leader that counts the entries of the order which the second has.
    pub fn confirmed(&self) -> usize {
        self.after_arrived() + 1
    }

    /// The word of a server that says how many entries of the order there are in all, and one more,
    /// when this leader makes no more.
    pub fn ended(&self, leader: usize) -> usize {
        self.after_arrived() + 2 + leader
    }

    fn after_ended(&self) -> usize {
        self.ended(self.leaders())
    }

    /// The word of the second leader that is not 0 when a server waits for its order, because the
    /// first one has failed: the entries that it has, and one more.
    pub fn moved_server(&self, server: usize) -> usize {
        self.after_ended() + server
    }

    /// As [`Layout::moved_server`], of a worker: its OKs, and one more.
    pub fn moved_worker(&self, worker: usize) -> usize {
        self.after_ended() + self.servers.len() + worker
    }

    fn after_moved(&self) -> usize {
        self.moved_worker(self.workers.len())
    }

    /// The word of a server that is odd when a worker pushes no more.
    pub fn finished(&self, worker: usize) -> usize {
        self.after_moved() + worker
    }

    /// The word of a server that is 1 while it holds the next update back for a worker.
    pub fn held(&self, worker: usize) -> usize {
        self.after_moved() + self.workers.len() + worker
    }

    /// The word of a leader that counts the requests of a worker which all servers have.
    pub fn asked(&self, worker: usize) -> usize {
        self.after_moved() + 2 * self.workers.len() + worker
    }

    /// Two words of a server that say where the gradients of a worker lie in its own memory: one
    /// more than the key of the region, and one more than the offset in it.
    pub fn gradient_region(&self, worker: usize) -> usize {
        self.after_moved() + 3 * self.workers.len() + 2 * worker
    }

    /// The words of a server that peers change.
    pub fn server_words(&self) -> Range<usize> {
        0..self.order_start(self.leaders())
    }

    /// Two words of a server: the version of its weights, and the last that it has begun to write.
    pub fn versions(&self) -> usize {
        self.server_words().end
    }

    fn order_start(&self, leader: usize) -> usize {
        self.gradient_region(self.workers.len()) + leader * self.order_len()
    }

    /// The word of a server with the entry of a leader's order of this number: the number and one
    /// more, and which entry it is.
    pub fn order(&self, leader: usize, number: u64) -> usize {
        self.order_start(leader) + (number % self.order_len() as u64) as usize
    }

    /// Entries of the order that a server has not come to: of each worker its pushes, a request,
    /// its end with the round that it ends, and that another process has its place.
    pub fn order_len(&self) -> usize {
        self.workers.len() * (self.slots + 4)
    }

    fn worker_start(&self) -> usize {
        self.versions() + 2
    }

    /// The word of a worker that is 1 when the others do not wait for it any more.
    pub fn evicted(&self) -> usize {
        self.worker_start()
    }

    /// The word of a worker with the number of its OKs that a leader has given, and its drift at
    /// the last one.
    pub fn oks(&self, leader: usize) -> usize {
        self.worker_start() + 1 + 2 * leader
    }

    /// The word of a worker with the number of the worker that it waits for, as a leader says, and
    /// one more.
    pub fn slowest(&self, leader: usize) -> usize {
        self.oks(leader) + 1
    }

    /// The words of a worker that a server changes.
    fn of_server(&self, server: usize) -> usize {
        self.oks(self.leaders()) + 5 * server
    }

    /// The word of a worker that is not 0 when a server has the weights to begin with: their
    /// version, and one more.
    pub fn ready(&self, server: usize) -> usize {
        self.of_server(server)
    }

    /// The word of a worker with the number of its pushes that are in the weights to begin with of
    /// a server, and one more.
    pub fn resumed(&self, server: usize) -> usize {
        self.of_server(server) + 1
    }

    /// The word of a worker with the number of its pushes that a server has applied, and the
    /// version of the weights after the last one.
    pub fn applied(&self, server: usize) -> usize {
        self.of_server(server) + 2
    }

    /// The word of a worker with a server's answer: the number of its requests that are answered
    /// times 256, and the code of the last [`Failure`](super::request::Failure) or 0; and the
    /// version of which the answer speaks.
    pub fn answered(&self, server: usize) -> usize {
        self.of_server(server) + 3
    }

    /// The word of a worker that says how a server gets its gradients: [`BY_PUT`] or [`IN_PLACE`].
    pub fn reads(&self, server: usize) -> usize {
        self.of_server(server) + 4
    }

    /// The words of a worker that peers change.
    pub fn worker_words(&self) -> Range<usize> {
        self.worker_start()..self.of_server(self.servers.len())
    }

    /// The words of a rank.
    pub fn words(&self) -> usize {
        self.worker_words().end
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shards_share_all_elements_out_and_none_is_empty() {
        for total in (1usize..200).chain([1000, 4096, 100_003]) {
            for shards in 1..9 {
                let options = ServerOptions {
                    servers: (0..shards).collect(),
                    ..ServerOptions::default()
                };
                let tensor = TensorSpec {
                    name: "all".into(),
                    count: total as u64,
                    dtype: DataType::F32,
                };
                let Ok(layout) = Layout::new(&[tensor], &options, 9) else {
                    assert!(total < shards as usize);
                    continue;
                };
                let mut end = 0;
                for shard in 0..layout.shards() {
                    let range = layout.range(shard);
                    assert!(range.start == end && !range.is_empty(), "{total} {shards}");
                    end = range.end;
                }
                assert_eq!(end, total);
            }
        }
    }
}
