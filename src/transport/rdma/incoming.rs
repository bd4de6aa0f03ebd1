//! [`IncomingMessages`]: long messages that one peer writes here, by the numbers that it gave them.

use super::device::Device;
use super::rail::Registered;
use super::record::Record;
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

    /// The numbers of all.
    pub fn transfers(&self) -> Vec<u32> {
        self.0.keys().copied().collect()
    }

    pub fn insert(&mut self, transfer: u32, incoming: Incoming<D>) {
        self.0.insert(transfer, incoming);
    }

    pub fn take(&mut self, transfer: u32) -> Option<Incoming<D>> {
        self.0.remove(&transfer)
    }

    /// Whether the receive with this token has met a message.
    pub fn has_receive(&self, token: u64) -> bool {
        self.0.values().any(|incoming| is_for(incoming, token))
    }

    /// The receive with this token ends before its message; false: there is none.
    pub fn cancel(&mut self, token: u64) -> bool {
        let found = self.0.values_mut().find(|incoming| is_for(incoming, token));
        found.map(|incoming| incoming.place = None).is_some()
    }

    /// What the sender is told of where its message goes. A message that nobody wants is over then.
    pub fn grant(&mut self, transfer: u32) -> Option<Record> {
        let incoming = self.0.get(&transfer)?;
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
