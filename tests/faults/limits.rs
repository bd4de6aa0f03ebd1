//! Limits of memory and descriptors, other jobs, other users, and what is held after many
//! communicators.

use super::job::{Start, holdings, join};
use linerate::{Buffer, Collective, Communicator, DataType, Error, ReduceOp, Result};
use linerate_children::{no_other_user, result, text};
use std::process::Output;

/// Sums what the environment says over the ranks.
pub fn sum() {
    let value: f32 = std::env::var("LINERATE_TEST_VALUE").map_or(1.0, |text| text.parse().unwrap());
    let error = join().and_then(|comm| {
        let buffer = comm.alloc::<f32>(1 << 18)?;
        buffer.as_mut_slice()?.fill(value);
        for _ in 0..3 {
            comm.all_reduce(&buffer, ReduceOp::Sum)?;
        }
        let all = buffer.as_slice()?;
        assert!(all.iter().all(|&v| v == all[0]));
        println!("SUM {}", all[0]);
        Ok(())
    });
    if let Err(error) = error {
        println!("ERROR {error}");
    }
}

fn value(output: &Output, key: &str) -> String {
    result(output, key).unwrap_or_else(|| panic!("{}", text(output)))
}

#[test]
fn too_few_descriptors_are_an_error_on_every_rank_that_says_how_many_are_needed() {
    let start = Start {
        shell: "ulimit -n 20;",
        ..Start::new("sum", 32)
    };
    for (rank, output) in start.spawn().end().iter().enumerate() {
        let error = value(output, "ERROR");
        assert!(
            error.contains("RLIMIT_NOFILE is 20") && error.contains("`ulimit -Hn"),
            "rank {rank}: {error}"
        );
    }
}

#[test]
fn one_rank_with_too_few_descriptors_is_named_by_all() {
    for poor in [0, 2] {
        let shell = format!("if [ $RANK = {poor} ]; then ulimit -n 14; fi;");
        let start = Start {
            shell: &shell,
            ..Start::new("sum", 4)
        };
        for (rank, output) in start.spawn().end().iter().enumerate() {
            let error = value(output, "ERROR");
            let wanted = format!("rank {poor} of 4 needs");
            assert!(
                error.contains(&wanted) && error.contains("RLIMIT_NOFILE is 14"),
                "rank {rank}: {error}"
            );
        }
    }
}

/// Asks for more memory than there is.
pub fn greedy() {
    const MUCH: usize = 4 << 40;
    let refused = |error: Error| match &error {
        Error::Exhausted { what, .. } => assert!(what.contains("4.0 TiB"), "{error}"),
        _ => panic!("{error}"),
    };
    let comm = join().unwrap();
    refused(comm.alloc::<u8>(MUCH).unwrap_err());
    println!(
        "ERROR {}",
        comm.alloc::<u8>(1 << 30)
            .map_or_else(|e| e.to_string(), |_| "none".into())
    );
    // A rank that was refused goes on.
    let buffer = comm.alloc::<f32>(1024).unwrap();
    comm.all_reduce(&buffer, ReduceOp::Sum).unwrap();
    println!("WENT on");
}

#[test]
fn memory_that_cannot_be_had_is_refused_with_the_limit_before_it_is_touched() {
    for (shell, limit) in [
        ("ulimit -f 200000;", "RLIMIT_FSIZE is"),
        ("ulimit -v 1000000;", "RLIMIT_AS is"),
    ] {
        let start = Start {
            shell,
            ..Start::new("greedy", 2)
        };
        for output in start.spawn().end() {
            let error = value(&output, "ERROR");
            assert!(
                error.contains(limit) && error.contains("1073741824 bytes"),
                "{error}"
            );
            value(&output, "WENT");
        }
    }
}

#[test]
fn two_jobs_at_once_do_not_meet() {
    let jobs: Vec<_> = (1..=4)
        .map(|value| {
            let environment = [("LINERATE_TEST_VALUE", value.to_string())];
            (
                value,
                Start {
                    environment: &environment,
                    ..Start::new("sum", 3)
                }
                .spawn(),
            )
        })
        .collect();
    for (job_value, job) in jobs {
        for output in job.end() {
            assert_eq!(value(&output, "SUM"), (27 * job_value).to_string());
        }
    }
}

#[test]
fn two_users_with_one_name_of_a_job_do_not_meet() {
    if let Some(why) = no_other_user() {
        println!("skipped: {why}");
        return;
    }
    let nobody = 65534;
    let name = format!("shared-name-{}", std::process::id());
    let jobs: Vec<_> = [(1, None), (2, Some(nobody))]
        .into_iter()
        .map(|(value, user)| {
            let environment = [("LINERATE_TEST_VALUE", value.to_string())];
            let name = Some(name.clone());
            (
                value,
                Start {
                    environment: &environment,
                    user,
                    name,
                    ..Start::new("sum", 2)
                }
                .spawn(),
            )
        })
        .collect();
    let outputs: Vec<_> = jobs
        .into_iter()
        .map(|(value, job)| (value, job.end_among_others()))
        .collect();
    for (job_value, outputs) in outputs {
        for output in outputs {
            assert_eq!(value(&output, "SUM"), (8 * job_value).to_string());
        }
    }
}

/// Makes and drops communicators, with memory and operations on each.
pub fn again() {
    let (mut first, ranks) = (None, std::env::var("WORLD_SIZE").unwrap().parse().unwrap());
    let rank = std::env::var("RANK").unwrap().parse().unwrap();
    let job = std::env::var("LINERATE_JOB").unwrap();
    for number in 0..105 {
        let name = format!("{job}-{number}");
        let comm =
            linerate::Communicator::join(rank, ranks, &name, linerate::Config::default()).unwrap();
        let buffer = comm.alloc::<f32>(1 << 18).unwrap();
        let plain = Buffer::from_vec(vec![0f32; 1 << 18]);
        for buffer in [&buffer, &plain] {
            comm.all_reduce(buffer, ReduceOp::Sum).unwrap();
        }
        let (input, output) = (
            buffer.range(..1 << 10),
            plain.range(..(ranks as usize) << 10),
        );
        comm.all_gather(&input, &output).unwrap();
        drop((comm, buffer, plain, input, output));
        if number == 4 {
            first = Some(holdings());
        }
    }
    println!("HELD {:?} {:?}", first.unwrap(), holdings());
}

#[test]
fn a_hundred_communicators_leave_no_descriptor_and_no_mapping() {
    for output in Start::new("again", 2).spawn().end() {
        let held = value(&output, "HELD");
        let (first, last) = held.split_once(") ").unwrap();
        assert_eq!(first, last.trim_end_matches(')'), "{held}");
        assert!(first.ends_with(", 0"), "mapped memfds: {held}");
    }
}

fn sum_directly(comm: &Communicator, buffer: &Buffer<f32>) -> Result<()> {
    let count = buffer.len() as u64;
    let sum = comm.collective(Collective::AllReduce, DataType::F32, count);
    sum.input(buffer).output(buffer).algorithm("direct").run()
}

/// Takes and frees registered memory, time after time, on one communicator.
pub fn churn() {
    let comm = join().unwrap();
    let mut held = Vec::new();
    for number in 0..300 {
        let buffer = comm.alloc(64 << 10).unwrap();
        sum_directly(&comm, &buffer).unwrap();
        if number % 100 == 99 {
            held.push(holdings());
        }
    }
    println!("HELD {held:?}");
    // Buffers that have just been dropped, and those of the peer, wait for the next operations.
    assert!(
        held.iter()
            .all(|h| h.0 <= held[0].0 + 8 && h.1 <= held[0].1 + 16),
        "{held:?}"
    );
}

#[test]
fn memory_that_peers_have_freed_is_let_go_while_the_communicator_lives() {
    for output in Start::new("churn", 2).spawn().end() {
        value(&output, "HELD");
        assert!(output.status.success(), "{}", text(&output));
    }
}

#[test]
fn a_soft_limit_of_descriptors_is_raised_where_a_job_needs_more() {
    let start = Start {
        shell: "ulimit -Sn 20;",
        ..Start::new("sum", 8)
    };
    for output in start.spawn().end() {
        // Three sums in place.
        assert_eq!(value(&output, "SUM"), "512");
    }
}

/// Rank 1 uses up its descriptors before the first use of memory that it would have to map.
pub fn exhausted() {
    let comm = join().unwrap();
    let buffer = comm.alloc(1 << 18).unwrap();
    comm.barrier().unwrap();
    let mut files = Vec::new();
    while comm.rank() == 1
        && let Ok(file) = std::fs::File::open("/dev/null")
    {
        files.push(file);
    }
    if comm.rank() == 1 {
        println!("ALLOC {}", comm.alloc::<u8>(1 << 20).unwrap_err());
    }
    comm.barrier().unwrap();
    println!("ERROR {}", sum_directly(&comm, &buffer).unwrap_err());
}

#[test]
fn descriptors_that_run_out_later_are_told_to_every_rank() {
    let start = Start {
        shell: "ulimit -n 40;",
        ..Start::new("exhausted", 3)
    };
    let outputs = start.spawn().end();
    for (rank, output) in outputs.iter().enumerate() {
        let error = value(output, "ERROR");
        assert!(
            error.contains("no file descriptor") && error.contains("ulimit -n"),
            "rank {rank}: {error}"
        );
        assert!(error.contains("rank 1"), "rank {rank}: {error}");
    }
    let alloc = value(&outputs[1], "ALLOC");
    assert!(
        alloc.contains("RLIMIT_NOFILE") && alloc.contains("ulimit -n"),
        "{alloc}"
    );
}
