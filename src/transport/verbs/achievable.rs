//! What a port can carry at best: payload after everything that travels with it, so that a measured
//! bandwidth can be given as a share of what is possible.
//!
//! Two bounds, and the smaller one counts: the wire, and the PCIe link between NIC and memory. Both
//! leave out what depends on time (pauses, credits, acknowledgements of the other direction, PCIe's
//! own acknowledgements and flow control, some percent), so that nothing can be faster, and nothing
//! quite reaches them.
//!
//! Sources: IEEE 802.3 clause 4.4 (preamble, gap, frame check, smallest frame); RFC 791, RFC 8200,
//! RFC 768; InfiniBand specification volume 1, chapters 7.7 (link), 8.3 (GRH) and 9.2 to 9.4
//! (transport headers), annex A17 (RoCEv2); PCI Express base specification 3.1, chapters 2.2 (TLP
//! headers), 3.6 (LCRC) and 4.2 (encoding); for the bytes of a TLP also Neugebauer et al.,
//! "Understanding PCIe performance for end host networking", SIGCOMM 2018, section 3.

use super::sysfs::{LinkLayer, PcieLink, Port};
use std::fmt;

/// Preamble with start delimiter (8) and the gap between frames (12): on the wire, and in no frame.
const ETHERNET_OUTSIDE_BYTES: u64 = 20;
/// Addresses and type (14), frame check (4).
const ETHERNET_BYTES: u64 = 18;
const VLAN_BYTES: u64 = 4;
/// Shorter frames are filled up.
const FRAME_BYTES_MIN: u64 = 64;
const IPV4_BYTES: u64 = 20;
const IPV6_BYTES: u64 = 40;
const UDP_BYTES: u64 = 8;
/// Local route header.
const LRH_BYTES: u64 = 8;
/// Variant CRC, which each InfiniBand link checks.
const VCRC_BYTES: u64 = 2;
/// Global route header, between InfiniBand's subnets.
const GRH_BYTES: u64 = 40;
/// Base transport header, of every packet.
const BTH_BYTES: u64 = 12;
/// Address, key and length, in the first packet of a write.
const RETH_BYTES: u64 = 16;
/// Immediate data, in the last packet.
const IMMEDIATE_BYTES: u64 = 4;
/// In the first and last packet of an answer to a read.
const AETH_BYTES: u64 = 4;
/// Invariant CRC, of every packet.
const ICRC_BYTES: u64 = 4;
/// Payload is filled up to a multiple of it.
const PAD_BYTES: u64 = 4;

/// Largest payload of a PCIe packet on most hosts. The exact one is in the device's configuration,
/// which only root may read.
const PCIE_PAYLOAD_BYTES: f64 = 256.0;
/// Framing and sequence (4), LCRC (4) and a header of four words, for 64-bit addresses (16).
const PCIE_WRITE_BYTES: f64 = 24.0;
/// The same with a header of three words: an answer to a read.
const PCIE_COMPLETION_BYTES: f64 = 20.0;

/// What packets are wrapped in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wire {
    /// RoCE version 2 on Ethernet.
    RoceV2 {
        /// Over IPv6 instead of IPv4.
        is_ipv6: bool,
        /// With a VLAN tag.
        has_vlan: bool,
    },
    /// RoCE version 1 on Ethernet.
    RoceV1 {
        /// With a VLAN tag.
        has_vlan: bool,
    },
    /// InfiniBand.
    InfiniBand {
        /// Between subnets.
        is_global: bool,
    },
}

/// What carries the payload.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Carrier {
    /// A message to a receive.
    Send,
    /// A write.
    Write,
    /// A write with immediate data.
    WriteImmediate,
    /// The answer to a read.
    ReadAnswer,
}

impl Wire {
    /// Bytes on the wire of a packet with `transport` bytes of headers behind BTH and `payload`
    /// bytes.
    fn packet_bytes(self, transport: u64, payload: u64) -> u64 {
        let inside = BTH_BYTES + transport + payload.next_multiple_of(PAD_BYTES) + ICRC_BYTES;
        let tag = |has_vlan| if has_vlan { VLAN_BYTES } else { 0 };
        let frame = |network: u64, has_vlan| {
            let frame = ETHERNET_BYTES + tag(has_vlan) + network + inside;
            frame.max(FRAME_BYTES_MIN) + ETHERNET_OUTSIDE_BYTES
        };
        match self {
            Wire::RoceV2 { is_ipv6, has_vlan } => {
                let ip = if is_ipv6 { IPV6_BYTES } else { IPV4_BYTES };
                frame(ip + UDP_BYTES, has_vlan)
            }
            Wire::RoceV1 { has_vlan } => frame(GRH_BYTES, has_vlan),
            Wire::InfiniBand { is_global } => {
                LRH_BYTES + if is_global { GRH_BYTES } else { 0 } + inside + VCRC_BYTES
            }
        }
    }

    /// Bytes on the wire of one message in packets of at most `mtu_bytes` payload.
    pub fn message_bytes(self, carrier: Carrier, message_bytes: u64, mtu_bytes: u32) -> u64 {
        let mtu = u64::from(mtu_bytes.max(1));
        let packets = message_bytes.div_ceil(mtu).max(1);
        let last = message_bytes - (packets - 1) * mtu;
        let headers = |is_first: bool, is_last: bool| match carrier {
            Carrier::Send => 0,
            Carrier::Write => u64::from(is_first) * RETH_BYTES,
            Carrier::WriteImmediate => {
                u64::from(is_first) * RETH_BYTES + u64::from(is_last) * IMMEDIATE_BYTES
            }
            Carrier::ReadAnswer => u64::from(is_first || is_last) * AETH_BYTES,
        };
        if packets == 1 {
            return self.packet_bytes(headers(true, true), last);
        }
        self.packet_bytes(headers(true, false), mtu)
            + (packets - 2) * self.packet_bytes(headers(false, false), mtu)
            + self.packet_bytes(headers(false, true), last)
    }

    /// Payload per byte on the wire.
    pub fn payload_share(self, carrier: Carrier, message_bytes: u64, mtu_bytes: u32) -> f64 {
        message_bytes as f64 / self.message_bytes(carrier, message_bytes, mtu_bytes) as f64
    }
}

/// The way that payload takes over PCIe.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Bus {
    /// The device writes to memory: what arrives.
    Write,
    /// The device reads from memory: what leaves.
    Read,
}

/// Gbit/s of payload that a PCIe link carries in one direction.
pub fn pcie_gigabits(link: PcieLink, way: Bus) -> f64 {
    let header = match way {
        Bus::Write => PCIE_WRITE_BYTES,
        Bus::Read => PCIE_COMPLETION_BYTES,
    };
    let share = PCIE_PAYLOAD_BYTES / (PCIE_PAYLOAD_BYTES + header);
    link.gigatransfers * pcie_coding(link) * f64::from(link.width) * share
}

/// Bits of data per bit of the link.
fn pcie_coding(link: PcieLink) -> f64 {
    match link.gigatransfers {
        // Generations 1 and 2: 8 bits in 10.
        speed if speed <= 5.0 => 8.0 / 10.0,
        // 3 to 5: 128 in 130.
        speed if speed <= 32.0 => 128.0 / 130.0,
        // From 6 on: units of 256 bytes, 236 of them for packets.
        _ => 236.0 / 256.0,
    }
}

impl PcieLink {
    /// 1 to 6; 0 if it is none of them.
    pub fn generation(&self) -> u32 {
        let speeds = [2.5, 5.0, 8.0, 16.0, 32.0, 64.0];
        let found = speeds.iter().position(|&speed| speed == self.gigatransfers);
        found.map_or(0, |index| index as u32 + 1)
    }
}

impl fmt::Display for PcieLink {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "PCIe {}.0 x{}", self.generation(), self.width)
    }
}

/// Gbit/s that a port's wire carries, headers included. The kernel's rate of old InfiniBand speeds
/// is that of the signal, of which the coding takes a part; that of Ethernet and of newer speeds is
/// already what is left. `None`: it does not say.
pub fn wire_gigabits(port: &Port) -> Option<f64> {
    let rate = port.gigabits();
    let name = port.rate.trim_end_matches(')').split_whitespace().last()?;
    let coding = match (port.link_layer, name) {
        (LinkLayer::InfiniBand, "SDR" | "DDR" | "QDR") => 8.0 / 10.0,
        // 14.0625 a lane, which the kernel writes as 14.
        (LinkLayer::InfiniBand, "FDR") => 14.0625 / 14.0 * 64.0 / 66.0,
        _ => 1.0,
    };
    (rate > 0.0).then_some(rate * coding)
}

/// What a message size can reach.
#[derive(Clone, Debug, PartialEq)]
pub struct Achievable {
    /// Gbit/s of payload on the wire.
    pub wire_gigabits: f64,
    /// Gbit/s of payload over PCIe, where the link is known.
    pub pcie_gigabits: Option<f64>,
    /// Payload per byte on the wire.
    pub payload_share: f64,
}

impl Achievable {
    /// Of a port whose wire carries `wire_gigabits` ([`wire_gigabits`]).
    pub fn of(
        wire_gigabits: f64,
        link: Option<PcieLink>,
        wire: Wire,
        carrier: Carrier,
        (message_bytes, mtu_bytes): (u64, u32),
    ) -> Achievable {
        let payload_share = wire.payload_share(carrier, message_bytes, mtu_bytes);
        // What leaves is read from memory at one end, what arrives is written at the other; equal
        // hosts are assumed, and writing is the dearer of both.
        Achievable {
            wire_gigabits: wire_gigabits * payload_share,
            pcie_gigabits: link.map(|link| pcie_gigabits(link, Bus::Write)),
            payload_share,
        }
    }

    /// The smaller bound, Gbit/s.
    pub fn gigabits(&self) -> f64 {
        self.pcie_gigabits
            .map_or(self.wire_gigabits, |bus| bus.min(self.wire_gigabits))
    }

    /// A measured payload rate as a share of it, in percent.
    pub fn percent(&self, measured_gigabits: f64) -> f64 {
        100.0 * measured_gigabits / self.gigabits()
    }
}

impl fmt::Display for Achievable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{:.1} Gbit/s of payload on the wire ({:.1} % of its bytes)",
            self.wire_gigabits,
            100.0 * self.payload_share
        )?;
        match self.pcie_gigabits {
            Some(bus) if bus < self.wire_gigabits => write!(f, ", and only {bus:.1} over PCIe"),
            Some(bus) => write!(f, ", {bus:.1} over PCIe"),
            None => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ROCE: Wire = Wire::RoceV2 {
        is_ipv6: false,
        has_vlan: false,
    };
    const INFINIBAND: Wire = Wire::InfiniBand { is_global: false };

    #[test]
    fn a_roce_packet_is_the_sum_of_its_headers() {
        // 20 outside, 14 + 4 Ethernet, 20 IPv4, 8 UDP, 12 BTH, 16 RETH, 4 ICRC.
        assert_eq!(ROCE.message_bytes(Carrier::Write, 4096, 4096), 4096 + 98);
        assert_eq!(ROCE.message_bytes(Carrier::Send, 4096, 4096), 4096 + 82);
        // RETH in the first packet only, immediate data in the last only.
        let two = ROCE.message_bytes(Carrier::WriteImmediate, 8192, 4096);
        assert_eq!(two, 8192 + 2 * 82 + 16 + 4);
        let three = ROCE.message_bytes(Carrier::ReadAnswer, 3 * 1024, 1024);
        assert_eq!(three, 3 * 1024 + 3 * 82 + 2 * 4);
        let tagged = Wire::RoceV2 {
            is_ipv6: true,
            has_vlan: true,
        };
        assert_eq!(
            tagged.message_bytes(Carrier::Send, 4096, 4096),
            4096 + 82 + 20 + 4
        );
        let old = Wire::RoceV1 { has_vlan: false };
        assert_eq!(
            old.message_bytes(Carrier::Send, 4096, 4096),
            4096 + 82 + 40 - 28
        );
    }

    #[test]
    fn an_infiniband_packet_is_the_sum_of_its_headers() {
        // 8 LRH, 12 BTH, 16 RETH, 4 ICRC, 2 VCRC.
        assert_eq!(
            INFINIBAND.message_bytes(Carrier::Write, 4096, 4096),
            4096 + 42
        );
        let routed = Wire::InfiniBand { is_global: true };
        assert_eq!(routed.message_bytes(Carrier::Write, 4096, 4096), 4096 + 82);
    }

    #[test]
    fn short_messages_are_padded_and_short_frames_filled() {
        assert_eq!(INFINIBAND.message_bytes(Carrier::Send, 5, 4096), 8 + 26);
        assert_eq!(
            ROCE.message_bytes(Carrier::Send, 0, 4096),
            64 + 20,
            "62 bytes are filled up"
        );
        assert_eq!(ROCE.message_bytes(Carrier::Send, 3, 4096), 66 + 20);
        assert_eq!(ROCE.payload_share(Carrier::Send, 0, 4096), 0.0);
    }

    #[test]
    fn larger_packets_carry_a_larger_share() {
        let share = |mtu| ROCE.payload_share(Carrier::Write, 1 << 20, mtu);
        // A write of 1 MiB: 82 bytes with each packet, 16 once.
        assert!((share(1024) - 0.92584).abs() < 1e-4, "{}", share(1024));
        assert!((share(4096) - 0.98035).abs() < 1e-4, "{}", share(4096));
        assert!(share(256) < share(512) && share(512) < share(1024));
    }

    #[test]
    fn pcie_carries_what_coding_and_headers_leave() {
        let link = |gigatransfers, width| PcieLink {
            gigatransfers,
            width,
        };
        let near = |found: f64, expected: f64| {
            assert!((found - expected).abs() < 0.05, "{found}, not {expected}")
        };
        near(pcie_gigabits(link(8.0, 16), Bus::Write), 115.2);
        near(pcie_gigabits(link(8.0, 16), Bus::Read), 116.9);
        near(pcie_gigabits(link(16.0, 16), Bus::Write), 230.5);
        near(pcie_gigabits(link(5.0, 8), Bus::Write), 29.3);
        let names =
            [link(2.5, 1), link(32.0, 16), link(64.0, 4), link(7.0, 2)].map(|l| l.to_string());
        assert_eq!(
            names,
            ["PCIe 1.0 x1", "PCIe 5.0 x16", "PCIe 6.0 x4", "PCIe 0.0 x2"]
        );
    }

    fn port(link_layer: LinkLayer, rate: &str) -> Port {
        Port {
            number: 1,
            link_layer,
            state: "ACTIVE".into(),
            physical_state: "LinkUp".into(),
            rate: rate.into(),
            gids: Vec::new(),
        }
    }

    #[test]
    fn old_infiniband_rates_are_those_of_the_signal() {
        use LinkLayer::{Ethernet, InfiniBand};
        let rate = |layer, text| wire_gigabits(&port(layer, text));
        assert_eq!(rate(InfiniBand, "40 Gb/sec (4X QDR)"), Some(32.0));
        assert_eq!(rate(InfiniBand, "100 Gb/sec (4X EDR)"), Some(100.0));
        let fdr = rate(InfiniBand, "56 Gb/sec (4X FDR)").unwrap();
        assert!((fdr - 54.5454).abs() < 1e-3, "{fdr}");
        assert_eq!(rate(Ethernet, "40 Gb/sec (4X QDR)"), Some(40.0));
        assert_eq!(rate(Ethernet, "2.5 Gb/sec (1X SDR)"), Some(2.5));
        assert_eq!(rate(Ethernet, ""), None);
    }

    #[test]
    fn the_smaller_bound_counts_and_is_named() {
        let gen3_x8 = Some(PcieLink {
            gigatransfers: 8.0,
            width: 8,
        });
        let bound = Achievable::of(100.0, gen3_x8, ROCE, Carrier::Write, (1 << 20, 4096));
        assert!((bound.gigabits() - 57.6).abs() < 0.05, "{bound:?}");
        assert!((bound.percent(28.8) - 50.0).abs() < 0.1, "{bound:?}");
        assert!(bound.to_string().contains("only 57.6 over PCIe"), "{bound}");
        let bound = Achievable::of(100.0, None, ROCE, Carrier::Write, (1 << 20, 4096));
        assert!((bound.gigabits() - 98.035).abs() < 0.01, "{bound:?}");
    }
}
