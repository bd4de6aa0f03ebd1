//! Queue pairs.

use super::{Domain, Opened, PORT, given, posted};
use crate::channel::Queue;
use crate::pair::{Core, Pair};
use crate::process::Address;
use crate::receives::{self, Shared};
use libc::c_int;
use linerate_verbs_sys::raw::*;
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// # Safety
/// A domain that lives, and a structure that is complete and writable.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_create_qp(
    domain: *mut ibv_pd,
    wanted: *mut ibv_qp_init_attr,
) -> *mut ibv_qp {
    // SAFETY: our caller promises it.
    let (opened, own, wanted) = unsafe {
        (
            Opened::of((*domain).context),
            &*domain.cast::<Domain>(),
            &mut *wanted,
        )
    };
    // SAFETY: our caller promises queues that live.
    let pair = given(unsafe { make_pair(opened, (domain, own), wanted) });
    if !pair.is_null() {
        own.users.fetch_add(1, Ordering::Relaxed);
        // SAFETY: made just now.
        let core = unsafe { (*pair).core.clone() };
        let process = &opened.process;
        process
            .addresses
            .lock()
            .unwrap()
            .insert(core.number, Address(pair));
        process.pairs.lock().unwrap().insert(core.number, core);
    }
    pair.cast()
}

/// # Safety
/// The queues of the structure live.
unsafe fn make_pair(
    opened: &Opened,
    (domain, own): (*mut ibv_pd, &Domain),
    wanted: &mut ibv_qp_init_attr,
) -> Result<Box<Pair>, c_int> {
    opened.check()?;
    let process = &opened.process;
    let profile = process.settings.profile;
    let cap = &mut wanted.cap;
    let shared = wanted.srq.cast::<Shared>();
    // SAFETY: our caller promises it.
    let shared = unsafe { shared.as_ref() };
    if shared.is_some() {
        (cap.max_recv_wr, cap.max_recv_sge) = (0, 0);
    }
    let kinds = [ibv_qp_type::IBV_QPT_RC, ibv_qp_type::IBV_QPT_UD];
    if !kinds.contains(&wanted.qp_type) {
        return Err(libc::EOPNOTSUPP);
    }
    let most = profile.requests as u32;
    let fits = cap.max_send_wr <= most && cap.max_recv_wr <= most;
    let segments = profile.segments as u32;
    let fits = fits && cap.max_send_sge <= segments && cap.max_recv_sge <= segments;
    let fits = fits && cap.max_inline_data <= profile.inline_bytes;
    if !fits || wanted.send_cq.is_null() || wanted.recv_cq.is_null() {
        return Err(libc::EINVAL);
    }
    if process.pairs.lock().unwrap().len() >= profile.queue_pairs as usize {
        return Err(libc::ENOMEM);
    }
    let number = process.new_pair().ok_or(libc::ENOMEM)?;
    let own_receives = number % crate::arena::PAIRS as u32;
    let receives = match shared {
        Some(shared) => shared.index,
        None => {
            let (requests, segments) = (cap.max_recv_wr, cap.max_recv_sge);
            if !receives::open(
                process.arena(),
                own_receives,
                requests,
                segments,
                opened.events(),
            ) {
                process.end_pair(number);
                return Err(libc::ENOMEM);
            }
            own_receives
        }
    };
    let queues = [
        wanted.send_cq.cast::<Queue>(),
        wanted.recv_cq.cast::<Queue>(),
    ];
    for queue in queues {
        // SAFETY: our caller promises it.
        unsafe { &*queue }.users.fetch_add(1, Ordering::Relaxed);
    }
    if let Some(shared) = shared {
        shared.users.fetch_add(1, Ordering::Relaxed);
    }
    let core = Core::new(
        process,
        (number, wanted.qp_type, own.number, opened.device),
        *cap,
        wanted.sq_sig_all != 0,
        queues,
        (shared.map(|shared| shared.number), receives),
        opened.events(),
    );
    let base = ibv_qp {
        context: opened.context(),
        qp_context: wanted.qp_context,
        pd: domain,
        send_cq: wanted.send_cq,
        recv_cq: wanted.recv_cq,
        srq: wanted.srq,
        handle: number,
        qp_num: number,
        state: ibv_qp_state::IBV_QPS_RESET,
        qp_type: wanted.qp_type,
        ..Default::default()
    };
    Ok(Box::new(Pair {
        base,
        core: Arc::new(core),
    }))
}

/// # Safety
/// A queue pair that lives, and a structure that is complete.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_modify_qp(
    raw: *mut ibv_qp,
    wanted: *mut ibv_qp_attr,
    which: c_int,
) -> c_int {
    use ibv_qp_attr_mask as mask;
    use ibv_qp_state as state;
    // SAFETY: our caller promises it.
    let (opened, pair, wanted) = unsafe {
        (
            Opened::of((*raw).context),
            &mut *raw.cast::<Pair>(),
            &*wanted,
        )
    };
    if let Err(errno) = opened.check() {
        return errno;
    }
    let has = |flag: mask| which as u32 & flag.0 != 0;
    let core = pair.core.clone();
    let before = core.state();
    let after = if has(mask::IBV_QP_STATE) {
        wanted.qp_state
    } else {
        before
    };
    let is_allowed = matches!(
        (before, after),
        (_, state::IBV_QPS_RESET | state::IBV_QPS_ERR)
            | (
                state::IBV_QPS_RESET | state::IBV_QPS_INIT,
                state::IBV_QPS_INIT
            )
            | (state::IBV_QPS_INIT, state::IBV_QPS_RTR)
            | (
                state::IBV_QPS_RTR | state::IBV_QPS_RTS | state::IBV_QPS_SQD,
                state::IBV_QPS_RTS
            )
            | (state::IBV_QPS_RTS, state::IBV_QPS_SQD)
    );
    let is_connected = core.kind == ibv_qp_type::IBV_QPT_RC;
    let needed = match (after, before == after, is_connected) {
        (state::IBV_QPS_INIT, false, true) => {
            mask::IBV_QP_PORT.0 | mask::IBV_QP_PKEY_INDEX.0 | mask::IBV_QP_ACCESS_FLAGS.0
        }
        (state::IBV_QPS_INIT, false, false) => {
            mask::IBV_QP_PORT.0 | mask::IBV_QP_PKEY_INDEX.0 | mask::IBV_QP_QKEY.0
        }
        (state::IBV_QPS_RTR, _, true) => {
            mask::IBV_QP_AV.0
                | mask::IBV_QP_PATH_MTU.0
                | mask::IBV_QP_DEST_QPN.0
                | mask::IBV_QP_RQ_PSN.0
                | mask::IBV_QP_MAX_DEST_RD_ATOMIC.0
                | mask::IBV_QP_MIN_RNR_TIMER.0
        }
        (state::IBV_QPS_RTS, _, true) if before == state::IBV_QPS_RTR => {
            mask::IBV_QP_TIMEOUT.0
                | mask::IBV_QP_RETRY_CNT.0
                | mask::IBV_QP_RNR_RETRY.0
                | mask::IBV_QP_SQ_PSN.0
                | mask::IBV_QP_MAX_QP_RD_ATOMIC.0
        }
        _ => 0,
    };
    let is_port_known = !has(mask::IBV_QP_PORT) || wanted.port_num == PORT;
    let way = &wanted.ah_attr;
    let has_gid = !has(mask::IBV_QP_AV)
        || way.is_global == 0
        || opened.gid(u32::from(way.grh.sgid_index)).is_some();
    if !is_allowed || which as u32 & needed != needed || !is_port_known || !has_gid {
        return libc::EINVAL;
    }
    let mut all = core.attributes();
    macro_rules! take {
        ($($flag:ident: $($field:ident),*;)*) => {
            $(if has(mask::$flag) {
                $(all.$field = wanted.$field;)*
            })*
        };
    }
    take! {
        IBV_QP_PKEY_INDEX: pkey_index;
        IBV_QP_PORT: port_num;
        IBV_QP_ACCESS_FLAGS: qp_access_flags;
        IBV_QP_QKEY: qkey;
        IBV_QP_AV: ah_attr;
        IBV_QP_PATH_MTU: path_mtu;
        IBV_QP_DEST_QPN: dest_qp_num;
        IBV_QP_RQ_PSN: rq_psn;
        IBV_QP_MAX_DEST_RD_ATOMIC: max_dest_rd_atomic;
        IBV_QP_MIN_RNR_TIMER: min_rnr_timer;
        IBV_QP_TIMEOUT: timeout;
        IBV_QP_RETRY_CNT: retry_cnt;
        IBV_QP_RNR_RETRY: rnr_retry;
        IBV_QP_SQ_PSN: sq_psn;
        IBV_QP_MAX_QP_RD_ATOMIC: max_rd_atomic;
    }
    core.change(after, all);
    pair.base.state = after;
    0
}

/// # Safety
/// A queue pair that lives, and writable structures.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_query_qp(
    raw: *mut ibv_qp,
    to: *mut ibv_qp_attr,
    _: c_int,
    initial: *mut ibv_qp_init_attr,
) -> c_int {
    // SAFETY: our caller promises it.
    let (opened, pair) = unsafe { (Opened::of((*raw).context), &*raw.cast::<Pair>()) };
    if let Err(errno) = opened.check() {
        return errno;
    }
    let state = pair.core.state();
    let mut all = pair.core.attributes();
    (all.qp_state, all.cur_qp_state, all.cap) = (state, state, pair.core.capacity);
    let init = ibv_qp_init_attr {
        qp_context: pair.base.qp_context,
        send_cq: pair.base.send_cq,
        recv_cq: pair.base.recv_cq,
        srq: pair.base.srq,
        cap: pair.core.capacity,
        qp_type: pair.core.kind,
        sq_sig_all: pair.core.is_all_signaled.into(),
    };
    // SAFETY: as above.
    unsafe {
        *to = all;
        *initial = init;
    }
    0
}

/// # Safety
/// A queue pair that lives.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_destroy_qp(raw: *mut ibv_qp) -> c_int {
    // SAFETY: it came from a box, and nobody uses it any more.
    let pair = unsafe { Box::from_raw(raw.cast::<Pair>()) };
    let core = &pair.core;
    let process = &core.process;
    let entry = process.arena().pair(core.number);
    core.change(ibv_qp_state::IBV_QPS_RESET, ibv_qp_attr::default());
    {
        // After this nobody moves bytes through it.
        let _guard = entry.lock.lock();
        entry.number.store(0, Ordering::Release);
    }
    core.forget();
    process.pairs.lock().unwrap().remove(&core.number);
    process.addresses.lock().unwrap().remove(&core.number);
    if core.shared.is_none() {
        receives::close(process.arena(), core.receives);
    }
    // SAFETY: its queues and its domain live longer.
    unsafe {
        for queue in core.queues {
            (*queue).users.fetch_sub(1, Ordering::Relaxed);
        }
        if let Some(shared) = pair.base.srq.cast::<Shared>().as_ref() {
            shared.users.fetch_sub(1, Ordering::Relaxed);
        }
        (*pair.base.pd.cast::<Domain>())
            .users
            .fetch_sub(1, Ordering::Relaxed);
    }
    process.end_pair(core.number);
    0
}

pub(super) unsafe extern "C" fn post_send(
    raw: *mut ibv_qp,
    list: *mut ibv_send_wr,
    bad: *mut *mut ibv_send_wr,
) -> c_int {
    // SAFETY: C promises a queue pair that lives and a complete list.
    unsafe { posted((*raw.cast::<Pair>()).core.post(list), bad) }
}

pub(super) unsafe extern "C" fn post_recv(
    raw: *mut ibv_qp,
    list: *mut ibv_recv_wr,
    bad: *mut *mut ibv_recv_wr,
) -> c_int {
    // SAFETY: C promises a queue pair that lives and a complete list.
    unsafe { posted((*raw.cast::<Pair>()).core.post_receives(list), bad) }
}
