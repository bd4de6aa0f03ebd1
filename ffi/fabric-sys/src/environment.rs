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

/// Variables that stand in the environment until the library has read them.
#[derive(Clone, Copy)]
pub(crate) struct Added {
    before: *mut *const c_char,
    now: *mut *const c_char,
}

// SAFETY: both arrays live as long as the process, and nothing is read or written through these.
unsafe impl Send for Added {}

impl Added {
    /// Takes them out again, unless the environment has changed since: children do not inherit
    /// them then.
    pub(crate) fn take_out(self) {
        let _guard = CHANGING.lock().unwrap_or_else(PoisonError::into_inner);
        // Release: as in `set_missing`.
        let _ =
            place().compare_exchange(self.now, self.before, Ordering::AcqRel, Ordering::Relaxed);
    }
}

/// Sets those of `settings` (names and values) that the environment does not have; none: it has
/// all. Values without NUL only.
pub(crate) fn set_missing(settings: &[(&str, &str)]) -> Option<Added> {
    let _guard = CHANGING.lock().unwrap_or_else(PoisonError::into_inner);
    let missing = settings
        .iter()
        .filter(|(name, _)| std::env::var_os(name).is_none());
    let missing: Vec<_> = missing.collect();
    if missing.is_empty() {
        return None;
    }
    // The standard library reads them under its lock, so no `set_var` moves them meanwhile.
    let kept = std::env::vars_os().map(|(name, value)| text_of(&name, &value));
    let added = missing
        .iter()
        .map(|(name, value)| text_of(name.as_ref(), value.as_ref()));
    let texts = kept.chain(added).map(|text| text.into_raw().cast_const());
    let variables: Vec<*const c_char> = texts.chain([std::ptr::null()]).collect();
    let now = variables.leak().as_ptr().cast_mut();
    // Release: a thread that reads the new pointer finds the new array's contents.
    let before = place().swap(now, Ordering::AcqRel);
    Some(Added { before, now })
}

/// Where the process keeps its variables.
fn place() -> &'static AtomicPtr<*const c_char> {
    // SAFETY: the pointer is aligned and lives as long as the process; it is only used atomically
    // here, and C reads it in one load.
    unsafe { AtomicPtr::from_ptr((&raw mut environ).cast::<*mut *const c_char>()) }
}

fn text_of(name: &OsStr, value: &OsStr) -> CString {
    let text = [name.as_bytes(), b"=", value.as_bytes()].concat();
    CString::new(text).expect("texts of the environment have no NUL")
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::MutexGuard;

    /// One test at a time: all have one environment.
    fn alone() -> MutexGuard<'static, ()> {
        static TESTS: Mutex<()> = Mutex::new(());
        TESTS.lock().unwrap_or_else(PoisonError::into_inner)
    }

    #[test]
    fn what_is_missing_is_set_and_what_is_there_stays() {
        let _alone = alone();
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
    fn what_was_added_is_taken_out_unless_something_came_after_it() {
        let _alone = alone();
        let (one, two) = ("FABRIC_TEST_OF_ENDS_1", "FABRIC_TEST_OF_ENDS_2");
        let first = set_missing(&[(one, "1")]).unwrap();
        let second = set_missing(&[(two, "2")]).unwrap();
        assert!(set_missing(&[(two, "3")]).is_none());
        first.take_out();
        assert!(std::env::var_os(one).is_some() && std::env::var_os(two).is_some());
        second.take_out();
        assert!(std::env::var_os(two).is_none());
        first.take_out();
        assert!(std::env::var_os(one).is_none());
    }

    #[test]
    fn threads_that_read_meanwhile_see_all_that_was_there() {
        let _alone = alone();
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
