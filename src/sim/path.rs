//! [`walk`]: the longest chain of events of a run, backwards from its end, and what its time goes
//! to.

use super::machine::Run;
use super::tasks::{Kind, NONE};
use crate::types::Rank;
use serde::Serialize;
use std::collections::BTreeMap;

/// A part of the longest chain of events.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct PathPart {
    /// What takes the time, for people: "bytes between hosts", "waits to send".
    pub what: &'static str,
    /// Nanoseconds.
    pub ns: u64,
    /// Its share of the whole time.
    pub share: f64,
    /// Where most of it is, for people, and that part in nanoseconds; none where it is everywhere.
    pub most: Option<(String, u64)>,
}

/// What a part of the chain is. The order is that of parts of equal length.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum What {
    FarBytes,
    NearBytes,
    Latency,
    Work,
    Processor,
    SendPort,
    ReceivePort,
    Trunk,
}

impl What {
    fn name(self) -> &'static str {
        match self {
            What::FarBytes => "bytes between hosts",
            What::NearBytes => "bytes inside of hosts",
            What::Latency => "latency of messages",
            What::Work => "local work",
            What::Processor => "posting, and waits for the processor of a rank",
            What::SendPort => "waits to send",
            What::ReceivePort => "waits to receive",
            What::Trunk => "waits for trunks between switches",
        }
    }
}

/// Where a part is: a rank, a port, or a pair of switches.
type Place = Option<(u32, u32)>;

/// The parts of the longest chain.
pub(super) fn walk(run: &Run) -> Vec<PathPart> {
    let mut parts: BTreeMap<(What, Place), u64> = BTreeMap::new();
    let mut add = |what, place: Place, ns: u64| {
        if ns > 0 {
            *parts.entry((what, place)).or_default() += ns;
        }
    };
    let last = (0..).zip(&run.states).max_by_key(|(task, state)| {
        // Of equal ones the first.
        (state.end_ns, std::cmp::Reverse(*task))
    });
    let mut task: u32 = last.map_or(NONE, |(task, _)| task);
    while task != NONE {
        let (own, state) = (run.tasks.all[task as usize], run.states[task as usize]);
        let rank = Some((u32::from(own.rank), 0));
        let mut cause = state.cause;
        let mut from_ns = state.begun_ns;
        match own.kind {
            Kind::Send if state.end_ns > state.begun_ns && is_long(run, task) => {
                // It ends when the receiver has all and has said so.
                let receive = own.partner;
                let end_ns = run.states[receive as usize].end_ns;
                add(What::Latency, None, state.end_ns - end_ns);
                task = receive;
                continue;
            }
            Kind::Send | Kind::Nothing => {}
            Kind::Copy | Kind::Add => add(What::Work, rank, state.end_ns - state.begun_ns),
            Kind::Receive => {
                let send = own.partner;
                let sent = &run.states[send as usize];
                let (from, to, route) = run.route(send);
                let mut latencies = 1;
                if state.is_late {
                    // Its message was there: its bytes were asked for, if it is a long one.
                    latencies = if is_long(run, send) { 2 } else { 0 };
                } else {
                    cause = sent.cause;
                    from_ns = sent.begun_ns;
                }
                let mut left = state.end_ns - from_ns;
                let mut take = |what, place, ns: u64| {
                    let ns = ns.min(left);
                    left -= ns;
                    add(what, place, ns);
                };
                take(What::Latency, None, latencies * route.latency_ns);
                if latencies > 0 {
                    let [send_ns, trunk_ns, receive_ns] = sent.waits_ns.map(u64::from);
                    take(What::SendPort, Some((route.send, 0)), send_ns);
                    if route.has_trunks() {
                        let switches = (run.wires.switch_of(0, from), run.wires.switch_of(0, to));
                        take(What::Trunk, Some(switches), trunk_ns);
                    }
                    take(What::ReceivePort, Some((route.receive, 0)), receive_ns);
                }
                let bytes = match route.is_far() {
                    true => What::FarBytes,
                    false => What::NearBytes,
                };
                add(bytes, None, left);
            }
        }
        let before_ns = match cause {
            NONE => 0,
            cause => run.states[cause as usize].end_ns,
        };
        add(What::Processor, rank, from_ns.saturating_sub(before_ns));
        task = cause;
    }
    report(run, &parts)
}

fn is_long(run: &Run, send: u32) -> bool {
    run.tasks.all[send as usize].bytes as usize > crate::limits::INLINE_BYTES_MAX
}

/// The parts by what they are, each with the place that has most of it.
fn report(run: &Run, parts: &BTreeMap<(What, Place), u64>) -> Vec<PathPart> {
    let mut all: BTreeMap<What, (u64, Place, u64)> = BTreeMap::new();
    for (&(what, place), &ns) in parts {
        let sum = all.entry(what).or_default();
        sum.0 += ns;
        if ns > sum.2 {
            (sum.1, sum.2) = (place, ns);
        }
    }
    let mut found: Vec<PathPart> = (all.into_iter())
        .map(|(what, (ns, place, most_ns))| PathPart {
            what: what.name(),
            ns,
            share: ns as f64 / run.now.max(1) as f64,
            most: place.map(|place| (name(run, what, place), most_ns)),
        })
        .collect();
    found.sort_by_key(|part| std::cmp::Reverse(part.ns));
    found
}

fn name(run: &Run, what: What, (first, second): (u32, u32)) -> String {
    match what {
        What::Trunk => format!("from switch {first} to switch {second}"),
        What::SendPort | What::ReceivePort if run.wires.is_nic(first) => run.name_of_nic(first),
        What::SendPort | What::ReceivePort => {
            let rank: Rank = run.wires.rank_of_port(first);
            format!("the link of rank {rank} inside of its host")
        }
        _ => format!("rank {first}"),
    }
}
