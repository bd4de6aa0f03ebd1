//! `--profile` of `bench` and `perf` from outside, with real ranks: where the time goes is all of
//! the time.

use super::start::run;
use serde_json::Value;

const ACTIVITIES: [&str; 8] = [
    "wire idle",
    "grant",
    "reducing",
    "copying",
    "posting",
    "polling",
    "sleeping",
    "other",
];

/// What each rank of the first result tells.
fn profile(line: &str) -> Vec<Value> {
    let (code, stdout, stderr) = run(&format!("{line} --profile --json - --timeout 20"));
    assert_eq!(code, Some(0), "{line}\n{stderr}");
    let document: Value = serde_json::from_str(&stdout).unwrap();
    let ranks = document["results"][0]["profile"].as_array();
    ranks.unwrap_or_else(|| panic!("{stdout}")).clone()
}

/// The time of an operation that a rank spends on an activity, us.
fn spent(rank: &Value, activity: &str) -> f64 {
    let us = rank["spent_us"][activity].as_f64();
    us.unwrap_or_else(|| panic!("{activity}: {rank}"))
}

#[track_caller]
fn assert_adds_up(ranks: &[Value], count: usize) {
    assert_eq!(ranks.len(), count, "{ranks:?}");
    for (number, rank) in ranks.iter().enumerate() {
        assert_eq!(rank["rank"], number, "{rank}");
        let all = rank["time_us"].as_f64().unwrap();
        let sum: f64 = ACTIVITIES.iter().map(|name| spent(rank, name)).sum();
        assert!(all > 0.0 && (sum / all - 1.0).abs() < 1e-9, "{sum} {rank}");
    }
}

#[test]
fn a_large_sum_reduces_on_every_rank_and_all_its_time_is_told() {
    let ranks = profile("bench allreduce -b 4M -e 4M -n 3 -w 1 --ranks 3 --placement in-place");
    assert_adds_up(&ranks, 3);
    for rank in &ranks {
        assert!(spent(rank, "reducing") > 0.0, "{rank}");
    }
    // A broadcast adds nothing up.
    let ranks = profile("bench broadcast -b 4M -e 4M -n 3 -w 1 --algo direct");
    assert_adds_up(&ranks, 2);
    assert!(ranks.iter().all(|rank| spent(rank, "reducing") == 0.0));
    assert!(spent(&ranks[1], "copying") > 0.0, "{ranks:?}");
}

#[test]
fn over_connections_ranks_post_and_poll_or_sleep_while_bytes_are_under_way() {
    let line = "bench allreduce -b 8M -e 8M -n 3 -w 1 --transport tcp --placement in-place";
    let ranks = profile(line);
    assert_adds_up(&ranks, 2);
    for rank in &ranks {
        assert!(
            spent(rank, "polling") + spent(rank, "sleeping") > 0.0,
            "{rank}"
        );
        assert!(
            spent(rank, "posting") > 0.0 && spent(rank, "reducing") > 0.0,
            "{rank}"
        );
    }
}

#[test]
fn calls_that_end_at_once_are_told_too() {
    let ranks = profile("bench allreduce -b 8 -e 8 -n 50 -w 5 --placement in-place");
    assert_adds_up(&ranks, 2);
    for rank in &ranks {
        assert!(
            spent(rank, "posting") > 0.0 && spent(rank, "reducing") > 0.0,
            "{rank}"
        );
    }
}

/// The numbers of a line from the rank on: rank, time, shares.
fn numbers(line: &str, before: usize) -> Vec<f64> {
    let words = line.split_whitespace().skip(before);
    words
        .map(|word| word.parse().unwrap_or_else(|_| panic!("{line}")))
        .collect()
}

#[track_caller]
fn assert_shares(line: &str, before: usize, rank: usize) {
    let numbers = numbers(line, before);
    assert_eq!(numbers.len(), 2 + ACTIVITIES.len(), "{line}");
    assert_eq!(numbers[0], rank as f64, "{line}");
    let shares: f64 = numbers[2..].iter().sum();
    // Each of them is rounded to a tenth.
    assert!(
        (shares - 100.0).abs() < 0.05 * ACTIVITIES.len() as f64,
        "{line}"
    );
}

#[test]
fn the_table_of_a_bench_follows_its_rows_and_its_shares_add_up() {
    let (code, stdout, stderr) =
        run("bench allreduce -b 1K -e 1M -f 1024 -n 3 -w 1 --profile --timeout 20");
    assert_eq!(code, Some(0), "{stderr}");
    let (rows, profile) = stdout
        .split_once("# Where the time of an operation goes")
        .unwrap();
    assert_eq!(
        rows.lines().filter(|line| !line.starts_with('#')).count(),
        2,
        "{stdout}"
    );
    let lines: Vec<&str> = profile.lines().skip(1).collect();
    assert!(
        ACTIVITIES.iter().all(|name| lines[0].contains(name)),
        "{stdout}"
    );
    // Two sizes, two placements, two ranks.
    assert_eq!(lines.len(), 2 + 8, "{stdout}");
    for (number, line) in lines[2..].iter().enumerate() {
        assert!(line.starts_with("# "), "{line}");
        let size = ["1024", "1048576"][number / 4];
        let placement = ["out-of-place", "in-place"][number / 2 % 2];
        let words: Vec<&str> = line.split_whitespace().take(5).collect();
        assert_eq!(words, ["#", size, "f32", "sum", placement], "{line}");
        assert_shares(line, 5, number % 2);
    }
    let (_, stdout, _) = run("bench allreduce -b 8 -e 8 -n 3 -w 1 --timeout 20");
    assert!(!stdout.contains("Where the time"), "{stdout}");
}

#[test]
fn both_sides_of_a_perf_tell_where_their_time_goes() {
    for test in [
        "send_bw -s 64K -n 100",
        "write_lat -n 100",
        "read_bw -s 64K -n 100",
    ] {
        let sides = profile(&format!("perf {test} --local"));
        assert_adds_up(&sides, 2);
        assert!(spent(&sides[1], "posting") > 0.0, "{test}: {sides:?}");
        assert!(
            sides.iter().all(|side| spent(side, "reducing") == 0.0),
            "{sides:?}"
        );
    }
    let line = "perf send_bw -s 1M -n 50 --local --transport tcp --profile --timeout 20";
    let (code, stdout, stderr) = run(line);
    assert_eq!(code, Some(0), "{stderr}");
    let (_, profile) = stdout
        .split_once("Where the time of a message goes")
        .unwrap();
    let lines: Vec<&str> = profile.lines().skip(3).take(2).collect();
    for (side, line) in lines.iter().enumerate() {
        assert!(line.starts_with(" 1048576 "), "{stdout}");
        assert_shares(line, 1, side);
        let of = |name| 2 + ACTIVITIES.iter().position(|known| *known == name).unwrap();
        let numbers = numbers(line, 1);
        assert!(
            numbers[of("polling")] + numbers[of("sleeping")] > 0.0,
            "{stdout}"
        );
    }
}

#[test]
fn a_modelled_network_has_no_local_work_to_tell_of() {
    let (code, _, stderr) = run("bench allreduce --transport sim --profile");
    assert_eq!(code, Some(2), "{stderr}");
    assert!(stderr.contains("no local work"), "{stderr}");
}
