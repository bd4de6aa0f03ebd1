//! A parameter server on one host, with workers on both.

use super::{COMMON, Hosts, start, start_rank};
use linerate::options::{ServerOptions, Staleness};
use linerate::{Buffer, Communicator, Config, DataType, ParameterServer, TensorSpec};
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

fn made_of() -> (Vec<TensorSpec>, ServerOptions) {
    let options = ServerOptions {
        servers: vec![0],
        staleness: Staleness::Asp,
        rate: 1.0,
        ..ServerOptions::default()
    };
    let tensor = TensorSpec {
        name: "weights".into(),
        count: COUNT as u64,
        dtype: DataType::F32,
    };
    (vec![tensor], options)
}

/// Takes the place of a worker that was killed, steps, and pulls the weights when it is told that
/// all have stepped.
pub fn come_later() {
    let address = std::env::var("LINERATE_TEST_ADDRESS").unwrap();
    let (tensors, options) = made_of();
    let config = Config::from_env().unwrap();
    let server = ParameterServer::join(&address, tensors, options, config).unwrap();
    let rank = 1 + server.worker().unwrap() as usize;
    let weights = [Buffer::from_vec(vec![0f32; COUNT])];
    let gradient = [Buffer::from_vec(vec![-added(rank); COUNT])];
    (0..STEPS).for_each(|_| drop(server.step(&gradient, &weights).unwrap()));
    end_together(server, &weights);
}

fn end_together(server: ParameterServer, weights: &[Buffer<f32>; 1]) {
    println!("STEPPED");
    wait_for_word();
    server.pull(weights).unwrap();
    let all = weights[0].to_vec().unwrap();
    assert!(all.iter().all(|&one| one == all[0]));
    println!("WEIGHT {}", all[0]);
    server.finish().unwrap();
}

/// Rank 0 serves until the workers have ended. A worker steps until it is told of a death, then
/// [`STEPS`] times more, and pulls the weights when it is told that all have done so.
pub fn serve(comm: Communicator) {
    let (tensors, options) = made_of();
    let server = ParameterServer::new(&comm, tensors, options).unwrap();
    println!("ADDRESS {}", server.address().unwrap());
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
    println!("STEPS {}", steps + STEPS);
    end_together(server, &weights);
}

#[test]
fn workers_of_both_hosts_train_on_when_one_is_killed_and_another_process_takes_its_place() {
    // Sockets alone, and shared memory inside the hosts. Of the other host, and of the server's.
    for (name, transport, victim) in [("serve", "tcp", 3), ("mixed", "auto", 1)] {
        let Some(hosts) = Hosts::new(name) else {
            return;
        };
        let extra = [
            ("LINERATE_TRANSPORT", transport),
            ("LINERATE_TIMEOUT", "30"),
        ];
        let begin = |rank| start_rank(&hosts, rank, "serve", &extra);
        let mut ranks: Vec<Child> = (0..4).map(begin).collect();
        let address = ranks[0].wait_line("ADDRESS ");
        for rank in WORKERS {
            ranks[rank].wait_line("READY");
        }
        ranks[victim].signal(Signal::KILL);
        let own = [COMMON.as_slice(), &extra].concat();
        let address = address.trim_start_matches("ADDRESS ");
        let own = [own, vec![("LINERATE_TEST_ADDRESS", address)]].concat();
        let later = start(&hosts, victim / 2, "come-later", &own);
        let survivors = WORKERS.into_iter().filter(|&rank| rank != victim);
        for rank in survivors.clone() {
            ranks[rank].write_line("a worker is dead").unwrap();
        }
        let dead = std::mem::replace(&mut ranks[victim], later);
        for rank in WORKERS {
            ranks[rank].wait_line("STEPPED");
        }
        for rank in WORKERS {
            ranks[rank].write_line("all have stepped").unwrap();
        }
        let outputs = end(ranks);
        let dead = end(vec![dead]);
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
                // Its own, and those of the process that came later.
                assert!(!dead[0].status.success() && *count >= 2 * STEPS);
            } else {
                assert_eq!(said(rank, "STEPS"), count.to_string(), "{name}");
            }
            assert_eq!(said(rank, "WEIGHT"), expected.to_string(), "{name}");
        }
    }
}
