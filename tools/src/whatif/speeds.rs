//! [`Speeds`]: what a prediction of `--validate` knows of a place, by measurements that are not
//! replays.

use super::place::Place;
use linerate::whatif::{PlannedFlush, Trace};
use linerate_job::child::number;
use std::time::Instant;

/// Below this a network is slow: little is measured of it, as each step takes seconds.
pub const SLOW_GBIT: f64 = 1.0;
/// Bytes of the short allreduce.
const SHORT_BYTES: u64 = 8;
/// Bytes of the long allreduce over a slow network; over others it is as long as the flush that the
/// average byte is in, within these bounds.
const SLOW_BYTES: u64 = 16 << 20;
const LONG_BYTES: (u64, u64) = (1 << 20, 64 << 20);
/// How often the long allreduce runs: over a slow network, and over others.
const SLOW_TIMES: &str = " -n 3 -w 1";
const LONG_TIMES: &str = " -n 20";
/// Bytes that a rank packs to find out how fast it does: more than caches hold.
const PACKED_BYTES: usize = 128 << 20;
const PACKED_TIMES: u32 = 5;
/// Share of its limit that a link reaches unless processors are too slow.
const REACHED: f64 = 0.9;

/// What a prediction knows of a place.
pub struct Speeds {
    pub operation_us: f64,
    /// Bits per second of each rank's link.
    pub link: f64,
    /// Where nothing limits it but the processors.
    pub unlimited: f64,
    /// Bytes per second that each rank copies.
    pub packing: f64,
}

impl Speeds {
    /// For these flushes.
    pub fn measure(place: &Place, plan: &[PlannedFlush]) -> Result<Speeds, String> {
        let all: f64 = plan.iter().map(|flush| flush.bytes as f64).sum();
        let squares: f64 = plan.iter().map(|flush| (flush.bytes as f64).powi(2)).sum();
        let bytes = ((squares / all) as u64).clamp(LONG_BYTES.0, LONG_BYTES.1);
        let short = allreduce_seconds(place, SHORT_BYTES, "")?;
        let link = match place.gbit < SLOW_GBIT {
            true => bits_per_second(place, SLOW_BYTES, SLOW_TIMES, short)?,
            false => bits_per_second(place, bytes, LONG_TIMES, short)?,
        };
        // A link that does not reach its limit is limited by the processors.
        let unlimited = match link >= REACHED * place.gbit * 1e9 {
            false if place.gbit >= SLOW_GBIT => link,
            _ => {
                let place = Place {
                    transport: "tcp",
                    ranks: place.ranks,
                    gbit: f64::INFINITY,
                    hosts: None,
                };
                bits_per_second(&place, bytes, LONG_TIMES, short)?
            }
        };
        Ok(Speeds {
            operation_us: short * 1e6,
            link,
            unlimited,
            packing: packed_bytes_per_second(place.ranks, bytes as usize),
        })
    }

    /// By how much communication makes a step longer, in ms, where only processors limit it: they
    /// pack a flush, also before its last gradient is ready, drive the link, and unpack.
    pub fn processors_overhead_ms(&self, ranks: u32, trace: &Trace, plan: &[PlannedFlush]) -> f64 {
        // What a ring sends of each byte.
        let share = 2.0 * (1.0 - 1.0 / f64::from(ranks));
        let mut free_ms: f64 = 0.0;
        for flush in plan {
            let bytes = flush.bytes as f64;
            let packing_ms = bytes / self.packing * 1e3;
            let driving_ms = 8.0 * share * bytes / self.unlimited * 1e3;
            free_ms = (free_ms + packing_ms).max(flush.time_ms);
            free_ms += self.operation_us / 1e3 + driving_ms + packing_ms;
        }
        (free_ms - trace.backward_us() / 1e3).max(0.0)
    }
}

/// The median time of an allreduce of these bytes.
fn allreduce_seconds(place: &Place, bytes: u64, how: &str) -> Result<f64, String> {
    let line = format!("bench allreduce -b {bytes} -e {bytes} --placement in-place --check 0{how}");
    let words: Vec<String> = line.split(' ').map(String::from).collect();
    let document = place.start(&words)?;
    number(&document["results"][0]["time_us"]["p50"]).map(|us| us / 1e6)
}

/// What each link sends in a second of a long allreduce, where a short one takes `short` seconds.
fn bits_per_second(place: &Place, bytes: u64, how: &str, short: f64) -> Result<f64, String> {
    let long = allreduce_seconds(place, bytes, how)?;
    if long <= short {
        return Err(format!(
            "{}, {} ranks: an allreduce of {bytes} bytes took {long} s, one of {SHORT_BYTES} bytes {short} s; is the machine busy? Run it again",
            place.transport, place.ranks
        ));
    }
    let others = f64::from(place.ranks) - 1.0;
    let bits = 16.0 * (bytes - SHORT_BYTES) as f64 * others / f64::from(place.ranks);
    Ok(bits / (long - short))
}

/// How fast a rank packs gradients into a buffer of this many bytes while all others do too.
fn packed_bytes_per_second(ranks: u32, bytes: usize) -> f64 {
    let pack = || {
        let gradients = vec![1u8; PACKED_BYTES];
        let mut buffer = vec![1u8; bytes];
        let start = Instant::now();
        for _ in 0..PACKED_TIMES {
            for part in gradients.chunks(bytes) {
                buffer[..part.len()].copy_from_slice(std::hint::black_box(part));
                std::hint::black_box(&mut buffer);
            }
        }
        start.elapsed().as_secs_f64()
    };
    let seconds: f64 = std::thread::scope(|scope| {
        let threads: Vec<_> = (0..ranks).map(|_| scope.spawn(pack)).collect();
        let ended = threads.into_iter().map(|thread| thread.join());
        ended.map(|ended| ended.expect("a copy panicked")).sum()
    });
    f64::from(PACKED_TIMES) * PACKED_BYTES as f64 * f64::from(ranks) / seconds
}
