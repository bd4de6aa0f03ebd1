//! The JSON document of `perf`.

use super::link::Link;
use super::options::Options;
use super::run::Row;
use super::statistics::Latency;
use crate::profile::{self, ProfileEntry};
use linerate::transport::PortInUse;
use serde::Serialize;
use std::collections::BTreeMap;

/// Everything that was measured.
#[derive(Debug, Serialize)]
pub struct Document {
    version: &'static str,
    test: &'static str,
    transport: String,
    tls: bool,
    integrity: &'static str,
    ranks: u32,
    qps: u32,
    tx_depth: u32,
    bidirectional: bool,
    rotate: bool,
    seed: u64,
    /// Ports of RDMA devices of this side.
    ports: Vec<PortEntry>,
    /// What the transport of this side has counted, checks and warm-up included.
    counts: BTreeMap<&'static str, u64>,
    results: Vec<Entry>,
}

#[derive(Debug, Serialize)]
struct PortEntry {
    device: String,
    port: u8,
    gid_index: u32,
    mtu: u32,
    /// MTU of the other side's port; `null`: not known.
    peer_mtu: Option<u32>,
    queue_pairs: u32,
    inline_bytes: u32,
}

#[derive(Debug, Serialize)]
struct Entry {
    bytes: u64,
    /// Messages of one direction.
    iterations: u64,
    /// GB/s (1e9 bytes); `null` for latencies.
    bw: Option<f64>,
    /// The greatest rate of consecutive messages, GB/s; `null` if there were too many to look.
    bw_peak: Option<f64>,
    /// Messages per second.
    msg_rate: Option<f64>,
    /// GB/s that the ports' wire and PCIe allow; `null`: not known.
    bw_achievable: Option<f64>,
    /// `null` for bandwidths.
    time_us: Option<Latency>,
    /// Wrong bytes; `null`: not checked.
    wrong: Option<u64>,
    /// Where the time of a message goes, of the server and of the client; `null` without
    /// `--profile`.
    profile: Option<Vec<ProfileEntry>>,
}

impl Document {
    /// A document of all rows.
    pub fn new(options: &Options, link: &Link, rows: &[Row]) -> Document {
        Document {
            version: env!("CARGO_PKG_VERSION"),
            test: options.test.name(),
            transport: link.name().into(),
            tls: options.tls,
            integrity: if options.crc { "crc" } else { "off" },
            ranks: 2,
            qps: options.streams,
            tx_depth: options.depth,
            bidirectional: options.bidirectional,
            rotate: options.rotate,
            seed: options.seed,
            ports: link.ports().into_iter().map(port_entry).collect(),
            counts: link.counts().into_iter().collect(),
            results: rows.iter().map(entry).collect(),
        }
    }
}

fn port_entry(port: PortInUse) -> PortEntry {
    PortEntry {
        device: port.device,
        port: port.number,
        gid_index: port.gid_index,
        mtu: port.mtu_bytes,
        peer_mtu: port.peers_mtu_bytes,
        queue_pairs: port.queue_pairs,
        inline_bytes: port.inline_bytes,
    }
}

fn entry(row: &Row) -> Entry {
    let is_bandwidth = row.latency.is_none();
    let gigabytes = |rate: f64| rate * row.bytes as f64 / 1e9;
    Entry {
        bytes: row.bytes,
        iterations: row.messages,
        bw: is_bandwidth.then(|| row.gigabytes_per_second()),
        bw_peak: (is_bandwidth && row.peak > 0.0).then(|| gigabytes(row.peak)),
        msg_rate: is_bandwidth.then_some(row.rate),
        bw_achievable: row.achievable.map(|gigabits| gigabits / 8.0),
        time_us: row.latency,
        wrong: row.wrong,
        profile: (!row.profile.is_empty()).then(|| profile::entries(&row.profile)),
    }
}
