//! [`Half`]: one queue pair that waits for its other half, as the other side is told of it.

use crate::transport::rdma::{OFFER_BYTES, Offer};

/// See the module.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Half {
    pub queue_pair: u32,
    pub packet_number: u32,
    pub lid: u16,
    /// As verbs count: 1 is 256 bytes, 5 is 4096.
    pub mtu: u8,
    pub is_ethernet: bool,
    /// Reads and atomics that this side answers at once.
    pub reads_max: u8,
    pub gid: [u8; 16],
}

impl Half {
    pub fn emit(&self) -> Offer {
        let mut out = [0; OFFER_BYTES];
        out[..4].copy_from_slice(&self.queue_pair.to_le_bytes());
        out[4..8].copy_from_slice(&self.packet_number.to_le_bytes());
        out[8..10].copy_from_slice(&self.lid.to_le_bytes());
        out[10] = self.mtu;
        out[11] = u8::from(self.is_ethernet);
        out[12] = self.reads_max;
        out[16..32].copy_from_slice(&self.gid);
        out
    }

    pub fn parse(offer: &Offer) -> Half {
        let number = |at: usize| u32::from_le_bytes(offer[at..at + 4].try_into().expect("four"));
        Half {
            queue_pair: number(0),
            packet_number: number(4),
            lid: u16::from_le_bytes([offer[8], offer[9]]),
            mtu: offer[10],
            is_ethernet: offer[11] != 0,
            reads_max: offer[12],
            gid: offer[16..32].try_into().expect("sixteen"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn halves_of_queue_pairs_come_back() {
        let half = Half {
            queue_pair: 1 << 23,
            packet_number: 0xfffff0,
            lid: 77,
            mtu: 5,
            is_ethernet: true,
            reads_max: 16,
            gid: [9; 16],
        };
        assert_eq!(Half::parse(&half.emit()), half);
        assert_eq!(Half::parse(&Half::default().emit()), Half::default());
    }
}
