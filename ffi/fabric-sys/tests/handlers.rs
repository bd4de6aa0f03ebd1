//! Signal handlers outlive the loading of libfabric. Alone in its program, because they belong to
//! the process.
#![allow(missing_docs, unsafe_code)]

use linerate_fabric_sys::{Hints, Info, Library};

const SIGNAL_MAX: i32 = 64;
/// The C library adds this to all that it sets.
const SA_RESTORER: i32 = 0x0400_0000;

/// What the process does with each signal: the handler and its flags.
fn handlers() -> Vec<Option<(usize, i32)>> {
    let one = |signal| {
        let mut now = std::mem::MaybeUninit::<libc::sigaction>::zeroed();
        // SAFETY: `now` is writable, and nothing is changed.
        let status = unsafe { libc::sigaction(signal, std::ptr::null(), now.as_mut_ptr()) };
        // SAFETY: the call filled it.
        let now = (status == 0).then(|| unsafe { now.assume_init() })?;
        Some((now.sa_sigaction, now.sa_flags & !SA_RESTORER))
    };
    (1..=SIGNAL_MAX).map(one).collect()
}

#[test]
fn handlers_are_the_same_after_loading_and_after_the_first_question() {
    let before = handlers();
    let library = match Library::open(16) {
        Ok(library) => library,
        Err(e) => return eprintln!("skipped: {e}"),
    };
    assert_eq!(handlers(), before, "after loading");
    let offers = Info::query(&library, &Hints::default());
    assert_eq!(handlers(), before, "after the first question: {offers:?}");
    assert!(!offers.unwrap().is_empty());
}
