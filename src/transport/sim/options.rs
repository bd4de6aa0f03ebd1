//! What the modelled fabric looks like, and what it counted.

use crate::error::{Error, Result};
use crate::limits::RANKS_MAX;
use crate::types::Rank;
use serde::{Deserialize, Serialize};
use std::fmt::Display;

/// Times of a fabric are an hour at most, so that no sum of them overflows.
const TIME_NS_MAX: u64 = 3_600_000_000_000;
const HOUR: &str = "at most 3600000000000 (an hour)";

/// Which links a pair of ranks uses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Class {
    /// Between hosts.
    Network = 0,
    /// Between two ranks of one host.
    Host = 1,
    /// A rank and itself.
    Loopback = 2,
}

/// One kind of link: an empty message takes `latency_ns + per_message_ns`, one of `n` bytes
/// `n / bytes_per_second` more.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Link {
    /// From the first byte leaving the sender to the first byte reaching the receiver, nanoseconds.
    pub latency_ns: u64,
    /// Rate of a rank's send port and, separately, of its receive port. At least 1.
    pub bytes_per_second: u64,
    /// Time that one message holds a port besides its bytes, nanoseconds. Its inverse is the
    /// message rate.
    pub per_message_ns: u64,
    /// Largest extra latency of a message, nanoseconds, drawn uniformly from `0..=jitter_ns`.
    pub jitter_ns: u64,
}

impl Link {
    /// 100 Gbit/s Ethernet with RDMA: 2 us from rank to rank, 5 million messages per second, no
    /// jitter.
    pub const ETHERNET_100G: Link = Link {
        latency_ns: 2_000,
        bytes_per_second: 12_500_000_000,
        per_message_ns: 200,
        jitter_ns: 0,
    };

    /// Shared memory of one host: half a microsecond to pass a cache line on, copies at 10 GB/s.
    pub const HOST: Link = Link {
        latency_ns: 500,
        bytes_per_second: 10_000_000_000,
        per_message_ns: 50,
        jitter_ns: 0,
    };

    /// A rank to itself: a queue and a copy.
    pub const LOOPBACK: Link = Link {
        latency_ns: 100,
        bytes_per_second: 10_000_000_000,
        per_message_ns: 0,
        jitter_ns: 0,
    };

    /// How long a message of `bytes` bytes holds a port, nanoseconds, rounded up.
    pub fn hold_ns(&self, bytes: u64) -> u64 {
        let scaled = u128::from(bytes) * 1_000_000_000;
        let wire = scaled.div_ceil(u128::from(self.bytes_per_second.max(1)));
        self.per_message_ns
            .saturating_add(wire.min(u128::from(u64::MAX)) as u64)
    }
}

/// Ranks in hosts of equal size: rank `r` is on host `r / ranks_per_host`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Hosts {
    /// Ranks of one host, at least 1.
    pub ranks_per_host: u32,
    /// NICs of one host, which its ranks share evenly: rank `r` of the host has NIC
    /// `r * nics / ranks_per_host`. From 1 to `ranks_per_host`.
    pub nics: u32,
    /// The link between two ranks of one host. It has ports of its own: local traffic does not use
    /// the network's.
    pub link: Link,
}

/// A tier of switches: each joins this many hosts, and reaches those of other switches by trunks to
/// the tier above. Above the last tier, trunks meet in a core that delays nothing.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Tier {
    /// Hosts below one switch: a multiple of those of the tier below.
    pub hosts: u32,
    /// By how much the NICs below a switch are faster together than its trunks in each direction;
    /// 1 is a fabric without oversubscription.
    pub oversubscription: f64,
    /// Time of a message through one switch, nanoseconds.
    pub hop_ns: u64,
}

/// A NIC that is slower than the others.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SlowNic {
    /// Its host.
    pub host: u32,
    /// Which of the host's.
    pub nic: u32,
    /// Its share of the rate of the others, above 0 and at most 1.
    pub share: f64,
}

/// A simulated job. The same options and the same calls give the same run, to the nanosecond.
#[derive(Clone, Debug, PartialEq)]
pub struct SimOptions {
    /// Ranks in the world, `1..=RANKS_MAX`.
    pub ranks: u32,
    /// Seed of every random draw of the world.
    pub seed: u64,
    /// The link between hosts, or between all ranks if [`SimOptions::hosts`] is `None`.
    pub network: Link,
    /// Which ranks share a host; default none.
    pub hosts: Option<Hosts>,
    /// The switches between hosts, from the hosts up; default none, where the network between two
    /// NICs is never the bottleneck.
    pub tiers: Vec<Tier>,
    /// NICs that are slower than the others; default none.
    pub slow_nics: Vec<SlowNic>,
    /// Messages of one pair of ranks may overtake each other (jitter, retransmission). Otherwise a
    /// late one delays those behind it. Default false.
    pub reorder: bool,
    /// Probability that one attempt to transmit is lost, `0.0..1.0`; default 0. Never between ranks
    /// of one host.
    pub drop: f64,
    /// Probability that a message arrives twice, `0.0..1.0`; default 0. Never between ranks of one
    /// host.
    pub duplicate: f64,
    /// How long after a loss a message is transmitted again, nanoseconds; default 100 us.
    pub retransmit_ns: u64,
    /// How long after a death or a partition the survivors are told, nanoseconds; default 1 ms.
    pub detection_ns: u64,
    /// `Mapping::mapped` gives the memory of peers (all live in this process). Default false.
    pub mapped: bool,
    /// Messages longer than the inline limit take their time and move no bytes; shorter ones
    /// (signals, control) move if their views have bytes. For jobs larger than this machine's
    /// memory. Default false.
    pub size_only: bool,
    /// A fault that no fabric may have. For tests that must find it. Default none.
    pub flaw: Option<Flaw>,
}

/// What a wrong fabric does: canaries of tests.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Flaw {
    /// What waited for a partition to heal never sets out again.
    LosesOnHeal,
    /// One of fifty transfers that are read where they lie comes without its last byte.
    CutsMessages,
}

impl SimOptions {
    /// `ranks` ranks on a quiet 100 Gbit/s network without faults.
    pub fn new(ranks: u32, seed: u64) -> SimOptions {
        SimOptions {
            ranks,
            seed,
            network: Link::ETHERNET_100G,
            hosts: None,
            tiers: Vec::new(),
            slow_nics: Vec::new(),
            reorder: false,
            drop: 0.0,
            duplicate: 0.0,
            retransmit_ns: 100_000,
            detection_ns: 1_000_000,
            mapped: false,
            size_only: false,
            flaw: None,
        }
    }

    /// This job on a network at its worst: jitter of ten latencies, reordering, 5 % loss, 5 %
    /// duplicates.
    pub fn hostile(self) -> SimOptions {
        let jitter_ns = self.network.latency_ns * 10;
        SimOptions {
            network: Link {
                jitter_ns,
                ..self.network
            },
            reorder: true,
            drop: 0.05,
            duplicate: 0.05,
            ..self
        }
    }

    /// The index of a rank's host. Without [`SimOptions::hosts`] all ranks share one host if memory
    /// is mapped, else each rank has its own.
    pub fn host_of(&self, rank: Rank) -> u32 {
        match self.hosts {
            Some(hosts) => rank / hosts.ranks_per_host,
            None if self.mapped => 0,
            None => rank,
        }
    }

    /// Which of its ports a rank uses for a peer.
    pub(super) fn class(&self, from: Rank, to: Rank) -> Class {
        match self.hosts {
            _ if from == to => Class::Loopback,
            Some(hosts) if from / hosts.ranks_per_host == to / hosts.ranks_per_host => Class::Host,
            _ => Class::Network,
        }
    }

    /// The link that the ports of a class belong to.
    pub(super) fn link(&self, class: Class) -> Link {
        match (class, self.hosts) {
            (Class::Loopback, _) => Link::LOOPBACK,
            (Class::Host, Some(hosts)) => hosts.link,
            _ => self.network,
        }
    }

    /// Checks every field.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] with the field, its value and what is allowed.
    pub fn check(&self) -> Result<()> {
        let refuse = |name: &str, value: &dyn Display, allowed: &str| {
            Err(Error::invalid(format!(
                "SimOptions: {name} is {value}: {allowed}"
            )))
        };
        if !(1..=RANKS_MAX).contains(&self.ranks) {
            return refuse("ranks", &self.ranks, &format!("1 to {RANKS_MAX}"));
        }
        let local = self.hosts.map(|hosts| ("hosts.link", hosts.link));
        for (name, link) in [("network", self.network)].into_iter().chain(local) {
            if link.bytes_per_second == 0 {
                return refuse(&format!("{name}.bytes_per_second"), &0, "at least 1");
            }
            for (field, ns) in [
                ("latency_ns", link.latency_ns),
                ("per_message_ns", link.per_message_ns),
                ("jitter_ns", link.jitter_ns),
            ] {
                if ns > TIME_NS_MAX {
                    return refuse(&format!("{name}.{field}"), &ns, HOUR);
                }
            }
        }
        if let Some(hosts) = self.hosts {
            if hosts.ranks_per_host == 0 {
                return refuse("hosts.ranks_per_host", &0, "at least 1");
            }
            let most = hosts.ranks_per_host;
            if !(1..=most).contains(&hosts.nics) {
                return refuse(
                    "hosts.nics",
                    &hosts.nics,
                    &format!("1 to {most}, the ranks of a host"),
                );
            }
        }
        self.check_switches(&refuse)?;
        for (name, value) in [("drop", self.drop), ("duplicate", self.duplicate)] {
            if !(0.0..1.0).contains(&value) {
                return refuse(name, &value, "a probability of 0.0 to below 1.0");
            }
        }
        for (name, ns) in [
            ("retransmit_ns", self.retransmit_ns),
            ("detection_ns", self.detection_ns),
        ] {
            if ns > TIME_NS_MAX {
                return refuse(name, &ns, HOUR);
            }
        }
        Ok(())
    }
}

impl SimOptions {
    fn check_switches(
        &self,
        refuse: &impl Fn(&str, &dyn Display, &str) -> Result<()>,
    ) -> Result<()> {
        let mut below = 1;
        for (at, tier) in self.tiers.iter().enumerate() {
            let name = |field| format!("tiers[{at}].{field}");
            if tier.hosts < below || tier.hosts % below != 0 {
                let allowed =
                    format!("a multiple of {below}, the hosts below a switch of the tier below");
                return refuse(&name("hosts"), &tier.hosts, &allowed);
            }
            if !(1.0..=1e6).contains(&tier.oversubscription) {
                return refuse(
                    &name("oversubscription"),
                    &tier.oversubscription,
                    "1 to 1e6",
                );
            }
            if tier.hop_ns > TIME_NS_MAX {
                return refuse(&name("hop_ns"), &tier.hop_ns, HOUR);
            }
            below = tier.hosts;
        }
        let nics = self.nics_per_host();
        for (at, slow) in self.slow_nics.iter().enumerate() {
            let name = |field| format!("slow_nics[{at}].{field}");
            if slow.host >= self.host_count() {
                let allowed = format!("below {}, the number of hosts", self.host_count());
                return refuse(&name("host"), &slow.host, &allowed);
            }
            if slow.nic >= nics {
                return refuse(
                    &name("nic"),
                    &slow.nic,
                    &format!("below {nics}, the NICs of a host"),
                );
            }
            if !(slow.share > 0.0 && slow.share <= 1.0) {
                return refuse(&name("share"), &slow.share, "above 0 and at most 1");
            }
        }
        Ok(())
    }

    /// Hosts, the last of which may have fewer ranks. Without [`SimOptions::hosts`] each rank has
    /// its own NIC, as if it had a host of its own.
    pub(crate) fn host_count(&self) -> u32 {
        let each = self.hosts.map_or(1, |hosts| hosts.ranks_per_host);
        self.ranks.div_ceil(each.max(1))
    }

    pub(crate) fn nics_per_host(&self) -> u32 {
        self.hosts.map_or(1, |hosts| hosts.nics)
    }

    /// Ranks that share a NIC, on average.
    pub(crate) fn ranks_per_nic(&self) -> f64 {
        let hosts = self.hosts;
        hosts.map_or(1.0, |h| f64::from(h.ranks_per_host) / f64::from(h.nics))
    }

    /// The index of a rank's NIC among those of all hosts.
    pub(crate) fn nic_of(&self, rank: Rank) -> u32 {
        match self.hosts {
            Some(hosts) => {
                let (host, place) = (rank / hosts.ranks_per_host, rank % hosts.ranks_per_host);
                host * hosts.nics + place * hosts.nics / hosts.ranks_per_host
            }
            None => rank,
        }
    }
}

/// What one rank has done so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Statistics {
    /// Messages, puts, gets and atomic operations that it posted and the world accepted.
    pub posts: u64,
    /// Messages, puts, requests and replies that left its send ports; a large message counts twice
    /// (announcement and data), a retransmission not at all.
    pub packets_sent: u64,
    /// Those that came out of its receive ports.
    pub packets_received: u64,
    /// Payload bytes that left its send ports, without retransmissions.
    pub bytes_sent: u64,
    /// Payload bytes that came out of its receive ports.
    pub bytes_received: u64,
    /// Attempts of its packets that the wire lost, each followed by another.
    pub retransmits: u64,
    /// Packets that arrived here and were thrown away: second copies, and those of ended
    /// connections.
    pub duplicates: u64,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_are_taken_up_to_their_bounds_and_refused_beyond_by_name() {
        let hour = TIME_NS_MAX;
        type Set = fn(&mut SimOptions, u64);
        let fields: [(&str, Set, [u64; 2], &[u64]); 9] = [
            (
                "ranks",
                |o, n| o.ranks = n as u32,
                [1, RANKS_MAX.into()],
                &[0, u64::from(RANKS_MAX) + 1],
            ),
            (
                "network.latency_ns",
                |o, n| o.network.latency_ns = n,
                [0, hour],
                &[hour + 1],
            ),
            (
                "network.per_message_ns",
                |o, n| o.network.per_message_ns = n,
                [0, hour],
                &[u64::MAX],
            ),
            (
                "network.jitter_ns",
                |o, n| o.network.jitter_ns = n,
                [0, hour],
                &[hour + 1],
            ),
            (
                "network.bytes_per_second",
                |o, n| o.network.bytes_per_second = n,
                [1, u64::MAX],
                &[0],
            ),
            (
                "hosts.ranks_per_host",
                |o, n| o.hosts = Some(of(n as u32, Link::HOST)),
                [1, 9],
                &[0],
            ),
            (
                "hosts.link.bytes_per_second",
                |o, n| {
                    let bytes_per_second = n;
                    o.hosts = Some(of(
                        1,
                        Link {
                            bytes_per_second,
                            ..Link::HOST
                        },
                    ));
                },
                [1, u64::MAX],
                &[0],
            ),
            (
                "retransmit_ns",
                |o, n| o.retransmit_ns = n,
                [0, hour],
                &[hour + 1],
            ),
            (
                "detection_ns",
                |o, n| o.detection_ns = n,
                [0, hour],
                &[u64::MAX],
            ),
        ];
        for (name, set, bounds, beyond) in fields {
            let check = |value| {
                let mut options = SimOptions::new(2, 1);
                set(&mut options, value);
                options.check()
            };
            for bound in bounds {
                assert_eq!(check(bound), Ok(()), "{name} = {bound}");
            }
            for &value in beyond {
                let text = check(value).unwrap_err().to_string();
                let is_told = text.contains(name) && text.contains(&value.to_string());
                assert!(
                    is_told
                        && text.contains("most") | text.contains(" to ") | text.contains("least"),
                    "{text}"
                );
            }
        }
    }

    fn of(ranks_per_host: u32, link: Link) -> Hosts {
        Hosts {
            ranks_per_host,
            nics: ranks_per_host,
            link,
        }
    }

    #[test]
    fn probabilities_are_below_one() {
        type Set = fn(&mut SimOptions, f64);
        let fields: [(&str, Set); 2] = [
            ("drop", |o, p| o.drop = p),
            ("duplicate", |o, p| o.duplicate = p),
        ];
        for (name, set) in fields {
            let check = |p| {
                let mut options = SimOptions::new(2, 1);
                set(&mut options, p);
                options.check()
            };
            assert_eq!((check(0.0), check(0.999)), (Ok(()), Ok(())));
            for p in [-0.1, 1.0, 2.0, f64::NAN, f64::INFINITY] {
                let text = check(p).unwrap_err().to_string();
                assert!(text.contains(name) && text.contains("below 1.0"), "{text}");
            }
        }
    }
}
