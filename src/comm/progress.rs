//! Who moves the operations of a communicator while the application computes: see
//! [`Config::progress`].
//!
//! [`Config::progress`]: crate::Config::progress

use super::shared::Shared;
use crate::config::Progress;
use crate::error::{Error, Result};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;

/// The progress thread of a communicator, and whether it is to have one.
#[derive(Debug)]
pub(super) struct ProgressThread {
    setting: Progress,
    /// The host has more cores than ranks.
    has_cores: bool,
    /// Nothing is left to decide at the start of an operation.
    is_settled: AtomicBool,
    thread: Mutex<Option<JoinHandle<()>>>,
}

impl ProgressThread {
    pub fn new(setting: Progress, has_cores: bool) -> ProgressThread {
        ProgressThread {
            setting,
            has_cores,
            is_settled: AtomicBool::new(false),
            thread: Mutex::new(None),
        }
    }

    /// An operation is started: begins the thread if the setting says so. `Ok(false)`: calls will
    /// make its progress, which was not known.
    #[inline]
    pub fn settle(&self, shared: &Arc<Shared>) -> Result<bool> {
        // Relaxed: a thread that misses it takes the lock.
        match self.is_settled.load(Ordering::Relaxed) {
            true => Ok(true),
            false => self.settle_first(shared),
        }
    }

    #[cold]
    fn settle_first(&self, shared: &Arc<Shared>) -> Result<bool> {
        let wants_thread = match self.setting {
            Progress::Thread => true,
            Progress::Auto => self.has_cores,
            Progress::Inline => false,
        };
        if wants_thread && !shared.clock.is_virtual() {
            self.begin(shared)?;
        }
        let is_first = !self.is_settled.swap(true, Ordering::Relaxed);
        Ok(wants_thread || !is_first)
    }

    /// Begins the thread, if there is none.
    pub fn begin(&self, shared: &Arc<Shared>) -> Result<()> {
        let mut thread = self.thread.lock().unwrap_or_else(PoisonError::into_inner);
        if thread.is_none() {
            let shared = shared.clone();
            let spawned = std::thread::Builder::new()
                .name("linerate-progress".into())
                .spawn(move || shared.run_progress_thread());
            *thread = Some(spawned.map_err(|e| Error::os("starting the progress thread", e))?);
        }
        Ok(())
    }

    /// Whether the host has more cores than ranks.
    pub fn has_cores(&self) -> bool {
        self.has_cores
    }

    /// Whether a future may begin it.
    pub fn setting(&self) -> Progress {
        self.setting
    }

    /// Ends the thread, if there is one.
    pub fn end(&mut self, shared: &Shared) {
        let thread = (self.thread.get_mut()).unwrap_or_else(PoisonError::into_inner);
        if let Some(thread) = thread.take() {
            shared.stop_progress_thread();
            // A panic of the progress thread has been printed; there is nobody to hand it to.
            let _ = thread.join();
        }
    }

    /// In a forked child: the thread is the parent's.
    pub fn leave_to_parent(&mut self) {
        std::mem::forget((self.thread.get_mut()).map(Option::take));
    }
}
