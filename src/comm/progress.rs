//! The progress thread, which advances the operations of a communicator while the application
//! computes: see [`Config::progress`].
//!
//! [`Config::progress`]: crate::Config::progress

use super::driving::Driving;
use crate::config::Progress;
use crate::error::Result;
use crate::memory::ProcessMark;
use crate::wait::BackgroundThread;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

/// The progress thread of a communicator, and whether the communicator gets one.
pub(super) struct ProgressThread {
    setting: Progress,
    /// Whether the host has more cores than ranks.
    has_cores: bool,
    /// Whether an operation has been started before: then it is decided whether a thread runs.
    is_settled: AtomicBool,
    thread: Mutex<Option<BackgroundThread<Driving>>>,
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

    /// An operation is being started: starts the thread if the setting asks for it. `Ok(false)`:
    /// the calls of the application make progress, and this operation is the first to find that.
    #[inline]
    pub fn settle(&self, driving: &Arc<Driving>) -> Result<bool> {
        // Relaxed: a thread that reads the old value decides again, with the same result.
        match self.is_settled.load(Ordering::Relaxed) {
            true => Ok(true),
            false => self.settle_first(driving),
        }
    }

    #[cold]
    fn settle_first(&self, driving: &Arc<Driving>) -> Result<bool> {
        let wants_thread = match self.setting {
            Progress::Thread => true,
            Progress::Auto => self.has_cores,
            Progress::Inline => false,
        };
        if wants_thread && !driving.clock.is_virtual() {
            self.begin(driving)?;
        }
        let is_first = !self.is_settled.swap(true, Ordering::Relaxed);
        Ok(wants_thread || !is_first)
    }

    /// Starts the thread, if there is none.
    pub fn begin(&self, driving: &Arc<Driving>) -> Result<()> {
        let mut thread = self.thread.lock().unwrap_or_else(PoisonError::into_inner);
        if thread.is_none() {
            let process = ProcessMark::current()?;
            let name = "linerate-progress";
            *thread = Some(BackgroundThread::start(driving.clone(), process, name)?);
        }
        Ok(())
    }

    /// Whether the host has more cores than ranks.
    pub fn has_cores(&self) -> bool {
        self.has_cores
    }

    /// What the settings say. With [`Progress::Inline`] no thread may run.
    pub fn setting(&self) -> Progress {
        self.setting
    }

    /// Ends the thread, if there is one.
    pub fn end(&mut self) {
        let thread = (self.thread.get_mut()).unwrap_or_else(PoisonError::into_inner);
        thread.take();
    }
}
