//! The steps of an actor that post something.

use super::super::script::{NOWHERE, Step};
use super::access::TestPosts;
use super::checking::{fill_pattern, same};
use super::{Actor, Checked, Post, TAG_KEY, TAG_SIGNAL};
use linerate::Rank;
use linerate::transport::{
    Atomic, Completion, Outcome, PostError, Region, RegionKey, RemoteRange, Transport, View,
};
use std::sync::Arc;

impl Actor {
    /// Steps that post something; true when it was accepted.
    pub(super) fn post_step(
        &mut self,
        step: &Step,
        transport: &mut dyn Transport,
    ) -> Checked<bool> {
        match *step {
            Step::Send {
                to,
                tag,
                header,
                bytes,
                seed,
                token,
            } => self.send(transport, (to, tag), header, (bytes, seed), token),
            Step::Recv {
                from,
                tag,
                bytes,
                token,
            } => self.receive(transport, (from, tag), bytes, token),
            Step::Put {
                to,
                region,
                offset,
                bytes,
                seed,
                token,
            } => {
                let place = self.remote(to, region, offset);
                let memory = self.memory(transport, bytes, false)?;
                fill_pattern(memory.1, seed);
                self.accept(token, to, memory, |view| {
                    transport.test_put(to, view, place, token)
                })
            }
            Step::Get {
                from,
                region,
                offset,
                bytes,
                token,
            } => {
                let place = self.remote(from, region, offset);
                let memory = self.memory(transport, bytes, false)?;
                self.accept(token, from, memory, |view| {
                    transport.test_get(from, place, view, token)
                })
            }
            Step::Change {
                of,
                region,
                offset,
                what,
                token,
            } => {
                let word = self.remote(of, region, offset);
                let memory = self.memory(transport, 8, false)?;
                self.accept(token, of, memory, |view| {
                    transport.test_atomic(of, what, word, view, token)
                })
            }
            Step::RefusedChange { of, region } => self.refused_change(transport, of, region),
            Step::Share { region, bytes, to } => self.share(transport, region, bytes, to),
            Step::ShareAlso { region, to } => self.tell_key(transport, region, to),
            Step::Learn { region, from } => self.learn(transport, region, from),
            Step::Overflow { to, tag } => {
                let header = u64::from(transport.capabilities().messages_per_peer);
                self.own_token_last += 1;
                let token = self.own_token_last;
                self.send(transport, (to, tag), header, (0, 0), token)
            }
            Step::Stuff { to, tag, bytes } => self.stuff(transport, (to, tag), bytes),
            Step::SendAtOnce {
                to,
                tag,
                bytes,
                token,
            } => match self.send(transport, (to, tag), token ^ 0xabcd, (bytes, token), token)? {
                true => Ok(true),
                false => Err("refused, where there is always room".into()),
            },
            Step::Drain { from, tag } => self.drain(transport, from, tag),
            Step::RefusedUnregistered { to, region } => self.refused(transport, to, region),
            Step::Signal { to } => self.signal(transport, to),
            Step::Wait { from } => self.wait(transport, from),
            _ => self.check_step(step, transport),
        }
    }

    fn refused_change(
        &mut self,
        transport: &mut dyn Transport,
        of: Rank,
        region: u8,
    ) -> Checked<bool> {
        let memory = Region::private(16).map_err(|e| e.to_string())?;
        for (offset, bytes) in [(4, 8), (0, 4), (0, 16)] {
            let (word, view) = (
                self.remote(of, region, offset),
                memory.view().part(0, bytes),
            );
            let answer = transport.test_atomic(of, Atomic::FetchAdd(1), word, view, 0);
            if !matches!(answer, Err(PostError::Invalid(_))) {
                return Err(format!(
                    "at {offset}, {bytes} bytes: answered with {answer:?}"
                ));
            }
        }
        Ok(true)
    }

    fn signal(&mut self, transport: &mut dyn Transport, to: Rank) -> Checked<bool> {
        let count = self.signals_sent.get(&to).copied().unwrap_or(0);
        self.own_token_last += 1;
        let token = self.own_token_last;
        let is_sent = self.send(transport, (to, TAG_SIGNAL), count, (0, 0), token)?;
        self.signals_sent.insert(to, count + u64::from(is_sent));
        Ok(is_sent)
    }

    fn wait(&mut self, transport: &mut dyn Transport, from: Rank) -> Checked<bool> {
        // Who is finishing has heard of everybody that this rank is finishing, and may be gone.
        if self.peers.is_finishing && self.peers.failed.contains(&from) {
            return Ok(true);
        }
        let Some(header) = self.own_receive(transport, from, TAG_SIGNAL)? else {
            return Ok(false);
        };
        let seen = self.signals_seen.entry(from).or_insert(0);
        *seen += 1;
        same("the number of the signal", header, *seen - 1)?;
        Ok(true)
    }

    /// Fresh zeroed memory, registered if it is longer than what may be anywhere.
    pub(super) fn memory(
        &mut self,
        transport: &mut dyn Transport,
        bytes: usize,
        may_be_anywhere: bool,
    ) -> Checked<(Arc<Region>, View)> {
        if let Some(prepared) = self.prepared.take() {
            return Ok(prepared);
        }
        if may_be_anywhere || bytes <= transport.capabilities().inline_bytes {
            let memory = Arc::new(Region::private(bytes).map_err(|e| e.to_string())?);
            let view = memory.view();
            return Ok((memory, view));
        }
        let memory = Region::shared("conformance", bytes).map_err(|e| e.to_string())?;
        let memory = Arc::new(memory);
        let key = self.register(transport, &memory)?;
        let view = memory.view().in_region(key, 0);
        Ok((memory, view))
    }

    fn register(
        &mut self,
        transport: &mut dyn Transport,
        memory: &Arc<Region>,
    ) -> Checked<RegionKey> {
        let key = (transport.register(Arc::clone(memory))).map_err(|e| e.to_string())?;
        if !key.is_some() || !self.keys_given.insert(key) {
            return Err(format!("{key:?} was given before, or is no key"));
        }
        Ok(key)
    }

    /// Posts, and remembers what was accepted.
    fn accept(
        &mut self,
        token: u64,
        peer: Rank,
        (memory, view): (Arc<Region>, View),
        post: impl FnOnce(View) -> Result<(), PostError>,
    ) -> Checked<bool> {
        match post(view) {
            Ok(()) => {
                let post = Post {
                    peer,
                    _memory: memory,
                    view,
                    end: None,
                };
                let old = self.posts.insert(token, post);
                assert!(old.is_none(), "the case uses token {token} twice");
                Ok(true)
            }
            Err(PostError::WouldBlock) => {
                self.prepared = Some((memory, view));
                Ok(false)
            }
            // What was posted to a peer that is allowed to go is as if it had been flushed.
            Err(PostError::PeerFailed)
                if self.peers.may_lose.contains(&peer) || self.peers.is_finishing =>
            {
                Ok(true)
            }
            Err(error) => Err(format!("refused: {error:?}")),
        }
    }

    pub(super) fn send(
        &mut self,
        transport: &mut dyn Transport,
        (to, tag): (Rank, u64),
        header: u64,
        (bytes, seed): (usize, u64),
        token: u64,
    ) -> Checked<bool> {
        let may_be_anywhere = transport.fetches(to, bytes);
        let memory = self.memory(transport, bytes, may_be_anywhere)?;
        fill_pattern(memory.1, seed);
        let is_short = bytes <= transport.capabilities().inline_bytes;
        let mut is_injected = false;
        let is_accepted = self.accept(token, to, memory, |view| {
            // Every other short message is injected, where that can be, and its source then used
            // for something else.
            is_injected =
                is_short && token % 2 == 1 && transport.test_inject(to, tag, header, view)?;
            match is_injected {
                true => {
                    fill_pattern(view, !seed);
                    Ok(())
                }
                false => transport.test_send(to, tag, header, view, token),
            }
        })?;
        if let Some(post) = self.posts.get_mut(&token).filter(|_| is_injected) {
            post.end = Some(Completion {
                token,
                peer: to,
                outcome: Outcome::Done,
                bytes: bytes as u64,
                header: 0,
            });
        }
        Ok(is_accepted)
    }

    fn stuff(
        &mut self,
        transport: &mut dyn Transport,
        place: (Rank, u64),
        bytes: usize,
    ) -> Checked<bool> {
        for _ in 0..=transport.capabilities().messages_per_peer {
            self.own_token_last += 1;
            let token = self.own_token_last;
            if !self.send(transport, place, 0, (bytes, token), token)? {
                self.prepared = None;
                return Ok(true);
            }
        }
        Err("more messages accepted than promised".into())
    }

    pub(super) fn receive(
        &mut self,
        transport: &mut dyn Transport,
        (from, tag): (Rank, u64),
        bytes: usize,
        token: u64,
    ) -> Checked<bool> {
        let memory = Arc::new(Region::private(bytes).map_err(|e| e.to_string())?);
        let view = memory.view();
        self.accept(token, from, (memory, view), |view| {
            transport.test_recv(from, tag, view, token)
        })
    }

    /// An empty receive of the actor's own: posted once per script step; its header when it is
    /// there.
    pub(super) fn own_receive(
        &mut self,
        transport: &mut dyn Transport,
        from: Rank,
        tag: u64,
    ) -> Checked<Option<u64>> {
        let Some(token) = self.own_token else {
            self.own_token_last += 1;
            let token = self.own_token_last;
            if self.receive(transport, (from, tag), 0, token)? {
                self.own_token = Some(token);
            }
            return Ok(None);
        };
        let Some(end) = self.end(token) else {
            return Ok(None);
        };
        same("the outcome", end.outcome, Outcome::Done)?;
        self.own_token = None;
        Ok(Some(end.header))
    }

    pub(super) fn remote(&self, peer: Rank, region: u8, offset: u64) -> RemoteRange {
        let learned = self.keys_learned.get(&(peer, region)).copied();
        let own = (peer == self.rank).then(|| self.regions.get(&region).map(|r| r.0));
        let key = match region {
            NOWHERE => RegionKey(0x00de_ad00),
            _ => (learned.or(own.flatten())).expect("the case uses a key that it has not learned"),
        };
        RemoteRange { key, offset }
    }

    fn share(
        &mut self,
        transport: &mut dyn Transport,
        region: u8,
        bytes: usize,
        to: Rank,
    ) -> Checked<bool> {
        if !self.regions.contains_key(&region) || self.count == 0 {
            let memory = Region::shared("conformance", bytes).map_err(|e| e.to_string())?;
            let memory = Arc::new(memory);
            let key = self.register(transport, &memory)?;
            self.regions.insert(region, (key, memory));
        }
        self.tell_key(transport, region, to)
    }

    fn tell_key(&mut self, transport: &mut dyn Transport, region: u8, to: Rank) -> Checked<bool> {
        let key = self.regions[&region].0;
        match transport.export(to, key) {
            Ok(()) => {}
            Err(PostError::WouldBlock) => return Ok(false),
            Err(error) => return Err(format!("export refused: {error:?}")),
        }
        self.own_token_last += 1;
        let token = self.own_token_last;
        let tag = TAG_KEY + u64::from(region);
        self.send(transport, (to, tag), u64::from(key.0), (0, 0), token)
    }

    fn learn(&mut self, transport: &mut dyn Transport, region: u8, from: Rank) -> Checked<bool> {
        let key = match self.keys_learned.get(&(from, region)) {
            Some(&key) if self.count > 0 && self.own_token.is_none() => key,
            _ => {
                let tag = TAG_KEY + u64::from(region);
                let Some(header) = self.own_receive(transport, from, tag)? else {
                    return Ok(false);
                };
                let key = RegionKey(header as u32);
                self.keys_learned.insert((from, region), key);
                key
            }
        };
        let is_mapped = transport.capabilities().mapped;
        Ok(!is_mapped
            || (transport.mapped(from, key))
                .map_err(|e| e.to_string())?
                .is_some())
    }

    fn drain(&mut self, transport: &mut dyn Transport, from: Rank, tag: u64) -> Checked<bool> {
        let total = u64::from(transport.capabilities().messages_per_peer) + 1;
        let seen = self.signals_seen.entry(Rank::MAX).or_insert(0);
        let expected = *seen;
        if let Some(header) = self.own_receive(transport, from, tag)? {
            same("the number of the message", header, expected)?;
            self.signals_seen.insert(Rank::MAX, expected + 1);
        }
        Ok(self.signals_seen[&Rank::MAX] == total)
    }
}
