//! Partial allreduce with real processes over shared memory and connections: exactly once, never
//! torn, in order, bounded staleness, and errors instead of wrong sums. `src/partial` tests the
//! decisions alone, in far more histories.

#[path = "partial/deaths.rs"]
mod deaths;
#[path = "partial/job.rs"]
mod job;
#[path = "../src/prng.rs"]
#[allow(dead_code)]
mod prng;
#[path = "groups/threads.rs"]
mod threads;

use job::{TRANSPORTS, all_equal, results};
use linerate::elements::Bool;
use linerate::options::{Delivery, Divisor};
use linerate::{Communicator, Config, DataType, Error, PartialAllreduce, PartialOptions, Policy};
use linerate_children::{end, spawn, start, text};
use rustix::process::Signal;
use std::time::Duration;
use threads::on_threads;

#[test]
fn child_entry() {
    job::run_as_child();
}

#[test]
fn every_gradient_is_applied_once_on_every_rank_whatever_the_policy() {
    for transport in TRANSPORTS {
        for policy in [
            "solo", "majority", "quorum3", "random", "deadline", "limiter", "full",
        ] {
            let extra = [transport, ("LINERATE_TEST_POLICY", policy)];
            all_equal(&results(&spawn("exact", 4, &extra)));
        }
    }
}

#[test]
fn vectors_that_are_not_gathered_with_the_headers_are_applied_once_too() {
    for transport in TRANSPORTS {
        for (ranks, policy) in [(1, "solo"), (3, "solo"), (5, "majority")] {
            let extra = [
                transport,
                ("LINERATE_TEST_POLICY", policy),
                ("LINERATE_TEST_PAD", "20000"),
            ];
            all_equal(&results(&spawn("exact", ranks, &extra)));
        }
    }
}

#[test]
fn a_gradient_of_64_mib_that_is_overwritten_at_once_is_never_torn() {
    let torn = results(&spawn("torn", 2, &[TRANSPORTS[0]]));
    assert!(torn.iter().all(|r| r == "whole"), "{torn:?}");
}

#[test]
fn a_rank_that_is_always_slow_is_3_rounds_late_and_never_more_with_a_bound_of_3() {
    for transport in TRANSPORTS {
        let seen = results(&spawn("slow", 3, &[transport]));
        assert!(seen.iter().all(|r| r == "staleness 3 held 2"), "{seen:?}");
    }
}

#[test]
fn an_application_that_stops_for_ten_rounds_holds_nobody_up_and_catches_up() {
    for transport in TRANSPORTS {
        all_equal(&results(&spawn("absent", 3, &[transport])));
    }
}

#[test]
fn fewer_ranks_than_the_quorum_never_begin_a_round() {
    for transport in TRANSPORTS {
        results(&spawn("quorum", 4, &[transport]));
    }
}

#[test]
fn merged_results_add_up_and_the_newest_says_how_many_it_stands_for() {
    for (transport, delivery) in [(TRANSPORTS[0], "merged"), (TRANSPORTS[1], "latest")] {
        results(&spawn(
            "sparse",
            3,
            &[
                transport,
                ("LINERATE_TEST_POLICY", "solo"),
                ("LINERATE_TEST_DELIVERY", delivery),
            ],
        ));
    }
}

#[test]
fn a_process_that_is_stopped_for_a_while_stalls_rounds_and_loses_nothing() {
    for transport in TRANSPORTS {
        let extra = [transport, ("LINERATE_TEST_POLICY", "solo")];
        let mut children = start("exact", 3, &extra);
        children[1].wait_line("AT 5");
        children[1].signal(Signal::STOP);
        std::thread::sleep(Duration::from_millis(300));
        children[1].signal(Signal::CONT);
        all_equal(&results(&end(children)));
    }
}

/// Stops a rank for good in the middle of a job: all others name it, and say of nobody else that it
/// does not answer. One whose beginning of a round waits for a word that the stopped rank should
/// have passed on is missing there, too.
fn check_stopped_is_named(transport: (&str, &str), policy: &str, stopped: usize) {
    let extra = [
        transport,
        ("LINERATE_TEST_POLICY", policy),
        ("LINERATE_TIMEOUT", "3"),
    ];
    let mut children = start("exact", 3, &extra);
    children[stopped].wait_line("AT 5");
    let gone = children.remove(stopped);
    gone.signal(Signal::STOP);
    let outputs = end(children);
    drop(gone);
    let named = format!("rank {stopped} is missing: no answer");
    for output in &outputs {
        let text = text(output);
        let lists = text.split("missing: [").skip(1);
        let mut ranks = lists.map(|rest| rest.split(']').next().unwrap_or_default());
        let is_listed = ranks.any(|all| all.split(", ").any(|one| one == stopped.to_string()));
        let silent = text.matches("is missing: no answer").count();
        let is_named = is_listed && silent > 0 && silent == text.matches(&named).count();
        assert!(
            !output.status.success() && is_named,
            "{transport:?}, {policy}, rank {stopped}: {text}"
        );
    }
}

#[test]
fn a_process_that_stays_stopped_is_named_by_all_others_whatever_the_policy() {
    const POLICIES: [&str; 7] = [
        "solo", "majority", "quorum3", "random", "deadline", "limiter", "full",
    ];
    // Jobs at the same time: they do nothing but wait.
    for batch in 0..2 {
        std::thread::scope(|scope| {
            for (index, policy) in POLICIES.into_iter().enumerate() {
                let (transport, stopped) = (TRANSPORTS[(index + batch) % 2], (index + batch) % 3);
                scope.spawn(move || check_stopped_is_named(transport, policy, stopped));
            }
        });
    }
}

#[test]
fn the_death_of_a_rank_is_an_error_on_all_others_also_where_it_should_have_begun_the_round() {
    for transport in TRANSPORTS {
        for policy in ["solo", "majority", "random", "full"] {
            let extra = [transport, ("LINERATE_TEST_POLICY", policy)];
            let outputs = spawn("dies", 3, &extra);
            for rank in [0, 2] {
                let text = text(&outputs[rank]);
                assert!(
                    text.contains("ERROR rank 1 failed"),
                    "{policy}, rank {rank}: {text}"
                );
            }
        }
    }
}

/// Runs `body` on every rank of a job of its own.
fn on_ranks<T: Send>(ranks: u32, body: impl Fn(Communicator) -> T + Sync) -> Vec<T> {
    let config = Config {
        timeout: Duration::from_secs(20),
        ..Config::default()
    };
    on_threads(ranks, &config, body)
}

#[test]
fn a_submit_without_room_waits_for_another_thread_and_then_says_what_to_do() {
    let config = Config {
        timeout: Duration::from_secs(1),
        ..Config::default()
    };
    let texts = on_threads(2, &config, |comm| {
        let partial =
            PartialAllreduce::new(&comm, DataType::F32, 2, PartialOptions::default()).unwrap();
        let buffer = comm.alloc::<f32>(2).unwrap();
        partial.submit(&buffer).unwrap();
        // The result of step 0 makes room, no matter who takes it.
        std::thread::scope(|scope| {
            let second = scope.spawn(|| partial.submit(&buffer));
            let output = comm.alloc::<f32>(2).unwrap();
            assert_eq!(partial.next(&output).unwrap().unwrap().round, 0);
            assert_eq!(second.join().unwrap(), Ok(1));
        });
        let text = partial.submit(&buffer).unwrap_err().to_string();
        comm.barrier().unwrap();
        text
    });
    for text in texts {
        assert!(
            text.contains("step 2") && text.contains("call next"),
            "{text}"
        );
    }
}

#[test]
fn several_run_beside_each_other_and_beside_other_operations() {
    on_ranks(3, |comm| {
        let make = |policy, count| {
            let options = PartialOptions {
                policy,
                divisor: Divisor::One,
                ..PartialOptions::default()
            };
            PartialAllreduce::new(&comm, DataType::I64, count, options).unwrap()
        };
        let all = [
            make(Policy::Solo, 3),
            make(Policy::Majority, 1000),
            make(Policy::Full, 1),
        ];
        let counts = [3, 1000, 1];
        let mut sums = [0i64; 3];
        for _ in 0..20 {
            for (index, partial) in all.iter().enumerate() {
                let buffer = comm.alloc(counts[index]).unwrap();
                buffer.write(0, &vec![1i64; counts[index]]).unwrap();
                partial.exchange(&buffer, &buffer).unwrap();
                sums[index] += buffer.to_vec().unwrap()[counts[index] - 1];
            }
            let mut one = [1u64];
            comm.all_reduce(&mut one, linerate::ReduceOp::Sum).unwrap();
            assert_eq!(one, [3]);
        }
        for (index, partial) in all.iter().enumerate() {
            let buffer = comm.alloc::<i64>(counts[index]).unwrap();
            let add = |_| sums[index] += buffer.to_vec().unwrap()[0];
            partial.finish(&buffer, add).unwrap();
        }
        assert_eq!(sums, [60; 3]);
    });
}

#[test]
fn sums_are_in_the_order_of_ranks_and_divided_once_by_what_was_asked_for() {
    // The sum depends on the order: (1e8 + 1) - 1e8 is 0, and 1e8 - 1e8 + 1 is 1.
    let values = [1e8f32, 1.0, -1e8];
    for (divisor, wanted) in [
        (Divisor::One, 0.0f32),
        (Divisor::Creation, 0.0),
        (Divisor::Generations, 0.0),
    ] {
        let all = on_ranks(3, |comm| {
            let options = PartialOptions {
                policy: Policy::Full,
                divisor,
                ..PartialOptions::default()
            };
            let partial = PartialAllreduce::new(&comm, DataType::F32, 2, options).unwrap();
            let buffer = comm.alloc(2).unwrap();
            let own = [values[comm.rank() as usize], 3.0];
            buffer.write(0, &own).unwrap();
            let report = partial.exchange(&buffer, &buffer).unwrap().unwrap();
            let ones = buffer.to_vec().unwrap();
            assert_eq!(report.divisor, if divisor == Divisor::One { 1 } else { 3 });
            assert_eq!(ones[1], 9.0 / report.divisor as f32);
            ones[0]
        });
        assert_eq!(all, [wanted; 3]);
    }
}

#[test]
fn the_buffers_of_a_step_are_in_the_same_round() {
    on_ranks(3, |comm| {
        let options = PartialOptions {
            policy: Policy::Solo,
            divisor: Divisor::One,
            ..PartialOptions::default()
        };
        let partial = PartialAllreduce::new(&comm, DataType::I32, 300, options).unwrap();
        let layers: Vec<_> = [100usize, 0, 1, 199]
            .map(|count| comm.alloc(count.max(1)).unwrap().range(..count))
            .to_vec();
        let mut sum = 0;
        let mut see = |layers: &[linerate::Buffer<i32>]| {
            let elements = |layer: &linerate::Buffer<i32>| layer.to_vec().unwrap();
            let all: Vec<i32> = layers.iter().flat_map(elements).collect();
            assert!(all.iter().all(|&x| x == all[0]), "{all:?}");
            sum += all[0];
        };
        for _ in 0..20 {
            for layer in &layers {
                layer.as_mut_slice().unwrap().fill(1);
            }
            partial.submit_parts(&layers).unwrap();
            partial.next_parts(&layers).unwrap().unwrap();
            see(&layers);
        }
        let text = partial.submit_parts(&layers[..3]).unwrap_err().to_string();
        assert!(text.contains("1200 bytes"), "{text}");
        let update = comm.alloc(300).unwrap();
        partial
            .finish(&update, |_| see(std::slice::from_ref(&update)))
            .unwrap();
        assert_eq!(sum, 60);
    });
}

#[test]
fn what_nobody_contributes_is_zero_and_negative_zero_stays_what_it_is() {
    let f32_zero = [0, 0, 0, 0x80];
    for (dtype, zero) in [
        (DataType::F32, &f32_zero[..]),
        (DataType::F8E4M3, &[0x80]),
        (DataType::Bf16, &[0, 0x80]),
        (DataType::C64, &[f32_zero; 2].concat()),
    ] {
        // 2 elements travel with the headers, 1000 do not.
        for count in [2usize, 1000] {
            on_ranks(2, |comm| negative_zeros(&comm, dtype, &zero.repeat(count)));
        }
    }
}

/// Partial sums of zeros of this type, whose bytes are those of -0.
fn negative_zeros(comm: &Communicator, dtype: DataType, zeros: &[u8]) {
    let count = (zeros.len() / dtype.size_bytes()) as u64;
    let options = PartialOptions::default();
    let partial = PartialAllreduce::new(comm, dtype, count, options).unwrap();
    let buffer = comm.alloc::<u8>(zeros.len()).unwrap();
    let bytes = || buffer.to_vec().unwrap();
    if comm.rank() == 0 {
        buffer.write(0, zeros).unwrap();
        partial.exchange(&buffer, &buffer).unwrap();
        assert_eq!(bytes(), zeros);
    } else {
        // This rank has nothing: its part must not turn -0 into 0.
        while partial.lag() == 0 {
            std::thread::sleep(Duration::from_millis(1));
        }
        partial.next(&buffer).unwrap();
        assert_eq!(bytes(), zeros);
        buffer.write(0, zeros).unwrap();
        partial.submit(&buffer).unwrap();
    }
    partial
        .finish(&buffer, |report| assert!(report.is_last))
        .unwrap();
    partial
        .finish(&buffer, |report| assert_eq!(report.included.count(), 0))
        .unwrap();
    assert_eq!(bytes(), vec![0; zeros.len()]);
}

#[test]
fn truth_values_are_joined_by_or_and_have_no_averages() {
    on_ranks(2, |comm| {
        let make = |divisor| {
            let options = PartialOptions {
                policy: Policy::Full,
                divisor,
                ..PartialOptions::default()
            };
            PartialAllreduce::new(&comm, DataType::Bool, 3, options)
        };
        let text = make(Divisor::Creation).unwrap_err().to_string();
        assert!(
            text.contains("Creation") && text.contains("Divisor::One"),
            "{text}"
        );
        let partial = make(Divisor::One).unwrap();
        let found = comm.alloc::<Bool>(3).unwrap();
        let own = [comm.rank() == 1, false, true].map(Bool::from);
        found.write(0, &own).unwrap();
        partial.exchange(&found, &found).unwrap();
        assert_eq!(found.to_vec().unwrap(), [true, false, true].map(Bool::from));
        partial.finish(&found, |_| {}).unwrap();
    });
}

#[test]
fn ranks_that_differ_are_told_so() {
    let texts = on_ranks(2, |comm| {
        let options = PartialOptions {
            staleness_max: Some(3 + comm.rank()),
            ..PartialOptions::default()
        };
        let made = PartialAllreduce::new(&comm, DataType::F32, 4, options);
        made.unwrap_err().to_string()
    });
    assert!(
        texts
            .iter()
            .all(|t| t.contains("rank 1 makes a partial allreduce")),
        "{texts:?}"
    );
}

/// What the ranks get of which rank 0 finishes where the others submit a gradient; that one's round
/// may have passed, so they go on until they are told. `before` is where rank 0 waits.
fn finish_where_others_submit(policy: Policy, before: impl Fn(&PartialAllreduce) + Sync) {
    let texts = on_ranks(2, |comm| {
        let options = PartialOptions {
            policy,
            delivery: Delivery::Merged,
            ..PartialOptions::default()
        };
        let partial = PartialAllreduce::new(&comm, DataType::F32, 4, options).unwrap();
        let buffer = comm.alloc::<f32>(4).unwrap();
        let error = match comm.rank() {
            0 => {
                before(&partial);
                partial.finish(&buffer, |_| ()).unwrap_err()
            }
            _ => loop {
                if let Err(error) = partial.exchange(&buffer, &buffer) {
                    break error;
                }
            },
        };
        assert!(
            matches!(error, Error::InvalidArgument(_) | Error::PeerFailed { .. }),
            "{error}"
        );
        drop(partial);
        comm.barrier().unwrap();
        error.to_string()
    });
    assert!(
        texts
            .iter()
            .all(|t| t.contains("has finished its partial allreduce")),
        "{texts:?}"
    );
}

#[test]
fn a_rank_that_finishes_where_others_submit_is_an_error_on_all_whoever_comes_first() {
    // The round has been reduced without rank 0 when that finishes.
    finish_where_others_submit(Policy::Solo, |partial| {
        while partial.lag() == 0 {
            std::thread::sleep(Duration::from_millis(1));
        }
    });
    // Both enter it, in whatever order they come.
    finish_where_others_submit(Policy::Full, |_| ());
    for _ in 0..20 {
        finish_where_others_submit(Policy::Solo, |_| ());
    }
}
