//! Ranks as processes that find each other over TCP, through files and on ports of a job's name;
//! and what keeps them from it: other programs, other secrets, taken ports, ranks that never come
//! or cannot take part.

#[path = "rendezvous/by_exchange.rs"]
mod by_exchange;
#[path = "rendezvous/job.rs"]
mod job;

use job::{Job, Outcome, free_port, own_address};
use linerate::options::Place;
use linerate::unstable::bootstrap::place_from_env;
use linerate::{Communicator, ReduceOp};
use rustix::net::sockopt;
use std::collections::VecDeque;
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// What a rank does: joins, adds, and says so. Run by the test program itself, as another process.
#[test]
fn child_entry() {
    if std::env::var("LINERATE_TEST_ROLE").is_err() {
        return;
    }
    let run = || -> linerate::Result<()> {
        let communicator = match by_exchange::joined() {
            Some(joined) => joined?,
            None => Communicator::from_env()?,
        };
        let ranks = communicator.ranks();
        let mut data = vec![communicator.rank() as f32 + 1.0; 1000];
        communicator.all_reduce(&mut data, ReduceOp::Sum)?;
        assert!(
            data.iter()
                .all(|&sum| sum == (ranks * (ranks + 1) / 2) as f32)
        );
        communicator.barrier()?;
        println!("good: {ranks} ranks");
        Ok(())
    };
    if let Err(error) = run() {
        println!("error: {error}");
        std::process::exit(1);
    }
}

fn check_good(outcomes: &[Outcome]) {
    for outcome in outcomes {
        let good = format!("good: {} ranks", outcomes.len());
        assert!(outcome.stdout.contains(&good), "{outcomes:#?}");
    }
}

fn check_all_say(outcomes: &[Outcome], words: &[&str]) {
    for outcome in outcomes {
        let is_said = words.iter().all(|word| outcome.stdout.contains(word));
        assert!(
            is_said && !outcome.stdout.contains("good"),
            "{words:?} {outcomes:#?}"
        );
    }
}

fn tcp(port: u16) -> String {
    format!("tcp://127.0.0.1:{port}")
}

#[test]
fn ranks_meet_at_an_address() {
    // Rank 5 is below rank 1, which it reaches with the secret that rank 0 has made.
    check_good(
        &Job::new(6)
            .with("LINERATE_RENDEZVOUS", &tcp(free_port()))
            .run(),
    );
}

#[test]
fn ranks_of_three_levels_of_the_tree_meet() {
    let job = Job::new(22).with("LINERATE_RENDEZVOUS", &tcp(free_port()));
    check_good(&job.with("LINERATE_SECRET", "a secret of this test").run());
}

/// Connects to rank 0 of a job until that listens no more; says nothing, or what no rank says.
fn flood(port: u16, is_over: &AtomicBool) -> usize {
    let (mut open, mut count) = (VecDeque::new(), 0);
    while !is_over.load(Ordering::Relaxed) {
        let to = ([127, 0, 0, 1], port).into();
        if let Ok(mut stream) = TcpStream::connect_timeout(&to, Duration::from_millis(500)) {
            // Its end leaves nothing behind in the kernel, where other tests look.
            sockopt::set_socket_linger(&stream, Some(Duration::ZERO)).unwrap();
            // It may have been refused already.
            let _ = stream.write_all(&[b'x'; 80][..count % 2 * 80]);
            open.push_back(stream);
            count += 1;
        }
        if open.len() > 500 {
            open.pop_front();
        }
    }
    count
}

#[test]
fn many_processes_meet_beside_a_flood_of_connections() {
    let (port, is_over) = (free_port(), AtomicBool::new(false));
    let job = Job::new(64).with("LINERATE_RENDEZVOUS", &tcp(port));
    std::thread::scope(|scope| {
        let flood = scope.spawn(|| flood(port, &is_over));
        let outcomes = job.run();
        is_over.store(true, Ordering::Relaxed);
        let count = flood.join().unwrap();
        check_good(&outcomes);
        println!("{count} connections of others");
        assert!(count > 0 && outcomes[0].stderr.contains("refused a connection"));
    });
}

#[test]
fn ranks_meet_through_a_file_that_is_gone_afterwards_and_a_stale_one_does_no_harm() {
    let folder = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join("rendezvous-file");
    let _ = std::fs::remove_dir_all(&folder);
    std::fs::create_dir_all(&folder).unwrap();
    // What a killed rank 0 leaves: a port where nobody answers.
    std::fs::write(folder.join("linerate--0.addresses"), tcp(free_port())).unwrap();
    let job = Job::new(3).with(
        "LINERATE_RENDEZVOUS",
        &format!("file://{}", folder.display()),
    );
    check_good(&job.run());
    assert_eq!(std::fs::read_dir(&folder).unwrap().count(), 0);
}

#[test]
fn a_folder_that_is_not_there_is_named() {
    let job = Job::new(1)
        .of(2)
        .with("LINERATE_RENDEZVOUS", "file:///nonexistent/folder");
    check_all_say(&job.run(), &["/nonexistent/folder"]);
}

fn torchrun(ranks: u32, port: u16) -> Job {
    let job = Job::new(ranks).with("MASTER_ADDR", "127.0.0.1");
    job.with("MASTER_PORT", &port.to_string())
}

fn ports_of(port: u16) -> Vec<u16> {
    let place: Place = place_from_env(|name| match name {
        "RANK" => Some("0".into()),
        "WORLD_SIZE" => Some("2".into()),
        "MASTER_ADDR" => Some("127.0.0.1".into()),
        "MASTER_PORT" => Some(port.to_string()),
        _ => None,
    })
    .unwrap();
    place.ports()
}

#[test]
fn a_stranger_on_a_port_of_the_job_is_detected_and_the_next_port_is_taken() {
    let port = free_port();
    // Held, as torchrun's own store does.
    let _master = TcpListener::bind(("127.0.0.1", port)).unwrap();
    let stranger = TcpListener::bind(("127.0.0.1", ports_of(port)[0])).unwrap();
    std::thread::spawn(move || {
        for stream in stranger.incoming().flatten() {
            // Some other program: it answers, and not what was asked.
            let _ = (&stream).read(&mut [0; 64]);
            let _ = (&stream).write_all(&[b'x'; 80]);
        }
    });
    check_good(&torchrun(3, port).run());
}

#[test]
fn two_jobs_of_one_host_do_not_meet() {
    let (first, second) = (torchrun(3, free_port()), torchrun(2, free_port()));
    let (first, second) = (first.start(), second.start());
    check_good(&first.end());
    check_good(&second.end());
}

#[test]
fn a_port_that_is_taken_says_so() {
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = taken.local_addr().unwrap().port();
    let job = Job::new(1).of(2).with("LINERATE_RENDEZVOUS", &tcp(port));
    check_all_say(
        &job.run(),
        &[&port.to_string(), "taken", "LINERATE_RENDEZVOUS"],
    );
}

#[test]
fn a_rank_that_never_comes_is_named_to_those_who_came() {
    let job = Job::new(2).of(3).with("LINERATE_TIMEOUT", "5");
    let outcomes = job.with("LINERATE_RENDEZVOUS", &tcp(free_port())).run();
    check_all_say(&outcomes, &["ranks [2] did not come", "ranks [0, 1] came"]);
}

#[test]
fn without_rank_0_the_error_says_what_was_found_where() {
    let address = tcp(free_port());
    let job = Job::new(2).without(0).with("LINERATE_TIMEOUT", "1");
    let outcomes = job.with("LINERATE_RENDEZVOUS", &address).run();
    check_all_say(
        &outcomes,
        &["rank 1 could not reach rank 0", "refused", &address[6..]],
    );
}

#[test]
fn another_secret_is_refused_and_both_sides_say_so() {
    let job = Job::new(2).with("LINERATE_TIMEOUT", "4");
    let job = job.with("LINERATE_SECRET", "the secret of this job");
    let job = job.with("LINERATE_RENDEZVOUS", &tcp(free_port()));
    let outcomes = job
        .with_rank(1, "LINERATE_SECRET", "the secret of another job")
        .run();
    check_all_say(&outcomes, &["LINERATE_SECRET"]);
    assert!(
        outcomes[1].stdout.contains("its proof is wrong"),
        "{outcomes:#?}"
    );
    assert!(
        outcomes[0].stdout.contains("ranks [1] did not come"),
        "{outcomes:#?}"
    );
    let told = &outcomes[0].stderr;
    assert!(
        told.contains("said it is rank 1") && told.contains("another secret"),
        "{told}"
    );
    assert!(
        !format!("{outcomes:?}").contains("the secret of"),
        "{outcomes:#?}"
    );
}

#[test]
fn without_a_secret_loopback_lets_no_other_user_in() {
    if let Some(why) = linerate_children::no_other_user() {
        eprintln!("skipped: {why}");
        return;
    }
    let ways: [fn() -> Job; 2] = [
        || Job::new(2).with("LINERATE_RENDEZVOUS", &tcp(free_port())),
        || torchrun(2, free_port()),
    ];
    for way in ways {
        let job = way();
        let mut running = job.start_ranks(0..1);
        let stranger = job.clone().by_nobody(1).with("LINERATE_TIMEOUT", "10");
        let stranger = stranger.start_ranks(1..2).end();
        check_all_say(&stranger, &["no secret", "another user's"]);
        running.add(&job, 1);
        check_good(&running.end());
    }
}

#[test]
fn a_rank_without_the_secret_that_rank_0_has_is_told_so() {
    let job = Job::new(2).with("LINERATE_TIMEOUT", "4");
    let job = job.with("LINERATE_RENDEZVOUS", &tcp(free_port()));
    let job = job.with_rank(0, "LINERATE_SECRET", "the secret of rank 0");
    let outcomes = job.run();
    check_all_say(&outcomes, &["LINERATE_SECRET"]);
    let told = &outcomes[1].stdout;
    assert!(
        told.contains("hands this process no secret"),
        "{outcomes:#?}"
    );
}

#[test]
fn strangers_are_refused_and_the_job_goes_on() {
    let port = free_port();
    let job = Job::new(2).with("LINERATE_RENDEZVOUS", &tcp(port));
    let mut running = job.start_ranks(0..1);
    let connect = || loop {
        match TcpStream::connect(("127.0.0.1", port)) {
            Ok(stream) => break stream,
            Err(_) => std::thread::sleep(std::time::Duration::from_millis(5)),
        }
    };
    let _silent: Vec<TcpStream> = (0..300).map(|_| connect()).collect();
    let mut garbage = connect();
    garbage.write_all(b"GET / HTTP/1.1\r\nHost: a host of this network that is long enough to fill a hello\r\n\r\n").unwrap();
    let from = garbage.local_addr().unwrap().to_string();
    running.add(&job, 1);
    let outcomes = running.end();
    check_good(&outcomes);
    let told = &outcomes[0].stderr;
    assert!(told.contains("refused a connection"), "{told}");
    assert!(
        told.contains(&from) || told.contains("only counted"),
        "{told}"
    );
}

#[test]
fn ranks_that_disagree_or_come_twice_fail_all_with_one_cause() {
    let job = || Job::new(3).with("LINERATE_RENDEZVOUS", &tcp(free_port()));
    let outcomes = job().with_rank(2, "LINERATE_CHUNK_BYTES", "65536").run();
    check_all_say(&outcomes, &["rank 2 has other settings"]);
    let outcomes = job().with_rank(2, "LINERATE_INTEGRITY", "crc").run();
    check_all_say(
        &outcomes,
        &["rank 2 has LINERATE_INTEGRITY=crc", "rank 0 off"],
    );
    let outcomes = job().with_rank(2, "WORLD_SIZE", "4").run();
    check_all_say(&outcomes, &["rank 0 expects 3 ranks", "rank 2 of 4"]);
    let outcomes = job().with_rank(2, "RANK", "1").run();
    check_all_say(&outcomes, &["two processes say that they are rank 1"]);
}

#[test]
fn a_rank_that_cannot_take_part_tells_all_why() {
    let job = Job::new(7).with("LINERATE_RENDEZVOUS", &tcp(free_port()));
    let outcomes = job.with_rank(6, "LINERATE_TRANSPORT", "ofi:nosuch").run();
    check_all_say(&outcomes, &["transport ofi is unavailable"]);
    for outcome in &outcomes[..6] {
        assert!(
            outcome.stdout.contains("rank 6 cannot take part"),
            "{outcomes:#?}"
        );
    }
}

#[test]
fn a_rank_that_is_killed_while_others_are_waited_for_is_named_at_once() {
    let job = Job::new(3).with("LINERATE_RENDEZVOUS", &tcp(free_port()));
    let mut running = job.with("LINERATE_DEBUG", "info").start_ranks(0..2);
    running.wait_until_met(1);
    running.kill(1);
    let outcomes = running.end();
    let text = &outcomes[0].stdout;
    assert!(
        text.contains("rank 1 failed while others were waited for"),
        "{outcomes:#?}"
    );
}

#[test]
fn other_hosts_are_served_with_a_secret_only() {
    let Some(address) = own_address() else {
        eprintln!("skipped: this host has no address but loopback");
        return;
    };
    let job = || {
        let url = format!("tcp://{address}:{}", free_port());
        Job::new(2)
            .with("LINERATE_RENDEZVOUS", &url)
            .with("LINERATE_DEBUG", "info")
    };
    let outcomes = job().without(1).run();
    check_all_say(
        &outcomes,
        &["without a secret", "LINERATE_SECRET", "LINERATE_INSECURE=1"],
    );
    check_good(&job().with("LINERATE_INSECURE", "1").run());
    let outcomes = job().with("LINERATE_SECRET", "a secret of this test").run();
    check_good(&outcomes);
    let told = format!("the route to rank 0 at {address} leaves by it");
    assert!(outcomes[1].stderr.contains(&told), "{outcomes:#?}");
}

#[test]
fn an_interface_is_named_by_the_beginning_of_its_name() {
    let job = || {
        let job = Job::new(2).with("LINERATE_RENDEZVOUS", &tcp(free_port()));
        job.with("LINERATE_DEBUG", "info")
    };
    let outcomes = job().with("LINERATE_IFNAME", "lo").run();
    check_good(&outcomes);
    for outcome in &outcomes {
        let told = &outcome.stderr;
        assert!(
            told.contains("127.0.0.1 (lo), because LINERATE_IFNAME"),
            "{outcomes:#?}"
        );
    }
    let outcomes = job().with("LINERATE_IFNAME", "no-such-interface").run();
    check_all_say(
        &outcomes,
        &["LINERATE_IFNAME is 'no-such-interface'", "lo (127.0.0.1)"],
    );
}

#[test]
fn ranks_of_other_hosts_are_refused_by_a_transport_that_does_not_leave_the_host() {
    let job = Job::new(3).with("LINERATE_RENDEZVOUS", &tcp(free_port()));
    let job = job.with("LINERATE_TRANSPORT", "shm");
    let outcomes = job.with_rank(2, "LINERATE_HOSTID", "elsewhere").run();
    check_all_say(&outcomes, &["other hosts", "LINERATE_HOSTID", "shm"]);
    assert!(outcomes[0].stdout.contains("ranks [2]"), "{outcomes:#?}");
}
