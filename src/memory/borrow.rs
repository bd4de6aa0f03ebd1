//! Lending a Rust slice to an operation that ends before the loan does.

use super::{Element, View};

/// Runs what borrows slices. `run` must not return before everything that was given their views has
/// ended, with or without success. A panic in it aborts the process, because the operation might
/// still be writing.
pub(crate) fn abort_on_unwind<R>(run: impl FnOnce() -> R) -> R {
    struct AbortOnUnwind;
    impl Drop for AbortOnUnwind {
        fn drop(&mut self) {
            std::process::abort();
        }
    }
    let guard = AbortOnUnwind;
    let result = run();
    std::mem::forget(guard);
    result
}

/// The bytes of a slice that is only read.
pub(crate) fn view_of_slice<T: Element>(slice: &[T]) -> View {
    // SAFETY: the view is used only inside of `abort_on_unwind`, while the slice is borrowed, and
    // is only read.
    unsafe { View::new(slice.as_ptr().cast_mut().cast(), size_of_val(slice)) }
}

/// The bytes of a slice that is written.
pub(crate) fn view_of_slice_mut<T: Element>(slice: &mut [T]) -> View {
    // SAFETY: the view is used only inside of `abort_on_unwind`, while the slice is borrowed
    // mutably.
    unsafe { View::new(slice.as_mut_ptr().cast(), size_of_val(slice)) }
}
