//! Ranks as threads that introduce themselves, some of them wrongly, late or not at all.

use super::super::unix::connect_to;
use super::*;
use crate::wait::Clock;
use std::io::Write;

fn run(job: &str, places: &[(Rank, u32, u64)], timeout: Duration) -> Vec<Result<Vec<Vec<u8>>>> {
    let job = format!("{job}-{}", std::process::id());
    std::thread::scope(|scope| {
        let threads: Vec<_> = places
            .iter()
            .map(|&(rank, ranks, fingerprint)| {
                let own = Introduction {
                    rank,
                    ranks,
                    fingerprint,
                    blob: vec![rank as u8; rank as usize + 1],
                };
                let job = &job;
                scope.spawn(move || {
                    let clock = Clock::monotonic();
                    exchange(&own, job, timeout, BusyClock::idle(&clock))
                })
            })
            .collect();
        threads.into_iter().map(|t| t.join().unwrap()).collect()
    })
}

#[test]
fn everyone_gets_the_blobs_of_all() {
    let results = run(
        "all",
        &[(0, 3, 1), (1, 3, 1), (2, 3, 1)],
        Duration::from_secs(10),
    );
    for result in results {
        assert_eq!(result.unwrap(), [vec![0], vec![1, 1], vec![2, 2, 2]]);
    }
}

#[test]
fn a_missing_rank_is_named_to_everyone() {
    let results = run("missing", &[(0, 3, 1), (2, 3, 1)], Duration::from_secs(2));
    for result in results {
        let text = result.unwrap_err().to_string();
        assert!(text.contains("ranks [1]"), "{text}");
    }
}

#[test]
fn different_settings_and_double_ranks_are_refused() {
    let texts = |places: &[(Rank, u32, u64)], job| -> Vec<String> {
        let results = run(job, places, Duration::from_secs(10));
        results
            .into_iter()
            .map(|r| r.unwrap_err().to_string())
            .collect()
    };
    for text in texts(&[(0, 2, 1), (1, 2, 9)], "settings") {
        assert!(text.contains("LINERATE_CHUNK_BYTES"), "{text}");
    }
    for text in texts(&[(0, 2, 1), (1, 3, 1)], "sizes") {
        assert!(text.contains("rank 1 of 3"), "{text}");
    }
}

#[test]
fn a_job_name_in_use_says_so() {
    let name = format!("taken-{}", std::process::id());
    let own = Introduction {
        rank: 0,
        ranks: 2,
        fingerprint: 0,
        blob: vec![],
    };
    let first = HostListener::new(&name).unwrap();
    let clock = Clock::monotonic();
    let second = exchange(&own, &name, TELL_TIME, BusyClock::idle(&clock));
    let text = second.unwrap_err().to_string();
    assert!(text.contains("LINERATE_JOB"), "{text}");
    drop(first);
    let long = exchange(&own, &"x".repeat(100), TELL_TIME, BusyClock::idle(&clock));
    assert!(long.unwrap_err().to_string().contains("60 characters"));
}

#[test]
fn a_rank_that_ends_while_others_are_waited_for_is_named_at_once() {
    let job = format!("ends-{}", std::process::id());
    let introduction = |rank| Introduction {
        rank,
        ranks: 3,
        fingerprint: 1,
        blob: vec![1],
    };
    let hour = Duration::from_secs(3600);
    let run = |rank| {
        let clock = Clock::monotonic();
        exchange(&introduction(rank), &job, hour, BusyClock::idle(&clock))
    };
    std::thread::scope(|scope| {
        let clock = Clock::monotonic();
        let by = (clock.now().after(hour), BusyClock::idle(&clock));
        let first = scope.spawn(|| run(0));
        let mut link = reach((1, 3), &job, by).unwrap();
        link.send(Kind::Come, &emit(&introduction(1)), by).unwrap();
        drop(link);
        // The third one comes when the others have failed already, and is told why.
        let third = scope.spawn(|| run(2));
        for result in [first.join().unwrap(), third.join().unwrap()] {
            let text = result.unwrap_err().to_string();
            assert!(text.contains("rank 1 failed while others"), "{text}");
        }
    });
}

#[test]
fn silent_processes_and_other_programs_keep_no_rank_of_the_host_out() {
    let job = format!("silent-{}", std::process::id());
    let name = name_of(&job).unwrap();
    let come = |rank| Introduction {
        rank,
        ranks: 3,
        fingerprint: 1,
        blob: vec![rank as u8],
    };
    let run = |rank| {
        let clock = Clock::monotonic();
        let by = (Duration::from_secs(60), BusyClock::idle(&clock));
        exchange(&come(rank), &job, by.0, by.1)
    };
    std::thread::scope(|scope| {
        let first = scope.spawn(|| run(0));
        let mut others = Vec::new();
        while others.len() < 400 {
            match connect_to(&name) {
                Ok(mut stream) => {
                    // Every second one says what no rank says.
                    if others.len() % 2 == 0 {
                        let _ = stream.write_all(b"GET / HTTP/1.1");
                    }
                    others.push(stream);
                }
                // Rank 0 does not listen yet, or has not taken those that wait.
                Err(_) => std::thread::yield_now(),
            }
        }
        let ranks = [1, 2].map(|rank| scope.spawn(move || run(rank)));
        for thread in [first].into_iter().chain(ranks) {
            assert_eq!(thread.join().unwrap().unwrap(), [[0], [1], [2]]);
        }
    });
}
