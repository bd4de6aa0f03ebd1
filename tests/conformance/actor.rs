//! An actor takes one role of a case on one transport, without ever waiting inside a call.
//!
//! Besides the steps it checks, on every event, what holds always: completions only for what was
//! posted, once, with the right peer; failures once and before their consequences; silence after a
//! disconnect.

#[path = "checking.rs"]
mod checking;
#[path = "posting.rs"]
mod posting;

use super::access;
use super::script::{Case, Clock, Step};
use checking::same;
use linerate::Rank;
use linerate::transport::{
    Address, Completion, Event, Outcome, Region, RegionKey, Time, Transport, View, WaitSource,
    tells_arrival,
};
use linerate::unstable::wait::futex_wait;
use rustix::event::{PollFd, PollFlags, Timespec};
use std::collections::{BTreeMap, BTreeSet};
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::{Ordering, fence};
use std::time::Duration;

/// Tags from here on belong to the actors themselves.
const TAG_SIGNAL: u64 = 1 << 60;
const TAG_KEY: u64 = 2 << 60;
/// Tokens from here on, too.
const TOKEN_OWN: u64 = 1 << 60;

/// What a step of an actor came to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Progress {
    /// Something was done.
    Moved,
    /// Waits for the transport.
    Waiting,
    /// Waits by counting: must be stepped again even if nothing happens.
    Counting,
    /// The script is through.
    Done,
    /// The script wants the process to end.
    Exit,
    /// It has left, and its transport is to be dropped.
    Left,
}

type Checked<T = ()> = Result<T, String>;

/// A post and the memory that it uses, kept to the end.
struct Post {
    peer: Rank,
    _memory: Arc<Region>,
    view: View,
    end: Option<Completion>,
}

/// One role of a case.
pub struct Actor {
    rank: Rank,
    steps: Vec<Step>,
    clock: Clock,
    at: usize,
    /// Steps taken by the current script step, or its own counter.
    count: u32,
    steps_total: u64,
    is_begun: bool,
    peers: Peers,
    addresses: Vec<Address>,
    posts: BTreeMap<u64, Post>,
    own_token_last: u64,
    own_token: Option<u64>,
    /// Memory of a post that was answered with WouldBlock, for the next try.
    prepared: Option<(Arc<Region>, View)>,
    regions: BTreeMap<u8, (RegionKey, Arc<Region>)>,
    keys_given: BTreeSet<RegionKey>,
    keys_learned: BTreeMap<(Rank, u8), RegionKey>,
    signals_sent: BTreeMap<Rank, u64>,
    signals_seen: BTreeMap<Rank, u64>,
    events_seen: u64,
    events_before: u64,
    /// Messages of which it was told that they have met no receive.
    told: BTreeSet<(Rank, u64)>,
}

/// What an actor knows of its peers.
#[derive(Default)]
struct Peers {
    connecting: BTreeSet<Rank>,
    failed: BTreeSet<Rank>,
    left: BTreeMap<Rank, u64>,
    silent: BTreeSet<Rank>,
    may_lose: BTreeSet<Rank>,
    is_finishing: bool,
}

impl Peers {
    /// All of them, to which connections are begun.
    fn connecting(ranks: u32) -> Peers {
        Peers {
            connecting: (0..ranks).collect(),
            ..Peers::default()
        }
    }

    fn is_lost(&self, peer: Rank) -> bool {
        self.failed.contains(&peer) || self.silent.contains(&peer)
    }

    /// What was known of the last connection to a peer does not count any more.
    fn renew(&mut self, peer: Rank) {
        self.failed.remove(&peer);
        self.left.remove(&peer);
        self.silent.remove(&peer);
        self.may_lose.remove(&peer);
    }

    /// A peer fails once, with a cause, and only where the script allows it.
    fn note_failure(&mut self, peer: Rank, text: &str) -> Checked {
        if self.silent.contains(&peer) {
            return Err(format!("disconnected rank {peer} failed: {text}"));
        }
        if !self.failed.insert(peer) {
            return Err(format!("rank {peer} failed twice: {text}"));
        }
        if !(self.may_lose.contains(&peer) || self.is_finishing) {
            return Err(format!("rank {peer} failed: {text}"));
        }
        match text {
            "" => Err(format!("rank {peer} failed without a cause")),
            _ => Ok(()),
        }
    }
}

impl Actor {
    /// A role of a case; `addresses` are those of all roles.
    pub fn new(case: &Case, role: u32, mut addresses: Vec<Address>) -> Actor {
        let rank = case.rank_of(role);
        addresses.swap(rank as usize, role as usize);
        Actor {
            rank,
            steps: case.roles[role as usize].clone(),
            clock: case.clock,
            at: 0,
            count: 0,
            steps_total: 0,
            is_begun: false,
            peers: Peers::connecting(case.ranks()),
            addresses,
            posts: BTreeMap::new(),
            own_token_last: TOKEN_OWN,
            own_token: None,
            prepared: None,
            regions: BTreeMap::new(),
            keys_given: BTreeSet::new(),
            keys_learned: BTreeMap::new(),
            signals_sent: BTreeMap::new(),
            signals_seen: BTreeMap::new(),
            events_seen: 0,
            events_before: 0,
            told: BTreeSet::new(),
        }
    }

    /// Its rank.
    pub fn rank(&self) -> Rank {
        self.rank
    }

    /// Where it is, for messages.
    pub fn place(&self) -> String {
        match self.steps.get(self.at) {
            _ if !self.peers.connecting.is_empty() => {
                format!(
                    "role {} connecting to {:?}",
                    self.rank, self.peers.connecting
                )
            }
            Some(step) => format!("role {} at step {} {step:?}", self.rank, self.at),
            None => format!("role {} at its end", self.rank),
        }
    }

    /// Polls, and does what can be done.
    pub fn step(&mut self, transport: &mut dyn Transport, now: Time) -> Checked<Progress> {
        self.try_step(transport, now)
            .map_err(|text| format!("{}: {text}", self.place()))
    }

    fn try_step(&mut self, transport: &mut dyn Transport, now: Time) -> Checked<Progress> {
        if !std::mem::replace(&mut self.is_begun, true) {
            for peer in self.peers.connecting.clone() {
                let address = self.addresses[peer as usize].clone();
                (transport.connect(peer, &address)).map_err(|e| e.to_string())?;
            }
        }
        self.steps_total += 1;
        let is_absent = matches!(self.steps.get(self.at), Some(Step::Absent { .. }));
        if !is_absent || !self.peers.connecting.is_empty() {
            self.poll(transport, now)?;
        }
        if !self.peers.connecting.is_empty() {
            return Ok(Progress::Waiting);
        }
        let Some(step) = self.steps.get(self.at).cloned() else {
            return Ok(Progress::Done);
        };
        let progress = self.take(&step, transport)?;
        self.count += 1;
        if progress == Progress::Moved {
            self.at += 1;
            self.count = 0;
            self.own_token = None;
            self.prepared = None;
        }
        Ok(progress)
    }

    fn poll(&mut self, transport: &mut dyn Transport, now: Time) -> Checked {
        let now = match self.clock {
            Clock::Real => now,
            Clock::Frozen => Time(0),
            Clock::Wild => Time((self.steps_total % 7) * 3_600_000_000_000),
        };
        let mut events = Vec::new();
        transport.poll(now, &mut events);
        if self.steps_total.is_multiple_of(8) {
            transport.poll_slow(now, &mut events);
        }
        self.events_seen += events.len() as u64;
        events.into_iter().try_for_each(|event| self.note(event))
    }

    /// What must hold for every event, whatever the script.
    fn note(&mut self, event: Event) -> Checked {
        match event {
            Event::Connected(peer) if self.peers.connecting.remove(&peer) => {
                self.peers.renew(peer);
                let is_old = |post: &Post| post.peer == peer && post.end.is_none();
                match self.posts.iter().find(|(_, post)| is_old(post)) {
                    Some((token, _)) => Err(format!("connected before post {token} has ended")),
                    None => Ok(()),
                }
            }
            Event::Connected(peer) => Err(format!("connected to rank {peer} twice")),
            Event::PeerFailed(peer, text) => self.peers.note_failure(peer, &text),
            Event::PeerLeft(peer, word) => {
                self.peers.left.insert(peer, word);
                self.peers.note_failure(peer, "it has left")
            }
            Event::Unmatched(peer, tag) if !tells_arrival(tag) => Err(format!(
                "told of a message of rank {peer} with tag {tag:#x}"
            )),
            Event::Unmatched(peer, _) if self.peers.is_lost(peer) => {
                Err(format!("told of a message of rank {peer}, which is gone"))
            }
            Event::Unmatched(peer, tag) => match self.told.insert((peer, tag)) {
                true => Ok(()),
                false => Err(format!("told twice of tag {tag:#x} of rank {peer}")),
            },
            Event::Completion(end) => self.note_completion(end),
        }
    }

    fn note_completion(&mut self, end: Completion) -> Checked {
        let is_lost = self.peers.is_lost(end.peer);
        let Some(post) = self.posts.get_mut(&end.token) else {
            return Err(format!("a completion of nothing that was posted: {end:?}"));
        };
        if let Some(first) = post.end {
            return Err(format!("completed twice: {first:?}, then {end:?}"));
        }
        if post.peer != end.peer {
            return Err(format!("posted for rank {}: {end:?}", post.peer));
        }
        if end.outcome == Outcome::Flushed && !is_lost {
            return Err(format!("flushed before the failure of its peer: {end:?}"));
        }
        post.end = Some(end);
        Ok(())
    }

    fn take(&mut self, step: &Step, transport: &mut dyn Transport) -> Checked<Progress> {
        match *step {
            Step::Exit => Ok(Progress::Exit),
            Step::Leave { word } => Ok(match transport.leave(word) {
                true => Progress::Left,
                false => Progress::Waiting,
            }),
            Step::Left { peer, word } => {
                let left = self.peers.left.get(&peer);
                left.map_or(Ok(()), |&found| same("the word", found, word))?;
                Ok(match (left, self.peers.failed.contains(&peer)) {
                    (Some(_), _) => Progress::Moved,
                    (None, true) => return Err(format!("rank {peer} has failed, not left")),
                    (None, false) => Progress::Waiting,
                })
            }
            Step::Told { from, tag } => Ok(match self.told.contains(&(from, tag)) {
                true => Progress::Moved,
                false => Progress::Waiting,
            }),
            Step::Absent { steps } if self.count < steps => Ok(Progress::Counting),
            Step::Quiet { polls } => self.quiet(polls),
            Step::Fill { to, tag } => self.fill(transport, to, tag),
            Step::Sleep => self.sleep(transport),
            Step::Scribble { token } => {
                access::fill(self.posts[&token].view, 0xee);
                Ok(Progress::Moved)
            }
            Step::Deregister { region } => {
                let key = self.regions[&region].0;
                transport.deregister(key).map_err(|e| e.to_string())?;
                Ok(Progress::Moved)
            }
            Step::Cancel { peer, token } => {
                transport.cancel(peer, token);
                Ok(Progress::Moved)
            }
            Step::Withdraw => {
                transport.withdraw();
                Ok(Progress::Moved)
            }
            Step::HasWithdrawn { peer, is_so } => {
                let is_told = transport.has_withdrawn(peer);
                match transport.capabilities().mapped && is_told != is_so {
                    true => Err(format!("rank {peer} has withdrawn memory: {is_told}")),
                    false => Ok(Progress::Moved),
                }
            }
            Step::Disconnect { peer } => {
                transport.disconnect(peer);
                self.peers.silent.insert(peer);
                Ok(Progress::Moved)
            }
            Step::Connect { peer, address } => {
                let address = &self.addresses[address];
                transport
                    .connect(peer, address)
                    .map_err(|e| e.to_string())?;
                self.peers.connecting.insert(peer);
                self.signals_sent.remove(&peer);
                self.signals_seen.remove(&peer);
                self.told.retain(|&(from, _)| from != peer);
                Ok(Progress::Moved)
            }
            Step::RefusedConnect { peer } => {
                let address = &self.addresses[peer as usize];
                match transport.connect(peer, address) {
                    Ok(()) => Err(format!("rank {peer} is connected twice at once")),
                    Err(_) => Ok(Progress::Moved),
                }
            }
            Step::Wipe { region } => {
                access::fill(self.regions[&region].1.view(), 0);
                Ok(Progress::Moved)
            }
            Step::MayLose { peer } => {
                self.peers.may_lose.insert(peer);
                Ok(Progress::Moved)
            }
            Step::Notify { peer } => {
                transport.notify(peer);
                Ok(Progress::Moved)
            }
            Step::Finish => {
                self.peers.is_finishing = true;
                Ok(Progress::Moved)
            }
            _ => {
                let is_met = self.post_step(step, transport)?;
                Ok(if is_met {
                    Progress::Moved
                } else {
                    Progress::Waiting
                })
            }
        }
    }

    fn end(&self, token: u64) -> Option<Completion> {
        self.posts.get(&token).and_then(|post| post.end)
    }

    fn quiet(&mut self, polls: u32) -> Checked<Progress> {
        if self.count == 0 {
            self.events_before = self.events_seen;
        }
        // While finishing, others may leave, and note() has looked at what that causes.
        if self.events_seen != self.events_before && !self.peers.is_finishing {
            return Err("something was reported where nothing may be".into());
        }
        Ok(if self.count >= polls {
            Progress::Moved
        } else {
            Progress::Counting
        })
    }

    fn fill(&mut self, transport: &mut dyn Transport, to: Rank, tag: u64) -> Checked<Progress> {
        let most = transport.capabilities().messages_per_peer;
        let mut sent = self.own_token.unwrap_or(0);
        if sent == 0 {
            // The first may wait for a connection.
            self.count = 0;
        }
        loop {
            self.own_token_last += 1;
            let token = self.own_token_last;
            if !self.send(transport, (to, tag), sent, (0, 0), token)? {
                break;
            }
            sent += 1;
            if sent > u64::from(most) {
                return Err(format!(
                    "{sent} unmatched messages accepted, {most} promised"
                ));
            }
        }
        self.own_token = Some(sent);
        if self.count < 20 {
            return Ok(Progress::Counting);
        }
        same("messages accepted until full", sent, u64::from(most))?;
        Ok(Progress::Moved)
    }

    fn sleep(&mut self, transport: &mut dyn Transport) -> Checked<Progress> {
        let (bell, sleeping) = match transport.wait_source() {
            WaitSource::Futex { bell, sleeping } => (bell, sleeping),
            WaitSource::Descriptor {
                ready, sleeping, ..
            } => {
                let count = |by: u32| {
                    if let Some(sleeping) = &sleeping {
                        access::word32(sleeping, 0).fetch_add(by, Ordering::SeqCst);
                        fence(Ordering::SeqCst);
                    }
                };
                count(1);
                let slept = self.sleep_on_descriptor(transport, &ready);
                count(u32::MAX);
                return slept;
            }
            WaitSource::Virtual => return Ok(Progress::Moved),
        };
        let (bell, sleeping) = (access::word32(&bell, 0), access::word32(&sleeping, 0));
        let (before, seen) = (bell.load(Ordering::SeqCst), self.events_seen);
        sleeping.fetch_add(1, Ordering::SeqCst);
        fence(Ordering::SeqCst);
        self.poll(transport, Time(0))?;
        if self.events_seen == seen {
            futex_wait(bell, before, Duration::from_secs(5));
        }
        sleeping.fetch_sub(1, Ordering::SeqCst);
        if self.events_seen == seen && bell.load(Ordering::SeqCst) == before {
            return Err("slept for five seconds: the wake-up was lost".into());
        }
        Ok(Progress::Moved)
    }

    /// Whatever arrives after the last poll makes the descriptor readable.
    fn sleep_on_descriptor(
        &mut self,
        transport: &mut dyn Transport,
        descriptor: &OwnedFd,
    ) -> Checked<Progress> {
        let seen = self.events_seen;
        self.poll(transport, Time(0))?;
        if self.events_seen == seen {
            let mut set = [PollFd::new(descriptor, PollFlags::IN)];
            let limit = Timespec {
                tv_sec: 5,
                tv_nsec: 0,
            };
            if rustix::event::poll(&mut set, Some(&limit)) == Ok(0) {
                return Err("slept for five seconds: the wake-up was lost".into());
            }
        }
        Ok(Progress::Moved)
    }
}
