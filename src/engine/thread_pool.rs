//! [`ThreadPool`]: a few threads among which large copies and reductions are split.
//!
//! One core does not use all the memory bandwidth of a host with several channels, so a rank that
//! has more than one core may use them. Work is cut into parts of [`PART_BYTES`] by ranges of
//! elements. The caller and each thread take the next part when they are free, so a thread that
//! gets no core takes fewer parts. Every element is computed by the same code from the same sources
//! in the same order, so the results do not depend on the number of threads.
//!
//! The threads are started at the first large piece of work and end with the pool. After a piece
//! they look for the next one for a while, since the pieces of one operation follow each other
//! closely, and yield their core between two looks. If none comes they sleep. They never see a
//! schedule, a transport or the clock.
//!
//! `rayon-core` is no replacement, because its callers wait until each thread that they called has
//! run. Where other programs used both cores, work of 400 us took 1075 us with it and 404 us with
//! this pool (medians; CONTRIBUTING.md).

use crate::kernel::{self, BoundReduction};
use crate::memory::View;
use crate::types::DataType;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;

/// Bytes of one part: 6 us at 10 GB/s, of which the two locks of a part take a few hundredths. It
/// is a multiple of every element and of a cache line, so that all parts are aligned alike.
pub const PART_BYTES: usize = 64 << 10;

/// The caller does shorter work alone, in at most 50 us. Waking a thread that sleeps takes 5 to
/// 50 us, but the caller goes on meanwhile, and a thread that still looks comes at once. An
/// allreduce of 1 MiB in registered memory, 2 ranks with 4 threads each on 16 cores, runs at 20
/// GB/s where it is shared, and at 11 where it is not.
pub const SHARED_BYTES_MIN: usize = 512 << 10;

/// A thread is called for each group of this many parts but one, because the caller works, too.
const PARTS_PER_THREAD: usize = 2;
const _: () = assert!(SHARED_BYTES_MIN >= 2 * PARTS_PER_THREAD * PART_BYTES);

/// How often a thread looks for more work, and a caller for the end of its work, before it sleeps:
/// about 100 us where nobody else wants the core.
const LOOKS: u32 = 200;

/// What is done to views.
#[derive(Clone, Copy, Debug)]
pub enum Work {
    /// Copies the source into the destination; `streamed`: by streaming stores, if possible.
    Copy { streamed: bool },
    /// Scales as [`kernel::scale`] does.
    Scale { dtype: DataType, factor: f64 },
    /// Reduces as [`kernel::reduce`] or [`kernel::reduce_streaming`] does.
    Reduce(BoundReduction),
}

impl Work {
    /// Does the work in the calling thread.
    #[inline(always)]
    pub fn run(&self, sources: &[View], destinations: &[View]) {
        match self {
            Work::Reduce(reduction) => reduction.run(sources, destinations),
            Work::Copy { streamed: false } => kernel::copy(sources[0], destinations[0]),
            Work::Copy { streamed: true } => kernel::copy_streaming(sources[0], destinations[0]),
            Work::Scale { dtype, factor } => {
                kernel::scale(*dtype, *factor, sources[0], destinations[0]);
            }
        }
    }
}

/// Threads that share large work with their caller.
#[derive(Debug)]
pub struct ThreadPool {
    threads_max: usize,
    board: Arc<Board>,
    threads: Vec<JoinHandle<()>>,
    part: Part,
}

/// Where the work at hand is posted.
#[derive(Debug)]
struct Board {
    state: Mutex<State>,
    /// How many pieces of work have been posted, for the threads that look. Changed under the lock.
    posts: AtomicU32,
    /// Notified when there are parts to take, or the pool ends.
    posted: Condvar,
    /// Notified when the last part is done.
    done: Condvar,
}

#[derive(Debug)]
struct State {
    work: Work,
    sources: Vec<View>,
    destinations: Vec<View>,
    parts_count: usize,
    parts_taken: usize,
    parts_done: usize,
    /// Threads that look for work: they need not be woken.
    looking: usize,
    has_panicked: bool,
    is_over: bool,
}

/// The views of one part; kept, so that taking one does not allocate.
#[derive(Debug, Default)]
struct Part {
    sources: Vec<View>,
    destinations: Vec<View>,
}

impl ThreadPool {
    /// A pool of at most `threads_max` threads, the caller's included; with 1, the caller does
    /// everything.
    pub fn new(threads_max: usize) -> ThreadPool {
        let state = State {
            work: Work::Copy { streamed: false },
            sources: Vec::new(),
            destinations: Vec::new(),
            parts_count: 0,
            parts_taken: 0,
            parts_done: 0,
            looking: 0,
            has_panicked: false,
            is_over: false,
        };
        ThreadPool {
            threads_max: threads_max.max(1),
            board: Arc::new(Board {
                state: Mutex::new(state),
                posts: AtomicU32::new(0),
                posted: Condvar::new(),
                done: Condvar::new(),
            }),
            threads: Vec::new(),
            part: Part::default(),
        }
    }

    /// Threads that share large work, the caller's included.
    pub fn threads_max(&self) -> usize {
        self.threads_max
    }

    /// Does the work, which is done when this returns. Views are equally long, as the kernels want
    /// them.
    ///
    /// # Panics
    /// It panics as the kernels do. No thread uses the views any more then.
    pub fn run(&mut self, work: Work, sources: &[View], destinations: &[View]) {
        let bytes = sources[0].len_bytes();
        let parts_count = bytes.div_ceil(PART_BYTES);
        if self.threads_max == 1 || bytes < SHARED_BYTES_MIN {
            return work.run(sources, destinations);
        }
        let mut views = sources.iter().chain(destinations);
        assert!(
            views.all(|view| view.len_bytes() == bytes),
            "work on views of unequal length"
        );
        self.start_threads();
        let mut state = self.board.lock();
        state.work = work;
        state.sources.clear();
        state.sources.extend_from_slice(sources);
        state.destinations.clear();
        state.destinations.extend_from_slice(destinations);
        (state.parts_count, state.parts_taken, state.parts_done) = (parts_count, 0, 0);
        let complete = Complete(&self.board);
        self.board.posts.fetch_add(1, Ordering::Relaxed);
        let wanted = (parts_count / PARTS_PER_THREAD - 1).min(self.threads.len());
        for _ in state.looking..wanted {
            self.board.posted.notify_one();
        }
        while let Some(work) = state.take_part(&mut self.part) {
            drop(state);
            self.board.run_part(work, &self.part);
            state = self.board.lock();
        }
        drop(state);
        drop(complete);
        let has_panicked = self.board.lock().has_panicked;
        assert!(!has_panicked, "a thread of the pool has panicked");
    }

    /// Starts the threads that are missing. If the host gives no more, those that exist do the
    /// work.
    fn start_threads(&mut self) {
        while self.threads.len() + 1 < self.threads_max {
            let board = self.board.clone();
            let thread = std::thread::Builder::new().name("linerate-pool".into());
            match thread.spawn(move || board.serve()) {
                Ok(handle) => self.threads.push(handle),
                Err(_) => self.threads_max = self.threads.len() + 1,
            }
        }
    }
}

impl Drop for ThreadPool {
    fn drop(&mut self) {
        self.board.lock().is_over = true;
        self.board.posted.notify_all();
        for thread in self.threads.drain(..) {
            // A panic has been printed, and `run` has told the caller.
            let _ = thread.join();
        }
    }
}

impl Board {
    /// A poisoned lock is no error: the state notes panics, and it is consistent at every unlock.
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What a thread does until the pool ends.
    fn serve(&self) {
        let mut part = Part::default();
        let mut state = self.lock();
        while !state.is_over {
            match state.take_part(&mut part) {
                Some(work) => {
                    drop(state);
                    self.run_part(work, &part);
                    state = self.lock();
                }
                None => state = self.look(state),
            }
        }
    }

    /// Looks for more work for a while, and sleeps if none comes.
    fn look<'a>(&'a self, mut state: MutexGuard<'a, State>) -> MutexGuard<'a, State> {
        // Relaxed: a hint. What was posted is read under the lock.
        let seen = self.posts.load(Ordering::Relaxed);
        state.looking += 1;
        drop(state);
        let has_come = (0..LOOKS).any(|_| {
            std::thread::yield_now();
            self.posts.load(Ordering::Relaxed) != seen
        });
        let mut state = self.lock();
        state.looking -= 1;
        match has_come || state.parts_taken < state.parts_count || state.is_over {
            true => state,
            false => wait(&self.posted, state),
        }
    }

    fn run_part(&self, work: Work, part: &Part) {
        let _count = CountDone(self);
        work.run(&part.sources, &part.destinations);
    }
}

impl State {
    /// The next part, if one is left.
    fn take_part(&mut self, part: &mut Part) -> Option<Work> {
        if self.parts_taken == self.parts_count {
            return None;
        }
        let start = self.parts_taken * PART_BYTES;
        self.parts_taken += 1;
        let cut = |view: &View| view.part(start, PART_BYTES.min(view.len_bytes() - start));
        part.sources.clear();
        part.sources.extend(self.sources.iter().map(cut));
        part.destinations.clear();
        part.destinations.extend(self.destinations.iter().map(cut));
        Some(self.work)
    }
}

/// Counts a part as done when it is dropped, so that a panic cannot leave the caller waiting.
struct CountDone<'a>(&'a Board);

impl Drop for CountDone<'_> {
    fn drop(&mut self) {
        let mut state = self.0.lock();
        state.parts_done += 1;
        state.has_panicked |= std::thread::panicking();
        if state.parts_done == state.parts_count {
            self.0.done.notify_one();
        }
    }
}

/// Work that is posted. When this is dropped, no further part is taken, and the drop waits until
/// those that were taken are done. That also happens when the caller panics, because its views may
/// end then.
struct Complete<'a>(&'a Board);

impl Drop for Complete<'_> {
    fn drop(&mut self) {
        let mut state = self.0.lock();
        state.parts_count = state.parts_taken;
        for look in 0.. {
            if state.parts_done == state.parts_count {
                return;
            }
            if look < LOOKS {
                drop(state);
                std::thread::yield_now();
                state = self.0.lock();
            } else {
                state = wait(&self.0.done, state);
            }
        }
    }
}

fn wait<'a>(condition: &Condvar, state: MutexGuard<'a, State>) -> MutexGuard<'a, State> {
    condition
        .wait(state)
        .unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::memory::Region;
    use crate::types::{Combine, Finish};

    fn mean(dtype: DataType) -> Work {
        Work::Reduce(BoundReduction::new(dtype, Combine::Sum, Finish::Divide(3)))
    }

    /// Runs the work on three sources of mixed magnitude, of which the last is also a destination;
    /// returns all bytes afterwards.
    fn reduced(pool: &mut ThreadPool, work: Work, bytes: usize) -> Vec<u8> {
        let region = Region::private(3 * bytes).unwrap();
        let views = [0, 1, 2].map(|index| region.view().part(index * bytes, bytes));
        for index in 0..3 * bytes / 4 {
            let scale = [1e-3f32, 1.0, 1e7][index % 3];
            kernel::store(region.view(), index, (index as f32).sin() * scale);
        }
        let destinations = match work {
            Work::Reduce(_) => &views[1..],
            _ => &views[2..],
        };
        pool.run(work, &views, destinations);
        let mut out = vec![0; 3 * bytes];
        kernel::read(region.view(), 0, &mut out);
        out
    }

    #[test]
    fn results_are_the_same_bits_for_any_number_of_threads() {
        let works = [
            mean(DataType::F32),
            Work::Reduce(BoundReduction::streaming(
                DataType::Bf16,
                Combine::Max,
                Finish::None,
            )),
            Work::Copy { streamed: false },
            Work::Copy { streamed: true },
            Work::Scale {
                dtype: DataType::F64,
                factor: 0.3,
            },
        ];
        let least = SHARED_BYTES_MIN;
        let lengths = [0, 8, least - 8, least, least + PART_BYTES + 8];
        let mut alone = ThreadPool::new(1);
        let mut pools = [2, 3, 5].map(ThreadPool::new);
        for work in works {
            for bytes in lengths {
                let expected = reduced(&mut alone, work, bytes);
                for pool in &mut pools {
                    let threads = pool.threads_max();
                    let got = reduced(pool, work, bytes);
                    assert!(
                        got == expected,
                        "{work:?} of {bytes} bytes, {threads} threads"
                    );
                }
            }
        }
    }

    #[test]
    fn threads_begin_with_the_first_large_work_and_end_with_the_pool() {
        let mut pool = ThreadPool::new(3);
        reduced(&mut pool, mean(DataType::F32), SHARED_BYTES_MIN - 8);
        assert_eq!(pool.threads.len(), 0, "small work needs no threads");
        reduced(&mut pool, mean(DataType::F32), SHARED_BYTES_MIN);
        assert_eq!(pool.threads.len(), 2);
        let kept = |pool: &ThreadPool| {
            let state = pool.board.lock();
            let posted = [&state.sources, &state.destinations];
            let own = [&pool.part.sources, &pool.part.destinations];
            [posted, own].map(|lists| lists.map(|list| (list.as_ptr(), list.capacity())))
        };
        let lists = kept(&pool);
        reduced(&mut pool, mean(DataType::F32), 2 * SHARED_BYTES_MIN);
        assert_eq!(kept(&pool), lists, "the lists are used again");
        assert_eq!(pool.threads.len(), 2);
        let board = Arc::downgrade(&pool.board);
        drop(pool);
        assert!(
            board.upgrade().is_none(),
            "no thread holds the board any more"
        );
    }

    #[test]
    fn after_a_panic_no_thread_touches_the_views() {
        let mut pool = ThreadPool::new(3);
        // The last part is half an element.
        let bytes = SHARED_BYTES_MIN + 4;
        let failed = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            reduced(&mut pool, mean(DataType::F64), bytes)
        }));
        assert!(failed.is_err());
        let state = pool.board.lock();
        assert_eq!(state.parts_done, state.parts_taken);
        drop(state);
        assert!(pool.board.lock().has_panicked);
    }
}
