//! The GIDs of ports: which host and which device they name.

use crate::network::Port;
use linerate_verbs_sys::raw::ibv_gid;

/// The port that a GID names.
pub fn port_of(gid: &ibv_gid) -> Option<Port> {
    // SAFETY: all of the union is bytes.
    let bytes = unsafe { gid.raw };
    let tail = match bytes[..8] {
        [0xfe, 0x80, 0, 0, 0, 0, 0, 0] => [bytes[13], bytes[14], bytes[15]],
        [0, 0, 0, 0, 0, 0, 0, 0] if bytes[8..13] == [0, 0, 255, 255, 10] => {
            [bytes[13], bytes[14], bytes[15]]
        }
        _ => return None,
    };
    Some(Port {
        device: u32::from(tail[0].checked_sub(1)?),
        host: (u32::from(tail[1]) << 8 | u32::from(tail[2])).checked_sub(1)?,
    })
}

/// Places of a port's table.
pub const GIDS: u32 = 4;

/// The GID at a place of a port's table. Place 0 has the link-local one. The address of the
/// interface has place 1, and takes the next place, in turn, with each of `moves`.
pub fn gid_of(port: Port, index: u32, moves: u32) -> Option<ibv_gid> {
    let [_, _, high, low] = (port.host + 1).to_be_bytes();
    let tail = [port.device as u8 + 1, high, low];
    let mut raw = [0; 16];
    match index {
        0 => raw[..2].copy_from_slice(&[0xfe, 0x80]),
        place if place == 1 + moves % (GIDS - 1) => raw[10..13].copy_from_slice(&[255, 255, 10]),
        _ => return None,
    }
    raw[13..].copy_from_slice(&tail);
    Some(ibv_gid { raw })
}
