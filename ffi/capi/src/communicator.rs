//! Communicators: made, asked and ended.

use crate::config::{config_of, linerate_config};
use crate::exchange::{Callbacks, linerate_exchange};
use crate::objects::{COMMUNICATOR, Object, insert};
use crate::pointers::{array, check_place, read, text, write, write_text};
use crate::status::{Fault, LINERATE_DONE, enter, invalid, remember};
use linerate::{Communicator, Result};
use std::ffi::c_char;
use std::time::Duration;

/// A handle of a communicator.
#[allow(non_camel_case_types)]
pub type linerate_comm = u64;

/// The color of a rank that takes part in linerate_split() and gets no communicator.
pub const LINERATE_NO_COLOR: i64 = -1;

/// Makes a communicator and stores its handle; 0 if there is none.
///
/// # Safety
/// `place` is writable, unless it is null or not aligned.
unsafe fn make(
    place: *mut linerate_comm,
    join: impl FnOnce() -> std::result::Result<Option<Communicator>, Fault>,
) -> i32 {
    enter(|| {
        check_place("made", place)?;
        let made = join()?.map(|made| insert(Object::Communicator(made)));
        // SAFETY: our caller promises it.
        unsafe { write("made", place, made.transpose()?.unwrap_or(0))? };
        Ok(LINERATE_DONE)
    })
}

fn some(made: Result<Communicator>) -> std::result::Result<Option<Communicator>, Fault> {
    Ok(Some(made?))
}

/// Joins the job that the environment describes, as `linerate launch`, torchrun, mpirun (Open MPI,
/// MPICH) and srun set it; one rank if none of them has started this process. `config` may be 0:
/// settings of the environment. Waits for the other ranks, at most the timeout of the settings.
///
/// Threads: any. The caller ends the communicator by linerate_finalize() or linerate_destroy().
/// After fork: a child may join a job of its own.
///
/// # Safety
/// `made` is writable.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn linerate_init(config: linerate_config, made: *mut linerate_comm) -> i32 {
    // SAFETY: our caller promises it.
    unsafe {
        make(made, || {
            some(Communicator::from_env_with(config_of(config)?))
        })
    }
}

/// Joins a job by name: every rank gives the same `job` and `ranks`, and a `rank` of its own from 0
/// on. Ranks of several hosts meet at "tcp://host:port" (a free port of rank 0's host) or in
/// "file://folder" (a folder that all ranks see); any other name is that of a job on this host.
///
/// Threads, owner and fork: as linerate_init().
///
/// # Safety
/// `job` is a string; `made` is writable.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn linerate_init_by_name(
    rank: u32,
    ranks: u32,
    job: *const c_char,
    config: linerate_config,
    made: *mut linerate_comm,
) -> i32 {
    let join = || {
        // SAFETY: our caller promises it.
        let job = unsafe { text("job", job)? };
        some(Communicator::join(rank, ranks, job, config_of(config)?))
    };
    // SAFETY: as above.
    unsafe { make(made, join) }
}

/// Joins a job whose processes have a way between them already, such as torch's Store:
/// `exchange` puts and gets small values. `name` is 1 to 200 bytes that all ranks name alike and
/// no other use of the exchange has.
///
/// Threads: any; the callbacks run on the calling thread, inside this call only. Owner and fork: as
/// linerate_init().
///
/// # Safety
/// `name` is a string; `exchange` is a struct whose callbacks keep what its documentation says;
/// `made` is writable.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn linerate_init_by_exchange(
    rank: u32,
    ranks: u32,
    name: *const c_char,
    exchange: *const linerate_exchange,
    config: linerate_config,
    made: *mut linerate_comm,
) -> i32 {
    let join = || {
        // SAFETY: our caller promises it.
        let (name, exchange) = unsafe { (text("name", name)?, read("exchange", exchange)?) };
        let callbacks = Callbacks::new(exchange)?;
        let config = config_of(config)?;
        some(Communicator::join_by(rank, ranks, name, &callbacks, config))
    };
    // SAFETY: as above.
    unsafe { make(made, join) }
}

/// The rank of this process in the communicator. Threads: any. After fork: as before.
///
/// # Safety
/// `rank` is writable.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn linerate_rank(comm: linerate_comm, rank: *mut u32) -> i32 {
    enter(|| {
        let comm = COMMUNICATOR.get(comm)?;
        // SAFETY: our caller promises it.
        unsafe { write("rank", rank, comm.rank())? };
        Ok(LINERATE_DONE)
    })
}

/// How many ranks the communicator has. Threads: any. After fork: as before.
///
/// # Safety
/// `ranks` is writable.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn linerate_ranks(comm: linerate_comm, ranks: *mut u32) -> i32 {
    enter(|| {
        let comm = COMMUNICATOR.get(comm)?;
        // SAFETY: our caller promises it.
        unsafe { write("ranks", ranks, comm.ranks())? };
        Ok(LINERATE_DONE)
    })
}

/// The name of the transport in use, such as "shm" or "tcp", as linerate_last_error_text() gives
/// texts. Threads: any. After fork: as before.
///
/// # Safety
/// `buffer` has `capacity` bytes; `needed` is NULL or writable.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn linerate_transport(
    comm: linerate_comm,
    buffer: *mut c_char,
    capacity: u64,
    needed: *mut u64,
) -> i32 {
    enter(|| {
        let comm = COMMUNICATOR.get(comm)?;
        // SAFETY: our caller promises it.
        unsafe { write_text(comm.transport(), buffer, capacity, needed) }
    })
}

/// Sets how long an operation may make no progress before the communicator fails on all ranks, in
/// nanoseconds above 0. It holds for operations under way, too. The default is LINERATE_TIMEOUT.
///
/// Threads: any; each rank goes by its own value. After fork: LINERATE_ERROR_FORKED.
#[unsafe(no_mangle)]
pub extern "C" fn linerate_set_timeout(comm: linerate_comm, timeout_ns: u64) -> i32 {
    enter(|| {
        COMMUNICATOR
            .get(comm)?
            .set_timeout(Duration::from_nanos(timeout_ns))?;
        Ok(LINERATE_DONE)
    })
}

/// A communicator of the same ranks, with an order of operations of its own. Collective: every rank
/// calls it, in one order with its other collectives.
///
/// Threads: any, one at a time for one communicator. The caller ends it as any other; both may be
/// used at the same time, and memory of one with the other. After fork: LINERATE_ERROR_FORKED.
///
/// # Safety
/// `made` is writable.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn linerate_duplicate(comm: linerate_comm, made: *mut linerate_comm) -> i32 {
    // SAFETY: our caller promises it.
    unsafe { make(made, || some(COMMUNICATOR.get(comm)?.duplicate())) }
}

/// Splits a communicator as MPI_Comm_split does: ranks of one `color` (0 to 2^32 - 1) form a new
/// one, ordered by `key`, then by rank. A rank with LINERATE_NO_COLOR takes part and gets the
/// handle 0. Collective, as linerate_duplicate(), with its threads, owner and fork.
///
/// # Safety
/// `made` is writable.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn linerate_split(
    comm: linerate_comm,
    color: i64,
    key: i32,
    made: *mut linerate_comm,
) -> i32 {
    let split = || {
        let known = u32::try_from(color).ok();
        if known.is_none() && color != LINERATE_NO_COLOR {
            return Err(invalid(format!(
                "color {color}: 0 to {}, or LINERATE_NO_COLOR",
                u32::MAX
            )));
        }
        Ok(COMMUNICATOR.get(comm)?.split(known, key)?)
    };
    // SAFETY: our caller promises it.
    unsafe { make(made, split) }
}

/// A communicator of `count` ranks of another one, made by these alone: `members` are their numbers
/// there, in the order of the new ranks. They meet by `exchange` under `name`, as in
/// linerate_init_by_exchange(). The other communicator may have failed.
///
/// Threads: any; the callbacks run on the calling thread, inside this call only. Owner and fork: as
/// linerate_duplicate(). `members` is not used after the call.
///
/// # Safety
/// `members` has `count` numbers; `name`, `exchange` and `made` as linerate_init_by_exchange().
#[unsafe(no_mangle)]
pub unsafe extern "C" fn linerate_sibling(
    comm: linerate_comm,
    members: *const u32,
    count: u64,
    name: *const c_char,
    exchange: *const linerate_exchange,
    made: *mut linerate_comm,
) -> i32 {
    let join = || {
        let comm = COMMUNICATOR.get(comm)?;
        // SAFETY: our caller promises it.
        let (members, name) = unsafe { (array("members", members, count)?, text("name", name)?) };
        // SAFETY: as above.
        let callbacks = Callbacks::new(unsafe { read("exchange", exchange)? })?;
        some(comm.sibling(members, name, &callbacks))
    };
    // SAFETY: as above.
    unsafe { make(made, join) }
}

/// After a failure: a new communicator of the ranks that live. Every one of them calls it. Allocate
/// memory anew for it. Threads, owner and fork: as linerate_duplicate().
///
/// # Safety
/// `made` is writable.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn linerate_rebuild(comm: linerate_comm, made: *mut linerate_comm) -> i32 {
    // SAFETY: our caller promises it.
    unsafe { make(made, || some(COMMUNICATOR.get(comm)?.rebuild())) }
}

/// Fails the communicator on all ranks, with this reason: calls that wait on it return
/// LINERATE_ERROR_ABORTED, and later ones LINERATE_ERROR_COMMUNICATOR_FAILED.
///
/// Threads: any, also while others wait. `reason` is copied. After fork: nothing happens.
///
/// # Safety
/// `reason` is a string.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn linerate_abort(comm: linerate_comm, reason: *const c_char) -> i32 {
    enter(|| {
        // SAFETY: our caller promises it.
        let reason = unsafe { text("reason", reason)? };
        COMMUNICATOR.get(comm)?.abort(reason);
        Ok(LINERATE_DONE)
    })
}

/// Whether the communicator has failed: 0, or the status of the first cause, which becomes the last
/// error of the calling thread, with its text and its ranks. Never waits.
///
/// Threads: any. After fork: LINERATE_ERROR_FORKED.
#[unsafe(no_mangle)]
pub extern "C" fn linerate_failure(comm: linerate_comm) -> i32 {
    enter(|| match COMMUNICATOR.get(comm)?.failure() {
        Some(error) => Ok(remember(Fault::Library(error.first_cause().clone()))),
        None => Ok(LINERATE_DONE),
    })
}

/// Ends a communicator collectively: returns when all ranks have called it, so that no rank leaves
/// while another one needs it. The handle ends in any case, also if a status says that a rank has
/// left or failed.
///
/// Threads: any, while no other one uses the communicator. Memory, queues and operations made of it
/// have handles of their own, to be freed before or after. After fork: LINERATE_ERROR_FORKED, and
/// the child's handle ends.
#[unsafe(no_mangle)]
pub extern "C" fn linerate_finalize(comm: linerate_comm) -> i32 {
    enter(|| {
        let ended = COMMUNICATOR.get(comm)?.clone();
        let result = ended.finalize();
        COMMUNICATOR.free(comm)?;
        Ok(result.map(|()| LINERATE_DONE)?)
    })
}

/// Ends the handle of a communicator; 0 is allowed and does nothing. This rank leaves when the
/// handle and all that was made of it have been freed: operations, queues, fusion buffers, partial
/// and sparse allreduces. That call waits until the other ranks need nothing of this process, at
/// most the timeout of the settings.
///
/// Threads: any; calls that are under way on other threads end as if the handle still were. After
/// fork: the child's handle ends, and the parent's communicator goes on.
#[unsafe(no_mangle)]
pub extern "C" fn linerate_destroy(comm: linerate_comm) -> i32 {
    enter(|| COMMUNICATOR.free(comm).map(|()| LINERATE_DONE))
}
