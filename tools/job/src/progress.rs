//! A progress bar on stderr, if that is a terminal, for what takes more than a second.

use indicatif::{ProgressBar, ProgressStyle};
use std::io::IsTerminal;
use std::time::{Duration, Instant};

/// Shorter runs need no bar.
const PATIENCE: Duration = Duration::from_secs(1);

/// Counts rows of a table, or steps.
pub struct Progress {
    unit: &'static str,
    count: u64,
    done: u64,
    started: Instant,
    is_wanted: bool,
    bar: Option<ProgressBar>,
}

impl Progress {
    /// A bar of `count` rows or whatever the unit is, shown only where `is_wanted`: one rank of a
    /// job has it.
    pub fn new(unit: &'static str, count: usize, is_wanted: bool) -> Progress {
        Progress {
            unit,
            count: count as u64,
            done: 0,
            started: Instant::now(),
            is_wanted: is_wanted && std::io::stderr().is_terminal(),
            bar: None,
        }
    }

    /// Hides the bar while `print` runs.
    pub fn suspended<R>(&self, print: impl FnOnce() -> R) -> R {
        match &self.bar {
            Some(bar) => bar.suspend(print),
            None => print(),
        }
    }

    /// One is done; `state` is said beside the bar.
    pub fn advance(&mut self, state: String) {
        self.done += 1;
        if self.bar.is_none() && self.is_wanted && self.started.elapsed() > PATIENCE {
            let template = format!(
                "{{bar:30}} {{pos}}/{{len}} {}, {{elapsed}} {{msg}}",
                self.unit
            );
            let style = ProgressStyle::with_template(&template)
                .unwrap_or_else(|_| ProgressStyle::default_bar());
            self.bar = Some(ProgressBar::new(self.count).with_style(style));
        }
        if let Some(bar) = &self.bar {
            bar.set_position(self.done);
            bar.set_message(state);
        }
    }

    /// Removes the bar.
    pub fn finish(&self) {
        if let Some(bar) = &self.bar {
            bar.finish_and_clear();
        }
    }
}
