//! What rustc says of a program that uses this library.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Lines and codes of errors.
pub type Errors = BTreeSet<(usize, String)>;

/// The errors that rustc finds in a program, without building it.
pub fn errors_of(program: &Path) -> Errors {
    let library = library();
    let rustc = std::env::var_os("RUSTC").unwrap_or_else(|| "rustc".into());
    let out = std::env::temp_dir().join(format!("linerate-misuse-{}", std::process::id()));
    let output = Command::new(rustc)
        .args([
            "--edition",
            "2024",
            "--crate-type",
            "bin",
            "--emit",
            "metadata",
        ])
        .args(["--error-format", "short", "-o"])
        .arg(&out)
        .arg("--extern")
        .arg(format!("linerate={}", library.display()))
        .arg("-L")
        .arg(format!(
            "dependency={}",
            library.parent().unwrap().display()
        ))
        .arg(program)
        .output()
        .expect("rustc, which has compiled this test");
    let _ = std::fs::remove_file(out);
    let text = String::from_utf8(output.stderr).unwrap();
    // path:line:column: error[E0505]: text
    let errors: Errors = (text.lines())
        .filter_map(|line| line.split_once(": error"))
        .map(|(place, rest)| {
            let line = place.rsplit(':').nth(1).and_then(|line| line.parse().ok());
            let code = rest.strip_prefix('[').and_then(|rest| rest.split_once(']'));
            (
                line.unwrap_or(0),
                code.map_or(rest, |(code, _)| code).to_owned(),
            )
        })
        .collect();
    assert_eq!(output.status.success(), errors.is_empty(), "{text}");
    errors
}

/// The errors that a program's comments announce: `//~ E0505` on their lines.
pub fn announced_in(program: &Path) -> Errors {
    let text = std::fs::read_to_string(program).unwrap();
    let lines = text.lines().enumerate();
    lines
        .filter_map(|(index, line)| Some((index + 1, line.split_once("//~ ")?.1.to_owned())))
        .collect()
}

/// The library that this test was linked with: the one that was built last.
fn library() -> PathBuf {
    let test = std::env::current_exe().unwrap();
    let files = std::fs::read_dir(test.parent().unwrap()).unwrap();
    let libraries = files.map(|file| file.unwrap().path()).filter(|path| {
        let name = path.file_name().unwrap().to_string_lossy();
        name.starts_with("liblinerate-") && name.ends_with(".rlib")
    });
    libraries
        .max_by_key(|path| path.metadata().unwrap().modified().unwrap())
        .expect("the library beside its test")
}
