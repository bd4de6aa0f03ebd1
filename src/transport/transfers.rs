//! [`Transfers`]: long messages, puts and gets that move between this rank and one peer, by number,
//! and the queue of those that can go on. `T` is what a provider keeps of one; what of it is still
//! to be moved is in `pieces.rs`.

use super::PostError;
use std::collections::{BTreeMap, VecDeque};

/// Long transfers that may be under way to one peer.
pub(super) const TRANSFERS_MAX: usize = 1024;

#[derive(Debug)]
struct Entry<T> {
    transfer: T,
    is_queued: bool,
}

/// See the module.
#[derive(Debug)]
pub(super) struct Transfers<T> {
    all: BTreeMap<u64, Entry<T>>,
    next: u64,
    /// Numbers are masked with these bits, so they begin again after the last one.
    mask: u64,
    /// Those that can go on, in order. One may have ended meanwhile.
    queue: VecDeque<u64>,
}

impl<T> Transfers<T> {
    /// Transfers whose numbers have the bits of `mask`.
    pub fn new(mask: u64) -> Transfers<T> {
        Transfers {
            all: BTreeMap::new(),
            next: 1,
            mask,
            queue: VecDeque::new(),
        }
    }

    /// Whether another one may begin.
    pub fn check(&self) -> Result<(), PostError> {
        match self.all.len() >= TRANSFERS_MAX {
            true => Err(PostError::WouldBlock),
            false => Ok(()),
        }
    }

    /// How many have not ended.
    pub fn count(&self) -> usize {
        self.all.len()
    }

    /// Adds one and gives its number, which no other transfer under way has.
    pub fn insert(&mut self, transfer: T) -> u64 {
        let id = loop {
            let id = self.next & self.mask;
            self.next += 1;
            if !self.all.contains_key(&id) {
                break id;
            }
        };
        let is_queued = false;
        self.all.insert(
            id,
            Entry {
                transfer,
                is_queued,
            },
        );
        id
    }

    /// The number of the next one, if it is free.
    pub fn next(&self) -> u64 {
        self.next
    }

    #[inline]
    pub fn get(&self, id: u64) -> Option<&T> {
        self.all.get(&id).map(|entry| &entry.transfer)
    }

    #[inline]
    pub fn get_mut(&mut self, id: u64) -> Option<&mut T> {
        self.all.get_mut(&id).map(|entry| &mut entry.transfer)
    }

    /// Ends one.
    pub fn remove(&mut self, id: u64) -> Option<T> {
        self.all.remove(&id).map(|entry| entry.transfer)
    }

    /// The numbers of all that are meant.
    pub fn ids(&self, is_meant: impl Fn(&T) -> bool) -> Vec<u64> {
        let meant = (self.all.iter()).filter(|(_, entry)| is_meant(&entry.transfer));
        meant.map(|(&id, _)| id).collect()
    }

    /// All that have not ended.
    pub fn iter(&self) -> impl Iterator<Item = &T> {
        self.all.values().map(|entry| &entry.transfer)
    }

    /// Lets a transfer go on, behind those that already can.
    pub fn enqueue(&mut self, id: u64) {
        if let Some(entry) = self.all.get_mut(&id)
            && !std::mem::replace(&mut entry.is_queued, true)
        {
            self.queue.push_back(id);
        }
    }

    /// Lets a transfer go on before all others.
    pub fn enqueue_first(&mut self, id: u64) {
        if let Some(entry) = self.all.get_mut(&id) {
            if std::mem::replace(&mut entry.is_queued, true) {
                self.queue.retain(|&queued| queued != id);
            }
            self.queue.push_front(id);
        }
    }

    /// Whether this one is in the queue.
    pub fn is_queued(&self, id: u64) -> bool {
        self.all.get(&id).is_some_and(|entry| entry.is_queued)
    }

    /// How many are in the queue, with those that have ended meanwhile.
    #[inline]
    pub fn queued_count(&self) -> usize {
        self.queue.len()
    }

    /// The next one that can go on.
    pub fn first(&mut self) -> Option<u64> {
        loop {
            let id = *self.queue.front()?;
            if self.is_queued(id) {
                return Some(id);
            }
            self.queue.pop_front();
        }
    }

    /// Takes the next one that can go on out of the queue.
    pub fn pop_first(&mut self) -> Option<u64> {
        let id = self.first()?;
        self.queue.pop_front();
        self.all.get_mut(&id)?.is_queued = false;
        Some(id)
    }

    /// Lets none go on, and does `then` to each.
    pub fn stop(&mut self, mut then: impl FnMut(&mut T)) {
        self.queue.clear();
        for entry in self.all.values_mut() {
            entry.is_queued = false;
            then(&mut entry.transfer);
        }
    }

    /// The peer is gone: takes out all of them.
    pub fn flush(&mut self) -> impl Iterator<Item = T> + use<T> {
        self.queue.clear();
        let all = std::mem::take(&mut self.all).into_values();
        all.map(|entry| entry.transfer)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_come_again_but_for_those_under_way() {
        let mut transfers = Transfers::new(3);
        let ids: Vec<u64> = (0..3).map(|i| transfers.insert(i)).collect();
        assert_eq!(ids, [1, 2, 3]);
        transfers.remove(3);
        assert_eq!((transfers.insert(9), transfers.insert(9)), (0, 3));
        assert_eq!(transfers.get(3), Some(&9));
        assert_eq!(transfers.flush().collect::<Vec<i32>>(), [9, 0, 1, 9]);
    }

    #[test]
    fn each_is_queued_once_and_those_that_have_ended_are_passed_over() {
        let mut transfers = Transfers::new(u64::MAX);
        let [a, b, c] = ['a', 'b', 'c'].map(|name| transfers.insert(name));
        for id in [a, b, a, c] {
            transfers.enqueue(id);
        }
        transfers.enqueue_first(c);
        transfers.remove(a);
        assert_eq!(transfers.pop_first(), Some(c));
        assert_eq!([b, c].map(|id| transfers.is_queued(id)), [true, false]);
        assert_eq!((transfers.first(), transfers.queued_count()), (Some(b), 1));
        transfers.stop(|name| *name = 'x');
        assert_eq!((transfers.first(), transfers.get(b)), (None, Some(&'x')));
        assert_eq!(transfers.ids(|&name| name == 'x'), [b, c]);
        assert_eq!(transfers.iter().count(), transfers.count());
    }
}
