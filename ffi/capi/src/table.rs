//! The table of handles: a number of 64 bits names an object, and a number whose object is gone is
//! an error.
//!
//! ```text
//! handle = kind (8 bits) | generation (32) | slot (24)
//! state of a slot = generation (32) | closed (1) | users (31)
//! ```
//!
//! A look-up takes no lock: it adds a user to the state of the slot if generation and kind fit, and
//! only then touches the object. Freeing closes the slot, so that later look-ups fail; the last
//! user takes the object out, and the slot is used again with the next generation. A slot whose
//! generations are used up stays closed for ever.
//!
//! Nothing here sleeps, so that a child that was forked in the middle of a call of another thread
//! gets its errors, too.
#![allow(unsafe_code)]

use std::cell::UnsafeCell;
use std::sync::atomic::{AtomicPtr, AtomicU32, AtomicU64, Ordering};

const CHUNK_SLOTS: usize = 1 << 10;
const CHUNKS: usize = 1 << 10;
/// A million objects at once; the handle has room for sixteen.
pub(crate) const SLOTS_MAX: usize = CHUNK_SLOTS * CHUNKS;
const SLOT_BITS: u32 = 24;
const CLOSED: u64 = 1 << 31;
const USERS: u64 = CLOSED - 1;

const _: () = assert!(SLOTS_MAX <= 1 << SLOT_BITS);

struct Slot<T> {
    state: AtomicU64,
    /// The next free slot plus one; 0 ends the list.
    next: AtomicU32,
    kind: AtomicU32,
    object: UnsafeCell<Option<T>>,
}

/// Objects of type `T` by handle.
pub struct Table<T> {
    chunks: [AtomicPtr<[Slot<T>; CHUNK_SLOTS]>; CHUNKS],
    /// How many slots have been used at least once.
    used: AtomicU32,
    /// A number that grows with each change (32 bits), then the first free slot plus one (32).
    free: AtomicU64,
}

// SAFETY: `object` is written by the one thread that owns a closed slot without users, and read by
// users of an open one only, who may be several threads: so `T` must be Send and Sync. Everything
// else is atomic.
unsafe impl<T: Send + Sync> Sync for Table<T> {}

/// A handle that names nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unknown {
    /// No object ever had it, or its object has another kind: the kind of the handle.
    Foreign(u8),
    /// Its object was freed.
    Freed,
}

/// A user of an object, which lives at least as long as this.
pub struct Pinned<'a, T: Send + Sync> {
    table: &'a Table<T>,
    slot: &'a Slot<T>,
    index: u32,
}

impl<T: Send + Sync> Table<T> {
    /// An empty table.
    pub const fn new() -> Table<T> {
        Table {
            chunks: [const { AtomicPtr::new(std::ptr::null_mut()) }; CHUNKS],
            used: AtomicU32::new(0),
            free: AtomicU64::new(0),
        }
    }

    /// Puts an object in and returns its handle, which is not 0. The object comes back if a million
    /// are in use.
    pub fn insert(&self, kind: u8, object: T) -> Result<u64, T> {
        let Some(index) = self.pop_free().or_else(|| self.take_new()) else {
            return Err(object);
        };
        let slot = self.slot(index).expect("its chunk was made with it");
        // SAFETY: the slot is closed and has no users, and this thread alone has taken it from the
        // list.
        unsafe { *slot.object.get() = Some(object) };
        slot.kind.store(u32::from(kind), Ordering::Relaxed);
        let generation = (slot.state.load(Ordering::Relaxed) >> 32) + 1;
        // Release: publishes object and kind to the look-up that finds this generation.
        slot.state.store(generation << 32, Ordering::Release);
        Ok(u64::from(kind) << 56 | generation << SLOT_BITS | u64::from(index))
    }

    /// The object of this handle, if it is of this kind.
    #[inline]
    pub fn get(&self, kind: u8, handle: u64) -> Result<Pinned<'_, T>, Unknown> {
        let (slot, index) = self.find(kind, handle)?;
        self.change(slot, handle, |state| state + 1)?;
        Ok(Pinned {
            table: self,
            slot,
            index,
        })
    }

    /// Ends a handle. The object is dropped by its last user: here, if nobody uses it now.
    pub fn remove(&self, kind: u8, handle: u64) -> Result<(), Unknown> {
        let (slot, index) = self.find(kind, handle)?;
        let state = self.change(slot, handle, |state| (state + 1) | CLOSED)?;
        debug_assert!(state & CLOSED == 0);
        drop(Pinned {
            table: self,
            slot,
            index,
        });
        Ok(())
    }

    fn find(&self, kind: u8, handle: u64) -> Result<(&Slot<T>, u32), Unknown> {
        let (own, index) = (
            (handle >> 56) as u8,
            (handle & ((1 << SLOT_BITS) - 1)) as u32,
        );
        let slot = self.slot(index).ok_or(Unknown::Foreign(own))?;
        let generation = handle >> SLOT_BITS & u64::from(u32::MAX);
        // Acquire: the kind is that of this generation or of a later one.
        let now = slot.state.load(Ordering::Acquire) >> 32;
        if own != kind || generation == 0 || generation > now {
            return Err(Unknown::Foreign(own));
        }
        if generation == now && slot.kind.load(Ordering::Relaxed) != u32::from(kind) {
            return Err(Unknown::Foreign(own));
        }
        Ok((slot, index))
    }

    /// Changes the state of an open slot of the handle's generation.
    #[inline]
    fn change(&self, slot: &Slot<T>, handle: u64, to: impl Fn(u64) -> u64) -> Result<u64, Unknown> {
        let generation = handle >> SLOT_BITS & u64::from(u32::MAX);
        let may = |state: u64| state >> 32 == generation && state & CLOSED == 0;
        // Acquire: what `insert` has published is seen by this user.
        (slot.state)
            .fetch_update(Ordering::Acquire, Ordering::Relaxed, |state| {
                may(state).then(|| to(state))
            })
            .map_err(|_| Unknown::Freed)
    }

    #[inline]
    fn slot(&self, index: u32) -> Option<&Slot<T>> {
        let chunk = self.chunks.get(index as usize / CHUNK_SLOTS)?;
        // Acquire: the chunk is initialised.
        let chunk = chunk.load(Ordering::Acquire);
        // SAFETY: a chunk is made by `take_new`, never moved, and freed with the table only.
        let chunk = unsafe { chunk.as_ref() }?;
        Some(&chunk[index as usize % CHUNK_SLOTS])
    }

    fn pop_free(&self) -> Option<u32> {
        let mut head = self.free.load(Ordering::Acquire);
        loop {
            let index = (head as u32).checked_sub(1)?;
            let slot = self.slot(index).expect("a free slot has been used");
            let next = u64::from(slot.next.load(Ordering::Relaxed));
            let new = (head >> 32).wrapping_add(1) << 32 | next;
            // Acquire: `next` and the empty object are those of the thread that pushed the slot.
            // The growing number tells a head that came back from one that stayed.
            match (self.free).compare_exchange_weak(head, new, Ordering::Acquire, Ordering::Acquire)
            {
                Ok(_) => return Some(index),
                Err(now) => head = now,
            }
        }
    }

    fn push_free(&self, slot: &Slot<T>, index: u32) {
        let mut head = self.free.load(Ordering::Relaxed);
        loop {
            slot.next.store(head as u32, Ordering::Relaxed);
            let new = (head >> 32).wrapping_add(1) << 32 | u64::from(index + 1);
            // Release: publishes `next` and the empty object to the thread that pops the slot.
            match (self.free).compare_exchange_weak(head, new, Ordering::Release, Ordering::Relaxed)
            {
                Ok(_) => return,
                Err(now) => head = now,
            }
        }
    }

    /// A slot that was never used; `None` if all have been.
    fn take_new(&self) -> Option<u32> {
        let next = |used: u32| (used < SLOTS_MAX as u32).then_some(used + 1);
        let index = (self.used)
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, next)
            .ok()?;
        let place = &self.chunks[index as usize / CHUNK_SLOTS];
        if place.load(Ordering::Acquire).is_null() {
            let slots: Box<[Slot<T>]> = (0..CHUNK_SLOTS).map(|_| Slot::empty()).collect();
            let chunk = Box::into_raw(slots).cast::<[Slot<T>; CHUNK_SLOTS]>();
            let null = std::ptr::null_mut();
            // Release: publishes the chunk's slots.
            let placed = place.compare_exchange(null, chunk, Ordering::Release, Ordering::Relaxed);
            if placed.is_err() {
                // SAFETY: another thread was faster; nobody else has seen this chunk, which comes
                // from a box of as many slots.
                drop(unsafe { Box::from_raw(chunk) });
            }
        }
        Some(index)
    }
}

impl<T> Slot<T> {
    fn empty() -> Slot<T> {
        Slot {
            state: AtomicU64::new(CLOSED),
            next: AtomicU32::new(0),
            kind: AtomicU32::new(0),
            object: UnsafeCell::new(None),
        }
    }
}

impl<T: Send + Sync> std::ops::Deref for Pinned<'_, T> {
    type Target = T;

    fn deref(&self) -> &T {
        // SAFETY: this user is counted in the state, and only the last user of a closed slot
        // changes the object.
        let object = unsafe { &*self.slot.object.get() };
        object.as_ref().expect("an open slot has an object")
    }
}

impl<T: Send + Sync> Drop for Pinned<'_, T> {
    fn drop(&mut self) {
        // Release: what this user did with the object comes before it is dropped. Acquire: the last
        // user sees what the others did.
        let before = self.slot.state.fetch_sub(1, Ordering::AcqRel);
        if before & CLOSED == 0 || before & USERS != 1 {
            return;
        }
        // SAFETY: the slot is closed and this was its last user, so nobody else has the object.
        let object = unsafe { (*self.slot.object.get()).take() };
        if before >> 32 < u64::from(u32::MAX) {
            self.table.push_free(self.slot, self.index);
        }
        // After the slot is whole again: a drop may take long, or panic.
        drop(object);
    }
}

impl<T> Drop for Table<T> {
    fn drop(&mut self) {
        for chunk in &mut self.chunks {
            let chunk = *chunk.get_mut();
            if !chunk.is_null() {
                // SAFETY: `take_new` has made it of a box, and the table is not used any more.
                drop(unsafe { Box::from_raw(chunk) });
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Arc;
    use std::sync::atomic::AtomicBool;

    const KIND: u8 = 3;

    #[test]
    fn a_handle_names_its_object_until_it_is_removed() {
        let table = Table::new();
        let handle = table.insert(KIND, "one").unwrap();
        assert_eq!(*table.get(KIND, handle).ok().unwrap(), "one");
        assert_eq!(
            table.get(KIND + 1, handle).err(),
            Some(Unknown::Foreign(KIND))
        );
        table.remove(KIND, handle).unwrap();
        assert_eq!(table.get(KIND, handle).err(), Some(Unknown::Freed));
        assert_eq!(table.remove(KIND, handle).err(), Some(Unknown::Freed));
        let next = table.insert(KIND, "two").unwrap();
        assert_ne!(next, handle);
        assert_eq!(next as u32 & 0xff_ffff, handle as u32 & 0xff_ffff);
        assert_eq!(table.get(KIND, handle).err(), Some(Unknown::Freed));
        assert_eq!(*table.get(KIND, next).ok().unwrap(), "two");
    }

    #[test]
    fn numbers_that_were_never_handles_are_errors() {
        let table = Table::new();
        let handle = table.insert(KIND, ()).unwrap();
        let made_up = [
            0,
            1,
            u64::MAX,
            handle + 1,
            handle + (1 << SLOT_BITS),
            !handle,
        ];
        let bits = (0..64).map(|bit| handle ^ 1 << bit);
        for number in made_up.into_iter().chain(bits) {
            assert!(table.get(KIND, number).is_err(), "{number:#x}");
            assert!(table.remove(KIND, number).is_err(), "{number:#x}");
        }
        assert!(table.get(KIND, handle).is_ok());
    }

    #[test]
    fn an_object_outlives_its_handle_while_it_is_used() {
        let (table, object) = (Table::new(), Arc::new(()));
        let handle = table.insert(KIND, object.clone()).unwrap();
        let (first, second) = (table.get(KIND, handle), table.get(KIND, handle));
        table.remove(KIND, handle).unwrap();
        drop(first);
        assert_eq!(Arc::strong_count(&object), 2);
        let other = table.insert(KIND, object.clone()).unwrap();
        assert_ne!(other & 0xff_ffff, handle & 0xff_ffff, "its slot is in use");
        drop(second);
        assert_eq!(Arc::strong_count(&object), 2);
        drop(table);
        assert_eq!(Arc::strong_count(&object), 1);
    }

    #[test]
    fn a_slot_without_generations_is_not_used_again() {
        let table = Table::new();
        let first = table.insert(KIND, 1).unwrap();
        let slot = table.slot(0).unwrap();
        table.remove(KIND, first).unwrap();
        slot.state
            .store((u64::from(u32::MAX) - 1) << 32 | CLOSED, Ordering::Relaxed);
        let last = table.insert(KIND, 2).unwrap();
        assert_eq!(*table.get(KIND, last).ok().unwrap(), 2);
        table.remove(KIND, last).unwrap();
        let next = table.insert(KIND, 3).unwrap();
        assert_eq!(next & 0xff_ffff, 1);
        assert!(table.get(KIND, first).is_err() && table.get(KIND, last).is_err());
    }

    /// An object that knows whether it is alive.
    struct Alive(AtomicBool);

    impl Drop for Alive {
        fn drop(&mut self) {
            assert!(self.0.swap(false, Ordering::SeqCst), "dropped twice");
        }
    }

    #[test]
    fn threads_never_see_a_freed_object() {
        const HANDLES: usize = 64;
        let table = Table::new();
        let make = || {
            let object = Alive(AtomicBool::new(true));
            table.insert(KIND, object).ok().unwrap()
        };
        let shared: Vec<AtomicU64> = (0..HANDLES).map(|_| AtomicU64::new(make())).collect();
        let (table, shared) = (&table, &shared);
        std::thread::scope(|scope| {
            for thread in 0..4usize {
                scope.spawn(move || {
                    for turn in 0..20_000usize {
                        let place = &shared[(turn * 7 + thread * 13) % HANDLES];
                        let handle = place.load(Ordering::Relaxed);
                        if let Ok(object) = table.get(KIND, handle) {
                            assert!(object.0.load(Ordering::SeqCst), "read after it was freed");
                        }
                        if turn % 4 == thread && table.remove(KIND, handle).is_ok() {
                            place.store(make(), Ordering::Relaxed);
                        }
                    }
                });
            }
        });
        for place in shared {
            table.remove(KIND, place.load(Ordering::Relaxed)).unwrap();
        }
        let used = table.used.load(Ordering::Relaxed) as usize;
        assert!(used <= HANDLES + 8, "{used} slots for {HANDLES} objects");
    }
}
