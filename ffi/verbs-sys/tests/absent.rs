//! What a machine without the library, or without devices, is told.
#![allow(missing_docs)]

use linerate_verbs_sys::{Devices, Kind, Library, VARIABLE};
use std::ffi::OsStr;
use std::process::Command;

#[test]
fn a_library_that_is_not_there_is_named_with_what_to_do() {
    let text = Library::open_as(Some(OsStr::new("/nonexistent/libibverbs.so")))
        .unwrap_err()
        .to_string();
    assert!(text.contains("/nonexistent/libibverbs.so: "), "{text}");
    assert!(text.contains("No such file"), "the loader's reason: {text}");
    assert!(text.contains(VARIABLE), "{text}");
}

#[test]
fn another_library_is_refused_by_the_symbol_that_it_lacks() {
    let text = Library::open_as(Some(OsStr::new("libc.so.6")))
        .unwrap_err()
        .to_string();
    assert!(
        text.contains("no ibv_get_device_list of version IBVERBS_1.1"),
        "{text}"
    );
}

/// In a process of its own, because the environment belongs to all threads.
#[test]
fn the_variable_is_obeyed() {
    let own = std::env::current_exe().unwrap();
    let output = Command::new(own)
        .args([
            "--exact",
            "opened_by_another_test",
            "--ignored",
            "--nocapture",
        ])
        .env(VARIABLE, "/nonexistent")
        .output()
        .unwrap();
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{text}");
    assert!(text.contains("/nonexistent: "), "{text}");
}

#[test]
#[ignore = "run by the_variable_is_obeyed"]
fn opened_by_another_test() {
    println!("{}", Library::open().unwrap_err());
}

#[test]
fn no_device_is_an_empty_list_with_a_reason() {
    let library = match Library::open() {
        Ok(library) => library,
        Err(e) => return eprintln!("skipped: {e}"),
    };
    let devices = Devices::list(&library).unwrap();
    assert_eq!(devices.iter().count(), devices.len());
    assert!(devices.find("no such device").is_none());
    assert_eq!(devices.reason().is_some(), devices.is_empty());
    if !std::path::Path::new("/sys/class/infiniband").exists() {
        assert!(devices.is_empty());
        assert!(devices.reason().unwrap().contains("ib_uverbs"));
    }
    assert_eq!(library.live(Kind::Context), 0);
}
