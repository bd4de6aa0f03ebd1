//! Connections that die under ranks of the `tcp` transport: killed from outside while operations
//! run, replaced, and all of them at once.
//!
//! A test starts this very program again, once per rank, with `LINERATE_TEST_ROLE` set; the child
//! runs [`child_entry`] and nothing else. The test takes a rank's sockets out of its process
//! (pidfd_getfd) and breaks them there.

#[path = "rails/apart.rs"]
mod apart;
#[path = "rails/connections.rs"]
mod connections;
#[path = "hosts/mod.rs"]
mod hosts;
#[path = "../src/prng.rs"]
#[allow(dead_code)]
mod prng;
#[path = "rails/work.rs"]
mod work;

use crate::prng::Prng;
use linerate::Communicator;
use linerate_children::{end, start, text, wait_for};
use rustix::process::Signal;
use work::{break_until_end, counts, sum, thousand};

#[test]
fn child_entry() {
    let Ok(role) = std::env::var("LINERATE_TEST_ROLE") else {
        return;
    };
    match role.as_str() {
        "attack" => return hosts::attacker::attack(),
        "relay" => return hosts::attacker::relay(),
        "come-later" => return hosts::servers::come_later(),
        _ => {}
    }
    let comm = Communicator::from_env().unwrap();
    match role.as_str() {
        "few" => hosts::few(&comm),
        "rebuild" => hosts::rebuild(comm),
        "serve" => hosts::servers::serve(comm),
        "steady" => hosts::steady(&comm),
        "sums" => apart::sums(&comm),
        "thousand" => thousand(&comm),
        "until-failure" => until_failure(&comm),
        other => panic!("no role {other}"),
    }
}

/// Operations until one fails, which ends well if its error names the peer.
fn until_failure(comm: &Communicator) {
    let buffer = comm.alloc::<u64>(1 << 17).unwrap();
    println!("READY");
    let mut round = 0;
    let error = loop {
        if let Err(error) = sum(comm, &buffer, 1 << 17, round) {
            break error;
        }
        round += 1;
    };
    println!("ERROR {error}");
}

#[test]
fn a_rail_killed_every_100_ms_costs_a_thousand_allreduces_nothing() {
    for (ranks, rails, integrity, tls) in [
        (2, "3", "off", "off"),
        (3, "2", "crc", "off"),
        (2, "1", "off", "off"),
        (2, "2", "off", "on"),
        (2, "1", "crc", "on"),
    ] {
        let extra = [
            ("LINERATE_TRANSPORT", "tcp"),
            ("LINERATE_TCP_RAILS", rails),
            ("LINERATE_INTEGRITY", integrity),
            ("LINERATE_TLS", tls),
            ("LINERATE_SECRET", "a secret for rails that are killed"),
            // Several chunks per message and rail.
            ("LINERATE_CHUNK_BYTES", "1M"),
        ];
        let mut children = start("thousand", ranks, &extra);
        let mut prng = Prng::new(u64::from(ranks));
        let broken = break_until_end(&mut children, &mut prng, |_| true);
        let outputs = end(children);
        let counts = counts(&outputs);
        println!("{ranks} ranks, {rails} rails, tls {tls}: {broken} broken; {counts:?}");
        assert!(counts["rails lost"] >= 6, "{counts:?}");
        assert!(counts["chunks sent"] > 1000, "{counts:?}");
        // Every chunk has come once: what is sent again is what had not come.
        assert_eq!(
            counts["chunks sent"], counts["chunks received"],
            "{counts:?}"
        );
        let warnings: String = outputs.iter().map(text).collect();
        assert!(
            warnings.contains("rail ") && warnings.contains("was lost"),
            "{warnings}"
        );
    }
}

#[test]
fn a_peer_that_answers_nobody_and_has_no_rail_left_is_failed_within_the_timeout() {
    let extra = [
        ("LINERATE_TRANSPORT", "tcp"),
        ("LINERATE_TCP_RAILS", "2"),
        ("LINERATE_TIMEOUT", "3"),
    ];
    let mut children = start("until-failure", 2, &extra);
    // Both are in their sums.
    for rank in &mut children {
        rank.wait_line("READY");
    }
    let survivor = children[0].id();
    wait_for("a connection", || {
        connections::of_process(survivor).len() >= 2
    });
    // Its host goes on taking connections, and nobody speaks on them.
    children[1].signal(Signal::STOP);
    for connection in connections::of_process(survivor) {
        connections::cut(&connection.socket, true);
    }
    let output = children.remove(0).end();
    let told = text(&output);
    assert!(output.status.success(), "{told}");
    assert!(told.contains("ERROR") && told.contains("rank 1"), "{told}");
    assert!(told.contains("rail ") && told.contains("0 left"), "{told}");
}
