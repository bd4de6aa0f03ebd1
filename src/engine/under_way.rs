//! [`UnderWay`]: the rounds that run, and those that may run again.

use super::prepared::Prepared;
use super::round::Round;
use super::tag::RoundToken;
use std::sync::Arc;

/// If there are fewer spare rounds than this, a new schedule gets a new round: enough for the few
/// kinds of calls that a loop makes.
const SPARE_ROUNDS: usize = 4;

/// The rounds of an engine.
#[derive(Default)]
pub struct UnderWay {
    places: Vec<Option<Box<Round>>>,
    /// Places of rounds under way, in the order in which they started.
    active: Vec<u32>,
    free: Vec<u32>,
    // Boxed, because a round moves between lists and is large.
    #[allow(clippy::vec_box)]
    spare: Vec<Box<Round>>,
    /// The generation of the latest round.
    generation: u32,
    /// The generation of the latest round when freed regions of peers were last released.
    released_at: u32,
}

impl UnderWay {
    /// Whether no round is under way.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.active.is_empty()
    }

    /// How many rounds are under way.
    pub fn len(&self) -> usize {
        self.active.len()
    }

    /// The rounds under way, first the one that has started first.
    pub fn all(&self) -> impl Iterator<Item = &Round> {
        self.from(0)
    }

    /// The rounds under way from the `at`-th on.
    pub fn from(&self, at: usize) -> impl Iterator<Item = &Round> {
        let places = self.active[at..].iter();
        places.filter_map(|&place| self.places[place as usize].as_deref())
    }

    /// Calls `f` with each round under way.
    pub fn for_each_mut(&mut self, mut f: impl FnMut(&mut Round)) {
        for &place in &self.active {
            if let Some(round) = self.places[place as usize].as_deref_mut() {
                f(round);
            }
        }
    }

    /// The round of a task that has started first.
    pub fn of_task(&self, task: usize) -> Option<&Round> {
        self.all().find(|round| round.task == task)
    }

    /// The round at a place.
    #[inline]
    pub fn at_mut(&mut self, place: u32) -> Option<&mut Round> {
        let round = self.places.get_mut(place as usize)?;
        round.as_deref_mut()
    }

    /// The place of the round that is the `index`-th under way.
    #[inline]
    pub fn place(&self, index: usize) -> Option<u32> {
        self.active.get(index).copied()
    }

    /// The generation of the next round.
    pub fn next_generation(&mut self) -> u32 {
        self.generation = self.generation.wrapping_add(1);
        self.generation
    }

    /// Puts a round that has begun last among those under way; returns its index and place.
    pub fn add(&mut self, mut round: Box<Round>) -> (usize, u32) {
        let place = self.free.pop().unwrap_or_else(|| {
            self.places.push(None);
            self.places.len() as u32 - 1
        });
        round.token = RoundToken::new(place, round.generation);
        self.places[place as usize] = Some(round);
        self.active.push(place);
        (self.active.len() - 1, place)
    }

    /// Takes the round that is the `index`-th under way.
    pub fn remove(&mut self, index: usize) -> Box<Round> {
        let place = self.active.remove(index);
        self.free.push(place);
        let round = self.places[place as usize].take();
        round.expect("active places have rounds")
    }

    /// Takes all rounds of a task.
    #[allow(clippy::vec_box)]
    pub fn remove_task(&mut self, task: usize) -> Vec<Box<Round>> {
        let mut removed = Vec::new();
        let mut index = 0;
        while index < self.len() {
            let is_of_task = self.from(index).next().is_some_and(|r| r.task == task);
            match is_of_task {
                true => removed.push(self.remove(index)),
                false => index += 1,
            }
        }
        removed
    }

    /// Takes a spare round, if possible one that has run this schedule and may know the call, or
    /// makes a new round.
    pub fn take_spare(&mut self, prepared: &Arc<Prepared>) -> Box<Round> {
        let mut rounds = self.spare.iter();
        match rounds.rposition(|round| Arc::ptr_eq(&round.program.prepared, prepared)) {
            Some(place) => self.spare.swap_remove(place),
            None if self.spare.len() < SPARE_ROUNDS => Box::new(Round::new(prepared.clone())),
            None => self.spare.swap_remove(0),
        }
    }

    /// Keeps a round that has ended.
    pub fn put_spare(&mut self, round: Box<Round>) {
        self.spare.push(round);
    }

    /// Whether every round that was under way when this last returned true has ended.
    pub fn have_all_ended(&mut self) -> bool {
        let since = self.released_at;
        let is_later = |generation: u32| (generation.wrapping_sub(since) as i32) > 0;
        let have_all_ended = self.all().all(|round| is_later(round.generation));
        if have_all_ended {
            self.released_at = self.generation;
        }
        have_all_ended
    }
}
