//! The names of numbers, and what a fork does.

use libc::{c_char, c_int};
use linerate_verbs_sys::raw::{ibv_event_type, ibv_fork_status, ibv_port_state, ibv_wc_status};

/// Nothing to do: a child has copies of everything.
#[unsafe(no_mangle)]
pub extern "C" fn ibv_fork_init() -> c_int {
    0
}

/// No page is locked, so that a child has copies of all.
#[unsafe(no_mangle)]
pub extern "C" fn ibv_is_fork_initialized() -> ibv_fork_status {
    ibv_fork_status::IBV_FORK_UNNEEDED
}

const STATUS: [&[u8]; 24] = [
    b"success\0",
    b"local length error\0",
    b"local QP operation error\0",
    b"local EE context operation error\0",
    b"local protection error\0",
    b"Work Request Flushed Error\0",
    b"memory management operation error\0",
    b"bad response error\0",
    b"local access error\0",
    b"remote invalid request error\0",
    b"remote access error\0",
    b"remote operation error\0",
    b"transport retry counter exceeded\0",
    b"RNR retry counter exceeded\0",
    b"local RDD violation error\0",
    b"remote invalid RD request\0",
    b"aborted error\0",
    b"invalid EE context number\0",
    b"invalid EE context state\0",
    b"fatal error\0",
    b"response timeout error\0",
    b"general error\0",
    b"TM error\0",
    b"TM software rendezvous\0",
];

const EVENTS: [&[u8]; 20] = [
    b"CQ error\0",
    b"local work queue catastrophic error\0",
    b"invalid request local work queue error\0",
    b"local access violation work queue error\0",
    b"communication established\0",
    b"send queue drained\0",
    b"path migrated\0",
    b"path migration request error\0",
    b"local catastrophic error\0",
    b"port active\0",
    b"port error\0",
    b"LID change\0",
    b"P_Key change\0",
    b"SM change\0",
    b"SRQ catastrophic error\0",
    b"SRQ limit reached\0",
    b"last WQE reached\0",
    b"client reregistration\0",
    b"GID table change\0",
    b"WQ fatal\0",
];

const PORT_STATES: [&[u8]; 6] = [
    b"no state change (NOP)\0",
    b"down\0",
    b"init\0",
    b"armed\0",
    b"active\0",
    b"active defer\0",
];

fn text_of(texts: &'static [&'static [u8]], number: u32) -> *const c_char {
    texts
        .get(number as usize)
        .unwrap_or(&&b"unknown\0"[..])
        .as_ptr()
        .cast()
}

/// The name of a status.
#[unsafe(no_mangle)]
pub extern "C" fn ibv_wc_status_str(status: ibv_wc_status) -> *const c_char {
    text_of(&STATUS, status.0)
}

/// The name of an event.
#[unsafe(no_mangle)]
pub extern "C" fn ibv_event_type_str(event: ibv_event_type) -> *const c_char {
    text_of(&EVENTS, event.0)
}

/// The name of a state.
#[unsafe(no_mangle)]
pub extern "C" fn ibv_port_state_str(state: ibv_port_state) -> *const c_char {
    text_of(&PORT_STATES, state.0)
}
