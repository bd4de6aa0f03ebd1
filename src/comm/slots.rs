//! Communicators whose peers come one by one, also in place of one that has ended: each rank is a
//! slot, which is connected at any time. They have windows and messages, and no collectives, which
//! need all ranks. The failure or the leave of a peer ends only what needs that peer.

use super::communicator::Communicator;
use super::connect::{self, Common, LOOK_AGAIN, Origin};
use crate::bootstrap::RankContact;
use crate::config::Config;
use crate::engine::Engine;
use crate::error::Result;
use crate::types::Rank;

/// This rank's end of such a communicator before anybody is connected, and its contact.
pub(super) struct Opened {
    engine: Engine,
    pub contact: Vec<u8>,
}

impl Opened {
    /// `slots`: the ranks that there can be.
    pub fn new(rank: Rank, slots: u32, config: &Config) -> Result<Opened> {
        let (mut engine, contact) = connect::open(rank, slots, config)?;
        engine.start_alone();
        Ok(Opened { engine, contact })
    }

    /// The communicator. `known`: contacts of ranks, this one's included.
    pub fn finish(self, known: &[(Rank, Vec<u8>)], origin: Origin) -> Result<Communicator> {
        let Opened { engine, .. } = self;
        let contacts: Vec<(Rank, &[u8])> = (known.iter())
            .map(|(rank, contact)| (*rank, contact.as_slice()))
            .collect();
        let (common, parsed) = connect::read(&engine, &contacts)?;
        let hosts = &common.hosts;
        // Ranks of which nothing is known share no host with anybody.
        let unknown = 1 + hosts.iter().max().copied().unwrap_or(0);
        let mut all_hosts: Vec<u32> = (unknown..).take(engine.ranks() as usize).collect();
        let mut places = common.places.clone();
        for ((rank, _), &host) in known.iter().zip(hosts) {
            all_hosts[*rank as usize] = host;
        }
        if !places.is_empty() {
            places = vec![std::net::Ipv4Addr::UNSPECIFIED.into(); engine.ranks() as usize];
            for ((rank, _), contact) in known.iter().zip(&parsed) {
                places[*rank as usize] = contact.place;
            }
        }
        let common = Common {
            hosts: all_hosts,
            places,
            ..common
        };
        Ok(connect::finish(engine, origin, false, &common))
    }
}

impl Communicator {
    /// Begins to connect a slot. The contact is that of the process which has it from now on.
    ///
    /// # Errors
    /// [`Malformed`](crate::Error::Malformed), and an address that is none of this transport.
    pub(super) fn connect_one(&self, peer: Rank, contact: &[u8]) -> Result<()> {
        let contact = RankContact::parse(contact)?.engine;
        self.driving()?.engine().connect_one(peer, contact)
    }

    /// Waits until all these slots are connected, at most for the timeout. What fails to connect is
    /// tried again until then. Calls `meanwhile` between two checks.
    pub(super) fn connect_all(
        &self,
        peers: &[(Rank, Vec<u8>)],
        mut meanwhile: impl FnMut() -> Result<()>,
    ) -> Result<()> {
        let (driving, clock) = (self.driving()?, &self.inner.clock);
        let begun = clock.now();
        for (peer, contact) in peers {
            self.connect_one(*peer, contact)?;
        }
        loop {
            let now = clock.now();
            let mut engine = driving.engine();
            engine.drive(now);
            engine.drive_slow(now);
            engine.check()?;
            let mut away = peers.iter().filter(|(peer, _)| !engine.is_connected(*peer));
            let Some((first, _)) = away.clone().next() else {
                return Ok(());
            };
            let timeout = engine.config().timeout;
            if now.since(begun) > timeout {
                let what = format!("a connection to rank {first} in {timeout:?}");
                return Err(engine.error_of_ended(*first, what));
            }
            let lost = away.find(|(peer, _)| !engine.is_connecting(*peer));
            drop(engine);
            if let Some((peer, contact)) = lost {
                self.connect_one(*peer, contact)?;
            }
            meanwhile()?;
            std::thread::sleep(LOOK_AGAIN);
        }
    }
}
