//! `linerate replay --plan-only` through the command line: the paper's plans to the digit, and
//! malformed traces.

use std::path::PathBuf;
use std::process::{Command, Output};

const EXPECTED: &str = include_str!("../../../tests/data/training_bottleneck/fusion_expected.csv");

fn linerate(flags: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_linerate"))
        .arg("replay")
        .args(flags)
        .env_remove("WORLD_SIZE")
        .output()
        .unwrap()
}

/// Rows of a printed plan as `time_ms,bytes`.
fn rows(output: &Output) -> Vec<(f64, u64)> {
    assert!(output.status.success(), "{output:?}");
    let text = String::from_utf8(output.stdout.clone()).unwrap();
    let rows = text.lines().filter(|line| !line.starts_with('#')).skip(1);
    rows.map(|line| {
        let fields: Vec<_> = line.split_whitespace().collect();
        (fields[1].parse().unwrap(), fields[2].parse().unwrap())
    })
    .collect()
}

fn expected(model: &str) -> Vec<(f64, u64)> {
    let fields = EXPECTED
        .lines()
        .map(|line| line.split(',').collect::<Vec<_>>());
    fields
        .filter(|fields| fields[0] == model)
        .map(|fields| (fields[2].parse().unwrap(), fields[3].parse().unwrap()))
        .collect()
}

#[test]
fn paper_plans_of_the_built_in_traces_equal_the_expected_ones() {
    for model in ["resnet50", "resnet101", "vgg16"] {
        let output = linerate(&["--trace", model, "--mode", "paper", "--plan-only"]);
        assert_eq!(rows(&output), expected(model), "{model}");
    }
}

#[test]
fn without_a_trace_resnet50_is_planned_and_json_goes_alone_to_standard_output() {
    let output = linerate(&["--mode", "paper", "--plan-only", "--json", "-"]);
    let document: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    let flushes = document["flushes"].as_array().unwrap();
    let rows: Vec<_> = (flushes.iter())
        .map(|f| (f["time_ms"].as_f64().unwrap(), f["bytes"].as_u64().unwrap()))
        .collect();
    for (row, expected) in rows.iter().zip(expected("resnet50")) {
        assert!(
            (row.0 - expected.0).abs() <= 1e-6 && row.1 == expected.1,
            "{row:?}"
        );
    }
    assert_eq!(
        (rows.len(), document["model"].as_str()),
        (12, Some("resnet50"))
    );
}

#[test]
fn the_named_table_of_a_model_gives_the_same_plan_as_its_log() {
    let file = concat!(
        env!("CARGO_MANIFEST_DIR"),
        "/../tests/data/training_bottleneck/vgg16_bn_imagenet.layers.csv"
    );
    let output = linerate(&["--trace", file, "--mode", "paper", "--plan-only"]);
    for (row, expected) in rows(&output).iter().zip(expected("vgg16")) {
        assert!(
            (row.0 - expected.0).abs() < 2e-5 && row.1 == expected.1,
            "{row:?}"
        );
    }
}

#[test]
fn a_malformed_trace_is_bad_usage_with_file_line_and_reason() {
    let path = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join("broken.bk.log");
    std::fs::write(&path, "text\n1\n2\n1,4\n-3,4\n").unwrap();
    let output = linerate(&["--trace", path.to_str().unwrap()]);
    let text = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(2));
    assert!(
        text.contains("broken.bk.log: line 5: wait is '-3'"),
        "{text}"
    );
}

#[test]
fn bad_flags_are_bad_usage() {
    for flags in [
        ["--fusion-bytes", "12Q"],
        ["--fusion-age-ms", "-1"],
        ["--scale", "nan"],
        ["--fusion-buffers", "99"],
        ["--mode", "none"],
        ["--ranks", "0"],
    ] {
        let output = linerate(&flags);
        assert_eq!(output.status.code(), Some(2), "{flags:?}");
        assert!(!output.stderr.is_empty());
    }
}
