//! [`Arena`]: the memory of a process that its peers map: its regions, queue pairs and queues.
//! There devices of other processes look up keys, take receives and leave completions.
//!
//! Everything in it is a number, an atomic or a [`Lock`], and every bit pattern is a value, so that
//! a peer that was killed at any instruction leaves nothing that cannot be read.

use crate::lock::Lock;
use crate::network::now;
use crate::settings::DEVICES_MAX;
use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;
use std::path::Path;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

pub const REGIONS: usize = 1 << 16;
/// Queue pairs of a process.
pub const PAIR_BITS: u32 = 14;
pub const PAIRS: usize = 1 << PAIR_BITS;
pub const QUEUES: usize = 4096;
pub const SHARED: usize = 1024;
/// Queues of receives: each queue pair has one, and the shared ones follow.
pub const RECEIVES: usize = PAIRS + SHARED;
/// The whole file. Only what is written takes memory.
const BYTES: usize = 1 << 32;
const HEAP_AT: usize = 1 << 24;

/// The name of a datagram socket, as the kernel has given it.
pub type SocketName = AtomicU64;

#[repr(C)]
struct Layout {
    header: Header,
    regions: [Region; REGIONS],
    pairs: [Pair; PAIRS],
    queues: [Queue; QUEUES],
    receives: [Receives; RECEIVES],
}
const _: () = assert!(size_of::<Layout>() <= HEAP_AT);

/// What concerns all of a process.
#[repr(C)]
pub struct Header {
    /// Counts the queue pairs that peers have brought down, so that their owner looks.
    pub failures: AtomicU64,
    /// The address at which its owner has mapped this: a read from there shows that the process
    /// lives.
    pub address: AtomicU64,
    /// Held for an atomic operation on memory of this process.
    pub atomics: Lock,
    /// By device.
    ports: [PortState; DEVICES_MAX],
}

impl Header {
    /// The state of a device's port.
    pub fn port(&self, device: u32) -> &PortState {
        &self.ports[device as usize % DEVICES_MAX]
    }
}

/// What has happened to a device and its port, as this process knows them.
#[repr(C)]
pub struct PortState {
    /// It carries nothing before this time.
    pub down_until: AtomicU64,
    /// How often its address has got another place.
    pub moves: AtomicU32,
    /// When the device vanished; 0: it is there.
    pub gone_at: AtomicU64,
}

impl PortState {
    /// Whether the device is gone.
    pub fn is_gone(&self) -> bool {
        self.gone_at.load(Ordering::Relaxed) != 0
    }

    /// When completions end.
    pub fn end(&self) -> u64 {
        match self.gone_at.load(Ordering::Relaxed) {
            0 => u64::MAX,
            time => time,
        }
    }

    /// Whether packets get through.
    pub fn is_up(&self) -> bool {
        let until = self.down_until.load(Ordering::Relaxed);
        !self.is_gone() && (until == 0 || until <= now())
    }
}

/// Registered memory. A device uses it only while it holds the lock of the queue pair through which
/// it reached it. Deregistration clears the key and then takes each of these locks once.
#[repr(C)]
pub struct Region {
    /// The key, which returns only after 32,767 uses of the place; 0: nothing is registered here.
    pub key: AtomicU32,
    /// How often the place was used.
    pub turn: AtomicU32,
    pub domain: AtomicU32,
    pub access: AtomicU32,
    pub address: AtomicU64,
    pub bytes: AtomicU64,
    /// The owner's descriptor of the memfd that it lies in, plus one; 0: peers cannot map it.
    pub file: AtomicU32,
    /// From which byte of the memfd on it lies there.
    pub file_at: AtomicU64,
}

/// A queue pair, as its peer sees it.
#[repr(C)]
pub struct Pair {
    /// Held to move bytes through it from the other side, and to change it.
    pub lock: Lock,
    /// 0: there is none.
    pub number: AtomicU32,
    pub state: AtomicU32,
    pub kind: AtomicU32,
    pub domain: AtomicU32,
    pub access: AtomicU32,
    pub datagram_key: AtomicU32,
    /// The peer's number, of a connection.
    pub peer: AtomicU32,
    /// The device whose wire it uses.
    pub device: AtomicU32,
    /// Where its receives come from and complete.
    pub receives: AtomicU32,
    pub queue: AtomicU32,
    /// The number of the shared queue that it takes receives from; 0: it has one of its own.
    pub shared: AtomicU32,
    /// The event of a failure that a peer has brought about.
    pub cause: AtomicU32,
    /// 1 while a peer moves bytes into a receive that it has taken, and the identity of that. It
    /// stays so if the peer's process is killed meanwhile.
    pub is_taken: AtomicU32,
    pub taken: AtomicU64,
}

/// Where peers leave completions, until the owner fetches them.
#[repr(C)]
pub struct Queue {
    /// Held to add one.
    pub lock: Lock,
    /// Completions that were added and not yet polled, the owner's own included.
    pub used: AtomicU64,
    pub added: AtomicU64,
    pub fetched: AtomicU64,
    /// The most entries, and the places of the ring (a power of two) less one.
    pub capacity: AtomicU32,
    pub mask: AtomicU32,
    pub ring: AtomicU64,
    /// 1: the owner waits for a completion; 2: for one that was solicited.
    pub armed: AtomicU32,
    pub is_overrun: AtomicU32,
    pub channel: SocketName,
    /// 1: the channel was woken and has not looked since then.
    pub is_woken: AtomicU32,
}

impl Queue {
    /// Wakes the channel, unless it was woken since its last look.
    pub fn wake(&self) {
        if self.is_woken.swap(1, Ordering::SeqCst) == 0 {
            crate::socket::send(self.channel.load(Ordering::Relaxed), &[1]);
        }
    }

    /// Notes that the channel looks: a later completion wakes it again.
    pub fn note_look(&self) {
        self.is_woken.store(0, Ordering::SeqCst);
    }
}

/// A completion.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct Entry {
    /// When it can be polled, in nanoseconds of the clock; 0: at once.
    pub due: u64,
    pub id: u64,
    pub status: u32,
    pub opcode: u32,
    pub bytes: u32,
    /// In network order.
    pub immediate: u32,
    pub pair: u32,
    pub source: u32,
    pub flags: u32,
    pub is_solicited: u32,
}

/// Receives that wait for messages.
#[repr(C)]
pub struct Receives {
    /// Held to take one or to add one.
    pub lock: Lock,
    pub added: AtomicU64,
    pub taken: AtomicU64,
    pub capacity: AtomicU32,
    pub mask: AtomicU32,
    pub segments_max: AtomicU32,
    /// An event is sent once if fewer are left; 0: none.
    pub limit: AtomicU32,
    pub ring: AtomicU64,
    pub events: SocketName,
}

/// A receive in its ring; `segments_max` segments follow it.
#[repr(C)]
#[derive(Clone, Copy, Default)]
pub struct Receive {
    pub id: u64,
    pub segments: u64,
}

/// A piece of memory of the owner.
#[repr(C)]
#[derive(Clone, Copy, Default)]
pub struct Piece {
    pub address: u64,
    pub bytes: u32,
    pub key: u32,
}

/// The mapped memory of a process.
#[derive(Debug)]
pub struct Arena {
    base: *mut u8,
    /// Ranges of the heap that are free, by offset; only its owner has them.
    free: Mutex<Vec<(u64, u64)>>,
}

// SAFETY: what lies there is atomic or behind a lock, and rings are only touched under theirs.
unsafe impl Send for Arena {}
// SAFETY: as above.
unsafe impl Sync for Arena {}

impl Arena {
    /// Makes the memory of this process.
    pub fn create(path: &Path) -> io::Result<Arena> {
        // Peers of a process that is gone keep what they have mapped.
        let _ = std::fs::remove_file(path);
        let file = File::options()
            .read(true)
            .write(true)
            .create_new(true)
            .open(path)?;
        file.set_len(BYTES as u64)?;
        let arena = Arena::map(&file)?;
        *arena.free.lock().unwrap() = vec![(HEAP_AT as u64, (BYTES - HEAP_AT) as u64)];
        arena
            .header()
            .address
            .store(arena.base as u64, Ordering::Relaxed);
        arena.header().atomics.initialise();
        Ok(arena)
    }

    /// Maps the memory of another process.
    pub fn open(path: &Path) -> io::Result<Arena> {
        let file = File::options().read(true).write(true).open(path)?;
        if file.metadata()?.len() < BYTES as u64 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        Arena::map(&file)
    }

    fn map(file: &File) -> io::Result<Arena> {
        // SAFETY: a new mapping of a file that is long enough.
        let base = unsafe {
            libc::mmap(
                std::ptr::null_mut(),
                BYTES,
                libc::PROT_READ | libc::PROT_WRITE,
                libc::MAP_SHARED | libc::MAP_NORESERVE,
                file.as_raw_fd(),
                0,
            )
        };
        if base == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        Ok(Arena {
            base: base.cast(),
            free: Mutex::default(),
        })
    }

    fn layout(&self) -> &Layout {
        // SAFETY: mapped until Drop, long enough, aligned; all of it is atomic or a lock.
        unsafe { &*self.base.cast::<Layout>() }
    }

    pub fn header(&self) -> &Header {
        &self.layout().header
    }

    /// The region that a key may belong to.
    pub fn region(&self, key: u32) -> &Region {
        &self.layout().regions[key as usize % REGIONS]
    }

    /// The queue pair that a number may belong to.
    pub fn pair(&self, number: u32) -> &Pair {
        &self.layout().pairs[number as usize % PAIRS]
    }

    pub fn queue(&self, index: u32) -> &Queue {
        &self.layout().queues[index as usize % QUEUES]
    }

    pub fn receives(&self, index: u32) -> &Receives {
        &self.layout().receives[index as usize % RECEIVES]
    }

    /// Memory of the heap, for a ring.
    pub fn allocate(&self, bytes: usize) -> Option<u64> {
        let bytes = (bytes.max(1) as u64).next_multiple_of(4096);
        let mut free = self.free.lock().unwrap();
        let place = free.iter().position(|&(_, length)| length >= bytes)?;
        let (at, length) = free[place];
        match length == bytes {
            true => drop(free.remove(place)),
            false => free[place] = (at + bytes, length - bytes),
        }
        Some(at)
    }

    /// Gives memory of a ring back to the heap and to the system.
    pub fn release(&self, at: u64, bytes: usize) {
        let bytes = (bytes.max(1) as u64).next_multiple_of(4096);
        // SAFETY: inside of the heap, which only rings use, and this one is not used any more.
        unsafe {
            libc::madvise(
                self.base.add(at as usize).cast(),
                bytes as usize,
                libc::MADV_REMOVE,
            )
        };
        let mut free = self.free.lock().unwrap();
        free.push((at, bytes));
        free.sort_unstable();
        free.dedup_by(|next, last| {
            let follows = last.0 + last.1 == next.0;
            if follows {
                last.1 += next.1;
            }
            follows
        });
    }

    /// The address of a ring's place; `None` where what the ring says is not inside of the heap.
    fn place(&self, ring: u64, offset: u64, bytes: usize) -> Option<*mut u8> {
        let at = ring.checked_add(offset)?;
        let is_inside = at >= HEAP_AT as u64 && at + (bytes as u64) <= BYTES as u64;
        // SAFETY: inside of the mapping.
        is_inside.then(|| unsafe { self.base.add(at as usize) })
    }

    /// Writes to a ring; the caller holds its lock.
    pub fn put<T: Copy>(&self, ring: u64, offset: u64, value: T) {
        if let Some(place) = self.place(ring, offset, size_of::<T>()) {
            // SAFETY: inside of the heap; nobody else touches this place meanwhile.
            unsafe { place.cast::<T>().write_unaligned(value) };
        }
    }

    /// Reads from a ring; the caller holds its lock, or its place is not written any more.
    pub fn get<T: Copy + Default>(&self, ring: u64, offset: u64) -> T {
        let place = self.place(ring, offset, size_of::<T>());
        // SAFETY: inside of the heap; every bit pattern of these types is a value.
        place.map_or_else(T::default, |place| unsafe {
            place.cast::<T>().read_unaligned()
        })
    }
}

impl Drop for Arena {
    fn drop(&mut self) {
        // SAFETY: it was mapped with this length, and nothing borrows from it.
        unsafe { libc::munmap(self.base.cast(), BYTES) };
    }
}

/// When a process was started, which tells it from an earlier process with the same number.
pub fn started_at(process: u32) -> u64 {
    let text = std::fs::read_to_string(format!("/proc/{process}/stat")).unwrap_or_default();
    // The name may have spaces; it ends with the last bracket.
    let after = text.rsplit_once(") ").map_or("", |(_, after)| after);
    // A process that has ended and was not waited for has no memory any more.
    let start = after
        .split(' ')
        .nth(19)
        .filter(|_| !after.starts_with(['Z', 'X']));
    start.and_then(|number| number.parse().ok()).unwrap_or(0)
}
