//! What one rank of a mesh does: joins, measures each pair that it is in while the others wait, and
//! reports if it is rank 0.

use super::matrix::{Mesh, Thresholds};
use super::{MeshArgs, heat};
use crate::bench::statistics::Summary;
use crate::info;
use linerate::unstable::prng::mix;
use linerate::{Buffer, Communicator, Config, Rank, ReduceOp, Result};
use linerate_job::ending::Outcome;
use linerate_job::progress::Progress;
use linerate_job::{binding, output, settings};
use std::time::Instant;

/// Bytes of a round trip.
const TRIP_BYTES: usize = 8;
const UNTIMED_TRIPS: u32 = 20;
/// Bytes that one direction of a pair moves, and the fewest and most messages.
const FLOW_BYTES: u64 = 64 << 20;
const FLOW_MESSAGES: (u64, u64) = (4, 1000);
/// Messages under way.
pub const DEPTH: usize = 4;

/// What a rank measures with.
struct Post<'a> {
    communicator: &'a Communicator,
    short: [Buffer<u8>; 2],
    /// Messages rotate over them.
    long: Vec<Buffer<u8>>,
    messages: u64,
    trips: u32,
}

/// Joins and measures.
pub fn run(args: &MeshArgs, config: Config) -> Outcome {
    let host = info::host_id(config.host_id.clone());
    let communicator = settings::join(config)?;
    let (rank, ranks) = (communicator.rank(), communicator.ranks());
    let short = || communicator.alloc::<u8>(TRIP_BYTES);
    let long = (0..DEPTH).map(|_| communicator.alloc::<u8>(args.size as usize));
    let post = Post {
        short: [short()?, short()?],
        long: long.collect::<Result<_>>()?,
        messages: (FLOW_BYTES / args.size).clamp(FLOW_MESSAGES.0, FLOW_MESSAGES.1),
        trips: args.iterations,
        communicator: &communicator,
    };
    let mut mesh = Mesh::new(ranks);
    mesh.set_host(rank, host.bytes().fold(1, |h, b| mix(h ^ u64::from(b))));
    if let Some(processor) = binding::only_processor() {
        mesh.set_processor(rank, processor);
    }
    let pairs = (0..ranks).flat_map(|a| (a + 1..ranks).map(move |b| (a, b)));
    let pairs: Vec<(Rank, Rank)> = pairs.collect();
    let mut progress = Progress::new("pairs", pairs.len(), rank == 0);
    for (a, b) in pairs {
        communicator.barrier()?;
        if rank == a || rank == b {
            post.measure_pair(a, b, &mut mesh)?;
        }
        progress.advance(format!("after {a} and {b}"));
    }
    communicator.all_reduce(mesh.values_mut(), ReduceOp::Sum)?;
    progress.finish();
    Ok(match rank {
        0 => report(args, communicator.transport(), &mesh),
        _ => Ok(()),
    })
}

impl Post<'_> {
    /// Both directions of a pair; each side notes what it has begun.
    fn measure_pair(&self, a: Rank, b: Rank, mesh: &mut Mesh) -> Result<()> {
        for (from, to) in [(a, b), (b, a)] {
            let is_first = self.communicator.rank() == from;
            let peer = if is_first { to } else { from };
            let times_us = self.trips(is_first, peer)?;
            let seconds = self.flow(is_first, peer)?;
            if is_first {
                let bytes = self.messages as f64 * self.long[0].len() as f64;
                let summary = Summary::of(&times_us);
                mesh.set(from, to, (summary.p50, summary.p99), bytes / seconds / 1e9);
            }
        }
        Ok(())
    }

    fn send(&self, buffer: &Buffer<u8>, peer: Rank) -> Result<()> {
        self.communicator.send(buffer, peer)
    }

    fn receive(&self, buffer: &Buffer<u8>, peer: Rank) -> Result<()> {
        self.communicator.recv(buffer, peer)
    }

    /// Half the times of round trips, us.
    fn trips(&self, is_first: bool, peer: Rank) -> Result<Vec<f64>> {
        let [mine, theirs] = &self.short;
        let mut times_us = Vec::with_capacity(self.trips as usize);
        for trip in 0..UNTIMED_TRIPS + self.trips {
            let started = Instant::now();
            if is_first {
                self.send(mine, peer)?;
                self.receive(theirs, peer)?;
            } else {
                self.receive(theirs, peer)?;
                self.send(mine, peer)?;
            }
            if trip >= UNTIMED_TRIPS {
                times_us.push(started.elapsed().as_secs_f64() * 1e6 / 2.0);
            }
        }
        Ok(times_us)
    }

    /// Time of many long messages one way, until the receiver has said that it has them. One round
    /// over all buffers comes first.
    fn flow(&self, is_first: bool, peer: Rank) -> Result<f64> {
        let [mine, theirs] = &self.short;
        let mut seconds = 0.0;
        for messages in [DEPTH as u64, self.messages] {
            let started = Instant::now();
            let mut under_way = std::collections::VecDeque::with_capacity(DEPTH);
            for message in 0..messages {
                if under_way.len() == DEPTH {
                    let oldest: Option<linerate::Operation> = under_way.pop_front();
                    oldest.map_or(Ok(()), |operation| operation.wait())?;
                }
                let buffer = &self.long[message as usize % DEPTH];
                let group = self.communicator.group();
                under_way.push_back(match is_first {
                    true => group.send(buffer, peer).start()?,
                    false => group.recv(buffer, peer).start()?,
                });
            }
            for operation in under_way {
                operation.wait()?;
            }
            match is_first {
                true => self.receive(theirs, peer)?,
                false => self.send(mine, peer)?,
            }
            seconds = started.elapsed().as_secs_f64();
        }
        Ok(seconds.max(1e-9))
    }
}

fn report(args: &MeshArgs, transport: &str, mesh: &Mesh) -> std::result::Result<(), Vec<String>> {
    let thresholds = Thresholds {
        slow: args.slow,
        min_bw: args.pair.min_bw,
        max_p99: args.pair.max_p99,
    };
    let text = mesh.describe(transport, args.size, &thresholds);
    let mut failures = mesh.shortcomings(&thresholds);
    let has_stdout = [&args.pair.job.json, &args.svg]
        .into_iter()
        .any(|target| target.as_deref().is_some_and(output::is_stdout));
    if has_stdout {
        output::print_error(text.trim_end());
    } else {
        failures.extend(output::print_text(&text).err());
    }
    if let Some(target) = &args.pair.job.json {
        let document = mesh.document(transport, args.size, &thresholds);
        failures.extend(output::write_json(target, &document).err());
    }
    if let Some(target) = &args.svg {
        let drawing = heat::draw(mesh, transport, args.size);
        failures.extend(output::write_document("--svg", target, drawing.trim_end()).err());
    }
    match failures.is_empty() {
        true => Ok(()),
        false => Err(failures),
    }
}
