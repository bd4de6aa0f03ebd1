//! Two queue pairs of this process, connected to each other, with memory to move.

use linerate_verbs_sys::raw::*;
use linerate_verbs_sys::*;
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// Set where a device must be there: its absence then fails.
const REQUIRED: &str = "LINERATE_TEST_RDMA";
/// So that a hang becomes a failure, under emulation too.
const PATIENCE: Duration = Duration::from_secs(60);
pub const BYTES: usize = 1 << 16;
const PORT: u8 = 1;
pub const ALL_ACCESS: ibv_access_flags = ibv_access_flags(
    ibv_access_flags::IBV_ACCESS_LOCAL_WRITE.0
        | ibv_access_flags::IBV_ACCESS_REMOTE_WRITE.0
        | ibv_access_flags::IBV_ACCESS_REMOTE_READ.0
        | ibv_access_flags::IBV_ACCESS_REMOTE_ATOMIC.0,
);

/// Bytes that only atomics touch: what the contract of [`Memory`] asks for.
pub struct Bytes(Vec<AtomicU64>);

impl Bytes {
    pub fn new(bytes: usize) -> Arc<Bytes> {
        Arc::new(Bytes((0..bytes / 8).map(|_| AtomicU64::new(0)).collect()))
    }

    fn at(&self, index: usize) -> &AtomicU8 {
        assert!(index < self.0.len() * 8);
        // SAFETY: inside, and all access to these bytes is atomic.
        unsafe { AtomicU8::from_ptr(self.address().add(index)) }
    }

    pub fn fill(&self, range: std::ops::Range<usize>, byte: u8) {
        range.for_each(|index| self.at(index).store(byte, Ordering::Relaxed));
    }

    pub fn copy(&self, range: std::ops::Range<usize>) -> Vec<u8> {
        range
            .map(|index| self.at(index).load(Ordering::Relaxed))
            .collect()
    }

    pub fn word(&self, index: usize) -> &AtomicU64 {
        &self.0[index]
    }
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

/// The first device with an active port; `None`, with a line that says why, where there is none.
pub fn device() -> Option<Arc<Context>> {
    let found = Library::open().and_then(|library| {
        library.fork_init()?;
        let devices = Devices::list(&library)?;
        let reason = devices.reason().unwrap_or("no device has an active port 1");
        let opened = devices.iter().map(|device| device.open());
        let is_active = |context: &Arc<Context>| {
            Ok(context.port(PORT)?.state == ibv_port_state::IBV_PORT_ACTIVE)
        };
        for context in opened {
            let context = context?;
            if is_active(&context)? {
                return Ok(context);
            }
        }
        Err(Error::Unavailable(reason.to_owned()))
    });
    match found {
        Ok(context) => Some(context),
        Err(why) if std::env::var_os(REQUIRED).is_some() => panic!("{why}"),
        Err(why) => {
            eprintln!("skipped: {why}");
            None
        }
    }
}

/// The way from the device to itself.
pub fn route(context: &Context) -> Route {
    let port = context.port(PORT).unwrap();
    let gids = context.gids(PORT).unwrap();
    let is_mapped = |gid: &&Gid| gid.bytes[..12] == [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 255, 255];
    let gid = gids.iter().find(is_mapped).or(gids.first());
    let gid = gid.map(|gid| (gid.bytes, u8::try_from(gid.index).unwrap()));
    Route {
        port: PORT,
        gid: gid.filter(|_| port.link_layer == LINK_LAYER_ETHERNET),
        lid: port.lid,
        ..Route::default()
    }
}

pub struct Rig {
    pub pair: [QueuePair; 2],
    pub queue: [Arc<CompletionQueue>; 2],
    pub memory: [Arc<Bytes>; 2],
    pub region: [Mr; 2],
    pub channel: Arc<CompletionChannel>,
    pub pd: Arc<Pd>,
}

impl Rig {
    pub fn new(context: &Arc<Context>) -> Rig {
        Rig::with(context, None)
    }

    /// Both ends take their receives from `shared`, if there is one; it has to be in `pd` then.
    pub fn with(
        context: &Arc<Context>,
        shared: Option<(&Arc<Pd>, &Arc<SharedReceiveQueue>)>,
    ) -> Rig {
        let pd = shared.map_or_else(|| Pd::allocate(context).unwrap(), |(pd, _)| Arc::clone(pd));
        let channel = CompletionChannel::create(context).unwrap();
        let queue = [100, 200]
            .map(|token| CompletionQueue::create(context, 256, Some(&channel), 0, token).unwrap());
        let memory = [(); 2].map(|()| Bytes::new(BYTES));
        let region = [0, 1].map(|end| register(&pd, &memory[end]));
        let pair = [0, 1].map(|end| {
            let options = QueuePairOptions {
                kind: ibv_qp_type::IBV_QPT_RC,
                send_queue: &queue[end],
                receive_queue: &queue[end],
                shared_receives: shared.map(|(_, shared)| shared),
                capacity: ibv_qp_cap {
                    max_send_wr: 128,
                    max_recv_wr: 64,
                    max_send_sge: 2,
                    max_recv_sge: 2,
                    max_inline_data: 64,
                },
                is_all_signaled: false,
            };
            let pair = QueuePair::create(&pd, &options).unwrap();
            pair.to_init(PORT, ALL_ACCESS).unwrap();
            pair
        });
        connect(&pair[0], &pair[1], context);
        connect(&pair[1], &pair[0], context);
        Rig {
            pair,
            queue,
            memory,
            region,
            channel,
            pd,
        }
    }

    /// The completions of an end's next `count`.
    pub fn wait(&self, end: usize, count: usize) -> Vec<Completion> {
        let started = Instant::now();
        let (mut found, mut room) = (Vec::new(), [Completion::default(); 16]);
        while found.len() < count {
            let some = room.len().min(count - found.len());
            let got = self.queue[end].poll(&mut room[..some]).unwrap();
            found.extend_from_slice(&room[..got]);
            assert!(
                started.elapsed() < PATIENCE,
                "{count} completions wanted, these came: {found:?}"
            );
        }
        found
    }

    /// The next asynchronous event of this kind; devices say other things too.
    pub fn wait_for(&self, kind: ibv_event_type) -> Event {
        let started = Instant::now();
        loop {
            let event = self.pd.context().poll_event().unwrap();
            if let Some(event) = event.filter(|event| event.kind == kind) {
                return event;
            }
            assert!(started.elapsed() < PATIENCE, "no event {kind:?} came");
        }
    }

    /// Posts one request at end 0 and waits for its completion.
    pub fn run(&self, operation: Operation<'_>, local: Local<'_>) -> Completion {
        self.pair[0]
            .post_send(&[request(7, operation, local)])
            .unwrap();
        let [completion] = self.wait(0, 1)[..] else {
            unreachable!()
        };
        assert_eq!(
            (completion.id(), completion.queue_pair()),
            (7, self.pair[0].number())
        );
        completion
    }

    pub fn segment(&self, end: usize, offset: usize, bytes: u32) -> Segment {
        self.region[end].segment(offset, bytes).unwrap()
    }

    pub fn place(&self, end: usize, offset: usize) -> Place {
        self.region[end].place(offset).unwrap()
    }
}

pub fn register(pd: &Arc<Pd>, memory: &Arc<Bytes>) -> Mr {
    let memory = Arc::clone(memory) as Arc<dyn Memory>;
    Mr::register(
        pd,
        memory,
        ALL_ACCESS | ibv_access_flags::IBV_ACCESS_RELAXED_ORDERING,
    )
    .unwrap()
}

fn connect(own: &QueuePair, peer: &QueuePair, context: &Context) {
    own.to_receive(&RemoteEnd {
        queue_pair: peer.number(),
        packet_number: peer.number() & 0xff_ffff,
        mtu: ibv_mtu::IBV_MTU_1024,
        route: route(context),
        reads_max: 1,
        no_receive_timer: 12,
    })
    .unwrap();
    own.to_send(&Sending {
        packet_number: own.number() & 0xff_ffff,
        reads_max: 1,
        timeout: 14,
        retries: 7,
        no_receive_retries: 7,
    })
    .unwrap();
}

pub fn request<'a>(id: u64, operation: Operation<'a>, local: Local<'a>) -> SendRequest<'a> {
    SendRequest {
        id,
        operation,
        local,
        is_signaled: true,
        is_solicited: false,
        is_fenced: false,
    }
}
