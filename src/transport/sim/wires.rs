//! [`Wires`]: the ports and trunks between ranks, and how long a packet takes through them.
//!
//! A rank sends and receives over ports (full duplex): those of its NIC, which ranks of its host
//! may share, those of the link inside of its host, and those of its own loopback. Between NICs of
//! different switches a packet also crosses trunks. A trunk delays a packet only by what is in
//! front of it and could not pass meanwhile: packets of several NICs share a trunk as their MTUs
//! do.

use super::options::{Class, Link, SimOptions, Tier};
use super::ports::{Port, is_small};
use crate::types::Rank;

/// Which way a packet takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Route {
    class: Class,
    /// The ports: places in [`Wires::ports`].
    pub(crate) send: u32,
    pub(crate) receive: u32,
    /// From the first byte leaving to the first byte arriving, where nothing is in the way.
    pub(crate) latency_ns: u64,
    /// Tiers whose trunks it crosses, up and down.
    tiers: u32,
}

impl Route {
    /// Whether it leaves the host.
    pub(crate) fn is_far(&self) -> bool {
        self.class == Class::Network
    }

    /// Whether it crosses trunks.
    pub(crate) fn has_trunks(&self) -> bool {
        self.tiers > 0
    }
}

/// What a port or a trunk has carried.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Carried {
    /// Payload bytes.
    pub(crate) bytes: u64,
    /// How long they took, nanoseconds.
    pub(crate) busy_ns: u64,
}

impl Carried {
    fn add(&mut self, bytes: u64, ns: u64) {
        self.bytes += bytes;
        self.busy_ns += ns;
    }
}

/// One direction of a NIC or of a link inside of a host.
#[derive(Clone, Copy, Debug)]
struct Direction {
    port: Port,
    link: Link,
    carried: Carried,
}

/// One direction between a switch and the tier above.
#[derive(Clone, Copy, Debug, Default)]
struct Trunk {
    /// When all that it was given has passed.
    free_ns: u64,
    carried: Carried,
}

/// The trunks of a tier, up and down, by switch.
#[derive(Clone, Debug)]
struct Trunks {
    tier: Tier,
    bytes_per_second: f64,
    up: Vec<Trunk>,
    down: Vec<Trunk>,
}

/// All ports and trunks of a fabric.
#[derive(Clone, Debug)]
pub(crate) struct Wires {
    options: SimOptions,
    /// Send and receive ports: of NICs, then of ranks inside of hosts, then of loopbacks.
    ports: Vec<[Direction; 2]>,
    nics: u32,
    tiers: Vec<Trunks>,
}

const SEND: usize = 0;
const RECEIVE: usize = 1;

impl Wires {
    /// Those of a fabric whose options are checked, all free.
    pub(crate) fn new(options: &SimOptions) -> Wires {
        let free = |link: Link| Direction {
            port: Port::default(),
            link,
            carried: Carried::default(),
        };
        let nics = options.host_count() * options.nics_per_host();
        let mut ports = Vec::new();
        for (class, count) in [
            (Class::Network, nics),
            (Class::Host, options.ranks),
            (Class::Loopback, options.ranks),
        ] {
            let both = [free(options.link(class)); 2];
            ports.extend((0..count).map(|_| both));
        }
        for slow in &options.slow_nics {
            let nic = slow.host * options.nics_per_host() + slow.nic;
            for one in &mut ports[nic as usize] {
                let rate = one.link.bytes_per_second as f64 * slow.share;
                one.link.bytes_per_second = (rate as u64).max(1);
            }
        }
        let nics_of_host = options.nics_per_host();
        let tiers = options.tiers.iter().map(|tier| {
            let below = f64::from(tier.hosts) * f64::from(nics_of_host);
            let rate = below * options.network.bytes_per_second as f64 / tier.oversubscription;
            let switches = options.host_count().div_ceil(tier.hosts) as usize;
            Trunks {
                tier: *tier,
                bytes_per_second: rate,
                up: vec![Trunk::default(); switches],
                down: vec![Trunk::default(); switches],
            }
        });
        Wires {
            tiers: tiers.collect(),
            ports,
            nics,
            options: options.clone(),
        }
    }

    /// The way from a rank to another.
    pub(crate) fn route(&self, from: Rank, to: Rank) -> Route {
        let options = &self.options;
        let class = options.class(from, to);
        let base_ns = options.link(class).latency_ns;
        let (send, receive, hops) = match class {
            Class::Network => (
                options.nic_of(from),
                options.nic_of(to),
                self.hops(from, to),
            ),
            Class::Host => (self.nics + from, self.nics + to, (0, 0)),
            Class::Loopback => {
                let first = self.nics + options.ranks;
                (first + from, first + to, (0, 0))
            }
        };
        let (tiers, hops_ns) = hops;
        Route {
            class,
            send,
            receive,
            latency_ns: base_ns + hops_ns,
            tiers,
        }
    }

    /// How many tiers' trunks lie between two ranks, and the time through all switches.
    fn hops(&self, from: Rank, to: Rank) -> (u32, u64) {
        if self.tiers.is_empty() {
            return (0, 0);
        }
        let (from, to) = (self.host_of(from), self.host_of(to));
        let mut ns = 0;
        for (at, trunks) in (0..).zip(&self.tiers) {
            if from / trunks.tier.hosts == to / trunks.tier.hosts {
                return (at, ns + trunks.tier.hop_ns);
            }
            ns += 2 * trunks.tier.hop_ns;
        }
        (self.tiers.len() as u32, ns)
    }

    fn host_of(&self, rank: Rank) -> u32 {
        let each = self.options.hosts.map_or(1, |hosts| hosts.ranks_per_host);
        rank / each
    }

    /// How long a packet of this many bytes holds the send port of a route.
    pub(crate) fn send_hold_ns(&self, route: &Route, bytes: u64) -> u64 {
        self.ports[route.send as usize][SEND].link.hold_ns(bytes)
    }

    /// How long it holds the receive port.
    pub(crate) fn receive_hold_ns(&self, route: &Route, bytes: u64) -> u64 {
        let one = &self.ports[route.receive as usize][RECEIVE];
        one.link.hold_ns(bytes)
    }

    /// What a message holds a port besides its bytes.
    pub(crate) fn message_ns(&self, route: &Route) -> u64 {
        self.ports[route.send as usize][SEND].link.per_message_ns
    }

    /// Begins to send; returns when the first byte leaves.
    pub(crate) fn send(&mut self, route: &Route, now: u64, hold_ns: u64, bytes: u64) -> u64 {
        let one = &mut self.ports[route.send as usize][SEND];
        one.carried.add(bytes, hold_ns);
        one.port.reserve(now, hold_ns, is_small(bytes))
    }

    /// The first byte leaves at `now`: returns by how much the trunks of the route delay the
    /// packet. `hold_ns`: how long its port takes for it.
    pub(crate) fn cross(
        &mut self,
        (from, to): (Rank, Rank),
        route: &Route,
        now: u64,
        (hold_ns, bytes): (u64, u64),
    ) -> u64 {
        let (from, to) = (self.host_of(from), self.host_of(to));
        // Behind a trunk the bytes come as fast as that and all before it let them.
        let (mut begin, mut spread_ns) = (now, hold_ns);
        for trunks in &mut self.tiers[..route.tiers as usize] {
            let own_ns = (bytes as f64 * 1e9 / trunks.bytes_per_second).ceil() as u64;
            let switches = [from, to].map(|host| (host / trunks.tier.hosts) as usize);
            for trunk in [&mut trunks.up[switches[0]], &mut trunks.down[switches[1]]] {
                trunk.free_ns = trunk.free_ns.max(begin) + own_ns;
                trunk.carried.add(bytes, own_ns);
                let last = trunk.free_ns.max(begin + spread_ns);
                spread_ns = spread_ns.max(own_ns);
                begin = last - spread_ns;
            }
        }
        begin + spread_ns - hold_ns - now
    }

    /// The first byte is here at `now`; returns when the last one is through. It comes no earlier
    /// than the sender's port, which holds the packet for `sent_ns`, lets it go.
    pub(crate) fn receive(
        &mut self,
        route: &Route,
        now: u64,
        (sent_ns, hold_ns): (u64, u64),
        bytes: u64,
    ) -> u64 {
        let one = &mut self.ports[route.receive as usize][RECEIVE];
        one.carried.add(bytes, hold_ns);
        let begin = one.port.reserve(now, hold_ns, is_small(bytes));
        (begin + hold_ns).max(now + sent_ns)
    }

    /// Frees the ports of a rank that comes back; those of a NIC that it shares stay as they are.
    pub(super) fn reset(&mut self, rank: Rank) {
        let shared = self
            .options
            .hosts
            .is_some_and(|h| h.nics < h.ranks_per_host);
        let inside = [self.nics + rank, self.nics + self.options.ranks + rank];
        let nic = (!shared).then(|| self.options.nic_of(rank));
        for port in inside.into_iter().chain(nic) {
            for one in &mut self.ports[port as usize] {
                one.port = Port::default();
            }
        }
    }

    /// What each NIC has sent and received.
    pub(crate) fn of_nics(&self) -> impl Iterator<Item = [Carried; 2]> {
        let nics = self.ports[..self.nics as usize].iter();
        nics.map(|both| both.map(|one| one.carried))
    }

    /// What each rank has sent to others of its host, and received from them.
    pub(crate) fn of_insides(&self) -> impl Iterator<Item = [Carried; 2]> {
        let (first, ranks) = (self.nics as usize, self.options.ranks as usize);
        let insides = self.ports[first..first + ranks].iter();
        insides.map(|both| both.map(|one| one.carried))
    }

    /// By tier, what the trunks of each switch have carried up and down.
    pub(crate) fn of_trunks(&self) -> impl Iterator<Item = Vec<[Carried; 2]>> {
        self.tiers.iter().map(|trunks| {
            let both = trunks.up.iter().zip(&trunks.down);
            both.map(|(up, down)| [up.carried, down.carried]).collect()
        })
    }

    /// The host and the number, in it, of a NIC.
    pub(crate) fn place_of_nic(&self, nic: u32) -> (u32, u32) {
        let each = self.options.nics_per_host();
        (nic / each, nic % each)
    }

    /// Whether a port is a NIC's.
    pub(crate) fn is_nic(&self, port: u32) -> bool {
        port < self.nics
    }

    /// The rank of a port that is no NIC's.
    pub(crate) fn rank_of_port(&self, port: u32) -> Rank {
        (port - self.nics) % self.options.ranks
    }

    /// The switch of a tier below which a rank is.
    pub(crate) fn switch_of(&self, tier: usize, rank: Rank) -> u32 {
        self.host_of(rank) / self.tiers[tier].tier.hosts
    }
}

#[cfg(test)]
mod tests {
    use super::super::options::{Hosts, SlowNic};
    use super::*;

    const LINK: Link = Link {
        latency_ns: 1_000,
        bytes_per_second: 1_000_000_000,
        per_message_ns: 0,
        jitter_ns: 0,
    };

    /// Four hosts of two ranks that share a NIC; two hosts below a switch.
    fn options(oversubscription: f64) -> SimOptions {
        SimOptions {
            network: LINK,
            hosts: Some(Hosts {
                ranks_per_host: 2,
                nics: 1,
                link: Link::HOST,
            }),
            tiers: vec![Tier {
                hosts: 2,
                oversubscription,
                hop_ns: 100,
            }],
            ..SimOptions::new(8, 1)
        }
    }

    fn pass(wires: &mut Wires, from: Rank, to: Rank, bytes: u64) -> u64 {
        let route = wires.route(from, to);
        let holds = (
            wires.send_hold_ns(&route, bytes),
            wires.receive_hold_ns(&route, bytes),
        );
        let begin = wires.send(&route, 0, holds.0, bytes);
        let delay = wires.cross((from, to), &route, begin, (holds.0, bytes));
        wires.receive(&route, begin + route.latency_ns + delay, holds, bytes)
    }

    #[test]
    fn switches_on_the_way_add_their_time() {
        let wires = Wires::new(&options(1.0));
        assert_eq!(wires.route(0, 1).latency_ns, Link::HOST.latency_ns);
        assert_eq!(wires.route(0, 2).latency_ns, 1_100);
        assert_eq!(wires.route(0, 4).latency_ns, 1_200);
        assert!(!wires.route(0, 2).has_trunks() && wires.route(0, 4).has_trunks());
    }

    #[test]
    fn ranks_share_the_nic_of_their_host() {
        let mut wires = Wires::new(&options(1.0));
        assert_eq!(pass(&mut wires, 0, 2, 10_000), 11_100);
        assert_eq!(pass(&mut wires, 1, 4, 10_000), 10_000 + 11_200);
        assert_eq!(wires.of_nics().next().unwrap()[SEND].bytes, 20_000);
        assert_eq!(wires.of_trunks().next().unwrap()[0][0].bytes, 10_000);
    }

    #[test]
    fn a_trunk_delays_what_it_cannot_carry_at_the_rate_of_the_nics() {
        for (oversubscription, ends) in [(1.0, [11_200, 11_200]), (2.0, [11_200, 21_200])] {
            let mut wires = Wires::new(&options(oversubscription));
            let first = pass(&mut wires, 0, 4, 10_000);
            let second = pass(&mut wires, 2, 6, 10_000);
            assert_eq!([first, second], ends, "{oversubscription}");
        }
    }

    #[test]
    fn bytes_come_no_faster_than_a_slow_nic_sends_them() {
        let mut options = options(1.0);
        options.slow_nics.push(SlowNic {
            host: 0,
            nic: 0,
            share: 0.5,
        });
        let mut wires = Wires::new(&options);
        assert_eq!(pass(&mut wires, 0, 2, 10_000), 21_100);
        assert_eq!(pass(&mut wires, 2, 0, 10_000), 21_100);
    }
}
