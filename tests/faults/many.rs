//! Jobs of more ranks than are connected to each other beforehand: they have the connections that
//! their messages need, and all the same every rank hears who has died, is stopped or has left.

use super::job::{Job, Place, Start, join, now_us};
use linerate::transport::{Options, open};
use linerate::{Buffer, Collective, Communicator, DataType, ReduceOp};
use linerate_children::{result, text};
use rustix::process::Signal;

/// Ranks of most jobs here: more than 16, and no power of two.
const RANKS: u32 = 20;

/// What a rank does in such a job.
pub fn many() {
    let place = Place::open();
    let comm = join().unwrap();
    let plan = std::env::var("LINERATE_TEST_PLAN").unwrap();
    match plan.as_str() {
        "barrier" | "chain" | "rebuild" => {
            place.set(b'r');
            place.wait_for(b'g');
            let began = now_us();
            let error = match plan.as_str() {
                "chain" => chain(&comm),
                _ => comm.barrier(),
            };
            let error = error.unwrap_err();
            println!("TOOK {}", now_us() - began);
            println!("ERROR {error}");
            if plan == "rebuild" {
                let rebuilt = comm.rebuild().unwrap();
                drop(comm);
                sum(&rebuilt, "ring").unwrap();
                rebuilt.barrier().unwrap();
                println!("RANKS {}", rebuilt.ranks());
                rebuilt.finalize().unwrap();
            }
        }
        "leave" => {
            sum(&comm, "ring").unwrap();
            if comm.rank() == 3 {
                return;
            }
            let error = (0..2).find_map(|_| sum(&comm, "recursive-doubling").err());
            println!("ERROR {}", error.expect("rank 3 has left"));
        }
        algorithm => {
            match algorithm {
                "broadcast" => {
                    let mut word = [u64::from(comm.rank() == 0)];
                    comm.broadcast(&mut word, 0).unwrap();
                    assert_eq!(word, [1]);
                }
                _ => (0..5).for_each(|_| sum(&comm, algorithm).unwrap()),
            }
            let counts = comm.transport_counts();
            let connected = counts.iter().find(|count| count.0 == "peers connected");
            println!("CONNECTED {}", connected.expect("a count of this name").1);
            // From here on this rank makes no call: what it has said comes all the same.
            place.set(b'd');
            place.wait_for(b'g');
        }
    }
}

/// A sum by an algorithm, looked at.
fn sum(comm: &Communicator, algorithm: &str) -> linerate::Result<()> {
    let buffer = Buffer::from_vec(vec![1f32; 3000]);
    comm.collective(Collective::AllReduce, DataType::F32, buffer.len() as u64)
        .op(ReduceOp::Sum)
        .algorithm(algorithm)
        .input(&buffer)
        .output(&buffer)
        .run()?;
    let sums = buffer.to_vec()?;
    assert!(sums.iter().all(|&sum| sum == comm.ranks() as f32));
    Ok(())
}

/// A word goes from rank to rank, and nobody else has to do with rank 0 than rank 1.
fn chain(comm: &Communicator) -> linerate::Result<()> {
    let word = Buffer::from_vec(vec![7u64]);
    if comm.rank() > 0 {
        comm.recv(&word, comm.rank() - 1)?;
    }
    if comm.rank() + 1 < comm.ranks() {
        comm.send(&word, comm.rank() + 1)?;
    }
    comm.barrier()
}

/// Transports that connect at the first use, and are here.
fn transports() -> Vec<&'static str> {
    let is_here = |name: &&str| match open(name, 0, 1, 0, &Options::default()) {
        Ok(_) => true,
        Err(reason) => {
            println!("skipped: {name}: {reason}");
            false
        }
    };
    ["tcp", "verbs"].into_iter().filter(is_here).collect()
}

fn start(plan: &str, ranks: u32, transport: &str, timeout: &str) -> Job {
    let environment = [
        ("LINERATE_TEST_PLAN", plan.to_string()),
        ("LINERATE_TRANSPORT", transport.to_string()),
        ("LINERATE_TIMEOUT", timeout.to_string()),
    ];
    Start {
        environment: &environment,
        ..Start::new("many", ranks)
    }
    .spawn()
}

/// A job whose ranks go on once `victims` have got a signal. What the others say of that.
fn strike(
    (plan, ranks, transport): (&str, u32, &str),
    (victims, signal): (&[u32], Signal),
    timeout: &str,
) -> Vec<(u32, String)> {
    let mut job = start(plan, ranks, transport, timeout);
    job.wait_for("the start of all ranks", |places| {
        places.iter().all(|&place| place == b'r')
    });
    for &victim in victims {
        job.signal(victim, signal);
    }
    let others = (0..ranks).filter(|rank| !victims.contains(rank));
    let others: Vec<u32> = others.collect();
    for &rank in &others {
        job.set_place(rank, b'g');
    }
    if signal == Signal::STOP {
        // They go on when the others have given up, and find the same.
        job.wait_for_said(&others, "ERROR");
        for &victim in victims {
            job.signal(victim, Signal::KILL);
        }
    }
    let outputs = job.end();
    let said = others.iter().map(|&rank| {
        let output = &outputs[rank as usize];
        let key = if plan == "rebuild" { "RANKS" } else { "ERROR" };
        let said = result(output, key);
        (
            rank,
            said.unwrap_or_else(|| panic!("rank {rank}: {}", text(output))),
        )
    });
    said.collect()
}

fn check_all_name(victims: &[u32], said: &[(u32, String)]) {
    let names = |error: &str| {
        let mut victims = victims.iter();
        victims.any(|victim| error.contains(&format!("rank {victim} failed: ")))
    };
    let wrong: Vec<_> = said.iter().filter(|(_, error)| !names(error)).collect();
    assert!(wrong.is_empty(), "{victims:?} died: {wrong:#?}");
}

/// To how many peers each rank is connected after sums or a broadcast. No rank makes a call after
/// its last one before all have ended theirs.
fn connected(plan: &str, ranks: u32, transport: &str) -> Vec<u32> {
    let job = start(plan, ranks, transport, "60");
    job.wait_for("the sums", |places| places.iter().all(|&p| p == b'd'));
    for rank in 0..ranks {
        job.set_place(rank, b'g');
    }
    let count = |output: &std::process::Output| {
        let connected = result(output, "CONNECTED");
        let connected = connected.unwrap_or_else(|| panic!("{}", text(output)));
        connected.parse().unwrap()
    };
    job.end().iter().map(count).collect()
}

#[test]
fn a_schedule_makes_the_connections_that_it_needs() {
    for transport in transports() {
        // Both neighbours; the partners of a rank, and a rank that is folded in beforehand; the
        // children of a rank, and its parent.
        for (plan, most) in [("ring", 2), ("recursive-doubling", 5), ("broadcast", 5)] {
            let connected = connected(plan, RANKS, transport);
            let are_needed = connected.iter().all(|count| (1..=most).contains(count));
            assert!(are_needed, "{transport}, {plan}: {connected:?}");
        }
    }
}

#[test]
fn what_a_rank_has_said_comes_although_it_makes_no_other_call() {
    for transport in transports() {
        assert_eq!(connected("ring", 8, transport), [7; 8], "{transport}");
    }
}

#[test]
fn the_death_of_a_rank_without_connections_is_known_to_all() {
    for transport in transports() {
        let said = strike(("barrier", RANKS, transport), (&[7], Signal::KILL), "60");
        check_all_name(&[7], &said);
    }
}

#[test]
fn a_death_that_one_rank_sees_is_known_to_those_who_wait_for_it() {
    for transport in transports() {
        let said = strike(("chain", RANKS, transport), (&[0], Signal::KILL), "60");
        check_all_name(&[0], &said);
    }
}

#[test]
fn the_deaths_of_half_of_the_ranks_are_known_to_the_others() {
    for transport in transports() {
        let victims: Vec<u32> = (0..RANKS).step_by(2).collect();
        let said = strike(
            ("barrier", RANKS, transport),
            (&victims, Signal::KILL),
            "60",
        );
        check_all_name(&victims, &said);
    }
}

#[test]
fn a_death_is_known_to_all_of_many_ranks_that_share_few_cores() {
    let said = strike(("barrier", 64, "tcp"), (&[41], Signal::KILL), "100");
    check_all_name(&[41], &said);
}

#[test]
fn a_rank_that_is_stopped_is_named_by_all_that_wait() {
    for transport in transports() {
        let said = strike(("barrier", RANKS, transport), (&[5], Signal::STOP), "5");
        let names = |error: &str| error.contains("rank 5 is missing");
        let wrong: Vec<_> = said.iter().filter(|(_, error)| !names(error)).collect();
        assert!(wrong.is_empty(), "{transport}: {wrong:#?}");
    }
}

#[test]
fn the_survivors_of_deaths_rebuild_without_connections_to_the_dead() {
    for transport in transports() {
        let victims = [0, 6];
        let said = strike(
            ("rebuild", RANKS, transport),
            (&victims, Signal::KILL),
            "60",
        );
        let wrong: Vec<_> = said.iter().filter(|(_, ranks)| ranks != "18").collect();
        assert!(wrong.is_empty(), "{transport}: {wrong:#?}");
    }
}

#[test]
fn a_rank_that_has_left_is_named_also_by_those_that_had_no_connection_to_it() {
    for transport in transports() {
        let outputs = start("leave", RANKS, transport, "60").end();
        for (rank, output) in outputs.iter().enumerate().filter(|(rank, _)| *rank != 3) {
            let error = result(output, "ERROR").unwrap_or_else(|| panic!("{}", text(output)));
            let is_named = error.contains("rank 3 has left");
            assert!(is_named, "{transport}, rank {rank}: {error}");
        }
    }
}
