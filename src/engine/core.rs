//! [`Engine`]: the state of one rank in one communicator, and how it is driven.

use super::driver::{Driver, Host};
use super::links::{Contact, Links};
use super::numbers::Numbers;
use super::pool::Pool;
use super::remote::Remotes;
use super::round::Round;
use super::staged::Staged;
use super::state::{Failing, Leaving, Notices, Publishing};
use super::tag::Token;
use super::tagged::Tagged;
use super::task::Tasks;
use super::under_way::UnderWay;
use crate::config::Config;
use crate::error::{Error, Result};
use crate::memory::{Region, RegionKey, View};
use crate::time::Time;
use crate::transport::{Completion, Event, Outcome, Transport, WaitSource};
use crate::types::Rank;
use crate::wait::Activity;
use std::sync::Arc;
use std::time::Duration;

/// How often a thread that waits looks at control sockets and timeouts.
const SLOW_EVERY: Duration = Duration::from_millis(2);

/// A number of signals that never come while a thread sleeps.
const SIGNALS_NEVER: u32 = 1 << 30;
/// Polls for the news of peers. A peer has fewer messages of the engine under way, and one that
/// never ends to send holds nobody up.
const NEWS_POLLS_MAX: u32 = 64;
/// Looks for news within one another: what has come may be another leave, before which this rank
/// looks again. A thousand leaves at once would fill the stack.
const NEWS_DEPTH_MAX: u32 = 8;

/// The engine of one rank in one communicator.
pub struct Engine {
    pub(super) driver: Driver,
    pub(super) config: Config,
    /// The time of this drive.
    pub(super) now: Time,
    pub(super) events: Vec<Event>,
    pub(super) rounds: UnderWay,
    /// A round that [`Engine::run_at_once`] has begun and could not end. The next task takes it
    /// over.
    pub(super) begun: Option<Box<Round>>,
    pub(super) tasks: Tasks,
    pub(super) numbers: Numbers,
    /// Whether `do_chores` has something to do.
    pub(super) has_chores: bool,
    pub(super) publishing: Publishing,
    /// A thread sleeps until a certain number of signals has come. A round that begins ends this,
    /// because the number leaves out the signals of that round.
    pub(super) wants_signals: bool,
    /// The collective of which this rank does not know yet whether all ranks' memory is registered.
    /// No later one starts.
    pub(super) undecided: Option<u64>,
    pub(super) staged: Staged,
    /// Per peer: how many sends to it, and how many receives from it, pairwise rounds have had.
    pub(super) pair_counts: Vec<(u64, u64)>,
    pub(super) tagged: Tagged,
    pub(super) remotes: Remotes,
    pub(super) failing: Failing,
    pub(super) leaving: Leaving,
    pub(super) notices: Notices,
    /// When [`Engine::drive_slow`] is due again.
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
            now: Time::default(),
            events: Vec::new(),
            rounds: UnderWay::default(),
            begun: None,
            tasks: Tasks::default(),
            numbers: Numbers::new(),
            has_chores: false,
            publishing: Publishing::default(),
            wants_signals: false,
            undecided: None,
            staged: Staged::new(),
            pair_counts: vec![(0, 0); ranks as usize],
            tagged: Tagged::new(ranks),
            remotes: Remotes::default(),
            failing: Failing::default(),
            leaving: Leaving::default(),
            notices: Notices::default(),
            slow_at: Time::default(),
        })
    }

    /// What peers need to know of this rank. Bootstrap carries it to them.
    pub fn contact(&self) -> Contact {
        self.driver.links.contact()
    }

    /// Begins to connect to every rank. `contacts` has one entry per rank; `neighbours` are the
    /// other ranks of this host. The caller then calls [`Engine::poll_connect`] until it returns
    /// true.
    pub fn connect(&mut self, contacts: Arc<[Contact]>, neighbours: Vec<Rank>) -> Result<()> {
        self.driver.links.connect(contacts, neighbours)
    }

    /// Whether all ranks of this host map each other's memory; known when operations can start, and
    /// equal on all ranks of the host.
    pub fn maps_host(&self) -> bool {
        self.driver.links.maps_host
    }

    /// Goes on with connecting; true when operations can start.
    pub fn poll_connect(&mut self, now: Time) -> Result<bool> {
        let mut events = std::mem::take(&mut self.events);
        let is_ready = self.driver.links.poll_connect(now, &mut events);
        events.clear();
        self.events = events;
        if is_ready == Ok(true) {
            // A peer that has all it needs may have left before this rank was ready. Its messages
            // are handled before its leave, because one of them may name another rank as the cause
            // of that leave.
            self.now = now;
            self.config.window_bytes = self.driver.links.window_bytes;
            for (peer, tag) in std::mem::take(&mut self.driver.links.unmatched) {
                self.handle_unmatched(peer, tag);
            }
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

    /// Sets how long an operation may make no progress, unless the operation says so itself.
    pub fn set_timeout(&mut self, timeout: Duration) {
        self.config.timeout = timeout;
    }

    /// The transport.
    pub fn transport(&mut self) -> &mut dyn Transport {
        self.driver.links.transport.as_mut()
    }

    /// The name of the transport.
    pub fn transport_name(&self) -> &'static str {
        self.driver.links.transport.capabilities().name
    }

    /// Whether the transport joins ranks of one host only.
    pub fn is_of_one_host(&self) -> bool {
        self.driver.links.transport.capabilities().one_host
    }

    /// What a thread that waits may sleep on.
    pub fn wait_source(&self) -> WaitSource {
        self.driver.links.transport.wait_source()
    }

    /// When the transport must be driven again even if nothing arrives.
    pub fn next_timeout(&self) -> Option<Time> {
        self.driver.links.transport.next_timeout()
    }

    /// Whether peers on this host can map the region with this key.
    #[inline]
    pub fn is_mappable(&self, key: RegionKey) -> bool {
        let transport = self.driver.links.transport.as_ref();
        key.is_some() && (transport.capabilities().mapped || transport.is_mappable(key))
    }

    /// Whether the regions of a peer are mapped here ([`Engine::map`]).
    pub fn maps(&self, peer: Rank) -> bool {
        let transport = self.driver.links.transport.as_ref();
        let capabilities = transport.capabilities();
        capabilities.mapped || (capabilities.host_mapped && transport.maps(peer))
    }

    /// A region of a peer as memory of this process, which is there as long as the engine is.
    /// `None`: it is not known yet, and will be when the peer has exported it.
    pub fn map(&mut self, peer: Rank, key: RegionKey) -> Result<Option<View>> {
        let transport = &mut self.driver.links.transport;
        let view = transport.mapped(peer, key)?;
        if view.is_some() {
            transport.pin(peer, key);
        }
        Ok(view)
    }

    /// Registers a region. Where peers would map a region that is not shared memory, this returns
    /// [`RegionKey::NONE`] instead.
    pub fn register(&mut self, region: Arc<Region>) -> Result<RegionKey> {
        // A rank that takes and frees memory all the time may never wait long enough for
        // `drive_slow`, so freed regions are released here, too.
        self.release_freed();
        let transport = &mut self.driver.links.transport;
        let capabilities = transport.capabilities();
        let is_mapped = capabilities.mapped && capabilities.shared_regions;
        match is_mapped && region.file().is_none() {
            true => Ok(RegionKey::NONE),
            false => transport.register(region),
        }
    }

    /// Registers memory of a caller for more than one call. An operation that fails ends the
    /// registration before its caller is told. Returns [`RegionKey::NONE`] after that, and where
    /// [`Engine::register`] does.
    pub fn register_cached(&mut self, region: Arc<Region>) -> Result<RegionKey> {
        if self.failing.has_ended_cached || self.failing.cause.is_some() {
            return Ok(RegionKey::NONE);
        }
        let key = self.register(region)?;
        self.failing.cached.extend(key.is_some().then_some(key));
        Ok(key)
    }

    /// Whether a registration of [`Engine::register_cached`] has not ended.
    pub fn keeps_cached(&self) -> bool {
        !self.failing.has_ended_cached
    }

    /// Ends the registrations of [`Engine::register_cached`]: no peer writes or reads that memory
    /// afterwards.
    pub(super) fn end_cached(&mut self) {
        self.failing.has_ended_cached = true;
        for key in std::mem::take(&mut self.failing.cached) {
            // A key is unknown if its buffer was dropped before.
            let _ = self.driver.links.transport.deregister(key);
        }
    }

    /// Ends a registration.
    pub fn deregister(&mut self, key: RegionKey) -> Result<()> {
        self.failing.cached.retain(|&cached| cached != key);
        self.driver.links.transport.deregister(key)
    }

    /// Copies between views of equal length. The copy is one of several, of `bytes_together` bytes
    /// in all. It uses threads and streaming stores as a step of a schedule does.
    pub fn copy(&mut self, source: View, destination: View, bytes_together: usize) {
        self.driver.copy(source, destination, bytes_together);
    }

    /// Does everything that can be done now; returns whether anything moved. It is never inlined,
    /// so that a profile shows the engine's own work under this name.
    #[inline(never)]
    pub fn drive(&mut self, now: Time) -> bool {
        self.driver.moved = false;
        self.now = now;
        if self.publishing.is_quiet {
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
        if self.driver.moved {
            // The caller may have what it waits for, and drive no more for long.
            self.driver.links.transport.hand_over();
        }
        self.driver.moved
    }

    /// Does the rare work: tells failures and leaves, publishes counts, starts calls in the queue,
    /// sends notices. One flag says whether there is any, because a look for each kind at every
    /// drive would touch three cache lines.
    #[inline(never)]
    fn do_chores(&mut self, now: Time) {
        if self.driver.is_profiled() {
            self.note_wait(Activity::Polling);
        }
        if std::mem::take(&mut self.failing.looks_for_strays) {
            self.check_strays();
        }
        if self.failing.cause.is_some() {
            self.tell_failure();
            return;
        }
        if !self.publishing.to.is_empty() {
            self.publish();
        }
        if !self.tasks.queue.is_empty() {
            self.start_queued(now);
        }
        if self.remotes.has_work() {
            self.run_remotes();
        }
        if !self.driver.links.connecting.is_empty() {
            self.go_on_connecting();
        }
        if self.notices.has_unsent {
            self.send_notices();
        }
        if !self.leaving.untold.is_empty() {
            self.tell_left();
        }
        self.has_chores = self.failing.cause.is_some()
            || self.notices.has_unsent
            || !self.leaving.untold.is_empty()
            || !self.tasks.queue.is_empty()
            || !self.publishing.to.is_empty()
            || self.remotes.has_work()
            || !self.driver.links.connecting.is_empty()
            || self.driver.is_profiled();
    }

    /// A thread is about to sleep: from now on all that arrives wakes it. After this call it looks
    /// once more at what has arrived already.
    pub fn want_anything(&mut self) {
        self.driver.links.transport.want_signals(0);
        self.wants_signals = false;
    }

    /// The calling thread has driven, nothing has moved, and no other thread is about to sleep.
    /// From now on signals wake it only when as many have come as are needed to move anything. With
    /// `is_idle`, signals do not wake it at all; without it, this ends when a round begins.
    pub fn want_signals(&mut self, is_idle: bool) {
        // A number of 1 is announced, too, because the retirement counts of peers wake every rank
        // that has announced no number.
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
        let is_blocked = self.failing.cause.is_some()
            || self.notices.has_unsent
            || !self.tasks.queue.is_empty()
            || !self.publishing.to.is_empty()
            || !self.remotes.is_idle();
        if is_blocked {
            return 0;
        }
        let wanted = self
            .rounds
            .all()
            .filter_map(|round| match round.has_runnable() {
                true => Some(0),
                false => self.driver.signals_wanted(round),
            });
        wanted.min().unwrap_or(SIGNALS_NEVER)
    }

    /// Calls [`Engine::drive_slow`], but at most once per `SLOW_EVERY`.
    pub fn drive_slow_if_due(&mut self, now: Time) {
        if now >= self.slow_at {
            self.slow_at = now.after(SLOW_EVERY);
            self.drive_slow(now);
        }
    }

    /// The slow part of driving: control sockets, hang-ups, timeouts. A thread calls it before it
    /// sleeps, and every few milliseconds of a long wait.
    pub fn drive_slow(&mut self, now: Time) {
        self.now = now;
        (self.driver.links.transport).poll_slow(now, &mut self.events);
        self.handle_events();
        self.check_strays();
        if self.failing.cause.is_none() {
            self.check_silence(now);
        }
        self.tell_failure();
        self.release_freed();
    }

    /// Takes and handles what has arrived.
    #[inline(always)]
    pub(super) fn poll_events(&mut self) {
        let transport = self.driver.links.transport.as_mut();
        transport.poll(self.now, &mut self.events);
        if !self.events.is_empty() {
            self.handle_events();
        }
    }

    /// Takes and handles all that has arrived. A message of the engine itself meets a receive only
    /// when the one before it has been handled, so several polls may be needed. The last message of
    /// a peer that has left may tell the cause of a failure.
    #[cold]
    pub(super) fn take_all_events(&mut self) {
        if self.failing.looking >= NEWS_DEPTH_MAX {
            return;
        }
        self.failing.looking += 1;
        for _ in 0..NEWS_POLLS_MAX {
            let transport = self.driver.links.transport.as_mut();
            transport.poll(self.now, &mut self.events);
            if self.events.is_empty() {
                break;
            }
            self.handle_events();
        }
        self.failing.looking -= 1;
        self.fail_if_found();
    }

    /// Handles the events at hand. Nearly all are completions of messages of rounds. The steps that
    /// a message lets start run at once, which is faster than leaving them to
    /// [`Engine::run_rounds`].
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
            let Some(round) = self.rounds.at_mut(place) else {
                continue;
            };
            // Rounds of a communicator that has failed are over.
            if self.failing.cause.is_some() || !round.token.is_of(completion.token) {
                continue;
            }
            round.last_moved = self.now;
            let driver = &mut self.driver;
            let ended = driver.end_message(round, (step, chunk), completion);
            if let Err(error) = ended {
                // `fail_round` polls again, into a list of its own.
                let events = std::mem::take(&mut self.events);
                self.fail_round(place, *error);
                self.events = events;
            }
        }
        self.events.clear();
        if self.failing.found.is_some() {
            self.fail_if_found();
        }
    }

    /// Handles an event that is no completion of a round: of a connection, or of a message or
    /// signal of the engine itself.
    #[inline(never)]
    fn handle_other(&mut self, number: usize) {
        // A handler may poll again, into a list of its own.
        let events = std::mem::take(&mut self.events);
        match &events[number] {
            Event::PeerFailed(peer, cause) => self.handle_peer_failed(*peer, cause.clone()),
            Event::PeerLeft(peer, done) => self.handle_peer_left(*peer, *done),
            Event::Unmatched(peer, tag) => self.handle_unmatched(*peer, *tag),
            Event::Connected(peer) => self.driver.links.note_connected(*peer),
            Event::Completion(completion) => self.handle_own(completion, self.now),
        }
        self.events = events;
    }

    /// A message or signal of the engine itself has ended.
    fn handle_own(&mut self, completion: &Completion, now: Time) {
        match Token::parse(completion.token) {
            Token::ControlReceive(peer) => self.handle_control(peer, completion, now),
            Token::NoticeReceive(peer) => self.handle_notice(peer, completion),
            Token::Remote(place, generation) => {
                self.handle_remote((place, generation), completion);
            }
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
