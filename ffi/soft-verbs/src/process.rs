//! [`Process`]: what all open devices of this process share.

use crate::arena::{Arena, PAIR_BITS, PAIRS, Piece, PortState, QUEUES, REGIONS, SHARED};
use crate::channel::Queue;
use crate::faults::{Fault, Faults};
use crate::network::{Network, now};
use crate::pair::{Core, Pair};
use crate::receives::Shared;
use crate::settings::Settings;
use crate::shared;
use crate::socket::{self, Socket};
use linerate_verbs_sys::raw::{
    ibv_access_flags as flags, ibv_device, ibv_event_type, ibv_qp_state,
};
use std::collections::BTreeMap;
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

/// What all open devices of this process share.
pub struct Process {
    pub settings: Settings,
    pub network: Network,
    /// The queue pairs by number.
    pub pairs: Mutex<BTreeMap<u32, Arc<Core>>>,
    /// The queue pairs as C knows them.
    pub addresses: Mutex<BTreeMap<u32, Address<Pair>>>,
    /// The devices. They live as long as the process, because open ones point to them.
    pub devices: Mutex<Vec<Address<ibv_device>>>,
    pub queues: Mutex<BTreeMap<u32, Address<Queue>>>,
    pub shared: Mutex<BTreeMap<u32, Address<Shared>>>,
    /// For each open device, its number and where it hears of events.
    pub listeners: Mutex<Vec<(u32, u64)>>,
    pub faults: Faults,
    regions: Mutex<Free>,
    free_pairs: Mutex<Free>,
    free_queues: Mutex<Free>,
    free_shared: Mutex<Free>,
    failures_seen: AtomicU64,
    domains: AtomicU32,
    /// The memfds of registered memory, by key. Peers open them by the numbers of these.
    files: Mutex<BTreeMap<u32, OwnedFd>>,
    /// Bytes that are registered, and then how many may be.
    locked: AtomicU64,
    locked_max: u64,
}

/// The address of an object that C has. The object lives until it is taken out of the list that has
/// this.
pub struct Address<T>(pub *mut T);

// SAFETY: it is only an address; code that follows it holds the list's lock.
unsafe impl<T> Send for Address<T> {}

impl<T> Clone for Address<T> {
    fn clone(&self) -> Self {
        *self
    }
}
impl<T> Copy for Address<T> {}

/// Gives out numbers that are free. Each is used again as late as possible.
struct Free {
    next: u32,
    end: u32,
    used: std::collections::BTreeSet<u32>,
}

impl Free {
    fn new(first: u32, end: usize) -> Mutex<Free> {
        Mutex::new(Free {
            next: first,
            end: end as u32,
            used: Default::default(),
        })
    }

    fn take(&mut self) -> Option<u32> {
        for _ in 0..self.end {
            let number = self.next;
            self.next = (self.next + 1) % self.end;
            // Numbers 0 and 1 of queue pairs are those of the network's management.
            if number > 1 && self.used.insert(number) {
                return Some(number);
            }
        }
        None
    }
}

impl Process {
    pub fn new(settings: Settings) -> io::Result<Process> {
        // SAFETY: lets processes of this user read and write this one's memory. Where the kernel
        // does not restrict that, it fails and changes nothing.
        unsafe { libc::prctl(libc::PR_SET_PTRACER, libc::PR_SET_PTRACER_ANY, 0, 0, 0) };
        let has_memlock = settings.has_memlock;
        Ok(Process {
            network: Network::join(&settings)?,
            faults: Faults::new(settings.plan.clone()),
            settings,
            pairs: Mutex::default(),
            addresses: Mutex::default(),
            devices: Mutex::default(),
            queues: Mutex::default(),
            shared: Mutex::default(),
            listeners: Mutex::default(),
            regions: Free::new(2, REGIONS),
            free_pairs: Free::new(2, PAIRS),
            free_queues: Free::new(2, QUEUES),
            free_shared: Free::new(2, SHARED),
            failures_seen: AtomicU64::new(0),
            domains: AtomicU32::new(1),
            files: Mutex::default(),
            locked: AtomicU64::new(0),
            locked_max: if has_memlock { locked_max() } else { u64::MAX },
        })
    }

    pub fn arena(&self) -> &Arena {
        &self.network.own.arena
    }

    /// The state of a device's port.
    pub fn port(&self, device: u32) -> &PortState {
        self.network.own.port(device)
    }

    /// Counts a work request that is given to a device, and lets the planned faults happen. Gives
    /// the fault of the request itself.
    pub fn strike(&self, device: u32) -> Option<Fault> {
        let mut of_request = None;
        for fault in self.faults.count() {
            let port = self.port(device);
            let event = match fault {
                Fault::Break(_) | Fault::Lose => {
                    of_request = Some(fault);
                    continue;
                }
                Fault::Down(time) => {
                    port.down_until.store(now() + time, Ordering::Relaxed);
                    ibv_event_type::IBV_EVENT_PORT_ERR
                }
                Fault::Move => {
                    port.moves.fetch_add(1, Ordering::Relaxed);
                    ibv_event_type::IBV_EVENT_GID_CHANGE
                }
                Fault::Vanish => {
                    port.gone_at.store(now(), Ordering::Relaxed);
                    ibv_event_type::IBV_EVENT_DEVICE_FATAL
                }
            };
            let listeners = self.listeners.lock().unwrap();
            let of_device = listeners.iter().filter(|listener| listener.0 == device);
            of_device.for_each(|&(_, events)| tell(events, event, 0));
        }
        of_request
    }

    pub fn new_domain(&self) -> u32 {
        self.domains.fetch_add(1, Ordering::Relaxed)
    }

    /// A number for a queue pair; its lower bits are its place.
    pub fn new_pair(&self) -> Option<u32> {
        let place = self.free_pairs.lock().unwrap().take()?;
        Some(self.network.slot << PAIR_BITS | place)
    }

    pub fn end_pair(&self, number: u32) {
        self.free_pairs
            .lock()
            .unwrap()
            .used
            .remove(&(number % PAIRS as u32));
    }

    pub fn new_queue(&self) -> Option<u32> {
        self.free_queues.lock().unwrap().take()
    }

    pub fn end_queue(&self, index: u32) {
        self.free_queues.lock().unwrap().used.remove(&index);
    }

    pub fn new_shared(&self) -> Option<u32> {
        self.free_shared.lock().unwrap().take()
    }

    pub fn end_shared(&self, index: u32) {
        self.free_shared.lock().unwrap().used.remove(&index);
    }

    /// Registers memory; gives its key.
    pub fn register(&self, domain: u32, address: u64, bytes: u64, access: u32) -> Option<u32> {
        if self
            .locked
            .fetch_add(bytes, Ordering::Relaxed)
            .saturating_add(bytes)
            > self.locked_max
        {
            self.locked.fetch_sub(bytes, Ordering::Relaxed);
            return None;
        }
        let key = self.take_key(domain, address, bytes, access);
        if key.is_none() {
            self.locked.fetch_sub(bytes, Ordering::Relaxed);
        }
        key
    }

    fn take_key(&self, domain: u32, address: u64, bytes: u64, access: u32) -> Option<u32> {
        let most = self.settings.profile.regions as usize;
        let mut free = self.regions.lock().unwrap();
        if free.used.len() >= most {
            return None;
        }
        let place = free.take()?;
        let region = self.arena().region(place);
        // The upper half changes with every use of the place, so that an old key is refused.
        let turn = region.turn.load(Ordering::Relaxed) % 0x7fff + 1;
        region.turn.store(turn, Ordering::Relaxed);
        region.domain.store(domain, Ordering::Relaxed);
        region.access.store(access, Ordering::Relaxed);
        region.address.store(address, Ordering::Relaxed);
        region.bytes.store(bytes, Ordering::Relaxed);
        let key = turn << 16 | place;
        let has_maps = self.settings.has_maps;
        let file = has_maps.then(|| shared::file_of(address, bytes)).flatten();
        let number = file.as_ref().map_or(0, |(fd, _)| fd.as_raw_fd() as u32 + 1);
        region.file.store(number, Ordering::Relaxed);
        if let Some((fd, at)) = file {
            region.file_at.store(at, Ordering::Relaxed);
            self.files.lock().unwrap().insert(key, fd);
        }
        region.key.store(key, Ordering::Release);
        Some(key)
    }

    /// Ends the registration of a key. When this has returned, nothing reads or writes the memory.
    pub fn deregister(&self, key: u32) {
        let region = self.arena().region(key);
        region.key.store(0, Ordering::SeqCst);
        (self.locked).fetch_sub(region.bytes.load(Ordering::Relaxed), Ordering::Relaxed);
        // A device that still moves bytes there holds one of these locks.
        for pair in self.pairs.lock().unwrap().values() {
            pair.wait_until_idle();
        }
        self.files.lock().unwrap().remove(&key);
        self.regions
            .lock()
            .unwrap()
            .used
            .remove(&(key % REGIONS as u32));
    }

    /// Looks whether peers have brought queue pairs of this process down.
    pub fn notice_failures(&self) {
        let count = self.arena().header().failures.load(Ordering::Acquire);
        if self.failures_seen.swap(count, Ordering::Relaxed) == count {
            return;
        }
        let pairs: Vec<_> = self.pairs.lock().unwrap().values().cloned().collect();
        for pair in pairs {
            let entry = self.arena().pair(pair.number);
            if entry.state.load(Ordering::Acquire) == ibv_qp_state::IBV_QPS_ERR.0 {
                let cause = entry.cause.swap(0, Ordering::Relaxed);
                pair.fail_as_told(ibv_event_type(cause));
            }
        }
    }
}

/// How many bytes this process may lock (`ulimit -l`); any number with CAP_IPC_LOCK.
fn locked_max() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let rights = status.lines().find_map(|line| line.strip_prefix("CapEff:"));
    let rights = rights.and_then(|text| u64::from_str_radix(text.trim(), 16).ok());
    if rights.unwrap_or(0) & 1 << CAP_IPC_LOCK != 0 {
        return u64::MAX;
    }
    let mut limit = libc::rlimit {
        rlim_cur: 0,
        rlim_max: 0,
    };
    // SAFETY: the structure is writable.
    unsafe { libc::getrlimit(libc::RLIMIT_MEMLOCK, &mut limit) };
    limit.rlim_cur
}

/// The number of the right to lock any number of bytes (capabilities(7)).
const CAP_IPC_LOCK: u32 = 14;

/// The bytes of a region that a post names, if it has these rights to them.
pub fn find(arena: &Arena, domain: u32, piece: Piece, rights: flags) -> Option<libc::iovec> {
    let region = arena.region(piece.key);
    if piece.key == 0 || region.key.load(Ordering::Acquire) != piece.key {
        return None;
    }
    let (start, bytes) = (
        region.address.load(Ordering::Relaxed),
        region.bytes.load(Ordering::Relaxed),
    );
    let offset = piece.address.checked_sub(start)?;
    let is_inside = offset.checked_add(u64::from(piece.bytes))? <= bytes;
    let has_rights = region.access.load(Ordering::Relaxed) & rights.0 == rights.0;
    let is_of_domain = region.domain.load(Ordering::Relaxed) == domain;
    (is_inside && has_rights && is_of_domain).then_some(libc::iovec {
        iov_base: piece.address as *mut libc::c_void,
        iov_len: piece.bytes as usize,
    })
}

/// Tells a process of an event of one of its objects, by its number.
pub fn tell(events: u64, kind: ibv_event_type, number: u32) {
    let text = u64::from(kind.0) << 32 | u64::from(number);
    socket::send(events, &text.to_le_bytes());
}

/// Takes the next event of a device that was told, if there is one.
pub fn take(events: &Socket) -> Option<(ibv_event_type, u32)> {
    let mut text = [0; 8];
    events.receive(&mut text).then(|| {
        let text = u64::from_le_bytes(text);
        (ibv_event_type((text >> 32) as u32), text as u32)
    })
}
