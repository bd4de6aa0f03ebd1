//! Threads, processes and forked children that use one endpoint or name each other's.
#![allow(missing_docs, unsafe_code)]

mod rig;

use linerate_fabric_sys::raw::*;
use linerate_fabric_sys::*;
use rig::{End, PROVIDERS, Rig, alone, for_each, library, offer, pattern};
use std::io::{BufRead, BufReader, Write as _};
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

/// Runs a test of this program in a process of its own.
fn run_alone(test: &str) -> Command {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args([
        "--exact",
        test,
        "--ignored",
        "--nocapture",
        "--test-threads=1",
    ]);
    command
}

#[test]
fn a_queue_with_a_descriptor_can_be_waited_for() {
    for_each(|info| {
        let fabric = Fabric::open(info).unwrap();
        let domain = Domain::open(&fabric, info).unwrap();
        if let Err(why) = CompletionQueue::open(&domain, 16, 4, Wait::Descriptor) {
            return eprintln!("skipped: {why}");
        }
        drop((domain, fabric));
        let rig = Rig::with(info, Wait::Descriptor);
        let queue = &rig.ends[0].queue;
        assert!(queue.descriptor().is_some());
        rig.post(|| {
            rig.ends[0]
                .endpoint
                .post_write(&rig.write(1, (0, 0, 8), Some(3)))
        });
        let other = &rig.ends[1].queue;
        let mut room = [Completion::default(); 4];
        let arrived = loop {
            // Both ends have to move on.
            rig.ends[0].poll();
            let _ = other.may_sleep().unwrap();
            match other.wait(&mut room, Duration::from_millis(10)).unwrap() {
                0 => continue,
                count => break room[..count].to_vec(),
            }
        };
        assert_eq!(arrived[0].data(), Some(3));
        rig.wait(0, 1);
        assert_eq!(other.wait(&mut room, Duration::from_millis(1)).unwrap(), 0);
    });
}

#[test]
fn a_queue_to_be_polled_refuses_to_wait() {
    for_each(|info| {
        let rig = Rig::new(info);
        let queue = &rig.ends[0].queue;
        assert!(queue.descriptor().is_none());
        let mut room = [Completion::default(); 4];
        let text = queue
            .wait(&mut room, Duration::ZERO)
            .unwrap_err()
            .to_string();
        assert!(text.contains("can only be polled"), "{text}");
    });
}

#[test]
fn the_source_of_a_write_is_the_peer_s_number() {
    for_each(|info| {
        let library = library().unwrap();
        let provider = info.provider_name();
        let asked = Hints {
            caps: rig::CAPS | FI_SOURCE,
            ..rig::hints(&provider)
        };
        let info = match Info::query(library, &asked) {
            Ok(offers) => offers.into_iter().next().unwrap(),
            Err(why) => return eprintln!("skipped: {why}"),
        };
        let rig = Rig::new(&info);
        rig.post(|| {
            rig.ends[0]
                .endpoint
                .post_write(&rig.write(1, (0, 0, 8), Some(3)))
        });
        let source = rig.wait_data(1).source();
        rig.wait(0, 1);
        // A provider need not say where writes come from.
        assert!(
            source.is_none_or(|source| source == rig.peers[1].number()),
            "{source:?}"
        );
        println!("{provider}: {source:?}");
    });
}

/// Three threads write through one endpoint while each of them, and another one, polls.
fn threads_share(info: &Info) {
    const WRITES: u64 = 300;
    let rig = Rig::new(info);
    let (posted, completed) = (AtomicU64::new(0), AtomicU64::new(0));
    let (ends, peer) = (rig.ends.each_ref().map(SharedEnd::of), &rig.peers[0]);
    let place = rig.ends[1].region.place(0).unwrap();
    std::thread::scope(|scope| {
        for thread in 0..3 {
            let (ends, posted, completed) = (&ends, &posted, &completed);
            scope.spawn(move || {
                let mut room = [Completion::default(); 8];
                let mut next = 0;
                while completed.load(Ordering::Relaxed) < 3 * WRITES {
                    let write = Write {
                        id: thread * WRITES + next,
                        source: ends[0].region.segment(64 * thread as usize, 64).unwrap(),
                        peer,
                        place: place.after(64 * thread),
                        data: None,
                        is_more: false,
                    };
                    if next < WRITES
                        && ends[0].endpoint.post_write(&write).unwrap() == Posted::Started
                    {
                        next += 1;
                        posted.fetch_add(1, Ordering::Relaxed);
                    }
                    for end in ends {
                        let count = end.queue.poll(&mut room).unwrap() as u64;
                        completed.fetch_add(count, Ordering::Relaxed);
                    }
                }
            });
        }
    });
    assert_eq!(posted.load(Ordering::Relaxed), 3 * WRITES);
    assert_eq!(completed.load(Ordering::Relaxed), 3 * WRITES);
}

/// What threads may share of an end.
struct SharedEnd {
    endpoint: Arc<Endpoint>,
    queue: Arc<CompletionQueue>,
    region: Arc<Mr>,
}

impl SharedEnd {
    fn of(end: &End) -> SharedEnd {
        SharedEnd {
            endpoint: Arc::clone(&end.endpoint),
            queue: Arc::clone(&end.queue),
            region: Arc::clone(&end.region),
        }
    }
}

#[test]
fn threads_share_an_endpoint_of_a_thread_safe_provider() {
    for_each(threads_share);
}

#[test]
fn threads_share_an_endpoint_of_a_provider_that_wants_one_call_at_a_time() {
    for_each(|info| {
        let provider = info.provider_name();
        let asked = Hints {
            threading: Some(fi_threading::FI_THREAD_DOMAIN),
            ..rig::hints(&provider)
        };
        let info = &Info::query(library().unwrap(), &asked).unwrap()[0];
        println!("{provider} with {:?}", info.threading());
        threads_share(info);
    });
}

/// In a process of its own, because only the thread that forks goes on in the child.
#[test]
fn what_a_forked_child_drops_stays_the_parent_s() {
    let output = run_alone("forks").output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout);
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{text}{errors}");
    assert!(text.contains("1 passed"), "{text}");
}

#[test]
#[ignore = "run by what_a_forked_child_drops_stays_the_parent_s"]
fn forks() {
    for_each(|info| {
        let rig = Rig::new(info);
        rig.ends[0].memory.fill(0..8, 3);
        // SAFETY: the child drops, and leaves without running anything else.
        match unsafe { libc::fork() } {
            0 => {
                drop(rig);
                // SAFETY: ends the child at once.
                unsafe { libc::_exit(0) }
            }
            child => {
                let mut status = 0;
                // SAFETY: our own child.
                assert_eq!(unsafe { libc::waitpid(child, &mut status, 0) }, child);
                assert_eq!(status, 0);
            }
        }
        rig.post(|| {
            rig.ends[0]
                .endpoint
                .post_write(&rig.write(1, (0, 0, 8), Some(1)))
        });
        rig.wait_data(1);
        rig.wait(0, 1);
        assert_eq!(rig.ends[1].memory.copy(0..8), rig.ends[0].memory.copy(0..8));
    });
}

const BYTES: usize = 100_000;
const PROVIDER: &str = "LINERATE_FABRIC_TEST_PROVIDER";

fn domain_of(info: &Info) -> Arc<Domain> {
    Domain::open(&Fabric::open(info).unwrap(), info).unwrap()
}

fn hex_of(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn bytes_of(hex: &str) -> Vec<u8> {
    let digits = |index| u8::from_str_radix(&hex[index..index + 2], 16).unwrap();
    (0..hex.len()).step_by(2).map(digits).collect()
}

#[test]
fn two_processes_write_and_read() {
    let _alone = alone();
    let Some(library) = library() else { return };
    for provider in PROVIDERS {
        if let Some(info) = offer(library, provider) {
            write_to_another_process(&info);
        }
    }
}

fn write_to_another_process(info: &Info) {
    let mut child = run_alone("is_written_to")
        .env(PROVIDER, info.provider_name())
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let (mut to_child, from_child) = (child.stdin.take().unwrap(), child.stdout.take().unwrap());
    let mut lines = BufReader::new(from_child).lines().map(|line| line.unwrap());
    let mut line_of = |word: &str| -> String {
        let found = lines.find_map(|line| line.split_once(word).map(|(_, rest)| rest.to_owned()));
        found.unwrap_or_else(|| panic!("the other process never said {word}"))
    };
    let domain = domain_of(info);
    let end = End::new(&domain, Wait::Poll);
    writeln!(to_child, "{}", hex_of(&end.endpoint.name().unwrap())).unwrap();
    let facts = line_of("reachable ");
    let facts: Vec<&str> = facts.split(' ').collect();
    let peer = end.endpoint.insert(&bytes_of(facts[0])).unwrap();
    let place = Place {
        address: facts[1].parse().unwrap(),
        key: facts[2].parse().unwrap(),
    };
    end.memory.fill(0..BYTES, 4);
    let source = end.region.segment(0, BYTES).unwrap();
    let write = Write {
        id: 1,
        source,
        peer: &peer,
        place,
        data: Some(77),
        is_more: false,
    };
    end.run(1, || end.endpoint.post_write(&write));
    // It moves on while the other process looks at what has come.
    assert_eq!(end.while_polling(|| line_of("got ")), "77 true");
    let destination = end.region.segment(BYTES, BYTES).unwrap();
    let read = Read {
        id: 2,
        destination,
        peer: &peer,
        place,
        is_more: false,
    };
    end.run(2, || end.endpoint.post_read(&read));
    assert!(end.memory.copy(BYTES..2 * BYTES) == end.memory.copy(0..BYTES));
    drop(to_child);
    assert!(child.wait().unwrap().success());
}

#[test]
#[ignore = "run by two_processes_write_and_read"]
fn is_written_to() {
    let provider = std::env::var(PROVIDER).unwrap();
    let info = offer(library().unwrap(), &provider).unwrap();
    let end = End::new(&domain_of(&info), Wait::Poll);
    if info.mode() & FI_RX_CQ_DATA != 0 {
        assert_eq!(end.endpoint.post_receive(1).unwrap(), Posted::Started);
    }
    let mut input = std::io::stdin().lock();
    let mut line = String::new();
    input.read_line(&mut line).unwrap();
    let _peer = end.endpoint.insert(&bytes_of(line.trim_end())).unwrap();
    let place = end.region.place(0).unwrap();
    let name = hex_of(&end.endpoint.name().unwrap());
    println!("reachable {name} {} {}", place.address, place.key);
    let number = end.wait_data();
    let is_good =
        end.memory.copy(0..BYTES) == (0..BYTES).map(|i| pattern(i, 4)).collect::<Vec<u8>>();
    println!("got {number} {is_good}");
    // Serves reads until the other process closes its end.
    let is_over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let is_over = &is_over;
        scope.spawn(move || {
            let _ = std::io::stdin().read_line(&mut String::new());
            is_over.store(true, Ordering::Relaxed);
        });
        drop(input);
        while !is_over.load(Ordering::Relaxed) {
            end.poll();
        }
    });
}
