//! Messages of the shared-memory transport, through its public interface: from one thread to
//! another on a core of its own and back, in a stream, and from a rank to itself, where no cache
//! line moves.
#![allow(unsafe_code, missing_docs)]

use criterion::{BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};
use linerate::Rank;
use linerate::transport::{
    Address, Event, Options, PostError, Region, Time, Transport, View, open,
};
use linerate::unstable::bootstrap::nonce;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc;
use std::time::{Duration, Instant};

/// Inline, a whole line, and a page.
const SIZES: [usize; 3] = [8, 64, 4096];
/// Messages under way at once in a stream.
const STREAM: usize = 32;
const TAG: u64 = 7;

/// One end: a transport, and memory to send from and to receive into.
struct End {
    transport: Box<dyn Transport>,
    source: View,
    destination: View,
    events: Vec<Event>,
    sent: u64,
    received: u64,
    is_connected: bool,
}

const SEND: u64 = 1;
const RECEIVE: u64 = 2;

impl End {
    fn new(rank: Rank, ranks: u32) -> End {
        let mut transport = open(
            "shm",
            rank,
            ranks,
            nonce().expect("a nonce"),
            &Options::default(),
        )
        .expect("shm");
        let bytes = SIZES[SIZES.len() - 1];
        let region = Arc::new(Region::shared("ring-bench", 2 * bytes).expect("memory"));
        let (source, destination) = (
            region.view().part(0, bytes),
            region.view().part(bytes, bytes),
        );
        // The transport keeps the region alive.
        transport.register(region).expect("a registration");
        End {
            transport,
            source,
            destination,
            events: Vec::with_capacity(4 * STREAM),
            sent: 0,
            received: 0,
            is_connected: false,
        }
    }

    fn connect(&mut self, peer: Rank, address: &Address) {
        self.transport.connect(peer, address).expect("a connection");
        while !self.is_connected {
            self.transport.poll_slow(Time(0), &mut self.events);
            self.poll();
        }
    }

    fn poll(&mut self) {
        self.transport.poll(Time(0), &mut self.events);
        for event in self.events.drain(..) {
            match event {
                Event::Completion(done) if done.token == SEND => self.sent += 1,
                Event::Completion(_) => self.received += 1,
                Event::Connected(_) => self.is_connected = true,
                Event::PeerFailed(_, text) => panic!("the peer failed: {text}"),
                Event::PeerLeft(..) => panic!("the peer has left"),
                Event::Unmatched(..) => panic!("no message has such a tag"),
            }
        }
    }

    fn send(&mut self, peer: Rank, bytes: usize) {
        let source = self.source.part(0, bytes);
        // SAFETY: the region is kept beside the transport, and nobody makes references to it.
        self.until_accepted(|transport| unsafe { transport.post_send(peer, TAG, 0, source, SEND) });
    }

    fn receive(&mut self, peer: Rank, bytes: usize) {
        let destination = self.destination.part(0, bytes);
        // SAFETY: as in `send`.
        self.until_accepted(|transport| unsafe {
            transport.post_recv(peer, TAG, destination, RECEIVE)
        });
    }

    fn until_accepted(
        &mut self,
        mut post: impl FnMut(&mut dyn Transport) -> Result<(), PostError>,
    ) {
        loop {
            match post(&mut *self.transport) {
                Ok(()) => return,
                Err(PostError::WouldBlock) => self.poll(),
                Err(error) => panic!("{error:?}"),
            }
        }
    }
}

/// What the other thread is asked to do.
#[derive(Clone, Copy)]
enum Work {
    /// Sends every message back.
    Echo(u64, usize),
    /// Takes messages, and answers the last one.
    Take(u64, usize),
}

fn work(end: &mut End, work: Work) {
    let (count, bytes, is_echo) = match work {
        Work::Echo(count, bytes) => (count, bytes, true),
        Work::Take(count, bytes) => (count, bytes, false),
    };
    let mut posted = 0;
    let (first, first_sent) = (end.received, end.sent);
    let depth = if is_echo { 1 } else { STREAM as u64 };
    while end.received - first < count {
        while posted < count && posted - (end.received - first) < depth {
            end.receive(0, bytes);
            posted += 1;
        }
        let before = end.received;
        end.poll();
        if is_echo && end.received > before {
            end.send(0, bytes);
        }
    }
    if !is_echo {
        end.send(0, 8);
    }
    let answers = if is_echo { count } else { 1 };
    while end.sent - first_sent < answers {
        end.poll();
    }
}

fn pin(core: usize) {
    let mut set = rustix::thread::CpuSet::new();
    set.set(core);
    // Where there is one core, or another one, times are longer and still times.
    let _ = rustix::thread::sched_setaffinity(None, &set);
}

fn between_threads(criterion: &mut Criterion) {
    let (to_other, own_work) = mpsc::channel::<Work>();
    let (address_to, address_from) = mpsc::channel();
    let mut end = End::new(0, 2);
    let own_address = end.transport.local_address();
    let is_over = Arc::new(AtomicBool::new(false));
    let other_is_over = is_over.clone();
    let other = std::thread::spawn(move || {
        pin(1);
        let mut end = End::new(1, 2);
        address_to
            .send(end.transport.local_address())
            .expect("the other thread");
        end.connect(0, &own_address);
        while !other_is_over.load(Ordering::Acquire) {
            // Asleep, it would have to be woken inside the first measured message.
            match own_work.try_recv() {
                Ok(next) => work(&mut end, next),
                Err(_) => std::hint::spin_loop(),
            }
        }
    });
    pin(0);
    end.connect(1, &address_from.recv().expect("the other thread"));
    let mut group = criterion.benchmark_group("shm between threads");
    for bytes in SIZES {
        group.throughput(Throughput::Elements(1));
        group.bench_function(BenchmarkId::new("round trip", bytes), |bencher| {
            bencher.iter_custom(|count| {
                to_other
                    .send(Work::Echo(count, bytes))
                    .expect("the other thread");
                let start = Instant::now();
                for _ in 0..count {
                    let before = end.received;
                    end.receive(1, bytes);
                    end.send(1, bytes);
                    while end.received == before {
                        end.poll();
                    }
                }
                start.elapsed()
            });
        });
        group.bench_function(BenchmarkId::new("stream", bytes), |bencher| {
            bencher.iter_custom(|count| {
                to_other
                    .send(Work::Take(count, bytes))
                    .expect("the other thread");
                let (before, first) = (end.received, end.sent);
                end.receive(1, 8);
                let start = Instant::now();
                for posted in 0..count {
                    while posted - (end.sent - first) >= STREAM as u64 {
                        end.poll();
                    }
                    end.send(1, bytes);
                }
                while end.received == before {
                    end.poll();
                }
                start.elapsed()
            });
        });
    }
    group.finish();
    is_over.store(true, Ordering::Release);
    other.join().expect("the other thread");
}

fn to_itself(criterion: &mut Criterion) {
    let mut end = End::new(0, 1);
    let address = end.transport.local_address();
    end.connect(0, &address);
    let mut group = criterion.benchmark_group("shm to itself");
    for bytes in SIZES {
        group.bench_function(BenchmarkId::new("message", bytes), |bencher| {
            bencher.iter(|| {
                let (received, sent) = (end.received, end.sent);
                end.receive(0, bytes);
                end.send(0, bytes);
                while end.received == received || end.sent == sent {
                    end.poll();
                }
            });
        });
    }
    group.finish();
}

criterion_group! {
    name = ring;
    config = Criterion::default()
        .sample_size(20)
        .warm_up_time(Duration::from_millis(200))
        .measurement_time(Duration::from_millis(500));
    targets = between_threads, to_itself
}
criterion_main!(ring);
