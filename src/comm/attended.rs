//! [`Attended`]: what callers and a thread of its own drive in turn, and how that thread begins and
//! ends.

use crate::error::{Error, Result};
use crate::memory::{ProcessMark, ProcessOwned};
use std::sync::Arc;
use std::thread::JoinHandle;

/// What a thread attends to while callers use it too.
pub trait Attend: Send + Sync + 'static {
    /// What the thread does, until it is stopped.
    fn run(&self);
    /// Ends the thread. What is under way is failed on all ranks, so that none waits for this one.
    fn stop(&self);
}

/// See the module. Dropping it ends the thread; in a forked child it leaves everything alone.
#[derive(Debug)]
pub struct Attended<S: Attend>(ProcessOwned<Driven<S>>);

#[derive(Debug)]
struct Driven<S: Attend> {
    seat: Arc<S>,
    thread: Option<JoinHandle<()>>,
}

impl<S: Attend> Attended<S> {
    /// Starts the thread, with this name.
    pub fn start(seat: S, process: ProcessMark, name: &str) -> Result<Attended<S>> {
        let seat = Arc::new(seat);
        let driven = seat.clone();
        let thread = std::thread::Builder::new()
            .name(name.into())
            .spawn(move || driven.run())
            .map_err(|cause| Error::os(format!("starting the thread {name}"), cause))?;
        let thread = Some(thread);
        Ok(Attended(ProcessOwned::new(
            process,
            Driven { seat, thread },
        )))
    }

    /// What the thread attends to, for the process that has the thread.
    pub fn get(&self) -> Result<&S> {
        Ok(&self.0.get()?.seat)
    }
}

impl<S: Attend> Drop for Driven<S> {
    fn drop(&mut self) {
        self.seat.stop();
        if let Some(thread) = self.thread.take() {
            // Its panic was told to the callers and to the other ranks already.
            let _ = thread.join();
        }
    }
}
