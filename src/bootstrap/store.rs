//! [`Store`]: keys and values that the ranks of a job leave for each other while they find each
//! other. Pure: time is an argument, connections are the server's (`server.rs`).
//!
//! A value is put once and stays. A wait ends when its key is put or its time is over. Everything
//! is bounded; what goes beyond is refused with the bound.

use crate::error::{Error, Result};
use crate::limits::RANKS_MAX;
use crate::time::Time;
use crate::types::Rank;
use std::collections::BTreeMap;
use std::time::Duration;

/// Longest key.
const KEY_BYTES_MAX: usize = 64;
/// Longest value.
const VALUE_BYTES_MAX: usize = 1024;
/// Two keys of every rank, and as many again.
const KEYS_MAX: usize = 4 * RANKS_MAX as usize;
/// Every rank waits for one thing at a time.
const WAITERS_MAX: usize = RANKS_MAX as usize;
/// Longest request or answer: what it is, a time, and a key with its value.
pub(super) const MESSAGE_BYTES_MAX: usize = 1 + 8 + 1 + KEY_BYTES_MAX + VALUE_BYTES_MAX;

/// What a rank asks of the store.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Request {
    /// Keep a value.
    Put(String, Vec<u8>),
    /// The value now.
    Get(String),
    /// The value as soon as it is there, at most after so long.
    Wait(String, Duration),
}

/// What the store says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Answer {
    /// It is kept.
    Done,
    /// This is it.
    Value(Vec<u8>),
    /// Nobody has put it.
    Missing,
    /// Nobody has put it in time.
    Late,
    /// Not with this store, and why.
    Refused(String),
}

/// See the module.
#[derive(Debug, Default)]
pub(super) struct Store {
    values: BTreeMap<String, Vec<u8>>,
    waiters: Vec<Waiter>,
}

#[derive(Debug)]
struct Waiter {
    rank: Rank,
    key: String,
    until: Time,
}

impl Store {
    /// Takes a request of a rank; gives the answers that can be given now, to whomever they are
    /// for.
    pub fn handle(&mut self, from: Rank, request: Request, now: Time) -> Vec<(Rank, Answer)> {
        match request {
            Request::Put(key, value) => {
                let mut answers = Vec::new();
                let answer = match self.put(&key, value, &mut answers) {
                    Ok(()) => Answer::Done,
                    Err(error) => Answer::Refused(error.to_string()),
                };
                answers.insert(0, (from, answer));
                answers
            }
            Request::Get(key) => {
                let value = self.get(&key).map(<[u8]>::to_vec);
                vec![(from, value.map_or(Answer::Missing, Answer::Value))]
            }
            Request::Wait(key, time) => match self.get(&key) {
                Some(value) => vec![(from, Answer::Value(value.to_vec()))],
                None if self.waiters.len() >= WAITERS_MAX => {
                    let text = format!("{WAITERS_MAX} ranks wait already, no more may");
                    vec![(from, Answer::Refused(text))]
                }
                None => {
                    self.waiters.push(Waiter {
                        rank: from,
                        key,
                        until: now.after(time),
                    });
                    Vec::new()
                }
            },
        }
    }

    /// What has been put.
    pub fn get(&self, key: &str) -> Option<&[u8]> {
        self.values.get(key).map(Vec::as_slice)
    }

    /// Keeps a value, and answers those who waited for it.
    pub fn put(
        &mut self,
        key: &str,
        value: Vec<u8>,
        answers: &mut Vec<(Rank, Answer)>,
    ) -> Result<()> {
        let refused = |text: String| {
            Err(Error::Bootstrap(format!(
                "the store refuses '{key}': {text}"
            )))
        };
        if key.len() > KEY_BYTES_MAX || value.len() > VALUE_BYTES_MAX {
            return refused(format!(
                "a key of {} bytes (at most {KEY_BYTES_MAX}) and a value of {} (at most {VALUE_BYTES_MAX})",
                key.len(),
                value.len()
            ));
        }
        if let Some(old) = self.values.get(key) {
            return match *old == value {
                true => Ok(()),
                false => refused("it has another value already".into()),
            };
        }
        if self.values.len() >= KEYS_MAX {
            return refused(format!("it has {KEYS_MAX} keys, no more fit"));
        }
        let is_for = |waiter: &Waiter| waiter.key == key;
        let waiting = self.waiters.extract_if(.., |waiter| is_for(waiter));
        answers.extend(waiting.map(|waiter| (waiter.rank, Answer::Value(value.clone()))));
        self.values.insert(key.into(), value);
        Ok(())
    }

    /// Answers those whose time is over.
    pub fn expire(&mut self, now: Time) -> Vec<(Rank, Answer)> {
        let late = self.waiters.extract_if(.., |waiter| now >= waiter.until);
        late.map(|waiter| (waiter.rank, Answer::Late)).collect()
    }
}

impl Request {
    pub fn emit(&self) -> Vec<u8> {
        let (kind, time_ms, key, value): (u8, u64, &str, &[u8]) = match self {
            Request::Put(key, value) => (1, 0, key, value),
            Request::Get(key) => (2, 0, key, &[]),
            Request::Wait(key, time) => (3, time.as_millis() as u64, key, &[]),
        };
        let mut bytes = vec![kind];
        bytes.extend(time_ms.to_le_bytes());
        bytes.push(key.len() as u8);
        bytes.extend(key.as_bytes());
        bytes.extend(value);
        bytes
    }

    pub fn parse(bytes: &[u8]) -> Result<Request> {
        let bad = |what: &str| Error::Malformed(format!("a request to the store: {what}"));
        let (head, rest) = bytes.split_at_checked(10).ok_or_else(|| bad("too short"))?;
        let time_ms = u64::from_le_bytes(std::array::from_fn(|i| head[1 + i]));
        let (key, value) = rest
            .split_at_checked(head[9].into())
            .ok_or_else(|| bad("half a key"))?;
        let key = String::from_utf8(key.to_vec()).map_err(|_| bad("a key that is no text"))?;
        match head[0] {
            1 => Ok(Request::Put(key, value.to_vec())),
            2 => Ok(Request::Get(key)),
            3 => Ok(Request::Wait(key, Duration::from_millis(time_ms))),
            other => Err(bad(&format!("unknown kind {other}"))),
        }
    }
}

impl Answer {
    pub fn emit(&self) -> Vec<u8> {
        match self {
            Answer::Done => vec![1],
            Answer::Value(value) => [&[2], value.as_slice()].concat(),
            Answer::Missing => vec![3],
            Answer::Late => vec![4],
            Answer::Refused(text) => [&[5], text.as_bytes()].concat(),
        }
    }

    pub fn parse(bytes: &[u8]) -> Result<Answer> {
        match bytes.split_first() {
            Some((1, [])) => Ok(Answer::Done),
            Some((2, value)) => Ok(Answer::Value(value.to_vec())),
            Some((3, [])) => Ok(Answer::Missing),
            Some((4, [])) => Ok(Answer::Late),
            Some((5, text)) => Ok(Answer::Refused(String::from_utf8_lossy(text).into_owned())),
            _ => Err(Error::Malformed(
                "an answer of the store: unknown kind".into(),
            )),
        }
    }
}

#[cfg(test)]
#[path = "store_tests.rs"]
mod tests;
