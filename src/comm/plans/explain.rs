//! [`Explanation`]: what a call would run and why, with the predicted times of all algorithms that
//! could run.

use super::{Plans, bytes_of};
use crate::collective::{self, Algorithm, Candidate, Window};
use crate::comm::call::Call;
use crate::cost::{Bound, Work};
use crate::error::Result;
use crate::transport::shm::FETCH_BYTES_MIN;
use std::fmt;

/// How the bytes of a call get from rank to rank.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Path {
    /// In the flag lines of the signals themselves.
    FlagLines,
    /// The peers map the callers' buffers, and read and write them where they lie.
    Buffers,
    /// Copied into windows, which the peers map.
    Windows,
    /// In messages of the transport.
    Messages,
    /// In messages of 32 KiB and more, which the receiver reads out of the sender's address space.
    FetchedMessages,
}

impl Path {
    fn of(algorithm: &Algorithm) -> Path {
        let needs = &algorithm.needs;
        match (needs.registered, needs.window, needs.mapped) {
            (true, _, _) => Path::Buffers,
            (_, Window::One | Window::PerRank, _) => Path::Windows,
            (_, _, true) => Path::FlagLines,
            _ => Path::Messages,
        }
    }
}

impl fmt::Display for Path {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Path::FlagLines => "flag lines",
            Path::Buffers => "mapped buffers",
            Path::Windows => "windows",
            Path::Messages => "messages",
            Path::FetchedMessages => "messages, fetched",
        })
    }
}

/// The answer of [`crate::CollectiveBuilder::explain`].
#[derive(Clone, Debug)]
pub struct Explanation {
    /// The algorithm that runs, if the buffers of all ranks are registered when this rank's are,
    /// and not registered otherwise.
    pub algorithm: &'static str,
    /// The algorithm that all ranks plan. If it needs registered memory and some rank's is not
    /// registered, another one runs.
    pub planned: &'static str,
    /// Why `algorithm` runs.
    pub why: &'static str,
    /// How bytes get from rank to rank.
    pub path: Path,
    /// Bytes of a chunk. Messages are cut into chunks.
    pub chunk_bytes: u64,
    /// Bytes of a window slot; 0 where windows are not used.
    pub window_bytes: u64,
    /// Calls into which the engine cuts this one, because a window slot holds no more.
    pub segments: u64,
    /// Threads of a rank that share large copies and reductions, the waiting one included.
    pub threads: u32,
    /// The time that the cost model predicts for `algorithm`, in ns.
    pub predicted_ns: f64,
    /// What the predicted time goes to, in ns. The first part is the largest: it bounds the call.
    pub parts_ns: [(Bound, f64); 4],
    /// All algorithms that could run on such memory, cheapest first.
    pub candidates: Vec<Candidate>,
}

impl Plans {
    /// What a call runs if the buffers of all ranks are registered (`registered`), or if none is.
    pub fn explain_call(&self, call: &Call, registered: bool) -> Result<Explanation> {
        let request = self.request(call, false);
        request.check()?;
        let (planned, is_forced) = self.algorithm(call, &request)?;
        let is_redirected = planned.needs.registered && !registered && !is_forced;
        let choice = self.choose(call, &request, self.mapped && !is_redirected);
        let algorithm = match is_redirected {
            true => choice.algorithm,
            false => planned,
        };
        let available = self.available_if(registered);
        let bytes = bytes_of(call);
        let mut candidates =
            collective::candidates(&request, bytes, &self.model, &available, registered);
        candidates.sort_by(|a, b| a.predicted_ns.total_cmp(&b.predicted_ns));
        let own = candidates
            .iter()
            .find(|c| std::ptr::eq(c.algorithm, algorithm));
        let is_long = bytes >= FETCH_BYTES_MIN as u64;
        let path = match Path::of(algorithm) {
            Path::Messages if self.is_fetched && !registered && is_long => Path::FetchedMessages,
            path => path,
        };
        Ok(Explanation {
            algorithm: algorithm.name,
            planned: planned.name,
            why: match (is_forced, is_redirected, choice.is_found) {
                (true, _, _) => "named by the call or LINERATE_ALGO",
                (_, true, false) => "the cheapest for memory that is not registered",
                (_, true, true) => "measured to be the fastest for memory that is not registered",
                (_, _, false) => "the cheapest",
                (_, _, true) => "measured to be the fastest",
            },
            path,
            chunk_bytes: available.chunk_bytes,
            window_bytes: match path {
                Path::Windows => available.window_bytes,
                _ => 0,
            },
            segments: own.map_or(1, |c| c.segments),
            threads: self.threads,
            predicted_ns: own.map_or(0.0, |c| c.predicted_ns),
            parts_ns: (self.model).parts(&own.map_or(Work::default(), |c| c.work)),
            candidates,
        })
    }
}
