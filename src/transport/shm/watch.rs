//! [`Watched`]: what a rank finds when it looks at its descriptors ([`Watch`]).
//!
//! [`Watch`]: crate::wait::Watch

use crate::types::Rank;

/// What a watched descriptor is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Watched {
    /// The listener, or a connection of a peer that has not said who it is.
    Entrance,
    /// The control socket to a peer.
    Socket(Rank),
    /// The process of a peer, which is found once it has ended.
    Process(Rank),
}

impl Watched {
    /// Its key in a watch.
    pub fn key(self) -> u64 {
        let (kind, rank) = match self {
            Watched::Entrance => (0, 0),
            Watched::Socket(rank) => (1, rank),
            Watched::Process(rank) => (2, rank),
        };
        kind << 32 | u64::from(rank)
    }

    /// What has this key.
    pub fn of_key(key: u64) -> Watched {
        match (key >> 32, key as Rank) {
            (0, _) => Watched::Entrance,
            (1, rank) => Watched::Socket(rank),
            (_, rank) => Watched::Process(rank),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_watched_is_found_by_its_key() {
        for rank in [0, 1, u32::MAX] {
            for watched in [Watched::Socket(rank), Watched::Process(rank)] {
                assert_eq!(Watched::of_key(watched.key()), watched);
            }
        }
        assert_eq!(Watched::of_key(Watched::Entrance.key()), Watched::Entrance);
    }
}
