//! What the wire of a port can carry at best: payload after everything that travels with it, so
//! that a measured bandwidth can be given as a share of what is possible.
//!
//! What depends on time is left out (pauses, credits, acknowledgements of the other direction), so
//! that nothing can be faster, and nothing quite reaches it.
//!
//! Sources: IEEE 802.3 clause 4.4 (preamble, gap, frame check, smallest frame); RFC 791, RFC 8200,
//! RFC 768; InfiniBand specification volume 1, chapters 7.7 (link), 8.3 (GRH) and 9.2 to 9.4
//! (transport headers), annex A17 (RoCEv2).

use linerate::unstable::verbs::sysfs::{LinkLayer, Port};

/// Preamble with start delimiter (8) and the gap between frames (12): on the wire, and in no frame.
const ETHERNET_OUTSIDE_BYTES: u64 = 20;
/// Addresses and type (14), frame check (4).
const ETHERNET_BYTES: u64 = 18;
/// Shorter frames are filled up.
const FRAME_BYTES_MIN: u64 = 64;
const IPV4_BYTES: u64 = 20;
const IPV6_BYTES: u64 = 40;
const UDP_BYTES: u64 = 8;
/// Local route header.
const LRH_BYTES: u64 = 8;
/// Variant CRC, which each InfiniBand link checks.
const VCRC_BYTES: u64 = 2;
/// Global route header, of RoCE version 1.
const GRH_BYTES: u64 = 40;
/// Base transport header, of every packet.
const BTH_BYTES: u64 = 12;
/// Address, key and length, in the first packet of a write.
const RETH_BYTES: u64 = 16;
/// In the first and last packet of an answer to a read.
const AETH_BYTES: u64 = 4;
/// Invariant CRC, of every packet.
const ICRC_BYTES: u64 = 4;
/// Payload is filled up to a multiple of it.
const PAD_BYTES: u64 = 4;

/// What packets are wrapped in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wire {
    /// RoCE version 2 on Ethernet, without a VLAN tag.
    RoceV2 {
        /// Over IPv6 instead of IPv4.
        is_ipv6: bool,
    },
    /// RoCE version 1 on Ethernet, without a VLAN tag.
    RoceV1,
    /// InfiniBand, within a subnet.
    InfiniBand,
}

/// What carries the payload.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Carrier {
    /// A message to a receive.
    Send,
    /// A write.
    Write,
    /// The answer to a read.
    ReadAnswer,
}

impl Wire {
    /// Bytes on the wire of a packet with `transport` bytes of headers behind BTH and `payload`
    /// bytes.
    fn packet_bytes(self, transport: u64, payload: u64) -> u64 {
        let inside = BTH_BYTES + transport + payload.next_multiple_of(PAD_BYTES) + ICRC_BYTES;
        let frame = |network: u64| {
            let frame = ETHERNET_BYTES + network + inside;
            frame.max(FRAME_BYTES_MIN) + ETHERNET_OUTSIDE_BYTES
        };
        match self {
            Wire::RoceV2 { is_ipv6: false } => frame(IPV4_BYTES + UDP_BYTES),
            Wire::RoceV2 { is_ipv6: true } => frame(IPV6_BYTES + UDP_BYTES),
            Wire::RoceV1 => frame(GRH_BYTES),
            Wire::InfiniBand => LRH_BYTES + inside + VCRC_BYTES,
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

#[cfg(test)]
mod tests {
    use super::*;

    const ROCE: Wire = Wire::RoceV2 { is_ipv6: false };

    #[test]
    fn a_roce_packet_is_the_sum_of_its_headers() {
        // 20 outside, 14 + 4 Ethernet, 20 IPv4, 8 UDP, 12 BTH, 16 RETH, 4 ICRC.
        assert_eq!(ROCE.message_bytes(Carrier::Write, 4096, 4096), 4096 + 98);
        assert_eq!(ROCE.message_bytes(Carrier::Send, 4096, 4096), 4096 + 82);
        // RETH in the first packet only.
        let two = ROCE.message_bytes(Carrier::Write, 8192, 4096);
        assert_eq!(two, 8192 + 2 * 82 + 16);
        let three = ROCE.message_bytes(Carrier::ReadAnswer, 3 * 1024, 1024);
        assert_eq!(three, 3 * 1024 + 3 * 82 + 2 * 4);
        let newer = Wire::RoceV2 { is_ipv6: true };
        let longer = newer.message_bytes(Carrier::Send, 4096, 4096);
        assert_eq!(longer, 4096 + 82 + 20);
        let old = Wire::RoceV1.message_bytes(Carrier::Send, 4096, 4096);
        assert_eq!(old, 4096 + 82 + 40 - 28);
    }

    #[test]
    fn an_infiniband_packet_is_the_sum_of_its_headers() {
        // 8 LRH, 12 BTH, 16 RETH, 4 ICRC, 2 VCRC.
        assert_eq!(
            Wire::InfiniBand.message_bytes(Carrier::Write, 4096, 4096),
            4096 + 42
        );
    }

    #[test]
    fn short_messages_are_padded_and_short_frames_filled() {
        assert_eq!(
            Wire::InfiniBand.message_bytes(Carrier::Send, 5, 4096),
            8 + 26
        );
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
}
