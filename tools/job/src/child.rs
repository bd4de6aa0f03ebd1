//! Other commands of `linerate` as processes, whose JSON documents a command reads.

use serde_json::Value;
use std::process::{Command, Stdio};

/// Runs this program with these words, over this transport and with this number of ranks, and gives
/// its document. `gbit` is what a rank may send at most over `tcp`.
pub fn run(words: &[String], transport: &str, ranks: u32, gbit: f64) -> Result<Value, String> {
    let shown = format!("linerate {}", words.join(" "));
    let failed = |cause: &dyn std::fmt::Display| format!("{shown}: {cause}");
    let program = std::env::current_exe().map_err(|cause| failed(&cause))?;
    let mut command = Command::new(program);
    command
        .args(words)
        .args(["--transport", transport, "--json", "-", "--ranks"])
        .arg(ranks.to_string())
        .env_remove("LINERATE_TCP_PACE")
        .stdin(Stdio::null());
    if gbit.is_finite() {
        command.env("LINERATE_TCP_PACE", format!("{gbit}gbit"));
    }
    let output = command.output().map_err(|cause| failed(&cause))?;
    if !output.status.success() {
        return Err(failed(&String::from_utf8_lossy(&output.stderr).trim()));
    }
    serde_json::from_slice(&output.stdout).map_err(|cause| failed(&cause))
}

/// A number of a document.
pub fn number(value: &Value) -> Result<f64, String> {
    let missing = || format!("expected a number in a JSON document, found {value}");
    value.as_f64().ok_or_else(missing)
}
