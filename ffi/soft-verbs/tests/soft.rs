//! The device between two processes: words that arrive whole, the rate and the latency that were
//! asked for, a peer that is killed, limits, and words of `SOFT_VERBS` that are none.
//!
//! Everything else that libibverbs promises is tested by the bindings' tests
//! (`ffi/verbs-sys/tests/device.rs`) and linerate's own, which run on this library too.
#![allow(unsafe_code)]

mod rig;

use linerate_verbs_sys::raw::*;
use linerate_verbs_sys::*;
use rig::{BYTES, End, PATIENCE, Process, ROLE, open, pair, rest};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Instant;

const WORDS: u64 = 200_000;

/// What a process does that a test has started.
#[test]
fn role() {
    match std::env::var(ROLE).as_deref() {
        Ok("write-words") => {
            let end = End::meet();
            for number in 1..=WORDS {
                let word = (number & 0xff) * 0x0101_0101_0101_0101;
                let bytes = word.to_ne_bytes();
                end.post(5, Operation::Write(end.peer, None), Local::Inline(&bytes));
                assert!(end.next().is_success());
            }
            let all = u64::MAX.to_ne_bytes();
            let last = Place {
                address: end.peer.address + 8,
                ..end.peer
            };
            end.post(5, Operation::Write(last, None), Local::Inline(&all));
            assert!(end.next().is_success());
            let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
            println!("RESULT {}", maps.matches(rig::MEMFD_NAME).count());
            rest();
        }
        Ok("read-words") => {
            let end = End::meet();
            let (begun, mut seen) = (Instant::now(), 0u64);
            while end.memory.0[1].load(Ordering::Acquire) == 0 {
                let word = end.memory.0[0].load(Ordering::Relaxed);
                assert_eq!(
                    word,
                    (word & 0xff) * 0x0101_0101_0101_0101,
                    "a word in parts"
                );
                seen += 1;
                assert!(begun.elapsed() < PATIENCE);
            }
            println!("RESULT {seen} looks");
        }
        Ok("flood") => {
            let end = End::meet();
            let segment = end.region.segment(0, BYTES as u32).unwrap();
            let begun = Instant::now();
            (0..100)
                .for_each(|_| end.post(5, Operation::Write(end.peer, None), Local::One(segment)));
            (0..100).for_each(|_| assert!(end.next().is_success()));
            println!("RESULT {}", begun.elapsed().as_nanos());
            rest();
        }
        Ok("sleep") => {
            let end = End::meet();
            end.queue.request_event(false).unwrap();
            println!("READY");
            let begun = Instant::now();
            while end.channel.poll_event().unwrap().is_none() {
                assert!(begun.elapsed() < PATIENCE, "nobody woke it");
                rig::wait_readable(end.channel.fd());
            }
            let mut room = [Completion::default()];
            assert_eq!(end.queue.poll(&mut room).unwrap(), 1, "woken too early");
            assert_eq!(room[0].immediate(), Some(9));
            println!("RESULT woken");
        }
        Ok("wake") => {
            let end = End::meet();
            println!("READY");
            let mut line = String::new();
            std::io::stdin().read_line(&mut line).unwrap();
            let begun = Instant::now();
            end.post(5, Operation::Send(Some(9)), Local::Empty);
            assert!(end.next().is_success());
            println!("RESULT {}", begun.elapsed().as_nanos());
            rest();
        }
        Ok("lose") => {
            let end = End::meet();
            println!("READY");
            let mut line = String::new();
            std::io::stdin().read_line(&mut line).unwrap();
            for _ in 0..2 {
                end.post(5, Operation::Write(end.peer, None), Local::Inline(&[1; 8]));
            }
            let [first, second] = [end.next(), end.next()].map(|done| done.status());
            assert_eq!(first, ibv_wc_status::IBV_WC_RETRY_EXC_ERR);
            assert_eq!(second, ibv_wc_status::IBV_WC_WR_FLUSH_ERR);
            println!("RESULT lost");
        }
        Ok("register-again") => {
            let context = open().unwrap();
            let [end, other] = End::both([&context, &context]);
            let mut ended = None;
            for _ in 0..20 {
                let memory = Arc::clone(&other.memory) as Arc<dyn Memory>;
                let region = Mr::register(other.region.pd(), memory, rig::ACCESS).unwrap();
                let place = region.place(0).unwrap();
                end.post(5, Operation::Write(place, None), Local::Inline(&[1; 8]));
                assert!(end.next().is_success());
                ended = Some(place);
            }
            let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
            let count = maps.matches(rig::MEMFD_NAME).count();
            assert!(
                count <= 3,
                "mapped {count} times: two ends, and the last registration"
            );
            let last = Operation::Write(ended.unwrap(), None);
            end.post(5, last, Local::Inline(&[1; 8]));
            assert_eq!(end.next().status(), ibv_wc_status::IBV_WC_REM_ACCESS_ERR);
            println!("RESULT refused, and kept nothing");
        }
        Ok("stay") => {
            let _end = End::meet();
            println!("READY");
            std::thread::sleep(PATIENCE);
        }
        Ok("limits") => {
            let context = open().unwrap();
            let pd = Pd::allocate(&context).unwrap();
            let queue = |entries| CompletionQueue::create(&context, entries, None, 0, 0).is_ok();
            let shared = |requests| SharedReceiveQueue::create(&pd, requests, 1, 0).is_ok();
            let most = context.attributes().unwrap().orig_attr;
            let found = [queue(65_535), queue(65_536), shared(16_383), shared(16_384)];
            println!("RESULT {found:?} {} {}", most.max_cqe, most.max_srq_wr);
        }
        Ok("list") => println!("RESULT {}", open().err().expect("it is refused")),
        _ => {}
    }
}

#[test]
fn an_aligned_word_arrives_whole() {
    // Moved by the system, and by the processor to memory that both have mapped.
    for (variable, mappings) in [(None, "0"), (Some(rig::MEMFD), "2")] {
        let [mut writer, mut reader] = rig::pair_with(["write-words", "read-words"], "", variable);
        assert_eq!(
            writer.said("RESULT "),
            mappings,
            "its own memory, and the peer's"
        );
        println!("{}", reader.said("RESULT "));
    }
}

#[test]
fn memory_of_a_peer_is_kept_no_longer_than_it_is_registered() {
    for variable in [None, Some(rig::MEMFD)] {
        let mut process = Process::start_with("register-again", "", variable);
        assert_eq!(process.said("RESULT "), "refused, and kept nothing");
    }
}

#[test]
fn a_wire_carries_what_its_rate_allows_and_no_more() {
    let [mut flood, _other] = pair(["flood", "stay"], "rate=100gbit,latency=2us,bytes=none");
    let took: u64 = flood.said("RESULT ").parse().unwrap();
    // 100 MiB in packets of 4096 bytes with 82 more each, at 12.5 bytes in a nanosecond.
    let least = 100 * (1 << 20) / 4096 * (4096 + 82) * 8 / 100;
    println!("{took} ns, at least {least} by the wire");
    assert!(took >= least, "{took} ns, and the wire takes {least}");
}

#[test]
fn who_sleeps_is_woken_when_the_wire_has_brought_it() {
    let [mut sleeper, mut waker] = pair(["sleep", "wake"], "latency=20000us");
    sleeper.said("READY");
    waker.said("READY");
    waker.tell("go on");
    assert_eq!(sleeper.said("RESULT "), "woken");
    let took: u64 = waker.said("RESULT ").parse().unwrap();
    assert!(took >= 40_000_000, "an answer after {took} ns");
}

#[test]
fn a_peer_that_is_killed_does_not_answer() {
    for variable in [None, Some(rig::MEMFD)] {
        let [mut first, mut second] = rig::pair_with(["lose", "stay"], "", variable);
        first.said("READY");
        second.said("READY");
        second.child.kill().unwrap();
        second.child.wait().unwrap();
        // Memory that is mapped outlives its owner; what was seen to live is looked at again.
        std::thread::sleep(std::time::Duration::from_millis(2));
        first.tell("go on");
        assert_eq!(first.said("RESULT "), "lost");
    }
}

#[test]
fn a_profile_has_the_limits_of_its_device() {
    for (profile, expected) in [
        ("small-cq", "[true, false, true, false] 65535 16383"),
        ("mlx5", "[true, true, true, true] 4194303 32767"),
        ("irdma", "[true, true, false, false] 1048574 0"),
        ("bnxt", "[true, true, true, true] 8388607 65535"),
        ("efa-like", "[false, false, false, false] 32768 0"),
    ] {
        let mut process = Process::start("limits", &format!("profile={profile}"));
        assert_eq!(process.said("RESULT "), expected, "{profile}");
    }
}

#[test]
fn a_word_that_is_none_is_refused_and_named() {
    let mut process = Process::start("list", "rate=fast");
    let told = process.said("RESULT ");
    assert!(told.contains("ibv_get_device_list"), "{told}");
    let mut errors = String::new();
    let mut stderr = process.child.stderr.take().unwrap();
    std::io::Read::read_to_string(&mut stderr, &mut errors).unwrap();
    assert!(
        errors.contains("SOFT_VERBS has the word \"rate=fast\""),
        "{errors}"
    );
}
