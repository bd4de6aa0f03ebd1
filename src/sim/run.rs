//! [`Fabric::run`]: how long a collective takes on a fabric, how much of the fabric it uses, and
//! what the time goes to.

use super::fabric::Fabric;
use super::machine::Run;
use super::path::{self, PathPart};
use super::tasks::{ELEMENT_BYTES, Kind, Tasks};
use crate::collective::{self, BARRIER_SLOTS, Request};
use crate::error::{Error, Result};
use crate::limits::CHUNK_BYTES_DEFAULT;
use crate::schedule::Schedule;
use crate::transport::sim::{Carried, Wires};
use crate::types::{Collective, Rank};
use serde::Serialize;

/// Chunks of a buffer, at most.
const CHUNKS_MAX: u64 = 1 << 20;

/// A collective on a fabric.
#[derive(Clone, Debug, PartialEq)]
pub struct FabricCall {
    /// Which; none that has a length for each rank.
    pub collective: Collective,
    /// Name of the algorithm; none: the cheapest by [`Fabric::candidates`].
    pub algorithm: Option<String>,
    /// Number of ranks.
    pub ranks: u32,
    /// Root of rooted collectives.
    pub root: Rank,
    /// Bytes of the longest buffer of a rank: the vector, or the parts of all ranks.
    pub bytes: u64,
    /// Bytes of a chunk.
    pub chunk_bytes: u64,
}

/// How long a collective takes on a fabric, and why.
#[derive(Clone, Debug, PartialEq)]
pub struct FabricTimes {
    /// The algorithm.
    pub algorithm: &'static str,
    /// Until the last rank has ended; all begin at the same time. Nanoseconds.
    pub ns: u64,
    /// Messages between ranks, chunks counted.
    pub messages: u64,
    /// How much NICs, links inside of hosts, trunks of each tier and processors of ranks are used.
    pub uses: Vec<Use>,
    /// What the time goes to: the parts of the longest chain of events, each of which waits for the
    /// one before, the largest part first. Together they are [`FabricTimes::ns`].
    pub path: Vec<PathPart>,
}

/// How much of the time links or processors of one kind are used.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Use {
    /// The kind, for people: "NICs", "links inside of hosts", "trunks of tier 0", "ranks".
    pub what: String,
    /// How many there are; each direction of a link counts.
    pub count: u64,
    /// Payload bytes that they carry together; of ranks, bytes that they copy and add.
    pub bytes: u64,
    /// Share of the time in which they are busy, on average.
    pub mean: f64,
    /// That of the busiest one.
    pub most: f64,
    /// Which that is, for people.
    pub busiest: String,
}

impl FabricCall {
    /// By the algorithm that is chosen, with root 0 and chunks as by default.
    pub fn new(collective: Collective, ranks: u32, bytes: u64) -> FabricCall {
        FabricCall {
            collective,
            algorithm: None,
            ranks,
            root: 0,
            bytes,
            chunk_bytes: CHUNK_BYTES_DEFAULT as u64,
        }
    }

    /// The caller's count, in elements of four bytes.
    fn count(&self) -> u64 {
        let elements = self.bytes / ELEMENT_BYTES;
        match self.collective.has_parts() {
            true => elements / u64::from(self.ranks),
            false => elements,
        }
    }

    fn check(&self) -> Result<()> {
        let (call, ranks) = (self.collective, self.ranks);
        let is_plain = call != Collective::SendRecv
            && call != Collective::AllToAllV
            && !call.has_part_lengths();
        if !is_plain {
            return Err(Error::invalid(format!(
                "{call} on a fabric: only collectives whose parts have equal lengths"
            )));
        }
        if !(ELEMENT_BYTES..=1 << 30).contains(&self.chunk_bytes) {
            return Err(Error::invalid(format!(
                "chunks of {} bytes: {ELEMENT_BYTES} bytes to 1 GiB",
                self.chunk_bytes
            )));
        }
        if self.bytes.div_ceil(self.chunk_bytes) > CHUNKS_MAX {
            return Err(Error::invalid(format!(
                "{} bytes on {ranks} ranks in chunks of {} bytes: at most {CHUNKS_MAX} chunks",
                self.bytes, self.chunk_bytes
            )));
        }
        Ok(())
    }
}

impl Fabric {
    /// Runs a collective in virtual time, from schedules alone. The same call gives the same times,
    /// to the nanosecond.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`]: as [`Fabric::options`] and [`Fabric::candidates`]; a name that
    /// is no algorithm, or is one that needs ranks of one host; more chunks of messages than fit
    /// 4 GiB of memory.
    pub fn run(&self, call: &FabricCall) -> Result<FabricTimes> {
        call.check()?;
        let options = self.options(call.ranks, 0)?;
        let name = match &call.algorithm {
            Some(name) => name.clone(),
            None => {
                let (collective, ranks) = (call.collective, call.ranks);
                let all = self.candidates(collective, ranks, call.bytes, call.chunk_bytes)?;
                all[0].0.to_string()
            }
        };
        let algorithm = collective::find(call.collective, &name)?;
        if algorithm.needs.mapped {
            return Err(Error::invalid(format!(
                "algorithm {name} is for ranks of one host that map each other's memory"
            )));
        }
        let request = self.request(call.collective, &options, 0, call.root);
        request.check()?;
        let ranks: Vec<Rank> = (0..call.ranks).collect();
        let threads = std::thread::available_parallelism().map_or(1, usize::from);
        let schedules = ranks.chunks(threads).flat_map(|some| {
            let of = |rank| Request {
                rank,
                ..request.clone()
            };
            build_together(some.iter().map(|&rank| of(rank)), algorithm.build)
        });
        let slots = match call.collective {
            Collective::Barrier => &BARRIER_SLOTS[..],
            _ => &[],
        };
        let tasks = Tasks::new(schedules, (call.count(), slots), call.chunk_bytes)?;
        let mut run = Run::new(self, tasks, Wires::new(&options), call.ranks)?;
        run.go();
        Ok(FabricTimes {
            algorithm: algorithm.name,
            ns: run.now,
            messages: (run.tasks.all.iter())
                .filter(|task| task.kind == Kind::Send)
                .count() as u64,
            uses: uses_of(&run),
            path: path::walk(&run),
        })
    }
}

/// The schedules of some ranks, each by a thread: of thousands of ranks they take most of the time.
fn build_together(
    requests: impl Iterator<Item = Request>,
    build: fn(&Request) -> Schedule,
) -> Vec<Schedule> {
    std::thread::scope(|scope| {
        let threads: Vec<_> = requests
            .map(|request| scope.spawn(move || build(&request)))
            .collect();
        let built = threads.into_iter().map(|thread| thread.join());
        built
            .map(|built| built.expect("a builder panicked"))
            .collect()
    })
}

/// How much links and processors are used.
fn uses_of(run: &Run) -> Vec<Use> {
    let wires = &run.wires;
    let nics: Vec<(String, Carried)> = (0..)
        .zip(wires.of_nics())
        .flat_map(|(nic, both)| {
            let name = run.name_of_nic(nic);
            let ways = ["sends", "receives"].into_iter().zip(both);
            ways.map(move |(way, carried)| (format!("{name} {way}"), carried))
        })
        .collect();
    let insides: Vec<_> = (0..)
        .zip(wires.of_insides())
        .flat_map(|(rank, both): (Rank, _)| {
            let ways = ["sends", "receives"].into_iter().zip(both);
            ways.map(move |(way, carried)| (format!("rank {rank} {way}"), carried))
        })
        .collect();
    let mut uses = vec![use_of(run, "NICs".into(), nics)];
    uses.push(use_of(run, "links inside of hosts".into(), insides));
    for (tier, switches) in wires.of_trunks().enumerate() {
        let trunks = (switches.into_iter().enumerate()).flat_map(|(switch, both)| {
            let ways = ["up", "down"].into_iter().zip(both);
            ways.map(move |(way, carried)| (format!("switch {switch} {way}"), carried))
        });
        uses.push(use_of(
            run,
            format!("trunks of tier {tier}"),
            trunks.collect(),
        ));
    }
    let ranks = run.processors.iter().enumerate();
    let ranks = ranks.map(|(rank, own)| (format!("rank {rank}"), own.1));
    uses.push(use_of(run, "ranks".into(), ranks.collect()));
    // Processors that nothing keeps busy are not spoken of.
    uses.retain(|of| of.most > 0.0);
    uses
}

fn use_of(run: &Run, what: String, all: Vec<(String, Carried)>) -> Use {
    let all_ns = run.now.max(1) as f64;
    let share = |carried: &Carried| carried.busy_ns as f64 / all_ns;
    let sum: f64 = all.iter().map(|(_, carried)| share(carried)).sum();
    let busiest = (all.iter()).reduce(|best, next| match next.1.busy_ns > best.1.busy_ns {
        true => next,
        false => best,
    });
    Use {
        what,
        count: all.len() as u64,
        bytes: all.iter().map(|(_, carried)| carried.bytes).sum(),
        mean: sum / all.len().max(1) as f64,
        most: busiest.map_or(0.0, |(_, carried)| share(carried)),
        busiest: busiest.map_or_else(String::new, |(name, _)| name.clone()),
    }
}
