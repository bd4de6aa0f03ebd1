//! Fusion buffers.

use crate::communicator::linerate_comm;
use crate::memory::adopt;
use crate::objects::{COMMUNICATOR, FUSION, Object, QUEUE, insert, lock};
use crate::pointers::{Sized64, array, check_place, check_wanted, read, write, write_back};
use crate::queue::linerate_queue;
use crate::status::{Fault, LINERATE_DONE, enter, invalid};
use crate::tensors::{linerate_tensor, tensors_of};
use crate::words::{number_of, op_of};
use linerate::reports::StepReport;
use linerate::transport::Time;
use linerate::{Communicator, Fusion, FusionOptions, TensorSpec};
use std::ffi::c_void;
use std::sync::Mutex;
use std::time::Duration;

/// A handle of a fusion buffer.
#[allow(non_camel_case_types)]
pub type linerate_fusion = u64;

/// When the tensors of a fusion buffer are reduced. Zero everywhere but `size` is the default. All
/// ranks give the same values.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
#[allow(non_camel_case_types)]
pub struct linerate_fusion_options {
    /// sizeof(linerate_fusion_options).
    pub size: u64,
    /// Bytes of one flush, up to 2^40; 0: 64 MiB. A flush happens as soon as this much of one type
    /// is ready on all ranks. A larger tensor goes alone and is reduced where it lies.
    pub bytes_max: u64,
    /// How long a ready tensor waits for others, in nanoseconds, up to an hour; 0: 5 ms.
    pub age_max_ns: u64,
    /// Tensors of one flush; 0: no limit; 1: none are fused.
    pub tensors_max: u64,
    /// Flushes under way at once, up to 8; 0: 3. Each has a registered buffer of at most
    /// `bytes_max`.
    pub buffers_count: u32,
    /// LINERATE_SUM, ...
    pub op: u32,
    /// The factor of this rank, of LINERATE_PREMUL_SUM.
    pub factor: f64,
    /// A plan in place of rounds in which the ranks agree: for each tensor the number of its flush,
    /// from 0 on. Flushes start in this order, each when its tensors are ready; the first three
    /// limits have no effect then. NULL: no plan.
    pub plan: *const u32,
}

// SAFETY: numbers and an address, the size first.
unsafe impl Sized64 for linerate_fusion_options {
    const NAME: &'static str = "linerate_fusion_options";
}

/// What a fusion buffer did in a step. Times are nanoseconds since it was made, by this rank's
/// clock.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
#[allow(non_camel_case_types)]
pub struct linerate_step_report {
    /// sizeof(linerate_step_report), set by the caller.
    pub size: u64,
    /// The number of the step, from 0 on.
    pub step: u64,
    /// Flushes, equal on all ranks; linerate_fusion_flush() tells of each.
    pub flushes_count: u64,
    /// Rounds in which the ranks agreed; 0 with a plan.
    pub rounds_count: u64,
    /// Bytes that were reduced.
    pub bytes: u64,
    /// When the first tensor was announced.
    pub begin_ns: u64,
    /// When the backward pass ended.
    pub backward_end_ns: u64,
    /// When all tensors were reduced.
    pub done_ns: u64,
    /// How long at least one flush was under way.
    pub communication_ns: u64,
    /// The share of that time that the backward pass has hidden, 0 to 1.
    pub overlap: f64,
}

// SAFETY: numbers, the size first.
unsafe impl Sized64 for linerate_step_report {
    const NAME: &'static str = "linerate_step_report";
}

/// One flush of a step: several tensors that were reduced together.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
#[allow(non_camel_case_types)]
pub struct linerate_flush_report {
    /// sizeof(linerate_flush_report), set by the caller.
    pub size: u64,
    /// Bytes of all its tensors.
    pub bytes: u64,
    /// When the last of them was announced.
    pub ready_ns: u64,
    /// When its allreduce was started.
    pub start_ns: u64,
    /// When its allreduce had ended.
    pub end_ns: u64,
    /// How many tensors it had.
    pub tensors_count: u64,
    /// The type of its elements.
    pub dtype: u32,
    /// 0.
    pub reserved: u32,
}

// SAFETY: numbers, the size first.
unsafe impl Sized64 for linerate_flush_report {
    const NAME: &'static str = "linerate_flush_report";
}

/// A fusion buffer, and what it did last.
pub(crate) struct Fused {
    fusion: Fusion,
    /// Where the announced memory is looked for.
    communicator: Communicator,
    tensors: Vec<TensorSpec>,
    last: Mutex<StepReport>,
}

fn options_of(given: &linerate_fusion_options) -> Result<FusionOptions, Fault> {
    let mut options = FusionOptions {
        op: op_of(given.op, given.factor)?,
        ..FusionOptions::default()
    };
    if given.bytes_max > 0 {
        options.bytes_max = given.bytes_max;
    }
    if given.age_max_ns > 0 {
        options.age_max = Duration::from_nanos(given.age_max_ns);
    }
    if given.tensors_max > 0 {
        options.tensors_max = given.tensors_max as usize;
    }
    if given.buffers_count > 0 {
        options.buffers_count = given.buffers_count as usize;
    }
    Ok(options)
}

/// The flushes of a plan, from the number of each tensor's flush.
fn plan_of(flush_of: &[u32]) -> Result<Vec<Vec<u32>>, Fault> {
    let mut plan = vec![Vec::new(); flush_of.len()];
    for (tensor, &flush) in (0..).zip(flush_of) {
        let place = plan.get_mut(flush as usize).ok_or_else(|| {
            invalid(format!(
                "plan: tensor {tensor} is in flush {flush}: below {}, the number of tensors",
                flush_of.len()
            ))
        })?;
        place.push(tensor);
    }
    let used = plan.iter().rposition(|flush| !flush.is_empty());
    plan.truncate(used.map_or(0, |last| last + 1));
    Ok(plan)
}

fn ns(time: Time) -> u64 {
    time.since(Time(0)).as_nanos() as u64
}

/// Makes a fusion buffer, which reduces a declared set of tensors in every step, several together,
/// while others are still computed. Every rank announces each tensor once in a step, in any order.
/// It works on a duplicate of `comm`, so operations on `comm` may run at any time. `options` may be
/// NULL. Collective: all ranks call it, with the same tensors and options.
///
/// Threads: any, one at a time for one communicator. Tensors and options are copied. The caller
/// frees the handle (linerate_fusion_free()); it counts as a handle of the communicator until then.
/// After fork: LINERATE_ERROR_FORKED.
///
/// # Safety
/// `tensors` are `tensors_count` structs; `options` is a struct, or NULL, whose plan has a number
/// for each tensor; `fusion` is writable.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn linerate_fusion_create(
    comm: linerate_comm,
    tensors: *const linerate_tensor,
    tensors_count: u64,
    options: *const linerate_fusion_options,
    fusion: *mut linerate_fusion,
) -> i32 {
    enter(|| {
        check_place("fusion", fusion)?;
        let communicator = COMMUNICATOR.get(comm)?.clone();
        // SAFETY: our caller promises it.
        let tensors = unsafe { tensors_of(tensors, tensors_count)? };
        let (mut chosen, mut plan) = (FusionOptions::default(), None);
        if !options.is_null() {
            // SAFETY: as above.
            let given = unsafe { read("options", options)? };
            chosen = options_of(&given)?;
            if !given.plan.is_null() {
                // SAFETY: as above.
                let flush_of = unsafe { array("plan", given.plan, tensors_count)? };
                plan = Some(plan_of(flush_of)?);
            }
        }
        let declared = tensors.clone();
        let made = match plan {
            Some(plan) => Fusion::with_plan(&communicator, chosen, declared, &plan)?,
            None => Fusion::new(&communicator, chosen, declared)?,
        };
        let handle = insert(Object::Fusion(Fused {
            fusion: made,
            communicator,
            tensors,
            last: Mutex::default(),
        }))?;
        // SAFETY: as above.
        unsafe { write("fusion", fusion, handle)? };
        Ok(LINERATE_DONE)
    })
}

/// Says that a tensor is computed and lies at `address`, and returns at once. The memory belongs to
/// the fusion buffer until linerate_fusion_wait() returns; then it holds the reduction. Memory of
/// linerate_alloc() or linerate_register() is the fastest.
///
/// Threads: any, several at once. After fork: LINERATE_ERROR_FORKED.
///
/// # Safety
/// `address` has the elements of the tensor.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn linerate_fusion_announce(
    fusion: linerate_fusion,
    tensor: u64,
    address: *mut c_void,
) -> i32 {
    enter(|| {
        let fused = FUSION.get(fusion)?;
        let known = usize::try_from(tensor).ok();
        let Some(spec) = known.and_then(|tensor| fused.tensors.get(tensor)) else {
            return Err(invalid(format!(
                "tensor {tensor} announced, {} are declared",
                fused.tensors.len()
            )));
        };
        let comm = &fused.communicator;
        // SAFETY: our caller promises it.
        let memory = unsafe { adopt("address", comm, address, spec.count, spec.dtype)? };
        fused.fusion.announce(tensor as usize, &memory)?;
        Ok(LINERATE_DONE)
    })
}

/// Says that this rank announces no more tensors in this step, so that what is ready is reduced
/// without waiting for more. linerate_fusion_wait() does it, too: call this if the thread does
/// other work before.
///
/// Threads: any. After fork: LINERATE_ERROR_FORKED.
#[unsafe(no_mangle)]
pub extern "C" fn linerate_fusion_end(fusion: linerate_fusion) -> i32 {
    enter(|| {
        FUSION.get(fusion)?.fusion.end_of_backward()?;
        Ok(LINERATE_DONE)
    })
}

/// Has a queue told, once, with the number `user`, when every tensor of this step is reduced, or
/// when the fusion buffer has failed; linerate_fusion_wait() then returns at once. Call
/// linerate_fusion_end(), too.
///
/// Threads: any. After fork: LINERATE_ERROR_FORKED.
#[unsafe(no_mangle)]
pub extern "C" fn linerate_fusion_notify(
    fusion: linerate_fusion,
    queue: linerate_queue,
    user: u64,
) -> i32 {
    enter(|| {
        let queue = QUEUE.get(queue)?;
        FUSION.get(fusion)?.fusion.notify(&queue, user)?;
        Ok(LINERATE_DONE)
    })
}

/// Waits until every tensor of the step is reduced on this rank, and begins the next step. `report`
/// may be NULL. After an error, free the fusion buffer and make another one; the communicator from
/// which it was made is still good, unless a rank has died.
///
/// Threads: any, one at a time for one fusion buffer. The announced memory is the caller's again.
/// After fork: LINERATE_ERROR_FORKED.
///
/// # Safety
/// `report` is a struct with its size, or NULL.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn linerate_fusion_wait(
    fusion: linerate_fusion,
    report: *mut linerate_step_report,
) -> i32 {
    enter(|| {
        let fused = FUSION.get(fusion)?;
        // SAFETY: our caller promises it.
        unsafe { check_wanted("report", report)? };
        let done = fused.fusion.wait()?;
        let told = linerate_step_report {
            size: 0,
            step: done.step_index,
            flushes_count: done.flushes.len() as u64,
            rounds_count: done.rounds_count,
            bytes: done.flushes.iter().map(|flush| flush.bytes).sum(),
            begin_ns: ns(done.begin),
            backward_end_ns: ns(done.backward_end),
            done_ns: ns(done.done),
            communication_ns: done.communication().as_nanos() as u64,
            overlap: done.overlap(),
        };
        *lock("fusion buffer", &fused.last)? = done;
        // SAFETY: as above.
        unsafe { write_back("report", report, &told)? };
        Ok(LINERATE_DONE)
    })
}

/// Tells of a flush of the latest step that linerate_fusion_wait() has ended, by its number from 0
/// on. `report` may be NULL. Writes the numbers of its tensors to `tensors`, at most `capacity` of
/// them.
///
/// Threads: one at a time for one fusion buffer. After fork: as before.
///
/// # Safety
/// `report` is a struct with its size, or NULL; `tensors` has room for `capacity` numbers.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn linerate_fusion_flush(
    fusion: linerate_fusion,
    flush: u64,
    report: *mut linerate_flush_report,
    tensors: *mut u32,
    capacity: u64,
) -> i32 {
    enter(|| {
        let fused = FUSION.get(fusion)?;
        let last = lock("fusion buffer", &fused.last)?;
        let Some(told) = last.flushes.get(flush as usize) else {
            return Err(invalid(format!(
                "flush {flush}: the latest step had {}",
                last.flushes.len()
            )));
        };
        let written = linerate_flush_report {
            size: 0,
            bytes: told.bytes,
            ready_ns: ns(told.ready),
            start_ns: ns(told.start),
            end_ns: ns(told.end),
            tensors_count: told.tensors.len() as u64,
            dtype: number_of(told.dtype),
            reserved: 0,
        };
        // SAFETY: our caller promises it.
        unsafe { write_back("report", report, &written)? };
        for (number, &tensor) in told.tensors.iter().enumerate().take(capacity as usize) {
            // SAFETY: as above; the number is below the capacity.
            unsafe { write("tensors", tensors.wrapping_add(number), tensor)? };
        }
        Ok(LINERATE_DONE)
    })
}

/// Frees a fusion buffer; 0 is allowed and does nothing. A step that is under way fails on all
/// ranks, so that none waits for this one.
///
/// Threads: any. Announced memory is the caller's again. After fork: the child's handle ends, and
/// the parent's fusion buffer goes on.
#[unsafe(no_mangle)]
pub extern "C" fn linerate_fusion_free(fusion: linerate_fusion) -> i32 {
    enter(|| FUSION.free(fusion).map(|()| LINERATE_DONE))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_plan_lists_the_tensors_of_each_flush() {
        assert_eq!(plan_of(&[1, 0, 1]).unwrap(), [vec![1], vec![0, 2]]);
        // The library refuses a flush without tensors.
        assert!(plan_of(&[0, 2, 0]).unwrap()[1].is_empty());
        assert!(plan_of(&[]).unwrap().is_empty());
        assert!(plan_of(&[0, 2]).is_err() && plan_of(&[u32::MAX]).is_err());
    }
}
