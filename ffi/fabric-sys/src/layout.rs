//! Sizes and offsets of the C library's structures. They are compared with the bindings at compile
//! time, and with the headers in a test where headers are installed.
//!
//! The numbers are those of 64-bit processors, and of the structures whose symbols `library.rs`
//! looks up. Later headers have longer ones, with these at their beginning.

/// `struct of bytes { member: offset, .. }`: asserts them, and lists them for the test.
macro_rules! layouts {
    ($($name:ident of $bytes:literal { $($member:ident: $offset:literal,)* })*) => {
        #[cfg(target_pointer_width = "64")]
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

        #[cfg(all(test, target_pointer_width = "64"))]
        const LAYOUTS: &[headers::Layout] = &[
            $((stringify!($name), $bytes, &[$((stringify!($member), $offset),)*]),)*
        ];
    };
}

#[rustfmt::skip]
layouts! {
    fi_context2 of 64 {
        internal: 0,
    }
    fi_tx_attr of 80 {
        caps: 0, mode: 8, op_flags: 16, inject_size: 40, size: 48, iov_limit: 56, rma_iov_limit: 64,
        tclass: 72,
    }
    fi_rx_attr of 64 {
        caps: 0, mode: 8, size: 48, iov_limit: 56,
    }
    fi_ep_attr of 96 {
        type_: 0, protocol: 4, max_msg_size: 16,
    }
    fi_domain_attr of 192 {
        domain: 0, name: 8, threading: 16, control_progress: 20, data_progress: 24, av_type: 32,
        mr_mode: 36, mr_key_size: 40, cq_data_size: 48, mr_iov_limit: 128, caps: 136, mode: 144,
        tclass: 184,
    }
    fi_fabric_attr of 32 {
        fabric: 0, name: 8, prov_name: 16, prov_version: 24, api_version: 28,
    }
    fi_info of 120 {
        next: 0, caps: 8, mode: 16, addr_format: 24, src_addrlen: 32, src_addr: 48, tx_attr: 72,
        rx_attr: 80, ep_attr: 88, domain_attr: 96, fabric_attr: 104, nic: 112,
    }
    fi_device_attr of 48 {
        name: 0,
    }
    fi_pci_attr of 6 {
        domain_id: 0, bus_id: 2, device_id: 3, function_id: 4,
    }
    fi_bus_attr of 12 {
        bus_type: 0, attr: 4,
    }
    fi_link_attr of 40 {
        address: 0, mtu: 8, speed: 16, state: 24,
    }
    fid_nic of 56 {
        fid: 0, device_attr: 24, bus_attr: 32, link_attr: 40,
    }
    fi_ops of 56 {
        size: 0, close: 8, bind: 16, control: 24,
    }
    fid of 24 {
        fclass: 0, context: 8, ops: 16,
    }
    fi_ops_fabric of 56 {
        size: 0, domain: 8, trywait: 40,
    }
    fid_fabric of 40 {
        fid: 0, ops: 24,
    }
    fi_cq_attr of 40 {
        size: 0, flags: 8, format: 16, wait_obj: 20, signaling_vector: 24, wait_cond: 28,
        wait_set: 32,
    }
    fi_cq_data_entry of 40 {
        op_context: 0, flags: 8, len: 16, buf: 24, data: 32,
    }
    fi_cq_err_entry of 80 {
        op_context: 0, flags: 8, len: 16, buf: 24, data: 32, tag: 40, olen: 48, err: 56,
        prov_errno: 60, err_data: 64, err_data_size: 72,
    }
    fi_ops_cq of 64 {
        size: 0, read: 8, readfrom: 16, readerr: 24, sread: 32, sreadfrom: 40, strerror: 56,
    }
    fid_cq of 32 {
        fid: 0, ops: 24,
    }
    fi_av_attr of 48 {
        type_: 0, rx_ctx_bits: 4, count: 8, ep_per_node: 16, name: 24, map_addr: 32, flags: 40,
    }
    fi_ops_av of 64 {
        size: 0, insert: 8, remove: 32,
    }
    fid_av of 32 {
        fid: 0, ops: 24,
    }
    fid_mr of 40 {
        fid: 0, mem_desc: 24, key: 32,
    }
    fi_mr_attr of 80 {
        mr_iov: 0, iov_count: 8, access: 16, offset: 24, requested_key: 32, context: 40,
        auth_key_size: 48, auth_key: 56, iface: 64, device: 72,
    }
    fi_ops_domain of 96 {
        size: 0, av_open: 8, cq_open: 16, endpoint: 24,
    }
    fi_ops_mr of 32 {
        size: 0, reg: 8, regattr: 24,
    }
    fid_domain of 40 {
        fid: 0, ops: 24, mr: 32,
    }
    fi_ops_ep of 64 {
        size: 0, getopt: 16, setopt: 24,
    }
    fi_ops_msg of 80 {
        size: 0, recv: 8,
    }
    fid_ep of 80 {
        fid: 0, ops: 24, cm: 32, msg: 40, rma: 48,
    }
    fi_ops_cm of 80 {
        size: 0, getname: 16,
    }
    fi_rma_iov of 24 {
        addr: 0, len: 8, key: 16,
    }
    fi_msg_rma of 64 {
        msg_iov: 0, desc: 8, iov_count: 16, addr: 24, rma_iov: 32, rma_iov_count: 40, context: 48,
        data: 56,
    }
    fi_ops_rma of 80 {
        size: 0, read: 8, readmsg: 24, write: 32, writemsg: 48, writedata: 64,
    }
}

#[cfg(all(test, target_pointer_width = "64"))]
#[path = "../../layouts.rs"]
mod headers;

#[cfg(all(test, target_pointer_width = "64"))]
#[test]
fn the_headers_of_this_machine_have_these_layouts() {
    let headers = [
        "fabric",
        "fi_domain",
        "fi_endpoint",
        "fi_eq",
        "fi_cm",
        "fi_rma",
    ];
    let mut head: String = headers
        .map(|name| format!("#include <rdma/{name}.h>\n"))
        .concat();
    // Structures of later headers have more members at their ends.
    head += "#define IS_LATER (FI_MAJOR_VERSION > 1 || FI_MINOR_VERSION > 17)\n";
    headers::compare(
        ("/usr/include/rdma/fabric.h", "libfabric-dev"),
        &head,
        LAYOUTS,
        |(name, bytes, _)| format!("IS_LATER ? {bytes} : sizeof(struct {name})"),
    );
}
