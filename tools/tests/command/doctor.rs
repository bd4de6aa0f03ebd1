//! `doctor` finds faults that are put there on purpose: limits that anybody can lower, and networks
//! of a namespace's own.

use super::start::{linerate, parts, run};
use linerate_children::{Child, free_address, without_job};
use serde_json::Value;
use std::process::{Command, Stdio};

const LINERATE: &str = env!("CARGO_BIN_EXE_linerate");

/// Runs a shell script in which `$L` is the command; gives the exit code and the findings of
/// `doctor --json -`.
fn examine(mut shell: Command, script: &str) -> (Option<i32>, Vec<Value>) {
    let output = without_job(&mut shell)
        .arg(script)
        .env("L", LINERATE)
        .stdin(Stdio::null())
        .output()
        .unwrap();
    let (code, stdout, stderr) = parts(output);
    let document: Value =
        serde_json::from_str(&stdout).unwrap_or_else(|e| panic!("{e}\n{stdout}\n{stderr}"));
    let findings = document["findings"].as_array().unwrap().clone();
    let faults = findings.iter().filter(|f| f["level"] == "fault").count();
    assert_eq!(document["faults"], faults);
    assert_eq!(code, Some(i32::from(faults > 0)), "{stderr}");
    (code, findings)
}

fn sh() -> Command {
    let mut shell = Command::new("sh");
    shell.arg("-ec");
    shell
}

/// The fault with this check whose text has this in it, and a command against it with that.
fn fault<'a>(findings: &'a [Value], check: &str, text: &str, mend: &str) -> &'a Value {
    let has = |value: &Value, part: &str| value.as_str().is_some_and(|whole| whole.contains(part));
    findings
        .iter()
        .find(|f| {
            f["level"] == "fault"
                && f["check"] == check
                && has(&f["text"], text)
                && has(&f["mend"], mend)
        })
        .unwrap_or_else(|| panic!("no fault '{check}' with '{text}' and '{mend}': {findings:#?}"))
}

#[test]
fn three_faults_put_there_on_purpose_are_found_with_what_mends_them() {
    let healthy = "exec $L doctor --json -";
    let count = |findings: &[Value]| findings.iter().filter(|f| f["level"] == "fault").count();
    let (_, before) = examine(sh(), healthy);
    let (code, findings) = examine(
        sh(),
        "ulimit -l 0; ulimit -n 64; LINERATE_CHUNK_BYTES=7 exec $L doctor --json -",
    );
    assert_eq!(code, Some(1));
    fault(&findings, "memlock", "0 KiB", "ulimit -l unlimited");
    fault(&findings, "descriptors", "64 files", "ulimit -n");
    fault(
        &findings,
        "settings",
        "LINERATE_CHUNK_BYTES",
        "unset LINERATE_CHUNK_BYTES",
    );
    let is_there = |f: &&Value| {
        ["memlock", "descriptors", "settings"].contains(&f["check"].as_str().unwrap())
            && f["level"] == "fault"
    };
    let were_there = before.iter().filter(is_there).count();
    assert_eq!(
        count(&findings) - count(&before),
        3 - were_there,
        "{findings:#?}"
    );
}

#[test]
fn as_many_ranks_as_the_limits_do_not_hold_are_a_fault() {
    let (code, findings) = examine(sh(), "ulimit -n 300; exec $L doctor --ranks 200 --json -");
    assert_eq!(code, Some(1));
    fault(&findings, "descriptors", "rank 0 of 200 needs", "ulimit -n");
}

/// Whether this user may make networks of its own here.
fn has_namespaces() -> bool {
    let tried = Command::new("unshare")
        .args(["-n", "sh", "-c", "ip link add d0 type veth peer name e0"])
        .output();
    let may = tried.is_ok_and(|output| output.status.success());
    if !may {
        eprintln!(
            "skipped: no network namespace with interfaces of its own here (it takes root, unshare and iproute2)"
        );
    }
    may
}

fn in_namespace() -> Command {
    let mut command = Command::new("unshare");
    command.args(["-n", "sh", "-ec"]);
    command
}

#[test]
fn small_packets_a_loopback_that_is_down_and_a_silent_peer_are_found() {
    if !has_namespaces() {
        return;
    }
    // Whatever is sent to an address of nobody's is gone, as behind a firewall that drops.
    let script = "ip link add d0 type veth peer name e0; ip addr add 10.77.0.1/24 dev d0; \
        ip link set d0 mtu 900 up; ip link set e0 up; \
        ip neigh add 10.77.0.2 lladdr 02:00:00:00:00:77 dev d0 nud permanent; \
        exec $L doctor --peers 10.77.0.2:4000 --timeout 1 --json -";
    let (code, findings) = examine(in_namespace(), script);
    assert_eq!(code, Some(1));
    fault(
        &findings,
        "interface",
        "d0: packets of 900 bytes",
        "ip link set dev d0 mtu 1500",
    );
    fault(&findings, "interface", "lo is down", "ip link set lo up");
    let silent = fault(&findings, "peer", "does not answer", "--dport 4000");
    assert!(
        silent["text"].as_str().unwrap().contains("over d0"),
        "{silent}"
    );
}

#[test]
fn a_peer_that_no_route_leads_to_is_found() {
    if !has_namespaces() {
        return;
    }
    let (_, findings) = examine(
        in_namespace(),
        "ip link set lo up; exec $L doctor --peers 10.77.0.2 --json -",
    );
    fault(&findings, "peer", "cannot be reached", "ip route");
}

#[test]
fn a_path_that_narrows_behind_the_interface_is_found() {
    if !has_namespaces() {
        return;
    }
    // The far end of the pair takes packets of 1400 bytes, this one sends 9000.
    let script = "ip link add a0 type veth peer name b0; unshare -n sleep 20 & other=$!; \
        trap 'kill $other' EXIT; \
        while [ \"$(readlink /proc/$other/ns/net)\" = \"$(readlink /proc/self/ns/net)\" ]; do :; done; \
        ip link set b0 netns $other; \
        ip addr add 10.77.0.1/24 dev a0; ip link set a0 mtu 9000 up; ip link set lo up; \
        nsenter -t $other -n ip addr add 10.77.0.2/24 dev b0; nsenter -t $other -n ip link set b0 mtu 1400 up; \
        nsenter -t $other -n $L doctor --serve -p 4001 >/dev/null & served=$!; trap 'kill $other $served' EXIT; \
        i=0; until $L doctor --peers 10.77.0.2:4001 --timeout 1 2>&1 | grep -q 'free ports can be reached' || [ $i = 600 ]; do i=$((i+1)); sleep 0.1; done; \
        $L doctor --peers 10.77.0.2:4001 --timeout 2 --json -";
    let (code, findings) = examine(in_namespace(), script);
    assert_eq!(code, Some(1));
    fault(
        &findings,
        "path",
        "packets of 9000 leave here",
        "ip link set dev",
    );
}

#[test]
fn a_doctor_that_serves_tells_its_clock_and_another_port_says_that_nobody_listens() {
    let mut server = Child::start(&mut linerate("doctor --serve -p 0"));
    let first = server.wait_line(":");
    let port = first.rsplit(':').next().unwrap().trim();
    let closed = free_address().port();
    let (_, stdout, stderr) = run(&format!(
        "doctor --peers 127.0.0.1:{port},127.0.0.1:{closed},127.0.0.1:{port}"
    ));
    drop(server);
    for expected in [
        "answers",
        "this one (known to",
        "free ports can be reached",
        "nobody listens there",
    ] {
        assert!(stdout.contains(expected), "{expected}\n{stdout}{stderr}");
    }
    let clock = stdout
        .lines()
        .find(|line| line.contains("known to"))
        .unwrap();
    assert!(
        clock.starts_with("good") || clock.starts_with("warning"),
        "{clock}"
    );
}

#[test]
fn every_finding_that_is_not_good_says_what_mends_it() {
    let (_, findings) = examine(sh(), "exec $L doctor --ranks 4096 --json -");
    assert!(findings.len() > 10, "{findings:#?}");
    for finding in findings {
        assert_eq!(
            finding["mend"].is_null(),
            finding["level"] == "good",
            "{finding}"
        );
    }
}
