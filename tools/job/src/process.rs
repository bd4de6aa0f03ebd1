//! [`Supervisor`]: watches ranks until the last one has ended, and sees to it that nothing is left
//! behind.
//!
//! When a rank fails, the others get a grace period to report what they saw, then SIGTERM, then
//! SIGKILL. Signals to the launcher are passed on. Each rank leads a process group; the group is
//! killed when its leader has ended, before the leader is reaped, because until then its number
//! cannot belong to another process.

use crate::output;
use rustix::process::{Pid, Signal, WaitId, WaitIdOptions, kill_process_group, waitid};
use signal_hook::consts::signal::{SIGCHLD, SIGHUP, SIGINT, SIGTERM};
use std::io::{self, Read};
use std::os::unix::net::UnixStream;
use std::os::unix::process::ExitStatusExt;
use std::process::{Child, ExitStatus};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

/// From SIGTERM to SIGKILL.
const TERMINATION: Duration = Duration::from_secs(2);
/// The longest sleep, in case a signal is missed.
const SLEEP_MAX: Duration = Duration::from_secs(1);

/// Which ends of ranks are told on stderr.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Endings {
    /// Every failure.
    Told,
    /// Death by a signal; ranks that exit have said why themselves.
    OnlySignals,
}

/// Ranks under watch.
pub struct Supervisor {
    ranks: Vec<Rank>,
    grace: Duration,
    endings: Endings,
    stage: Stage,
    /// Exit code of the first failure.
    first_code: Option<i32>,
    /// A byte arrives with every signal.
    wake: UnixStream,
    /// The signal to pass on, 0 if none.
    received: Arc<AtomicUsize>,
}

struct Rank {
    index: u32,
    pid: Pid,
    child: Child,
    is_alive: bool,
}

/// How far the ending of a failed job has come.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Stage {
    Running,
    /// Something failed; the rest may go on until then.
    Grace(Instant),
    /// SIGTERM was sent; SIGKILL follows then.
    Terminating(Instant),
    Killed,
}

impl Supervisor {
    /// Watches nothing yet. From now on SIGINT, SIGTERM and SIGHUP are passed on to the ranks.
    pub fn new(grace: Duration, endings: Endings) -> io::Result<Supervisor> {
        let (wake, writer) = UnixStream::pair()?;
        let received = Arc::new(AtomicUsize::new(0));
        for signal in [SIGINT, SIGTERM, SIGHUP] {
            signal_hook::flag::register_usize(signal, received.clone(), signal as usize)?;
        }
        // Registered after the flags, so that a flag is set when its byte arrives.
        for signal in [SIGCHLD, SIGINT, SIGTERM, SIGHUP] {
            signal_hook::low_level::pipe::register(signal, writer.try_clone()?)?;
        }
        Ok(Supervisor {
            ranks: Vec::new(),
            grace,
            endings,
            stage: Stage::Running,
            first_code: None,
            wake,
            received,
        })
    }

    /// Watches a child that leads its own process group.
    pub fn add(&mut self, index: u32, child: Child) {
        self.ranks.push(Rank {
            index,
            pid: Pid::from_child(&child),
            child,
            is_alive: true,
        });
    }

    /// Waits until all ranks have ended; gives the exit code of the first that failed, else 0.
    pub fn run(mut self) -> io::Result<i32> {
        loop {
            self.reap()?;
            if self.ranks.iter().all(|rank| !rank.is_alive) {
                return Ok(self.first_code.unwrap_or(0));
            }
            self.pass_on();
            self.escalate(Instant::now());
            self.wait()?;
        }
    }

    /// Kills what has been started.
    pub fn abandon(mut self) {
        self.signal_all(Signal::KILL);
        for rank in &mut self.ranks {
            // Only killed children are left; there is nothing to report.
            let _ = rank.child.wait();
        }
    }

    fn reap(&mut self) -> io::Result<()> {
        let mut failures = Vec::new();
        for position in 0..self.ranks.len() {
            let rank = &mut self.ranks[position];
            let options = WaitIdOptions::EXITED | WaitIdOptions::NOHANG | WaitIdOptions::NOWAIT;
            if !rank.is_alive || waitid(WaitId::Pid(rank.pid), options)?.is_none() {
                continue;
            }
            // Ends what the rank has left behind in its group, usually nothing.
            let _ = kill_process_group(rank.pid, Signal::KILL);
            let status = rank.child.wait()?;
            rank.is_alive = false;
            if !status.success() {
                failures.push((rank.index, status));
            }
        }
        // Among ranks that ended at once, one that was killed is the cause; one that exited may
        // have seen it die.
        failures.sort_by_key(|(_, status)| status.signal().is_none());
        for (index, status) in failures {
            self.note_failure(index, status);
        }
        Ok(())
    }

    fn note_failure(&mut self, index: u32, status: ExitStatus) {
        // After the first failure the others end because of it.
        if self.first_code.is_some() {
            return;
        }
        self.first_code = Some(exit_code(status));
        self.stage = Stage::Grace(Instant::now() + self.grace);
        match (status.signal(), self.endings) {
            (Some(signal), _) => output::print_error(&format!(
                "linerate: rank {index} was killed by signal {signal}"
            )),
            (None, Endings::Told) => {
                output::print_error(&format!(
                    "linerate: rank {index} exited with code {}",
                    exit_code(status)
                ));
            }
            (None, Endings::OnlySignals) => {}
        }
    }

    fn pass_on(&mut self) {
        let number = self.received.swap(0, Ordering::Relaxed) as i32;
        let Some(signal) = Signal::from_named_raw(number) else {
            return;
        };
        if self.endings == Endings::OnlySignals && self.first_code.is_none() {
            output::print_error(&format!("linerate: ended by signal {number}"));
        }
        let was_asked_before = !matches!(self.stage, Stage::Running);
        self.first_code.get_or_insert(128 + number);
        self.signal_all(signal);
        let now = Instant::now();
        // After a second signal, SIGKILL follows at once.
        self.stage = if was_asked_before {
            Stage::Terminating(now)
        } else {
            Stage::Grace(now + self.grace)
        };
    }

    fn escalate(&mut self, now: Instant) {
        match self.stage {
            Stage::Grace(until) if now >= until => {
                self.signal_all(Signal::TERM);
                self.stage = Stage::Terminating(now + TERMINATION);
            }
            Stage::Terminating(until) if now >= until => {
                self.signal_all(Signal::KILL);
                self.stage = Stage::Killed;
            }
            _ => {}
        }
    }

    fn signal_all(&self, signal: Signal) {
        for rank in self.ranks.iter().filter(|rank| rank.is_alive) {
            // It may have ended already; it is not reaped, so its number belongs to no other
            // process.
            let _ = kill_process_group(rank.pid, signal);
        }
    }

    /// Sleeps until a signal arrives or the next stage is due.
    fn wait(&mut self) -> io::Result<()> {
        let limit = match self.stage {
            Stage::Grace(until) | Stage::Terminating(until) => {
                until.saturating_duration_since(Instant::now())
            }
            Stage::Running | Stage::Killed => SLEEP_MAX,
        };
        let limit = limit.clamp(Duration::from_millis(1), SLEEP_MAX);
        self.wake.set_read_timeout(Some(limit))?;
        let mut bytes = [0; 64];
        match self.wake.read(&mut bytes) {
            Ok(_) => Ok(()),
            Err(error) if is_only_a_pause(&error) => Ok(()),
            Err(error) => Err(error),
        }
    }
}

fn is_only_a_pause(error: &io::Error) -> bool {
    use io::ErrorKind::{Interrupted, TimedOut, WouldBlock};
    matches!(error.kind(), Interrupted | TimedOut | WouldBlock)
}

/// The shell's exit code for how a process ended.
fn exit_code(status: ExitStatus) -> i32 {
    match (status.code(), status.signal()) {
        (Some(code), _) => code,
        (None, Some(signal)) => 128 + signal,
        (None, None) => 1,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ends_have_the_codes_of_a_shell() {
        let status = |raw| exit_code(ExitStatus::from_raw(raw));
        assert_eq!((status(0), status(3 << 8), status(9)), (0, 3, 137));
    }
}
