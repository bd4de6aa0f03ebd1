//! [`BackgroundThread`]: how a thread begins and ends that drives something while no caller does.

use crate::error::{Error, Result};
use crate::memory::{ProcessMark, ProcessOwned};
use std::sync::Arc;
use std::thread::JoinHandle;

/// What a thread drives while callers use it too.
pub trait Background: Send + Sync + 'static {
    /// What the thread does, until it is stopped.
    fn run(&self);
    /// Tells the thread to end. What is under way is failed on all ranks, so that none waits for
    /// this one.
    fn stop(&self);
}

/// A thread and what it drives. Dropping it ends the thread; in a forked child the drop leaves
/// everything alone, because the thread is the parent's.
#[derive(Debug)]
pub struct BackgroundThread<S: Background>(ProcessOwned<Running<S>>);

#[derive(Debug)]
struct Running<S: Background> {
    driven: Arc<S>,
    thread: Option<JoinHandle<()>>,
}

impl<S: Background> BackgroundThread<S> {
    /// Starts the thread, with this name.
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

    /// What the thread drives, for the process that has the thread.
    pub fn get(&self) -> Result<&S> {
        Ok(&self.0.get()?.driven)
    }
}

impl<S: Background> Drop for Running<S> {
    fn drop(&mut self) {
        self.driven.stop();
        if let Some(thread) = self.thread.take() {
            // Its panic was told to the callers and to the other ranks already.
            let _ = thread.join();
        }
    }
}
