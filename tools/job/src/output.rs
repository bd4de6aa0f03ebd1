//! Where results go: text to standard output, documents to files that appear whole or not at all.

use serde::Serialize;
use std::fs::OpenOptions;
use std::io::{self, Write};
use std::path::{Path, PathBuf};

/// The name that means standard output.
const STDOUT: &str = "-";

/// Whether documents go to standard output, so that nothing else may.
pub fn is_stdout(target: &Path) -> bool {
    target.as_os_str() == STDOUT
}

/// Prints text to standard output. A reader that went away, such as `head`, is no failure.
pub fn print_text(text: &str) -> Result<(), String> {
    let mut out = io::stdout().lock();
    match out.write_all(text.as_bytes()).and_then(|()| out.flush()) {
        Err(cause) if cause.kind() != io::ErrorKind::BrokenPipe => {
            Err(format!("standard output: {cause}"))
        }
        _ => Ok(()),
    }
}

/// Prints a line to standard error, whole even when several ranks share the terminal.
pub fn print_error(text: &str) {
    // Nobody can be told that standard error is closed.
    let _ = io::stderr().write_all(format!("{text}\n").as_bytes());
}

/// Whether a document can be written there, before hours are spent on what it will say. `flag` is
/// for the error.
pub fn check_target(flag: &str, target: &Path) -> Result<(), String> {
    if is_stdout(target) {
        return Ok(());
    }
    let complain = |cause: String| {
        let shown = target.display();
        Err(format!(
            "{flag} '{shown}' cannot be written: {cause}; a file in a folder that exists, or - for standard output"
        ))
    };
    if target.is_dir() || target.file_name().is_none() {
        return complain("it is not the name of a file".into());
    }
    if is_device(target) {
        return match OpenOptions::new().write(true).open(target) {
            Ok(_) => Ok(()),
            Err(cause) => complain(cause.to_string()),
        };
    }
    // The file that is renamed later is made in that folder. Only trying gives a sure answer.
    let temporary = temporary_path(&real_path(target));
    let tried = std::fs::write(&temporary, "").and_then(|()| std::fs::remove_file(&temporary));
    tried.or_else(|cause| complain(cause.to_string()))
}

/// Whether documents can be written to all of these, of which standard output holds one.
pub fn check_targets(targets: &[(&str, &Option<PathBuf>)]) -> Result<(), String> {
    let named = targets
        .iter()
        .filter_map(|(flag, target)| Some((*flag, target.as_deref()?)));
    let mut printed = Vec::new();
    for (flag, target) in named {
        check_target(flag, target)?;
        printed.extend(is_stdout(target).then_some(flag));
    }
    match printed[..] {
        [first, second, ..] => Err(format!(
            "{first} and {second} cannot both be -: standard output holds one document"
        )),
        _ => Ok(()),
    }
}

/// Writes a document with a line end: to stdout (`-`), into a device or pipe as it is, else to a
/// file that appears whole or not at all.
pub fn write_document(flag: &str, target: &Path, document: &str) -> Result<(), String> {
    let text = format!("{document}\n");
    if is_stdout(target) {
        return print_text(&text).map_err(|cause| format!("{flag} -: {cause}"));
    }
    let written = if is_device(target) {
        let device = OpenOptions::new().write(true).open(target);
        device.and_then(|mut device| device.write_all(text.as_bytes()))
    } else {
        replace_file(&real_path(target), &text)
    };
    written.map_err(|cause| format!("{flag} '{}' was not written: {cause}", target.display()))
}

/// Prints the text, unless the document goes to standard output, and writes the document where
/// `--json` says.
pub fn end(text: &str, json: Option<&Path>, document: &impl Serialize) -> Result<(), String> {
    let printed = match json.is_some_and(is_stdout) {
        true => Ok(()),
        false => print_text(text),
    };
    let written = json.map_or(Ok(()), |target| write_json(target, document));
    printed.and(written)
}

/// Writes what `--json` wants: one document, indented, which begins with the command that made it.
pub fn write_json(target: &Path, document: &impl Serialize) -> Result<(), String> {
    let words: Vec<String> = std::env::args_os()
        .skip(1)
        .map(|word| word.to_string_lossy().into_owned())
        .collect();
    let document = Headed {
        command: words.first().map_or("", |word| word),
        command_line: command_line(&words),
        document,
    };
    let text =
        serde_json::to_string_pretty(&document).map_err(|cause| format!("--json: {cause}"))?;
    write_document("--json", target, &text)
}

/// A document and what made it.
#[derive(Serialize)]
struct Headed<'a, T> {
    /// Which command of `linerate`: it says which fields follow.
    command: &'a str,
    /// As a shell takes it.
    command_line: String,
    #[serde(flatten)]
    document: &'a T,
}

/// The command of `linerate` with these arguments, quoted where a shell needs that.
fn command_line(words: &[String]) -> String {
    let is_plain = |c: char| c.is_ascii_alphanumeric() || "-_=+.,:/@%".contains(c);
    let quoted = words.iter().map(
        |word| match !word.is_empty() && word.chars().all(is_plain) {
            true => word.clone(),
            false => format!("'{}'", word.replace('\'', r"'\''")),
        },
    );
    let all: Vec<String> = std::iter::once("linerate".into()).chain(quoted).collect();
    all.join(" ")
}

/// Writes beside the file and renames, so that no reader ever sees half a document.
fn replace_file(path: &Path, text: &str) -> io::Result<()> {
    let temporary = temporary_path(path);
    std::fs::write(&temporary, text)
        .and_then(|()| std::fs::rename(&temporary, path))
        .inspect_err(|_| {
            // Best effort: the error that is reported is the first one.
            let _ = std::fs::remove_file(&temporary);
        })
}

/// Whether it exists and is no regular file, such as `/dev/null`: renaming would replace the device
/// itself.
fn is_device(path: &Path) -> bool {
    std::fs::metadata(path).is_ok_and(|found| !found.is_file())
}

/// Where a link points to, so that the file is replaced and not the link.
fn real_path(path: &Path) -> PathBuf {
    std::fs::canonicalize(path).unwrap_or_else(|_| path.to_path_buf())
}

/// In the same folder, so that renaming does not cross file systems.
fn temporary_path(path: &Path) -> PathBuf {
    let mut name = path.file_name().unwrap_or_default().to_os_string();
    name.push(format!(".{}.tmp", std::process::id()));
    path.with_file_name(name)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn scratch(name: &str) -> PathBuf {
        let folder = format!("linerate-output-{name}-{}", std::process::id());
        let folder = std::env::temp_dir().join(folder);
        std::fs::create_dir_all(&folder).unwrap();
        folder
    }

    #[test]
    fn a_file_appears_whole_and_nothing_else_is_left() {
        let folder = scratch("whole");
        let file = folder.join("out.json");
        check_target("--json", &file).unwrap();
        assert!(!file.exists(), "checking leaves nothing");
        write_document("--json", &file, "{}").unwrap();
        assert_eq!(std::fs::read_to_string(&file).unwrap(), "{}\n");
        assert_eq!(std::fs::read_dir(&folder).unwrap().count(), 1);
        std::fs::remove_dir_all(&folder).unwrap();
    }

    #[test]
    fn a_link_stays_a_link() {
        let folder = scratch("link");
        let (file, link) = (folder.join("file"), folder.join("link"));
        std::fs::write(&file, "old").unwrap();
        std::os::unix::fs::symlink(&file, &link).unwrap();
        write_document("--json", &link, "new").unwrap();
        assert!(std::fs::symlink_metadata(&link).unwrap().is_symlink());
        assert_eq!(std::fs::read_to_string(&file).unwrap(), "new\n");
        std::fs::remove_dir_all(&folder).unwrap();
    }

    #[test]
    fn what_cannot_be_written_is_known_before() {
        for target in ["/nonexistent/out.json", "/", "", "/tmp", ".."] {
            let text = check_target("--json", Path::new(target)).unwrap_err();
            assert!(text.contains("--json") && text.contains("- for"), "{text}");
        }
        assert!(check_target("--json", Path::new("-")).is_ok());
    }

    #[test]
    fn command_lines_are_quoted_for_a_shell() {
        let words = ["bench", "-b=8", "", "a b", "it's", "$(x)"].map(String::from);
        assert_eq!(
            command_line(&words),
            r"linerate bench -b=8 '' 'a b' 'it'\''s' '$(x)'"
        );
    }

    #[test]
    fn a_pipe_is_written_into_and_not_replaced() {
        use std::os::fd::AsRawFd;
        let (mut reader, writer) = io::pipe().unwrap();
        let path = PathBuf::from(format!("/proc/self/fd/{}", writer.as_raw_fd()));
        write_document("--json", &path, "{}").unwrap();
        drop(writer);
        let mut text = String::new();
        io::Read::read_to_string(&mut reader, &mut text).unwrap();
        assert_eq!(text, "{}\n");
    }
}
