//! The device between two processes: words that arrive whole, the rate and the latency that were
//! asked for, a peer that is killed, limits, and words of `SOFT_VERBS` that are none.
//!
//! Everything else that libibverbs promises is tested by the bindings' tests
//! (`ffi/verbs-sys/tests/device.rs`) and linerate's own, which run on this library too.
#![allow(unsafe_code)]

use linerate_verbs_sys::raw::*;
use linerate_verbs_sys::*;
use std::ffi::OsStr;
use std::io::{BufRead, BufReader, Write};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

const LIBRARY: &str = concat!(env!("OUT_DIR"), "/libsoft_verbs.so");
const ROLE: &str = "SOFT_VERBS_TEST_ROLE";
const WORDS: u64 = 200_000;
const BYTES: usize = 1 << 20;
const PORT: u8 = 1;
const PATIENCE: Duration = Duration::from_secs(60);

/// Memory that only atomics touch.
struct Bytes(Vec<AtomicU64>);

// SAFETY: the vector never changes its place or length, and is only touched through atomics.
unsafe impl Memory for Bytes {
    fn address(&self) -> *mut u8 {
        self.0.as_ptr().cast_mut().cast()
    }

    fn len_bytes(&self) -> usize {
        self.0.len() * 8
    }
}

/// One end of a connection, in a process of its own.
struct End {
    memory: Arc<Bytes>,
    peer: Place,
    pair: QueuePair,
    queue: Arc<CompletionQueue>,
    channel: Arc<CompletionChannel>,
    region: Mr,
}

fn open() -> Result<Arc<Context>> {
    let library = Library::open_as(Some(OsStr::new(LIBRARY)))?;
    let devices = Devices::list(&library)?;
    devices.iter().next().expect("it has a device").open()
}

impl End {
    /// Tells the other end about this one over standard output, and reads of it.
    fn meet() -> End {
        let context = open().unwrap();
        let pd = Pd::allocate(&context).unwrap();
        let channel = CompletionChannel::create(&context).unwrap();
        let queue = CompletionQueue::create(&context, 256, Some(&channel), 0, 7).unwrap();
        let memory = Arc::new(Bytes((0..BYTES / 8).map(|_| AtomicU64::new(0)).collect()));
        let access =
            ibv_access_flags::IBV_ACCESS_LOCAL_WRITE | ibv_access_flags::IBV_ACCESS_REMOTE_WRITE;
        let region = Mr::register(&pd, memory.clone() as Arc<dyn Memory>, access).unwrap();
        let options = QueuePairOptions {
            kind: ibv_qp_type::IBV_QPT_RC,
            send_queue: &queue,
            receive_queue: &queue,
            shared_receives: None,
            capacity: ibv_qp_cap {
                max_send_wr: 128,
                max_recv_wr: 16,
                max_send_sge: 1,
                max_recv_sge: 1,
                max_inline_data: 64,
            },
            is_all_signaled: true,
        };
        let pair = QueuePair::create(&pd, &options).unwrap();
        pair.to_init(PORT, access).unwrap();
        pair.post_receive(&[ReceiveRequest {
            id: 1,
            segments: &[],
        }])
        .unwrap();
        let (gid, place) = (context.gid(PORT, 1).unwrap(), region.place(0).unwrap());
        let gid = u128::from_be_bytes(gid);
        println!("AT {gid} {} {} {}", pair.number(), place.address, place.key);
        let mut line = String::new();
        std::io::stdin().read_line(&mut line).unwrap();
        let numbers: Vec<u128> = line
            .split_whitespace()
            .map(|n| n.parse().unwrap())
            .collect();
        let [gid, number, address, key] = numbers[..] else {
            panic!("{line:?}")
        };
        let route = Route {
            port: PORT,
            gid: Some((gid.to_be_bytes(), 1)),
            ..Route::default()
        };
        pair.to_receive(&RemoteEnd {
            queue_pair: number as u32,
            packet_number: 0,
            mtu: ibv_mtu::IBV_MTU_4096,
            route,
            reads_max: 1,
            no_receive_timer: 12,
        })
        .unwrap();
        pair.to_send(&Sending {
            packet_number: 0,
            reads_max: 1,
            timeout: 10,
            retries: 7,
            no_receive_retries: 7,
        })
        .unwrap();
        let peer = Place {
            address: address as u64,
            key: key as u32,
        };
        End {
            memory,
            peer,
            pair,
            queue,
            channel,
            region,
        }
    }

    fn post(&self, operation: Operation<'_>, local: Local<'_>) {
        let request = SendRequest {
            id: 5,
            operation,
            local,
            is_signaled: true,
            is_solicited: false,
            is_fenced: false,
        };
        self.pair.post_send(&[request]).unwrap();
    }

    /// The next completion.
    fn next(&self) -> Completion {
        let (begun, mut room) = (Instant::now(), [Completion::default()]);
        while self.queue.poll(&mut room).unwrap() == 0 {
            assert!(begun.elapsed() < PATIENCE, "no completion came");
        }
        room[0]
    }
}

/// What a process does that a test has started.
#[test]
fn role() {
    match std::env::var(ROLE).as_deref() {
        Ok("write-words") => {
            let end = End::meet();
            for number in 1..=WORDS {
                let word = (number & 0xff) * 0x0101_0101_0101_0101;
                let bytes = word.to_ne_bytes();
                end.post(Operation::Write(end.peer, None), Local::Inline(&bytes));
                assert!(end.next().is_success());
            }
            let all = u64::MAX.to_ne_bytes();
            let last = Place {
                address: end.peer.address + 8,
                ..end.peer
            };
            end.post(Operation::Write(last, None), Local::Inline(&all));
            assert!(end.next().is_success());
            println!("RESULT written");
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
            (0..100).for_each(|_| end.post(Operation::Write(end.peer, None), Local::One(segment)));
            (0..100).for_each(|_| assert!(end.next().is_success()));
            println!("RESULT {}", begun.elapsed().as_nanos());
            rest();
        }
        Ok("sleep") => {
            let end = End::meet();
            end.queue.request_event(false).unwrap();
            println!("READY");
            let mut wanted = libc_pollfd(&end.channel);
            let begun = Instant::now();
            while end.channel.poll_event().unwrap().is_none() {
                assert!(begun.elapsed() < PATIENCE, "nobody woke it");
                // SAFETY: one structure.
                unsafe { poll(&mut wanted, 1, 60_000) };
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
            end.post(Operation::Send(Some(9)), Local::Empty);
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
                end.post(Operation::Write(end.peer, None), Local::Inline(&[1; 8]));
            }
            let [first, second] = [end.next(), end.next()].map(|done| done.status());
            assert_eq!(first, ibv_wc_status::IBV_WC_RETRY_EXC_ERR);
            assert_eq!(second, ibv_wc_status::IBV_WC_WR_FLUSH_ERR);
            println!("RESULT lost");
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

/// Stays until the test has what it needs.
fn rest() {
    let _ = std::io::stdin().read_line(&mut String::new());
}

#[repr(C)]
struct PollFd {
    fd: i32,
    events: i16,
    revents: i16,
}

unsafe extern "C" {
    fn poll(list: *mut PollFd, count: u64, milliseconds: i32) -> i32;
}

fn libc_pollfd(channel: &CompletionChannel) -> PollFd {
    use std::os::fd::AsRawFd;
    let fd = channel.fd().as_raw_fd();
    PollFd {
        fd,
        events: 1,
        revents: 0,
    }
}

/// A process with a role, and what it has said.
struct Process {
    child: Child,
    lines: BufReader<std::process::ChildStdout>,
}

impl Process {
    fn start(role: &str, settings: &str) -> Process {
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "role", "--nocapture"])
            .env(ROLE, role)
            .env("SOFT_VERBS", settings)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let lines = BufReader::new(child.stdout.take().unwrap());
        Process { child, lines }
    }

    /// What follows this word in the next line that has it.
    fn said(&mut self, word: &str) -> String {
        let mut line = String::new();
        while self.lines.read_line(&mut line).unwrap() > 0 {
            if let Some((_, rest)) = line.split_once(word) {
                return rest.trim().into();
            }
            line.clear();
        }
        let mut why = String::new();
        let mut errors = self.child.stderr.take().unwrap();
        std::io::Read::read_to_string(&mut errors, &mut why).unwrap();
        panic!("it ended without {word}: {why}")
    }

    fn tell(&mut self, text: &str) {
        let input = self.child.stdin.as_mut().unwrap();
        writeln!(input, "{text}").unwrap();
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Two processes that have met, on two hosts of one network.
fn pair(roles: [&str; 2], settings: &str) -> [Process; 2] {
    let hosts = ["a", "b"];
    let mut both = [0, 1].map(|end| {
        let settings = format!("{settings},host={}", hosts[end]);
        Process::start(roles[end], settings.trim_start_matches(','))
    });
    let [first, second] = [0, 1].map(|end| both[end].said("AT "));
    both[0].tell(&second);
    both[1].tell(&first);
    both
}

#[test]
fn an_aligned_word_arrives_whole() {
    let [mut writer, mut reader] = pair(["write-words", "read-words"], "");
    assert_eq!(writer.said("RESULT "), "written");
    println!("{}", reader.said("RESULT "));
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
    let [mut first, mut second] = pair(["lose", "stay"], "");
    first.said("READY");
    second.said("READY");
    second.child.kill().unwrap();
    second.child.wait().unwrap();
    first.tell("go on");
    assert_eq!(first.said("RESULT "), "lost");
}

#[test]
fn a_profile_has_the_limits_of_its_device() {
    for (profile, expected) in [
        ("small-cq", "[true, false, true, false] 65535 16383"),
        ("mlx5", "[true, true, true, true] 4194303 32767"),
        ("irdma", "[true, true, false, false] 1048574 0"),
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
