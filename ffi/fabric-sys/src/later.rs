//! What headers later than the bindings' define: numbers, and members that structures got at their
//! end.
//!
//! A library reads or writes those members according to the interface version that
//! [`Infos::query`](crate::Infos::query) asked for, and some providers do it always. So structures
//! that go through a table of functions, which has no symbol versions, are passed in their longer
//! form with zeros at the end.

use crate::bindings as c;
use std::ffi::{c_int, c_void};

/// `FI_MR_DMABUF` of fi_domain.h of libfabric 1.20: a region is named by a dma-buf.
pub(crate) const FI_MR_DMABUF: u64 = 1 << 40;

/// `FI_OPT_CUDA_API_PERMITTED` of fi_endpoint.h of libfabric 1.18: a bool.
pub(crate) const FI_OPT_CUDA_API_PERMITTED: c_int = 10;
/// `FI_OPT_SHARED_MEMORY_PERMITTED` of fi_endpoint.h of libfabric 1.19: a bool.
pub(crate) const FI_OPT_SHARED_MEMORY_PERMITTED: c_int = 11;
/// `FI_OPT_MAX_RMA_SIZE` of fi_endpoint.h of libfabric 2.0: a size_t.
pub(crate) const FI_OPT_MAX_RMA_SIZE: c_int = 14;
/// `FI_OPT_EFA_EMULATED_WRITE` of fi_ext.h of libfabric 1.18, the second after
/// `FI_OPT_EFA_RNR_RETRY`, which is `-FI_PROV_SPECIFIC_EFA`: a bool.
pub(crate) const FI_OPT_EFA_EMULATED_WRITE: c_int = -(0xefa << 16) + 2;

/// `FI_ETOOSMALL` of fi_errno.h: the room for an answer is too small.
pub(crate) const FI_ETOOSMALL: c_int = 257;
/// `FI_EAVAIL` of fi_errno.h: an error has to be read first.
pub(crate) const FI_EAVAIL: c_int = 259;

/// `FI_ADDR_UNSPEC`, which is also `FI_ADDR_NOTAVAIL`, of fabric.h.
pub(crate) const FI_ADDR_UNSPEC: u64 = u64::MAX;
/// `FI_KEY_NOTAVAIL` of fabric.h.
pub(crate) const FI_KEY_NOTAVAIL: u64 = u64::MAX;

/// `struct fi_mr_dmabuf` of fi_domain.h of libfabric 1.20.
#[repr(C)]
pub(crate) struct DmaBuf {
    pub fd: c_int,
    pub offset: u64,
    pub len: usize,
    pub base_addr: *mut c_void,
}

/// `struct fi_mr_attr` with the members of libfabric 1.19 and 2.0. Its first member, `mr_iov`, has
/// been a union with a pointer to [`DmaBuf`] since 1.20.
#[repr(C)]
pub(crate) struct MrAttributes {
    pub base: c::fi_mr_attr,
    pub hmem_data: *mut c_void,
    pub page_size: usize,
    pub base_mr: *const c::fid_mr,
    pub sub_mr_cnt: usize,
}

impl Default for MrAttributes {
    fn default() -> MrAttributes {
        MrAttributes {
            base: c::fi_mr_attr::default(),
            hmem_data: std::ptr::null_mut(),
            page_size: 0,
            base_mr: std::ptr::null(),
            sub_mr_cnt: 0,
        }
    }
}

/// `struct fi_cq_err_entry` with the member of libfabric 1.20.
#[repr(C)]
#[derive(Default)]
pub(crate) struct ErrorEntry {
    pub base: c::fi_cq_err_entry,
    pub src_addr: u64,
}

// Both are passed as the structure that they begin with.
const _: () = assert!(std::mem::offset_of!(MrAttributes, base) == 0);
const _: () = assert!(std::mem::offset_of!(ErrorEntry, base) == 0);
