//! `linerate launch -n N -- CMD`: local ranks of a program, as torchrun starts them, and
//! [`spawn_self`] for commands that are their own ranks.
//!
//! A rank begins as this binary (`rank-exec`), asks the kernel to die with its parent, and becomes
//! the program: what would otherwise need code between fork and exec. How ranks end is in
//! `process.rs`.

use crate::binding::{BIND, Bind};
use crate::flags::ConnectionArgs;
use crate::output;
use crate::process::{Endings, Supervisor};
use crate::settings::{FAILED, USAGE};
use clap::Args;
use signal_hook::consts::signal::{SIGHUP, SIGINT, SIGTERM};
use std::ffi::{OsStr, OsString};
use std::io;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitCode, Stdio};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// Name of the hidden command that a rank begins as.
pub const RANK_EXEC: &str = "rank-exec";
/// Tells a rank who its parent is.
const PARENT: &str = "LINERATE_PARENT";
/// How long ranks may go on after one has failed, to report what they saw.
const GRACE_DEFAULT: Duration = Duration::from_secs(5);
/// The shell's code for a program that does not exist.
const NOT_FOUND: u8 = 127;
/// The shell's code for a program that cannot be executed.
const NOT_EXECUTABLE: u8 = 126;

/// Arguments of `linerate launch`.
#[derive(Args, Clone, Debug)]
pub struct LaunchArgs {
    /// Local ranks
    #[arg(
        short = 'n',
        long = "ranks",
        value_name = "N",
        value_parser = clap::value_parser!(u32).range(1..=i64::from(linerate::unstable::limits::RANKS_MAX))
    )]
    ranks: u32,

    /// cores: each rank gets its own share of the cores that launch may use; where ranks are more,
    /// each core gets equally many. none: the kernel places them
    #[arg(long, value_enum, default_value_t = Bind::Cores)]
    bind: Bind,

    #[command(flatten)]
    connections: ConnectionArgs,

    /// How long the other ranks may go on after one has failed or the launcher was interrupted
    #[arg(long, value_name = "SECONDS", default_value = "5", value_parser = parse_seconds)]
    grace: Duration,

    /// The program and its arguments; its stdin is empty
    #[arg(
        trailing_var_arg = true,
        allow_hyphen_values = true,
        required = true,
        value_name = "CMD"
    )]
    command: Vec<OsString>,
}

/// Arguments of `linerate rank-exec`.
#[derive(Args, Clone, Debug)]
pub struct RankExecArgs {
    #[arg(trailing_var_arg = true, allow_hyphen_values = true, required = true)]
    command: Vec<OsString>,
}

/// Runs the ranks; the exit code is that of the first one that failed, 128 + the signal if it was
/// killed.
pub fn run(args: &LaunchArgs) -> ExitCode {
    let search_path = std::env::var_os("PATH").unwrap_or_default();
    if let Err((code, text)) = find_program(&args.command[0], &search_path) {
        output::print_error(&format!("linerate launch: {text}"));
        return ExitCode::from(code);
    }
    let mut arguments = vec![OsString::from(RANK_EXEC), OsString::from("--")];
    arguments.extend(args.command.iter().cloned());
    let code = supervise(
        (args.ranks, args.bind),
        &arguments,
        args.grace,
        (Endings::Told, &args.connections.variables()),
    );
    ExitCode::from(u8::try_from(code).unwrap_or(1))
}

/// Runs this very command once per rank; gives its exit code: 0 if no rank failed, 2 if the first
/// that did calls it bad usage, 128 + the signal if somebody has asked it to end (SIGHUP, SIGINT,
/// SIGTERM), as shells expect, else 1.
pub fn spawn_self(ranks: u32, bind: Bind) -> u8 {
    spawn_self_with(ranks, bind, &[])
}

/// The same, with more in the ranks' environment.
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

/// Becomes the program; only comes back if that fails.
pub fn exec(args: &RankExecArgs) -> ExitCode {
    let program = &args.command[0];
    // What the program starts has another parent, and the cores already.
    let error = Command::new(program)
        .args(&args.command[1..])
        .env_remove(PARENT)
        .env_remove(BIND)
        .exec();
    let shown = program.to_string_lossy();
    let has_file = error.kind() == io::ErrorKind::NotFound && Path::new(program).exists();
    match has_file {
        true => output::print_error(&format!(
            "linerate launch: {shown}: the file is there; what is not is the interpreter that its first line (#!) or its header names"
        )),
        false => output::print_error(&format!("linerate launch: {shown}: {error}")),
    }
    ExitCode::from(match error.kind() {
        io::ErrorKind::NotFound => NOT_FOUND,
        _ => NOT_EXECUTABLE,
    })
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

fn supervise(
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
        port: free_port()?,
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
    /// `None`: anyone who started this command has given one.
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

/// A port that was free a moment ago. Another process can take it before rank 0 does; rank 0 then
/// says so.
fn free_port() -> io::Result<u16> {
    let listener = std::net::TcpListener::bind(("127.0.0.1", 0))?;
    Ok(listener.local_addr()?.port())
}

/// Unlike that of any other job of this host: process ids are not reused within a nanosecond.
fn job_name() -> String {
    let now = SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .unwrap_or_default();
    format!("job-{:x}-{:x}", std::process::id(), now.as_nanos())
}

/// Where the program is, as a shell would look for it; else the exit code and the text.
fn find_program(name: &OsStr, search_path: &OsStr) -> Result<PathBuf, (u8, String)> {
    let shown = name.to_string_lossy();
    let is_path = Path::new(name).components().count() > 1 || shown.contains('/');
    let candidates: Vec<PathBuf> = if is_path {
        vec![PathBuf::from(name)]
    } else {
        std::env::split_paths(search_path)
            .map(|folder| folder.join(name))
            .collect()
    };
    let files: Vec<PathBuf> = candidates.into_iter().filter(|p| p.is_file()).collect();
    if files.is_empty() {
        let place = if is_path { "" } else { " in PATH" };
        return Err((
            NOT_FOUND,
            format!("{shown}: there is no such program{place}"),
        ));
    }
    let is_executable =
        |path: &PathBuf| rustix::fs::access(path, rustix::fs::Access::EXEC_OK).is_ok();
    files.into_iter().find(is_executable).ok_or_else(|| {
        (
            NOT_EXECUTABLE,
            format!("{shown}: the file is not executable"),
        )
    })
}

fn parse_seconds(text: &str) -> Result<Duration, String> {
    let seconds = text.parse::<f64>().ok();
    seconds
        .filter(|s| (0.0..=1e9).contains(s))
        .map(Duration::from_secs_f64)
        .ok_or_else(|| format!("'{text}': seconds from 0 to 1e9, such as 2.5"))
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
    fn a_program_is_looked_for_as_a_shell_does() {
        let path = OsStr::new("/nonexistent:/bin:/usr/bin");
        let find = |name: &str| find_program(OsStr::new(name), path);
        assert!(find("sh").unwrap().ends_with("sh"));
        assert!(find("/bin/sh").is_ok());
        assert_eq!(find("no-such-program").unwrap_err().0, 127);
        assert!(find("no-such-program").unwrap_err().1.contains("in PATH"));
        assert_eq!(find("/no/such/program").unwrap_err().0, 127);
        assert_eq!(find("/etc/passwd").unwrap_err().0, 126);
    }

    #[test]
    fn jobs_have_different_names() {
        assert_ne!(job_name(), job_name());
    }

    #[test]
    fn a_grace_is_a_number_of_seconds() {
        assert_eq!(parse_seconds("0.5"), Ok(Duration::from_millis(500)));
        assert!(parse_seconds("-1").is_err() && parse_seconds("nan").is_err());
    }
}
