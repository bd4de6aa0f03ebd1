//! [`IncomingMessages`]: long messages that one peer writes here, and [`IncomingPuts`]: its long
//! puts, by the numbers that it gave them. Both end when all their pieces have come, in whatever
//! order.

use super::device::Device;
use super::rail::Registered;
use super::record::Record;
use crate::transport::transfers::TRANSFERS_MAX;
use std::collections::BTreeMap;
use std::sync::Arc;

/// A long message that is being written here.
#[derive(Debug)]
pub struct Incoming<D: Device> {
    pub total: u64,
    pub header: u64,
    pub token: u64,
    /// The memory it is written to; `None`: its receive has ended, and its sender does not know
    /// yet.
    pub place: Option<Arc<Registered<D>>>,
    /// Where its first byte is in that memory.
    pub offset: u64,
    /// In how many pieces it comes, and how many of them are missing.
    pub pieces: u32,
    pub missing: u32,
    /// The number of the sender by which these pieces come. Those of before its last grant do not
    /// count.
    pub number: u32,
    /// The sender knows where it goes.
    pub is_told: bool,
    /// The receive ends as cancelled once nothing of the sender is under way.
    pub is_cancelled: bool,
}

/// See the module.
#[derive(Debug)]
pub struct IncomingMessages<D: Device>(BTreeMap<u32, Incoming<D>>);

impl<D: Device> IncomingMessages<D> {
    pub fn new() -> IncomingMessages<D> {
        IncomingMessages(BTreeMap::new())
    }

    pub fn is_known(&self, transfer: u32) -> bool {
        self.0.contains_key(&transfer)
    }

    /// Whether nothing is being written.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub fn insert(&mut self, transfer: u32, incoming: Incoming<D>) {
        self.0.insert(transfer, incoming);
    }

    /// A piece has come; the message, if that was the last one. `None`: there is no such message.
    pub fn count(&mut self, transfer: u32, number: u32) -> Option<Option<Incoming<D>>> {
        let incoming = self.0.get_mut(&transfer)?;
        if incoming.number != number {
            return Some(None);
        }
        incoming.missing = incoming.missing.saturating_sub(1);
        match incoming.missing {
            0 => Some(self.0.remove(&transfer)),
            _ => Some(None),
        }
    }

    /// The sender knows where this message goes.
    pub fn note_told(&mut self, transfer: u32) {
        if let Some(incoming) = self.0.get_mut(&transfer) {
            incoming.is_told = true;
        }
    }

    /// The sender asks where this message goes.
    pub fn forget_told(&mut self, transfer: u32) {
        if let Some(incoming) = self.0.get_mut(&transfer) {
            incoming.is_told = false;
        }
    }

    /// The messages of which the sender does not know where they go.
    pub fn untold(&self) -> Vec<u32> {
        let untold = self.0.iter().filter(|(_, incoming)| !incoming.is_told);
        untold.map(|(&transfer, _)| transfer).collect()
    }

    /// Whether the receive with this token has met a message.
    pub fn has_receive(&self, token: u64) -> bool {
        self.0.values().any(|incoming| is_for(incoming, token))
    }

    /// The receive with this token ends once nothing of the sender is under way.
    pub fn cancel_later(&mut self, token: u64) {
        let mut all = self.0.values_mut();
        if let Some(incoming) = all.find(|incoming| is_for(incoming, token)) {
            incoming.is_cancelled = true;
        }
    }

    /// The receives that end then.
    pub fn cancelled(&self) -> Vec<u64> {
        let is_meant = |incoming: &&Incoming<D>| incoming.is_cancelled && incoming.place.is_some();
        let cancelled = self.0.values().filter(is_meant);
        cancelled.map(|incoming| incoming.token).collect()
    }

    /// The receive with this token ends before its message; false: there is none.
    pub fn cancel(&mut self, token: u64) -> bool {
        let found = self.0.values_mut().find(|incoming| is_for(incoming, token));
        found.map(|incoming| incoming.place = None).is_some()
    }

    /// What the sender, with this number, is told of where its message goes: all pieces come from
    /// now on. A message that nobody wants is over then.
    pub fn grant(&mut self, transfer: u32, number: u32) -> Option<Record> {
        let incoming = self.0.get_mut(&transfer)?;
        (incoming.number, incoming.missing) = (number, incoming.pieces);
        if let Some(place) = &incoming.place {
            return Some(Record::Grant {
                transfer,
                address: place.address() + incoming.offset,
                keys: place.keys(),
            });
        }
        self.0.remove(&transfer);
        Some(Record::Skip { transfer })
    }

    /// The peer is gone: the tokens of the receives.
    pub fn flush(&mut self) -> Vec<u64> {
        let incoming = std::mem::take(&mut self.0).into_values();
        let wanted = incoming.filter(|incoming| incoming.place.is_some());
        wanted.map(|incoming| incoming.token).collect()
    }
}

fn is_for<D: Device>(incoming: &Incoming<D>, token: u64) -> bool {
    incoming.place.is_some() && incoming.token == token
}

/// Long puts of one peer that have not come whole.
#[derive(Debug, Default)]
pub struct IncomingPuts(BTreeMap<u32, Put>);

/// How much of a put has come.
#[derive(Clone, Copy, Debug, Default)]
struct Put {
    /// In how many pieces it comes, once that is known: the first may come before the peer's word.
    pieces: Option<u32>,
    come: u32,
    /// The peer has given it up.
    is_over: bool,
}

impl IncomingPuts {
    /// A piece has come; whether it was the last one.
    pub fn count(&mut self, transfer: u32) -> Result<bool, String> {
        if self.0.len() >= 2 * TRANSFERS_MAX {
            return Err(String::from("it writes more transfers than it may have"));
        }
        self.0.entry(transfer).or_default().come += 1;
        self.end(transfer)
    }

    /// A put comes in this many pieces; whether all have come.
    pub fn begin(&mut self, transfer: u32, pieces: u32) -> Result<bool, String> {
        let put = self.0.entry(transfer).or_default();
        if pieces == 0 || put.pieces.replace(pieces).is_some() {
            return Err(format!(
                "it began put {transfer} of {pieces} pieces wrongly"
            ));
        }
        self.end(transfer)
    }

    /// A put comes once more from the start.
    pub fn begin_again(&mut self, transfer: u32, pieces: u32) {
        let put = Put {
            pieces: Some(pieces),
            ..Put::default()
        };
        self.0.insert(transfer, put);
    }

    /// No more than this many pieces of a put come.
    pub fn give_up(&mut self, transfer: u32, pieces: u32) -> Result<(), String> {
        let put = self.0.entry(transfer).or_default();
        (put.pieces, put.is_over) = (Some(pieces), true);
        self.end(transfer).map(|_| ())
    }

    /// The queues are no more: all pieces of what has not ended come again.
    pub fn begin_all_again(&mut self) {
        self.0.retain(|_, put| put.pieces.is_some() && !put.is_over);
        self.0.values_mut().for_each(|put| put.come = 0);
    }

    fn end(&mut self, transfer: u32) -> Result<bool, String> {
        let put = self.0[&transfer];
        match put.pieces {
            Some(pieces) if put.come > pieces => {
                Err(format!("put {transfer} has more than its {pieces} pieces"))
            }
            Some(pieces) if put.come == pieces => {
                self.0.remove(&transfer);
                Ok(!put.is_over)
            }
            _ => Ok(false),
        }
    }
}
