//! Partial allreduces.

use crate::communicator::linerate_comm;
use crate::memory::adopt;
use crate::objects::{COMMUNICATOR, Object, PARTIAL, QUEUE, insert};
use crate::pointers::{Sized64, check_place, check_wanted, read, write, write_back};
use crate::queue::linerate_queue;
use crate::status::{Fault, LINERATE_DONE, LINERATE_IN_PROGRESS, enter, invalid};
use crate::words::dtype_of;
use linerate::options::{Delivery, Divisor};
use linerate::reports::RankSet;
use linerate::reports::{RoundReport, Waited};
use linerate::{Buffer, Communicator, DataType, PartialAllreduce, PartialOptions, Policy};
use std::ffi::c_void;
use std::ptr::null_mut;
use std::time::Duration;

/// A handle of a partial allreduce.
#[allow(non_camel_case_types)]
pub type linerate_partial = u64;

/// A round begins when half of the ranks (rounded up) have arrived.
pub const LINERATE_MAJORITY: u32 = 0;
/// A round begins with the first rank that arrives.
pub const LINERATE_SOLO: u32 = 1;
/// A round begins when `quorum` ranks have arrived.
pub const LINERATE_QUORUM: u32 = 2;
/// A round is an ordinary allreduce.
pub const LINERATE_FULL: u32 = 3;
/// A round begins when one rank has arrived, drawn anew for each round from `seed`.
pub const LINERATE_RANDOM_INITIATOR: u32 = 4;
/// A round begins `deadline_ns` after the first arrival, or when all have arrived; later if fewer
/// than `quorum` have by then.
pub const LINERATE_DEADLINE: u32 = 5;

/// Every round's result, in order: the weights are the same bits on all ranks.
pub const LINERATE_ORDERED: u32 = 0;
/// The sum of all rounds since the last result: for plain SGD.
pub const LINERATE_MERGED: u32 = 1;
/// The newest result only: the weights of the ranks drift apart.
pub const LINERATE_LATEST: u32 = 2;

/// Sums are divided by the ranks that there were at first.
pub const LINERATE_BY_CREATION: u32 = 0;
/// Sums are divided by the ranks that live.
pub const LINERATE_BY_LIVE: u32 = 1;
/// Sums are divided by the gradients in them.
pub const LINERATE_BY_GENERATIONS: u32 = 2;
/// Sums are not divided.
pub const LINERATE_BY_NOTHING: u32 = 3;

/// No bound: a slow rank falls behind without limit.
pub const LINERATE_UNBOUNDED: u32 = u32::MAX;

/// How a partial allreduce works. Zero everywhere but `size` is the default. All ranks give the
/// same values.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
#[allow(non_camel_case_types)]
pub struct linerate_partial_options {
    /// sizeof(linerate_partial_options).
    pub size: u64,
    /// When rounds begin: LINERATE_MAJORITY, ...
    pub policy: u32,
    /// Ranks, of LINERATE_QUORUM and LINERATE_DEADLINE; 0: 1.
    pub quorum: u32,
    /// Of LINERATE_DEADLINE, by the clock of one rank.
    pub deadline_ns: u64,
    /// Of LINERATE_RANDOM_INITIATOR.
    pub seed: u64,
    /// N: every (N+1)-th round waits for all; 0: none does.
    pub limiter: u32,
    /// How many rounds after its own a gradient is included at the latest, 1 to 1024; 0: 8;
    /// LINERATE_UNBOUNDED: without limit, not with LINERATE_ORDERED. LINERATE_FULL never includes
    /// one late.
    pub staleness_max: u32,
    /// Rounds that a rank may be ahead of its last result, 1 to 4; 0: 1.
    pub rounds_in_flight: u32,
    /// What a slow rank gets: LINERATE_ORDERED, ...
    pub delivery: u32,
    /// LINERATE_BY_CREATION, ...
    pub divisor: u32,
    /// Not 0: ranks that live go on after a death; 0: they have its error.
    pub survive: u32,
}

// SAFETY: numbers, the size first.
unsafe impl Sized64 for linerate_partial_options {
    const NAME: &'static str = "linerate_partial_options";
}

/// What a round was, the same on all ranks. Sets of ranks are written to where the caller says, as
/// bits: rank r is bit r % 64 of word r / 64, and a set has (ranks + 63) / 64 words. NULL: not
/// wanted.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
#[allow(non_camel_case_types)]
pub struct linerate_round_report {
    /// sizeof(linerate_round_report), set by the caller.
    pub size: u64,
    /// Set by the caller: where the ranks go whose gradient of this round was there in time.
    pub active: *mut u64,
    /// Set by the caller: where those go that contributed anything, late gradients included.
    pub included: *mut u64,
    /// Set by the caller: where those go for which the round waited because of `staleness_max`.
    pub held: *mut u64,
    /// Set by the caller: where those go that had died.
    pub dead: *mut u64,
    /// Set by the caller: where it goes how many gradients the sum has of this round, of the one
    /// before, and so on.
    pub staleness: *mut u64,
    /// Set by the caller: how many numbers `staleness` has room for.
    pub staleness_capacity: u64,
    /// How many numbers there are for `staleness`.
    pub staleness_count: u64,
    /// Its number, from 0 on; of the newest round if there are several in the result.
    pub round: u64,
    /// Rounds in this result, or skipped by it; 1 with LINERATE_ORDERED.
    pub rounds: u64,
    /// Gradients in the sum.
    pub generations: u64,
    /// What the sum was divided by; 1 if by nothing.
    pub divisor: u64,
    /// How many ranks are in `active`.
    pub active_count: u32,
    /// How many ranks are in `included`.
    pub included_count: u32,
    /// How many ranks are in `held`.
    pub held_count: u32,
    /// How many ranks are in `dead`.
    pub dead_count: u32,
    /// 1: it waited for all ranks, as every round with LINERATE_FULL does; else 0.
    pub is_full: u32,
    /// 1: it was the round of linerate_partial_finish(); else 0.
    pub is_last: u32,
}

// SAFETY: numbers and addresses, the size first.
unsafe impl Sized64 for linerate_round_report {
    const NAME: &'static str = "linerate_round_report";
}

/// Called with each result of linerate_partial_finish(), which lies in `update` during the call.
#[allow(non_camel_case_types)]
pub type linerate_visit =
    Option<unsafe extern "C" fn(user: *mut c_void, report: *const linerate_round_report)>;

/// A partial allreduce, and what its memory is.
pub(crate) struct Rounds {
    partial: PartialAllreduce,
    /// Where the memory of gradients and results is looked for.
    communicator: Communicator,
    dtype: DataType,
    count: u64,
}

impl Rounds {
    /// The vector at an address.
    ///
    /// # Safety
    /// As [`adopt`].
    unsafe fn vector(&self, name: &str, address: *const c_void) -> Result<Buffer<u8>, Fault> {
        // SAFETY: our caller promises it.
        unsafe { adopt(name, &self.communicator, address, self.count, self.dtype) }
    }
}

fn options_of(given: &linerate_partial_options) -> Result<PartialOptions, Fault> {
    let wrong = |field, value, last| {
        invalid(format!(
            "linerate_partial_options: {field} is {value}: from 0 to {last}"
        ))
    };
    let or = |value: u32, default| if value == 0 { default } else { value };
    let quorum = or(given.quorum, 1);
    let policy = match given.policy {
        LINERATE_MAJORITY => Policy::Majority,
        LINERATE_SOLO => Policy::Solo,
        LINERATE_QUORUM => Policy::Quorum(quorum),
        LINERATE_FULL => Policy::Full,
        LINERATE_RANDOM_INITIATOR => Policy::RandomInitiator { seed: given.seed },
        LINERATE_DEADLINE => Policy::Deadline {
            quorum,
            time: Duration::from_nanos(given.deadline_ns),
        },
        other => return Err(wrong("policy", other, LINERATE_DEADLINE)),
    };
    let delivery = match given.delivery {
        LINERATE_ORDERED => Delivery::Ordered,
        LINERATE_MERGED => Delivery::Merged,
        LINERATE_LATEST => Delivery::Latest,
        other => return Err(wrong("delivery", other, LINERATE_LATEST)),
    };
    let divisor = match given.divisor {
        LINERATE_BY_CREATION => Divisor::Creation,
        LINERATE_BY_LIVE => Divisor::Live,
        LINERATE_BY_GENERATIONS => Divisor::Generations,
        LINERATE_BY_NOTHING => Divisor::One,
        other => return Err(wrong("divisor", other, LINERATE_BY_NOTHING)),
    };
    let default = PartialOptions::default();
    Ok(PartialOptions {
        policy,
        limiter: (given.limiter > 0).then_some(given.limiter),
        staleness_max: match given.staleness_max {
            0 => default.staleness_max,
            LINERATE_UNBOUNDED => None,
            bound => Some(bound),
        },
        rounds_in_flight: or(given.rounds_in_flight, default.rounds_in_flight),
        delivery,
        divisor,
        survive: given.survive != 0,
    })
}

/// Writes a report where the caller wants it and its sets.
///
/// # Safety
/// `place` is NULL or a struct with its size, whose addresses are NULL or have the room that its
/// documentation says.
unsafe fn tell(place: *mut linerate_round_report, report: &RoundReport) -> Result<(), Fault> {
    if place.is_null() {
        return Ok(());
    }
    // SAFETY: our caller promises it.
    let mut told = unsafe { read("report", place)? };
    told.round = report.round;
    told.rounds = report.rounds;
    told.generations = report.generations();
    told.divisor = report.divisor;
    told.is_full = u32::from(report.waited == Waited::Full);
    told.is_last = u32::from(report.is_last);
    told.staleness_count = report.staleness.len() as u64;
    for (set, to, count) in [
        (&report.active, told.active, &mut told.active_count),
        (&report.included, told.included, &mut told.included_count),
        (&report.held, told.held, &mut told.held_count),
        (&report.dead, told.dead, &mut told.dead_count),
    ] {
        *count = set.count();
        // SAFETY: our caller promises it.
        unsafe { write_words("a set of ranks", to, RankSet::words(set))? };
    }
    let capacity = told.staleness_capacity as usize;
    let shown = report.staleness.len().min(capacity);
    // SAFETY: as above.
    unsafe {
        write_words("staleness", told.staleness, &report.staleness[..shown])?;
        write_back("report", place, &told)
    }
}

/// Stores words, if they are wanted.
///
/// # Safety
/// `to` is NULL or has room for them.
unsafe fn write_words(name: &str, to: *mut u64, words: &[u64]) -> Result<(), Fault> {
    if to.is_null() {
        return Ok(());
    }
    for (number, &word) in words.iter().enumerate() {
        // SAFETY: our caller promises it.
        unsafe { write(name, to.wrapping_add(number), word)? };
    }
    Ok(())
}

/// Tells of a result, if there is one.
///
/// # Safety
/// As [`tell`].
unsafe fn give(
    place: *mut linerate_round_report,
    report: Option<&RoundReport>,
) -> Result<i32, Fault> {
    let Some(report) = report else {
        return Ok(LINERATE_IN_PROGRESS);
    };
    // SAFETY: our caller promises it.
    unsafe { tell(place, report)? };
    Ok(LINERATE_DONE)
}

/// Makes a partial allreduce of vectors of `count` elements: rounds that do not wait for slow
/// ranks, whose gradients are in later rounds. In each step a rank submits its gradient and takes
/// the result of the step. Rounds may be under way while other operations of `comm` are. `options`
/// may be NULL. Collective: all ranks call it, with the same arguments.
///
/// Threads: any, one at a time for one communicator. The caller frees the handle
/// (linerate_partial_free()); it counts as a handle of the communicator until then. After fork:
/// LINERATE_ERROR_FORKED.
///
/// # Safety
/// `options` is a struct, or NULL; `partial` is writable.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn linerate_partial_create(
    comm: linerate_comm,
    dtype: u32,
    count: u64,
    options: *const linerate_partial_options,
    partial: *mut linerate_partial,
) -> i32 {
    enter(|| {
        check_place("partial", partial)?;
        let communicator = COMMUNICATOR.get(comm)?.clone();
        let dtype = dtype_of(dtype)?;
        let chosen = match options.is_null() {
            true => PartialOptions::default(),
            // SAFETY: our caller promises it.
            false => options_of(&unsafe { read("options", options)? })?,
        };
        let made = PartialAllreduce::new(&communicator, dtype, count, chosen)?;
        let handle = insert(Object::Partial(Rounds {
            partial: made,
            communicator,
            dtype,
            count,
        }))?;
        // SAFETY: as above.
        unsafe { write("partial", partial, handle)? };
        Ok(LINERATE_DONE)
    })
}

/// Submits the gradient of this rank's next step; its number, from 0 on, goes to `step`, which may
/// be NULL. The gradient is copied. Waits only if the rank is `rounds_in_flight` steps ahead of the
/// last result that it has taken.
///
/// Threads: any. After fork: LINERATE_ERROR_FORKED.
///
/// # Safety
/// `gradient` has `count` elements; `step` is writable, or NULL.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn linerate_partial_submit(
    partial: linerate_partial,
    gradient: *const c_void,
    step: *mut u64,
) -> i32 {
    enter(|| {
        let rounds = PARTIAL.get(partial)?;
        // SAFETY: our caller promises it.
        let memory = unsafe { rounds.vector("gradient", gradient)? };
        let number = rounds.partial.submit(&memory)?;
        if !step.is_null() {
            // SAFETY: as above.
            unsafe { write("step", step, number)? };
        }
        Ok(LINERATE_DONE)
    })
}

/// Takes the next result: waits for it, and copies it to `update`. LINERATE_IN_PROGRESS: none is
/// due before the next submit. `report` may be NULL. With LINERATE_ORDERED the results are those of
/// the rounds in order, and a rank that is behind gets its next one at once. After an error of a
/// round, free the partial allreduce; the communicator is still good, unless a rank has died.
///
/// Threads: any. After fork: LINERATE_ERROR_FORKED.
///
/// # Safety
/// `update` has room for `count` elements; `report` is NULL or a struct with its size, whose
/// addresses are NULL or have room.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn linerate_partial_next(
    partial: linerate_partial,
    update: *mut c_void,
    report: *mut linerate_round_report,
) -> i32 {
    enter(|| {
        let rounds = PARTIAL.get(partial)?;
        // SAFETY: our caller promises it.
        unsafe {
            check_wanted("report", report)?;
            let memory = rounds.vector("update", update)?;
            give(report, rounds.partial.next(&memory)?.as_ref())
        }
    })
}

/// As linerate_partial_next(), and LINERATE_IN_PROGRESS instead of waiting. A rank that is behind
/// catches up by calling it until it returns that.
///
/// Threads: any. After fork: LINERATE_ERROR_FORKED.
///
/// # Safety
/// As linerate_partial_next().
#[unsafe(no_mangle)]
pub unsafe extern "C" fn linerate_partial_try_next(
    partial: linerate_partial,
    update: *mut c_void,
    report: *mut linerate_round_report,
) -> i32 {
    enter(|| {
        let rounds = PARTIAL.get(partial)?;
        // SAFETY: our caller promises it.
        unsafe {
            check_wanted("report", report)?;
            let memory = rounds.vector("update", update)?;
            give(report, rounds.partial.try_next(&memory)?.as_ref())
        }
    })
}

/// Submits a gradient and takes the next result, faster than in two calls. `gradient` and `update`
/// may be equal.
///
/// Threads: any. After fork: LINERATE_ERROR_FORKED.
///
/// # Safety
/// As linerate_partial_submit() and linerate_partial_next().
#[unsafe(no_mangle)]
pub unsafe extern "C" fn linerate_partial_exchange(
    partial: linerate_partial,
    gradient: *const c_void,
    update: *mut c_void,
    report: *mut linerate_round_report,
) -> i32 {
    enter(|| {
        let rounds = PARTIAL.get(partial)?;
        // SAFETY: our caller promises it.
        unsafe {
            check_wanted("report", report)?;
            let from = rounds.vector("gradient", gradient)?;
            let to = match gradient == update.cast_const() {
                true => from.clone(),
                false => rounds.vector("update", update)?,
            };
            give(report, rounds.partial.exchange(&from, &to)?.as_ref())
        }
    })
}

/// Runs a round that waits for all ranks and has everything that any of them has not delivered.
/// Every result that this rank has not taken yet, and that of this round, is copied to `update`,
/// one by one; `visit` is then called with `user` and its report, whose sets it may read during the
/// call. `visit` may be NULL where only the last result matters. Collective, after as many submits
/// on all ranks: at the end, and before validation and checkpoints. Submits may go on afterwards.
///
/// Threads: any; `visit` runs on the calling thread, inside this call only. After fork:
/// LINERATE_ERROR_FORKED.
///
/// # Safety
/// `update` has room for `count` elements; `visit` returns.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn linerate_partial_finish(
    partial: linerate_partial,
    update: *mut c_void,
    visit: linerate_visit,
    user: *mut c_void,
) -> i32 {
    enter(|| {
        let rounds = PARTIAL.get(partial)?;
        // SAFETY: our caller promises it.
        let memory = unsafe { rounds.vector("update", update)? };
        let words = rounds.communicator.ranks().div_ceil(64) as usize;
        let mut told = Ok(());
        rounds.partial.finish(&memory, |report| {
            let Some(visit) = visit else { return };
            let mut sets = vec![0u64; 4 * words + report.staleness.len()];
            let start: *mut u64 = sets.as_mut_ptr();
            let at = |place: usize| start.wrapping_add(place * words);
            let mut written = linerate_round_report {
                size: size_of::<linerate_round_report>() as u64,
                active: at(0),
                included: at(1),
                held: at(2),
                dead: at(3),
                staleness: at(4),
                staleness_capacity: report.staleness.len() as u64,
                ..NOTHING
            };
            // SAFETY: the addresses are those of `sets`, which has room; the caller promises that
            // `visit` is a function that returns.
            unsafe {
                told = tell(&mut written, &report);
                visit(user, &written);
            }
        })?;
        told.map(|()| LINERATE_DONE)
    })
}

const NOTHING: linerate_round_report = linerate_round_report {
    size: 0,
    active: null_mut(),
    included: null_mut(),
    held: null_mut(),
    dead: null_mut(),
    staleness: null_mut(),
    staleness_capacity: 0,
    staleness_count: 0,
    round: 0,
    rounds: 0,
    generations: 0,
    divisor: 0,
    active_count: 0,
    included_count: 0,
    held_count: 0,
    dead_count: 0,
    is_full: 0,
    is_last: 0,
};

/// Has a queue told, once, with the number `user`, when a result can be taken, or when the rounds
/// have failed; linerate_partial_next() then returns at once. An error if no result is due before
/// the next submit.
///
/// Threads: any. After fork: LINERATE_ERROR_FORKED.
#[unsafe(no_mangle)]
pub extern "C" fn linerate_partial_notify(
    partial: linerate_partial,
    queue: linerate_queue,
    user: u64,
) -> i32 {
    enter(|| {
        let queue = QUEUE.get(queue)?;
        PARTIAL.get(partial)?.partial.notify(&queue, user)?;
        Ok(LINERATE_DONE)
    })
}

/// How many rounds this rank is behind: rounds that have ended less its submits, at least 0.
/// Threads: any. After fork: 0.
///
/// # Safety
/// `rounds` is writable.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn linerate_partial_lag(partial: linerate_partial, rounds: *mut u64) -> i32 {
    enter(|| {
        check_place("rounds", rounds)?;
        let lag = PARTIAL.get(partial)?.partial.lag();
        // SAFETY: our caller promises it.
        unsafe { write("rounds", rounds, lag)? };
        Ok(LINERATE_DONE)
    })
}

/// Frees a partial allreduce; 0 is allowed and does nothing. Call linerate_partial_finish() before,
/// so that nothing is lost.
///
/// Threads: any. After fork: the child's handle ends, and the parent's rounds go on.
#[unsafe(no_mangle)]
pub extern "C" fn linerate_partial_free(partial: linerate_partial) -> i32 {
    enter(|| PARTIAL.free(partial).map(|()| LINERATE_DONE))
}
