//! What an algorithm costs: the alpha-beta-gamma model, with terms for memory that ranks map.
//!
//! A formula (`formulas.rs`) counts the [`Work`] of an algorithm: meetings, messages, bytes copied,
//! and so on. A [`Model`] prices each kind of work; the prediction is the sum. Formulas count what
//! lies on the longest path, or, where ranks are more than cores, what one core has to do for all
//! its ranks, whichever is more.
//!
//! Prices differ between ranks that have a core each and ranks that share cores, where a wait costs
//! switches of the core: [`Models`] has both. They are built in.
//!
//! A host is calibrated by findings alone: the calls for which its own times say that another
//! algorithm is faster than the cheapest ([`Finding`]). Findings are stored per host (`store.rs`),
//! and rank 0's are everyone's, because all ranks must choose the same algorithm. Prices are
//! built in, because prices fitted to a host add nothing: of 1152 choices 887 were within 20 % of
//! the best by built-in prices, 886 by fitted ones, and 921 and 922 with findings as well.
//!
//! Not here: measuring (the `linerate explain` command) and files (`comm`).
//!
//! Source: Hockney (1994); Thakur, Rabenseifner, Gropp (IJHPCA 2005), section 3.
//!
//! Read first: [`Work`], then `formulas.rs`.

mod findings;
pub mod formulas;
mod store;

pub use findings::{FINDINGS_MAX, Finding};
pub use store::{emit, emit_bytes, host_key, parse, parse_bytes};

use std::borrow::Cow;

/// One list of the kinds of work: fields, and an array of them for arithmetic that treats all
/// alike.
macro_rules! kinds_of_work {
    ($($(#[$doc:meta])* $field:ident,)*) => {
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
    };
}

kinds_of_work! {
    /// Operations of the engine: one for each segment of a call.
    calls,
    /// Times that everybody waits for everybody.
    meetings,
    /// Times that a rank goes on only after a peer has done what this one let it begin.
    turns,
    /// Segments that are staged through a window: other memory each time.
    stagings,
    /// Flag lines stored for a peer, or looked at.
    signals,
    /// Messages that wait for each other.
    messages,
    /// Messages that a rank sends or receives.
    posts,
    /// Bytes copied.
    copied,
    /// Bytes that cross from a rank's memory to another's core.
    crossed,
    /// Bytes that go over a network.
    linked,
    /// Bytes that a reduction reads and writes.
    reduced,
    /// Bytes of the callers' buffers that no cache holds.
    uncached,
}

/// What each kind of work costs, in nanoseconds.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Model(pub [f64; TERMS]);

impl Model {
    /// A 100 Gbit/s fabric: 3 us a message, 12.5 GB/s. A core adds about 20 GB/s.
    pub const FABRIC: Model = Model([
        0.0, 3000.0, 0.0, 0.0, 100.0, 3000.0, 500.0, 0.05, 0.05, 0.08, 0.02, 0.0,
    ]);

    /// Nanoseconds.
    pub fn predict(&self, work: &Work) -> f64 {
        let products = self.0.iter().zip(work.to_array());
        products.map(|(price, amount)| price * amount).sum()
    }
}

/// The prices, and the findings of one host.
#[derive(Clone, Debug, PartialEq)]
pub struct Models {
    /// Where each rank has a core.
    pub apart: Model,
    /// Where ranks share cores.
    pub crowded: Model,
    /// Sizes of caches.
    pub caches: Caches,
    /// Where the prices are wrong.
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
    /// Where nothing is stored. The prices are those that explain the times of one machine best
    /// (AMD EPYC, Zen 4, 2 cores), by least squares of the relative errors.
    pub const BUILT_IN: Models = Models {
        apart: Model([
            122.0, 168.0, 50.0, 170.0, 16.1, 112.0, 358.0, 0.0241, 0.075, 0.08, 0.0099, 0.0252,
        ]),
        crowded: Model([
            2020.0, 58.9, 1150.0, 330.0, 246.0, 668.0, 178.0, 0.0488, 0.0294, 0.08, 0.00816, 0.0174,
        ]),
        caches: Caches {
            core_bytes: (1 << 20) as f64,
            host_bytes: (32 << 20) as f64,
        },
        findings: Cow::Borrowed(&findings::BUILT_IN),
    };

    /// The prices for `ranks` ranks on `cores` cores.
    pub fn of(&self, ranks: u32, cores: u32) -> Model {
        if ranks <= cores {
            self.apart
        } else {
            self.crowded
        }
    }

    /// The findings for `ranks` ranks on `cores` cores.
    pub fn findings_of(&self, ranks: u32, cores: u32) -> Vec<Finding> {
        let holds =
            |finding: &&Finding| finding.ranks == ranks && finding.crowded == (ranks > cores);
        self.findings.iter().filter(holds).cloned().collect()
    }
}

/// What the amount of work depends on.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Shape {
    /// Number of ranks.
    pub ranks: u32,
    /// Number of hosts.
    pub hosts: u32,
    /// Cores for the ranks of a host.
    pub cores: u32,
    /// Bytes of `count` elements.
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
}

impl Shape {
    fn p(&self) -> f64 {
        f64::from(self.ranks)
    }

    /// The share of the vector that is not a rank's own.
    fn others(&self) -> f64 {
        (self.p() - 1.0) / self.p()
    }

    /// Rounds of doubling.
    fn log(&self) -> f64 {
        self.p().log2().ceil()
    }

    /// Work of which `longest` lies one after the other and all ranks together do `total`: no core
    /// does less than its share.
    fn shared(&self, longest: f64, total: f64) -> f64 {
        let cores = f64::from(self.cores) * f64::from(self.hosts);
        longest.max(total / cores)
    }

    /// Work that every rank does.
    fn each(&self, amount: f64) -> f64 {
        self.shared(amount, amount * self.p())
    }

    /// The share of the callers' buffers that no cache holds, if each rank has `bytes` of them.
    fn uncached(&self, bytes: f64) -> f64 {
        let of_host = bytes * self.p() / f64::from(self.hosts);
        // Half of a cache is gone before a pass over as many bytes ends, and others use it too.
        let usable = self.caches.host_bytes / 2.0;
        (1.0 - usable / of_host).max(0.0)
    }

    /// The share of `bytes` bytes that a rank has written and that is still in its core's cache,
    /// from where another core gets it more slowly than from a cache that both share. A sixteenth
    /// of the cache, as seen: of 32 KiB windows a byte more cost 0.12 to 0.15 ns, of longer ones
    /// 0.02 to 0.05.
    fn nearby(&self, bytes: f64) -> f64 {
        (self.caches.core_bytes / 16.0 / bytes).min(1.0)
    }

    /// The share of what a rank sends on that it has received itself, where data goes from rank to
    /// rank.
    fn forwarded(&self) -> f64 {
        (self.p() - 2.0).max(0.0) / (self.p() - 1.0).max(1.0)
    }

    /// Messages that carry `bytes` bytes.
    fn chunks(&self, bytes: f64) -> f64 {
        (bytes / self.chunk_bytes).ceil().max(1.0)
    }

    /// Bytes that lie one after the other where `steps` ranks pass on `bytes` bytes, chunk by
    /// chunk.
    fn pipelined(&self, steps: f64) -> f64 {
        self.bytes + (steps - 1.0).max(0.0) * self.bytes.min(self.chunk_bytes)
    }
}
