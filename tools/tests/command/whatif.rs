//! `linerate whatif` through the command line: the published rows, the paragraph, and a trace of
//! torch.profiler.

use super::start::{run, scratch};
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
        "# mean of steps  3\n",
        "# step           118.509 ms\n",
        "  f32      gradient1 [10,512]\n",
    ] {
        assert!(stdout.contains(part), "{part}: {stdout}");
    }
    let (_, stdout, _) = run("trace resnet50");
    assert_eq!(stdout.lines().count(), 7 + 161);
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
fn predictions_are_validated_by_replays_on_this_host() {
    let file = scratch("whatif-validate").join("small.bk.log");
    std::fs::write(&file, "small\n1\n2\n2000,40000\n2000,80000\n").unwrap();
    let document = document(&format!(
        "--validate --trace {} --bandwidth 1,inf --workers 2 --steps 3",
        file.display()
    ));
    let points = document["validation"]["points"].as_array().unwrap();
    let names: Vec<_> = points.iter().map(|p| p["transport"].as_str()).collect();
    assert_eq!(names, [Some("tcp"), Some("tcp"), Some("shm")]);
    for point in points {
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
    let (code, _, stderr) = run("whatif --validate --mode paper");
    assert_eq!(code, Some(2));
    assert!(stderr.contains("cannot be used with"), "{stderr}");
}
