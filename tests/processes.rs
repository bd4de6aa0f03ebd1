//! Every collective with real processes over shared memory, and over connections
//! (`processes/network.rs`).
//!
//! A test starts this very program again, once per rank, with `LINERATE_TEST_ROLE` set; the child
//! runs [`child_entry`] and nothing else.

#[path = "collectives/types.rs"]
mod cases_of_types;
#[path = "processes/fetching.rs"]
mod fetching;
#[path = "processes/network.rs"]
mod network;
#[path = "processes/ofi.rs"]
mod ofi;
#[path = "collectives/oracle.rs"]
mod oracle;
#[path = "../src/prng.rs"]
#[allow(dead_code)]
mod prng;
#[path = "processes/rebuild.rs"]
mod rebuild;
#[path = "processes/threads.rs"]
mod threads;
#[path = "processes/traffic.rs"]
mod traffic;
#[path = "processes/types.rs"]
mod types;
#[path = "seeds/values.rs"]
mod values;

use linerate::{
    Buffer, Collective, Communicator, Config, DataType, Element, Operation, Progress, ReduceOp,
};
use linerate_children::{spawn, spawn_late, wait_for_word};
use oracle::{Case, Prepared};
use std::time::Duration;

fn results(outputs: Vec<std::process::Output>) -> Vec<String> {
    linerate_children::results(&outputs)
}

#[test]
fn child_entry() {
    let Ok(role) = std::env::var("LINERATE_TEST_ROLE") else {
        return;
    };
    if let Some(role) = role.strip_prefix("fetching-") {
        return fetching::run_as_child(role);
    }
    if let Some(role) = role.strip_prefix("rebuild-") {
        return rebuild::run_as_child(role);
    }
    let mut config = Config::from_lookup(|name| std::env::var(name).ok()).unwrap();
    if std::env::var("LINERATE_TIMEOUT").is_err() {
        config.timeout = Duration::from_secs(60);
    }
    if std::env::var("LINERATE_TEST_THREAD_ON").ok() == std::env::var("RANK").ok() {
        config.progress = Progress::Thread;
    }
    let comm = Communicator::from_env_with(config).unwrap();
    match role.as_str() {
        "sweep" => sweep(&comm),
        "overlap" => overlap(&comm),
        "within" => within(&comm),
        "disagree" => disagree(&comm),
        "absent" => absent(&comm),
        "cancel" => cancel(&comm),
        "leave" => leave(&comm),
        "learned" => learned(&comm),
        "mixed" => mixed(&comm),
        "large" => threads::large(comm),
        "family" => threads::family(comm),
        other => {
            let is_known = traffic::run(other, &comm) || types::run(other, &comm);
            assert!(is_known, "no role {other}");
        }
    }
}

/// `count` zeros.
fn zeros<T: Element>(comm: &Communicator, registered: bool, count: usize) -> Buffer<T> {
    match registered {
        true => comm.alloc(count).unwrap(),
        false => Buffer::from_vec(vec![bytemuck::Zeroable::zeroed(); count]),
    }
}

fn prepare(comm: &Communicator, case: &Case) -> Prepared {
    case.prepare(comm.rank(), |count| zeros(comm, case.registered, count))
}

/// All cases; prints a hash of all bits, which must be the same in every run, and for allreduce on
/// every rank.
fn sweep(comm: &Communicator) {
    let (mut own, mut common) = (0u64, 0u64);
    for case in network::runnable(comm.ranks()) {
        let prepared = prepare(comm, &case);
        prepared
            .run(comm)
            .unwrap_or_else(|e| panic!("{case:?}: {e}"));
        for bits in case.check(comm.rank(), &prepared) {
            own = crate::prng::mix(own ^ u64::from(bits));
            if case.is_same_everywhere() {
                common = crate::prng::mix(common ^ u64::from(bits));
            }
        }
    }
    println!("RESULT {common:016x} {own:016x}");
}

#[test]
fn every_algorithm_gives_the_same_bits_on_every_rank_and_in_every_run() {
    for ranks in [1, 2, 3, 5, 8] {
        let first = results(spawn("sweep", ranks, &[]));
        let second = results(spawn("sweep", ranks, &[]));
        assert_eq!(first, second, "{ranks} ranks: two runs differ");
        let common: Vec<&str> = first
            .iter()
            .map(|line| line.split(' ').next().unwrap())
            .collect();
        assert!(
            common.iter().all(|c| *c == common[0] && c.len() == 16),
            "{ranks} ranks: {first:?}"
        );
    }
}

#[test]
fn small_chunks_and_windows_give_the_same_results() {
    let small = [
        ("LINERATE_CHUNK_BYTES", "4K"),
        ("LINERATE_WINDOW_BYTES", "16K"),
    ];
    results(spawn("sweep", 3, &small));
    results(spawn("sweep", 3, &[("LINERATE_PROGRESS", "thread")]));
}

/// Many operations at once, of all kinds and sizes, waited for in another order than they were
/// started in.
fn overlap(comm: &Communicator) {
    let all: Vec<Case> = network::runnable(comm.ranks());
    let mut prng = crate::prng::Prng::new(u64::from(comm.rank()) + 5);
    for group in all.chunks(40) {
        let prepared: Vec<_> = group.iter().map(|case| prepare(comm, case)).collect();
        let mut operations: Vec<(usize, Operation)> = prepared
            .iter()
            .enumerate()
            .map(|(i, p)| (i, p.start(comm).unwrap()))
            .collect();
        while !operations.is_empty() {
            let next = prng.below(operations.len() as u64) as usize;
            let (index, operation) = operations.swap_remove(next);
            operation
                .wait()
                .unwrap_or_else(|e| panic!("{:?}: {e}", group[index]));
            group[index].check(comm.rank(), &prepared[index]);
        }
    }
}

#[test]
fn many_operations_run_at_once_and_end_in_any_order() {
    for ranks in [1, 2, 5] {
        results(spawn("overlap", ranks, &[]));
        results(spawn(
            "overlap",
            ranks,
            &[
                ("LINERATE_CHUNK_BYTES", "4K"),
                ("LINERATE_PROGRESS", "thread"),
            ],
        ));
    }
}

/// Rank 0 waits for a while only, and calls the others when that is over.
fn within(comm: &Communicator) {
    let data = comm.alloc::<f32>(1000).unwrap();
    let word = comm.alloc::<u8>(1).unwrap();
    let sum = comm.collective(Collective::AllReduce, DataType::F32, 1000);
    let sum = sum.input(&data).output(&data);
    let is_ended = |left: Option<Operation>| left.is_none_or(|left| left.wait().is_ok());
    let soon = Duration::from_millis(1);
    for turn in 0..20 {
        data.as_mut_slice().unwrap().fill(1.0);
        if turn % 2 == 1 {
            assert!(is_ended(sum.run_within(soon).unwrap()));
        } else if comm.rank() == 0 {
            let left = sum.run_within(soon).unwrap();
            let left = left.expect("the others have not called it");
            assert!(data.as_slice().is_err(), "it is in use");
            for peer in 1..comm.ranks() {
                let told = comm.tagged(1).start_send(&word, peer).unwrap();
                told.wait().unwrap();
            }
            left.wait().unwrap();
        } else {
            let told = comm.tagged(1).start_recv(&word, 0).unwrap();
            told.wait().unwrap();
            assert!(is_ended(sum.run_within(soon).unwrap()));
        }
        let all = data.as_slice().unwrap();
        assert!(all.iter().all(|&sum| sum == comm.ranks() as f32));
    }
    println!("RESULT {}", comm.unregistered_bytes().unwrap());
}

#[test]
fn a_call_that_has_not_ended_within_its_limit_goes_on() {
    for (ranks, transport) in [(2, "shm"), (3, "shm"), (2, "tcp")] {
        let settings = [("LINERATE_TRANSPORT", transport)];
        let unregistered = results(spawn("within", ranks, &settings));
        assert!(unregistered.iter().all(|bytes| bytes == "0"));
    }
}

/// Rank 1 calls something else than the others.
fn disagree(comm: &Communicator) {
    let buffer = comm.alloc::<u8>(4096).unwrap();
    let of = |collective, dtype, count| {
        let builder = comm.collective(collective, dtype, count);
        builder.input(&buffer).output(&buffer)
    };
    let (sum, broadcast) = (Collective::AllReduce, Collective::Broadcast);
    let field = std::env::var("LINERATE_TEST_FIELD").unwrap();
    let (is_odd, f32) = (comm.rank() == 1, DataType::F32);
    let call = match field.as_str() {
        "root" => of(broadcast, f32, 5).root(comm.rank() % 2),
        _ if !is_odd => of(sum, f32, 5),
        "count" => of(sum, f32, 6),
        "dtype" => of(sum, DataType::I32, 5),
        "large dtype" => of(sum, DataType::C128, 5),
        "op" => of(sum, f32, 5).op(ReduceOp::Max),
        "collective" => of(broadcast, f32, 5),
        "algorithm" => of(sum, f32, 5).algorithm("ring"),
        field => panic!("{field}"),
    };
    comm.barrier().unwrap();
    println!("RESULT {}", call.run().unwrap_err());
}

#[test]
fn ranks_that_disagree_get_an_error_that_names_both_sides() {
    for (field, words) in [
        ("count", ["of 5 f32", "of 6 f32"]),
        ("dtype", ["of 5 f32", "of 5 i32"]),
        ("large dtype", ["of 5 f32", "of 5 c128"]),
        ("op", ["(sum)", "(max)"]),
        ("collective", ["allreduce", "broadcast"]),
        ("algorithm", ["by line", "by ring"]),
        ("root", ["root 0", "root 1"]),
    ] {
        let extra = [("LINERATE_TEST_FIELD", field), ("LINERATE_TIMEOUT", "2")];
        for line in results(spawn("disagree", 3, &extra)) {
            assert!(line.contains("rank 1 called"), "{field}: {line}");
            assert!(words.iter().all(|w| line.contains(w)), "{field}: {line}");
        }
    }
}

/// Rank 2 does not come.
fn absent(comm: &Communicator) {
    let buffer = comm.alloc::<f32>(1 << 18).unwrap();
    comm.barrier().unwrap();
    if comm.rank() == 2 {
        wait_for_word();
        println!("RESULT absent");
        return;
    }
    let error = comm.all_reduce(&buffer, ReduceOp::Sum).unwrap_err();
    let again = comm.all_reduce(&buffer, ReduceOp::Sum).unwrap_err();
    assert!(again.to_string().contains("failed earlier"), "{again}");
    println!("RESULT {}", error.to_string().replace('\n', " "));
}

#[test]
fn a_rank_that_never_arrives_is_named_to_all() {
    let timeout = [("LINERATE_TIMEOUT", "2")];
    let lines = results(spawn_late(("absent", 3), (2, &[0, 1], "RESULT"), &timeout));
    for line in &lines[..2] {
        assert!(line.contains("rank 2 is missing"), "{line}");
        assert!(line.contains("allreduce of 262144 f32"), "{line}");
    }
}

/// Rank 2 comes to its allreduce when rank 0 has cancelled the barrier.
fn cancel(comm: &Communicator) {
    let buffer = comm.alloc::<f32>(4).unwrap();
    comm.barrier().unwrap();
    let call = comm.collective(Collective::AllReduce, DataType::F32, 4);
    let call = call.input(&buffer).output(&buffer);
    let error = match comm.rank() {
        0 => {
            let mut operation = comm.start_barrier().unwrap();
            assert!(!operation.wait_timeout(Duration::from_millis(50)).unwrap());
            operation.cancel().unwrap();
            println!("CANCELLED");
            call.run().unwrap_err()
        }
        1 => comm.barrier().unwrap_err(),
        _ => {
            wait_for_word();
            call.run().unwrap_err()
        }
    };
    println!("RESULT {error}");
}

#[test]
fn a_cancelled_operation_fails_the_communicator_everywhere() {
    let timeout = [("LINERATE_TIMEOUT", "20")];
    let lines = results(spawn_late(("cancel", 3), (2, &[0], "CANCELLED"), &timeout));
    for line in lines {
        assert!(line.contains("rank 0 cancelled barrier"), "{line}");
    }
}

/// Rank 1 ends after its last operation while the others go on.
fn leave(comm: &Communicator) {
    let buffer = comm.alloc::<f32>(1 << 18).unwrap();
    comm.all_reduce(&buffer, ReduceOp::Sum).unwrap();
    if comm.rank() == 1 {
        println!("RESULT left");
        std::process::exit(0);
    }
    let error = comm.all_reduce(&buffer, ReduceOp::Sum).unwrap_err();
    println!("RESULT {error}");
}

#[test]
fn a_rank_whose_process_ended_is_named_at_once() {
    let lines = results(spawn("leave", 3, &[]));
    for rank in [0, 2] {
        assert!(
            lines[rank].contains("rank 1 failed: its process ended"),
            "{}",
            lines[rank]
        );
    }
}

/// Registered memory on some ranks and not on others.
fn mixed(comm: &Communicator) {
    for round in 0..20u32 {
        let count = 1 << (round + 1);
        let registered = !(comm.rank() + round).is_multiple_of(3);
        let buffer = zeros::<f32>(comm, registered, count);
        for (i, value) in buffer.as_mut_slice().unwrap().iter_mut().enumerate() {
            *value = (i as u32 % 1000 + comm.rank()) as f32;
        }
        comm.all_reduce(&buffer, ReduceOp::Sum).unwrap();
        let p = comm.ranks();
        let wanted = |i: usize| (p * (i as u32 % 1000) + p * (p - 1) / 2) as f32;
        assert!(
            (buffer.as_slice().unwrap().iter())
                .enumerate()
                .all(|(i, &v)| v == wanted(i)),
            "round {round}"
        );
        let mut slice = vec![1.0f32; 1000 * round as usize];
        comm.all_reduce(&mut slice, ReduceOp::Sum).unwrap();
        assert!(slice.iter().all(|&v| v == p as f32));
    }
}

#[test]
fn ranks_may_differ_in_whether_their_memory_is_registered() {
    for ranks in [1, 2, 4] {
        results(spawn("mixed", ranks, &[]));
    }
}

/// Repeats calls on memory that is not registered on one rank, by some ranks one
/// after the other and by others several at a time: what is remembered of them must be the same
/// everywhere at every start.
fn learned(comm: &Communicator) {
    const SIZES: [usize; 3] = [512, 4 << 10, 128 << 10];
    let p = comm.ranks();
    for round in 0..100u32 {
        let buffers = SIZES.map(|bytes| {
            // Who has registered changes while it is remembered.
            let is_plain = comm.rank() == round / 40 % p;
            let buffer = zeros::<f32>(comm, !is_plain, bytes / 4);
            let mut values = buffer.as_mut_slice().unwrap();
            values.fill((comm.rank() + round) as f32);
            drop(values);
            buffer
        });
        let op = ReduceOp::Sum;
        if (comm.rank() + round / 8).is_multiple_of(2) {
            let run = |buffer| comm.all_reduce(buffer, op).unwrap();
            buffers.iter().for_each(run);
        } else {
            let start = |buffer| comm.start_all_reduce(buffer, op).unwrap();
            let started = buffers.each_ref().map(start);
            started
                .into_iter()
                .for_each(|operation| operation.wait().unwrap());
        }
        let wanted = (p * round + p * (p - 1) / 2) as f32;
        for buffer in &buffers {
            assert!(
                buffer.as_slice().unwrap().iter().all(|&v| v == wanted),
                "round {round}"
            );
        }
    }
}

#[test]
fn calls_on_memory_that_is_not_registered_are_remembered_alike() {
    for ranks in [2, 3] {
        results(spawn("learned", ranks, &[]));
    }
}
