//! `bench push-pull`: processes, columns, the document's fields, bad usage.

use super::start::run;
use serde_json::Value;

const SMALL: &str = "-b 1K -e 64K -f 8 -n 6 -w 2 --timeout 30";

fn document(line: &str) -> Value {
    let ranks = if line.contains("--ranks") {
        ""
    } else {
        "--ranks 3"
    };
    let (code, stdout, stderr) = run(&format!("bench push-pull {SMALL} {ranks} {line} --json -"));
    assert_eq!(code, Some(0), "{line}\n{stderr}");
    assert!(
        stderr.trim_end().ends_with("# rows: 3, wrong 0"),
        "{stderr}"
    );
    serde_json::from_str(&stdout).unwrap_or_else(|e| panic!("{line}: {e}\n{stdout}"))
}

#[test]
fn every_weight_is_right_with_shared_and_dedicated_servers_in_every_mode() {
    for (transport, servers, mode) in [
        ("shm", 0, "bsp"),
        ("shm", 2, "bsp"),
        ("shm", 0, "asp"),
        ("shm", 1, "asp"),
        ("shm", 0, "ssp:1"),
        ("shm", 1, "dssp:0:4"),
        ("tcp", 0, "bsp"),
        ("tcp", 1, "bsp"),
        ("tcp", 0, "asp"),
        ("tcp", 2, "asp"),
    ] {
        let line = format!("--transport {transport} --servers {servers} --mode {mode}");
        let document = document(&line);
        let workers = 3 - servers;
        assert_eq!(document["transport"], transport);
        assert_eq!(document["servers"], if servers == 0 { 3 } else { servers });
        assert_eq!(document["workers"], workers);
        assert_eq!(document["mode"], mode);
        assert_eq!(document["wrong"], 0, "{line}");
        let results = document["results"].as_array().unwrap();
        assert_eq!(results.len(), 3, "{line}");
        for result in results {
            assert_eq!(result["wrong"], 0, "{line}: {result}");
            // In BSP all workers make one update together.
            let authors = if mode == "bsp" { 1 } else { workers };
            assert_eq!(result["updates"], 8 * authors, "{line}: {result}");
            let count = result["count"].as_u64().unwrap();
            assert_eq!(result["bytes"], 4 * count, "{line}");
            for time in ["time_us", "push_us", "pull_us", "pull_alone_us"] {
                let p50 = result[time]["p50"].as_f64().unwrap();
                assert!(p50 > 0.0, "{line}: {time}: {result}");
            }
            for field in ["algbw", "drift_max", "waits", "staleness_mean"] {
                assert!(result[field].is_number(), "{line}: {field}: {result}");
            }
            for (field, text) in [
                ("collective", "push-pull"),
                ("dtype", "f32"),
                ("pull", "f32"),
            ] {
                assert_eq!(result[field], text, "{line}: {result}");
            }
        }
    }
}

#[test]
fn weights_of_every_optimizer_are_those_of_its_rule() {
    for (servers, optimizer, more) in [
        (1, "momentum", "--mode bsp"),
        (0, "adam", "--mode bsp --dtype bf16"),
        (2, "adam", "--mode asp --pull f16"),
        (2, "adamw", "--mode ssp:1 --transport tcp"),
    ] {
        let line = format!("--servers {servers} --optimizer {optimizer} {more}");
        let document = document(&line);
        assert_eq!(document["optimizer"], optimizer, "{line}");
        for result in document["results"].as_array().unwrap() {
            assert_eq!(result["wrong"], 0, "{line}: {result}");
            assert_eq!(result["updates"], 8, "{line}: {result}");
        }
    }
}

/// The medians of a step, its push, its pull and a pull alone, us, of a simulation.
fn simulated(line: &str) -> [f64; 4] {
    let line = format!("bench push-pull --transport sim {line} --json -");
    let (code, stdout, stderr) = run(&line);
    assert_eq!(code, Some(0), "{line}\n{stderr}");
    assert!(stderr.contains("virtual time"), "{stderr}");
    let document: Value = serde_json::from_str(&stdout).unwrap();
    assert_eq!(document["wrong"], 0, "{line}");
    let result = &document["results"][0];
    ["time_us", "push_us", "pull_us", "pull_alone_us"]
        .map(|time| result[time]["p50"].as_f64().unwrap())
}

#[test]
fn a_round_in_virtual_time_takes_what_the_ports_of_servers_and_workers_need() {
    let (workers, bytes, bytes_per_us) = (4, 1 << 20, 125.0);
    // Of four shards a worker asks all at once, and what they send meets at its port.
    for (shards, above) in [(1, 1.01), (2, 1.01), (4, 1.01)] {
        let step = |steps: &str| {
            let ranks = workers + shards;
            simulated(&format!(
                "--ranks {ranks} --servers {shards} -b {bytes} -e {bytes} --link-gbit 1 {steps}"
            ))
        };
        // All that the workers push and pull passes the port of each server, in each direction, and
        // all of a worker its own one.
        let of_worker = f64::from(bytes) / bytes_per_us;
        let of_server = of_worker * f64::from(workers) / f64::from(shards);
        // All begin together: 2nP / (mB), at least 2n / B.
        let least = 2.0 * of_server.max(of_worker);
        let [round, push, _, alone] = step("-w 0 -n 1");
        assert!(
            (least..above * least).contains(&round) && push < 1.01 * least / 2.0,
            "{shards} shards: {round} us, of which {push} push; at least {least}"
        );
        assert!(
            (least / 2.0..above * least / 2.0).contains(&alone),
            "{shards} shards: a pull alone takes {alone} us; at least {}",
            least / 2.0
        );
        // Who has pulled first pushes first: n / B + nP / (mB).
        let least = of_worker + of_server;
        let [next, ..] = step("-w 2 -n 5");
        let most = above.max(1.2) * least;
        assert!(
            (least..most).contains(&next),
            "{shards} shards: {next} us when workers go on by themselves; at least {least}"
        );
    }
}

#[test]
fn simulated_workers_of_every_mode_pull_what_was_pushed_and_take_the_same_time_again() {
    for line in [
        "--ranks 3 -b 4K -e 4K",
        "--ranks 4 --servers 1 --mode asp -b 64K -e 64K",
        "--ranks 4 --servers 2 --mode ssp:1 --pull f16 -b 64K -e 64K",
        "--ranks 3 --servers 1 --mode dssp:0:3 --dtype bf16 -b 4K -e 4K",
        "--ranks 3 --servers 2 --optimizer adamw -b 4K -e 4K",
    ] {
        let [step, push, pull, alone] = simulated(line);
        assert!(push > 0.0 && pull > 0.0 && step >= pull.max(push), "{line}");
        assert!(alone > 0.0, "{line}");
        assert_eq!([step, push, pull, alone], simulated(line), "{line}");
    }
}

#[test]
fn rows_stand_under_their_titles_and_the_last_line_says_what_was_wrong() {
    let (code, stdout, stderr) = run(&format!(
        "bench push-pull {SMALL} --ranks 3 --transport shm"
    ));
    assert_eq!(code, Some(0), "{stderr}");
    let lines: Vec<&str> = stdout.lines().collect();
    assert_eq!(lines.last(), Some(&"# rows: 3, wrong 0"), "{stdout}");
    let titles = lines.iter().position(|line| line.contains("#wrong"));
    let titles = titles.unwrap_or_else(|| panic!("{stdout}"));
    for title in [
        "size", "count", "type", "mode", "time", "push", "pull", "alone", "algbw",
    ] {
        assert!(lines[titles].contains(title), "{title}: {stdout}");
    }
    let rows = &lines[titles + 2..lines.len() - 1];
    assert_eq!(rows.len(), 3, "{stdout}");
    // Rounded to whole shards of 64 elements: 192 elements, or a multiple.
    let sizes = rows.iter().map(|row| row.split_whitespace().next());
    assert_eq!(
        sizes.collect::<Vec<_>>(),
        [Some("768"), Some("7680"), Some("65280")]
    );
    for row in rows {
        assert_eq!(row.len(), lines[titles].len(), "{stdout}");
        assert_eq!(row.split_whitespace().last(), Some("0"), "{stdout}");
    }
}

#[test]
fn two_servers_of_a_shard_have_the_same_weights() {
    for line in [
        "--ranks 4 --replicas 1",
        "--ranks 4 --servers 2 --replicas 1 --mode asp --transport tcp",
    ] {
        let document = document(line);
        assert_eq!(document["replicas"], 1);
        assert_eq!(document["wrong"], 0, "{line}");
    }
}

#[test]
fn bad_usage_is_told_before_a_rank_starts() {
    for (line, expected) in [
        ("--ranks 3 --servers 3", "with 3 ranks it is 0"),
        ("--servers 7", "--servers is 7"),
        ("--ranks 3 --replicas 1", "take an even number"),
        ("--ranks 4 --replicas 2", "0..=1"),
        (
            "--ranks 3 --optimizer adam --mode asp",
            "depends on the order of their pushes; take --mode bsp",
        ),
        ("--optimizer lion", "sgd, momentum, adam, adamw"),
        ("--mode best", "none of bsp, asp"),
        ("--mode ssp:x", "a bound of 'x'"),
        ("--mode dssp:5:3", "must not be below the lower one"),
        ("--transport sim --link-gbit 0", "from 0.001"),
        ("--transport sim --ranks 1025", "1 to 1024"),
        ("--link-us 5", "the network of --transport sim"),
        ("--transport udp", "--transport"),
        ("--dtype f64", "f32, f16 or bf16"),
        ("--pull i8", "f32, f16 or bf16"),
        ("--pull bf16 --iters 1000", "exact up to 256"),
        ("--iters 0", "1.."),
        ("-b 2K -e 1K", "above --maxbytes"),
        ("-f 1", "at least 2"),
        ("-e 1T -b 1T", "MemAvailable"),
        ("allreduce", "unexpected argument"),
    ] {
        let (code, _, stderr) = run(&format!("bench push-pull {line}"));
        assert_eq!(code, Some(2), "{line}: {stderr}");
        assert!(stderr.contains(expected), "{line}: {stderr}");
    }
    let (code, stdout, _) = run("bench --help");
    assert_eq!(code, Some(0));
    assert!(stdout.contains("push-pull"), "{stdout}");
}
