//! A parameter server on one host, with workers on both.

use super::{Hosts, start_rank};
use linerate::options::{ServerOptions, Staleness};
use linerate::{Buffer, Communicator, DataType, ParameterServer, TensorSpec};
use linerate_children::{Child, end, result, text, wait_for_word};
use rustix::process::Signal;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// More than is put at once over a connection.
const COUNT: usize = 150_016;
/// The ranks that train; rank 0 only serves. The first one is on the server's host.
const WORKERS: [usize; 3] = [1, 2, 3];
/// Steps of a worker before the test goes on, and after a death.
const STEPS: u64 = 20;

/// What each push of a worker adds to every weight.
fn added(rank: usize) -> f32 {
    rank as f32
}

/// Rank 0 serves until the workers have ended. A worker steps until it is told of a death, then
/// [`STEPS`] times more, and pulls the weights when it is told that all have done so.
pub fn serve(comm: Communicator) {
    let options = ServerOptions {
        servers: vec![0],
        staleness: Staleness::Ssp(1),
        rate: 1.0,
        ..ServerOptions::default()
    };
    let tensor = TensorSpec {
        name: "weights".into(),
        count: COUNT as u64,
        dtype: DataType::F32,
    };
    let server = ParameterServer::new(&comm, vec![tensor], options).unwrap();
    let rank = comm.rank() as usize;
    // One communicator alone hears of deaths in the server.
    drop(comm);
    if rank == 0 {
        let report = server.finish().unwrap().unwrap();
        println!("VERSION {}", report.version);
        println!("PUSHES {:?}", report.pushes);
        println!("LOST {:?}", report.lost);
        return;
    }
    let weights = [Buffer::from_vec(vec![0f32; COUNT])];
    let gradient = [Buffer::from_vec(vec![-added(rank); COUNT])];
    server.init(&weights).unwrap();
    let is_told = Arc::new(AtomicBool::new(false));
    let told = is_told.clone();
    let listener = std::thread::spawn(move || {
        wait_for_word();
        told.store(true, Ordering::Relaxed);
    });
    let mut steps = 0;
    while steps < STEPS || !is_told.load(Ordering::Relaxed) {
        server.step(&gradient, &weights).unwrap();
        steps += 1;
        if steps == STEPS {
            println!("READY");
        }
    }
    listener.join().unwrap();
    (0..STEPS).for_each(|_| drop(server.step(&gradient, &weights).unwrap()));
    println!("STEPPED");
    wait_for_word();
    server.pull(&weights).unwrap();
    let all = weights[0].to_vec().unwrap();
    assert!(all.iter().all(|&one| one == all[0]));
    println!("WEIGHT {}", all[0]);
    println!("STEPS {}", steps + STEPS);
    server.finish().unwrap();
}

#[test]
fn workers_on_both_hosts_train_on_when_one_is_killed_and_the_weights_have_every_push() {
    // Sockets alone, and shared memory inside the hosts. Of the other host, and of the server's.
    for (name, transport, victim) in [("serve", "tcp", 3), ("mixed", "auto", 1)] {
        let Some(hosts) = Hosts::new(name) else {
            return;
        };
        let extra = [
            ("LINERATE_TRANSPORT", transport),
            ("LINERATE_TIMEOUT", "30"),
        ];
        let start = |rank| start_rank(&hosts, rank, "serve", &extra);
        let mut ranks: Vec<Child> = (0..4).map(start).collect();
        for rank in WORKERS {
            ranks[rank].wait_line("READY");
        }
        ranks[victim].signal(Signal::KILL);
        let survivors = WORKERS.into_iter().filter(|&rank| rank != victim);
        for rank in survivors.clone() {
            ranks[rank].write_line("a worker is dead").unwrap();
        }
        for rank in survivors.clone() {
            ranks[rank].wait_line("STEPPED");
        }
        for rank in survivors.clone() {
            ranks[rank].write_line("all have stepped").unwrap();
        }
        let outputs = end(ranks);
        let said = |rank: usize, key: &str| {
            let said = result(&outputs[rank], key);
            said.unwrap_or_else(|| panic!("{name}, rank {rank}: {}", text(&outputs[rank])))
        };
        assert_eq!(said(0, "LOST"), format!("[{victim}]"), "{name}");
        let pushes = said(0, "PUSHES");
        let pushes = pushes.trim_matches(['[', ']']).split(", ");
        let pushes: Vec<u64> = pushes.map(|count| count.parse().unwrap()).collect();
        let version: u64 = said(0, "VERSION").parse().unwrap();
        assert_eq!(version, pushes.iter().sum::<u64>(), "{name}: {pushes:?}");
        let own = WORKERS.iter().zip(&pushes);
        let expected: f32 = own.map(|(&rank, &count)| added(rank) * count as f32).sum();
        for (rank, count) in WORKERS.into_iter().zip(&pushes) {
            if rank == victim {
                assert!(!outputs[rank].status.success() && *count >= STEPS);
                continue;
            }
            assert_eq!(said(rank, "STEPS"), count.to_string(), "{name}");
            assert_eq!(said(rank, "WEIGHT"), expected.to_string(), "{name}");
        }
    }
}
