//! Floods, and what the system has no more of: in processes of their own.

use super::pair::{Pair, over, place};
use super::{settings, until_closed};
use linerate::options::TcpSettings;
use linerate::transport;
use linerate_children::{Child, role, text, within};
use rustix::net::sockopt;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use std::net::{TcpListener, TcpStream};
use std::time::{Duration, Instant};

fn in_process(name: &str) -> String {
    let output = Child::start(&mut role(name)).end();
    assert!(output.status.success(), "{}", text(&output));
    text(&output)
}

/// Descriptors that this process may have, at most `wanted`.
fn allow_descriptors(wanted: u64) -> u64 {
    let limit = getrlimit(Resource::Nofile);
    let current = limit.maximum.map_or(wanted, |most| most.min(wanted));
    let wanted = Rlimit {
        current: Some(current),
        maximum: limit.maximum,
    };
    setrlimit(Resource::Nofile, wanted).unwrap();
    current
}

/// Memory of this process, KiB.
fn resident_kib() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find(|l| l.starts_with("VmRSS:")).unwrap();
    line.split_whitespace().nth(1).unwrap().parse().unwrap()
}

/// 10,000 connections that say nothing, as many of them open at once as the system allows.
pub fn flood() {
    const CONNECTIONS: usize = 10_000;
    let descriptors = allow_descriptors(CONNECTIONS as u64 + 500);
    let mut pair = Pair::connected(&settings());
    let place = place(&pair.0[1].transport.local_address()).0;
    pair.exchange(4 << 20);
    let before = resident_kib();
    let mut silent = std::collections::VecDeque::new();
    for number in 0..CONNECTIONS {
        let stream = TcpStream::connect(place).unwrap();
        // Its end leaves nothing behind in the kernel, where other tests look.
        sockopt::set_socket_linger(&stream, Some(Duration::ZERO)).unwrap();
        silent.push_back(stream);
        if silent.len() as u64 > descriptors - 400 {
            silent.pop_front();
        }
        pair.step();
        if number.is_multiple_of(1000) {
            pair.exchange(1 << 20);
        }
    }
    pair.exchange(4 << 20);
    let grown = resident_kib().saturating_sub(before);
    println!("OPEN {}", silent.len());
    println!("GROWN {grown}");
    println!(
        "AWAY {}",
        pair.0[1].count("unauthenticated peers turned away")
    );
}

#[test]
fn ten_thousand_silent_connections_hold_nothing_up_and_cost_no_memory() {
    let text = in_process("flood");
    let number = |key: &str| -> u64 {
        let line = text.lines().find_map(|l| l.split_once(key));
        line.unwrap_or_else(|| panic!("{text}"))
            .1
            .trim()
            .parse()
            .unwrap()
    };
    println!(
        "{} open at once, {} KiB more",
        number("OPEN "),
        number("GROWN ")
    );
    // 1024 connections without proof of a few hundred bytes, and the list of sockets of this test.
    assert!(number("GROWN ") < 8 * 1024, "{text}");
    assert!(number("AWAY ") > 10_000 - 1_100, "{text}");
    assert!(
        text.contains("turned away") && text.contains("from 127.0.0.1:"),
        "{text}"
    );
    // A few lines, not ten thousand.
    let lines = text.lines().filter(|l| l.contains("turned away")).count();
    assert!(lines < 40, "{lines} lines");
}

/// Connections from outside the job take every descriptor that is left.
pub fn few_descriptors() {
    let mut pair = Pair::connected(&TcpSettings {
        rails: 2,
        ..settings()
    });
    let place = place(&pair.0[1].transport.local_address()).0;
    let open = std::fs::read_dir("/proc/self/fd").unwrap().count() as u64;
    allow_descriptors(open + 40);
    let mut silent = Vec::new();
    while let Ok(stream) = TcpStream::connect(place) {
        silent.push(stream);
        pair.step();
    }
    // Nothing is left for this test's side either; connections in the kernel's queue wait for
    // descriptors.
    let mut last = silent.pop().unwrap();
    pair.exchange(1 << 20);
    silent.truncate(3);
    until_closed(&mut pair, &mut last);
    drop(silent);
    let start = Instant::now();
    while start.elapsed() < Duration::from_millis(100) {
        pair.step();
    }
    pair.exchange(4 << 20);
    let opened = transport::open("tcp", 0, 2, 0, &over(&settings()));
    println!("OPENED {}", opened.is_ok());
    // And a transport that finds none at all.
    let open = std::fs::read_dir("/proc/self/fd").unwrap().count() as u64;
    allow_descriptors(open - 1);
    let error = transport::open("tcp", 0, 2, 0, &over(&settings()))
        .err()
        .unwrap();
    println!("ERROR {error}");
}

#[test]
fn a_rank_without_descriptors_closes_silent_connections_and_says_so() {
    let text = in_process("few-descriptors");
    assert!(text.contains("no file descriptor is left"), "{text}");
    assert!(text.contains("ulimit -n"), "{text}");
    assert!(text.contains("OPENED true"), "{text}");
    let error = text.lines().find(|l| l.starts_with("ERROR")).unwrap();
    assert!(error.contains("RLIMIT_NOFILE"), "{error}");
}

/// Every port that the system gives out is taken.
pub fn no_ports() {
    let taken: Vec<TcpListener> = (0..100)
        .map_while(|_| TcpListener::bind("127.0.0.1:0").ok())
        .collect();
    assert!(taken.len() < 100, "the range of ports is not small");
    let error = transport::open("tcp", 0, 2, 0, &over(&settings()))
        .err()
        .unwrap();
    println!("ERROR {error}");
}

#[test]
fn a_rank_that_finds_every_port_taken_says_so() {
    let script = "ip link set lo up && echo 50000 50003 > /proc/sys/net/ipv4/ip_local_port_range && exec \"$0\" \"$@\"";
    let mut command = within(
        &["unshare", "-r", "-n", "sh", "-c", script],
        &role("no-ports"),
    );
    let output = Child::start(&mut command).end();
    let text = text(&output);
    if !output.status.success() && !text.contains("no_ports") && !text.contains("panicked") {
        return println!("skipped: no network namespace can be made here: {text}");
    }
    let error = text
        .lines()
        .find(|l| l.starts_with("ERROR"))
        .unwrap_or_else(|| panic!("{text}"));
    assert!(
        error.contains("in use") && error.contains("ip_local_port_range"),
        "{error}"
    );
}
