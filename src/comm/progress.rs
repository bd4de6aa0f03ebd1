//! The progress thread, which advances the operations of a communicator while the application
//! computes: see [`Config::progress`].
//!
//! [`Config::progress`]: crate::Config::progress

use super::family::Family;
use crate::config::Progress;
use crate::error::{Error, Result};
use crate::memory::ProcessMark;
use crate::wait::{BackgroundThread, Clock};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

/// The progress thread of a family, if it has one. It ends with the last member.
pub(super) struct ProgressThread {
    pub family: Arc<Family>,
    thread: Mutex<Option<BackgroundThread<Family>>>,
}

impl ProgressThread {
    /// For a family without members.
    pub fn new(clock: Clock) -> ProgressThread {
        ProgressThread {
            family: Arc::new(Family::new(clock)),
            thread: Mutex::new(None),
        }
    }

    /// Begins the thread, if there is none.
    fn begin(&self) -> Result<()> {
        let mut thread = self.thread.lock().unwrap_or_else(PoisonError::into_inner);
        if thread.is_none() {
            let process = ProcessMark::current()?;
            let name = "linerate-progress";
            *thread = Some(BackgroundThread::start(self.family.clone(), process, name)?);
        }
        Ok(())
    }
}

/// Whether the progress thread drives a communicator.
pub(super) struct ProgressChoice {
    pub thread: Arc<ProgressThread>,
    setting: Progress,
    /// The host has more cores than ranks.
    has_cores: bool,
    /// Time is virtual: no thread makes progress.
    is_virtual: bool,
    /// Nothing is left to decide at the start of an operation.
    is_settled: AtomicBool,
}

impl ProgressChoice {
    pub fn new(
        thread: Arc<ProgressThread>,
        setting: Progress,
        has_cores: bool,
        is_virtual: bool,
    ) -> ProgressChoice {
        ProgressChoice {
            thread,
            setting,
            has_cores,
            is_virtual,
            is_settled: AtomicBool::new(false),
        }
    }

    /// Called when an operation is started: begins the thread if the setting asks for it.
    /// `Ok(false)`: only the calls of the application make progress, and this is the first
    /// operation to find that.
    #[inline]
    pub fn settle(&self) -> Result<bool> {
        // Relaxed: a thread that reads the old value decides again, with the same result.
        match self.is_settled.load(Ordering::Relaxed) {
            true => Ok(true),
            false => self.settle_first(),
        }
    }

    #[cold]
    fn settle_first(&self) -> Result<bool> {
        let wants_thread = match self.setting {
            Progress::Thread => true,
            Progress::Auto => self.has_cores,
            Progress::Inline => false,
        };
        if wants_thread && !self.is_virtual {
            self.thread.begin()?;
        }
        let is_first = !self.is_settled.swap(true, Ordering::Relaxed);
        Ok(wants_thread || !is_first)
    }

    /// Begins the thread for something that needs it. An error if the setting or virtual time
    /// forbids a thread; its text begins with `what`.
    pub fn need_thread(&self, what: &str) -> Result<()> {
        if self.setting == Progress::Inline || self.is_virtual {
            return Err(Error::invalid(format!(
                "{what} without a progress thread: set LINERATE_PROGRESS to auto or thread \
                 (simulated ranks have none), or call wait or test"
            )));
        }
        self.thread.begin()
    }

    /// Whether the host has more cores than ranks.
    pub fn has_cores(&self) -> bool {
        self.has_cores
    }
}
