//! Parameter servers whose workers and servers die: the other workers go on, and the death of a
//! server whose shard no other has is an error on all that names it.

use super::job::{Job, Place, Start, join, now_us, seed};
use linerate::options::{ServerOptions, Staleness};
use linerate::{Buffer, Config, DataType, Error, ParameterServer, TensorSpec};
use linerate_children::{result, text};
use rustix::process::Signal;
use std::time::Duration;

/// Elements: two shards of as many, more than are put at once over a connection.
const COUNT: usize = 2 * 150_016;

/// The first ranks serve, two of them each shard if the mode is "copies"; the others train.
pub fn server() {
    let place = Place::open();
    let servers: u32 = std::env::var("LINERATE_TEST_SERVERS")
        .unwrap()
        .parse()
        .unwrap();
    let mode = std::env::var("LINERATE_TEST_MODE").unwrap();
    let options = ServerOptions {
        servers: (0..servers).collect(),
        staleness: match mode.as_str() {
            "bsp" | "evict" => Staleness::Bsp,
            "ssp" | "copies" => Staleness::Ssp(1),
            _ => Staleness::Asp,
        },
        rate: 1.0,
        replicas: u32::from(mode == "copies"),
        evict_after: (mode == "evict").then_some(Duration::from_secs(2)),
        ..ServerOptions::default()
    };
    let tensor = TensorSpec {
        name: "weights".into(),
        count: COUNT as u64,
        dtype: DataType::F32,
    };
    if std::env::var("LINERATE_TEST_LATER").is_ok() {
        let address = std::fs::read_to_string(Place::note()).unwrap();
        let config = Config::from_env().unwrap();
        let server = ParameterServer::join(&address, vec![tensor], options, config).unwrap();
        return report(train(&place, server, true));
    }
    let comm = join().unwrap();
    let server = ParameterServer::new(&comm, vec![tensor], options).unwrap();
    let rank = comm.rank();
    if rank == 0 {
        std::fs::write(Place::note(), server.address().unwrap()).unwrap();
    }
    // One communicator alone hears of deaths in the server.
    drop(comm);
    if rank < servers {
        place.set(b'r');
        match server.finish() {
            Ok(report) => println!("REPORT {}", report.unwrap().version),
            Err(error) => println!("ERROR {error}"),
        }
        return;
    }
    report(train(&place, server, false));
}

fn report(longest_us: Result<u64, Error>) {
    match longest_us {
        Ok(longest_us) => println!("LONGEST {longest_us}"),
        Err(error) => println!("ERROR {error}"),
    }
}

/// Steps until the test says that it is enough; gives the longest one.
fn train(place: &Place, server: ParameterServer, is_later: bool) -> Result<u64, Error> {
    let weights = [Buffer::from_vec(vec![0f32; COUNT])];
    let gradient = [Buffer::from_vec(vec![-1f32; COUNT])];
    match is_later {
        true => drop(server.pull(&weights)?),
        false => server.init(&weights)?,
    }
    let before = weights[0].to_vec()?[0];
    let mut longest = 0;
    let mut steps = 0;
    while steps < 5 || !place.is(b'e') {
        let began = now_us();
        server.step(&gradient, &weights)?;
        longest = longest.max(now_us() - began);
        steps += 1;
        if steps == 3 {
            place.set(b'r');
        }
        let all = weights[0].to_vec()?;
        let is_whole = |part: &[f32]| {
            part.iter()
                .all(|&one| one == part[0] && one >= before + steps as f32)
        };
        // In rounds every update is the mean, 1; else each push is one, and no shard has fewer than
        // this worker's.
        assert!(all.chunks(COUNT / 2).all(is_whole), "step {steps}");
    }
    server.finish()?;
    Ok(longest)
}

/// Shared memory and sockets; verbs alone where a library for them is named.
fn transports() -> [&'static str; 2] {
    match std::env::var("LINERATE_IBVERBS_LIB") {
        Ok(_) => ["verbs", "verbs"],
        Err(_) => ["shm", "tcp"],
    }
}

/// Each of these cases, whose transport is the first or the second of [`transports`].
fn each<T: Copy>(cases: &[(usize, T)]) -> impl Iterator<Item = (&'static str, T)> {
    let cases = cases
        .iter()
        .map(|&(transport, case)| (transports()[transport], case));
    cases.collect::<Vec<_>>().into_iter()
}

fn environment(servers: u32, transport: &str, mode: &str) -> Vec<(&'static str, String)> {
    vec![
        ("LINERATE_TEST_SERVERS", servers.to_string()),
        ("LINERATE_TEST_MODE", mode.to_string()),
        ("LINERATE_TRANSPORT", transport.to_string()),
        ("LINERATE_TIMEOUT", "30".to_string()),
    ]
}

fn start((servers, ranks): (u32, u32), transport: &str, mode: &str) -> Job {
    let job = Start {
        environment: &environment(servers, transport, mode),
        ..Start::new("server", ranks)
    }
    .spawn();
    job.wait_for("the steps of all workers", |places| {
        places.iter().all(|&place| place == b'r')
    });
    job
}

#[test]
fn the_death_of_a_worker_holds_no_other_worker_up() {
    for (transport, mode) in each(&[(0, "bsp"), (0, "ssp"), (1, "bsp"), (1, "asp")]) {
        let (servers, ranks) = (2, 5);
        let job = start((servers, ranks), transport, mode);
        // The first worker has given the weights to begin with, which are on the shards now.
        job.signal(2, Signal::KILL);
        std::thread::sleep(Duration::from_millis(300));
        for rank in servers..ranks {
            job.set_place(rank, b'e');
        }
        let outputs = job.end();
        for (rank, output) in outputs.iter().enumerate().filter(|(rank, _)| *rank != 2) {
            let key = if rank < 2 { "REPORT" } else { "LONGEST" };
            let case = format!("{transport} {mode}, rank {rank}");
            let said = result(output, key);
            let said = said.unwrap_or_else(|| panic!("{case}: {}", text(output)));
            if rank >= 2 {
                println!("{case}: the longest step took {said} us");
            }
        }
        let versions = [0, 1].map(|rank| result(&outputs[rank], "REPORT"));
        assert_eq!(versions[0], versions[1], "{transport} {mode}");
    }
}

#[test]
fn a_server_that_is_killed_is_replaced_by_the_other_one_of_its_shard() {
    for transport in transports() {
        for victim in [0, 1, 3] {
            let (servers, ranks) = (4, 7);
            let job = start((servers, ranks), transport, "copies");
            job.signal(victim, Signal::KILL);
            std::thread::sleep(Duration::from_millis(300));
            for rank in servers..ranks {
                job.set_place(rank, b'e');
            }
            let outputs = job.end();
            let mut versions = Vec::new();
            for (rank, output) in (0..).zip(&outputs).filter(|(rank, _)| *rank != victim) {
                let key = if rank < servers { "REPORT" } else { "LONGEST" };
                let said = result(output, key);
                let case = format!("{transport}, {victim}, rank {rank}");
                let said = said.unwrap_or_else(|| panic!("{case}: {}", text(output)));
                if rank < servers {
                    versions.push(said);
                } else {
                    println!("{case}: the longest step took {said} us");
                }
            }
            assert!(versions.iter().all(|version| *version == versions[0]));
        }
    }
}

#[test]
fn a_worker_that_is_stopped_is_taken_out_and_told_so_when_it_goes_on() {
    for transport in transports() {
        let job = start((2, 5), transport, "evict");
        job.signal(3, Signal::STOP);
        std::thread::sleep(Duration::from_secs(3));
        // The others go on and end while it is stopped.
        for rank in 2..5 {
            job.set_place(rank, b'e');
        }
        std::thread::sleep(Duration::from_millis(800));
        job.signal(3, Signal::CONT);
        let outputs = job.end();
        for (rank, output) in outputs.iter().enumerate() {
            let key = ["REPORT", "REPORT", "LONGEST", "ERROR", "LONGEST"][rank];
            let said = result(output, key);
            let said = said.unwrap_or_else(|| panic!("{transport}, rank {rank}: {}", text(output)));
            assert!(
                rank != 3 || said.contains("evict_after"),
                "{transport}: {said}"
            );
        }
        let versions = [0, 1].map(|rank| result(&outputs[rank], "REPORT"));
        assert_eq!(versions[0], versions[1], "{transport}");
    }
}

#[test]
fn the_death_of_a_shard_is_an_error_on_all_that_names_it() {
    for (transport, victim) in each(&[(0, 0), (0, 1), (1, 0), (1, 1)]) {
        let job = start((2, 4), transport, "asp");
        job.signal(victim, Signal::KILL);
        let outputs = job.end();
        for (rank, output) in (0..).zip(&outputs).filter(|(rank, _)| *rank != victim) {
            let error = result(output, "ERROR").unwrap_or_else(|| panic!("{}", text(output)));
            let is_named = error.contains(&format!("rank {victim} failed"));
            assert!(is_named, "{transport}, {victim}, rank {rank}: {error}");
        }
    }
}

/// Starts a process in place of a rank that was killed or stopped, and waits for its first steps.
fn replace(job: &mut Job, rank: u32, of_job: (u32, u32), transport: &str, mode: &str) {
    job.set_place(rank, b'-');
    let mut environment = environment(of_job.0, transport, mode);
    environment.push(("LINERATE_TEST_LATER", "1".into()));
    let start = Start {
        environment: &environment,
        ..Start::new("server", of_job.1)
    };
    start.spawn_instead(job, rank);
    job.wait_for("the steps of a process that came later", |places| {
        places[rank as usize] == b'r'
    });
}

fn end_all(job: Job, (servers, ranks): (u32, u32), dead: Option<u32>, case: &str) {
    for rank in servers..ranks {
        job.set_place(rank, b'e');
    }
    let outputs = job.end();
    let mut versions = Vec::new();
    for (rank, output) in (0..).zip(&outputs).filter(|(rank, _)| Some(*rank) != dead) {
        let key = if rank < servers { "REPORT" } else { "LONGEST" };
        let said = result(output, key);
        let said = said.unwrap_or_else(|| panic!("{case}, rank {rank}: {}", text(output)));
        if rank < servers {
            versions.push(said);
        }
    }
    assert!(versions.iter().all(|one| *one == versions[0]), "{case}");
}

#[test]
fn processes_take_the_places_of_workers_that_were_killed() {
    for (transport, mode) in each(&[(0, "bsp"), (0, "asp"), (1, "ssp"), (1, "bsp")]) {
        let of_job = (2, 5);
        let mut job = start(of_job, transport, mode);
        for victim in [3, 2, 3, 4, 2] {
            job.signal(victim, Signal::KILL);
            replace(&mut job, victim, of_job, transport, mode);
        }
        end_all(job, of_job, None, &format!("{transport} {mode}"));
    }
}

#[test]
fn a_process_joins_servers_whose_leader_was_killed() {
    for transport in transports() {
        let of_job = (4, 7);
        let mut job = start(of_job, transport, "copies");
        for victim in [4, 0, 5] {
            job.signal(victim, Signal::KILL);
            if victim >= 4 {
                replace(&mut job, victim, of_job, transport, "copies");
            }
        }
        end_all(job, of_job, Some(0), transport);
    }
}

#[test]
fn a_process_takes_the_place_of_a_worker_that_is_stopped_and_was_taken_out() {
    let of_job = (2, 5);
    // In shared memory nobody else has the place while the stopped process is there.
    let transport = transports()[1];
    let mut job = start(of_job, transport, "evict");
    job.signal(3, Signal::STOP);
    let stopped = job.pid(3);
    replace(&mut job, 3, of_job, transport, "evict");
    // It goes on, and does no harm.
    let stopped = rustix::process::Pid::from_raw(stopped as i32).unwrap();
    rustix::process::kill_process(stopped, Signal::CONT).unwrap();
    std::thread::sleep(Duration::from_millis(300));
    end_all(job, of_job, None, "evict");
}

#[test]
fn a_process_that_dies_while_it_joins_leaves_its_place_to_the_next() {
    let mut random = seed();
    for (transport, mode) in each(&[(0, "copies"), (1, "asp")]) {
        let of_job = (if mode == "copies" { 4 } else { 2 }, 7);
        let mut job = start(of_job, transport, mode);
        job.signal(6, Signal::KILL);
        for _ in 0..8 {
            let mut environment = environment(of_job.0, transport, mode);
            environment.push(("LINERATE_TEST_LATER", "1".into()));
            let start = Start {
                environment: &environment,
                ..Start::new("server", of_job.1)
            };
            start.spawn_instead(&mut job, 6);
            random = random
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1);
            // A process needs some milliseconds to start, and some more to join.
            std::thread::sleep(Duration::from_micros(2_000 + (random >> 33) % 60_000));
            job.signal(6, Signal::KILL);
        }
        replace(&mut job, 6, of_job, transport, mode);
        end_all(job, of_job, None, &format!("{transport} {mode}"));
    }
}
