//! Atomic operations by the processor of the word's owner: a record asks, another one answers.
//!
//! Positions of the ring come exactly once, also where queues are replaced, so that these
//! operations are done exactly once. A device does them faster, but they are not atomic with what
//! processors do, and after a fault nobody knows whether they were done:
//! [`VerbsSettings::has_device_atomics`].
//!
//! [`VerbsSettings::has_device_atomics`]: crate::config::VerbsSettings::has_device_atomics

use super::Peer;
use crate::kernel;
use crate::memory::View;
use crate::transport::rdma::device::Device;
use crate::transport::rdma::outbox::About;
use crate::transport::rdma::record::Record;
use crate::transport::rdma::shared::Shared;
use crate::transport::requests::REQUESTS_MAX;
use crate::transport::{Atomic, Outcome, PostError, RemoteRange};

/// Records that may wait for positions of the peer's ring, answers among them: a peer that takes
/// its answers has fewer.
const WAITING_MAX: usize = 4 * REQUESTS_MAX as usize;

impl<D: Device> Peer<D> {
    /// Asks the peer to change a word.
    pub fn ask_change(
        &mut self,
        what: Atomic,
        word: RemoteRange,
        result: View,
        token: u64,
        shared: &mut Shared<D>,
    ) -> Result<(), PostError> {
        self.check_room(shared)?;
        let id = self.changes.begin(result, token)?;
        let (compare, operand) = what.operands();
        let record = Record::Change {
            id: id as u32,
            key: word.key.0,
            offset: word.offset,
            compare,
            operand,
        };
        self.push(record, View::empty(), About::Nothing, shared);
        Ok(())
    }

    /// Does what the peer asks for.
    pub(super) fn handle_change(
        &mut self,
        id: u32,
        word: RemoteRange,
        what: Atomic,
        shared: &mut Shared<D>,
    ) -> Result<(), String> {
        if self.outbox.waiting_count() >= WAITING_MAX {
            return Err(format!(
                "it has more than {REQUESTS_MAX} atomic operations under way"
            ));
        }
        let before = shared.regions.change(word, what);
        let record = Record::Changed { id, before };
        self.push(record, View::empty(), About::Nothing, shared);
        Ok(())
    }

    /// The peer has done it, or has no such word.
    pub(super) fn handle_changed(
        &mut self,
        id: u32,
        before: Option<u64>,
        shared: &mut Shared<D>,
    ) -> Result<(), String> {
        let asked = self.changes.end(u64::from(id));
        let (result, token) =
            asked.ok_or_else(|| format!("it answers atomic operation {id}, which nobody asked"))?;
        let outcome = match before {
            Some(before) => {
                kernel::write(result, 0, &before.to_ne_bytes());
                Outcome::Done
            }
            None => Outcome::BadKey,
        };
        shared.ends.complete(self.rank, token, outcome, 8, 0);
        Ok(())
    }
}
