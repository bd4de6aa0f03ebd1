//! The least executor: one future on one thread, polled when it was woken and never else.

use std::future::Future;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, Wake, Waker};
use std::thread::Thread;
use std::time::Duration;

struct Woken {
    thread: Thread,
    is_woken: AtomicBool,
}

impl Wake for Woken {
    fn wake(self: Arc<Self>) {
        // Release: the poll that follows sees what the waker has done.
        self.is_woken.store(true, Ordering::Release);
        self.thread.unpark();
    }
}

/// Polls a future to its end; panics if nobody wakes it for so long.
pub fn block_on<T>(future: impl Future<Output = T>, longest: Duration) -> T {
    let woken = Arc::new(Woken {
        thread: std::thread::current(),
        is_woken: AtomicBool::new(false),
    });
    let waker = Waker::from(woken.clone());
    let mut future = pin!(future);
    loop {
        if let Poll::Ready(result) = future.as_mut().poll(&mut Context::from_waker(&waker)) {
            return result;
        }
        let begun = std::time::Instant::now();
        while !woken.is_woken.swap(false, Ordering::Acquire) {
            let left = longest.checked_sub(begun.elapsed());
            std::thread::park_timeout(left.expect("nobody wakes the future"));
        }
    }
}

/// Polls a future once, for nobody.
pub fn poll_once<F: Future + Unpin>(future: &mut F) -> Poll<F::Output> {
    Pin::new(future).poll(&mut Context::from_waker(Waker::noop()))
}
