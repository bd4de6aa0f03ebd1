//! `linerate whatif` through the command line: the published rows, the paragraph, and a trace of
//! torch.profiler.

use super::start::{linerate, parts, run, scratch};
use serde_json::Value;

const EXPECTED: &str = include_str!("../../../tests/data/training_bottleneck/whatif_expected.csv");
const RECORDED: &str = concat!(
    env!("CARGO_MANIFEST_DIR"),
    "/../tests/data/profiler/cpu.json"
);

fn document(line: &str) -> Value {
    let (code, stdout, stderr) = run(&format!("whatif {line} --json -"));
    assert_eq!(code, Some(0), "{stderr}");
    assert_eq!(stderr.is_empty(), !line.contains("--validate"), "{stderr}");
    serde_json::from_str(&stdout).unwrap()
}

#[test]
fn every_published_row_is_printed() {
    let line = "--workers 16,32,64 --bandwidth 1,10,25,40,100 --compression 1,2,5,10,50,100";
    let document = document(line);
    let results = document["results"].as_array().unwrap();
    let mut rows = 0;
    for row in EXPECTED.lines().skip(1) {
        let fields: Vec<&str> = row.split(',').collect();
        let number = |at: usize| fields[at].parse::<f64>().unwrap();
        let is_it = |one: &&Value| {
            let names = ["n", "bandwidth_gbps", "compression"];
            (1..).zip(names).all(|(at, name)| one[name] == number(at))
        };
        let got = results.iter().find(is_it).unwrap();
        for (at, name) in [(4, "t_back_ms"), (5, "overhead_ms"), (6, "scaling_factor")] {
            let got = got[name].as_f64().unwrap();
            assert!((got - number(at)).abs() <= 1e-6, "{row}: {name} {got}");
        }
        rows += 1;
    }
    assert_eq!(rows, 90);
}

#[test]
fn the_text_has_a_table_and_says_whether_the_network_is_the_bottleneck() {
    let (code, stdout, _) = run("whatif --bandwidth 10,100 --what-reaches 0.9");
    assert_eq!(code, Some(0));
    for part in [
        "# linerate whatif: resnet50, 161 gradients, 102228128 bytes",
        "0.5397",
        "Your network is the bottleneck at 10 Gbit/s with 64 GPUs: ",
        "A factor of 0.9 needs 24.",
        "What would help most: ",
    ] {
        assert!(stdout.contains(part), "{part}: {stdout}");
    }
    let results = &document("--bandwidth 10,100 --what-reaches 0.9")["results"];
    assert_eq!(results[0]["reached"]["latency_us"], Value::Null);
    assert_eq!(results[1]["reached"]["compression"], 1.0);
}

#[test]
fn a_recorded_trace_of_the_profiler_is_predicted_and_one_gpu_scales_perfectly() {
    let document = document(&format!("--trace {RECORDED} --workers 1,8 --bandwidth 10"));
    assert_eq!(
        (&document["steps"], &document["gradients"]),
        (&3.into(), &6.into())
    );
    assert_eq!(document["results"][0]["scaling_factor"], 1.0);
    assert!(document["results"][1]["scaling_factor"].as_f64().unwrap() < 1.0);
}

#[test]
fn a_trace_is_described() {
    let (code, stdout, _) = run(&format!("trace {RECORDED}"));
    assert_eq!(code, Some(0));
    for part in [
        "# gradients      6\n",
        "# written by     torch.profiler\n",
        "# machine        not in the trace\n",
        "# mean of steps  3\n",
        "# step           118.509 ms\n",
        "  f32      gradient1 [10,512]\n",
    ] {
        assert!(stdout.contains(part), "{part}: {stdout}");
    }
    let (_, stdout, _) = run("trace resnet50");
    assert_eq!(stdout.lines().count(), 11 + 161);
    assert!(
        stdout.contains("# machine        NVIDIA V100\n"),
        "{stdout}"
    );
    let (code, _, stderr) = run("trace tests/command.rs");
    assert_eq!(code, Some(2));
    assert!(stderr.contains("line 2: "), "{stderr}");
}

#[test]
fn additions_come_from_a_file() {
    let file = scratch("whatif-additions").join("additions.csv");
    std::fs::write(&file, "0,0\n1000000,0.5\n").unwrap();
    let line = format!("--bandwidth 100 --additions {}", file.display());
    assert_eq!(document(&line)["results"][0]["limited_by"], "additions");
    std::fs::write(&file, "0,0\n1000000\n").unwrap();
    let (code, _, stderr) = run(&format!("whatif {line}"));
    assert_eq!(code, Some(2));
    assert!(
        stderr.contains("line 2: expected bytes,seconds"),
        "{stderr}"
    );
}

#[test]
fn every_algorithm_has_a_row_with_an_interval() {
    let algorithms = [
        "ring",
        "auto",
        "tree",
        "hierarchical",
        "oktopk:0.01",
        "partial:0.5",
        "ps:4",
        "switchml",
        "bytescheduler:4194304",
    ];
    let line = format!(
        "--bandwidth 10 --workers 16 --spread 0.1 --algo {}",
        algorithms.join(",")
    );
    let document = document(&line);
    let results = document["results"].as_array().unwrap();
    let factor = |at: usize| results[at]["scaling_factor"].as_f64().unwrap();
    for (at, (row, name)) in results.iter().zip(algorithms).enumerate() {
        assert_eq!(row["algorithm"], name);
        let between = row["low"].as_f64().unwrap()..=row["high"].as_f64().unwrap();
        assert!(between.contains(&factor(at)), "{row}");
    }
    // The switch halves the bytes, a sparse sum has almost none, and a quorum waits less.
    assert!(factor(7) > factor(0) && factor(4) > factor(7) && factor(5) > factor(0));
    for (line, named) in [
        ("--sweep 1", "1 is not in 2..=10000"),
        ("--sweep 3 --bandwidth 5", "--sweep goes from 5 to 5"),
        ("--sweep 3 --bandwidth 5,inf", "--sweep goes from 5 to inf"),
        ("--algo rings", "algorithm 'rings' is none of ring, auto"),
        ("--algo oktopk:2", "the density is 2; allowed"),
        ("--wire-dtype f99", "f99"),
        ("--spread -1", "the spread of times is -1"),
        ("--packing 0", "Gbit/s above 0"),
        ("--measured nowhere.csv", "--measured nowhere.csv: "),
        ("--measured a.csv --slowing 1", "cannot be used with"),
    ] {
        let (code, _, stderr) = run(&format!("whatif {line}"));
        assert_eq!(code, Some(2), "{line}");
        assert!(stderr.contains(named), "{stderr}");
    }
}

#[test]
fn a_sweep_has_bandwidths_at_equal_ratios() {
    let document = document("--sweep 100 --bandwidth 1,10,100");
    let results = document["results"].as_array().unwrap();
    assert_eq!(results.len(), 100);
    let gbit = |at: usize| results[at]["bandwidth_gbps"].as_f64().unwrap();
    assert!((gbit(0) - 1.0).abs() < 1e-9 && (gbit(99) - 100.0).abs() < 1e-9);
    for at in 1..99 {
        let (before, after) = (gbit(at) / gbit(at - 1), gbit(at + 1) / gbit(at));
        assert!((before / after - 1.0).abs() < 1e-9);
    }
}

#[test]
fn halved_elements_and_packing_change_the_time_as_worked_out() {
    let sync = |line: &str| {
        let all = "--workers 2 --additions none --fusion-bytes 1G --fusion-age-ms 3600000";
        document(&format!("--bandwidth 1 {all} {line}"))["results"][0]["overhead_ms"]
            .as_f64()
            .unwrap()
    };
    // One flush of 102,228,128 bytes, which a ring of two sends once.
    let whole = 102_228_128.0 * 8.0 / 1e6;
    for (line, expected) in [
        ("", whole),
        ("--wire-dtype bf16", whole / 2.0),
        ("--compression 4", whole / 4.0),
        ("--packing 8", whole + 2.0 * 102_228_128.0 / 1e6),
        ("--operation-us 1000", whole + 1.0),
    ] {
        let got = sync(line);
        assert!((got - expected).abs() < 1e-6 * expected, "{line}: {got}");
    }
}

/// The factors of the published cluster: 8 GPUs per server, at 100 Gbit/s and two at less.
#[test]
fn measured_factors_are_explained_and_drawn() {
    let folder = scratch("whatif-measured");
    let file = folder.join("measured.csv");
    let points = "100,2,0.7505\n100,4,0.7424\n100,8,0.716\n1,2,0.13\n10,2,0.68\n";
    std::fs::write(&file, format!("# Gbit/s,servers,factor\n{points}")).unwrap();
    let (json, svg) = (folder.join("whatif.json"), folder.join("whatif.svg"));
    let (code, stdout, stderr) = run(&format!(
        "whatif --count servers --measured {} --json {} --svg {}",
        file.display(),
        json.display(),
        svg.display()
    ));
    assert_eq!(code, Some(0), "{stderr}");
    assert!(stdout.contains("one overhead alone explains"), "{stdout}");
    let document: Value = serde_json::from_slice(&std::fs::read(&json).unwrap()).unwrap();
    let fit = &document["fit"];
    let number = |value: &Value| value.as_f64().unwrap();
    assert!(
        number(&fit["rms"]) < 0.4 * number(&fit["rms_ideal"]),
        "{fit}"
    );
    assert_eq!(fit["points"][3]["n"], 16);
    // The model without overheads, as published: 0.144 and 0.849 with additions of its own.
    assert!((number(&fit["points"][3]["ideal"]) - 0.144).abs() < 5e-4);
    let drawn = std::fs::read_to_string(&svg).unwrap();
    assert!(drawn.contains(">measured<"), "{drawn}");
    let (code, page, stderr) = run(&format!("report {} -o -", json.display()));
    assert_eq!(code, Some(0), "{stderr}");
    assert!(page.contains(">measured<"), "{page}");
    std::fs::write(&file, "100,2\n").unwrap();
    let (code, _, stderr) = run(&format!("whatif --measured {}", file.display()));
    assert_eq!(code, Some(2));
    assert!(
        stderr.contains("line 1: '100,2': expected Gbit/s"),
        "{stderr}"
    );
}

#[test]
fn predictions_are_validated_by_replays_on_this_host() {
    let folder = scratch("whatif-validate");
    let file = folder.join("small.bk.log");
    std::fs::write(&file, "small\n1\n2\n2000,40000\n2000,80000\n").unwrap();
    // What is found stays in a folder of this test.
    let started = |line: &str| {
        let mut command = linerate(line);
        let (code, stdout, stderr) =
            parts(command.env("XDG_CACHE_HOME", &folder).output().unwrap());
        assert_eq!(code, Some(0), "{stderr}");
        serde_json::from_str::<Value>(&stdout).unwrap()
    };
    let document = started(&format!(
        "whatif --validate --trace {} --bandwidth 1,inf --workers 2 --steps 3 --json -",
        file.display()
    ));
    let points = document["validation"]["points"].as_array().unwrap();
    let is_limited = |point: &&Value| point["transport"] == "tcp tbf";
    // Root has a link that the kernel limits, where `ip` and `tc` are.
    let limited: Vec<&Value> = points.iter().filter(is_limited).collect();
    assert!(limited.iter().all(|point| point["bandwidth_gbps"] == 1.0));
    let slow = 1 + limited.len() as u64;
    let points: Vec<&Value> = points.iter().filter(|p| !is_limited(p)).collect();
    let names: Vec<_> = points.iter().map(|p| p["transport"].as_str()).collect();
    assert_eq!(names, [Some("tcp"), Some("tcp"), Some("shm")]);
    for point in &points {
        assert_eq!((&point["ranks"], &point["steps"]), (&2.into(), &3.into()));
        let number = |name: &str| point[name].as_f64().unwrap();
        // A step is 1.5 times the backward pass, and communication only adds to it.
        assert!(number("predicted_ms") >= 6.0, "{point}");
        assert!(number("measured_ms") >= 6.0, "{point}");
        assert!(number("measured_p10_ms") <= number("measured_p90_ms"));
        assert!(number("link_gbps") > 0.0 && number("operation_us") > 0.0);
        assert!(number("error_percent").is_finite());
    }
    assert_eq!(points[0]["bandwidth_gbps"], 1.0);
    assert_eq!(points[1]["bandwidth_gbps"], Value::Null);
    assert_eq!(document["results"], Value::Array(vec![]));
    let stored = folder.join("linerate/validation.json");
    assert_eq!(document["validation"]["stored"], *stored.to_str().unwrap());
    // Few points above 2.5 Gbit/s: what is assumed counts too.
    let other = started("whatif --bandwidth 1,10 --json -");
    let of = |name: &str| other["errors"][name]["points"].as_u64();
    assert_eq!((of("slow"), of("fast")), (Some(slow), Some(2)));
    let ratio = |point: &Value| {
        point["measured_ms"].as_f64().unwrap() / point["predicted_ms"].as_f64().unwrap()
    };
    let most = other["errors"]["fast"]["most"].as_f64().unwrap();
    assert!(most >= ratio(points[1]).max(ratio(points[2])), "{other}");
    // A trace is not predicted from its own errors.
    let own = started(&format!("whatif --trace {} --json -", file.display()));
    assert_eq!(own["errors"]["fast"]["points"], 0);
    std::fs::write(&stored, "{").unwrap();
    let mut command = linerate("whatif");
    let (code, _, stderr) = parts(command.env("XDG_CACHE_HOME", &folder).output().unwrap());
    assert_eq!(code, Some(2));
    assert!(stderr.contains("validation.json: "), "{stderr}");
    let (code, _, stderr) = run("whatif --validate --mode paper");
    assert_eq!(code, Some(2));
    assert!(stderr.contains("cannot be used with"), "{stderr}");
}
