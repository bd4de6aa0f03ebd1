//! The binary interface is that of `abi/0.txt`: symbols, constants, sizes and offsets of structs.
//!
//! What changes or goes needs a new major version, what is added a new minor one; the file of the
//! major version is then written again by
//! `LINERATE_ACCEPT=1 cargo test -p linerate-capi --test abi`.

use linerate_c::{
    LINERATE_ABI_MAJOR, LINERATE_ABI_MINOR, linerate_call, linerate_completion, linerate_exchange,
    linerate_message, linerate_transfer,
};
use std::mem::{align_of, offset_of, size_of};
use std::path::{Path, PathBuf};
use std::process::Command;

const FOLDER: &str = env!("CARGO_MANIFEST_DIR");

/// What the linker defines in every shared library.
const OF_THE_LINKER: [&str; 2] = ["_init", "_fini"];

fn library(name: &str) -> PathBuf {
    let own = std::env::current_exe().unwrap();
    own.parent().unwrap().join(name)
}

/// The size and the offsets of a struct, a line each.
macro_rules! layout {
    ($name:ident: $($field:ident)*) => {{
        let name = stringify!($name);
        let mut lines = vec![format!(
            "struct {name} {} bytes, aligned to {}", size_of::<$name>(), align_of::<$name>()
        )];
        $(lines.push(format!(
            "field {name}.{} at {}", stringify!($field), offset_of!($name, $field)
        ));)*
        lines
    }};
}

fn layouts() -> Vec<String> {
    [
        layout!(linerate_call: size collective dtype op root memory_kind reserved factor count
            input output send_counts receive_counts timeout_ns algorithm queue user),
        layout!(linerate_transfer: size peer is_send dtype memory_kind count address),
        layout!(linerate_exchange: size put get user),
        layout!(linerate_completion: size user status source),
        layout!(linerate_message: size address count dtype memory_kind peer tag is_send reserved
            timeout_ns queue user),
    ]
    .concat()
}

/// The constants of the header, but for those of its version.
fn constants() -> Vec<String> {
    let header = std::fs::read_to_string(Path::new(FOLDER).join("include/linerate.h")).unwrap();
    let defined = header
        .lines()
        .filter_map(|line| line.strip_prefix("#define "));
    defined
        .filter(|line| line.contains(' ') && !line.starts_with("LINERATE_ABI_"))
        .map(|line| format!("constant {line}"))
        .collect()
}

/// The declarations of the header, each on one line.
fn functions() -> Vec<String> {
    let header = std::fs::read_to_string(Path::new(FOLDER).join("include/linerate.h")).unwrap();
    let code: Vec<&str> = header
        .lines()
        .map(str::trim)
        .filter(|line| !line.starts_with(['/', '*', '#']))
        .collect();
    let code = code.join(" ");
    let declared = code.split(';').map(str::trim);
    let is_one = |text: &&str| text.contains([' ', '*']) && text.ends_with(')');
    let declared = declared.filter(is_one);
    declared
        .filter(|text| !text.contains("(*"))
        .map(|text| text.split_whitespace().collect::<Vec<_>>().join(" "))
        .map(|text| text.rsplit(['{', '}']).next().unwrap().trim().to_owned())
        .map(|text| format!("function {text}"))
        .collect()
}

/// The symbols that the shared library defines for others.
fn symbols() -> Vec<String> {
    let output = Command::new("nm")
        .args(["-D", "--defined-only"])
        .arg(library("liblinerate_c.so"))
        .output()
        .expect("nm, which comes with the C compiler");
    assert!(output.status.success(), "{output:?}");
    let text = String::from_utf8(output.stdout).unwrap();
    let names = text.lines().filter_map(|line| line.split(' ').next_back());
    let mut names: Vec<String> = names
        .filter(|name| !OF_THE_LINKER.contains(name))
        .map(|name| format!("symbol {name}"))
        .collect();
    names.sort_unstable();
    names
}

/// Name, bytes and alignment of `struct NAME BYTES bytes, aligned to ALIGN`.
fn size_of_line(line: &str) -> Option<(&str, u64, &str)> {
    let (name, rest) = line.strip_prefix("struct ")?.split_once(' ')?;
    let (bytes, align) = rest.split_once(" bytes, ")?;
    Some((name, bytes.parse().ok()?, align))
}

/// Why the interface may not be what it is now, if it was this.
fn complaint(was: &[String], is: &[String], old: [u32; 2], new: [u32; 2]) -> Option<String> {
    // A struct may grow at its end.
    let has_grown = |line: &str| {
        let grown = |now: &String| {
            matches!((size_of_line(line), size_of_line(now)),
            (Some((name, before, align)), Some(now)) if (now.0, now.2) == (name, align) && now.1 > before)
        };
        is.iter().any(grown)
    };
    let gone = was.iter().filter(|line| !is.contains(line));
    let gone: Vec<_> = gone.filter(|line| !has_grown(line)).collect();
    let added: Vec<_> = is.iter().filter(|line| !was.contains(line)).collect();
    if !gone.is_empty() && new[0] <= old[0] {
        return Some(format!(
            "{gone:#?} changed or went: it needs a new LINERATE_ABI_MAJOR"
        ));
    }
    let is_newer = new[0] > old[0] || new[0] == old[0] && new[1] > old[1];
    (!added.is_empty() && !is_newer)
        .then(|| format!("{added:#?} were added: it needs a new LINERATE_ABI_MINOR"))
}

#[test]
fn the_interface_changes_with_its_version_only() {
    let version = [LINERATE_ABI_MAJOR, LINERATE_ABI_MINOR];
    let is = [symbols(), functions(), constants(), layouts()].concat();
    let path = Path::new(FOLDER).join(format!("abi/{}.txt", version[0]));
    let text = std::fs::read_to_string(&path).unwrap_or_default();
    let mut lines = text.lines();
    let first = lines.next().unwrap_or("version 0.0");
    let numbers = first.trim_start_matches("version ").split('.');
    let numbers: Vec<u32> = numbers.map(|number| number.parse().unwrap()).collect();
    let was: Vec<String> = lines.map(str::to_owned).collect();
    let complaint = complaint(&was, &is, [numbers[0], numbers[1]], version);
    assert!(complaint.is_none(), "{}", complaint.unwrap());
    if std::env::var_os("LINERATE_ACCEPT").is_some() {
        let text = format!("version {}.{}\n{}\n", version[0], version[1], is.join("\n"));
        std::fs::write(&path, text).unwrap();
        return;
    }
    assert!(
        was == is && numbers == version,
        "{} is of another version: LINERATE_ACCEPT=1 cargo test -p linerate-capi --test abi",
        path.display()
    );
}

#[test]
fn a_change_needs_a_major_and_an_addition_a_minor_version() {
    let list = |text: &str| text.split(' ').map(str::to_owned).collect::<Vec<_>>();
    let says = |was, is, new| complaint(&list(was), &list(is), [1, 4], new);
    assert!(says("a b", "a b", [1, 4]).is_none());
    assert!(says("a b", "a b c", [1, 4]).unwrap().contains("MINOR"));
    assert!(says("a b", "a b c", [1, 5]).is_none());
    assert!(says("a b", "a c", [1, 5]).unwrap().contains("MAJOR"));
    assert!(says("a b", "a", [2, 0]).is_none());
    let size = |bytes| vec![format!("struct a {bytes} bytes, aligned to 8")];
    let grows = |is, new| complaint(&size(16), &size(is), [1, 4], new);
    assert!(grows(24, [1, 5]).is_none());
    assert!(grows(24, [1, 4]).unwrap().contains("MINOR"));
    assert!(grows(8, [1, 5]).unwrap().contains("MAJOR"));
}

#[test]
fn only_functions_of_the_header_are_exported() {
    let declared: Vec<String> = functions()
        .iter()
        .filter_map(|line| {
            line.split('(')
                .next()?
                .rsplit([' ', '*'])
                .next()
                .map(str::to_owned)
        })
        .collect();
    for symbol in symbols() {
        let name = symbol.trim_start_matches("symbol ");
        assert!(name.starts_with("linerate_"), "{name} is exported");
        assert!(
            declared.iter().any(|one| one == name),
            "{name} is not in the header"
        );
    }
    assert_eq!(declared.len(), symbols().len(), "{declared:#?}");
}

#[test]
fn the_library_has_its_name_and_is_not_unloaded() {
    let output = Command::new("readelf")
        .arg("-d")
        .arg(library("liblinerate_c.so"))
        .output()
        .expect("readelf, which comes with the C compiler");
    let text = String::from_utf8_lossy(&output.stdout);
    let name = format!("[liblinerate_c.so.{LINERATE_ABI_MAJOR}]");
    assert!(text.contains(&name) && text.contains("NODELETE"), "{text}");
}
