//! Lending a Rust slice to an operation that ends before the loan does.

use super::{Element, View};

/// Calls `run` with a view of the slice.
///
/// `run` must not return before everything that was given the view has ended, with or without success.
/// A panic in it aborts the process, because the operation might still be writing.
pub(crate) fn lend_slice<T: Element, R>(slice: &mut [T], run: impl FnOnce(View) -> R) -> R {
    struct AbortOnUnwind;
    impl Drop for AbortOnUnwind {
        fn drop(&mut self) {
            std::process::abort();
        }
    }
    let guard = AbortOnUnwind;
    // SAFETY: the slice is borrowed mutably until `run` returns, and by then nobody uses the view.
    let view = unsafe { View::new(slice.as_mut_ptr().cast(), size_of_val(slice)) };
    let result = run(view);
    std::mem::forget(guard);
    result
}
