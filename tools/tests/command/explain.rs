//! `linerate explain` from outside, with real ranks: what it says is what runs.

use super::start::{linerate, parts, run, scratch};
use linerate::unstable::cost::{self, Finding, Models};
use serde_json::Value;
use std::path::PathBuf;

fn json(line: &str, prices: &str) -> Value {
    let mut command = linerate(&format!("{line} --json - --timeout 20"));
    let (code, stdout, stderr) = parts(command.env("LINERATE_MODEL", prices).output().unwrap());
    assert_eq!(code, Some(0), "{line}\n{stderr}");
    serde_json::from_str(&stdout).unwrap_or_else(|e| panic!("{line}: {e}\n{stdout}"))
}

/// A file that says that an allreduce of 1 MiB on two ranks is fastest by messages.
fn without_signals(name: &str) -> PathBuf {
    let finding = |class: &str| {
        let text = format!("{class} allreduce 2 registered 1048576 ring");
        text.parse::<Finding>().unwrap()
    };
    let models = Models {
        findings: vec![finding("apart"), finding("crowded")].into(),
        ..Models::BUILT_IN
    };
    let file = scratch(name).join("model");
    let host = linerate::unstable::comm::findings_host();
    std::fs::write(&file, cost::emit("", &host, &models)).unwrap();
    file
}

#[test]
fn each_size_is_explained_and_measured() {
    let document = json("explain allreduce -b 8 -e 1M -f 16 -n 5 --all", "off");
    assert_eq!(document["ranks"], 2);
    assert_eq!(document["prices"], "built in");
    let results = document["results"].as_array().unwrap();
    assert_eq!(results.len(), 5);
    for result in results {
        let number = |name: &str| result[name].as_f64().unwrap();
        assert!(
            number("predicted_us") > 0.0 && number("measured_us") > 0.0,
            "{result}"
        );
        let ratio = number("measured_us") / number("predicted_us");
        assert!((number("ratio") / ratio - 1.0).abs() < 1e-9, "{result}");
        let candidates = result["candidates"].as_array().unwrap();
        let names: Vec<&str> = candidates
            .iter()
            .map(|c| c["algorithm"].as_str().unwrap())
            .collect();
        assert!(names.contains(&"ring") && names.contains(&result["algorithm"].as_str().unwrap()));
        let predicted: Vec<f64> = candidates
            .iter()
            .map(|c| c["predicted_us"].as_f64().unwrap())
            .collect();
        assert!(predicted.is_sorted(), "cheapest first: {predicted:?}");
        assert!(
            candidates
                .iter()
                .all(|c| c["measured_us"].as_f64().unwrap() > 0.0)
        );
    }
    assert_eq!(results[0]["path"], "flag lines");
    assert_eq!(results[4]["path"], "mapped buffers");
}

/// What bounds each size, after a look at whether its parts are all of the prediction.
fn bounds(line: &str) -> Vec<String> {
    let document = json(&format!("{line} --no-measure"), "off");
    let results = document["results"].as_array().unwrap();
    let bound_of = |result: &Value| {
        let parts = result["parts_us"].as_object().unwrap();
        let parts: Vec<(&str, f64)> = (parts.iter())
            .map(|(name, us)| (name.as_str(), us.as_f64().unwrap()))
            .collect();
        assert_eq!(parts.len(), 4, "{result}");
        let sum: f64 = parts.iter().map(|(_, us)| us).sum();
        let predicted = result["predicted_us"].as_f64().unwrap();
        assert!((sum / predicted - 1.0).abs() < 1e-9, "{result}");
        let largest = parts
            .iter()
            .max_by(|(_, a), (_, b)| a.total_cmp(b))
            .unwrap();
        assert_eq!(result["bound"], largest.0, "{result}");
        largest.0.to_owned()
    };
    results.iter().map(bound_of).collect()
}

#[test]
fn each_size_says_what_bounds_it() {
    let sizes = "-b 8 -e 2M -f 262144";
    let sums = bounds(&format!("explain allreduce {sizes}"));
    assert_eq!(sums, ["messages", "reduction"]);
    let copies = bounds(&format!("explain all-gather {sizes}"));
    assert_eq!(copies, ["messages", "memory"]);
    let network = bounds(&format!("explain allreduce {sizes} --transport tcp"));
    assert_eq!(network, ["messages", "wire"]);
    let (code, stdout, stderr) = run("explain allreduce -b 2M -e 2M --no-measure");
    assert_eq!(code, Some(0), "{stderr}");
    let line = stdout.lines().last().unwrap();
    assert!(
        stdout.contains("  bound by ") && line.contains("  reduction "),
        "{stdout}"
    );
}

#[test]
fn without_measuring_there_are_predictions_only() {
    let document = json(
        "explain all-to-all -b 1K -e 1M -f 32 --no-measure --ranks 3",
        "off",
    );
    for result in document["results"].as_array().unwrap() {
        assert!(
            result["measured_us"].is_null() && result["ratio"].is_null(),
            "{result}"
        );
        assert!(result["predicted_us"].as_f64().unwrap() > 0.0);
    }
}

#[test]
fn on_the_callers_memory_what_runs_is_told_and_not_what_was_planned() {
    let flags = "allreduce -b 1M -e 1M --memory caller --placement in-place";
    let document = json(&format!("explain {flags} --no-measure"), "off");
    let explained = &document["results"][0];
    assert_eq!(explained["planned"], "direct");
    assert_ne!(explained["algorithm"], "direct");
    let names = explained["candidates"].as_array().unwrap();
    assert!(
        names.iter().all(|c| c["algorithm"] != "direct"),
        "{explained}"
    );

    let bench = json(&format!("bench {flags} -n 2 -w 1"), "off");
    assert_eq!(bench["results"][0]["algorithm"], explained["algorithm"]);
    let registered = json("bench allreduce -b 1M -e 1M -n 2 -w 1", "off");
    assert_eq!(registered["results"][0]["algorithm"], "direct");
}

#[test]
fn the_text_is_a_line_for_each_size() {
    let (code, stdout, stderr) = run("explain broadcast -b 8 -e 64K -f 64 -n 5 --ranks 3");
    assert_eq!(code, Some(0), "{stderr}");
    let lines: Vec<&str> = stdout
        .lines()
        .filter(|line| !line.starts_with('#'))
        .collect();
    assert_eq!(lines.len(), 3, "{stdout}");
    assert!(
        stdout.contains("predicted") && stdout.contains("# prices: "),
        "{stdout}"
    );
    assert!(
        lines[0].contains("flag lines") && lines[0].contains("tree"),
        "{stdout}"
    );
}

#[test]
fn bad_usage_is_refused_before_ranks_start() {
    for (line, expected) in [
        ("explain", "COLLECTIVE"),
        ("explain sendrecv", "nothing to explain"),
        ("explain allreduce --calibrate", "cannot be used with"),
        (
            "explain allreduce --all --no-measure",
            "cannot be used with",
        ),
        ("explain allreduce --transport sim", "bench --transport sim"),
        ("explain barrier --placement in-place", "no in-place form"),
        (
            "explain allreduce --json /nonexistent/x.json",
            "cannot be written",
        ),
    ] {
        let (code, stdout, stderr) = run(line);
        assert_eq!(code, Some(2), "{line}: {stderr}");
        assert!(stderr.contains(expected), "{line}: {stderr}");
        assert_eq!(stdout, "", "{line}");
    }
}

#[test]
fn stored_prices_decide_and_those_of_rank_0_are_everyones() {
    let file = without_signals("prices");
    let flags = "explain allreduce -b 1M -e 1M --no-measure";
    let document = json(flags, file.to_str().unwrap());
    assert_eq!(document["prices"], file.to_str().unwrap());
    assert_eq!(document["results"][0]["path"], "messages");

    // One rank has other findings. By its own ones it would send messages to a rank that waits for
    // signals.
    let exe = env!("CARGO_BIN_EXE_linerate");
    for (rank, algorithm) in [(0, "ring"), (1, "direct")] {
        let script = format!(
            "[ $RANK = {rank} ] && export LINERATE_MODEL={} || export LINERATE_MODEL=off; \
             exec {exe} bench allreduce -b 1M -e 1M -n 3 --timeout 20 --json -",
            file.display()
        );
        let mut command = linerate("launch -n 2 -- sh -c");
        let (code, stdout, stderr) = parts(command.arg(script).output().unwrap());
        assert_eq!(code, Some(0), "{stderr}");
        let document: Value = serde_json::from_str(&stdout).unwrap();
        let chosen = document["results"][0]["algorithm"].as_str().unwrap();
        assert_eq!(
            chosen == "direct",
            algorithm == "direct",
            "rank {rank}: {chosen}"
        );
        assert_eq!(document["wrong"], 0);
    }
}

#[test]
fn damaged_prices_are_told_once_and_not_used() {
    let file = scratch("damaged").join("model");
    let host = linerate::unstable::comm::findings_host();
    std::fs::write(&file, format!("[{host}]\napart call one\n")).unwrap();
    let mut command = linerate("explain allreduce -b 8 -e 8 --no-measure");
    let output = command.env("LINERATE_MODEL", &file).output().unwrap();
    let (code, stdout, stderr) = parts(output);
    assert_eq!(code, Some(0), "{stderr}");
    assert_eq!(stderr.lines().count(), 1, "{stderr}");
    assert!(
        stderr.contains("are not used") && stderr.contains("--calibrate"),
        "{stderr}"
    );
    assert!(stdout.contains("# prices: built in ("), "{stdout}");
}

#[test]
fn calibration_stores_prices_for_this_host_and_keeps_others() {
    let file = scratch("calibrate").join("model");
    let elsewhere = cost::emit("", "another host", &Models::BUILT_IN);
    std::fs::write(&file, &elsewhere).unwrap();
    let mut command = linerate("explain --calibrate --ranks 2 --timeout 60");
    let output = command.env("LINERATE_MODEL", &file).output().unwrap();
    let (code, stdout, stderr) = parts(output);
    assert_eq!(code, Some(0), "{stderr}");
    assert!(stdout.contains("faster than the cheapest"), "{stdout}");
    let text = std::fs::read_to_string(&file).unwrap();
    let host = linerate::unstable::comm::findings_host();
    let stored = cost::parse(&text, &host).unwrap().unwrap();
    assert!(stored.findings.iter().all(|finding| finding.ranks == 2));
    assert_eq!(
        cost::parse(&text, "another host").unwrap(),
        Some(Models::BUILT_IN)
    );
}

#[test]
fn calibration_without_a_place_for_the_prices_is_bad_usage() {
    let mut command = linerate("explain --calibrate");
    let (code, _, stderr) = parts(command.env("LINERATE_MODEL", "off").output().unwrap());
    assert_eq!(code, Some(2));
    assert!(stderr.contains("LINERATE_MODEL=FILE"), "{stderr}");
}
