//! Steps of a driver that is asked for a [`Profile`].

use super::{Driver, Ran, Stepped};
use crate::engine::program::{Compute, What};
use crate::engine::round::Round;
use crate::engine::thread_pool::Work;
use crate::schedule::{Action, StepId};
use crate::transport::Traffic;
use crate::wait::{Activity, Clock, Profile, Spent};

impl Driver {
    /// Begins a profile, in place of one that has begun earlier.
    pub fn begin_profile(&mut self, clock: Clock) {
        self.profile = Some(Box::new(Profile::new(clock)));
        self.run_steps = Driver::run_steps::<true>;
    }

    /// Ends the profile.
    pub fn end_profile(&mut self) -> Option<Spent> {
        self.run_steps = Driver::run_steps::<false>;
        self.profile.take().map(|profile| profile.end())
    }

    /// Whether a profile has begun.
    #[inline]
    pub fn is_profiled(&self) -> bool {
        self.profile.is_some()
    }

    /// As [`Driver::run_step`], and notes what its time went to. The time of a step that could do
    /// nothing belongs to a wait.
    #[inline(never)]
    pub(super) fn run_profiled(&mut self, round: &mut Round, step: StepId) -> Stepped {
        let start = self.profile.as_ref().map(|profile| profile.now());
        let moved_before = std::mem::replace(&mut self.moved, false);
        let ran = self.run_step(round, step);
        let has_done = self.moved || matches!(ran, Ok(Ran::Whole));
        self.moved |= moved_before;
        let of_step = activity_of(round, step);
        let activity = match of_step.filter(|_| has_done) {
            Some(activity) => activity,
            None => self.wait_by(Activity::Polling, of_step == Some(Activity::Posting)),
        };
        if let (Some(profile), Some(start)) = (&mut self.profile, start) {
            match has_done {
                true => profile.note_from(start, activity),
                false => profile.note(activity),
            }
        }
        ran
    }

    /// Notes what the time since the last note went to, within a post.
    #[inline]
    pub(super) fn note(&mut self, activity: Activity) {
        if let Some(profile) = &mut self.profile {
            profile.note(activity);
        }
    }

    /// Notes that the thread has driven, or has slept. `is_held`: some step waits for room at a
    /// peer.
    pub fn note_wait(&mut self, by: Activity, is_held: bool) {
        let activity = match by == Activity::Polling && self.moved {
            true => Activity::Polling,
            false => self.wait_by(by, is_held),
        };
        if let Some(profile) = &mut self.profile {
            profile.note(activity);
            profile.set_between(Activity::Polling);
        }
    }

    /// What a wait counts as.
    fn wait_by(&self, by: Activity, is_held: bool) -> Activity {
        let least = match is_held {
            true => Traffic::Held,
            false => Traffic::Idle,
        };
        Activity::of_wait(by, self.links.transport.traffic().max(least))
    }
}

/// What a step does; `None`: it waits.
fn activity_of(round: &Round, step: StepId) -> Option<Activity> {
    Some(match &round.program.steps[step as usize] {
        What::Send(_) | What::Receive(_) | What::Chunks | What::Signal { .. } => Activity::Posting,
        What::Compute(Compute {
            work: Work::Copy { .. },
            ..
        }) => Activity::Copying,
        What::Compute(_) => Activity::Reducing,
        What::Pieces => match round.program.action(step) {
            Action::Reduce { .. } | Action::ReduceFrom { .. } => Activity::Reducing,
            _ => Activity::Copying,
        },
        What::Wait { .. } => return None,
        What::Nop => Activity::Other,
    })
}
