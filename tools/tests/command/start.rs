//! Starts the command as a user would, and gives exit code and texts.

use std::path::PathBuf;
use std::process::{Command, Output, Stdio};

/// The command, without what a launcher or a user may have set around the tests.
pub fn linerate(line: &str) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_linerate"));
    for (name, _) in std::env::vars() {
        let launchers = ["LINERATE_", "OMPI_", "PMI_", "PMIX_", "SLURM_"];
        let is_theirs = launchers.iter().any(|prefix| name.starts_with(prefix));
        if is_theirs || ["RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE"].contains(&&*name) {
            command.env_remove(name);
        }
    }
    command.args(line.split_whitespace()).stdin(Stdio::null());
    command
}

pub fn run(line: &str) -> (Option<i32>, String, String) {
    parts(linerate(line).output().unwrap())
}

pub fn parts(output: Output) -> (Option<i32>, String, String) {
    let text = |bytes| String::from_utf8(bytes).unwrap();
    (
        output.status.code(),
        text(output.stdout),
        text(output.stderr),
    )
}

pub fn scratch(name: &str) -> PathBuf {
    let folder = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(name);
    let _ = std::fs::remove_dir_all(&folder);
    std::fs::create_dir_all(&folder).unwrap();
    folder
}
