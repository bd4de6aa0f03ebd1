//! Transports with one fault each: canaries, for which the suite must fail.

#[path = "mutants_slots.rs"]
mod slots;

use super::access::{self, TestPosts};
use linerate::transport::{
    Address, Atomic, Capabilities, Completion, Diagnostics, Event, Expecting, Mapping, Outcome,
    PostError, Region, RegionKey, RemoteRange, Rma, Signals, Time, Transport, URGENT_CLASS, View,
    WaitSource, tag_class,
};
use linerate::{Rank, Result};
use slots::Old;
use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::time::Duration;

/// What is wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// A large send returns when it is complete, as if it were a blocking one.
    Blocks,
    /// Nothing is reported until time has passed.
    WaitsForTime,
    /// A peer fails when much time has passed between two polls.
    FailsByTime,
    /// Every completion comes twice.
    CompletesTwice,
    /// Flushed posts never complete.
    ForgetsFlushed,
    /// A message that was refused is sent nevertheless, later.
    SendsRefused,
    /// A failure is reported twice.
    FailsTwice,
    /// The consequences of a failure come before its cause.
    FlushesFirst,
    /// Two messages of one tag are sent in the wrong order.
    SwapsOrder,
    /// A message is held up by one of another tag that has no receive yet.
    HoldsUpOtherTags,
    /// An urgent message waits until the others have been received.
    HoldsUpUrgent,
    /// Large sends complete when they are posted.
    CompletesSendsEarly,
    /// Puts complete when they are posted.
    CompletesPutsEarly,
    /// The last byte of a received message is wrong.
    CorruptsBytes,
    /// A message that was too long is a success.
    HidesTruncation,
    /// Unregistered memory is accepted without being used.
    AcceptsAnything,
    /// A bad key is a success.
    HidesBadKeys,
    /// Two regions have the same key.
    ReusesKeys,
    /// Headers are zero.
    LosesHeaders,
    /// Cancelling does nothing.
    IgnoresCancel,
    /// A disconnected peer is reported as failed.
    TalksAfterDisconnect,
    /// Messages of a rank to itself vanish.
    LosesOwnMessages,
    /// Puts and gets of nothing never complete.
    ForgetsEmpty,
    /// Notifications wake nobody.
    NotifiesNobody,
    /// Sleepers announce themselves where nobody looks.
    SleepsUnseen,
    /// Memory is said to be withdrawn, and sent nevertheless.
    WithdrawsInWord,
    /// Peers that map memory are not told that it was withdrawn.
    HidesWithdrawal,
    /// An injected message is read from its source later.
    InjectsLater,
    /// An atomic operation is done twice.
    ChangesTwice,
    /// What was in a word does not come.
    HidesOldWords,
    /// Says nothing when it leaves, and does not wait for what it has sent.
    LeavesAtOnce,
    /// Messages that wait for their receives are not told.
    TellsNothing,
    /// They are told twice.
    TellsTwice,
    /// A message of the old connection comes in the next one.
    DeliversOld,
    /// A put of the old connection is done in the next one.
    PutsOld,
    /// Posts of the old connection end in the next one.
    CompletesOld,
    /// The end of the old connection is told in the next one.
    FailsNew,
    /// A slot that was used is not connected again, which is told.
    RefusesUsed,
    /// A slot that was used is not connected again, which is not told.
    IgnoresUsed,
}

/// Tokens from here on are the mutant's own.
const INJECTED: u64 = 1 << 40;

/// Silence after which a transport that trusts its clock calls a peer failed.
const SILENCE_MAX: Duration = Duration::from_secs(1800);

/// Polls after which a post that blocks gives up.
const BLOCKED_POLLS_MAX: u32 = 1000;

type Posted = std::result::Result<(), PostError>;

/// A post of a send, to be made later.
type Held = (Rank, u64, u64, View, u64);

/// What a fault needs to know beyond the transport.
pub struct Surroundings {
    pub rank: Rank,
    /// Lets time pass.
    pub advance: Box<dyn FnMut() + Send>,
}

/// A transport with a fault.
pub struct Mutant {
    inner: Box<dyn Transport>,
    fault: Fault,
    surroundings: Surroundings,
    /// The time of the last poll.
    polled: Time,
    /// The tag of the last message to each peer.
    tag_last: HashMap<Rank, u64>,
    /// Where sleepers are not seen.
    unseen: Region,
    destinations: HashMap<u64, View>,
    held: Vec<Held>,
    /// Polls until they are sent.
    held_polls: u32,
    /// Completions that are reported before they are due, and then not again.
    early: Vec<Event>,
    reported: HashSet<u64>,
    key_first: Option<RegionKey>,
    /// Sends that have not completed.
    withdrawable: Vec<(Rank, u64)>,
    old: Old,
}

impl Mutant {
    /// Wraps a transport.
    pub fn new(inner: Box<dyn Transport>, fault: Fault, surroundings: Surroundings) -> Mutant {
        Mutant {
            inner,
            fault,
            surroundings,
            polled: Time(0),
            tag_last: HashMap::new(),
            unseen: Region::private(64).expect("a cache line of memory"),
            destinations: HashMap::new(),
            held: Vec::new(),
            held_polls: 0,
            early: Vec::new(),
            reported: HashSet::new(),
            key_first: None,
            withdrawable: Vec::new(),
            old: Old::default(),
        }
    }

    /// Waits for the end of a post as a blocking call does: here even time passes.
    fn block_until_complete(&mut self, token: u64) {
        let is_end = |event: &Event| matches!(event, Event::Completion(end) if end.token == token);
        for _ in 0..BLOCKED_POLLS_MAX {
            self.inner.poll(self.polled, &mut self.early);
            if self.early.iter().any(is_end) {
                return;
            }
            (self.surroundings.advance)();
        }
    }

    /// Whether a message has to wait because one of another tag does.
    fn is_held_up(&mut self, peer: Rank, tag: u64) -> bool {
        let last = *self.tag_last.entry(peer).or_insert(tag);
        let is_held_up = last != tag && self.inner.backlog(peer, tag) > 0;
        if !is_held_up {
            self.tag_last.insert(peer, tag);
        }
        is_held_up
    }

    fn report_early(&mut self, peer: Rank, token: u64, outcome: Outcome, bytes: usize) {
        self.reported.insert(token);
        self.early.push(Event::Completion(Completion {
            token,
            peer,
            outcome,
            bytes: bytes as u64,
            header: 0,
        }));
    }

    fn send_held(&mut self) {
        self.held.retain(|&(peer, tag, header, source, token)| {
            let posted = self.inner.test_send(peer, tag, header, source, token);
            posted == Err(PostError::WouldBlock)
        });
    }

    /// What becomes of events.
    fn mutate_all(&mut self, events: Vec<Event>, found: &mut Vec<Event>) {
        for event in events {
            match (self.fault, &event) {
                (Fault::TellsNothing, Event::Unmatched(..)) => {}
                (Fault::TellsTwice, Event::Unmatched(..)) => found.extend([event.clone(), event]),
                (_, &Event::Connected(peer)) => {
                    found.push(event);
                    self.meet_again(peer, found);
                }
                _ => found.extend(self.mutate(event)),
            }
        }
    }

    /// What becomes of an event: nothing, one or two.
    fn mutate(&mut self, event: Event) -> Vec<Event> {
        let Event::Completion(mut end) = event else {
            let is_failure = matches!(event, Event::PeerFailed(..));
            let count = 1 + usize::from(self.fault == Fault::FailsTwice && is_failure);
            return vec![event; count];
        };
        self.withdrawable.retain(|&(_, token)| token != end.token);
        let is_old = self.old.disconnected.contains(&end.peer);
        if self.fault == Fault::CompletesOld && end.outcome == Outcome::Flushed && is_old {
            self.old.ends.push(event);
            return Vec::new();
        }
        match (self.fault, end.outcome) {
            (Fault::CompletesTwice, _) => return vec![Event::Completion(end); 2],
            (Fault::ForgetsFlushed, Outcome::Flushed) => return Vec::new(),
            (Fault::LosesHeaders, _) => end.header = 0,
            (Fault::HidesTruncation, Outcome::Truncated)
            | (Fault::HidesBadKeys, Outcome::BadKey) => end.outcome = Outcome::Done,
            (
                Fault::CompletesSendsEarly
                | Fault::CompletesPutsEarly
                | Fault::WithdrawsInWord
                | Fault::InjectsLater
                | Fault::ChangesTwice
                | Fault::DeliversOld
                | Fault::PutsOld,
                _,
            ) if self.reported.remove(&end.token) => {
                return Vec::new();
            }
            (Fault::CorruptsBytes, Outcome::Done) if end.bytes > 0 => {
                if let Some(view) = self.destinations.get(&end.token) {
                    access::store(*view, end.bytes as usize - 1, 0u8);
                }
            }
            _ => {}
        }
        vec![Event::Completion(end)]
    }
}

#[allow(unsafe_code)] // As the trait has them; what is wrong keeps their promise.
impl Transport for Mutant {
    fn capabilities(&self) -> &Capabilities {
        self.inner.capabilities()
    }

    fn local_address(&self) -> Address {
        self.inner.local_address()
    }

    fn connect(&mut self, peer: Rank, address: &Address) -> Result<()> {
        let is_used = !self.old.used.insert(peer);
        match self.fault {
            Fault::IgnoresUsed if is_used => return Ok(()),
            Fault::RefusesUsed if is_used => return self.inner.connect(Rank::MAX, address),
            _ => {}
        }
        if is_used {
            self.old.again.insert(peer);
        }
        self.inner.connect(peer, address)
    }

    fn leave(&mut self, word: u64) -> bool {
        self.fault == Fault::LeavesAtOnce || self.inner.leave(word)
    }

    fn disconnect(&mut self, peer: Rank) {
        self.inner.disconnect(peer);
        self.old.disconnected.insert(peer);
        if self.fault == Fault::TalksAfterDisconnect {
            let cause = "it was disconnected".to_string();
            self.early.push(Event::PeerFailed(peer, cause));
        }
    }

    fn register(&mut self, region: Arc<Region>) -> Result<RegionKey> {
        let key = self.inner.register(region)?;
        let first = *self.key_first.get_or_insert(key);
        Ok(if self.fault == Fault::ReusesKeys {
            first
        } else {
            key
        })
    }

    fn deregister(&mut self, key: RegionKey) -> Result<()> {
        self.inner.deregister(key)
    }

    unsafe fn post_send(
        &mut self,
        peer: Rank,
        tag: u64,
        header: u64,
        source: View,
        token: u64,
    ) -> Posted {
        let bytes = source.len_bytes();
        self.post_old();
        if bytes <= 64 {
            self.old.sends.insert(peer, (tag, header, source));
        }
        if self.fault == Fault::SwapsOrder && bytes > 0 {
            let is_second = self.held.first().is_some_and(|h| (h.0, h.1) == (peer, tag));
            if !is_second {
                self.send_held();
                self.held.push((peer, tag, header, source, token));
                self.held_polls = 4;
                return Ok(());
            }
            let posted = self.inner.test_send(peer, tag, header, source, token);
            self.send_held();
            return posted;
        }
        if self.fault == Fault::HoldsUpOtherTags && self.is_held_up(peer, tag) {
            return Err(PostError::WouldBlock);
        }
        let is_urgent = tag_class(tag) == URGENT_CLASS;
        if self.fault == Fault::HoldsUpUrgent && is_urgent && self.inner.backlog(peer, 1 << 62) > 0
        {
            return Err(PostError::WouldBlock);
        }
        if self.fault == Fault::LosesOwnMessages && peer == self.surroundings.rank {
            self.report_early(peer, token, Outcome::Done, bytes);
            return Ok(());
        }
        let posted = self.inner.test_send(peer, tag, header, source, token);
        match (self.fault, &posted) {
            (Fault::WithdrawsInWord, Ok(())) => self.withdrawable.push((peer, token)),
            (Fault::Blocks, Ok(())) if bytes > 4096 => self.block_until_complete(token),
            (Fault::SendsRefused, Err(PostError::WouldBlock)) => {
                self.reported.insert(token);
                self.held.push((peer, tag, header, source, token));
            }
            (Fault::CompletesSendsEarly, Ok(())) if bytes > 4096 => {
                self.report_early(peer, token, Outcome::Done, bytes);
            }
            (Fault::AcceptsAnything, Err(PostError::Invalid(_))) => return Ok(()),
            _ => {}
        }
        posted
    }

    unsafe fn inject(
        &mut self,
        peer: Rank,
        tag: u64,
        header: u64,
        source: View,
    ) -> std::result::Result<bool, PostError> {
        if self.fault == Fault::InjectsLater && !source.is_empty() {
            let token = INJECTED + self.reported.len() as u64;
            self.reported.insert(token);
            self.held.push((peer, tag, header, source, token));
            self.held_polls = 4;
            return Ok(true);
        }
        self.post_old();
        if source.len_bytes() <= 64 {
            self.old.sends.insert(peer, (tag, header, source));
        }
        self.inner.test_inject(peer, tag, header, source)
    }

    unsafe fn post_recv(&mut self, peer: Rank, tag: u64, destination: View, token: u64) -> Posted {
        self.destinations.insert(token, destination);
        self.inner.test_recv(peer, tag, destination, token)
    }

    fn cancel(&mut self, peer: Rank, token: u64) {
        if self.fault != Fault::IgnoresCancel {
            self.inner.cancel(peer, token);
        }
    }

    fn hand_over(&mut self) {
        self.inner.hand_over();
    }

    fn poll(&mut self, now: Time, events: &mut Vec<Event>) {
        let passed = now.since(std::mem::replace(&mut self.polled, now));
        match self.fault {
            Fault::WaitsForTime if passed.is_zero() => return,
            Fault::FailsByTime if passed > SILENCE_MAX => {
                let cause = format!("it said nothing for {passed:?}");
                events.push(Event::PeerFailed(0, cause));
            }
            _ => {}
        }
        self.held_polls = self.held_polls.saturating_sub(1);
        if self.held_polls == 0 {
            self.send_held();
        }
        let mut found = std::mem::take(&mut self.early);
        let mut inner = Vec::new();
        self.inner.poll(now, &mut inner);
        self.mutate_all(inner, &mut found);
        if self.fault == Fault::FlushesFirst {
            found.sort_by_key(|event| matches!(event, Event::PeerFailed(..)));
        }
        events.append(&mut found);
    }

    fn backlog(&mut self, peer: Rank, tag: u64) -> u32 {
        self.inner.backlog(peer, tag)
    }

    fn withdraw(&mut self) {
        if self.fault != Fault::WithdrawsInWord {
            return self.inner.withdraw();
        }
        for (peer, token) in std::mem::take(&mut self.withdrawable) {
            self.report_early(peer, token, Outcome::Cancelled, 0);
        }
    }

    fn wait_source(&self) -> WaitSource {
        match self.inner.wait_source() {
            WaitSource::Futex { bell, .. } if self.fault == Fault::SleepsUnseen => {
                let sleeping = self.unseen.view();
                WaitSource::Futex { bell, sleeping }
            }
            source => source,
        }
    }

    fn poll_slow(&mut self, now: Time, events: &mut Vec<Event>) {
        let mut inner = Vec::new();
        self.inner.poll_slow(now, &mut inner);
        self.mutate_all(inner, events);
    }

    fn next_timeout(&self) -> Option<Time> {
        self.inner.next_timeout()
    }
}

#[allow(unsafe_code)] // As the trait has them; what is wrong keeps their promise.
impl Rma for Mutant {
    fn export(&mut self, peer: Rank, key: RegionKey) -> Posted {
        self.inner.export(peer, key)
    }

    unsafe fn post_put(
        &mut self,
        peer: Rank,
        source: View,
        destination: RemoteRange,
        token: u64,
    ) -> Posted {
        if self.fault == Fault::ForgetsEmpty && source.len_bytes() == 0 {
            return Ok(());
        }
        self.old.puts.insert(peer, (source, destination));
        let posted = self.inner.test_put(peer, source, destination, token);
        if self.fault == Fault::CompletesPutsEarly && posted.is_ok() {
            self.report_early(peer, token, Outcome::Done, source.len_bytes());
        }
        posted
    }

    unsafe fn post_get(
        &mut self,
        peer: Rank,
        source: RemoteRange,
        destination: View,
        token: u64,
    ) -> Posted {
        if self.fault == Fault::ForgetsEmpty && destination.len_bytes() == 0 {
            return Ok(());
        }
        self.inner.test_get(peer, source, destination, token)
    }

    unsafe fn post_atomic(
        &mut self,
        peer: Rank,
        what: Atomic,
        word: RemoteRange,
        result: View,
        token: u64,
    ) -> Posted {
        let result = match self.fault {
            Fault::HidesOldWords => self.unseen.view().part(0, 8),
            _ => result,
        };
        let posted = self.inner.test_atomic(peer, what, word, result, token);
        if self.fault == Fault::ChangesTwice && posted.is_ok() {
            let again = INJECTED + self.reported.len() as u64;
            self.reported.insert(again);
            let unseen = self.unseen.view().part(8, 8);
            let _ = self.inner.test_atomic(peer, what, word, unseen, again);
        }
        posted
    }
}

impl Mapping for Mutant {
    fn mapped(&mut self, peer: Rank, key: RegionKey) -> Result<Option<View>> {
        self.inner.mapped(peer, key)
    }

    fn fetches(&self, peer: Rank, bytes: usize) -> bool {
        self.inner.fetches(peer, bytes)
    }

    fn has_withdrawn(&self, peer: Rank) -> bool {
        self.fault != Fault::HidesWithdrawal && self.inner.has_withdrawn(peer)
    }
}

impl Signals for Mutant {
    fn notify(&mut self, peer: Rank) {
        if self.fault != Fault::NotifiesNobody {
            self.inner.notify(peer);
        }
    }
}

impl Expecting for Mutant {}

impl Diagnostics for Mutant {}
