//! The engine: runs schedules on a transport.
//!
//! * A *task* is one call of the user. It becomes one *round* (an execution of a schedule), or
//!   several when memory that is not registered is staged through windows: one per segment.
//! * Collective rounds are numbered in the order of the calls; the number selects flag lines and
//!   windows (`control.rs`) and is part of every tag (`tag.rs`). Sends and receives of pairs are
//!   numbered per pair.
//! * Any number of tasks may be under way; at most [`crate::limits::OPERATION_SLOTS`] collective
//!   rounds are, and the others wait in order.
//! * A task that would reach peers' buffers directly asks first: the first signals of its round
//!   carry everyone's registrations. If one is missing, all ranks see it and stage the call
//!   instead, and the next ones like it at once (`staged.rs`). Until that is known no later
//!   collective starts, so that all ranks number rounds alike.
//! * Nothing here blocks. [`Engine::drive`] does what can be done now; anyone who waits calls it
//!   (`wait.rs`).
//!
//! `progress.rs` is the order of steps, `driver.rs` runs them, `tasks.rs` takes calls, `rounds.rs`
//! starts and ends rounds, `fault.rs` turns silence and disagreement into errors on every rank,
//! `news.rs` is how they are told; `leaving.rs` says what a rank that ends in good order leaves to
//! the others; `members.rs` is for ending a communicator on purpose and for making a new one of its
//! survivors; `notices.rs` carries words that belong to no operation; `lent.rs` lets a root have
//! what ranks that sleep would contribute.

mod arguments;
mod around;
mod at_once;
mod clock;
mod control;
#[cfg(test)]
mod control_tests;
mod crew;
mod driver;
mod fault;
mod fold;
mod gate;
mod leaving;
mod lent;
mod links;
mod members;
mod memory;
mod news;
mod notices;
mod pool;
mod posts;
mod prepared;
mod program;
mod progress;
mod round;
mod rounds;
mod signature;
mod staged;
mod tag;
mod tasks;
mod wait;

#[cfg(test)]
mod tests;

pub use arguments::Arguments;
pub use at_once::AtOnce;
pub use clock::Clock;
pub(crate) use fault::name_ranks;
pub use links::Contact;
pub use prepared::Prepared;
pub use tasks::{TaskCall, TaskId};
pub use wait::{Patience, SpinTime, Step as WaitStep};

use crate::config::Config;
use crate::error::{Error, Result};
use crate::limits::OPERATION_SLOTS;
use crate::memory::{Region, RegionKey, View};
use crate::time::Time;
use crate::transport::{Completion, Event, Outcome, Transport, WaitSource};
use crate::types::Rank;
use driver::Driver;
use fault::Suspect;
use leaving::{GivenUp, Left};
use lent::Lent;
use links::Links;
use notices::Notices;
use pool::Pool;
use round::Round;
use staged::Staged;
use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;
use tag::Token;
use tasks::Task;

/// Control sockets and timeouts are looked at this often while somebody waits.
const SLOW_EVERY: Duration = Duration::from_millis(2);

/// More signals than come while a thread sleeps.
const SIGNALS_NEVER: u32 = 1 << 30;

/// Operations whose signatures are remembered, to compare with a peer that asks.
const HISTORY: usize = 64;
const _: () = assert!(HISTORY as u64 >= 2 * OPERATION_SLOTS);

/// What the engine may use of its host.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Host {
    /// Threads that share large copies and reductions, the driving one included.
    pub threads_max: usize,
    /// Bytes of the last-level cache, `usize::MAX` if unknown: operations that touch as many write
    /// around it.
    pub cache_bytes: usize,
    /// Buffers have no bytes (simulation).
    pub is_size_only: bool,
}

/// The engine of one rank in one communicator. What every drive touches comes first, together.
#[repr(C, align(64))]
pub struct Engine {
    now: Time,
    events: Vec<Event>,
    rounds: Vec<Option<Box<Round>>>,
    /// There is a `failure`.
    has_failed: bool,
    /// It has failed, or counts, notices or rounds wait to be published, sent or started.
    has_chores: bool,
    /// Peers may not have been woken since the last count was published.
    is_publishing_quietly: bool,
    /// Notices wait for room.
    has_unsent: bool,
    /// A sleeping thread is not woken by every signal, and has to be by those of rounds that begin
    /// later.
    wants_signals: bool,
    /// A peer has said that all ranks are connected.
    is_confirmed: bool,
    driver: Driver,
    /// Places of rounds under way, in the order in which they started.
    active: Vec<u32>,
    tasks: Vec<Task>,
    /// Collective rounds published to the peers as retired.
    published: u64,
    publish_to: Vec<Rank>,
    /// Collective tasks of which rounds are still to be started, oldest first.
    queue: VecDeque<usize>,
    /// A round whose ranks have not all said whether their memory is registered.
    undecided: Option<u64>,
    failure: Option<Error>,
    config: Config,
    free_tasks: Vec<usize>,
    free_places: Vec<u32>,
    // Boxed, because a round moves between lists and is large.
    #[allow(clippy::vec_box)]
    spare_rounds: Vec<Box<Round>>,
    /// A round that [`Engine::run_at_once`] could not end, for the task that follows.
    begun: Option<Box<Round>>,
    generation: u32,
    next_sequence: u64,
    is_retired: [bool; OPERATION_SLOTS as usize],
    /// Least retired count of the peers at the last look.
    retired_by_all: u64,
    staged: Staged,
    /// Messages sent to and received from each peer by pairwise rounds.
    pair_counts: Vec<(u64, u64)>,
    history: [(u64, signature::Signature); HISTORY],
    /// What a peer has said of a failure, and which one, until this rank has failed with it.
    told: Option<(Rank, Error)>,
    /// Peers that had no room for the news of the failure.
    untold: Vec<Rank>,
    /// The first collective that cannot end any more, by whose leave.
    left: Option<Left>,
    /// What of that the others have been told, and those that had no room for it.
    told_left: Option<Left>,
    untold_left: Vec<Rank>,
    given_up: GivenUp,
    /// This rank has said goodbye.
    is_leaving: bool,
    /// The generation at which regions that peers had freed were last let go.
    released_at: u32,
    suspect: Option<Suspect>,
    /// The round that was last compared with what peers are in.
    compared: Option<u32>,
    notices: Notices,
    /// What of the next collective is with its root already.
    lent: Option<Lent>,
    /// Tasks that have ended so far.
    ended_count: u64,
    /// When the slow part is due again.
    slow_at: Time,
}

impl Engine {
    /// The engine of `rank` on this transport.
    pub fn new(
        transport: Box<dyn Transport>,
        rank: Rank,
        ranks: u32,
        config: Config,
        host: Host,
    ) -> Result<Engine> {
        let is_shared = transport.capabilities().shared_regions;
        let links = Links::new(transport, rank, ranks, config.window_bytes)?;
        Ok(Engine {
            driver: Driver::new(
                links,
                Pool::new(host.is_size_only, is_shared),
                config.chunk_bytes,
                host,
            ),
            config,
            tasks: Vec::new(),
            free_tasks: Vec::new(),
            queue: VecDeque::new(),
            rounds: Vec::new(),
            free_places: Vec::new(),
            spare_rounds: Vec::new(),
            begun: None,
            active: Vec::new(),
            has_failed: false,
            has_chores: false,
            generation: 0,
            next_sequence: 0,
            undecided: None,
            published: 0,
            publish_to: Vec::new(),
            is_publishing_quietly: false,
            is_retired: [false; OPERATION_SLOTS as usize],
            retired_by_all: 0,
            staged: Staged::new(),
            pair_counts: vec![(0, 0); ranks as usize],
            history: [(u64::MAX, signature::Signature(0)); HISTORY],
            failure: None,
            told: None,
            untold: Vec::new(),
            left: None,
            told_left: None,
            untold_left: Vec::new(),
            given_up: GivenUp::default(),
            is_leaving: false,
            released_at: 0,
            suspect: None,
            compared: None,
            notices: Notices::default(),
            lent: None,
            has_unsent: false,
            wants_signals: false,
            ended_count: 0,
            is_confirmed: false,
            events: Vec::new(),
            now: Time::default(),
            slow_at: Time::default(),
        })
    }

    /// What peers need to know of this rank, for bootstrap to carry to them.
    pub fn contact(&self) -> Contact {
        self.driver.links.contact()
    }

    /// Begins to connect to everyone, whose contacts come by rank; then [`Engine::poll_connect`]
    /// until it says true.
    pub fn connect(&mut self, contacts: Arc<[Contact]>) -> Result<()> {
        self.driver.links.connect(contacts)
    }

    /// Goes on with connecting; true when operations can start.
    pub fn poll_connect(&mut self, now: Time) -> Result<bool> {
        let mut events = std::mem::take(&mut self.events);
        let is_ready = self.driver.links.poll_connect(now, &mut events);
        events.clear();
        self.events = events;
        if is_ready == Ok(true) {
            // Ranks that have all they need may have left before this one was ready. What they said
            // before comes first: it may name another rank, because of which they have left.
            self.now = now;
            self.poll_events();
            let left: Vec<(Rank, u64)> = self.driver.links.left().collect();
            for (peer, done) in left {
                self.handle_peer_left(peer, done);
            }
        }
        is_ready
    }

    /// This rank.
    pub fn rank(&self) -> Rank {
        self.driver.links.rank
    }

    /// Number of ranks.
    pub fn ranks(&self) -> u32 {
        self.driver.links.ranks
    }

    /// The settings.
    pub fn config(&self) -> &Config {
        &self.config
    }

    /// The transport.
    pub fn transport(&mut self) -> &mut dyn Transport {
        self.driver.links.transport.as_mut()
    }

    /// What a thread that waits may sleep on.
    pub fn wait_source(&self) -> WaitSource {
        self.driver.links.transport.wait_source()
    }

    /// When the transport must be driven again even if nothing arrives.
    pub fn next_timeout(&self) -> Option<Time> {
        self.driver.links.transport.next_timeout()
    }

    /// Registers a region.
    pub fn register(&mut self, region: Arc<Region>) -> Result<RegionKey> {
        // Where ranks take and free memory all the time, and never wait long, this is the place to
        // let go of it.
        self.release_freed();
        self.driver.links.transport.register(region)
    }

    /// Ends a registration.
    pub fn deregister(&mut self, key: RegionKey) -> Result<()> {
        self.driver.links.transport.deregister(key)
    }

    /// Copies between views of equal length, one of several copies of `bytes_together` bytes: by
    /// the threads and around the caches, as a step of a schedule would.
    pub fn copy(&mut self, source: View, destination: View, bytes_together: usize) {
        self.driver.copy(source, destination, bytes_together);
    }

    /// Does everything that can be done now; whether anything moved. Never inlined, so that anyone
    /// who counts instructions finds the engine's own here.
    #[inline(never)]
    pub fn drive(&mut self, now: Time) -> bool {
        self.driver.moved = false;
        self.now = now;
        if self.is_publishing_quietly {
            self.wake_published();
            self.check_strays();
        }
        self.poll_events();
        if self.driver.has_work {
            self.run_rounds(now);
        }
        if self.has_chores {
            self.do_chores(now);
        }
        self.driver.moved
    }

    /// What is neither a message nor a round, and rarely there: to look for each kind of it at
    /// every drive took three cache lines.
    #[inline(never)]
    fn do_chores(&mut self, now: Time) {
        if self.failure.is_some() {
            self.tell_failure();
            return;
        }
        if !self.publish_to.is_empty() {
            self.publish();
        }
        if !self.queue.is_empty() {
            self.start_queued(now);
        }
        if self.has_unsent {
            self.send_notices();
        }
        if !self.untold_left.is_empty() {
            self.tell_left();
        }
        self.has_chores = self.failure.is_some()
            || self.has_unsent
            || !self.untold_left.is_empty()
            || !self.queue.is_empty()
            || !self.publish_to.is_empty();
    }

    /// A thread is about to sleep, and looks what has come after this: whatever comes later wakes
    /// it.
    pub fn want_anything(&mut self) {
        self.driver.links.transport.want_signals(0);
        self.wants_signals = false;
    }

    /// The thread has driven, which moved nothing, and is the only one that sleeps: signals wake it
    /// only when as many have come as are needed to move anything; with `is_idle` only something
    /// else does. Unless that, until a round begins.
    pub fn want_signals(&mut self, is_idle: bool) {
        // One is said too: the counts of peers, which wake anyone who has not said what it sleeps
        // for, do not wake this rank then.
        let wanted = match self.signals_wanted() {
            1.. if is_idle => SIGNALS_NEVER,
            wanted => wanted,
        };
        if wanted > 0 {
            self.driver.links.transport.want_signals(wanted);
            self.wants_signals = !is_idle;
        }
    }

    /// How many signals have to come before anything can move, if nothing else comes; 0: not known.
    fn signals_wanted(&self) -> u32 {
        let is_blocked = self.failure.is_some()
            || self.has_unsent
            || !self.queue.is_empty()
            || !self.publish_to.is_empty();
        if is_blocked {
            return 0;
        }
        let rounds = self.active.iter();
        let rounds = rounds.filter_map(|&place| self.rounds[place as usize].as_ref());
        let wanted = rounds.filter_map(|round| match round.has_runnable() {
            true => Some(0),
            false => self.driver.signals_wanted(round),
        });
        // What was lent is followed by one signal.
        let of_lent = self.lent.map(|_| 1);
        wanted.chain(of_lent).min().unwrap_or(SIGNALS_NEVER)
    }

    /// [`Engine::drive_slow`], if the last time is long enough ago.
    pub fn drive_slow_if_due(&mut self, now: Time) {
        if now >= self.slow_at {
            self.slow_at = now.after(SLOW_EVERY);
            self.drive_slow(now);
        }
    }

    /// The slow part of driving: control sockets, hang-ups, timeouts. Before a wait sleeps, and
    /// every few milliseconds of a long one.
    pub fn drive_slow(&mut self, now: Time) {
        self.now = now;
        (self.driver.links.transport).poll_slow(now, &mut self.events);
        self.handle_events();
        self.check_strays();
        if self.failure.is_none() {
            self.check_silence(now);
        }
        self.tell_failure();
        self.release_freed();
    }

    /// Takes what has arrived.
    #[inline(always)]
    fn poll_events(&mut self) {
        let transport = self.driver.links.transport.as_mut();
        transport.poll(self.now, &mut self.events);
        if !self.events.is_empty() {
            self.handle_events();
        }
    }

    /// Nearly all events are the ends of messages of rounds; what one lets start is run at once: as
    /// work for [`Engine::run_rounds`] it took a third more instructions.
    #[inline(always)]
    fn handle_events(&mut self) {
        let mut handled = 0;
        while let Some(event) = self.events.get(handled) {
            handled += 1;
            let Event::Completion(completion) = event else {
                self.handle_other(handled - 1);
                continue;
            };
            let Token::Step { round, step, chunk } = Token::parse(completion.token) else {
                self.handle_other(handled - 1);
                continue;
            };
            let place = round;
            let round = self.rounds.get_mut(place as usize);
            let Some(round) = round.and_then(Option::as_deref_mut) else {
                continue;
            };
            // Rounds of a communicator that has failed are over.
            if self.has_failed || !round.token.is_of(completion.token) {
                continue;
            }
            round.last_moved = self.now;
            let driver = &mut self.driver;
            let ended = driver.end_message(round, (step, chunk), completion);
            if let Err(error) = ended {
                // It polls again, into a list of its own.
                let events = std::mem::take(&mut self.events);
                self.fail_round(place, *error);
                self.events = events;
            }
        }
        self.events.clear();
    }

    /// A connection has begun or ended, or a message or signal of the engine itself has.
    #[inline(never)]
    fn handle_other(&mut self, number: usize) {
        // What it leads to may poll again, into a list of its own.
        let events = std::mem::take(&mut self.events);
        match &events[number] {
            Event::PeerFailed(peer, cause) => self.handle_peer_failed(*peer, cause.clone()),
            Event::PeerLeft(peer, done) => self.handle_peer_left(*peer, *done),
            Event::Connected(_) => {}
            Event::Completion(completion) => self.handle_own(completion, self.now),
        }
        self.events = events;
    }

    /// A message or signal of the engine itself has ended.
    fn handle_own(&mut self, completion: &Completion, now: Time) {
        match Token::parse(completion.token) {
            Token::ControlReceive(peer) => self.handle_control(peer, completion, now),
            Token::NoticeReceive(peer) => self.handle_notice(peer, completion),
            Token::Forget if completion.outcome == Outcome::BadKey => {
                let text = format!(
                    "rank {} does not know the control memory it announced",
                    completion.peer
                );
                self.fail(Error::Malformed(text), true);
            }
            // A peer that is gone is reported by an event of its own.
            Token::Forget | Token::Step { .. } => {}
        }
    }
}
