//! Collectives and groups of transfers as structs: run, started, tested, waited for.

use crate::communicator::linerate_comm;
use crate::memory::{LINERATE_MEMORY_HOST, adopt};
use crate::objects::{COMMUNICATOR, OPERATION, Object, QUEUE, insert, lock};
use crate::pointers::{Sized64, Structs, array, check_place, look, read, text, write};
use crate::queue::linerate_queue;
use crate::status::{Fault, LINERATE_DONE, LINERATE_IN_PROGRESS, enter, invalid};
use crate::words::{collective_of, dtype_of, op_of};
use linerate::{Batch, Collective, CollectiveBuilder, Communicator, Group, Operation, ReduceOp};
use std::ffi::{c_char, c_void};
use std::mem::MaybeUninit;
use std::sync::Mutex;
use std::time::Duration;

/// A handle of an operation that was started.
#[allow(non_camel_case_types)]
pub type linerate_operation = u64;

/// A limit that does not end.
pub const LINERATE_FOREVER: u64 = u64::MAX;

/// One collective. Zero everywhere but `size`, `collective`, `dtype`, `count` and the addresses is
/// the default. Buffers have NCCL's layout: what is in place there is in place here, told by the
/// addresses. With p ranks:
///
/// | collective | input | output |
/// |---|---|---|
/// | ALL_REDUCE | count | count |
/// | REDUCE_SCATTER | p * count | count |
/// | ALL_GATHER | count | p * count |
/// | ALL_GATHER_V | own entry of receive_counts | sum of receive_counts |
/// | BROADCAST | count at the root | count |
/// | REDUCE | count | count at the root |
/// | GATHER | count | p * count at the root |
/// | SCATTER | p * count at the root | count |
/// | GATHER_V | own entry of receive_counts | sum of receive_counts at the root |
/// | SCATTER_V | sum of receive_counts at the root | own entry of receive_counts |
/// | REDUCE_SCATTER_V | sum of receive_counts | own entry of receive_counts |
/// | ALL_TO_ALL | p * count | p * count |
/// | ALL_TO_ALL_V | sum of send_counts | sum of receive_counts |
/// | BARRIER | none | none |
///
/// A buffer that this rank does not have may be NULL. Buffers are aligned for their type. Memory of
/// linerate_alloc() is used where it lies; other memory is copied where a transport cannot read it.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
#[allow(non_camel_case_types)]
pub struct linerate_call {
    /// sizeof(linerate_call).
    pub size: u64,
    /// LINERATE_ALL_REDUCE, ...
    pub collective: u32,
    /// LINERATE_F32, ...
    pub dtype: u32,
    /// LINERATE_SUM, ...; of reducing collectives.
    pub op: u32,
    /// The rank that is special, of rooted collectives.
    pub root: u32,
    /// LINERATE_MEMORY_HOST.
    pub memory_kind: u32,
    /// 0.
    pub reserved: u32,
    /// The factor of this rank, of LINERATE_PREMUL_SUM.
    pub factor: f64,
    /// Elements per rank.
    pub count: u64,
    /// Only read.
    pub input: *const c_void,
    /// Written.
    pub output: *mut c_void,
    /// One number per rank, of ALL_TO_ALL_V.
    pub send_counts: *const u64,
    /// One number per rank, of the collectives whose name ends with V.
    pub receive_counts: *const u64,
    /// How long it may make no progress, in nanoseconds; 0: as long as the communicator says.
    pub timeout_ns: u64,
    /// Algorithm by name (`linerate explain` lists them), the same on all ranks; NULL: the cost
    /// model chooses.
    pub algorithm: *const c_char,
    /// The queue that is told the end, of linerate_start(); 0: none.
    pub queue: linerate_queue,
    /// The number of its completion in the queue.
    pub user: u64,
    /// The input as a list, in place of `input`: one address per rank, of what goes to that rank or
    /// is reduced for it, as long as `send_counts` (of ALL_TO_ALL_V) or `receive_counts` says. Of
    /// ALL_TO_ALL_V, REDUCE_SCATTER_V and the root of SCATTER_V. Nothing is copied together. NULL:
    /// no list; other ranks may have one.
    pub inputs: *const *const c_void,
    /// The output as a list, in place of `output`: one address per rank, of what comes from it, as
    /// long as `receive_counts` says. Of ALL_TO_ALL_V, ALL_GATHER_V and the root of GATHER_V.
    pub outputs: *const *mut c_void,
}

// SAFETY: numbers and addresses, the size first.
unsafe impl Sized64 for linerate_call {
    const NAME: &'static str = "linerate_call";
    const FIRST_BYTES: usize = std::mem::offset_of!(linerate_call, inputs);
}

/// One send or receive of a group.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
#[allow(non_camel_case_types)]
pub struct linerate_transfer {
    /// sizeof(linerate_transfer).
    pub size: u64,
    /// The other rank.
    pub peer: u32,
    /// Not 0: a send; 0: a receive.
    pub is_send: u32,
    /// LINERATE_F32, ...
    pub dtype: u32,
    /// LINERATE_MEMORY_HOST.
    pub memory_kind: u32,
    /// Elements: equal on both sides.
    pub count: u64,
    /// Where they are; only read by a send.
    pub address: *mut c_void,
}

// SAFETY: numbers and an address, the size first.
unsafe impl Sized64 for linerate_transfer {
    const NAME: &'static str = "linerate_transfer";
}

pub(crate) fn check_kind(kind: u32) -> Result<(), Fault> {
    match kind {
        LINERATE_MEMORY_HOST => Ok(()),
        other => Err(invalid(format!(
            "memory kind {other}: this version has LINERATE_MEMORY_HOST (0) only"
        ))),
    }
}

fn refuse_both(name: &str, is_alone: bool) -> Result<(), Fault> {
    match is_alone {
        true => Ok(()),
        false => Err(invalid(format!(
            "a call has {name} and {name}s: give one of them"
        ))),
    }
}

/// Calls `then` with the collective of a call, without `input` and `output`. The builder is made
/// where it stays, because it is large.
///
/// # Safety
/// The addresses of the call hold what its documentation says, until the collective has ended.
#[inline(always)]
unsafe fn with_built<'a, R>(
    communicator: &'a Communicator,
    call: &linerate_call,
    then: impl FnOnce(&CollectiveBuilder<'a>) -> linerate::Result<R>,
) -> Result<R, Fault> {
    check_kind(call.memory_kind)?;
    if call.reserved != 0 {
        return Err(invalid(format!(
            "the reserved field of a call is {}: 0",
            call.reserved
        )));
    }
    let collective = collective_of(call.collective)?;
    // A barrier has no elements.
    let dtype = match collective {
        Collective::Barrier if call.dtype == 0 => linerate::DataType::U8,
        _ => dtype_of(call.dtype)?,
    };
    let op = match collective.is_reducing() {
        true => op_of(call.op, call.factor)?,
        false => ReduceOp::Sum,
    };
    let built = (communicator.collective(collective, dtype, call.count))
        .root(call.root)
        .op(op);
    let has_counts = collective == Collective::AllToAllV || collective.has_part_lengths();
    let has_lists = !call.inputs.is_null() || !call.outputs.is_null();
    Ok(
        match has_counts || has_lists || call.timeout_ns > 0 || !call.algorithm.is_null() {
            // SAFETY: our caller promises it.
            true => then(&unsafe { with_options(communicator, call, collective, built)? })?,
            false => then(&built)?,
        },
    )
}

/// Adds counts, lists, a timeout and an algorithm to a collective.
///
/// # Safety
/// As [`with_built`].
#[inline(never)]
unsafe fn with_options<'a>(
    communicator: &Communicator,
    call: &linerate_call,
    collective: Collective,
    mut built: CollectiveBuilder<'a>,
) -> Result<CollectiveBuilder<'a>, Fault> {
    let (ranks, dtype) = (u64::from(communicator.ranks()), call.dtype);
    let counts_of = |name, address: *const u64, is_used: bool| match is_used {
        // SAFETY: our caller promises one number per rank.
        true => unsafe { array(name, address, ranks) },
        false => Ok(&[][..]),
    };
    let (has_sends, has_receives) = (
        collective == Collective::AllToAllV,
        collective == Collective::AllToAllV || collective.has_part_lengths(),
    );
    let sends = counts_of("send_counts", call.send_counts, has_sends)?;
    let receives = counts_of("receive_counts", call.receive_counts, has_receives)?;
    if has_sends {
        built = built.send_counts(sends);
    }
    if has_receives {
        built = built.receive_counts(receives);
    }
    let lists = |name, list: *const *const c_void, counts: &[u64]| {
        // SAFETY: our caller promises one address per rank.
        let addresses = unsafe { array(name, list, ranks)? };
        let (parts, dtype) = (addresses.iter().zip(counts), dtype_of(dtype)?);
        // SAFETY: our caller promises as many elements at each.
        let adopt = |(&part, &count)| unsafe { adopt(name, communicator, part, count, dtype) };
        parts.map(adopt).collect::<Result<Vec<_>, Fault>>()
    };
    if !call.inputs.is_null() {
        refuse_both("input", call.input.is_null())?;
        let counts = if has_sends { sends } else { receives };
        built = built.inputs(&lists("inputs", call.inputs, counts)?);
    }
    if !call.outputs.is_null() {
        refuse_both("output", call.output.is_null())?;
        built = built.outputs(&lists("outputs", call.outputs.cast(), receives)?);
    }
    if call.timeout_ns > 0 {
        built = built.timeout(Duration::from_nanos(call.timeout_ns));
    }
    if !call.algorithm.is_null() {
        // SAFETY: our caller promises a string.
        built = built.algorithm(unsafe { text("algorithm", call.algorithm)? });
    }
    Ok(built)
}

/// The collective of a call.
///
/// # Safety
/// As [`with_built`].
unsafe fn build_at<'a>(
    communicator: &'a Communicator,
    call: &linerate_call,
) -> Result<CollectiveBuilder<'a>, Fault> {
    let (input, output) = (call.input.cast(), call.output.cast());
    // SAFETY: our caller promises it.
    unsafe { with_built(communicator, call, |built| built.clone().at(input, output)) }
}

/// Runs a call and waits for its end.
///
/// # Safety
/// As [`with_built`].
pub(crate) unsafe fn run(comm: linerate_comm, call: &linerate_call) -> Result<i32, Fault> {
    let communicator = COMMUNICATOR.get(comm)?;
    let (input, output) = (call.input.cast(), call.output.cast());
    // SAFETY: our caller promises it.
    unsafe { with_built(&communicator, call, |built| built.run_at(input, output))? };
    Ok(LINERATE_DONE)
}

/// Gives a started operation a handle, and a place in its queue.
///
/// # Safety
/// `place` is null or writable.
pub(crate) unsafe fn hand_out(
    place: *mut linerate_operation,
    (queue, user): (linerate_queue, u64),
    start: impl FnOnce() -> Result<Operation, Fault>,
) -> Result<i32, Fault> {
    let queue = (queue != 0).then(|| QUEUE.get(queue)).transpose()?;
    if queue.is_none() || !place.is_null() {
        check_place("operation", place)?;
    }
    let mut operation = start()?;
    if let Some(queue) = queue {
        operation.notify(&queue, user)?;
    }
    if !place.is_null() {
        let handle = insert(Object::Operation(Mutex::new(operation)))?;
        // SAFETY: our caller promises it.
        unsafe { write("operation", place, handle)? };
    }
    Ok(LINERATE_DONE)
}

/// Runs a collective and waits for its end. All ranks run and start the same ones in one order.
///
/// Threads: any, one at a time for one communicator. The call and its buffers are the caller's
/// again when it returns; after an error, peers may still write registered memory. Returns the
/// first cause of a failure on every rank. After fork: LINERATE_ERROR_FORKED.
///
/// # Safety
/// `call` is a struct whose addresses hold what its documentation says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn linerate_run(comm: linerate_comm, call: *const linerate_call) -> i32 {
    let mut space = MaybeUninit::uninit();
    // SAFETY: our caller promises it, and waits for the end.
    enter(|| unsafe { run(comm, look("call", call, &mut space)?) })
}

/// Starts a collective and returns at once. With a queue in the call, `operation` may be NULL: the
/// queue tells the end then. A queue of a communicator that has nothing to do with this one is an
/// error, and the collective goes on all the same, as it does on the other ranks.
///
/// Threads: any, one at a time for one communicator. The struct, its counts and texts are copied;
/// its buffers stay as they are until the operation has ended, also where its handle is freed.
/// After fork: LINERATE_ERROR_FORKED.
///
/// # Safety
/// As linerate_run(); `operation` is writable, or NULL.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn linerate_start(
    comm: linerate_comm,
    call: *const linerate_call,
    operation: *mut linerate_operation,
) -> i32 {
    enter(|| {
        // SAFETY: our caller promises it.
        let call = unsafe { read("call", call)? };
        let communicator = COMMUNICATOR.get(comm)?;
        // SAFETY: as above.
        let start = || Ok(unsafe { build_at(&communicator, &call)? }.start()?);
        // SAFETY: as above.
        unsafe { hand_out(operation, (call.queue, call.user), start) }
    })
}

/// Makes progress once: 0 if the operation has ended, LINERATE_IN_PROGRESS if not, or its error.
///
/// Threads: one at a time for one operation. After fork: LINERATE_ERROR_FORKED.
#[unsafe(no_mangle)]
pub extern "C" fn linerate_test(operation: linerate_operation) -> i32 {
    enter(|| {
        let operation = OPERATION.get(operation)?;
        let is_over = lock("operation", &operation)?.test()?;
        Ok(if is_over {
            LINERATE_DONE
        } else {
            LINERATE_IN_PROGRESS
        })
    })
}

/// Waits for the end of an operation, at most `limit_ns` nanoseconds (LINERATE_FOREVER: without a
/// limit; it fails on all ranks if it makes no progress for its timeout). 0 if it has ended,
/// LINERATE_IN_PROGRESS if not, or its error. Later calls return the same; free it then.
///
/// Threads: one at a time for one operation. After fork: LINERATE_ERROR_FORKED.
#[unsafe(no_mangle)]
pub extern "C" fn linerate_wait(operation: linerate_operation, limit_ns: u64) -> i32 {
    enter(|| {
        let operation = OPERATION.get(operation)?;
        let limit = Duration::from_nanos(limit_ns);
        let is_over = lock("operation", &operation)?.wait_timeout(limit)?;
        Ok(if is_over {
            LINERATE_DONE
        } else {
            LINERATE_IN_PROGRESS
        })
    })
}

/// Frees the handle of an operation; 0 is allowed and does nothing. An operation that has not ended
/// goes on, and its buffers stay the library's until it has.
///
/// Threads: any. After fork: the child's handle ends, and the parent's operation goes on.
#[unsafe(no_mangle)]
pub extern "C" fn linerate_free(operation: linerate_operation) -> i32 {
    enter(|| OPERATION.free(operation).map(|()| LINERATE_DONE))
}

/// The transfers of a list as a group.
///
/// # Safety
/// `transfers` are `count` structs whose memory holds what their documentation says, until the
/// group has ended.
unsafe fn group<'a>(
    communicator: &'a Communicator,
    transfers: *const linerate_transfer,
    count: u64,
    timeout_ns: u64,
) -> Result<Group<'a>, Fault> {
    let mut group = communicator.group();
    if timeout_ns > 0 {
        group = group.timeout(Duration::from_nanos(timeout_ns));
    }
    // SAFETY: our caller promises it.
    for transfer in unsafe { Structs::new("transfers", transfers, count)? }.iter() {
        let transfer = transfer?;
        check_kind(transfer.memory_kind)?;
        let (dtype, length) = (dtype_of(transfer.dtype)?, transfer.count);
        // SAFETY: as above.
        let memory = unsafe { adopt("address", communicator, transfer.address, length, dtype)? };
        group = match transfer.is_send {
            0 => group.recv(&memory, transfer.peer),
            _ => group.send(&memory, transfer.peer),
        };
    }
    Ok(group)
}

/// Runs sends and receives together and waits for their end, as the calls between ncclGroupStart
/// and ncclGroupEnd: they cannot deadlock, in whatever order they are given. The n-th send to a
/// rank meets that rank's n-th receive from this one. `timeout_ns` as in linerate_call.
///
/// Threads, owner and fork: as linerate_run().
///
/// # Safety
/// `transfers` are `count` structs whose memory holds what their documentation says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn linerate_group_run(
    comm: linerate_comm,
    transfers: *const linerate_transfer,
    count: u64,
    timeout_ns: u64,
) -> i32 {
    enter(|| {
        let communicator = COMMUNICATOR.get(comm)?;
        // SAFETY: our caller promises it.
        unsafe { group(&communicator, transfers, count, timeout_ns)? }.run()?;
        Ok(LINERATE_DONE)
    })
}

/// Starts sends and receives together, as linerate_group_run(), and returns at once. With a queue
/// that is not 0, `operation` may be NULL: the queue tells the end then, with the number `user`.
///
/// Threads, owner and fork: as linerate_start().
///
/// # Safety
/// As linerate_group_run(); `operation` is writable, or NULL.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn linerate_group_start(
    comm: linerate_comm,
    transfers: *const linerate_transfer,
    count: u64,
    timeout_ns: u64,
    queue: linerate_queue,
    user: u64,
    operation: *mut linerate_operation,
) -> i32 {
    enter(|| {
        let communicator = COMMUNICATOR.get(comm)?;
        // SAFETY: our caller promises it.
        let start = || Ok(unsafe { group(&communicator, transfers, count, timeout_ns)? }.start()?);
        // SAFETY: as above.
        unsafe { hand_out(operation, (queue, user), start) }
    })
}

/// The collectives of a batch.
///
/// # Safety
/// `calls` are `count` structs whose addresses hold what their documentation says, until the batch
/// has ended.
unsafe fn batch<'a>(
    communicator: &'a Communicator,
    calls: *const linerate_call,
    count: u64,
    timeout_ns: u64,
) -> Result<Batch<'a>, Fault> {
    let mut batch = communicator.batch();
    if timeout_ns > 0 {
        batch = batch.timeout(Duration::from_nanos(timeout_ns));
    }
    // SAFETY: our caller promises it.
    for (number, call) in unsafe { Structs::new("calls", calls, count)? }
        .iter()
        .enumerate()
    {
        let call = call?;
        if call.queue != 0 {
            return Err(invalid(format!(
                "call {number} of a batch names a queue: name it for the whole batch"
            )));
        }
        // SAFETY: as above.
        batch = batch.with(unsafe { build_at(communicator, &call)? });
    }
    Ok(batch)
}

/// Runs several collectives together and waits for the end of all, as the calls between
/// ncclGroupStart and ncclGroupEnd. All ranks give the same ones in the same order. Short ones with
/// one type, operator and root travel together; this is fastest where their inputs, and their
/// outputs, lie one after another in memory of linerate_alloc(). `timeout_ns` is that of calls that
/// have none.
///
/// Threads, owner and fork: as linerate_run().
///
/// # Safety
/// `calls` are `count` structs whose addresses hold what their documentation says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn linerate_batch_run(
    comm: linerate_comm,
    calls: *const linerate_call,
    count: u64,
    timeout_ns: u64,
) -> i32 {
    enter(|| {
        let communicator = COMMUNICATOR.get(comm)?;
        // SAFETY: our caller promises it.
        unsafe { batch(&communicator, calls, count, timeout_ns)? }.run()?;
        Ok(LINERATE_DONE)
    })
}

/// Starts several collectives together, as linerate_batch_run(), and returns at once. They are one
/// operation, which ends when all have. With a queue that is not 0, `operation` may be NULL: the
/// queue tells the end then, with the number `user`. The calls name no queues.
///
/// Threads, owner and fork: as linerate_start().
///
/// # Safety
/// As linerate_batch_run(); `operation` is writable, or NULL.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn linerate_batch_start(
    comm: linerate_comm,
    calls: *const linerate_call,
    count: u64,
    timeout_ns: u64,
    queue: linerate_queue,
    user: u64,
    operation: *mut linerate_operation,
) -> i32 {
    enter(|| {
        let communicator = COMMUNICATOR.get(comm)?;
        // SAFETY: our caller promises it.
        let start = || Ok(unsafe { batch(&communicator, calls, count, timeout_ns)? }.start()?);
        // SAFETY: as above.
        unsafe { hand_out(operation, (queue, user), start) }
    })
}
