//! Ranks as threads that introduce themselves, some of them wrongly, late or not at all.

use super::*;

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
                scope.spawn(move || exchange(&own, job, timeout, &Clock::monotonic()))
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
    std::thread::scope(|scope| {
        let first =
            scope.spawn(|| exchange(&own, &name, Duration::from_secs(2), &Clock::monotonic()));
        std::thread::sleep(Duration::from_millis(200));
        let text = exchange(&own, &name, Duration::from_secs(1), &Clock::monotonic())
            .unwrap_err()
            .to_string();
        assert!(text.contains("LINERATE_JOB"), "{text}");
        assert!(first.join().unwrap().is_err());
    });
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
    std::thread::scope(|scope| {
        let clock = Clock::monotonic();
        let first = scope.spawn(|| exchange(&introduction(0), &job, hour, &Clock::monotonic()));
        let address = address_of(&job).unwrap();
        let mut stream = reach(1, &job, &address, clock.now().after(hour), &clock).unwrap();
        stream
            .write_all(&emit_introduction(&introduction(1), JOINS))
            .unwrap();
        drop(stream);
        // The third one comes when the others have failed already, and is told why.
        let third = scope.spawn(|| exchange(&introduction(2), &job, hour, &Clock::monotonic()));
        for result in [first.join().unwrap(), third.join().unwrap()] {
            let text = result.unwrap_err().to_string();
            assert!(text.contains("rank 1 failed while others"), "{text}");
        }
    });
}

#[test]
fn a_rank_that_has_come_is_alive_until_its_connection_ends() {
    let (here, there) = UnixStream::pair().unwrap();
    let streams: Streams = vec![None, Some(here)];
    check_alive(&streams).unwrap();
    drop(there);
    let text = check_alive(&streams).unwrap_err().to_string();
    assert!(text.contains("rank 1 failed"), "{text}");
}
