//! [`Window`]: memory of every rank that all ranks put to and get from.

use super::buffer::Buffer;
use super::raw::RawBuffer;
use super::{Communicator, Operation};
use crate::engine::{RemoteCall, RemoteWork};
use crate::error::{Error, Result};
use crate::kernel;
use crate::memory::{Access, Element, Kept, RegionKey, View};
use crate::time::Time;
use crate::transport::{Atomic, RemoteRange, words};
use crate::types::{DataType, Rank};
use std::marker::PhantomData;
use std::sync::{Mutex, OnceLock, PoisonError, RwLock};

/// What a rank tells the others of its part: key, offset in its region, bytes, type.
const WORDS: usize = 4;

/// A registered buffer of each rank that all ranks of a communicator put to and get from, as MPI's
/// windows. Made by [`Communicator::window`].
///
/// Puts, gets and atomic operations need nothing of their target's program, but that its
/// communicator makes progress ([`Config::progress`](crate::Config::progress)). Each is an
/// [`Operation`], and has ended when it is done in the target's memory. They are not ordered among
/// each other. To do one after another, wait for the first, or use [`Window::put_signal`].
/// Any number of threads may start them.
///
/// This rank reads and writes its own part by [`Window::read`] and [`Window::write`] while the
/// window lives: other ranks may change it at any time, so there is no slice of it.
///
/// ```
/// use linerate::{Communicator, Config};
/// let job = format!("window-{}", std::process::id());
/// let run = |rank: u32| -> linerate::Result<u64> {
///     let comm = Communicator::join(rank, 2, &job, Config::default())?;
///     let (data, signals) = (comm.alloc::<u64>(4)?, comm.alloc::<u64>(1)?);
///     let (data, signals) = (comm.window(&data)?, comm.window(&signals)?);
///     let mut seen = [0];
///     if rank == 0 {
///         let source = comm.alloc::<u64>(1)?;
///         source.write(0, &[7])?;
///         data.put_signal(&source, 1, 2, (&signals, 0), 1)?.wait()?;
///     } else {
///         signals.wait_signal(0, 1)?.wait()?;
///         data.read(2, &mut seen)?;
///     }
///     data.close()?;
///     signals.close()?;
///     Ok(seen[0])
/// };
/// let seen = std::thread::scope(|scope| {
///     let ranks: Vec<_> = (0..2).map(|rank| scope.spawn(move || run(rank))).collect();
///     ranks.into_iter().map(|rank| rank.join().unwrap()).collect::<Result<Vec<_>, _>>()
/// })?;
/// assert_eq!(seen, [0, 7]);
/// # Ok::<(), linerate::Error>(())
/// ```
#[must_use = "dropping a window ends it, and other ranks get errors from it"]
pub struct Window<T: Element> {
    communicator: Communicator,
    memory: RawBuffer,
    /// While the window lives, nothing else uses the buffer.
    kept: Option<Kept>,
    parts: OnceLock<RwLock<Vec<Part>>>,
    exchange: Mutex<Option<Exchange>>,
    elements: PhantomData<T>,
}

/// A rank's part of a window.
#[derive(Clone, Copy, Debug)]
pub(super) struct Part {
    key: RegionKey,
    offset: u64,
    len: usize,
}

impl Part {
    /// That of a rank which has none.
    pub const NONE: Part = Part {
        key: RegionKey::NONE,
        offset: 0,
        len: 0,
    };

    /// Its elements.
    pub fn len(&self) -> usize {
        self.len
    }

    /// As words, for other ranks.
    pub fn emit(&self) -> [u64; 3] {
        [u64::from(self.key.0), self.offset, self.len as u64]
    }

    pub fn parse([key, offset, len]: [u64; 3]) -> Part {
        Part {
            key: RegionKey(key as u32),
            offset,
            len: len as usize,
        }
    }
}

/// Ranks tell each other where their parts are.
struct Exchange {
    operation: Operation,
    all: Buffer<u64>,
}

impl Communicator {
    /// Makes a window of a registered buffer of each rank. Collective: every rank calls it, in one
    /// order with its other collectives. Lengths may differ, and the type may not.
    ///
    /// Nothing else uses the buffer until [`Window::close`].
    ///
    /// # Errors
    /// [`Error::InvalidArgument`]: the buffer is not registered (take it from
    /// [`Communicator::alloc`]), another rank has another type, or this is a simulation, where
    /// [`Communicator::start_window`] makes windows; [`Error::InUse`]; any failure of the
    /// communicator.
    pub fn window<T: Element>(&self, buffer: &Buffer<T>) -> Result<Window<T>> {
        self.check_can_wait("window")?;
        let window = self.start_window(buffer)?;
        let exchange = window
            .exchange
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .take();
        if let Some(Exchange { operation, all }) = exchange {
            operation.wait()?;
            window.note_parts(&all)?;
        }
        Ok(window)
    }

    /// As [`Communicator::window`], without waiting for the other ranks: the window can be used
    /// when [`Window::is_ready`]. It is for a [`Simulation`](super::Simulation), whose ranks cannot
    /// wait.
    pub fn start_window<T: Element>(&self, buffer: &Buffer<T>) -> Result<Window<T>> {
        let mut window = self.open_window(buffer)?;
        let view = window.memory.view();
        for peer in 0..self.ranks() {
            self.export(peer, view.key())?;
        }
        let own = [
            u64::from(view.key().0),
            view.offset(),
            view.len_bytes() as u64,
            T::DTYPE as u64,
        ];
        let own = Buffer::from_vec(own.to_vec());
        let all = Buffer::from_vec(vec![0; WORDS * self.ranks() as usize]);
        let operation = self.start_all_gather(&own, &all)?;
        window.exchange = Mutex::new(Some(Exchange { operation, all }));
        Ok(window)
    }

    /// A window of which no other rank knows, and that knows of none.
    fn open_window<T: Element>(&self, buffer: &Buffer<T>) -> Result<Window<T>> {
        let driving = self.driving()?;
        let memory = driving.registered_here(buffer.raw())?;
        if !memory.is_registered() || self.inner.is_size_only {
            return Err(Error::invalid(format!(
                "a window of {} elements of {} needs registered memory with bytes: take the buffer from Communicator::alloc of a communicator that is not size-only",
                buffer.len(),
                T::DTYPE
            )));
        }
        Ok(Window {
            communicator: self.clone(),
            kept: memory.keep_reachable(Access::Exclusive, "a window")?,
            memory,
            parts: OnceLock::new(),
            exchange: Mutex::new(None),
            elements: PhantomData,
        })
    }

    /// A window of a communicator whose peers come one by one: no rank has a part
    /// ([`Window::set_part`]).
    pub(super) fn window_of_slots<T: Element>(&self, buffer: &Buffer<T>) -> Result<Window<T>> {
        let window = self.open_window(buffer)?;
        let nobody = vec![Part::NONE; self.ranks() as usize];
        let _ = window.parts.set(RwLock::new(nobody));
        Ok(window)
    }

    /// Makes a region known to a peer. Where the way to it is full, this drives until it is not.
    pub(super) fn export(&self, peer: Rank, key: RegionKey) -> Result<()> {
        let (driving, clock) = (self.driving()?, &self.inner.clock);
        let begun: Time = clock.now();
        loop {
            let mut engine = driving.engine();
            engine.check()?;
            if engine.export(peer, key)? {
                return Ok(());
            }
            let now = clock.now();
            engine.drive_slow(now);
            engine.drive(now);
            drop(engine);
            // The time of a simulation stands still in here.
            self.check_can_wait("a window of a rank that takes no news of memory")?;
            if now.since(begun) > self.inner.config.timeout {
                return Err(Error::Exhausted {
                    what: "a window".into(),
                    limit: format!("rank {peer} has read no news of memory for the whole timeout"),
                    remedy: "look whether that rank is stopped".into(),
                });
            }
            std::thread::yield_now();
        }
    }
}

impl<T: Element> Window<T> {
    /// Whether all ranks have told where their parts are, so that the window can be used. Of a
    /// window from [`Communicator::window`] this is always so.
    ///
    /// # Errors
    /// As of [`Communicator::window`].
    pub fn is_ready(&self) -> Result<bool> {
        if self.parts.get().is_some() {
            return Ok(true);
        }
        let mut exchange = self.exchange.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(Exchange { operation, all }) = exchange.as_mut() else {
            return Ok(self.parts.get().is_some());
        };
        if !operation.test()? {
            return Ok(false);
        }
        let noted = self.note_parts(all);
        *exchange = None;
        noted.map(|()| true)
    }

    fn note_parts(&self, all: &Buffer<u64>) -> Result<()> {
        let words = all.to_vec()?;
        let own = T::DTYPE as u64;
        let mut parts = Vec::new();
        for (rank, words) in (0 as Rank..).zip(words.chunks_exact(WORDS)) {
            let &[key, offset, bytes, dtype] = words else {
                unreachable!("chunks of as many words");
            };
            if dtype != own {
                let theirs = DataType::ALL.iter().find(|of| **of as u64 == dtype);
                let theirs: &str = theirs.map_or("another type", |of| of.name());
                return Err(Error::invalid(format!(
                    "a window of {} on rank {} and of {theirs} on rank {rank}: make it of one type on all ranks",
                    T::DTYPE,
                    self.communicator.rank()
                )));
            }
            parts.push(Part {
                key: RegionKey(key as u32),
                offset,
                len: bytes as usize / size_of::<T>(),
            });
        }
        let _ = self.parts.set(RwLock::new(parts));
        Ok(())
    }

    /// Elements of this rank's part.
    pub fn len(&self) -> usize {
        self.memory.len_bytes() / size_of::<T>()
    }

    /// Whether this rank's part has no elements.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Elements of a rank's part.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`]: there is no such rank, or the window is not ready.
    pub fn len_of(&self, rank: Rank) -> Result<usize> {
        self.part(rank, "the length").map(|part| part.len)
    }

    fn part(&self, rank: Rank, what: &str) -> Result<Part> {
        if !self.is_ready()? {
            return Err(Error::invalid(format!(
                "{what} of a window of which not all ranks have told where their parts are: see Window::is_ready"
            )));
        }
        let Some(parts) = self.parts.get() else {
            return Err(Error::internal("a window is ready and has no parts"));
        };
        let parts = parts.read().unwrap_or_else(PoisonError::into_inner);
        parts.get(rank as usize).copied().ok_or_else(|| {
            let ranks = parts.len();
            Error::invalid(format!(
                "{what} names rank {rank} of a window of {ranks}: ranks are below {ranks}"
            ))
        })
    }

    /// `count` elements from element `at` on of a rank's part.
    fn range(&self, rank: Rank, at: usize, count: usize, what: &str) -> Result<RemoteRange> {
        let Part { key, offset, len } = self.part(rank, what)?;
        if at.checked_add(count).is_none_or(|end| end > len) {
            return Err(Error::invalid(format!(
                "{what} of {count} elements from element {at} on, in the window of rank {rank}, which has {len} elements"
            )));
        }
        let offset = offset + (at * size_of::<T>()) as u64;
        Ok(RemoteRange { key, offset })
    }

    /// Starts to write all elements of `source` to a rank's part, from its element `at` on. The
    /// operation borrows the buffer, and ends when the elements are in the rank's memory.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`]: no such rank, or the elements do not fit its part;
    /// [`Error::InUse`]: something writes the buffer; any failure of the communicator. The
    /// operation fails with [`Error::Left`] if the rank has left, and with
    /// [`Error::InvalidArgument`] if it has dropped its window.
    pub fn put(&self, source: &Buffer<T>, rank: Rank, at: usize) -> Result<Operation> {
        let place = self.range(rank, at, source.len(), "a put")?;
        self.start(
            rank,
            place,
            RemoteWork::Put,
            None,
            (source.raw(), Access::Shared, "a put"),
        )
    }

    /// Starts to read elements of a rank's part, from its element `at` on, until `destination` is
    /// full. Errors: as of [`Window::put`].
    pub fn get(&self, destination: &Buffer<T>, rank: Rank, at: usize) -> Result<Operation> {
        let place = self.range(rank, at, destination.len(), "a get")?;
        let buffer = (destination.raw(), Access::Exclusive, "a get");
        self.start(rank, place, RemoteWork::Get, None, buffer)
    }

    /// As [`Window::put`]; then adds `add` to a word of the rank in another window. When the rank
    /// sees the sum ([`Window::wait_signal`], or by reading the word), the elements are there. A
    /// `signal` is the window and the number of the word in the rank's part.
    pub fn put_signal(
        &self,
        source: &Buffer<T>,
        rank: Rank,
        at: usize,
        signal: (&Window<u64>, usize),
        add: u64,
    ) -> Result<Operation> {
        let what = "a put with a signal";
        let place = self.range(rank, at, source.len(), what)?;
        let word = signal.0.range(rank, signal.1, 1, "the signal of a put")?;
        let buffer = (source.raw(), Access::Shared, what);
        self.start(rank, place, RemoteWork::Put, Some((word, add)), buffer)
    }

    /// Starts to wait for the end of all operations on the part of a rank that this rank has
    /// started. Their own ends tell whether they have failed.
    pub fn flush(&self, rank: Rank) -> Result<Operation> {
        let key = self.part(rank, "a flush")?.key;
        let comm = &self.communicator;
        let now = comm.inner.clock.now();
        let task = comm
            .driving()?
            .start(|inside| inside.engine.submit_flush(rank, key, now))?;
        Ok(Operation::new(comm, task, None))
    }

    fn start(
        &self,
        peer: Rank,
        place: RemoteRange,
        work: impl FnOnce(View) -> RemoteWork,
        signal: Option<(RemoteRange, u64)>,
        (buffer, access, by): (&RawBuffer, Access, &'static str),
    ) -> Result<Operation> {
        let comm = &self.communicator;
        let driving = comm.driving()?;
        comm.settle()?;
        let buffer = driving.registered_here(buffer)?;
        let call = RemoteCall {
            peer,
            place,
            work: work(buffer.view()),
            signal,
            keep: Vec::from_iter(buffer.keep_all(access, by)?),
        };
        let now = comm.inner.clock.now();
        let task = driving.start(|inside| inside.engine.submit_remote(call, now))?;
        Ok(Operation::new(comm, task, None))
    }

    /// Copies elements of this rank's part, from element `at` on, until `target` is full. Other
    /// ranks may change them meanwhile.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`]: the part has fewer elements; [`Error::Forked`].
    pub fn read(&self, at: usize, target: &mut [T]) -> Result<()> {
        self.check_own(at, target.len(), "a read")?;
        let start = at * size_of::<T>();
        kernel::read_contended(self.memory.view(), start, bytemuck::cast_slice_mut(target));
        Ok(())
    }

    /// Copies `source` to elements of this rank's part, from element `at` on. Other ranks may read
    /// them meanwhile. Errors: as of [`Window::read`].
    pub fn write(&self, at: usize, source: &[T]) -> Result<()> {
        self.check_own(at, source.len(), "a write")?;
        let start = at * size_of::<T>();
        kernel::write_contended(self.memory.view(), start, bytemuck::cast_slice(source));
        Ok(())
    }

    /// Where this rank's part is.
    pub(super) fn own_part(&self) -> Part {
        let view = self.memory.view();
        Part {
            key: view.key(),
            offset: view.offset(),
            len: self.len(),
        }
    }

    /// The part of the process that has this slot from now on. Makes this rank's part known to it.
    pub(super) fn set_part(&self, rank: Rank, part: Part) -> Result<()> {
        if let Some(parts) = self.parts.get() {
            let mut parts = parts.write().unwrap_or_else(PoisonError::into_inner);
            parts[rank as usize] = part;
        }
        self.communicator.export(rank, self.memory.view().key())
    }

    /// This rank's part.
    pub(super) fn own(&self) -> View {
        self.memory.view()
    }

    fn check_own(&self, at: usize, count: usize, what: &str) -> Result<()> {
        self.communicator.driving()?;
        let len = self.len();
        match at.checked_add(count).is_some_and(|end| end <= len) {
            true => Ok(()),
            false => Err(Error::invalid(format!(
                "{what} of {count} elements from element {at} on, in this rank's part of a window, which has {len} elements"
            ))),
        }
    }

    /// Ends the window on all ranks, and gives their buffers back. Collective. It waits until all
    /// operations of all ranks on it have ended.
    ///
    /// A window that is dropped without this leaves its buffer to copies only ([`Buffer::read`]),
    /// because other ranks may still write there.
    ///
    /// # Errors
    /// Any failure of the communicator; [`Error::InvalidArgument`] in a simulation.
    pub fn close(mut self) -> Result<()> {
        let comm = self.communicator.clone();
        comm.check_can_wait("Window::close")?;
        for rank in 0..comm.ranks() {
            self.flush(rank)?.wait()?;
        }
        comm.barrier()?;
        if let Some(kept) = self.kept.take() {
            kept.end();
        }
        Ok(())
    }
}

impl Window<u64> {
    /// A word of this rank's part. What was put before the signal that made it so is there then.
    pub(super) fn load(&self, at: usize) -> u64 {
        words::load(&self.memory.view(), at * size_of::<u64>())
    }

    /// Writes a word of this rank's part, which no other rank uses until it is told that it may.
    pub(super) fn store(&self, at: usize, value: u64) {
        words::store(&self.memory.view(), at * size_of::<u64>(), value);
    }

    /// Starts to add `add` to word `at` of a rank's part, at once for all operations of this kind;
    /// sums wrap. What was there before comes to `before`, of one element.
    ///
    /// # Errors
    /// As of [`Window::put`].
    pub fn fetch_and_add(
        &self,
        rank: Rank,
        at: usize,
        add: u64,
        before: &Buffer<u64>,
    ) -> Result<Operation> {
        self.change(Atomic::FetchAdd(add), (rank, at), before, "a fetch-and-add")
    }

    /// Starts to write `swap` to word `at` of a rank's part if `compare` is there, at once for all
    /// operations of this kind. What was there before comes to `before`, of one element.
    ///
    /// # Errors
    /// As of [`Window::put`].
    pub fn compare_and_swap(
        &self,
        rank: Rank,
        at: usize,
        (compare, swap): (u64, u64),
        before: &Buffer<u64>,
    ) -> Result<Operation> {
        let what = Atomic::CompareSwap { compare, swap };
        self.change(what, (rank, at), before, "a compare-and-swap")
    }

    fn change(
        &self,
        what: Atomic,
        (rank, at): (Rank, usize),
        before: &Buffer<u64>,
        name: &'static str,
    ) -> Result<Operation> {
        if before.len() != 1 {
            return Err(Error::invalid(format!(
                "{name} needs a buffer of one element for what was there, and this has {}",
                before.len()
            )));
        }
        let place = self.range(rank, at, 1, name)?;
        let work = |view| RemoteWork::Change(what, view);
        self.start(
            rank,
            place,
            work,
            None,
            (before.raw(), Access::Exclusive, name),
        )
    }

    /// Starts to wait until word `at` of this rank's part is at least `least`. What was put before
    /// the signal that made it so is there then.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`]: the part has fewer words; any failure of the communicator.
    pub fn wait_signal(&self, at: usize, least: u64) -> Result<Operation> {
        self.check_own(at, 1, "a wait for a signal")?;
        let comm = &self.communicator;
        let driving = comm.driving()?;
        comm.settle()?;
        let word = self.memory.part(at * size_of::<u64>(), size_of::<u64>());
        let keep = Vec::from_iter(word.keep(None));
        let now = comm.inner.clock.now();
        let word = (word.view(), least);
        let task = driving.start(|inside| inside.engine.submit_wait(word, keep, now))?;
        Ok(Operation::new(comm, task, None))
    }
}

impl<T: Element> std::fmt::Debug for Window<T> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Window")
            .field("dtype", &T::DTYPE)
            .field("len", &self.len())
            .finish_non_exhaustive()
    }
}
