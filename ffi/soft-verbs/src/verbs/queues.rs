//! Completion queues, channels and shared receive queues.

use super::{Domain, Opened, given, posted, set_errno};
use crate::channel::{Channel, Queue};
use crate::process::Address;
use crate::receives::{self, Shared};
use libc::{c_int, c_uint, c_void};
use linerate_verbs_sys::raw::*;
use std::sync::atomic::{AtomicUsize, Ordering};

/// # Safety
/// An open device.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_create_comp_channel(
    context: *mut ibv_context,
) -> *mut ibv_comp_channel {
    // SAFETY: our caller promises it.
    let opened = unsafe { Opened::of(context) };
    let made = opened.check().and_then(|()| {
        Channel::new(context).map_err(|error| error.raw_os_error().unwrap_or(libc::EMFILE))
    });
    let channel = given(made);
    if !channel.is_null() {
        opened.users.fetch_add(1, Ordering::Relaxed);
    }
    channel.cast()
}

/// # Safety
/// A channel that lives.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_destroy_comp_channel(channel: *mut ibv_comp_channel) -> c_int {
    // SAFETY: our caller promises it.
    unsafe {
        if (*channel.cast::<Channel>()).is_used() {
            return libc::EBUSY;
        }
        Opened::of((*channel).context)
            .users
            .fetch_sub(1, Ordering::Relaxed);
        drop(Box::from_raw(channel.cast::<Channel>()));
    }
    0
}

/// # Safety
/// An open device, and a channel of it or null.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_create_cq(
    context: *mut ibv_context,
    entries: c_int,
    token: *mut c_void,
    channel: *mut ibv_comp_channel,
    vector: c_int,
) -> *mut ibv_cq {
    // SAFETY: our caller promises it.
    let opened = unsafe { Opened::of(context) };
    let process = &opened.process;
    if entries < 1 || entries > process.settings.profile.completions || vector != 0 {
        set_errno(libc::EINVAL);
        return std::ptr::null_mut();
    }
    let channel = channel.cast::<Channel>();
    let made = opened.check().and_then(|()| {
        Queue::new(
            process,
            (context, opened.device, opened.events()),
            entries as u32,
            channel,
            token,
        )
    });
    let queue = given(made);
    if !queue.is_null() {
        opened.users.fetch_add(1, Ordering::Relaxed);
        // SAFETY: made just now; our caller promises the channel.
        unsafe {
            process
                .queues
                .lock()
                .unwrap()
                .insert((*queue).index, Address(queue));
            if let Some(channel) = channel.as_ref() {
                channel.add(queue);
            }
        }
    }
    queue.cast()
}

/// # Safety
/// A queue that lives.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_destroy_cq(raw: *mut ibv_cq) -> c_int {
    let pointer = raw.cast::<Queue>();
    // SAFETY: our caller promises it.
    let queue = unsafe { &*pointer };
    if queue.users.load(Ordering::Relaxed) > 0 {
        return libc::EBUSY;
    }
    // SAFETY: the channel lives as long as its queues.
    if let Some(channel) = unsafe { queue.base.channel.cast::<Channel>().as_ref() } {
        channel.remove(pointer);
    }
    queue.process.queues.lock().unwrap().remove(&queue.index);
    // SAFETY: the device lives as long as what was made of it.
    unsafe { Opened::of(queue.base.context) }
        .users
        .fetch_sub(1, Ordering::Relaxed);
    queue.end();
    // SAFETY: it came from a box, and nobody uses it any more.
    drop(unsafe { Box::from_raw(pointer) });
    0
}

/// # Safety
/// A channel that lives, and writable places.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_get_cq_event(
    channel: *mut ibv_comp_channel,
    queue: *mut *mut ibv_cq,
    token: *mut *mut c_void,
) -> c_int {
    // SAFETY: our caller promises it.
    match unsafe { &*channel.cast::<Channel>() }.next() {
        Ok(found) => {
            // SAFETY: as above; the queue lives.
            unsafe {
                *queue = found.cast();
                *token = (*found).base.cq_context;
            }
            0
        }
        Err(errno) => {
            set_errno(errno);
            -1
        }
    }
}

/// # Safety
/// A queue that lives.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_ack_cq_events(_: *mut ibv_cq, _: c_uint) {}

pub(super) unsafe extern "C" fn poll_cq(
    queue: *mut ibv_cq,
    count: c_int,
    to: *mut ibv_wc,
) -> c_int {
    let count = count.max(0) as usize;
    // SAFETY: C promises a queue that lives and room for the completions.
    unsafe { (*queue.cast::<Queue>()).poll(std::slice::from_raw_parts_mut(to, count)) as c_int }
}

pub(super) unsafe extern "C" fn req_notify_cq(queue: *mut ibv_cq, solicited_only: c_int) -> c_int {
    // SAFETY: C promises a queue that lives.
    unsafe { &*queue.cast::<Queue>() }.arm(solicited_only != 0);
    0
}

/// # Safety
/// A domain that lives, and a structure that is complete and writable.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_create_srq(
    domain: *mut ibv_pd,
    wanted: *mut ibv_srq_init_attr,
) -> *mut ibv_srq {
    // SAFETY: our caller promises it.
    let (opened, own, wanted) = unsafe {
        (
            Opened::of((*domain).context),
            &*domain.cast::<Domain>(),
            &*wanted,
        )
    };
    let process = &opened.process;
    let profile = process.settings.profile;
    let (requests, segments) = (wanted.attr.max_wr, wanted.attr.max_sge);
    if profile.shared_queues == 0 {
        set_errno(libc::EOPNOTSUPP);
        return std::ptr::null_mut();
    }
    let fits =
        requests <= profile.shared_requests as u32 && segments <= profile.shared_segments as u32;
    let number = match fits {
        false => Err(libc::EINVAL),
        true => (opened.check()).and_then(|()| process.new_shared().ok_or(libc::ENOMEM)),
    };
    let made = number.and_then(|number| {
        let index = crate::arena::PAIRS as u32 + number;
        if !receives::open(process.arena(), index, requests, segments, opened.events()) {
            process.end_shared(number);
            return Err(libc::ENOMEM);
        }
        let base = ibv_srq {
            context: opened.context(),
            srq_context: wanted.srq_context,
            pd: domain,
            handle: number,
            ..Default::default()
        };
        let process = process.clone();
        Ok(Box::new(Shared {
            base,
            process,
            index,
            number,
            users: AtomicUsize::new(0),
        }))
    });
    let shared = given(made);
    if !shared.is_null() {
        own.users.fetch_add(1, Ordering::Relaxed);
        // SAFETY: made just now.
        let number = unsafe { (*shared).number };
        process
            .shared
            .lock()
            .unwrap()
            .insert(number, Address(shared));
    }
    shared.cast()
}

/// # Safety
/// A queue that lives, and a structure that is complete.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_modify_srq(
    queue: *mut ibv_srq,
    wanted: *mut ibv_srq_attr,
    which: c_int,
) -> c_int {
    if which as u32 & ibv_srq_attr_mask::IBV_SRQ_MAX_WR.0 != 0 {
        return libc::EOPNOTSUPP;
    }
    // SAFETY: our caller promises it.
    let (opened, shared, wanted) = unsafe {
        (
            Opened::of((*queue).context),
            &*queue.cast::<Shared>(),
            &*wanted,
        )
    };
    if let Err(errno) = opened.check() {
        return errno;
    }
    let entry = shared.process.arena().receives(shared.index);
    if wanted.srq_limit > entry.capacity.load(Ordering::Relaxed) {
        return libc::EINVAL;
    }
    let _guard = entry.lock.lock();
    entry.limit.store(wanted.srq_limit, Ordering::Relaxed);
    0
}

/// # Safety
/// A queue that lives.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_destroy_srq(queue: *mut ibv_srq) -> c_int {
    // SAFETY: our caller promises it.
    let shared = unsafe { &*queue.cast::<Shared>() };
    if shared.users.load(Ordering::Relaxed) > 0 {
        return libc::EBUSY;
    }
    shared.process.shared.lock().unwrap().remove(&shared.number);
    receives::close(shared.process.arena(), shared.index);
    shared.process.end_shared(shared.number);
    // SAFETY: the domain lives as long as what was made of it; it came from a box.
    unsafe {
        (*shared.base.pd.cast::<Domain>())
            .users
            .fetch_sub(1, Ordering::Relaxed);
        drop(Box::from_raw(queue.cast::<Shared>()));
    }
    0
}

pub(super) unsafe extern "C" fn post_srq_recv(
    queue: *mut ibv_srq,
    list: *mut ibv_recv_wr,
    bad: *mut *mut ibv_recv_wr,
) -> c_int {
    // SAFETY: C promises a queue that lives and a complete list.
    unsafe {
        let shared = &*queue.cast::<Shared>();
        posted(
            receives::post(shared.process.arena(), shared.index, list),
            bad,
        )
    }
}
