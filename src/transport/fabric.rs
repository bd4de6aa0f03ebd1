//! [`Fabric`]: what carries the packets of a device.

use std::fmt;

/// What devices of two ranks must have in common to reach each other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fabric {
    /// InfiniBand.
    InfiniBand,
    /// Frames on one Ethernet.
    RoceV1,
    /// Packets of UDP over IP.
    RoceV2,
    /// Amazon's, which libfabric reaches.
    Efa,
}

impl Fabric {
    /// All fabrics, in the order of the numbers from 1 that ranks send each other.
    pub const ALL: [Fabric; 4] = [
        Fabric::InfiniBand,
        Fabric::RoceV1,
        Fabric::RoceV2,
        Fabric::Efa,
    ];
}

impl fmt::Display for Fabric {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Fabric::InfiniBand => "InfiniBand",
            Fabric::RoceV1 => "RoCEv1",
            Fabric::RoceV2 => "RoCEv2",
            Fabric::Efa => "EFA",
        })
    }
}
