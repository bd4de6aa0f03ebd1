//! The launchers that people use, for real: mpirun of Open MPI and of MPICH, torchrun, srun, each
//! starting `linerate bench`. Each way twice: as the ranks of one host meet by themselves, and by
//! what the launcher offers to ranks of several hosts. Where a launcher is missing, the test says
//! that it was skipped, and passes.

use super::slurm::Slurm;
use super::start::{linerate, parts, scratch};
use linerate_children::{Child, free_address, without_job};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

const BENCH: [&str; 12] = [
    "bench",
    "allreduce",
    "--no-rotate",
    "-b",
    "8",
    "-e",
    "1M",
    "-n",
    "2",
    "-w",
    "1",
    "--timeout=60",
];

/// A program of the search path.
fn find(name: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH")?;
    let found = std::env::split_paths(&path)
        .map(|folder| folder.join(name))
        .find(|p| p.is_file());
    if found.is_none() {
        eprintln!("skipped: {name} is not installed");
    }
    found
}

/// Runs a launcher with the bench as its program; checks that one job of four ranks ran and was
/// right, and gives what it said.
fn check_bench(mut launcher: Command, more: &[(&str, &str)]) -> String {
    without_job(&mut launcher);
    launcher.arg(env!("CARGO_BIN_EXE_linerate")).args(BENCH);
    launcher
        .envs(more.iter().copied())
        .env("LINERATE_DEBUG", "info")
        .stdin(Stdio::null());
    let (code, stdout, stderr) = parts(launcher.output().unwrap());
    let text = format!("{launcher:?} {more:?}\n{stdout}\n{stderr}");
    assert_eq!(code, Some(0), "{text}");
    assert_eq!(stdout.matches("ranks: 4 ").count(), 1, "{text}");
    assert!(
        stdout.contains("1048576") && stdout.contains("Out of bounds values : 0 OK"),
        "{text}"
    );
    text
}

/// By themselves, and by what the launcher offers.
fn check_both_ways(launcher: impl Fn() -> Command, name: &str) {
    let text = check_bench(launcher(), &[]);
    assert!(text.contains(&format!("rank 0 of 4 (by {name})")), "{text}");
    let offered = [
        ("LINERATE_RENDEZVOUS", "launcher"),
        ("LINERATE_TIMEOUT", "60"),
    ];
    let text = check_bench(launcher(), &offered);
    assert!(text.contains("it listens on 127.0.0.1:"), "{text}");
    let folder = scratch(&format!("launchers-{}", name.replace(' ', "-")));
    let explicit = format!("file://{}", folder.display());
    let text = check_bench(launcher(), &[("LINERATE_RENDEZVOUS", &explicit)]);
    assert!(text.contains("it listens on"), "{text}");
}

#[test]
fn mpirun_of_open_mpi_starts_a_bench() {
    let Some(mpirun) = find("mpirun.openmpi") else {
        return;
    };
    let launcher = || {
        let mut command = Command::new(&mpirun);
        command.args(["--oversubscribe", "-n", "4"]);
        if rustix::process::geteuid().is_root() {
            command.arg("--allow-run-as-root");
        }
        command
    };
    check_both_ways(launcher, "Open MPI");
    // Without the library there is no address, and the error says what gives one.
    let mut command = launcher();
    command.arg(env!("CARGO_BIN_EXE_linerate")).args(BENCH);
    command
        .env("LINERATE_RENDEZVOUS", "launcher")
        .env("LINERATE_PMIX_LIB", "/nonexistent/libpmix.so");
    let (code, _, stderr) = parts(command.output().unwrap());
    assert_ne!(code, Some(0), "{stderr}");
    for word in [
        "PMIx",
        "/nonexistent/libpmix.so",
        "tcp://HOST:PORT",
        "file://FOLDER",
    ] {
        assert!(stderr.contains(word), "{word}: {stderr}");
    }
}

#[test]
fn mpiexec_of_mpich_starts_a_bench() {
    let Some(mpiexec) = find("mpiexec.hydra") else {
        return;
    };
    let launcher = || {
        let mut command = Command::new(&mpiexec);
        command.args(["-n", "4"]);
        command
    };
    check_both_ways(launcher, "MPICH");
}

#[test]
fn torchrun_starts_a_bench() {
    let Some(torchrun) = find("torchrun") else {
        return;
    };
    let logs = scratch("launchers-torchrun");
    let help = Command::new(&torchrun).arg("--help").output().unwrap();
    let help = String::from_utf8_lossy(&help.stdout).into_owned();
    // Older ones spell it with underscores, and show a rank's output only with a folder for it.
    let spell = |word: &str| match help.contains(word) {
        true => word.to_string(),
        false => format!("--{}", word[2..].replace('-', "_")),
    };
    let port = free_address().port().to_string();
    let launcher = || {
        let mut command = Command::new(&torchrun);
        command.args(["-r", "1", "-t", "1"]);
        command.arg(spell("--log-dir")).arg(&logs);
        command.arg(spell("--no-python"));
        command.arg(spell("--nproc-per-node")).arg("4");
        command.arg(spell("--master-port")).arg(&port);
        command
    };
    check_bench(launcher(), &[]);
    // Its own store holds MASTER_PORT all the while.
    check_bench(launcher(), &[("LINERATE_RENDEZVOUS", "launcher")]);
    // Two agents with two ranks each, as on two hosts: ranks that do not know that they share one.
    let node = |rank: &str| {
        let mut command = Command::new(&torchrun);
        command.args(["-r", "1", "-t", "1"]);
        command.arg(spell("--log-dir")).arg(&logs);
        command.arg(spell("--no-python"));
        command.arg(spell("--nproc-per-node")).arg("2");
        command.arg(spell("--master-addr")).arg("127.0.0.1");
        command.arg(spell("--master-port")).arg(&port);
        command
            .args(["--nnodes", "2"])
            .arg(spell("--node-rank"))
            .arg(rank);
        command
    };
    let mut second = node("1");
    second.arg(env!("CARGO_BIN_EXE_linerate")).args(BENCH);
    let second = Child::start(&mut second);
    check_bench(node("0"), &[]);
    assert!(second.end().status.success());
}

#[test]
fn srun_starts_a_bench() {
    let slurm = match Slurm::start(&scratch("launchers-slurm")) {
        Ok(slurm) => slurm,
        Err(reason) => {
            eprintln!("skipped: {reason}");
            return;
        }
    };
    let launcher = || {
        let mut command = slurm.command("srun");
        command.args(["-n", "4", "--overcommit"]);
        command
    };
    check_both_ways(launcher, "Slurm");
    drop(slurm);
}

#[test]
fn a_rank_of_launch_has_a_secret_of_its_job_and_nobody_prints_it() {
    let secret = |line: &str| {
        let mut command = linerate(line);
        let (code, stdout, stderr) = parts(
            command
                .args(["sh", "-c", "echo $LINERATE_SECRET $LINERATE_INSECURE"])
                .output()
                .unwrap(),
        );
        assert_eq!(code, Some(0), "{stderr}");
        stdout
    };
    let first = secret("launch -n 2 --");
    let lines: Vec<&str> = first.lines().collect();
    assert!(
        lines.len() == 2 && lines[0] == lines[1] && lines[0].trim().len() == 64,
        "{first}"
    );
    assert_ne!(first, secret("launch -n 2 --"));
    assert!(secret("launch -n 1 --insecure --").trim().ends_with(" 1"));
    let mut command = linerate("info");
    let (_, stdout, _) = parts(
        command
            .env("LINERATE_SECRET", "0123456789abcdef")
            .output()
            .unwrap(),
    );
    assert!(!stdout.contains("0123456789abcdef"), "{stdout}");
}

/// For `slurm.rs`.
pub fn search(name: &str) -> Option<PathBuf> {
    let usual = ["/usr/sbin", "/usr/bin", "/usr/local/sbin", "/usr/local/bin"];
    usual
        .into_iter()
        .map(|folder| Path::new(folder).join(name))
        .find(|p| p.is_file())
}
