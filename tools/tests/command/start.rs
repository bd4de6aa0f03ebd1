//! Starts the command as a user would, and gives exit code and texts.

use linerate_children::{Child, without_job};
use std::path::PathBuf;
use std::process::{Command, Output, Stdio};

/// The command, without what a launcher or a user may have set around the tests.
pub fn linerate(line: &str) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_linerate"));
    without_job(&mut command)
        .args(line.split_whitespace())
        .stdin(Stdio::null());
    command
}

/// Starts a server and waits until it listens; the server and its port.
pub fn serve(command: &mut Command) -> (Child, u16) {
    let mut server = Child::start(command);
    let line = server.wait_line("port ");
    let port = line.split("port ").nth(1).unwrap().split(',').next();
    (server, port.unwrap().parse().unwrap())
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
