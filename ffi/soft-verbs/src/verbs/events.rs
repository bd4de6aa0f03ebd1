//! Events of a device and of what was made of it.

use super::{Opened, PORT, set_errno};
use crate::network::now;
use crate::process::take;
use libc::c_int;
use linerate_verbs_sys::raw::*;
use std::sync::atomic::Ordering;

/// # Safety
/// An open device and a writable structure.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_get_async_event(
    context: *mut ibv_context,
    to: *mut ibv_async_event,
) -> c_int {
    // SAFETY: our caller promises it.
    let opened = unsafe { Opened::of(context) };
    loop {
        if let Some(event) = next(opened) {
            // SAFETY: our caller promises it.
            unsafe { *to = event };
            return 0;
        }
        if let Err(errno) = opened.events.wait() {
            set_errno(errno);
            return -1;
        }
    }
}

/// The next event, if there is one.
fn next(opened: &Opened) -> Option<ibv_async_event> {
    while let Some((kind, number)) = take(&opened.events.socket) {
        if kind == ibv_event_type::IBV_EVENT_PORT_ERR {
            let port = opened.process.port(opened.device);
            let until = port.down_until.load(Ordering::Relaxed);
            opened.up_at.store(until, Ordering::Relaxed);
            opened.events.set_timer(until);
        }
        // The object that it is about may have been destroyed.
        let event = event_of(opened, kind, number);
        if event.is_some() {
            return event;
        }
    }
    let until = opened.up_at.load(Ordering::Relaxed);
    if until == 0 || until > now() {
        return None;
    }
    opened.up_at.store(0, Ordering::Relaxed);
    opened.events.set_timer(u64::MAX);
    match opened.check() {
        Ok(()) => event_of(opened, ibv_event_type::IBV_EVENT_PORT_ACTIVE, 0),
        Err(_) => None,
    }
}

/// An event as C has it; `None`: the object that it is about has been destroyed.
fn event_of(opened: &Opened, kind: ibv_event_type, number: u32) -> Option<ibv_async_event> {
    let mut event = ibv_async_event {
        event_type: kind,
        ..Default::default()
    };
    let process = &opened.process;
    match kind {
        ibv_event_type::IBV_EVENT_CQ_ERR => {
            let queue = process.queues.lock().unwrap().get(&number).copied()?;
            event.element.cq = queue.0.cast();
        }
        ibv_event_type::IBV_EVENT_SRQ_LIMIT_REACHED | ibv_event_type::IBV_EVENT_SRQ_ERR => {
            let queue = process.shared.lock().unwrap().get(&number).copied()?;
            event.element.srq = queue.0.cast();
        }
        ibv_event_type::IBV_EVENT_PORT_ACTIVE
        | ibv_event_type::IBV_EVENT_PORT_ERR
        | ibv_event_type::IBV_EVENT_GID_CHANGE => event.element.port_num = PORT.into(),
        ibv_event_type::IBV_EVENT_DEVICE_FATAL => {}
        _ => {
            let pair = process.addresses.lock().unwrap().get(&number).copied()?;
            event.element.qp = pair.0.cast();
        }
    }
    Some(event)
}

/// # Safety
/// [`ibv_get_async_event`] has given it.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_ack_async_event(_: *mut ibv_async_event) {}
