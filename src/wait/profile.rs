//! [`Profile`]: what a thread that drives does with its time, for `linerate bench --profile` and
//! `linerate perf --profile`.
//!
//! A profile gives every nanosecond from its begin to its end to one [`Activity`], so the times of
//! all activities add up to the time that has passed. A thread without a profile never reads the
//! clock for one.

use super::clock::Clock;
use crate::time::Time;

/// What time goes to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Activity {
    /// Waits while nothing is under way between this rank and its peers ([`Traffic::Idle`]).
    WireIdle,
    /// Waits until a peer takes what this rank has for it ([`Traffic::Held`]).
    Grant,
    /// Reduces and scales.
    Reducing,
    /// Copies from buffer to buffer. A transport's own copies belong to the post or the poll that
    /// makes them.
    Copying,
    /// Posts messages and stores signals.
    Posting,
    /// Polls the transport and handles what has come, or has bytes under way and polls for them.
    Polling,
    /// Sleeps, or has given its core away, while bytes are under way.
    Sleeping,
    /// Everything else: the begin and the end of the call, locks, the engine's own work.
    Other,
}

impl Activity {
    /// All, in the order of [`Spent`].
    pub const ALL: [Activity; 8] = [
        Activity::WireIdle,
        Activity::Grant,
        Activity::Reducing,
        Activity::Copying,
        Activity::Posting,
        Activity::Polling,
        Activity::Sleeping,
        Activity::Other,
    ];

    /// Its name, for people.
    pub fn name(self) -> &'static str {
        match self {
            Activity::WireIdle => "wire idle",
            Activity::Grant => "grant",
            Activity::Reducing => "reducing",
            Activity::Copying => "copying",
            Activity::Posting => "posting",
            Activity::Polling => "polling",
            Activity::Sleeping => "sleeping",
            Activity::Other => "other",
        }
    }

    /// The activity of a wait that polls or sleeps (`by`) during this traffic.
    pub fn of_wait(by: Activity, traffic: Traffic) -> Activity {
        match traffic {
            Traffic::Idle => Activity::WireIdle,
            Traffic::Held => Activity::Grant,
            Traffic::Moving => by,
        }
    }
}

/// What is under way between a rank and its peers, as far as its transport knows. Where two of
/// these hold, the later one counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Traffic {
    /// Nothing. Short messages count as gone when they were handed over.
    Idle,
    /// Messages of this rank wait until their receivers take them or ask for them.
    Held,
    /// Bytes leave or come.
    Moving,
}

/// Nanoseconds by activity, in the order of [`Activity::ALL`].
pub type Spent = [u64; Activity::ALL.len()];

/// See the module.
#[derive(Debug)]
pub struct Profile {
    clock: Clock,
    /// Until then, all time has been given to an activity.
    mark: Time,
    /// The activity of time that no note names.
    between: Activity,
    spent: Spent,
}

impl Profile {
    /// A profile that begins now.
    pub fn new(clock: Clock) -> Profile {
        Profile {
            mark: clock.now(),
            clock,
            between: Activity::Other,
            spent: [0; Activity::ALL.len()],
        }
    }

    /// The time now.
    pub fn now(&self) -> Time {
        self.clock.now()
    }

    /// All time since the last call was of this activity.
    pub fn note(&mut self, activity: Activity) {
        let now = self.clock.now();
        self.spent[activity as usize] += now.since(self.mark).as_nanos() as u64;
        self.mark = now;
    }

    /// As [`Profile::note`], for the time from `start` on. Earlier time that no note names is of
    /// the activity that [`Profile::set_between`] has set.
    pub fn note_from(&mut self, start: Time, activity: Activity) {
        let start = start.max(self.mark);
        self.spent[self.between as usize] += start.since(self.mark).as_nanos() as u64;
        self.mark = start;
        self.note(activity);
    }

    /// From now on, time that no note names is of this activity.
    pub fn set_between(&mut self, activity: Activity) {
        self.between = activity;
    }

    /// What the time until now went to.
    pub fn end(mut self) -> Spent {
        self.note(Activity::Other);
        self.spent
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Arc;
    use std::sync::atomic::{AtomicU64, Ordering};

    #[test]
    fn every_nanosecond_counts_once() {
        let now = Arc::new(AtomicU64::new(7));
        let mut profile = Profile::new(Clock::Virtual(now.clone()));
        let pass = |ns: u64| now.fetch_add(ns, Ordering::Relaxed);
        pass(1);
        let start = profile.now();
        pass(10);
        profile.note_from(start, Activity::Posting);
        profile.set_between(Activity::Polling);
        pass(100);
        let start = profile.now();
        pass(1000);
        profile.note_from(start, Activity::Reducing);
        pass(10_000);
        profile.note(Activity::of_wait(Activity::Sleeping, Traffic::Moving));
        pass(100_000);
        profile.note(Activity::of_wait(Activity::Sleeping, Traffic::Held));
        pass(1_000_000);
        let spent = profile.end();
        let of = |activity: Activity| spent[activity as usize];
        assert_eq!(
            (of(Activity::Other), of(Activity::Posting)),
            (1_000_001, 10)
        );
        assert_eq!((of(Activity::Polling), of(Activity::Reducing)), (100, 1000));
        assert_eq!(
            (of(Activity::Sleeping), of(Activity::Grant)),
            (10_000, 100_000)
        );
        assert_eq!(spent.iter().sum::<u64>(), now.load(Ordering::Relaxed) - 7);
    }

    #[test]
    fn activities_stand_at_their_places() {
        for (place, activity) in Activity::ALL.into_iter().enumerate() {
            assert_eq!(activity as usize, place, "{}", activity.name());
        }
    }
}
