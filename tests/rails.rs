//! Connections that die under ranks of the `tcp` transport: killed from outside while operations run, replaced, and all of
//! them at once.
//!
//! A test starts this very program again, once per rank, with `LINERATE_TEST_ROLE` set; the child runs [`child_entry`] and
//! nothing else. The test takes a rank's sockets out of its process (pidfd_getfd) and breaks them there.

#[path = "rails/connections.rs"]
mod connections;
#[path = "processes/spawn.rs"]
mod spawn;

use linerate::prng::Prng;
use linerate::{Buffer, Call, Communicator, Config, DataType, ReduceOp};
use rustix::process::Pid;
use std::collections::BTreeMap;
use std::process::{Child, Output};
use std::time::{Duration, Instant};

/// Between two kills.
const EVERY: Duration = Duration::from_millis(100);
/// Far longer than anything here takes: only a hang lasts longer.
const HANG: Duration = Duration::from_secs(120);

#[test]
fn child_entry() {
    let Ok(role) = std::env::var("LINERATE_TEST_ROLE") else {
        return;
    };
    let config = Config::from_lookup(|name| std::env::var(name).ok()).unwrap();
    let comm = Communicator::from_env(config).unwrap();
    match role.as_str() {
        "thousand" => thousand(&comm),
        "until-failure" => until_failure(&comm),
        other => panic!("no role {other}"),
    }
}

/// A sum of `count` numbers; panics if one is wrong.
fn sum(comm: &Communicator, buffer: &Buffer, count: usize, round: u64) -> linerate::Result<()> {
    let part = buffer.part(0, 8 * count);
    let own = |i: usize| round * 1_000_003 + i as u64 * (1 + u64::from(comm.rank()));
    part.write(0, &(0..count).map(own).collect::<Vec<u64>>());
    let call = Call::all_reduce(DataType::U64, ReduceOp::Sum, count as u64, &part, &part);
    comm.run(&call)?;
    let ranks = u64::from(comm.ranks());
    let of_ranks = ranks * (ranks + 1) / 2;
    let right = |i: usize| ranks * round * 1_000_003 + i as u64 * of_ranks;
    let wrong = part
        .to_vec::<u64>()
        .iter()
        .enumerate()
        .filter(|&(i, &v)| v != right(i))
        .count();
    assert_eq!(wrong, 0, "round {round}, {count} numbers");
    Ok(())
}

/// A thousand allreduces of all sizes, and whoever is behind waits for nobody.
fn thousand(comm: &Communicator) {
    let counts = [1, 100, 40_000, 200_000, 600_000];
    let buffer = comm.alloc(8 * counts[4]).unwrap();
    for round in 0..1000 {
        sum(comm, &buffer, counts[round as usize % 5], round).unwrap();
    }
    // Nobody leaves while others still need an answer about a lost connection.
    comm.barrier().unwrap();
    for (name, count) in comm.transport_counts() {
        println!("COUNT {count} {name}");
    }
}

/// Operations until one fails, which ends well if its error names the peer.
fn until_failure(comm: &Communicator) {
    let buffer = comm.alloc(1 << 20).unwrap();
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

/// Breaks a connection of a random rank every [`EVERY`] until all ranks have ended; how many it broke.
fn break_until_end(children: &mut [Child], prng: &mut Prng) -> u32 {
    let (start, mut broken) = (Instant::now(), 0);
    let is_over = |c: &mut Child| c.try_wait().unwrap().is_some();
    while !children.iter_mut().all(is_over) {
        if start.elapsed() > HANG {
            children.iter_mut().for_each(|c| c.kill().unwrap());
            return broken;
        }
        std::thread::sleep(EVERY);
        let child = &children[prng.below(children.len() as u64) as usize];
        let found = connections::of_process(child.id());
        if !found.is_empty() {
            let victim = &found[prng.below(found.len() as u64) as usize];
            connections::cut(&victim.socket, prng.below(2) == 0);
            broken += 1;
        }
    }
    broken
}

fn text(output: &Output) -> String {
    let [stdout, stderr] = [&output.stdout, &output.stderr].map(|t| String::from_utf8_lossy(t));
    format!("{}\n{stdout}\n{stderr}", output.status)
}

/// The sums over ranks of what they counted.
fn counts(outputs: &[Output]) -> BTreeMap<String, u64> {
    let mut sums = BTreeMap::new();
    for output in outputs {
        assert!(output.status.success(), "{}", text(output));
        for line in String::from_utf8_lossy(&output.stdout).lines() {
            if let Some((count, name)) = line.strip_prefix("COUNT ").and_then(|l| l.split_once(' '))
            {
                *sums.entry(name.to_string()).or_insert(0) += count.parse::<u64>().unwrap();
            }
        }
    }
    sums
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
        let mut children = spawn::start("thousand", &vec![("X", ""); ranks], &extra);
        let mut prng = Prng::new(ranks as u64);
        let broken = break_until_end(&mut children, &mut prng);
        let outputs = spawn::end(children);
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
    let children = spawn::start("until-failure", &[("X", ""); 2], &extra);
    let [survivor, victim] = [0, 1].map(|rank: usize| children[rank].id());
    let start = Instant::now();
    while connections::of_process(survivor).len() < 2 {
        assert!(start.elapsed() < HANG, "never connected");
        std::thread::sleep(Duration::from_millis(1));
    }
    std::thread::sleep(Duration::from_millis(200));
    let pid = Pid::from_raw(victim as i32).unwrap();
    // Its host goes on taking connections, and nobody speaks on them.
    rustix::process::kill_process(pid, rustix::process::Signal::STOP).unwrap();
    for connection in connections::of_process(survivor) {
        connections::cut(&connection.socket, true);
    }
    let mut children = children.into_iter();
    let output = children.next().unwrap().wait_with_output().unwrap();
    rustix::process::kill_process(pid, rustix::process::Signal::KILL).unwrap();
    children.next().unwrap().wait().unwrap();
    let told = text(&output);
    assert!(output.status.success(), "{told}");
    assert!(told.contains("ERROR") && told.contains("rank 1"), "{told}");
    assert!(told.contains("rail ") && told.contains("0 left"), "{told}");
}
