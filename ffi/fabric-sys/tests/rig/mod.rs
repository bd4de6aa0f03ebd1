//! Two endpoints of this process that name each other, with memory to move.
// Not every program of tests uses all of it.
#![allow(dead_code)]

use linerate_fabric_sys::raw::*;
use linerate_fabric_sys::*;
use std::cell::RefCell;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::{Duration, Instant};

/// So that a hang becomes a failure, on a busy machine too.
const PATIENCE: Duration = Duration::from_secs(60);
pub const BYTES: usize = 1 << 21;
pub const CONTEXTS: u32 = 64;
/// Receives that each end posts where peers' writes take them.
pub const RECEIVES: u64 = 16;
pub const CAPS: u64 = FI_MSG | FI_RMA | FI_WRITE | FI_READ | FI_REMOTE_WRITE | FI_REMOTE_READ;
pub const MODE: u64 = FI_CONTEXT | FI_CONTEXT2 | FI_RX_CQ_DATA;
pub const MR_MODE: i32 =
    FI_MR_LOCAL | FI_MR_VIRT_ADDR | FI_MR_ALLOCATED | FI_MR_PROV_KEY | FI_MR_ENDPOINT;
pub const ALL_ACCESS: u64 = FI_READ | FI_WRITE | FI_REMOTE_READ | FI_REMOTE_WRITE;

/// Bytes that only atomics touch: what the contract of [`Memory`] asks for.
pub struct Bytes(Vec<AtomicU64>);

impl Bytes {
    pub fn new(bytes: usize) -> Arc<Bytes> {
        Arc::new(Bytes(
            (0..bytes.div_ceil(8)).map(|_| AtomicU64::new(0)).collect(),
        ))
    }

    fn at(&self, index: usize) -> &AtomicU8 {
        assert!(index < self.0.len() * 8);
        // SAFETY: inside, and all access to these bytes is atomic.
        unsafe { AtomicU8::from_ptr(self.address().add(index)) }
    }

    /// Bytes that depend on their place and on `seed`.
    pub fn fill(&self, range: std::ops::Range<usize>, seed: u8) {
        range.for_each(|index| {
            self.at(index)
                .store(pattern(index, seed), Ordering::Relaxed)
        });
    }

    pub fn copy(&self, range: std::ops::Range<usize>) -> Vec<u8> {
        range
            .map(|index| self.at(index).load(Ordering::Relaxed))
            .collect()
    }
}

/// What [`Bytes::fill`] puts at an index.
pub fn pattern(index: usize, seed: u8) -> u8 {
    (index % 251) as u8 ^ seed
}

// SAFETY: the vector never changes its place or length, and is only touched through atomics.
unsafe impl Memory for Bytes {
    fn address(&self) -> *mut u8 {
        self.0.as_ptr().cast_mut().cast()
    }

    fn len_bytes(&self) -> usize {
        self.0.len() * 8
    }
}

/// One library for all tests; `None`, with a line that says why, where there is none.
pub fn library() -> Option<&'static Arc<Library>> {
    static OPENED: OnceLock<Result<Arc<Library>>> = OnceLock::new();
    match OPENED.get_or_init(|| Library::open(16)) {
        Ok(library) => Some(library),
        Err(why) => {
            eprintln!("skipped: {why}");
            None
        }
    }
}

/// What is asked of a provider.
pub fn hints(provider: &str) -> Hints<'_> {
    let has_internet = ["tcp", "udp", "net"]
        .iter()
        .any(|name| provider.starts_with(name));
    Hints {
        provider: Some(provider),
        source: has_internet.then_some("127.0.0.1"),
        caps: CAPS,
        mode: MODE,
        // With that mode shm checks no keys, and is refused.
        mr_mode: if provider == "shm" {
            MR_MODE & !FI_MR_VIRT_ADDR
        } else {
            MR_MODE
        },
        ..Hints::default()
    }
}

/// What a provider offers; `None`, with a line that says why, where it is not here.
pub fn offer(library: &Arc<Library>, provider: &str) -> Option<Info> {
    match Info::query(library, &hints(provider)) {
        Ok(offers) => {
            let is_it = |info: &Info| info.provider_name() == provider;
            let found = offers.into_iter().find(is_it);
            if found.is_none() {
                eprintln!("skipped: {provider} is offered under another name only");
            }
            found
        }
        Err(why) => {
            eprintln!("skipped: {why}");
            None
        }
    }
}

/// Providers that every machine has. `net` is what `tcp` without a layer was called in 1.17.
pub const PROVIDERS: [&str; 5] = ["tcp;ofi_rxm", "shm", "udp;ofi_rxd", "tcp", "net"];

/// Lets one test run at a time: counts of objects belong to the process.
pub fn alone() -> MutexGuard<'static, ()> {
    static ONE: Mutex<()> = Mutex::new(());
    ONE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Runs a test for each provider that is here, and looks at what it leaves.
pub fn for_each(test: impl Fn(&Info)) {
    let _alone = alone();
    let Some(library) = library() else { return };
    for provider in PROVIDERS {
        let Some(info) = offer(library, provider) else {
            continue;
        };
        let started = Instant::now();
        test(&info);
        println!("{info:?}: {:?}", started.elapsed());
        let live = Kind::ALL.map(|kind| library.live(kind));
        assert_eq!(live, [0; 6], "{provider} left some of {:?}", Kind::ALL);
        let failures = library.take_failures();
        assert!(failures.is_empty(), "{provider}: {failures:?}");
    }
}

pub struct End {
    pub endpoint: Arc<Endpoint>,
    pub queue: Arc<CompletionQueue>,
    pub memory: Arc<Bytes>,
    pub region: Arc<Mr>,
    arrived: RefCell<Vec<Completion>>,
    failed: RefCell<Vec<Failure>>,
}

impl End {
    pub fn new(domain: &Arc<Domain>, wait: Wait) -> End {
        let queue = CompletionQueue::open(domain, 256, CONTEXTS, wait).unwrap();
        let addresses = AddressVector::open(domain, 4).unwrap();
        let options = EndpointOptions {
            transmit_queue: &queue,
            receive_queue: &queue,
            addresses: &addresses,
            is_cuda_permitted: Some(false),
        };
        let endpoint = Endpoint::open(domain, &options).unwrap();
        let memory = Bytes::new(BYTES);
        let owner = Arc::clone(&memory) as Arc<dyn Memory>;
        let region = Mr::register(domain, owner, ALL_ACCESS, Some(&endpoint)).unwrap();
        End {
            endpoint,
            queue,
            memory,
            region,
            arrived: RefCell::default(),
            failed: RefCell::default(),
        }
    }

    pub fn poll(&self) {
        let mut room = [Completion::default(); 16];
        match self.queue.poll(&mut room) {
            Ok(count) => self.arrived.borrow_mut().extend(&room[..count]),
            Err(PollError::Operation(failure)) => self.failed.borrow_mut().push(*failure),
            Err(other) => panic!("{other}"),
        }
    }
}

/// Of one end alone, whose peer is in another process.
impl End {
    /// Posts by `post` until the endpoint takes it, and waits for the operation's completion.
    pub fn run(&self, id: u64, mut post: impl FnMut() -> Result<Posted>) {
        let mut is_started = false;
        self.until(|| {
            is_started = is_started || post().unwrap() == Posted::Started;
            let mut arrived = self.arrived.borrow_mut();
            arrived
                .iter()
                .position(|done| done.id() == Some(id))
                .map(|at| arrived.remove(at))
        });
    }

    /// The number of the next write that arrives.
    pub fn wait_data(&self) -> u32 {
        self.until(|| self.arrived.borrow().iter().find_map(Completion::data))
    }

    fn until<T>(&self, mut found: impl FnMut() -> Option<T>) -> T {
        let started = Instant::now();
        loop {
            if let Some(found) = found() {
                return found;
            }
            self.poll();
            let failed = self.failed.borrow();
            assert!(failed.is_empty(), "{failed:?}");
            assert!(started.elapsed() < PATIENCE, "{:?}", self.arrived);
        }
    }

    /// What `work` gives, which may take a while.
    pub fn while_polling<T>(&self, work: impl FnOnce() -> T) -> T {
        let is_over = AtomicBool::new(false);
        let queue = &self.queue;
        std::thread::scope(|scope| {
            scope.spawn(|| {
                while !is_over.load(Ordering::Relaxed) {
                    let count = queue.poll(&mut [Completion::default(); 4]).unwrap();
                    assert_eq!(count, 0, "nothing is under way");
                }
            });
            // Also when it panics, because the scope waits for the thread.
            let _over = SetOnDrop(&is_over);
            work()
        })
    }
}

struct SetOnDrop<'a>(&'a AtomicBool);

impl Drop for SetOnDrop<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

pub struct Rig {
    pub ends: [End; 2],
    /// Each end's peer: the other end.
    pub peers: [Arc<Peer>; 2],
    pub domain: Arc<Domain>,
}

impl Rig {
    pub fn new(info: &Info) -> Rig {
        Rig::with(info, Wait::Poll)
    }

    pub fn with(info: &Info, wait: Wait) -> Rig {
        let fabric = Fabric::open(info).unwrap();
        let domain = Domain::open(&fabric, info).unwrap();
        let ends = [(); 2].map(|()| End::new(&domain, wait));
        let names = [0, 1].map(|end: usize| ends[end].endpoint.name().unwrap());
        let peers = [0, 1].map(|end| ends[end].endpoint.insert(&names[1 - end]).unwrap());
        let rig = Rig {
            ends,
            peers,
            domain,
        };
        if info.mode() & FI_RX_CQ_DATA != 0 {
            for end in &rig.ends {
                for id in 0..RECEIVES {
                    assert_eq!(
                        end.endpoint.post_receive(1000 + id).unwrap(),
                        Posted::Started
                    );
                }
            }
        }
        rig
    }

    /// Polls both ends until `found` finds something.
    fn until<T>(&self, what: &str, mut found: impl FnMut() -> Option<T>) -> T {
        let started = Instant::now();
        loop {
            if let Some(found) = found() {
                return found;
            }
            self.ends.iter().for_each(End::poll);
            let late = started.elapsed() > PATIENCE;
            let seen = || {
                self.ends
                    .each_ref()
                    .map(|end| (end.arrived.clone(), end.failed.clone()))
            };
            assert!(!late, "{what} never came; these did: {:?}", seen());
        }
    }

    /// Posts by `post`, polling while the endpoint is busy.
    pub fn post(&self, mut post: impl FnMut() -> Result<Posted>) {
        self.until("room", || {
            (post().unwrap() == Posted::Started).then_some(())
        });
    }

    /// The completion of an end that `is_it` knows, or the first failure there.
    fn wait_for(
        &self,
        end: usize,
        what: &str,
        is_it: impl Fn(&Completion) -> bool,
    ) -> std::result::Result<Completion, Failure> {
        let end = &self.ends[end];
        self.until(what, || {
            if let Some(failure) = end.failed.borrow_mut().pop() {
                return Some(Err(failure));
            }
            let mut arrived = end.arrived.borrow_mut();
            let index = arrived.iter().position(&is_it)?;
            Some(Ok(arrived.remove(index)))
        })
    }

    /// The end of the operation with this number.
    pub fn outcome(&self, end: usize, id: u64) -> std::result::Result<Completion, Failure> {
        self.wait_for(end, &format!("operation {id}"), |done| {
            done.id() == Some(id)
        })
    }

    pub fn wait(&self, end: usize, id: u64) -> Completion {
        self.outcome(end, id).unwrap()
    }

    /// The next write with a number that arrives at an end.
    pub fn wait_data(&self, end: usize) -> Completion {
        self.wait_for(end, "a number", |done| done.data().is_some())
            .unwrap()
    }

    /// A write from end 0 to end 1.
    pub fn write(
        &self,
        id: u64,
        (from, to, bytes): (usize, usize, usize),
        data: Option<u32>,
    ) -> Write<'_> {
        Write {
            id,
            source: self.ends[0].region.segment(from, bytes).unwrap(),
            peer: &self.peers[0],
            place: self.ends[1].region.place(to).unwrap(),
            data,
            is_more: false,
        }
    }

    /// A read of end 0 from end 1.
    pub fn read(&self, id: u64, (to, from, bytes): (usize, usize, usize)) -> Read<'_> {
        Read {
            id,
            destination: self.ends[0].region.segment(to, bytes).unwrap(),
            peer: &self.peers[0],
            place: self.ends[1].region.place(from).unwrap(),
            is_more: false,
        }
    }
}
