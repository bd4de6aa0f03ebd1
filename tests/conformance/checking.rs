//! The steps of an actor that wait for something and look at it.

use super::super::script::Step;
use super::access::{self, TestPosts};
use super::{Actor, Checked, Post, TOKEN_OWN};
use crate::prng::Prng;
use linerate::Rank;
use linerate::transport::{Outcome, PostError, Region, RegionKey, RemoteRange, Transport, View};

impl Actor {
    /// Steps that wait for something and look at it; true when it was there.
    pub(super) fn check_step(
        &mut self,
        step: &Step,
        transport: &mut dyn Transport,
    ) -> Checked<bool> {
        match *step {
            Step::Expect { token, outcome } => match self.end(token) {
                Some(end) => same("the outcome", end.outcome, outcome).map(|()| true),
                None => Ok(false),
            },
            Step::ExpectEither { token, outcomes } => match self.end(token) {
                Some(end) if outcomes.contains(&end.outcome) => Ok(true),
                Some(end) => Err(format!("{end:?} instead of one of {outcomes:?}")),
                None => Ok(false),
            },
            Step::Received {
                token,
                header,
                bytes,
                seed,
            } => self.received(token, Outcome::Done, (header, bytes), Some(seed)),
            Step::Truncated {
                token,
                header,
                bytes,
            } => self.received(token, Outcome::Truncated, (header, bytes), None),
            Step::Got { token, seed } => match self.end(token) {
                Some(end) => {
                    same("the outcome", end.outcome, Outcome::Done)?;
                    check_pattern(self.posts[&token].view, seed)?;
                    Ok(true)
                }
                None => Ok(false),
            },
            Step::ReceivedOrCancelled { token, seed } => match self.end(token) {
                Some(end) if end.outcome == Outcome::Done => {
                    check_pattern(self.posts[&token].view, seed)?;
                    Ok(true)
                }
                Some(end) => same("the outcome", end.outcome, Outcome::Cancelled).map(|()| true),
                None => Ok(false),
            },
            Step::Changed { token, least, most } => match self.end(token) {
                Some(end) => {
                    same("the outcome", end.outcome, Outcome::Done)?;
                    let before = access::load::<u64>(self.posts[&token].view, 0);
                    match (least..=most).contains(&before) {
                        true => Ok(true),
                        false => Err(format!("the word was {before}, not {least}..={most}")),
                    }
                }
                None => Ok(false),
            },
            Step::AwaitWord {
                region,
                offset,
                value,
            } => {
                Ok(access::load::<u64>(self.regions[&region].1.view().part(offset, 8), 0) == value)
            }
            Step::Check {
                region,
                offset,
                bytes,
                seed,
            } => {
                check_pattern(self.regions[&region].1.view().part(offset, bytes), seed)?;
                Ok(true)
            }
            Step::CheckPartly {
                region,
                offset,
                bytes,
                seed,
            } => {
                let view = self.regions[&region].1.view().part(offset, bytes);
                check_partly(view, seed)?;
                Ok(true)
            }
            Step::Untouched { region } => {
                check_zero(self.regions[&region].1.view())?;
                Ok(true)
            }
            Step::Await { region, offset } => {
                Ok(access::load::<u8>(self.regions[&region].1.view().part(offset, 1), 0) != 0)
            }
            Step::Failed { peer } => self.failed(transport, peer),
            Step::Settle => Ok(self.posts.values().all(|post| post.end.is_some())),
            // The arms of `take` with a guard come here when it fails: they are through.
            _ => Ok(true),
        }
    }

    pub(super) fn refused(
        &mut self,
        transport: &mut dyn Transport,
        to: Rank,
        region: u8,
    ) -> Checked<bool> {
        let bytes = transport.capabilities().inline_bytes + 1;
        let memory = Region::private(bytes).map_err(|e| e.to_string())?;
        let place = self.remote(to, region, 0);
        let (view, token) = (memory.view(), TOKEN_OWN);
        let answers = [
            ("sent", transport.test_send(to, 1, 0, view, token)),
            ("put", transport.test_put(to, view, place, token)),
            ("got", transport.test_get(to, place, view, token)),
        ];
        for (verb, answer) in answers {
            if !matches!(answer, Err(PostError::Invalid(_))) {
                return Err(format!(
                    "{bytes} unregistered bytes {verb}: answered with {answer:?}"
                ));
            }
        }
        Ok(true)
    }

    fn received(
        &self,
        token: u64,
        outcome: Outcome,
        (header, bytes): (u64, usize),
        seed: Option<u64>,
    ) -> Checked<bool> {
        let Some(end) = self.end(token) else {
            return Ok(false);
        };
        same("the outcome", end.outcome, outcome)?;
        same("the length", end.bytes, bytes as u64)?;
        same("the header", end.header, header)?;
        let view = self.posts[&token].view;
        match seed {
            Some(seed) => {
                check_pattern(view.part(0, bytes), seed)?;
                check_zero(view.part(bytes, view.len_bytes() - bytes))?;
            }
            None => check_zero(view)?,
        }
        Ok(true)
    }

    fn failed(&self, transport: &mut dyn Transport, peer: Rank) -> Checked<bool> {
        let is_over = |post: &Post| post.peer != peer || post.end.is_some();
        if !self.peers.failed.contains(&peer) || !self.posts.values().all(is_over) {
            return Ok(false);
        }
        let (empty, key) = (View::empty(), RegionKey(1));
        let place = RemoteRange { key, offset: 0 };
        let answers = [
            transport.test_send(peer, 1, 0, empty, TOKEN_OWN),
            transport.test_recv(peer, 1, empty, TOKEN_OWN),
            transport.test_put(peer, empty, place, TOKEN_OWN),
            transport.test_get(peer, place, empty, TOKEN_OWN),
        ];
        for answer in answers {
            same(
                "a post to a failed peer",
                answer,
                Err(PostError::PeerFailed),
            )?;
        }
        Ok(true)
    }
}

pub(super) fn same<T: PartialEq + std::fmt::Debug>(what: &str, found: T, expected: T) -> Checked {
    if found == expected {
        return Ok(());
    }
    Err(format!("{what} is {found:?}, not {expected:?}"))
}

fn pattern(bytes: usize, seed: u64) -> Vec<u8> {
    let mut prng = Prng::new(seed);
    // Never zero, so that a written byte differs from an untouched one.
    (0..bytes).map(|_| prng.below(255) as u8 + 1).collect()
}

pub(super) fn fill_pattern(view: View, seed: u64) {
    access::write(view, 0, &pattern(view.len_bytes(), seed));
}

fn check_pattern(view: View, seed: u64) -> Checked {
    check_bytes(view, seed, |found, expected| found == expected)
}

/// What has not come is zero.
fn check_partly(view: View, seed: u64) -> Checked {
    check_bytes(view, seed, |found, expected| [0, expected].contains(&found))
}

fn check_bytes(view: View, seed: u64, is_right: impl Fn(u8, u8) -> bool) -> Checked {
    let (mut found, expected) = (vec![0; view.len_bytes()], pattern(view.len_bytes(), seed));
    access::read(view, 0, &mut found);
    match (0..found.len()).find(|&i| !is_right(found[i], expected[i])) {
        Some(at) => Err(format!(
            "byte {at} of {} is {:#04x}, not {:#04x} of pattern {seed}",
            found.len(),
            found[at],
            expected[at]
        )),
        None => Ok(()),
    }
}

fn check_zero(view: View) -> Checked {
    let mut found = vec![0; view.len_bytes()];
    access::read(view, 0, &mut found);
    match found.iter().position(|&byte| byte != 0) {
        Some(at) => Err(format!("byte {at} of {} was written", found.len())),
        None => Ok(()),
    }
}
