//! Datagrams, which are lost where no queue pair takes them.

use crate::arena::Entry;
use crate::moving::{Connection, Failure, moved};
use crate::network::{Port, now};
use crate::pair::Core;
use crate::ports::port_of;
use crate::receives::{SEGMENTS_MAX, Taken};
use crate::request::{Destination, Request, Vectors};
use linerate_verbs_sys::raw::{
    ibv_qp_state, ibv_qp_type, ibv_send_flags as flag, ibv_wc_flags, ibv_wc_opcode,
    ibv_wc_status as ended,
};
use std::sync::atomic::Ordering;

/// The bytes in front of a datagram in its receive.
const DATAGRAM_HEADER_BYTES: usize = 40;

/// Carries a datagram, which is lost where no queue pair takes it. Gives the bytes of the own
/// completion, and when it is there.
pub fn carry_datagram(
    core: &Core,
    request: &Request,
    to: &Destination,
    memory: &Vectors,
) -> (u32, u64) {
    let network = &core.process.network;
    let own = Port {
        host: network.own.host,
        device: core.device,
    };
    let Some(port) = port_of(&to.gid) else {
        return (0, 0);
    };
    let times = network.carry(own, port, request.bytes, now());
    let sent = (request.bytes as u32, times.arrived);
    let Some(peer) = network.peer(to.pair, port.host) else {
        return sent;
    };
    if !core.process.port(core.device).is_up() || !peer.port(port.device).is_up() {
        return sent;
    }
    let remote = peer.arena.pair(to.pair);
    let _guard = remote.lock.lock();
    let state = ibv_qp_state(remote.state.load(Ordering::Acquire));
    let is_ready = remote.number.load(Ordering::Acquire) == to.pair
        && [ibv_qp_state::IBV_QPS_RTR, ibv_qp_state::IBV_QPS_RTS].contains(&state)
        && remote.kind.load(Ordering::Relaxed) == ibv_qp_type::IBV_QPT_UD.0
        && remote.datagram_key.load(Ordering::Relaxed) == to.key;
    let end = Connection {
        core,
        peer: &peer,
        remote,
        number: to.pair,
    };
    let Some(taken) = is_ready.then(|| end.receive()).flatten() else {
        return sent;
    };
    let header = [0u8; DATAGRAM_HEADER_BYTES];
    let mut near = Vectors::default();
    near.push(libc::iovec {
        iov_base: header.as_ptr().cast_mut().cast(),
        iov_len: header.len(),
    });
    memory
        .list()
        .iter()
        .take(SEGMENTS_MAX)
        .for_each(|&one| near.push(one));
    let bytes = request.bytes + header.len() as u64;
    let Ok(into) = end.room_of_datagram(&taken, bytes) else {
        return sent;
    };
    if moved(network.own.process, peer.process, &near, &into, true).is_err() {
        return sent;
    }
    let entry = Entry {
        due: times.arrived,
        id: taken.id,
        opcode: ibv_wc_opcode::IBV_WC_RECV.0,
        bytes: bytes as u32,
        immediate: request.immediate,
        pair: to.pair,
        source: core.number,
        flags: ibv_wc_flags::IBV_WC_GRH.0
            | (u32::from(request.has_immediate()) * ibv_wc_flags::IBV_WC_WITH_IMM.0),
        is_solicited: request.flags & flag::IBV_SEND_SOLICITED.0,
        ..Entry::default()
    };
    end.complete(&entry);
    sent
}

impl Connection<'_> {
    /// As [`Connection::room`], but a datagram that does not fit ends its receive and nothing else.
    fn room_of_datagram(&self, taken: &Taken, bytes: u64) -> Result<Vectors, Failure> {
        let all: u64 = taken
            .pieces()
            .iter()
            .map(|piece| u64::from(piece.bytes))
            .sum();
        if all < bytes {
            self.refuse(taken, ended::IBV_WC_LOC_LEN_ERR);
            return Err(Failure::Over(ended::IBV_WC_LOC_LEN_ERR));
        }
        self.room(taken, bytes)
    }
}
