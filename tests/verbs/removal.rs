//! Devices that are taken away while they are used. Each test takes one of three for good, so that
//! they run in a guest of their own (`tools/rdma_vm/check_verbs.py`). The kernel ends a removal
//! only when everybody has closed the device.

use super::access::{self, TestPosts};
use super::pair::{Memory, Pair, check, fill};
use linerate::options::VerbsSettings;
use linerate_children::{Child, HANG, text};
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

const BYTES: usize = 200_000;
/// Messages before the device is taken, and at least this many afterwards.
const BEFORE: u64 = 3;
const AFTER: u64 = 10;
/// Posts of a rank at once.
const UNDER_WAY_MAX: u64 = 8;

/// Says why not.
fn has_three_devices(test: &str) -> bool {
    let has = std::env::var("RDMA_VM_DEVICES").as_deref() == Ok("3");
    if !has {
        println!("skipped: {test}: only in a guest with three devices (tools/rdma-vm)");
    }
    has
}

/// What takes a device away. It ends when nobody has it open any more.
struct Removal {
    child: Child,
    until: Instant,
}

impl Removal {
    fn begin(words: &str) -> Removal {
        let mut words = words.split(' ');
        let program = words.next().unwrap();
        Removal {
            child: Child::start(Command::new(program).args(words)),
            until: Instant::now() + HANG,
        }
    }

    fn check_time(&self) {
        assert!(Instant::now() < self.until, "the removal hangs");
    }

    fn end(self) {
        let ended = self.child.end();
        assert!(ended.status.success(), "{}", text(&ended));
    }
}

/// Whether the kernel shows it to those who ask: not from the beginning of its removal on.
fn is_listed(device: &str) -> bool {
    let output = Command::new("rdma")
        .args(["link", "show"])
        .output()
        .unwrap();
    String::from_utf8_lossy(&output.stdout).contains(&format!("{device}/"))
}

fn is_there(device: &str) -> bool {
    Path::new("/sys/class/infiniband").join(device).exists()
}

/// The kernel takes a device away behind its port, by a thread of its own.
fn wait_until_gone(device: &str) {
    let until = Instant::now() + HANG;
    while is_there(device) {
        assert!(Instant::now() < until, "{device} stays");
        std::thread::sleep(Duration::from_millis(10));
    }
}

/// One message each way, whole and once.
fn exchange(pair: &mut Pair, places: &[[Memory; 2]; 2], seed: u64) {
    for (from, [source, place]) in places.iter().enumerate() {
        fill(source.view, seed + from as u64);
        pair.receive(1 - from, 5, place.view, 1);
        pair.send(from, 5, source.view, 2);
    }
    for (from, [_, place]) in places.iter().enumerate() {
        pair.done(from, 2);
        pair.done(1 - from, 1);
        check(place.view, seed + from as u64);
        access::fill(place.view, 0);
    }
    assert!(pair.ranks.iter().all(|rank| rank.ends.is_empty()));
}

fn places(pair: &mut Pair) -> [[Memory; 2]; 2] {
    [0, 1].map(|from| [pair.memory(from, BYTES), pair.memory(1 - from, BYTES)])
}

#[test]
fn the_only_device_that_is_taken_away_is_an_error_with_its_name() {
    if !has_three_devices("the only device that is taken away") {
        return;
    }
    let settings = VerbsSettings {
        timeout: Duration::from_secs(3),
        ..VerbsSettings::default()
    };
    let mut pair = Pair::on("verbs:rxe2", [&settings, &settings]);
    let memory = places(&mut pair);
    (0..BEFORE).for_each(|seed| exchange(&mut pair, &memory, seed));
    let removal = Removal::begin("ip link delete eth2");
    // A device without its port says nothing by itself: who uses it finds out.
    let mut posts = [0, 0];
    while pair.ranks.iter().any(|rank| rank.failure.is_none()) {
        for (from, [source, place]) in memory.iter().enumerate() {
            let under_way = [0, 1].map(|rank| posts[rank] - pair.ranks[rank].ends.len() as u64);
            if under_way.iter().any(|&count| count >= UNDER_WAY_MAX) {
                continue;
            }
            let transport = &mut pair.ranks[from].transport;
            let sent = transport.test_send(1 - from as u32, 5, 0, source.view, 2);
            posts[from] += u64::from(sent.is_ok());
            let transport = &mut pair.ranks[1 - from].transport;
            let received = transport.test_recv(from as u32, 5, place.view, 1);
            posts[1 - from] += u64::from(received.is_ok());
        }
        pair.step();
        removal.check_time();
    }
    for (rank, posts) in pair.ranks.iter().zip(posts) {
        let cause = rank.failure.as_deref().unwrap();
        assert!(cause.contains("rxe2"), "{cause}");
        assert_eq!(rank.ends.len() as u64, posts, "each post ends once");
    }
    drop(pair);
    removal.end();
    wait_until_gone("rxe2");
}

#[test]
fn one_of_two_devices_that_is_taken_away_leaves_its_work_to_the_other_one() {
    if !has_three_devices("one of two devices that is taken away") {
        return;
    }
    let settings = VerbsSettings {
        chunk_bytes: 4096,
        ..VerbsSettings::default()
    };
    let mut pair = Pair::on("verbs:rxe0,rxe1", [&settings, &settings]);
    let memory = places(&mut pair);
    (0..BEFORE).for_each(|seed| exchange(&mut pair, &memory, seed));
    let removal = Removal::begin("ip link delete eth1");
    let mut seed = BEFORE;
    while (0..2).any(|rank| pair.count(rank, "generations begun") < 2) {
        exchange(&mut pair, &memory, seed);
        seed += 1;
        removal.check_time();
    }
    (seed..seed + AFTER).for_each(|seed| exchange(&mut pair, &memory, seed));
    drop(pair);
    removal.end();
    wait_until_gone("rxe1");
    assert!(is_there("rxe0"));
}

/// Soft-RoCE tells nobody of this, and works until it is closed.
#[test]
fn a_device_that_is_deleted_while_it_works_serves_to_the_end() {
    if !has_three_devices("a device that is deleted while it works") {
        return;
    }
    let settings = VerbsSettings::default();
    let mut pair = Pair::on("verbs:rxe0", [&settings, &settings]);
    let memory = places(&mut pair);
    (0..BEFORE).for_each(|seed| exchange(&mut pair, &memory, seed));
    let removal = Removal::begin("rdma link delete rxe0");
    while is_listed("rxe0") {
        exchange(&mut pair, &memory, 1);
        removal.check_time();
    }
    (0..AFTER).for_each(|seed| exchange(&mut pair, &memory, seed));
    drop(pair);
    removal.end();
    wait_until_gone("rxe0");
}
