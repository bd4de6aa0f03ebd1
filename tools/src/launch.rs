//! `linerate launch -n N -- CMD`: local ranks of a program, as torchrun starts them.
//!
//! A rank begins as this binary (`rank-exec`), asks the kernel to die with its parent, and becomes
//! the program. Without that step, this would need code between fork and exec.

use clap::Args;
use linerate_job::binding::Bind;
use linerate_job::flags::ConnectionArgs;
use linerate_job::output;
use linerate_job::spawn::{Endings, OWN_VARIABLES, supervise};
use std::ffi::{OsStr, OsString};
use std::io;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};
use std::time::Duration;

/// Name of the hidden command that a rank begins as.
pub const RANK_EXEC: &str = "rank-exec";
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

/// Becomes the program; only comes back if that fails.
pub fn exec(args: &RankExecArgs) -> ExitCode {
    let program = &args.command[0];
    let mut command = Command::new(program);
    command.args(&args.command[1..]);
    for name in OWN_VARIABLES {
        command.env_remove(name);
    }
    let error = command.exec();
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
    fn a_grace_is_a_number_of_seconds() {
        assert_eq!(parse_seconds("0.5"), Ok(Duration::from_millis(500)));
        assert!(parse_seconds("-1").is_err() && parse_seconds("nan").is_err());
    }
}
