//! How queues begin and end: greetings over the control transport, what is settled between two
//! generations, and failures.
//!
//! In small jobs the first generation begins when the control transport is connected. In larger
//! ones it begins when one side has something to post, or waits for a message (so that it hears of
//! the peer's death), and the peer follows.

use super::RdmaTransport;
use super::device::{Device, Queue};
use super::generation::{Action, Phase};
use super::greeting::{GREETING_BYTES_MAX, Greeting, Proposal, RailOffer};
use super::link::Link;
use super::record::RAILS_MAX;
use super::regions::Target;
use crate::kernel;
use crate::limits::{INLINE_BYTES_MAX, URGENT_MESSAGES};
use crate::memory::{View, abort_on_unwind, view_of_slice};
use crate::transport::{
    CONNECTED_RANKS_MAX, CONTROL_BYTES, Completion, Event, Outcome, PostError, URGENT_CLASS,
};
use crate::types::Rank;

/// The tag of greetings, which nothing else uses on the control transport. They may come at any
/// time, so that the receives for them keep no connection open.
const TAG: u64 = (URGENT_CLASS as u64) << 62;
const _: () = assert!(GREETING_BYTES_MAX <= INLINE_BYTES_MAX);
/// Sends of greetings complete at once, and are not waited for.
const SEND_TOKEN: u64 = u64::MAX;

impl<D: Device> RdmaTransport<D> {
    /// Listens for the next greeting of a peer. A control transport that takes no receive before it
    /// is connected is asked again then.
    pub(super) fn expect_greeting(&mut self, peer: Rank) {
        let bytes = GREETING_BYTES_MAX;
        let place = self.letters.view().part(peer as usize * bytes, bytes);
        let token = self.letter_token(peer);
        // SAFETY: `letters` outlive `control`. (No receive is needed from a peer that is gone.)
        let posted = unsafe { (self.control).post_recv(peer, TAG, place, token) };
        self.peers[peer as usize].note_listening(posted.is_ok());
    }

    /// Of the receive for the next greeting of a peer; one of an old epoch has ended otherwise.
    fn letter_token(&self, peer: Rank) -> u64 {
        u64::from(self.peers[peer as usize].epoch()) << 32 | u64::from(peer)
    }

    /// Handles what the control transport says.
    pub(super) fn poll_control(&mut self, is_slow: bool) {
        let (now, mut events) = (self.shared.now, std::mem::take(&mut self.control_events));
        if is_slow {
            self.control.poll_slow(now, &mut events);
        }
        let mut gone = Vec::new();
        // A peer that is gone may have said more than the one greeting that was waited for, but no
        // more than fits into the control transport.
        for _ in 0..=URGENT_MESSAGES {
            self.control.poll(now, &mut events);
            let has_more = !events.is_empty();
            for event in events.drain(..) {
                match event {
                    Event::Connected(peer) if peer != self.shared.rank => {
                        self.handle_reachable(peer);
                    }
                    Event::PeerFailed(..) | Event::PeerLeft(..) => gone.push(event),
                    Event::Completion(end) if end.token != SEND_TOKEN => self.handle_letter(end),
                    _ => {}
                }
            }
            if gone.is_empty() || !has_more {
                break;
            }
        }
        gone.into_iter().for_each(|event| self.handle_gone(event));
        self.control_events = events;
        self.send_letters();
    }

    /// The control transport says that a peer has failed or left.
    fn handle_gone(&mut self, event: Event) {
        let (Event::PeerFailed(peer, _) | Event::PeerLeft(peer, _)) = event else {
            return;
        };
        // What had come is looked at first.
        self.wait_for_sent(peer);
        self.end_links(peer);
        let known = &self.peers[peer as usize];
        let generation = known.pair().generation();
        match event {
            Event::PeerFailed(_, cause) => {
                let cause = generation.explain(&cause);
                self.fail(peer, &cause);
            }
            // Most likely it has given up.
            Event::PeerLeft(..) if generation.trouble.is_some() && !known.is_leaving() => {
                let cause = generation.explain("it has left");
                self.fail(peer, &cause);
            }
            left => self.end(peer, left),
        }
    }

    /// Takes what a peer has sent that leaves. Without connections a device may confirm a write of
    /// which the other side is told only later, so it is waited for.
    fn wait_for_sent(&mut self, rank: Rank) {
        if !self.peers[rank as usize].is_leaving() {
            return;
        }
        crate::transport::do_until_done(|| {
            self.drain_rails();
            D::IS_CONNECTED || self.peers[rank as usize].has_all()
        });
        self.peers[rank as usize].settle_goodbye(&mut self.shared);
    }

    /// Lets the last letters and the goodbye of the control transport go. What it hears begins
    /// nothing any more.
    pub(super) fn poll_leaving(&mut self, is_slow: bool) {
        if is_slow {
            (self.control).poll_slow(self.shared.now, &mut self.control_events);
        }
        self.control.poll(self.shared.now, &mut self.control_events);
        self.control_events.clear();
        self.send_letters();
    }

    /// Whether queues are made at the first use.
    pub(super) fn connects_at_first_use(&self) -> bool {
        self.peers.len() > CONNECTED_RANKS_MAX
    }

    /// The control transport takes greetings for a peer, which has called if it was expected.
    fn handle_reachable(&mut self, rank: Rank) {
        let is_late = self.connects_at_first_use();
        if self.peers[rank as usize].is_open() && !self.peers[rank as usize].is_listening() {
            self.expect_greeting(rank);
        }
        let peer = &mut self.peers[rank as usize];
        if peer.take_expected() {
            peer.open();
            self.expect_greeting(rank);
            self.start(rank);
        } else if is_late {
            peer.tell_connected(&mut self.shared);
        } else {
            self.start(rank);
        }
    }

    /// Begins the first generation with a peer, unless that was done.
    pub(super) fn start(&mut self, rank: Rank) {
        let peer = &mut self.peers[rank as usize];
        if peer.is_open() && rank != self.shared.rank {
            let action = peer.pair_mut().generation_mut().handle_start();
            self.act(rank, action);
        }
    }

    fn handle_letter(&mut self, end: Completion) {
        let peer = end.peer;
        if !self.peers[peer as usize].is_open() || end.token != self.letter_token(peer) {
            return;
        }
        let mut bytes = vec![0; (end.bytes as usize).min(GREETING_BYTES_MAX)];
        let letters = self.letters.view();
        kernel::read(letters, peer as usize * GREETING_BYTES_MAX, &mut bytes);
        let greeting = match end.outcome {
            Outcome::Done => Greeting::parse(&bytes),
            Outcome::Truncated => Err(format!("a greeting of {} bytes", end.bytes)),
            // The peer is gone, which another event tells.
            _ => return,
        };
        match greeting {
            Ok(greeting) => self.handle_greeting(peer, greeting),
            Err(text) => self.fail(peer, &text),
        }
        self.expect_greeting(peer);
    }

    fn handle_greeting(&mut self, rank: Rank, greeting: Greeting) {
        let now = self.shared.now;
        match greeting {
            Greeting::Propose(proposal) => {
                let pair = self.peers[rank as usize].pair_mut();
                let generation = pair.generation_mut();
                let action = generation.handle_proposal(proposal.generation, now);
                if action != Action::Nothing {
                    pair.set_proposal(proposal);
                }
                self.act(rank, action);
            }
            Greeting::Ready(number) => {
                let pair = self.peers[rank as usize].pair_mut();
                let action = pair.generation_mut().handle_ready(number);
                self.act(rank, action);
            }
            Greeting::Leaving(goodbye) => {
                self.peers[rank as usize].handle_leaving(goodbye);
            }
            Greeting::Message(tag, header, bytes) => {
                let (peer, source) = (&mut self.peers[rank as usize], view_of_slice(&bytes));
                let arrive = || peer.handle_message((tag, header), source, &mut self.shared);
                if let Err(text) = abort_on_unwind(arrive) {
                    self.fail(rank, &text);
                }
            }
        }
    }

    /// Sends an urgent message to a peer without queues; false: this one cannot go so. Only a few
    /// can: without a ring the peer cannot say that it has matched them.
    pub(super) fn send_by_letter(
        &mut self,
        rank: Rank,
        (tag, header): (u64, u64),
        source: View,
    ) -> bool {
        let peer = &mut self.peers[rank as usize];
        let is_short = source.len_bytes() <= CONTROL_BYTES;
        let is_one_of_few = peer.backlog(tag) < URGENT_MESSAGES;
        if !peer.pair().is_unused() || !is_short || !is_one_of_few {
            return false;
        }
        peer.note_sent_by_letter(tag);
        let mut bytes = vec![0; source.len_bytes()];
        kernel::read(source, 0, &mut bytes);
        self.write_letter(rank, Greeting::Message(tag, header, bytes));
        true
    }

    /// Does what a generation asks for.
    pub(super) fn act(&mut self, rank: Rank, action: Action) {
        match action {
            Action::Nothing => {}
            Action::End => self.end_generation(rank),
            Action::Begin(number) => self.begin(rank, number),
            Action::BeginAndJoin(number) => {
                self.begin(rank, number);
                self.join(rank);
            }
            Action::Join => self.join(rank),
            Action::GoUp => self.go_up(rank),
        }
    }

    /// A queue has failed, or must end.
    pub(super) fn handle_fault(&mut self, rank: Rank, rail: Option<usize>, cause: &str) {
        let now = self.shared.now;
        if let Some(rail) = rail {
            self.shared.rails[rail].blame_mut().note(now);
        }
        self.shared.counts.faults += 1;
        self.begin_anew(rank, cause);
    }

    /// Replaces the queues of a peer, for this reason.
    pub(super) fn begin_anew(&mut self, rank: Rank, cause: &str) {
        let now = self.shared.now;
        let generation = self.peers[rank as usize].pair_mut().generation_mut();
        let action = generation.handle_fault(now, cause);
        if self.is_debugging && action != Action::Nothing {
            let number = generation.number;
            crate::transport::say(
                self.shared.rank,
                &format!(
                    "{}: to rank {rank}: {cause}; generation {number} begins",
                    D::NAME
                ),
            );
        }
        self.act(rank, action);
    }

    /// Ends the queues of a peer, and begins the next generation. Without connected queues that
    /// waits until the last post has ended, which looks here again.
    pub(super) fn end_generation(&mut self, rank: Rank) {
        let pair = self.peers[rank as usize].pair_mut();
        if !D::IS_CONNECTED && pair.links().any(|link| !link.is_over()) {
            // What has gone wrong is known.
            pair.take_fault();
            return;
        }
        self.end_links(rank);
        let action = (self.peers[rank as usize].pair_mut())
            .generation_mut()
            .handle_ended();
        self.act(rank, action);
    }

    /// Ends the queues of a peer, and takes what has come on them.
    pub(super) fn end_links(&mut self, rank: Rank) {
        if self.peers[rank as usize].pair().links().next().is_none() {
            return;
        }
        self.stop_links(rank);
        let mut numbers = Vec::new();
        let mut ended = Vec::new();
        for link in self.peers[rank as usize].pair_mut().take_links() {
            numbers.push((link.rail, link.queue.number()));
            ended.extend(link.end());
        }
        // Completions that were not waited for may have come meanwhile.
        self.drain_rails();
        for (rail, number) in numbers {
            self.shared.rails[rail].remove_queue(number);
        }
        self.peers[rank as usize].handle_ended_links(ended, &mut self.shared);
    }

    /// Makes new queues, and proposes them.
    fn begin(&mut self, rank: Rank, number: u32) {
        self.shared.counts.generations += 1;
        let peer = &mut self.peers[rank as usize];
        if !peer.is_open() {
            return;
        }
        let made = peer.make_rings(&mut self.shared);
        let own_number = match made.and_then(|()| peer.renew_names(&mut self.shared)) {
            Ok(own_number) => own_number,
            Err(error) => return self.fail(rank, &error.to_string()),
        };
        if !self.joining.contains(&rank) {
            self.joining.push(rank);
        }
        let mut rails = Vec::new();
        let mut links = Vec::new();
        let wanted = self.wanted_rails(rank);
        for (at, is_wanted) in wanted.into_iter().enumerate() {
            let made = is_wanted.then(|| self.make_link(rank, at)).flatten();
            rails.push(made.as_ref().map(|(_, offer)| *offer));
            links.push(made.map(|(link, _)| link));
        }
        let peer = &mut self.peers[rank as usize];
        peer.pair_mut().set_links(links);
        let had = peer.tell_in_proposal();
        let ring = peer.inbox().address_and_keys();
        let proposal = Proposal {
            generation: number,
            had,
            ring_address: ring.map_or(0, |(address, _)| address),
            slots: self.shared.sizes.slots,
            number: own_number,
            rails,
        };
        self.write_letter(rank, Greeting::Propose(proposal));
    }

    /// Rails that work and are not to blame, or that the peer proposes; else all that work.
    fn wanted_rails(&mut self, rank: Rank) -> Vec<bool> {
        let mut returned = Vec::new();
        for (at, rail) in self.shared.rails.iter_mut().enumerate() {
            let (is_back, news) = rail.refresh();
            if is_back {
                returned.push(at);
            }
            if let (true, Some(news)) = (self.is_debugging, news) {
                crate::transport::say(self.shared.rank, &format!("{}: {news}", D::NAME));
            }
        }
        for at in returned {
            self.note_back(at);
        }
        let pair = self.peers[rank as usize].pair();
        let rails = &self.shared.rails;
        let good: Vec<bool> = (rails.iter().enumerate())
            .map(|(at, rail)| rail.is_usable() && (!rail.blame().is_on() || pair.is_proposed(at)))
            .collect();
        match good.iter().any(|&is_good| is_good) {
            true => good,
            false => rails.iter().map(|rail| rail.is_usable()).collect(),
        }
    }

    fn make_link(&mut self, rank: Rank, at: usize) -> Option<(Link<D>, RailOffer)> {
        let sizes = self.shared.sizes;
        let packet_number = self.random.below(1 << 24) as u32;
        let (_, keys) = self.peers[rank as usize].inbox().address_and_keys()?;
        let ring_key = keys[at];
        let rail = &mut self.shared.rails[at];
        let (queue, half) = match rail.device.open_queue(sizes, packet_number) {
            Ok(opened) => opened,
            Err(error) => {
                crate::transport::say(self.shared.rank, &format!("{}: {error}", D::NAME));
                return None;
            }
        };
        rail.add_queue(queue.number(), rank);
        let link = Link::new((queue, half), at, sizes, &self.shared.settings);
        Some((link, RailOffer { ring_key, half }))
    }

    /// Joins the queues with those of the peer's proposal.
    fn join(&mut self, rank: Rank) {
        let Some(proposal) = self.peers[rank as usize].pair_mut().take_proposal() else {
            return;
        };
        if proposal.slots != self.shared.sizes.slots {
            let text = format!(
                "it has LINERATE_VERBS_SLOTS={} and this rank {}: all ranks need the same",
                proposal.slots, self.shared.sizes.slots
            );
            return self.fail(rank, &text);
        }
        let peer = &mut self.peers[rank as usize];
        let settled = peer.settle(&proposal.had, &mut self.shared);
        if let Err(text) = settled {
            return self.fail(rank, &text);
        }
        peer.handle_still(&mut self.shared);
        let mut keys = [0; RAILS_MAX];
        let mut cause = String::from("no rail of both ranks works");
        let now = self.shared.now;
        let count = self.peers[rank as usize].pair().rails_count();
        for (at, key) in keys.iter_mut().enumerate().take(count) {
            let offer = proposal.rails.get(at).copied().flatten();
            let joined = match offer {
                Some(offer) => self.join_link(rank, at, &offer),
                None => Err(Some(self.describe_apart(rank, at))),
            };
            match joined {
                Ok(()) => *key = offer.expect("joined with it").ring_key,
                Err(why) => {
                    cause = why.unwrap_or(cause);
                    self.drop_link(rank, at);
                }
            }
        }
        let peer = &mut self.peers[rank as usize];
        let address = proposal.ring_address;
        let has_lead = peer.join(Target { address, keys }, proposal.number);
        let generation = peer.pair_mut().generation_mut();
        if !has_lead {
            return generation.handle_apart(now, &cause);
        }
        let action = generation.handle_joined();
        let number = generation.number;
        if self.is_debugging && number > 1 {
            self.say_rails(rank, number);
        }
        self.write_letter(rank, Greeting::Ready(number));
        self.act(rank, action);
    }

    /// Tells people which rails a generation uses. Those of the first are told at the start.
    fn say_rails(&self, rank: Rank, number: u32) {
        let links = self.peers[rank as usize].pair().links();
        let names: Vec<&str> = links
            .map(|link| self.shared.rails[link.rail].name())
            .collect();
        let text = format!(
            "{}: to rank {rank}: generation {number} goes over {}",
            D::NAME,
            names.join(" and ")
        );
        crate::transport::say(self.shared.rank, &text);
    }

    /// Why a rail is not joined where the peer offers none for it.
    fn describe_apart(&self, rank: Rank, at: usize) -> String {
        let name = self.shared.rails[at].name();
        match self.peers[rank as usize].pair().has_link(at) {
            true => format!("the peer has nothing that works for {name}"),
            false => format!("{name} does not work here"),
        }
    }

    fn drop_link(&mut self, rank: Rank, at: usize) {
        if let Some(link) = self.peers[rank as usize].pair_mut().take_link(at) {
            self.shared.rails[at].remove_queue(link.queue.number());
        }
    }

    fn join_link(
        &mut self,
        rank: Rank,
        at: usize,
        offer: &RailOffer,
    ) -> Result<(), Option<String>> {
        let own = self.peers[rank as usize].pair().link_on(at);
        let link = own.ok_or_else(|| Some(self.describe_apart(rank, at)))?;
        let device = &mut self.shared.rails[at].device;
        (device.join(&link.queue, &link.offer, &offer.half)).map_err(Some)
    }

    /// Both sides can receive: what had not come is posted again, and everything goes on.
    fn go_up(&mut self, rank: Rank) {
        self.peers[rank as usize].go_up(&mut self.shared);
    }

    /// A peer has failed.
    pub(super) fn fail(&mut self, rank: Rank, cause: &str) {
        self.end(rank, Event::PeerFailed(rank, cause.into()));
    }

    /// A peer is over: the event comes first, then the ends of what was outstanding.
    fn end(&mut self, rank: Rank, event: Event) {
        let peer = &mut self.peers[rank as usize];
        let was_expected = peer.take_expected();
        if !peer.is_open() && !was_expected {
            return;
        }
        self.end_links(rank);
        let peer = &mut self.peers[rank as usize];
        self.shared.ends.push(event);
        peer.pair_mut().generation_mut().phase = Phase::Idle;
        peer.flush(&mut self.shared);
        self.letters_out.retain(|(to, _)| *to != rank);
        self.control.disconnect(rank);
    }

    pub(super) fn write_letter(&mut self, rank: Rank, greeting: Greeting) {
        self.letters_out.push_back((rank, greeting.emit()));
        self.send_letters();
    }

    /// Hands greetings to the control transport, in order for each peer.
    fn send_letters(&mut self) {
        let mut blocked: Vec<Rank> = Vec::new();
        for _ in 0..self.letters_out.len() {
            let Some((rank, bytes)) = self.letters_out.pop_front() else {
                return;
            };
            let is_sent = !blocked.contains(&rank) && {
                let place = self.envelope.view().part(0, bytes.len());
                kernel::write(place, 0, &bytes);
                // SAFETY: `envelope` outlives `control`, which copies a message as short at once.
                let sent = unsafe { (self.control).post_send(rank, TAG, 0, place, SEND_TOKEN) };
                !matches!(sent, Err(PostError::WouldBlock))
            };
            if !is_sent {
                blocked.push(rank);
                self.letters_out.push_back((rank, bytes));
            }
        }
    }

    /// Without connected queues, what is being read is waited for.
    pub(super) fn wait_for_reads(&mut self, rank: Rank) {
        if !D::IS_CONNECTED && self.peers[rank as usize].is_read() {
            self.stop_links(rank);
        }
    }

    /// Ends a receive that the peer may be writing to, by ending its queues.
    pub(super) fn cancel_granted(&mut self, rank: Rank, token: u64) {
        let peer = &self.peers[rank as usize];
        if !peer.is_granted(token) {
            return;
        }
        if matches!(peer.pair().generation().phase, Phase::Up | Phase::Joined) {
            self.handle_fault(rank, None, "a receive was cancelled");
        }
        let peer = &mut self.peers[rank as usize];
        let is_between = matches!(
            peer.pair().generation().phase,
            Phase::Ending | Phase::Proposed
        );
        if !D::IS_CONNECTED && is_between {
            // The peer's proposal says that nothing of it is under way.
            return peer.cancel_later(token);
        }
        // Its last bytes may have come before the end.
        self.peers[rank as usize].cancel_granted(token, &mut self.shared);
    }
}
