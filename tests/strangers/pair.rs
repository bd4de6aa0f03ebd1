//! Two ranks of the `tcp` transport in one thread, and what passes between them.

use super::access::{self, TestPosts};
use linerate::options::TcpSettings;
use linerate::transport::{
    Address, Event, Options, Outcome, PostError, Region, RemoteRange, Time, Transport, View, open,
};
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Far longer than anything here takes: only a hang lasts longer.
pub const HANG: Duration = Duration::from_secs(60);

/// A rank that moves when the test calls [`Rank::step`].
pub struct Rank {
    pub transport: Box<dyn Transport>,
    pub events: Vec<Event>,
    start: Instant,
    region: Arc<Region>,
    memory: View,
    next: u64,
}

impl Rank {
    pub fn new(rank: u32, settings: &TcpSettings) -> Rank {
        let mut transport = open("tcp", rank, 2, 0, &over(settings)).unwrap();
        let region = Arc::new(Region::private(8 << 20).unwrap());
        let key = transport.register(region.clone()).unwrap();
        Rank {
            memory: region.view().in_region(key, 0),
            region,
            transport,
            events: Vec::new(),
            start: Instant::now(),
            next: 1,
        }
    }

    pub fn step(&mut self) {
        let now = Time(self.start.elapsed().as_nanos() as u64);
        self.transport.poll(now, &mut self.events);
        self.transport.poll_slow(now, &mut self.events);
    }

    pub fn count(&self, name: &str) -> u64 {
        let counts = self.transport.counts();
        counts
            .iter()
            .find(|c| c.0 == name)
            .expect("a count of this name")
            .1
    }

    /// Why the peer is gone, if it is.
    pub fn failure(&self) -> Option<String> {
        self.events.iter().find_map(|event| match event {
            Event::PeerFailed(_, cause) => Some(cause.clone()),
            Event::PeerLeft(_, word) => Some(format!("it has left with word {word}")),
            _ => None,
        })
    }

    fn has_done(&self, token: u64) -> bool {
        self.events.iter().any(|event| match event {
            Event::Completion(c) => c.token == token && c.outcome == Outcome::Done,
            _ => false,
        })
    }

    /// Posts something of every kind to the peer; how many posts.
    pub fn post_some(&mut self) -> usize {
        let remote = |offset| RemoteRange {
            key: linerate::transport::RegionKey(1),
            offset,
        };
        let parts = |bytes| self.memory.part(0, bytes);
        let transport = &mut self.transport;
        for (token, bytes) in [(0, 100), (1, 5_000), (2, 300_000)] {
            transport.test_recv(0, token, parts(bytes), token).unwrap();
            transport
                .test_send(0, token, 1, parts(bytes), 10 + token)
                .unwrap();
            transport
                .test_put(0, parts(bytes), remote(8), 20 + token)
                .unwrap();
            transport
                .test_get(0, remote(8), parts(bytes), 30 + token)
                .unwrap();
        }
        12
    }

    /// Posts a receive of each of these tags from the peer.
    pub fn post_receives(&mut self, tags: &[u64], bytes: usize) {
        for &tag in tags {
            let target = self.memory.part(0, bytes);
            self.transport.test_recv(0, tag, target, tag).unwrap();
        }
    }

    /// Posts that have ended.
    pub fn completions(&self) -> usize {
        let is_completion = |event: &&Event| matches!(event, Event::Completion(_));
        self.events.iter().filter(is_completion).count()
    }

    /// Of its memory.
    pub fn memory_bytes(&self) -> usize {
        self.region.view().len_bytes()
    }
}

/// Where a rank listens, and what names it, out of its address.
pub fn place(address: &Address) -> (SocketAddr, [u8; 16]) {
    let port = u16::from_le_bytes([address.0[22], address.0[23]]);
    let identity = std::array::from_fn(|i| address.0[4 + i]);
    (SocketAddr::from(([127, 0, 0, 1], port)), identity)
}

/// `address` at another port.
pub fn moved(address: &Address, port: u16) -> Address {
    let mut bytes = address.0.clone();
    bytes[22..24].copy_from_slice(&port.to_le_bytes());
    Address(bytes)
}

/// Two ranks.
pub struct Pair(pub [Rank; 2]);

impl Pair {
    /// Not connected yet.
    pub fn new(settings: &TcpSettings) -> Pair {
        Pair([0, 1].map(|rank| Rank::new(rank, settings)))
    }

    pub fn connected(settings: &TcpSettings) -> Pair {
        let mut pair = Pair::new(settings);
        let addresses = [0, 1].map(|rank: usize| pair.0[rank].transport.local_address());
        for (rank, peer) in [(0, 1), (1, 0)] {
            let transport = &mut pair.0[rank].transport;
            transport.connect(peer as u32, &addresses[peer]).unwrap();
        }
        pair.exchange(1 << 20);
        pair
    }

    pub fn step(&mut self) {
        self.0.iter_mut().for_each(Rank::step);
    }

    /// Steps until this holds.
    pub fn until(&mut self, what: &str, mut holds: impl FnMut(&mut Pair) -> bool) {
        let start = Instant::now();
        while !holds(self) {
            assert!(start.elapsed() < HANG, "{what} does not happen");
            self.step();
        }
    }

    /// Each sends the other this many bytes, which arrive as they were sent.
    pub fn exchange(&mut self, bytes: usize) {
        let half = self.0[0].memory_bytes() / 2;
        assert!(bytes <= half);
        let mut tokens = Vec::new();
        for (rank, peer) in [(0usize, 1u32), (1, 0)] {
            let own = &mut self.0[rank];
            let token = own.next;
            own.next += 2;
            own.events.clear();
            let value = (token as u8).wrapping_mul(31).wrapping_add(rank as u8);
            access::write(own.memory, 0, &vec![value; bytes]);
            access::write(own.memory, half, &vec![0; bytes]);
            let (source, target) = (own.memory.part(0, bytes), own.memory.part(half, bytes));
            own.transport
                .test_recv(peer, token, target, token + 1)
                .unwrap();
            // The first one waits for the connection, which it asks for.
            self.until("a send", |pair| {
                let transport = &mut pair.0[rank].transport;
                match transport.test_send(peer, token, 7, source, token) {
                    Err(PostError::WouldBlock) => false,
                    sent => sent.map(|()| true).unwrap(),
                }
            });
            tokens.push((token, value));
        }
        let is_over = |rank: &Rank, token| rank.has_done(token) && rank.has_done(token + 1);
        self.until("an exchange", |pair| {
            for rank in &pair.0 {
                assert_eq!(rank.failure(), None);
            }
            (0..2).all(|rank| is_over(&pair.0[rank], tokens[rank].0))
        });
        for rank in 0..2 {
            let mut got = vec![0; bytes];
            access::read(self.0[rank].memory, half, &mut got);
            let sent = tokens[1 - rank].1;
            assert!(got.iter().all(|&byte| byte == sent), "rank {rank}");
        }
    }
}

/// Options with these settings.
pub fn over(settings: &TcpSettings) -> Options {
    Options {
        tcp: settings.clone(),
        ..Options::default()
    }
}
