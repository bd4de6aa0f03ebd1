//! [`Algorithm`]: a way to do a collective, and what it needs.

use super::Request;
use crate::cost::formulas::Formula;
use crate::schedule::Schedule;
use crate::types::Collective;

/// What an algorithm needs of the ranks and of the call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Needs {
    /// All ranks share a host and map each other's memory.
    pub mapped: bool,
    /// The callers' buffers are registered on every rank.
    pub registered: bool,
    /// `count` elements fit a flag line ([`crate::limits::LINE_PAYLOAD_BYTES`]).
    pub payload_max: bool,
    /// No premultiplied sums: it reads peers' inputs where they lie.
    pub plain: bool,
    /// What its windows hold.
    pub window: Window,
}

/// Size of an algorithm's windows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Window {
    /// It has none.
    None,
    /// `count` elements.
    One,
    /// `count` elements per rank.
    PerRank,
}

/// One way to do a collective.
#[derive(Debug)]
pub struct Algorithm {
    /// Its name, unique within the collective; `--algo` takes it.
    pub name: &'static str,
    /// What it does.
    pub collective: Collective,
    /// What it needs.
    pub needs: Needs,
    /// Builds one rank's schedule. The request must pass [`Request::check`].
    pub build: fn(&Request) -> Schedule,
    /// How much work it is.
    pub work: Formula,
}

impl Algorithm {
    /// Elements that a window slot must hold for a call of `count` elements on `ranks` ranks.
    pub fn window_elements(&self, ranks: u32, count: u64) -> u64 {
        match self.needs.window {
            Window::None => 0,
            Window::One => count,
            Window::PerRank => u64::from(ranks) * count,
        }
    }
}
