//! [`Request`]: a work request, as the device keeps it.

use crate::arena::{Arena, Piece};
use crate::faults::Fault;
use crate::moving::Failure;
use crate::process::find;
use crate::receives::{SEGMENTS_MAX, piece_of};
use crate::verbs::Handle;
use linerate_verbs_sys::raw::{
    ibv_access_flags as access, ibv_gid, ibv_qp_type, ibv_send_flags as flag, ibv_send_wr,
    ibv_wr_opcode as code,
};

/// A work request, as the device keeps it.
pub struct Request {
    pub id: u64,
    /// Its number among the requests of its queue pair, from 1 on.
    pub number: u64,
    pub opcode: code,
    pub flags: u32,
    pub immediate: u32,
    pub address: u64,
    pub key: u32,
    pub operands: [u64; 2],
    /// The bytes of an inline request, copied when it was posted.
    inline: Option<Vec<u8>>,
    pieces: [Piece; SEGMENTS_MAX],
    count: usize,
    pub bytes: u64,
    pub to: Option<Destination>,
    /// What goes wrong with it.
    pub fault: Option<Fault>,
    /// Not carried out before this time; 0: at once.
    pub lands_at: u64,
    /// What came of it, where it was carried out before its turn: the bytes of its completion, and
    /// when that is there.
    pub carried: Option<Result<(u32, u64), Failure>>,
}

/// Where a datagram goes.
pub struct Destination {
    pub gid: ibv_gid,
    pub pair: u32,
    pub key: u32,
}

impl Request {
    /// A request as C gives it; an error number if the device does not support it.
    ///
    /// # Safety
    /// It is complete, and its memory is readable where it is inline.
    pub unsafe fn of(
        raw: &ibv_send_wr,
        kind: ibv_qp_type,
        inline_max: u32,
    ) -> Result<Request, i32> {
        let count = raw.num_sge.max(0) as usize;
        if count > SEGMENTS_MAX {
            return Err(libc::EINVAL);
        }
        let mut pieces = [Piece::default(); SEGMENTS_MAX];
        for (number, piece) in pieces[..count].iter_mut().enumerate() {
            // SAFETY: our caller promises as many segments.
            *piece = piece_of(unsafe { &*raw.sg_list.add(number) });
        }
        let bytes: u64 = pieces[..count]
            .iter()
            .map(|piece| u64::from(piece.bytes))
            .sum();
        let is_inline = raw.send_flags & flag::IBV_SEND_INLINE.0 != 0;
        if is_inline && bytes > u64::from(inline_max) {
            return Err(libc::ENOMEM);
        }
        let mut inline = None;
        if is_inline {
            let mut all = Vec::with_capacity(bytes as usize);
            for piece in &pieces[..count] {
                let (at, length) = (piece.address as *const u8, piece.bytes as usize);
                // SAFETY: our caller promises it.
                all.extend_from_slice(unsafe { std::slice::from_raw_parts(at, length) });
            }
            inline = Some(all);
        }
        // SAFETY: all members are numbers, and an address that is only read for datagrams.
        let (rdma, atomic, ud, immediate) = unsafe {
            (
                raw.wr.rdma,
                raw.wr.atomic,
                raw.wr.ud,
                raw.__bindgen_anon_1.imm_data,
            )
        };
        let mut request = Request {
            id: raw.wr_id,
            number: 0,
            opcode: raw.opcode,
            flags: raw.send_flags,
            immediate,
            address: rdma.remote_addr,
            key: rdma.rkey,
            operands: [0; 2],
            inline,
            pieces,
            count,
            bytes,
            to: None,
            fault: None,
            lands_at: 0,
            carried: None,
        };
        match raw.opcode {
            code::IBV_WR_SEND | code::IBV_WR_SEND_WITH_IMM if kind == ibv_qp_type::IBV_QPT_UD => {
                // SAFETY: our caller promises a handle that lives.
                let handle = unsafe { ud.ah.cast::<Handle>().as_ref() }.ok_or(libc::EINVAL)?;
                request.to = Some(Destination {
                    gid: handle.gid,
                    pair: ud.remote_qpn,
                    key: ud.remote_qkey,
                });
            }
            _ if kind == ibv_qp_type::IBV_QPT_UD => return Err(libc::EINVAL),
            code::IBV_WR_SEND
            | code::IBV_WR_SEND_WITH_IMM
            | code::IBV_WR_RDMA_WRITE
            | code::IBV_WR_RDMA_WRITE_WITH_IMM
            | code::IBV_WR_RDMA_READ => {}
            code::IBV_WR_ATOMIC_CMP_AND_SWP | code::IBV_WR_ATOMIC_FETCH_AND_ADD => {
                request.address = atomic.remote_addr;
                request.key = atomic.rkey;
                request.operands = [atomic.compare_add, atomic.swap];
            }
            _ => return Err(libc::EOPNOTSUPP),
        }
        Ok(request)
    }

    /// Whether it writes without telling the peer.
    pub fn is_plain_write(&self) -> bool {
        self.opcode == code::IBV_WR_RDMA_WRITE
    }

    /// Whether it reads or writes memory of the peer that it names.
    pub fn is_remote(&self) -> bool {
        matches!(
            self.opcode,
            code::IBV_WR_RDMA_WRITE | code::IBV_WR_RDMA_WRITE_WITH_IMM | code::IBV_WR_RDMA_READ
        )
    }

    pub fn is_inline(&self) -> bool {
        self.inline.is_some()
    }

    pub fn segments_count(&self) -> usize {
        self.count
    }

    pub fn has_immediate(&self) -> bool {
        matches!(
            self.opcode,
            code::IBV_WR_SEND_WITH_IMM | code::IBV_WR_RDMA_WRITE_WITH_IMM
        )
    }

    /// Whether bytes come from the peer.
    pub fn is_fetching(&self) -> bool {
        self.is_atomic() || self.opcode == code::IBV_WR_RDMA_READ
    }

    pub fn is_atomic(&self) -> bool {
        matches!(
            self.opcode,
            code::IBV_WR_ATOMIC_CMP_AND_SWP | code::IBV_WR_ATOMIC_FETCH_AND_ADD
        )
    }

    /// The memory of this side, as the system takes it.
    pub fn memory(&self, arena: &Arena, domain: u32) -> Option<Vectors> {
        let mut all = Vectors::default();
        if let Some(bytes) = &self.inline {
            all.push(libc::iovec {
                iov_base: bytes.as_ptr().cast_mut().cast(),
                iov_len: bytes.len(),
            });
            return Some(all);
        }
        let rights = match self.is_fetching() {
            true => access::IBV_ACCESS_LOCAL_WRITE,
            false => access(0),
        };
        let pieces = self.pieces[..self.count].iter();
        for &piece in pieces.filter(|piece| piece.bytes > 0) {
            all.push(find(arena, domain, piece, rights)?);
        }
        Some(all)
    }
}

/// A list of memory, as the system takes it.
pub struct Vectors {
    all: [libc::iovec; SEGMENTS_MAX + 1],
    count: usize,
    /// Memory of the peer that is mapped in this process: the addresses are those of here.
    pub is_mapped: bool,
}

impl Default for Vectors {
    fn default() -> Vectors {
        let none = libc::iovec {
            iov_base: std::ptr::null_mut(),
            iov_len: 0,
        };
        Vectors {
            all: [none; SEGMENTS_MAX + 1],
            count: 0,
            is_mapped: false,
        }
    }
}

impl Vectors {
    pub fn push(&mut self, one: libc::iovec) {
        self.all[self.count] = one;
        self.count += 1;
    }

    pub fn list(&self) -> &[libc::iovec] {
        &self.all[..self.count]
    }
}
