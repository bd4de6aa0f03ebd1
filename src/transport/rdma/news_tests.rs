//! News of devices, and what a pair of ranks does about them in the middle of a message. They need
//! a device of libibverbs.

use super::{News, RdmaTransport};
use crate::config::VerbsSettings;
use crate::kernel;
use crate::memory::{Region, View};
use crate::time::Time;
use crate::transport::test_posts::TestPosts;
use crate::transport::verbs::{self, VerbsDevice};
use crate::transport::{Completion, Diagnostics, Event, Options, Outcome, Transport, open};
use std::sync::Arc;
use std::time::Duration;

/// Only a hang takes more steps. A step is a microsecond by the ranks' clock, and longer in an
/// emulated machine, so no timeout ends early.
const STEPS_MAX: u64 = 3_000_000;
const CHUNK: usize = 4096;
const BYTES: usize = 16 * CHUNK;

/// Two ranks of this process, on one device.
struct Pair {
    ranks: [RdmaTransport<VerbsDevice>; 2],
    ends: [Vec<Completion>; 2],
    failures: [Option<String>; 2],
    steps: u64,
}

impl Pair {
    /// `None` where no device is.
    fn connect(test: &str) -> Option<Pair> {
        let settings = VerbsSettings {
            chunk_bytes: CHUNK as u32,
            ..VerbsSettings::default()
        };
        let begin = |rank| {
            let control = open("tcp", rank, 2, 0, &Options::default())?;
            verbs::open((rank, 2), "", control, &settings, false)
        };
        let mut ranks = match (begin(0), begin(1)) {
            (Ok(first), Ok(second)) => [first, second],
            (Err(reason), _) | (_, Err(reason)) => {
                println!("skipped: {test}: {reason}");
                return None;
            }
        };
        let addresses = ranks.each_ref().map(|rank| rank.local_address());
        ranks[0].connect(1, &addresses[1]).unwrap();
        ranks[1].connect(0, &addresses[0]).unwrap();
        let mut pair = Pair {
            ranks,
            ends: Default::default(),
            failures: Default::default(),
            steps: 0,
        };
        pair.until(|pair| (0..2).all(|rank| pair.ranks[rank].peers[1 - rank].pair().is_up()));
        Some(pair)
    }

    fn step(&mut self) {
        self.steps += 1;
        for (at, rank) in self.ranks.iter_mut().enumerate() {
            let (now, mut events) = (Time(1000 * self.steps), Vec::new());
            rank.poll(now, &mut events);
            rank.poll_slow(now, &mut events);
            for event in events {
                match event {
                    Event::Completion(end) => self.ends[at].push(end),
                    Event::PeerFailed(_, cause) => self.failures[at] = Some(cause),
                    Event::PeerLeft(..) => self.failures[at] = Some("it has left".into()),
                    Event::Connected(_) | Event::Unmatched(..) => {}
                }
            }
        }
    }

    fn until(&mut self, is_so: impl Fn(&Pair) -> bool) {
        let last = self.steps + STEPS_MAX;
        while !is_so(self) {
            self.step();
            assert!(self.steps < last, "{:?} {:?}", self.ends, self.failures);
        }
    }

    fn memory(&mut self, rank: usize) -> View {
        let region = Arc::new(Region::private(BYTES).unwrap());
        let key = self.ranks[rank].register(region.clone()).unwrap();
        region.view().in_region(key, 0)
    }

    /// Begins a message from rank 0 to rank 1, and goes on until this many of its pieces are on
    /// their way.
    fn begin_message(&mut self, seed: u8, pieces: u64) -> View {
        let (source, place) = (self.memory(0), self.memory(1));
        kernel::fill(source, seed);
        self.ranks[1].test_recv(0, 5, place, 1).unwrap();
        self.ranks[0].test_send(1, 5, 0, source, 2).unwrap();
        let before = self.ranks[0].shared.counts.pieces;
        self.until(|pair| pair.ranks[0].shared.counts.pieces >= before + pieces);
        place
    }
}

#[test]
fn a_queue_pair_that_fails_by_news_is_replaced_in_the_middle_of_a_message() {
    let Some(mut pair) = Pair::connect("news of queue pairs") else {
        return;
    };
    for seed in 1..4 {
        for at in 0..2 {
            let place = pair.begin_message(seed, 1);
            let rank = &mut pair.ranks[at];
            let link = rank.peers[1 - at].pair().link_on(0).unwrap();
            let number = link.queue.number();
            // One that nobody has.
            let unknown = News::QueueFailed(u32::MAX);
            assert!(
                !rank.handle_news(0, unknown, "no") && rank.peers[1 - at].pair().fault().is_none()
            );
            assert!(!rank.handle_news(0, News::QueueFailed(number), "device: fatal"));
            let fault = rank.peers[1 - at].pair().fault().unwrap();
            assert_eq!(fault.cause, format!("device: fatal: queue pair {number}"));
            let generations = rank.shared.counts.generations;
            pair.until(|pair| pair.ends.iter().all(|ends| !ends.is_empty()));
            for (ends, token) in pair.ends.iter_mut().zip([2, 1]) {
                let ends: Vec<_> = ends.drain(..).map(|end| (end.token, end.outcome)).collect();
                assert_eq!(ends, [(token, Outcome::Done)]);
            }
            let mut found = vec![0; BYTES];
            kernel::read(place, 0, &mut found);
            assert!(found.iter().all(|&byte| byte == seed), "{seed}");
            assert!(pair.ranks[at].shared.counts.generations > generations);
            assert_eq!(pair.failures, [None, None]);
        }
    }
}

#[test]
fn a_device_that_is_gone_ends_what_is_under_way_with_the_devices_name() {
    let Some(mut pair) = Pair::connect("news of a device") else {
        return;
    };
    for rank in &mut pair.ranks {
        rank.shared.settings.timeout = Duration::from_millis(1);
    }
    pair.begin_message(7, 1);
    let name = pair.ranks[0].shared.rails[0].name().to_owned();
    let cause = format!("{name}: it has failed");
    assert!(!pair.ranks[0].handle_news(0, News::Gone, &cause));
    let trouble = |pair: &Pair| pair.ranks[0].trouble(1);
    pair.until(|pair| trouble(pair).is_some());
    let said = format!("verbs over {name} does not reach it: {name}: ");
    assert!(trouble(&pair).unwrap().starts_with(&said));
    pair.until(|pair| pair.failures.iter().all(Option::is_some) && pair.ends[0].len() == 1);
    let cause = pair.failures[0].as_ref().unwrap();
    assert!(cause.contains(&name), "{cause}");
    assert!(
        pair.ends[0][0].outcome == Outcome::Flushed,
        "{:?}",
        pair.ends
    );
}
