//! How sends and receives with tags of the user start, meet and end (`tagged.rs`).

use super::core::Engine;
use super::round::RoundId;
use super::tag;
use super::tagged::{Message, TaggedCall, Transfer};
use super::task::{TaskCall, TaskId};
use crate::collective;
use crate::error::{Error, Result};
use crate::time::Time;
use crate::types::Rank;

impl Engine {
    /// Starts a send or a receive with a tag.
    pub fn submit_tagged(&mut self, call: TaggedCall, now: Time) -> Result<TaskId> {
        let transfer = call.transfer;
        let (place, is_send) = ((self.rank(), self.ranks()), transfer.source.is_none());
        // A receive from any rank gets its schedule when its sender is known.
        let peer = transfer.peer.unwrap_or(place.0);
        let slots = collective::transfer_slots([call.buffer.len_bytes() as u64].into_iter());
        let task_call = TaskCall::of_one(
            self.tagged.schedule(place, peer, is_send),
            (slots.into(), vec![call.buffer]),
            call.keep,
            call.timeout,
        );
        if let Err(error) = self.admit(&task_call, now) {
            task_call.end(false);
            return Err(error);
        }
        let id = self.tasks.add(task_call, 0, now);
        self.tasks[id.index].transfer = Some(transfer.clone());
        if is_send {
            let sent = &mut self.tagged.sent[peer as usize];
            let first = tag::tagged(transfer.tag, *sent);
            *sent += 1;
            self.start_round(id.index, RoundId::Tagged(first), now);
        } else {
            let mut messages = self.tagged.messages.iter();
            match messages.position(|message| transfer.accepts(message)) {
                Some(at) => {
                    let message = self.tagged.messages.remove(at).expect("it was found");
                    self.start_receive(id.index, &transfer, message);
                }
                None => {
                    self.tagged.waiting.push_back((id.index, transfer));
                    self.fail_receives_of_ended();
                }
            }
        }
        self.driver.links.transport.hand_over();
        Ok(id)
    }

    /// Cancels a receive with a tag that waits for its message; other operations go on. Returns
    /// false if it has met its message, or if the task is something else.
    pub fn cancel_receive(&mut self, id: TaskId) -> bool {
        if self.result(id).is_some() || !self.tagged.forget(id.index) {
            return false;
        }
        let operation = self.tasks[id.index].describe();
        self.end_task(id.index, Err(Error::ReceiveCancelled { operation }));
        true
    }

    /// The transport has a message that no receive waits for.
    pub(super) fn handle_unmatched(&mut self, peer: Rank, tag: u64) {
        if self.failing.cause.is_some() {
            return;
        }
        // Its other chunks come when its receive has taken the first one.
        let Some(first) = tag::tagged_first(tag) else {
            return;
        };
        if let Err(how) = self.tagged.note(peer, first) {
            return self.fail(Error::Malformed(format!("rank {peer}: {how}")), true);
        }
        while let Some(message) = self.tagged.take_up(peer) {
            let mut waiting = self.tagged.waiting.iter();
            match waiting.position(|(_, transfer)| transfer.accepts(&message)) {
                Some(at) => {
                    let (task, transfer) = self.tagged.waiting.remove(at).expect("it was found");
                    self.start_receive(task, &transfer, message);
                }
                None => self.tagged.messages.push_back(message),
            }
        }
    }

    /// A receive has met its message.
    fn start_receive(&mut self, task: usize, transfer: &Transfer, message: Message) {
        if let Some(source) = &transfer.source {
            source.set(message.peer);
        }
        let place = (self.rank(), self.ranks());
        let prepared = self.tagged.schedule(place, message.peer, false);
        let call = self.tasks[task].call.as_mut();
        call.expect("running tasks have calls").prepared = prepared;
        self.tasks[task].last_moved = self.now;
        self.driver.moved = true;
        self.start_round(task, RoundId::Tagged(message.first), self.now);
    }

    /// Ends the receives whose senders have all left. All that those had sent has arrived.
    pub(super) fn fail_receives_of_ended(&mut self) {
        if self.tagged.is_idle() || self.failing.cause.is_some() {
            return;
        }
        let links = &self.driver.links;
        let left = |rank: Rank| rank != links.rank && self.ends_alone(rank);
        let cannot_come = |transfer: &Transfer| match transfer.peer {
            Some(peer) => left(peer).then_some(peer),
            None => (links.ranks > 1 && links.others().all(left))
                .then(|| links.others().last().unwrap_or(0)),
        };
        let waiting = self.tagged.waiting.iter();
        let ended = waiting.filter_map(|(task, transfer)| Some((*task, cannot_come(transfer)?)));
        for (task, rank) in ended.collect::<Vec<_>>() {
            self.tagged.forget(task);
            let operation = self.tasks[task].describe();
            let error = self.error_of_ended(rank, operation);
            self.end_task(task, Err(error));
            self.driver.moved = true;
        }
    }

    /// The peers whose message a receive of this task waits for; none if it does not wait.
    pub(super) fn awaited_by_receive(&self, task: usize) -> Vec<Rank> {
        match self.tagged.of_task(task) {
            None => Vec::new(),
            Some(Transfer {
                peer: Some(peer), ..
            }) => vec![*peer],
            Some(_) => self.driver.links.others().collect(),
        }
    }
}
