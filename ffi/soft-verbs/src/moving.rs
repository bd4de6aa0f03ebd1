//! [`carry_out`] moves the bytes of a request and leaves the peer's completion.

use crate::arena::{Entry, Pair as Remote, Piece};
use crate::channel;
use crate::datagram::carry_datagram;
use crate::faults::Fault;
use crate::network::{Peer, Port, Times, now};
use crate::pair::{Core, Sending};
use crate::ports::port_of;
use crate::process::find;
use crate::receives::{self, Taken};
use crate::request::{Request, Vectors};
use linerate_verbs_sys::raw::{
    ibv_access_flags as access, ibv_event_type, ibv_qp_attr, ibv_qp_state, ibv_send_flags as flag,
    ibv_wc_flags, ibv_wc_opcode, ibv_wc_status as ended, ibv_wr_opcode as code,
};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

/// The longest message of a connection, as devices say it.
pub const MESSAGE_BYTES_MAX: u64 = 1 << 30;

/// Why a request is not carried out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Failure {
    /// The peer does not answer: it is not ready, or not there.
    NoAnswer,
    /// The peer has no receive.
    NoReceive,
    /// It is over, with this status.
    Over(ended),
}

impl Failure {
    pub fn status(self) -> ended {
        match self {
            Failure::NoAnswer => ended::IBV_WC_RETRY_EXC_ERR,
            Failure::NoReceive => ended::IBV_WC_RNR_RETRY_EXC_ERR,
            Failure::Over(status) => status,
        }
    }

    /// When a request fails that has been tried since this time; `None`: never.
    pub fn deadline(self, since: u64, attributes: &ibv_qp_attr) -> Option<u64> {
        match self {
            Failure::Over(_) => Some(since),
            Failure::NoAnswer if attributes.timeout == 0 => None,
            Failure::NoAnswer => {
                let one = 4096u64 << attributes.timeout.min(31);
                Some(since + one * (u64::from(attributes.retry_cnt) + 1))
            }
            Failure::NoReceive if attributes.rnr_retry >= 7 => None,
            Failure::NoReceive => Some(since + 1_000_000 * (u64::from(attributes.rnr_retry) + 1)),
        }
    }
}

/// Moves the bytes of a request and leaves the peer's completion. Gives the bytes of the own
/// completion, and its time.
pub fn carry_out(
    core: &Core,
    sending: &mut Sending,
    request: &Request,
) -> Result<(u32, u64), Failure> {
    if request.bytes > MESSAGE_BYTES_MAX {
        return Err(Failure::Over(ended::IBV_WC_LOC_LEN_ERR));
    }
    let own = core.process.arena();
    let memory = request
        .memory(own, core.domain)
        .ok_or(Failure::Over(ended::IBV_WC_LOC_PROT_ERR))?;
    if let Some(to) = &request.to {
        return Ok(carry_datagram(core, request, to, &memory));
    }
    let broken = match request.fault {
        Some(Fault::Break(status)) => Some(status),
        _ => None,
    };
    // A remote operation error brings the peer down too, further below.
    if let Some(status) = broken.filter(|status| *status != ended::IBV_WC_REM_OP_ERR) {
        return Err(Failure::Over(status));
    }
    if !core.process.port(core.device).is_up() {
        return Err(Failure::NoAnswer);
    }
    let peer = peer_of(core, sending).ok_or(Failure::NoAnswer)?;
    let number = sending.attributes.dest_qp_num;
    let remote = peer.arena.pair(number);
    let _guard = remote.lock.lock();
    let state = ibv_qp_state(remote.state.load(Ordering::Acquire));
    let is_ready = remote.number.load(Ordering::Acquire) == number
        && [
            ibv_qp_state::IBV_QPS_RTR,
            ibv_qp_state::IBV_QPS_RTS,
            ibv_qp_state::IBV_QPS_SQD,
        ]
        .contains(&state)
        && remote.peer.load(Ordering::Relaxed) == core.number
        && remote.kind.load(Ordering::Relaxed) == core.kind.0;
    let is_up = |device: &AtomicU32| peer.port(device.load(Ordering::Relaxed)).is_up();
    if !is_ready || !is_up(&remote.device) || !is_there(&peer, request.bytes == 0) {
        sending.peer = None;
        return Err(Failure::NoAnswer);
    }
    let end = Connection {
        core,
        peer: &peer,
        remote,
        number,
    };
    if let Some(status) = broken {
        return Err(end.bring_down(ibv_event_type::IBV_EVENT_QP_FATAL, status));
    }
    match request.is_fetching() {
        true => end.fetch(request, &memory),
        false => end.send(request, &memory),
    }
}

/// Whether the bytes of a request may land before those of earlier ones: this device keeps no
/// order, or the request is a plain write to memory that was registered with relaxed ordering.
pub fn may_overtake(core: &Core, sending: &mut Sending, request: &Request) -> bool {
    if core.process.settings.profile.is_datagrams {
        return true;
    }
    let relaxed = access::IBV_ACCESS_RELAXED_ORDERING.0;
    let is_relaxed = |peer: Arc<Peer>| {
        let region = peer.arena.region(request.key);
        region.access.load(Ordering::Relaxed) & relaxed != 0
    };
    request.is_plain_write() && peer_of(core, sending).is_some_and(is_relaxed)
}

/// The process at the other end of a connection.
fn peer_of(core: &Core, sending: &mut Sending) -> Option<Arc<Peer>> {
    if sending.peer.is_none() {
        let attributes = &sending.attributes;
        let port = port_of(&attributes.ah_attr.grh.dgid)?;
        sending.peer = core.process.network.peer(attributes.dest_qp_num, port.host);
    }
    sending.peer.clone()
}

/// A connection whose other end is locked.
pub struct Connection<'a> {
    pub core: &'a Core,
    pub peer: &'a Peer,
    pub remote: &'a Remote,
    pub number: u32,
}

impl Connection<'_> {
    fn ports(&self) -> (Port, Port) {
        let own = Port {
            host: self.core.process.network.own.host,
            device: self.core.device,
        };
        let device = self.remote.device.load(Ordering::Relaxed);
        (
            own,
            Port {
                host: self.peer.host,
                device,
            },
        )
    }

    /// Memory of the peer that a request names, if this pair may use it so.
    fn place(&self, request: &Request, bytes: u64, rights: access) -> Result<Vectors, Failure> {
        let piece = Piece {
            address: request.address,
            bytes: bytes as u32,
            key: request.key,
        };
        let domain = self.remote.domain.load(Ordering::Relaxed);
        let is_allowed = self.remote.access.load(Ordering::Relaxed) & rights.0 == rights.0;
        let found = find(&self.peer.arena, domain, piece, rights).filter(|_| is_allowed);
        let found = found.ok_or_else(|| {
            self.bring_down(
                ibv_event_type::IBV_EVENT_QP_ACCESS_ERR,
                ended::IBV_WC_REM_ACCESS_ERR,
            )
        })?;
        Ok(self.vectors(&[(piece, found)]))
    }

    /// Memory of the peer, where it is mapped in this process, if all of it is.
    fn vectors(&self, pieces: &[(Piece, libc::iovec)]) -> Vectors {
        let mut here = Vectors::default();
        here.is_mapped = true;
        for &(piece, found) in pieces {
            let Some(address) = self.peer.here(piece) else {
                let mut there = Vectors::default();
                pieces.iter().for_each(|&(_, found)| there.push(found));
                return there;
            };
            here.push(libc::iovec {
                iov_base: address.cast(),
                ..found
            });
        }
        here
    }

    /// Brings the peer's queue pair down, for this reason. The own one fails with this status.
    fn bring_down(&self, cause: ibv_event_type, status: ended) -> Failure {
        self.remote.cause.store(cause.0, Ordering::Relaxed);
        self.remote
            .state
            .store(ibv_qp_state::IBV_QPS_ERR.0, Ordering::Release);
        self.peer
            .arena
            .header()
            .failures
            .fetch_add(1, Ordering::Release);
        let queue = self
            .peer
            .arena
            .queue(self.remote.queue.load(Ordering::Relaxed));
        if queue.armed.load(Ordering::SeqCst) != 0 {
            queue.wake();
        }
        Failure::Over(status)
    }

    pub fn receive(&self) -> Option<Taken> {
        let shared = self.remote.shared.load(Ordering::Relaxed);
        let index = self.remote.receives.load(Ordering::Relaxed);
        let taken = receives::take(&self.peer.arena, index, (shared != 0).then_some(shared))?;
        self.remote.taken.store(taken.id, Ordering::Relaxed);
        self.remote.is_taken.store(1, Ordering::Release);
        Some(taken)
    }

    /// Leaves the completion of a receive that was taken.
    pub fn complete(&self, entry: &Entry) {
        let queue = self.remote.queue.load(Ordering::Relaxed);
        channel::add(&self.peer.arena, queue, entry);
        self.remote.is_taken.store(0, Ordering::Release);
    }

    /// Sends and writes.
    fn send(&self, request: &Request, memory: &Vectors) -> Result<(u32, u64), Failure> {
        let is_write = matches!(
            request.opcode,
            code::IBV_WR_RDMA_WRITE | code::IBV_WR_RDMA_WRITE_WITH_IMM
        );
        let mut into = Vectors::default();
        if is_write && request.bytes > 0 {
            into = self.place(request, request.bytes, access::IBV_ACCESS_REMOTE_WRITE)?;
        }
        let needs_receive = !is_write || request.has_immediate();
        let taken = match needs_receive {
            true => Some(self.receive().ok_or(Failure::NoReceive)?),
            false => None,
        };
        if let Some(taken) = taken.as_ref().filter(|_| !is_write) {
            into = self.room(taken, request.bytes)?;
        }
        self.copy(memory, &into, request.bytes, true)?;
        let (own, other) = self.ports();
        let times = self
            .core
            .process
            .network
            .carry(own, other, request.bytes, now());
        if let Some(taken) = taken {
            self.leave(request, &taken, is_write, times);
        }
        Ok((request.bytes as u32, times.answered))
    }

    /// The memory of a receive for a message of this length.
    pub fn room(&self, taken: &Taken, bytes: u64) -> Result<Vectors, Failure> {
        let domain = self.remote.domain.load(Ordering::Relaxed);
        let (mut into, mut left) = (Vec::with_capacity(1), bytes);
        for &piece in taken.pieces() {
            let used = left.min(u64::from(piece.bytes));
            if used == 0 {
                continue;
            }
            let piece = Piece {
                bytes: used as u32,
                ..piece
            };
            match find(
                &self.peer.arena,
                domain,
                piece,
                access::IBV_ACCESS_LOCAL_WRITE,
            ) {
                Some(found) => into.push((piece, found)),
                None => {
                    self.refuse(taken, ended::IBV_WC_LOC_PROT_ERR);
                    return Err(self
                        .bring_down(ibv_event_type::IBV_EVENT_QP_FATAL, ended::IBV_WC_REM_OP_ERR));
                }
            }
            left -= used;
        }
        if left > 0 {
            self.refuse(taken, ended::IBV_WC_LOC_LEN_ERR);
            return Err(self.bring_down(
                ibv_event_type::IBV_EVENT_QP_REQ_ERR,
                ended::IBV_WC_REM_INV_REQ_ERR,
            ));
        }
        Ok(self.vectors(&into))
    }

    /// Ends the peer's receive with an error.
    pub fn refuse(&self, taken: &Taken, status: ended) {
        let entry = Entry {
            id: taken.id,
            status: status.0,
            opcode: ibv_wc_opcode::IBV_WC_RECV.0,
            pair: self.number,
            ..Entry::default()
        };
        self.complete(&entry);
    }

    /// Ends the peer's receive with success.
    fn leave(&self, request: &Request, taken: &Taken, is_write: bool, times: Times) {
        let opcode = match is_write {
            true => ibv_wc_opcode::IBV_WC_RECV_RDMA_WITH_IMM,
            false => ibv_wc_opcode::IBV_WC_RECV,
        };
        let entry = Entry {
            due: times.arrived,
            id: taken.id,
            status: ended::IBV_WC_SUCCESS.0,
            opcode: opcode.0,
            bytes: request.bytes as u32,
            immediate: request.immediate,
            pair: self.number,
            source: self.core.number,
            flags: u32::from(request.has_immediate()) * ibv_wc_flags::IBV_WC_WITH_IMM.0,
            is_solicited: request.flags & flag::IBV_SEND_SOLICITED.0,
        };
        self.complete(&entry);
    }

    /// Reads and atomics.
    fn fetch(&self, request: &Request, memory: &Vectors) -> Result<(u32, u64), Failure> {
        let bytes = match request.is_atomic() {
            true => 8,
            false => request.bytes,
        };
        let rights = match request.is_atomic() {
            true => access::IBV_ACCESS_REMOTE_ATOMIC,
            false => access::IBV_ACCESS_REMOTE_READ,
        };
        if request.is_atomic()
            && (!self.core.process.settings.profile.has_atomics
                || !request.address.is_multiple_of(8))
        {
            return Err(self.bring_down(
                ibv_event_type::IBV_EVENT_QP_REQ_ERR,
                ended::IBV_WC_REM_INV_REQ_ERR,
            ));
        }
        let mut from = Vectors::default();
        if bytes > 0 {
            from = self.place(request, bytes, rights)?;
        }
        match request.is_atomic() {
            true => self.operate(request, memory, &from)?,
            false => self.copy(memory, &from, bytes, false)?,
        }
        let (own, other) = self.ports();
        let network = &self.core.process.network;
        let asked = network.carry(own, other, 0, now());
        let start = match asked.arrived {
            0 => now(),
            time => time,
        };
        Ok((
            bytes as u32,
            network.carry(other, own, bytes, start).arrived,
        ))
    }

    /// An atomic operation on a word of the peer, under a lock that all devices take.
    fn operate(&self, request: &Request, memory: &Vectors, word: &Vectors) -> Result<(), Failure> {
        let _guard = self.peer.arena.header().atomics.lock();
        let (mut before, [first, second]) = (0u64, request.operands);
        self.copy(&one(&mut before), word, 8, false)?;
        let after = match request.opcode {
            code::IBV_WR_ATOMIC_FETCH_AND_ADD => before.wrapping_add(first),
            _ if before == first => second,
            _ => before,
        };
        let mut after = after;
        self.copy(&one(&mut after), word, 8, true)?;
        let own = libc::pid_t::try_from(std::process::id()).unwrap_or(0);
        moved(own, own, &one(&mut before), memory, true)
            .map_err(|_| Failure::Over(ended::IBV_WC_LOC_PROT_ERR))
    }

    /// Moves bytes between own memory and the peer's.
    fn copy(
        &self,
        own: &Vectors,
        other: &Vectors,
        bytes: u64,
        is_writing: bool,
    ) -> Result<(), Failure> {
        if bytes == 0 || bytes > self.core.process.settings.bytes_max {
            return Ok(());
        }
        let (from, to) = (self.core.process.network.own.process, self.peer.process);
        moved(from, to, own, other, is_writing).map_err(|errno| match errno {
            libc::ESRCH => Failure::NoAnswer,
            libc::EPERM => {
                explain_refusal(to);
                Failure::Over(ended::IBV_WC_LOC_QP_OP_ERR)
            }
            // The memory is registered, but its owner has unmapped it.
            _ => self.bring_down(ibv_event_type::IBV_EVENT_QP_FATAL, ended::IBV_WC_REM_OP_ERR),
        })
    }
}

fn one(word: &mut u64) -> Vectors {
    let mut all = Vectors::default();
    all.push(libc::iovec {
        iov_base: (&raw mut *word).cast(),
        iov_len: 8,
    });
    all
}

/// Moves bytes between memory of this process and of another one, or of this one.
pub fn moved(
    own: libc::pid_t,
    other: libc::pid_t,
    near: &Vectors,
    far: &Vectors,
    is_writing: bool,
) -> Result<(), i32> {
    let other = if far.is_mapped { own } else { other };
    let total: usize = near.list().iter().map(|one| one.iov_len).sum();
    if let (true, [a], [b]) = (own == other, near.list(), far.list())
        && a.iov_len == b.iov_len
    {
        let (from, to) = if is_writing { (a, b) } else { (b, a) };
        copy_here(from.iov_base.cast(), to.iov_base.cast(), a.iov_len);
        return Ok(());
    }
    let (near, far) = (near.list(), far.list());
    let call = if is_writing {
        libc::process_vm_writev
    } else {
        libc::process_vm_readv
    };
    // SAFETY: near memory is registered by this process, whose program promises that it is mapped.
    // The system checks the memory of the other one itself.
    let count = unsafe {
        call(
            other,
            near.as_ptr(),
            near.len() as u64,
            far.as_ptr(),
            far.len() as u64,
            0,
        )
    };
    match usize::try_from(count) {
        Ok(count) if count == total => Ok(()),
        Ok(_) => Err(libc::EFAULT),
        Err(_) => Err(std::io::Error::last_os_error()
            .raw_os_error()
            .unwrap_or(libc::EFAULT)),
    }
}

/// Copies inside this process. An aligned word arrives whole, and behind what came before it.
fn copy_here(from: *const u8, to: *mut u8, bytes: usize) {
    if bytes == 8 && from.addr().is_multiple_of(8) && to.addr().is_multiple_of(8) {
        use std::sync::atomic::AtomicU64;
        // SAFETY: both are registered memory, which is mapped, and aligned.
        let (from, to) = unsafe {
            (
                AtomicU64::from_ptr(from.cast_mut().cast()),
                AtomicU64::from_ptr(to.cast()),
            )
        };
        to.store(from.load(Ordering::Relaxed), Ordering::Release);
        return;
    }
    // SAFETY: both are registered memory, which is mapped. They may overlap.
    unsafe { std::ptr::copy(from, to, bytes) };
}

/// For how long a process that was seen to live is taken for one that does. Where the system moves
/// the bytes, it tells at once.
const SEEN_NS: u64 = 1_000_000;

/// Whether the memory of a process is still there.
fn is_there(peer: &Peer, must_look: bool) -> bool {
    let time = now();
    if !must_look && time < peer.seen_at.load(Ordering::Relaxed) + SEEN_NS {
        return true;
    }
    peer.seen_at.store(time, Ordering::Relaxed);
    let own = std::process::id() as libc::pid_t;
    let mut word = 0u64;
    let address = peer.arena.header().address.load(Ordering::Relaxed);
    let mut far = Vectors::default();
    far.push(libc::iovec {
        iov_base: address as *mut libc::c_void,
        iov_len: 8,
    });
    peer.process == own
        || moved(own, peer.process, &one(&mut word), &far, false) != Err(libc::ESRCH)
}

fn explain_refusal(process: libc::pid_t) {
    static ONCE: std::sync::Once = std::sync::Once::new();
    ONCE.call_once(|| {
        eprintln!(
            "soft-verbs: this process may not use the memory of process {process}: run both as one user; where the kernel \
             restricts it further, sysctl kernel.yama.ptrace_scope=1 or 0, and in containers the capability SYS_PTRACE"
        );
    });
}
