//! [`Contexts`]: the memory that each operation lends to the provider until its completion.
//!
//! Providers with the mode `FI_CONTEXT` or `FI_CONTEXT2` keep their own notes in it; the others
//! only hand its address back. There is a fixed number for each completion queue, so what is under
//! way is bounded. Free ones form a stack of indices.

use crate::address::Peer;
use crate::bindings as c;
use crate::memory::Mr;
use std::cell::UnsafeCell;
use std::ffi::c_void;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};

/// What an operation does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Operation {
    /// It writes a peer's memory.
    Write,
    /// It reads a peer's memory.
    Read,
    /// It waits for a peer's message or write.
    Receive,
}

/// What is kept of an operation until its completion: the caller's number for it, and what the
/// provider follows meanwhile.
pub(crate) struct Pending {
    pub id: u64,
    pub operation: Operation,
    pub _region: Option<Arc<Mr>>,
    pub _peer: Option<Arc<Peer>>,
}

struct Slot {
    /// The provider's, while `is_posted`.
    context: UnsafeCell<c::fi_context2>,
    /// The poster's until `is_posted` is set, and then of the one who clears it.
    pending: UnsafeCell<Option<Pending>>,
    is_posted: AtomicBool,
    /// The free slot below this one, plus 1; 0: none.
    below: AtomicU32,
}

/// The contexts of a completion queue.
pub(crate) struct Contexts {
    slots: Box<[Slot]>,
    /// The top of the stack of free slots, plus 1, in the lower half. The upper half counts
    /// changes, so that a thread that was interrupted does not take an old top for the new one.
    top: AtomicU64,
}

// SAFETY: what is pending is Send.
unsafe impl Send for Contexts {}
// SAFETY: a slot belongs to the thread that took its index off the stack, until it is posted, and
// then to the one thread that clears `is_posted`.
unsafe impl Sync for Contexts {}

impl Contexts {
    /// `count` contexts, all free.
    pub fn new(count: u32) -> Contexts {
        let slot = |index| Slot {
            context: UnsafeCell::default(),
            pending: UnsafeCell::new(None),
            is_posted: AtomicBool::new(false),
            below: AtomicU32::new(index),
        };
        Contexts {
            slots: (0..count).map(slot).collect(),
            top: AtomicU64::new(u64::from(count)),
        }
    }

    /// How many there are.
    pub fn len(&self) -> usize {
        self.slots.len()
    }

    /// Begins an operation: its context's address, for the provider. `None` if all are in use.
    #[inline]
    pub fn start(&self, pending: Pending) -> Option<*mut c_void> {
        let slot = &self.slots[self.pop()?];
        // SAFETY: the index was taken off the stack, so no other thread looks at this.
        unsafe { *slot.pending.get() = Some(pending) };
        // Release: a thread that finds the completion finds what is pending.
        slot.is_posted.store(true, Ordering::Release);
        Some(slot.context.get().cast())
    }

    /// Ends the operation with the context at this address, whose completion was read, or whose
    /// posting failed. `None` if there is no such context or it is not in use: completions of a
    /// peer's writes have none.
    #[inline]
    pub fn end(&self, context: *mut c_void) -> Option<Pending> {
        let offset = (context as usize).checked_sub(self.slots.as_ptr() as usize)?;
        let inside = offset.checked_sub(std::mem::offset_of!(Slot, context))?;
        let (index, rest) = (inside / size_of::<Slot>(), inside % size_of::<Slot>());
        let slot = self.slots.get(index).filter(|_| rest == 0)?;
        // Acquire: see `start`.
        if !slot.is_posted.swap(false, Ordering::Acquire) {
            return None;
        }
        // SAFETY: this thread cleared the mark, so no other one looks at this.
        let pending = unsafe { (*slot.pending.get()).take() };
        self.push(index);
        pending
    }

    fn pop(&self) -> Option<usize> {
        // Acquire: of the pushing thread's Release, for `below`.
        let mut top = self.top.load(Ordering::Acquire);
        loop {
            let index = (top as u32).checked_sub(1)? as usize;
            let below = self.slots[index].below.load(Ordering::Relaxed);
            let next = changed(top, below);
            // AcqRel: passes the slots below on to the next thread.
            let swap =
                self.top
                    .compare_exchange_weak(top, next, Ordering::AcqRel, Ordering::Acquire);
            match swap {
                Ok(_) => return Some(index),
                Err(now) => top = now,
            }
        }
    }

    fn push(&self, index: usize) {
        let mut top = self.top.load(Ordering::Relaxed);
        loop {
            self.slots[index].below.store(top as u32, Ordering::Relaxed);
            let next = changed(top, index as u32 + 1);
            // AcqRel: publishes `below` and the slot's contents, and passes on those below it.
            let swap =
                self.top
                    .compare_exchange_weak(top, next, Ordering::AcqRel, Ordering::Relaxed);
            match swap {
                Ok(_) => return,
                Err(now) => top = now,
            }
        }
    }
}

/// The word after `top` whose lower half is `slot`.
fn changed(top: u64, slot: u32) -> u64 {
    ((top >> 32).wrapping_add(1) << 32) | u64::from(slot)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn receive(id: u64) -> Pending {
        Pending {
            id,
            operation: Operation::Receive,
            _region: None,
            _peer: None,
        }
    }

    #[test]
    fn each_context_is_used_by_one_operation_at_a_time() {
        let contexts = Contexts::new(3);
        let used: Vec<_> = (0..3)
            .map(|id| contexts.start(receive(id)).unwrap())
            .collect();
        assert!(contexts.start(receive(9)).is_none(), "all are in use");
        assert!(used[0] != used[1] && used[1] != used[2] && used[0] != used[2]);
        assert_eq!(contexts.end(used[1]).unwrap().id, 1);
        assert!(contexts.end(used[1]).is_none(), "it has ended already");
        assert_eq!(contexts.start(receive(7)), Some(used[1]));
        assert_eq!(contexts.end(used[1]).unwrap().id, 7);
    }

    #[test]
    fn other_addresses_end_nothing() {
        let contexts = Contexts::new(2);
        let used = contexts.start(receive(5)).unwrap();
        let _other = contexts.start(receive(6)).unwrap();
        let around = [-1, 1, 8, 1 << 20].map(|bytes| used.wrapping_byte_offset(bytes));
        for address in [std::ptr::null_mut()].into_iter().chain(around) {
            assert!(contexts.end(address).is_none(), "{address:?} of {used:?}");
        }
        assert_eq!(contexts.end(used).unwrap().id, 5);
        assert!(Contexts::new(0).start(receive(0)).is_none());
    }

    #[test]
    fn threads_never_share_a_context() {
        const ROUNDS: u64 = 20_000;
        let contexts = Contexts::new(3);
        std::thread::scope(|scope| {
            for thread in 0..4 {
                let contexts = &contexts;
                scope.spawn(move || {
                    for round in 0..ROUNDS {
                        let id = thread * ROUNDS + round;
                        let Some(used) = contexts.start(receive(id)) else {
                            continue;
                        };
                        assert_eq!(contexts.end(used).map(|pending| pending.id), Some(id));
                    }
                });
            }
        });
        assert!((0..3).all(|id| contexts.start(receive(id)).is_some()));
        assert!(contexts.start(receive(3)).is_none());
    }
}
