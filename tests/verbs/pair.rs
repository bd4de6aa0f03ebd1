//! Two ranks of the `verbs` transport in one thread.

use super::access::{self, TestPosts};
use crate::prng::Prng;
use linerate::options::{TcpSettings, VerbsSettings};
use linerate::transport::{
    Completion, Event, Options, Outcome, Region, RegionKey, RemoteRange, Time, Transport, View,
    open,
};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Far longer than anything here takes, also in an emulated machine: only a hang lasts longer.
const HANG: Duration = Duration::from_secs(60);

/// Whether there is a device; says why not.
pub fn has_device(test: &str) -> bool {
    match open("verbs", 0, 1, 0, &Options::default()) {
        Ok(_) => true,
        Err(reason) => {
            println!("skipped: {test}: {reason}");
            false
        }
    }
}

/// One of both.
pub struct Rank {
    pub transport: Box<dyn Transport>,
    pub ends: Vec<Completion>,
    pub failure: Option<String>,
    is_connected: bool,
}

/// Memory of a rank that its transport knows.
pub struct Memory {
    _region: Arc<Region>,
    pub key: RegionKey,
    pub view: View,
}

/// Two ranks, connected to each other.
pub struct Pair {
    pub ranks: [Rank; 2],
    start: Instant,
}

impl Pair {
    /// With settings for each rank.
    pub fn new(settings: [&VerbsSettings; 2]) -> Pair {
        Pair::on("verbs", settings)
    }

    /// As [`Pair::new`], on devices with this name.
    pub fn on(name: &str, settings: [&VerbsSettings; 2]) -> Pair {
        let mut pair = Pair::begin(name, settings);
        pair.until(|ranks| ranks.iter().all(|rank| rank.is_connected));
        pair
    }

    /// With settings that do not go together: what each says.
    pub fn failing(settings: [&VerbsSettings; 2]) -> [Option<String>; 2] {
        let mut pair = Pair::begin("verbs", settings);
        pair.until(|ranks| ranks.iter().all(|rank| rank.failure.is_some()));
        pair.ranks.each_ref().map(|rank| rank.failure.clone())
    }

    fn begin(name: &str, settings: [&VerbsSettings; 2]) -> Pair {
        let mut transports = [0, 1].map(|rank| {
            let tcp = TcpSettings {
                is_debugging: std::env::var_os("LINERATE_TEST_DEBUG").is_some(),
                ..TcpSettings::default()
            };
            let options = Options {
                verbs: settings[rank as usize].clone(),
                tcp,
                ..Options::default()
            };
            open(name, rank, 2, 0, &options).unwrap()
        });
        let addresses = transports.each_ref().map(|t| t.local_address());
        transports[0].connect(1, &addresses[1]).unwrap();
        transports[1].connect(0, &addresses[0]).unwrap();
        Pair {
            ranks: transports.map(|transport| Rank {
                transport,
                ends: Vec::new(),
                failure: None,
                is_connected: false,
            }),
            start: Instant::now(),
        }
    }

    /// With the same settings.
    pub fn plain() -> Pair {
        let settings = VerbsSettings::default();
        Pair::new([&settings, &settings])
    }

    pub fn now(&self) -> Time {
        Time(1 + self.start.elapsed().as_nanos() as u64)
    }

    /// Polls one rank.
    pub fn step_one(&mut self, rank: usize) {
        let (now, mut events) = (self.now(), Vec::new());
        let rank = &mut self.ranks[rank];
        rank.transport.poll(now, &mut events);
        rank.transport.poll_slow(now, &mut events);
        for event in events {
            match event {
                Event::Completion(end) => rank.ends.push(end),
                Event::Connected(_) => rank.is_connected = true,
                Event::PeerFailed(_, cause) => rank.failure = Some(cause),
                Event::PeerLeft(..) => rank.failure = Some("it has left".into()),
                Event::Unmatched(..) => {}
            }
        }
    }

    pub fn step(&mut self) {
        self.step_one(0);
        self.step_one(1);
    }

    /// Polls both until something is so.
    pub fn until(&mut self, is_so: impl FnMut(&[Rank; 2]) -> bool) {
        self.until_by(Pair::step, is_so);
    }

    /// Polls only rank 0 until something is so: the other rank tells it nothing.
    pub fn until_alone(&mut self, is_so: impl FnMut(&[Rank; 2]) -> bool) {
        self.until_by(|pair| pair.step_one(0), is_so);
    }

    fn until_by(&mut self, step: fn(&mut Pair), mut is_so: impl FnMut(&[Rank; 2]) -> bool) {
        let begin = Instant::now();
        while !is_so(&self.ranks) {
            step(self);
            let state = |rank: &Rank| (rank.failure.clone(), rank.transport.counts());
            let states = self.ranks.each_ref().map(state);
            assert!(begin.elapsed() < HANG, "nothing comes: {states:?}");
        }
    }

    /// Waits for a post's end.
    pub fn end(&mut self, rank: usize, token: u64) -> Completion {
        self.until(|ranks| ranks[rank].ends.iter().any(|end| end.token == token));
        let ends = &mut self.ranks[rank].ends;
        let at = ends.iter().position(|end| end.token == token).unwrap();
        ends.remove(at)
    }

    pub fn done(&mut self, rank: usize, token: u64) {
        let end = self.end(rank, token);
        assert_eq!(end.outcome, Outcome::Done, "{end:?}");
    }

    /// Fresh memory of a rank.
    pub fn memory(&mut self, rank: usize, bytes: usize) -> Memory {
        let region = Arc::new(Region::private(bytes).unwrap());
        let key = self.ranks[rank].transport.register(region.clone()).unwrap();
        let view = region.view().in_region(key, 0);
        Memory {
            _region: region,
            key,
            view,
        }
    }

    pub fn send(&mut self, from: usize, tag: u64, view: View, token: u64) {
        let to = 1 - from as u32;
        let transport = &mut self.ranks[from].transport;
        transport.test_send(to, tag, token, view, token).unwrap();
    }

    pub fn receive(&mut self, at: usize, tag: u64, view: View, token: u64) {
        let from = 1 - at as u32;
        let transport = &mut self.ranks[at].transport;
        transport.test_recv(from, tag, view, token).unwrap();
    }

    pub fn put(&mut self, from: usize, view: View, to: RemoteRange, token: u64) {
        let peer = 1 - from as u32;
        let transport = &mut self.ranks[from].transport;
        transport.test_put(peer, view, to, token).unwrap();
    }

    pub fn get(&mut self, at: usize, from: RemoteRange, view: View, token: u64) {
        let peer = 1 - at as u32;
        let transport = &mut self.ranks[at].transport;
        transport.test_get(peer, from, view, token).unwrap();
    }

    pub fn count(&self, rank: usize, name: &str) -> u64 {
        let counts = self.ranks[rank].transport.counts();
        let found = counts.iter().find(|count| count.0 == name);
        found.unwrap_or_else(|| panic!("no count {name}")).1
    }

    /// A short message each way, and nothing else is heard.
    pub fn greet(&mut self, seed: u64) {
        for from in [0, 1] {
            let (out, into) = (self.memory(from, 64), self.memory(1 - from, 64));
            fill(out.view, seed);
            self.receive(1 - from, 77, into.view, 7_000_001);
            self.send(from, 77, out.view, 7_000_000);
            self.done(from, 7_000_000);
            self.done(1 - from, 7_000_001);
            check(into.view, seed);
        }
    }
}

fn pattern(bytes: usize, seed: u64) -> Vec<u8> {
    let mut prng = Prng::new(seed);
    (0..bytes).map(|_| prng.below(256) as u8).collect()
}

pub fn fill(view: View, seed: u64) {
    access::write(view, 0, &pattern(view.len_bytes(), seed));
}

pub fn check(view: View, seed: u64) {
    let mut found = vec![0; view.len_bytes()];
    access::read(view, 0, &mut found);
    let expected = pattern(view.len_bytes(), seed);
    let wrong = (0..found.len()).find(|&at| found[at] != expected[at]);
    assert_eq!(wrong, None, "of {} bytes", found.len());
}
