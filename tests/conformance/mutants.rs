//! Transports with one fault each: canaries, for which the suite must fail.

use linerate::Rank;
use linerate::error::Result;
use linerate::memory::{Region, RegionKey, View};
use linerate::time::Time;
use linerate::transport::sim::SimTransport;
use linerate::transport::{
    Address, Capabilities, Completion, Event, Outcome, PostError, RemoteRange, Transport,
    WaitSource,
};
use std::collections::{HashMap, HashSet};
use std::sync::Arc;

/// What is wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
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
}

type Posted = std::result::Result<(), PostError>;

/// A post of a send, to be made later.
type Held = (Rank, u64, u64, View, u64);

/// The simulator with a fault.
pub struct Mutant {
    inner: SimTransport,
    fault: Fault,
    destinations: HashMap<u64, View>,
    held: Vec<Held>,
    /// Polls until they are sent.
    held_polls: u32,
    /// Completions that are reported before they are due, and then not again.
    early: Vec<Event>,
    reported: HashSet<u64>,
    key_first: Option<RegionKey>,
}

impl Mutant {
    /// Wraps a transport.
    pub fn new(inner: SimTransport, fault: Fault) -> Mutant {
        Mutant {
            inner,
            fault,
            destinations: HashMap::new(),
            held: Vec::new(),
            held_polls: 0,
            early: Vec::new(),
            reported: HashSet::new(),
            key_first: None,
        }
    }

    fn report_early(&mut self, peer: Rank, token: u64, bytes: usize) {
        self.reported.insert(token);
        self.early.push(Event::Completion(Completion {
            token,
            peer,
            outcome: Outcome::Done,
            bytes: bytes as u64,
            header: 0,
        }));
    }

    fn send_held(&mut self) {
        self.held.retain(|&(peer, tag, header, source, token)| {
            let posted = self.inner.post_send(peer, tag, header, source, token);
            posted == Err(PostError::WouldBlock)
        });
    }

    /// What becomes of an event: nothing, one or two.
    fn mutate(&mut self, event: Event) -> Vec<Event> {
        let Event::Completion(mut end) = event else {
            let is_failure = matches!(event, Event::PeerFailed(..));
            let count = 1 + usize::from(self.fault == Fault::FailsTwice && is_failure);
            return vec![event; count];
        };
        match (self.fault, end.outcome) {
            (Fault::CompletesTwice, _) => return vec![Event::Completion(end); 2],
            (Fault::ForgetsFlushed, Outcome::Flushed) => return Vec::new(),
            (Fault::LosesHeaders, _) => end.header = 0,
            (Fault::HidesTruncation, Outcome::Truncated)
            | (Fault::HidesBadKeys, Outcome::BadKey) => end.outcome = Outcome::Done,
            (Fault::CompletesSendsEarly | Fault::CompletesPutsEarly, _)
                if self.reported.remove(&end.token) =>
            {
                return Vec::new();
            }
            (Fault::CorruptsBytes, Outcome::Done) if end.bytes > 0 => {
                if let Some(view) = self.destinations.get(&end.token) {
                    view.store(end.bytes as usize - 1, 0u8);
                }
            }
            _ => {}
        }
        vec![Event::Completion(end)]
    }
}

impl Transport for Mutant {
    fn capabilities(&self) -> &Capabilities {
        self.inner.capabilities()
    }

    fn local_address(&self) -> Address {
        self.inner.local_address()
    }

    fn connect(&mut self, peer: Rank, address: &Address) -> Result<()> {
        self.inner.connect(peer, address)
    }

    fn disconnect(&mut self, peer: Rank) {
        self.inner.disconnect(peer);
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

    fn export(&mut self, peer: Rank, key: RegionKey) -> Posted {
        self.inner.export(peer, key)
    }

    fn mapped(&mut self, peer: Rank, key: RegionKey) -> Result<Option<View>> {
        self.inner.mapped(peer, key)
    }

    fn post_send(&mut self, peer: Rank, tag: u64, header: u64, source: View, token: u64) -> Posted {
        let bytes = source.len_bytes();
        if self.fault == Fault::SwapsOrder && bytes > 0 {
            let is_second = self.held.first().is_some_and(|h| (h.0, h.1) == (peer, tag));
            if !is_second {
                self.send_held();
                self.held.push((peer, tag, header, source, token));
                self.held_polls = 4;
                return Ok(());
            }
            let posted = self.inner.post_send(peer, tag, header, source, token);
            self.send_held();
            return posted;
        }
        let posted = self.inner.post_send(peer, tag, header, source, token);
        match (self.fault, &posted) {
            (Fault::SendsRefused, Err(PostError::WouldBlock)) => {
                self.reported.insert(token);
                self.held.push((peer, tag, header, source, token));
            }
            (Fault::CompletesSendsEarly, Ok(())) if bytes > 4096 => {
                self.report_early(peer, token, bytes);
            }
            (Fault::AcceptsAnything, Err(PostError::Invalid(_))) => return Ok(()),
            _ => {}
        }
        posted
    }

    fn post_recv(&mut self, peer: Rank, tag: u64, destination: View, token: u64) -> Posted {
        self.destinations.insert(token, destination);
        self.inner.post_recv(peer, tag, destination, token)
    }

    fn post_put(
        &mut self,
        peer: Rank,
        source: View,
        destination: RemoteRange,
        token: u64,
    ) -> Posted {
        let posted = self.inner.post_put(peer, source, destination, token);
        if self.fault == Fault::CompletesPutsEarly && posted.is_ok() {
            self.report_early(peer, token, source.len_bytes());
        }
        posted
    }

    fn post_get(
        &mut self,
        peer: Rank,
        source: RemoteRange,
        destination: View,
        token: u64,
    ) -> Posted {
        self.inner.post_get(peer, source, destination, token)
    }

    fn cancel(&mut self, peer: Rank, token: u64) {
        if self.fault != Fault::IgnoresCancel {
            self.inner.cancel(peer, token);
        }
    }

    fn poll(&mut self, now: Time, events: &mut Vec<Event>) {
        self.held_polls = self.held_polls.saturating_sub(1);
        if self.held_polls == 0 {
            self.send_held();
        }
        let mut found = std::mem::take(&mut self.early);
        let mut inner = Vec::new();
        self.inner.poll(now, &mut inner);
        for event in inner {
            found.extend(self.mutate(event));
        }
        if self.fault == Fault::FlushesFirst {
            found.sort_by_key(|event| matches!(event, Event::PeerFailed(..)));
        }
        events.append(&mut found);
    }

    fn backlog(&mut self, peer: Rank, tag: u64) -> u32 {
        self.inner.backlog(peer, tag)
    }

    fn notify(&mut self, peer: Rank) {
        self.inner.notify(peer);
    }

    fn wait_source(&self) -> WaitSource {
        self.inner.wait_source()
    }

    fn poll_slow(&mut self, now: Time, events: &mut Vec<Event>) {
        self.inner.poll_slow(now, events);
    }

    fn next_timeout(&self) -> Option<Time> {
        self.inner.next_timeout()
    }
}
