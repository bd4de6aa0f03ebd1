//! `perf` and `mesh` from outside: both sides as processes, their tables, documents, refusals and
//! exit codes.

use super::start::{linerate, parts, run, scratch, serve};
use linerate_children::Child;
use serde_json::Value;
use std::io::Write;
use std::net::TcpStream;
use std::process::Command;

/// A server and its port.
struct Server(Child, u16);

impl Server {
    fn start(line: &str) -> Server {
        Server::of(linerate(&format!("perf {line} -p 0 --timeout 20")))
    }

    fn of(mut command: Command) -> Server {
        let (child, port) = serve(&mut command);
        Server(child, port)
    }

    /// Exit code and texts, when it has ended.
    fn end(self) -> (Option<i32>, String, String) {
        parts(self.0.end())
    }

    fn client(&self, line: &str) -> Command {
        let port = self.1;
        linerate(&format!("perf {line} 127.0.0.1 -p {port} --timeout 20"))
    }
}

fn local_json(line: &str) -> Value {
    let (code, stdout, stderr) = run(&format!("perf {line} --local --json - --timeout 20"));
    assert_eq!(code, Some(0), "{line}\n{stderr}");
    serde_json::from_str(&stdout).unwrap_or_else(|e| panic!("{line}: {e}\n{stdout}"))
}

#[test]
fn every_bandwidth_moves_every_message_and_every_byte_is_right() {
    for test in ["write_bw", "read_bw", "send_bw"] {
        for options in [
            "-s 64K -n 300",
            "-s 100 -n 301 -q 3 -t 4",
            "-b -s 5000 -n 50 -q 2",
            "-s 1 -n 1 -t 1",
        ] {
            let value = local_json(&format!("{test} {options}"));
            let row = &value["results"][0];
            let streams = value["qps"].as_u64().unwrap();
            let asked: u64 = options
                .split("-n ")
                .nth(1)
                .unwrap()
                .split(' ')
                .next()
                .unwrap()
                .parse()
                .unwrap();
            assert_eq!(
                row["iterations"],
                asked * streams,
                "{test} {options}: {row}"
            );
            assert_eq!(row["wrong"], 0, "{test} {options}");
            let (bw, rate) = (
                row["bw"].as_f64().unwrap(),
                row["msg_rate"].as_f64().unwrap(),
            );
            let bytes = row["bytes"].as_f64().unwrap();
            assert!(
                bw > 0.0 && (bw - rate * bytes / 1e9).abs() < 1e-9 * bw.max(1.0),
                "{row}"
            );
            assert!(row["time_us"].is_null());
        }
    }
}

#[test]
fn every_latency_has_as_many_samples_as_were_asked_for() {
    for test in ["write_lat", "read_lat", "send_lat"] {
        for size in [1, 2, 8, 9, 5000] {
            let value = local_json(&format!("{test} -s {size} -n 100 --no-rotate"));
            let row = &value["results"][0];
            assert_eq!(
                (row["iterations"].as_u64(), row["wrong"].as_u64()),
                (Some(100), Some(0)),
                "{test} {size}"
            );
            let time = |name: &str| row["time_us"][name].as_f64().unwrap();
            let ordered = ["min", "p50", "p99", "p999", "max"].map(time);
            assert!(
                ordered[0] > 0.0 && ordered.is_sorted(),
                "{test} {size}: {row}"
            );
            assert!(
                time("min") <= time("mean") && time("mean") <= time("max"),
                "{row}"
            );
        }
    }
}

#[test]
fn a_sweep_has_a_row_for_each_size_and_a_duration_ends_by_itself() {
    let value = local_json("write_bw -a -n 3");
    let sizes = value["results"]
        .as_array()
        .unwrap()
        .iter()
        .map(|row| row["bytes"].as_u64().unwrap());
    assert_eq!(
        sizes.collect::<Vec<_>>(),
        (1..=23).map(|p| 1 << p).collect::<Vec<u64>>()
    );
    for line in [
        "send_bw -q 2 -b -D 1 -s 4096",
        "read_lat -D 1",
        "send_bw -D 1 --no-rotate",
    ] {
        let value = local_json(line);
        assert!(
            value["results"][0]["iterations"].as_u64().unwrap() > 0,
            "{line}"
        );
    }
}

#[test]
fn a_server_and_a_client_print_the_same_rows() {
    let server = Server::start("send_bw --json /dev/null");
    let (code, stdout, stderr) = parts(server.client("send_bw -s 4K -n 100").output().unwrap());
    assert_eq!(code, Some(0), "{stderr}");
    assert!(
        stdout.contains(
            "#bytes     #iterations    BW peak[MiB/sec]    BW average[MiB/sec]   MsgRate[Mpps]"
        ),
        "{stdout}"
    );
    let row = |text: &str| {
        text.lines()
            .find(|line| line.starts_with(" 4096"))
            .map(String::from)
    };
    let (code, served, stderr) = server.end();
    assert_eq!(code, Some(0), "{stderr}");
    assert!(
        row(&stdout).is_some() && row(&stdout) == row(&served),
        "{stdout}{served}"
    );
}

#[test]
fn options_that_differ_are_refused_by_name_on_both_sides() {
    for (servers, clients, name) in [
        (
            "send_bw -s 1K",
            "send_bw -s 4K",
            "--size: the server was started with 1024, the client with 4096",
        ),
        (
            "send_bw",
            "write_bw",
            "the test: the server was started with send_bw, the client with write_bw",
        ),
        ("send_bw -b", "send_bw", "--bidirectional"),
    ] {
        let server = Server::start(servers);
        let (code, _, stderr) = parts(server.client(clients).output().unwrap());
        assert!(code == Some(2) && stderr.contains(name), "{stderr}");
        let (code, _, stderr) = server.end();
        assert!(code == Some(2) && stderr.contains(name), "{stderr}");
    }
}

#[test]
fn strangers_do_not_end_a_server_and_a_killed_client_does() {
    let server = Server::start("send_bw");
    let mut unknown = TcpStream::connect(("127.0.0.1", server.1)).unwrap();
    unknown.write_all(b"GET / HTTP/1.1\r\n\r\n").unwrap();
    drop(TcpStream::connect(("127.0.0.1", server.1)).unwrap());
    let mut client = Child::start(&mut server.client("send_bw -D 60"));
    // It has begun to measure when its header is there.
    client.wait_line("#bytes");
    drop(client);
    let (code, _, stderr) = server.end();
    assert_eq!(code, Some(1), "{stderr}");
    assert!(
        stderr.contains("ignored") && stderr.contains("the other side is gone"),
        "{stderr}"
    );
}

#[test]
fn atomic_operations_change_the_word_once_each() {
    for kind in ["FETCH_AND_ADD", "CMP_AND_SWAP"] {
        for test in ["atomic_lat -n 100", "atomic_bw -n 300 -q 2 -l 4"] {
            // 100 operations in a row are looked at first: each has to find what the one before has
            // left.
            for transport in ["shm", "tcp"] {
                let value = local_json(&format!(
                    "{test} -A {kind} --transport {transport} --no-rotate"
                ));
                assert_eq!(value["results"][0]["wrong"], 0, "{test} {kind} {transport}");
                assert_eq!(value["results"][0]["bytes"], 8, "{test} {kind} {transport}");
            }
        }
    }
}

#[test]
fn lists_of_posts_move_every_message_too() {
    for line in [
        "write_bw -s 4K -n 101 -l 8 -t 16",
        "read_bw -s 4K -n 101 -q 3 -l 16 -t 16",
        "send_bw -s 4K -n 7 -l 5 -t 5 -N",
    ] {
        let value = local_json(line);
        let (row, streams) = (&value["results"][0], value["qps"].as_u64().unwrap());
        let asked: u64 = (line.split("-n ").nth(1).unwrap())
            .split(' ')
            .next()
            .unwrap()
            .parse()
            .unwrap();
        assert_eq!(row["iterations"], asked * streams, "{line}: {row}");
        assert_eq!(row["wrong"], 0, "{line}: {row}");
        assert!(row["bw_achievable"].is_null(), "{line}: {row}");
        assert_eq!(row["bw_peak"].is_null(), line.contains("-N"), "{line}");
    }
}

/// The side that is written to, or read from, hears nothing of that: it would take the other one
/// for dead.
fn check_long_durations(more: &str) {
    for test in ["write_bw", "read_bw", "read_lat", "atomic_lat"] {
        let line = format!("perf {test} -D 3 --timeout 2 --local --no-rotate --json - {more}");
        let (code, stdout, stderr) = run(&line);
        assert_eq!(code, Some(0), "{line}: {stderr}");
        let value: Value = serde_json::from_str(&stdout).unwrap();
        assert!(
            value["results"][0]["iterations"].as_u64().unwrap() > 0,
            "{line}"
        );
    }
}

#[test]
fn a_duration_may_be_longer_than_the_timeout() {
    check_long_durations("--transport shm");
    check_long_durations("--transport tcp");
}

/// Soft-RoCE, if there is one here (`tools/rdma-vm run -- TEST` has it), or soft-verbs, if it takes
/// the place of libibverbs.
fn device() -> Option<String> {
    let library = std::env::var("LINERATE_IBVERBS_LIB").unwrap_or_default();
    if library.ends_with("libsoft_verbs.so") {
        return Some("soft0".into());
    }
    let names = std::fs::read_dir("/sys/class/infiniband").ok()?;
    let mut names = names.filter_map(|entry| entry.ok()?.file_name().into_string().ok());
    names.find(|name| name.starts_with("rxe"))
}

#[test]
fn everything_is_measured_over_verbs_where_a_device_is() {
    let Some(device) = device() else {
        println!(
            "skipped: perf over verbs: no rxe device (tools/rdma-vm run), and LINERATE_IBVERBS_LIB is not soft-verbs"
        );
        return;
    };
    for line in [
        "write_bw -s 64K -n 40 -q 2",
        "write_bw -s 1M -n 8 -b -m 1024 -l 2",
        "read_bw -s 5000 -n 40 -I 0",
        "send_bw -s 9000 -n 40 -Q 1",
        "write_lat -s 8 -n 50",
        "read_lat -n 50",
        "send_lat -n 50",
        "atomic_lat -n 50",
        "atomic_bw -n 50 -A CMP_AND_SWAP",
    ] {
        let value = local_json(&format!("{line} -d {device} -x 1 --no-rotate"));
        assert_eq!(value["transport"], "verbs", "{line}");
        assert_eq!(value["results"][0]["wrong"], 0, "{line}");
        let port = &value["ports"][0];
        assert_eq!(
            (port["device"].as_str(), port["gid_index"].as_u64()),
            (Some(&*device), Some(1))
        );
        let asked = if line.contains("-m 1024") { 1024 } else { 4096 };
        assert_eq!(port["mtu"], asked, "{line}");
        assert_eq!(
            port["queue_pairs"],
            if line.contains("-q 2") { 2 } else { 1 }
        );
        assert_eq!(port["inline_bytes"] == 0, line.contains("-I 0"), "{line}");
        assert!(value["results"][0]["bw_achievable"].is_null(), "{line}");
        if line.contains("write_bw") {
            assert_eq!(value["counts"]["copied bytes"], 0, "{line}");
        }
    }
    check_long_durations(&format!("-d {device} -x 1"));
    let server = Server::start(&format!("write_bw -d {device} -m 1024"));
    let client = format!("write_bw -d {device} -m 4096");
    for (code, _, stderr) in [
        parts(server.client(&client).output().unwrap()),
        server.end(),
    ] {
        assert_eq!(code, Some(2), "{stderr}");
        assert!(
            stderr.contains("--mtu: the server was started with 1024"),
            "{stderr}"
        );
    }
}

#[test]
fn bounds_decide_the_exit_code() {
    for (line, code, expected) in [
        ("write_bw --local -n 10 --min-bw 0.000001", 0, ""),
        (
            "write_bw --local -n 10 --min-bw 100000",
            1,
            "below --min-bw 100000",
        ),
        ("read_lat --local -n 10 --max-p99 10000000", 0, ""),
        (
            "read_lat --local -n 10 --max-p99 0.000001",
            1,
            "above --max-p99 0.000001",
        ),
        ("read_lat --local -b", 2, "--bidirectional is for bandwidth"),
        ("read_lat --local --json /nonexistent/x", 2, "--json"),
        ("read_lat --local -d no_such_device", 1, "unavailable"),
        (
            "read_lat --local -x 1 --transport tcp",
            2,
            "--gid-index (-x) is of RDMA devices",
        ),
        ("read_lat --local -R", 2, "--rdma_cm (-R) is not here"),
        (
            "read_lat --local --transport verbs:nothing0",
            1,
            "unavailable",
        ),
        ("read_lat --local --transport sim", 2, "sim"),
    ] {
        let (found, _, stderr) = run(&format!("perf {line}"));
        assert_eq!(found, Some(code), "{line}: {stderr}");
        assert!(stderr.contains(expected), "{line}: {stderr}");
    }
}

#[test]
fn everything_is_measured_over_tcp_too() {
    for line in [
        "write_bw -s 1M -n 20",
        "read_bw -s 100 -n 100 -q 3",
        "send_bw -b -s 9000 -n 40 -q 2",
        "write_lat -n 50",
        "write_lat -s 5000 -n 50",
        "read_lat -n 50",
        "send_lat -s 20K -n 50",
    ] {
        let value = local_json(&format!("{line} --transport tcp --no-rotate"));
        assert_eq!(value["transport"], "tcp", "{line}");
        assert_eq!(value["results"][0]["wrong"], 0, "{line}");
    }
}

#[test]
fn whoever_has_another_secret_is_not_served() {
    const SECRET: &str = "0123456789abcdef";
    let start = |line: &str, secret: &str| {
        let mut command = linerate(line);
        command.env("LINERATE_SECRET", secret);
        command
    };
    let server = Server::of(start("perf send_bw -p 0 --timeout 20", SECRET));
    let line = format!(
        "perf send_bw 127.0.0.1 -n 10 --transport tcp -p {}",
        server.1
    );
    for wrong in ["fedcba9876543210", ""] {
        let (code, _, stderr) = parts(start(&line, wrong).output().unwrap());
        assert!(
            code == Some(1) && stderr.contains("LINERATE_SECRET"),
            "{stderr}"
        );
    }
    let (code, _, stderr) = parts(start(&line, SECRET).output().unwrap());
    assert_eq!(code, Some(0), "{stderr}");
    let (code, _, stderr) = server.end();
    assert_eq!(
        (code, stderr.matches("ignored").count()),
        (Some(0), 2),
        "{stderr}"
    );
}

#[test]
fn a_mesh_measures_every_pair_and_draws_it() {
    let folder = scratch("mesh");
    let (json, svg) = (folder.join("mesh.json"), folder.join("mesh.svg"));
    let line = format!(
        "mesh --ranks 3 -n 20 -s 64K --timeout 20 --json {} --svg {}",
        json.display(),
        svg.display()
    );
    let (code, stdout, stderr) = run(&line);
    assert_eq!(code, Some(0), "{stderr}");
    assert!(
        stdout.contains("# latency of 8 B, us") && stdout.contains("slow"),
        "{stdout}"
    );
    let value: Value = serde_json::from_str(&std::fs::read_to_string(json).unwrap()).unwrap();
    for name in ["latency_us", "latency_p99_us", "bandwidth"] {
        for (from, row) in value[name].as_array().unwrap().iter().enumerate() {
            for (to, cell) in row.as_array().unwrap().iter().enumerate() {
                assert_eq!(
                    cell.as_f64().is_some_and(|v| v > 0.0),
                    from != to,
                    "{name} {from} {to}: {cell}"
                );
            }
        }
    }
    let drawing = std::fs::read_to_string(svg).unwrap();
    assert!(
        drawing.starts_with("<svg") && drawing.contains("3 ranks over shm"),
        "{drawing}"
    );
}

#[test]
fn a_mesh_names_pairs_below_the_bound_and_refuses_what_makes_no_sense() {
    let (code, _, stderr) = run("mesh --ranks 2 -n 5 -s 4K --min-bw 100000 --timeout 20");
    assert_eq!(code, Some(1), "{stderr}");
    assert!(
        stderr.contains("rank 0 to 1") && stderr.contains("rank 1 to 0"),
        "{stderr}"
    );
    for (line, expected) in [
        ("--ranks 1", "from 2 to"),
        ("-s 0", "--size is 0"),
        ("--slow 1", "above 1"),
        ("--svg - --json -", "one document"),
    ] {
        let (code, _, stderr) = run(&format!("mesh {line}"));
        assert!(
            code == Some(2) && stderr.contains(expected),
            "{line}: {stderr}"
        );
    }
}
