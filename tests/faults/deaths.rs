//! A rank is killed or interrupted while the others go on.

use super::job::{Job, Place, Start, holdings, join, now_us, seed};
use crate::prng::Prng;
use linerate::{Buffer, Collective, CollectiveBuilder, Communicator, DataType, ReduceOp};
use linerate_children::{result, text};
use rustix::process::Signal;
use std::os::unix::process::ExitStatusExt;
use std::time::Duration;

/// Runs collectives of all kinds and sizes until one fails; tells when that was, and leaves nothing
/// behind.
pub fn busy() {
    let place = Place::open();
    let before = holdings();
    let error = {
        let comm = join().unwrap();
        let mut prng = Prng::new(
            std::env::var("LINERATE_TEST_SEED")
                .unwrap()
                .parse()
                .unwrap(),
        );
        let buffers = [
            comm.alloc(1 << 20).unwrap(),
            Buffer::from_vec(vec![0f32; 1 << 20]),
        ];
        place.set(b'o');
        loop {
            let call = random_call(&comm, &mut prng, &buffers);
            place.set(b'i');
            let ended = call.run();
            place.set(b'o');
            match ended {
                Ok(()) => std::thread::sleep(Duration::from_micros(prng.below(100))),
                Err(error) => break error,
            }
        }
    };
    println!("AT {}", now_us());
    println!("ERROR {error}");
    println!(
        "LEFT {}",
        if holdings() == before {
            "nothing"
        } else {
            "something"
        }
    );
    std::process::exit(1);
}

fn random_call<'a>(
    comm: &'a Communicator,
    prng: &mut Prng,
    buffers: &[Buffer<f32>; 2],
) -> CollectiveBuilder<'a> {
    let ranks = u64::from(comm.ranks());
    let collectives = [
        Collective::AllReduce,
        Collective::Broadcast,
        Collective::AllGather,
        Collective::ReduceScatter,
        Collective::AllToAll,
        Collective::Reduce,
        Collective::Barrier,
    ];
    let collective = collectives[prng.below(7) as usize];
    let bytes = [8, 4096, 256 << 10, 4 << 20][prng.below(4) as usize];
    let buffer = &buffers[prng.below(2) as usize];
    let count = match collective {
        Collective::AllReduce | Collective::Broadcast | Collective::Reduce => bytes / 4,
        Collective::Barrier => 0,
        _ => bytes / 8 / ranks,
    };
    let root = prng.below(ranks) as u32;
    let call = comm.collective(collective, DataType::F32, count).root(root);
    if collective == Collective::Barrier {
        return call;
    }
    if matches!(
        collective,
        Collective::AllReduce | Collective::Broadcast | Collective::Reduce
    ) {
        return call.input(buffer).output(buffer);
    }
    let half = buffer.len() / 2;
    call.input(&buffer.range(..half))
        .output(&buffer.range(half..))
}

/// Ends one rank of a busy job at a random moment; whether it was inside a call, and how late the
/// last survivor knew, us.
fn end_one(prng: &mut Prng, ranks: u32, signal: Signal) -> (bool, u64) {
    let environment = [("LINERATE_TEST_SEED", prng.next_u64().to_string())];
    let job = Start {
        environment: &environment,
        ..Start::new("busy", ranks)
    }
    .spawn();
    job.wait_for("the start of all ranks", |places| !places.contains(&b'-'));
    std::thread::sleep(Duration::from_micros(prng.below(20_000)));
    let victim = prng.below(u64::from(ranks)) as u32;
    let at = now_us();
    job.signal(victim, signal);
    check_survivors(job, victim, signal, at)
}

fn check_survivors(job: Job, victim: u32, signal: Signal, at: u64) -> (bool, u64) {
    let (outputs, places) = job.end_with_places();
    let mut late = 0;
    for (rank, output) in outputs.iter().enumerate() {
        if rank as u32 == victim {
            assert_eq!(
                output.status.signal(),
                Some(signal.as_raw()),
                "{}",
                text(output)
            );
            continue;
        }
        let error =
            result(output, "ERROR").unwrap_or_else(|| panic!("rank {rank}: {}", text(output)));
        assert_eq!(output.status.code(), Some(1), "{}", text(output));
        let wanted = format!("rank {victim} failed: its process ended");
        assert!(
            error.contains(&wanted),
            "rank {rank}, victim {victim}: {error}"
        );
        assert_eq!(
            result(output, "LEFT").as_deref(),
            Some("nothing"),
            "rank {rank}"
        );
        let knew: u64 = result(output, "AT").unwrap().parse().unwrap();
        late = late.max(knew.saturating_sub(at));
    }
    // What the victim said last stays: nobody else writes there.
    (places[victim as usize] == b'i', late)
}

/// Ends ranks until at least `times` jobs have run and half as many ends fell inside a call. A fast
/// machine spends less of its time in calls, so up to four times as many jobs may run.
fn end_many(signal: Signal, times: u32) {
    let mut prng = Prng::new(seed());
    let (mut jobs, mut inside, mut late) = (0, 0, 0);
    while jobs < times || 2 * inside < times {
        assert!(
            jobs < 4 * times,
            "{inside} of {jobs} inside a call: too few to say anything"
        );
        let (was_inside, knew) = end_one(&mut prng, if jobs % 2 == 0 { 2 } else { 4 }, signal);
        jobs += 1;
        inside += u32::from(was_inside);
        late = late.max(knew);
    }
    println!(
        "{signal:?}: {jobs} ends of a rank, {inside} of them inside a call; the last survivor knew after {late} us"
    );
}

#[test]
fn whoever_survives_the_kill_of_a_rank_names_it_and_leaves_nothing() {
    end_many(Signal::KILL, 100);
}

#[test]
fn whoever_survives_the_interruption_of_a_rank_names_it_and_leaves_nothing() {
    end_many(Signal::INT, 20);
}

/// Rank 0 computes outside of any call while rank 1 is killed; rank 2 sleeps inside one.
pub fn compute() {
    let place = Place::open();
    let comm = join().unwrap();
    let buffer = comm.alloc::<f32>(1 << 18).unwrap();
    comm.all_reduce(&buffer, ReduceOp::Sum).unwrap();
    place.set(b'r');
    let started = match comm.rank() {
        // Stands for a long computation: no call is made until the test says so.
        0 => {
            place.wait_for(b'g');
            now_us()
        }
        1 => loop {
            std::thread::sleep(Duration::from_secs(1));
        },
        _ => now_us(),
    };
    let error = comm.all_reduce(&buffer, ReduceOp::Sum).unwrap_err();
    println!("TOOK {}", now_us() - started);
    println!("ERROR {error}");
}

#[test]
fn a_death_is_known_to_who_sleeps_in_a_call_and_to_who_comes_back_from_computing() {
    for progress in ["inline", "thread"] {
        let environment = [("LINERATE_PROGRESS", progress.to_string())];
        let job = Start {
            environment: &environment,
            ..Start::new("compute", 3)
        }
        .spawn();
        job.wait_for("the start", |places| places == b"rrr");
        // Rank 2 is asleep by now: it yields for less than a millisecond.
        std::thread::sleep(Duration::from_millis(100));
        job.signal(1, Signal::KILL);
        std::thread::sleep(Duration::from_millis(300));
        job.set_place(0, b'g');
        let outputs = job.end();
        for rank in [0, 2] {
            let error = result(&outputs[rank], "ERROR").unwrap_or_else(|| text(&outputs[rank]));
            assert!(
                error.contains("rank 1 failed: its process ended"),
                "rank {rank}: {error}"
            );
            let took = result(&outputs[rank], "TOOK").unwrap();
            println!("progress {progress}, rank {rank}: {took} us inside the call");
        }
    }
}
