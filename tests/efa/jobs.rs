//! Jobs of real processes over EFA: their results, what they say of devices that cannot be used,
//! and a rank that is killed.

use super::library;
use super::oracle::cases;
use linerate::{Buffer, Communicator, Error, ReduceOp};
use linerate_children::{end, result, results, start, text};

const TRANSPORT: (&str, &str) = ("LINERATE_TRANSPORT", "ofi:efa");
const RAILS: (&str, &str) = ("LINERATE_TRANSPORT", "ofi:efa,rdmap0s0-rdm,rdmap1s0-rdm");

/// All collectives that need no host in common. Prints a hash of all results.
pub fn sweep() {
    let comm = Communicator::from_env().unwrap();
    let mut all = 0u64;
    let needs_host = |case: &super::oracle::Case| {
        let named = |name| linerate::collective::find(case.collective, name).unwrap();
        case.algorithm.is_some_and(|name| named(name).needs.mapped)
    };
    let cases = cases(comm.ranks()).into_iter();
    for case in cases.filter(|case| case.can_run_on_one_host() && !needs_host(case)) {
        let prepared = case.prepare(comm.rank(), |count| match case.registered {
            true => comm.alloc(count).unwrap(),
            false => Buffer::from_vec(vec![0.0; count]),
        });
        let ended = prepared.run(&comm);
        ended.unwrap_or_else(|error| panic!("{case:?}: {error}"));
        for bits in case.check(comm.rank(), &prepared) {
            all = crate::prng::mix(all ^ u64::from(bits));
        }
    }
    println!("RESULT {all:016x}");
}

/// Sums until a peer fails, and tells which one.
pub fn sum_until_one_fails() {
    let comm = Communicator::from_env().unwrap();
    let buffer: Buffer<u64> = comm.alloc(1 << 17).unwrap();
    let ranks = u64::from(comm.ranks());
    for round in 0u64.. {
        buffer.write(0, &[round + u64::from(comm.rank())]).unwrap();
        match comm.all_reduce(&buffer, ReduceOp::Sum) {
            Ok(()) => {
                let sum = buffer.to_vec().unwrap()[0];
                assert_eq!(sum, ranks * round + ranks * (ranks - 1) / 2);
            }
            Err(Error::PeerFailed { rank, cause, .. }) => {
                println!("FAILED {rank} {cause}");
                return;
            }
            Err(error) => panic!("{error}"),
        }
        if round == 3 {
            println!("RUNS");
        }
    }
}

/// Joins a job and leaves it.
pub fn open() {
    match Communicator::from_env() {
        Ok(_) => println!("RESULT joined"),
        Err(error) => println!("RESULT {error}"),
    }
}

#[test]
fn collectives_give_the_same_bits_in_whatever_order_a_device_does_things() {
    let Some(library) = library() else { return };
    let lib = ("LINERATE_FABRIC_LIB", library);
    for (ranks, seeds) in [(2, 3), (3, 2), (4, 2)] {
        let seeds: Vec<String> = (1..=seeds).map(|seed: u64| seed.to_string()).collect();
        let of_seed = |(seed, names): (&String, (&str, &str))| {
            let outputs = end(start(
                "sweep",
                ranks,
                &[lib, names, ("EFA_RULES_SEED", seed)],
            ));
            results(&outputs)
        };
        let names = [TRANSPORT, RAILS].into_iter().cycle();
        let all: Vec<_> = seeds.iter().zip(names).map(of_seed).collect();
        assert!(
            all.iter().all(|one| *one == all[0]),
            "{ranks} ranks: {all:?}"
        );
    }
}

#[test]
fn the_other_ranks_hear_of_one_that_is_killed() {
    let Some(library) = library() else { return };
    // Those that hear of it first tell the others, and leave.
    for (ranks, killed) in [(2usize, 1usize), (4, 2), (4, 0), (4, 3), (4, 1), (5, 3)] {
        let lib = ("LINERATE_FABRIC_LIB", library);
        let mut children = start("busy", ranks as u32, &[lib, TRANSPORT]);
        children.iter_mut().for_each(|child| {
            child.wait_line("RUNS");
        });
        children[killed].kill();
        let outputs = end(children);
        for (rank, output) in outputs
            .iter()
            .enumerate()
            .filter(|(rank, _)| *rank != killed)
        {
            let failed = result(output, "FAILED").unwrap_or_else(|| panic!("{}", text(output)));
            let is_it = failed.starts_with(&format!("{killed} "));
            assert!(is_it, "rank {rank}: {failed}");
        }
    }
}

#[test]
fn chunks_that_are_longer_than_a_write_name_their_setting() {
    let Some(library) = library() else { return };
    let short = ("EFA_RULES_BYTES_MAX", "4096");
    let lib = ("LINERATE_FABRIC_LIB", library);
    for output in end(start("open", 2, &[lib, TRANSPORT, short])) {
        let told = result(&output, "RESULT").unwrap();
        let expected = [
            "transport ofi is unavailable",
            "writes at most 4096 bytes at once",
            "LINERATE_VERBS_CHUNK_BYTES",
        ];
        assert!(expected.iter().all(|part| told.contains(part)), "{told}");
    }
    let fitting = ("LINERATE_VERBS_CHUNK_BYTES", "4096");
    let outputs = end(start("open", 2, &[lib, TRANSPORT, short, fitting]));
    assert_eq!(results(&outputs), ["joined", "joined"]);
}

#[test]
fn writes_that_a_processor_does_are_told() {
    let Some(library) = library() else { return };
    let lib = ("LINERATE_FABRIC_LIB", library);
    for emulated in ["0", "1"] {
        let emulated = ("EFA_RULES_EMULATED", emulated);
        for output in end(start("open", 2, &[lib, TRANSPORT, emulated])) {
            let told = text(&output);
            assert!(told.contains("RESULT joined"), "{told}");
            let is_told = told.contains("this EFA has no writes of its own");
            assert_eq!(is_told, emulated.1 == "1", "{told}");
        }
    }
}
