//! [`BackgroundThread`]: starts and ends a thread that drives something while no caller drives it.

use crate::error::{Error, Result};
use crate::memory::{ProcessMark, ProcessOwned};
use std::sync::Arc;
use std::thread::JoinHandle;

/// What a background thread drives, and callers too.
pub trait Background: Send + Sync + 'static {
    /// The work of the thread. Returns after [`Background::stop`].
    fn run(&self);
    /// Tells the thread to end. What is under way then fails on all ranks, so that no peer waits
    /// for this rank.
    fn stop(&self);
}

/// A thread and what it drives. Dropping it ends the thread. In a forked child the drop does
/// nothing, because the thread is the parent's.
#[derive(Debug)]
pub struct BackgroundThread<S: Background>(ProcessOwned<Running<S>>);

#[derive(Debug)]
struct Running<S: Background> {
    driven: Arc<S>,
    thread: Option<JoinHandle<()>>,
}

impl<S: Background> BackgroundThread<S> {
    /// Starts the thread, with this name. Errors: [`Error::Os`] if the system refuses it.
    pub fn start(driven: Arc<S>, process: ProcessMark, name: &str) -> Result<BackgroundThread<S>> {
        let of_thread = driven.clone();
        let thread = std::thread::Builder::new()
            .name(name.into())
            .spawn(move || of_thread.run())
            .map_err(|cause| Error::os(format!("starting the thread {name}"), cause))?;
        let thread = Some(thread);
        Ok(BackgroundThread(ProcessOwned::new(
            process,
            Running { driven, thread },
        )))
    }

    /// What the thread drives. Returns an error in a forked child, because the thread is the
    /// parent's.
    pub fn get(&self) -> Result<&S> {
        Ok(&self.0.get()?.driven)
    }
}

impl<S: Background> Drop for Running<S> {
    fn drop(&mut self) {
        self.driven.stop();
        let thread = self.thread.take();
        // A waker of the caller may drop the last handle on the thread itself, which ends by itself
        // then.
        let is_other =
            |thread: &JoinHandle<()>| thread.thread().id() != std::thread::current().id();
        if let Some(thread) = thread.filter(is_other) {
            // If it panicked, its own guard has told the callers and the other ranks.
            let _ = thread.join();
        }
    }
}
