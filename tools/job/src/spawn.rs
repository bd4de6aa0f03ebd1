//! Ranks of this host that this binary starts: [`spawn_self`] for commands that are their own
//! ranks, [`supervise`] for other programs.
//!
//! How ranks end is in `process.rs`.

use crate::binding::{BIND, Bind};
use crate::ending::{FAILED, USAGE};
use crate::output;
pub use crate::process::Endings;
use crate::process::Supervisor;
use signal_hook::consts::signal::{SIGHUP, SIGINT, SIGTERM};
use std::ffi::{OsStr, OsString};
use std::io;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// Tells a rank who its parent is.
const PARENT: &str = "LINERATE_PARENT";
/// Variables that only a rank of this binary reads. A program that a rank becomes does not get
/// them: what the program starts has another parent, and inherits the cores.
pub const OWN_VARIABLES: [&str; 2] = [PARENT, BIND];
/// How long ranks may go on after one has failed, to report what they saw.
const GRACE_DEFAULT: Duration = Duration::from_secs(5);

/// Runs this very command once per rank and gives its exit code. It is 0 if no rank failed, 2 if
/// the first that failed calls it bad usage, 128 + the signal if a signal (SIGHUP, SIGINT, SIGTERM)
/// has asked the command to end, as shells expect, and else 1.
pub fn spawn_self(ranks: u32, bind: Bind) -> u8 {
    spawn_self_with(ranks, bind, &[])
}

/// Like [`spawn_self`], with more in the ranks' environment.
pub fn spawn_self_with(ranks: u32, bind: Bind, more: &[(&str, &OsStr)]) -> u8 {
    let arguments: Vec<OsString> = std::env::args_os().skip(1).collect();
    match supervise(
        (ranks, bind),
        &arguments,
        GRACE_DEFAULT,
        (Endings::OnlySignals, more),
    ) {
        0 => 0,
        code if code == i32::from(USAGE) => USAGE,
        code if [SIGHUP, SIGINT, SIGTERM].contains(&(code - 128)) => code as u8,
        _ => FAILED,
    }
}

/// In a rank that this binary has started: asks the kernel to kill it when its parent ends, however
/// that ends.
pub fn die_with_parent() {
    let Some(parent) = std::env::var_os(PARENT) else {
        return;
    };
    // Failure leaves a rank that outlives a killed parent; it still ends by its own timeout.
    let _ = rustix::process::set_parent_process_death_signal(Some(rustix::process::Signal::KILL));
    let now = rustix::process::getppid().map(|pid| pid.as_raw_nonzero().to_string());
    if now.as_deref().map(OsStr::new) != Some(&parent) {
        output::print_error("linerate: the process that started this rank has ended");
        std::process::exit(1);
    }
}

/// Runs this binary with `arguments` once per rank, with `more` in the ranks' environment, and
/// waits until all have ended. Gives the exit code of the first that failed, 128 + the signal if it
/// was killed, else 0. `grace` is how long the others may go on after a failure.
pub fn supervise(
    (ranks, bind): (u32, Bind),
    arguments: &[OsString],
    grace: Duration,
    (endings, more): (Endings, &[(&str, &OsStr)]),
) -> i32 {
    match try_supervise((ranks, bind), arguments, grace, (endings, more)) {
        Ok(code) => code,
        Err(error) => {
            let hint = match error.raw_os_error() == Some(rustix::io::Errno::MFILE.raw_os_error()) {
                true => "; raise the limit of descriptors with `ulimit -n`",
                false => "",
            };
            output::print_error(&format!(
                "linerate: cannot start {ranks} ranks: {error}{hint}"
            ));
            1
        }
    }
}

fn try_supervise(
    (ranks, bind): (u32, Bind),
    arguments: &[OsString],
    grace: Duration,
    (endings, more): (Endings, &[(&str, &OsStr)]),
) -> io::Result<i32> {
    let program = std::env::current_exe()?;
    let job = Job {
        ranks,
        bind,
        port: linerate::unstable::bootstrap::free_port().map_err(io::Error::other)?,
        name: job_name(),
        secret: secret()?,
    };
    // First, so that no rank ends unseen.
    let mut supervisor = Supervisor::new(grace, endings)?;
    for rank in 0..ranks {
        match spawn_rank(&program, arguments, rank, (&job, more)) {
            Ok(child) => supervisor.add(rank, child),
            Err(error) => {
                supervisor.abandon();
                return Err(error);
            }
        }
    }
    supervisor.run()
}

fn spawn_rank(
    program: &Path,
    arguments: &[OsString],
    rank: u32,
    (job, more): (&Job, &[(&str, &OsStr)]),
) -> io::Result<Child> {
    Command::new(program)
        .args(arguments)
        .envs(environment(rank, job))
        .envs(more.iter().copied())
        // A group of its own, so that what a rank starts can be ended with it.
        .process_group(0)
        .stdin(Stdio::null())
        .spawn()
}

/// What all ranks of a job have in common.
struct Job {
    ranks: u32,
    bind: Bind,
    port: u16,
    name: String,
    /// `None`: the environment of this command has one.
    secret: Option<String>,
}

/// What a rank finds in its environment: torchrun's names, and ours.
fn environment(rank: u32, job: &Job) -> Vec<(&'static str, String)> {
    let secret = job
        .secret
        .iter()
        .map(|secret| ("LINERATE_SECRET", secret.clone()));
    let common = [
        ("RANK", rank.to_string()),
        ("WORLD_SIZE", job.ranks.to_string()),
        ("LOCAL_RANK", rank.to_string()),
        ("LOCAL_WORLD_SIZE", job.ranks.to_string()),
        ("MASTER_ADDR", "127.0.0.1".into()),
        ("MASTER_PORT", job.port.to_string()),
        ("LINERATE_JOB", job.name.clone()),
        (BIND, job.bind.name().into()),
        (PARENT, std::process::id().to_string()),
    ];
    common.into_iter().chain(secret).collect()
}

/// A secret for the ranks of this job, unless they have one.
fn secret() -> io::Result<Option<String>> {
    let is_set = |name: &str| std::env::var_os(name).is_some_and(|text| !text.is_empty());
    if ["LINERATE_SECRET", "LINERATE_SECRET_FILE"]
        .into_iter()
        .any(is_set)
    {
        return Ok(None);
    }
    let fresh = linerate::unstable::bootstrap::fresh_secret();
    fresh.map(Some).map_err(|e| io::Error::other(e.to_string()))
}

/// A name that no other job of this host has: process ids are not reused within a nanosecond.
fn job_name() -> String {
    let now = SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .unwrap_or_default();
    format!("job-{:x}-{:x}", std::process::id(), now.as_nanos())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_rank_finds_the_names_that_torchrun_sets() {
        let job = Job {
            ranks: 3,
            bind: Bind::Cores,
            port: 4000,
            name: "job".into(),
            secret: Some("0123".into()),
        };
        let environment = environment(1, &job);
        let value = |name: &str| {
            let found = environment.iter().find(|(key, _)| *key == name);
            found.map(|(_, value)| value.as_str())
        };
        assert_eq!(value("RANK"), Some("1"));
        assert_eq!(value("LOCAL_RANK"), Some("1"));
        assert_eq!(value("WORLD_SIZE"), Some("3"));
        assert_eq!(value("LOCAL_WORLD_SIZE"), Some("3"));
        assert_eq!(value("MASTER_ADDR"), Some("127.0.0.1"));
        assert_eq!(value("MASTER_PORT"), Some("4000"));
        assert_eq!(value("LINERATE_JOB"), Some("job"));
        assert_eq!(value("LINERATE_BIND"), Some("cores"));
        assert_eq!(value("LINERATE_SECRET"), Some("0123"));
    }

    #[test]
    fn jobs_have_different_names() {
        assert_ne!(job_name(), job_name());
    }
}
