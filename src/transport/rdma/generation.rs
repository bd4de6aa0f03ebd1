//! [`Generation`]: where a pair of ranks stands between two sets of queues. A pure state machine.
//!
//! Either side may begin the next generation, or both at once. The higher number wins: a side that
//! hears of a higher one than its own follows. A side proposes once the queues of the generation
//! before have ended, so that nothing of it is under way any more, and nothing is posted in a
//! generation before both sides have said that they can receive.

use crate::time::Time;
use std::fmt;
use std::time::Duration;

/// How long a pair that found no common rail waits before it looks again.
pub const LOOK_AGAIN: Duration = Duration::from_millis(100);

/// Where a pair stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Phase {
    /// Nothing was begun.
    Idle,
    /// The queues of the last generation are to end.
    Ending,
    /// The own queues are made and proposed; the peer's proposal is awaited.
    Proposed,
    /// Both proposals are known and share no rail that works, or the queues could not be joined:
    /// next try at this time.
    Apart(Time),
    /// The own queues can receive; the peer has not said yet that its can.
    Joined,
    /// Posts go out.
    Up,
}

/// What is to be done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Action {
    Nothing,
    /// End the queues. The others follow when they have ended.
    End,
    /// Make new queues, propose them for this generation.
    Begin(u32),
    /// Join the queues with those of the proposal.
    Join,
    /// Begin this generation, and join with the proposal then.
    BeginAndJoin(u32),
    /// Post what waits.
    GoUp,
}

/// Why nothing gets through.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Cause {
    /// It was seen here.
    Here(String),
    /// The peer has begun a generation and does not say why. The text says why this side could not
    /// join it.
    Peers(Option<String>),
}

impl fmt::Display for Cause {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Cause::Here(text) => f.write_str(text),
            Cause::Peers(None) => f.write_str("the peer's queue pair failed"),
            Cause::Peers(Some(text)) => write!(f, "the peer's queue pair failed; {text}"),
        }
    }
}

/// A time in which nothing has got through, as far as is known.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Trouble {
    pub since: Time,
    pub cause: Cause,
}

/// The generations of one pair.
#[derive(Debug)]
pub struct Generation {
    pub number: u32,
    pub phase: Phase,
    /// The last one that the peer has proposed.
    proposed: u32,
    /// The generation in which the peer last said that it can receive.
    ready: u32,
    /// Why nothing gets through, until something does.
    pub trouble: Option<Trouble>,
}

impl Generation {
    pub fn new() -> Generation {
        Generation {
            number: 0,
            phase: Phase::Idle,
            proposed: 0,
            ready: 0,
            trouble: None,
        }
    }

    /// The pair is to be connected.
    pub fn handle_start(&mut self) -> Action {
        match self.phase {
            Phase::Idle => self.begin(1),
            _ => Action::Nothing,
        }
    }

    /// A queue of this generation has failed. The first cause is kept until something gets through.
    pub fn handle_fault(&mut self, now: Time, cause: &str) -> Action {
        if self.phase == Phase::Idle {
            return Action::Nothing;
        }
        self.note_trouble(now, Cause::Here(cause.into()));
        match self.phase {
            Phase::Apart(_) | Phase::Ending => Action::Nothing,
            _ => self.begin(self.number + 1),
        }
    }

    /// The peer proposes.
    pub fn handle_proposal(&mut self, number: u32, now: Time) -> Action {
        let is_current = number == self.number;
        match self.phase {
            Phase::Proposed if is_current => return Action::Join,
            Phase::Ending if is_current => {}
            // It will hear of the current one, and follow.
            _ if number <= self.number => return Action::Nothing,
            Phase::Up | Phase::Joined => self.note_trouble(now, Cause::Peers(None)),
            _ => {}
        }
        self.proposed = number;
        self.begin(number)
    }

    /// The queues of the last generation have ended: nothing that was posted to them is under way.
    pub fn handle_ended(&mut self) -> Action {
        if self.phase != Phase::Ending {
            return Action::Nothing;
        }
        self.phase = Phase::Proposed;
        match self.proposed == self.number {
            true => Action::BeginAndJoin(self.number),
            false => Action::Begin(self.number),
        }
    }

    /// The own queues of the current generation can receive.
    pub fn handle_joined(&mut self) -> Action {
        self.phase = Phase::Joined;
        self.go_up()
    }

    /// They could not be joined.
    pub fn handle_apart(&mut self, now: Time, cause: &str) {
        match &mut self.trouble {
            // This says more than that the peer has begun a generation.
            Some(Trouble {
                cause: Cause::Peers(own @ None),
                ..
            }) => *own = Some(cause.into()),
            _ => self.note_trouble(now, Cause::Here(cause.into())),
        }
        self.phase = Phase::Apart(now.after(LOOK_AGAIN));
    }

    /// The peer can receive in this generation.
    pub fn handle_ready(&mut self, number: u32) -> Action {
        self.ready = self.ready.max(number);
        self.go_up()
    }

    fn go_up(&mut self) -> Action {
        if self.phase != Phase::Joined || self.ready != self.number {
            return Action::Nothing;
        }
        self.phase = Phase::Up;
        Action::GoUp
    }

    /// Something has got through. What arrived in the last generation is found when its queues end,
    /// and proves nothing of this one.
    pub fn handle_proof(&mut self) {
        if self.phase == Phase::Up {
            self.trouble = None;
        }
    }

    /// Begins another generation when it is time, or where a rail has become usable (`has_news`).
    pub fn handle_time(&mut self, now: Time, has_news: bool) -> Action {
        match self.phase {
            Phase::Apart(until) if has_news || now >= until => self.begin(self.number + 1),
            _ => Action::Nothing,
        }
    }

    /// Whether nothing has got through for too long.
    pub fn is_over(&self, now: Time, timeout: Duration) -> bool {
        let trouble = self.trouble.as_ref();
        trouble.is_some_and(|trouble| now >= trouble.since.after(timeout))
    }

    /// Why a peer is gone, with the trouble that came first: a peer that gives up leaves, and news
    /// of that names no device.
    pub fn explain(&self, cause: &str) -> String {
        match &self.trouble {
            Some(trouble) => format!("{cause}; before that: {}", trouble.cause),
            None => cause.into(),
        }
    }

    /// When to look at the time again.
    pub fn next_timeout(&self, timeout: Duration) -> Option<Time> {
        let trouble = self.trouble.as_ref();
        let over = trouble.map(|trouble| trouble.since.after(timeout));
        match self.phase {
            Phase::Apart(until) => Some(over.map_or(until, |over| over.min(until))),
            _ => over,
        }
    }

    /// The first cause is kept.
    fn note_trouble(&mut self, since: Time, cause: Cause) {
        self.trouble.get_or_insert(Trouble { since, cause });
    }

    fn begin(&mut self, number: u32) -> Action {
        self.number = number;
        self.phase = Phase::Ending;
        Action::End
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::prng::Prng;
    use std::collections::VecDeque;

    /// What follows from an action where the queues end at once.
    fn begin(one: &mut Generation, action: Action) -> Action {
        assert_eq!((action, one.phase), (Action::End, Phase::Ending));
        one.handle_ended()
    }

    fn start(one: &mut Generation) {
        let action = one.handle_start();
        assert_eq!(begin(one, action), Action::Begin(1));
    }

    #[test]
    fn a_pair_goes_up_when_both_can_receive() {
        let mut one = Generation::new();
        start(&mut one);
        assert_eq!(one.handle_start(), Action::Nothing);
        assert_eq!(one.handle_ready(1), Action::Nothing);
        assert_eq!(one.handle_proposal(1, Time(0)), Action::Join);
        assert_eq!(one.handle_joined(), Action::GoUp);
        assert_eq!(one.phase, Phase::Up);
    }

    #[test]
    fn the_first_cause_is_kept_until_something_gets_through() {
        let mut one = Generation::new();
        start(&mut one);
        one.handle_proposal(1, Time(0));
        one.handle_joined();
        one.handle_ready(1);
        assert_eq!(one.handle_fault(Time(5), "first"), Action::End);
        assert_eq!(one.handle_fault(Time(7), "before the end"), Action::Nothing);
        assert_eq!(one.handle_ended(), Action::Begin(2));
        let action = one.handle_fault(Time(9), "second");
        assert_eq!(begin(&mut one, action), Action::Begin(3));
        let first = Trouble {
            since: Time(5),
            cause: Cause::Here("first".into()),
        };
        assert_eq!(one.trouble, Some(first));
        assert_eq!(
            one.explain("it has left"),
            "it has left; before that: first"
        );
        assert!(!one.is_over(Time(14), Duration::from_nanos(10)));
        assert!(one.is_over(Time(15), Duration::from_nanos(10)));
        one.handle_proof();
        assert!(one.is_over(Time(15), Duration::from_nanos(10)), "of before");
        one.handle_proposal(3, Time(16));
        one.handle_joined();
        assert_eq!(one.handle_ready(3), Action::GoUp);
        one.handle_proof();
        assert_eq!(one.trouble, None);
    }

    #[test]
    fn a_pair_that_is_apart_looks_again_later_or_at_news() {
        let mut one = Generation::new();
        start(&mut one);
        one.handle_apart(Time(0), "no common rail");
        assert_eq!(one.handle_time(Time(1), false), Action::Nothing);
        assert_eq!(one.handle_fault(Time(1), "again"), Action::Nothing);
        let action = one.handle_time(Time(1), true);
        assert_eq!(begin(&mut one, action), Action::Begin(2));
        one.handle_apart(Time(1), "no common rail");
        let later = Time(1).after(LOOK_AGAIN);
        assert_eq!(one.next_timeout(Duration::from_secs(9)), Some(later));
        let action = one.handle_time(later, false);
        assert_eq!(begin(&mut one, action), Action::Begin(3));
    }

    /// One side over a wire that keeps order, as the control transport does.
    struct Side {
        state: Generation,
        inbox: VecDeque<(bool, u32)>,
        /// The generation in which the queues can receive.
        can_receive: u32,
    }

    fn act(sides: &mut [Side; 2], at: usize, action: Action) {
        match action {
            // The queues end some time later.
            Action::Nothing | Action::GoUp | Action::End => {}
            Action::Begin(number) => {
                sides[at].can_receive = 0;
                sides[1 - at].inbox.push_back((true, number));
            }
            Action::BeginAndJoin(number) => {
                act(sides, at, Action::Begin(number));
                act(sides, at, Action::Join);
            }
            Action::Join => {
                let number = sides[at].state.number;
                sides[at].can_receive = number;
                let next = sides[at].state.handle_joined();
                sides[1 - at].inbox.push_back((false, number));
                act(sides, at, next);
            }
        }
    }

    #[test]
    fn whatever_fails_when_both_end_in_the_same_generation() {
        for seed in 0..500 {
            let mut prng = Prng::new(seed);
            let side = || Side {
                state: Generation::new(),
                inbox: VecDeque::new(),
                can_receive: 0,
            };
            let mut sides = [side(), side()];
            let mut faults = prng.below(10);
            for at in 0..2 {
                let action = sides[at].state.handle_start();
                act(&mut sides, at, action);
            }
            for _ in 0..10_000 {
                let at = prng.below(2) as usize;
                if prng.below(3) == 0 {
                    let action = sides[at].state.handle_ended();
                    act(&mut sides, at, action);
                } else if faults > 0 && prng.below(5) == 0 {
                    faults -= 1;
                    let action = sides[at].state.handle_fault(Time(1), "a fault");
                    act(&mut sides, at, action);
                } else if let Some((is_proposal, number)) = sides[at].inbox.pop_front() {
                    let action = match is_proposal {
                        true => sides[at].state.handle_proposal(number, Time(1)),
                        false => sides[at].state.handle_ready(number),
                    };
                    act(&mut sides, at, action);
                }
                // Who posts has a peer that can receive in this generation, or has gone on to a
                // later one.
                for at in 0..2 {
                    let (own, peer) = (&sides[at], &sides[1 - at]);
                    if own.state.phase == Phase::Up {
                        assert!(
                            peer.can_receive == own.state.number
                                || peer.state.number > own.state.number,
                            "seed {seed}"
                        );
                    }
                }
                let is_still = |s: &Side| s.inbox.is_empty() && s.state.phase != Phase::Ending;
                if faults == 0 && sides.iter().all(is_still) {
                    break;
                }
            }
            assert_eq!(sides[0].state.number, sides[1].state.number, "seed {seed}");
            assert!(
                sides.iter().all(|s| s.state.phase == Phase::Up),
                "seed {seed}: {:?} {:?}",
                sides[0].state,
                sides[1].state
            );
        }
    }

    #[test]
    fn a_fault_of_the_peer_is_told_with_what_it_has_left() {
        let mut one = Generation::new();
        start(&mut one);
        one.handle_proposal(1, Time(0));
        one.handle_joined();
        one.handle_ready(1);
        let action = one.handle_proposal(2, Time(1));
        assert_eq!(begin(&mut one, action), Action::BeginAndJoin(2));
        assert_eq!(one.handle_ended(), Action::Nothing);
        for _ in 0..2 {
            one.handle_apart(Time(2), "it has no rxe1");
            assert_eq!(
                one.explain("it has left"),
                "it has left; before that: the peer's queue pair failed; it has no rxe1"
            );
        }
    }
}
