//! The `linerate` command from outside: exit codes, texts, processes.

use super::start::{linerate, parts, run, scratch};
use linerate_children::{Child, is_running, wait_for};
use rustix::process::Signal;
use serde_json::Value;

/// `launch` of a shell script on `ranks` ranks.
fn launch(options: &str, script: &str) -> (Option<i32>, String, String) {
    let mut command = linerate(&format!("launch {options} --"));
    parts(Child::start(command.args(["sh", "-c", script])).end())
}

fn bench_json(line: &str) -> Value {
    let (code, stdout, stderr) = run(&format!("bench {line} --json - --timeout 20"));
    assert_eq!(code, Some(0), "{line}\n{stderr}");
    serde_json::from_str(&stdout).unwrap_or_else(|e| panic!("{line}: {e}\n{stdout}"))
}

#[test]
fn without_arguments_it_explains_itself_and_fails() {
    let (code, _, stderr) = run("");
    assert_eq!(code, Some(2));
    for command in ["bench", "launch", "info"] {
        assert!(stderr.contains(command), "{stderr}");
    }
    assert!(!stderr.contains("rank-exec"), "{stderr}");
}

#[test]
fn the_version_is_told() {
    let (code, stdout, _) = run("--version");
    assert_eq!(code, Some(0));
    assert_eq!(stdout, format!("linerate {}\n", env!("CARGO_PKG_VERSION")));
}

#[test]
fn bad_usage_is_code_2_and_says_what_is_allowed() {
    for (line, expected) in [
        ("bench", "COLLECTIVE"),
        ("bench allreduc", "reduce-scatter"),
        ("bench allreduce -o bitand", "u64"),
        ("bench allreduce -b 1M -e 1K", "above --maxbytes"),
        ("bench allreduce -f 1", "at least 2"),
        ("bench broadcast --ranks 3 -r 3", "0 to 2"),
        ("bench allreduce --transport ether", "auto shm tcp"),
        ("bench allreduce --algo unheard-of", "ring"),
        ("bench allreduce --timeout never", "--timeout"),
        ("launch -n 0 -- true", "1..="),
        ("launch -- true", "--ranks"),
        ("launch -n 1", "CMD"),
        ("fly", "unrecognized"),
    ] {
        let (code, stdout, stderr) = run(line);
        assert_eq!(code, Some(2), "{line}: {stderr}");
        assert!(stderr.contains(expected), "{line}: {stderr}");
        assert_eq!(stdout, "", "{line}");
    }
}

#[test]
fn a_bad_environment_is_bad_usage_too() {
    let mut command = linerate("bench allreduce");
    let (code, _, stderr) = parts(command.env("LINERATE_CHUNK_BYTES", "7").output().unwrap());
    assert_eq!(code, Some(2));
    assert!(stderr.contains("LINERATE_CHUNK_BYTES"), "{stderr}");
}

#[test]
fn a_transport_that_is_not_built_fails_before_ranks_start() {
    for name in ["verbs:nothing0", "ofi:nosuch"] {
        let (code, _, stderr) = run(&format!("bench allreduce --transport {name}"));
        assert_eq!(code, Some(1), "{stderr}");
        assert!(stderr.contains("is unavailable"), "{stderr}");
        assert_eq!(stderr.lines().count(), 1, "{stderr}");
    }
}

#[test]
fn what_is_required_and_not_there_is_refused_on_every_rank() {
    for line in [
        "bench allreduce --transport tcp",
        "mesh --ranks 2 --transport shm",
        "perf send_lat --local --transport tcp",
    ] {
        let (code, _, stderr) = run(&format!("{line} --require rdma"));
        assert_eq!(code, Some(1), "{line}: {stderr}");
        let wanted = "LINERATE_REQUIRE=rdma (--require rdma) was asked for, and";
        assert!(stderr.contains(wanted), "{line}: {stderr}");
    }
    let (_, _, stderr) = run("bench allreduce --transport tcp --require rdma");
    assert!(
        ["rank 0: ", "rank 1: "]
            .iter()
            .all(|rank| stderr.contains(rank)),
        "{stderr}"
    );
    let mut command = linerate("bench allreduce --transport ofi");
    let (code, _, stderr) = parts(
        command
            .env("LINERATE_FABRIC_LIB", "/nonexistent")
            .output()
            .unwrap(),
    );
    assert_eq!(code, Some(1), "{stderr}");
    assert!(
        stderr.contains("/nonexistent") && stderr.contains("LINERATE_FABRIC_LIB"),
        "{stderr}"
    );
}

#[test]
fn info_tells_as_text_and_as_json() {
    let (code, stdout, _) = run("info");
    assert_eq!(code, Some(0));
    assert!(stdout.contains("transport shm") && stdout.contains("LINERATE_TIMEOUT"));
    let (code, stdout, _) = run("info --json");
    assert_eq!(code, Some(0));
    let info: Value = serde_json::from_str(&stdout).unwrap();
    assert_eq!(info["version"], env!("CARGO_PKG_VERSION"));
    assert!(info["cpu"]["cores"].as_u64().unwrap() > 0);
    assert!(info["transports"].as_array().unwrap().len() >= 4);
}

#[test]
fn info_names_a_setting_that_would_be_refused() {
    let mut command = linerate("info");
    let (code, stdout, stderr) = parts(command.env("LINERATE_TIMEOUT", "0").output().unwrap());
    assert_eq!(code, Some(1));
    assert!(stderr.contains("LINERATE_TIMEOUT is '0'"), "{stderr}");
    assert!(stdout.contains("transport shm"));
}

#[test]
fn a_launched_rank_finds_its_place_in_the_environment() {
    let script = "echo $RANK/$WORLD_SIZE $LOCAL_RANK/$LOCAL_WORLD_SIZE $MASTER_ADDR:$MASTER_PORT $LINERATE_JOB [$LINERATE_PARENT]";
    let (code, stdout, _) = launch("-n 3", script);
    assert_eq!(code, Some(0));
    let mut lines: Vec<Vec<&str>> = stdout.lines().map(|l| l.split(' ').collect()).collect();
    lines.sort();
    assert_eq!(lines.len(), 3);
    for (rank, words) in lines.iter().enumerate() {
        assert_eq!(words[0], format!("{rank}/3"));
        assert_eq!(words[1], format!("{rank}/3"));
        assert!(words[2].starts_with("127.0.0.1:") && words[2] != "127.0.0.1:0");
        assert_eq!((words[2], words[3]), (lines[0][2], lines[0][3]), "one job");
        assert_eq!(words[4], "[]", "what a rank starts has another parent");
    }
    let (_, again, _) = launch("-n 1", "echo $LINERATE_JOB");
    assert_ne!(again.trim(), lines[0][3], "two jobs");
}

#[test]
fn arguments_reach_the_program_as_they_are() {
    let mut command = linerate("launch -n 1 -- printf %s|");
    let output = command.args(["a b", "--ranks", "-n", ""]).output().unwrap();
    assert_eq!(String::from_utf8_lossy(&output.stdout), "a b|--ranks|-n||");
}

#[test]
fn the_first_failure_is_the_exit_code() {
    let script = "[ $RANK = 1 ] && exit 7; sleep 2; exit 3";
    let (code, _, stderr) = launch("-n 3 --grace 60", script);
    assert_eq!(code, Some(7));
    assert!(stderr.contains("rank 1 exited with code 7"), "{stderr}");
    assert_eq!(stderr.lines().count(), 1, "{stderr}");
}

#[test]
fn death_by_a_signal_is_128_and_the_signal() {
    let (code, _, stderr) = launch("-n 2 --grace 0", "[ $RANK = 0 ] && kill -9 $$; sleep 60");
    assert_eq!(code, Some(137));
    assert!(stderr.contains("rank 0 was killed by signal 9"), "{stderr}");
}

#[test]
fn ranks_that_go_on_after_a_failure_are_terminated() {
    let (code, _, _) = launch("-n 3 --grace 0.2", "[ $RANK = 2 ] && exit 5; sleep 1000");
    assert_eq!(code, Some(5));
}

#[test]
fn ranks_that_ignore_termination_are_killed_with_all_they_started() {
    let folder = scratch("stubborn");
    let script = format!(
        "[ $RANK = 0 ] && {{ while [ ! -s {0}/pid ]; do sleep 0.01; done; exit 4; }}
         trap '' TERM; sleep 60 & echo $! > {0}/new; mv {0}/new {0}/pid; while :; do sleep 1; done",
        folder.display()
    );
    let (code, _, _) = launch("-n 2 --grace 0", &script);
    assert_eq!(code, Some(4));
    let pid = std::fs::read_to_string(folder.join("pid")).unwrap();
    wait_for("the end of the grandchild", || {
        !is_running(pid.trim().parse().unwrap())
    });
}

#[test]
fn what_a_rank_leaves_behind_ends_with_it() {
    let (code, stdout, _) = launch("-n 1", "sleep 60 >/dev/null 2>&1 & echo $!");
    assert_eq!(code, Some(0));
    wait_for("the end of the grandchild", || {
        !is_running(stdout.trim().parse().unwrap())
    });
}

#[test]
fn a_program_that_does_not_exist_is_127() {
    let (code, _, stderr) = run("launch -n 4 -- /no/such/program");
    assert_eq!(code, Some(127));
    assert!(stderr.contains("/no/such/program: there is no such program"));
    assert_eq!(stderr.lines().count(), 1, "{stderr}");
    assert_eq!(run("launch -n 1 -- no-such-program").0, Some(127));
    assert_eq!(run("launch -n 1 -- /etc/passwd").0, Some(126));
}

/// Starts two ranks that say their process ids and then sleep; gives the launcher and the ids.
fn start_sleepers() -> (Child, [u32; 2]) {
    let mut command = linerate("launch -n 2 -- sh -c");
    let mut launcher = Child::start(command.arg("echo PID $$; exec sleep 60"));
    let ranks = [(); 2].map(|()| {
        let line = launcher.wait_line("PID ");
        line.split("PID ").nth(1).unwrap().trim().parse().unwrap()
    });
    (launcher, ranks)
}

#[test]
fn an_interrupt_reaches_the_ranks() {
    let (launcher, ranks) = start_sleepers();
    launcher.signal(Signal::TERM);
    assert_eq!(launcher.end().status.code(), Some(128 + 15));
    assert!(ranks.iter().all(|&pid| !is_running(pid)));
}

#[test]
fn ranks_do_not_outlive_a_killed_launcher() {
    let (launcher, ranks) = start_sleepers();
    launcher.signal(Signal::KILL);
    drop(launcher);
    wait_for("the end of the ranks", || {
        ranks.iter().all(|&pid| !is_running(pid))
    });
}

#[test]
fn a_sweep_is_one_document_with_nothing_around_it() {
    let document = bench_json("allreduce -b 8 -e 1M --ranks 2 -n 20 -w 2");
    assert_eq!(document["ranks"], 2);
    assert_eq!(document["transport"], "shm");
    assert_eq!(document["version"], env!("CARGO_PKG_VERSION"));
    let results = document["results"].as_array().unwrap();
    assert_eq!(results.len(), 18 * 2);
    for result in results {
        assert_eq!(result["wrong"], 0, "{result}");
        let times = &result["time_us"];
        let time = |name: &str| times[name].as_f64().unwrap();
        assert!(0.0 < time("min") && time("min") <= time("p50"), "{result}");
        assert!(
            time("p50") <= time("p99") && time("p99") <= time("max"),
            "{result}"
        );
        assert_eq!(
            result["algbw"], result["busbw"],
            "two ranks have a factor of 1"
        );
    }
}

#[test]
fn every_collective_is_right_with_one_two_and_three_ranks() {
    for name in [
        "allreduce",
        "reduce-scatter",
        "all-gather",
        "all-gatherv",
        "broadcast",
        "reduce",
        "gather",
        "scatter",
        "all-to-all",
        "all-to-allv",
        "barrier",
        "sendrecv",
        "gatherv",
        "scatterv",
        "reduce-scatterv",
    ] {
        for ranks in 1..=3 {
            let line = format!(
                "{name} -b 0 -e 64K -f 8 --ranks {ranks} -n 2 -w 1 --no-rotate -r {}",
                ranks - 1
            );
            let document = bench_json(&line);
            let results = document["results"].as_array().unwrap();
            assert!(!results.is_empty());
            for result in results {
                assert_eq!(result["wrong"], 0, "{line}: {result}");
                assert_eq!(result["collective"], name);
            }
        }
    }
}

#[test]
fn every_type_and_operator_is_right() {
    let document =
        bench_json("allreduce -b 4000 -e 4000 --ranks 3 -n 1 -w 0 -d all -o all --no-rotate");
    let results = document["results"].as_array().unwrap();
    let (floats, integers, truth, complex) = (6 * 6, 8 * 8, 7, 2 * 3);
    assert_eq!(results.len(), (floats + integers + truth + complex) * 2);
    for result in results {
        assert_eq!(result["wrong"], 0, "{result}");
    }
}

#[test]
fn memory_of_the_caller_is_right_too() {
    for name in ["allreduce", "all-gather", "all-to-allv", "sendrecv"] {
        let document = bench_json(&format!(
            "{name} -b 8 -e 1M -f 16 -n 2 -w 1 --memory caller"
        ));
        for result in document["results"].as_array().unwrap() {
            assert_eq!(result["wrong"], 0, "{result}");
            assert_eq!(result["memory"], "caller");
        }
    }
}

#[test]
fn the_table_has_a_line_for_each_size_and_a_verdict() {
    let (code, stdout, stderr) = run("bench broadcast -b 8 -e 32 -n 5 -w 1 --stats --no-rotate");
    assert_eq!(code, Some(0), "{stderr}");
    let rows: Vec<&str> = stdout.lines().filter(|l| !l.starts_with('#')).collect();
    assert_eq!(rows.len(), 3, "{stdout}");
    assert_eq!(rows[0].split_whitespace().count(), 5 + 8 + 10, "{stdout}");
    assert!(stdout.contains("# Out of bounds values : 0 OK"), "{stdout}");
    assert!(stdout.contains("# Avg bus bandwidth    : "), "{stdout}");
    assert_eq!(stderr, "", "no bar where there is no terminal");
}

#[test]
fn a_bound_that_is_missed_is_code_1() {
    let line = "bench allreduce -b 8 -e 8 -n 5 -w 1 --no-rotate";
    for (bound, expected) in [
        ("--min-bw 1e9", "below --min-bw"),
        ("--max-p99 1e-6", "above --max-p99"),
    ] {
        let (code, stdout, stderr) = run(&format!("{line} {bound}"));
        assert_eq!(code, Some(1), "{stderr}");
        assert!(stderr.contains(expected), "{stderr}");
        assert!(stdout.contains("# Avg bus bandwidth"), "the table is whole");
    }
}

#[test]
fn a_document_goes_to_a_file_and_the_table_to_stdout() {
    let file = scratch("document").join("out.json");
    let line = format!(
        "bench reduce -b 8 -e 8 -n 2 -w 1 --no-rotate --json {}",
        file.display()
    );
    let (code, stdout, stderr) = run(&line);
    assert_eq!(code, Some(0), "{stderr}");
    assert!(stdout.contains("busbw"));
    let document: Value = serde_json::from_str(&std::fs::read_to_string(file).unwrap()).unwrap();
    assert_eq!(document["results"][0]["collective"], "reduce");
}

/// The cores that a process or a rank may use, as the kernel lists them: `0-3,8`.
fn cores_of(status: &str) -> Vec<usize> {
    let (_, rest) = status.split_once("Cpus_allowed_list:").expect(status);
    let list = rest.lines().next().unwrap().trim();
    let range = |part: &str| {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        first.parse::<usize>().unwrap()..=last.parse().unwrap()
    };
    list.split(',').flat_map(range).collect()
}

#[test]
fn ranks_share_the_cores_out() {
    let own = cores_of(&std::fs::read_to_string("/proc/self/status").unwrap());
    let of_ranks = |options: &str| -> Vec<Vec<usize>> {
        let (code, stdout, stderr) = launch(options, "grep Cpus_allowed_list: /proc/self/status");
        assert_eq!((code, &*stderr), (Some(0), ""), "{options}");
        stdout.lines().map(cores_of).collect()
    };
    let ranks = own.len().min(4);
    let shares = of_ranks(&format!("-n {ranks}"));
    let mut all = shares.concat();
    all.sort_unstable();
    assert_eq!(all, own, "each core belongs to one rank: {shares:?}");
    assert!(shares.iter().all(|share| share.len() >= own.len() / ranks));

    let unbound = of_ranks(&format!("-n {ranks} --bind none"));
    assert_eq!(unbound, vec![own.clone(); ranks]);
    let crowded = of_ranks(&format!("-n {}", 2 * own.len()));
    let mut all = crowded.concat();
    all.sort_unstable();
    let twice = own.iter().flat_map(|&core| [core, core]);
    assert_eq!(
        all,
        twice.collect::<Vec<_>>(),
        "two ranks to a core: {crowded:?}"
    );
    // A launcher inside a rank has only that rank's cores to give.
    let exe = env!("CARGO_BIN_EXE_linerate");
    let nested = launch(
        &format!("-n {ranks}"),
        &format!("{exe} launch -n 1 -- grep Cpus_allowed_list: /proc/self/status"),
    );
    let mut nested: Vec<_> = nested.1.lines().map(cores_of).collect();
    let mut shares = shares;
    nested.sort_unstable();
    shares.sort_unstable();
    assert_eq!(nested, shares);
}

#[test]
fn the_ranks_of_a_bench_are_bound_too() {
    let own = cores_of(&std::fs::read_to_string("/proc/self/status").unwrap());
    let line = "bench allreduce -b 8 -e 8 -n 1000000000 -c 0 --no-rotate";
    for (bind, is_bound) in [("cores", own.len() > 1), ("none", false)] {
        let bench = Child::start(&mut linerate(&format!("{line} --bind {bind}")));
        let children = format!("/proc/{0}/task/{0}/children", bench.id());
        let ranks = || -> Vec<String> {
            let text = std::fs::read_to_string(&children).unwrap_or_default();
            text.split_whitespace().map(String::from).collect()
        };
        let cores = |pid: &String| {
            let status = std::fs::read_to_string(format!("/proc/{pid}/status"));
            status.map_or_else(|_| Vec::new(), |text| cores_of(&text))
        };
        let as_expected = |cores: Vec<usize>| match is_bound {
            true => !cores.is_empty() && cores.len() < own.len(),
            false => cores == own,
        };
        wait_for("the binding of two ranks", || {
            let ranks = ranks();
            ranks.len() == 2 && ranks.iter().map(cores).all(as_expected)
        });
        drop(bench);
    }
}

#[test]
fn under_a_launcher_the_bench_is_a_rank() {
    let exe = env!("CARGO_BIN_EXE_linerate");
    let (code, stdout, stderr) = run(&format!(
        "launch -n 3 -- {exe} bench allreduce -b 8 -e 8 -n 2 -w 1 --no-rotate --json -"
    ));
    assert_eq!(code, Some(0), "{stderr}");
    let document: Value = serde_json::from_str(&stdout).unwrap();
    assert_eq!(document["ranks"], 3);
}
