//! What an algorithm costs: the alpha-beta-gamma model, with terms for memory that ranks map.
//!
//! A message costs a latency (alpha) and a time per byte (beta); combining costs a time per byte (gamma);
//! mapped memory is read at a rate of its own, and a signal costs a latency and a store per peer. Formulas are
//! for the slowest rank and ignore contention between ranks.
//!
//! Source: Hockney (1994); Thakur, Rabenseifner, Gropp (IJHPCA 2005), section 3.
//!
//! Read first: [`Model`], then `formulas.rs`.

pub mod formulas;

/// The constants of one machine and transport, in nanoseconds and nanoseconds per byte.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Model {
    /// One message, empty.
    pub message_ns: f64,
    /// A byte of a message.
    pub message_byte_ns: f64,
    /// A byte of a message between ranks of one host.
    pub local_byte_ns: f64,
    /// Combining a byte with another.
    pub reduce_byte_ns: f64,
    /// Copying a byte in local memory.
    pub copy_byte_ns: f64,
    /// Reading or writing a byte in a peer's mapped memory.
    pub mapped_byte_ns: f64,
    /// From a signal to the end of the peer's wait.
    pub signal_ns: f64,
    /// Storing the signal for one more peer.
    pub signal_peer_ns: f64,
}

impl Model {
    /// Ranks on one host over shared memory: a cache line crosses in about 150 ns, a message takes several of
    /// them and is copied in and out, a core copies 10 GB/s.
    pub const SHARED_MEMORY: Model = Model {
        message_ns: 1000.0,
        message_byte_ns: 0.2,
        local_byte_ns: 0.2,
        reduce_byte_ns: 0.05,
        copy_byte_ns: 0.1,
        mapped_byte_ns: 0.1,
        signal_ns: 200.0,
        signal_peer_ns: 30.0,
    };

    /// A 100 Gbit/s fabric: 3 us a message, 12.5 GB/s.
    pub const FABRIC: Model = Model {
        message_ns: 3000.0,
        message_byte_ns: 0.08,
        ..Model::SHARED_MEMORY
    };
}

/// What the cost depends on.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Shape {
    /// Number of ranks.
    pub ranks: u32,
    /// Number of hosts.
    pub hosts: u32,
    /// Bytes of `count` elements.
    pub bytes: f64,
    /// Pieces into which the engine cuts the call, because a window slot holds no more.
    pub segments: f64,
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
}
