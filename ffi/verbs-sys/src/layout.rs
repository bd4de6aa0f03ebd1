//! Sizes and offsets of the C library's structures. They are compared with the bindings at compile
//! time, and with the headers in a test where headers are installed.
//!
//! The numbers are x86-64's. Elsewhere a mutex may have another size, which moves the members
//! behind it; the bindings follow libc's.

/// `struct of bytes { member: offset, .. }`: asserts them, and lists them for the test.
macro_rules! layouts {
    ($($name:ident of $bytes:literal { $($member:ident: $offset:literal,)* })*) => {
        #[cfg(target_arch = "x86_64")]
        const _: () = {
            use crate::bindings as c;
            $(
                assert!(size_of::<c::$name>() == $bytes, stringify!($name));
                $(assert!(
                    std::mem::offset_of!(c::$name, $member) == $offset,
                    concat!(stringify!($name), ".", stringify!($member))
                );)*
            )*
        };

        #[cfg(all(test, target_arch = "x86_64"))]
        const LAYOUTS: &[headers::Layout] = &[
            $((stringify!($name), $bytes, &[$((stringify!($member), $offset),)*]),)*
        ];
    };
}

#[rustfmt::skip]
layouts! {
    ibv_gid_entry of 32 {
        gid: 0, gid_index: 16, port_num: 20, gid_type: 24, ndev_ifindex: 28,
    }
    ibv_device of 664 {
        node_type: 16, transport_type: 20, name: 24, dev_name: 88, dev_path: 152, ibdev_path: 408,
    }
    ibv_device_attr of 232 {
        fw_ver: 0, max_mr_size: 80, max_qp: 108, max_qp_wr: 112, device_cap_flags: 116, max_sge: 120,
        max_cqe: 132, max_mr: 136, max_qp_rd_atom: 144, atomic_cap: 164, max_srq: 212, max_srq_wr: 216,
        max_srq_sge: 220, phys_port_cnt: 227,
    }
    ibv_odp_caps of 24 {
        general_caps: 0, per_transport_caps: 8,
    }
    ibv_device_attr_ex of 400 {
        orig_attr: 0, comp_mask: 232, odp_caps: 240, device_cap_flags_ex: 280, pci_atomic_caps: 384,
        max_dm_size: 376, phys_port_cnt_ex: 396,
    }
    ibv_port_attr of 52 {
        state: 0, max_mtu: 4, active_mtu: 8, gid_tbl_len: 12, max_msg_sz: 20, lid: 34, active_width: 43,
        active_speed: 44, phys_state: 45, link_layer: 46, flags: 47, port_cap_flags2: 48,
    }
    ibv_async_event of 16 {
        element: 0, event_type: 8,
    }
    ibv_wc of 48 {
        wr_id: 0, status: 8, opcode: 12, vendor_err: 16, byte_len: 20, qp_num: 28, src_qp: 32, wc_flags: 36,
        pkey_index: 40, slid: 42, sl: 44, dlid_path_bits: 45,
    }
    ibv_pd of 16 {
        context: 0, handle: 8,
    }
    ibv_mr of 48 {
        context: 0, pd: 8, addr: 16, length: 24, handle: 32, lkey: 36, rkey: 40,
    }
    ibv_global_route of 24 {
        dgid: 0, flow_label: 16, sgid_index: 20, hop_limit: 21, traffic_class: 22,
    }
    ibv_ah_attr of 32 {
        grh: 0, dlid: 24, sl: 26, src_path_bits: 27, static_rate: 28, is_global: 29, port_num: 30,
    }
    ibv_ah of 24 {
        context: 0, pd: 8, handle: 16,
    }
    ibv_srq_attr of 12 {
        max_wr: 0, max_sge: 4, srq_limit: 8,
    }
    ibv_srq_init_attr of 24 {
        srq_context: 0, attr: 8,
    }
    ibv_srq of 128 {
        context: 0, srq_context: 8, pd: 16, handle: 24,
    }
    ibv_qp_cap of 20 {
        max_send_wr: 0, max_recv_wr: 4, max_send_sge: 8, max_recv_sge: 12, max_inline_data: 16,
    }
    ibv_qp_init_attr of 64 {
        qp_context: 0, send_cq: 8, recv_cq: 16, srq: 24, cap: 32, qp_type: 52, sq_sig_all: 56,
    }
    ibv_qp_attr of 144 {
        qp_state: 0, cur_qp_state: 4, path_mtu: 8, path_mig_state: 12, qkey: 16, rq_psn: 20, sq_psn: 24,
        dest_qp_num: 28, qp_access_flags: 32, cap: 36, ah_attr: 56, alt_ah_attr: 88, pkey_index: 120,
        max_rd_atomic: 126, max_dest_rd_atomic: 127, min_rnr_timer: 128, port_num: 129, timeout: 130,
        retry_cnt: 131, rnr_retry: 132, rate_limit: 136,
    }
    ibv_qp of 160 {
        context: 0, qp_context: 8, pd: 16, send_cq: 24, recv_cq: 32, srq: 40, handle: 48, qp_num: 52,
        state: 56, qp_type: 60,
    }
    ibv_sge of 16 {
        addr: 0, length: 8, lkey: 12,
    }
    ibv_send_wr of 128 {
        wr_id: 0, next: 8, sg_list: 16, num_sge: 24, opcode: 28, send_flags: 32, wr: 40, qp_type: 72,
    }
    ibv_recv_wr of 32 {
        wr_id: 0, next: 8, sg_list: 16, num_sge: 24,
    }
    ibv_comp_channel of 16 {
        context: 0, fd: 8, refcnt: 12,
    }
    ibv_cq of 128 {
        context: 0, channel: 8, cq_context: 16, handle: 24, cqe: 28,
    }
    ibv_context_ops of 256 {
        poll_cq: 88, req_notify_cq: 96, post_srq_recv: 160, post_send: 200, post_recv: 208,
    }
    ibv_context of 328 {
        device: 0, ops: 8, cmd_fd: 264, async_fd: 268, num_comp_vectors: 272, mutex: 280, abi_compat: 320,
    }
    verbs_context of 648 {
        query_port: 0, advise_mr: 8, create_cq_ex: 200, query_device_ex: 216, create_qp_ex: 264,
        sz: 312, context: 320,
    }
}

// These are passed to the library as C's structures.
const _: () = assert!(size_of::<crate::Segment>() == size_of::<crate::bindings::ibv_sge>());
const _: () = assert!(size_of::<crate::Completion>() == size_of::<crate::bindings::ibv_wc>());

#[cfg(all(test, target_arch = "x86_64"))]
#[path = "../../layouts.rs"]
mod headers;

#[cfg(all(test, target_arch = "x86_64"))]
#[test]
fn the_headers_of_this_machine_have_these_layouts() {
    headers::compare(
        ("/usr/include/infiniband/verbs.h", "libibverbs-dev"),
        "#include <infiniband/verbs.h>",
        LAYOUTS,
        |(name, ..)| format!("sizeof(struct {name})"),
    );
}
