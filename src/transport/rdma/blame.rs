//! [`Blame`]: how long a rail is left alone after failures.

use crate::time::Time;
use std::time::Duration;

/// A rail on which a queue failed is used again after this time, or where no other is left.
/// The time doubles with each further failure, because every try interrupts the others, until its
/// port has been down and up.
const BLAME: Duration = Duration::from_secs(10);
const BLAME_DOUBLINGS_MAX: u32 = 6;

/// Whether a queue has failed on a rail not long ago, and how often that was in a row.
#[derive(Debug, Default)]
pub struct Blame {
    since: Option<Time>,
    count: u32,
}

impl Blame {
    /// A queue has failed.
    pub fn note(&mut self, now: Time) {
        if self.since.replace(now).is_none() {
            self.count += 1;
        }
    }

    /// What had failed before says nothing any more.
    pub fn forgive(&mut self) {
        *self = Blame::default();
    }

    /// Whether the rail is left alone.
    pub fn is_on(&self) -> bool {
        self.since.is_some()
    }

    /// Lets the rail be tried again when it is time; true where that is now.
    pub fn end(&mut self, now: Time) -> bool {
        let time = blame_time(self.count);
        let is_over = self.since.is_some_and(|since| now.since(since) >= time);
        if is_over {
            self.since = None;
        }
        is_over
    }
}

/// How long a rail is left alone that has failed this often.
fn blame_time(count: u32) -> Duration {
    BLAME * (1 << count.saturating_sub(1).min(BLAME_DOUBLINGS_MAX))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_rail_that_fails_again_and_again_is_tried_ever_more_seldom() {
        assert_eq!(
            [1, 2, 3].map(|count| blame_time(count).as_secs()),
            [10, 20, 40]
        );
        assert_eq!(blame_time(1000), BLAME * 64);
        let mut blame = Blame::default();
        blame.note(Time(0));
        assert!(blame.is_on() && !blame.end(Time(1)));
        assert!(blame.end(Time(0).after(BLAME)) && !blame.is_on());
        blame.note(Time(0));
        assert!(!blame.end(Time(0).after(BLAME)));
        blame.forgive();
        assert!(!blame.is_on());
    }
}
