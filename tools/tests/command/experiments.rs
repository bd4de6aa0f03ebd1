//! `linerate experiment`: real ranks, small settings.

use super::start::{run, scratch};
use serde_json::Value;

fn eager_sgd(line: &str) -> Value {
    let (code, stdout, stderr) = run(&format!(
        "experiment eager-sgd {line} --json - --timeout 30"
    ));
    assert_eq!(code, Some(0), "{line}\n{stderr}");
    serde_json::from_str(&stdout).unwrap_or_else(|e| panic!("{line}: {e}\n{stdout}"))
}

#[test]
fn partial_training_counts_every_gradient_and_keeps_replicas_equal() {
    let scratch = scratch("eager-sgd-plots");
    // Made by the command.
    let folder = scratch.join("two").join("deep");
    let plots = folder.display();
    let (ranks, steps) = (3, 24);
    let line = format!(
        "--workload severe,quorum --ranks {ranks} --steps {steps} --runs 1 --scale 0.005 --plots {plots}"
    );
    let document = eager_sgd(&line);
    let rows = document["results"].as_array().unwrap();
    assert_eq!(rows.len(), 4 + 20);
    for row in rows {
        let run = &row["runs"][0];
        assert_eq!(run["replicas_equal"], true, "{row}");
        let included = run["included"].as_u64().unwrap();
        let most = u64::from(ranks as u32 * steps);
        match row["policy"].as_str() {
            // Nobody is left for the round that ends it.
            Some("synchronous") => assert_eq!(included, most),
            _ => assert!(included > most / 2 && included <= most, "{row}"),
        }
        let points = run["points"].as_array().unwrap();
        let loss = |point: &Value| point["loss"].as_f64().unwrap();
        assert!(
            loss(points.last().unwrap()) < 0.9 * loss(&points[0]),
            "{row}"
        );
    }
    for file in ["severe-steps", "severe-time", "quorum-tau-8-steps"] {
        let text = std::fs::read_to_string(folder.join(format!("eager-sgd-{file}.svg"))).unwrap();
        assert!(text.contains("<polyline"), "{file}");
    }
    std::fs::remove_dir_all(&scratch).unwrap();
}

#[test]
fn many_ranks_in_virtual_time_give_the_same_every_time() {
    let line = "--workload resnet50 --steps 32";
    let document = eager_sgd(line);
    assert_eq!(document, eager_sgd(line));
    let rows = document["virtual_time"].as_array().unwrap();
    assert_eq!(rows.len(), 8);
    assert!(
        rows.iter()
            .all(|row| row["speedup"].as_f64().unwrap() > 0.99)
    );
}

#[test]
fn what_cannot_be_trained_is_refused_before_ranks_start() {
    for (line, reason) in [
        ("--ranks 1", "2 and more"),
        ("--steps 3", "8..=100000"),
        ("--plots /dev/null/plots", "--plots"),
        ("--workload imagenet", "possible values"),
        ("--scale 0", "--scale"),
        ("--json /nonexistent/x", "--json"),
        ("--transport udp", "--transport"),
    ] {
        let (code, stdout, stderr) = run(&format!("experiment eager-sgd {line}"));
        assert_eq!(code, Some(2), "{line}: {stderr}");
        assert!(
            stderr.contains(reason) && stdout.is_empty(),
            "{line}: {stderr}"
        );
    }
    let (code, _, stderr) = run("experiment eager-sgd --transport sim --steps 8");
    assert_eq!(code, Some(1));
    assert!(stderr.contains("virtual time"), "{stderr}");
}

#[test]
fn the_identities_of_the_skew_are_exact_in_virtual_time() {
    let (code, stdout, stderr) = run(
        "experiment skew --sim --rounds 640 --sizes 64,1M --policies full,solo,8,majority,random --json -",
    );
    assert_eq!(code, Some(0), "{stderr}");
    let document: Value = serde_json::from_str(&stdout).unwrap();
    let rows = document["results"].as_array().unwrap();
    assert_eq!(rows.len(), 10);
    let number = |row: &Value, key: &str| row[key].as_f64().unwrap();
    for row in rows {
        assert_eq!(row["wrong"], 0, "{row}");
        assert!(number(row, "identity_deviation").abs() < 1e-9, "{row}");
        let nap = match row["policy"].as_str().unwrap() {
            "full" => 32.0,
            "solo" => 1.0,
            "8" => 8.0,
            "majority" => 16.0,
            _ => continue,
        };
        assert_eq!(number(row, "nap_mean"), nap, "{row}");
    }
    let t = number(&rows[1], "initiator_p50_ms");
    assert!((0.296..0.297).contains(&t), "{t}");
    assert!(
        number(&rows[6], "initiator_p50_ms") > t + 0.1,
        "1 MiB takes longer"
    );
    assert!(number(&rows[1], "reduction_vs_full") > 50.0);
    assert!(number(&rows[3], "reduction_vs_full") > 3.5);
}

#[test]
fn few_ranks_leave_out_the_quorum_that_they_do_not_fill() {
    for (ranks, rows) in [(1, 4), (7, 4), (8, 5)] {
        let line = format!("experiment skew --sim --rounds 4 --sizes 64 --ranks {ranks} --json -");
        let (code, stdout, stderr) = run(&line);
        assert_eq!(code, Some(0), "{stderr}");
        let document: Value = serde_json::from_str(&stdout).unwrap();
        assert_eq!(document["results"].as_array().unwrap().len(), rows);
    }
    let (code, _, stderr) = run("experiment skew --sim --ranks 7 --policies 8");
    assert_eq!(code, Some(2));
    assert!(stderr.contains("a quorum of 8 of 7 ranks"), "{stderr}");
}

#[test]
fn staleness_in_virtual_time_keeps_its_bounds_and_names_every_mode() {
    let line = "experiment dssp --part throughput --seeds 2 --json -";
    let (code, stdout, stderr) = run(line);
    assert_eq!(code, Some(0), "{stderr}");
    assert_eq!(run(line).1, stdout, "the same every time");
    let document: Value = serde_json::from_str(&stdout).unwrap();
    let rows = document["parts"]["throughput"]["results"]
        .as_array()
        .unwrap();
    assert_eq!(rows.len(), 7 * 8 * 2);
    for row in rows {
        assert!(stderr.contains(row["mode"].as_str().unwrap()), "{row}");
        let bound = match row["mode"].as_str().unwrap() {
            "BSP" => 1,
            "SSP 3" => 4,
            "DSSP(3,12) strict" => 15,
            _ => continue,
        };
        assert!(row["drift_max"].as_u64().unwrap() <= bound, "{row}");
    }
    let (code, stdout, stderr) = run("experiment dssp --part staleness --seeds 1 --json -");
    assert_eq!(code, Some(0), "{stderr}");
    let document: Value = serde_json::from_str(&stdout).unwrap();
    let part = &document["parts"]["staleness"];
    assert_eq!(part["violations"].as_array().unwrap().len(), 0, "{part}");
    let rows = part["results"].as_array().unwrap();
    assert_eq!(rows.len(), 2 * 12);
    for row in rows.iter().filter(|row| row["model"] == "digits") {
        assert!(row["accuracy"].as_f64().unwrap() > 0.9, "{row}");
    }
    let line = "experiment dssp --part table1,table1 --seconds 0.3 --runs 1 --scale 1 --json -";
    let (code, stdout, stderr) = run(line);
    assert_eq!(code, Some(0), "{stderr}");
    let document: Value = serde_json::from_str(&stdout).unwrap();
    let rows = document["parts"]["table1"]["results"].as_array().unwrap();
    assert_eq!(rows.len(), 7, "{stdout}");
    for row in rows {
        let bound = match row["mode"].as_str().unwrap() {
            "BSP" => 1,
            "SSP 3" => 4,
            "DSSP(3,12) strict" => 15,
            _ => 10_000,
        };
        assert!(
            row["drift_max"].as_f64().unwrap() <= f64::from(bound),
            "{row}"
        );
        assert!(row["iterations_per_s"].as_f64().unwrap() > 10.0, "{row}");
    }
    assert!(stderr.contains("3046.3"), "the paper's: {stderr}");
    for (line, reason) in [
        ("--part table1 --scale 0", "--scale"),
        ("--part table1 --runs 0", "--runs"),
        (
            "--s-lower 16",
            "lower bound of the drift is 16 and the upper one 15",
        ),
        ("--s-upper 9999", "4096 at most"),
        ("--part table3", "possible values"),
        ("--seeds 0", "--seeds"),
    ] {
        let (code, stdout, stderr) = run(&format!("experiment dssp {line}"));
        assert_eq!(code, Some(2), "{line}: {stderr}");
        assert!(stderr.contains(reason) && stdout.is_empty(), "{stderr}");
    }
}

#[test]
fn workers_that_are_alike_keep_every_bound_with_little_and_with_much_to_send() {
    let scratch = scratch("dssp-plots");
    let line = format!(
        "experiment dssp --part table1,homogeneous --seconds 0.1 --epochs 1 --runs 1 --scale 0.2 --plots {} --json -",
        scratch.display()
    );
    let (code, stdout, stderr) = run(&line);
    assert_eq!(code, Some(0), "{stderr}");
    let document: Value = serde_json::from_str(&stdout).unwrap();
    let table = document["parts"]["table1"]["results"].as_array().unwrap();
    assert_eq!(table.len(), 7, "with ranks that are not in the table");
    let rows = document["parts"]["homogeneous"]["results"]
        .as_array()
        .unwrap();
    // BSP, SSP 3 to 15, two readings of DSSP, ASP.
    assert_eq!(rows.len(), 2 * 17, "{stdout}");
    let small = rows.iter().filter(|row| row["communication"] == "small");
    assert_eq!(small.count(), 17);
    for row in rows {
        let mode = row["mode"].as_str().unwrap();
        let bound = match (mode, mode.strip_prefix("SSP ")) {
            ("BSP", _) => 1,
            ("DSSP(3,12) strict", _) => 15,
            (_, Some(bound)) => bound.parse::<u32>().unwrap() + 1,
            _ => 10_000,
        };
        let drift = row["drift_max"].as_f64().unwrap();
        assert!(drift <= f64::from(bound), "{row}");
        assert_eq!(row["speeds"].as_array().unwrap().len(), 4);
        let least = row["staleness_mean"].as_f64().unwrap();
        assert!(row["staleness_max"].as_f64().unwrap() >= least, "{row}");
        assert!(row["seconds_per_epoch"].as_f64().unwrap() > 0.02, "{row}");
    }
    for text in [
        "BSP, SSP, DSSP, ASP (ResNets)",
        "DSSP strict / mean of SSP",
        "where ours may differ",
    ] {
        assert!(stderr.contains(text), "{text}: {stderr}");
    }
    for file in ["small", "small-ssp", "large", "large-ssp"] {
        let path = scratch.join(format!("dssp-homogeneous-{file}.svg"));
        let text = std::fs::read_to_string(path).unwrap();
        assert!(text.contains("<polyline"), "{file}");
    }
    std::fs::remove_dir_all(&scratch).unwrap();
}

/// A ring of two sends half of a vector twice: the line is what it needs, besides two messages.
#[test]
fn lengths_that_fill_the_line_are_worked_out_and_simulated() {
    let line = "experiment saturate --ranks 2,16 --gbit 100 --latency-us 2 --json -";
    let (code, stdout, stderr) = run(line);
    assert_eq!(code, Some(0), "{stderr}");
    let document: Value = serde_json::from_str(&stdout).unwrap();
    let rows = document["results"].as_array().unwrap();
    assert_eq!(rows.len(), 6);
    for row in rows {
        let number = |name: &str| row[name].as_f64().unwrap();
        let wanted = number("share");
        assert!(number("predicted") >= wanted, "{row}");
        assert!(
            (number("simulated") / number("predicted") - 1.0).abs() < 0.05,
            "{row}"
        );
        assert!(row["bytes"].as_u64().unwrap().is_power_of_two());
    }
    // Two ranks exchange halves, twice, and each time a message of 2 us comes before its bytes, or
    // all at once: half of the line at the length of which the bytes take as long as the latency.
    let bytes = rows[0]["bytes"].as_f64().unwrap();
    assert!(
        (2.0 * 12_500.0..=6.0 * 12_500.0).contains(&bytes),
        "{bytes}"
    );
    assert_eq!(rows[0]["limited_by"], "latency");
    let points = document["points"].as_array().unwrap();
    assert_eq!(points[0]["figure"], "An allreduce at 100 Gbit/s");
    let (code, _, stderr) = run("experiment saturate --ranks 1");
    assert_eq!(code, Some(2));
    assert!(stderr.contains("a line needs 2 ranks"), "{stderr}");
}

/// The paper's numbers beside the model's, and a report with the figures.
#[test]
fn figures_of_the_network_paper_have_its_numbers_and_become_plots() {
    let folder = scratch("experiment-whatif");
    let json = folder.join("whatif.json");
    let (code, stdout, stderr) = run(&format!(
        "experiment whatif --models resnet50 --no-replay --json {}",
        json.display()
    ));
    assert_eq!(code, Some(0), "{stderr}");
    assert!(stdout.contains("# Figure 6: resnet50"), "{stdout}");
    let document: Value = serde_json::from_slice(&std::fs::read(&json).unwrap()).unwrap();
    let rows = document["results"].as_array().unwrap();
    let value = |figure: &str, series: &str, x: f64| {
        let is_it = |row: &&Value| {
            let text = |name: &str| row[name].as_str().unwrap();
            text("figure").starts_with(figure) && text("series") == series && row["x"] == x
        };
        rows.iter().find(is_it).unwrap()["y"].as_f64().unwrap()
    };
    assert_eq!(value("Figure 1", "paper, Horovod measured", 8.0), 0.716);
    assert_eq!(value("Figure 3", "paper, 2 servers measured", 1.0), 0.13);
    assert!((value("Figure 3", "model, 2 servers", 1.0) - 0.144).abs() < 5e-4);
    assert!((value("Figure 6", "model, GPUs count", 10.0) - 0.5397).abs() < 5e-5);
    assert!(value("Figure 1", "linerate, simulated", 8.0) > 0.99);
    // What the paper measured is that of a network of 15.7 Gbit/s.
    let reached = "model, 15.7 Gbit/s reached at most";
    assert!((value("Figure 6", reached, 100.0) - 0.716).abs() < 1e-6);
    let page = folder.join("page.html");
    let (code, _, stderr) = run(&format!("report {} -o {}", json.display(), page.display()));
    assert_eq!(code, Some(0), "{stderr}");
    let page = std::fs::read_to_string(page).unwrap();
    assert_eq!(page.matches("<svg").count(), 6, "{page}");
    assert!(page.contains(">paper, Horovod measured<"));
}

#[test]
fn the_replayed_figures_measure_this_host() {
    let (code, stdout, stderr) =
        run("experiment whatif --models resnet50 --ranks 2 --steps 1 --gbit 10 --json -");
    assert_eq!(code, Some(0), "{stderr}");
    let document: Value = serde_json::from_str(&stdout).unwrap();
    let rows = document["results"].as_array().unwrap();
    let of = |figure: &str| {
        let is_it = |row: &&Value| {
            row["figure"].as_str().unwrap().starts_with(figure) && row["is_measured"] == true
        };
        rows.iter()
            .filter(is_it)
            .map(|row| row["y"].as_f64().unwrap())
            .collect::<Vec<f64>>()
    };
    // Alone and communicating; a share of the link and of the cores is above 0 and not above 1.
    let backward = of("Figure 2");
    assert!(
        backward.len() == 2 && backward.iter().all(|ms| *ms >= 64.0),
        "{backward:?}"
    );
    for figure in ["Figure 4", "Figure 5"] {
        let shares = of(figure);
        assert!(
            shares.len() == 1 && shares[0] > 0.0 && shares[0] <= 1.05,
            "{figure} {shares:?}"
        );
    }
}
