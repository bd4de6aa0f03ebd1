//! How a machine asks: requests out, what arrived in, everything counted on the way.
//!
//! An algorithm is an async function over an [`Io`]; nothing else awaits, so that it stands still
//! exactly where it asks. A call of [`super::Machine::next`] resumes it. There is no executor, no
//! waker and no thread.

use super::counters::{Counters, Phase};
use super::message::Message;
use super::spare::Spare;
use crate::types::Rank;
use std::future::Future;
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll};

/// Communication that a machine wants. Sums, all-to-alls and gathers are of all ranks, which make
/// the same ones in the same order. An exchange is of pairs: the n-th message to a rank is what it
/// receives n-th from this one, of the same length. With gTopk and recursive doubling ranks make
/// different numbers of exchanges; with the other algorithms the same.
#[derive(Clone, Debug, PartialEq)]
pub enum Request {
    /// A group of messages, at most one to and one from each rank; none is empty. Lengths are known
    /// on both sides.
    Exchange {
        /// To whom, what.
        sends: Vec<(Rank, Message)>,
        /// From whom, how many bytes.
        receives: Vec<(Rank, u64)>,
    },
    /// The sums of the words of all ranks.
    Sum {
        /// As many on every rank.
        words: Vec<u64>,
        /// They may not fit 32 bits.
        is_wide: bool,
    },
    /// Word i to rank i.
    AllToAll {
        /// One for each rank.
        words: Vec<u64>,
        /// They may not fit 32 bits.
        is_wide: bool,
    },
    /// The words of all ranks, one rank after another.
    GatherWords {
        /// As many on every rank.
        words: Vec<u64>,
        /// They may not fit 32 bits.
        is_wide: bool,
    },
    /// The messages of all ranks to all.
    Gather {
        /// This rank's.
        own: Message,
        /// Bytes of each rank's.
        bytes: Vec<u64>,
    },
}

/// What a machine is told.
#[derive(Clone, Debug, PartialEq)]
pub enum Arrived {
    /// Nothing: the machine begins, or its request has been started.
    Nothing,
    /// Messages: of an exchange in the order of its receives, of a gather by rank.
    Messages(Vec<Message>),
    /// Words.
    Words(Vec<u64>),
}

/// What a machine wants now.
#[derive(Clone, Debug, PartialEq)]
pub enum Action {
    /// Start this, and come back at once.
    Start(Request),
    /// Come back with what the started request gave.
    Wait,
    /// The result is there.
    Done,
}

#[derive(Debug, Default)]
struct Desk {
    action: Option<Action>,
    arrived: Option<Arrived>,
    counters: Counters,
    spare: Spare,
}

/// The algorithm's side of a machine.
#[derive(Clone, Debug)]
pub(super) struct Io {
    pub rank: Rank,
    pub ranks: u32,
    /// Whether control words have 8 bytes instead of 4.
    pub is_wide: bool,
    desk: Arc<Mutex<Desk>>,
}

/// A future that is pending once.
struct Once(bool);

impl Future for Once {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<()> {
        match std::mem::replace(&mut self.0, true) {
            true => Poll::Ready(()),
            false => Poll::Pending,
        }
    }
}

impl Io {
    pub fn new(rank: Rank, ranks: u32, is_wide: bool) -> Io {
        Io {
            rank,
            ranks,
            is_wide,
            desk: Arc::default(),
        }
    }

    /// Tells the algorithm something.
    pub fn put(&self, arrived: Arrived) {
        self.desk().arrived = Some(arrived);
    }

    /// What the algorithm asked for.
    pub fn take(&self) -> Option<Action> {
        self.desk().action.take()
    }

    pub fn counters(&self) -> Counters {
        self.desk().counters
    }

    /// Memory of earlier steps.
    pub fn spare(&self) -> Spare {
        self.desk().spare.clone()
    }

    pub fn reuse(&self, spare: Spare) {
        self.desk().spare = spare;
    }

    fn desk(&self) -> std::sync::MutexGuard<'_, Desk> {
        self.desk.lock().unwrap_or_else(PoisonError::into_inner)
    }

    async fn turn(&self, action: Action) -> Arrived {
        self.desk().action = Some(action);
        Once(false).await;
        let arrived = self.desk().arrived.take();
        arrived.expect("a machine is resumed with what arrived")
    }

    fn count(&self, phase: Phase, count: impl FnOnce(&mut super::counters::Traffic)) {
        count(self.desk().counters.of_mut(phase));
    }

    fn others(&self) -> u64 {
        u64::from(self.ranks) - 1
    }

    /// Starts an exchange; [`Io::wait`] ends it. Messages without bytes are not sent.
    pub async fn start_exchange(
        &self,
        phase: Phase,
        mut sends: Vec<(Rank, Message)>,
        mut receives: Vec<(Rank, u64)>,
    ) {
        sends.retain(|(_, message)| message.bytes > 0);
        receives.retain(|(_, bytes)| *bytes > 0);
        self.count(phase, |traffic| {
            for (_, message) in &sends {
                traffic.messages += 1;
                traffic.bytes_sent += message.bytes;
                traffic.control_words += message.header_bytes.div_ceil(4);
                traffic.data_words_sent += (message.bytes - message.header_bytes).div_ceil(4);
            }
        });
        self.turn(Action::Start(Request::Exchange { sends, receives }))
            .await;
    }

    /// The messages of the started exchange; `header_bytes` of each are no entries.
    pub async fn wait(&self, phase: Phase, header_bytes: u64) -> Vec<Message> {
        let Arrived::Messages(mut messages) = self.turn(Action::Wait).await else {
            panic!("an exchange gives messages")
        };
        self.count(phase, |traffic| {
            for message in &mut messages {
                message.header_bytes = header_bytes;
                traffic.data_words_received += (message.bytes - header_bytes).div_ceil(4);
                traffic.bytes_received += message.bytes - header_bytes;
            }
        });
        messages
    }

    /// Starts an exchange and waits for its messages.
    pub async fn exchange(
        &self,
        phase: Phase,
        sends: Vec<(Rank, Message)>,
        receives: Vec<(Rank, u64)>,
        header_bytes: u64,
    ) -> Vec<Message> {
        self.start_exchange(phase, sends, receives).await;
        self.wait(phase, header_bytes).await
    }

    async fn words(&self, request: Request) -> Vec<u64> {
        self.turn(Action::Start(request)).await;
        match self.turn(Action::Wait).await {
            Arrived::Words(words) => words,
            other => panic!("words were asked for, {other:?} arrived"),
        }
    }

    fn count_words(&self, phase: Phase, words: u64, messages: u64) {
        let words = if self.is_wide { 2 * words } else { words };
        self.count(phase, |traffic| {
            traffic.control_words += words;
            traffic.bytes_sent += 4 * words;
            traffic.messages += messages;
        });
    }

    /// See [`Request::Sum`].
    pub async fn sum(&self, phase: Phase, words: Vec<u64>) -> Vec<u64> {
        if self.ranks == 1 {
            return words;
        }
        let rounds = u64::from(self.ranks.next_power_of_two().trailing_zeros());
        self.count_words(phase, 2 * words.len() as u64, 2 * rounds);
        let is_wide = self.is_wide;
        self.words(Request::Sum { words, is_wide }).await
    }

    /// See [`Request::AllToAll`].
    pub async fn all_to_all(&self, phase: Phase, words: Vec<u64>) -> Vec<u64> {
        if self.ranks == 1 {
            return words;
        }
        self.count_words(phase, self.others(), self.others());
        let is_wide = self.is_wide;
        self.words(Request::AllToAll { words, is_wide }).await
    }

    /// See [`Request::GatherWords`].
    pub async fn gather_words(&self, phase: Phase, words: Vec<u64>) -> Vec<u64> {
        if self.ranks == 1 {
            return words;
        }
        self.count_words(phase, self.others() * words.len() as u64, self.others());
        let is_wide = self.is_wide;
        self.words(Request::GatherWords { words, is_wide }).await
    }

    /// See [`Request::Gather`].
    pub async fn gather(&self, phase: Phase, own: Message, bytes: Vec<u64>) -> Vec<Message> {
        let total: u64 = bytes.iter().sum();
        if self.ranks == 1 || total == 0 {
            return bytes.iter().map(|_| own.clone()).collect();
        }
        let others = total - own.bytes;
        self.count(phase, |traffic| {
            traffic.data_words_sent += others.div_ceil(4);
            traffic.data_words_received += others.div_ceil(4);
            traffic.bytes_sent += others;
            traffic.bytes_received += others;
            traffic.messages += u64::from(self.ranks) - 1;
        });
        self.turn(Action::Start(Request::Gather { own, bytes }))
            .await;
        match self.turn(Action::Wait).await {
            Arrived::Messages(messages) => messages,
            other => panic!("messages were asked for, {other:?} arrived"),
        }
    }
}
