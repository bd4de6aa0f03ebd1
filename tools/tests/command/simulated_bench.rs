//! `bench --transport sim`: every collective in virtual time, the same every time.

use super::start::{linerate, parts, run};
use serde_json::Value;

fn results(line: &str) -> (Value, Vec<Value>) {
    let (code, stdout, stderr) = run(&format!("bench {line} --transport sim --json -"));
    assert_eq!(code, Some(0), "{line}: {stderr}");
    assert!(stderr.contains("virtual time"), "{stderr}");
    let document: Value = serde_json::from_str(&stdout).unwrap();
    let results = document["results"].as_array().unwrap().clone();
    (document, results)
}

#[test]
fn every_collective_is_right_and_takes_the_same_time_again() {
    for name in "allreduce reduce-scatter all-gather all-gatherv broadcast reduce gather scatter all-to-all \
                 all-to-allv barrier sendrecv gatherv scatterv reduce-scatterv"
        .split_whitespace()
    {
        let line = format!("{name} -b 0 -e 64K -f 16 --ranks 5 -r 4");
        let (document, rows) = results(&line);
        assert_eq!(document["transport"], "sim");
        assert_eq!(document["link"]["gbit"], 100.0);
        for row in &rows {
            assert_eq!(row["wrong"], 0, "{line}: {row}");
        }
        assert_eq!(rows, results(&line).1, "{line}");
    }
}

#[test]
fn sizes_without_bytes_take_the_time_of_real_ones() {
    let line = "allreduce -b 1K -e 1M -f 32 --ranks 4";
    let times = |line: &str| -> Vec<f64> {
        let (_, rows) = results(line);
        let time = |row: &Value| row["time_us"]["p50"].as_f64().unwrap();
        rows.iter().map(time).collect()
    };
    // Not to the digit: a check is one iteration more, and what one leaves on the network delays
    // the next.
    let (checked, unchecked) = (times(line), times(&format!("{line} -c 0")));
    assert_eq!(checked.len(), unchecked.len());
    for (a, b) in checked.iter().zip(&unchecked) {
        assert!((a - b).abs() < 0.25 * b, "{checked:?} {unchecked:?}");
    }
}

#[test]
fn a_slower_network_takes_longer() {
    let time = |link: &str| {
        let (_, rows) = results(&format!("broadcast -b 1M -e 1M {link}"));
        rows[0]["time_us"]["p50"].as_f64().unwrap()
    };
    let (fast, thin, far) = (time(""), time("--link-gbit 10"), time("--link-us 1000"));
    assert!(thin > 5.0 * fast, "{thin} {fast}");
    assert!(far > fast + 900.0, "{far} {fast}");
}

#[test]
fn memory_counts_only_where_results_are_checked() {
    let line = "bench allreduce --transport sim --ranks 64 -b 16G -e 16G -n 1 -w 0";
    let (code, _, stderr) = run(line);
    assert_eq!(code, Some(2));
    assert!(stderr.contains("--check 0"), "{stderr}");
    let few = "bench broadcast --transport sim --ranks 2 -b 4G -e 4G -n 1 -w 0 -c 0";
    assert_eq!(run(few).0, Some(0));
}

#[test]
fn under_a_launcher_there_is_no_simulation() {
    let mut command = linerate("bench allreduce --transport sim");
    let (code, _, stderr) = parts(command.env("WORLD_SIZE", "2").output().unwrap());
    assert_eq!(code, Some(2));
    assert!(stderr.contains("one process"), "{stderr}");
}
