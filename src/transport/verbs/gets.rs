//! Short gets, and atomic operations of the device, that find nothing before them: each leaves with
//! the call, as one post.
//!
//! Anyone who asks for so little waits for it, and what a transfer keeps (`transfers.rs`) costs
//! more instructions than all the rest. What a fault cuts goes on as a transfer; of an atomic
//! operation nobody knows then whether it was done.

use super::device::{PIECES_UNDER_WAY, Registered};
use super::link::{Link, What};
use super::peer::{Kind, Peer, Shared};
use super::sending::AT_ONCE_MAX;
use crate::limits::INLINE_BYTES_MAX;
use crate::memory::{RegionKey, View};
use crate::transport::{Atomic, Outcome};
use linerate_verbs_sys::{Local, Operation, Place};
use std::sync::Arc;

/// One that is under way.
#[derive(Debug)]
pub struct Get {
    token: u64,
    /// Where it goes, and the registered memory that this is in.
    view: View,
    memory: Arc<Registered>,
    /// The peer's region and the offset in it.
    range: (RegionKey, u64),
    atomic: Option<Atomic>,
}

/// What a device is asked to do to get what is there, or to change it.
pub fn operation(atomic: Option<Atomic>, place: Place) -> Operation<'static> {
    match atomic {
        None => Operation::Read(place),
        Some(Atomic::FetchAdd(add)) => Operation::FetchAndAdd { place, add },
        Some(Atomic::CompareSwap { compare, swap }) => Operation::CompareAndSwap {
            place,
            compare,
            swap,
        },
    }
}

impl Peer {
    /// Posts it, if it is one of these; false: nothing has happened.
    #[inline]
    pub fn get_at_once(
        &mut self,
        range: (RegionKey, u64),
        (view, token): (View, u64),
        atomic: Option<Atomic>,
        shared: &mut Shared,
    ) -> bool {
        let bytes = view.len_bytes() as u64;
        let is_short = (1..=INLINE_BYTES_MAX as u64).contains(&bytes);
        if !is_short || !self.is_open_for_gets() {
            return false;
        }
        let rail = self.lead;
        let (Some(target), Some(memory)) = (
            self.target_of(range, bytes),
            shared.regions.get(&view.key()),
        ) else {
            return false;
        };
        let memory = Arc::clone(memory);
        let Some(segment) = memory.segment(rail, view.offset(), bytes) else {
            return false;
        };
        let operation = operation(atomic, target.place(rail, 0));
        let link = self.lead_link().expect("looked at just now");
        let posted = link.post_now(operation, (Local::One(segment), bytes), What::Get);
        self.gets.push_back(Get {
            token,
            view,
            memory,
            range,
            atomic,
        });
        shared.counts.pieces += 1;
        self.note_post(posted, shared);
        self.break_if_asked(rail, shared);
        true
    }

    #[inline]
    fn is_open_for_gets(&mut self) -> bool {
        let is_open = |link: &mut Link| {
            link.under_way() < AT_ONCE_MAX && link.pieces < PIECES_UNDER_WAY && link.has_room()
        };
        self.is_free() && self.send.is_posted() && self.lead_link().is_some_and(is_open)
    }

    /// The first of them has come: a queue pair ends them in order.
    pub fn end_first_get(&mut self, outcome: Outcome, shared: &mut Shared) {
        let Some(get) = self.gets.pop_front() else {
            return;
        };
        let bytes = get.view.len_bytes() as u64;
        if outcome == Outcome::Done {
            shared.counts.written_bytes += bytes;
        }
        if outcome == Outcome::BadKey {
            self.regions.remove(&get.range.0);
        }
        shared.complete(self.rank, get.token, outcome, bytes, 0);
    }

    /// The queue pair has ended before any of them had come.
    pub fn go_on_with_gets(&mut self, shared: &mut Shared) {
        while let Some(first) = self.gets.front() {
            if first.atomic.is_some() {
                self.end_first_get(Outcome::Flushed, shared);
                continue;
            }
            let get = self.gets.pop_front().expect("looked at just now");
            shared.counts.pieces_again += 1;
            let (view, offset) = (get.view, get.view.offset());
            let total = view.len_bytes() as u64;
            let place = (get.memory, offset, None);
            let id = self.insert_transfer(
                Kind::Get,
                (place, total),
                get.range,
                get.token,
                shared.rails.len(),
            );
            self.resolve(id, shared);
        }
    }
}
