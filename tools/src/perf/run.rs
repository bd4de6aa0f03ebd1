//! One side of `perf` from its first connection to its last row.

use super::arena::{Arena, Slots, bytes_needed};
use super::args::Verb;
use super::control::{Control, Line};
use super::line_rate::LineRate;
use super::link::Link;
use super::options::{ITERATIONS_MAX, Options};
use super::plan::Plan;
use super::statistics::{Flow, Latency};
use super::traffic::{Limit, Side};
use crate::profile::Profiled;
use linerate::options::{TcpSettings, VerbsSettings};
use linerate::transport::Address;
use linerate::unstable::config;
use linerate::unstable::wait::{Clock, Profile, Spent};
use linerate::{Config, Rank};
use std::time::Duration;

/// perftest's numbers of messages.
const MESSAGES_BANDWIDTH: u64 = 5000;
const MESSAGES_LATENCY: u64 = 1000;
/// The most bytes that a stream of one size moves, but at least this many messages, unless a number
/// was given.
const BYTES_USUAL_MAX: u64 = 4 << 30;
const MESSAGES_USUAL_MIN: u64 = 100;

/// One size.
#[derive(Clone, Debug, PartialEq)]
pub struct Row {
    /// Bytes of a message.
    pub bytes: u64,
    /// Samples of a latency, or the messages of one direction over all streams.
    pub messages: u64,
    /// Greatest rate of consecutive messages, per second, of both directions together if there are
    /// two; 0: not known.
    pub peak: f64,
    /// Average rate, messages per second, of both directions together if there are two.
    pub rate: f64,
    /// Times of single messages.
    pub latency: Option<Latency>,
    /// Bytes of the checked messages that were wrong, on both sides; `None`: not checked.
    pub wrong: Option<u64>,
    /// Gbit/s that the ports' wire and PCIe allow, of both directions together if there are two;
    /// `None`: not known.
    pub achievable: Option<f64>,
    /// Where the time went, of the server and of the client; empty: not asked for.
    pub profile: Vec<Profiled>,
}

impl Row {
    /// Average bandwidth, GB/s (1e9 bytes).
    pub fn gigabytes_per_second(&self) -> f64 {
        self.rate * self.bytes as f64 / 1e9
    }

    /// Average bandwidth in percent of what is possible, if that is known.
    pub fn percent(&self) -> Option<f64> {
        let gigabits = 8.0 * self.gigabytes_per_second();
        self.achievable.map(|most| 100.0 * gigabits / most)
    }
}

/// Messages per stream of a size.
pub fn messages_usual(options: &Options, bytes: u64) -> u64 {
    let usual = match options.test.is_latency() {
        true => MESSAGES_LATENCY,
        false => MESSAGES_BANDWIDTH,
    };
    let fits = (BYTES_USUAL_MAX / bytes).max(MESSAGES_USUAL_MIN);
    options.iterations.unwrap_or(usual.min(fits))
}

fn limit(options: &Options, bytes: u64) -> Limit {
    match options.duration {
        Some(seconds) => Limit::Until(Duration::from_secs(seconds), ITERATIONS_MAX),
        None => Limit::Count(messages_usual(options, bytes) * u64::from(options.streams)),
    }
}

/// Connects the transports, as both sides have agreed. Rank 0 is the server.
pub fn join<'a>(
    plan: &Plan,
    options: &'a Options,
    transport: &str,
    (rank, control): (Rank, &mut Control),
) -> Result<Side<'a>, String> {
    let text = |error: linerate::Error| error.to_string();
    let verbs = VerbsSettings {
        queue_pairs: options.streams,
        // Both sides take the first of ports that are alike, because the first ones of two hosts
        // are most likely on one network.
        local_rank: Some(0),
        mtu_bytes: options.mtu.or(plan.config.verbs.mtu_bytes),
        inline_bytes: options.inline.unwrap_or(plan.config.verbs.inline_bytes),
        signal_every: options.moderation.unwrap_or(plan.config.verbs.signal_every),
        ..plan.config.verbs.clone()
    };
    let config = Config {
        transport: plan.transport(transport),
        verbs,
        tcp: TcpSettings {
            rails: options.streams.min(config::RAILS_MAX),
            // The address over which the other side has been reached.
            addresses: vec![control.local_ip()?],
            has_tls: options.tls,
            has_crc: options.crc,
            ..plan.config.tcp.clone()
        },
        ..plan.config.clone()
    };
    let needed = 2 * bytes_needed(options, plan.rotation_bytes(options));
    linerate_job::settings::check_memory(
        "this side of the test",
        needed,
        plan.memory_bytes,
        "smaller messages with --size, or --no-rotate",
    )?;
    let mut link = Link::open(&config, rank, options, plan.timeout)?;
    match control.exchange(&Line::Address(link.address().0))? {
        Line::Address(bytes) => link.connect(&Address(bytes))?,
        line => return Err(line.unexpected()),
    }
    let mut arena = Arena::new(options, rank, plan.rotation_bytes(options)).map_err(text)?;
    link.share(&mut arena)?;
    let keys = match control.exchange_over(&Line::Keys(arena.keys()), &mut link)? {
        Line::Keys(keys) => keys,
        line => return Err(line.unexpected()),
    };
    link.learn(&keys.all())?;
    Ok(Side {
        options,
        rank,
        link,
        arena,
        keys,
    })
}

/// All sizes; both sides get the same rows.
pub fn measure(
    side: &mut Side,
    control: &mut Control,
    (rotation_bytes, rate): (u64, &LineRate),
    mut each: impl FnMut(&Row),
) -> Result<Vec<Row>, String> {
    let options = side.options;
    let mut rows = Vec::new();
    for bytes in options.sizes() {
        let slots = Slots::new(bytes, options.streams, rotation_bytes);
        let (wrong, flow, latency) =
            measure_size(side, &slots).map_err(|error| format!("{bytes} bytes: {error}"))?;
        let spent = profile(side, &slots)?;
        let own = Line::Report {
            wrong,
            flow,
            latency,
            spent,
        };
        let (wrong_there, flow_there, latency_there, spent_there) =
            match control.exchange_over(&own, &mut side.link)? {
                Line::Report {
                    wrong,
                    flow,
                    latency,
                    spent,
                } => (wrong, flow, latency, spent),
                line => return Err(line.unexpected()),
            };
        let latency = latency.or(latency_there);
        let wrong = wrong.saturating_add(wrong_there);
        let mut row = combine(options, bytes, [flow, flow_there], (latency, wrong));
        row.achievable = rate.gigabits(options, bytes);
        row.profile = profiled(row.messages, [spent, spent_there], side.rank);
        each(&row);
        rows.push(row);
    }
    // A side that leaves first would look like a failure to the other.
    match control.exchange(&Line::Done)? {
        Line::Done => Ok(rows),
        line => Err(line.unexpected()),
    }
}

type Measured = (u64, Option<Flow>, Option<Latency>);

fn measure_size(side: &mut Side, slots: &Slots) -> Result<Measured, String> {
    let wrong = match side.options.check {
        true if side.options.test.verb() == Verb::Atomic => side.check_atomic(slots)?,
        true => side.check(slots)?,
        false => 0,
    };
    side.warm_up(slots)?;
    let limit = limit(side.options, slots.bytes);
    if side.options.test.is_latency() {
        let mut samples = side.trips(slots, limit)?;
        let latency = (!samples.is_empty()).then(|| Latency::of(&mut samples));
        return Ok((wrong, None, latency));
    }
    Ok((wrong, side.stream(slots, limit)?, None))
}

/// What both sides together have measured.
fn combine(
    options: &Options,
    bytes: u64,
    flows: [Option<Flow>; 2],
    (latency, wrong): (Option<Latency>, u64),
) -> Row {
    let flows: Vec<Flow> = flows.into_iter().flatten().collect();
    let has_peaks = flows.iter().all(|flow| flow.peak > 0.0);
    let peaks = flows.iter().map(|flow| flow.peak);
    Row {
        bytes,
        messages: match &latency {
            Some(latency) => latency.samples,
            None => flows.iter().map(|flow| flow.messages).max().unwrap_or(0),
        },
        peak: if has_peaks { peaks.sum() } else { 0.0 },
        rate: flows.iter().map(Flow::rate).sum(),
        latency,
        wrong: options.check.then_some(wrong),
        achievable: None,
        profile: Vec::new(),
    }
}

/// Where the time of this side goes, if that was asked for. The size runs once more for that,
/// because a profile takes time itself.
fn profile(side: &mut Side, slots: &Slots) -> Result<Option<Spent>, String> {
    if !side.options.profile {
        return Ok(None);
    }
    let limit = limit(side.options, slots.bytes);
    *side.link.profile() = Some(Profile::new(Clock::monotonic()));
    match side.options.test.is_latency() {
        true => side.trips(slots, limit).map(drop)?,
        false => side.stream(slots, limit).map(drop)?,
    }
    Ok(side.link.profile().take().map(Profile::end))
}

/// What this side and the other one have measured, the server first.
fn profiled(operations: u64, mut sides: [Option<Spent>; 2], rank: Rank) -> Vec<Profiled> {
    if rank == 1 {
        sides.reverse();
    }
    let of_side = |spent| Profiled { operations, spent };
    sides.into_iter().flatten().map(of_side).collect()
}

#[cfg(test)]
mod tests {
    use super::super::options::tests::options;
    use super::*;

    #[test]
    fn numbers_of_messages_are_perftest_s_and_fewer_of_large_ones() {
        let usual = |line: &str, bytes| messages_usual(&options(line).unwrap(), bytes);
        assert_eq!(usual("write_bw", 65536), 5000);
        assert_eq!(usual("write_lat", 2), 1000);
        assert_eq!(usual("write_bw", 8 << 20), 512);
        assert_eq!(usual("write_bw", 1 << 30), 100);
        assert_eq!(usual("write_bw -n 7000", 1 << 30), 7000);
    }

    #[test]
    fn both_directions_count_together() {
        let flow = |messages, seconds, peak| {
            Some(Flow {
                messages,
                seconds,
                peak,
            })
        };
        let options = options("write_bw -b").unwrap();
        let both = [flow(100, 1.0, 150.0), flow(100, 2.0, 60.0)];
        let row = combine(&options, 8, both, (None, 0));
        assert_eq!((row.messages, row.rate, row.peak), (100, 150.0, 210.0));
        let half = combine(
            &options,
            8,
            [flow(9, 1.0, 0.0), flow(9, 1.0, 5.0)],
            (None, 3),
        );
        assert_eq!((half.peak, half.wrong), (0.0, Some(3)));
    }
}
