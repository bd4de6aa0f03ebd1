//! Hundreds of ranks that reach one rank at once, beside a flood of peers that are none.

use super::access::{self, TestPosts};
use super::hostile::initiator;
use super::pair::{HANG, over, place};
use super::settings;
use linerate::transport::{
    Completion, Event, Outcome, PostError, Region, Time, Transport, View, open,
};
use linerate::unstable::wire::HANDSHAKE_BYTES;
use rustix::net::sockopt;
use std::collections::VecDeque;
use std::io::Write;
use std::net::TcpStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

const RANKS: u32 = 300;
const BYTES: usize = 64;
/// Connections of others before the first rank comes: all places of an honest rank, three times.
const BEFORE: usize = 3 * 1024;
/// Of them, open at once.
const OPEN: usize = 1500;

struct Rank {
    transport: Box<dyn Transport>,
    memory: View,
    _region: Arc<Region>,
}

impl Rank {
    fn new(rank: u32) -> Rank {
        let mut transport = open("tcp", rank, RANKS, 0, &over(&settings())).unwrap();
        let bytes = if rank == 0 {
            RANKS as usize * BYTES
        } else {
            BYTES
        };
        let region = Arc::new(Region::private(bytes).unwrap());
        let key = transport.register(region.clone()).unwrap();
        access::fill(region.view(), rank as u8);
        Rank {
            transport,
            memory: region.view().in_region(key, 0),
            _region: region,
        }
    }

    /// The tokens of what has ended since.
    fn step(&mut self, start: Instant) -> Vec<u64> {
        let (now, mut events) = (Time(start.elapsed().as_nanos() as u64), Vec::new());
        self.transport.poll(now, &mut events);
        self.transport.poll_slow(now, &mut events);
        let done = |event| match event {
            Event::Completion(Completion {
                token,
                outcome: Outcome::Done,
                ..
            }) => Some(token),
            Event::Connected(_) => None,
            other => panic!("{other:?}"),
        };
        events.into_iter().filter_map(done).collect()
    }
}

/// Connects to this rank until all have come, and says nothing, half a hello, a hello without the
/// secret, or what no rank says.
fn flood(rank: &linerate::transport::Address, has_ended: &AtomicBool, count: &AtomicUsize) {
    let mut open = VecDeque::new();
    while !has_ended.load(Ordering::Relaxed) {
        let number = count.load(Ordering::Relaxed);
        let (_, hello) = initiator(rank, [9; 16], b"another secret, just as long", 1);
        let to = place(rank).0;
        let Ok(mut stream) = TcpStream::connect_timeout(&to, Duration::from_millis(500)) else {
            continue;
        };
        let said: &[u8] = match number % 4 {
            0 => &[],
            1 => &hello[..HANDSHAKE_BYTES / 2],
            2 => &hello,
            _ => &[b'x'; HANDSHAKE_BYTES],
        };
        // Its end leaves nothing behind in the kernel, where other tests look.
        sockopt::set_socket_linger(&stream, Some(Duration::ZERO)).unwrap();
        // It may have been turned away already.
        let _ = stream.write_all(said);
        open.push_back(stream);
        if open.len() > OPEN {
            open.pop_front();
        }
        count.fetch_add(1, Ordering::Relaxed);
    }
}

/// Ends the flood, also where the test fails.
struct Ends<'a>(&'a AtomicBool);

impl Drop for Ends<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

#[test]
fn hundreds_of_ranks_reach_one_at_once_beside_a_flood_of_others() {
    let mut ranks: Vec<Rank> = (0..RANKS).map(Rank::new).collect();
    let address = |rank: &Rank| rank.transport.local_address();
    let addresses: Vec<_> = ranks.iter().map(address).collect();
    let (start, count) = (Instant::now(), AtomicUsize::new(0));
    let has_ended = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let flood = scope.spawn(|| flood(&addresses[0], &has_ended, &count));
        let ends_flood = Ends(&has_ended);
        while count.load(Ordering::Relaxed) < BEFORE {
            assert!(start.elapsed() < HANG, "no flood");
            ranks[0].step(start);
        }
        for rank in 1..RANKS {
            let own = &mut ranks[rank as usize];
            own.transport.connect(0, &addresses[0]).unwrap();
            let token = u64::from(rank);
            let head = &mut ranks[0];
            (head.transport)
                .connect(rank, &addresses[rank as usize])
                .unwrap();
            let target = head.memory.part(rank as usize * BYTES, BYTES);
            head.transport
                .test_recv(rank, token, target, token)
                .unwrap();
        }
        let mut came = 0;
        let mut unsent: Vec<usize> = (1..RANKS as usize).collect();
        while came < RANKS as usize - 1 {
            assert!(start.elapsed() < HANG, "{came} ranks came");
            // The first message of a rank waits for the connection, which it asks for.
            unsent.retain(|&rank| {
                let (own, token) = (&mut ranks[rank], rank as u64);
                let source = own.memory.part(0, BYTES);
                match own.transport.test_send(0, token, 0, source, token) {
                    Err(PostError::WouldBlock) => true,
                    sent => sent.map(|()| false).unwrap(),
                }
            });
            came += ranks[0].step(start).len();
            for rank in &mut ranks[1..] {
                rank.step(start);
            }
        }
        drop(ends_flood);
        flood.join().unwrap();
    });
    println!("{} connections of others", count.load(Ordering::Relaxed));
    let mut got = vec![0; RANKS as usize * BYTES];
    access::read(ranks[0].memory, 0, &mut got);
    let mut parts = got.chunks(BYTES).zip(0..RANKS);
    assert!(parts.all(|(part, rank)| part.iter().all(|&byte| byte == rank as u8)));
}
