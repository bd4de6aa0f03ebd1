//! What an algorithm costs: the alpha-beta-gamma model, with terms for memory that ranks map.
//!
//! A formula counts the [`Work`] of an algorithm: meetings, messages, bytes copied, and so on
//! (`host.rs` for ranks of one host, `network.rs` for those of several). A [`Model`] has the price
//! of each kind of work; the predicted time is the sum of all amounts times their prices. A formula
//! counts the work on the longest path. If there are more ranks than cores, one core has to do the
//! work of several ranks; if that is more than the work on the longest path, it counts instead.
//!
//! Prices differ between ranks that have a core each and ranks that share cores, because a wait
//! then switches the core to another rank. [`Models`] has both. The prices are built in.
//!
//! A host is calibrated by findings alone. A [`Finding`] is a call for which times of this host say
//! that another algorithm is faster than the one that is cheapest by the prices. Findings are
//! stored per host (`store.rs`). All ranks use those of rank 0, because all ranks must choose the
//! same algorithm.
//!
//! Prices fitted to a host would add nothing: built-in prices chose an algorithm within 20 % of the
//! best for 887 of 1152 calls, fitted ones for 886, and with findings as well it was 921 and 922.
//!
//! Not here: measuring (the `linerate explain` command) and reading files (`comm`).
//!
//! Source: Hockney (1994); Thakur, Rabenseifner, Gropp (IJHPCA 2005), section 3.
//!
//! Read first: [`Work`], then `formulas.rs`.

mod additions;
mod findings;
pub mod formulas;
mod host;
mod network;
mod store;

pub use additions::Additions;
pub use findings::{FINDINGS_MAX, Finding};
pub use network::LinkPrice;
pub use store::{emit, emit_bytes, host_key, parse, parse_bytes};

use std::borrow::Cow;

/// What can bound a call: the kinds of work of [`Work`] in four groups.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Bound {
    /// Numbers of calls, meetings, signals and messages, times the latency of each.
    Messages,
    /// Bytes that are copied, that cross to another core, or that no cache holds.
    Memory,
    /// Bytes that reductions read and write.
    Reduction,
    /// Bytes that go over a network.
    Wire,
}

impl Bound {
    /// All.
    pub const ALL: [Bound; 4] = [
        Bound::Messages,
        Bound::Memory,
        Bound::Reduction,
        Bound::Wire,
    ];

    /// Its name, for people and documents.
    pub fn name(self) -> &'static str {
        match self {
            Bound::Messages => "messages",
            Bound::Memory => "memory",
            Bound::Reduction => "reduction",
            Bound::Wire => "wire",
        }
    }
}

/// Makes [`Work`] from one list of the kinds of work, each with its group. Its fields are for
/// formulas; the array of them is for arithmetic that treats all kinds alike.
macro_rules! kinds_of_work {
    ($($(#[$doc:meta])* $field:ident: $bound:ident,)*) => {
        /// How much an algorithm does of each kind of work.
        #[derive(Clone, Copy, Debug, Default, PartialEq)]
        pub struct Work {
            $($(#[$doc])* pub $field: f64,)*
        }

        impl Work {
            /// The kinds in the order of the fields.
            pub fn to_array(&self) -> [f64; TERMS] {
                [$(self.$field),*]
            }
        }

        /// Kinds of work.
        pub const TERMS: usize = [$(stringify!($field)),*].len();

        /// The groups of the kinds, in the order of the fields.
        const BOUNDS: [Bound; TERMS] = [$(Bound::$bound),*];
    };
}

kinds_of_work! {
    /// Operations of the engine: one for each segment of a call.
    calls: Messages,
    /// How often every rank waits for every other rank.
    meetings: Messages,
    /// How often a rank, at the end of a call, waits for work that a peer could begin only after
    /// this rank had come.
    turns: Messages,
    /// Segments that are staged through a window, each time in other memory.
    stagings: Messages,
    /// Lines of signals that a rank stores for a peer or looks at.
    signals: Messages,
    /// Messages on the longest path, each of which is sent only after the one before has come.
    messages: Messages,
    /// Messages that a rank sends or receives.
    posts: Messages,
    /// Bytes copied.
    copied: Memory,
    /// Bytes that cross from a rank's memory to another's core.
    crossed: Memory,
    /// Bytes that go over a network.
    linked: Wire,
    /// Bytes that a reduction reads and writes.
    reduced: Reduction,
    /// Bytes of the callers' buffers that no cache holds.
    uncached: Memory,
    /// Messages between ranks of one host where others are on other hosts; see `messages`.
    local_messages: Messages,
    /// Bytes of these.
    local_bytes: Memory,
}

/// The places of [`Work::messages`] and others among the kinds of work.
const MESSAGES: usize = 5;
const POSTS: usize = 6;
const COPIED: usize = 7;
const CROSSED: usize = 8;
const LINKED: usize = 9;
const REDUCED: usize = 10;
const LOCAL_MESSAGES: usize = 12;
/// What a message inside of a host takes of a port.
const LOCAL_POST_NS: f64 = 50.0;

/// The ranks of a core up to which the prices of ranks that share cores hold. Each message waits
/// for the turn of its receiver, and the more ranks take turns, the less of each is still in the
/// core's caches: of 64 ranks on 2 cores an allreduce of 8 bytes by recursive doubling took 1364 us
/// where the prices alone say 262, and one through windows 1081 us where they say 574.
const CROWDED_RANKS_OF_CORE: f64 = 4.0;

/// The prices: what one unit of each kind of work costs, in nanoseconds, in the order of the fields
/// of [`Work`].
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Model(pub [f64; TERMS]);

impl Model {
    /// The prices of a 100 Gbit/s fabric: 3 us for a message, and 12.5 GB/s. A core copies 20 GB/s,
    /// and a reduction reads and writes 50 GB/s together.
    pub const FABRIC: Model = Model([
        0.0, 3000.0, 0.0, 0.0, 100.0, 3000.0, 500.0, 0.05, 0.05, 0.08, 0.02, 0.0, 550.0, 0.1,
    ]);

    /// The prices of a network of which the transport says what a message without bytes takes, what
    /// it takes of a port besides, and the rate. All ranks give equal numbers.
    pub fn network(latency_ns: f64, post_ns: f64, bytes_per_second: f64) -> Model {
        let mut model = Model::FABRIC;
        model.0[MESSAGES] = latency_ns;
        model.0[POSTS] = post_ns;
        model.0[LINKED] = 1e9 / bytes_per_second;
        model
    }

    /// These prices where copies and reductions take no time, as in a simulation.
    pub fn without_local_work(mut self) -> Model {
        for kind in [COPIED, CROSSED, REDUCED] {
            self.0[kind] = 0.0;
        }
        self
    }

    /// These prices, where a message inside of a host takes as long as this.
    pub fn with_local_messages(mut self, message_ns: f64, bytes_per_second: f64) -> Model {
        self.0[LOCAL_MESSAGES] = message_ns;
        self.0[LOCAL_MESSAGES + 1] = 1e9 / bytes_per_second;
        self
    }

    /// These prices, where a byte that a reduction reads or writes, and one that is copied, takes
    /// as long as this, in nanoseconds.
    pub fn with_local_work(mut self, reduced_ns: f64, copied_ns: f64) -> Model {
        (self.0[REDUCED], self.0[COPIED]) = (reduced_ns, copied_ns);
        self
    }

    /// What messages between hosts cost, and those inside of hosts.
    pub fn links(&self) -> [LinkPrice; 2] {
        let far = LinkPrice {
            message_ns: self.0[MESSAGES],
            post_ns: self.0[POSTS],
            byte_ns: self.0[LINKED],
        };
        let near = LinkPrice {
            message_ns: self.0[LOCAL_MESSAGES],
            post_ns: LOCAL_POST_NS,
            byte_ns: self.0[LOCAL_MESSAGES + 1],
        };
        [far, near]
    }

    /// The predicted time of this work, in nanoseconds.
    pub fn predict(&self, work: &Work) -> f64 {
        let products = self.0.iter().zip(work.to_array());
        products.map(|(price, amount)| price * amount).sum()
    }

    /// The predicted time by what it goes to, in nanoseconds, the largest part first.
    pub fn parts(&self, work: &Work) -> [(Bound, f64); Bound::ALL.len()] {
        let mut parts = Bound::ALL.map(|bound| (bound, 0.0));
        for ((price, amount), bound) in self.0.iter().zip(work.to_array()).zip(BOUNDS) {
            parts[bound as usize].1 += price * amount;
        }
        parts.sort_by(|(_, a), (_, b)| b.total_cmp(a));
        parts
    }
}

/// The prices, and the findings of one host.
#[derive(Clone, Debug, PartialEq)]
pub struct Models {
    /// The prices if each rank has a core.
    pub apart: Model,
    /// The prices if ranks share cores.
    pub crowded: Model,
    /// Sizes of caches.
    pub caches: Caches,
    /// The calls for which the prices choose a slow algorithm.
    pub findings: Cow<'static, [Finding]>,
}

/// Sizes of caches.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Caches {
    /// Bytes of the largest cache that a core has to itself.
    pub core_bytes: f64,
    /// Bytes of the largest cache that all ranks of the host share.
    pub host_bytes: f64,
}

impl Models {
    /// The prices, with the findings that are used if none are stored. The prices are fitted to
    /// the times of one machine (AMD EPYC, Zen 4, 2 cores), by least squares of the relative
    /// errors.
    pub const BUILT_IN: Models = Models {
        apart: Model([
            122.0, 168.0, 50.0, 170.0, 16.1, 112.0, 358.0, 0.0241, 0.075, 0.08, 0.0099, 0.0252,
            0.0, 0.0,
        ]),
        crowded: Model([
            2020.0, 58.9, 1150.0, 330.0, 246.0, 668.0, 178.0, 0.0488, 0.0294, 0.08, 0.00816,
            0.0174, 0.0, 0.0,
        ]),
        caches: Caches {
            core_bytes: (1 << 20) as f64,
            host_bytes: (32 << 20) as f64,
        },
        findings: Cow::Borrowed(&findings::BUILT_IN),
    };

    /// The prices for `ranks` ranks on `cores` cores.
    pub fn of(&self, ranks: u32, cores: u32) -> Model {
        let mut model = match ranks <= cores {
            true => self.apart,
            false => self.crowded,
        };
        let ranks_of_core = f64::from(ranks) / f64::from(cores);
        let fuller = ranks_of_core / CROWDED_RANKS_OF_CORE;
        if fuller > 1.0 {
            model.0[MESSAGES] *= fuller;
        }
        model
    }

    /// The findings for `ranks` ranks on `cores` cores.
    pub fn findings_of(&self, ranks: u32, cores: u32) -> Vec<Finding> {
        let holds =
            |finding: &&Finding| finding.ranks == ranks && finding.crowded == (ranks > cores);
        self.findings.iter().filter(holds).cloned().collect()
    }
}

/// The properties of a call and its ranks on which the amount of work depends.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Shape {
    /// Number of ranks.
    pub ranks: u32,
    /// Number of hosts.
    pub hosts: u32,
    /// Number of cores of a host.
    pub cores: u32,
    /// Bytes of the `count` elements of the call.
    pub bytes: f64,
    /// Pieces into which the engine cuts the call, because a window slot holds no more.
    pub segments: f64,
    /// Bytes of a chunk, the largest message.
    pub chunk_bytes: f64,
    /// Whether ranks share memory, so that messages are copied instead of going over a network.
    pub mapped: bool,
    /// Whether the callers' buffers are registered.
    pub registered: bool,
    /// Sizes of caches.
    pub caches: Caches,
    /// What messages between hosts cost.
    pub far: LinkPrice,
    /// What messages inside of a host cost, where others go to other hosts.
    pub near: LinkPrice,
}

impl Shape {
    fn p(&self) -> f64 {
        f64::from(self.ranks)
    }

    /// The share of a vector that belongs to the other ranks, if each rank has an equal block.
    fn others(&self) -> f64 {
        (self.p() - 1.0) / self.p()
    }

    /// Number of rounds of doubling: the binary logarithm of the ranks, rounded up.
    fn log(&self) -> f64 {
        self.p().log2().ceil()
    }

    /// The amount of work that counts: `longest`, the work on the longest path, or a core's share
    /// of `total`, the work of all ranks, if that is more.
    fn shared(&self, longest: f64, total: f64) -> f64 {
        let cores = f64::from(self.cores) * f64::from(self.hosts);
        longest.max(total / cores)
    }

    /// The amount that counts if every rank does `amount`.
    fn each(&self, amount: f64) -> f64 {
        self.shared(amount, amount * self.p())
    }

    /// The share of the callers' buffers that no cache holds, if each rank has `bytes` of them.
    fn uncached(&self, bytes: f64) -> f64 {
        let of_host = bytes * self.p() / f64::from(self.hosts);
        // A pass over as many bytes as the cache has finds only about half of them there, because
        // it evicts its own lines, and other memory is in the cache too.
        let usable = self.caches.host_bytes / 2.0;
        (1.0 - usable / of_host).max(0.0)
    }

    /// The share of `bytes` bytes, which a rank has written, that is still in the own cache of its
    /// core. Another core reads them from there more slowly than from a cache that both share.
    ///
    /// It is the share that fits into a sixteenth of the own cache. This fits measured times: one
    /// more byte costs 0.12 to 0.15 ns in windows of 32 KiB, and 0.02 to 0.05 ns in longer ones.
    fn nearby(&self, bytes: f64) -> f64 {
        (self.caches.core_bytes / 16.0 / bytes).min(1.0)
    }

    /// The share of the bytes that a rank sends that it has received before, if data goes around
    /// from rank to rank.
    fn forwarded(&self) -> f64 {
        (self.p() - 2.0).max(0.0) / (self.p() - 1.0).max(1.0)
    }

    /// Number of messages that carry `bytes` bytes.
    fn chunks(&self, bytes: f64) -> f64 {
        (bytes / self.chunk_bytes).ceil().max(1.0)
    }

    /// Bytes on the longest path if a vector passes through `steps` ranks, chunk by chunk.
    fn pipelined(&self, steps: f64) -> f64 {
        self.bytes + (steps - 1.0).max(0.0) * self.bytes.min(self.chunk_bytes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_parts_of_a_prediction_are_all_of_it_and_the_largest_comes_first() {
        let shape = |bytes: f64, mapped: bool| Shape {
            ranks: 4,
            hosts: if mapped { 1 } else { 4 },
            cores: 4,
            bytes,
            segments: 1.0,
            chunk_bytes: 262_144.0,
            mapped,
            registered: mapped,
            caches: Models::BUILT_IN.caches,
            far: Model::FABRIC.links()[0],
            near: Model::FABRIC.links()[1],
        };
        let apart = Models::BUILT_IN.apart;
        for (model, shape, formula, bound) in [
            (
                apart,
                shape(8.0, true),
                formulas::line as formulas::Formula,
                Bound::Messages,
            ),
            (
                apart,
                shape(1e6, true),
                formulas::direct_all_reduce,
                Bound::Reduction,
            ),
            (
                apart,
                shape(1e6, true),
                formulas::direct_parts,
                Bound::Memory,
            ),
            (
                Model::FABRIC,
                shape(8.0, false),
                formulas::ring_all_reduce,
                Bound::Messages,
            ),
            (
                Model::FABRIC,
                shape(1e8, false),
                formulas::ring_all_reduce,
                Bound::Wire,
            ),
        ] {
            let work = formula(&shape);
            let parts = model.parts(&work);
            assert_eq!(parts[0].0, bound, "{parts:?}");
            assert!(parts.is_sorted_by(|(_, a), (_, b)| a >= b), "{parts:?}");
            let sum: f64 = parts.iter().map(|(_, ns)| ns).sum();
            assert!(
                (sum / model.predict(&work) - 1.0).abs() < 1e-12,
                "{parts:?}"
            );
        }
    }
}
