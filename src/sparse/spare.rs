//! [`Spare`]: memory of vectors that are no longer needed, for later ones.
//!
//! A step of BERT's size makes and drops a dozen vectors of ten megabytes. From the system each
//! would come as pages that are cleared one by one at their first use, which takes a third of the
//! communication's time.

use super::message::Seen;
use super::stream::Stream;
use super::window::Window;
use std::sync::{Arc, Mutex, PoisonError};

/// Vectors of each kind that are kept at most: more than one step of Ok-Topk on few ranks has at a
/// time.
const KEPT: usize = 16;

/// Messages that are sent begin at multiples of this, so that no two share a cache line.
pub const MESSAGE_ALIGNMENT: usize = 64;

/// Vectors of earlier steps. Clones share them; a vector that is not given back is freed.
#[derive(Clone, Debug, Default)]
pub struct Spare(Arc<Mutex<Shelves>>);

#[derive(Debug, Default)]
struct Shelves {
    indices: Vec<Vec<u64>>,
    values: Vec<Vec<f32>>,
    bytes: Vec<Vec<u8>>,
    window: Option<Window>,
    outbox: Option<Outbox>,
}

/// Memory that messages are sent from.
#[derive(Debug)]
struct Outbox {
    memory: Seen,
    used_bytes: usize,
}

impl Spare {
    /// An empty stream with room for `count` entries.
    pub fn stream(&self, count: usize) -> Stream {
        let mut shelves = self.shelves();
        let (mut indices, mut values) = (
            take(&mut shelves.indices, count),
            take(&mut shelves.values, count),
        );
        indices.clear();
        values.clear();
        Stream { indices, values }
    }

    /// A vector with room for `count` bytes. It may hold bytes of an earlier use.
    pub fn bytes(&self, count: usize) -> Vec<u8> {
        take(&mut self.shelves().bytes, count)
    }

    /// Keeps a stream's memory.
    pub fn keep(&self, stream: Stream) {
        let mut shelves = self.shelves();
        put(&mut shelves.indices, stream.indices);
        put(&mut shelves.values, stream.values);
    }

    /// Keeps a message's memory.
    pub fn keep_bytes(&self, bytes: Vec<u8>) {
        put(&mut self.shelves().bytes, bytes);
    }

    /// From now on messages may be written into this memory, from its beginning, and are sent from
    /// there.
    pub fn open_outbox(&self, memory: Seen) {
        let used_bytes = 0;
        self.shelves().outbox = Some(Outbox { memory, used_bytes });
    }

    /// What was written there is being sent: nothing more is written until it has been.
    pub fn close_outbox(&self) {
        if let Some(outbox) = &mut self.shelves().outbox {
            outbox.used_bytes = outbox.memory.view().len_bytes();
        }
    }

    /// What was written there has been sent, or never will be.
    pub fn empty_outbox(&self) {
        if let Some(outbox) = &mut self.shelves().outbox {
            outbox.used_bytes = 0;
        }
    }

    /// Room for a message there, if there is any.
    pub(super) fn outbox(&self, bytes: usize) -> Option<Seen> {
        let mut shelves = self.shelves();
        let outbox = shelves.outbox.as_mut()?;
        let start = outbox.used_bytes;
        if bytes > outbox.memory.view().len_bytes().saturating_sub(start) {
            return None;
        }
        outbox.used_bytes = (start + bytes).next_multiple_of(MESSAGE_ALIGNMENT);
        Some(outbox.memory.part(start, bytes))
    }

    pub(super) fn window(&self) -> Window {
        self.shelves().window.take().unwrap_or_default()
    }

    pub(super) fn keep_window(&self, window: Window) {
        self.shelves().window = Some(window);
    }

    fn shelves(&self) -> std::sync::MutexGuard<'_, Shelves> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Takes the smallest that is large enough, else a new one with an eighth more than asked for,
/// because lengths vary from step to step.
fn take<T>(shelf: &mut Vec<Vec<T>>, count: usize) -> Vec<T> {
    let fitting = shelf.iter().enumerate().filter(|v| v.1.capacity() >= count);
    match fitting.min_by_key(|v| v.1.capacity()).map(|v| v.0) {
        Some(place) => shelf.swap_remove(place),
        None => Vec::with_capacity(count + count / 8),
    }
}

fn put<T>(shelf: &mut Vec<Vec<T>>, vector: Vec<T>) {
    if vector.capacity() == 0 {
        return;
    }
    shelf.push(vector);
    if shelf.len() > KEPT {
        let smallest = (0..shelf.len()).min_by_key(|place| shelf[*place].capacity());
        shelf.swap_remove(smallest.unwrap_or(0));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::memory::Region;

    #[test]
    fn memory_comes_back_to_who_asks_for_no_more_than_it_has() {
        let spare = Spare::default();
        let stream = spare.stream(100);
        let place = stream.indices.as_ptr();
        spare.keep(stream);
        let other = spare.clone().stream(110);
        assert_eq!(other.indices.as_ptr(), place);
        assert!(other.indices.is_empty() && other.values.capacity() >= 110);
        assert_ne!(spare.stream(10).indices.as_ptr(), place);
    }

    #[test]
    fn no_more_are_kept_than_a_step_has_use_for_and_the_smallest_go() {
        let spare = Spare::default();
        for bytes in 1..=2 * KEPT {
            spare.keep_bytes(Vec::with_capacity(bytes));
        }
        let kept: Vec<usize> = spare.shelves().bytes.iter().map(Vec::capacity).collect();
        assert_eq!(kept.len(), KEPT);
        assert!(kept.iter().all(|bytes| *bytes > KEPT), "{kept:?}");
    }

    #[test]
    fn messages_are_written_where_they_are_sent_from_while_that_is_free() {
        let (spare, region) = (Spare::default(), Region::private(256).unwrap());
        assert!(spare.outbox(1).is_none());
        let held = Arc::new(());
        spare.open_outbox(Seen::new(region.view(), held));
        let place = |bytes| {
            let seen = spare.outbox(bytes)?;
            Some(seen.view().as_ptr().addr() - region.view().as_ptr().addr())
        };
        assert_eq!(
            [place(65), place(1), place(64)],
            [Some(0), Some(128), Some(192)]
        );
        assert_eq!(place(1), None);
        spare.empty_outbox();
        assert_eq!(place(256), Some(0));
        spare.empty_outbox();
        spare.close_outbox();
        assert_eq!(place(1), None);
    }
}
