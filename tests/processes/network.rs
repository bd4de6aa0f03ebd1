//! The ranks of `processes.rs` over the `tcp` transport: connections instead of shared memory, with
//! one rail and with several, with and without integrity checks.

use super::oracle::{Case, cases};
use super::{results, spawn};
use linerate_children::{end, spawn_late, start_each};

pub const TCP: (&str, &str) = ("LINERATE_TRANSPORT", "tcp");

/// Cases that can run on the transport of this process.
pub fn runnable(ranks: u32) -> Vec<Case> {
    let has_messages = |name: String| name == TCP.1 || name.starts_with("ofi");
    let is_far = std::env::var(TCP.0).is_ok_and(has_messages);
    let needs_host = |case: &Case| {
        let named = |name| linerate::collective::find(case.collective, name).unwrap();
        case.algorithm.is_some_and(|name| named(name).needs.mapped)
    };
    cases(ranks)
        .into_iter()
        .filter(|case| case.can_run_on_one_host() && !(is_far && needs_host(case)))
        .collect()
}

#[test]
fn every_algorithm_gives_the_same_bits_over_any_number_of_rails() {
    for ranks in [1, 2, 3, 5] {
        let one = results(spawn("sweep", ranks, &[TCP]));
        let rails = [
            TCP,
            ("LINERATE_TCP_RAILS", "3"),
            ("LINERATE_INTEGRITY", "crc"),
            ("LINERATE_CHUNK_BYTES", "16K"),
        ];
        let three = results(spawn("sweep", ranks, &rails));
        assert_eq!(one, three, "{ranks} ranks: one rail and three differ");
        let common: Vec<&str> = one.iter().filter_map(|l| l.split(' ').next()).collect();
        assert!(
            common.iter().all(|c| *c == common[0] && c.len() == 16),
            "{one:?}"
        );
    }
}

#[test]
fn more_ranks_than_are_connected_beforehand_connect_at_the_first_use() {
    results(spawn("nothing", 20, &[TCP]));
    results(spawn("opposite", 18, &[TCP]));
}

#[test]
fn operations_overlap_and_threads_drive_one_engine() {
    let secret = ("LINERATE_SECRET", "0123456789abcdef0123456789abcdef");
    results(spawn("overlap", 3, &[TCP, secret]));
    results(spawn("overlap", 3, &[TCP, ("LINERATE_PROGRESS", "thread")]));
    results(spawn("threads", 2, &[TCP]));
    results(spawn("threads", 2, &[TCP, ("LINERATE_TCP_RAILS", "2")]));
    results(spawn_late(("patient", 2), (1, &[0], "LOOKED"), &[TCP]));
}

/// Traffic of pairs, with the ranks that it takes.
pub const OF_PAIRS: [(&str, u32); 9] = [
    ("partial", 3),
    ("stream", 2),
    ("classes", 2),
    ("opposite", 3),
    ("outstanding", 2),
    ("dropped", 2),
    ("mixed", 3),
    ("small", 4),
    ("wrong", 3),
];

#[test]
fn traffic_of_pairs_flows() {
    for rails in ["1", "4"] {
        let rails = ("LINERATE_TCP_RAILS", rails);
        for (role, ranks) in OF_PAIRS {
            results(spawn(role, ranks, &[TCP, rails]));
        }
    }
    let thread_on_one = [TCP, ("LINERATE_TEST_THREAD_ON", "1")];
    results(spawn("small", 3, &thread_on_one));
    results(spawn("slow", 2, &[TCP, ("LINERATE_TIMEOUT", "3")]));
}

#[test]
fn absence_and_death_are_named() {
    let timeout = [TCP, ("LINERATE_TIMEOUT", "2")];
    let lines = results(spawn_late(("absent", 3), (2, &[0, 1], "RESULT"), &timeout));
    for line in &lines[..2] {
        assert!(line.contains("rank 2 is missing"), "{line}");
    }
    let lines = results(spawn("leave", 3, &[TCP]));
    for rank in [0, 2] {
        let line = &lines[rank];
        assert!(line.contains("rank 1 failed: its process ended"), "{line}");
    }
    for line in results(spawn_late(
        ("stuck-pair", 3),
        (1, &[0, 2], "RESULT"),
        &timeout,
    )) {
        assert!(line.contains("rank 1 is missing"), "{line}");
    }
}

#[test]
fn ranks_with_other_secrets_or_settings_are_refused() {
    for (name, values, expected) in [
        ("LINERATE_INTEGRITY", ["crc", "off"], "LINERATE_INTEGRITY"),
        (
            "LINERATE_SECRET",
            ["0123456789abcdef", "fedcba9876543210"],
            "LINERATE_SECRET",
        ),
    ] {
        let [first, second] = values;
        let extra = [TCP, ("LINERATE_TIMEOUT", "2")];
        let own = [first, second].map(|value| vec![(name, value)]);
        for output in end(start_each("nothing", &own, &extra)) {
            let text = String::from_utf8_lossy(&output.stderr).into_owned();
            assert!(!output.status.success(), "{name}: {text}");
            assert!(text.contains(expected), "{name}: {text}");
        }
    }
}
