//! Peers that nothing stops: what is under way when memory is taken back.

use super::{Defect, DeviceWorld};
use crate::config::VerbsSettings;
use crate::kernel;
use crate::memory::{Region, RegionKey, View};
use crate::prng::Prng;
use crate::transport::rdma::device::Operation;
use crate::transport::rdma::record::Immediate;
use crate::transport::sim::{SimOptions, World};
use crate::transport::test_posts::TestPosts;
use crate::transport::{Completion, Event, Outcome, RemoteRange, Transport};
use std::sync::Arc;

const BYTES: usize = 64 << 10;
const STEPS_MAX: u32 = 100_000;
/// What the sender writes, and what is there before.
const SENT: u8 = 7;
const BEFORE: u8 = 1;

/// Two ranks on devices without order.
struct Pair {
    world: World,
    devices: DeviceWorld,
    random: Prng,
    ranks: [Box<dyn Transport>; 2],
    ends: [Vec<Completion>; 2],
    connected: u32,
    /// A rank has heard that the other one has left.
    has_left: bool,
}

impl Pair {
    fn connect(seed: u64, defect: Option<Defect>) -> Pair {
        let world = World::new(SimOptions::new(2, seed));
        let devices = DeviceWorld::unordered(2, seed, 0.0);
        let devices = match defect {
            Some(defect) => devices.with(defect),
            None => devices,
        };
        let settings = VerbsSettings {
            chunk_bytes: 8 << 10,
            ..VerbsSettings::default()
        };
        let ranks = [0, 1].map(|rank| {
            let control = Box::new(world.transport(rank));
            devices.transport((rank, 2), control, &settings).unwrap()
        });
        let addresses = ranks.each_ref().map(|rank| rank.local_address());
        let mut pair = Pair {
            world,
            devices,
            random: Prng::new(seed),
            ranks,
            ends: Default::default(),
            connected: 0,
            has_left: false,
        };
        pair.ranks[0].connect(1, &addresses[1]).unwrap();
        pair.ranks[1].connect(0, &addresses[0]).unwrap();
        pair.until(|pair| pair.connected == 2);
        pair
    }

    fn poll(&mut self, at: usize) {
        let (now, mut events) = (self.world.now(), Vec::new());
        self.ranks[at].poll(now, &mut events);
        self.ranks[at].poll_slow(now, &mut events);
        for event in events {
            match event {
                Event::Completion(end) => self.ends[at].push(end),
                Event::Connected(_) => self.connected += 1,
                Event::PeerLeft(..) => self.has_left = true,
                _ => {}
            }
        }
    }

    fn until(&mut self, is_so: impl Fn(&Pair) -> bool) {
        for _ in 0..STEPS_MAX {
            if is_so(self) {
                return;
            }
            self.poll(0);
            self.poll(1);
            // Letters may be faster than writes.
            let _ = match self.random.chance(0.5) {
                true => self.devices.advance() || self.world.advance(),
                false => self.world.advance() || self.devices.advance(),
            };
        }
        panic!("{:?}", self.ends);
    }

    fn memory(&mut self, rank: usize, value: u8) -> View {
        let region = Arc::new(Region::private(BYTES).unwrap());
        let key = self.ranks[rank].register(region.clone()).unwrap();
        let view = region.view().in_region(key, 0);
        kernel::fill(view, value);
        view
    }

    /// Begins a message from rank 1 into a region of rank 0, and goes on until pieces of it are on
    /// their way.
    fn begin_message(&mut self) -> View {
        let (place, source) = (self.memory(0, BEFORE), self.memory(1, SENT));
        self.ranks[0].test_recv(1, 5, place, 1).unwrap();
        self.ranks[1].test_send(0, 5, 0, source, 2).unwrap();
        self.until(|pair| pair.pieces_posted() > 0);
        place
    }

    /// Pieces of long transfers that devices have not written, or not whole.
    fn pieces_posted(&self) -> usize {
        let state = self.devices.lock();
        let posts = state.queues.iter().flat_map(|line| &line.posts);
        let is_piece = |operation| match operation {
            Operation::Write(_, Some(bits)) => {
                matches!(Immediate::parse(bits).1, Immediate::Piece(_))
            }
            _ => false,
        };
        posts.filter(|post| is_piece(post.operation)).count()
    }

    /// Rank 1 leaves. What has come and is not told stays so, but for what polls find.
    fn leave(&mut self) {
        while !self.ranks[1].leave(0) {
            self.poll(1);
            self.devices.lock().finish_all();
            self.world.advance();
        }
        while !self.has_left {
            self.poll(0);
            self.world.advance();
        }
    }

    /// Everything that the devices have to do.
    fn finish(&self) {
        while self.devices.advance() {}
    }
}

fn all_are(place: View, value: u8) -> bool {
    let mut found = vec![0; place.len_bytes()];
    kernel::read(place, 0, &mut found);
    found.iter().all(|&byte| byte == value)
}

/// Whether memory that was granted to a peer stays as it is once that was disconnected.
fn stays_after_disconnect(seed: u64, defect: Option<Defect>) -> bool {
    let mut pair = Pair::connect(seed, defect);
    let place = pair.begin_message();
    pair.ranks[0].disconnect(1);
    kernel::fill(place, BEFORE);
    pair.finish();
    all_are(place, BEFORE)
}

/// Whether memory of a receive stays as it is once that was cancelled.
fn stays_after_cancel(seed: u64, defect: Option<Defect>) -> bool {
    let mut pair = Pair::connect(seed, defect);
    let place = pair.begin_message();
    pair.ranks[0].cancel(1, 1);
    pair.until(|pair| !pair.ends[0].is_empty());
    let is_whole = pair.ends[0][0].outcome == Outcome::Done;
    let value = if is_whole { SENT } else { BEFORE };
    if !is_whole {
        kernel::fill(place, BEFORE);
    }
    pair.finish();
    all_are(place, value)
}

/// Memory stays as it is with every seed, and with this defect it does not with some.
fn check(stays: impl Fn(u64, Option<Defect>) -> bool, defect: Defect) {
    for seed in 0..50 {
        assert!(stays(seed, None), "{seed}");
    }
    let is_found = (0..50).any(|seed| !stays(seed, Some(defect)));
    assert!(is_found, "devices with this pass: {defect:?}");
}

#[test]
fn a_peer_that_was_disconnected_writes_no_more() {
    check(stays_after_disconnect, Defect::KeepsKeys);
}

#[test]
fn a_receive_is_cancelled_when_its_peer_writes_no_more() {
    check(stays_after_cancel, Defect::EndsEarly);
}

#[test]
fn a_put_that_is_under_way_to_a_region_that_ends_is_whole_and_a_later_one_refused() {
    for seed in 0..50 {
        let mut pair = Pair::connect(seed, None);
        let (place, source) = (pair.memory(0, BEFORE), pair.memory(1, SENT));
        let key = place.key();
        pair.ranks[0].export(1, key).unwrap();
        let range = |key: RegionKey| RemoteRange { key, offset: 0 };
        pair.ranks[1].test_put(0, source, range(key), 3).unwrap();
        pair.until(|pair| pair.pieces_posted() > 0);
        pair.ranks[0].deregister(key).unwrap();
        pair.until(|pair| !pair.ends[1].is_empty());
        assert_eq!(pair.ends[1][0].outcome, Outcome::Done, "{seed}");
        assert!(all_are(place, SENT), "{seed}");
        // The peer has told that nothing is under way: the registration has ended.
        pair.until(|pair| pair.devices.lock().of_device(0) == 3);
        pair.ranks[1].test_put(0, source, range(key), 4).unwrap();
        pair.until(|pair| pair.ends[1].len() == 2);
        assert_eq!(pair.ends[1][1].outcome, Outcome::BadKey, "{seed}");
    }
}

#[test]
fn a_region_that_only_took_a_message_ends_at_once() {
    let mut pair = Pair::connect(1, None);
    let place = pair.begin_message();
    pair.until(|pair| !pair.ends[0].is_empty());
    let before = pair.devices.lock().of_device(0);
    pair.ranks[0].deregister(place.key()).unwrap();
    // One registration was for all peers and one for this peer.
    assert_eq!(pair.devices.lock().of_device(0), before - 2);
}

/// A device may confirm what it has sent before the other one tells that it has come, and the
/// goodbye may be faster.
#[test]
fn what_a_rank_has_sent_before_it_left_has_come() {
    for seed in 0..20 {
        let mut pair = Pair::connect(seed, None);
        let (place, source) = (pair.memory(0, BEFORE), pair.memory(1, SENT));
        let short = |view: View| view.part(0, 64);
        pair.ranks[1].test_send(0, 5, 0, short(source), 2).unwrap();
        pair.until(|pair| !pair.ends[1].is_empty());
        pair.leave();
        pair.ranks[0].test_recv(1, 5, short(place), 1).unwrap();
        pair.until(|pair| !pair.ends[0].is_empty());
        assert_eq!(pair.ends[0][0].outcome, Outcome::Done, "seed {seed}");
        assert!(all_are(short(place), SENT), "seed {seed}");
    }
}

#[test]
fn a_long_message_of_a_rank_that_has_left_has_come() {
    for seed in 0..20 {
        let mut pair = Pair::connect(seed, None);
        let place = pair.begin_message();
        pair.leave();
        pair.until(|pair| !pair.ends[0].is_empty());
        assert_eq!(pair.ends[0][0].outcome, Outcome::Done, "seed {seed}");
        assert!(all_are(place, SENT), "seed {seed}");
    }
}
