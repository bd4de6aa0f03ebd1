//! [`Pulling`]: how a worker reads weights of one version from each shard while servers update
//! them.

use super::layout::parts_of;
use super::living::Living;
use super::shared::Shared;
use super::signals::Signals;
use super::versions;
use crate::comm::{Buffer, Operation};
use crate::engine::Engine;
use crate::error::Result;
use std::sync::Arc;

/// Times that a pull meets an update before it has the next update held back.
const TORN_MAX: u32 = 2;

/// Shards of more bytes than these are pulled [`AT_ONCE`] at a time. Then workers that pull at the
/// same time do not all share the links of all shards until the last one is through.
const LARGE_BYTES: usize = 128 << 10;
const AT_ONCE: usize = 2;

/// A pull from one shard.
enum Pull {
    /// Until this worker's last push is in the weights.
    Apply,
    /// Of the versions, before and after the weights are read.
    Look(Operation, Buffer<u64>),
    /// Of weights of this version.
    Read(Operation, u64),
    /// Of the versions again.
    Check(Operation, Buffer<u64>, u64),
    /// The weights of this version are there.
    Done(u64),
}

struct Puller {
    state: Pull,
    /// The server of this shard that is asked.
    server: usize,
    /// Updates that were met, and whether the next one is held back.
    torn: u32,
    is_holding: bool,
}

/// See the module.
pub struct Pulling {
    shared: Arc<Shared>,
    /// The number of the worker.
    number: usize,
    /// The version of the last pull, the oldest of all shards.
    pub pulled: u64,
    /// The version when the worker came back: while it was away, it was told of none.
    pub back_since: u64,
    /// Where a pull goes, by shard.
    target: Option<Buffer<u8>>,
    pullers: Vec<Puller>,
    /// Two words for each shard: the versions that a pull reads there.
    versions: Buffer<u64>,
}

impl Pulling {
    pub fn new(shared: Arc<Shared>, number: usize) -> Result<Pulling> {
        Ok(Pulling {
            versions: shared.comm.alloc(2 * shared.layout.shards())?,
            number,
            pulled: 0,
            back_since: 0,
            target: None,
            pullers: Vec::new(),
            shared,
        })
    }

    /// The version of which these are the low bits, which is not long before the last pull.
    pub fn near(&self, low: u32) -> u64 {
        let since = low.wrapping_sub(self.pulled as u32) as i32;
        self.pulled.saturating_add_signed(i64::from(since))
    }

    /// Starts to pull weights into memory for the bytes of all tensors.
    pub fn start(&mut self, weights: Buffer<u8>, living: &Living) {
        self.target = Some(weights);
        let fresh = |shard| Puller {
            state: Pull::Apply,
            // Of two servers, each has half of the workers.
            server: (living.server_of(shard, self.number)).unwrap_or(0),
            torn: 0,
            is_holding: false,
        };
        self.pullers = (0..self.shared.layout.shards()).map(fresh).collect();
    }

    /// Does what can be done now for a worker that has pushed `clock` times.
    pub fn turn(&mut self, clock: u64, living: &Living, signals: &mut Signals) -> Result<()> {
        let shards = self.pullers.len();
        let layout = &self.shared.layout;
        let is_large = shards > 0 && layout.bytes(0, layout.pulls).len() > LARGE_BYTES;
        let mut under_way = 0;
        for at in 0..shards {
            // Each worker begins with another shard.
            let shard = (at + self.number) % shards;
            if is_large && under_way == AT_ONCE {
                break;
            }
            self.leave_ended(shard, living);
            let pulled = loop {
                match self.go_on(shard, clock, signals) {
                    Ok(true) => {}
                    end => break end.map(|_| ()),
                }
            };
            // If the server has ended, the next turn asks another one.
            living.without_ends(pulled)?;
            under_way += usize::from(!matches!(self.pullers[shard].state, Pull::Done(_)));
        }
        Ok(())
    }

    /// Asks another server of a shard if the one that was asked has ended.
    fn leave_ended(&mut self, shard: usize, living: &Living) {
        let puller = &mut self.pullers[shard];
        if !living.is_there(puller.server)
            && !matches!(puller.state, Pull::Done(_))
            && let Some(other) = living.server_of(shard, self.number)
        {
            puller.state = Pull::Apply;
            puller.server = other;
            (puller.torn, puller.is_holding) = (0, false);
        }
    }

    /// Whether an operation has ended.
    pub fn has_news(&self, engine: &Engine) -> bool {
        self.pullers.iter().any(|puller| match &puller.state {
            Pull::Look(one, _) | Pull::Read(one, _) | Pull::Check(one, ..) => one.has_ended(engine),
            Pull::Apply | Pull::Done(_) => false,
        })
    }

    /// All weights are there.
    pub fn is_done(&self) -> bool {
        let mut pullers = self.pullers.iter();
        pullers.all(|puller| matches!(puller.state, Pull::Done(_)))
    }

    /// The versions of the weights that were pulled, by shard.
    pub fn take(&mut self) -> Vec<u64> {
        let versions = self
            .pullers
            .drain(..)
            .filter_map(|puller| match puller.state {
                Pull::Done(version) => Some(version),
                _ => None,
            });
        let versions: Vec<u64> = versions.collect();
        self.pulled = versions.iter().copied().min().unwrap_or(self.pulled);
        self.target = None;
        versions
    }

    /// Goes on with the pull from a shard; true: it may go on at once.
    fn go_on(&mut self, shard: usize, clock: u64, signals: &mut Signals) -> Result<bool> {
        let shared = self.shared.clone();
        let (layout, words) = (&shared.layout, &shared.words);
        let server = self.pullers[shard].server;
        let rank = layout.servers[server];
        let Some(target) = &self.target else {
            return Ok(false);
        };
        let (applied, version) = parts_of(words.load(layout.applied(server)));
        // Before its first push a worker has pulled nothing newer than what it began with.
        let known = match clock {
            0 => self.pulled,
            _ => self.near(version).max(self.back_since),
        };
        let read = |version: u64| -> Result<Operation> {
            let part = target.range(layout.bytes(shard, layout.pulls));
            shared
                .data
                .get(&part, rank, layout.weights(server, version))
        };
        let puller = &mut self.pullers[shard];
        let look = || -> Result<(Operation, Buffer<u64>)> {
            let versions = self.versions.range(2 * shard..2 * shard + 2);
            let look = words.get(&versions, rank, layout.versions())?;
            Ok((look, versions))
        };
        let next = match &mut puller.state {
            Pull::Apply if applied != clock as u32 => return Ok(false),
            // No update begins before this worker pushes again.
            Pull::Apply if layout.is_bsp => Pull::Read(read(known)?, known),
            Pull::Apply => {
                let (look, versions) = look()?;
                Pull::Look(look, versions)
            }
            Pull::Look(operation, versions) => {
                if !operation.test()? {
                    return Ok(false);
                }
                let version = versions.to_vec()?[0];
                versions::read_weights_after();
                Pull::Read(read(version)?, version)
            }
            Pull::Read(operation, version) => {
                if !operation.test()? {
                    return Ok(false);
                }
                if layout.is_bsp {
                    Pull::Done(*version)
                } else {
                    versions::read_begun_after();
                    let (look, versions) = look()?;
                    Pull::Check(look, versions, *version)
                }
            }
            Pull::Check(operation, versions, version) => {
                if !operation.test()? {
                    return Ok(false);
                }
                // Two versions lie beside each other: the next but one takes the place of this.
                if versions::is_whole(*version, versions.to_vec()?[1]) {
                    if std::mem::take(&mut puller.is_holding) {
                        let place = (rank, layout.held(self.number));
                        signals.add((&shared.comm, words), place, u64::MAX)?;
                    }
                    Pull::Done(*version)
                } else {
                    puller.torn += 1;
                    if puller.torn >= TORN_MAX && !puller.is_holding {
                        puller.is_holding = true;
                        let place = (rank, layout.held(self.number));
                        signals.add((&shared.comm, words), place, 1)?;
                    }
                    Pull::Apply
                }
            }
            Pull::Done(_) => return Ok(false),
        };
        puller.state = next;
        Ok(true)
    }
}
