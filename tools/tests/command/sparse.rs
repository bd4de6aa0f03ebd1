//! `bench sparse-allreduce`: processes, the document's fields, bad usage.

use super::start::run;
use serde_json::Value;

fn document(line: &str) -> Value {
    let (code, stdout, stderr) = run(&format!(
        "bench sparse-allreduce {line} --json - --timeout 30"
    ));
    assert_eq!(code, Some(0), "{line}\n{stderr}");
    serde_json::from_str(&stdout).unwrap_or_else(|e| panic!("{line}: {e}\n{stdout}"))
}

#[test]
fn every_algorithm_is_right_and_its_words_are_told_by_phase() {
    let document = document("--count 50000 --algo all --ranks 3 -n 3 -w 1 --transport shm");
    let results = document["results"].as_array().unwrap();
    assert_eq!(results.len(), 11);
    // Gradient and residual at least.
    assert!(document["peak_memory_vectors"].as_f64().unwrap() > 2.0);
    for result in results {
        assert_eq!(result["wrong"], 0, "{result}");
        for field in [
            "words_sent_max",
            "words_received_max",
            "words_received_mean",
        ] {
            assert!(result[field].as_f64().unwrap() > 0.0, "{field}: {result}");
        }
        for field in [
            "control_words",
            "selected_local",
            "selected_global",
            "busbw",
            "algbw",
        ] {
            assert!(result[field].is_number(), "{field}: {result}");
        }
        for time in ["time_us", "select_us", "communicate_us", "apply_us"] {
            assert!(
                result[time]["p50"].as_f64().unwrap() > 0.0,
                "{time}: {result}"
            );
        }
        let phases = result["phases"].as_object().unwrap().values();
        let sent: u64 = phases
            .map(|phase| phase["words_sent_max"].as_u64().unwrap())
            .sum();
        assert!(
            sent >= result["words_sent_max"].as_u64().unwrap(),
            "{result}"
        );
    }
    let of = |name: &str| results.iter().find(|r| r["algorithm"] == name).unwrap();
    let (k, p) = (500, 3);
    assert_eq!(of("oktopk")["selected_global"], k);
    assert!(of("oktopk")["words_sent_max"].as_u64().unwrap() <= 6 * k + 2 * p);
    assert_eq!(of("topka")["words_received_max"], 2 * k * (p - 1));
    assert_eq!(
        of("dense")["words_sent_max"],
        (2 * 50_000 * (p - 1)).div_ceil(p)
    );
}

#[test]
fn distributions_modes_and_the_layers_of_a_file_are_right_too() {
    let file = std::env::temp_dir().join(format!("layers-{}.csv", std::process::id()));
    std::fs::write(&file, "order,name,params\n0,a,1000\n1,b,1\n2,a,30000\n").unwrap();
    let layers = file.display();
    for line in [
        "--distribution powerlaw --mode threshold --count 40000 --transport tcp".to_owned(),
        format!("--distribution layers --layers {layers} --values bf16 --transport shm"),
        "--count 40000 --balance cost --ranks 4 --distribution powerlaw --transport shm".to_owned(),
        "--count 40000 --balance paper --algo topka2 --transport shm".to_owned(),
        "--count 3000 --density 0.5 --algo auto --ranks 1 --values i8".to_owned(),
    ] {
        let document = document(&format!("{line} -n 4"));
        assert_eq!(document["results"][0]["wrong"], 0, "{line}: {document}");
    }
    std::fs::remove_file(&file).unwrap();
}

#[test]
fn in_virtual_time_words_are_those_of_processes_and_times_those_of_the_network() {
    let line = "--count 50000 --algo all --ranks 3 -n 2 -w 1";
    let real = document(&format!("{line} --transport shm"));
    let fast = document(&format!("{line} --transport sim"));
    let slow = document(&format!("{line} --transport sim --link-gbit 1"));
    let again = document(&format!("{line} --transport sim --link-gbit 1"));
    assert_eq!(slow, again);
    let of = |document: &Value, at: usize, field: &str| document["results"][at][field].clone();
    for at in 0..11 {
        let name = of(&fast, at, "algorithm");
        assert_eq!(name, of(&real, at, "algorithm"));
        let time = |document: &Value| document["results"][at]["time_us"]["p50"].as_f64().unwrap();
        assert!(time(&slow) > time(&fast), "{name}");
        // How much Gaussiank selects depends on the values.
        if name != "gaussiank" && of(&fast, at, "ran") == of(&real, at, "ran") {
            let words = |document: &Value| {
                let mean = of(document, at, "words_received_mean");
                mean.as_f64().unwrap()
            };
            // Sizes stand for values: rounding and the fill-in of random picks differ a little.
            let ratio = words(&fast) / words(&real);
            assert!((0.95..1.05).contains(&ratio), "{name}: {ratio}");
        }
    }
}

#[test]
fn bad_usage_is_told_before_a_rank_starts() {
    for (line, expected) in [
        ("--density 0", "a density of 0: above 0"),
        ("--density 2", "at most 1"),
        ("--algo best", "oktopk"),
        ("--layers nothing", "bert"),
        ("--count 5 --layers bert", "cannot be used with"),
        ("--transport sim --ranks 1025", "1 to 1024"),
        ("--transport shm --link-us 3", "--transport sim"),
        ("--values f64", "bf16"),
        ("--balance sometimes", "cost"),
    ] {
        let (code, _, stderr) = run(&format!("bench sparse-allreduce {line}"));
        assert_eq!(code, Some(2), "{line}: {stderr}");
        assert!(stderr.contains(expected), "{line}: {stderr}");
    }
    let (code, stdout, _) = run("bench --help");
    assert_eq!(code, Some(0));
    assert!(
        stdout.contains("sparse-allreduce") && stdout.contains("COLLECTIVE"),
        "{stdout}"
    );
}
