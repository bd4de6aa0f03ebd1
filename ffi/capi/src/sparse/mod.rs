//! Sparse allreduces.

mod options;

use crate::communicator::linerate_comm;
use crate::memory::adopt;
use crate::objects::{COMMUNICATOR, Object, QUEUE, SPARSE, insert, lock};
use crate::pointers::{Sized64, array, check_place, check_wanted, read, write, write_back};
use crate::queue::linerate_queue;
use crate::status::{Fault, LINERATE_DONE, LINERATE_IN_PROGRESS, enter, invalid};
use crate::tensors::{linerate_tensor, tensors_of};
use linerate::options::{Algorithm, DsaVariant};
use linerate::{Buffer, Communicator, SparseAllreduce, SparseOptions, SparseResult};
use std::ffi::{CStr, c_char, c_void};
use std::sync::Mutex;

pub use options::*;

/// A handle of a sparse allreduce.
#[allow(non_camel_case_types)]
pub type linerate_sparse = u64;

/// What a step of a sparse allreduce did. A word is 4 bytes.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
#[allow(non_camel_case_types)]
pub struct linerate_sparse_report {
    /// sizeof(linerate_sparse_report), set by the caller.
    pub size: u64,
    /// The algorithm that ran, by the name that options give it. The text is constant.
    pub algorithm: *const c_char,
    /// Steps until now, without those that were skipped.
    pub steps: u64,
    /// The entries that a step is to select.
    pub k: u64,
    /// Entries that this rank selected.
    pub selected_local: u64,
    /// Entries of the result.
    pub selected_global: u64,
    /// Non-zeros of the sum of all that was selected; UINT64_MAX: not counted.
    pub reduced: u64,
    /// Values that are not finite, of all ranks.
    pub not_finite: u64,
    /// Time of selecting.
    pub select_ns: u64,
    /// Time of communicating, with the wait for other ranks.
    pub communicate_ns: u64,
    /// Time of changing residuals and making the result.
    pub apply_ns: u64,
    /// Messages sent by this rank.
    pub messages: u64,
    /// Bytes sent.
    pub bytes_sent: u64,
    /// Bytes of entries received.
    pub bytes_received: u64,
    /// Words of entries sent.
    pub data_words_sent: u64,
    /// Words of entries received.
    pub data_words_received: u64,
    /// Words of counts, sizes and boundaries sent.
    pub control_words: u64,
    /// 1: the step was skipped because of a value that is not finite; else 0.
    pub is_skipped: u32,
    /// 1: some of the result is dense; else 0.
    pub is_dense: u32,
}

// SAFETY: numbers and an address, the size first.
unsafe impl Sized64 for linerate_sparse_report {
    const NAME: &'static str = "linerate_sparse_report";
}

/// A sparse allreduce, and its latest result.
pub(crate) struct Steps {
    sparse: SparseAllreduce,
    /// Where the memory of gradients and outputs is looked for.
    communicator: Communicator,
    result: Option<SparseResult>,
}

const WORD: &str = "sparse allreduce";

/// The name of an algorithm, as a text that ends with a 0.
fn name_of(algorithm: Algorithm) -> &'static CStr {
    match algorithm {
        Algorithm::OkTopk => c"oktopk",
        Algorithm::TopkA => c"topka",
        Algorithm::TopkA2 => c"topka2",
        Algorithm::TopkDsa(DsaVariant::Split) => c"topkdsa",
        Algorithm::TopkDsa(DsaVariant::Small) => c"topkdsa-small",
        Algorithm::TopkDsa(DsaVariant::Big) => c"topkdsa-big",
        Algorithm::TopkDsa(DsaVariant::RecursiveDoubling) => c"topkdsa-doubling",
        Algorithm::GTopk => c"gtopk",
        Algorithm::Gaussiank => c"gaussiank",
        Algorithm::Dense => c"dense",
        Algorithm::Auto => c"auto",
    }
}

impl Steps {
    /// One vector per tensor.
    ///
    /// # Safety
    /// `addresses` are one for each tensor, which [`adopt`] may have.
    unsafe fn vectors(
        &self,
        name: &str,
        addresses: *const *const c_void,
    ) -> Result<Vec<Buffer<f32>>, Fault> {
        let tensors = self.sparse.tensors();
        // SAFETY: our caller promises it.
        let addresses = unsafe { array(name, addresses, tensors.len() as u64)? };
        let each = addresses.iter().zip(tensors).map(|(&address, tensor)| {
            let comm = &self.communicator;
            // SAFETY: as above.
            let memory = unsafe { adopt(name, comm, address, tensor.count, tensor.dtype)? };
            Ok(memory.cast::<f32>()?)
        });
        each.collect()
    }

    fn check_tensor(&self, tensor: u64) -> Result<usize, Fault> {
        let declared = self.sparse.tensors().len();
        match usize::try_from(tensor) {
            Ok(tensor) if tensor < declared => Ok(tensor),
            _ => Err(invalid(format!("tensor {tensor}: {declared} are declared"))),
        }
    }

    /// Keeps a result, and tells of it.
    ///
    /// # Safety
    /// `place` is null or a struct with its size.
    unsafe fn end(
        &mut self,
        place: *mut linerate_sparse_report,
        result: SparseResult,
    ) -> Result<i32, Fault> {
        let nanoseconds = |time: std::time::Duration| time.as_nanos() as u64;
        let (traffic, times) = (result.counters.total(), result.times);
        let told = linerate_sparse_report {
            size: 0,
            algorithm: name_of(result.algorithm).as_ptr(),
            steps: self.sparse.steps(),
            k: self.sparse.k(),
            selected_local: result.selected_local,
            selected_global: result.selected_global,
            reduced: result.reduced.unwrap_or(u64::MAX),
            not_finite: result.not_finite,
            select_ns: nanoseconds(times.select),
            communicate_ns: nanoseconds(times.communicate),
            apply_ns: nanoseconds(times.apply),
            messages: traffic.messages,
            bytes_sent: traffic.bytes_sent,
            bytes_received: traffic.bytes_received,
            data_words_sent: traffic.data_words_sent,
            data_words_received: traffic.data_words_received,
            control_words: traffic.control_words,
            is_skipped: u32::from(result.is_skipped),
            is_dense: u32::from(result.dense().is_some()),
        };
        self.result = Some(result);
        // SAFETY: our caller promises it.
        unsafe { write_back("report", place, &told)? };
        Ok(LINERATE_DONE)
    }
}

/// Stores at most `capacity` entries, and how many there are.
///
/// # Safety
/// `indices` and `values` have room for `capacity` numbers; `count` is writable.
unsafe fn write_entries(
    entries: impl Iterator<Item = (u64, f32)>,
    (indices, values): (*mut u64, *mut f32),
    capacity: u64,
    count: *mut u64,
) -> Result<i32, Fault> {
    check_place("count", count)?;
    let mut written = 0u64;
    for (index, value) in entries {
        if written < capacity {
            let at = written as usize;
            // SAFETY: our caller promises it; the place is below the capacity.
            unsafe {
                write("indices", indices.wrapping_add(at), index)?;
                write("values", values.wrapping_add(at), value)?;
            }
        }
        written += 1;
    }
    // SAFETY: as above.
    unsafe { write("count", count, written)? };
    Ok(LINERATE_DONE)
}

/// Makes a sparse allreduce of these tensors, all LINERATE_F32 with names of their own: every step
/// sums only the entries that matter, and keeps the rest in residuals, which the next steps add.
/// `options` may be NULL. Collective: all ranks call it, with the same tensors and options.
///
/// Its steps are operations of `comm`: all ranks run and start them in one order with the others.
///
/// Threads: any, one at a time for one communicator. Tensors and options are copied. The caller
/// frees the handle (linerate_sparse_free()); it counts as a handle of the communicator until then.
/// After fork: LINERATE_ERROR_FORKED.
///
/// # Safety
/// `tensors` are `tensors_count` structs; `options` is a struct, or NULL; `sparse` is writable.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn linerate_sparse_create(
    comm: linerate_comm,
    tensors: *const linerate_tensor,
    tensors_count: u64,
    options: *const linerate_sparse_options,
    sparse: *mut linerate_sparse,
) -> i32 {
    enter(|| {
        check_place("sparse", sparse)?;
        let communicator = COMMUNICATOR.get(comm)?.clone();
        // SAFETY: our caller promises it.
        let tensors = unsafe { tensors_of(tensors, tensors_count)? };
        let chosen = match options.is_null() {
            true => SparseOptions::default(),
            // SAFETY: as above.
            false => unsafe { options_of(&read("options", options)?)? },
        };
        let made = SparseAllreduce::new(&communicator, tensors, chosen)?;
        let handle = insert(Object::Sparse(Box::new(Mutex::new(Steps {
            sparse: made,
            communicator,
            result: None,
        }))))?;
        // SAFETY: as above.
        unsafe { write("sparse", sparse, handle)? };
        Ok(LINERATE_DONE)
    })
}

/// Runs a step and waits for its result, which linerate_sparse_add_to() and
/// linerate_sparse_entries() read. `gradients` has one address for each tensor; they are only read.
/// `report` may be NULL.
///
/// Threads: one at a time for one sparse allreduce. After fork: LINERATE_ERROR_FORKED.
///
/// # Safety
/// `gradients` are addresses of the elements of the tensors; `report` is a struct with its size, or
/// NULL.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn linerate_sparse_run(
    sparse: linerate_sparse,
    gradients: *const *const c_void,
    report: *mut linerate_sparse_report,
) -> i32 {
    enter(|| {
        let steps = SPARSE.get(sparse)?;
        let mut steps = lock(WORD, &steps)?;
        // SAFETY: our caller promises it.
        unsafe {
            check_wanted("report", report)?;
            let gradients = steps.vectors("gradients", gradients)?;
            let result = steps.sparse.run(&gradients)?;
            steps.end(report, result)
        }
    })
}

/// Starts a step and returns at once. linerate_sparse_test() moves it, as does who waits for its
/// queue. Until it has ended, start no other operation on the communicator, but on a duplicate.
///
/// Threads: one at a time for one sparse allreduce. The gradients stay as they are until the step
/// has ended. After fork: LINERATE_ERROR_FORKED.
///
/// # Safety
/// As linerate_sparse_run().
#[unsafe(no_mangle)]
pub unsafe extern "C" fn linerate_sparse_start(
    sparse: linerate_sparse,
    gradients: *const *const c_void,
) -> i32 {
    enter(|| {
        let steps = SPARSE.get(sparse)?;
        let mut steps = lock(WORD, &steps)?;
        // SAFETY: our caller promises it.
        let gradients = unsafe { steps.vectors("gradients", gradients)? };
        steps.sparse.start(&gradients)?;
        Ok(LINERATE_DONE)
    })
}

/// Moves the step that was started: 0 and its report if it has ended, LINERATE_IN_PROGRESS if not.
/// `report` may be NULL.
///
/// Threads: one at a time for one sparse allreduce. After fork: LINERATE_ERROR_FORKED.
///
/// # Safety
/// `report` is a struct with its size, or NULL.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn linerate_sparse_test(
    sparse: linerate_sparse,
    report: *mut linerate_sparse_report,
) -> i32 {
    enter(|| {
        let steps = SPARSE.get(sparse)?;
        let mut steps = lock(WORD, &steps)?;
        // SAFETY: our caller promises it.
        unsafe { check_wanted("report", report)? };
        match steps.sparse.test()? {
            // SAFETY: as above.
            Some(result) => unsafe { steps.end(report, result) },
            None => Ok(LINERATE_IN_PROGRESS),
        }
    })
}

/// Has a queue of the same family told, once, with the number `user`, when the step under way has
/// ended; linerate_sparse_test() then gives its result. Who waits for the queue moves the step.
///
/// Threads: one at a time for one sparse allreduce. After fork: LINERATE_ERROR_FORKED.
#[unsafe(no_mangle)]
pub extern "C" fn linerate_sparse_notify(
    sparse: linerate_sparse,
    queue: linerate_queue,
    user: u64,
) -> i32 {
    enter(|| {
        let queue = QUEUE.get(queue)?;
        let steps = SPARSE.get(sparse)?;
        lock(WORD, &steps)?.sparse.notify(&queue, user)?;
        Ok(LINERATE_DONE)
    })
}

/// Runs a dense step of the residuals alone, which are zero afterwards. Collective: before the
/// ranks change, and at the end of the training. `report` may be NULL.
///
/// Threads: one at a time for one sparse allreduce. After fork: LINERATE_ERROR_FORKED.
///
/// # Safety
/// `report` is a struct with its size, or NULL.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn linerate_sparse_flush(
    sparse: linerate_sparse,
    report: *mut linerate_sparse_report,
) -> i32 {
    enter(|| {
        let steps = SPARSE.get(sparse)?;
        let mut steps = lock(WORD, &steps)?;
        // SAFETY: our caller promises it.
        unsafe { check_wanted("report", report)? };
        let result = steps.sparse.flush_residual()?;
        // SAFETY: as above.
        unsafe { steps.end(report, result) }
    })
}

fn result_of(steps: &Steps) -> Result<&SparseResult, Fault> {
    (steps.result.as_ref()).ok_or_else(|| invalid("a sparse allreduce has no result before a step"))
}

/// Adds `factor` times the latest result to `outputs`, one address for each tensor. With the
/// negative learning rate this is a step of gradient descent.
///
/// Threads: one at a time for one sparse allreduce. After fork: as before.
///
/// # Safety
/// `outputs` are addresses of the elements of the tensors.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn linerate_sparse_add_to(
    sparse: linerate_sparse,
    outputs: *const *mut c_void,
    factor: f32,
) -> i32 {
    enter(|| {
        let steps = SPARSE.get(sparse)?;
        let steps = lock(WORD, &steps)?;
        // SAFETY: our caller promises it.
        let outputs = unsafe { steps.vectors("outputs", outputs.cast())? };
        result_of(&steps)?.add_to(&outputs, factor)?;
        Ok(LINERATE_DONE)
    })
}

/// The non-zero values of a tensor in the latest result: ascending indices, relative to the tensor,
/// and values. Writes at most `capacity` of each, and how many there are to `count`.
///
/// Threads: one at a time for one sparse allreduce. After fork: as before.
///
/// # Safety
/// `indices` and `values` have room for `capacity` numbers; `count` is writable.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn linerate_sparse_entries(
    sparse: linerate_sparse,
    tensor: u64,
    indices: *mut u64,
    values: *mut f32,
    capacity: u64,
    count: *mut u64,
) -> i32 {
    enter(|| {
        let steps = SPARSE.get(sparse)?;
        let steps = lock(WORD, &steps)?;
        let tensor = steps.check_tensor(tensor)?;
        let entries = result_of(&steps)?.nonzeros_of(tensor)?;
        // SAFETY: our caller promises it.
        unsafe { write_entries(entries, (indices, values), capacity, count) }
    })
}

/// The entries of a tensor that this rank selected in the latest step, as
/// linerate_sparse_entries(): each has the sum of residual and gradient.
///
/// Threads: one at a time for one sparse allreduce. After fork: as before.
///
/// # Safety
/// As linerate_sparse_entries().
#[unsafe(no_mangle)]
pub unsafe extern "C" fn linerate_sparse_picks(
    sparse: linerate_sparse,
    tensor: u64,
    indices: *mut u64,
    values: *mut f32,
    capacity: u64,
    count: *mut u64,
) -> i32 {
    enter(|| {
        let steps = SPARSE.get(sparse)?;
        let steps = lock(WORD, &steps)?;
        let picks = steps.sparse.picks_of(steps.check_tensor(tensor)?);
        // SAFETY: our caller promises it.
        unsafe { write_entries(picks, (indices, values), capacity, count) }
    })
}

/// Where the residual of a tensor lies, as many floats as the tensor has. The caller may read and
/// change it between steps, until linerate_sparse_free().
///
/// Threads: one at a time for one sparse allreduce. After fork: the child has its own copy.
///
/// # Safety
/// `address` is writable.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn linerate_sparse_residual(
    sparse: linerate_sparse,
    tensor: u64,
    address: *mut *mut f32,
) -> i32 {
    enter(|| {
        check_place("address", address)?;
        let steps = SPARSE.get(sparse)?;
        let steps = lock(WORD, &steps)?;
        let name = &steps.sparse.tensors()[steps.check_tensor(tensor)?].name;
        let residual = steps.sparse.residual(name);
        let residual = residual.ok_or_else(|| invalid(format!("no residual of '{name}'")))?;
        let start = residual.as_mut_slice()?.as_mut_ptr();
        // SAFETY: our caller promises it.
        unsafe { write("address", address, start)? };
        Ok(LINERATE_DONE)
    })
}

/// Sets all residuals of this rank to zero, and forgets its thresholds. All ranks call it between
/// the same two steps. Threads: one at a time for one sparse allreduce. After fork: the child's
/// copy.
#[unsafe(no_mangle)]
pub extern "C" fn linerate_sparse_reset(sparse: linerate_sparse) -> i32 {
    enter(|| {
        let steps = SPARSE.get(sparse)?;
        lock(WORD, &steps)?.sparse.reset()?;
        Ok(LINERATE_DONE)
    })
}

/// Multiplies all residuals of this rank by `factor`: for a trainer that changes the scale of its
/// gradients. Threads: one at a time for one sparse allreduce. After fork: the child's copy.
#[unsafe(no_mangle)]
pub extern "C" fn linerate_sparse_scale(sparse: linerate_sparse, factor: f32) -> i32 {
    enter(|| {
        let steps = SPARSE.get(sparse)?;
        lock(WORD, &steps)?.sparse.scale_residuals(factor)?;
        Ok(LINERATE_DONE)
    })
}

/// Saves the residuals of this rank for linerate_sparse_load(): at most `capacity` bytes go to
/// `buffer`, and their whole number to `needed`. With a capacity that is too small, nothing is
/// written but the number.
///
/// Threads: one at a time for one sparse allreduce. After fork: the child's copy.
///
/// # Safety
/// `buffer` has `capacity` bytes, or is NULL with a capacity of 0; `needed` is writable.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn linerate_sparse_save(
    sparse: linerate_sparse,
    buffer: *mut c_void,
    capacity: u64,
    needed: *mut u64,
) -> i32 {
    enter(|| {
        let steps = SPARSE.get(sparse)?;
        let saved = lock(WORD, &steps)?.sparse.save()?;
        let length = saved.len() as u64;
        // SAFETY: our caller promises it.
        unsafe { write("needed", needed, length)? };
        if length > capacity {
            return Ok(LINERATE_DONE);
        }
        check_place("buffer", buffer.cast::<u8>())?;
        // SAFETY: as above; `saved` is not longer than the buffer.
        unsafe { (buffer.cast::<u8>()).copy_from_nonoverlapping(saved.as_ptr(), saved.len()) };
        Ok(LINERATE_DONE)
    })
}

/// Loads what linerate_sparse_save() has saved on this rank. All ranks load before the same step.
/// With `is_resized` not 0 the number of ranks may have changed since; a rank that is new then
/// calls linerate_sparse_reset() instead. LINERATE_ERROR_MALFORMED: the bytes are nothing that was
/// saved, or were saved with other tensors; nothing has changed.
///
/// Threads: one at a time for one sparse allreduce. After fork: the child's copy.
///
/// # Safety
/// `saved` has `bytes` bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn linerate_sparse_load(
    sparse: linerate_sparse,
    saved: *const c_void,
    bytes: u64,
    is_resized: u32,
) -> i32 {
    enter(|| {
        let steps = SPARSE.get(sparse)?;
        // SAFETY: our caller promises it.
        let saved = unsafe { array("saved", saved.cast::<u8>(), bytes)? };
        let sparse = &mut lock(WORD, &steps)?.sparse;
        match is_resized {
            0 => sparse.load(saved)?,
            _ => sparse.load_after_resize(saved)?,
        }
        Ok(LINERATE_DONE)
    })
}

/// Frees a sparse allreduce; 0 is allowed and does nothing. Its residuals are gone then.
///
/// Threads: any. After fork: the child's handle ends.
#[unsafe(no_mangle)]
pub extern "C" fn linerate_sparse_free(sparse: linerate_sparse) -> i32 {
    enter(|| SPARSE.free(sparse).map(|()| LINERATE_DONE))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_algorithm_has_the_name_that_options_give_it() {
        for algorithm in Algorithm::ALL {
            assert_eq!(name_of(algorithm).to_str(), Ok(algorithm.name()));
        }
    }
}
