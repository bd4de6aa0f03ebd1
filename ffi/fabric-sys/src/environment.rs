//! Settings that libfabric reads from the environment only.
//!
//! `setenv` may move the array of variables while another thread reads it, so a program with
//! threads must not call it. Here a new array takes the place of the old one by one store. The old
//! array stays as it is and is never freed: a thread that reads it meanwhile sees the variables of
//! before. What can get lost is a variable that another thread sets at the same moment.

use std::ffi::{CString, OsStr, c_char};
use std::os::unix::ffi::OsStrExt;
use std::sync::atomic::{AtomicPtr, Ordering};
use std::sync::{Mutex, PoisonError};

unsafe extern "C" {
    /// The variables of the process: texts `NAME=value`, then null (environ(7)).
    static mut environ: *const *const c_char;
}

/// One change at a time.
static CHANGING: Mutex<()> = Mutex::new(());

/// Sets those of `settings` (names and values) that the environment does not have. Values without
/// NUL only.
pub(crate) fn set_missing(settings: &[(&str, &str)]) {
    let _guard = CHANGING.lock().unwrap_or_else(PoisonError::into_inner);
    let missing = settings
        .iter()
        .filter(|(name, _)| std::env::var_os(name).is_none());
    let missing: Vec<_> = missing.collect();
    if missing.is_empty() {
        return;
    }
    // The standard library reads them under its lock, so no `set_var` moves them meanwhile.
    let kept = std::env::vars_os().map(|(name, value)| text_of(&name, &value));
    let added = missing
        .iter()
        .map(|(name, value)| text_of(name.as_ref(), value.as_ref()));
    let texts = kept.chain(added).map(|text| text.into_raw().cast_const());
    let variables: Vec<*const c_char> = texts.chain([std::ptr::null()]).collect();
    let first = variables.leak().as_ptr().cast_mut();
    // SAFETY: the pointer is aligned and lives as long as the process; it is only used atomically
    // here, and C reads it in one load.
    let place = unsafe { AtomicPtr::from_ptr((&raw mut environ).cast::<*mut *const c_char>()) };
    // Release: a thread that reads the new pointer finds the new array's contents.
    place.store(first, Ordering::Release);
}

fn text_of(name: &OsStr, value: &OsStr) -> CString {
    let text = [name.as_bytes(), b"=", value.as_bytes()].concat();
    CString::new(text).expect("texts of the environment have no NUL")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_missing_is_set_and_what_is_there_stays() {
        let before: Vec<_> = std::env::vars_os().collect();
        let name = "FABRIC_TEST_OF_SETTINGS";
        set_missing(&[(name, "1"), ("PATH", "/nowhere")]);
        set_missing(&[(name, "2")]);
        assert_eq!(std::env::var(name).as_deref(), Ok("1"));
        let after: Vec<_> = std::env::vars_os().collect();
        assert!(before.iter().all(|variable| after.contains(variable)));
        // SAFETY: a terminated name; nothing else in this process calls setenv.
        let in_c = unsafe { libc::getenv(c"FABRIC_TEST_OF_SETTINGS".as_ptr()) };
        assert!(!in_c.is_null(), "C sees it too");
    }

    #[test]
    fn threads_that_read_meanwhile_see_all_that_was_there() {
        std::thread::scope(|scope| {
            let reading = scope.spawn(|| {
                for _ in 0..20_000 {
                    assert!(std::env::var_os("PATH").is_some());
                }
            });
            for index in 0..50 {
                set_missing(&[(&format!("FABRIC_TEST_{index}"), "x")]);
            }
            reading.join().unwrap();
        });
    }
}
