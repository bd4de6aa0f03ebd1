//! [`Borrows`]: which bytes of an allocation are in use, and by what, so that a slice never meets
//! an operation.
//!
//! Slices, copies and operations borrow ranges: shared where they read, exclusively where they
//! write. A range that peers could reach when its operation failed stays *failed* for good, because
//! a peer that is only stopped may still write there; copies that tolerate concurrent writes are
//! all that is left for it. Where the operation failed because a rank had left, other ranks may
//! still read the range, so that it can be copied and not written.
//!
//! This module decides and counts. It touches no bytes.

use crate::error::{Error, Result};
use crate::sync::{Arc, Mutex, PoisonError};
use std::any::Any;
use std::ops::Range;

/// How a range is used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access {
    /// Read, by any number of users.
    Shared,
    /// Written, by one.
    Exclusive,
}

/// What uses a range.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum User {
    /// A slice that is held, or a copy that runs.
    Slice,
    /// An operation that has not ended, by name.
    Operation(&'static str),
    /// An operation that failed while peers could write the range.
    Failed(&'static str),
    /// An operation that could not end because a rank had left. Other ranks may still read what it
    /// has sent, and count it.
    GivenUp(&'static str),
    /// Nothing any more: the memory was deregistered, and is its caller's alone.
    Deregistered,
}

impl User {
    /// What the user becomes if its operation fails for this reason.
    fn failed(reason: &Error) -> fn(&'static str) -> User {
        match reason {
            Error::Left { .. } => User::GivenUp,
            _ => User::Failed,
        }
    }

    /// Whether a copy may use the range all the same.
    fn lets_copy(self, access: Access) -> bool {
        match self {
            User::Slice | User::Operation(_) | User::Deregistered => false,
            User::Failed(_) => true,
            User::GivenUp(_) => access == Access::Shared,
        }
    }
}

#[derive(Debug)]
struct Borrow {
    ticket: u64,
    bytes: Range<usize>,
    access: Access,
    user: User,
}

/// The borrows of one allocation. Few at a time: a list.
#[derive(Debug, Default)]
pub struct Borrows {
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    borrows: Vec<Borrow>,
    tickets: u64,
    /// One range around all readers and one around all writers. A use that meets neither needs no
    /// search of the list, as with tensors that are used in the order in which they lie.
    readers: Range<usize>,
    writers: Range<usize>,
}

impl State {
    /// Whether a use of these bytes can meet another one.
    fn may_meet(&self, bytes: &Range<usize>, access: Access) -> bool {
        meet(bytes, &self.writers) || access == Access::Exclusive && meet(bytes, &self.readers)
    }
}

fn meet(one: &Range<usize>, other: &Range<usize>) -> bool {
    one.start.max(other.start) < one.end.min(other.end)
}

fn extend(all: &mut Range<usize>, by: &Range<usize>) {
    *all = match all.start < all.end {
        true => all.start.min(by.start)..all.end.max(by.end),
        false => by.clone(),
    };
}

/// Whether a range of bytes may be used as memory, or only copied.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Condition {
    /// No other use writes it.
    Sound,
    /// A peer may still write it.
    Failed,
}

impl Borrows {
    /// Borrows bytes for a slice.
    pub fn borrow_slice(&self, bytes: Range<usize>, access: Access) -> Result<Held<'_>> {
        let ticket = self.enter(bytes, access, User::Slice, false)?.0;
        Ok(Held {
            borrows: self,
            ticket,
        })
    }

    /// Borrows bytes for a copy. It may also copy bytes whose operation has failed.
    pub fn borrow_copy(
        &self,
        bytes: Range<usize>,
        access: Access,
    ) -> Result<(Held<'_>, Condition)> {
        let (ticket, condition) = self.enter(bytes, access, User::Slice, true)?;
        let held = Held {
            borrows: self,
            ticket,
        };
        Ok((held, condition))
    }

    /// Borrows bytes for an operation with this name that ends before the borrow does.
    #[inline]
    pub fn borrow_operation(
        &self,
        bytes: Range<usize>,
        access: Access,
        name: &'static str,
    ) -> Result<Held<'_>> {
        let ticket = (self.enter(bytes, access, User::Operation(name), false)?).0;
        Ok(Held {
            borrows: self,
            ticket,
        })
    }

    /// Ends the use of the allocation, whose bytes are `all`: every later borrow is an error. Fails
    /// if something uses some of them now, or other ranks may still read them.
    pub fn end(&self, all: Range<usize>) -> Result<()> {
        let user = User::Deregistered;
        self.enter(all, Access::Exclusive, user, true).map(drop)
    }

    fn enter(
        &self,
        bytes: Range<usize>,
        access: Access,
        user: User,
        may_have_failed: bool,
    ) -> Result<(u64, Condition)> {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        let mut condition = Condition::Sound;
        let others = match state.may_meet(&bytes, access) {
            true => &state.borrows[..],
            false => &[],
        };
        for other in others {
            let meets = meet(&other.bytes, &bytes);
            let is_failed = matches!(other.user, User::Failed(_) | User::GivenUp(_));
            let is_shared = access == Access::Shared && other.access == Access::Shared;
            if !meets || is_shared && !is_failed {
                continue;
            }
            if !(may_have_failed && other.user.lets_copy(access)) {
                return Err(in_use(&bytes, other.user));
            }
            condition = Condition::Failed;
        }
        match access {
            Access::Shared => extend(&mut state.readers, &bytes),
            Access::Exclusive => extend(&mut state.writers, &bytes),
        }
        state.tickets += 1;
        let ticket = state.tickets;
        state.borrows.push(Borrow {
            ticket,
            bytes,
            access,
            user,
        });
        Ok((ticket, condition))
    }

    /// Ends a borrow.
    fn leave(&self, ticket: u64) {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        // The latest one first: most borrows end in the reverse of their order.
        if let Some(index) = state.borrows.iter().rposition(|b| b.ticket == ticket) {
            state.borrows.swap_remove(index);
        }
        if state.borrows.is_empty() {
            (state.readers, state.writers) = (0..0, 0..0);
        }
    }

    /// The operation of a borrow has failed, and peers may still reach the bytes.
    fn fail(&self, ticket: u64, failed: fn(&'static str) -> User) {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        let State {
            borrows, writers, ..
        } = &mut *state;
        if let Some(borrow) = borrows.iter_mut().find(|b| b.ticket == ticket)
            && let User::Operation(name) = borrow.user
        {
            borrow.user = failed(name);
            // Even readers meet it from now on.
            extend(writers, &borrow.bytes);
        }
    }
}

/// A borrow that ends when it is dropped.
#[must_use = "the borrow ends when this is dropped"]
#[derive(Debug)]
pub struct Held<'a> {
    borrows: &'a Borrows,
    ticket: u64,
}

impl Held<'_> {
    /// The operation has failed, for this reason, and peers may still reach the bytes.
    pub fn fail(self, reason: &Error) {
        self.borrows.fail(self.ticket, User::failed(reason));
        std::mem::forget(self);
    }

    /// The borrow of an operation that goes on without its caller. `borrows` are those that it was
    /// taken from, and `owner` keeps the memory.
    pub fn keep(
        self,
        borrows: &Arc<Borrows>,
        owner: Arc<dyn Any + Send + Sync>,
        is_reachable: bool,
    ) -> Kept {
        debug_assert!(std::ptr::eq(self.borrows, &**borrows));
        let ticket = self.ticket;
        std::mem::forget(self);
        let borrows = borrows.clone();
        Kept {
            borrow: Some((borrows, ticket)),
            is_reachable,
            owner,
        }
    }
}

impl Drop for Held<'_> {
    fn drop(&mut self) {
        self.borrows.leave(self.ticket);
    }
}

/// What an operation keeps of a buffer until it has ended: the memory, and the borrow of its bytes.
#[derive(Debug)]
pub struct Kept {
    borrow: Option<(Arc<Borrows>, u64)>,
    /// Peers can reach the bytes.
    is_reachable: bool,
    #[expect(dead_code, reason = "keeps the memory")]
    owner: Arc<dyn Any + Send + Sync>,
}

impl Kept {
    /// The memory alone: the caller sees to it that nothing else uses the bytes.
    pub fn owner_only(owner: Arc<dyn Any + Send + Sync>) -> Kept {
        Kept {
            borrow: None,
            is_reachable: false,
            owner,
        }
    }

    /// The operation has ended as it should: no peer uses the bytes any more.
    pub fn end(mut self) {
        if let Some((borrows, ticket)) = self.borrow.take() {
            borrows.leave(ticket);
        }
    }

    /// The operation has failed, for this reason. Bytes that peers cannot reach are free again.
    pub fn fail(&mut self, reason: &Error) {
        self.release(User::failed(reason));
    }

    fn release(&mut self, failed: fn(&'static str) -> User) {
        if let Some((borrows, ticket)) = self.borrow.take() {
            match self.is_reachable {
                true => borrows.fail(ticket, failed),
                false => borrows.leave(ticket),
            }
        }
    }
}

impl Drop for Kept {
    /// An operation that has not ended as it should.
    fn drop(&mut self) {
        self.release(User::Failed);
    }
}

fn in_use(bytes: &Range<usize>, user: User) -> Error {
    let (by, remedy) = match user {
        User::Slice => (
            "a slice or a copy of it".to_string(),
            "drop the slice (BufferRef, BufferMut) first",
        ),
        User::Operation(name) => (
            format!("{name}, which has not ended"),
            "wait for the operation first, or use other elements",
        ),
        User::Failed(name) => (
            format!("{name}, which failed while peers could write there"),
            "copy the elements (Buffer::read, Buffer::write), and allocate another buffer",
        ),
        User::GivenUp(name) => (
            format!(
                "{name}, which a rank that has left kept from its end: others may still read there"
            ),
            "copy the elements (Buffer::read), and allocate another buffer",
        ),
        User::Deregistered => (
            "their caller alone, which has deregistered them".to_string(),
            "register the memory again (Communicator::register), and use the new buffer",
        ),
    };
    Error::InUse {
        bytes: bytes.start as u64..bytes.end as u64,
        by,
        remedy: remedy.into(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn owner() -> Arc<dyn Any + Send + Sync> {
        Arc::new(())
    }

    #[test]
    fn readers_share_and_a_writer_is_alone() {
        let borrows = Borrows::default();
        let first = borrows.borrow_slice(0..8, Access::Shared).unwrap();
        let second = borrows.borrow_slice(4..8, Access::Shared).unwrap();
        assert!(borrows.borrow_slice(7..9, Access::Exclusive).is_err());
        let beside = borrows.borrow_slice(8..16, Access::Exclusive).unwrap();
        assert!(borrows.borrow_slice(0..9, Access::Shared).is_err());
        drop((first, second, beside));
        drop(borrows.borrow_slice(0..16, Access::Exclusive).unwrap());
    }

    #[test]
    fn empty_ranges_meet_nothing() {
        let borrows = Borrows::default();
        let _all = borrows.borrow_slice(0..8, Access::Exclusive).unwrap();
        drop(borrows.borrow_slice(4..4, Access::Exclusive).unwrap());
    }

    #[test]
    fn an_operation_is_named_until_it_has_ended() {
        let borrows = Arc::new(Borrows::default());
        let held = borrows.borrow_operation(0..8, Access::Exclusive, "all_reduce");
        let kept = held.unwrap().keep(&borrows, owner(), true);
        let text = borrows.borrow_slice(0..4, Access::Shared).unwrap_err();
        assert!(text.to_string().contains("all_reduce"), "{text}");
        kept.end();
        drop(borrows.borrow_slice(0..4, Access::Exclusive).unwrap());
    }

    #[test]
    fn what_peers_may_still_write_is_copied_and_never_a_slice() {
        let borrows = Arc::new(Borrows::default());
        let held = borrows.borrow_operation(0..8, Access::Shared, "broadcast");
        drop(held.unwrap().keep(&borrows, owner(), true));
        let text = borrows.borrow_slice(0..8, Access::Shared).unwrap_err();
        assert!(text.to_string().contains("failed"), "{text}");
        let (_copy, condition) = borrows.borrow_copy(0..8, Access::Exclusive).unwrap();
        assert_eq!(condition, Condition::Failed);
        drop(borrows.borrow_slice(8..9, Access::Exclusive).unwrap());
    }

    #[test]
    fn what_others_may_still_read_after_a_leave_is_copied_and_not_written() {
        let borrows = Arc::new(Borrows::default());
        let held = borrows.borrow_operation(0..8, Access::Exclusive, "broadcast");
        let mut kept = held.unwrap().keep(&borrows, owner(), true);
        kept.fail(&Error::Left {
            rank: 2,
            operation: "broadcast".into(),
        });
        drop(borrows.borrow_copy(0..8, Access::Shared).unwrap());
        let text = borrows.borrow_copy(0..8, Access::Exclusive).unwrap_err();
        assert!(text.to_string().contains("has left"), "{text}");
        assert!(borrows.borrow_slice(0..8, Access::Shared).is_err());
    }

    #[test]
    fn what_was_deregistered_is_neither_used_nor_copied() {
        let borrows = Arc::new(Borrows::default());
        let slice = borrows.borrow_slice(3..4, Access::Shared).unwrap();
        assert!(borrows.end(0..8).is_err());
        drop(slice);
        let held = borrows.borrow_operation(0..8, Access::Exclusive, "broadcast");
        drop(held.unwrap().keep(&borrows, owner(), true));
        borrows.end(0..8).unwrap();
        let text = borrows.borrow_slice(7..8, Access::Shared).unwrap_err();
        assert!(text.to_string().contains("failed"), "{text}");
        for access in [Access::Shared, Access::Exclusive] {
            let text = borrows.borrow_copy(0..1, access).unwrap_err().to_string();
            assert!(text.contains("has deregistered them"), "{text}");
        }
        assert!(borrows.end(0..8).is_err());
    }

    #[test]
    fn memory_of_this_process_is_free_after_a_failure() {
        let borrows = Arc::new(Borrows::default());
        let held = borrows.borrow_operation(0..8, Access::Exclusive, "broadcast");
        let reason = Error::internal("as if");
        held.unwrap().keep(&borrows, owner(), false).fail(&reason);
        drop(borrows.borrow_slice(0..8, Access::Exclusive).unwrap());
    }

    #[test]
    fn a_borrow_that_is_forgotten_stays() {
        let borrows = Borrows::default();
        std::mem::forget(borrows.borrow_slice(0..8, Access::Shared).unwrap());
        assert!(borrows.borrow_slice(0..8, Access::Exclusive).is_err());
        drop(borrows.borrow_slice(0..8, Access::Shared).unwrap());
    }
}
