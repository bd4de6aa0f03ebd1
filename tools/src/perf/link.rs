//! [`Link`]: a transport between two ranks, and what both sides keep on it: the counts of what has
//! ended, empty messages that mark the parts of a run, and waits that give up.

use super::arena::Arena;
use super::options::Options;
use linerate::transport::{
    Address, Atomic, Completion, Event, Outcome, PortInUse, PostError, RegionKey, RemoteRange,
    Time, Traffic, Transport, View, WaitSource,
};
use linerate::unstable::wait::{Activity, Patience, Profile, SpinTime, Step};
use linerate::{Config, Error, Rank, transport};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use std::collections::VecDeque;
use std::time::{Duration, Instant};

/// Every failure between two sides ends the run, so a text is enough.
pub type Result<T> = std::result::Result<T, String>;

/// Tags of marks are in a class of their own, so that data never takes their places.
const MARK_TAGS: u64 = 1 << 62;
/// The highest byte of a token is a kind. The next byte is the stream or the mark. A number
/// follows.
const KIND_SHIFT: u32 = 56;
const STREAM_SHIFT: u32 = 48;
const KIND_POST: u64 = 0;
const KIND_RECEIVE: u64 = 1;
const KIND_MARK_SENT: u64 = 2;
const KIND_MARK: u64 = 3;
/// How long a side polls for a device's answer before it yields the core; perftest never yields. A
/// wait of some tens of microseconds, which is short for a network, then makes no system call.
const DEVICE_SPIN: Duration = Duration::from_millis(1);
const DEVICE_POLLS_PER_LOOK: u32 = 64;
/// A side that devices serve only waits for the end. After this time without events it sleeps, as
/// perftest's side waits in a read: polling would take the core from a process that shares it.
/// Until then it polls, because a peer that sends short messages without a pause needs
/// acknowledgements.
const REST_AFTER: Duration = Duration::from_micros(100);
/// The longest sleep, so that a timeout is noticed.
const REST_MAX: Duration = Duration::from_millis(100);
/// Polls without news between two calls of `poll_slow`.
const SLOW_POLLS: u32 = 4096;

/// Empty messages between the two sides.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mark {
    /// Both sides say it before they go on.
    Ready,
    /// Everything has been sent; the header says how many messages.
    End,
    /// All of that has arrived.
    Arrived,
    /// The other side works, although this side may see no data. Its arrival counts as news; it is
    /// not stored.
    Working,
}

const MARKS: [Mark; 4] = [Mark::Ready, Mark::End, Mark::Arrived, Mark::Working];
/// How often per timeout a side that works says so: the other side may see no other event.
const SIGNS_PER_TIMEOUT: u32 = 4;

/// A connected transport.
///
/// What is posted lies in the regions of an [`Arena`], which are registered, so that the transport
/// holds them; no code makes references to their bytes.
pub struct Link {
    transport: Box<dyn Transport>,
    peer: Rank,
    origin: Instant,
    /// The time at the last look at the clock, which is enough for a transport.
    coarse: Time,
    events: Vec<Event>,
    is_connected: bool,
    /// By stream.
    posts: Vec<Count>,
    receives: Vec<Count>,
    cancelled: u64,
    /// Headers of marks that have come and were not asked for yet.
    marks: [VecDeque<u64>; MARKS.len()],
    spin: SpinTime,
    patience: Patience,
    /// The least that a wait spins.
    spin_least: Duration,
    /// Where to sleep until an event, where devices do the work.
    rest: Option<WaitSource>,
    idle_polls: u32,
    idle_since: Option<Time>,
    timeout: Duration,
    /// When this side has last said that it works.
    signed_ns: u64,
    /// Where time goes, if that is measured.
    profile: Option<Profile>,
}

/// What was posted on a stream, and what of that has ended.
#[derive(Clone, Copy, Debug, Default)]
struct Count {
    made: u64,
    ended: u64,
}

/// A message that has to be posted.
#[derive(Clone, Copy, Debug)]
pub enum Post {
    /// To a receive of the stream.
    Send(View),
    /// Into the peer's memory.
    Put(View, RemoteRange),
    /// From the peer's memory.
    Get(RemoteRange, View),
    /// On a word of the peer's memory; what was there comes here.
    Atomic(Atomic, RemoteRange, View),
}

#[allow(unsafe_code)] // Posts ask for the promise that `Link` keeps.
impl Link {
    /// The transport of one side, not connected yet.
    pub fn open(config: &Config, rank: Rank, options: &Options, timeout: Duration) -> Result<Link> {
        let streams = options.streams;
        let nonce = linerate::unstable::bootstrap::nonce().map_err(text)?;
        let options = transport::Options {
            tcp: config.tcp.clone(),
            verbs: linerate::options::VerbsSettings {
                // What is measured is the device's: perftest's writes have no immediate data
                // either.
                has_device_atomics: true,
                has_plain_words: options.has_plain_words(),
                ..config.verbs.clone()
            },
            ..transport::Options::default()
        };
        let transport =
            transport::open(&config.transport, rank, 2, nonce, &options).map_err(text)?;
        // Each side has cores of its own, unless waiting shows otherwise.
        let spin = SpinTime::new(1, 1);
        // Where there is but one core, the peer may need it.
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        let is_alone = transport.ports().is_empty() || cores == 1;
        let spin_least = if is_alone {
            Duration::ZERO
        } else {
            DEVICE_SPIN
        };
        let has_devices = !transport.ports().is_empty();
        Ok(Link {
            rest: has_devices.then(|| transport.wait_source()),
            transport,
            peer: 1 - rank,
            origin: Instant::now(),
            coarse: Time::default(),
            events: Vec::with_capacity(1024),
            is_connected: false,
            posts: vec![Count::default(); streams as usize],
            receives: vec![Count::default(); streams as usize],
            cancelled: 0,
            marks: Default::default(),
            patience: Patience::new(&spin),
            spin,
            spin_least,
            idle_polls: 0,
            idle_since: None,
            timeout,
            signed_ns: 0,
            profile: None,
        })
    }

    /// Whether devices move the data.
    pub fn has_devices(&self) -> bool {
        self.rest.is_some()
    }

    /// What the peer needs to connect.
    pub fn address(&self) -> Address {
        self.transport.local_address()
    }

    /// The provider's name.
    pub fn name(&self) -> &'static str {
        self.transport.capabilities().name
    }

    /// Ports of devices in use.
    pub fn ports(&self) -> Vec<PortInUse> {
        self.transport.ports()
    }

    /// What the transport has counted since it was opened.
    pub fn counts(&self) -> Vec<(&'static str, u64)> {
        self.transport.counts()
    }

    /// Connects, and makes ready for marks.
    pub fn connect(&mut self, address: &Address) -> Result<()> {
        self.transport.connect(self.peer, address).map_err(text)?;
        self.wait("connecting", |link| Ok(link.is_connected))?;
        for mark in MARKS {
            self.expect_mark(mark as u32)?;
        }
        Ok(())
    }

    /// Registers memory and tells the peer of it.
    pub fn share(&mut self, arena: &mut Arena) -> Result<()> {
        for memory in arena.memories() {
            let key = self
                .transport
                .register(memory.region.clone())
                .map_err(text)?;
            memory.key = key;
            self.until_accepted("announcing memory", |transport, peer| {
                transport.export(peer, key)
            })?;
        }
        Ok(())
    }

    /// Waits until these regions of the peer can be used.
    pub fn learn(&mut self, keys: &[RegionKey]) -> Result<()> {
        if !self.transport.capabilities().mapped {
            return Ok(());
        }
        for &key in keys {
            self.wait("learning of the other side's memory", |link| {
                let view = link.transport.mapped(link.peer, key).map_err(text)?;
                Ok(view.is_some())
            })?;
        }
        Ok(())
    }

    /// The time now, ns.
    #[inline]
    pub fn now_ns(&mut self) -> u64 {
        let now_ns = self.origin.elapsed().as_nanos() as u64;
        self.coarse = Time(now_ns);
        now_ns
    }

    /// Data posts of a stream so far.
    #[inline]
    pub fn posts_made(&self, stream: u32) -> u64 {
        self.posts[stream as usize].made
    }

    /// Data posts of a stream that have ended.
    #[inline]
    pub fn posts_ended(&self, stream: u32) -> u64 {
        self.posts[stream as usize].ended
    }

    /// Receives of a stream so far.
    #[inline]
    pub fn receives_made(&self, stream: u32) -> u64 {
        self.receives[stream as usize].made
    }

    /// Receives of a stream that have ended.
    #[inline]
    pub fn receives_ended(&self, stream: u32) -> u64 {
        self.receives[stream as usize].ended
    }

    /// Counts from zero again; nothing is under way.
    pub fn reset_counts(&mut self) {
        self.posts.fill(Count::default());
        self.receives.fill(Count::default());
        self.cancelled = 0;
    }

    /// Posts if there is room.
    #[inline]
    pub fn try_post(&mut self, stream: u32, post: Post) -> Result<bool> {
        let peer = self.peer;
        let count = &mut self.posts[stream as usize];
        let token = token(KIND_POST, stream, count.made);
        let transport = &mut self.transport;
        let posted = match post {
            // SAFETY: see `Link`.
            Post::Send(from) => unsafe {
                transport.post_send(peer, u64::from(stream), 0, from, token)
            },
            // SAFETY: see `Link`.
            Post::Put(from, to) => unsafe { transport.post_put(peer, from, to, token) },
            // SAFETY: see `Link`.
            Post::Get(from, into) => unsafe { transport.post_get(peer, from, into, token) },
            // SAFETY: see `Link`.
            Post::Atomic(atomic, word, into) => unsafe {
                transport.post_atomic(peer, atomic, word, into, token)
            },
        };
        let is_accepted = accepted(posted)?;
        count.made += u64::from(is_accepted);
        Ok(is_accepted)
    }

    /// Posts as soon as there is room.
    pub fn post(&mut self, stream: u32, post: Post) -> Result<()> {
        while !self.try_post(stream, post)? {
            self.poll()?;
        }
        Ok(())
    }

    /// Posts a receive if there is room.
    #[inline]
    pub fn try_receive(&mut self, stream: u32, into: View) -> Result<bool> {
        let count = &mut self.receives[stream as usize];
        let token = token(KIND_RECEIVE, stream, count.made);
        let transport = &mut self.transport;
        // SAFETY: see `Link`.
        let posted = unsafe { transport.post_recv(self.peer, u64::from(stream), into, token) };
        let is_accepted = accepted(posted)?;
        count.made += u64::from(is_accepted);
        Ok(is_accepted)
    }

    /// Waits until all posts have ended, and takes back the receives for which nothing comes.
    pub fn settle(&mut self) -> Result<()> {
        let mut left = 0;
        for (stream, count) in self.receives.iter().enumerate() {
            // Receives match in order, so those that are left are the latest.
            for number in count.ended..count.made {
                let token = token(KIND_RECEIVE, stream as u32, number);
                self.transport.cancel(self.peer, token);
                left += 1;
            }
        }
        self.wait("ending what is under way", |link| {
            let is_over = |count: &Count| count.made == count.ended;
            Ok(link.cancelled == left && link.posts.iter().all(is_over))
        })
    }

    /// Sends a mark.
    pub fn say(&mut self, mark: Mark, header: u64) -> Result<()> {
        let tag = MARK_TAGS | mark as u64;
        let token = token(KIND_MARK_SENT, mark as u32, 0);
        self.until_accepted("telling the other side", |transport, peer| {
            // SAFETY: there are no bytes.
            unsafe { transport.post_send(peer, tag, header, View::empty(), token) }
        })
    }

    /// Says that this side works, if that is due at this time.
    #[inline]
    pub fn sign(&mut self, now_ns: u64) -> Result<()> {
        let since_ns = u128::from(now_ns - self.signed_ns);
        match since_ns * u128::from(SIGNS_PER_TIMEOUT) < self.timeout.as_nanos() {
            true => Ok(()),
            false => {
                self.signed_ns = now_ns;
                self.say(Mark::Working, 0)
            }
        }
    }

    /// A mark of the peer's, if it has come.
    #[inline]
    pub fn heard(&mut self, mark: Mark) -> Option<u64> {
        self.marks[mark as usize].pop_front()
    }

    /// Waits until both sides have come here.
    pub fn meet(&mut self) -> Result<()> {
        self.say(Mark::Ready, 0)?;
        self.wait("waiting for the other side", |link| {
            Ok(link.heard(Mark::Ready).is_some())
        })
    }

    /// Polls until `is_done`. `what` is for the error if nothing moves for the timeout.
    pub fn wait(
        &mut self,
        what: &str,
        mut is_done: impl FnMut(&mut Link) -> Result<bool>,
    ) -> Result<()> {
        while !is_done(self)? {
            self.poll().map_err(|e| format!("{what}: {e}"))?;
        }
        Ok(())
    }

    /// Polls once. Without news it waits a little, and fails when that has lasted for the timeout.
    #[inline]
    pub fn poll(&mut self) -> Result<bool> {
        self.transport.poll(self.coarse, &mut self.events);
        let has_news = self.take_events()?;
        self.note(Activity::Polling, has_news);
        if !has_news {
            self.idle()?;
        }
        Ok(has_news)
    }

    /// Where the time of this side goes, while it has a profile.
    pub fn profile(&mut self) -> &mut Option<Profile> {
        &mut self.profile
    }

    /// Notes what this side has done since the last note. If nothing has `moved`, it has waited.
    #[inline]
    pub fn note(&mut self, activity: Activity, moved: bool) {
        if let Some(profile) = &mut self.profile {
            let traffic = if moved {
                Traffic::Moving
            } else {
                self.transport.traffic()
            };
            profile.note(Activity::of_wait(activity, traffic));
        }
    }

    /// Polls once, on a side that only has to be there. If devices serve it, it sleeps when there
    /// has been no news for a while.
    pub fn rest(&mut self) -> Result<bool> {
        let has_news = self.poll()?;
        let Some(WaitSource::Descriptor { ready, .. }) = self.rest.clone() else {
            return Ok(has_news);
        };
        let is_early = |since: Time| self.coarse.since(since) < REST_AFTER;
        if has_news || self.idle_since.is_none_or(is_early) {
            return Ok(has_news);
        }
        // What comes from here on makes the descriptor readable.
        let now = Time(self.now_ns());
        self.transport.poll_slow(now, &mut self.events);
        if self.events.is_empty() {
            let timeout = Timespec::try_from(REST_MAX).expect("a short time");
            let mut ready = [PollFd::new(&*ready, PollFlags::IN)];
            // A signal wakes it early, and nothing else can go wrong.
            let _ = poll(&mut ready, Some(&timeout));
            self.note(Activity::Sleeping, false);
        }
        if !self.take_events()? {
            self.check_idle(now)?;
        }
        Ok(true)
    }

    /// Handles what has come; whether there was any.
    #[inline]
    fn take_events(&mut self) -> Result<bool> {
        if self.events.is_empty() {
            return Ok(false);
        }
        if self.idle_polls > 0 {
            self.spin.learn(self.patience.last());
            self.patience = Patience::new(&self.spin);
            (self.idle_polls, self.idle_since) = (0, None);
        }
        let mut events = std::mem::take(&mut self.events);
        let mut outcome = Ok(());
        for event in events.drain(..) {
            outcome = outcome.and(match event {
                Event::Completion(end) => self.count(end),
                Event::Connected(_) => {
                    self.is_connected = true;
                    Ok(())
                }
                Event::PeerFailed(_, cause) => Err(format!("the other side is gone: {cause}")),
                Event::PeerLeft(..) => Err("the other side has left".into()),
                Event::Unmatched(..) => Ok(()),
            });
        }
        self.events = events;
        outcome.map(|()| true)
    }

    #[inline]
    fn count(&mut self, end: Completion) -> Result<()> {
        let kind = end.token >> KIND_SHIFT;
        let which = (end.token >> STREAM_SHIFT & 0xff) as usize;
        match (kind, end.outcome) {
            (KIND_POST, Outcome::Done) => self.posts[which].ended += 1,
            (KIND_RECEIVE, Outcome::Done) => self.receives[which].ended += 1,
            (KIND_RECEIVE, Outcome::Cancelled) => self.cancelled += 1,
            (KIND_MARK, Outcome::Done) => {
                if which != Mark::Working as usize {
                    self.marks[which].push_back(end.header);
                }
                self.expect_mark(which as u32)?;
            }
            (KIND_MARK_SENT, Outcome::Done) => {}
            (_, outcome) => {
                let text = format!("a post of {} bytes ended as {outcome:?}", end.bytes);
                return Err(text);
            }
        }
        Ok(())
    }

    fn expect_mark(&mut self, mark: u32) -> Result<()> {
        let (tag, token) = (MARK_TAGS | u64::from(mark), token(KIND_MARK, mark, 0));
        let transport = &mut self.transport;
        // SAFETY: there are no bytes.
        let posted = unsafe { transport.post_recv(self.peer, tag, View::empty(), token) };
        match posted {
            // The event that says why a peer is gone comes with a poll.
            Ok(()) | Err(PostError::PeerFailed) => Ok(()),
            Err(PostError::WouldBlock) => Err("no room for one receive per mark".into()),
            Err(PostError::Invalid(text)) => Err(*text),
            Err(PostError::Failed(error)) => Err(error.to_string()),
        }
    }

    fn until_accepted(
        &mut self,
        what: &str,
        mut post: impl FnMut(&mut dyn Transport, Rank) -> std::result::Result<(), PostError>,
    ) -> Result<()> {
        self.wait(what, |link| {
            let peer = link.peer;
            accepted(post(&mut *link.transport, peer))
        })
    }

    fn standstill(&self) -> String {
        let counts = self.transport.counts();
        let counts: Vec<String> = counts
            .iter()
            .map(|(name, n)| format!("{name} {n}"))
            .collect();
        format!(
            "nothing has moved for {:?}; raise --timeout if the other side is only slow (ended of posted, by stream: {}; receives: {}; {}: {})",
            self.timeout,
            describe(&self.posts),
            describe(&self.receives),
            self.name(),
            counts.join(", ")
        )
    }

    #[cold]
    fn idle(&mut self) -> Result<()> {
        self.idle_polls += 1;
        let polls = self.idle_polls;
        // A look at the clock costs more than a poll.
        let per_look = match self.spin_least.is_zero() {
            true => self.spin.polls_per_look(),
            false => DEVICE_POLLS_PER_LOOK,
        };
        if !polls.is_multiple_of(per_look) {
            return Ok(());
        }
        let now = Time(self.now_ns());
        let since = *self.idle_since.get_or_insert(now);
        if now.since(since) >= self.spin_least && self.patience.next(now) != Step::Spin {
            // It never sleeps, because that would be in the times.
            std::thread::yield_now();
            self.note(Activity::Sleeping, false);
        }
        if polls.is_multiple_of(SLOW_POLLS) || !self.is_connected {
            self.transport.poll_slow(now, &mut self.events);
            if !self.take_events()? {
                self.check_idle(now)?;
            }
        }
        Ok(())
    }

    fn check_idle(&self, now: Time) -> Result<()> {
        match self.idle_since {
            Some(since) if now.since(since) > self.timeout => Err(self.standstill()),
            _ => Ok(()),
        }
    }
}

/// Ended and posted of each stream, for an error.
fn describe(counts: &[Count]) -> String {
    let texts = counts
        .iter()
        .map(|count| format!("{}/{}", count.ended, count.made));
    texts.collect::<Vec<_>>().join(" ")
}

fn token(kind: u64, stream: u32, number: u64) -> u64 {
    kind << KIND_SHIFT | u64::from(stream) << STREAM_SHIFT | number
}

/// Whether a post was accepted; an error if it never will be. A peer's failure is told by an event,
/// with the cause.
#[inline]
fn accepted(posted: std::result::Result<(), PostError>) -> Result<bool> {
    match posted {
        Ok(()) => Ok(true),
        Err(PostError::WouldBlock | PostError::PeerFailed) => Ok(false),
        Err(PostError::Invalid(text)) => Err(*text),
        Err(PostError::Failed(error)) => Err(error.to_string()),
    }
}

fn text(error: Error) -> String {
    error.to_string()
}
