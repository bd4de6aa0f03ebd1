//! Collectives by name, with the arguments in NCCL's order; each waits for its end.

use crate::call::{linerate_call, linerate_group_run, linerate_transfer, run};
use crate::communicator::linerate_comm;
use crate::status::{enter, invalid};
use crate::words::{
    LINERATE_ALL_GATHER, LINERATE_ALL_GATHER_V, LINERATE_ALL_REDUCE, LINERATE_ALL_TO_ALL,
    LINERATE_ALL_TO_ALL_V, LINERATE_BARRIER, LINERATE_BROADCAST, LINERATE_GATHER,
    LINERATE_GATHER_V, LINERATE_PREMUL_SUM, LINERATE_REDUCE, LINERATE_REDUCE_SCATTER,
    LINERATE_REDUCE_SCATTER_V, LINERATE_SCATTER, LINERATE_SCATTER_V,
};
use std::ffi::{c_char, c_void};
use std::ptr::null;

/// A call with its defaults.
fn call(
    collective: u32,
    (input, output): (*const c_void, *mut c_void),
    count: u64,
    dtype: u32,
) -> linerate_call {
    linerate_call {
        size: size_of::<linerate_call>() as u64,
        collective,
        dtype,
        op: 0,
        root: 0,
        memory_kind: 0,
        reserved: 0,
        factor: 0.0,
        count,
        input,
        output,
        send_counts: null(),
        receive_counts: null(),
        timeout_ns: 0,
        algorithm: null::<c_char>(),
        queue: 0,
        user: 0,
        inputs: null(),
        outputs: null(),
    }
}

/// Runs a call by name.
///
/// # Safety
/// The addresses of the call hold what its documentation says.
unsafe fn run_named(comm: linerate_comm, call: linerate_call) -> i32 {
    enter(|| {
        if call.op == LINERATE_PREMUL_SUM {
            return Err(invalid(
                "LINERATE_PREMUL_SUM needs a factor: use linerate_run() with a linerate_call",
            ));
        }
        // SAFETY: our caller promises it.
        unsafe { run(comm, &call) }
    })
}

/// The reduction of `count` elements of all ranks, on every rank; in place if both
/// addresses are equal.
///
/// Threads, owner and fork: as linerate_run().
///
/// # Safety
/// The buffers hold what linerate_call says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn linerate_all_reduce(
    sendbuf: *const c_void,
    recvbuf: *mut c_void,
    count: u64,
    dtype: u32,
    op: u32,
    comm: linerate_comm,
) -> i32 {
    let call = linerate_call {
        op,
        ..call(LINERATE_ALL_REDUCE, (sendbuf, recvbuf), count, dtype)
    };
    // SAFETY: our caller promises it.
    unsafe { run_named(comm, call) }
}

/// Rank r gets the reduction of block r: `count` elements per block, as many blocks in
/// `sendbuf` as ranks; in place if `recvbuf` is this rank's block of `sendbuf`.
///
/// Threads, owner and fork: as linerate_run().
///
/// # Safety
/// The buffers hold what linerate_call says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn linerate_reduce_scatter(
    sendbuf: *const c_void,
    recvbuf: *mut c_void,
    count: u64,
    dtype: u32,
    op: u32,
    comm: linerate_comm,
) -> i32 {
    let call = linerate_call {
        op,
        ..call(LINERATE_REDUCE_SCATTER, (sendbuf, recvbuf), count, dtype)
    };
    // SAFETY: our caller promises it.
    unsafe { run_named(comm, call) }
}

/// Block r of every `recvbuf` is rank r's `sendbuf`: `count` elements per block; in place
/// if `sendbuf` is this rank's block of `recvbuf`.
///
/// Threads, owner and fork: as linerate_run().
///
/// # Safety
/// The buffers hold what linerate_call says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn linerate_all_gather(
    sendbuf: *const c_void,
    recvbuf: *mut c_void,
    count: u64,
    dtype: u32,
    comm: linerate_comm,
) -> i32 {
    let call = call(LINERATE_ALL_GATHER, (sendbuf, recvbuf), count, dtype);
    // SAFETY: our caller promises it.
    unsafe { run_named(comm, call) }
}

/// As linerate_all_gather(), with `counts[r]` elements of rank r; `counts` is equal on all
/// ranks.
///
/// Threads, owner and fork: as linerate_run().
///
/// # Safety
/// The buffers hold what linerate_call says; counts have one number per rank.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn linerate_all_gather_v(
    sendbuf: *const c_void,
    recvbuf: *mut c_void,
    counts: *const u64,
    dtype: u32,
    comm: linerate_comm,
) -> i32 {
    let call = linerate_call {
        receive_counts: counts,
        ..call(LINERATE_ALL_GATHER_V, (sendbuf, recvbuf), 0, dtype)
    };
    // SAFETY: our caller promises it.
    unsafe { run_named(comm, call) }
}

/// As linerate_gather(), with `counts[r]` elements of rank r; `counts` is equal on all ranks.
///
/// Threads, owner and fork: as linerate_run().
///
/// # Safety
/// The buffers hold what linerate_call says; counts have one number per rank.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn linerate_gather_v(
    sendbuf: *const c_void,
    recvbuf: *mut c_void,
    counts: *const u64,
    dtype: u32,
    root: u32,
    comm: linerate_comm,
) -> i32 {
    let call = linerate_call {
        receive_counts: counts,
        root,
        ..call(LINERATE_GATHER_V, (sendbuf, recvbuf), 0, dtype)
    };
    // SAFETY: our caller promises it.
    unsafe { run_named(comm, call) }
}

/// As linerate_scatter(), with `counts[r]` elements for rank r; `counts` is equal on all ranks.
///
/// Threads, owner and fork: as linerate_run().
///
/// # Safety
/// The buffers hold what linerate_call says; counts have one number per rank.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn linerate_scatter_v(
    sendbuf: *const c_void,
    recvbuf: *mut c_void,
    counts: *const u64,
    dtype: u32,
    root: u32,
    comm: linerate_comm,
) -> i32 {
    let call = linerate_call {
        receive_counts: counts,
        root,
        ..call(LINERATE_SCATTER_V, (sendbuf, recvbuf), 0, dtype)
    };
    // SAFETY: our caller promises it.
    unsafe { run_named(comm, call) }
}

/// As linerate_reduce_scatter(), with `counts[r]` elements for rank r; `counts` is equal on all
/// ranks.
///
/// Threads, owner and fork: as linerate_run().
///
/// # Safety
/// The buffers hold what linerate_call says; counts have one number per rank.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn linerate_reduce_scatter_v(
    sendbuf: *const c_void,
    recvbuf: *mut c_void,
    counts: *const u64,
    dtype: u32,
    op: u32,
    comm: linerate_comm,
) -> i32 {
    let call = linerate_call {
        receive_counts: counts,
        op,
        ..call(LINERATE_REDUCE_SCATTER_V, (sendbuf, recvbuf), 0, dtype)
    };
    // SAFETY: our caller promises it.
    unsafe { run_named(comm, call) }
}

/// The `count` elements of the root's `sendbuf`, in `recvbuf` of all ranks; the other
/// ranks may give a `sendbuf` of NULL.
///
/// Threads, owner and fork: as linerate_run().
///
/// # Safety
/// The buffers hold what linerate_call says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn linerate_broadcast(
    sendbuf: *const c_void,
    recvbuf: *mut c_void,
    count: u64,
    dtype: u32,
    root: u32,
    comm: linerate_comm,
) -> i32 {
    let call = linerate_call {
        root,
        ..call(LINERATE_BROADCAST, (sendbuf, recvbuf), count, dtype)
    };
    // SAFETY: our caller promises it.
    unsafe { run_named(comm, call) }
}

/// The reduction of `count` elements of all ranks, in the root's `recvbuf`; the other
/// ranks may give a `recvbuf` of NULL.
///
/// Threads, owner and fork: as linerate_run().
///
/// # Safety
/// The buffers hold what linerate_call says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn linerate_reduce(
    sendbuf: *const c_void,
    recvbuf: *mut c_void,
    count: u64,
    dtype: u32,
    op: u32,
    root: u32,
    comm: linerate_comm,
) -> i32 {
    let call = linerate_call {
        op,
        root,
        ..call(LINERATE_REDUCE, (sendbuf, recvbuf), count, dtype)
    };
    // SAFETY: our caller promises it.
    unsafe { run_named(comm, call) }
}

/// Block r of the root's `recvbuf` is rank r's `sendbuf`: `count` elements per block.
/// The other ranks may give a `recvbuf` of NULL.
///
/// Threads, owner and fork: as linerate_run().
///
/// # Safety
/// The buffers hold what linerate_call says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn linerate_gather(
    sendbuf: *const c_void,
    recvbuf: *mut c_void,
    count: u64,
    dtype: u32,
    root: u32,
    comm: linerate_comm,
) -> i32 {
    let call = linerate_call {
        root,
        ..call(LINERATE_GATHER, (sendbuf, recvbuf), count, dtype)
    };
    // SAFETY: our caller promises it.
    unsafe { run_named(comm, call) }
}

/// Rank r gets block r of the root's `sendbuf`: `count` elements per block. The other
/// ranks may give a `sendbuf` of NULL.
///
/// Threads, owner and fork: as linerate_run().
///
/// # Safety
/// The buffers hold what linerate_call says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn linerate_scatter(
    sendbuf: *const c_void,
    recvbuf: *mut c_void,
    count: u64,
    dtype: u32,
    root: u32,
    comm: linerate_comm,
) -> i32 {
    let call = linerate_call {
        root,
        ..call(LINERATE_SCATTER, (sendbuf, recvbuf), count, dtype)
    };
    // SAFETY: our caller promises it.
    unsafe { run_named(comm, call) }
}

/// Block r of `sendbuf` goes to rank r, and block r of `recvbuf` comes from it: `count`
/// elements per block; in place if both addresses are equal.
///
/// Threads, owner and fork: as linerate_run().
///
/// # Safety
/// The buffers hold what linerate_call says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn linerate_all_to_all(
    sendbuf: *const c_void,
    recvbuf: *mut c_void,
    count: u64,
    dtype: u32,
    comm: linerate_comm,
) -> i32 {
    let call = call(LINERATE_ALL_TO_ALL, (sendbuf, recvbuf), count, dtype);
    // SAFETY: our caller promises it.
    unsafe { run_named(comm, call) }
}

/// As linerate_all_to_all(), with `send_counts[r]` elements to rank r and
/// `receive_counts[r]` from it, one after another. Never in place.
///
/// Threads, owner and fork: as linerate_run().
///
/// # Safety
/// The buffers hold what linerate_call says; counts have one number per rank.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn linerate_all_to_all_v(
    sendbuf: *const c_void,
    send_counts: *const u64,
    recvbuf: *mut c_void,
    receive_counts: *const u64,
    dtype: u32,
    comm: linerate_comm,
) -> i32 {
    let call = linerate_call {
        send_counts,
        receive_counts,
        ..call(LINERATE_ALL_TO_ALL_V, (sendbuf, recvbuf), 0, dtype)
    };
    // SAFETY: our caller promises it.
    unsafe { run_named(comm, call) }
}

/// Returns when all ranks have called it. Threads and fork: as linerate_run().
#[unsafe(no_mangle)]
pub extern "C" fn linerate_barrier(comm: linerate_comm) -> i32 {
    let none = (null(), std::ptr::null_mut());
    // SAFETY: a barrier has no memory.
    unsafe { run_named(comm, call(LINERATE_BARRIER, none, 0, 0)) }
}

/// Sends `count` elements to rank `peer`, which receives as many from this one. Two ranks that send
/// to each other use linerate_group_run().
///
/// Threads, owner and fork: as linerate_run().
///
/// # Safety
/// `count` elements lie at `sendbuf`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn linerate_send(
    sendbuf: *const c_void,
    count: u64,
    dtype: u32,
    peer: u32,
    comm: linerate_comm,
) -> i32 {
    let transfer = linerate_transfer {
        size: size_of::<linerate_transfer>() as u64,
        peer,
        is_send: 1,
        dtype,
        memory_kind: 0,
        count,
        address: sendbuf.cast_mut(),
    };
    // SAFETY: our caller promises it.
    unsafe { linerate_group_run(comm, &transfer, 1, 0) }
}

/// Receives `count` elements from rank `peer`, which sends as many to this one.
///
/// Threads, owner and fork: as linerate_run().
///
/// # Safety
/// `recvbuf` has room for `count` elements.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn linerate_recv(
    recvbuf: *mut c_void,
    count: u64,
    dtype: u32,
    peer: u32,
    comm: linerate_comm,
) -> i32 {
    let transfer = linerate_transfer {
        size: size_of::<linerate_transfer>() as u64,
        peer,
        is_send: 0,
        dtype,
        memory_kind: 0,
        count,
        address: recvbuf,
    };
    // SAFETY: our caller promises it.
    unsafe { linerate_group_run(comm, &transfer, 1, 0) }
}
