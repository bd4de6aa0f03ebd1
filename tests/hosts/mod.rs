//! Ranks on two hosts, which are network namespaces: rails that are killed while operations run,
//! hosts that vanish, attackers on the other host, and a parameter server. What loopback can show
//! is in `rails.rs` and `strangers.rs`.
//!
//! A test starts this very program again inside a namespace, with `LINERATE_TEST_ROLE` set; the
//! child runs [`child_entry`] and nothing else. Without root or the `ip` command the tests say that
//! they were skipped, and pass.

pub mod attacker;
pub mod servers;

use crate::connections;
use crate::prng::Prng;
use crate::work::{self, break_until_end, counts};
use linerate::{Communicator, ReduceOp};
use linerate_children::hosts::{COMMON, Hosts, place};
use linerate_children::{Child, end, role, text, wait_for};
use rustix::process::Signal;
use std::path::Path;
use std::time::Duration;

const RANKS: usize = 4;
/// Connections that say nothing.
const SILENT: &str = "10000";
/// What they may cost a rank.
const GROWN_KIB_MAX: u64 = 16 * 1024;

/// Sums until somebody makes a file.
pub fn steady(comm: &Communicator) {
    let stop = std::env::var("LINERATE_TEST_STOP").unwrap();
    let buffer = comm.alloc(20_000).unwrap();
    println!("READY");
    for round in 0.. {
        work::sum(comm, &buffer, 20_000, round).unwrap();
        let mut is_over = [u64::from(comm.rank() == 0 && Path::new(&stop).exists())];
        comm.all_reduce(&mut is_over, ReduceOp::Max).unwrap();
        if is_over[0] == 1 {
            println!("RESULT {round}");
            return;
        }
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// A few sums, and what was counted meanwhile.
pub fn few(comm: &Communicator) {
    let buffer = comm.alloc(20_000).unwrap();
    (0..20).for_each(|round| work::sum(comm, &buffer, 20_000, round).unwrap());
    comm.barrier().unwrap();
    for (name, count) in comm.transport_counts() {
        println!("COUNT {count} {name}");
    }
}

/// Some ranks die in the middle of sums; the others go on without them.
pub fn rebuild(comm: Communicator) {
    let victims = std::env::var("LINERATE_TEST_VICTIMS").unwrap();
    let is_victim = victims.split(',').any(|v| v == comm.rank().to_string());
    let buffer = comm.alloc(20_000).unwrap();
    println!("READY");
    let end = if is_victim { 20 } else { u64::MAX };
    let failed = |round| work::sum(&comm, &buffer, 20_000, round).is_err();
    (0..end).find(|&round| failed(round));
    if is_victim {
        // Also where another victim's death came first.
        rustix::process::kill_process(rustix::process::getpid(), Signal::KILL).unwrap();
    }
    let rebuilt = match comm.rebuild() {
        Ok(rebuilt) => rebuilt,
        Err(error) => return println!("REFUSED {error}"),
    };
    drop(comm);
    // Operations do not use again what peers could write when one failed.
    let buffer = rebuilt.alloc(20_000).unwrap();
    (0..20).for_each(|round| work::sum(&rebuilt, &buffer, 20_000, round).unwrap());
    rebuilt.barrier().unwrap();
    println!("RESULT rank {} of {}", rebuilt.rank(), rebuilt.ranks());
}

/// This program inside a host, in a role.
fn start(hosts: &Hosts, host: usize, name: &str, more: &[(&str, &str)]) -> Child {
    Child::start(hosts.inside(host, &role(name)).envs(more.iter().copied()))
}

/// A rank of [`RANKS`], half of them on each host.
fn start_rank(hosts: &Hosts, rank: usize, role: &str, more: &[(&str, &str)]) -> Child {
    let place = place(rank, RANKS);
    let own = place.iter().map(|(name, value)| (*name, value.as_str()));
    let all: Vec<(&str, &str)> = own.chain(COMMON).chain(more.iter().copied()).collect();
    start(hosts, rank / 2, role, &all)
}

fn resident_kib(child: &Child) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{}/status", child.id())).unwrap();
    let line = status.lines().find(|l| l.starts_with("VmRSS:")).unwrap();
    line.split_whitespace().nth(1).unwrap().parse().unwrap()
}

/// Where the processes of a host listen.
fn listening(child: &Child) -> Vec<String> {
    let read = |name: &str| std::fs::read_to_string(format!("/proc/{}/net/{name}", child.id()));
    let mut found = Vec::new();
    for table in [read("tcp"), read("tcp6")] {
        for line in table.unwrap().lines() {
            let words: Vec<&str> = line.split_whitespace().collect();
            // Number, own address, peer's, state; 0A: listening.
            if let [_, own, _, "0A", ..] = words[..] {
                let port = u16::from_str_radix(own.rsplit(':').next().unwrap(), 16).unwrap();
                found.push(format!("10.77.0.1:{port}"));
            }
        }
    }
    found
}

#[test]
fn a_rail_between_hosts_killed_every_100_ms_costs_a_thousand_allreduces_nothing() {
    let Some(hosts) = Hosts::new("rails") else {
        return;
    };
    let extra = [
        ("LINERATE_TCP_RAILS", "3"),
        ("LINERATE_CHUNK_BYTES", "1M"),
        ("LINERATE_TIMEOUT", "60"),
    ];
    let start = |rank| start_rank(&hosts, rank, "thousand", &extra);
    let mut children: Vec<Child> = (0..RANKS).map(start).collect();
    let is_between = |c: &connections::Connection| c.own.ip() != c.peer.ip();
    let broken = break_until_end(&mut children, &mut Prng::new(4), is_between);
    let outputs = end(children);
    let counts = counts(&outputs);
    println!("{broken} broken; {counts:?}");
    assert!(counts["rails lost"] >= 6, "{counts:?}");
    assert!(counts["chunks sent"] > 1000, "{counts:?}");
    assert_eq!(
        counts["chunks sent"], counts["chunks received"],
        "{counts:?}"
    );
}

#[test]
fn ranks_that_say_they_share_a_host_and_do_not_find_out_and_use_connections() {
    let Some(hosts) = Hosts::new("lie") else {
        return;
    };
    let extra = [
        ("LINERATE_HOSTID", "one"),
        ("LINERATE_TRANSPORT", "router"),
        ("LINERATE_TIMEOUT", "60"),
    ];
    let start = |rank| start_rank(&hosts, rank, "few", &extra);
    let outputs = end((0..RANKS).map(start).collect());
    // Two on the other host, for each.
    assert_eq!(
        counts(&outputs)["pairs of this host without shared memory"],
        8
    );
    for output in &outputs {
        let told = text(output);
        assert_eq!(
            told.matches("shares no memory with it").count(),
            1,
            "{told}"
        );
    }
}

#[test]
fn survivors_on_both_hosts_go_on_without_the_dead() {
    let Some(hosts) = Hosts::new("rebuild") else {
        return;
    };
    // One, the first, one of each host, and all of the other host than rank 0's.
    for victims in ["3", "0", "0,2", "2,3"] {
        // Once with everything sealed that they say to each other.
        let tls = if victims == "0,2" { "on" } else { "off" };
        let extra = [
            ("LINERATE_TEST_VICTIMS", victims),
            ("LINERATE_TIMEOUT", "30"),
            ("LINERATE_TLS", tls),
        ];
        let start = |rank| start_rank(&hosts, rank, "rebuild", &extra);
        let outputs = end((0..RANKS).map(start).collect());
        let dead: Vec<usize> = victims.split(',').map(|v| v.parse().unwrap()).collect();
        let alive = RANKS - dead.len();
        let mut next = 0;
        for (rank, output) in outputs.iter().enumerate() {
            let told = text(output);
            let is_dead = dead.contains(&rank);
            assert_eq!(output.status.success(), !is_dead, "{victims}: {told}");
            if !is_dead {
                let result = format!("RESULT rank {next} of {alive}");
                assert!(told.contains(&result), "{victims}: {told}");
                next += 1;
            }
        }
    }
}

#[test]
fn half_of_the_ranks_do_not_take_a_host_for_dead_that_only_refuses() {
    let Some(hosts) = Hosts::new("silent") else {
        return;
    };
    // They are dead, and no rank of their host is left to say so.
    let extra = [("LINERATE_TEST_VICTIMS", "0,1"), ("LINERATE_TIMEOUT", "30")];
    let start = |rank| start_rank(&hosts, rank, "rebuild", &extra);
    let outputs = end((0..RANKS).map(start).collect());
    for output in &outputs[2..] {
        let told = text(output);
        let word = "REFUSED bootstrap: ranks [0, 1] cannot be reached and may live";
        assert!(told.contains(word), "{told}");
    }
}

#[test]
fn of_two_hosts_that_are_cut_apart_one_goes_on_and_the_other_does_not() {
    let silence: fn(&Hosts) = |hosts| hosts.set_link("down");
    check_apart("apart", silence);
    check_apart("refuse", Hosts::refuse);
}

/// Two of the ranks on each side of a link that is cut in this way.
fn check_apart(name: &str, cut: fn(&Hosts)) {
    let Some(hosts) = Hosts::new(name) else {
        return;
    };
    let extra = [
        ("LINERATE_TEST_VICTIMS", "nobody"),
        ("LINERATE_TIMEOUT", "10"),
        ("LINERATE_TCP_TIMEOUT", "2"),
    ];
    let start = |rank| start_rank(&hosts, rank, "rebuild", &extra);
    let mut ranks: Vec<Child> = (0..RANKS).map(start).collect();
    for rank in &mut ranks {
        rank.wait_line("READY");
    }
    cut(&hosts);
    let told: Vec<String> = end(ranks).iter().map(text).collect();
    for (rank, told) in told.iter().enumerate() {
        let word = match rank < 2 {
            true => format!("RESULT rank {rank} of 2"),
            false => "REFUSED bootstrap: ranks [0, 1] cannot be reached and may live".into(),
        };
        assert!(told.contains(&word), "{told}");
    }
}

#[test]
fn a_host_that_vanishes_while_its_ranks_wait_fails_both_sides_naming_who_is_missing() {
    let Some(hosts) = Hosts::new("vanish") else {
        return;
    };
    let extra = [("LINERATE_TIMEOUT", "4"), ("LINERATE_TEST_STOP", "/")];
    let start = |rank| start_rank(&hosts, rank, "steady", &extra);
    // Rank 2 never comes.
    let children: Vec<Child> = [0, 1, 3].map(start).into_iter().collect();
    std::thread::sleep(Duration::from_secs(2));
    hosts.set_link("down");
    let outputs = end(children);
    for (output, rank) in outputs.iter().zip([0, 1, 3]) {
        let told = text(output);
        assert!(!output.status.success(), "rank {rank}: {told}");
        let is_told = match rank {
            3 => told.contains("rank 0 did not answer in time"),
            _ => told.contains("ranks [2] did not come in time; ranks [0, 1, 3] came"),
        };
        assert!(is_told, "rank {rank}: {told}");
    }
}

/// Attackers of these places of the first host; they stay until their input ends.
fn attack(hosts: &Hosts, targets: &str) -> Child {
    let more = [
        ("LINERATE_TEST_TARGETS", targets),
        ("LINERATE_TEST_SILENT", SILENT),
    ];
    let mut attacker = start(hosts, 1, "attack", &more);
    let done = attacker.wait_line("DONE");
    assert!(done.ends_with(SILENT), "{done}");
    attacker
}

fn check_growth(child: &Child, before: u64, when: &str) {
    let grown = resident_kib(child).saturating_sub(before);
    println!("{when}: {grown} KiB more");
    assert!(grown < GROWN_KIB_MAX, "{when}: {grown} KiB more");
}

#[test]
fn strangers_from_another_host_hold_nothing_up_and_are_named() {
    let Some(hosts) = Hosts::new("strangers") else {
        return;
    };
    let stop = Path::new(env!("CARGO_TARGET_TMPDIR")).join("hosts-strangers-stop");
    let _ = std::fs::remove_file(&stop);
    let extra = [
        ("LINERATE_TIMEOUT", "90"),
        ("LINERATE_TEST_STOP", stop.to_str().unwrap()),
    ];
    let start_one = |rank| start_rank(&hosts, rank, "steady", &extra);
    let mut ranks: Vec<Child> = [0, 1].map(start_one).into_iter().collect();
    // The control port, while ranks are waited for.
    wait_for("listening at the control port", || {
        listening(&ranks[0]).contains(&"10.77.0.1:29555".into())
    });
    let before = resident_kib(&ranks[0]);
    let at_control = attack(&hosts, "10.77.0.1:29555");
    check_growth(&ranks[0], before, "strangers at the control port");
    // A rank that comes over a relay, which says again what it has heard, while the silent ones are
    // there.
    let places = "10.77.0.2:29556,10.77.0.1:29555";
    let mut relay = start(&hosts, 1, "relay", &[("LINERATE_TEST_TARGETS", places)]);
    relay.wait_line("DONE");
    let through = [
        extra[0],
        extra[1],
        ("LINERATE_RENDEZVOUS", "tcp://10.77.0.2:29556"),
    ];
    ranks.push(start_rank(&hosts, 3, "steady", &through));
    let replayed = relay.wait_line("REPLAYED");
    // A challenge, perhaps, and no verdict.
    assert!(
        ["REPLAYED 0", "REPLAYED 80"].contains(&&*replayed),
        "{replayed}"
    );
    ranks.push(start_one(2));
    for rank in &mut ranks {
        rank.wait_line("READY");
    }
    // The ports of the ranks, while they work.
    std::thread::sleep(Duration::from_millis(300));
    let ports = listening(&ranks[0]);
    assert!(ports.len() >= 2, "{ports:?}");
    let before = resident_kib(&ranks[0]);
    let at_data = attack(&hosts, &ports.join(","));
    check_growth(&ranks[0], before, "strangers at the ports of the ranks");
    std::fs::write(&stop, "").unwrap();
    let outputs = end(ranks);
    drop([at_control, at_data, relay]);
    for output in &outputs {
        let told = text(output);
        assert!(
            output.status.success() && told.contains("RESULT "),
            "{told}"
        );
    }
    let told = text(&outputs[0]);
    for who in [
        "rank 0 refused a connection: one from 10.77.0.2:",
        "a connection from 10.77.0.2:",
    ] {
        assert!(told.contains(who), "{who}: {told}");
    }
    let lines = told.lines().filter(|l| l.contains("10.77.0.2:")).count();
    assert!(lines < 60, "{lines} lines");
}
