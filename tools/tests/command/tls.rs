//! `--tls`, `--integrity` and `--insecure` on the commands that open connections, from outside.

use super::start::{linerate, parts, run, serve};
use serde_json::Value;
use std::process::Command;

#[test]
fn perf_encrypts_and_checks_and_every_byte_is_right() {
    for (line, integrity) in [
        ("write_bw -s 1M -n 20 --tls", "off"),
        ("read_bw -s 100 -n 100 -q 3 --tls --integrity crc", "crc"),
        ("send_bw -b -s 9000 -n 40 -q 2 --tls --transport tcp", "off"),
        ("write_lat -n 50 --tls", "off"),
        ("read_lat -n 50 --tls", "off"),
        ("send_lat -s 20K -n 50 --tls --integrity off", "off"),
    ] {
        let (code, stdout, stderr) = run(&format!("perf {line} --local --json - --timeout 20"));
        assert_eq!(code, Some(0), "{line}\n{stderr}");
        let value: Value = serde_json::from_str(&stdout).unwrap();
        assert_eq!(
            (&value["transport"], &value["tls"]),
            (&"tcp".into(), &true.into()),
            "{line}"
        );
        assert_eq!(value["integrity"], integrity, "{line}");
        assert_eq!(value["results"][0]["wrong"], 0, "{line}");
        assert!(stderr.contains("Transport: tcp (TLS"), "{line}\n{stderr}");
    }
}

/// Exit codes and errors of a server and its client, started with these arguments.
fn both_sides(server: &str, client: &str, secret: &str) -> [(Option<i32>, String); 2] {
    let start = |line: &str| -> Command {
        let mut command = linerate(&format!(
            "perf write_bw -n 10 --no-rotate --timeout 20 {line}"
        ));
        command.env("LINERATE_SECRET", secret);
        command
    };
    let (serving, port) = serve(&mut start(&format!("-p 0 {server}")));
    let mut client = start(&format!("127.0.0.1 -p {port} {client}"));
    let (code, _, stderr) = parts(client.output().unwrap());
    let (served, _, told) = parts(serving.end());
    [(served, told), (code, stderr)]
}

#[test]
fn a_server_and_a_client_encrypt_both_or_refuse_and_name_both() {
    const SECRET: &str = "0123456789abcdef";
    for (server, client, named) in [
        ("--tls", "", "started with on, the client with off"),
        ("", "--tls", "started with off, the client with on"),
    ] {
        for (code, stderr) in both_sides(server, client, SECRET) {
            assert_eq!(code, Some(2), "{stderr}");
            assert!(
                stderr.contains("--tls (LINERATE_TLS)") && stderr.contains(named),
                "{stderr}"
            );
        }
    }
    for (code, stderr) in both_sides("--tls", "--tls --integrity crc", SECRET) {
        assert_eq!(code, Some(0), "{stderr}");
    }
    // Without a secret there is nothing to make keys of.
    for (code, stderr) in both_sides("--tls", "--tls", "") {
        assert_eq!(code, Some(1), "{stderr}");
        assert!(
            stderr.contains("--tls") && stderr.contains("LINERATE_SECRET"),
            "{stderr}"
        );
    }
}

#[test]
fn ranks_that_a_command_starts_are_connected_as_its_flags_say() {
    for line in [
        "bench allreduce -b 8 -e 1M -f 64 -n 3 --no-rotate --ranks 3 --transport tcp --tls",
        "bench all-to-all -b 64K -e 64K -n 3 --no-rotate --transport tcp --tls --integrity crc",
        "mesh --ranks 2 -n 5 -s 64K --transport tcp --tls",
        "replay --steps 1 --scale 0 --transport tcp --tls",
        "explain allreduce -b 8 -e 64K -f 512 -n 4 --transport tcp --tls",
    ] {
        let (code, stdout, stderr) = run(&format!("{line} --timeout 20"));
        assert_eq!(code, Some(0), "{line}\n{stdout}\n{stderr}");
    }
}

#[test]
fn launch_tells_the_program_what_its_flags_say() {
    let program = "sh -c env";
    let (code, stdout, _) = run(&format!("launch -n 1 --tls --integrity crc -- {program}"));
    assert_eq!(code, Some(0));
    let lines: Vec<&str> = stdout.lines().collect();
    assert!(lines.contains(&"LINERATE_TLS=on") && lines.contains(&"LINERATE_INTEGRITY=crc"));
    assert!(!stdout.contains("LINERATE_INSECURE"));
    let (_, stdout, _) = run(&format!("launch -n 1 --insecure -- {program}"));
    assert!(stdout.lines().any(|line| line == "LINERATE_INSECURE=1"));
    assert!(!stdout.contains("LINERATE_TLS"));
}

#[test]
fn what_makes_no_sense_is_refused_by_name() {
    for (line, expected) in [
        (
            "perf write_bw --local --tls --transport shm",
            "--tls encrypts connections",
        ),
        ("perf write_bw --local --integrity md5", "--integrity"),
        ("bench allreduce --integrity sha", "--integrity"),
    ] {
        let (code, _, stderr) = run(line);
        assert_eq!(code, Some(2), "{line}: {stderr}");
        assert!(stderr.contains(expected), "{line}: {stderr}");
    }
    let mut command = linerate("bench allreduce -b 8 -e 8");
    let (code, _, stderr) = parts(command.env("LINERATE_TLS", "1").output().unwrap());
    assert!(
        code == Some(2) && stderr.contains("LINERATE_TLS is '1': on or off"),
        "{stderr}"
    );
}
