//! [`Network`]: the hosts and processes that reach each other, and the wires between them.
//!
//! It is a file that all processes of the network map: the names of hosts, the clocks of their
//! ports, and a slot for each process. A queue pair's number says in which slot its process is.

use crate::arena::{Arena, PAIR_BITS, Piece, PortState, started_at};
use crate::settings::{DEVICES_MAX, Settings};
use crate::shared::Mapped;
use std::collections::BTreeMap;
use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU8, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

/// Numbers of queue pairs have 24 bits.
const SLOTS: usize = 1 << (24 - PAIR_BITS);
const HOSTS: usize = 1024;
const NAME_BYTES: usize = 64;

#[repr(C)]
struct Layout {
    hosts: [Host; HOSTS],
    slots: [Slot; SLOTS],
}

#[repr(C)]
struct Host {
    /// Padded with zeros; all zeros: there is no host.
    name: [AtomicU8; NAME_BYTES],
    ports: [Clocks; DEVICES_MAX],
}

/// Until when the wire of a port is busy, in nanoseconds of the clock.
#[repr(C)]
struct Clocks {
    out: AtomicU64,
    into: AtomicU64,
}

#[repr(C)]
struct Slot {
    /// 0: the slot is free.
    process: AtomicU32,
    host: AtomicU32,
    started: AtomicU64,
}

impl Slot {
    /// Whether a living process has it.
    fn is_alive(&self) -> bool {
        let process = self.process.load(Ordering::Acquire);
        process != 0 && started_at(process) == self.started.load(Ordering::Relaxed)
    }
}

/// A port of a host.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Port {
    pub host: u32,
    pub device: u32,
}

/// The times of a message.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Times {
    /// When it is at the other side.
    pub arrived: u64,
    /// When its acknowledgement, or the answer, is back.
    pub answered: u64,
}

/// Another process, or this one.
#[derive(Debug)]
pub struct Peer {
    pub process: libc::pid_t,
    pub host: u32,
    started: u64,
    pub arena: Arc<Arena>,
    /// Its registrations that were used, by key; `None`: this one cannot be mapped.
    mapped: Mutex<BTreeMap<u32, Option<Mapped>>>,
    /// When it was last seen to live.
    pub seen_at: AtomicU64,
}

impl Peer {
    fn new(process: libc::pid_t, host: u32, started: u64, arena: Arena) -> Arc<Peer> {
        Arc::new(Peer {
            process,
            host,
            started,
            arena: Arc::new(arena),
            mapped: Mutex::default(),
            seen_at: AtomicU64::new(0),
        })
    }

    /// Where a piece of a registration is mapped in this process; `None`: it cannot be mapped. The
    /// caller holds the lock of a queue pair that reaches it.
    pub fn here(&self, piece: Piece) -> Option<*mut u8> {
        let region = self.arena.region(piece.key);
        if region.file.load(Ordering::Relaxed) == 0 {
            return None;
        }
        let mut all = self.mapped.lock().unwrap();
        if !all.contains_key(&piece.key) {
            // What is registered no more would keep its memory.
            all.retain(|&key, _| self.arena.region(key).key.load(Ordering::Relaxed) == key);
            all.insert(piece.key, Mapped::open(self.process, region));
        }
        all[&piece.key].as_ref().map(|one| one.here(piece.address))
    }

    /// The state of one of its ports.
    pub fn port(&self, device: u32) -> &PortState {
        self.arena.header().port(device)
    }
}

/// The network of this process.
pub struct Network {
    base: *mut Layout,
    folder: PathBuf,
    pub own: Arc<Peer>,
    pub slot: u32,
    gigabits: Option<f64>,
    latency_ns: u64,
    mtu_bytes: u64,
    peers: Mutex<Vec<(u32, Arc<Peer>)>>,
}

// SAFETY: the mapping is atomic throughout and stays until the process ends.
unsafe impl Send for Network {}
// SAFETY: as above.
unsafe impl Sync for Network {}

impl Network {
    /// Joins the network of these settings, as a process of their host.
    pub fn join(settings: &Settings) -> io::Result<Network> {
        std::fs::create_dir_all(&settings.folder)?;
        let open = |name| {
            let path = settings.folder.join(name);
            File::options()
                .read(true)
                .write(true)
                .create(true)
                .truncate(false)
                .open(path)
        };
        // The lock ends with this descriptor. A lock of the mapped file would last as long as the
        // mapping.
        let lock = open("lock")?;
        lock.lock()?;
        let file = open("network")?;
        let bytes = size_of::<Layout>();
        file.set_len(bytes as u64)?;
        // SAFETY: a new mapping of a file that is long enough.
        let base = unsafe {
            libc::mmap(
                std::ptr::null_mut(),
                bytes,
                libc::PROT_READ | libc::PROT_WRITE,
                libc::MAP_SHARED,
                file.as_raw_fd(),
                0,
            )
        };
        if base == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        let base = base.cast::<Layout>();
        // SAFETY: mapped for good, long enough, aligned; all of it is atomic.
        let layout = unsafe { &*base };
        let host = layout.host(&settings.host).ok_or_else(|| full("hosts"))?;
        let slot = layout.claim(settings)?.ok_or_else(|| full("processes"))?;
        let arena = Arena::create(&arena_path(&settings.folder, slot))?;
        let (process, started) = (std::process::id(), started_at(std::process::id()));
        let place = &layout.slots[slot as usize];
        place.host.store(host, Ordering::Relaxed);
        place.started.store(started, Ordering::Relaxed);
        place.process.store(process, Ordering::Release);
        drop(lock);
        let own = Peer::new(process as i32, host, started, arena);
        Ok(Network {
            base,
            folder: settings.folder.clone(),
            own,
            slot,
            gigabits: settings.gigabits,
            latency_ns: settings.latency_ns,
            mtu_bytes: u64::from(settings.mtu_bytes),
            peers: Mutex::default(),
        })
    }

    fn layout(&self) -> &Layout {
        // SAFETY: mapped for good.
        unsafe { &*self.base }
    }

    /// Gives the slot back, when the process ends.
    pub fn leave(&self) {
        let _ = std::fs::remove_file(arena_path(&self.folder, self.slot));
        let place = &self.layout().slots[self.slot as usize];
        place.process.store(0, Ordering::Release);
    }

    /// The process that a queue pair's number belongs to, if it is there and on this host.
    pub fn peer(&self, number: u32, host: u32) -> Option<Arc<Peer>> {
        let slot = number >> PAIR_BITS;
        let place = self.layout().slots.get(slot as usize)?;
        let process = place.process.load(Ordering::Acquire);
        let started = place.started.load(Ordering::Relaxed);
        if process == 0 || place.host.load(Ordering::Relaxed) != host {
            return None;
        }
        if slot == self.slot {
            return Some(self.own.clone());
        }
        let mut peers = self.peers.lock().unwrap();
        let is_it = |(known, peer): &&(u32, Arc<Peer>)| {
            *known == slot && peer.process == process as i32 && peer.started == started
        };
        if let Some((_, peer)) = peers.iter().find(is_it) {
            return Some(peer.clone());
        }
        peers.retain(|(known, _)| *known != slot);
        let arena = Arena::open(&arena_path(&self.folder, slot)).ok()?;
        let peer = Peer::new(process as i32, host, started, arena);
        peers.push((slot, peer.clone()));
        Some(peer)
    }

    /// When a message of this length that leaves now is at the other port: both wires carry it at
    /// their rate, after what they were given before.
    pub fn carry(&self, from: Port, to: Port, bytes: u64, now: u64) -> Times {
        let Some(gigabits) = self.gigabits else {
            return match self.latency_ns {
                0 => Times::default(),
                latency => Times {
                    arrived: now + latency,
                    answered: now + 2 * latency,
                },
            };
        };
        let packets = bytes.div_ceil(self.mtu_bytes).max(1);
        let on_wire = bytes + packets * PACKET_BYTES + MESSAGE_BYTES;
        let takes = (on_wire as f64 * 8.0 / gigabits) as u64;
        let layout = self.layout();
        let clocks = |port: Port| {
            &layout.hosts[port.host as usize % HOSTS].ports[port.device as usize % DEVICES_MAX]
        };
        let left = busy(&clocks(from).out, now, takes);
        // The first bit arrives after the latency; a port whose wire is free takes all as it comes.
        let first = left - takes + self.latency_ns;
        let arrived = busy(&clocks(to).into, first, takes);
        Times {
            arrived,
            answered: arrived + self.latency_ns,
        }
    }
}

/// Ethernet with its gap and preamble (38), IP (20), UDP (8), BTH (12), ICRC (4): of every packet.
const PACKET_BYTES: u64 = 82;
/// RETH: of the first packet.
const MESSAGE_BYTES: u64 = 16;

/// Occupies a wire for some time, from `start` or from when it is free; gives the end.
fn busy(clock: &AtomicU64, start: u64, takes: u64) -> u64 {
    let mut known = clock.load(Ordering::Relaxed);
    loop {
        let end = known.max(start) + takes;
        match clock.compare_exchange_weak(known, end, Ordering::Relaxed, Ordering::Relaxed) {
            Ok(_) => return end,
            Err(other) => known = other,
        }
    }
}

impl Layout {
    /// The number of a host. A new host takes the place of one that has no process left. The caller
    /// holds the lock of the file.
    fn host(&self, name: &str) -> Option<u32> {
        let mut wanted = [0; NAME_BYTES];
        let bytes = &name.as_bytes()[..name.len().min(NAME_BYTES)];
        wanted[..bytes.len()].copy_from_slice(bytes);
        let name_of = |host: &Host| {
            let bytes = host.name.each_ref();
            bytes.map(|byte| byte.load(Ordering::Relaxed))
        };
        let known = self.hosts.iter().position(|host| name_of(host) == wanted);
        if let Some(number) = known {
            return Some(number as u32);
        }
        let live = self.slots.iter().filter(|slot| slot.is_alive());
        let used: Vec<u32> = live.map(|slot| slot.host.load(Ordering::Relaxed)).collect();
        let number = (0..HOSTS as u32).find(|number| !used.contains(number))?;
        let host = &self.hosts[number as usize];
        let both = host.name.iter().zip(wanted);
        both.for_each(|(to, byte)| to.store(byte, Ordering::Relaxed));
        Some(number)
    }

    /// A slot that nobody has, or whose process is gone. The caller holds the lock of the file.
    fn claim(&self, settings: &Settings) -> io::Result<Option<u32>> {
        for (number, slot) in (0..).zip(&self.slots) {
            if !slot.is_alive() {
                // The arena of the last process would stay as long as the machine runs.
                let _ = std::fs::remove_file(arena_path(&settings.folder, number));
                return Ok(Some(number));
            }
        }
        Ok(None)
    }
}

fn arena_path(folder: &std::path::Path, slot: u32) -> PathBuf {
    folder.join(format!("process-{slot}"))
}

fn full(what: &str) -> io::Error {
    io::Error::other(format!(
        "the network of soft-verbs has no room for more {what}"
    ))
}

/// Nanoseconds of the clock that all processes share.
pub fn now() -> u64 {
    let mut time = libc::timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    // SAFETY: the structure is writable.
    unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC, &mut time) };
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}
