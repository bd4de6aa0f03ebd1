//! What a machine without a usable libfabric is told.
#![allow(missing_docs)]

use linerate_fabric_sys::{Error, Hints, Info, Kind, Library, NAMES, Unusable, VARIABLE, Version};
use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Why each file was not taken, and the whole text.
fn refused(named: &OsStr) -> (Vec<Unusable>, String) {
    let error = Library::open_as(Some(named), 4).unwrap_err();
    let text = error.to_string();
    match error {
        Error::Unavailable { attempts, .. } => (
            attempts.into_iter().map(|attempt| attempt.why).collect(),
            text,
        ),
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_library_that_is_not_there_is_named_with_what_to_do() {
    let (whys, text) = refused(OsStr::new("/nonexistent/libfabric.so"));
    assert!(matches!(&whys[..], [Unusable::NotLoaded(_)]), "{whys:?}");
    assert!(text.contains("/nonexistent/libfabric.so: "), "{text}");
    assert!(text.contains("No such file"), "the loader's reason: {text}");
    assert!(text.contains(VARIABLE), "{text}");
}

#[test]
fn a_file_that_is_no_library_is_refused_by_the_loader() {
    let (whys, text) = refused(OsStr::new("/proc/version"));
    assert!(matches!(&whys[..], [Unusable::NotLoaded(_)]), "{text}");
}

#[test]
fn another_library_is_no_libfabric() {
    let (whys, text) = refused(OsStr::new("libc.so.6"));
    assert_eq!(whys, [Unusable::NotLibfabric], "{text}");
    assert!(text.contains("libc.so.6: "), "{text}");
}

const SOURCE: &str = "
unsigned fi_version(void) { return MAJOR << 16 | MINOR; }
const char *fi_strerror(int code) { return code ? \"something\" : \"nothing\"; }
int fi_getinfo(void) { return -61; }
void fi_freeinfo(void) {}
void *fi_dupinfo(void) { return 0; }
int fi_fabric(void) { return -38; }
";
/// Versions of symbols come from a linker's script; Rust cannot make them.
const SCRIPT: &str = "
FABRIC_1.0 { global: fi_version; fi_strerror; local: *; };
FABRIC_1.1 { global: fi_fabric; } FABRIC_1.0;
FABRIC_1.3 { global: fi_getinfo; fi_freeinfo; fi_dupinfo; } FABRIC_1.1;
";

/// A library with the names of libfabric in this folder; `None`, with a line that says so, without
/// a C compiler.
fn build(folder: &Path, script: &str, (major, minor): (u32, u32)) -> Option<PathBuf> {
    std::fs::create_dir_all(folder).unwrap();
    let file = |name: &str| folder.join(name);
    std::fs::write(file("library.c"), SOURCE).unwrap();
    std::fs::write(file("script"), script).unwrap();
    let made = Command::new("cc")
        .args(["-shared", "-fPIC", "-o"])
        .arg(file("library.so"))
        .arg(file("library.c"))
        .args([format!("-DMAJOR={major}"), format!("-DMINOR={minor}")])
        .arg(format!("-Wl,--version-script={}", file("script").display()))
        .output();
    match made {
        Err(e) => {
            eprintln!("skipped: no C compiler: {e}");
            None
        }
        Ok(made) => {
            assert!(
                made.status.success(),
                "{}",
                String::from_utf8_lossy(&made.stderr)
            );
            Some(file("library.so"))
        }
    }
}

/// A folder of this test, removed at its end.
struct Folder(PathBuf);

impl Folder {
    fn new(name: &str) -> Folder {
        let name = format!("linerate-fabric-{name}-{}", std::process::id());
        Folder(std::env::temp_dir().join(name))
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

#[test]
fn a_library_that_lacks_a_symbol_is_refused_by_its_name_and_version() {
    let folder = Folder::new("lacks");
    let script = SCRIPT.replace("FABRIC_1.3", "FABRIC_1.7");
    let Some(path) = build(&folder.0, &script, (1, 18)) else {
        return;
    };
    let (whys, text) = refused(path.as_os_str());
    let lacking = Unusable::NoSymbol {
        name: "fi_getinfo",
        version: "FABRIC_1.3",
    };
    assert_eq!(whys, [lacking], "{text}");
    assert!(
        text.contains("no fi_getinfo of version FABRIC_1.3"),
        "{text}"
    );
}

#[test]
fn a_library_that_is_too_old_is_refused_by_its_version() {
    let folder = Folder::new("old");
    let Some(path) = build(&folder.0, SCRIPT, (1, 8)) else {
        return;
    };
    let (whys, text) = refused(path.as_os_str());
    assert_eq!(whys, [Unusable::TooOld(Version { major: 1, minor: 8 })]);
    assert!(
        text.contains("it is version 1.8, at least 1.9 is needed"),
        "{text}"
    );
}

#[test]
fn a_library_with_all_symbols_is_taken_and_says_that_it_offers_nothing() {
    let folder = Folder::new("empty");
    let Some(path) = build(&folder.0, SCRIPT, (1, 9)) else {
        return;
    };
    let library = Library::open_as(Some(path.as_os_str()), 4).unwrap();
    assert_eq!(library.version(), Version::MIN);
    assert!(library.version() < Version::DMABUF && library.version() < Version::EFA);
    // This one cannot even make hints.
    let text = linerate_fabric_sys::Info::query(&library, &Default::default())
        .unwrap_err()
        .to_string();
    assert!(
        text.contains("memory for hints: something (code 12)"),
        "{text}"
    );
    assert!(Kind::ALL.iter().all(|&kind| library.live(kind) == 0));
}

/// In a process of its own, because the environment belongs to all threads.
fn run_alone(test: &str, set: &[(&str, &str)]) -> String {
    let output = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", test, "--ignored", "--nocapture"])
        // Other tests of this process may have set them.
        .env_remove("FI_UNIVERSE_SIZE")
        .env_remove("FI_EFA_FORK_SAFE")
        .envs(set.iter().copied())
        .output()
        .unwrap();
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(output.status.success(), "{text}");
    text
}

#[test]
fn the_variable_is_obeyed() {
    let text = run_alone("opened_by_another_test", &[(VARIABLE, "/nonexistent")]);
    assert!(text.contains("; /nonexistent: "), "{text}");
    assert!(!text.contains(NAMES[0]), "no other is tried: {text}");
}

#[test]
#[ignore = "run by the_variable_is_obeyed"]
fn opened_by_another_test() {
    println!("{}", Library::open(4).unwrap_err());
}

#[test]
fn settings_are_made_unless_they_are_there() {
    let text = run_alone("prints_settings", &[]);
    if text.contains("no usable libfabric") {
        return println!("skipped: {text}");
    }
    assert!(text.contains("universe 7, fork 1"), "{text}");
    assert!(text.contains("then universe none, fork none"), "{text}");
    let there = [("FI_UNIVERSE_SIZE", "99"), ("FI_EFA_FORK_SAFE", "0")];
    let text = run_alone("prints_settings", &there);
    assert!(
        text.contains("universe 99, fork 0; then universe 99, fork 0"),
        "{text}"
    );
}

#[test]
#[ignore = "run by settings_are_made_unless_they_are_there"]
fn prints_settings() {
    let value = |name| std::env::var(name).unwrap_or("none".into());
    let values = || {
        let (universe, fork) = (value("FI_UNIVERSE_SIZE"), value("FI_EFA_FORK_SAFE"));
        format!("universe {universe}, fork {fork}")
    };
    let before = values();
    let failed = Library::open_as(Some(OsStr::new("/nonexistent")), 7);
    assert!(failed.is_err() && values() == before);
    let library = match Library::open(7) {
        Ok(library) => library,
        Err(error) => return println!("{error}"),
    };
    let at_first = values();
    let _ = Info::query(&library, &Hints::default());
    println!("{at_first}; then {}", values());
}
