//! `linerate experiment oktopk`: each part, quickly, and its figures beside the formulas. No times
//! are asserted but those of the modelled fabric, which are the same on every machine.

use super::start::{run, scratch};
use serde_json::Value;

fn part(name: &str, more: &str) -> Value {
    let line = format!("experiment oktopk --quick --part {name} {more} --json - --timeout 30");
    let (code, stdout, stderr) = run(&line);
    assert_eq!(code, Some(0), "{line}\n{stderr}");
    let document: Value =
        serde_json::from_str(&stdout).unwrap_or_else(|e| panic!("{line}: {e}\n{stdout}"));
    let part = &document["parts"][name];
    assert!(part["violations"].as_array().unwrap().is_empty(), "{part}");
    part["results"].clone()
}

fn number(row: &Value, field: &str) -> f64 {
    row[field]
        .as_f64()
        .unwrap_or_else(|| panic!("{field} of {row}"))
}

#[test]
fn words_of_every_scheme_are_those_of_table_1() {
    let rows = part("table1", "");
    let (n, k) = (133_547_324.0, 1_335_473.0);
    let rows = rows.as_array().unwrap();
    assert_eq!(rows.len(), 5 * 8);
    for row in rows {
        let p = number(row, "ranks");
        let (others, log) = ((p - 1.0) / p, p.log2().ceil());
        let words = number(row, "words");
        let close = |wanted: f64| assert!((words / wanted - 1.0).abs() < 1e-3, "{wanted}: {row}");
        match row["scheme"].as_str().unwrap() {
            "Dense" => close(2.0 * n * others),
            "TopkA" | "Gaussiank" => close(2.0 * k * (p - 1.0)),
            "gTopk" => close(4.0 * k * log),
            "TopkDSA" => {
                assert!(
                    words >= 0.99 * 4.0 * k * others && words <= 1.01 * (2.0 * k + n) * others,
                    "{row}"
                );
                if row["support"] == "identical" {
                    close(4.0 * k * others);
                }
            }
            "Ok-Topk" => {
                assert!(
                    words >= 2.0 * k * others && words <= 6.0 * k * others + 2.0 * p,
                    "{row}"
                );
                assert!(number(row, "words_sent_max") <= 6.0 * k + 2.0 * p, "{row}");
            }
            other => panic!("{other}"),
        }
    }
}

#[test]
fn oktopk_is_the_fastest_where_picks_are_independent_and_auto_knows_where_it_is_not() {
    let results = part("timed", "");
    assert_eq!(results["ranks"], 32);
    let ratio = |support: &str, scheme: &str| {
        let rows = results[support].as_array().unwrap();
        let row = rows.iter().find(|row| row["scheme"] == scheme);
        number(row.unwrap(), "ratio")
    };
    for scheme in ["Dense", "TopkA", "TopkDSA", "gTopk", "Gaussiank"] {
        assert!(ratio("independent", scheme) > 3.29, "{scheme}: {results}");
    }
    assert!(ratio("identical", "TopkDSA") < 1.0, "{results}");
    for row in results["without_latency"].as_array().unwrap() {
        assert!(number(row, "time_in_6k_beta") <= 1.05, "{row}");
    }
    let extremes = results["extremes"].as_array().unwrap();
    assert_eq!(extremes.len(), 9);
    for row in extremes {
        assert!(number(row, "time_in_6k_beta") <= 1.05, "{row}");
        let most = 6.0 * number(row, "k") + 2.0 * number(row, "ranks");
        assert!(number(row, "words_sent_max") <= most, "{row}");
        let is_uneven = row["picks"].as_str().unwrap().starts_with("large");
        assert_eq!(row["is_spread"], is_uneven, "{row}");
    }
    assert_eq!(
        part("timed", ""),
        results,
        "virtual time is the same every time"
    );
}

#[test]
fn thresholds_follow_a_training_and_counts_stay_within_half_and_twice_k() {
    let folder = scratch("oktopk-thresholds");
    let results = part("thresholds", &format!("--plots {}", folder.display()));
    let k = number(&results, "k");
    let steps = results["steps"].as_array().unwrap();
    assert_eq!(steps.len(), 48);
    for (at, step) in steps.iter().enumerate() {
        let count = number(step, "followed_count");
        assert!(count >= (k / 2.0).ceil() && count <= 2.0 * k, "{step}");
        assert!(number(step, "selected_global") <= 2.0 * k, "{step}");
        let is_due = (at as u64).is_multiple_of(results["reuse_steps"].as_u64().unwrap());
        if is_due {
            assert_eq!(
                (&step["is_evaluated"], count),
                (&Value::Bool(true), k),
                "{step}"
            );
            assert_eq!(step["exact"], step["held"], "{step}");
        }
    }
    assert!(
        number(&results, "deviation_local") < number(&results, "deviation_held"),
        "{results}"
    );
    for file in ["thresholds", "counts"] {
        let text = std::fs::read_to_string(folder.join(format!("oktopk-{file}.svg"))).unwrap();
        assert!(text.contains("<polyline"), "{file}");
    }
    std::fs::remove_dir_all(&folder).unwrap();
}

#[test]
fn assumption_1_holds_with_a_small_constant_that_falls_with_density() {
    let rows = part("xi", "");
    let most: Vec<f64> = rows
        .as_array()
        .unwrap()
        .iter()
        .map(|row| number(row, "most"))
        .collect();
    assert_eq!(most.len(), 3);
    assert!(most[0] > most[2] && most[2] > 0.0, "{most:?}");
    for row in rows.as_array().unwrap() {
        assert_eq!(row["xi"].as_array().unwrap().len(), 48);
        assert!(number(row, "most") < number(row, "ranks"), "{row}");
    }
}

#[test]
fn ranks_that_train_the_same_fill_less_than_independent_ones() {
    let rows = part("fill", "");
    let rows = rows.as_array().unwrap();
    assert_eq!(rows.len(), 2);
    for row in rows {
        let (density, p) = (number(row, "density"), number(row, "ranks"));
        let independent = number(row, "fill_independent");
        assert!(
            (independent - (1.0 - (1.0 - density).powf(p))).abs() < 1e-3,
            "{row}"
        );
        let mean = number(row, "fill_mean");
        assert!(mean > 2.0 * density && mean < independent, "{row}");
    }
}

#[test]
fn balanced_regions_receive_no_more_than_their_share() {
    let results = part("balance", "");
    let reduce = results["reduce"].as_array().unwrap();
    assert_eq!(reduce.len(), 4);
    for row in reduce {
        let (k, p) = (number(row, "k"), number(row, "ranks"));
        assert!(number(row, "words_balanced") <= 2.0 * (k + p), "{row}");
        assert!(
            number(row, "words_naive") > number(row, "words_balanced"),
            "{row}"
        );
        assert!(number(row, "speedup") > 1.13, "{row}");
    }
    assert_eq!(results["gather"].as_array().unwrap().len(), 4);
}

#[test]
fn a_step_is_the_sum_of_its_phases() {
    let figures = part("scaling", "--compute-ms 50");
    let figures = figures.as_array().unwrap();
    assert_eq!(figures.len(), 3 * 2);
    for figure in figures {
        for row in figure["rows"].as_array().unwrap() {
            let phases = number(row, "seconds_selection") + number(row, "seconds_communication");
            assert!(
                (number(row, "seconds") - phases - 0.05).abs() < 1e-9,
                "{row}"
            );
            assert_eq!(number(row, "seconds_computation"), 0.05);
        }
        let efficiency = number(figure, "efficiency");
        assert!(efficiency > 0.5 && efficiency <= 1.0, "{figure}");
    }
}

#[test]
fn real_ranks_learn_with_every_scheme_and_lose_no_gradient() {
    let folder = scratch("oktopk-training");
    let results = part(
        "training",
        &format!("--ranks 3 --plots {}", folder.display()),
    );
    let runs = results["runs"].as_array().unwrap();
    assert_eq!((runs.len(), &results["ranks"]), (18, &Value::from(3)));
    for run in runs {
        assert_eq!(
            (&run["replicas_equal"], &run["coordinates_lost"]),
            (&Value::Bool(true), &Value::from(0)),
            "{run}"
        );
        let points = run["points"].as_array().unwrap();
        let (first, last) = (&points[0], points.last().unwrap());
        assert!(number(last, "loss") < number(first, "loss"), "{run}");
        assert!(
            number(last, "bytes_sent") > 0.0 && last["step"] == 24,
            "{run}"
        );
    }
    let sent = |scheme: &str| {
        let run = runs.iter().find(|run| run["scheme"] == scheme).unwrap();
        number(
            run["points"].as_array().unwrap().last().unwrap(),
            "bytes_sent",
        )
    };
    assert!(sent("gTopk") < sent("TopkA") && sent("TopkA") < sent("Dense"));
    for optimiser in ["sgd", "momentum", "adam"] {
        for axis in ["steps", "bytes", "time"] {
            let file = folder.join(format!("oktopk-training-{optimiser}-{axis}.svg"));
            assert!(std::fs::read_to_string(file).unwrap().contains("Ok-Topk"));
        }
    }
    std::fs::remove_dir_all(&folder).unwrap();
}

#[test]
fn what_cannot_be_run_is_refused_before_anything_starts() {
    for (line, reason) in [
        ("--steps 3", "8..=100000"),
        ("--plots /dev/null/plots", "--plots"),
        ("--part table2", "possible values"),
        ("--compute-ms 0", "--compute-ms"),
        ("--json /nonexistent/x", "--json"),
        ("--transport udp", "--transport"),
    ] {
        let (code, stdout, stderr) = run(&format!("experiment oktopk {line}"));
        assert_eq!(code, Some(2), "{line}: {stderr}");
        assert!(
            stderr.contains(reason) && stdout.is_empty(),
            "{line}: {stderr}"
        );
    }
    let (code, _, stderr) = run("experiment oktopk --part training --transport sim");
    assert_eq!(code, Some(1));
    assert!(stderr.contains("virtual time"), "{stderr}");
}
