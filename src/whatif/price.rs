//! [`Cost`]: what the reduction of some bytes takes, by each [`Algorithm`], and on what.

use super::algorithm::Algorithm;
use super::model::{LimitedBy, Members, WhatIf};
use crate::collective::{Candidate, Request, candidates_by_messages};
use crate::cost::{Bound, Model};
use crate::limits::CHUNK_BYTES_DEFAULT;
use crate::types::{Collective, Rank};

/// Bytes of an index or of a value of a sparse vector.
const WORD_BYTES: f64 = 4.0;
/// Bytes of a vector whose addition is taken as the speed of additions of long ones.
const LONG_BYTES: f64 = 64e6;

/// Where the time of communication goes, in ms.
#[derive(Clone, Copy, Debug, Default)]
pub struct Cost {
    pub wire: f64,
    pub inside: f64,
    pub latency: f64,
    pub additions: f64,
    pub packing: f64,
    pub operations: f64,
}

impl Cost {
    pub fn total(self) -> f64 {
        self.wire + self.inside + self.latency + self.additions + self.packing + self.operations
    }

    pub fn plus(self, other: Cost) -> Cost {
        Cost {
            wire: self.wire + other.wire,
            inside: self.inside + other.inside,
            latency: self.latency + other.latency,
            additions: self.additions + other.additions,
            packing: self.packing + other.packing,
            operations: self.operations + other.operations,
        }
    }

    /// The largest part, also of what is no communication; of equal ones the first.
    pub fn largest(self, slowed_ms: f64, stragglers_ms: f64) -> LimitedBy {
        let parts = [
            (self.wire, LimitedBy::Wire),
            (self.inside, LimitedBy::InsideServers),
            (self.latency, LimitedBy::Latency),
            (self.additions, LimitedBy::Additions),
            (self.packing, LimitedBy::Packing),
            (self.operations, LimitedBy::Operations),
            (slowed_ms, LimitedBy::Slowing),
            (stragglers_ms, LimitedBy::Stragglers),
        ];
        let mut largest = parts[0];
        for part in parts {
            if part.0 > largest.0 {
                largest = part;
            }
        }
        largest.1
    }
}

/// Bytes that are reduced together.
#[derive(Clone, Copy, Debug)]
pub struct Load {
    /// In memory.
    pub bytes: f64,
    /// As they are sent and added, before compression.
    pub sent: f64,
    /// Elements.
    pub count: f64,
}

/// Milliseconds for which a ring of `members` keeps the link of each busy: it sends and receives
/// `2 bytes (members - 1) / members`.
fn ring_ms(bytes: f64, members: f64, bits_per_second: f64) -> f64 {
    2.0 * (8.0 * bytes * (members - 1.0) / members) / bits_per_second * 1e3
}

/// What reductions cost for one [`WhatIf`].
pub struct Prices<'w> {
    whatif: &'w WhatIf,
    members: f64,
    /// Bits of gradients per second that a member's link carries, as long as they are compressed.
    bits_per_second: f64,
    /// The host of each GPU, where schedules of linerate are priced.
    hosts: Vec<u32>,
    model: Model,
}

impl<'w> Prices<'w> {
    /// For this many members of a ring.
    pub fn new(whatif: &'w WhatIf, members: u32) -> Prices<'w> {
        let bits_per_second = whatif.bits_per_second * whatif.link_share * whatif.compression;
        let (each, inside) = match whatif.members {
            Members::Gpus => (1, f64::INFINITY),
            Members::Servers {
                gpus_per_server,
                inside_bits_per_second,
            } => (gpus_per_server, inside_bits_per_second),
        };
        let is_priced = matches!(whatif.algorithm, Algorithm::Linerate(_));
        let gpus = if is_priced { whatif.gpus } else { 0 };
        // A sum reads two vectors and writes one.
        let added_ns = whatif.additions.seconds(LONG_BYTES) * 1e9 / LONG_BYTES / 3.0;
        // The GPUs of a server that is alone send over its own links.
        let (latency_us, rate) = match members > 1 {
            true => (whatif.latency_us, bits_per_second / 8.0 / f64::from(each)),
            false => (0.0, inside / 8.0),
        };
        let model = Model::network(latency_us * 1e3, 0.0, rate)
            .with_local_messages(0.0, inside / 8.0)
            .with_local_work(added_ns / whatif.added_compression(), 0.0);
        Prices {
            whatif,
            members: members.into(),
            bits_per_second,
            hosts: (0..gpus).map(|gpu| gpu / each).collect(),
            model,
        }
    }

    /// What a reduction costs; nothing of a GPU alone.
    pub fn of(&self, load: Load) -> Cost {
        let whatif = self.whatif;
        if whatif.gpus <= 1 {
            return Cost::default();
        }
        let mut cost = match &whatif.algorithm {
            Algorithm::Linerate(name) => self.schedule(name.as_deref(), load.sent),
            Algorithm::Ring | Algorithm::Partial { .. } | Algorithm::ByteScheduler { .. } => {
                self.ring(load.sent)
            }
            Algorithm::OkTopk { density } => self.oktopk(*density * load.count),
            Algorithm::ParameterServer { servers } => self.servers(load.sent, f64::from(*servers)),
            Algorithm::SwitchMl => Cost {
                wire: self.wire_ms(load.sent),
                latency: 2.0 * self.latency_ms(),
                ..Cost::default()
            },
        };
        if let Members::Servers {
            gpus_per_server,
            inside_bits_per_second,
        } = whatif.members
            && self.hosts.is_empty()
        {
            cost.inside = ring_ms(load.sent, gpus_per_server.into(), inside_bits_per_second);
        }
        cost.operations = match self.others() > 0.0 {
            true => whatif.operation_us / 1e3,
            false => 0.0,
        };
        // Once before a flush is sent, and once after.
        cost.packing = 2e3 * load.bytes / whatif.packing_bytes_per_second;
        cost
    }

    fn others(&self) -> f64 {
        self.members - 1.0
    }

    fn latency_ms(&self) -> f64 {
        match self.others() > 0.0 {
            true => self.whatif.latency_us / 1e3,
            false => 0.0,
        }
    }

    /// Bytes on a link in one direction.
    fn wire_ms(&self, bytes: f64) -> f64 {
        match self.others() > 0.0 {
            true => 8e3 * bytes / self.bits_per_second,
            false => 0.0,
        }
    }

    fn added_ms(&self, times: f64, bytes: f64) -> f64 {
        let bytes = bytes / self.whatif.added_compression();
        times * self.whatif.additions.seconds(bytes) * 1e3
    }

    fn ring(&self, bytes: f64) -> Cost {
        Cost {
            wire: ring_ms(bytes, self.members, self.bits_per_second),
            latency: 2.0 * self.others() * self.latency_ms(),
            additions: self.added_ms(self.others(), bytes / self.members),
            ..Cost::default()
        }
    }

    /// The bound of the published sparse allreduce (Li and Hoefler, PPoPP 2022, table 1). Additions
    /// are as a ring's, of as many elements as are chosen.
    fn oktopk(&self, chosen: f64) -> Cost {
        let words = 6.0 * chosen * self.others() / self.members;
        let messages = 2.0 * self.members + 2.0 * self.members.log2();
        Cost {
            wire: self.wire_ms(words * WORD_BYTES),
            latency: messages * self.latency_ms(),
            additions: self.added_ms(self.others(), chosen * WORD_BYTES / self.members),
            ..Cost::default()
        }
    }

    /// A push and a pull of all members at the same time.
    fn servers(&self, bytes: f64, servers: f64) -> Cost {
        if self.others() <= 0.0 {
            return Cost::default();
        }
        let busiest = (self.members / servers).max(1.0);
        Cost {
            wire: 2.0 * busiest * self.wire_ms(bytes),
            latency: 2.0 * self.latency_ms(),
            additions: self.added_ms(self.others(), bytes / servers),
            ..Cost::default()
        }
    }

    /// A schedule of linerate.
    fn schedule(&self, name: Option<&str>, bytes: f64) -> Cost {
        let request = Request {
            collective: Collective::AllReduce,
            rank: 0 as Rank,
            ranks: self.whatif.gpus,
            root: 0,
            in_place: true,
            premultiply: false,
            hosts: self.hosts.clone(),
            maps_host: false,
            is_mapped: false,
        };
        let chunk_bytes = CHUNK_BYTES_DEFAULT as u64;
        let all = candidates_by_messages(&request, bytes as u64, &self.model, chunk_bytes);
        let asked = |one: &&Candidate| name.is_none_or(|name| one.algorithm.name == name);
        let best = (all.iter().filter(asked))
            .min_by(|a, b| a.predicted_ns.total_cmp(&b.predicted_ns))
            .expect("the name was checked");
        let mut cost = Cost::default();
        for (bound, ns) in self.model.parts(&best.work) {
            *match bound {
                Bound::Messages => &mut cost.latency,
                Bound::Memory => &mut cost.inside,
                Bound::Reduction => &mut cost.additions,
                Bound::Wire => &mut cost.wire,
            } = ns / 1e6;
        }
        if self.others() <= 0.0 {
            cost.inside += cost.wire;
            cost.wire = 0.0;
        }
        cost
    }
}
