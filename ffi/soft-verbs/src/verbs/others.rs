//! Functions that programs link and hardly use, and those that the providers of kernel devices link
//! (libmlx5, libefa), which perftest links in turn. No device here is theirs.

use super::{Opened, PORT, set_errno};
use libc::{c_char, c_int, c_void};
use linerate_verbs_sys::raw::*;

/// The partition of every port: the one that all ports are in.
const PARTITION: u16 = 0xffff;

/// # Safety
/// An open device and a writable place.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_query_pkey(
    context: *mut ibv_context,
    port: u8,
    index: c_int,
    to: *mut u16,
) -> c_int {
    // SAFETY: our caller promises it.
    let checked = unsafe { Opened::of(context) }.check();
    match checked.is_ok() && port == PORT && index == 0 {
        true => {
            // SAFETY: our caller promises it. It is in network order.
            unsafe { *to = PARTITION.to_be() };
            0
        }
        false => {
            set_errno(checked.err().unwrap_or(libc::EINVAL));
            -1
        }
    }
}

/// Where a partition is in the table of a port.
#[unsafe(no_mangle)]
pub extern "C" fn ibv_get_pkey_index(_: *mut ibv_context, port: u8, partition: u16) -> c_int {
    match (port, u16::from_be(partition)) {
        (PORT, PARTITION) => 0,
        _ => -1,
    }
}

/// The kernel has no number for a device of this library.
#[unsafe(no_mangle)]
pub extern "C" fn ibv_get_device_index(_: *mut ibv_device) -> c_int {
    -1
}

/// Where sysfs is.
#[unsafe(no_mangle)]
pub extern "C" fn ibv_get_sysfs_path() -> *const c_char {
    c"/sys".as_ptr()
}

/// Devices of this library have no files.
#[unsafe(no_mangle)]
pub extern "C" fn ibv_read_sysfs_file(
    _: *const c_char,
    _: *const c_char,
    _: *mut c_char,
    _: usize,
) -> c_int {
    -1
}

/// Functions whose arguments nobody looks at.
macro_rules! functions {
    ($what:literal, $result:expr => $type:ty: $($name:ident)*) => {
        $(#[doc = $what]
        #[unsafe(no_mangle)]
        pub extern "C" fn $name() -> $type {
            $result
        })*
    };
}

functions! { "Nothing has to be done.", 0 => c_int: ibv_dofork_range ibv_dontfork_range }
functions! { "There is none.", std::ptr::null_mut() => *mut c_void:
    ibv_qp_to_qp_ex ibv_create_ah_from_wc verbs_open_device _verbs_init_and_alloc_context
}
functions! { "No device here can do it.", libc::EOPNOTSUPP => c_int:
    ibv_query_ece ibv_set_ece ibv_attach_mcast ibv_detach_mcast ibv_resolve_eth_l2_from_gid
    ibv_copy_path_rec_from_kern ibv_copy_qp_attr_from_kern ibv_copy_ah_attr_from_kern
}
functions! { "For providers of kernel devices.", libc::EOPNOTSUPP => c_int:
    __verbs_log execute_ioctl ibv_cmd_advise_mr ibv_cmd_alloc_dm ibv_cmd_alloc_mw
    ibv_cmd_alloc_pd ibv_cmd_attach_mcast ibv_cmd_close_xrcd ibv_cmd_create_ah
    ibv_cmd_create_counters ibv_cmd_create_cq_ex ibv_cmd_create_flow
    ibv_cmd_create_flow_action_esp ibv_cmd_create_qp_ex ibv_cmd_create_qp_ex2
    ibv_cmd_create_rwq_ind_table ibv_cmd_create_srq ibv_cmd_create_srq_ex ibv_cmd_create_wq
    ibv_cmd_dealloc_mw ibv_cmd_dealloc_pd ibv_cmd_dereg_mr ibv_cmd_destroy_ah
    ibv_cmd_destroy_counters ibv_cmd_destroy_cq ibv_cmd_destroy_flow ibv_cmd_destroy_flow_action
    ibv_cmd_destroy_qp ibv_cmd_destroy_rwq_ind_table ibv_cmd_destroy_srq ibv_cmd_destroy_wq
    ibv_cmd_detach_mcast ibv_cmd_free_dm ibv_cmd_get_context ibv_cmd_modify_cq
    ibv_cmd_modify_flow_action_esp ibv_cmd_modify_qp ibv_cmd_modify_qp_ex ibv_cmd_modify_srq
    ibv_cmd_modify_wq ibv_cmd_open_qp ibv_cmd_open_xrcd ibv_cmd_query_context
    ibv_cmd_query_device_any ibv_cmd_query_mr ibv_cmd_query_port ibv_cmd_query_qp
    ibv_cmd_query_srq ibv_cmd_read_counters ibv_cmd_reg_dm_mr ibv_cmd_reg_dmabuf_mr
    ibv_cmd_reg_mr ibv_cmd_rereg_mr ibv_cmd_resize_cq ibv_query_gid_type
    verbs_allow_disassociate_destroy verbs_init_cq verbs_register_driver_34 verbs_set_ops
    verbs_uninit_context
}
