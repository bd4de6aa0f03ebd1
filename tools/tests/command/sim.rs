//! `linerate sim` through the command line.

use super::start::{run, scratch};
use serde_json::Value;

fn document(line: &str) -> Value {
    let (code, stdout, stderr) = run(&format!("sim {line} --json -"));
    assert_eq!((code, stderr.as_str()), (Some(0), ""), "{line}");
    serde_json::from_str(&stdout).unwrap()
}

#[test]
fn the_text_says_how_long_what_is_busy_and_what_the_time_goes_to() {
    let (code, stdout, _) = run("sim allreduce --ranks 64 --fabric 8x400g -e 1M");
    assert_eq!(code, Some(0));
    for part in [
        "# linerate sim: 64 ranks on fabric 8x400g, 8 hosts of 8 GPUs and 8 NICs of 400 Gbit/s",
        "      1048576 hierarchical",
        "# NICs ",
        "# links inside of hosts ",
        "# the longest chain of events:",
        "latency of messages",
    ] {
        assert!(stdout.contains(part), "{part}: {stdout}");
    }
}

#[test]
fn schedules_and_communicators_print_equal_times() {
    let line = "allgather --ranks 12 --fabric oversubscribed -b 64K -e 4M -f 8 --algo all";
    let schedules = document(line);
    let engines = document(&format!("{line} --level engine"));
    let rows = |document: &Value| document["results"].as_array().unwrap().clone();
    assert_eq!(rows(&schedules).len(), 6);
    assert_eq!(rows(&schedules), rows(&engines));
    assert_eq!(document(line), schedules, "the same run, the same document");
}

#[test]
fn auto_fills_the_wire() {
    let of = |line: &str| document(line)["results"][0].clone();
    let row = of("allreduce --ranks 64 --fabric 100g -e 64M");
    assert_eq!(row["algorithm"], "ring");
    assert!(row["uses"][0]["mean"].as_f64() >= Some(0.95), "{row}");
    assert!(row["busbw"].as_f64() >= Some(0.95 * 12.5), "{row}");
}

#[test]
fn a_step_of_training_has_flushes_one_after_another() {
    let document = document("step --trace resnet50 --ranks 64 --fabric p3dn");
    let step = &document["step"];
    let flushes = step["flushes"].as_array().unwrap();
    let mut before = 0.0;
    let mut bytes = 0;
    for flush in flushes {
        let at = |name: &str| flush[name].as_f64().unwrap();
        assert!(at("begin_ms") >= at("ready_ms").max(before));
        before = at("end_ms");
        bytes += flush["bytes"].as_u64().unwrap();
    }
    assert_eq!(bytes, 102_228_128);
    assert!(step["scaling_factor"].as_f64() >= Some(0.99), "{step}");
}

#[test]
fn a_sparse_allreduce_sends_what_its_density_says() {
    let line = "oktopk --ranks 16 --fabric 100g -e 64M";
    let of = |density: &str| document(&format!("{line} --density {density}"));
    let sparse = of("0.01");
    let rows = sparse["results"].as_array().unwrap();
    let bytes: Vec<_> = rows
        .iter()
        .map(|row| row["bytes"].as_u64().unwrap())
        .collect();
    // 1 % of 16 Mi elements, of 8 bytes each.
    assert_eq!(bytes, [167_773 * 8, 64, 167_773 * 8]);
    let us = |row: &Value| row["time_us"].as_f64().unwrap();
    let total = sparse["total_us"].as_f64().unwrap();
    assert!((rows.iter().map(us).sum::<f64>() - total).abs() < 1e-9);
    // Twice 15/16 of the entries at 12.5 GB/s, and at least one latency for each exchange.
    let wire = 2.0 * 15.0 / 16.0 * (167_773.0 * 8.0) / 12.5e3;
    assert!(total > wire + 6.0 && total < 1.6 * wire, "{total} {wire}");
    let dense = document("allreduce --ranks 16 --fabric 100g -e 64M");
    assert!(total < 0.1 * us(&dense["results"][0]), "{dense}");
    for (line, named) in [
        ("sim oktopk --density 0", "--density is 0"),
        ("sim oktopk --algo ring", "oktopk takes -e and --density"),
    ] {
        let (code, _, stderr) = run(line);
        assert_eq!(code, Some(2), "{line}");
        assert!(stderr.contains(named), "{stderr}");
    }
}

#[test]
fn a_sweep_becomes_a_page_with_a_plot() {
    let folder = scratch("sim-report");
    let [json, page] = ["sim.json", "sim.html"].map(|name| folder.join(name));
    let line = "sim allreduce --ranks 16 -b 1K -e 4M -f 4";
    let (code, ..) = run(&format!("{line} --json {}", json.display()));
    assert_eq!(code, Some(0));
    let (code, ..) = run(&format!("report {} -o {}", json.display(), page.display()));
    assert_eq!(code, Some(0));
    let page = std::fs::read_to_string(page).unwrap();
    assert!(page.contains("Bus bandwidth: allreduce") && page.contains("<svg"));
}

#[test]
fn a_printed_fabric_can_be_changed_and_given() {
    let (code, text, _) = run("sim allreduce --fabric 8x400g --print-fabric");
    assert_eq!(code, Some(0));
    let file = scratch("fabric").join("own.toml");
    std::fs::write(&file, &text).unwrap();
    let line = |fabric: &str| format!("allreduce --ranks 32 -e 8M --fabric {fabric}");
    let own = document(&line(file.to_str().unwrap()));
    let built_in = document(&line("8x400g"));
    assert_eq!(own["fabric"], built_in["fabric"]);
    assert_eq!(own["results"], built_in["results"]);
    let slower = text.replace("nic_gbit = 400.0", "nic_gbit = 100.0");
    assert_ne!(slower, text);
    std::fs::write(&file, slower).unwrap();
    let changed = document(&line(file.to_str().unwrap()));
    let time = |of: &Value| of["results"][0]["time_us"].as_f64().unwrap();
    assert!(time(&changed) > 1.5 * time(&own));
}

#[test]
fn bad_fabrics_and_arguments_are_refused_by_name() {
    let folder = scratch("bad-fabrics");
    let file = folder.join("fabric.toml");
    for (text, told) in [
        ("nic_gbit = 0", "nic_gbit is 0"),
        ("nic_gbits = 100.0", "unknown field `nic_gbits`"),
        ("nic_gbit = \"fast\"", "line 1"),
        (
            "gpus_per_host = 8\nnics_per_host = 9",
            "nics_per_host is 9: 1 to 8",
        ),
        ("hosts = 7", "ranks is 64: it has 7 GPUs at most"),
        (
            "[[tiers]]\nhosts = 4\noversubscription = 0.5\nhop_ns = 1",
            "oversubscription is 0.5",
        ),
        (
            "[[tiers]]\nhosts = 4\noversubscription = 1\nhop_ns = 1\n[[tiers]]\nhosts = 2\noversubscription = 1\nhop_ns = 1",
            "tiers[1].hosts is 2: a multiple of 4",
        ),
        ("[work]\nadditions = \"h100\"", "unknown variant `h100`"),
        ("\u{1}", "line 1"),
    ] {
        std::fs::write(&file, text).unwrap();
        let (code, _, stderr) = run(&format!("sim allreduce --fabric {}", file.display()));
        assert_eq!(code, Some(2), "{text}: {stderr}");
        assert!(stderr.contains(told), "{text}: {stderr}");
    }
    std::fs::write(&file, [0xff, 0xfe]).unwrap();
    for (line, told) in [
        (format!("allreduce --fabric {}", file.display()), "--fabric"),
        (
            format!("allreduce --fabric {}", folder.display()),
            "--fabric",
        ),
        ("allreduce --fabric 800g".into(), "built in are p3dn, 100g"),
        ("allreduce --ranks 0".into(), "ranks is 0"),
        ("allreduce --ranks 99999".into(), "ranks is 99999"),
        ("allreduce --ranks 2048 --level engine".into(), "1 to 1024"),
        ("allreduce --algo pigeon".into(), "no algorithm 'pigeon'"),
        ("allreduce --algo line".into(), "one host"),
        ("alltoallv".into(), "equal lengths"),
        ("allreduce -b 2M -e 1M".into(), "-b is at most -e"),
        ("allreduce -b 1 -e 1M -f 1".into(), "at least 2"),
        ("allreduce --chunk 1".into(), "chunks of 1 bytes"),
        ("broadcast --root 64".into(), "root 64"),
        ("pigeon".into(), "step, for a step of training"),
        ("step --trace /nowhere".into(), "/nowhere"),
    ] {
        let (code, _, stderr) = run(&format!("sim {line}"));
        assert_eq!(code, Some(2), "{line}: {stderr}");
        assert!(stderr.contains(told), "{line}: {stderr}");
    }
}
