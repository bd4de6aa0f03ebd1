//! Devices and their ports.

use super::{Opened, PORT, process, set_errno};
use crate::moving::MESSAGE_BYTES_MAX;
use crate::network::Port;
use crate::ports::GIDS;
use crate::process::{Address, Process};
use crate::verbs::pairs::{post_recv, post_send};
use crate::verbs::queues::{poll_cq, post_srq_recv, req_notify_cq};
use crate::waker::Waker;
use libc::{c_char, c_int, c_void, ssize_t};
use linerate_verbs_sys::raw::*;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

/// Bytes of `ibv_port_attr` in its first version.
const OLD_PORT_BYTES: usize = 48;

/// Physical states of a port, as the InfiniBand specification numbers them.
const DISABLED: u8 = 3;
const LINK_UP: u8 = 5;

/// A device of a list. It begins with the structure that C knows.
#[repr(C)]
struct Device {
    base: ibv_device,
    number: u32,
    process: Arc<Process>,
}

fn text_into(text: &str, to: &mut [c_char]) {
    let room = to.len() - 1;
    for (place, byte) in to.iter_mut().zip(text.bytes().take(room)) {
        *place = byte as c_char;
    }
}

/// # Safety
/// `count` is null or writable.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_get_device_list(count: *mut c_int) -> *mut *mut ibv_device {
    let process = match process() {
        Ok(process) => process,
        Err(errno) => {
            set_errno(errno);
            return std::ptr::null_mut();
        }
    };
    let mut known = process.devices.lock().unwrap();
    if known.is_empty() {
        let numbers = 0..process.settings.devices as u32;
        known.extend(numbers.map(|number| Address(make(&process, number))));
    }
    let mut list: Vec<*mut ibv_device> = known.iter().map(|device| device.0).collect();
    if !count.is_null() {
        // SAFETY: our caller promises it.
        unsafe { *count = list.len() as c_int };
    }
    list.push(std::ptr::null_mut());
    Box::into_raw(list.into_boxed_slice()).cast()
}

fn make(process: &Arc<Process>, number: u32) -> *mut ibv_device {
    let (node_type, transport_type) = match process.settings.profile.is_datagrams {
        true => (
            ibv_node_type::IBV_NODE_UNSPECIFIED,
            ibv_transport_type::IBV_TRANSPORT_UNSPECIFIED,
        ),
        false => (
            ibv_node_type::IBV_NODE_CA,
            ibv_transport_type::IBV_TRANSPORT_IB,
        ),
    };
    let mut base = ibv_device {
        node_type,
        transport_type,
        ..Default::default()
    };
    text_into(&format!("soft{number}"), &mut base.name);
    text_into(&format!("uverbs-soft{number}"), &mut base.dev_name);
    let process = process.clone();
    let device = Device {
        base,
        number,
        process,
    };
    Box::into_raw(Box::new(device)).cast()
}

/// # Safety
/// [`ibv_get_device_list`] has given the list, and it is freed once.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_free_device_list(list: *mut *mut ibv_device) {
    let mut count = 0;
    // SAFETY: our caller promises it; the list ends with a null.
    unsafe {
        while !(*list.add(count)).is_null() {
            count += 1;
        }
        drop(Box::from_raw(std::ptr::slice_from_raw_parts_mut(
            list,
            count + 1,
        )));
    }
}

/// # Safety
/// A device of a list.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_get_device_name(device: *mut ibv_device) -> *const c_char {
    // SAFETY: our caller promises it.
    unsafe { (&raw const (*device).name).cast() }
}

/// # Safety
/// A device of a list.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_get_device_guid(device: *mut ibv_device) -> u64 {
    // SAFETY: our caller promises it.
    let device = unsafe { &*device.cast::<Device>() };
    guid(Port {
        host: device.process.network.own.host,
        device: device.number,
    })
    .to_be()
}

fn guid(port: Port) -> u64 {
    0x0200_00ff_fe00_0000 | u64::from(port.device + 1) << 16 | u64::from(port.host + 1)
}

/// # Safety
/// A device of a list.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_open_device(raw: *mut ibv_device) -> *mut ibv_context {
    // SAFETY: our caller promises it.
    let device = unsafe { &*raw.cast::<Device>() };
    let events = match device.process.port(device.number).is_gone() {
        true => Err(libc::ENODEV),
        false => Waker::new().map_err(|error| error.raw_os_error().unwrap_or(libc::EMFILE)),
    };
    let events = match events {
        Ok(events) => events,
        Err(errno) => {
            set_errno(errno);
            return std::ptr::null_mut();
        }
    };
    let mut verbs = verbs_context {
        query_port: Some(query_port_extended),
        query_device_ex: Some(query_device_extended),
        sz: size_of::<verbs_context>(),
        ..Default::default()
    };
    verbs.context.device = raw;
    verbs.context.async_fd = events.raw_fd();
    verbs.context.cmd_fd = -1;
    verbs.context.num_comp_vectors = 1;
    verbs.context.abi_compat = usize::MAX as *mut c_void;
    verbs.context.ops.poll_cq = Some(poll_cq);
    verbs.context.ops.req_notify_cq = Some(req_notify_cq);
    verbs.context.ops.post_send = Some(post_send);
    verbs.context.ops.post_recv = Some(post_recv);
    verbs.context.ops.post_srq_recv = Some(post_srq_recv);
    let opened = Box::new(Opened {
        verbs,
        process: device.process.clone(),
        device: device.number,
        events,
        users: AtomicUsize::new(0),
        up_at: AtomicU64::new(0),
    });
    let listener = (opened.device, opened.events());
    opened.process.listeners.lock().unwrap().push(listener);
    // SAFETY: made just now.
    unsafe { &raw mut (*Box::into_raw(opened)).verbs.context }
}

/// # Safety
/// An open device. As with libibverbs, objects that are left of it may still be destroyed.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_close_device(context: *mut ibv_context) -> c_int {
    // SAFETY: our caller promises it.
    let opened = unsafe { Opened::of(context) };
    let mut listeners = opened.process.listeners.lock().unwrap();
    listeners.retain(|listener| listener.1 != opened.events());
    drop(listeners);
    if opened.users.load(Ordering::Relaxed) > 0 {
        return 0;
    }
    // SAFETY: it came from a box, and nobody uses it any more.
    drop(unsafe { Box::from_raw((&raw const *opened).cast_mut()) });
    0
}

/// # Safety
/// An open device and a writable structure.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_query_device(
    context: *mut ibv_context,
    to: *mut ibv_device_attr,
) -> c_int {
    // SAFETY: our caller promises it.
    let opened = unsafe { Opened::of(context) };
    if let Err(errno) = opened.check() {
        return errno;
    }
    // SAFETY: our caller promises it.
    unsafe { *to = attributes(opened) };
    0
}

fn attributes(opened: &Opened) -> ibv_device_attr {
    let profile = opened.process.settings.profile;
    let mut all = ibv_device_attr {
        node_guid: guid(opened.port()).to_be(),
        sys_image_guid: guid(opened.port()).to_be(),
        max_mr_size: u64::MAX,
        page_size_cap: 4096,
        vendor_id: profile.vendor,
        vendor_part_id: profile.part,
        max_qp: profile.queue_pairs,
        max_qp_wr: profile.requests,
        device_cap_flags: ibv_device_cap_flags::IBV_DEVICE_PORT_ACTIVE_EVENT.0,
        max_sge: profile.segments,
        max_sge_rd: match profile.is_datagrams {
            true => 1,
            false => profile.segments,
        },
        max_cq: profile.completion_queues,
        max_cqe: profile.completions,
        max_mr: profile.regions,
        max_pd: 65_536,
        max_qp_rd_atom: profile.reads,
        max_res_rd_atom: profile.reads,
        max_qp_init_rd_atom: profile.reads,
        atomic_cap: match profile.has_atomics {
            true => ibv_atomic_cap::IBV_ATOMIC_HCA,
            false => ibv_atomic_cap::IBV_ATOMIC_NONE,
        },
        max_ah: 65_536,
        max_srq: profile.shared_queues,
        max_srq_wr: profile.shared_requests,
        max_srq_sge: profile.shared_segments,
        max_pkeys: 1,
        local_ca_ack_delay: 15,
        phys_port_cnt: 1,
        ..Default::default()
    };
    text_into(
        &format!(
            "soft-verbs {} ({})",
            env!("CARGO_PKG_VERSION"),
            profile.name
        ),
        &mut all.fw_ver,
    );
    all
}

unsafe extern "C" fn query_device_extended(
    context: *mut ibv_context,
    _: *const ibv_query_device_ex_input,
    to: *mut ibv_device_attr_ex,
    bytes: usize,
) -> c_int {
    // SAFETY: C promises an open device.
    let opened = unsafe { Opened::of(context) };
    if bytes < size_of::<ibv_device_attr>() {
        return libc::EINVAL;
    }
    if let Err(errno) = opened.check() {
        return errno;
    }
    let all = ibv_device_attr_ex {
        orig_attr: attributes(opened),
        phys_port_cnt_ex: 1,
        ..Default::default()
    };
    let bytes = bytes.min(size_of::<ibv_device_attr_ex>());
    // SAFETY: C promises that these bytes are writable.
    unsafe {
        to.cast::<u8>()
            .copy_from_nonoverlapping((&raw const all).cast(), bytes)
    };
    0
}

fn port_attributes(opened: &Opened, port: u8) -> Result<ibv_port_attr, c_int> {
    if port != PORT {
        return Err(libc::EINVAL);
    }
    opened.check()?;
    let is_up = opened.process.port(opened.device).is_up();
    let settings = &opened.process.settings;
    let gigabits = settings.gigabits.unwrap_or(400.0);
    // Four lanes of the slowest speed that is enough: SDR, QDR, FDR, EDR, HDR, NDR.
    let speeds = [(10.0, 1), (40.0, 4), (56.0, 16), (100.0, 32), (200.0, 64)];
    let found = speeds.iter().find(|(rate, _)| gigabits <= *rate);
    let code = ibv_mtu(settings.mtu_bytes.ilog2() - 7);
    Ok(ibv_port_attr {
        state: match is_up {
            true => ibv_port_state::IBV_PORT_ACTIVE,
            false => ibv_port_state::IBV_PORT_DOWN,
        },
        max_mtu: ibv_mtu::IBV_MTU_4096,
        active_mtu: code,
        gid_tbl_len: GIDS as c_int,
        max_msg_sz: MESSAGE_BYTES_MAX as u32,
        pkey_tbl_len: 1,
        max_vl_num: 1,
        active_width: 2,
        active_speed: found.map_or(128, |(_, code)| *code),
        phys_state: if is_up { LINK_UP } else { DISABLED },
        link_layer: 2,
        ..Default::default()
    })
}

/// # Safety
/// An open device, and room for the first version of the structure.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_query_port(
    context: *mut ibv_context,
    port: u8,
    to: *mut _compat_ibv_port_attr,
) -> c_int {
    // SAFETY: our caller promises it.
    unsafe { query_port_extended(context, port, to.cast(), OLD_PORT_BYTES) }
}

unsafe extern "C" fn query_port_extended(
    context: *mut ibv_context,
    port: u8,
    to: *mut ibv_port_attr,
    bytes: usize,
) -> c_int {
    // SAFETY: C promises an open device.
    match port_attributes(unsafe { Opened::of(context) }, port) {
        Ok(all) => {
            let bytes = bytes.min(size_of::<ibv_port_attr>());
            // SAFETY: C promises that these bytes are writable.
            unsafe {
                to.cast::<u8>()
                    .copy_from_nonoverlapping((&raw const all).cast(), bytes)
            };
            0
        }
        Err(errno) => errno,
    }
}

/// # Safety
/// An open device and a writable structure.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_query_gid(
    context: *mut ibv_context,
    port: u8,
    index: c_int,
    to: *mut ibv_gid,
) -> c_int {
    // SAFETY: our caller promises it.
    let opened = unsafe { Opened::of(context) };
    let is_there = port == PORT && u32::try_from(index).is_ok_and(|index| index < GIDS);
    let errno = match is_there {
        true => opened.check().err(),
        false => Some(libc::EINVAL),
    };
    if let Some(errno) = errno {
        set_errno(errno);
        return -1;
    }
    // A place that is empty is all zeros.
    // SAFETY: our caller promises it.
    unsafe { *to = opened.gid(index as u32).unwrap_or_default() };
    0
}

fn entry_of(opened: &Opened, index: u32) -> Option<ibv_gid_entry> {
    Some(ibv_gid_entry {
        gid: opened.gid(index)?,
        gid_index: index,
        port_num: PORT.into(),
        gid_type: ibv_gid_type::IBV_GID_TYPE_ROCE_V2.0,
        ndev_ifindex: 0,
    })
}

/// # Safety
/// An open device and a writable structure.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn _ibv_query_gid_ex(
    context: *mut ibv_context,
    port: u32,
    index: u32,
    to: *mut ibv_gid_entry,
    _: u32,
    bytes: usize,
) -> c_int {
    // SAFETY: our caller promises it.
    let opened = unsafe { Opened::of(context) };
    if port != u32::from(PORT) || bytes < size_of::<ibv_gid_entry>() {
        return libc::EINVAL;
    }
    if let Err(errno) = opened.check() {
        return errno;
    }
    match entry_of(opened, index) {
        Some(entry) => {
            // SAFETY: our caller promises it.
            unsafe { *to = entry };
            0
        }
        None => libc::ENODATA,
    }
}

/// # Safety
/// An open device and room for this number of structures.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn _ibv_query_gid_table(
    context: *mut ibv_context,
    to: *mut ibv_gid_entry,
    room: usize,
    _: u32,
    bytes: usize,
) -> ssize_t {
    // SAFETY: our caller promises it.
    let opened = unsafe { Opened::of(context) };
    if bytes != size_of::<ibv_gid_entry>() || room < GIDS as usize {
        return -(libc::EINVAL as ssize_t);
    }
    if let Err(errno) = opened.check() {
        return -(errno as ssize_t);
    }
    let mut count = 0;
    for entry in (0..GIDS).filter_map(|index| entry_of(opened, index)) {
        // SAFETY: our caller promises it.
        unsafe { *to.add(count) = entry };
        count += 1;
    }
    count as ssize_t
}
