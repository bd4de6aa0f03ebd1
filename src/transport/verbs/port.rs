//! [`Port`]: a port of a device as it is on the network.

use super::gid::{self, Gid};
use linerate_verbs_sys::LINK_LAYER_ETHERNET;
use linerate_verbs_sys::raw::{ibv_mtu, ibv_port_attr, ibv_port_state};

/// A port of a device.
#[derive(Debug)]
pub struct Port {
    device: String,
    number: u8,
    /// Where its packets come from, on Ethernet; its place in the port's table may change
    /// ([`Port::refresh`]).
    gid: Option<Gid>,
    lid: u16,
    mtu: ibv_mtu,
    /// The least MTU of the peers' ports that this one is joined with.
    peers_mtu: Option<ibv_mtu>,
    is_ethernet: bool,
    /// It carries packets, as far as the device has told.
    is_active: bool,
}

impl Port {
    /// A port of a device, whose packets come from this GID and carry at most this many bytes.
    pub fn new(
        (device, number): (String, u8),
        gid: Option<Gid>,
        state: &ibv_port_attr,
        mtu_bytes: Option<u32>,
    ) -> Port {
        Port {
            device,
            number,
            gid,
            lid: state.lid,
            mtu: ibv_mtu(state.active_mtu.0.min(mtu_code(mtu_bytes))),
            peers_mtu: None,
            is_ethernet: state.link_layer == LINK_LAYER_ETHERNET,
            is_active: state.state == ibv_port_state::IBV_PORT_ACTIVE,
        }
    }

    /// The name of its device.
    pub fn device(&self) -> &str {
        &self.device
    }

    /// Counted from 1.
    pub fn number(&self) -> u8 {
        self.number
    }

    pub fn lid(&self) -> u16 {
        self.lid
    }

    /// Payload of a packet, as verbs say it.
    pub fn mtu(&self) -> ibv_mtu {
        self.mtu
    }

    /// Payload of a packet, as far as this port goes.
    pub fn mtu_bytes(&self) -> u32 {
        128 << self.mtu.0
    }

    /// The least payload of a packet among the ports at the other ends.
    pub fn peers_mtu_bytes(&self) -> Option<u32> {
        self.peers_mtu.map(|mtu| 128 << mtu.0)
    }

    /// A peer's port has this MTU, as verbs say it.
    pub fn note_peer_mtu(&mut self, code: u8) {
        let code = u32::from(code).clamp(ibv_mtu::IBV_MTU_256.0, ibv_mtu::IBV_MTU_4096.0);
        let least = self.peers_mtu.map_or(code, |known| known.0.min(code));
        self.peers_mtu = Some(ibv_mtu(least));
    }

    /// Ethernet, or InfiniBand.
    pub fn is_ethernet(&self) -> bool {
        self.is_ethernet
    }

    /// Whether it carries packets, as far as is known.
    pub fn is_active(&self) -> bool {
        self.is_active
    }

    /// The port carries no packets now.
    pub fn note_down(&mut self) {
        self.is_active = false;
    }

    /// Takes over the state that the device tells, if it tells one. `gids`: its table now.
    pub fn refresh(&mut self, state: Option<ibv_port_attr>, gids: impl FnOnce() -> Vec<Gid>) {
        if let Some(state) = state {
            self.is_active = state.state == ibv_port_state::IBV_PORT_ACTIVE;
            // The subnet may have given it another LID while it was down.
            self.lid = state.lid;
        }
        if self.is_active {
            self.is_active = self.refresh_gid(gids);
        }
    }

    /// Looks for the GID where it was, and then elsewhere: an interface that was down may have been
    /// given its addresses in another order, or others. False: it has none.
    fn refresh_gid(&mut self, gids: impl FnOnce() -> Vec<Gid>) -> bool {
        let Some(before) = &self.gid else {
            return true;
        };
        let found = gid::find_again(&gids(), before).cloned();
        let is_there = found.is_some();
        self.gid = found.or(self.gid.take());
        is_there
    }

    /// Where its packets come from, on Ethernet.
    pub fn gid(&self) -> Option<&Gid> {
        self.gid.as_ref()
    }

    /// The GID as peers name it; zeros on InfiniBand.
    pub fn gid_bytes(&self) -> [u8; 16] {
        self.gid.as_ref().map_or([0; 16], |gid| gid.bytes)
    }

    /// Its place in the port's table.
    pub fn gid_index(&self) -> u32 {
        self.gid.as_ref().map_or(0, |gid| gid.index)
    }
}

/// This payload of a packet as verbs say it; the greatest where none is asked for.
fn mtu_code(bytes: Option<u32>) -> u32 {
    bytes.map_or(ibv_mtu::IBV_MTU_4096.0, |bytes| (bytes / 128).ilog2())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn payloads_have_the_numbers_of_verbs() {
        assert_eq!(mtu_code(Some(256)), ibv_mtu::IBV_MTU_256.0);
        assert_eq!(mtu_code(Some(1024)), ibv_mtu::IBV_MTU_1024.0);
        assert_eq!(mtu_code(None), ibv_mtu::IBV_MTU_4096.0);
    }
}
